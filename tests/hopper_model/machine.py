"""The kernels of compute capability 9.0 in Gluon, executed in NumPy: each partition of warps is a thread.

Takes a generated module, gives it kernels that run here, so that its own launcher can call them on tensors of the CPU;
and what they call of the runtime.
What is freed too early or waited for too little is a `FaultError` (`chip`); so is a place outside a tensor (`numbers`),
a deadlock (`schedule`), and a race of programs on global memory (`races`). Layouts and registers are left to the
compiler (`tests/aot`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch
import triton.language as tl
from triton.runtime.interpreter import InterpretedFunction
from triton.runtime.jit import JITFunction

from hopper_model.chip import (
    Barriers,
    Copies,
    Descriptor,
    MBarrier,
    Program,
    Shared,
    fence_async_shared,
    memory,
    pause,
    program,
    wait,
    warpgroup_mma,
    warpgroup_mma_init,
    warpgroup_mma_wait,
)
from hopper_model.numbers import BF16, E4M3, FaultError, Pointer, RefusedError, Tile, both, element, plain, typed
from hopper_model.races import Written
from hopper_model.schedule import USUAL, Launch, Schedule, Signal, own, running

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

    constexpr, tensor = tl.constexpr, (Tile, Pointer)
    float32, float16, bfloat16, float8e4nv = np.float32, np.float16, BF16, E4M3
    int8, int16, int32, int64, uint32 = np.int8, np.int16, np.int32, np.int64, np.uint32
    NVMMADistributedLayout = SliceLayout = DotOperandLayout = staticmethod(layout)
    BlockedLayout = SwizzledSharedLayout = staticmethod(layout)
    NVMMASharedLayout = type("NVMMASharedLayout", (), {"get_default_for": staticmethod(layout)})
    static_range = range = range
    minimum, maximum = pointwise(np.minimum), pointwise(np.maximum)
    exp2 = pointwise(lambda x: np.exp2(x).astype(np.float32))
    log2 = pointwise(lambda x: np.log2(x).astype(np.float32))
    log = pointwise(lambda x: np.log(x).astype(np.float32))
    abs = pointwise(np.abs)
    sigmoid = pointwise(lambda x: (1.0 / (1.0 + np.exp(-x))).astype(np.float32))

    @staticmethod
    def program_id(axis: int) -> Tile:
        return Tile(np.int32(program().place[axis]))

    @staticmethod
    def num_programs(axis: int) -> Tile:
        return Tile(np.int32(program().grid[axis]))

    @staticmethod
    def arange(start: int, stop: int, layout: object = None) -> Tile:
        return Tile(np.arange(start, stop, dtype=np.int32))

    @staticmethod
    def reduce(x: Tile, axis: int, combine: Callable[..., Any]) -> Tile:
        return functools.reduce(combine, (Tile(part) for part in np.moveaxis(x.values, axis, 0)))

    @staticmethod
    def zeros(shape: list[int], dtype: Any, layout: object = None) -> Tile:
        return Tile(np.zeros([int(n) for n in shape], element(dtype)))

    @staticmethod
    def full(shape: list[int], value: Any, dtype: Any, layout: object = None) -> Tile:
        return Tile(np.full([int(n) for n in shape], plain(value), element(dtype)))

    @staticmethod
    def load(pointer: Pointer, mask: Any = None, other: Any = None, cache_modifier: str = "") -> Tile:
        task = running()
        if task is not None:
            task.program.written.read(task, pointer.base, wanted(pointer, mask))
        return pointer.load(mask, other)

    @staticmethod
    def atomic_add(pointer: Pointer, values: Any, sem: str = "acq_rel") -> Tile:
        pause()
        if pointer.base.dtype.kind == "f":
            program().written.write(own(), pointer.base, wanted(pointer, None))
        elif not np.any(plain(values)):
            await_change(pointer)
        if sem in ("acquire", "acq_rel"):
            own().take(cell(pointer))
        found = pointer.load()
        pointer.store(plain(found) + plain(values))
        if sem in ("release", "acq_rel"):
            own().give(cell(pointer))
        return found

    @staticmethod
    def debug_barrier() -> None:
        """A program's threads are one here, where none are specialised."""

    @staticmethod
    def atomic_max(pointer: Pointer, values: Any, mask: Any, sem: str = "acq_rel") -> None:
        pointer.store(np.maximum(plain(pointer.load(mask)), plain(values)), mask)

    @staticmethod
    def store(pointer: Pointer, values: Any, mask: Any = None) -> None:
        pause()
        program().written.write(own(), pointer.base, wanted(pointer, mask, values))
        pointer.store(values, mask)

    @staticmethod
    def broadcast(a: Any, b: Any) -> tuple[Tile, ...]:
        return tuple(Tile(np.array(x)) for x in np.broadcast_arrays(plain(a), plain(b)))

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
    def cumsum(x: Tile, axis: int) -> Tile:
        return Tile(np.cumsum(x.values, axis=axis, dtype=x.dtype))

    @staticmethod
    def gather(x: Tile, index: Tile, axis: int) -> Tile:
        assert index.values.min() >= 0 and index.values.max() < x.shape[axis]
        return Tile(np.take_along_axis(x.values, index.values, axis))

    @staticmethod
    def cdiv(a: Any, b: Any) -> Any:
        return (a + (b - 1)) // b

    @staticmethod
    def reshape(x: Tile, *shape: Any) -> Tile:
        return x.reshape(*shape)

    @staticmethod
    def join(a: Tile, b: Tile) -> Tile:
        return Tile(np.stack((a.values, b.values), -1))

    @staticmethod
    def trans(x: Tile) -> Tile:
        return Tile(x.values.T)

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
    def static_assert(condition: Any) -> None:
        if not condition:
            raise RefusedError

    @staticmethod
    def allocate_shared_memory(dtype: Any, shape: list[int], layout: object) -> Any:
        if isinstance(layout, MBarrier.MBarrierLayout):
            return Barriers(shape[0])
        return Shared(np.full(int(np.prod(shape)) * element(dtype).itemsize, 0xFF, np.uint8))._reinterpret(
            dtype, shape, 0
        )

    @staticmethod
    def warp_specialize(parts: list[tuple[Any, tuple[Any, ...]]], warps: list[int], registers: list[int]) -> None:
        def body(function: FunctionType, arguments: tuple[Any, ...]) -> None:
            names = function.__code__.co_varnames
            own().names = {id(x): name for name, x in zip(names, arguments, strict=False) if isinstance(x, Barriers)}
            function(*arguments)
            if own().products or own().copied:
                raise FaultError("products, or copies, that nobody waits for")

        here, name = program(), own().name
        tasks = [here.launch.start(f"{name}, {p[0].__name__}", here, functools.partial(body, *p)) for p in parts]
        here.launch.wait(None, lambda: all(task.over for task in tasks))
        here.meetings.close()


def words_of(x: Tile, raised: int) -> Tile:
    """Four weights in e4m3: of eight keys the thread's pair, and of the eight behind them."""
    with np.errstate(all="ignore"):
        found = np.clip(x.values * np.float32(2.0**raised), -448.0, 448.0).astype(E4M3).view(np.uint8)
    rows, keys = found.shape
    pairs = found.reshape(rows, keys // 16, 2, 4, 2).transpose(0, 1, 3, 2, 4)
    quads = np.ascontiguousarray(pairs).reshape(rows, keys // 16, 4, 4)
    return Tile(quads.view(np.int32)[..., 0])


def packed(x: Tile, dtype: Any) -> Tile:
    if element(dtype) == E4M3:  # and nan where `words_of_lagging` reads nothing
        words = words_of(x, 0).values
        return Tile(np.stack((words, np.full_like(words, 0x7F7F7F7F)), 2).reshape(x.shape[0], -1))
    with np.errstate(all="ignore"):
        halves = x.values.astype(element(dtype)).view(np.uint16).astype(np.uint32)
    return Tile((halves[:, 0::2] | halves[:, 1::2] << 16).view(np.int32))


def unpacked(pairs: Tile, dtype: Any, _: object) -> Tile:
    return Tile(np.ascontiguousarray(pairs.values).view(np.uint16).view(element(dtype)))


def lagging_weights(
    x: Tile, reference: Tile, factor: Any, dtype: Any, slack: int, slope: Any = None, ahead: Tile | None = None
) -> tuple[Tile, ...]:
    """As the PTX does it, which `test_weights_ptx` takes at its word. With a slope, references are logits."""
    f, was = np.float32(plain(factor)), reference.values[:, :1]
    unit, scores = (f, x.values) if ahead is None else (np.float32(1.0), x.values * f + _rising(slope, ahead, 0.0))

    def made(shift: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        added = -shift * f if ahead is None else _rising(slope, ahead, shift)
        exponents = x.values * f + added
        weights = np.exp2(exponents, dtype=np.float32)
        return weights, weights.reshape(len(weights), -1, 4, 2).sum((1, 3))

    with np.errstate(all="ignore"):
        moves = ~(made(was)[1] <= 2.0**slack).all(1, keepdims=True)
        lead = np.float32(_lead(slack, x.shape[1], dtype)) / unit
        becomes = np.where(moves, np.fmax(np.fmax.reduce(scores, 1, keepdims=True), was + lead) - lead, was)
        shift = np.where(becomes == -np.inf, np.float32(0.0), becomes)
        before = np.where(moves, np.exp2((was - shift) * unit), np.float32(1.0))
        weights, sums = made(shift)
        four = np.ones((1, 4), np.float32)
        return packed(Tile(weights), dtype), Tile(sums), Tile(becomes * four), Tile(before * four)


def rising_weights(
    x: Tile, reference: Tile, factor: Any, dtype: Any, rise: Any, ahead: Tile, slack: int
) -> tuple[Tile, ...]:
    return lagging_weights(x, reference, factor, dtype, slack, rise, ahead)


def _lead(slack: int, keys: int, dtype: Any) -> int:
    """By how many powers of two a new reference lies below the maximum: 8-bit floats lose digits of small weights."""
    return slack - (keys // 4).bit_length() + 1 if element(dtype) == E4M3 else 0


def _rising(slope: Any, ahead: Tile, shift: np.ndarray | float) -> np.ndarray:
    """`ahead` of every key less the shift, from that of the first key that its thread has."""
    keys = np.arange(ahead.values.shape[1])
    firsts = keys // 2 % 4 * 2
    return np.float32(plain(slope)) * (keys - firsts).astype(np.float32) + (ahead.values[:, firsts] - shift)


def wanted(pointer: Pointer, mask: Any, *values: Any) -> np.ndarray:
    """The places that are read, or written."""
    offset, mask, *_ = pointer.places(True if mask is None else mask, *values)
    return offset[mask]


def cell(pointer: Pointer) -> Signal:
    """What those who have written this cell hand to those who read it."""
    return program().launch.cells[pointer.base.ctypes.data, int(pointer.offset)]


def await_change(pointer: Pointer) -> None:
    """Who looks at a count again and again looks when it has changed."""
    task, place = own(), (pointer.base.ctypes.data, int(pointer.offset))
    seen = task.looked.get(place)
    wait(lambda: f"a count that stays at {seen}", lambda: int(pointer.load()) != seen)
    task.looked[place] = int(pointer.load())


def await_parts(counted: Pointer, count: Any) -> None:
    wait(
        lambda: f"part {int(count)} of dQ's tile {int(counted.offset)}, which has had {int(counted.load())}",
        lambda: int(counted.load()) == int(count),
    )
    own().take(cell(counted))


def note_parts(counted: Pointer, count: Any) -> None:
    pause()
    own().give(cell(counted))
    counted.store(count)
    pause()


def arrive(number: Any, threads: int, warps: int) -> None:
    program().meetings.come(int(number), threads, warps, stay=False)


def meet(number: Any, threads: int, warps: int) -> None:
    program().meetings.come(int(number), threads, warps, stay=True)


ASSEMBLY: dict[str, Callable[..., Any]] = {
    "opaque": lambda x: x,
    "int_at": lambda place: place.load() if isinstance(place, Pointer) else place,
    "pin_order": lambda n_steps: None,
    "lagging_weights": lagging_weights,
    "rising_weights": rising_weights,
    "rescaled": lambda acc, rescale: acc * rescale[:, :1],
    "barrier_arrive": arrive,
    "barrier_sync": meet,
    "await_parts": await_parts,
    "note_parts": note_parts,
    "packed": packed,
    "words_of": words_of,
    "unpacked": unpacked,
    "unpacked_wide": lambda pairs, dtype, layout: unpacked(pairs, dtype, layout).to(np.float32),
    "load_pairs": lambda start, least, most, offsets, FAST: (start + offsets).load(),
    "tanh": lambda x, FAST: Tile(np.tanh(x.values)),
    "log": lambda x, FAST: Tile(np.log(x.values)),
    "log2": lambda x, FAST: Tile(np.log2(x.values)),
}
"""Functions of the runtime that are assembly, or change the bits' type."""


# ---------------------------------------------------------------- a module


class Kernel:
    def __init__(
        self, name: str, function: Callable[..., None], arg_names: list[str], launched: list[str], schedule: Schedule
    ):
        self.name, self.function, self.arg_names, self.launched = name, function, arg_names, launched
        self.schedule = schedule

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def launch(*arguments: Any, **options: Any) -> None:
            assert len(arguments) <= len(self.arg_names), self.name
            given = dict(zip(self.arg_names, arguments, strict=False))
            given |= {name: options[name] for name in self.arg_names if name in options}
            values = [x if name in options else argument(x) for name, x in given.items()]
            assert list(given) == self.arg_names, f"{self.name}: {set(self.arg_names) - set(given)} missing"
            self.launched.append(self.name)
            shape = (*grid, 1, 1)[:3]
            running = Launch(self.name, self.schedule)
            written = Written(running.task_names)
            places = [(x, y, z) for z in range(shape[2]) for y in range(shape[1]) for x in range(shape[0])]
            function = functools.partial(self.function, *values)
            running.run([(Program(running, written, place, shape), function) for place in places])

        return launch


def argument(x: Any) -> Any:
    if isinstance(x, torch.Tensor):
        last = sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))
        return Pointer(memory(x.as_strided((last + 1 if x.numel() else 0,), (1,))))
    if isinstance(x, bool | Descriptor) or x is None:
        return x
    return tuple(map(argument, x)) if isinstance(x, tuple) else Tile(typed(x, None))


def install(module: ModuleType, schedule: Schedule = USUAL) -> list[str]:
    """Gives the module kernels that run here, for a chip of compute capability 9.0, in the order of this schedule.
    Returns the names of those launched, to which each launch adds its own."""
    launched: list[str] = []
    names: dict[str, Any] = dict(vars(module))
    names.update(tl=Language, gl=Language, mbarrier=MBarrier, tma=Copies, fence_async_shared=fence_async_shared)
    names.update(warpgroup_mma=warpgroup_mma, warpgroup_mma_init=warpgroup_mma_init)
    names.update(warpgroup_mma_wait=warpgroup_mma_wait, BARRIER=Language.thread_barrier)
    names.update(REINTERPRET=Shared._reinterpret, COPY_IN=Copies.async_copy_global_to_shared)
    names.update(COPY_OUT=Copies.async_copy_shared_to_global)
    jitted = {name: x for name, x in vars(module).items() if isinstance(x, JITFunction | InterpretedFunction)}
    for name, x in vars(module).items():
        if isinstance(x, tl.constexpr):
            names[name] = x.value
    for name, x in jitted.items():
        names[name] = ASSEMBLY.get(name) or FunctionType(x.fn.__code__, names, name, x.fn.__defaults__)
        if name.endswith("_kernel"):
            setattr(module, name, Kernel(name, names[name], list(x.arg_names), launched, schedule))
    ours = {id(x): names[name] for name, x in vars(module).items()}
    for called in {"items", "quads", "ragged", "rows", "sm90"} & {*vars(module)}:
        members = vars(getattr(module, called)).items()
        names[called] = SimpleNamespace(**{name: ours[id(x)] for name, x in members if not name.startswith("__")})
    changed: Any = module
    changed.HopperDescriptor = Descriptor
    changed.CHIPS[torch.device("cpu")] = "sm_90"
    # The stock of counters is of a stream's.
    changed.host.add_queue = lambda values: values.update(queue=torch.zeros(4, dtype=torch.int32))
    if hasattr(module, "MULTIPROCESSORS"):
        changed.MULTIPROCESSORS[torch.device("cpu")] = schedule.multiprocessors
    return launched
