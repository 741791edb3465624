"""Removes the branches of a generated file's kernels that no launch takes.

Takes a module's statements and, by kernel, the constants that every launch gives it; returns them without branches that
these decide. The values are followed through calls: a parameter is known if all calls give it the same value, a field
of a namedtuple if its constructor got one. Names stay names; only what chooses between branches is removed.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias, cast

from attngen.emit.text.units import Unit, blocks_of, look

Value: TypeAlias = "bool | int | str | Record | Unknown"


@dataclass(frozen=True, slots=True)
class Unknown:
    """A value that differs between calls, or that only the kernel knows."""


UNKNOWN = Unknown()


@dataclass(frozen=True, slots=True)
class Record:
    """A namedtuple."""

    names: tuple[str, ...]
    values: tuple[Value, ...]


def without_dead_branches(
    units: Iterable[Unit], everywhere: Mapping[str, Value], by_kernel: Mapping[str, Mapping[str, Value]]
) -> list[Unit]:
    """`everywhere` are constants of every kernel that has a parameter of that name, `by_kernel` those of some. A kernel
    is a function that the host names; its other arguments may be anything, and so may all of a function that another
    gets as a value.
    """
    found: list[Unit] = [*units]
    codes: dict[Unit, _Code] = {}
    while True:
        edits = _Program(found, everywhere, by_kernel, codes).edits()
        if not edits:
            return found
        found = [unit.edited(_edited(unit, edits[unit])) if unit in edits else unit for unit in found]


# ---------------------------------------------------------------- which values are known


_Calls: TypeAlias = list[tuple[ast.Name, list[ast.expr]]]


@dataclass(frozen=True, slots=True)
class _Code:
    """A jit function: its parameters; by local name, what is assigned to it, None where that is not one expression; its
    calls; the names that it reads, or binds, but for those that it calls."""

    unit: Unit
    node: ast.FunctionDef
    parameters: list[str]
    bindings: dict[str, list[ast.expr | None]]
    calls: _Calls
    names: frozenset[str]


@dataclass(slots=True)
class _Function:
    """`given`: what its calls give it; empty as long as no call is known. `asked`: the names whose values are being
    found."""

    code: _Code
    given: dict[str, Value] = field(default_factory=dict[str, Value])
    asked: set[str] = field(default_factory=set[str])


_BINARY: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: lambda a, b: a // b,
    ast.Mod: operator.mod,
}
_COMPARE: dict[type[ast.cmpop], Callable[[object, object], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: cast("Callable[[object, object], bool]", operator.lt),
    ast.LtE: cast("Callable[[object, object], bool]", operator.le),
    ast.Gt: cast("Callable[[object, object], bool]", operator.gt),
    ast.GtE: cast("Callable[[object, object], bool]", operator.ge),
}


class _Program:
    """The jit functions of a module, and what is known of their parameters."""

    def __init__(
        self,
        units: list[Unit],
        everywhere: Mapping[str, Value],
        by_kernel: Mapping[str, Mapping[str, Value]],
        codes: dict[Unit, _Code],
    ):
        """`codes`: those of units that were looked at before."""
        self.functions: dict[str, _Function] = {}
        self.records: dict[str, tuple[str, ...]] = {}
        host: set[str] = set()
        for unit in units:
            match unit.node:
                case ast.FunctionDef() as node if any("jit" in ast.unparse(d) for d in node.decorator_list):
                    if unit not in codes:
                        codes[unit] = _code(unit, node)
                    self.functions[node.name] = _Function(codes[unit])
                case ast.Assign(
                    targets=[ast.Name(id=name)],
                    value=ast.Call(func=ast.Name(id="namedtuple"), args=[_, ast.Constant(value=str(fields))]),
                ):
                    self.records[name] = tuple(fields.split())
                case _:
                    host |= unit.reads.keys()
        values = frozenset[str]().union(*(function.code.names for function in self.functions.values()))
        for name, function in self.functions.items():
            constants = {**everywhere, **by_kernel.get(name, {})} if name in host else {}
            if name in host or name in values:
                unknown = dict.fromkeys(function.code.parameters, UNKNOWN)
                function.given = {**unknown, **{p: constants[p] for p in unknown if p in constants}}
        self._follow()

    def _follow(self) -> None:
        """Gives every function what its calls give it, until nothing changes: what is known only ever becomes less."""
        waiting = [name for name, f in self.functions.items() if f.given or not f.code.parameters]
        while waiting:
            function = self.functions[waiting.pop()]
            for callee, arguments in function.code.calls:
                target = self.functions.get(callee.id)
                if target is None:
                    continue
                parameters = target.code.parameters
                values = [self.value(a, function) for a in arguments]
                values += [UNKNOWN] * (len(parameters) - len(values))
                before = target.given
                target.given = {
                    p: _joined(before[p], v) if before else v for p, v in zip(parameters, values, strict=True)
                }
                if target.given != before:
                    waiting.append(callee.id)

    def value(self, e: ast.expr, function: _Function) -> Value:
        """What `e` is in every call of the function."""
        match e:
            case ast.Constant(value=bool() | int() | str() as value):
                return value
            case ast.Name(id=name):
                return self._bound(name, function)
            case ast.Attribute(value=owner, attr=name):
                record = self.value(owner, function)
                return (
                    dict(zip(record.names, record.values, strict=True)).get(name, UNKNOWN)
                    if isinstance(record, Record)
                    else UNKNOWN
                )
            case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if name in self.records:
                values = tuple(self.value(x, function) for x in arguments)
                return Record(self.records[name], values) if len(values) == len(self.records[name]) else UNKNOWN
            case ast.IfExp(test=test, body=body, orelse=orelse):
                chosen = self.value(test, function)
                return UNKNOWN if isinstance(chosen, Unknown) else self.value(body if chosen else orelse, function)
            case ast.BoolOp(op=op, values=parts):
                values = [self.value(x, function) for x in parts]
                deciding = isinstance(op, ast.Or)
                if any(v is deciding for v in values):
                    return deciding
                return not deciding if all(isinstance(v, bool) for v in values) else UNKNOWN
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                value = self.value(operand, function)
                return UNKNOWN if isinstance(value, Unknown) else not value
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
                a, b = self.value(left, function), self.value(right, function)
                if not isinstance(a, int) or not isinstance(b, int) or a < 0 or b <= 0:
                    return UNKNOWN  # a chip divides negative numbers in another way
                return _BINARY[type(op)](a, b)
            case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _COMPARE:
                a, b = self.value(left, function), self.value(right, function)
                alike = (isinstance(a, int) and isinstance(b, int)) or (isinstance(a, str) and isinstance(b, str))
                return _COMPARE[type(op)](a, b) if alike else UNKNOWN
            case _:
                return UNKNOWN

    def _bound(self, name: str, function: _Function) -> Value:
        bindings = function.code.bindings.get(name, [])
        if name in function.code.parameters:
            return UNKNOWN if bindings else function.given.get(name, UNKNOWN)
        if len(bindings) != 1 or bindings[0] is None or name in function.asked:
            return UNKNOWN
        function.asked.add(name)
        value = self.value(bindings[0], function)
        function.asked.remove(name)
        return value

    # ------------------------------------------------------------ what is removed

    def edits(self) -> dict[Unit, list[_Edit]]:
        found: dict[Unit, list[_Edit]] = {}
        for function in self.functions.values():
            code = function.code
            if function.given or not code.parameters:
                edits = self._in_block(code.node.body, function, _lines(code.unit))
                found |= {code.unit: edits} if edits else {}
        return found

    def _in_block(self, block: list[ast.stmt], function: _Function, lines: list[bytes]) -> list[_Edit]:
        found: list[_Edit] = []
        left = len(block)
        for statement in block:
            if isinstance(statement, ast.If):
                test = self.value(statement.test, function)
                if not isinstance(test, Unknown):
                    kept = _branch(statement, bool(test), lines)
                    left -= not kept.text
                    found.append(kept if left else replace(kept, text=_indent(statement) + b"pass\n"))
                    continue
            for part in ast.iter_child_nodes(statement):
                if isinstance(part, ast.expr):
                    found += self._in_expression(part, function, lines)
            for inner in blocks_of(statement):
                found += self._in_block(inner, function, lines)
        return found

    def _in_expression(self, e: ast.expr, function: _Function, lines: list[bytes]) -> list[_Edit]:
        """The first conditional expression that is decided, or `and` and `or` of which an operand is."""
        if not any(_CHOICE.search(line) for line in lines[e.lineno - 1 : e.end_lineno]):
            return []
        for node in ast.walk(e):
            match node:
                case ast.IfExp(test=test, body=body, orelse=orelse):
                    chosen = self.value(test, function)
                    if not isinstance(chosen, Unknown):
                        return [_chosen(node, body if chosen else orelse, lines)]
                case ast.BoolOp(op=op, values=parts) if isinstance(self.value(node, function), Unknown):
                    kept = [p for p in parts if not isinstance(self.value(p, function), bool)]
                    if len(kept) < len(parts):
                        word = b" and " if isinstance(op, ast.And) else b" or "
                        return [_Edit(_start(node), _end(node), word.join(_segment(p, lines) for p in kept))]
                case _:
                    pass
        return []


def _joined(a: Value, b: Value) -> Value:
    if isinstance(a, Record) and isinstance(b, Record) and a.names == b.names:
        return Record(a.names, tuple(_joined(x, y) for x, y in zip(a.values, b.values, strict=True)))
    return a if type(a) is type(b) and a == b else UNKNOWN


def _code(unit: Unit, node: ast.FunctionDef) -> _Code:
    found = look(node)
    bindings: dict[str, list[ast.expr | None]] = {}
    calls: _Calls = []
    apart: set[int] = set()  # the names that are bound to one expression, or called
    for inner in found.marked:
        match inner:
            case (
                ast.Assign(targets=[ast.Name(id=name) as target], value=value)
                | ast.AnnAssign(target=ast.Name(id=name) as target, value=value)
            ):
                apart.add(id(target))
                bindings.setdefault(name, []).append(value)
            case (
                ast.Call(func=ast.Name() as callee, args=arguments, keywords=[])
                | ast.Tuple(elts=[ast.Name() as callee, ast.Tuple(elts=arguments)])
            ) if not any(isinstance(a, ast.Starred) for a in arguments):
                # The second as `warp_specialize` gets them. A call with keywords uses the function as a value.
                apart.add(id(callee))
                calls.append((callee, arguments))
            case _:
                pass
    names = [n for n in ast.walk(node) if isinstance(n, ast.Name) and id(n) not in apart]
    for name in names:
        if isinstance(name.ctx, ast.Store):
            bindings.setdefault(name.id, []).append(None)
    return _Code(unit, node, [a.arg for a in node.args.args], bindings, calls, frozenset(n.id for n in names))


# ---------------------------------------------------------------- text


_Place: TypeAlias = tuple[int, int]
"""A line, from 0, and a column in bytes."""
_CHOICE = re.compile(rb"\b(if|and|or)\b")


def _lines(unit: Unit) -> list[bytes]:
    return [line.encode() for line in unit.text.split("\n")]  # as columns are counted


@dataclass(frozen=True, slots=True)
class _Edit:
    start: _Place
    end: _Place
    text: bytes


def _edited(unit: Unit, edits: list[_Edit]) -> str:
    lines = _lines(unit)
    whole = b"\n".join((*lines, b""))
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line) + 1)
    for edit in sorted(edits, key=lambda e: e.start, reverse=True):
        begin, end = (starts[row] + column for row, column in (edit.start, edit.end))
        whole = whole[:begin] + edit.text + whole[end:]
    return whole.decode().rstrip("\n")


def _start(node: ast.expr) -> _Place:
    return node.lineno - 1, node.col_offset


def _end(node: ast.expr) -> _Place:
    return (node.end_lineno or node.lineno) - 1, node.end_col_offset or 0


def _segment(node: ast.expr, lines: list[bytes]) -> bytes:
    """The text of an operand, in brackets if it binds less tightly than `and`."""
    (row, begin), (last, end) = _start(node), _end(node)
    text = (
        lines[row][begin:end]
        if row == last
        else b"\n".join([lines[row][begin:], *lines[row + 1 : last], lines[last][:end]])
    )
    return b"(" + text + b")" if isinstance(node, ast.BoolOp | ast.IfExp | ast.Lambda) else text


def _chosen(node: ast.IfExp, branch: ast.expr, lines: list[bytes]) -> _Edit:
    """Without the brackets of the conditional expression, if the branch needs none."""
    start, end = _start(node), _end(node)
    before, after = lines[start[0]][: start[1]], lines[end[0]][end[1] :]
    text = _segment(branch, lines)
    called = before[-2:-1].isalnum() or before[-2:-1] in (b"_", b")", b"]")
    atom = isinstance(branch, ast.Name | ast.Attribute | ast.Constant | ast.Call)
    if before.endswith(b"(") and after.startswith(b")") and not called and atom:
        start, end = (start[0], start[1] - 1), (end[0], end[1] + 1)
    return _Edit(start, end, text)


def _indent(node: ast.stmt) -> bytes:
    return b" " * node.col_offset


def _branch(node: ast.If, taken: bool, lines: list[bytes]) -> _Edit:
    """The statement's lines without the branch that is not taken. Comments of the other one stay, with one behind its
    `if` or `else` on a line of its own."""
    first, stop = node.lineno - 1, node.end_lineno or node.lineno
    head, body_stop = node.test.end_lineno or node.lineno, node.body[-1].end_lineno or node.lineno
    other = next((i for i in range(body_stop, stop) if lines[i].lstrip().startswith((b"else:", b"elif "))), stop)
    chained = lines[first].lstrip().startswith(b"elif ")  # behind an `if` that is not decided
    if taken:
        kept = [*_comment(lines[head - 1], node), *_dedented(lines[head:body_stop])]
        if chained:
            kept = [_indent(node) + b"else:", *lines[head:body_stop]]
    elif chained:
        kept = lines[other:stop]
    elif other == stop:
        kept = []
        while lines[first - 1].startswith(_indent(node) + b"#"):  # what was said of it
            first -= 1
    elif lines[other].lstrip().startswith(b"elif "):
        kept = [lines[other].replace(b"elif ", b"if ", 1), *lines[other + 1 : stop]]
    else:
        kept = [*_comment(lines[other], node), *_dedented(lines[other + 1 : stop])]
    return _Edit((first, 0), (stop, 0), b"".join(line + b"\n" for line in kept))


def _comment(line: bytes, node: ast.If) -> list[bytes]:
    _, mark, text = line.partition(b"  # ")
    return [_indent(node) + b"# " + text] if mark else []


def _dedented(lines: list[bytes]) -> list[bytes]:
    return [line.removeprefix(b"    ") for line in lines]
