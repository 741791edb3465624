"""Where q and k are related without `+ Sk - Sq`: each place has a note, and following its fix leads out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from attngen.analyse import analyse
from attngen.analyse.unaligned import unaligned
from attngen.errors import Source
from attngen.ir.attention import Attention
from attngen.ir.evaluate import evaluate
from attngen.syntax.parser import parse

PARAMS = """attention a
param slope: f32[Hq]
param table: f32[Hq, 65]
param ids: int[B, Sk]
param own: int[B, Sq]
param n: int[B]
param w: int
param rows: f32[B, queries]
param columns: f32[B, keys]
param square: f32[m, m]
param pair: f32[Hq, Sq, Sk]
param whole: f32[Hq, Sk, Sk]
"""
EXAMPLES = sorted(Path("examples").glob("*.attn"))


def spec(body: str) -> tuple[Attention, Source]:
    source = Source(f"{PARAMS}{body}\n", "a.attn")
    return analyse(parse(source), source), source


def notes(body: str) -> list[str]:
    return [d.line("note") for d in unaligned(*spec(body))]


@pytest.mark.parametrize(
    "body",
    [
        "mask = causal",
        "mask = sliding_window(4)",
        "mask = prefix_lm(3)",
        "mask = chunked(3)",
        "mask = causal and dilated(3)",
        "mask = k < n[b]",
        "mask = q < 4 or causal",
        "mask = q % 4 == 0 and k % 4 == 0",
        "mask = 0 <= distance < 4",
        "mask = k - (Sk - Sq) <= q",
        "mask = 2 * (q + Sk - Sq) < 3 * k + 1",
        "mask = (q + Sk - Sq) // 4 == k // 4",
        "score = qk * scale + alibi(slope)",
        "score = qk * scale + relative_bias(table, 32)",
        "score = qk * scale - slope[h] * q + slope[h] * k - slope[h] * (Sk - Sq)",
        "score = qk * scale + (1.0 if q < 4 else 0.0) - (0.5 if k < 4 else 0.0)",
        "mask = ids[b, q + Sk - Sq] == ids[b, k]",
        "mask = own[b, q] == ids[b, k]",
        "mask = rows[b, q] < columns[b, k]",
        "mask = ids[b, q] == 1 and k < n[b]",
        "score = qk * scale + pair[h, q, k]",
    ],
)
def test_what_relates_nothing_or_is_aligned_has_no_note(body: str) -> None:
    assert notes(body) == []


DISTANCE = "write distance, which is q + Sk - Sq - k"
POSITION = "write q + Sk - Sq for q"


@pytest.mark.parametrize(
    ("body", "at", "what", "fix", "mended"),
    [
        ("mask = k <= q", "13:8", "`k <= q`", "write causal", "mask = causal"),
        ("mask = not (q < k)", "13:8", "`k <= q`", "write causal", "mask = causal"),
        ("mask = 0 <= q - k < 4", "13:13", "`q - k`", DISTANCE, "mask = 0 <= distance < 4"),
        ("let d = q - k\nmask = 0 <= d < 4", "13:9", "`q - k`", DISTANCE, "let d = distance\nmask = 0 <= d < 4"),
        (
            "let distance = q - k\nscore = qk - slope[h] * distance\nmask = 0 <= distance < 4",
            "13:16",
            "`q - k`",
            "delete this line, for the prelude has a distance that is q + Sk - Sq - k",
            "\nscore = qk - slope[h] * distance\nmask = 0 <= distance < 4",
        ),
        (
            "mask = abs(k - q) <= 3",
            "13:12",
            "`k - q`",
            "write -distance, which is k - (q + Sk - Sq)",
            "mask = abs(-distance) <= 3",
        ),
        ("mask = k <= q + w", "13:8", "`k <= q + w`", POSITION, "mask = k <= q + Sk - Sq + w"),
        ("mask = k // 4 == q // 4", "13:8", "`k // 4 == q // 4`", POSITION, "mask = k // 4 == (q + Sk - Sq) // 4"),
        ("mask = q < ids[b, k]", "13:8", "`q < ids[b, k]`", POSITION, "mask = q + Sk - Sq < ids[b, k]"),
        (
            "score = qk - abs(float(q) / 64 - float(k) / 64)",
            "13:18",
            "`float(q) / 64.0 - float(k) / 64.0`",
            POSITION,
            "score = qk - abs(float(q + Sk - Sq) / 64 - float(k) / 64)",
        ),
        (
            "mask = same_document(ids)",
            "13:8",
            "`ids` is read at q and at k",
            "write ids[b, q + Sk - Sq]",
            "mask = ids[b, q + Sk - Sq] == ids[b, k]",
        ),
        (
            "mask = ids[b, q] == 1 and ids[b, k] == 2",
            "13:8",
            "`ids` is read at q and at k",
            "write ids[b, q + Sk - Sq]",
            "mask = ids[b, q + Sk - Sq] == 1 and ids[b, k] == 2",
        ),
        (
            "score = qk + square[q, k]",
            "13:14",
            "`square` is read at q and at k",
            "write square[q + Sk - Sq, k]",
            "score = qk + square[q + Sk - Sq, k]",
        ),
        (
            "score = qk + whole[h, q, k]",
            "13:14",
            "`whole` is read at q and at k",
            "write whole[h, q + Sk - Sq, k]",
            "score = qk + whole[h, q + Sk - Sq, k]",
        ),
    ],
)
def test_a_note_says_where_and_its_fix_leads_out(body: str, at: str, what: str, fix: str, mended: str) -> None:
    line = f"a.attn:{at}: note[unaligned]: {what}: with a cache the last query is at q = 0; {fix}, or `assume Sq == Sk`"
    assert notes(body) == [line]
    assert notes(f"{body}\nassume Sk == Sq and Sq > 1") == []
    assert notes(mended) == []
    assert not is_same_with_a_cache(spec(body)[0])
    assert is_same_with_a_cache(spec(mended)[0])


def is_same_with_a_cache(a: Attention, keys: int = 9) -> bool:
    """Whether the last query alone has the mask and the scores of the last of as many queries as keys."""
    rng = np.random.default_rng(0)
    params = {
        "slope": np.ones(1),
        "ids": np.array([[0, 2, 1, 2, 1, 2, 0, 1, 1]]),
        "w": np.array(2),
        "square": rng.normal(size=(keys, keys)),
        "whole": rng.normal(size=(1, keys, keys)),
    }
    k = np.arange(keys)
    env = {"b": 0, "h": 0, "k": k, "Sk": keys, "qk": np.zeros(keys), "scale": 1.0}
    rows = [
        [
            np.broadcast_to(evaluate(e, {**env, "q": queries - 1, "Sq": queries}, params), k.shape)
            for e in (a.mask, a.score)
        ]
        for queries in (keys, 1)
    ]
    return all(np.array_equal(x, y) for x, y in zip(*rows, strict=True))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_no_example_has_a_note(path: Path) -> None:
    source = Source(path.read_text(), path.name)
    assert unaligned(analyse(parse(source), source), source) == ()
