"""What `tpu_static.py` compares: chips, shapes, masks, and the tile sizes that each contender may choose from.

A cell's `variant` is `full`, `causal` or `local` (a causal window of 1024 keys and the query's own) where rivals can
compute it too, or `rollouts`, whose tokens rivals must know when they are compiled; else one of attngen's examples.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

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
        return self.variant in ("full", "causal") or (self.variant in ("local", "rollouts") and contender != "flash")

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
            case "rollouts":
                prompt, length = n // 4, n * 3 // 64
                return prompt * (prompt + 1) // 2 + 16 * (prompt * length + length * (length + 1) // 2)
            case _:
                return n * (n + 1) // 2

    @property
    def operations(self) -> int:
        """Of one head's useful products: two forward, five backward."""
        return self.pairs * self.head_dim * (14 if self.backward else 4)


def branches(length: int) -> np.ndarray[Any, Any]:
    """The branch of each token: a prompt, 0, of a quarter of them, and sixteen rollouts."""
    import numpy as np

    at, prompt = np.arange(length), length // 4
    return np.where(at < prompt, 0, 1 + (at - prompt) // (length * 3 // 64)).astype(np.int32)


def _cells() -> Iterator[Cell]:
    for chip in ("v5e", "v5p", "v6e"):
        for variant in ("causal", "full", "local"):
            for length in (4096, 8192):
                yield Cell(chip, 128, variant, length, False)
        for head_dim in (64, 256):
            yield Cell(chip, head_dim, "causal", 4096, False)
        for backward in (False, True):
            yield Cell(chip, 128, "rollouts", 8192, backward)
    for chip in ("v5e", "v5p", "v6e"):
        yield Cell(chip, 128, "causal", 4096, True)
        yield Cell(chip, 128, "local", 4096, True)
        if chip != "v5p":
            yield Cell(chip, 64, "causal", 4096, True)
            yield Cell(chip, 256, "causal", 4096, True)


def _reported(cell: Cell) -> bool:
    """The shapes of the founding study, and masks with holes."""
    if cell.chip == "v5e" or cell.backward or cell.variant == "rollouts":
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

# (query rows, key rows fetched, key rows computed at a time). These led of ten to twelve that tokamax was tried at in
# ten cells; larger ones do not fit the vector memory that these kernels ask for.
_RIVAL_CAUSAL = ((1024, 1024, 512), (1024, 2048, 512))
_RIVAL_CAUSAL_WIDE = ((1024, 1024, 512), (1024, 1024, 1024), (2048, 2048, 1024))
_RIVAL_LOCAL = ((512, 512, 512), (1024, 1024, 512))
_RIVAL_FULL = ((512, 4096, 1024), (512, 4096, 512), (1024, 2048, 512))
_RIVAL_FULL_WIDE = ((2048, 4096, 1024), (1024, 4096, 512), (1024, 4096, 1024), (2048, 2048, 1024))
_RIVAL_BACKWARD = ((1024, 1024, 512), (1024, 1024, 1024))
_RIVAL_HOLES = ((512, 512, 512), *_RIVAL_BACKWARD)


# (query rows, key rows, full tiles at a time)
_OWN = ((512, 512, 4),)
_OWN_FULL = ((512, 512, 4), (512, 1024, 4), (1024, 512, 8))
_OWN_WIDE = ((1024, 1024, 4), (512, 512, 4))
_OWN_FULL_WIDE = ((1024, 1024, 4), (2048, 512, 8))
_OWN_BACKWARD = ((512, 512, 1), (1024, 1024, 1))


def tiles_of(contender: str, cell: Cell) -> tuple[tuple[int, int, int], ...]:
    """Those that led before, and neighbours; `wide` is a chip whose matrix units are 256 wide.

    JAX's Splash and flash attention trail tokamax's by more than their tiles make up for, and have fewer.
    """
    wide, full = cell.chip == "v6e", cell.variant in ("full", "relative_bias")
    if contender == "attngen":
        if cell.backward:
            return _OWN_BACKWARD if wide or full else _OWN_BACKWARD[:1]
        return (_OWN_FULL_WIDE if full else _OWN_WIDE) if wide else (_OWN_FULL if full else _OWN)
    found = _RIVAL_BACKWARD if cell.backward else _rival_forward(cell.variant, wide)
    found = _RIVAL_HOLES if cell.variant == "rollouts" else found
    if contender == "tokamax":
        return found
    return found[:2] if full else found[:1]


def _rival_forward(variant: str, wide: bool) -> tuple[tuple[int, int, int], ...]:
    match variant:
        case "full":
            return _RIVAL_FULL_WIDE if wide else _RIVAL_FULL
        case "local":
            return _RIVAL_LOCAL
        case _:
            return _RIVAL_CAUSAL_WIDE if wide else _RIVAL_CAUSAL
