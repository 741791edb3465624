"""One text in two placements: a generated file's own part, and the runtime that is the same for every specification.

The own part imports the runtime from `_attngen`, the package beside it. `one_file` puts what it calls of the runtime
below it, and makes of these definitions the modules that it calls them by; `beside` gives the files of the package.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import re
import sys
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias, cast

from attngen import runtime
from attngen.emit.text.units import REGISTERED, TITLE, Unit, bound, cut, laid_out, printed, renamed
from attngen.errors import InternalError
from attngen.runtime.loader import OwnLines

PACKAGE = "_attngen"
API = 2
"""The version of the runtime's interface, which its package says, too."""
_LINE = (
    "# ================================================================ the runtime\n"
    "#\n"
    "# What follows is attngen's, the same for every specification: of its package {package}, what is called above.\n"
    "# sha256 of what follows: {digest}\n"
)
_INDENT = "    "
_FIRST = "# sha256 of the rest of this file: {digest}\n"


@dataclass(frozen=True, slots=True)
class _Module:
    """A module of the package: its docstring, its own statements, the imports that they need, and the modules of the
    package before it."""

    name: str
    doc: str
    own: tuple[Unit, ...]
    imports: tuple[Unit, ...]
    before: tuple[str, ...]


@functools.cache
def sources() -> Mapping[str, str]:
    """The texts of the package's modules by name; that of the package itself is `__init__`."""
    folder = Path(runtime.__file__).parent / "exported"
    return {path.stem: path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.py"))}


@functools.cache
def fields_of_the_runtime() -> frozenset[tuple[str, str]]:
    """The fields that the runtime reads, each after the name of what it reads it of."""
    return frozenset(re.findall(r"(?=\b(\w+)\.([A-Za-z_]\w*))", "\n".join(sources().values())))


@functools.cache
def _modules() -> tuple[_Module, ...]:
    """Each after those that it imports."""
    found = {name: _module(name, text) for name, text in sources().items()}
    ordered: dict[str, _Module] = {}

    def add(name: str) -> None:
        for other in found[name].before:
            if other not in ordered:
                add(other)
        ordered[name] = found[name]

    for name in found:
        if name not in ordered:
            add(name)
    return tuple(ordered.values())


def _module(name: str, text: str) -> _Module:
    statements = cut(text)
    imports = [u for u in statements if u.imports]
    inside = [u for u in imports if _is_inside(u)]
    before = tuple(dict.fromkeys(_module_of(u) or "__init__" for u in inside))
    outside = tuple(u for u in imports if u not in inside and "annotations" not in u.names)
    own = tuple(u for u in statements if not u.imports and not u.says and "__all__" not in u.names)
    return _Module(name, statements[0].text.strip('"'), own, outside, before)


def _is_inside(unit: Unit) -> bool:
    """Whether it imports from the package that it stands in, or stands beside."""
    return isinstance(unit.node, ast.ImportFrom) and unit.node.level > 0


def _module_of(unit: Unit) -> str:
    """The module that names are imported from."""
    return (unit.node.module or "") if isinstance(unit.node, ast.ImportFrom) else ""


@functools.cache
def flat() -> Mapping[str, tuple[Unit, ...]]:
    """The statements that define each name of the package: no two of its modules define the same."""
    found: dict[str, tuple[str, tuple[Unit, ...]]] = {}
    for module in _modules():
        for unit in module.own:
            for name in unit.names:
                before, others = found.get(name, (module.name, ()))
                if before != module.name:
                    raise InternalError(f"the runtime's modules {before} and {module.name} both define {name}")
                found[name] = module.name, (*others, unit)
    return {name: own for name, (_, own) in found.items()}


def _reached(names: Iterable[str]) -> set[int]:
    """The statements that these names need, by identity."""
    found: set[int] = set()
    waiting = [*names]
    while waiting:
        for unit in flat().get(waiting.pop(), ()):
            if id(unit) not in found:
                found.add(id(unit))
                waiting += unit.read | unit.names
    return found


# ---------------------------------------------------------------- one file


def one_file(own: Iterable[Unit]) -> str:
    """The own part, and what it calls of the runtime."""
    statements = [*own]
    package = [u for u in statements if u.imports and _is_inside(u)]
    objects = [name for u in package if _module_of(u) == PACKAGE for name in bound(u.node)]
    members = _members(statements, objects)
    early = _reached(name for u in package if _module_of(u) != PACKAGE for name in u.names)
    late = _reached(member for names in members.values() for member in names) - early
    clash = {name for u in statements if not u.imports for name in u.names} & {*flat()}
    early_text, early_imports = _printed(early, clash, titles=False)
    late_text, late_imports = _printed(late, clash, titles=True)
    used = {name: names for name, names in members.items() if names}
    made = [f"{name} = ModuleType({_quoted(name)})" for name in used]
    for name, names in used.items():
        pairs = ", ".join(f"{n}={n}_" if n in clash else f"{n}={n}" for n in names)
        made += [
            f"vars({name}).update(",
            *textwrap.wrap(f"{pairs},", 116, initial_indent=_INDENT, subsequent_indent=_INDENT),
            ")",
        ]
    more = [u.node for u in cut("from types import ModuleType")] if made else []
    first, nodes, rest = _around_imports(statements)
    inside = [u.node for u in package]
    block = imports([*(n for n in nodes if n not in inside), *early_imports, *late_imports, *more])
    last = next(i for i, u in enumerate(rest) if REGISTERED in u.above)
    early_lines = ["", *early_text.split("\n")] if early_text else []
    above = "\n".join((*first, *block, *early_lines, "", printed(rest[:last]).strip("\n")))
    registered = printed(rest[last:]).strip("\n").removeprefix(f"{REGISTERED}\n")
    modules = TITLE.format("the modules that the file's own part calls")
    below = "\n\n\n".join((late_text, "\n".join((modules, "", *made)), f"{REGISTERED}\n{registered}"))
    below = f"\n\n{below}\n"
    return f"{above.rstrip()}\n\n\n{_LINE.format(package=PACKAGE, digest=digest(below))}{below}"


def _quoted(name: str) -> str:
    return f'"{name}"'


def _members(units: list[Unit], modules: list[str]) -> dict[str, list[str]]:
    """The attributes of each of these modules that are read, sorted."""
    found: dict[str, set[str]] = {name: set() for name in modules}
    for unit in units:
        for (owner, name), count in unit.fields.items():
            if count and owner in found:
                found[owner].add(name)
    missing = sorted(f"{name}.{x}" for name, read in found.items() for x in read - {*flat()})
    if missing:
        raise InternalError(f"the runtime has no {missing[0]}")
    return {name: sorted(read) for name, read in found.items()}


def _printed(wanted: set[int], clash: set[str], *, titles: bool) -> tuple[str, list[ast.stmt]]:
    """The statements, module by module, and the imports that they need. Names that clash get an ending."""
    parts: list[str] = []
    imports: list[ast.stmt] = []
    for module in _modules():
        own = [u for u in module.own if id(u) in wanted]
        if not own:
            continue
        read = {name for u in own for name in u.read}
        imports += [u.node for u in module.imports if u.names & read]
        text = laid_out((u, renamed(u, clash, "_")) for u in own)
        first = module.doc.split("\n\n")[0].replace("\n", " ")
        title = [TITLE.format(f"runtime: {module.name}"), "#", f"# {first}", "", ""]
        parts.append("\n".join((*title, text)) if titles else text)
    return "\n\n\n".join(parts), imports


_Import: TypeAlias = ast.Import | ast.ImportFrom


def _around_imports(units: list[Unit]) -> tuple[list[str], list[_Import], list[Unit]]:
    """The lines down to the imports, these, and the statements below."""
    nodes = [cast("_Import", u.node) for u in units if u.imports]
    first = next(i for i, u in enumerate(units) if u.imports)
    lines = printed(units[:first]).split("\n")[:-1]
    return [*lines, *units[first].above], nodes, units[first + len(nodes) :]


def imports(nodes: Iterable[ast.stmt]) -> list[str]:
    """Import statements as one block: the standard library, then others, then the package beside the file; modules,
    then names of modules."""
    plain: dict[str, None] = {}
    names: dict[str, set[str]] = {}
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            names.setdefault(f"{'.' * node.level}{node.module}", set()).update(_alias(a) for a in node.names)
        elif isinstance(node, ast.Import):
            plain |= dict.fromkeys(_alias(a) for a in node.names)
    found: list[str] = []
    for group in range(4):
        own = [f"import {x}" for x in sorted(plain) if _group(x) == group]
        own += [line for m in sorted(names) if _group(m) == group for line in _from(m, _listed(names[m]))]
        found += [*([""] if found and own else []), *own]
    return found


def _from(module: str, names: str) -> list[str]:
    line = f"from {module} import {names}"
    if len(line) <= 120:
        return [line]
    return [
        f"from {module} import (",
        *textwrap.wrap(names, 116, initial_indent=_INDENT, subsequent_indent=_INDENT),
        ")",
    ]


def _alias(a: ast.alias) -> str:
    return f"{a.name} as {a.asname}" if a.asname else a.name


def _listed(names: set[str]) -> str:
    return ", ".join(sorted(names, key=lambda n: (not n.isupper(), not n[0].isupper(), n)))


def _group(name: str) -> int:
    """`__future__`, the standard library, others, and the package beside the file."""
    top = name.split()[0].partition(".")[0]
    return 0 if top == "__future__" else 1 if top in sys.stdlib_module_names else 2 if top else 3


def tidied(own: list[Unit]) -> list[Unit]:
    """An own part, of whose imports only the names stand that it reads."""
    read = {name for u in own for name, count in u.reads.items() if count} | {"annotations"}
    first, nodes, rest = _around_imports(own)
    for node in nodes:
        node.names = [a for a in node.names if (a.asname or a.name).partition(".")[0] in read]
    block = imports(n for n in nodes if n.names)
    return [*cut("\n".join((*first, *block))), *rest]


def own_lines(source: str) -> OwnLines | None:
    """Which lines of a file are its own part's; None where its runtime is not as attngen wrote it."""
    above, _, rest = source.partition(f"\n{_LINE.format(package=PACKAGE, digest='').rstrip()} ")
    written, _, below = rest.partition("\n")
    runtime, _, registered = below.partition(f"\n{REGISTERED}\n")
    if f"\n# API of the runtime: {API}\n" not in above or digest(below) != written:
        return None
    first, last = above.count("\n") + 1, source.count("\n") - registered.count("\n")
    return OwnLines(slice(first, last), tuple(re.findall(r"^(\w+) = ModuleType\(", runtime, re.MULTILINE)))


# ---------------------------------------------------------------- beside each other


@functools.cache
def beside() -> Mapping[str, str]:
    """The files of the package by name; each begins with the sha256 of its rest."""
    return {f"{name}.py": _FIRST.format(digest=digest(text)) + text for name, text in sources().items()}


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def edited(text: str) -> bool:
    """Whether a file of the package is not as attngen wrote it, in any release."""
    first, _, rest = text.partition("\n")
    return f"{first}\n" != _FIRST.format(digest=digest(rest))


__all__ = ["API", "PACKAGE", "beside", "edited", "imports", "one_file", "own_lines", "sources", "tidied"]
