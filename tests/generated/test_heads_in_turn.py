"""How many heads the launcher of the Hopper backward kernel takes in turn, by the sizes of a call."""

from __future__ import annotations

import re
from typing import Any

import pytest

import attngen
from attngen.runtime.exported import host

K = 1024
CASES = [
    # causal, heads of keys and how many query heads share one, queries and keys: members of an item, heads in turn
    ("causal", 8, 4, (1 * K, 1 * K), 1, (32, True)),
    ("causal", 16, 8, (2 * K, 2 * K), 4, (32, False)),
    ("causal", 64, 8, (2 * K, 2 * K), 8, (32, False)),
    ("causal", 8, 4, (4 * K, 4 * K), 1, (8, True)),
    ("causal", 16, 2, (4 * K, 4 * K), 1, (8, True)),
    ("causal", 8, 4, (8 * K, 8 * K), 1, (4, True)),
    ("causal", 8, 4, (12 * K, 12 * K), 1, (2, True)),
    ("causal", 8, 4, (16 * K, 8 * K), 1, (4, True)),
    ("causal", 4, 4, (16 * K, 16 * K), 1, (2, True)),
    ("causal", 8, 8, (16 * K, 16 * K), 1, (2, True)),  # 1 GiB of parts, no more
    ("causal", 16, 8, (16 * K, 16 * K), 8, (8, False)),
    ("causal", 16, 16, (4 * K, 4 * K), 1, (8, True)),
    ("causal", 32, 16, (4 * K, 4 * K), 16, (16, False)),
    ("causal", 8, 4, (32 * K, 1 * K), 4, (4, False)),  # rows that have left the cache
    ("causal", 8, 4, (32 * K, 32 * K), 4, (4, False)),
    ("causal", 8, 4, (128 * K, 128 * K), 4, (2, False)),
    ("causal", 16, 1, (4 * K, 4 * K), 1, (8, True)),  # no keys are shared
    ("causal", 16, 1, (32 * K, 32 * K), 1, (4, False)),
    ("causal or k < 500", 8, 4, (16 * K, 24 * K), 4, (16, False)),
    ("causal or k < 500", 8, 4, (32 * K, 32 * K), 4, (2, False)),
    ("true", 16, 8, (1 * K, 1 * K), 8, (4, False)),  # each item counts as eight heads
    ("true", 16, 8, (8 * K, 8 * K), 8, (2, False)),
    ("true", 16, 1, (1 * K, 1 * K), 1, (32, False)),
    ("0 <= q - k < 500", 8, 4, (4 * K, 4 * K), 4, (8, False)),
    ("0 <= q - k < 500", 2, 4, (4 * K, 1 * K), 1, (32, False)),
]


def order(source: str, heads: int, group: int, sizes: tuple[int, int]) -> tuple[int, tuple[int, bool]]:
    """By the launcher's own lines."""
    table = re.search(r'\nHOPPER_BACKWARD = """(?:.|\n)*?\n"""', source)
    lines = re.search(
        r"\n( +BQ, BK = row.BQ, row.BK\n(?:.|\n)*?)\n +n_work, n_cells",
        source[source.index("def _backward_launches") :],
    )
    assert table is not None and lines is not None
    names: dict[str, Any] = {"host": host}
    exec(table[0] + "".join(re.findall(r"\n[A-Z_]+ = [^\n]*2\*\*[^\n]*", source)), names)
    names["row"] = host.rows_by_dims(names["HOPPER_BACKWARD"])[128, 128]
    Hq, Sq, Sk = heads * group, *sizes
    exec(
        "if True:\n" + lines[1],
        names | {"B": 1, "Hq": Hq, "Hkv": heads, "Sq": Sq, "Sk": Sk, "D": 128, "Dv": 128},
        names,
    )
    return names["span"], (names["together"], bool(names["backwards"]))


@pytest.mark.parametrize(("mask", "heads", "group", "sizes", "members", "turns"), CASES, ids=str)
def test_few_heads_take_turns_where_they_are_long(
    mask: str, heads: int, group: int, sizes: tuple[int, int], members: int, turns: tuple[int, bool]
) -> None:
    source = attngen.compile(f"attention t\nmask = {mask}\n", target="triton").source
    assert order(source, heads, group, sizes) == (members, turns)


def test_a_piece_of_a_window_has_many_items() -> None:
    """Its tiles of keys meet few queries, or many."""
    _, own = attngen.compile("attention t\nmask = 0 <= q - k < 4096\n", target="triton").piece()
    assert order(own.source, 8, 4, (4 * K, 4 * K))[0] == 1
    assert order(own.source, 8, 4, (16 * K, 16 * K))[0] == 4


def test_all_tiles_of_a_piece_may_meet_all_queries() -> None:
    _, own = attngen.compile("attention t\nmask = causal\n", target="triton").piece()
    assert order(own.source, 8, 4, (4 * K, 8 * K)) == (2, (16, False))
    assert order(own.source, 8, 4, (8 * K, 8 * K)) == (4, (8, False))
