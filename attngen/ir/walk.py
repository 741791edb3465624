"""Generic walks: children, rebuilding, substitution, and which names an expression reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import assert_never

from attngen.ir import build
from attngen.ir.nodes import Apply, Expr, Literal, Load, Scalar, Symbol


def children(e: Expr) -> tuple[Expr, ...]:
    match e:
        case Literal() | Symbol() | Scalar():
            return ()
        case Load():
            return e.indices if e.member is None else (*e.indices, e.member)
        case Apply():
            return e.args
        case _:
            assert_never(e)


def rebuild(e: Expr, parts: tuple[Expr, ...]) -> Expr:
    """`e` with other children, simplified again; its name and span are kept where the node survives."""
    if parts == children(e):
        return e
    match e:
        case Literal() | Symbol() | Scalar():
            return e
        case Load(member=None):
            return replace(e, indices=parts)
        case Load():
            return replace(e, indices=parts[:-1], member=parts[-1])
        case Apply():
            return named(build.apply(e.op, *parts, span=e.span), e.name)
        case _:
            assert_never(e)


def named(e: Expr, name: str | None) -> Expr:
    """`e` with a name hint, unless it has one or is a leaf."""
    if name is None or e.name is not None or isinstance(e, Literal | Symbol | Scalar):
        return e
    return replace(e, name=name)


def transform(e: Expr, f: Callable[[Expr], Expr | None], memo: dict[int, Expr] | None = None) -> Expr:
    """Top-down: where `f` gives an expression it replaces the node whole; elsewhere the children are transformed.

    Shared subtrees (by identity) are transformed once, so the cost is that of the graph, not of the tree.
    """
    memo = {} if memo is None else memo
    found = memo.get(id(e))
    if found is None:
        found = f(e)
        if found is None:
            found = rebuild(e, tuple(transform(c, f, memo) for c in children(e)))
        memo[id(e)] = found
    return found


def substitute(e: Expr, values: Mapping[Expr, Expr]) -> Expr:
    """`e` with each node that equals a key replaced by its value."""
    return transform(e, values.get)


def nodes(e: Expr) -> Iterator[Expr]:
    """Every distinct node of `e` (by identity), parents before children, in a stable order."""
    seen: set[int] = set()
    stack = [e]
    while stack:
        node = stack.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        yield node
        stack.extend(reversed(children(node)))


def symbols(e: Expr) -> frozenset[str]:
    """The ids of the symbols that `e` reads, inside indices too."""
    return frozenset(n.id for n in nodes(e) if isinstance(n, Symbol))


def params(e: Expr) -> tuple[str, ...]:
    """The names of the params that `e` reads, in order of first use."""
    return tuple(dict.fromkeys(n.param for n in nodes(e) if isinstance(n, Load | Scalar)))


def loads(e: Expr) -> tuple[Load, ...]:
    """The distinct loads in `e`, in order of first use."""
    return tuple(dict.fromkeys(n for n in nodes(e) if isinstance(n, Load)))


def looks_in_lists(e: Expr) -> bool:
    """Whether `in` stands in `e`."""
    return any(isinstance(n, Load) and n.member is not None for n in nodes(e))


def reads(e: Expr, *ids: str) -> bool:
    """Whether `e` reads any of these symbols."""
    return any(isinstance(n, Symbol) and n.id in ids for n in nodes(e))
