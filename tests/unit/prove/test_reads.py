"""What `check` says of elements that lie outside their tensor: a refusal with a pair, or sizes that a call needs."""

from __future__ import annotations

import pytest

from attngen import api
from attngen.errors import Source
from attngen.prove.proof import Proof
from attngen.prove.report import claims, diagnostics, proof_text, rows
from attngen.prove.verdict import Obligation

TABLE = "param table: f32[Hq, 9]"


def proved(*lines: str) -> Proof:
    proof = api.check(Source("\n".join(["attention subject", *lines, ""]), "subject.attn"))
    assert proof.holds, proof_text(proof)
    return proof


def refusal(*lines: str) -> str:
    source = Source("\n".join(["attention subject", *lines, ""]), "subject.attn")
    proof = api.check(source)
    assert [o for o, _ in proof.refuted] == [Obligation.INDEX_BOUNDS]
    (message,) = diagnostics(proof, source)
    return message.render()


REFUSED = {
    "one key too far": ("param t: f32[Hq, Sk]", "score = qk + t[h, k + 1]"),
    "a radius that was not added": (TABLE, "score = qk + table[h, clamp(q - k, -4, 4)]"),
    "one element too few": ("param table: f32[Hq, 8]", "score = qk + table[h, clamp(q - k, -4, 4) + 4]"),
    "an offset of any sign": ("param w: int", TABLE, "score = qk + table[h, (abs(q - k) + w) % 20]"),
    "distances of both signs": ("param t: f32[Hq, Sk]", "score = qk + t[h, q - k]"),
    "an if that is one too wide": ("param t: f32[Sk]", "score = qk + (t[k - 1] if k >= 0 else 0)"),
    "a mask that does not forbid it": ("param t: f32[Sk]", "score = qk + t[k + 1]", "mask = k < Sk"),
    "in the mask": ("param keep: bool[B, Sk]", "mask = keep[b, k - 1]"),
    "before its own condition": ("param t: f32[Sk]", "mask = t[k + 1] > 0 or k == 0"),
}


@pytest.mark.parametrize("lines", REFUSED.values(), ids=REFUSED)
def test_a_read_outside_is_refused_with_a_pair(lines: tuple[str, ...]) -> None:
    message = refusal(*lines)
    assert "for a pair that the mask allows" in message
    assert "\n  at " in message
    assert "clamp the index" in message


def test_the_refusal_in_full() -> None:
    assert refusal("param t: f32[Hq, 3]", "score = qk + t[h, q - k]", "mask = q == 1 and k == 3") == (
        "subject.attn:3:14: error[index-bounds]: `t[h, q - k]` is outside `t` for a pair that the mask allows\n"
        "  3 | score = qk + t[h, q - k]\n"
        "    |              ^^^^^^^^^^^ forbid such pairs in the mask, clamp the index, or write `t[…] if … else …`\n"
        "  at Sq = 2, Sk = 4, q = 1, k = 3\n"
        "  `q - k` is -2, outside 0 … 2"
    )


NEEDED = {
    "a query in a tensor of keys": (("param seq: int[Sk]", "mask = seq[q] == seq[k]"), ["Sq <= Sk"]),
    "documents": (("param ids: int[B, Sk]", "mask = same_document(ids)"), ["Sq <= Sk"]),
    "a gate": (("param gate: f32[B, Sk]", "score = qk + gate[b, q] - gate[b, k]"), ["Sq <= Sk"]),
    "the last query is not the last key": (
        (TABLE, "score = qk + table[h, min(q - k, 8)]", "mask = causal"),
        ["Sk <= Sq"],
    ),
    "both ends": (("param t: f32[Sk]", "score = qk + t[q - k]", "mask = causal"), ["Sq == Sk"]),
    "a dim that the call decides": (
        ("param table: f32[Hq, N]", "score = qk + table[h, clamp(q - k, -4, 4) + 4]"),
        ["9 <= N"],
    ),
    "blocks": (("param t: f32[Hq, N]", "score = qk + t[h, q // 64]"), ["(Sq - 1) // 64 < N"]),
    "starts of documents": (("param s: int[N]", "mask = s[b] <= k < s[b + 1]"), ["B < N"]),
    "learned positions": (("param t: f32[Hq, 2048]", "score = qk + t[h, k]"), ["Sk <= 2048"]),
    "a size under a name that the planner has": (("param t: f32[n]", "score = qk + t[k]"), ["Sk <= n"]),
    "a head of the wrong kind": (("param t: f32[Hkv]", "normalizer = softmax(sink = t[h])"), ["Hq <= Hkv"]),
    "a mask that would forbid what it reads as false": (("param keep: bool[B, Sk]", "mask = keep[b, q]"), ["Sq <= Sk"]),
    "two numbers, of which one keeps the other size below the other number": (
        ("param ok: bool[12, 16]", "mask = ok[q, k]"),
        ["Sq <= 12", "Sk <= 16"],
    ),
}


@pytest.mark.parametrize(("lines", "needs"), NEEDED.values(), ids=NEEDED)
def test_sizes_that_a_read_needs(lines: tuple[str, ...], needs: list[str]) -> None:
    proof = proved(*lines)
    assert list(proof.needs) == needs
    assert f"needs {needs[0]}" in proof_text(proof)


NOTHING_NEEDED = {
    "the mask keeps it inside": (TABLE, "score = qk + table[h, q - k]", "mask = 0 <= q - k < 9"),
    "an if keeps it inside": (TABLE, "score = qk + (table[h, q - k] if 0 <= q - k < 9 else 0)"),
    "an else keeps it inside": (TABLE, "score = qk + (0 if q - k < 0 or q - k >= 9 else table[h, q - k])"),
    "what stands before it keeps it inside": (
        "param t: f32[Hq, 9]",
        "score = qk + (1.0 if q < 9 and t[h, q] > 0 else 0.0)",
    ),
    "what stands behind it in the mask": ("param t: f32[Sk]", "mask = t[k + 1] > 0 and k + 1 < Sk"),
    "self-attention": ("param gate: f32[B, Sk]", "assume Sq == Sk", "score = qk + gate[b, q] - gate[b, k]"),
    "a length in a tensor": (
        "param n: int[B] where n < Sk",
        "param t: f32[Sk]",
        "score = qk + t[k + 1]",
        "mask = k < n[b]",
    ),
    "bits of what is below a power of two": (
        "param n: int where 0 <= n < 4",
        "param t: f32[4]",
        "score = qk * scale + t[n ^ 3]",
    ),
    "the pair is forbidden": ("param t: f32[Sk]", "score = qk + t[k + 1]", "mask = k + 1 < Sk"),
}


@pytest.mark.parametrize("lines", NOTHING_NEEDED.values(), ids=NOTHING_NEEDED)
def test_nothing_is_needed(lines: tuple[str, ...]) -> None:
    assert proved(*lines).needs == ()


@pytest.mark.parametrize("index", ["kind[b, k]", "floor(sqrt(abs(q - k)))", "k + kind[b, k]"])
def test_an_index_from_data_is_0_outside_and_the_table_says_so(index: str) -> None:
    proof = proved(TABLE, "param kind: int[B, Sk]", f"score = qk + table[h, {index}] + 0.0 * float(kind[b, k])")
    (row,) = (r for r in rows(proof) if r.obligation == "index-bounds")
    assert row.sentence == "reads are inside; by data, 0 outside"
    assert any("from data: 0 outside" in line for line in claims(proof))
    assert "its index comes from data" in proof_text(proof)


def test_a_plan_that_lacks_a_need_is_refuted() -> None:
    from dataclasses import replace

    source = Source("attention subject\nparam seq: f32[Sk]\nscore = qk + seq[q]\n", "subject.attn")
    spec, planned = api.checked_plan(source)
    assert planned.needs
    proof, _ = api.prove(spec, replace(planned, needs=()))
    assert [c.subject for _, c in proof.refuted] == ["read of `seq[q]`"]
