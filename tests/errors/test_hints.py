"""Hints that lead out: each mistake's fix by its exact text, and the spec with the fix put in, which is right."""

from __future__ import annotations

import pytest
import torch

import attngen
from attngen import api
from attngen.analyse import analyse
from attngen.analyse.doubts import doubts
from attngen.errors import Source, SpecError
from attngen.syntax.parser import parse


def source(statements: str) -> Source:
    return Source(f"attention a\n{statements}\n", "spec.attn")


def fixes(statements: str) -> list[str]:
    text = source(statements)
    with pytest.raises(SpecError) as caught:
        analyse(parse(text), text)
    return [d.fix for d in caught.value.diagnostics]


ADDITIVE = (
    "where 0 keeps a pair and -inf drops it, write m[b, k] == 0, or add it to the score; "
    "where 1 keeps and 0 drops, write m[b, k] != 0"
)
ROWS = "write q for the position, or qk for the product of the query's and the key's row"
KEYS = "did you mean Sk, the number of keys, or Sq, of queries?"


def outside(name: str) -> str:
    computed = f"compute it before the call, declare `param {name}s: f32[B, Sk]`, and read {name}s[b, k]"
    return f"a score is of one pair: {computed}"


POSITIONS = ["did you mean k, the key's position?", "did you mean q, the query's position?"]
M = "param m: f32[B, Sk]\n"
# (statements, fixes, the statements with the fix put in)
WRITTEN = [
    (
        f"{M}mask = m[b, k]",
        [ADDITIVE],
        [f"{M}mask = m[b, k] == 0", f"{M}score = qk + m[b, k]", f"{M}mask = m[b, k] != 0"],
    ),
    (f"{M}mask = causal and m[b, k]", [ADDITIVE], [f"{M}mask = causal and m[b, k] == 0"]),
    (f"{M}score = qk if m[b, k] else -inf", [ADDITIVE], [f"{M}score = qk if m[b, k] == 0 else -inf"]),
    (f"{M}mask = not m[b, k]", ["write m[b, k] != 0"], [f"{M}mask = not m[b, k] != 0"]),
    *(
        (f"score = {name}(qk)", [outside(name)], [f"param {name}s: f32[B, Sk]\nscore = qk + {name}s[b, k]"])
        for name in ("cumsum", "sum", "mean", "prod", "argmax", "any")
    ),
    (
        "score = softmax(qk * scale)",
        ["a score is of one pair: the normalizer takes the softmax, so write its argument"],
        ["score = qk * scale"],
    ),
    ("score = q[0] + qk", [ROWS], ["score = q + qk"]),
    ("score = q[0] * k[0]", [ROWS, ROWS.replace("write q", "write k")], ["score = qk"]),
    (
        "mask = j <= i",
        ["did you mean k, the key's position?", "did you mean q, the query's position?"],
        ["mask = k <= q"],
    ),
    (
        "mask = n <= m",
        ["did you mean k, the key's position?", "did you mean q, the query's position?"],
        ["mask = k <= q"],
    ),
    *((f"score = qk / {s}", [KEYS], ["score = qk / Sk", "score = qk / Sq"]) for s in "SNLT"),
    ("score = qk / H", ["did you mean Hq, the number of query heads?"], ["score = qk / Hq"]),
    ("score = qk / num_heads", ["write `Hq`"], ["score = qk / Hq"]),
    ("score = q @ k", ["write `qk` for the product of the query's and the key's row"], ["score = qk"]),
    ("score = matmul(q, k)", ["write `qk`"], ["score = qk"]),
]


@pytest.mark.parametrize(("wrong", "told", "mended"), WRITTEN, ids=[w[0].split("\n")[-1] for w in WRITTEN])
def test_what_is_written(wrong: str, told: list[str], mended: list[str]) -> None:
    assert fixes(wrong) == told
    for statements in mended:
        analyse(parse(source(statements)), source(statements))


def test_a_float_mask_read_as_the_hint_says() -> None:
    """An additive mask compared with 0, and added to the score, drops the same keys."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = torch.randn(3, 2, 1, 12, 16, generator=generator)
    keep = torch.rand(2, 12, generator=generator) < 0.6
    additive = torch.where(keep, 0.0, -torch.inf)
    weights = (q @ k.mT / 4 + additive[:, None, None, :]).softmax(-1)
    for statements, m in (
        ("mask = m[b, k] == 0", additive),
        ("score = qk * scale + m[b, k]", additive),
        ("mask = m[b, k] != 0", keep.float()),
    ):
        kernel = attngen.compile(f"attention a\n{M}{statements}\n", "torch")
        torch.testing.assert_close(kernel(q, k, v, m=m), weights @ v)


LENGTH, PAIR, GATE = "param length: int", "param pair: f32[nb, Sq, Sk]\n", "param g: f32[B, Sk]\n"
DECAY = "param g: f32[Hq]"
# (statements, the fix, the statements with the fix put in)
PROVED = [
    (
        f"{PAIR}param rows: int where rows > 0\nscore = qk + pair[b // rows, q, k]",
        "add `assume B <= nb * rows`",
        f"{PAIR}param rows: int where rows > 0\nassume B <= nb * rows\nscore = qk + pair[b // rows, q, k]",
    ),
    (
        "param t: f32[n]\nparam w: int\nscore = qk + t[clamp(q - k, 0, w)]",
        "add `assume w < n and 0 <= w`",
        "param t: f32[n]\nparam w: int\nassume w < n and 0 <= w\nscore = qk + t[clamp(q - k, 0, w)]",
    ),
    (
        "param t: f32[n]\nparam w: int\nscore = qk + t[h % w]",
        "add `assume w <= n and 0 <= w`",
        "param t: f32[n]\nparam w: int\nassume w <= n and 0 <= w\nscore = qk + t[h % w]",
    ),
    (f"{LENGTH}\nscore = qk / length", "add `where length >= 1`", f"{LENGTH} where length >= 1\nscore = qk / length"),
    (
        f"{LENGTH}[B]\nmask = q // length[b] == k // length[b]",
        "add `where length >= 1`",
        f"{LENGTH}[B] where length >= 1\nmask = q // length[b] == k // length[b]",
    ),
    (
        f"{LENGTH}\nscore = qk * log(q + 1) / log(length)",
        "add `where length >= 2`",
        f"{LENGTH} where length >= 2\nscore = qk * log(q + 1) / log(length)",
    ),
    (
        "param c: f32 where c > 0\nscore = qk / log(c)",
        "add `and c > 1` to the `where` of `c`",
        "param c: f32 where c > 0 and c > 1\nscore = qk / log(c)",
    ),
    (
        f"{GATE}score = qk + log(clamp(g[b, k], 0.0, 1.0))",
        "write log(clamp(g[b, k], 1e-6, 1.0)), or mask such pairs",
        f"{GATE}score = qk + log(clamp(g[b, k], 1e-6, 1.0))",
    ),
    (
        f"{GATE}score = qk + log2(max(g[b, k], 0.0))",
        "write log2(max(g[b, k], 1e-6)), or mask such pairs",
        f"{GATE}score = qk + log2(max(g[b, k], 1e-6))",
    ),
    (
        f"{GATE}score = qk + log(g[b, k] - g[b, q])",
        "write log(max(g[b, k] - g[b, q], 1e-6)), or mask such pairs",
        f"{GATE}score = qk + log(max(g[b, k] - g[b, q], 1e-6))",
    ),
    (
        f"{DECAY}\nscore = qk * g[h] ** (q - k)",
        "write g[h] ** distance, with `causal` in the mask; add `where 0 < g <= 1`",
        f"{DECAY} where 0 < g <= 1\nscore = qk * g[h] ** distance\nmask = causal",
    ),
    (
        f"{DECAY} where 0 < g < 1\nscore = qk * g[h] ** (q - k)\nmask = causal",
        "write g[h] ** distance",
        f"{DECAY} where 0 < g < 1\nscore = qk * g[h] ** distance\nmask = causal",
    ),
    (
        f"{DECAY}\nscore = qk * g[h] ** abs(q - k)",
        "add `where 0 < g <= 1`",
        f"{DECAY} where 0 < g <= 1\nscore = qk * g[h] ** abs(q - k)",
    ),
]


def with_distance(statements: str) -> str:
    return statements.replace("distance", "(q + Sk - Sq - k)")


@pytest.mark.parametrize(("wrong", "told", "mended"), PROVED, ids=[p[0].split("\n", 1)[1] for p in PROVED])
def test_what_the_prover_refutes(wrong: str, told: str, mended: str) -> None:
    refuted = api.check(source(wrong), target="torch").refuted
    assert [c.fix for _, c in refuted][:1] == [told]
    proof = api.check(source(with_distance(mended)), target="torch")
    assert proof.holds
    assert not proof.unknown


# ---------------------------------------------------------------- what is right, and hardly meant so


@pytest.mark.parametrize(
    ("statements", "told", "mended"),
    [
        (
            "score = qk if k <= q + Sk - Sq else -inf",
            ["write `mask = k <= q + Sk - Sq`, and qk in the place of the `if`"],
            "mask = k <= q + Sk - Sq\nscore = qk",
        ),
        (
            "const w = 8\nscore = qk + (-inf if q - k >= w else 0.0)\nmask = causal",
            ["add `and q - k < 8` to the mask, and 0.0 in the place of the `if`"],
            "mask = causal and q - k < 8\nscore = qk + 0.0",
        ),
    ],
)
def test_minus_infinity_by_position(statements: str, told: list[str], mended: str) -> None:
    text = source(statements)
    found = doubts(analyse(parse(text), text), text)
    assert [(d.code, d.fix) for d in found] == [("masking-score", fix) for fix in told]
    with pytest.warns(attngen.SpecWarning, match="the score is -inf by position"):
        kernel = attngen.compile(text.text, "torch")
    again = source(mended)
    assert not doubts(analyse(parse(again), again), again)
    q, k, v = torch.randn(3, 1, 1, 20, 16, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(kernel(q, k, v), attngen.compile(again.text, "torch")(q, k, v))


@pytest.mark.parametrize(
    "score",
    ["qk if qk > 0 else -inf", "qk if keep[b, k] else -inf", "qk if k <= q else 0.0", "qk if k <= q else -1e4"],
)
def test_minus_infinity_by_data_is_no_mask_of_positions(score: str) -> None:
    text = source(f"param keep: bool[B, Sk]\nscore = {score}\nmask = keep[b, k]")
    assert not doubts(analyse(parse(text), text), text)


@pytest.mark.parametrize(
    ("param", "read", "note"),
    [
        ("s: f32[H]", "s[h]", "`H` is a size of `s` alone, which may exceed Hq: did you mean Hq?"),
        ("s: f32[B, S]", "s[b, k]", "`S` is a size of `s` alone, which may exceed Sk: did you mean Sk?"),
        ("s: f32[Hq]", "s[h]", ""),
        ("s: f32[H]", "s[h // 2]", ""),
        ("s: f32[longest]", "s[k]", ""),
    ],
)
def test_sizes_of_papers(param: str, read: str, note: str) -> None:
    proof = api.check(source(f"param {param}\nscore = qk * {read}"), target="torch")
    assert proof.holds
    notes = {c.note for s in proof.shown for c in s.claims if c.subject.startswith("read of")}
    assert notes == {note}
