"""Lists of tiles as text, for the kernels that write them and for those that read them.

Takes the plan's `Lists`, returns a `ListView`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from attngen.emit.triton.code.expressions import Printer
from attngen.emit.triton.code.orders import plainly
from attngen.ir.build import integer, is_literal
from attngen.ir.nodes import Expr
from attngen.ir.walk import substitute
from attngen.plan.mask.lists import PART, PARTS, PLACE, ROW, Lists
from attngen.plan.mask.loops import Assigned
from attngen.plan.mask.order import ITEM


@dataclass(frozen=True, slots=True, kw_only=True)
class ListView:
    """The fields of `Lists`. `times`: the number of lists, as a factor of their length. `row`: where a tile's entries
    are, for a batch and a head, or in the list `place` (`row_of_place`). `entry`: where that of its `part` is; `whole`:
    that of its first part. `steps` bind, from `item`, what is written there, for which `batch` and `head`.
    """

    times: str
    place: str
    row: str
    row_of_place: str
    entry: str
    whole: str
    steps: tuple[str, ...]
    batch: str
    head: str


def list_view(lists: Lists | None, printer: Printer, parts: Expr | None = None) -> ListView | None:
    """`parts`: how many a tile has. Without, it has one, whose entry is the tile's row."""
    if lists is None:
        return None
    one: dict[Expr, Expr] = {ROW: ITEM} if parts is None else {PARTS: parts}
    steps = [replace(s, value=substitute(s.value, one)) for s in lists.steps]
    printer = plainly(printer, lists.of_batch, lists.of_head, *(s.value for s in steps))
    return ListView(
        times="" if is_literal(lists.count, 1) else f" * {printer.text(lists.count)}",
        place=printer.text(lists.place),
        row=printer.text(substitute(lists.row, {PLACE: lists.place})),
        row_of_place=printer.text(lists.row),
        whole=printer.text(substitute(lists.entry, {**one, PART: integer(0)})),
        entry="row" if parts is None else printer.text(substitute(lists.entry, one)),
        steps=assigned_lines([s for s in steps if parts is not None or s.name in ("tile", "place")], printer),
        batch=printer.text(lists.of_batch),
        head=printer.text(lists.of_head),
    )


def assigned_lines(steps: Iterable[Assigned], printer: Printer) -> tuple[str, ...]:
    return tuple(f"{s.name} = {printer.text(s.value)}" for s in steps)
