"""Whose turn it is to add to dQ.

A queue hands out tickets, the items of `tile_of_keys` in `plan.index`. Each tile of dQ has a cell that holds a turn: a
program waits until it holds `awaited`, adds its part, and writes `passed`. Where data decides which tiles of keys meet
a tile of queries, a program awaits what the last of the earlier ones passes, and finds it by `Listed`.

Each program takes a ticket when it starts and waits only for lower tickets, so there is no deadlock. Targets print
these values; `prove.obligations.turns` shows what they claim.
"""

from __future__ import annotations

from dataclasses import dataclass

from attngen.ir.build import add, floordiv, index, integer, mul, sub
from attngen.ir.nodes import Expr
from attngen.plan.mask.lists import PLACE
from attngen.plan.mask.order import N_TILES, ORDER, TILE, Directed

NOTED, WAY, LANE, CHUNK = (index(name) for name in ("noted", "way", "lane", "chunk"))
AT, N_WALKED, N_PARTS = index("at"), index("n_walked"), index("n_parts")

LANES = 32
"""Places that a warp looks at together."""


@dataclass(frozen=True, slots=True)
class Listed:
    """Of all tiles of keys that meet the tile of queries `at`, a kernel keeps the greatest `noted` in `cell`, which is
    0 if there is none; `place` is the number of a list of `n_walked` tiles, `way` 1 backwards and 0 onwards. `first` is
    then the place in the order of the first of these tiles. Any other one awaits the turn of the last that is earlier.
    It looks for that one from the chunk `chunk` of `LANES` places down; `other` is the place of a lane.
    """

    noted: Directed
    cell: Expr
    first: Expr
    chunk: Expr
    other: Expr


@dataclass(frozen=True, slots=True)
class Cells:
    """The ints in which the kernels of a call count. Each kind has `room` ints, a function of the number `n_parts` of
    tiles of dQ: a queue, of which kernels use `queue` ints; a turn for each tile; and, for a list, `noted` times the
    room for what is noted of each.

    All ints are 0 at first. The kernel that prepares rows clears them: it has a program for each `rows` queries of a
    head, and a program clears `cleared` ints. A tile of dQ has at least `least` queries, so a dense call has no more
    tiles than programs. Sequences begin anywhere: they take the kernel that counts only where tiles of `least` queries
    are at most `most` times as many as programs.
    """

    rows: int
    cleared: int
    least: int
    most: int
    queue: int
    noted: int
    room: Expr

    def kinds(self, *, listed: bool) -> dict[str, int]:
        """What they count, and how often each has `room` ints."""
        return {"queue": 1, "added": 1, **({"met": self.noted} if listed else {})}


@dataclass(frozen=True, slots=True)
class Turns:
    """A tile of keys awaits the turn `awaited`, and passes the turn `passed`. `cells` hold the turns."""

    awaited: Expr
    passed: Expr
    listed: Listed
    cells: Cells


def turns() -> Turns:
    """The turns of the backward kernel, whatever the sizes are."""
    one = integer(1)
    return Turns(
        awaited=ORDER,
        passed=add(ORDER, one),
        listed=Listed(
            noted=Directed(sub(N_TILES, TILE), add(TILE, one)),
            cell=add(mul(add(mul(integer(2), PLACE), WAY), N_WALKED), AT),
            first=sub(N_TILES, NOTED),
            chunk=sub(floordiv(add(ORDER, integer(LANES - 1)), integer(LANES)), one),
            other=add(mul(CHUNK, integer(LANES)), LANE),
        ),
        cells=Cells(
            rows=32,
            cleared=128,
            least=64,
            most=30,
            queue=3,
            noted=2,
            room=mul(floordiv(add(N_PARTS, integer(3)), integer(4)), integer(4)),
        ),
    )
