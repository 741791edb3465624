"""Functions of ints: what kernels compute of items, heads and tiles.

A `Function` is a straight line of steps over the names of its params and of earlier steps. It is closed: functions that
it calls are part of it. Targets print it or hold its text, the prover executes it for unknown ints, and
`results_of` for given ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from attngen.ir.nodes import Expr, Symbol
from attngen.ir.walk import substitute


@dataclass(frozen=True, slots=True)
class Assigned:
    """`name` = `value`, over the names that the steps before have bound."""

    name: str
    value: Expr


@dataclass(frozen=True, slots=True)
class Called:
    """`names` = the results of `function` for `args`."""

    names: tuple[str, ...]
    function: Function
    args: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class Function:
    """`flags`: the constants for which it was read. No name is bound twice."""

    name: str
    flags: tuple[tuple[str, int], ...]
    params: tuple[Symbol, ...]
    body: tuple[Assigned | Called, ...]
    results: tuple[Expr, ...]

    def __str__(self) -> str:
        given = ", ".join((*(p.id for p in self.params), *(f"{name}={value}" for name, value in self.flags)))
        return f"{self.name}({given})"


def inlined(function: Function) -> tuple[Expr, ...]:
    """What it returns, over its params alone."""
    values: dict[Expr, Expr] = {}
    for step in function.body:
        given = [step.value] if isinstance(step, Assigned) else step.args
        found = tuple(substitute(e, values) for e in given)
        names = (step.name,) if isinstance(step, Assigned) else step.names
        if isinstance(step, Called):
            params: dict[Expr, Expr] = dict(zip(step.function.params, found, strict=True))
            found = tuple(substitute(e, params) for e in inlined(step.function))
        values |= {Symbol(name, e.type): e for name, e in zip(names, found, strict=True)}
    return tuple(substitute(e, values) for e in function.results)


def results_of(function: Function, args: Mapping[str, int]) -> tuple[int, ...]:
    """What it returns for these ints, by the names of its params. NumPy is loaded."""
    return tuple(int(x) for x in arrays_of(function, args))


def arrays_of(function: Function, args: Mapping[str, Any]) -> tuple[Any, ...]:
    """The same for arrays of ints that broadcast."""
    from attngen.ir.evaluate import evaluate  # with NumPy, which no proof needs

    names = dict(args)
    for step in function.body:
        if isinstance(step, Assigned):
            names[step.name] = evaluate(step.value, names, {})
        else:
            given = [evaluate(e, names, {}) for e in step.args]
            found = arrays_of(step.function, dict(zip((p.id for p in step.function.params), given, strict=True)))
            names |= zip(step.names, found, strict=True)
    return tuple(evaluate(e, names, {}) for e in function.results)
