"""The constants that every launch of a file for one head dim gives its kernels.

Takes the head dim and the rows of the tables of Hopper's kernels, returns constants by kernel for `text.fold`. Each
table has one row at most then, and the launcher has no other: `attngen tune` tries rows in files for all head dims.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

from attngen.emit.triton.hopper.backward import GluonApartView, GluonBackwardView
from attngen.emit.triton.hopper.forward import GluonView

Cell: TypeAlias = int | bool | str

_FORWARD = ("BQ", "BK", "STAGES", "PIPELINED", "ORDERED", "REGISTERS", "SPARE", "", "", "SCHEDULE", "OUT_APART")
_BACKWARD = ("BQ", "BK", "STAGES", "EARLY", "", "", "SPARE", "BACKWARDS")
_DKDV = ("BQ", "BK", "STAGES", "AHEAD", "", "SPARE")
_DQ = ("BQ", "BK", "K_STAGES", "V_STAGES", "", "SPARE")
"""What the kernels call the cells of their tables' rows; a cell without a name is for the launcher."""


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
        blocks: dict[str, Cell] = {"BLOCK_D": forward.table[0][0][0]} if len(forward.table) == 1 else {}
        found["_hopper_forward_kernel"] = _shared(_FORWARD, (row for _, row in forward.table)) | blocks
    if backward is not None:
        found["_hopper_backward_kernel"] = _shared(_BACKWARD, (row for _, row in backward.table))
    if apart is not None:
        found["_hopper_dkdv_kernel"] = _shared(_DKDV, (rows[0] for _, rows in apart.table))
        found["_hopper_dq_kernel"] = _shared(_DQ, (rows[1] for _, rows in apart.table))
    return found


def _shared(names: Iterable[str], rows: Iterable[Iterable[Cell]]) -> dict[str, Cell]:
    """What all rows have in common."""
    first, *others = (dict(zip(names, row, strict=True)) for row in rows)
    same: Mapping[str, Cell] = {n: x for n, x in first.items() if n and all(row[n] == x for row in others)}
    return {**same, "FAST": True}
