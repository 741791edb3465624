"""What stands at the top of a Triton module: the header, and the table of tile sizes.

Takes the plan, the spec's text and the options, returns a `Header` and the rows of `TILES`.
"""

from __future__ import annotations

import hashlib
import json
import textwrap
from typing import TypeAlias

from attngen.emit.options import Options
from attngen.emit.said import words
from attngen.emit.text.header import Header, header
from attngen.plan.footprint import loads_of
from attngen.plan.kernel import KernelPlan
from attngen.plan.tiles.portable import registers, table

OPERATORS = "2"
"""Part of the operators' names, by which PyTorch's compiler keeps from run to run what it compiled: another number
where the arguments change, or the shapes, dtypes or layout of the results."""
TileRow: TypeAlias = tuple[tuple[str, int, int], tuple[tuple[int, ...], ...]]
"""(chip, bytes of an element, head dim rounded up), and the tiles of the forward, dK/dV and dQ kernels."""


def tile_table(plan: KernelPlan, options: Options) -> list[TileRow]:
    """The table of tile sizes: the planner's rows, what was timed in the place of some, and no chip, dtype or head dim
    that the file is not for."""
    rows = {
        (r.chip, r.itemsize, r.head_block): tuple(tuple(t) for t in (r.forward, r.dkdv, r.dq))
        for r in table(plan.attention.tile, plan.burden, loads_of(plan))
    }
    for t in options.tuned_gpu:
        key = t.chip, t.itemsize, t.head_block
        tiles = zip((t.forward, t.dkdv, t.dq), rows[key], strict=True)
        rows[key] = tuple(tuned or planned for tuned, planned in tiles)
    block = None if options.head_dim is None else max(16, 1 << (max(options.head_dim) - 1).bit_length())
    return [(key, row) for key, row in rows.items() if options.holds(key[0], key[1]) and block in (None, key[2])]


def places(rows: list[TileRow]) -> list[str]:
    """Each distinct row of the table once, with the chips, bytes of an element and head dims that it is for."""
    found: dict[tuple[tuple[int, ...], ...], dict[tuple[str, int], list[int]]] = {}
    for (chip, itemsize, head_block), row in rows:
        found.setdefault(row, {}).setdefault((chip, itemsize), []).append(head_block)
    lines: list[str] = []
    for row, dims in found.items():
        chips: dict[tuple[int, tuple[int, ...]], list[str]] = {}
        for (chip, itemsize), blocks in dims.items():
            chips.setdefault((itemsize, tuple(blocks)), []).append(chip)
        where = ", ".join(f"({_names(names)}, {size}, {blocks})" for (size, blocks), names in chips.items())
        lines += textwrap.wrap(f"({row}, ({where},)),", width=112, subsequent_indent=" ")
    return lines


def _names(names: list[str]) -> str:
    return f"({', '.join(json.dumps(name) for name in names)},)"


def register_limits(plan: KernelPlan, rows: list[TileRow]) -> dict[tuple[int, ...], int]:
    """The limits of registers for the head dims that the file is for, on chips where they count."""
    blocks = {block for (chip, itemsize, block), _ in rows if itemsize == 2 and chip in ("sm_90", "sm_100")}
    return {key: limit for key, limit in registers(plan.burden).items() if key[0] in blocks}


def triton_header(plan: KernelPlan, text: str, options: Options, proof: tuple[str, ...]) -> Header:
    a = plan.attention
    said = words(options, a.consts, a.tile)
    key = hashlib.sha256("\n".join([text, *said, OPERATORS]).encode()).hexdigest()
    passes = "forward" if options.forward else "forward and backward"
    gradients = "without gradients" if options.forward else "differentiable in every float argument"
    return header(
        a.name,
        text,
        title=f"fused attention for GPUs, {passes}, in Triton.",
        summary=f"fused, {gradients}.",
        said=said,
        proof=proof,
        precision=options.precision,
        operator=f"attngen::{a.name}_{key[:12]}",
    )
