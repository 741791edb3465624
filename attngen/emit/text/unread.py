"""Removes parameters and fields of a generated file's kernels that nothing reads.

Takes the parts of a module whose own jit functions are called by position, and changes them. Of a kernel, which the
host launches by name, only constants go. A field goes with what its constructor gets, if no function unpacks the whole
namedtuple. Parameters that take several lines are wrapped anew: first the values, then the constants.
"""

from __future__ import annotations

import ast
import textwrap
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from attngen.emit.text.long_lines import WIDTH
from attngen.emit.text.parts import Part


def without_unread_parameters(parts: Sequence[Part], elsewhere: frozenset[tuple[str, str]]) -> list[Part]:
    """`elsewhere`: fields that functions outside of the module read, each after the name of what they read it of.
    Gives the functions that read less since."""
    return _Program(parts, elsewhere).changed()


class _Program:
    """The jit functions of a module, its namedtuples, and who calls what.

    `fields` are those that are read, with the name of what they are read of; `made`, by namedtuple, the names of its
    values; `fixed`, functions whose parameters stay.
    """

    def __init__(self, parts: Sequence[Part], elsewhere: frozenset[tuple[str, str]]) -> None:
        self.functions: dict[str, tuple[Part, ast.FunctionDef]] = {}
        self.records: dict[str, tuple[Part, ast.Constant, list[str]]] = {}
        self.calls: dict[str, list[tuple[Part, ast.Call | ast.Tuple, list[ast.expr]]]] = defaultdict(list)
        self.fields = Counter(elsewhere)
        host: Counter[str] = Counter()
        for part in parts:
            match part.unit.node:
                case ast.FunctionDef(name=name) as node if any("jit" in ast.unparse(d) for d in node.decorator_list):
                    self.functions[name] = part, node
                    self.fields.update(part.found.fields)
                case ast.Assign(
                    targets=[ast.Name(id=name)],
                    value=ast.Call(
                        func=ast.Name(id="namedtuple"), args=[_, ast.Constant(value=str(fields)) as names], keywords=[]
                    ),
                ):
                    self.records[name] = part, names, fields.split()
                case _:
                    host.update(part.found.reads)
        self.made: dict[str, set[str]] = defaultdict(set)
        self.dropped: set[tuple[str, int]] = set()
        self.fixed = {name for name, (_, f) in self.functions.items() if host[name] or f.args.defaults}
        self.whole: set[str] = set()
        for part, _ in self.functions.values():
            self._look(part)
        self.unpacked = {record for record, names in self.made.items() if names & self.whole} | self.whole
        self.values = set[str]().union(*self.made.values())

    def _look(self, part: Part) -> None:
        """Notes what a function calls, and in `whole` what it unpacks, or makes otherwise."""
        called: Counter[str] = Counter()
        for node in part.marked():
            match node:
                case ast.Call(func=ast.Name(id=callee), args=arguments):
                    irregular = node.keywords or any(isinstance(a, ast.Starred) for a in arguments)
                    if callee in self.functions:
                        called[callee] += 1
                        self.fixed |= {callee} if irregular else set()
                    elif callee in self.records:
                        self.whole |= {callee} if irregular else set()
                    else:
                        continue
                    self.calls[callee].append((part, node, arguments))
                case ast.Tuple(elts=[ast.Name(id=callee), ast.Tuple(elts=arguments) as given]) if (
                    callee in self.functions
                ):  # as `warp_specialize` gets them
                    called[callee] += 1
                    self.calls[callee].append((part, given, arguments))
                case ast.Assign(targets=[ast.Tuple()], value=ast.Name(id=value)):
                    self.whole.add(value)
                case (
                    ast.Assign(targets=[ast.Name(id=target)], value=ast.Call(func=ast.Name(id=record)))
                    | ast.AnnAssign(target=ast.Name(id=target), value=ast.Call(func=ast.Name(id=record)))
                ) if record in self.records:
                    self.made[record].add(target)
                case _:
                    pass
        self.fixed |= {
            name for name, count in part.found.reads.items() if name in self.functions and count > called[name]
        }

    def changed(self) -> list[Part]:
        """Drops parameters and fields until none is left that nothing reads: each may free others."""
        found: dict[Part, None] = {}
        while unread := [x for x in self._unread() if x not in self.dropped]:
            self.dropped.update(unread)
            for callee, at in unread:
                for part, node, arguments in self.calls[callee]:
                    if not part.is_gone(node):
                        self.fields.subtract(part.forget(arguments[at]).fields)
                        found[part] = None
        self._put()
        return [*found]

    def _unread(self) -> Iterator[tuple[str, int]]:
        for name, (part, function) in self.functions.items():
            kernel = name.endswith("_kernel")
            for i, parameter in enumerate(function.args.args):
                constant = parameter.annotation is not None
                if not part.found.reads[parameter.arg] and (constant if kernel else name not in self.fixed):
                    yield name, i
        read = [key for key, count in self.fields.items() if count]
        of_anything = {field for value, field in read if value not in self.values}
        for name, (_, _, fields) in self.records.items():
            if name not in self.unpacked:
                known = of_anything | {field for value, field in read if value in self.made[name]}
                yield from ((name, i) for i, field in enumerate(fields) if field not in known)

    def _put(self) -> None:
        """Changes what stands in the brackets of functions and calls, and in the quotes of namedtuples."""
        changed = {name for name, _ in self.dropped}
        for name in changed:
            for part, node, arguments in self.calls[name]:
                part.put(node, [a for i, a in enumerate(arguments) if (name, i) not in self.dropped])
            if name in self.records:
                part, quoted, fields = self.records[name]
                kept = " ".join(field for i, field in enumerate(fields) if (name, i) not in self.dropped)
                part.put(quoted, ' "\n    "'.join(textwrap.wrap(kept, 100)))
        for name, (part, function) in self.functions.items():
            several = function.body[0].lineno > function.lineno + 1
            wide = any(p.end_col_offset and p.end_col_offset > WIDTH - 2 for p in function.args.args)
            if not function.args.defaults and (name in changed or several or wide):
                kept_parameters = [p for i, p in enumerate(function.args.args) if (name, i) not in self.dropped]
                part.put(function, _signature(name, [ast.unparse(p) for p in kept_parameters]))


def _signature(name: str, parameters: list[str]) -> str:
    """The parameters in one line, or in as few as they take."""
    if len(f"def {name}({', '.join(parameters)}):") <= WIDTH:
        return ", ".join(parameters)
    values = [p for p in parameters if ":" not in p]
    constants = [p for p in parameters if ":" in p]
    groups = [values, constants] if parameters == [*values, *constants] else [parameters]
    texts = [(", ".join(group) + ",").replace(": ", ":\0") for group in groups if group]
    lines = [line for text in texts for line in textwrap.wrap(text, WIDTH - 4, break_on_hyphens=False)]
    return "".join(f"\n    {line}" for line in lines).replace("\0", " ") + "\n"
