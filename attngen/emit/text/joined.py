"""Two generated modules as one.

Takes the own parts of two modules for the same target; returns the first, and of the second what the first does not
have. A definition of the second that reads the same in the first, and whatever it calls too, is the first's. The others
get an ending, so that neither module sees the other's. What a module registers is its own.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import replace

from attngen.emit.text.units import REGISTERED, TITLE, Unit, laid_out, renamed, units
from attngen.errors import InternalError


def joined(first: str, second: str, ending: str, title: str) -> str:
    """`title` stands above what comes from the second, whose public functions become private: `_NAME` with the ending.
    The file has no `__all__`."""
    (own, own_registered), (others, registered) = _cut(first), _cut(second)
    known = {unit.text for unit in own}
    apart = {name for unit in others if unit.text not in known for name in unit.names}
    apart |= {name for unit in registered for name in unit.names}
    public = {name for name in apart if not name.startswith("_") and name.islower()}
    every = (*others, *registered)
    while grown := {n for unit in every if unit.read & apart for n in unit.names} - apart:
        apart |= grown
    taken = {name for unit in (*own, *own_registered) for name in unit.names}
    clash = sorted({f"{name}{ending}" for name in apart} & taken)
    if clash:
        raise InternalError(f"two modules of a file both have {clash[0]}")
    parts = [unit for unit in others if unit.names & apart or unit.read & apart or unit.text not in known]
    names = apart - public
    return _with(
        first,
        own,
        [(unit, _private(unit, names, ending)) for unit in parts],
        [*((u, u.text) for u in own_registered), *((u, _private(u, names, ending)) for u in registered)],
        title,
    )


def followed(first: str, second: str, title: str) -> str:
    """A module, and one that relies on it: all of the second, but for imports that the first has."""
    (own, registered), (others, more) = _cut(first), _cut(second)
    known = {unit.text for unit in own}
    parts = [(unit, unit.text) for unit in others if unit.text not in known]
    return _with(first, own, parts, [(unit, unit.text) for unit in (*registered, *more)], title)


Parts = Iterable[tuple[Unit, str]]


def _cut(source: str) -> tuple[tuple[Unit, ...], tuple[Unit, ...]]:
    """The statements, and those that register."""
    body, _, registered = source.partition(REGISTERED)
    return tuple(units(body)), tuple(units(registered))


def _with(first: str, own: tuple[Unit, ...], parts: list[tuple[Unit, str]], registered: Parts, title: str) -> str:
    above = [text for unit, text in parts if unit.imports]
    below = laid_out((unit, text) for unit, text in parts if not unit.imports)
    source = _with_imports(first.partition(REGISTERED)[0], own, above)
    sections = (source, TITLE.format(title), below, REGISTERED, laid_out(registered))
    return "\n\n\n".join(sections) + "\n"


def _private(unit: Unit, names: set[str], ending: str) -> str:
    """The text with these names' ending."""
    text = unit.text
    if isinstance(unit.node, ast.FunctionDef) and not unit.node.name.startswith("_"):
        text = text.replace(f"def {unit.node.name}(", f"def _{unit.node.name}{ending}(", 1)
        unit.node.name = f"_{unit.node.name}{ending}"
    return renamed(replace(unit, text=text), names, ending)


def _with_imports(source: str, own: tuple[Unit, ...], imports: list[str]) -> str:
    """The source, without `__all__`, its imports followed by others."""
    lines = [line for line in source.split("\n") if not line.startswith("__all__")]
    last = max(u.node.end_lineno or 0 for u in own if u.imports)
    return "\n".join((*lines[:last], *imports, *lines[last:])).rstrip("\n")
