"""The last pass over generated source: it removes what nothing reads.

Takes the units of a module whose assignments have no side effects (the templates make sure), returns those that are
read. A template may so bind `q1` or `kv_head` for every variant, and hand a function everything that some variant of it
needs; a variant that does not need them does not show them. Names that a function unpacks from a tuple, or counts with,
and never reads get a `_` in front.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable

from attngen.emit.text.parts import Part
from attngen.emit.text.units import Unit, cut, printed
from attngen.emit.text.unread import without_unread_parameters

_EMPTY_SECTION = re.compile(r"^# -{64} [^\n]+\n\n\n(?=# -{64} )", re.MULTILINE)
"""The title of a section, with another title below it."""


def pruned(source: str) -> str:
    """A whole file's `source`, without everything that nothing in it reads, but for parameters."""
    return printed(without_unread(cut(source)))


def without_unread(units: Iterable[Unit], elsewhere: frozenset[tuple[str, str]] | None = None) -> list[Unit]:
    """The units of a whole file, without everything that nothing in it reads. Parameters and fields of kernels stay
    unless `elsewhere` is given: see `without_unread_parameters`."""
    parts = [Part(unit) for unit in units]
    functions = [part for part in parts if part.unit.kind is ast.FunctionDef]
    for function in functions:
        _drop_bindings(function)
    if elsewhere is not None:
        for function in without_unread_parameters(parts, elsewhere):
            _drop_bindings(function)
    for function in functions:
        _mark_dummies(function)
    read = Counter[str]()
    for part in parts:
        read.update(part.found.reads)
    kept = _with_imports_read(_with_definitions_read(parts, read), read)
    return [part.edited() for part in kept]


# ---------------------------------------------------------------- inside of a function


def _drop_bindings(function: Part) -> None:
    """Drops every unread `name = expression`, in rounds, since each may free another name."""
    reads = function.found.reads
    while True:
        dropped: set[int] = set()
        for block in function.found.blocks:
            unused = [s for s in block if _binds_unread(s, reads)]
            if unused and len(unused) < len(block):  # a block keeps at least one statement
                dropped.update(map(id, unused))
                block[:] = [s for s in block if id(s) not in dropped]
                for statement in unused:
                    function.drop(statement)
        if not dropped:
            return


def _binds_unread(statement: ast.stmt, reads: Counter[str]) -> bool:
    kind = statement.__class__
    if kind is ast.Assign:
        assigned: ast.Assign = statement  # pyright: ignore[reportAssignmentType]
        if len(assigned.targets) != 1:
            return False
        target = assigned.targets[0]
        if isinstance(target, ast.Tuple):  # of something that nothing computes
            names = [n.id for n in ast.walk(target) if isinstance(n, ast.Name)]
            return not any(reads[n] for n in names) and not _calls(assigned.value)
    elif isinstance(statement, ast.AnnAssign):
        target = statement.target
    else:
        return False
    return isinstance(target, ast.Name) and not reads[target.id]


def _calls(value: ast.expr) -> bool:
    return any(isinstance(n, ast.Call) for n in ast.walk(value))


def _mark_dummies(function: Part) -> None:
    """Names that the function unpacks from a tuple, or counts with, and never reads begin with `_`."""
    for node in function.marked():
        match node:
            case ast.For(target=target) | ast.Assign(targets=[ast.Tuple() as target, *_]):
                pass
            case _:
                continue
        stored = [n for n in ast.walk(target) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
        for name in stored:
            if not function.found.reads[name.id] and not name.id.startswith("_"):
                function.insert(name, "_")


# ---------------------------------------------------------------- at the top level


def _with_definitions_read(parts: list[Part], read: Counter[str]) -> list[Part]:
    """Without the file's own functions, classes and constants that nothing in it reads; `read` loses what they read.

    A function is its own where its name begins with `_` and no decorator but `jit` and `cache` may have registered it;
    a constant where its name is in capitals.
    """
    own = {part: name for part in parts if (name := _own_definition(part.unit))}
    unread: set[Part] = set()
    while found := [part for part, name in own.items() if part not in unread and not read[name]]:
        unread.update(found)
        for part in found:
            read.subtract(part.found.reads)
    kept: list[Part] = []
    carried: list[str] = []  # what stood above those that are gone
    gone = blank = False
    for part in parts:
        above = [*part.unit.above]
        while blank and above and not above[0]:
            del above[0]
        if part in unread:
            carried += above
            gone, blank = True, part.unit.defines or carried[-1:] == [""]
        elif not (gone and part.unit.says and not part.unit.above):  # a constant's docstring
            if gone:
                part.unit = part.unit.below((*carried, *above))
            carried, gone, blank = [], False, False
            kept.append(part)
    return kept


def _own_definition(unit: Unit) -> str:
    """The name that `unit` defines for the module's own use, or an empty string."""
    match unit.node:
        case ast.FunctionDef(name=name, decorator_list=decorators) | ast.ClassDef(name=name, decorator_list=decorators):
            own = name.startswith("_") and all(ast.unparse(d).endswith(("jit", ".cache")) for d in decorators)
        case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
            own = name.isupper() and not name.startswith("__")
        case _:
            return ""
    return name if own else ""


def _with_imports_read(parts: list[Part], read: Counter[str]) -> list[Part]:
    """Without the imports of which no name is read."""
    kept: list[Part] = []
    carried: list[str] = []
    for part in parts:
        names = part.unit.names
        if part.unit.imports and "annotations" not in names and not any(read[name] for name in names):
            carried += part.unit.above
            continue
        above = "\n".join((*carried, *part.unit.above, ""))
        if carried or above.count("\n# ---") > 1:
            part.unit = part.unit.below(_EMPTY_SECTION.sub("", above).split("\n")[:-1])
        carried = []
        kept.append(part)
    return kept
