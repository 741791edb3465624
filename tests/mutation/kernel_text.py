"""Edits of the kernels' text around the functions that the prover executes: of each line that computes an int.

Takes a generated file, gives its own part's `Line`s: statements of kernels that compute an index, a test, a bound of a
loop, or an address. Each has the edits of the ints in it, as texts of the whole file. What an edit does is seen by
running it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_CALLS = {
    "minimum", "maximum", "where", "cast", "cdiv", "arange", "program_id", "num_programs", "to_tensor", "expand_dims",
}  # fmt: skip
"""Operations of Triton whose result is an int where their operands are."""
_INT_MODULES = {"items", "ragged"}
"""Modules of the runtime all of whose functions return ints."""
_OTHER = {"minimum": "maximum", "maximum": "minimum"}
_SWAPPED: dict[type[ast.operator], str] = {ast.Add: "-", ast.Sub: "+", ast.Mult: "+", ast.FloorDiv: "%", ast.Mod: "//"}
_SIGNS: dict[type[ast.operator], str] = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.FloorDiv: "//", ast.Mod: "%", ast.BitAnd: "&", ast.BitOr: "|",
}  # fmt: skip
_COMPARED: dict[type[ast.cmpop], str] = {ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">"}


@dataclass(frozen=True)
class Edit:
    """`text`: the file with the edit."""

    what: str
    text: str


@dataclass(frozen=True)
class Line:
    """A statement of the function `where`, or what stands before its colon."""

    where: str
    text: str
    edits: tuple[Edit, ...]

    def __str__(self) -> str:
        return f"{self.where}: {self.text}"


PROVED = {"_key_tiles", "_query_tiles"}
"""Functions that the plan prints, and whose values the prover takes: their edits are mutants of kinds `ranges` and
`loops`."""


def index_lines(source: str) -> list[Line]:
    """Those of the own part's kernels, each text once a function."""
    own = source.partition("\n# The runtime")[0]
    tree = ast.parse(own)
    starts = _line_starts(own)
    found: dict[tuple[str, str], Line] = {}
    returns = _returning_ints(tree)
    kernels = [n for n in tree.body if isinstance(n, ast.FunctionDef) and _is_kernel(n) and n.name not in PROVED]
    for function in kernels:
        ints = _ints(function, returns)
        for statement, parts in _statements(function):
            edits = [
                Edit(what, source[: _at(starts, node)] + other + source[_at(starts, node, end=True) :])
                for part in parts
                for node in _outermost(part, ints)
                for what, other in _edits(own, starts, node, ints)
            ]
            text = " ".join((ast.get_source_segment(own, statement) or "").split("\n")[0].split())
            if edits and (function.name, text) not in found:
                found[function.name, text] = Line(function.name, text, tuple(dict.fromkeys(edits)))
    return list(found.values())


def _is_kernel(function: ast.FunctionDef) -> bool:
    return any("jit" in ast.unparse(d) for d in function.decorator_list)


def _line_starts(text: str) -> list[int]:
    starts = [0]
    for line in text.split("\n"):
        starts.append(starts[-1] + len(line) + 1)
    return starts


def _at(starts: Sequence[int], node: ast.expr, *, end: bool = False) -> int:
    """Where the text of a node begins, or ends. Lines with other than ASCII before a node have comments alone."""
    line, column = (node.end_lineno, node.end_col_offset) if end else (node.lineno, node.col_offset)
    assert line is not None and column is not None
    return starts[line - 1] + column


def _statements(function: ast.FunctionDef) -> Iterator[tuple[ast.stmt, list[ast.expr]]]:
    """Each statement, with the expressions of its own."""
    for n in ast.walk(function):
        match n:
            case ast.Assign(value=value) | ast.AugAssign(value=value) | ast.Return(value=ast.expr() as value):
                yield n, [value]
            case ast.AnnAssign(value=ast.expr() as value):
                yield n, [value]
            case ast.Expr(value=ast.Call() as value):
                yield n, [value]
            case ast.If(test=test) | ast.While(test=test):
                yield n, [test]
            case ast.For(iter=ast.Call(args=args)):
                yield n, list(args)
            case _:
                pass


def _returning_ints(tree: ast.Module) -> set[str]:
    """The file's functions that the plan prints of ints alone."""
    return {n.name for n in tree.body if isinstance(n, ast.FunctionDef) and n.name in _OF_INTS}


_OF_INTS = {"_key_tiles", "_query_tiles", "_key_runs", "_query_runs", "_item"}


def _ints(function: ast.FunctionDef, returns: set[str]) -> set[str]:
    """The names that stand for ints, or for addresses."""
    floats = _FLOATS
    names = {a.arg for a in function.args.args if a.arg not in floats}
    grown = True
    while grown:
        grown = False
        for n in ast.walk(function):
            if isinstance(n, ast.For) and isinstance(n.target, ast.Name) and n.target.id not in names:
                names.add(n.target.id)
                grown = True
            if not isinstance(n, ast.Assign):
                continue
            target = n.targets[0]
            own = [target] if isinstance(target, ast.Name) else getattr(target, "elts", [])
            of_ints = _is_int(n.value, names) or (isinstance(n.value, ast.Call) and _name(n.value.func) in returns)
            if of_ints and not {t.id for t in own if isinstance(t, ast.Name)} <= names:
                names |= {t.id for t in own if isinstance(t, ast.Name)}
                grown = True
    return names - floats


_FLOATS = {
    "scale", "acc", "held", "state", "tiling", "terms", "rings", "work", "call", "config", "adding", "results", "walk",
    "row_sum", "row_max", "qk", "q", "k", "v", "dk", "dv", "dq", "lse", "masked", "MASKED", "factor", "values",
    "q_strides", "k_strides", "v_strides", "out_strides", "d_out_strides", "dq_strides", "dk_strides", "dv_strides",
    "k_rows", "v_rows", "q_rows", "d_out_rows", "queue", "place", "d_out", "delta", "p", "weight", "arguments",
    "extremes",
}  # fmt: skip
"""Params of kernels that are no ints: floats, tuples, descriptors."""


def _name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _is_int(node: ast.expr, names: set[str]) -> bool:
    match node:
        case ast.Constant(value=value):
            return isinstance(value, int)
        case ast.Name(id=name):
            return name in names
        case ast.Attribute(value=ast.Name(id="call" | "config" | "work" | "tiling" | "row"), attr=name):
            return name not in _FLOATS and not name.endswith(("dtype", "layout", "desc"))
        case ast.BinOp(left=left, right=right, op=op):
            return type(op) in _SIGNS and _is_int(left, names) and _is_int(right, names)
        case ast.Compare(left=left, comparators=[right]):
            return _is_int(left, names) and _is_int(right, names)
        case ast.Subscript(value=value):
            return isinstance(value, ast.BinOp | ast.Name) and _is_int(value, names)
        case ast.IfExp(body=body, orelse=orelse):
            return _is_int(body, names) and _is_int(orelse, names)
        case ast.Call(func=ast.Attribute(value=ast.Name(id=module), attr=function), args=args):
            if module in _INT_MODULES:
                return True
            return module in ("tl", "gl") and function in _CALLS and _is_int(args[0], names)
        case _:
            return False


def _outermost(node: ast.expr, ints: set[str]) -> Iterator[ast.expr]:
    """The largest expressions of ints in an expression that are no mere names or numbers."""
    if isinstance(node, ast.Constant | ast.Name | ast.Attribute):
        return
    if _is_int(node, ints):
        yield node
        return
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.keyword):
            yield from _outermost(child.value, ints)
        elif isinstance(child, ast.expr):
            yield from _outermost(child, ints)
    if isinstance(node, ast.Call) and _name(node.func).startswith("_"):
        for a in node.args:  # a function of the file gets a name: another one is another tile
            if isinstance(a, ast.Name) and a.id in ints and not a.id.isupper():
                yield a


def _edits(own: str, starts: Sequence[int], node: ast.expr, ints: set[str]) -> Iterator[tuple[str, str]]:
    """(what, the other text of `node`): one edit at each place in it."""
    base = _at(starts, node)
    whole = own[base : _at(starts, node, end=True)]
    for part in _parts(node):
        start, stop = _at(starts, part) - base, _at(starts, part, end=True) - base
        text = whole[start:stop]
        for other in _others(own, starts, part, ints):
            if other != text:
                yield f"{other} for {text}", whole[:start] + other + whole[stop:]


def _parts(node: ast.AST) -> Iterator[ast.expr]:
    if isinstance(node, ast.expr):
        yield node
    if isinstance(node, ast.Call) and _name(node.func) in ("program_id", "num_programs", "cast", "arange"):
        children: list[ast.AST] = [a for a in node.args[:1] if _name(node.func) == "cast"]
    elif isinstance(node, ast.Subscript):
        children = [node.value]
    else:
        children = [c for c in ast.iter_child_nodes(node) if not isinstance(c, ast.expr_context)]
        if isinstance(node, ast.Call):
            children = list(node.args)
    for child in children:
        yield from _parts(child)


def _others(own: str, starts: Sequence[int], node: ast.expr, ints: set[str]) -> Iterator[str]:
    def text(n: ast.expr) -> str:
        found = own[_at(starts, n) : _at(starts, n, end=True)]
        return f"({found})" if isinstance(n, ast.BinOp | ast.Compare | ast.IfExp) else found

    match node:
        case ast.BinOp(left=left, right=right, op=op):
            if type(op) in _SWAPPED:
                yield f"({text(left)} {_SWAPPED[type(op)]} {text(right)})"
            yield from (text(left), text(right))
        case ast.Compare(left=left, ops=[op], comparators=[right]):
            if type(op) in _COMPARED:
                yield f"({text(left)} {_COMPARED[type(op)]} {text(right)})"
        case ast.Call(func=ast.Attribute(value=module, attr=name), args=args):
            if name in _OTHER:
                yield f"{text(module)}.{_OTHER[name]}({', '.join(map(text, args))})"
                yield from map(text, args)
            if name == "where" and len(args) == 3:
                yield from map(text, args[1:])
            if _name(module) in _INT_MODULES:
                for i in range(len(args) - 1):  # neighbours exchanged
                    given = [*args[:i], args[i + 1], args[i], *args[i + 2 :]]
                    yield f"{text(module)}.{name}({', '.join(map(text, given))})"
        case ast.Name(id=name) if name in ints and not name.isupper() and not name.endswith("_ptr"):
            yield from (f"({name} + 1)", f"({name} - 1)")
        case ast.Constant(value=int() as value) if not isinstance(value, bool):
            yield from (f"{value + 1}",)
        case _:
            pass
