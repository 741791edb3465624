"""Reads what a mask function of transformers computes.

Takes a `mask_function(batch, head, query, key)` as transformers builds them (causal, sliding, chunked, packed, padding,
and their intersections; unions of neighbouring windows, and with spans), returns a `Pattern`. Every other function is
refused by what it computes.

The function is called once, with symbols for the four indices, and gives the expression that it computes. So nothing
depends on how its closures are written, and `torch.compile` can trace the reading (it has no access to closures).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
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

    def __neg__(self) -> Symbol:
        return Symbol("neg", self)

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
        raise UsageError(f"a mask function calls `.{name}` of an index, which attngen cannot read; {FIX}")

    def __bool__(self) -> NoReturn:
        raise UsageError(f"a mask function branches on an index, which attngen cannot read; {FIX}")

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Symbol:
        return _call(func, args)


FIX = "use another attn_implementation for this model"
_BATCH, _HEAD, _QUERY, _KEY = Symbol("b"), Symbol("h"), Symbol("q"), Symbol("k")


class _Reads(TorchFunctionMode):
    """Makes `tensor[index, …]` a symbol where an index is one, and `torch.tensor(True)` too."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _call(func, args)


def _call(func: Any, args: Any) -> Symbol:
    """A call of PyTorch's in a mask function: a tensor is read at an index, or a constant is made."""
    if func is Tensor.__getitem__:
        return Symbol("read", args[0], *(args[1] if isinstance(args[1], tuple) else (args[1],)))
    if func is torch.tensor and isinstance(args[0], bool):
        return Symbol("true" if args[0] else "false")
    raise UsageError(f"a mask function calls {func.__name__}, which attngen cannot read; {FIX}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pattern:
    """A mask, as the intersection of what is set. Tensors are the mask function's own."""

    before: int | None = None
    """How many keys before its own a query sees; None for all."""
    after: int | None = None
    """How many keys after its own a query sees; None for all, 0 where the mask is causal."""
    chunk: int | None = None
    chunk_start: Tensor | None = None
    """(B,): where the first chunk of a batch row begins; None for 0."""
    ids: Tensor | None = None
    """(B, S): tokens of one packed sequence have the same id."""
    position: Tensor | None = None
    """(B, S): positions within packed sequences, which `before`, `after` and `chunk` count; None for the indices."""
    padding: Tensor | None = None
    """(B, S): false for padding."""
    spans: Tensor | None = None
    """(B, S): tokens of one span, which has a number from 0 up, see each other whatever `before`, `after` and `chunk`
    say."""
    reach: int | None = None
    """How many keys before its own a query sees even of its span; None for all."""

    @property
    def counts(self) -> bool:
        """Whether the mask depends on positions."""
        return self.banded or self.chunk is not None

    @property
    def misses_own_key(self) -> bool:
        return any(limit is not None and limit < 0 for limit in (self.before, self.after))

    @property
    def banded(self) -> bool:
        return self.before is not None or self.after is not None


def read(mask_function: MaskFunction, fix: str = FIX) -> Pattern:
    """What `mask_function` computes. Raises `UsageError` where that is not one of the masks above; `fix` is what the
    message advises then."""
    with _Reads():
        computed = mask_function(_BATCH, _HEAD, _QUERY, _KEY)
    found = _pattern(computed)
    if found is None or found.misses_own_key or (found.position is not None and found.ids is None):
        raise UsageError(f"the model's mask is `{_shown(computed)}`, which attngen does not know; {fix}")
    return found


def _pattern(term: Any) -> Pattern | None:
    """What a condition says of the pair; None if it is none of the known ones."""
    operation, operands = _parts(term)
    match operation:
        case "true":
            return Pattern()
        case "&":
            return _both(*map(_pattern, operands))
        case "|":
            left, right = operands
            if _parts(left)[0] == "false":
                return _pattern(right)
            spans = _spans(right)
            return _either(*map(_pattern, operands)) if spans is None else _with_spans(_pattern(left), spans)
        case "read":
            tensor, *indices = operands
            return Pattern(padding=tensor) if _are(indices, _BATCH, _KEY) else None
        case "==":
            return _same_value(*operands)
        case "<=":
            return _at_most(*operands)
        case "<":
            return _at_most(operands[0], operands[1], -1)
        case ">=":
            return _at_most(operands[1], operands[0])
        case ">":
            return _at_most(operands[1], operands[0], -1)
        case _:
            return None


def _spans(term: Any) -> Tensor | None:
    """The numbers of spans, where a condition says that two tokens are of the same one."""
    operation, operands = _parts(term)
    if operation != "&":
        return None
    (same, equal), (least, some) = (_parts(x) for x in operands)
    if same != "==" or least != ">=" or not _is_int(some[1]) or some[1] != 0:
        return None
    found = _same_value(*equal)
    named, place = _parts(some[0])
    own = found is not None and found.ids is not None and named == "read" and place[0] is found.ids
    return found.ids if found is not None and own and _are(place[1:], _BATCH, _QUERY) else None


def _with_spans(a: Pattern | None, spans: Tensor) -> Pattern | None:
    """The union of a mask of positions with spans."""
    if a is None or a.ids is not None or a.padding is not None or a.spans is not None:
        return None
    return replace(a, spans=spans) if a.counts else a


def _both(a: Pattern | None, b: Pattern | None) -> Pattern | None:
    """The intersection of two masks."""
    if a is None or b is None:
        return None
    if b.spans is not None and a.counts:
        a, b = b, a
    if a.spans is not None and b.counts:
        return _cut(a, b)
    if a.counts and b.counts and a.position is not b.position:
        return None
    found: dict[str, Any] = {name: _least(getattr(a, name), getattr(b, name)) for name in ("before", "after")}
    for name in ("chunk", "chunk_start", "ids", "position", "padding", "spans"):
        one, other = getattr(a, name), getattr(b, name)
        if one is not None and other is not None and not _same(one, other):
            return None
        found[name] = other if one is None else one
    return Pattern(**found)


def _cut(a: Pattern, b: Pattern) -> Pattern | None:
    """The intersection of a mask with spans and a window of keys before a query's own."""
    if replace(b, before=None, position=None) != Pattern() or (a.counts and a.position is not b.position):
        return None
    return replace(a, reach=_least(a.reach, b.before))


def _least(a: int | None, b: int | None) -> int | None:
    if a is None or b is None:
        return b if a is None else a
    return min(a, b)


def _either(a: Pattern | None, b: Pattern | None) -> Pattern | None:
    """The union of two stretches of keys around the query's own, if it is a stretch too."""
    if (
        a is None
        or b is None
        or any(x.chunk or x.ids is not None or x.padding is not None or x.spans is not None for x in (a, b))
    ):
        return None
    if not (a.banded and b.banded):
        return Pattern()
    gap = any(x.before is not None and y.after is not None and x.before + y.after < -1 for x, y in ((a, b), (b, a)))
    if gap or a.position is not b.position:
        return None
    before, after = _most(a.before, b.before), _most(a.after, b.after)
    return Pattern(before=before, after=after, position=None if before is after is None else a.position)


def _most(a: int | None, b: int | None) -> int | None:
    return None if a is None or b is None else max(a, b)


def _same_value(left: Any, right: Any) -> Pattern | None:
    """Two tokens of one packed sequence, or of one chunk."""
    (operation, key), (same_operation, query) = _parts(left), _parts(right)
    if operation == same_operation == "read":  # `ids[b, q] == ids[b, k]`
        (ids, *query), (same, *key) = key, query
        return Pattern(ids=ids) if ids is same and _are(query, _BATCH, _QUERY) and _are(key, _BATCH, _KEY) else None
    if operation == same_operation == "//" and _is_int(key[1]) and _is_int(query[1]) and key[1] == query[1]:
        (own_key, start), (own_query, same_start) = _less_start(key[0]), _less_start(query[0])
        difference = _sum(Symbol("-", own_query, own_key))
        if start is same_start and difference is not None and difference.distance == (1, 0):
            return Pattern(chunk=key[1], chunk_start=start, position=difference.position)
    return None


def _at_most(left: Any, right: Any, limit: int = 0) -> Pattern | None:
    """`left <= right + limit`: a limit of the distance between query and key."""
    operation, operands = _parts(left)
    if operation == "abs" and _is_int(right):
        return _both(_at_most(operands[0], right, limit), _at_most(Symbol("neg", operands[0]), right, limit))
    sums = _sum(Symbol("-", left, right))
    if sums is None:
        return None
    if (sums.query, sums.key) == (-1, 0) and sums.position is None:  # no position is below 0
        return Pattern() if sums.constant <= limit else None
    if sums.distance is None:
        return None
    sign, constant = sums.distance
    if sign == 1:
        return Pattern(before=limit - constant, position=sums.position)
    return Pattern(after=limit - constant, position=sums.position)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sum:
    """`query * q + key * k + constant`, of positions looked up in `position`, or of the indices themselves."""

    query: int = 0
    key: int = 0
    constant: int = 0
    position: Tensor | None = None

    @property
    def distance(self) -> tuple[int, int] | None:
        """(sign, constant) of `sign * (q - k) + constant`; None if it is no such sum."""
        return (self.query, self.constant) if self.query == -self.key and abs(self.query) == 1 else None


def _sum(term: Any) -> _Sum | None:
    """A sum of positions and ints; None for anything else."""
    operation, operands = _parts(term)
    if _is_int(term):
        return _Sum(constant=term)
    if term is _QUERY or (operation == "read" and _are(operands[1:], _BATCH, _QUERY)):
        return _Sum(query=1, position=None if term is _QUERY else operands[0])
    if term is _KEY or (operation == "read" and _are(operands[1:], _BATCH, _KEY)):
        return _Sum(key=1, position=None if term is _KEY else operands[0])
    if operation not in ("+", "-", "neg"):
        return None
    a = _Sum() if operation == "neg" else _sum(operands[0])
    b, sign = _sum(operands[-1]), 1 if operation == "+" else -1
    if a is None or b is None:
        return None
    positions = [x.position for x in (a, b) if x.query or x.key]
    if any(position is not positions[0] for position in positions):
        return None
    return _Sum(
        query=a.query + sign * b.query,
        key=a.key + sign * b.key,
        constant=a.constant + sign * b.constant,
        position=positions[0] if positions else None,
    )


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
