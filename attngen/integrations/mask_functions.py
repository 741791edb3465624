"""Reads what a mask function of transformers computes.

Takes a `mask_function(batch, head, query, key)` as `transformers.masking_utils` builds them (causal, sliding, chunked,
packed, padding, and their intersections), returns a `Pattern`. Every other function is refused by what it computes.

The function is called once, with symbols for the four indices, and gives the expression that it computes. So nothing
depends on how its closures are written, and `torch.compile` can trace the reading (it has no access to closures).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from attngen.errors import UsageError

MaskFunction = Callable[[Any, Any, Any, Any], Any]


class Symbol:
    """An index, or what a mask function computed of indices: an operation and its operands."""

    device = torch.device("meta")

    def __init__(self, operation: str, *operands: Any):
        self.operation = operation
        self.operands = operands

    def __lt__(self, other: Any) -> Symbol:
        return Symbol("<", self, other)

    def __le__(self, other: Any) -> Symbol:
        return Symbol("<=", self, other)

    def __gt__(self, other: Any) -> Symbol:
        return Symbol(">", self, other)

    def __ge__(self, other: Any) -> Symbol:
        return Symbol(">=", self, other)

    def __eq__(self, other: Any) -> Any:
        return Symbol("==", self, other)

    def __ne__(self, other: Any) -> Any:
        return Symbol("!=", self, other)

    def __add__(self, other: Any) -> Symbol:
        return Symbol("+", self, other)

    def __sub__(self, other: Any) -> Symbol:
        return Symbol("-", self, other)

    def __floordiv__(self, other: Any) -> Symbol:
        return Symbol("//", self, other)

    def __mod__(self, other: Any) -> Symbol:
        return Symbol("%", self, other)

    def __and__(self, other: Any) -> Symbol:
        return Symbol("&", self, other)

    def __or__(self, other: Any) -> Symbol:
        return Symbol("|", self, other)

    def __invert__(self) -> Symbol:
        return Symbol("~", self)

    def __abs__(self) -> Symbol:
        return Symbol("abs", self)

    __hash__ = object.__hash__

    # What `and_masks`, `or_masks` call of a tensor.

    def to(self, device: Any) -> Symbol:
        return self

    def new_ones(self, shape: Any, dtype: Any = None) -> Symbol:
        return Symbol("true")

    def new_zeros(self, shape: Any, dtype: Any = None) -> Symbol:
        return Symbol("false")

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):  # Python and PyTorch ask whether there is such a method
            raise AttributeError(name)
        raise UsageError(f"a mask function calls `.{name}` of an index, which attngen cannot read; {_FIX}")

    def __bool__(self) -> NoReturn:
        raise UsageError(f"a mask function branches on an index, which attngen cannot read; {_FIX}")

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Symbol:
        return _call(func, args)


_FIX = "use another attention implementation for this model"
_BATCH, _HEAD, _QUERY, _KEY = Symbol("b"), Symbol("h"), Symbol("q"), Symbol("k")


class _Reads(TorchFunctionMode):
    """Makes `tensor[index, …]` a symbol where an index is one."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _call(func, args)


def _call(func: Any, args: Any) -> Symbol:
    """A call of PyTorch's in which an index takes part: a tensor is read at it."""
    if func is Tensor.__getitem__:
        return Symbol("read", args[0], *(args[1] if isinstance(args[1], tuple) else (args[1],)))
    raise UsageError(f"a mask function calls {func.__name__}, which attngen cannot read; {_FIX}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pattern:
    """A mask, as the intersection of what is set. Tensors are the mask function's own."""

    causal: bool = False
    window: int | None = None
    """Keys that a query sees, its own the last of them."""
    distance: int | None = None
    """How far from its own key a query sees, on both sides."""
    chunk: int | None = None
    chunk_start: Tensor | None = None
    """(B,): where the first chunk of a batch row begins; None for 0."""
    ids: Tensor | None = None
    """(B, S): tokens of one packed sequence have the same id."""
    position: Tensor | None = None
    """(B, S): positions within packed sequences."""
    padding: Tensor | None = None
    """(B, S): false for padding."""


def read(mask_function: MaskFunction) -> Pattern:
    """What `mask_function` computes. Raises `UsageError` where that is not one of the masks above."""
    with _Reads():
        computed = mask_function(_BATCH, _HEAD, _QUERY, _KEY)
    found: dict[str, Any] = {}
    pending = [computed]
    known = True
    while pending and known:
        term = pending.pop()
        if isinstance(term, Symbol) and term.operation == "&":
            pending.extend(term.operands)
            continue
        facts = _facts(term)
        known = facts is not None and all(_same(found.get(name, fact), fact) for name, fact in facts.items())
        found.update(facts or {})
    causal = "causal" in found
    packed = found.get("position") is None or "ids" in found
    if not known or not packed or ("window" in found and not causal) or ("distance" in found and causal):
        raise UsageError(f"the model's mask is `{_shown(computed)}`, which attngen does not know; {_FIX}")
    return Pattern(**found)


def _facts(term: Any) -> dict[str, Any] | None:
    """What a term of an intersection says of the pair; None if it is none of the known ones."""
    operation, operands = _parts(term)
    if operation == "true":
        return {}
    if operation == "read":
        tensor, *indices = operands
        return {"padding": tensor} if _are(indices, _BATCH, _KEY) else None
    if len(operands) != 2:
        return None
    left, right = operands
    if operation == ">=" and _position(left, _QUERY) and _is_int(right):
        return {} if right == 0 else None
    if operation == "<=" and _position(left, _KEY) and _position(right, _QUERY):
        return _at(left, right, causal=True)
    if operation == "<=" and _is_int(right):
        inner, (difference, *_) = _parts(left)
        if inner == "abs" and _parts(difference)[0] == "-":
            query, key = _parts(difference)[1]
            return _at(key, query, distance=right)
    if operation == ">" and _position(left, _KEY) and _parts(right)[0] == "-":
        query, window = _parts(right)[1]
        return _at(left, query, window=window) if _is_int(window) else None
    if operation == "==" and _parts(left)[0] == "read" and _parts(right)[0] == "read":
        (ids, *query), (same, *key) = _parts(left)[1], _parts(right)[1]
        return {"ids": ids} if ids is same and _are(query, _BATCH, _QUERY) and _are(key, _BATCH, _KEY) else None
    if operation == "==" and _parts(left)[0] == "//" and _parts(right)[0] == "//":
        (key, chunk), (query, same) = _parts(left)[1], _parts(right)[1]
        if _is_int(chunk) and _is_int(same) and chunk == same:
            (key, start), (query, same_start) = _less_start(key), _less_start(query)
            return _at(key, query, chunk=chunk, chunk_start=start) if start is same_start else None
    return None


def _at(key: Any, query: Any, **fact: Any) -> dict[str, Any] | None:
    """`fact`, which holds of the positions `key` and `query`, with the tensor in which both are looked up, if any."""
    key_position, query_position = _position(key, _KEY), _position(query, _QUERY)
    if key_position is None or query_position is None or key_position[0] is not query_position[0]:
        return None
    return {**fact, "position": key_position[0]}


def _position(term: Any, index: Symbol) -> tuple[Tensor | None] | None:
    """The tensor in which a position is looked up by `index`, or None in a tuple for the index itself."""
    if term is index:
        return (None,)
    operation, operands = _parts(term)
    return (operands[0],) if operation == "read" and _are(operands[1:], _BATCH, index) else None


def _less_start(term: Any) -> tuple[Any, Tensor | None]:
    """A position and the start (per batch row) that is subtracted from it."""
    operation, operands = _parts(term)
    if operation == "-" and _parts(operands[1])[0] == "read" and _are(_parts(operands[1])[1][1:], _BATCH):
        return operands[0], _parts(operands[1])[1][0]
    return term, None


def _parts(term: Any) -> tuple[str, tuple[Any, ...]]:
    return (term.operation, term.operands) if isinstance(term, Symbol) else ("", (term,))


def _are(indices: Any, *expected: Symbol) -> bool:
    return len(indices) == len(expected) and all(a is b for a, b in zip(indices, expected, strict=True))


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _same(a: Any, b: Any) -> bool:
    return a is b or (_is_int(a) and _is_int(b) and a == b)


def _shown(term: Any) -> str:
    """A mask function's expression, for a message."""
    if isinstance(term, Tensor):
        return f"tensor{list(term.shape)}"
    if not isinstance(term, Symbol):
        return str(term)
    if not term.operands:
        return term.operation
    shown = [_shown(operand) for operand in term.operands]
    if term.operation == "read":
        return f"{shown[0]}[{', '.join(shown[1:])}]"
    if len(shown) == 1:
        return f"{term.operation}({shown[0]})"
    neutral = {"&": "true", "|": "false"}.get(term.operation)
    kept = [text for text in shown if text != neutral]
    return f"({f' {term.operation} '.join(kept)})" if len(kept) > 1 else kept[0] if kept else shown[0]
