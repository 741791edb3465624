"""What templates and the launcher read of a data test: the small kernel that finds the extremes of each tile."""

from __future__ import annotations

from dataclasses import dataclass, replace

from attngen.emit.text.render import bracket
from attngen.plan.mask.data_tests import UNIT


@dataclass(frozen=True, slots=True, kw_only=True)
class TestView:
    """The kernel finds the extremes of a data vector in each tile of the `walked` axis: of each batch and of each head,
    where the vector differs from batch to batch and from head to head. of_pairs: of a matrix, in each such tile beside
    each unit of the other axis; `words`: its bools are packed, too, in a kernel that wants them.
    """

    name: str
    axis: str
    text: str
    pointers: tuple[str, ...]
    lines: tuple[str, ...]
    value: str
    lowest: str
    highest: str
    dtype: str
    per_batch: bool
    per_head: bool
    of_pairs: bool
    words: bool = False

    @property
    def size(self) -> str:
        return "Sk" if self.axis == "k" else "Sq"

    @property
    def what(self) -> str:
        walked, held = ("keys", "queries") if self.axis == "k" else ("queries", "keys")
        return f"{walked}, beside each {UNIT} {held}" if self.of_pairs else walked

    @property
    def index(self) -> str:
        return f"{self.axis}_idx"

    @property
    def places(self) -> tuple[str, ...]:
        """Lines that bind the positions of a tile's elements."""
        if not self.of_pairs:
            return (f"{self.index} = tile * TILE + tl.arange(0, TILE)",)
        walked, held = (
            "tile % n_walked * TILE + tl.arange(0, TILE)",
            f"tile // n_walked * {UNIT} + tl.arange(0, {UNIT})",
        )
        q, k = (held, walked) if self.axis == "k" else (walked, held)
        return f"n_walked = tl.cdiv({self.size}, TILE)", f"q_idx = ({q})[:, None]", f"k_idx = ({k})[None, :]"

    @property
    def inside(self) -> str:
        """Which of a tile's elements there are."""
        return "(q_idx < Sq) & (k_idx < Sk)" if self.of_pairs else f"{self.index} < {self.size}"

    @property
    def least(self) -> str:
        return self._extreme("min", self.highest)

    @property
    def most(self) -> str:
        return self._extreme("max", self.lowest)

    def _extreme(self, which: str, outside: str) -> str:
        return f"tl.{which}(tl.where(inside, value, {outside}){'' if self.of_pairs else ', 0'})"

    @property
    def batches(self) -> str:
        return "B" if self.per_batch else "1"

    @property
    def heads(self) -> str:
        return "Hq" if self.per_head else "1"

    @property
    def returned(self) -> tuple[str, ...]:
        """What a kernel packs: the number of a tile among all, and its bools as 0 or 1, none of them outside."""
        return ("return cell, tl.where(inside, value, 0)",) if self.words else ()

    @property
    def taken(self) -> str:
        return "cell, pairs = " if self.words else ""

    @property
    def packing(self) -> tuple[str, ...]:
        """Lines that pack them, unit positions down."""
        pairs = "pairs" if self.axis == "k" else "tl.trans(pairs)"
        return (f"rows.store_words({self.name}_words_ptr, cell, {pairs}, n_tiles)",) if self.words else ()

    def units(self, ceil: str) -> tuple[str, ...]:
        """How many tiles there are for each walked one, as a factor; `ceil` is the division's name."""
        return (f"{ceil}({'Sq' if self.axis == 'k' else 'Sk'}, {UNIT})",) if self.of_pairs else ()

    @property
    def tiles(self) -> str:
        """How many tiles a batch and a head have, of which `n_tiles` are walked."""
        return " * ".join(("n_tiles", *self.units("tl.cdiv")))

    @property
    def count(self) -> str:
        """How many tiles there are in all."""
        return " * ".join((self.tiles, *(("B",) if self.per_batch else ()), *(("Hq",) if self.per_head else ())))

    @property
    def place(self) -> str:
        """Tile, batch and head of the tile `number` of all, and how many tiles and heads there are."""
        tiles = bracket(self.tiles)
        rest = f"number // {tiles}"
        batch, head = {
            (True, True): (f"{rest} // Hq", f"{rest} % Hq"),
            (True, False): (rest, "0"),
            (False, True): ("0", rest),
            (False, False): ("0", "0"),
        }[self.per_batch, self.per_head]
        return f"number % {tiles}, {batch}, {head}, {self.tiles}, {self.heads}"


def with_bits(tests: tuple[TestView, ...]) -> tuple[TestView, ...]:
    """The tests of a kernel that packs the bools of pairs."""
    return tuple(replace(t, words=t.of_pairs) for t in tests)
