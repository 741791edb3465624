"""Numbers of the model of compute capability 9.0 (`machine`): tiles of registers, and pointers.

A tile is a NumPy array that computes as the kernels' language does: a number of the source takes the type of what it
meets, quotients round to zero. To read or write outside a tensor is a `FaultError`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import triton.language as tl

BF16 = np.dtype(ml_dtypes.bfloat16)
E4M3 = np.dtype(ml_dtypes.float8_e4m3fn)
ELEMENTS = {
    "fp32": np.float32,
    "fp16": np.float16,
    "bf16": BF16,
    "fp8e4nv": E4M3,
    "int8": np.int8,
    "int16": np.int16,
    "int32": np.int32,
}


class FaultError(Exception):
    """What a real kernel would do wrong."""


class RefusedError(AssertionError):
    """What the compiler would refuse."""


def element(d: Any) -> np.dtype:
    d = d.value if isinstance(d, tl.constexpr) else d
    return np.dtype(d) if isinstance(d, np.dtype | type) else np.dtype(ELEMENTS[d.name])


class Tile:
    """A tensor of registers, or a number."""

    __hash__ = object.__hash__

    def __init__(self, values: Any):
        self.values = np.asarray(values)

    @property
    def shape(self) -> list[int]:
        return list(self.values.shape)

    @property
    def dtype(self) -> np.dtype:
        return self.values.dtype

    @property
    def type(self) -> Any:
        return type("Type", (), {"layout": None, "shape": self.shape})

    def reshape(self, *shape: Any) -> Tile:
        shape = shape[0] if isinstance(shape[0], list | tuple) else shape
        return Tile(self.values.reshape([int(n) for n in shape]))

    def permute(self, order: tuple[int, ...]) -> Tile:
        return Tile(np.ascontiguousarray(self.values.transpose(order)))

    def split(self) -> tuple[Tile, Tile]:
        return Tile(self.values[..., 0]), Tile(self.values[..., 1])

    def to(self, dtype: Any, bitcast: bool = False) -> Tile:
        with np.errstate(all="ignore"):
            return Tile(self.values.view(element(dtype)) if bitcast else self.values.astype(element(dtype)))

    def __getitem__(self, index: Any) -> Tile:
        return Tile(self.values[index])

    def __index__(self) -> int:
        return int(self.values)

    __int__ = __index__

    def __bool__(self) -> bool:
        assert self.values.ndim == 0, "a tile decides nothing"
        return bool(self.values)

    def __neg__(self) -> Tile:
        return Tile(-self.values)


def plain(x: Any) -> Any:
    return x.values if isinstance(x, Tile) else x.value if isinstance(x, tl.constexpr) else x


def typed(x: Any, other: Any) -> np.ndarray:
    """A number of the source takes the type of what it meets."""
    if isinstance(x, np.ndarray):
        return x
    kind = other.dtype if isinstance(other, np.ndarray) else None
    if isinstance(x, bool):
        return np.asarray(x)
    if isinstance(x, int) and (kind is None or kind.kind not in "iufV"):
        return np.asarray(x, np.int32 if -(2**31) <= x < 2**31 else np.int64)
    if isinstance(x, int) and kind is not None and kind.kind in "iu":
        fits = np.iinfo(kind).min <= x <= np.iinfo(kind).max
        return np.asarray(x, kind if fits else np.int64)
    return np.asarray(x, kind if kind is not None and kind.kind in "fV" else np.float32)


def both(a: Any, b: Any) -> tuple[np.ndarray, np.ndarray]:
    a, b = plain(a), plain(b)
    return typed(a, b), typed(b, a)


def quotient(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Rounded to zero, as the hardware has it."""
    return (np.abs(a) // np.abs(b) * np.sign(a) * np.sign(b)).astype(np.result_type(a, b))


def operation(function: Callable[..., Any], turned: bool) -> Callable[[Tile, Any], Any]:
    def apply(self: Tile, other: Any) -> Any:
        if isinstance(other, Pointer):
            return NotImplemented
        a, b = both(self, other)
        with np.errstate(all="ignore"):
            return Tile(function(b, a) if turned else function(a, b))

    return apply


OPERATIONS: dict[str, Callable[..., Any]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "floordiv": quotient,
    "truediv": lambda a, b: np.true_divide(a, b).astype(np.float32), "mod": lambda a, b: a - quotient(a, b) * b,
    "and": operator.and_, "or": operator.or_, "xor": operator.xor, "lshift": operator.lshift,
    "rshift": operator.rshift, "lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge,
    "eq": operator.eq, "ne": operator.ne,
}  # fmt: skip
for _name, _function in OPERATIONS.items():
    setattr(Tile, f"__{_name}__", operation(_function, turned=False))
    if _name not in ("lt", "le", "gt", "ge", "eq", "ne"):
        setattr(Tile, f"__r{_name}__", operation(_function, turned=True))


class Pointer:
    """Places in a flat array. To read or write outside is a fault."""

    def __init__(self, base: np.ndarray, offset: Any = 0):
        self.base, self.offset = base, np.asarray(plain(offset)).astype(np.int64)

    @property
    def dtype(self) -> Any:
        return type("PointerType", (), {"element_ty": self.base.dtype})

    def __add__(self, offset: Any) -> Pointer:
        return Pointer(self.base, self.offset + np.asarray(plain(offset)).astype(np.int64))

    __radd__ = __add__

    def __sub__(self, offset: Any) -> Pointer:
        return Pointer(self.base, self.offset - np.asarray(plain(offset)).astype(np.int64))

    def to(self, dtype: Any) -> Tile:
        """The address."""
        return Tile(self.base.ctypes.data + self.offset * self.base.itemsize)

    def places(self, *others: Any) -> list[np.ndarray]:
        offset, mask, *rest = np.broadcast_arrays(self.offset, *(np.asarray(plain(x)) for x in others))
        wanted = offset[mask]
        if wanted.size and (wanted.min() < 0 or wanted.max() >= self.base.size):
            raise FaultError(f"place {wanted.min()} or {wanted.max()} of {self.base.size}")
        return [offset, mask, *rest]

    def load(self, mask: Any = True, other: Any = 0) -> Tile:
        offset, mask = self.places(True if mask is None else mask)
        found = np.full(offset.shape, 0 if other is None else plain(other)).astype(self.base.dtype)
        return Tile(np.where(mask, self.base[np.where(mask, offset, 0)], found))

    def store(self, values: Any, mask: Any = True) -> None:
        offset, mask, values = self.places(True if mask is None else mask, values)
        self.base[offset[mask]] = values[mask].astype(self.base.dtype)
