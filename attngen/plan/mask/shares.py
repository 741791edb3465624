"""Which query heads an item of the backward kernel walks, where several share keys and values.

The `group` query heads that share keys are its members. They are cut into `shares` of `span` members each, the last
with those that are left. An item is a tile of keys for one share: it takes the keys once, walks its members one after
the other, and sums their dK and dV. If there are several shares, each item leaves its sums as a `part` in float32, and
a kernel adds the parts of a tile in the order of the shares. So heads of few keys still make as many items as the chip
needs, and the bits repeat.

The launcher chooses `span` for each call, by the values here. The functions of shares are `plan.index`;
`prove.obligations.shares` shows, for any span, that each member of a group is in exactly one share, that no two items
leave their sums in one place, and that the parts which are added are those of the shares.
"""

from __future__ import annotations

from dataclasses import dataclass

from attngen.ir.build import add, apply, conjunction, floordiv, index, integer, maximum, minimum, mul
from attngen.ir.nodes import Expr, Op, Symbol, Type

N_TILES, SPAN, SIZE = (index(name) for name in ("n_tiles", "span", "size"))


SHORT, CACHED, LIVE = 12 * 2**20, 24 * 2**20, 144 * 2**20
"""Bytes of a head's rows of Q, dO and dQ. Fewer than `SHORT` are read quickly from anywhere, if a tile of keys meets
half of them in the mean. More than `CACHED` have left the cache where neighbours begin at queries of their own and walk
to the end. Those of all heads in turn should be at most `LIVE`: programs that begin late, because others hold their
multiprocessors, walk apart from the rest from then on, and both read from memory (`docs/log`, "Long sequences")."""
PARTS, _PART = 2**30, 4 * 128
"""Bytes of a call's parts, at most, where each item has one member; and of a part, in float32, for one column."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """How many items the host creates for query heads that share keys, and in which order they take tiles.

    Expressions read `n_tiles`, the tiles of keys of a head, and `size`, the bytes of its rows of Q, dO and dQ. A
    grouped item processes several query heads; heads in turn are interleaved.
    """

    heads: Expr
    """Items for each tile of keys: so many heads of items."""
    listed: Expr
    """The same where items are tiles of several sequences."""
    onwards: bool
    """Grouped items go through the tiles of keys in ascending order, `heads` in turn."""
    long: Expr | None = None
    """Above `CACHED` bytes all items go in ascending order, with so many heads in turn."""
    few: int = 16
    """Sequences with fewer tiles on average: one item for a whole group, two heads in turn, in descending order."""
    paired: bool = False
    """The tiles of two sequences alternate even if they have `few` tiles or more: tiles wait for each other at once."""
    whole: bool = False
    """Every tile of keys meets all queries, so a grouped item counts as several heads in turn."""
    listed_turn: Expr | None = None
    """Heads in turn of grouped items of sequences, if not `listed`: parts of sequences that ranks hold differ in
    length, and long ones need few heads at a time."""


def enough(items: int, *, least: int, most: int) -> Expr:
    """As many heads as make about `items` tiles of keys."""
    return maximum(integer(least), minimum(integer(most), floordiv(integer(items), N_TILES)))


def together(short: int | None) -> Expr:
    """As many heads as stay together: eight, fewer whose rows are `LIVE`, or sixteen with less than `short` bytes."""
    few = maximum(integer(2), minimum(integer(8), floordiv(integer(LIVE), SIZE)))
    return few if short is None else _either(apply(Op.LT, SIZE, integer(short)), integer(16), few)


def alone(otherwise: Expr) -> Expr:
    """One item for each query head, in the order of ungrouped heads, with two exceptions. Heads with fewer than 32
    tiles of keys: 32 heads, because adding up the partial sums of more items would cost more than they gain. Partial
    sums of more than `PARTS` bytes, or rows larger than the cache: `otherwise`."""
    members = mul(Symbol("B", Type.INT), Symbol("Hq", Type.INT))
    width = add(Symbol("D", Type.INT), Symbol("Dv", Type.INT))
    parts = mul(mul(members, N_TILES), mul(integer(_PART), width))
    far, few = apply(Op.LT, integer(CACHED), SIZE), apply(Op.LT, N_TILES, integer(32))
    large = conjunction(apply(Op.NOT, few), apply(Op.LT, integer(PARTS), parts))
    return _either(apply(Op.OR, far, large), otherwise, _either(few, integer(32), members))


def listed_alone() -> Expr:
    """For sequences: one item for each query head, or fewer, so that partial sums take at most `PARTS` bytes. Two heads
    if the rows of an average sequence exceed the cache."""
    width = add(Symbol("D", Type.INT), Symbol("Dv", Type.INT))
    room = floordiv(integer(PARTS), mul(N_TILES, mul(integer(_PART), width)))
    return _either(apply(Op.LT, integer(CACHED), SIZE), integer(2), maximum(integer(2), room))


def few_in_turn() -> Expr:
    """As many heads of items as walk eight query heads, at least two, and no more than are wanted."""
    return maximum(integer(2), minimum(index("wanted"), floordiv(integer(8), SPAN)))


def _either(condition: Expr, first: Expr, second: Expr) -> Expr:
    return apply(Op.SELECT, condition, first, second)
