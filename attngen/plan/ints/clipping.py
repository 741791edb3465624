"""Sums that may stay at the end of a tensor's dtype, so that kernels need no wider ints for them.

`x[q] - 8 <= x[k]` with int32 elements: where x[q] - 8 is less than all of them, the least int32 may stand for it, since
both are at most each x[k]. Takes expressions, returns the sums of which this is so wherever they stand.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from attngen.ir.build import add, integer, maximum, minimum, sub
from attngen.ir.nodes import Apply, Expr, Literal, Load, Op, Type
from attngen.ir.walk import children, nodes

_MOST_CONSTANT = 2**28


def clipped(expressions: Iterable[Expr]) -> tuple[Apply, ...]:
    """The sums of an element and a constant that may stay at the end of the dtype of their tensor: they are only
    compared with elements of the same tensor, so that what is less than all of them, or more, is right."""
    roots = tuple(expressions)
    found = dict.fromkeys(bound for root in roots for e in nodes(root) for bound in _of_elements(e))
    if not found:
        return ()
    everywhere = [e for root in roots for e in nodes(root)]
    exact = {c for e in everywhere for c in children(e) if c in found and c not in tuple(_of_elements(e))}
    return tuple(e for e in found if e not in exact)


def clipped_at(e: Apply, bits: int) -> Expr:
    """What the runtime's `moved` gives for a dtype of so many bits."""
    x, by = e.args
    least, most = integer(-(2 ** (bits - 1))), integer(2 ** (bits - 1) - 1)
    return sub(maximum(x, add(least, by)), by) if e.op is Op.SUB else add(minimum(x, sub(most, by)), by)


def _of_elements(e: Expr) -> Iterator[Apply]:
    """Of `x - 8 <= y` the left side, and of `x <= y + 8` the right one, where both are of elements of one tensor."""
    if not (isinstance(e, Apply) and e.op in (Op.LE, Op.LT)):
        return
    for op, bound, other in ((Op.SUB, *e.args), (Op.ADD, *e.args[::-1])):
        match bound, other:
            case Apply(op=found, args=(Load() as own, Literal(value=constant))), Load() if (
                found is op and own.param == other.param and own.type is Type.INT and 0 <= constant <= _MOST_CONSTANT
            ):
                yield bound
            case _:
                pass
