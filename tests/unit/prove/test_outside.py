"""What `check` says of elements that the score reads outside their tensor."""

from __future__ import annotations

import pytest

from attngen import api
from attngen.errors import Source
from attngen.prove.verdict import Obligation

TABLE = "param table: f32[Hq, 9]"


def notes(*lines: str) -> list[str]:
    proof = api.check(Source("\n".join(["attention subject", *lines, ""]), "subject.attn"))
    assert proof.holds
    return [c.note for s in proof.shown if s.obligation is Obligation.INDEX_BOUNDS for c in s.claims if c.note]


READ_OUTSIDE = {
    "a radius that was not added": (TABLE, "score = qk + table[h, clamp(q - k, -4, 4)]"),
    "one element too few": ("param table: f32[Hq, 8]", "score = qk + table[h, clamp(q - k, -4, 4) + 4]"),
    "the last query is not the last key": (TABLE, "score = qk + table[h, min(q - k, 8)]", "mask = causal"),
    "no self-attention": ("param gate: f32[B, Sk]", "score = qk + gate[b, q] - gate[b, k]"),
    "an offset of any sign": ("param w: int", TABLE, "score = qk + table[h, (abs(q - k) + w) % 20]"),
}


@pytest.mark.parametrize("lines", READ_OUTSIDE.values(), ids=READ_OUTSIDE)
def test_an_index_outside_is_noted_with_a_pair(lines: tuple[str, ...]) -> None:
    (note,) = notes(*lines)
    assert "is read as 0 outside" in note
    assert " at " in note


def test_the_note_in_full() -> None:
    assert notes("param t: f32[Hq, 3]", "score = qk + t[h, q - k]", "mask = q == 1 and k == 3") == [
        "`t[h, q - k]` is read as 0 outside `t`: `q - k` is -2 at q = 1, k = 3"
    ]


NOTHING_TO_SAY = {
    "the mask keeps it inside": (TABLE, "score = qk + table[h, q - k]", "mask = 0 <= q - k < 9"),
    "an if keeps it inside": (TABLE, "score = qk + (table[h, q - k] if 0 <= q - k < 9 else 0)"),
    "an else keeps it inside": (TABLE, "score = qk + (0 if q - k < 0 or q - k >= 9 else table[h, q - k])"),
    "what stands before it keeps it inside": (
        "param t: f32[Hq, 9]",
        "score = qk + (1.0 if q < 9 and t[h, q] > 0 else 0.0)",
    ),
    "self-attention": ("param gate: f32[B, Sk]", "assume Sq == Sk", "score = qk + gate[b, q] - gate[b, k]"),
    "a dim that the call decides": ("param table: f32[Hq, N]", "score = qk + table[h, q // 64]"),
    "an index that is data": (TABLE, "param kind: int[B, Sk]", "score = qk + table[h, kind[b, k]]"),
    "the mask alone": ("param ids: int[B, Sk]", "mask = same_document(ids)"),
}


@pytest.mark.parametrize("lines", NOTHING_TO_SAY.values(), ids=NOTHING_TO_SAY)
def test_no_note_without_a_pair(lines: tuple[str, ...]) -> None:
    assert notes(*lines) == []
