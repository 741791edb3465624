"""How many heads the launcher of the Hopper backward kernel takes in turn, by the sizes of a call."""

from __future__ import annotations

import re

import pytest

import attngen

WANTED, K = 16, 1024
USUAL = WANTED
"""What items of several members take; nothing (0) where each has one, and under a prefix, is the row's order."""
CAUSAL = {
    (4 * K, 4 * K): USUAL,
    (16 * K, 16 * K): USUAL,
    (32 * K, 32 * K): 4,  # longer than the cache keeps
    (64 * K, 64 * K): 2,
    (256 * K, 256 * K): 2,
    (8 * K, 32 * K): 4,  # half again as many keys as queries, and more
    (16 * K, 24 * K): 4,
    (16 * K, 20 * K): USUAL,
    (16 * K, 8 * K): USUAL,
    (4 * K, 64 * K): USUAL,  # too short to wait in so long a line
}
CASES = [
    *(("causal", sizes, heads) for sizes, heads in CAUSAL.items()),
    ("causal or k < 500", (16 * K, 24 * K), 0),
    ("causal or k < 500", (32 * K, 32 * K), 2),
]


@pytest.mark.parametrize(("mask", "sizes", "heads"), CASES, ids=str)
def test_few_heads_take_turns_where_they_are_long(mask: str, sizes: tuple[int, int], heads: int) -> None:
    source = attngen.compile(f"attention t\nmask = {mask}\n", target="triton").source
    found = re.search(r"\n( +size = Sq \* .*\n +onwards = (?:.|\n)*?)\n +together", source)
    assert found is not None
    names: dict[str, int] = {"Sq": sizes[0], "Sk": sizes[1], "D": 128, "Dv": 128, "wanted": WANTED, "span": 2}
    exec("if True:\n" + found[1], names)  # the launcher's own lines
    assert names["onwards"] == heads
