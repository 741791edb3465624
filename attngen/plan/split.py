"""Short queries against many keys: the walk over keys cut into pieces, which programs of their own take.

Takes the attention, the form of its weights and the loops over keys, returns a `Split`: whose rows share a tile, and
which of the walked tiles a piece has. `shares` says what a piece costs a chip, `CUT` by what the launcher decides at a
call. Each piece leaves the state of its own sums; that the states may be merged, in any grouping, is the monoid that
the prover shows of the streamed sums (`streaming`), and that the pieces have every walked tile once is a claim beside
the loops' own (`tile-ranges`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from attngen.ir.attention import Attention
from attngen.ir.build import add, index, maximum, minimum, mul, sub
from attngen.ir.nodes import Apply, Expr, Op, Symbol
from attngen.ir.walk import reads
from attngen.plan.chips import SHARED_MEMORY, Burden
from attngen.plan.mask.loops import Assigned, Loops, Ordered, Rounded, Step
from attngen.plan.mask.walks import counted
from attngen.plan.numerics import WIDE, Numerics
from attngen.plan.score.weights import Weights

FULL, WALKED, PIECE, PIECES = (index(name) for name in ("n_full", "n_walked", "piece", "pieces"))
"""Of `n_walked` tiles the first `n_full` need no mask; this is number `piece` of `pieces`."""


@dataclass(frozen=True, slots=True)
class Split:
    """A piece walks the steps `full` (start, stop) of the loop without a mask, and `partial` of the one with it.

    `counts` bind how many tiles there are, by the ends of the runs, `steps` what a piece has of them, rounding to
    `pieces`. `packed`: a tile holds the rows of all the query heads that share keys and values, which are read once for
    them; it takes that whatever depends on the head can be a row's.
    """

    packed: bool
    counts: tuple[Assigned, ...]
    steps: tuple[Step, ...]
    full: tuple[Expr, Expr] | None
    partial: tuple[Expr, Expr] | None


def split(attention: Attention, weights: Weights, loops: Loops, keeps_key: Expr | None) -> Split | None:
    """None where no query has a key, or where there are never more keys than queries."""
    if not (loops.full or loops.partial) or any(_as_many_queries(fact) for fact in attention.assumes):
        return None
    first, stop = index("first"), index("stop")
    share = index("share")
    counts = Assigned("n_full", counted(loops.full)), Assigned("n_walked", counted(loops.partial, FULL))
    steps: tuple[Step, ...] = (
        Rounded("share", WALKED, up=True),
        Assigned("first", minimum(mul(PIECE, share), WALKED)),
        Assigned("stop", minimum(add(first, share), WALKED)),
    )
    full = partial = None
    if loops.full and loops.partial:
        full = minimum(first, FULL), minimum(stop, FULL)
        partial = sub(maximum(first, FULL), FULL), sub(maximum(stop, FULL), FULL)
    elif loops.full:
        full = first, stop
    else:
        partial = first, stop
    return Split(_packed(weights, loops, keeps_key), counts, steps, full, partial)


def _packed(weights: Weights, loops: Loops, keeps_key: Expr | None) -> bool:
    """The maximum is rescaled by one factor, and one tile has one walk: heads that differ in these stay apart.

    So do heads for which a data test has an answer of their own, be it the same for those that share keys; and heads
    of which one may forbid a key that another reads, since a tile's row of values is cleared for all of them; and heads
    that have lists of their own.
    """
    bounds = [s.bound if isinstance(s, Rounded) else s.value for s in loops.steps if not isinstance(s, Ordered)]
    sides = [side for t in loops.tests for side in (t.row, t.col)]
    kept = () if keeps_key is None else (keeps_key,)
    apart = any(reads(e, "h") for e in (weights.factor, *bounds, *kept)) or any(reads(e, "h", "hkv") for e in sides)
    listed = loops.lists is not None and loops.lists.by_head and not loops.lists.shared
    return not (apart or listed)


def _as_many_queries(fact: Expr) -> bool:
    """Whether the fact says that there are as many queries as keys, or more."""
    match fact:
        case Apply(op=Op.AND):
            return any(_as_many_queries(part) for part in fact.args)
        case Apply(op=Op.EQ, args=(Symbol(id=a), Symbol(id=b))):
            return {a, b} == {"Sq", "Sk"}
        case Apply(op=Op.LT | Op.LE, args=(Symbol(id="Sk"), Symbol(id="Sq"))):
            return True
        case _:
            return False


# ---------------------------------------------------------------- tiles


@dataclass(frozen=True, slots=True)
class Share:
    """What one piece takes of a chip: rows and keys of a tile at most, and elements of either; warps, stages; and how
    many programs a multiprocessor runs at a time."""

    rows: int
    keys: int
    area: int
    warps: int
    stages: int
    programs: int

    @property
    def row(self) -> tuple[int, ...]:
        return self.rows, self.keys, self.area, self.warps, self.stages, self.programs


_SINGLE = Share(32, 32, 4096, 8, 1, 2)  # float32, whose products have no matrix units: registers are what is short
_SHARES: Mapping[tuple[str, int], Share] = {
    ("sm_80", 2): Share(64, 128, 8192, 4, 3, 2),
    ("sm_86", 2): Share(64, 128, 8192, 4, 2, 2),
    ("sm_90", 2): Share(64, 128, 8192, 4, 3, 2),  # measured on an H200
    ("sm_100", 2): Share(64, 128, 8192, 4, 3, 2),
    ("gfx942", 2): Share(64, 128, 8192, 4, 1, 2),
    ("gfx942", 4): Share(64, 128, 4096, 4, 1, 2),
    ("cpu", 2): Share(64, 64, 8192, 4, 1, 1),
    ("cpu", 4): Share(64, 64, 8192, 4, 1, 1),
}


def shares(
    own: tuple[int, int] | None, burden: Burden, chosen: bool = False, numerics: Numerics = WIDE
) -> Mapping[tuple[str, int], Share]:
    """By (chip, bytes of an element); `own` is the spec's tile, which bounds these. `chosen`: see `chips.Loads`."""
    keys = [(chip, size) for chip in SHARED_MEMORY for size in numerics.on(chip)]
    found = {(chip, size): _SHARES.get((chip, max(size, 2)), _SINGLE) for chip, size in keys}
    most = (64, 128) if own is None else (max(16, own[0]), max(16, own[1]))
    if burden is Burden.RANDOM:  # whose bits take registers
        most = min(32, most[0]), min(64, most[1])
    if burden is Burden.PAIRS:  # which are loaded, and take shared memory
        most = most[0], min(64, most[1])
    if chosen:
        found = {key: replace(s, stages=1) for key, s in found.items()}
    return {key: replace(s, rows=min(s.rows, most[0]), keys=min(s.keys, most[1])) for key, s in found.items()}


# ---------------------------------------------------------------- whether, and into how many


@dataclass(frozen=True, slots=True)
class Cut:
    """What merges pieces, the same for every spec. How many there are: `runtime/exported/short_queries.py`."""

    merged: int = 16
    """Pieces that the merging kernel loads at a time: a power of two; 32 registers a thread at the widest head."""
    merging_warps: int = 4
    """Warps of the merging kernel, whose row of acc is at most 256 wide: two elements a thread."""
    beside: int = 4
    """Floats of a state beside acc. Two are used at most (maximum and sum); with four each state
    begins at a multiple of 16 bytes."""


CUT = Cut()
