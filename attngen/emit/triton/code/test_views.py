"""What templates and the launcher read of a data test: the small kernel that finds the extremes of each tile."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TestView:
    """The kernel finds the extremes of a data vector in each tile of the `walked` axis: of each batch and of each head,
    where the vector differs from batch to batch and from head to head.
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

    @property
    def size(self) -> str:
        return "Sk" if self.axis == "k" else "Sq"

    @property
    def walked(self) -> str:
        return "keys" if self.axis == "k" else "queries"

    @property
    def index(self) -> str:
        return f"{self.axis}_idx"

    @property
    def least(self) -> str:
        return self._extreme("min", self.highest)

    @property
    def most(self) -> str:
        return self._extreme("max", self.lowest)

    def _extreme(self, which: str, outside: str) -> str:
        return f"tl.{which}(tl.where(inside, value, {outside}), 0)"

    @property
    def batches(self) -> str:
        return "B" if self.per_batch else "1"

    @property
    def heads(self) -> str:
        return "Hq" if self.per_head else "1"

    @property
    def count(self) -> str:
        """How many tiles there are in all."""
        return " * ".join(("n_tiles", *(("B",) if self.per_batch else ()), *(("Hq",) if self.per_head else ())))

    @property
    def place(self) -> str:
        """Tile, batch and head of the tile `number` of all, and how many tiles and heads there are."""
        rest = "number // n_tiles"
        batch, head = {
            (True, True): (f"{rest} // Hq", f"{rest} % Hq"),
            (True, False): (rest, "0"),
            (False, True): ("0", rest),
            (False, False): ("0", "0"),
        }[self.per_batch, self.per_head]
        return f"number % n_tiles, {batch}, {head}, n_tiles, {self.heads}"
