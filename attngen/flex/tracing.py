"""Reads what FlexAttention's functions of one pair compute, by calling them once.

Takes a score_mod or a mask_mod; returns the node of its result, and what it captured. Its indices are tensors without a
dimension, as FlexAttention gives them: each operation of PyTorch that is done to them comes by here, and becomes a
node. What a function does to captured tensors alone is done.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
import torch.utils._pytree as pytree
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from attngen.errors import UsageError
from attngen.flex.nodes import Kind, Node, name, number
from attngen.flex.operations import ELSEWHERE, OPERATIONS, SAME, NoCounterpart, as_node, converted

_OURS = (str(Path(torch.__file__).parent), str(Path(__file__).parent), contextlib.__file__, "<string>")
_LOSSY = (torch.float16, torch.bfloat16)
_ASKS = ("_local_scalar_dense", "is_nonzero", "item")
_VALUE = (
    "Python asks for the value of what an index decides, by `if`, `and`, `or`, `not`, int() or float(): "
    "write torch.where, &, | and ~"
)
_ASKED = ("tolist", "numpy", "__array__", "tensor", "as_tensor")
"""What gives values past the dispatcher."""
_NARROW = (torch.int8, torch.uint8, torch.int16)
INDICES = ("b", "h", "q", "k")


@dataclass(eq=False, slots=True)
class Captured:
    """A tensor that a function reads. `axes`: by axis, the indices that it is read at, None for all of it."""

    tensor: Tensor
    axes: list[list[Node | None]] = field(default_factory=list[list[Node | None]])


@dataclass(frozen=True, eq=False, slots=True)
class Partly:
    """A captured tensor of which some axes have an index; None for those that have none yet."""

    captured: Captured
    indices: tuple[Node | None, ...]


@dataclass(frozen=True, eq=False, slots=True)
class Compared:
    """The elements of a captured list, each compared to a value."""

    listed: Partly
    value: Node


Known = Node | Partly | Compared


def kind_of(dtype: torch.dtype) -> Kind:
    return "bool" if dtype == torch.bool else "float" if dtype.is_floating_point else "int"


class Reading:
    """What is known of tensors while functions are called. `captured`: those that they read, in this order."""

    def __init__(self) -> None:
        self.captured: dict[int, Captured] = {}
        self.known: dict[int, Known] = {}
        self.kept: list[Any] = []  # else another tensor may get the identity of one that is gone
        self.made: set[int] = set()  # tensors that a function made of nothing that it captured
        self.views: set[int] = set()  # tensors that share what they stand for with another
        self.grad = torch.is_grad_enabled()
        self.asked = False
        """Whether a function asked for the values of a captured tensor."""
        self.last: dict[tuple[str, int], Node] = {}
        """By line, what was computed there last."""

    def index(self, text: str, dtype: torch.dtype = torch.int32) -> Tensor:
        return self.give(name(text, kind_of(dtype)), dtype)

    def give(self, found: Known, dtype: torch.dtype, shape: Sequence[int] = ()) -> Tensor:
        """A tensor that stands for what was found."""
        tensor = torch.ones(tuple(shape), dtype=dtype)
        self.known[id(tensor)] = found
        self.kept.append(tensor)
        return tensor

    def node(self, x: Any) -> Any:
        """What is known of an operand: a node, a number, or the param that a captured number becomes."""
        if not isinstance(x, Tensor):
            return x
        found = self.known.get(id(x))
        if isinstance(found, Node):
            return found
        if found is not None:
            raise NoCounterpart("a row of a captured tensor is read as a whole: give every axis an index")
        if x.ndim:
            raise NoCounterpart("a captured tensor is read as a whole: give every axis an index")
        if id(x) in self.made and not x.requires_grad:
            value = x.item()
            return number(float(str(np.float32(value))) if x.dtype == torch.float32 else value)
        return self.read(Partly(self.capture(x), ()))

    def capture(self, tensor: Tensor) -> Captured:
        found = self.captured.get(id(tensor))
        if found is None:
            if tensor.is_complex() or tensor.is_quantized:
                raise NoCounterpart(f"a captured tensor has the dtype {tensor.dtype}")
            found = self.captured[id(tensor)] = Captured(tensor, [[] for _ in tensor.shape])
            self.kept.append(tensor)
        return found

    def read(self, partly: Partly) -> Node:
        """An element; its param's name is put in later, by the identity of the tensor."""
        for axis, index in zip(partly.captured.axes, partly.indices, strict=True):
            axis.append(index)
        kind = kind_of(partly.captured.tensor.dtype)
        indices = tuple(i for i in partly.indices if i is not None)
        found = Node("read" if indices else "name", kind, indices, name=f"#{id(partly.captured.tensor)}", line=_line())
        self.last[found.line] = found
        return found

    def __enter__(self) -> None:
        self._modes = (_Indexing(self), _Operations(self))
        for mode in self._modes:
            mode.__enter__()

    def __exit__(self, *error: Any) -> None:
        for mode in reversed(self._modes):
            mode.__exit__(*error)  # pyright: ignore[reportUnknownMemberType]


class _Indexing(TorchFunctionMode):
    """Subscripts: PyTorch would take a tensor without a dimension for a number, and ask for it."""

    def __init__(self, reading: Reading) -> None:
        super().__init__()
        self.reading = reading

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        reading = self.reading
        tensors = [x for x in _leaves((args, kwargs)) if isinstance(x, Tensor)]
        traced = any(id(x) in reading.known for x in tensors)
        called = getattr(func, "__name__", "")
        if called in _ASKED and traced:
            raise _refused(_VALUE, "")
        if called in (*_ASKED, "equal", "allclose") and any(id(x) not in reading.made for x in tensors):
            reading.asked = True
        if traced and reading.grad and not torch.is_grad_enabled() and not _in_own_function():
            raise _refused("gradients are switched off here, which kernels cannot do for a part of a score", called)
        if func is Tensor.__getitem__:
            items = cast("tuple[Any, ...]", args[1] if isinstance(args[1], tuple) else (args[1],))
            if isinstance(reading.known.get(id(args[0])), Partly) or any(id(i) in reading.known for i in items):
                with torch._C.DisableTorchFunction():  # pyright: ignore[reportPrivateUsage]
                    return _at_line(partial(_indexed, reading, args[0], items), "indexing")
        if not traced:
            return func(*args, **(kwargs or {}))
        with torch.no_grad():  # else autograd detaches what it keeps
            return func(*args, **(kwargs or {}))


class _Operations(TorchDispatchMode):
    def __init__(self, reading: Reading) -> None:
        super().__init__()  # pyright: ignore[reportUnknownMemberType]
        self.reading = reading

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        named = dict(kwargs or {})
        operation = func.overloadpacket.__name__
        reading = self.reading
        tensors = [x for x in _leaves((args, named)) if isinstance(x, Tensor)]
        made = operation.endswith("_like") or operation.startswith("new_")  # of a shape and a dtype alone
        if made or not any(id(x) in reading.known for x in tensors):
            return self._done(func, args, named, tensors, operation)
        return _at_line(partial(_translated, reading, func, operation, args, named), operation)

    def _done(self, func: Any, args: Any, named: dict[str, Any], tensors: list[Tensor], operation: str) -> Any:
        reading = self.reading
        if torch.Tag.nondeterministic_seeded in func.tags:
            raise _refused("it draws random numbers: dropout is a statement of its own", operation)
        values = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
        if not values.isdisjoint(func.tags) and any(id(x) not in reading.made for x in tensors):
            reading.asked = True
        found = func(*args, **named)
        if _is_in_place(operation) and any(id(x) not in reading.made for x in tensors):
            reading.made.discard(id(args[0]))  # it holds what was captured
        fresh = operation == "lift_fresh" or all(id(x) in reading.made or id(x) in reading.known for x in tensors)
        for x in _leaves(found):
            if isinstance(x, Tensor) and id(x) not in {id(t) for t in tensors}:
                reading.kept.append(x)
                if fresh:
                    reading.made.add(id(x))
        return found


def _leaves(x: Any) -> list[Any]:
    return pytree.tree_leaves(x)


def _translated(reading: Reading, func: Any, operation: str, args: Sequence[Any], named: dict[str, Any]) -> Any:
    match operation:
        case "dot" | "mv" | "mm" | "sum":
            raise NoCounterpart("rows of captured tensors are multiplied: append them to query and key instead")
        case _ if operation in _ASKS:
            raise NoCounterpart(_VALUE)
        case "index" if isinstance(args[0], Tensor):
            return _indexed(reading, args[0], tuple(slice(None) if i is None else i for i in args[1]))
        case "eq" if (listed := next((x for x in args if _is_row(reading, x)), None)) is not None:
            other = as_node(reading.node(args[0] if args[1] is listed else args[1]))
            return reading.give(Compared(_row(reading, listed), other), torch.bool, listed.shape)
        case "any" if isinstance(found := reading.known.get(id(args[0])), Compared):
            if any(named.values()) or len(args) > 2:
                raise NoCounterpart("it is asked of the last axis, and gives no axis")
            return reading.give(_member(reading, found.listed, found.value), torch.bool)
        case "isin" if isinstance(args[1], Tensor):
            member = _member(reading, _row(reading, args[1]), as_node(reading.node(args[0])))
            inverted = named.get("invert", False)
            return reading.give(Node("not", "bool", (member,)) if inverted else member, torch.bool)
        case "_to_copy":
            dtype = named.get("dtype") or args[0].dtype
            if dtype in _LOSSY and dtype != args[0].dtype:
                raise NoCounterpart(f"a value is rounded to {dtype}: kernels compute in float32; leave the cast away")
            if dtype in _NARROW and dtype != args[0].dtype:
                raise NoCounterpart(f"a value is cut to {dtype}: leave the cast away")
            return reading.give(_told(reading, converted(reading.node(args[0]), kind_of(dtype))), dtype)
        case _:
            pass
    in_place = _is_in_place(operation)
    if func.namespace in ("aten", "prims"):
        counterpart = OPERATIONS.get(operation.removesuffix("_") if in_place else operation)
    else:
        counterpart = ELSEWHERE.get((func.namespace, operation))
    if counterpart is None:
        raise NoCounterpart("the language has no counterpart of it")
    target = id(args[0])
    if in_place and target not in reading.known and target not in reading.made:
        raise NoCounterpart("it writes into a captured tensor")
    if in_place and target in reading.views:
        raise NoCounterpart("it writes into a tensor that shares its elements with another")
    given = [reading.node(x) for x in args]
    try:
        node = counterpart(*given, **{n: reading.node(x) for n, x in named.items()})
    except TypeError:
        raise NoCounterpart("it is called with an argument that has no counterpart") from None
    like: Any = _leaves(func(*_on_meta(args), **_on_meta(named)))[0]
    if like.numel() != 1:
        raise NoCounterpart("its result has a dimension: a function of one pair computes with numbers")
    if like.dtype in _NARROW and operation not in SAME:
        raise NoCounterpart(f"it computes in {like.dtype}, whose ends the language does not have: write .int() first")
    if node.kind != kind_of(like.dtype):
        node = converted(node, kind_of(like.dtype))
    node = _told(reading, node)
    if in_place:
        reading.known[target] = node
        return args[0]
    found = reading.give(node, like.dtype, like.shape)
    if operation in SAME:
        reading.views |= {target, id(found)}
    return (found, found) if operation == "log_sigmoid_forward" else found


def _is_in_place(operation: str) -> bool:
    return operation.endswith("_") and not operation.endswith("__")


def _is_row(reading: Reading, x: Any) -> bool:
    """Whether it is a row of a captured tensor, or a captured list of ints as a whole."""
    known = reading.known.get(id(x))
    whole = known is None and isinstance(x, Tensor) and x.ndim == 1 and not x.dtype.is_floating_point
    return isinstance(known, Partly) or whole


def _row(reading: Reading, x: Tensor) -> Partly:
    known = reading.known.get(id(x))
    if isinstance(known, Partly):
        return known
    if known is not None or not x.ndim:
        raise NoCounterpart("a list is a row of a captured tensor")
    return Partly(reading.capture(x), (None,) * x.ndim)


def _told(reading: Reading, node: Node) -> Node:
    """The node, with the line that computes it."""
    found = Node(node.word, node.kind, node.operands, node.name, node.value, _line())
    reading.last[found.line] = found
    return found


def _on_meta(x: Any) -> Any:
    """The same with tensors that have no elements."""
    return pytree.tree_map_only(Tensor, lambda t: torch.empty(t.shape, dtype=t.dtype, device="meta"), x)


# ---------------------------------------------------------------- elements of captured tensors


def _indexed(reading: Reading, tensor: Tensor, items: tuple[Any, ...]) -> Tensor:
    before = reading.known.get(id(tensor))
    if isinstance(before, Node | Compared):
        raise NoCounterpart("what is computed of one pair has no axis")
    partly = before or Partly(reading.capture(tensor), (None,) * tensor.ndim)
    indices = list(partly.indices)
    open_axes = [i for i, index in enumerate(indices) if index is None]
    if Ellipsis in [i if i is Ellipsis else 0 for i in items]:
        at = next(n for n, i in enumerate(items) if i is Ellipsis)
        items = (*items[:at], *[slice(None)] * (len(open_axes) - len(items) + 1), *items[at + 1 :])
    if len(items) > len(open_axes):
        raise NoCounterpart(f"a tensor with {len(open_axes)} axes is given {len(items)} indices")
    for axis, item in zip(open_axes, items, strict=False):
        if isinstance(item, slice) and item == slice(None):
            continue
        if item is None or isinstance(item, slice):
            raise NoCounterpart("an axis has an index, or `:` for all of it")
        index = reading.node(item)
        if isinstance(index, bool) or (isinstance(index, Node) and index.kind != "int"):
            raise NoCounterpart("an index is an int")
        if isinstance(index, int):
            index = number(index + partly.captured.tensor.shape[axis] if index < 0 else index)
        indices[axis] = index
    found = Partly(partly.captured, tuple(indices))
    rest = [n for n, index in zip(partly.captured.tensor.shape, indices, strict=True) if index is None]
    return reading.give(found if rest else reading.read(found), partly.captured.tensor.dtype, rest)


def _member(reading: Reading, listed: Partly, value: Node) -> Node:
    """`value in listed[…]`: the list is along the last axis, and holds ints."""
    *first, last = listed.indices
    if last is not None or None in first:
        raise NoCounterpart("a list is a row of a captured tensor: all axes but the last have an index")
    if listed.captured.tensor.dtype.is_floating_point or value.kind != "int":
        raise NoCounterpart("a list holds ints, and is searched for one")
    if not _is_position(value):
        raise NoCounterpart("a list is searched for an index, or an index divided by a number: nothing below 0")
    return _told(reading, Node("in", "bool", (value, reading.read(listed))))


def _is_position(node: Node) -> bool:
    """Whether a value is 0 or more, by its form: elements of lists below 0 are equal to nothing in the language."""
    match node.word:
        case "name":
            return node.name in INDICES
        case "number":
            return node.value >= 0
        case "//" | "%" | "+" | "*":
            return all(map(_is_position, node.operands))
        case _:
            return False


# ---------------------------------------------------------------- lines


def _line() -> tuple[str, int]:
    """The line of the user's function that is running."""
    frame = sys._getframe()  # pyright: ignore[reportPrivateUsage]
    while frame is not None and frame.f_code.co_filename.startswith(_OURS):  # or made by PyTorch
        frame = frame.f_back
    return ("", 0) if frame is None else (frame.f_code.co_filename, frame.f_lineno)


def _in_own_function() -> bool:
    """Whether a `torch.autograd.Function` is running, for whose forward pass gradients are always off."""
    frame = sys._getframe()  # pyright: ignore[reportPrivateUsage]
    while frame is not None and frame.f_code.co_filename != torch.autograd.function.__file__:
        frame = frame.f_back
    return frame is not None


def _at_line(work: Callable[[], Any], operation: str) -> Any:
    """The result, or the refusal of what has no counterpart, with its line."""
    try:
        return work()
    except NoCounterpart as why:
        raise _refused(str(why), "" if operation in _ASKS else operation) from None


def _refused(why: str, operation: str) -> UsageError:
    file, number = _line()
    return UsageError(f"{file}:{number}: {operation}{': ' if operation else ''}{why}")
