"""Where the rows of a sequence are: the geometries in which one spec runs.

A spec speaks of one sequence. In dense tensors every batch row is one. `lengths`: a sequence is the rows start …
stop - 1 of a batch row. `packed`: all sequences follow one another in one row of a batch, and the offsets are those of
`cu_seqlens`. Takes nothing; returns a `Geometry`: the expressions by which a kernel finds a sequence's rows, and the
number of its first tile. Targets print these expressions, and the prover checks the same ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from attngen.ir.build import (
    add,
    apply,
    conjunction,
    disjunction,
    floordiv,
    index,
    integer,
    maximum,
    minimum,
    mul,
    select,
    sub,
)
from attngen.ir.nodes import Expr, Op

START, STOP, TOTAL = index("start"), index("stop"), index("total")
"""What the call says of a sequence: its first row, and the row behind its last one; and how many rows a tensor has."""
BEGIN = index("begin")
"""The first row, brought inside the tensor."""
TILE, SEQUENCE, SEQUENCES = index("tile"), index("sequence"), index("n_sequences")
"""Rows of a tile; a sequence's number, and how many there are."""
OWN, TILES, OWN_TILES = index("own"), index("tiles"), index("own_tiles")
"""A sequence, how many tiles another one has, and how many it has itself."""
EARLIER, RANK, LEAST, MOST = index("earlier"), index("rank"), index("least"), index("most")
"""Of the sequences listed before one: how many tiles they have, how many they are, and the fewest tiles of one; and the
most tiles of one listed behind it."""
ORDER = index("order")
"""A tile's number among those of its sequence, in the order of the list."""
SIZE, ROW = index("size"), index("start")
"""How many rows a sequence has, and the first one of a tile."""


class Kind(Enum):
    DENSE = "dense"
    LENGTHS = "lengths"
    PACKED = "packed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Geometry:
    """One side of a sequence, queries or keys.

    `begin`, `first` and `size` are computed from what the call says, whatever it says: no row outside the tensor is
    read. `first` is where position 0 is, which has a row even if the sequence has none. `slot` is the number of the
    sequence's first tile among those of all, and `slots` how many numbers there are. A sequence of a packed tensor
    finds its number without a sum over the others.

    `before`: whether the tiles of `sequence` are listed before those of `own`, where a kernel lists them; the longest
    sequences come first. `paired`: a tile's place where the tiles of two sequences alternate, as long as both have
    some. Programs side by side then have half as many neighbours that they wait for. `within`: how many rows there are
    from a tile's first on; the copy engine reads zeros behind them, and stores nothing there.
    """

    kind: Kind
    begin: Expr
    first: Expr
    size: Expr
    slot: Expr
    slots: Expr
    before: Expr
    paired: Expr
    within: Expr

    @property
    def packed(self) -> bool:
        return self.kind is Kind.PACKED


def geometry(kind: Kind) -> Geometry:
    zero, one = integer(0), integer(1)
    tiles = floordiv(sub(add(TOTAL, TILE), one), TILE)
    packed = kind is Kind.PACKED
    return Geometry(
        kind=kind,
        begin=minimum(maximum(START, zero), TOTAL),
        first=maximum(minimum(BEGIN, sub(TOTAL, one)), zero),
        size=sub(minimum(maximum(STOP, BEGIN), TOTAL), BEGIN),
        slot=add(floordiv(BEGIN, TILE), SEQUENCE) if packed else mul(SEQUENCE, tiles),
        slots=add(floordiv(TOTAL, TILE), SEQUENCES) if packed else mul(SEQUENCES, tiles),
        before=disjunction(
            apply(Op.LT, OWN_TILES, TILES), conjunction(apply(Op.EQ, OWN_TILES, TILES), apply(Op.LT, SEQUENCE, OWN))
        ),
        paired=select(
            apply(Op.EQ, apply(Op.MOD, RANK, integer(2)), zero),
            add(add(EARLIER, ORDER), minimum(ORDER, MOST)),
            add(sub(EARLIER, LEAST), add(mul(integer(2), ORDER), one)),
        ),
        within=maximum(sub(SIZE, ROW), zero),
    )


GEOMETRIES = (geometry(Kind.LENGTHS), geometry(Kind.PACKED))
"""All but dense, which has nothing to find."""
