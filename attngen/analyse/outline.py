"""The statements of a file by kind, and the names that it defines, before any expression is looked at.

Takes a module, returns an `Outline`; reports a statement that stands twice, a missing `attention`, and names that are
taken or that can't be used in the generated code.
"""

from __future__ import annotations

import builtins
import keyword
from collections.abc import Mapping
from dataclasses import dataclass, field

from attngen.analyse.prelude import YIELDING, prelude
from attngen.analyse.report import Report, free_name
from attngen.analyse.scope import Binding, Builtin, Value
from attngen.errors import Span
from attngen.syntax import ast

_IMPORTED = frozenset({
    "AbstractContextManager", "Any", "Callable", "ContextVar", "Generator", "HopperDescriptor", "Iterable",
    "Mapping", "ModuleType", "NamedTuple", "NoReturn", "Primitive", "Protocol", "Sequence", "SimpleNamespace", "Tensor",
    "TensorDescriptor", "ThreadPoolExecutor", "annotations", "batching", "contextmanager", "ctypes",
    "custom_partitioning", "dataclass", "driver", "fence_async_shared", "flop_registry", "forward_ad", "functools",
    "gl", "gluon", "host", "items", "jax", "jnp", "knobs", "lax", "math", "mbarrier", "mlir", "namedtuple",
    "nullcontext", "numbers", "operator", "pl", "pltpu", "ragged", "reduce", "replace", "rows", "sm90", "sys",
    "threading", "tl", "tma", "torch", "triton", "warnings", "warpgroup_mma", "warpgroup_mma_init",
    "warpgroup_mma_wait",
})  # fmt: skip
"""What generated modules import by these names."""

_CONSTANTS = frozenset({
    "AHEAD", "CACHED_ROWS", "CHIP", "GLUON_KNOWN", "HOPPER", "HOPPER_APART", "HOPPER_BACKWARD", "INTERPRET",
    "KNOWN", "LANES", "LIVE_ROWS", "LN2", "LOG2E", "LOWEST", "MOST_SUMS", "PIECE", "PIECE_NUMBERS", "PIECE_PARAMS",
    "PRECISION", "REGISTERS", "RELEASES", "SHORT_ROWS", "SPLIT", "SPREADS", "STRAIGHT", "TILES", "TILE_K", "TILE_Q",
    "TOGETHER", "UNSPECIALIZED", "VMEM", "WIDE",
})  # fmt: skip
"""What else a generated module holds; its own functions begin with an underscore. `tests/unit/emit` holds both lists
against generated modules."""

_CALLED = frozenset({"_attention", "_sequences", "_call", "_check", "_check_facts"})
"""What the generated functions call, and an argument of that name would hide."""
_ARGUMENTS = frozenset({"q", "k", "v", "scale", "return_lse", "dropout_seed"})
"""The arguments that every generated function has."""

Named = ast.Const | ast.Param | ast.Let


def is_free(name: str) -> bool:
    """Whether a file may give a const, a param or a let this name: by the language, and by the generated code."""
    return not (
        keyword.iskeyword(name) or name in _ARGUMENTS | _CALLED or (name in prelude().names and name not in YIELDING)
    )


@dataclass(frozen=True, slots=True)
class Outline:
    """`named` holds the first definition of each name, `fresh` the dims that are sizes bound at the call."""

    name: str
    statements: tuple[ast.Statement, ...]  # without those that stand a second time
    named: Mapping[str, Named] = field(default_factory=dict[str, Named])
    normalizers: Mapping[str, ast.DefineNormalizer] = field(default_factory=dict[str, ast.DefineNormalizer])
    fresh: Mapping[str, Span] = field(default_factory=dict[str, Span])


def outline(module: ast.Module, report: Report) -> Outline:
    statements = _once_each(module, report)
    name = _attention(module, report)
    named = _named(statements, report)
    fresh = _fresh(statements, named, report)
    return Outline(name, statements, named, _normalizers(statements, report), fresh)


def kind(statement: Named) -> str:
    match statement:
        case ast.Const():
            return "const"
        case ast.Param():
            return "param"
        case ast.Let():
            return "let"


# ---------------------------------------------------------------- statements


def _once_each(module: ast.Module, report: Report) -> tuple[ast.Statement, ...]:
    kept: list[ast.Statement] = []
    first: dict[type, ast.Statement] = {}
    words: dict[type, str] = {
        ast.Score: "score", ast.Mask: "mask", ast.UseNormalizer: "normalizer =", ast.Dropout: "dropout",
        ast.Tile: "tile", ast.Attention: "attention",
    }  # fmt: skip
    for statement in module.statements:
        word = words.get(type(statement))
        before = first.setdefault(type(statement), statement)
        if word is not None and before is not statement:
            message = f"`{word}` is defined a second time (first on line {before.span.line})"
            report.error("duplicate", message, statement.span, "keep one of the two")
            if not isinstance(statement, ast.Attention):
                # Its mistakes are worth knowing, but it takes no effect.
                kept.append(statement)
        else:
            kept.append(statement)
    return tuple(kept)


def _attention(module: ast.Module, report: Report) -> str:
    first = module.statements[0] if module.statements else None
    found = next((s for s in module.statements if isinstance(s, ast.Attention)), None)
    if found is None:
        at = Span(1, 1, 1, 2) if first is None else first.span
        report.error("missing-attention", "a file begins with `attention NAME`", at, "add `attention my_attention`")
        return ""
    if found is not first:
        message = "`attention` is not the first statement"
        report.error("missing-attention", message, found.span, "move this line to the top")
    name = found.name
    taken = _IMPORTED | _CONSTANTS | {n for n in dir(builtins) if not n.startswith("_")}
    if keyword.iskeyword(name):
        message = f"`{name}` is a word of Python, so no function can have this name"
    elif name in taken or name.startswith("_"):
        message = f"`{name}` has a meaning of its own in the generated Python module"
    else:
        return name
    fix = f"write {name.strip('_').lower()}_attention"
    report.error("reserved-name", message, found.name_span, fix)
    return name


# ---------------------------------------------------------------- names


def _named(statements: tuple[ast.Statement, ...], report: Report) -> dict[str, Named]:
    named: dict[str, Named] = {}
    for statement in statements:
        if not isinstance(statement, ast.Const | ast.Param | ast.Let):
            continue
        name = statement.name

        if name in prelude().names and name not in YIELDING:
            report.error("redefined", f"`{name}` is {_meaning(name)}", statement.name_span, _another(name, named))
            continue
        if name in named:
            before = named[name]
            message = f"`{name}` is already a {kind(before)} (line {before.name_span.line})"
            report.error("redefined", message, statement.name_span, _another(name, named))
            continue
        named[name] = statement
        if isinstance(statement, ast.Param):
            _check_param_name(statement, named, report)
    return named


def _another(name: str, named: Mapping[str, Named]) -> str:
    return f"choose another name, such as {free_name(name, {**prelude().names, **named})}"


def _check_param_name(param: ast.Param, named: Mapping[str, Named], report: Report) -> None:
    """A param is a keyword argument of the generated function, so it can't be renamed there."""
    if keyword.iskeyword(param.name):
        message = f"`{param.name}` is a word of Python, so no argument of the generated function can have this name"
    elif param.name in _ARGUMENTS:
        message = f"every generated function has an argument `{param.name}` already"
    elif param.name in _CALLED:
        message = f"the generated function calls `{param.name}`, which an argument of that name would hide"
    else:
        return
    report.error("reserved-name", message, param.name_span, _another(param.name, named))


_INDEX_MEANING = {
    "b": "the index of the batch",
    "h": "the index of the query head",
    "hkv": "the index of the key/value head",
    "q": "the index of the query",
    "k": "the index of the key",
    "qk": "the dot product of query and key",
    "scale": "an argument of every attention",
}


def _meaning(name: str) -> str:
    binding: Binding = prelude().names[name]
    if name in _INDEX_MEANING:
        return _INDEX_MEANING[name]
    match binding:
        case Value(kind=what):
            return f"a {what} of the language"
        case Builtin():
            return "a function of the language"
        case _:
            return "defined by the prelude"


def _normalizers(statements: tuple[ast.Statement, ...], report: Report) -> dict[str, ast.DefineNormalizer]:
    found: dict[str, ast.DefineNormalizer] = {}
    for statement in statements:
        if not isinstance(statement, ast.DefineNormalizer):
            continue
        name = statement.name
        taken = [*prelude().normalizers, *found]
        if name in prelude().normalizers:
            message = f"the normalizer `{name}` is built in"
        elif name in found:
            message = f"the normalizer `{name}` is already defined (line {found[name].name_span.line})"
        else:
            found[name] = statement
            continue
        fix = f"choose another name, such as {free_name(name, taken)}"
        report.error("redefined", message, statement.name_span, fix)
    return found


def _fresh(statements: tuple[ast.Statement, ...], named: dict[str, Named], report: Report) -> dict[str, Span]:
    """Dims that nothing else defines, in the order of their first use."""
    fresh: dict[str, Span] = {}
    for statement in statements:
        if not isinstance(statement, ast.Param):
            continue
        for dim in statement.dims:
            if not isinstance(dim, ast.Name) or dim.id in fresh or isinstance(named.get(dim.id), ast.Const):
                continue
            language = None if dim.id in YIELDING else prelude().names.get(dim.id)
            if isinstance(language, Value) and language.kind == "size":
                continue
            later = named.get(dim.id)
            if language is not None or (later is not None and _before(later.name_span, dim.span)):
                # `declare` reports it, where the dim stands.
                continue
            fresh[dim.id] = dim.span
            if later is not None:
                message = f"`{dim.id}` is already a size (line {dim.span.line}): it is a dim of `{statement.name}`"
                report.error("redefined", message, later.name_span, _another(dim.id, named))
    return fresh


def _before(a: Span, b: Span) -> bool:
    return (a.line, a.column) < (b.line, b.column)
