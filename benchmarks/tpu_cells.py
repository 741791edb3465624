"""What `tpu_static.py` compares: chips, shapes, masks, and the tile sizes that each contender may choose from.

A cell's `variant` is `full`, `causal` or `local` (a causal window of 1024 keys and the query's own) where rivals can
compute it too, else one of attngen's examples.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WINDOW = 1025
"""Keys that `local` sees, the query's own among them: Splash's window of 1024 keys before it."""

_SPECS = {
    "full": "attention full\n",
    "causal": "attention causal\n\nmask = causal\n",
    "local": f"attention local\n\nconst window = {WINDOW}\n\nmask = sliding_window(window)\n",
}


@dataclass(frozen=True, slots=True)
class Cell:
    """One batch entry, eight heads, bf16. `backward` is forward and backward together."""

    chip: str
    head_dim: int
    variant: str
    length: int
    backward: bool

    @property
    def key(self) -> str:
        return f"{self.chip} {self.head_dim} {self.variant} {self.length} {'bwd' if self.backward else 'fwd'}"

    def fits(self, contender: str) -> bool:
        """Whether a rival computes this variant at all: of the examples none does as they are."""
        return self.variant in ("full", "causal") or (self.variant == "local" and contender != "flash")

    def spec(self) -> tuple[str | Path, dict[str, bool | int | float]]:
        """The text or the file of the spec, and the constants that it is compiled with."""
        if self.variant in _SPECS:
            return _SPECS[self.variant], {}
        return ROOT / "examples" / f"{self.variant}.attn", {}

    @property
    def pairs(self) -> int:
        """(query, key) pairs that the mask allows, in one head."""
        n = self.length
        match self.variant:
            case "local":
                return sum(min(i + 1, WINDOW) for i in range(n))
            case "full":
                return n * n
            case _:
                return n * (n + 1) // 2

    @property
    def operations(self) -> int:
        """Of one head's useful products: two forward, five backward."""
        return self.pairs * self.head_dim * (14 if self.backward else 4)


def _cells() -> Iterator[Cell]:
    for chip in ("v5e", "v5p", "v6e"):
        for variant in ("causal", "full", "local"):
            for length in (4096, 8192):
                yield Cell(chip, 128, variant, length, False)
        for head_dim in (64, 256):
            yield Cell(chip, head_dim, "causal", 4096, False)
    for chip in ("v5e", "v5p", "v6e"):
        yield Cell(chip, 128, "causal", 4096, True)
        yield Cell(chip, 128, "local", 4096, True)
        if chip != "v5p":
            yield Cell(chip, 64, "causal", 4096, True)
            yield Cell(chip, 256, "causal", 4096, True)


def _reported(cell: Cell) -> bool:
    """The shapes of the founding study."""
    if cell.chip == "v5e" or cell.backward:
        return True
    if cell.chip == "v5p":
        return cell.head_dim == 128 and (cell.variant == "causal" or cell.length == 8192)
    return cell.variant != "local" or cell.length == 8192


CELLS = tuple(cell for cell in _cells() if _reported(cell))

VARIANTS = tuple(
    Cell(chip, 128, variant, 4096, backward)
    for chip in ("v5e", "v6e")
    for variant in ("alibi", "softcap", "relative_bias", "documents")
    for backward in (False, True)
)

# (query rows, key rows fetched, key rows computed at a time). Of eleven, of 512 to 2048, these led
# in the causal cells of 4096.
_RIVAL_FORWARD = ((1024, 1024, 512), (1024, 1024, 1024), (512, 1024, 512), (1024, 2048, 512))
_RIVAL_LOCAL = (*_RIVAL_FORWARD, (512, 512, 512))
_RIVAL_BACKWARD = ((1024, 1024, 512), (1024, 1024, 1024), (512, 1024, 512))

# (query rows, key rows, full tiles at a time)
_OWN_FORWARD = ((512, 512, 4), (512, 1024, 4), (512, 512, 2), (1024, 512, 2))
_OWN_FORWARD_WIDE = ((1024, 1024, 4), (512, 512, 4), (1024, 1024, 2), (1024, 512, 4))
"""On a chip whose matrix units are 256 wide."""
_OWN_BACKWARD = ((512, 512, 1), (1024, 1024, 1), (1024, 512, 1), (512, 1024, 1))


def tiles_of(contender: str, cell: Cell) -> tuple[tuple[int, int, int], ...]:
    if contender != "attngen":
        if cell.backward:
            return _RIVAL_BACKWARD
        return _RIVAL_LOCAL if cell.variant == "local" else _RIVAL_FORWARD
    if cell.backward:
        return _OWN_BACKWARD
    return _OWN_FORWARD_WIDE if cell.chip == "v6e" else _OWN_FORWARD
