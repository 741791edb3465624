"""Barriers, shared memory, the copy engine and products of the model of compute capability 9.0 (`machine`).

Barriers count arrivals, bytes and phases. The copy engine writes nan where it will write, and writes later; what is
read too early is nan. A product is computed when it is waited for, and its operands must be then what they were when
it began. Whoever waits lets other tasks run (`schedule`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from hopper_model.numbers import BF16, E4M3, FaultError, Tile, element
from hopper_model.races import Written
from hopper_model.schedule import Launch, Signal, own


class Program:
    """What the partitions of a program share. `unfenced`: by task and address, what has been stored since the task's
    last fence; products and the copy engine miss it. `fenced`: what it has stored and fenced since the copy engine
    wrote there, and the bytes; its products see them, even where another stores the same bytes again.
    """

    def __init__(self, launch: Launch, written: Written, place: tuple[int, ...], grid: tuple[int, ...]):
        self.launch, self.written, self.place, self.grid = launch, written, place, grid
        self.meetings = Meetings()
        self.unfenced: dict[int, dict[int, np.ndarray]] = {}
        self.fenced: dict[int, dict[int, tuple[np.ndarray, bytes]]] = {}


def program() -> Program:
    """That of the running task."""
    return own().program


def pause() -> None:
    """Others may come first."""
    program().launch.pause()


def wait(why: Callable[[], str], ready: Callable[[], bool]) -> None:
    program().launch.wait(why, ready)


class Arrivals:
    """What those who arrive in this phase have done, and what all did who arrived in phases that are complete."""

    def __init__(self) -> None:
        self.now, self.complete = Signal(), Signal()

    def turn(self) -> None:
        self.complete.give(self.now.clock)
        self.now = Signal()


class Barrier:
    def __init__(self, among: Barriers, place: int):
        self.among, self.place = among, place
        self.arrivals = Arrivals()

    def init(self, count: int) -> None:
        self.count = self.missing = count
        self.bytes = self.phase = 0

    def arrive(self, count: int, more_bytes: int = 0) -> None:
        self.missing -= count
        self.bytes += more_bytes
        if self.missing < 0:
            raise FaultError("more arrivals than a barrier expects")
        if self.missing == self.bytes == 0:
            self.phase, self.missing = self.phase + 1, self.count
            self.arrivals.turn()

    def text(self, names: dict[int, str]) -> str:
        name = names.get(id(self.among), "a barrier")
        return f"{name}[{self.place}]: {self.missing} arrivals and {self.bytes} bytes are missing"


class Barriers:
    def __init__(self, count: int):
        self.all = [Barrier(self, i) for i in range(count)]
        self.shape = (count, 1)

    def index(self, i: Any) -> Barrier:
        assert 0 <= int(i) < len(self.all)
        return self.all[int(i)]


class Meetings:
    """A program's own barriers, by number: each is complete when so many threads have come."""

    def __init__(self) -> None:
        self.here: dict[int, dict[int, int]] = {}
        self.complete: dict[int, int] = {}
        self.shared: dict[int, int] = {}
        self.arrivals: dict[int, Arrivals] = {}

    def come(self, number: int, threads: int, warps: int, stay: bool) -> None:
        assert 6 <= number < 16 and threads % 32 == 0  # Triton has the first, one for each partition
        task = own()
        pause()
        if self.shared.setdefault(number, threads) != threads:
            raise FaultError("a barrier is shared by so many threads here, and by others there")
        here = self.here.setdefault(number, {})
        if task.number in here:
            raise FaultError("comes to a barrier again before the others have come")
        here[task.number] = 32 * warps
        arrivals = self.arrivals.setdefault(number, Arrivals())
        task.give(arrivals.now)
        before = self.complete.get(number, 0)
        if sum(here.values()) > threads:
            raise FaultError("more threads at a barrier than share it")
        if sum(here.values()) == threads:
            here.clear()
            self.complete[number] = before + 1
            arrivals.turn()
        if stay:
            wait(
                lambda: f"barrier {number}, to which {sum(here.values())} of {threads} threads have come",
                lambda: self.complete.get(number, 0) > before,
            )
            task.take(arrivals.complete)

    def close(self) -> None:
        if any(self.here.values()):
            raise FaultError("threads left at a barrier to which the others never came")


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
        MBarrier._barrier_arrive(single(barrier), 1, nbytes)

    @staticmethod
    def arrive(barrier: Any, count: int) -> None:
        MBarrier._barrier_arrive(single(barrier), count, 0)

    @staticmethod
    def _barrier_arrive(barrier: Barrier, count: int, nbytes: int) -> None:
        pause()
        own().give(barrier.arrivals.now)
        barrier.arrive(count, nbytes)
        pause()

    @staticmethod
    def wait(barrier: Any, phase: Any) -> None:
        """Returns when the phase of that parity is complete."""
        assert int(phase) in (0, 1)
        one, task = single(barrier), own()
        wait(lambda: one.text(task.names), lambda: one.phase % 2 != int(phase))
        task.take(one.arrivals.complete)


class Shared:
    """Shared memory. A view of another shape has the same bytes."""

    def __init__(self, values: np.ndarray):
        self.values = values
        self.shape = values.shape

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
        own().fenced = False
        program().unfenced.setdefault(own().number, {})[self.values.ctypes.data] = self.values
        assert tile.values.shape == self.values.shape and tile.dtype == self.dtype
        self.values[...] = tile.values

    def load(self, _: object = None) -> Tile:
        return Tile(self.values.copy())


def memory(x: torch.Tensor) -> np.ndarray:
    """The tensor's own memory."""
    x = x.detach()
    if x.dtype is torch.float8_e4m3fn:
        return x.view(torch.int8).numpy().view(E4M3)
    halves = {torch.bfloat16: BF16, torch.float16: np.dtype(np.float16)}
    return x.view(torch.int16).numpy().view(halves[x.dtype]) if x.dtype in halves else x.numpy()


class Descriptor:
    """A tensor as the copy engine sees it, in tiles."""

    def __init__(self, base: Any, shape: Any, strides: Any, block: list[int], layout: Any):
        self.base, self.shape, self.strides, self.block, self.layout = base, shape, strides, block, layout

    @property
    def values(self) -> np.ndarray:
        """The tensor's own memory; flat where addresses say where a tile is, as those of sequences' rows."""
        if len(self.block) == self.base.dim():
            return memory(self.base)
        last = sum((size - 1) * stride for size, stride in zip(self.base.shape, self.base.stride(), strict=True))
        return memory(self.base.as_strided((last + 1,), (1,)))

    @property
    def dtype(self) -> np.dtype:
        return memory(self.base).dtype

    @property
    def block_type(self) -> Any:
        return type("Block", (), {"nbytes": int(np.prod(self.block)) * self.dtype.itemsize})

    def overlap(self, start: Sequence[Any]) -> tuple[Any, Any]:
        """What of a tile lies in the tensor: there, and in the tile."""
        starts = [int(n) for n in start]
        assert min(starts) >= 0 and max(starts) < 2**31
        if len(self.block) != self.base.dim():
            return self._addressed(starts)
        lengths = [max(min(b, n - s), 0) for s, b, n in zip(starts, self.block, self.base.shape, strict=True)]
        there = tuple(slice(s, s + n) for s, n in zip(starts, lengths, strict=True))
        return there, tuple(slice(0, n) for n in lengths)

    def _addressed(self, starts: list[int]) -> tuple[Any, Any]:
        """The same by addresses, which wrap at 64 bits. An address outside of the tensor's memory is a fault."""
        address, inside = np.zeros((), np.uint64), np.ones((), bool)
        for axis, (first, size, stride, rows) in enumerate(
            zip(starts, self.shape, self.strides, self.block, strict=True)
        ):
            assert 0 < size < 2**31 and stride * 2 < 2**40
            index = np.arange(first, first + rows).reshape(-1, *[1] * (len(starts) - 1 - axis))
            address = address + index.astype(np.uint64) * np.uint64(stride)
            inside = inside & (index < size)
        here = np.broadcast_to(inside, self.block)
        there = np.broadcast_to(address, self.block)[here].astype(np.int64)
        if there.size and (there.min() < 0 or there.max() >= self.values.size):
            raise FaultError(f"the copy engine at {there.min()} or {there.max()} of {self.values.size}")
        return there, here


class Copies:
    @staticmethod
    def async_copy_global_to_shared(desc: Descriptor, start: list[Any], barrier: Any, place: Shared) -> None:
        assert list(place.values.shape) == list(desc.block) and place.dtype == desc.dtype
        place.values[...] = np.nan
        fenced = program().fenced
        for number, stores in fenced.items():
            fenced[number] = {a: s for a, s in stores.items() if not np.may_share_memory(s[0], place.values)}
        there, here = desc.overlap(start)

        def later() -> None:
            place.values[...] = 0
            place.values[here] = desc.values[there]
            single(barrier).arrive(0, -place.values.nbytes)

        program().launch.later(f"the copy engine, for {own().name}", later)

    @staticmethod
    def async_copy_shared_to_global(desc: Descriptor, start: list[Any], place: Shared) -> None:
        if not own().fenced:
            raise FaultError("no fence between a store and the copy engine")
        there, here = desc.overlap(start)
        program().written.write(own(), desc.values, there)
        desc.values[there] = place.values[here]
        own().copied.append((place, place.values.tobytes()))

    @staticmethod
    def store_wait(_: int) -> None:
        pause()
        for place, before in own().copied:
            if place.values.tobytes() != before:
                raise FaultError("a result was overwritten under its copy")
        own().copied.clear()


class Product:
    def __init__(self, a: Any, b: Shared, acc: Any):
        self.a, self.b, self.acc = a, b, acc
        self.before = a.values.tobytes(), b.values.tobytes()
        read = [x.values for x in (a, b) if isinstance(x, Shared)]
        seen = program().fenced.get(own().number, {})
        stored = [x for each in program().unfenced.values() for x in each.values()]
        stored = [x for x in stored if x.ctypes.data not in seen or seen[x.ctypes.data][1] != x.tobytes()]
        if any(np.may_share_memory(x, y) for x in read for y in stored):
            raise FaultError("no fence between a store and a product")
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
    own().products.append(Product(a, b, acc if use_acc else None))
    return own().products[-1]


def warpgroup_mma_wait(outstanding: int, deps: tuple[Any, ...]) -> Any:
    pause()
    while len(own().products) > outstanding:
        own().products.pop(0).finish()
    found = [d.result if isinstance(d, Product) else d for d in deps]
    if any(d is None for d in found):
        raise FaultError("a product is read before it was waited for")
    return found[0] if len(found) == 1 else tuple(found)


def warpgroup_mma_init(acc: Tile) -> Tile:
    return acc


def fence_async_shared() -> None:
    own().fenced = True
    stores = program().unfenced.pop(own().number, {})
    program().fenced.setdefault(own().number, {}).update((a, (x, x.tobytes())) for a, x in stores.items())
