"""Removes the branches of a generated file's kernels that no launch takes.

Takes Python source and, by kernel, the constants that every launch returns it; returns the source without branches that
these decide. The values are followed through calls: a parameter is known if all calls give it the same value, a field
of a namedtuple if its constructor got one. Names stay names; only what chooses between branches is removed.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias, cast

from attngen.emit.text.prune import blocks_of

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
    source: str, everywhere: Mapping[str, Value], by_kernel: Mapping[str, Mapping[str, Value]]
) -> str:
    """`everywhere` are constants of every kernel that has a parameter of that name, `by_kernel` those of some. A kernel
    is a function that the host names; its other arguments may be anything, and so may all of a function that another
    gets as a value.
    """
    while True:
        lines = [line.encode() for line in source.split("\n")]  # as columns are counted
        edits = _Program(ast.parse(source), everywhere, by_kernel).edits(lines)
        if not edits:
            return source
        source = _edited(lines, edits)


# ---------------------------------------------------------------- which values are known


@dataclass(slots=True)
class _Function:
    """`given`: what its calls give it; empty as long as no call is known. `bindings`: by local name, what is assigned
    to it, None where that is not one expression. `asked`: the names whose values are being found.
    """

    node: ast.FunctionDef
    given: dict[str, Value] = field(default_factory=dict[str, Value])
    bindings: dict[str, list[ast.expr | None]] = field(default_factory=dict[str, "list[ast.expr | None]"])
    asked: set[str] = field(default_factory=set[str])

    @property
    def parameters(self) -> list[str]:
        return [a.arg for a in self.node.args.args]


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

    def __init__(self, tree: ast.Module, everywhere: Mapping[str, Value], by_kernel: Mapping[str, Mapping[str, Value]]):
        self.functions: dict[str, _Function] = {}
        self.records: dict[str, tuple[str, ...]] = {}
        host: set[str] = set()
        for node in tree.body:
            match node:
                case ast.FunctionDef() if any("jit" in ast.unparse(d) for d in node.decorator_list):
                    self.functions[node.name] = _Function(node, bindings=_bindings(node))
                case ast.Assign(
                    targets=[ast.Name(id=name)],
                    value=ast.Call(func=ast.Name(id="namedtuple"), args=[_, ast.Constant(value=str(fields))]),
                ):
                    self.records[name] = tuple(fields.split())
                case _:
                    host |= {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
        values: set[str] = set()
        for function in self.functions.values():
            called = {id(callee) for callee, _ in self._calls(function.node)}
            values |= {n.id for n in ast.walk(function.node) if isinstance(n, ast.Name) and id(n) not in called}
        for name, function in self.functions.items():
            constants = {**everywhere, **by_kernel.get(name, {})} if name in host else {}
            if name in host or name in values:
                unknown = dict.fromkeys(function.parameters, UNKNOWN)
                function.given = {**unknown, **{p: constants[p] for p in unknown if p in constants}}
        self._follow()

    def _follow(self) -> None:
        """Gives every function what its calls give it, until nothing changes: what is known only ever becomes less."""
        waiting = [name for name, f in self.functions.items() if f.given or not f.parameters]
        while waiting:
            function = self.functions[waiting.pop()]
            for callee, arguments in self._calls(function.node):
                target = self.functions[callee.id]
                values = [self.value(a, function) for a in arguments]
                values += [UNKNOWN] * (len(target.parameters) - len(values))
                before = target.given
                target.given = {
                    p: _joined(before[p], v) if before else v for p, v in zip(target.parameters, values, strict=True)
                }
                if target.given != before:
                    waiting.append(callee.id)

    def _calls(self, function: ast.FunctionDef) -> Iterator[tuple[ast.Name, list[ast.expr]]]:
        """The calls of the module's functions, and the pairs (function, arguments) that `warp_specialize` gets. A call
        with keywords counts as a use of the function as a value."""
        for node in ast.walk(function):
            match node:
                case ast.Call(func=ast.Name(id=name) as callee, args=arguments, keywords=[]):
                    pass
                case ast.Tuple(elts=[ast.Name(id=name) as callee, ast.Tuple(elts=arguments)]):
                    pass
                case _:
                    continue
            if name in self.functions and not any(isinstance(a, ast.Starred) for a in arguments):
                yield callee, arguments

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
        bindings = function.bindings.get(name, [])
        if name in function.parameters:
            return UNKNOWN if bindings else function.given.get(name, UNKNOWN)
        if len(bindings) != 1 or bindings[0] is None or name in function.asked:
            return UNKNOWN
        function.asked.add(name)
        value = self.value(bindings[0], function)
        function.asked.remove(name)
        return value

    # ------------------------------------------------------------ what is removed

    def edits(self, lines: list[bytes]) -> list[_Edit]:
        found: list[_Edit] = []
        for function in self.functions.values():
            if function.given or not function.parameters:
                found += self._in_block(function.node.body, function, lines)
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


def _bindings(function: ast.FunctionDef) -> dict[str, list[ast.expr | None]]:
    """By local name, what is assigned to it; None where that is not one expression."""
    found: dict[str, list[ast.expr | None]] = {}
    whole: set[int] = set()
    for node in ast.walk(function):
        match node:
            case ast.Assign(targets=[ast.Name(id=name) as target], value=value):
                pass
            case ast.AnnAssign(target=ast.Name(id=name) as target, value=value):
                pass
            case _:
                continue
        whole.add(id(target))
        found.setdefault(name, []).append(value)
    for node in ast.walk(function):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and id(node) not in whole:
            found.setdefault(node.id, []).append(None)
    return found


# ---------------------------------------------------------------- text


_Place: TypeAlias = tuple[int, int]
"""A line, from 0, and a column in bytes."""


@dataclass(frozen=True, slots=True)
class _Edit:
    start: _Place
    end: _Place
    text: bytes


def _edited(lines: list[bytes], edits: list[_Edit]) -> str:
    whole = b"\n".join(lines)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line) + 1)
    for edit in sorted(edits, key=lambda e: e.start, reverse=True):
        begin, end = (starts[row] + column for row, column in (edit.start, edit.end))
        whole = whole[:begin] + edit.text + whole[end:]
    return whole.decode()


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
