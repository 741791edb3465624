"""The constants that every launch of a file for one head dim gives its kernels.

Takes the head dim and the rows of the tables of Hopper's kernels, returns constants by kernel for `text.fold`. Each
table has one row at most then, and the launcher has no other: `attngen tune` tries rows in files for all head dims.
"""

from __future__ import annotations

from attngen.emit.triton.hopper.backward import GluonApartView, GluonBackwardView
from attngen.emit.triton.hopper.forward import GluonView
from attngen.plan.table import Cell, Table


def everywhere(head_dim: tuple[int, int]) -> dict[str, Cell]:
    """What all kernels are compiled for. Kernels for Hopper cards round head dims to 64 or more, the others to 16."""
    qk, v = head_dim
    blocks: dict[str, Cell] = {"BLOCK_D": 1 << (qk - 1).bit_length(), "BLOCK_DV": 1 << (v - 1).bit_length()}
    return {"D": qk, "Dv": v, **(blocks if min(qk, v) > 32 else {})}


def by_kernel(
    forward: GluonView | None, backward: GluonBackwardView | None, apart: GluonApartView | None
) -> dict[str, dict[str, Cell]]:
    found: dict[str, dict[str, Cell]] = {}
    if forward is not None:
        found[forward.table.kernel] = _shared(forward.table)
        if len(forward.table.rows) == 1:
            found[forward.table.kernel]["BLOCK_D"] = forward.table.rows[0][0][0]
    if backward is not None:
        found[backward.table.kernel] = _shared(backward.table)
    if apart is not None:
        found |= {table.kernel: _shared(table) for table in (apart.dkdv, apart.dq)}
    return found


def _shared(table: Table) -> dict[str, Cell]:
    return {**table.constants, "FAST": True}
