"""The masks with holes that `holes.py` measures: each with its spec, what its params are drawn as, and its formula.

The formula is what FlexAttention and the dense truth take; it is written apart from the spec.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from saved import Spec

if TYPE_CHECKING:
    import grouped
    from torch import Tensor

    Params = Callable[["Cell", Any], dict[str, Tensor]]
    Made = Callable[["Cell", Mapping[str, Tensor]], grouped.Formula]


@dataclass(frozen=True, slots=True)
class Cell:
    """`mask` with its numbers, which say what the params are drawn with."""

    mask: str
    numbers: tuple[int, ...]
    B: int
    Hq: int
    Hkv: int
    N: int
    D: int

    @property
    def key(self) -> str:
        made = "x".join([self.mask, *map(str, self.numbers)])
        return f"{made}:{self.B}x{self.N}:{self.Hq}/{self.Hkv}:{self.D}"

    @property
    def shape(self) -> grouped.Shape:
        import grouped

        return grouped.Shape(self.B, self.Hq, self.Hkv, self.N, self.N, self.D, self.D)


@dataclass(frozen=True, slots=True)
class Mask:
    """`params(cell, generator)` has the spec's params by name, on the generator's device; `formula` takes them."""

    text: str
    params: Params
    formula: Made


def _positions(cell: Cell, generator: Any) -> Tensor:
    import torch

    return torch.arange(cell.N, device=generator.device)


def _nothing(cell: Cell, generator: Any) -> dict[str, Tensor]:
    return {}


# ---- rollouts --------------------------------------------------------------------------------------------------------


def _rollouts(cell: Cell, generator: Any) -> dict[str, Tensor]:
    """Numbers: tokens of the prompt, branches, tokens of each."""
    import torch

    prompt, branches, length = cell.numbers
    assert prompt + branches * length == cell.N
    at = _positions(cell, generator)
    first = torch.where(at < prompt, 0, 1 + (at - prompt) // length)
    return _branches(cell, first, torch.where(at < prompt, 1 + branches, first + 1))


def _tree(cell: Cell, generator: Any) -> dict[str, Tensor]:
    """Numbers: tokens of the prompt, branches, tokens of each, branches of these, tokens of each. Tokens come as a
    decoder writes them: one for each branch of a level in turn."""
    import torch

    prompt, branches, length, leaves, short = cell.numbers
    assert prompt + branches * (length + leaves * short) == cell.N
    at = _positions(cell, generator)
    middle, late = at - prompt, at - prompt - branches * length
    own = 1 + middle % branches * (1 + leaves)
    leaf = late % (branches * leaves)
    of_leaf = 2 + leaf // leaves * (1 + leaves) + leaf % leaves
    first = torch.where(at < prompt, 0, torch.where(late < 0, own, of_leaf))
    last = torch.where(at < prompt, 1 + branches * (1 + leaves), torch.where(late < 0, own + 1 + leaves, of_leaf + 1))
    return _branches(cell, first, last)


def _branches(cell: Cell, first: Tensor, last: Tensor) -> dict[str, Tensor]:
    return {n: x.int().expand(cell.B, -1).contiguous() for n, x in (("first", first), ("last", last))}


def _of_branches(cell: Cell, given: Mapping[str, Tensor]) -> grouped.Formula:
    import grouped

    first, last = given["first"], given["last"]
    return grouped.Formula(
        allowed=lambda b, h, q, k: (k <= q) & (first[b, k] <= first[b, q]) & (first[b, q] < last[b, k]),
        batches=cell.B > 1,
    )


def _of_tree(name: str, params: Params) -> Mask:
    """A token's branch, and the end of the branches that continue it, in the order of a walk through the tree."""
    text = f"attention {name}\nparam first: int[B, Sk]\nparam last: int[B, Sk]\n"
    return Mask(
        text + "mask = causal and first[b, k] <= first[b, q] < last[b, k]\nassume Sq == Sk\n", params, _of_branches
    )


# ---- neighbours ------------------------------------------------------------------------------------------------------


def _grid(cell: Cell, generator: Any) -> dict[str, Tensor]:
    """Numbers: how long each axis is, the first one slowest, then how long a tile of tokens is along each. Tiles, and
    the tokens of each, come row after row."""
    axes = len(cell.numbers) // 2
    whole, tile = cell.numbers[:axes], cell.numbers[axes:]
    at, size = _positions(cell, generator), math.prod(tile)
    number, inside = at // size, at % size
    found: list[Tensor] = []
    for extent, step in zip(reversed(whole), reversed(tile), strict=True):
        found.append(number % (extent // step) * step + inside % step)
        number, inside = number // (extent // step), inside // step
    return {name: at.int() for name, at in zip("xyz", found, strict=False)}


def _near(**reach: int) -> Mask:
    """Neighbours within so many tokens along each axis."""

    def formula(cell: Cell, given: Mapping[str, Tensor]) -> grouped.Formula:
        import grouped

        def allowed(b: Any, h: Any, q: Any, k: Any) -> Any:
            near = True
            for axis, most in reach.items():
                near = near & ((given[axis][q] - given[axis][k]).abs() <= most)
            return near

        return grouped.Formula(allowed=allowed)

    declared = "".join(f"param {axis}: int[Sk]\n" for axis in reach)
    mask = " and ".join(f"abs({axis}[q] - {axis}[k]) <= {most}" for axis, most in reach.items())
    return Mask(f"attention near\n{declared}mask = {mask}\nassume Sq == Sk\n", _grid, formula)


def _natten(width: int, radius: int = 6) -> Mask:
    """Neighbours on an image of so many columns, row after row; at its border windows are moved inwards."""
    text = f"""attention natten

const width = {width}
const radius = {radius}
let height = Sk // width
let centre(p, extent) = clamp(p, radius, extent - 1 - radius)

mask = abs(k // width - centre(q // width, height)) <= radius and abs(k % width - centre(q % width, width)) <= radius

assume Sq == Sk
assume Sk % width == 0
assume Sk >= (2 * radius + 1) * width
"""

    def formula(cell: Cell, given: Mapping[str, Tensor]) -> grouped.Formula:
        import grouped

        def off(at: Any, key: Any, extent: int) -> Any:
            return (key - at.clamp(radius, extent - 1 - radius)).abs()

        return grouped.Formula(
            allowed=lambda b, h, q, k: (
                (off(q // width, k // width, cell.N // width) <= radius) & (off(q % width, k % width, width) <= radius)
            )
        )

    return Mask(text, _nothing, formula)


# ---- blocks ----------------------------------------------------------------------------------------------------------


def _chosen(cell: Cell, generator: Any, block: int) -> tuple[Tensor, Tensor]:
    """(Hkv, blocks, most): which blocks of keys each block of queries takes, its own first, and which it may."""
    import torch

    count = -(-cell.N // block)
    drawn = torch.rand(cell.Hkv, count, count, generator=generator, device=generator.device)
    own = torch.eye(count, dtype=torch.bool, device=generator.device)
    seen = torch.ones_like(own).tril()
    drawn = torch.where(own, 2.0, torch.where(seen, drawn, -1.0))  # none of the future
    best = drawn.topk(min(cell.numbers[0], count), -1)
    return best.indices, best.values >= 0


def _bools(block: int) -> Mask:
    def params(cell: Cell, generator: Any) -> dict[str, Tensor]:
        import torch

        best, some = _chosen(cell, generator, block)
        count = -(-cell.N // block)
        empty = torch.zeros(cell.Hkv, count, count, dtype=torch.bool, device=generator.device)
        return {"chosen": empty.scatter_(-1, best, some)}

    def formula(cell: Cell, given: Mapping[str, Tensor]) -> grouped.Formula:
        import grouped

        chosen, group = given["chosen"], cell.Hq // cell.Hkv
        return grouped.Formula(
            allowed=lambda b, h, q, k: (k <= q) & chosen[h // group, q // block, k // block], heads=True
        )

    mask = f"mask = causal and chosen[hkv, q // {block}, k // {block}]\nassume Sq == Sk\n"
    return Mask(f"attention blocks\nparam chosen: bool[Hkv, rows, columns]\n{mask}", params, formula)


def _listed(block: int) -> Mask:
    """The same blocks by their numbers; -1 for none."""
    bools = _bools(block)

    def params(cell: Cell, generator: Any) -> dict[str, Tensor]:
        best, some = _chosen(cell, generator, block)
        return {"chosen": best.where(some, -1).int()}

    def formula(cell: Cell, given: Mapping[str, Tensor]) -> grouped.Formula:
        import torch

        best = given["chosen"].long()
        count = -(-cell.N // block)
        empty = torch.zeros(cell.Hkv, count, count + 1, dtype=torch.bool, device=best.device)
        found = empty.scatter_(-1, best.where(best >= 0, count), True)[..., :count]
        return bools.formula(cell, {"chosen": found})

    mask = f"mask = causal and k // {block} in chosen[hkv, q // {block}]\nassume Sq == Sk\n"
    return Mask(f"attention lists\nparam chosen: int[Hkv, rows, most]\n{mask}", params, formula)


# ---- spans, strides, diffusion ---------------------------------------------------------------------------------------


def _spans(window: int | None) -> Mask:
    """Images in text: their tokens see each other, also those behind them. Numbers: images, tokens of each."""

    def params(cell: Cell, generator: Any) -> dict[str, Tensor]:
        import torch

        images, length = cell.numbers
        at, apart = _positions(cell, generator), cell.N // images
        assert length <= apart
        span = torch.where(at % apart < length, 1 + at // apart, 0)
        return {"span": span.int().expand(cell.B, -1).contiguous()}

    def formula(cell: Cell, given: Mapping[str, Tensor]) -> grouped.Formula:
        import grouped

        span = given["span"]

        def allowed(b: Any, h: Any, q: Any, k: Any) -> Any:
            before = k <= q if window is None else (k <= q) & (q - k < window)
            return before | ((span[b, q] == span[b, k]) & (span[b, q] > 0))

        return grouped.Formula(allowed=allowed, batches=cell.B > 1)

    text = "causal" if window is None else f"sliding_window({window})"
    mask = f"mask = {text} or (span[b, q] == span[b, k] and span[b, q] > 0)\nassume Sq == Sk\n"
    return Mask(f"attention spans\nparam span: int[B, Sk]\n{mask}", params, formula)


def _strided(cell: Cell, given: Mapping[str, Tensor]) -> grouped.Formula:
    import grouped

    return grouped.Formula(allowed=lambda b, h, q, k: (k <= q) & ((q - k) % 4 == 0))


_DIFFUSION = """attention diffusion

const block = 32
let half = Sk // 2
let at_q = q % half // block
let at_k = k % half // block
let noisy_q = q < half
let noisy_k = k < half

# A noisy block sees itself and the clean ones before it, a clean block itself and the clean ones before it.
mask = (noisy_q and noisy_k and at_q == at_k) or (noisy_q and not noisy_k and at_k < at_q) or
    (not noisy_q and not noisy_k and at_k <= at_q)

assume Sq == Sk
assume Sk >= 2
"""


def _diffusion(cell: Cell, given: Mapping[str, Tensor]) -> grouped.Formula:
    import grouped

    half, block = cell.N // 2, 32

    def allowed(b: Any, h: Any, q: Any, k: Any) -> Any:
        own, other = q % half // block, k % half // block
        to_noisy = (q < half) & (own == other)
        to_clean = ((q < half) & (other < own)) | ((q >= half) & (other <= own))
        return ((k < half) & to_noisy) | ((k >= half) & to_clean)

    return grouped.Formula(allowed=allowed)


MASKS: Mapping[str, Mask] = {
    "rollouts": _of_tree("rollouts", _rollouts),
    "tree": _of_tree("tree", _tree),
    "image": _near(x=8, y=8),
    "video": _near(x=6, y=6, z=2),
    "blocks": _bools(128),
    "blocks64": _bools(64),
    "lists": _listed(128),
    "strided": Mask("attention strided\nmask = causal and (q - k) % 4 == 0\nassume Sq == Sk\n", _nothing, _strided),
    "spans": _spans(1024),
    "spans_global": _spans(None),
    "diffusion": Mask(_DIFFUSION, _nothing, _diffusion),
    "natten16": _natten(16),  # for dry runs
    "natten64": _natten(64),
    "natten128": _natten(128),
}
SPECS: Mapping[str, Spec] = {name: Spec(mask.text) for name, mask in MASKS.items()}
