"""The geometries of sequences: what is claimed of them is proved, and every wrong edit is refuted."""

from __future__ import annotations

from dataclasses import replace

import pytest

from attngen import api
from attngen.errors import Source
from attngen.ir.build import add, apply, disjunction, floordiv, index, integer, maximum, minimum, mul, select, sub
from attngen.ir.nodes import Expr, Op
from attngen.plan.kernel import KernelPlan
from attngen.plan.sides import (
    BEGIN,
    FIRST,
    GEOMETRIES,
    NUMBER,
    POSITION,
    START,
    STOP,
    TILE,
    TOTAL,
    Geometry,
    Kind,
    Side,
    side,
)
from attngen.prove.budget.work import Work
from attngen.prove.obligations.sequences import sequence_claims
from attngen.prove.verdict import Proved, Refuted

LISTING = ("before", "paired")
CLAIMS = ("rows", "slots", "list", "pairs", "copies")
ONE = integer(1)
SEQUENCE, SEQUENCES, OWN, TILES, OWN_TILES = map(index, ("sequence", "n_sequences", "own", "tiles", "own_tiles"))
EARLIER, RANK, LEAST, MOST, ORDER = map(index, ("earlier", "rank", "least", "most", "order"))
SIZE, ROW = index("size"), index("start")
LENGTHS, PACKED = GEOMETRIES
EVEN = apply(Op.EQ, apply(Op.MOD, RANK, integer(2)), integer(0))
EVEN_PLACE = add(add(EARLIER, ORDER), minimum(ORDER, MOST))
ODD_PLACE = add(sub(EARLIER, LEAST), add(mul(integer(2), ORDER), ONE))
WRONG: dict[str, tuple[Geometry, str, Expr]] = {
    "a negative offset": (PACKED, "begin", minimum(START, TOTAL)),
    "an offset behind the end": (PACKED, "begin", maximum(START, integer(0))),
    "the first row behind the end": (PACKED, "first", BEGIN),
    "the first row before the tensor": (PACKED, "first", minimum(BEGIN, sub(TOTAL, ONE))),
    "another sequence's row": (PACKED, "first", maximum(minimum(sub(BEGIN, ONE), sub(TOTAL, ONE)), integer(0))),
    "rows behind the end": (PACKED, "size", sub(maximum(STOP, BEGIN), BEGIN)),
    "fewer rows than none": (PACKED, "size", sub(minimum(STOP, TOTAL), BEGIN)),
    "one row too many": (LENGTHS, "size", add(sub(minimum(maximum(STOP, BEGIN), TOTAL), BEGIN), ONE)),
    "one row too few": (LENGTHS, "size", sub(minimum(maximum(sub(STOP, ONE), BEGIN), TOTAL), BEGIN)),
    "shared slots": (PACKED, "slot", floordiv(BEGIN, TILE)),
    "slots without order": (PACKED, "slot", add(floordiv(BEGIN, mul(integer(2), TILE)), SEQUENCE)),
    "slots rounded up": (PACKED, "slot", sub(floordiv(BEGIN, TILE), SEQUENCE)),
    "no slot for the last": (PACKED, "slots", sub(add(floordiv(TOTAL, TILE), SEQUENCES), ONE)),
    "no slot for the ragged end": (PACKED, "slots", floordiv(TOTAL, TILE)),
    "a slot too few of each": (LENGTHS, "slot", mul(SEQUENCE, floordiv(TOTAL, TILE))),
    "no slots for ragged ends": (LENGTHS, "slots", mul(SEQUENCES, floordiv(TOTAL, TILE))),
    "equal sequences side by side": (PACKED, "before", apply(Op.LT, OWN_TILES, TILES)),
    "each before the other": (PACKED, "before", apply(Op.LE, OWN_TILES, TILES)),
    "in no order": (LENGTHS, "before", disjunction(apply(Op.LT, OWN_TILES, TILES), apply(Op.LT, SEQUENCE, OWN))),
    "pairs by number": (PACKED, "before", apply(Op.LT, SEQUENCE, OWN)),
    "pairs over one another": (PACKED, "paired", select(EVEN, add(EARLIER, mul(integer(2), ORDER)), ODD_PLACE)),
    "pairs that share places": (PACKED, "paired", select(EVEN, EVEN_PLACE, sub(ODD_PLACE, ONE))),
    "pairs turned about": (LENGTHS, "paired", select(EVEN, ODD_PLACE, EVEN_PLACE)),
    "a second one behind both": (LENGTHS, "paired", select(EVEN, EVEN_PLACE, add(ODD_PLACE, LEAST))),
    "a pair backwards": (PACKED, "paired", select(EVEN, EVEN_PLACE, sub(EARLIER, mul(integer(2), ORDER)))),
    "all of a pair's tiles in one place": (PACKED, "paired", EARLIER),
    "rows of the next sequence": (PACKED, "within", SIZE),
    "rows before the sequence": (PACKED, "within", sub(SIZE, ROW)),
    "a row is left out": (LENGTHS, "within", maximum(sub(sub(SIZE, ROW), ONE), integer(0))),
    "a row behind the end": (PACKED, "within", maximum(add(sub(SIZE, ROW), ONE), integer(0))),
}  # fmt: skip


def _plan() -> KernelPlan:
    return api.checked_plan(Source("attention c\nmask = causal\n"))[1]


def test_what_is_claimed_is_proved() -> None:
    plan = _plan()
    claims = sequence_claims(plan.attention, plan, Work())
    assert [c.subject for c in claims] == [f"{kind}, {claim}" for kind in ("lengths", "packed") for claim in CLAIMS]
    assert all(isinstance(c.verdict, Proved) for c in claims)


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_geometry_is_refuted(name: str) -> None:
    plan = _plan()
    geometry, part, wrong = WRONG[name]
    edited = [replace(geometry, listing=replace(geometry.listing, **{part: wrong}))] if part in LISTING else []
    edited = edited or [replace(geometry, **{s: replace(geometry.keys, **{part: wrong})}) for s in ("queries", "keys")]
    for one in edited:
        claims = sequence_claims(plan.attention, replace(plan, geometries=(one,)), Work())
        assert any(isinstance(c.verdict, Refuted) for c in claims), claims


def test_rows_in_runs_are_inside_whatever_a_table_says(monkeypatch: pytest.MonkeyPatch) -> None:
    plan, keys = _plan(), replace(LENGTHS.keys, run=4)
    assert side(Kind.DENSE).row(POSITION) == add(FIRST, POSITION)
    edited = replace(plan, geometries=(replace(LENGTHS, keys=keys),))

    def verdict() -> object:
        return next(c.verdict for c in sequence_claims(plan.attention, edited, Work()) if c.subject == "lengths, rows")

    assert isinstance(verdict(), Proved)
    monkeypatch.setattr(Side, "row", lambda self, position: add(mul(NUMBER, integer(4)), position))
    assert isinstance(verdict(), Refuted), "rows where the table says, whatever it says"
