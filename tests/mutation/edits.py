"""Mechanical edits of an expression: each gives another one, with one thing changed at one place.

Takes an expression and the symbols that may stand for one another, gives (what was done, the edited expression) in a
stable order, without repetitions and without the expression itself. No edit knows what the expression is for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from attngen.ir import build
from attngen.ir.build import add, apply, integer, mul, neg, real, sub
from attngen.ir.nodes import Apply, Expr, Literal, Load, Op, Scalar, Symbol, Type
from attngen.ir.printing import expression as text
from attngen.ir.walk import children, rebuild

Edit = tuple[str, Expr]

SWAPPED = {
    Op.ADD: Op.SUB,
    Op.SUB: Op.ADD,
    Op.MUL: Op.DIV,
    Op.DIV: Op.MUL,
    Op.MIN: Op.MAX,
    Op.MAX: Op.MIN,
    Op.EXP: Op.EXP2,
    Op.EXP2: Op.EXP,
    Op.LOG: Op.LOG2,
    Op.SIN: Op.COS,
    Op.COS: Op.SIN,
    Op.TANH: Op.SIGMOID,
    Op.SIGMOID: Op.TANH,
    Op.LT: Op.LE,
    Op.LE: Op.LT,
    Op.EQ: Op.LE,
    Op.AND: Op.OR,
    Op.OR: Op.AND,
    Op.FLOORDIV: Op.MOD,
}
DROPPED = {Op.NEG, Op.ABS, Op.EXP, Op.TANH, Op.SIGN, Op.SQRT}
PAIRS = (("q", "k"), ("q0", "q1"), ("k0", "k1"), ("Sq", "Sk"), ("m", "n"), ("s", "m"), ("h", "hkv"))
MOST_NODES = 60
"""Larger expressions are edited near their root only."""


def edits(e: Expr) -> Iterator[Edit]:
    """Every edit, each result once."""
    seen = {e}
    for what, edited in _edits(e, MOST_NODES):
        if edited.type is e.type and edited not in seen:
            seen.add(edited)
            yield what, edited


def whole(e: Expr) -> Iterator[Edit]:
    """Sign, factor and offset of the whole."""
    t = text(e)
    if e.type is Type.FLOAT:
        yield f"sign of {t}", neg(e)
        yield f"twice {t}", mul(e, real(2.0))
        yield f"{t} + 1", add(e, real(1.0))
        yield f"1 for {t}", real(1.0)
    elif e.type is Type.INT:
        yield f"sign of {t}", neg(e)
        for offset in (1, -1, 64, -64):
            yield f"{t} {'+' if offset > 0 else '-'} {abs(offset)}", add(e, integer(offset))


def replaced(e: Expr, a: Sequence[tuple[str, str]] = PAIRS) -> Iterator[Edit]:
    """Each symbol's partner in its place, one place at a time."""
    if isinstance(e, Symbol):
        for pair in a:
            for one, other in (pair, pair[::-1]):
                if e.id == one:
                    yield f"{other} for {one}", Symbol(other, e.type)


def _edits(e: Expr, room: int) -> Iterator[Edit]:
    yield from whole(e)
    yield from _here(e)
    if room <= 0:
        return
    parts = children(e)
    for at, part in enumerate(parts):
        for what, edited in _edits(part, room - len(parts) - 4):
            if edited.type is part.type:
                yield what, rebuild(e, (*parts[:at], edited, *parts[at + 1 :]))


def _here(e: Expr) -> Iterator[Edit]:
    yield from replaced(e)
    match e:
        case Literal(type=Type.INT):
            for value in (int(e.value) + 1, int(e.value) - 1):
                yield f"{value} for {e.value}", integer(value)
        case Literal(type=Type.FLOAT):
            yield f"half of {e.value}", real(float(e.value) / 2)
        case Load():
            for at, index in enumerate(e.indices):
                for what, other in (("+ 1", add(index, integer(1))), ("- 1", sub(index, integer(1)))):
                    yield f"index {at} of {e.param} {what}", rebuild(e, (*e.indices[:at], other, *e.indices[at + 1 :]))
        case Apply():
            yield from _operation(e)
        case Symbol() | Scalar() | Literal():
            pass


def _operation(e: Apply) -> Iterator[Edit]:
    t = text(e)
    floats_only = {Op.MUL: Type.FLOAT, Op.DIV: Type.FLOAT}
    if e.op in SWAPPED and floats_only.get(e.op, e.type) is e.type:
        yield f"{SWAPPED[e.op].value} for {e.op.value} in {t}", apply(SWAPPED[e.op], *e.args)
    if e.op in DROPPED:
        yield f"no {e.op.value} in {t}", e.args[0]
    if e.op in (Op.SUB, Op.DIV, Op.FLOORDIV, Op.LT, Op.LE):
        yield f"sides exchanged in {t}", apply(e.op, e.args[1], e.args[0])
    if e.op in (Op.ADD, Op.SUB, Op.MUL, Op.DIV, Op.MIN, Op.MAX):
        for kept, gone in ((e.args[0], e.args[1]), (e.args[1], e.args[0])):
            yield f"{text(gone)} dropped from {t}", kept
    if e.op in (Op.AND, Op.OR):
        for at, gone in enumerate(e.args):
            rest = [a for n, a in enumerate(e.args) if n != at]
            yield f"{text(gone)} dropped from {t}", apply(e.op, *rest) if len(rest) > 1 else rest[0]
    if e.op is Op.SELECT:
        yield f"branches exchanged in {t}", build.select(e.args[0], e.args[2], e.args[1])
        yield f"one branch of {t}", e.args[1]
        yield f"the other branch of {t}", e.args[2]


def off_by_one(e: Expr) -> Iterator[Edit]:
    yield from edits(e)
    yield f"{text(e)} + 1", add(e, integer(1))
    yield f"{text(e)} - 1", sub(e, integer(1))
