"""Of a mask with holes, what the host asks of each pair of tiles: the plan's test, over arrays of tiles.

Takes the test and how params are called, returns lines for the targets of JAX.
"""

from __future__ import annotations

from dataclasses import dataclass

from attngen.emit.jax_shared.expressions import Printer
from attngen.ir import printing
from attngen.plan.mask.holes import TileTest


@dataclass(frozen=True, slots=True)
class TileTestView:
    """The `lines` bind the extremes over which `can` and `must` are: whether some pair may be allowed, and all are."""

    lines: tuple[str, ...]
    can: str
    must: str


def tile_test_view(test: TileTest, host: Printer, given: str) -> TileTestView:
    """`given`: what the functions that find extremes take beside the values."""
    lines: list[str] = []
    for part in test.parts:
        least, most = (printing.expression(e) for e in part.bounds)
        where = "pairs" if part.of_pairs else "keys" if part.of_keys else "queries"
        lines.append(f"{least}, {most} = _of_{where}({host.text(part.value)}, {given})")
    return TileTestView(tuple(lines), host.text(test.can), host.text(test.must))
