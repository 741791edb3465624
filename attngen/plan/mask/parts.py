"""What the rows of one warpgroup walk, of the tiles that their program walks.

Takes `Loops`, returns values over the names that their steps bind, over the ends `q0` or `k0` of the held rows, and
over the sizes. Targets print them; `prove.obligations.part_walks` shows what each claims.
"""

from __future__ import annotations

from dataclasses import dataclass

from attngen.ir.build import add, apply, index, integer, maximum, minimum, select, sub
from attngen.ir.nodes import Expr, Op
from attngen.plan.mask.loops import ZERO, Assigned, Loops, Rounded, Run, Step
from attngen.plan.mask.order import Directed
from attngen.plan.mask.walks import own

FIRST, LAST, STOP, BEGIN, HALF = (index(name) for name in ("first", "last", "stop", "begin", "HALF"))


@dataclass(frozen=True, slots=True)
class Limit:
    """`steps` bind `last`, the last tile of the walked sequence, and `stop`, the one behind it, or 0 where no held row
    is inside its own sequence. `ends` bring the ends of the runs to it.
    """

    steps: tuple[Step, ...]
    ends: tuple[Assigned, ...]


@dataclass(frozen=True, slots=True)
class HullPart:
    """The steps of a hull at which a half of the held tile meets tiles of its own: `begin` … `end` - 1.

    `bound` bring the half's own ends into the hull. `cut`: where the end of the sequence cuts the half, no tile goes
    without the mask. The tile of a step is `tile_of_step` of `plan.index`, onwards or backwards as the tiles of the
    other axis are taken.
    """

    bound: tuple[Assigned, ...]
    begin: Directed
    end: Expr
    cut: tuple[Assigned, ...]


def limit(loops: Loops, *, of_parts: bool = False) -> Limit:
    """`of_parts`: for rows that may all lie past the end of their sequence, as those of a warpgroup can."""
    held, size, start = ("Sq", "Sk", "q0") if loops.axis == "k" else ("Sk", "Sq", "k0")
    tiles = add(LAST, integer(1))
    if of_parts:
        tiles = select(apply(Op.LT, index(start), index(held)), tiles, integer(0))
    steps = (Rounded("last", sub(index(size), integer(1)), up=False), Assigned("stop", tiles))
    return Limit(steps, tuple(Assigned(name, minimum(index(name), STOP)) for name in loops.names))


def hull_part(unmasked: tuple[Run, ...]) -> HullPart:
    """`unmasked`: the half's own runs of tiles that need no mask."""
    first, stop = index(own("first")), index(own("stop"))
    ends = dict.fromkeys(name for run in unmasked for name in (run.start, run.stop) if name != ZERO)
    cut = apply(Op.LT, index("Sk"), add(index("k0"), HALF))
    return HullPart(
        bound=(
            Assigned(first.id, minimum(maximum(first, FIRST), STOP)),
            Assigned(stop.id, minimum(maximum(stop, first), STOP)),
        ),
        begin=Directed(sub(STOP, stop), sub(first, FIRST)),
        end=sub(add(BEGIN, stop), first),
        cut=tuple(Assigned(name, select(cut, integer(0), index(name))) for name in ends),
    )
