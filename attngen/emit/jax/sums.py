"""Gradients of operands in a generated JAX module: what a tile adds to a sum, and what becomes of all tiles' sums.

Takes a leaf's gradient and the operand that holds it, returns a `SumView`. A sum has the shape that the operand has in
a tile; the order of all additions is fixed.
"""

from __future__ import annotations

from typing import assert_never

from attngen.emit.arrays.tile_code import TileCode
from attngen.emit.jax.views import SumView
from attngen.emit.jax_shared.operands import OperandView
from attngen.emit.text.precedence import times
from attngen.plan.kernel import LeafGradient
from attngen.plan.operands import Extent

BY_ROWS = (Extent.HEAD, Extent.ROW, Extent.DISTANCE, Extent.PAIR)
"""Gathered where a tile of queries is held; those of columns where a tile of keys is."""

_INSIDE = "jnp.where(q_idx < Sq, contribution, 0.0)"
"""Where a sum runs over queries: beyond the tensor a score may have no value."""


def sum_view(view: OperandView, g: LeafGradient, code: TileCode, number: int, normalised: str) -> SumView:
    """`number` is the sum's place among those of its pass."""
    name, like, found = f"sum_{view.name}", f'floats["{view.name}"]', f"found[{number}]"
    parts: list[str] = []
    if g.pair is not None:
        parts.append(times("g", code.results.get(f"pair_{view.name}")))
    if g.weight is not None:
        parts.append(times("dp", code.results.get(f"weight_{view.name}")) + normalised)
    rows: tuple[str, ...] = ()
    if g.extra is not None:
        share = f"jnp.exp2({code.results['log2_extra']} - row_lse)" if code.results["log2_extra"] else "inv_den"
        text = times(f"-delta * {share}", code.results.get(f"extra_{view.name}"))
        rows = (f"{name} = {name} + ({text}).sum((2, 3), keepdims=True)",)  # it varies with batch and head alone
    match view.extent:
        case Extent.HEAD:
            shape, added = "(B, Hq, 1, 1)", f"{name} + {_INSIDE}.sum((2, 3), keepdims=True)"
            last = f"{found}.sum(0)"
        case Extent.ROW:
            shape, added = "(B, Hq, TILE_Q, 1)", f"{name} + contribution.sum(3, keepdims=True)"
            last = f"_in_place({found}, 2, Sq)"
        case Extent.COLUMN:
            shape, added = "(B, Hq, 1, TILE_K)", f"{name} + contribution.sum(2, keepdims=True)"
            last = f"_in_place({found}, 3, Sk)"
        case Extent.DISTANCE:
            shape = "(B, Hq, 1, TILE_Q - 1 + _up(Sk, TILE_K) * TILE_K)"
            added = f"_added({name}, _along_diagonals({_INSIDE}), k0, 3)"
            last = f"_overlaid({found})[..., -Sq % TILE_Q :][..., : Sq + Sk - 1]"
        case Extent.PAIR:
            shape = f"(*{like}.shape[:2], TILE_Q, _up(Sk, TILE_K) * TILE_K)"
            added = f"_added({name}, _reduced(contribution, {like}), k0, 3)"
            last = f"_in_place({found}, 2, Sq)[..., :Sk]"
        case _:
            assert_never(view.extent)
    lines = (f"{name} = {added}",) if parts else ()
    return SumView(name, view.name, shape, " + ".join(parts), lines, rows, f"_reduced({last}, {like})")
