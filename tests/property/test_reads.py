"""Reads at the edges: indices beside their dims, drawn, and what the prover says of them against all small pairs.

A file has one tensor, read in the score or in the mask. Brute force knows nothing of conditions: what lies outside is
NaN, and a pair reads outside if the mask allows it and NaN comes out.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Callable, Mapping

import numpy as np
import pytest

from attngen import api
from attngen.errors import Source
from attngen.ir.attention import Attention
from attngen.ir.evaluate import Array, evaluate
from attngen.ir.nodes import Load, Symbol, Type
from attngen.ir.walk import loads, substitute
from attngen.plan.kernel import KernelPlan
from attngen.prove.budget.work import Work
from attngen.prove.obligations.reads import read_claims
from attngen.prove.verdict import Proved, Refuted, Unknown

SEED = 20261123
DRAWS = 40
"""Files of one test; `USUAL` of them are tried where not all tests run, else `ALL`."""
USUAL, ALL = 200, 2000

_POSITIONS = ("q", "k", "q - k", "k - q", "q + k", "q + Sk - Sq", "q + Sk - Sq - k", "h + k", "Sk - 1 - k", "2 * k - q")
_FORMS = (
    "{}", "{}", "{}", "clamp({}, {lo}, {hi})", "clamp({}, 0, {dim} - 1)", "min({}, {hi})", "max({}, {lo})", "abs({})",
    "({}) % {divisor}", "({}) // {divisor}", "min(abs({}), {dim} - 1)", "clamp({}, -{hi}, {hi}) + {hi}",
)  # fmt: skip
_DIMS = ("Sq", "Sk", "N", "Hq", "1", "3", "5", "9")
_MASKS = (
    "true", "true", "causal", "k <= q", "0 <= q - k < 4", "sliding_window(3)", "k + 1 < Sk", "q < Sk", "k >= 2",
    "abs(q - k) < 3", "q >= 1 and k < Sq", "k < 3 or q == 0",
)  # fmt: skip
_ASSUMES = ("", "", "", "assume Sq == Sk", "assume Sq <= Sk", "assume N >= Sk", "assume Sk >= 4")
_READS = (
    "score = qk * scale + t[{}]",
    "score = qk * scale + t[{}]",
    "score = qk * scale + (t[{}] if 0 <= {} < {dim} else 0.5)",
    "score = qk * scale + (0.5 if {cond} else t[{}])",
    "score = qk * scale + (t[{}] if {cond} and {other} else 0.5)",
    "mask = t[{}] > 0.0",
    "mask = t[{}] > 0.0 and {cond}",
    "mask = {cond} or t[{}] > 0.0",
)
_CONDITIONS = ("q < 3", "k >= 1", "q >= k", "k < Sq", "q + 1 < Sk", "k + 2 <= Sk", "q != k")
SIZES = (1, 2, 3, 4, 6)


def drawn_file(random: np.random.Generator) -> str:
    def one(of: tuple[str, ...]) -> str:
        return of[int(random.integers(len(of)))]

    def number(least: int, most: int) -> int:
        return int(random.integers(least, most + 1))

    dim = one(_DIMS)
    offset = number(-3, 3)
    position = one(_POSITIONS) + (f" + {offset}" if offset > 0 else f" - {-offset}" if offset else "")
    index = one(_FORMS).format(position, lo=number(-1, 2), hi=number(2, 8), divisor=number(1, 9), dim=dim)
    read = one(_READS).replace("{}", index).format(dim=dim, cond=one(_CONDITIONS), other=one(_CONDITIONS))
    lines = ["attention drawn", f"param t: f32[{dim}]", read]
    lines += [] if read.startswith("mask") else [f"mask = {one(_MASKS)}"]
    assume = one(_ASSUMES)
    lines += [assume] if assume and ("N" not in assume.split() or dim == "N") else []
    return "\n".join(lines) + "\n"


def settings(attention: Attention) -> list[dict[str, int]]:
    """All small sizes under the `assume`s, with one batch."""
    axes = {"Sq": SIZES, "Sk": SIZES, "Hq": (1, 2), **dict.fromkeys(attention.sizes, (1, 2, 4, 9))}
    every = (dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values()))
    fixed = {"B": 1, "Hkv": 1, "D": 4, "Dv": 4}
    return [{**fixed, **s} for s in every if all(evaluate(a, {**fixed, **s}, {}) for a in attention.assumes)]


def reads_outside(attention: Attention, sizes: Mapping[str, int]) -> Array:
    """bool [h, q, k]: pairs that are allowed, and for which it matters what lies outside the tensor."""
    h, q, k = np.ogrid[: sizes["Hq"], : sizes["Sq"], : sizes["Sk"]]
    env = {**sizes, "b": 0, "h": h, "hkv": 0, "q": q, "k": k, "qk": 0.25, "scale": 0.5, "inf": np.inf}
    (load,) = {n for e in (attention.score, attention.mask) for n in loads(e)}
    at = evaluate(load.indices[0], env, {})
    inside = (at >= 0) & (at < evaluate(attention.param("t").shape[0], env, {}))
    shape = np.broadcast_shapes(inside.shape, (sizes["Hq"], sizes["Sq"], sizes["Sk"]))
    score, mask = (_with_element(load, e)(env, inside, shape) for e in (attention.score, attention.mask))
    masks = [mask(x) for x in (1e9, -1e9)]
    return (np.isnan(score(np.nan)) & masks[0]) | (masks[0] != masks[1])


def _with_element(load: Load, e: object) -> Callable[..., Callable[[float], Array]]:
    own = substitute(e, {load: Symbol("element", Type.FLOAT)})  # type: ignore[arg-type]

    def at(env: Mapping[str, object], inside: Array, shape: tuple[int, ...]) -> Callable[[float], Array]:
        return lambda x: np.broadcast_to(evaluate(own, {**env, "element": np.where(inside, 1.0, x)}, {}), shape)

    return at


def problem(text: str, verdicts: Counter[str]) -> str:
    """What the prover and brute force disagree about; empty for nothing."""
    source = Source(text, "drawn.attn")
    attention = api.analyse(source)
    if sum(bool(re.search(r"\bt\[", line)) for line in text.splitlines()[2:]) == 0 or not loads_of(attention):
        return ""  # the read was folded away
    plan: KernelPlan = api.plan(attention)
    claims = [c for c in read_claims(attention, plan, Work()) if c.subject.startswith("read of")]
    (verdict,) = {type(c.verdict): c.verdict for c in claims}.values()
    match verdict:
        case Unknown():
            verdicts["unknown"] += 1
            return ""
        case Proved():
            verdicts["proved, given sizes" if plan.needs else "proved"] += 1
            met = [s for s in settings(attention) if all(evaluate(n.own, s, {}) for n in plan.needs)]
            for sizes in met:
                if reads_outside(attention, sizes).any():
                    return f"accepted with {[n.text for n in plan.needs]}, and reads outside at {sizes}"
            return ""
        case Refuted():
            verdicts["refuted"] += 1
            values = {name: int(x) for name, x in verdict.values if isinstance(x, int)}
            fixed = {"B": 1, "Hq": values.get("h", 0) + 1, "Hkv": 1, "D": 4, "Dv": 4, "Sq": 1, "Sk": 1, "k": 0, "q": 0}
            values = {**fixed, **values, "Hkv": 1}
            sizes = {name: values[name] for name in ("B", "Hq", "Hkv", "Sq", "Sk", "D", "Dv", *attention.sizes)}
            if not all(evaluate(a, sizes, {}) for a in attention.assumes):
                return f"the counterexample breaks an assume: {values}"
            if not reads_outside(attention, sizes)[values.get("h", 0), values["q"], values["k"]]:
                return f"the counterexample is none: {verdict.example}"
            return ""


def loads_of(attention: Attention) -> set[Load]:
    return {n for e in (attention.score, attention.mask) for n in loads(e)}


def draw(count: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    verdicts: Counter[str] = Counter()
    for _ in range(count):
        text = drawn_file(random)
        found = problem(text, verdicts)
        assert not found, f"{found}\n{text}"
    assert verdicts["unknown"] <= 0.1 * count, verdicts
    assert min(verdicts[name] for name in ("proved", "proved, given sizes", "refuted")) >= 0.1 * count, verdicts


@pytest.mark.parametrize(
    "part", [pytest.param(n, marks=[pytest.mark.slow] if n * DRAWS >= USUAL else []) for n in range(ALL // DRAWS)]
)
def test_reads_at_the_edges(part: int) -> None:
    draw(DRAWS, SEED + part)
