"""Two generated modules as one.

Takes the own parts of two modules for the same target; returns the first, and of the second what the first does not
have. A definition of the second that reads the same in the first, and whatever it calls too, is the first's. The others
get an ending, so that neither module sees the other's. What a module registers is its own.
"""

from __future__ import annotations

import ast

from attngen.emit.text.units import TITLE, Unit, laid_out, renamed, units
from attngen.errors import InternalError


def joined(first: str, second: str, ending: str, title: str) -> str:
    """`title` stands above what comes from the second, whose public functions become private: `_NAME` with the ending.
    The file has no `__all__`."""
    own, others = tuple(units(first)), tuple(units(second))
    known = {unit.text for unit in own if not _registers(unit)}
    apart = {name for unit in others if unit.text not in known for name in unit.names}
    public = {name for name in apart if not name.startswith("_") and name.islower()}
    while grown := {n for unit in others if unit.read & apart for n in unit.names} - apart:
        apart |= grown
    taken = {name for unit in own for name in unit.names}
    clash = sorted({f"{name}{ending}" for name in apart} & taken)
    if clash:
        raise InternalError(f"two modules of a file both have {clash[0]}")
    parts = [unit for unit in others if unit.names & apart or unit.read & apart or unit.text not in known]
    return _with(first, own, parts, [_private(unit, apart - public, ending) for unit in parts], title)


def followed(first: str, second: str, title: str) -> str:
    """A module, and one that relies on it: all of the second, but for imports that the first has."""
    own, others = tuple(units(first)), tuple(units(second))
    known = {unit.text for unit in own}
    parts = [unit for unit in others if unit.text not in known]
    return _with(first, own, parts, [unit.text for unit in parts], title)


def _registers(unit: Unit) -> bool:
    """Whether it makes an object that calls change."""
    return (isinstance(unit.node, ast.Assign) and ".Attention(" in unit.text) or ".Sequences(" in unit.text


def _with(first: str, own: tuple[Unit, ...], parts: list[Unit], texts: list[str], title: str) -> str:
    above = [text for unit, text in zip(parts, texts, strict=True) if unit.imports]
    below = laid_out((unit, text) for unit, text in zip(parts, texts, strict=True) if not unit.imports)
    return f"{_with_imports(first, own, above)}\n\n\n{TITLE.format(title)}\n\n\n{below}"


def _private(unit: Unit, names: set[str], ending: str) -> str:
    """The text with these names' ending."""
    text = unit.text
    if isinstance(unit.node, ast.FunctionDef) and not unit.node.name.startswith("_"):
        text = text.replace(f"def {unit.node.name}(", f"def _{unit.node.name}{ending}(", 1)
        unit.node.name = f"_{unit.node.name}{ending}"
    return renamed(Unit(unit.node, text, unit.names, unit.read), names, ending)


def _with_imports(source: str, own: tuple[Unit, ...], imports: list[str]) -> str:
    """The source, without `__all__`, its imports followed by others."""
    lines = source.split("\n")
    last = max(u.node.end_lineno or 0 for u in own if u.imports)
    ends = next((i for i, line in enumerate(lines) if line.startswith("__all__")), len(lines))
    return "\n".join((*lines[:last], *imports, *lines[last:ends])).rstrip("\n")
