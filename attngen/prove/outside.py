"""Notes on elements of the score that lie outside their tensor for a pair that the mask allows: they read as 0.

That is the language's rule, and kernels compare such an index with the edge, so nothing is wrong with it; but often it
is a table whose radius was not added to the index. Takes an attention, asks z3 for a pair, and says it in numbers. What
it cannot tell it leaves out: indices that come from data or from functions of floats, dims that a call decides.
"""

from __future__ import annotations

from collections.abc import Iterator
from time import monotonic

from attngen.ir import build, printing
from attngen.ir.attention import Attention
from attngen.ir.nodes import Apply, Expr, Load, Op, Scalar, Symbol
from attngen.ir.walk import children, nodes, symbols
from attngen.prove.answers import Fails
from attngen.prove.confirm import evaluated_at, reads_functions
from attngen.prove.smt import World

_SECONDS = 0.3
_SHORT = 32
"""Sequences of an example are no longer, if that is enough."""


def outside(attention: Attention, loads: frozenset[Load], deadline: float) -> dict[Load, str]:
    """A note for each of `loads`, those that the kernel guards, which the score reads outside its tensor."""
    found: dict[Load, str] = {}
    for load, conditions in dict.fromkeys(_read(attention.score, (attention.mask,))):
        skipped = load in found or any(reads_functions(c) for c in conditions)
        if load in loads and not skipped and monotonic() < deadline:
            note = _note(attention, load, conditions, deadline)
            if note:
                found[load] = note
    return found


def _read(e: Expr, conditions: tuple[Expr, ...]) -> Iterator[tuple[Load, tuple[Expr, ...]]]:
    """Each load with what holds wherever its value counts."""
    match e:
        case Apply(op=Op.SELECT, args=(condition, yes, no)):
            yield from _read(condition, conditions)
            yield from _read(yes, (*conditions, condition))
            yield from _read(no, (*conditions, build.apply(Op.NOT, condition)))
        case Apply(op=Op.AND, args=args):
            for i, a in enumerate(args):
                yield from _read(a, (*conditions, *args[:i]))
        case Apply(op=Op.OR, args=args):
            for i, a in enumerate(args):
                yield from _read(a, (*conditions, *(build.apply(Op.NOT, before) for before in args[:i])))
        case _:
            if isinstance(e, Load):
                yield e, conditions
            for child in children(e):
                yield from _read(child, conditions)


def _note(attention: Attention, load: Load, conditions: tuple[Expr, ...], deadline: float) -> str:
    for index, dim in zip(load.indices, attention.param(load.param).shape, strict=True):
        by_call = isinstance(dim, Symbol) and dim.id in attention.sizes
        if by_call or reads_functions(index) or any(isinstance(n, Load) for n in nodes(index)):
            continue
        values = _pair(attention, index, dim, conditions, deadline)
        at = None if values is None else evaluated_at(values, index)
        if values is None or at is None:
            continue
        read = [_name(n) for n in nodes(index) if isinstance(n, Symbol | Scalar)]
        sizes = [s for s in ("Sq", "Sk") if any(s in symbols(e) for e in (dim, *conditions))]
        given = ", ".join(f"{name} = {values.values[name]}" for name in dict.fromkeys([*read, *sizes]))
        text = printing.expression(load)
        return f"`{text}` is read as 0 outside `{load.param}`: `{printing.expression(index)}` is {at} at {given}"
    return ""


def _name(node: Symbol | Scalar) -> str:
    return node.id if isinstance(node, Symbol) else node.param


def _pair(attention: Attention, index: Expr, dim: Expr, conditions: tuple[Expr, ...], deadline: float) -> Fails | None:
    """A pair that is allowed and reads outside, in short sequences if there is one."""
    for short in (True, False):
        world = World(attention)
        premises = [world.term(c) for c in conditions]
        premises += [world.integer(size) <= _SHORT for size in ("Sq", "Sk")] if short else []
        at = world.term(index)
        inside = world.all_of([at >= 0, at < world.term(dim)])
        answer = world.ask(premises, inside, max(0.05, min(_SECONDS, deadline - monotonic())))
        if isinstance(answer, Fails):
            return answer
    return None
