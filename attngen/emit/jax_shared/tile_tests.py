"""Of a mask with holes, what the host asks of each pair of tiles: the plan's test, over arrays of tiles.

Takes the test and how params are called, returns lines for the targets of JAX. Extremes are put together in 32 bits,
where each operation stays at an end rather than leave them: ints of the mask are inside, so between such extremes, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from attngen.emit.jax_shared.expressions import Printer
from attngen.emit.jax_shared.operands import OperandView
from attngen.ir import printing
from attngen.ir.nodes import Apply, Op, Type
from attngen.ir.walk import nodes
from attngen.plan.mask.holes import TileTest
from attngen.plan.operands import Extent


@dataclass(frozen=True, slots=True)
class TileTestView:
    """The `lines` bind the extremes over which `can` and `must` are: whether some pair may be allowed, and all are."""

    lines: tuple[str, ...]
    can: str
    must: str


def tile_test_view(test: TileTest, host: Printer, operands: Iterable[OperandView], given: str) -> TileTestView:
    """`given`: what the functions that find extremes take beside the values."""
    distances = {v.operand.expr for v in operands if v.extent is Extent.DISTANCE}
    lines: list[str] = []
    within = replace(host, choices=replace(host.choices, wide=(*host.choices.wide, *_sums(test))))
    for part in test.parts:
        least, most = (printing.expression(e) for e in part.bounds)
        where = "keys" if part.of_keys else "queries"
        if part.of_pairs:
            where = "distances" if distances & {*nodes(part.value)} else "pairs"
        lines.append(f"{least}, {most} = _of_{where}({host.text(part.value)}, {given})")
    return TileTestView(tuple(lines), within.text(test.can), within.text(test.must))


def _sums(test: TileTest) -> Iterator[Apply]:
    """The operations on ints that may leave 32 bits: dividing by a number does not."""
    own = (Op.ADD, Op.SUB, Op.MUL, Op.NEG, Op.ABS)
    for condition in (test.can, test.must):
        yield from (e for e in nodes(condition) if isinstance(e, Apply) and e.type is Type.INT and e.op in own)
