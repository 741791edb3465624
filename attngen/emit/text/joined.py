"""Two generated modules as one.

Takes the own parts of two modules for the same target; returns the first, and of the second what the first does not
have. A definition of the second that reads the same in the first, and whatever it calls too, is the first's. The others
get an ending, so that neither module sees the other's. What a module registers is its own.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable

from attngen.emit.text.units import REGISTERED, TITLE, Unit, cut, laid_out, printed, renamed
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
        [(unit, _private(unit, names, ending)) for unit in parts],
        [*((u, u.text) for u in own_registered), *((u, _private(u, names, ending)) for u in registered)],
        title,
    )


def followed(first: str, second: str, title: str) -> str:
    """A module, and one that relies on it: all of the second, but for imports that the first has."""
    (own, registered), (others, more) = _cut(first), _cut(second)
    known = {unit.text for unit in own}
    parts = [(unit, unit.text) for unit in others if unit.text not in known]
    return _with(first, parts, [(unit, unit.text) for unit in (*registered, *more)], title)


Parts = Iterable[tuple[Unit, str]]


def _cut(source: str) -> tuple[list[Unit], list[Unit]]:
    """The statements but for the docstring and `__all__`, and those that register."""
    body, registered = _halves(source)
    return [u for u in body if not u.says and "__all__" not in u.names], registered


def _halves(source: str) -> tuple[list[Unit], list[Unit]]:
    found = cut(source)
    at = next((i for i, u in enumerate(found) if REGISTERED in u.above), len(found))
    return found[:at], found[at:]


def _with(first: str, parts: list[tuple[Unit, str]], registered: Parts, title: str) -> str:
    """The first module, without `__all__`, its imports followed by others, and statements below it."""
    body, _ = _halves(first)
    last = max(i for i, u in enumerate(body) if u.imports) + 1
    imports = [text for unit, text in parts if unit.imports]
    below = laid_out((unit, text) for unit, text in parts if not unit.imports)
    whole = (printed(body[:last]).rstrip("\n"), *imports, _without_all(printed(body[last:])))
    sections = ("\n".join(whole).rstrip("\n"), TITLE.format(title), below, REGISTERED, laid_out(registered))
    return "\n\n\n".join(sections) + "\n"


def _without_all(source: str) -> str:
    return "\n".join(line for line in source.split("\n") if not line.startswith("__all__"))


def _private(unit: Unit, names: set[str], ending: str) -> str:
    """The text with these names' ending."""
    name = unit.node.name if isinstance(unit.node, ast.FunctionDef) else "_"
    if name.startswith("_"):
        return renamed(unit, names, ending)
    return renamed(Unit((), unit.text.replace(f"def {name}(", f"def _{name}{ending}(", 1)), names, ending)
