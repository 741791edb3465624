"""The kernels that a GPU of compute capability 9.0 runs in the place of portable ones: loops of the same form.

Takes a plan and head dims, returns `Own`. Which kernels there are, with which tiles, and what each warpgroup of a tile
passes over is the plan's own (`KernelPlan.hopper`). What a call decides is left out: arguments that the copy engine
can't read, short queries against many keys, shares of query heads, params whose gradient another kernel sums.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from attngen.cost.passes import FLOAT, Loop, Order, Side, Stream, loops
from attngen.plan import KernelPlan
from attngen.plan.hopper import Dims, HopperPlan
from attngen.plan.tiles.hopper_trials import SCRATCH, Row, shared_bytes

HALF = 2
"""Bytes of an element: these kernels take no other."""
WARPGROUP = 64
"""Queries, or keys, of a tile that a warpgroup has for itself."""
TERMS = 16
"""Columns that the products of scores and of dP have besides, where they take a row's values off (`row_terms`)."""


@dataclass(frozen=True, slots=True)
class Own:
    """`loops`: none of a pass that portable kernels run. `row_bytes`: what is stored of each row for the backward
    kernel. `parts`: dQ is summed in float32 first. `elsewhere`: a call that wants the gradient of one of these params
    runs portable kernels backward."""

    loops: tuple[Loop, ...] = ()
    row_bytes: int = FLOAT
    parts: bool = False
    elsewhere: tuple[str, ...] = ()


def own(plan: KernelPlan, d: int, dv: int) -> Own:
    """Of calls in half precision."""
    if plan.hopper is None:
        return Own()
    found = plan.hopper.for_head_dim((d, dv))
    forms = {(loop.kernel, loop.order): loop for loop in loops(d, dv, HALF)}
    ahead = _forward(found, forms["forward", Order.QUERIES])
    if found.backward is not None and found.backward.rows:
        (dims, row), terms = found.backward.rows[0], found.backward.row_terms
        whole = replace(
            _with_row(forms["one kernel", Order.KEYS], row, dims, terms=terms),
            kernel="Hopper backward",
            part=None if plan.map else (row.queries, WARPGROUP),  # of a map's tiles both warpgroups take all
            of_tile=d,  # dQ, which a warpgroup of its own makes of all keys
        )
        if terms:
            rows = Stream("terms", Side.QUERIES, TERMS * HALF, True, False)
            kept = tuple(s for s in whole.streams if s.name not in ("lse", "delta"))
            whole = replace(whole, streams=(*kept, rows), products=whole.products + 2 * TERMS)
        return Own((*ahead, whole), TERMS * HALF if terms else FLOAT, True, found.backward.elsewhere)
    if found.apart is not None and found.apart.rows:
        dims, rows = found.apart.rows[0]
        both = (("dK/dV", Order.KEYS, rows.dkdv), ("dQ", Order.QUERIES, rows.dq))
        back = (replace(_with_row(forms[k, o], row, dims), kernel=f"Hopper {k}") for k, o, row in both)
        return Own((*ahead, *back), elsewhere=found.apart.elsewhere)
    return Own(ahead)


def _forward(found: HopperPlan, form: Loop) -> tuple[Loop, ...]:
    if found.forward is None or not found.forward.rows:
        return ()
    (dims, row), share = found.forward.rows[0], found.forward.share
    passes_over = share is not None and (share.pipelined or not row.pipelined)
    part = (WARPGROUP, row.keys) if passes_over else None
    return (replace(_with_row(form, row, dims), kernel="Hopper forward", part=part),)


def _with_row(form: Loop, row: Row, dims: Dims, *, terms: bool = False) -> Loop:
    return replace(form, planned=True, tile=(row.queries, row.keys), scratch=shared_bytes(row, dims, terms) + SCRATCH)
