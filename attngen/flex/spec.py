"""A spec of what functions of one pair compute: its text, with the names that the functions have, and its params.

Takes a score_mod, a mask_mod, and sizes if they are known; returns the text of an .attn file, and the tensors that the
functions captured by the names of the params.
"""

from __future__ import annotations

import ast
import functools
import inspect
import linecache
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attngen import api
from attngen.analyse.outline import is_free
from attngen.errors import Source, UsageError
from attngen.flex.enclosed import Modification, enclosed
from attngen.flex.nodes import INDEX, SIGN, Kind, Node, Text, name, number, printed
from attngen.flex.operations import NoCounterpart, as_node
from attngen.flex.tracing import Captured, Reading

_DTYPES = {
    torch.bool: "bool", torch.uint8: "u8", torch.int8: "i8", torch.int16: "i16", torch.int32: "int", torch.int64: "int",
    torch.float16: "f16", torch.bfloat16: "bf16", torch.float32: "f32", torch.float64: "f32",
}  # fmt: skip
_SIZES = {"b": "B", "h": "Hq", "q": "Sq", "k": "Sk"}
_LONG = 40
"""Characters of an expression that is written apart where the function gives it a name."""
_SMALL = 3
"""Numbers below it, and their negatives, have no name of their own: a count, a side, a factor."""


@dataclass(frozen=True, slots=True)
class Read:
    """`text` of the spec; `params`: what the functions captured, by name. `lasting`: whether no value of a captured
    tensor stands in the text."""

    text: str
    params: dict[str, Tensor]
    lasting: bool = True


def read(
    score_mod: Modification | None,
    mask_mod: Modification | None,
    attention: str,
    names: Mapping[str, Any],
    sizes: Mapping[str, int] | None = None,
) -> Read:
    """`names`: of captured tensors and numbers, where they shall have others than the functions' own. `sizes`: B, Hq,
    Sq and Sk, where they are known: an axis that is longer than its indices keeps its own length.

    Raises `UsageError`, with the line, for what the language lacks.
    """
    kinds = (score_mod, "score_mod", 5), (mask_mod, "mask_mod", 4)
    for (f, kind, count), (_, other, others) in zip(kinds, reversed(kinds), strict=True):
        if f is not None and not _takes(f, count):
            called = "(score, b, h, q_idx, kv_idx)" if count == 5 else "(b, h, q_idx, kv_idx)"
            fix = f"; it may be a {other}: give it as `{other}=`" if _takes(f, others) else ""
            raise UsageError(f"{_place(f)}{kind} is called with {count} arguments, {called}, and takes others{fix}")
    reading = Reading()
    given = {text: reading.index(text) for text in _SIZES}
    score = mask = None
    with reading:
        if score_mod is not None:
            product = Node("*", "float", (name("qk", "float"), name("scale", "float")))
            found = score_mod(reading.give(product, torch.float32), *given.values())
            score = _result(reading, score_mod, found, "float")
        if mask_mod is not None:
            mask = _result(reading, mask_mod, mask_mod(*given.values()), "bool")
    score, mask = _without_infinity(score, mask)
    own = _names([score_mod, mask_mod], names)
    return _Writing(attention, reading, score, mask, own, sizes or {}).read()


def _takes(f: Modification, count: int) -> bool:
    try:
        inspect.signature(f).bind(*range(count))
    except TypeError:
        return False
    except ValueError:  # it has no signature
        return True
    return True


def _place(f: Modification) -> str:
    code = getattr(f, "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}: " if code is not None else ""


def _result(reading: Reading, f: Modification, found: Any, kind: Kind) -> Node:
    place = _place(f)
    of = "mask_mod" if kind == "bool" else "score_mod"
    if not isinstance(found, Tensor | bool | int | float):
        raise UsageError(f"{place}{of} gives a {type(found).__name__}, not a tensor without a dimension")
    try:
        result = as_node(reading.node(found))
    except NoCounterpart as why:
        raise UsageError(f"{place}the result of {of}: {why}") from None
    if kind == "bool" and result.kind != "bool":
        raise UsageError(f"{place}mask_mod gives numbers, not bools: compare them, as in `x != 0`")
    if kind == "float" and result.kind == "bool":
        raise UsageError(f"{place}score_mod gives bools, not a score: give them as mask_mod")
    return result


def _without_infinity(score: Node | None, mask: Node | None) -> tuple[Node | None, Node | None]:
    """A score that is -inf where a condition fails is a mask."""
    while score is not None and score.word == "choice":
        condition, yes, no = score.operands
        if _reads(condition, "qk"):
            break
        minus = [x.is_number and x.value == -float("inf") for x in (yes, no)]
        if minus not in ([True, False], [False, True]):
            break
        allowed = Node("not", "bool", (condition,)) if minus[0] else condition
        mask = allowed if mask is None else Node("and", "bool", (mask, allowed))
        score = no if minus[0] else yes
    return score, mask


def _reads(node: Node, text: str) -> bool:
    return node.name == text or any(_reads(x, text) for x in node.operands)


# ---------------------------------------------------------------- names


@dataclass(frozen=True, slots=True)
class _Names:
    """The names of what functions captured: of tensors by identity, of numbers by type and value."""

    tensors: dict[int, str]
    numbers: dict[tuple[type, float | int], set[str]]


def _names(functions: list[Modification | None], given: Mapping[str, Any]) -> _Names:
    """The functions' own names, and those that were asked for."""
    own = enclosed(functions)
    found = _Names({}, {})
    for text, x in own.tensors:
        found.tensors.setdefault(id(x), text)
    for text, x in own.numbers:
        found.numbers.setdefault((type(x), x), set()).add(text)
    for text, x in given.items():
        if isinstance(x, Tensor):
            found.tensors[id(x)] = text
        else:
            found.numbers[type(x), x] = {text}
    return found


@functools.cache
def _assigned(file: str) -> dict[int, str]:
    """By line of a file, the name that the statement there is assigned to."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:
        return {}
    found: dict[int, str] = {}
    for statement in ast.walk(tree):
        match statement:
            case ast.Assign(targets=[ast.Name(id=text)], lineno=first, end_lineno=last):
                found.update(dict.fromkeys(range(first, (last or first) + 1), text))
            case _:
                pass
    return found


# ---------------------------------------------------------------- text


class _Writing:
    """One spec while it is written: what has which name, and what stands above the score and the mask."""

    def __init__(
        self,
        attention: str,
        reading: Reading,
        score: Node | None,
        mask: Node | None,
        names: _Names,
        sizes: Mapping[str, int],
    ) -> None:
        self.attention, self.reading, self.score, self.mask, self.sizes = attention, reading, score, mask, sizes
        self.taken: set[str] = set()
        self.params: dict[str, Captured] = {}
        self.text_of: dict[str, str] = {}
        for identity, captured in reading.captured.items():
            text = self._free(names.tensors.get(identity, "captured"))
            self.params[text] = captured
            self.text_of[f"#{identity}"] = text
        self.numbers = {x: next(iter(texts)) for x, texts in names.numbers.items() if len(texts) == 1}
        self.consts: dict[tuple[type, float | int], str] = {}
        self.lets: dict[Node, str] = {}
        self.lines: list[str] = []

    def _free(self, wanted: str) -> str:
        text = re.sub(r"\W", "_", wanted, flags=re.ASCII).strip("_") or "captured"
        text = text if text[0].isalpha() else f"x{text}"
        count = 1
        found = text
        while found in self.taken or not is_free(found):
            count += 1
            found = f"{text}_{count}"
        self.taken.add(found)
        return found

    def read(self) -> Read:
        roots = [x for x in (self.score, self.mask) if x is not None]
        self._name_shared(roots)
        statements: list[str] = []
        if self.score is not None:
            statements.append(f"score = {self._print(self.score)}")
        if self.mask is not None and not (self.mask.is_number and self.mask.value):
            statements.append(f"mask = {self._print(self.mask)}")
        consts = [
            f"const {text} = {printed(number(value), lambda _: None)[0]}" for (_, value), text in self.consts.items()
        ]
        params = [f"param {text}: {self._type(captured)}" for text, captured in self.params.items()]
        blocks = [[f"attention {self.attention}"], consts, params, self.lines, statements]
        text = "\n\n".join("\n".join(block) for block in blocks if block) + "\n"
        formatted = api.format_source(Source(text))
        params = {text: captured.tensor for text, captured in self.params.items()}
        return Read(formatted, params, not self.reading.asked)

    def _name_shared(self, roots: list[Node]) -> None:
        """What more than one operation reads is written once, above, under the name that it has in the function."""
        uses: dict[Node, int] = {}
        order: list[Node] = []

        def visit(node: Node) -> None:
            uses[node] = uses.get(node, 0) + 1
            if uses[node] == 1:
                for operand in node.operands:
                    visit(operand)
                order.append(node)

        for root in roots:
            visit(root)
        named = {node: text for (file, line), node in self.reading.last.items() if (text := _assigned(file).get(line))}
        for node in order:
            if node.word in ("name", "number") or node in roots:
                continue
            text = self._print(node)
            shared = uses[node] > 1 and (len(text) > 12 or node in named)
            if shared or (node in named and len(text) > _LONG):
                self.lets[node] = self._free(named.get(node, "shared"))
                self.lines.append(f"let {self.lets[node]} = {text}")

    def _print(self, node: Node) -> str:
        return printed(node, self._said)[0]

    def _said(self, node: Node) -> Text | None:
        if node in self.lets:
            return self.lets[node], INDEX
        if node.word == "name" and node.name in self.text_of:
            return self.text_of[node.name], INDEX
        if node.is_number and abs(node.value) >= _SMALL:
            positive = self._const(node.value)
            negative = None if positive is not None else self._const(-node.value)
            if positive is not None:
                return positive, INDEX
            return None if negative is None else (f"-{negative}", SIGN)
        return None

    def _const(self, value: float | int) -> str | None:
        """The name of the const with this value, if the functions have one."""
        key = (type(value), value)
        if key in self.numbers and key not in self.consts:
            self.consts[key] = self._free(self.numbers[key])
        return self.consts.get(key)

    def _type(self, captured: Captured) -> str:
        tensor = captured.tensor
        dtype = "f32" if tensor.dtype.is_floating_point and not tensor.ndim else _DTYPES[tensor.dtype]
        dtype = "int" if not tensor.ndim and not tensor.dtype.is_floating_point and dtype != "bool" else dtype
        dims = [self._dim(tensor.shape[axis], read) for axis, read in enumerate(captured.axes)]
        fixed = " fixed" if tensor.dtype.is_floating_point and not tensor.requires_grad else ""
        return dtype + (f"[{', '.join(dims)}]" if dims else "") + fixed

    def _dim(self, length: int, indices: list[Node | None]) -> str:
        """The size of what an axis is indexed with, or its own length."""
        read = {i.name if i is not None and i.word == "name" else "" for i in indices}
        for index in ("k", "q", "h", "b"):
            others = {"q", "k"} if index == "k" else {index}
            if index in read and read - {""} <= others and self.sizes.get(_SIZES[index], length) == length:
                return _SIZES[index]
        return str(length)
