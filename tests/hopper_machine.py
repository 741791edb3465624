"""The backward kernels of compute capability 9.0, executed in NumPy: each partition of warps is a thread.

Takes a generated module, gives it kernels that run here, so that its own launcher can call them on tensors of the CPU.
Barriers count arrivals, bytes and phases. The copy engine writes nan where it will write, and writes later; what is
read too early is nan. A product is computed when it is waited for, and its operands must be then what they were when
it began: what is freed too early or waited for too little is a `FaultError`, and so is a deadlock. Programs run one
after the other. Layouts and registers are left to the compiler (`tests/aot`), and so are fences between the two ways
to memory, but that before a copy out.
"""

from __future__ import annotations

import operator
import random
import threading
import time
import traceback
from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import Any

import ml_dtypes
import numpy as np
import torch
import triton.language as tl
from triton.runtime.interpreter import InterpretedFunction
from triton.runtime.jit import JITFunction

BF16 = np.dtype(ml_dtypes.bfloat16)
ELEMENTS = {"fp32": np.float32, "fp16": np.float16, "bf16": BF16, "int16": np.int16, "int32": np.int32}
PATIENCE = 20.0


class FaultError(Exception):
    """What a real kernel would do wrong."""


def element(d: Any) -> np.dtype:
    d = d.value if isinstance(d, tl.constexpr) else d
    return np.dtype(d) if isinstance(d, np.dtype | type) else np.dtype(ELEMENTS[d.name])


# ---------------------------------------------------------------- tiles and numbers


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


# ---------------------------------------------------------------- barriers, shared memory, the copy engine, products

LOCK = threading.Condition()
THREAD = threading.local()
FAILED: list[str] = []


class Barrier:
    def init(self, count: int) -> None:
        self.count = self.missing = count
        self.bytes = self.phase = 0

    def arrive(self, count: int, more_bytes: int = 0) -> None:
        with LOCK:
            self.missing -= count
            self.bytes += more_bytes
            if self.missing < 0:
                raise FaultError("more arrivals than a barrier expects")
            if self.missing == self.bytes == 0:
                self.phase, self.missing = self.phase + 1, self.count
                LOCK.notify_all()


class Barriers:
    def __init__(self, count: int):
        self.all = [Barrier() for _ in range(count)]

    def index(self, i: Any) -> Barrier:
        assert 0 <= int(i) < len(self.all)
        return self.all[int(i)]


def single(barrier: Any) -> Barrier:
    return barrier.all[0] if isinstance(barrier, Barriers) else barrier


class MBarrier:
    class MBarrierLayout:
        pass

    @staticmethod
    def init(barrier: Any, count: int) -> None:
        single(barrier).init(count)

    @staticmethod
    def expect(barrier: Any, nbytes: int) -> None:
        single(barrier).arrive(1, nbytes)

    @staticmethod
    def arrive(barrier: Any, count: int) -> None:
        single(barrier).arrive(count)

    @staticmethod
    def wait(barrier: Any, phase: Any) -> None:
        """Returns when the phase of that parity is complete."""
        assert int(phase) in (0, 1)
        end = time.monotonic() + PATIENCE
        with LOCK:
            while single(barrier).phase % 2 == int(phase):
                if FAILED or (not LOCK.wait(0.5) and time.monotonic() > end):
                    raise FaultError("nobody arrives: deadlock" if not FAILED else "another has failed")
        pause()


def pause() -> None:
    """Others may come first."""
    if random.random() < 0.3:
        time.sleep(random.random() * 0.002)


class Shared:
    """Shared memory. A view of another shape has the same bytes."""

    def __init__(self, values: np.ndarray):
        self.values = values

    @property
    def dtype(self) -> np.dtype:
        return self.values.dtype

    def index(self, i: Any) -> Shared:
        assert 0 <= int(i) < len(self.values)
        return Shared(self.values[int(i)])

    def reshape(self, shape: list[int]) -> Shared:
        return self._reinterpret(self.dtype, shape, None)

    def permute(self, order: tuple[int, ...]) -> Shared:
        return Shared(self.values.transpose(order))

    def slice(self, start: int, length: int, dim: int) -> Shared:
        return Shared(np.moveaxis(np.moveaxis(self.values, dim, 0)[start : start + length], 0, dim))

    def _reinterpret(self, dtype: Any, shape: list[int], _: object) -> Shared:
        nbytes = int(np.prod(shape)) * element(dtype).itemsize
        whole = self.values.reshape(-1).view(np.uint8)
        assert np.shares_memory(whole, self.values) and nbytes <= whole.size
        return Shared(whole[:nbytes].view(element(dtype)).reshape(shape))

    def store(self, tile: Tile) -> None:
        THREAD.fenced = False
        assert tile.values.shape == self.values.shape and tile.dtype == self.dtype
        self.values[...] = tile.values

    def load(self, _: object = None) -> Tile:
        return Tile(self.values.copy())


def memory(x: torch.Tensor) -> np.ndarray:
    """The tensor's own memory."""
    halves = {torch.bfloat16: BF16, torch.float16: np.dtype(np.float16)}
    x = x.detach()
    return x.view(torch.int16).numpy().view(halves[x.dtype]) if x.dtype in halves else x.numpy()


class Descriptor:
    """A tensor as the copy engine sees it, in tiles."""

    def __init__(self, base: Any, shape: Any, strides: Any, block: list[int], layout: Any):
        self.base, self.shape, self.strides, self.block, self.layout = base, shape, strides, block, layout

    @property
    def dtype(self) -> np.dtype:
        return memory(self.base).dtype

    @property
    def block_type(self) -> Any:
        return type("Block", (), {"nbytes": int(np.prod(self.block)) * 2})

    def overlap(self, start: list[Any]) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
        """What of a tile lies in the tensor: there, and in the tile."""
        starts = [int(n) for n in start]
        assert min(starts) >= 0
        lengths = [max(min(b, n - s), 0) for s, b, n in zip(starts, self.block, self.base.shape, strict=True)]
        there = tuple(slice(s, s + n) for s, n in zip(starts, lengths, strict=True))
        return there, tuple(slice(0, n) for n in lengths)


class Copies:
    @staticmethod
    def async_copy_global_to_shared(desc: Descriptor, start: list[Any], barrier: Any, place: Shared) -> None:
        assert list(place.values.shape) == list(desc.block) and place.dtype == desc.dtype
        place.values[...] = np.nan
        there, here = desc.overlap(start)

        def later() -> None:
            time.sleep(random.random() * 0.003)
            with LOCK:
                place.values[...] = 0
                place.values[here] = memory(desc.base)[there]
            single(barrier).arrive(0, -place.values.nbytes)

        threading.Thread(target=later, daemon=True).start()

    @staticmethod
    def async_copy_shared_to_global(desc: Descriptor, start: list[Any], place: Shared) -> None:
        if not THREAD.fenced:
            raise FaultError("no fence between a store and the copy engine")
        there, here = desc.overlap(start)
        memory(desc.base)[there] = place.values[here]
        THREAD.copied.append((place, place.values.tobytes()))

    @staticmethod
    def store_wait(_: int) -> None:
        pause()
        for place, before in THREAD.copied:
            if place.values.tobytes() != before:
                raise FaultError("a result was overwritten under its copy")
        THREAD.copied.clear()


class Product:
    def __init__(self, a: Any, b: Shared, acc: Any):
        self.a, self.b, self.acc = a, b, acc
        self.before = a.values.tobytes(), b.values.tobytes()
        self.result: Tile | None = None

    def finish(self) -> None:
        if self.before != (self.a.values.tobytes(), self.b.values.tobytes()):
            raise FaultError("an operand was overwritten under a product")
        with np.errstate(all="ignore"):
            found = self.a.values.astype(np.float32) @ self.b.values.astype(np.float32)
        if isinstance(self.acc, Product):  # the one before this, in the order in which they began
            self.acc = self.acc.result
        self.result = Tile(found if self.acc is None else found + self.acc.values)


def warpgroup_mma(a: Any, b: Shared, acc: Tile, use_acc: bool = True, is_async: bool = False) -> Product:
    assert is_async
    THREAD.products.append(Product(a, b, acc if use_acc else None))
    return THREAD.products[-1]


def warpgroup_mma_wait(outstanding: int, deps: tuple[Any, ...]) -> Any:
    pause()
    while len(THREAD.products) > outstanding:
        THREAD.products.pop(0).finish()
    found = [d.result if isinstance(d, Product) else d for d in deps]
    if any(d is None for d in found):
        raise FaultError("a product is read before it was waited for")
    return found[0] if len(found) == 1 else tuple(found)


def fence_async_shared() -> None:
    THREAD.fenced = True


# ---------------------------------------------------------------- the language


def layout(*_: object) -> None:
    return None


def pointwise(function: Callable[..., Any]) -> Callable[..., Tile]:
    def apply(*args: Any) -> Tile:
        values = both(*args) if len(args) == 2 else [plain(args[0])]
        with np.errstate(all="ignore"):
            return Tile(function(*values))

    return staticmethod(apply)  # pyright: ignore


class Language:
    """`gl` and `tl`, as far as these kernels go."""

    constexpr = tl.constexpr
    float32, float16, bfloat16 = np.float32, np.float16, BF16
    int16, int32, int64 = np.int16, np.int32, np.int64
    NVMMADistributedLayout = SliceLayout = DotOperandLayout = staticmethod(layout)
    BlockedLayout = SwizzledSharedLayout = staticmethod(layout)
    NVMMASharedLayout = type("NVMMASharedLayout", (), {"get_default_for": staticmethod(layout)})
    static_range = range = range
    minimum, maximum = pointwise(np.minimum), pointwise(np.maximum)
    exp2 = pointwise(lambda x: np.exp2(x).astype(np.float32))
    log2 = pointwise(lambda x: np.log2(x).astype(np.float32))
    log = pointwise(lambda x: np.log(x).astype(np.float32))
    abs = pointwise(np.abs)

    @staticmethod
    def program_id(axis: int) -> Tile:
        return Tile(np.int32(THREAD.program[axis]))

    @staticmethod
    def num_programs(axis: int) -> Tile:
        return Tile(np.int32(THREAD.grid[axis]))

    @staticmethod
    def arange(start: int, stop: int, layout: object = None) -> Tile:
        return Tile(np.arange(start, stop, dtype=np.int32))

    @staticmethod
    def zeros(shape: list[int], dtype: Any, layout: object = None) -> Tile:
        return Tile(np.zeros([int(n) for n in shape], element(dtype)))

    @staticmethod
    def full(shape: list[int], value: Any, dtype: Any, layout: object = None) -> Tile:
        return Tile(np.full([int(n) for n in shape], plain(value), element(dtype)))

    @staticmethod
    def load(pointer: Pointer, mask: Any = None, other: Any = None, cache_modifier: str = "") -> Tile:
        return pointer.load(mask, other)

    @staticmethod
    def atomic_add(pointer: Pointer, values: Any, sem: str = "acq_rel") -> Tile:
        found = pointer.load()
        pointer.store(plain(found) + plain(values))
        return found

    @staticmethod
    def atomic_max(pointer: Pointer, values: Any, mask: Any, sem: str = "acq_rel") -> None:
        pointer.store(np.maximum(plain(pointer.load(mask)), plain(values)), mask)

    @staticmethod
    def store(pointer: Pointer, values: Any, mask: Any = None) -> None:
        pointer.store(values, mask)

    @staticmethod
    def where(condition: Any, a: Any, b: Any) -> Tile:
        return Tile(np.where(plain(condition), *both(a, b)))

    @staticmethod
    def cast(x: Any, dtype: Any) -> Tile:
        return Tile(np.asarray(plain(x)).astype(element(dtype)))

    @staticmethod
    def sum(x: Tile, axis: int | None = None) -> Tile:
        return Tile(np.sum(x.values, axis=axis, dtype=x.dtype))

    @staticmethod
    def max(x: Tile, axis: int | None = None) -> Tile:
        return Tile(np.max(x.values, axis=axis))

    @staticmethod
    def min(x: Tile, axis: int | None = None) -> Tile:
        return Tile(np.min(x.values, axis=axis))

    @staticmethod
    def cdiv(a: Any, b: Any) -> Any:
        return (a + (b - 1)) // b

    @staticmethod
    def reshape(x: Tile, *shape: Any) -> Tile:
        return x.reshape(*shape)

    @staticmethod
    def permute(x: Tile, order: list[int]) -> Tile:
        return x.permute(tuple(order))

    @staticmethod
    def convert_layout(x: Tile, _: object) -> Tile:
        return x

    @staticmethod
    def to_tensor(x: Any) -> Tile:
        return Tile(np.int32(plain(x)))

    @staticmethod
    def thread_barrier() -> None:
        pass

    @staticmethod
    def allocate_shared_memory(dtype: Any, shape: list[int], layout: object) -> Any:
        if isinstance(layout, MBarrier.MBarrierLayout):
            return Barriers(shape[0])
        return Shared(np.full(int(np.prod(shape)) * element(dtype).itemsize, 0xFF, np.uint8))._reinterpret(
            dtype, shape, 0
        )

    @staticmethod
    def warp_specialize(parts: list[tuple[Any, tuple[Any, ...]]], warps: list[int], registers: list[int]) -> None:
        program, grid = THREAD.program, THREAD.grid

        def run(function: Callable[..., None], arguments: tuple[Any, ...]) -> None:
            THREAD.program, THREAD.grid, THREAD.products, THREAD.fenced = program, grid, [], False
            THREAD.copied = []
            try:
                function(*arguments)
                if THREAD.products or THREAD.copied:
                    raise FaultError("products, or copies, that nobody waits for")
            except BaseException:
                with LOCK:
                    FAILED.append(f"{function.__name__}: {traceback.format_exc()}")
                    LOCK.notify_all()

        threads = [threading.Thread(target=run, args=part, daemon=True) for part in parts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if FAILED:
            raise FaultError("\n".join(FAILED))


def packed(x: Tile, dtype: Any) -> Tile:
    with np.errstate(all="ignore"):
        halves = x.values.astype(element(dtype)).view(np.uint16).astype(np.uint32)
    return Tile((halves[:, 0::2] | halves[:, 1::2] << 16).view(np.int32))


def unpacked(pairs: Tile, dtype: Any, _: object) -> Tile:
    return Tile(np.ascontiguousarray(pairs.values).view(np.uint16).view(element(dtype)))


def await_turn(turns: Pointer, turn: Any) -> None:
    """Programs run one after the other: whoever comes before has had its turn, or never will."""
    if int(turns.load()) != int(turn):
        raise FaultError(f"turn {int(turn)} never comes: {int(turns.load())} was the last")


ASSEMBLY: dict[str, Callable[..., Any]] = {
    "_again": lambda x: x,
    "_await_turn": await_turn,
    "_pass_turn": lambda turns, turn: turns.store(turn),
    "_packed": packed,
    "_unpacked": unpacked,
    "_unpacked_wide": lambda pairs, dtype, layout: unpacked(pairs, dtype, layout).to(np.float32),
    "_load_pairs": lambda start, least, most, offsets, FAST: (start + offsets).load(),
    "_tanh": lambda x, FAST: Tile(np.tanh(x.values)),
}
"""Functions that are assembly, or change the bits' type."""


# ---------------------------------------------------------------- a module


class Kernel:
    def __init__(self, name: str, function: Callable[..., None], arg_names: list[str], launched: list[str]):
        self.name, self.function, self.arg_names, self.launched = name, function, arg_names, launched

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def launch(*arguments: Any, **options: Any) -> None:
            assert len(arguments) <= len(self.arg_names), self.name
            given = dict(zip(self.arg_names, arguments, strict=False))
            given |= {name: value for name, value in options.items() if name in self.arg_names}
            values = [x if name in options else argument(x) for name, x in given.items()]
            assert list(given) == self.arg_names, f"{self.name}: {set(self.arg_names) - set(given)} missing"
            self.launched.append(self.name)
            FAILED.clear()
            THREAD.grid, THREAD.fenced = (*grid, 1, 1)[:3], False
            for number in range(int(np.prod(THREAD.grid))):
                x, rest = number % THREAD.grid[0], number // THREAD.grid[0]
                THREAD.program = (x, rest % THREAD.grid[1], rest // THREAD.grid[1])
                self.function(*values)

        return launch


def argument(x: Any) -> Any:
    if isinstance(x, torch.Tensor):
        assert x.is_contiguous()
        return Pointer(memory(x).reshape(-1))
    if isinstance(x, bool | Descriptor) or x is None:
        return x
    return Tile(typed(x, None))


def install(module: ModuleType) -> list[str]:
    """Gives the module kernels that run here, for a chip of compute capability 9.0; and the names of those launched."""
    launched: list[str] = []
    names: dict[str, Any] = dict(vars(module))
    names.update(tl=Language, gl=Language, mbarrier=MBarrier, tma=Copies, fence_async_shared=fence_async_shared)
    names.update(warpgroup_mma=warpgroup_mma, warpgroup_mma_wait=warpgroup_mma_wait)
    jitted = {name: x for name, x in vars(module).items() if isinstance(x, JITFunction | InterpretedFunction)}
    for name, x in vars(module).items():
        if isinstance(x, tl.constexpr):
            names[name] = x.value
    for name, x in jitted.items():
        names[name] = ASSEMBLY.get(name) or FunctionType(x.fn.__code__, names, name, x.fn.__defaults__)
        if name.endswith("_kernel"):
            setattr(module, name, Kernel(name, names[name], list(x.arg_names), launched))
    changed: Any = module
    changed.HopperDescriptor = Descriptor
    changed._CHIPS[torch.device("cpu")] = "sm_90"
    if hasattr(module, "_MULTIPROCESSORS"):
        changed._MULTIPROCESSORS[torch.device("cpu")] = 2
    return launched
