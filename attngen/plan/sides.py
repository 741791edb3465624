"""Where the rows of a sequence are: the sides and the geometries in which one spec runs.

A spec speaks of one sequence. In dense tensors every batch row is one. `lengths`: a sequence is the rows start …
stop - 1 of a batch row. `packed`: all sequences follow one another in one row of a batch, and the offsets are those of
`cu_seqlens`. Takes nothing; returns a `Geometry`: for queries and for keys the expressions by which a kernel finds a
sequence's rows, and the number of its first tile. Targets print these expressions, and the prover checks the same ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from attngen.ir.build import add, index, integer
from attngen.ir.function import inlined
from attngen.ir.nodes import Expr
from attngen.ir.walk import substitute
from attngen.plan.index import rows_in_runs, rows_of_sequences

START, STOP, TOTAL = index("start"), index("stop"), index("total")
"""What the call says of a sequence: its first row, and the row behind its last one; and how many rows a tensor has."""
BEGIN, FIRST = index("begin"), index("first")
"""The first row, brought inside the tensor; the row of position 0."""
POSITION = index("position")
"""Of a row in its sequence."""
TILE = index("tile")
"""Rows of a tile."""
NUMBER, RUNS = index("number"), index("runs")
"""Which run of a tensor's rows a run of positions has, as a table says; and how many runs the tensor has."""


class Kind(Enum):
    DENSE = "dense"
    LENGTHS = "lengths"
    PACKED = "packed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """The queries of a sequence, or its keys.

    `begin`, `first` and `size` are computed from what the call says, whatever it says: no row outside the tensor is
    read. `first` is where position 0 is, which has a row even if the sequence has none. `slot` is the number of the
    sequence's first tile among those of all, and `slots` how many numbers there are. A sequence of a packed tensor
    finds its number without a sum over the others. `within`: how many rows there are from a tile's first on; the copy
    engine reads zeros behind them, and stores nothing there.

    `run`: how many consecutive positions have consecutive rows; None: all. A table has the run of rows of each run of
    positions.
    """

    kind: Kind
    begin: Expr
    first: Expr
    size: Expr
    slot: Expr
    slots: Expr
    within: Expr
    run: int | None = None

    @property
    def packed(self) -> bool:
        return self.kind is Kind.PACKED

    def row(self, position: Expr) -> Expr:
        """The row of the tensor that a position of the sequence has."""
        if self.run is None:
            return add(FIRST, position)
        (row,) = inlined(rows_in_runs().of("row_in_run"))
        return substitute(row, {POSITION: position, index("run"): integer(self.run)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """Tiles of sequences in the order in which kernels that list them take them.

    `before`: whether the tiles of `sequence` are listed before those of `own`; the longest sequences come first.
    `paired`: a tile's place where the tiles of two sequences alternate, as long as both have some. Programs side by
    side then have half as many neighbours that they wait for.
    """

    before: Expr
    paired: Expr


@dataclass(frozen=True, slots=True, kw_only=True)
class Geometry:
    queries: Side
    keys: Side
    listing: Listing

    @property
    def kind(self) -> Kind:
        return self.queries.kind


def side(kind: Kind) -> Side:
    """Each value is that of the runtime's function of the same name. A dense sequence has all rows of its batch row."""
    packed = kind is Kind.PACKED
    whole: dict[Expr, Expr] = {START: integer(0), STOP: TOTAL, BEGIN: integer(0)} if kind is Kind.DENSE else {}

    def value(name: str, **flags: int) -> Expr:
        return substitute(_value(name, **flags), whole)

    return Side(
        kind=kind,
        begin=value("begin"),
        first=value("first"),
        size=value("size"),
        slot=value("slot", PACKED=packed),
        slots=value("slots", packed=packed),
        within=_value("within"),
    )


def geometry(kind: Kind) -> Geometry:
    """Queries and keys lie alike."""
    one = side(kind)
    return Geometry(queries=one, keys=one, listing=Listing(before=_value("before"), paired=_value("paired")))


def _value(name: str, **flags: int) -> Expr:
    (found,) = inlined(rows_of_sequences().of(name, **flags))
    return found


GEOMETRIES = (geometry(Kind.LENGTHS), geometry(Kind.PACKED))
"""All but dense, which has nothing to find."""
