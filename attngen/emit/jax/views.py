"""What `templates/jax/` reads, beside params, operands and the lines of `emit.arrays.tile_code`: frozen views."""

from __future__ import annotations

from dataclasses import dataclass

from attngen.emit.arrays.tile_code import TileCode

KINDS = ("equal", "held_at_most", "walked_at_most", "held_below", "walked_below")
"""What files call the tests, by the numbers of `DataTest.code`."""


@dataclass(frozen=True, slots=True)
class TestView:
    """A data test: what is compared, and the two sides as arrays of the host."""

    name: str
    text: str
    what: str
    held: str
    walked: str
    kind: str  # one of KINDS


@dataclass(frozen=True, slots=True)
class TilesView:
    """The loops over one axis: the function that computes runs of tiles, and what it reads.

    `test_lines` answer the data tests for every tile at once, `answer_lines` for the tile that is held. `mapped`: runs
    are of places in the tile's list.
    """

    axis: str
    arguments: tuple[str, ...]
    function: tuple[str, ...]
    tests: tuple[TestView, ...]
    test_lines: tuple[str, ...]
    answer_lines: tuple[str, ...]
    mapped: bool

    def looked_up(self, visit: str) -> str:
        """`visit` of places of the walk."""
        return f"_looked_up(listed, {visit})" if self.mapped else visit


@dataclass(frozen=True, slots=True)
class SumView:
    """The gradient of one operand: its shape in a tile, what a pair and a row add, what `last` makes of all tiles."""

    name: str
    operand: str
    shape: str
    contribution: str  # empty where only rows contribute
    tile_lines: tuple[str, ...]
    row_lines: tuple[str, ...]
    last: str


@dataclass(frozen=True, slots=True)
class PassView:
    """One of the two backward passes."""

    code: TileCode
    sums: tuple[SumView, ...]
