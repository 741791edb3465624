"""Removes parameters and fields of a generated file's kernels that nothing reads.

Takes Python source whose own jit functions are called by position, returns the same program. A template may so hand a
function everything that some variant of it needs. Of a kernel, which the host launches by name, only constants go. A
field goes with what its constructor gets, if no function unpacks the whole namedtuple. Parameters that take several
lines are wrapped anew: first the values, then the constants.
"""

from __future__ import annotations

import ast
import textwrap
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import TypeAlias

from attngen.emit.text.long_lines import WIDTH
from attngen.emit.text.prune import below

Node: TypeAlias = ast.FunctionDef | ast.Call | ast.Tuple | ast.Constant


def without_unread_parameters(source: str, elsewhere: frozenset[tuple[str, str]]) -> str:
    """`elsewhere`: fields that functions outside of `source` read, each after the name of what they read it of."""
    return _Text(source).edited(_Program(ast.parse(source), elsewhere))


class _Program:
    """The jit functions of a module, its namedtuples, and who reads and calls what.

    `fields` are those that are read, with the name of what they are read of; `made`, by namedtuple, the names of its
    values; `fixed`, functions whose parameters stay.
    """

    def __init__(self, tree: ast.Module, elsewhere: frozenset[tuple[str, str]]) -> None:
        self.functions: dict[str, ast.FunctionDef] = {}
        self.records: dict[str, tuple[ast.Constant, list[str]]] = {}
        self.calls: dict[str, list[tuple[Node, list[ast.expr], str]]] = defaultdict(list)
        host: set[str] = set()
        for node in tree.body:
            match node:
                case ast.FunctionDef(name=name) if any("jit" in ast.unparse(d) for d in node.decorator_list):
                    self.functions[name] = node
                case ast.Assign(
                    targets=[ast.Name(id=name)],
                    value=ast.Call(
                        func=ast.Name(id="namedtuple"), args=[_, ast.Constant(value=str(fields)) as names], keywords=[]
                    ),
                ):
                    self.records[name] = names, fields.split()
                case _:
                    host |= {n.id for n in below(node) if n.__class__ is ast.Name}
        self.reads: dict[str, dict[str, int]] = {}
        self.fields = Counter(elsewhere)
        self.made: dict[str, set[str]] = defaultdict(set)
        self.dropped: set[tuple[str, int]] = set()
        self.fixed = {name for name, f in self.functions.items() if name in host or f.args.defaults}
        self.whole: set[str] = set()
        for name, function in self.functions.items():
            self._look(name, function)
        self.unpacked = {record for record, names in self.made.items() if names & self.whole} | self.whole
        self.values = set[str]().union(*self.made.values())

    def _look(self, name: str, function: ast.FunctionDef) -> None:
        """Notes what `function` reads and calls, and in `whole` what it unpacks, or makes otherwise."""
        reads = self.reads[name] = defaultdict(int)
        callees: set[int] = set()
        for statement in function.body:
            for node in below(statement):
                match node:
                    case ast.Call(func=ast.Name(id=callee) as at, args=arguments) if callee in self.functions:
                        callees.add(id(at))
                        if node.keywords or any(isinstance(a, ast.Starred) for a in arguments):
                            self.fixed.add(callee)
                        self.calls[callee].append((node, arguments, name))
                    case ast.Call(func=ast.Name(id=callee), args=arguments) if callee in self.records:
                        if node.keywords or any(isinstance(a, ast.Starred) for a in arguments):
                            self.whole.add(callee)
                        self.calls[callee].append((node, arguments, name))
                    case ast.Tuple(elts=[ast.Name(id=callee) as at, ast.Tuple(elts=arguments) as given]) if (
                        callee in self.functions
                    ):  # as `warp_specialize` gets them
                        callees.add(id(at))
                        self.calls[callee].append((given, arguments, name))
                    case ast.Assign(targets=[ast.Tuple()], value=ast.Name(id=value)):
                        self.whole.add(value)
                    case (
                        ast.Assign(targets=[ast.Name(id=target)], value=ast.Call(func=ast.Name(id=record)))
                        | ast.AnnAssign(target=ast.Name(id=target), value=ast.Call(func=ast.Name(id=record)))
                    ) if record in self.records:
                        self.made[record].add(target)
                    case ast.Name(id=read, ctx=ast.Load()):
                        reads[read] += 1
                        if read in self.functions and id(node) not in callees:
                            self.fixed.add(read)
                    case ast.Attribute():
                        self.fields[_field(node)] += 1
                    case _:
                        pass

    def _find(self) -> None:
        """Drops parameters and fields until none is left that nothing reads: each may free others."""
        while True:
            found = [x for x in self._unread() if x not in self.dropped]
            if not found:
                return
            self.dropped.update(found)
            for callee, at in found:
                for _, arguments, name in self.calls[callee]:
                    for inner in below(arguments[at]):
                        if isinstance(inner, ast.Name):
                            self.reads[name][inner.id] -= 1
                        elif isinstance(inner, ast.Attribute):
                            self.fields[_field(inner)] -= 1

    def _unread(self) -> Iterator[tuple[str, int]]:
        for name, function in self.functions.items():
            kernel = name.endswith("_kernel")
            for i, parameter in enumerate(function.args.args):
                constant = parameter.annotation is not None
                if not self.reads[name][parameter.arg] and (constant if kernel else name not in self.fixed):
                    yield name, i
        read = [key for key, count in self.fields.items() if count]
        of_anything = {field for value, field in read if value not in self.values}
        for name, (_, fields) in self.records.items():
            if name not in self.unpacked:
                known = of_anything | {field for value, field in read if value in self.made[name]}
                yield from ((name, i) for i, field in enumerate(fields) if field not in known)

    def changes(self) -> Iterator[tuple[Node, list[ast.expr] | str]]:
        """What stands in a node's brackets, or quotes, anew: expressions that stay, or text."""
        self._find()
        changed = {name for name, _ in self.dropped}
        for name in changed:
            for node, arguments, _ in self.calls[name]:
                yield node, [a for i, a in enumerate(arguments) if (name, i) not in self.dropped]
            if name in self.records:
                node, fields = self.records[name]
                kept = " ".join(field for i, field in enumerate(fields) if (name, i) not in self.dropped)
                yield node, ' "\n    "'.join(textwrap.wrap(kept, 100))
        for name, function in self.functions.items():
            several = function.body[0].lineno > function.lineno + 1
            wide = any(p.end_col_offset and p.end_col_offset > WIDTH - 2 for p in function.args.args)
            if not function.args.defaults and (name in changed or several or wide):
                kept_parameters = [p for i, p in enumerate(function.args.args) if (name, i) not in self.dropped]
                yield function, _signature(name, [ast.unparse(p) for p in kept_parameters])


def _field(node: ast.Attribute) -> tuple[str, str]:
    return node.value.id if isinstance(node.value, ast.Name) else "", node.attr


def _signature(name: str, parameters: list[str]) -> str:
    """The parameters in one line, or in as few as they take."""
    if len(f"def {name}({', '.join(parameters)}):") <= WIDTH:
        return ", ".join(parameters)
    values = [p for p in parameters if ":" not in p]
    constants = [p for p in parameters if ":" in p]
    parts = [values, constants] if parameters == [*values, *constants] else [parameters]
    texts = [(", ".join(part) + ",").replace(": ", ":\0") for part in parts if part]
    lines = [line for text in texts for line in textwrap.wrap(text, WIDTH - 4, break_on_hyphens=False)]
    return "".join(f"\n    {line}" for line in lines).replace("\0", " ") + "\n"


class _Text:
    """Source, and where the nodes of its tree stand in it. Columns count bytes."""

    def __init__(self, source: str) -> None:
        self.data = source.encode()
        self.starts = [0]
        for line in self.data.split(b"\n"):
            self.starts.append(self.starts[-1] + len(line) + 1)

    def edited(self, program: _Program) -> str:
        self.changes = sorted(((*self._between(node), kept) for node, kept in program.changes()), key=lambda c: c[:2])
        return self._part(0, len(self.data), 0)

    def _part(self, first: int, last: int, number: int) -> str:
        """The text from `first` to `last`, with the changes in it, of which none comes before that of this number."""
        found: list[str] = []
        for i in range(number, len(self.changes)):
            begin, end, kept = self.changes[i]
            if begin >= last:
                break
            if begin >= first:  # else inside of one that is done
                found.append(self.data[first:begin].decode())
                found.append(kept if isinstance(kept, str) else self._arguments(begin, kept, i + 1))
                first = end
        return "".join(found) + self.data[first:last].decode()

    def _arguments(self, begin: int, kept: list[ast.expr], number: int) -> str:
        texts = [" ".join(x.strip() for x in self._part(*self._place(e), number).split("\n")) for e in kept]
        tuple_of_one = len(kept) == 1 and self.data[begin - 3 : begin] == b", ("
        return ", ".join(texts) + ("," if tuple_of_one else "")

    def _place(self, node: ast.FunctionDef | ast.expr) -> tuple[int, int]:
        first = self.starts[node.lineno - 1] + node.col_offset
        return first, self.starts[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)

    def _between(self, node: Node) -> tuple[int, int]:
        """Where the text between the brackets, or quotes, of `node` begins and ends."""
        first, last = self._place(node)
        match node:
            case ast.FunctionDef():
                opening = self.data.index(b"(", first)
                return opening + 1, self.data.index(b"):\n", opening)
            case ast.Call(func=func):
                return self.data.index(b"(", self._place(func)[1]) + 1, last - 1
            case _:
                return first + 1, last - 1
