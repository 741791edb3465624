"""Where the rows of a sequence are: the geometries in which one spec runs.

A spec speaks of one sequence. In dense tensors every batch row is one. `lengths`: a sequence is the rows start …
stop - 1 of a batch row. `packed`: all sequences follow one another in one row of a batch, and the offsets are those of
`cu_seqlens`. Takes nothing; returns a `Geometry`: the expressions by which a kernel finds a sequence's rows, and the
number of its first tile. Targets print these expressions, and the prover checks the same ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from attngen.ir.build import index
from attngen.ir.function import inlined
from attngen.ir.nodes import Expr
from attngen.plan.index import rows_of_sequences

START, STOP, TOTAL = index("start"), index("stop"), index("total")
"""What the call says of a sequence: its first row, and the row behind its last one; and how many rows a tensor has."""
BEGIN = index("begin")
"""The first row, brought inside the tensor."""
TILE = index("tile")
"""Rows of a tile."""


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
    """Each value is that of the runtime's function of the same name."""
    packed = kind is Kind.PACKED

    def value(name: str, **flags: int) -> Expr:
        (found,) = inlined(rows_of_sequences().of(name, **flags))
        return found

    return Geometry(
        kind=kind,
        begin=value("begin"),
        first=value("first"),
        size=value("size"),
        slot=value("slot", PACKED=packed),
        slots=value("slots", packed=packed),
        before=value("before"),
        paired=value("paired"),
        within=value("within"),
    )


GEOMETRIES = (geometry(Kind.LENGTHS), geometry(Kind.PACKED))
"""All but dense, which has nothing to find."""
