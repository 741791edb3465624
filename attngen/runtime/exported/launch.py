# pyright: strict, reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false, reportPrivateUsage=false
# PyTorch and Triton have few types, and private names.

"""A launch of a kernel, kept for calls of one layout; and several, whose kernels are compiled side by side."""

from __future__ import annotations

import operator
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

import torch
import triton
from torch import Tensor
from triton import knobs
from triton.runtime import driver
from triton.tools.tensor_descriptor import TensorDescriptor

from . import KNOWN
from .devices import padded

NONE: dict[str, Any] = {}
WARMED: ContextVar[list[Any] | None] = ContextVar("kernels that launches compile and do not run", default=None)
# Triton's interpreter changes `triton.language` for all threads while a kernel runs: there, kernels take turns.
ONE_AT_A_TIME: Any = triton.__dict__.setdefault("_interpreter_turn", threading.RLock())


class Launch:
    """A kernel, and how calls of one layout launch it. It finds its parameters by name among a call's `values`.

    `options`: constants, of which the kernel may take some, and those of Triton, in small letters. `tiles`: rows of a
    tile, by tensor that a descriptor reads. `scalars`: more values. `buffers`: shapes and dtypes of what it allocates.
    `zeros`: shapes of float32 tensors to clear. `counters`: sizes of int32 counters for later kernels; `clears`: this
    kernel clears them. `names`: parameters that take a value of another name. `run`: launches the compiled kernel
    again, without Triton's lookup.
    """

    def __init__(
        self,
        kernel: Any,
        grid: Any,
        options: dict[str, Any],
        *,
        tiles: dict[str, int] = NONE,
        scalars: dict[str, Any] = NONE,
        buffers: dict[str, Any] = NONE,
        zeros: dict[str, Any] = NONE,
        counters: dict[str, int] = NONE,
        clears: bool = True,
        names: dict[str, str] = NONE,
    ) -> None:
        self.kernel, self.tiles, self.buffers, self.zeros = kernel, tiles, buffers, zeros
        self.options = {x: value for x, value in options.items() if x in kernel.arg_names or x.islower()}
        self.grid = grid if isinstance(grid, tuple) else (grid, 1, 1)
        self.counters = {x: sum([*counters.values()][:i]) for i, x in enumerate(counters)}  # where each begins
        self.allocate: Any = torch.empty if clears else torch.zeros
        self.scalars = {"counters": None, "n_counters": sum(counters.values()), **scalars}
        given = [x.removesuffix("_ptr").removesuffix("_desc") for x in kernel.arg_names if x not in options]
        self.operands = operator.itemgetter(*[names.get(x, x) for x in given])
        self.places = {given.index(x): x for x in tiles}
        self.constants = [options[x] for x in kernel.arg_names if x in options]
        self.run: Callable[[list[Any]], Any] | None = None

    def __call__(self, values: dict[str, Any]) -> None:
        values.update(self.scalars)
        for name, (shape, dtype) in self.buffers.items():
            values[name] = values["q"].new_empty(shape, dtype=dtype)
        if self.zeros:
            values |= {name: values["q"].new_zeros(x, dtype=torch.float32) for name, x in self.zeros.items()}
        if self.counters:
            count, device = self.scalars["n_counters"], values["q"].device
            cells = values["counters"] = self.allocate(count, dtype=torch.int32, device=device)
            for name, start in self.counters.items():
                values[name] = cells[start:] if start else cells
        operands = [*self.operands(values)]
        watched: Any = knobs.runtime.launch_enter_hook  # a profiler's, which Triton calls at each launch
        if self.run is not None and not getattr(watched, "calls", watched):
            self.run(operands)
            return
        for i, name in self.places.items():
            operands[i] = self.descriptor(name, operands[i])
        self.launch(*operands)

    def launch(self, *operands: Any) -> None:
        if (warmed := WARMED.get()) is not None:
            warmed.append(self.kernel.warmup(*operands, grid=self.grid, **self.options))
            return
        with nullcontext() if isinstance(self.kernel, triton.JITFunction) else ONE_AT_A_TIME:
            compiled = self.kernel[self.grid](*operands, **self.options)
        if compiled is not None:  # as under the interpreter
            self.run = direct(compiled, self.grid, {i: operands[i] for i in self.places}, self.constants)

    def descriptor(self, name: str, x: Tensor) -> Any:
        """By which the copy engine reads tiles of `x`, or Triton's interpreter in its place."""
        return TensorDescriptor(x, list(x.shape), list(x.stride()), [1, 1, self.tiles[name], padded(x.shape[3])])


def direct(
    compiled: Any, grid: tuple[int, ...], tiles: dict[int, Any], constants: list[Any]
) -> Callable[[list[Any]], Any] | None:
    """A function that calls the compiled launcher directly, since Triton's Python takes longer than the launch.

    `tiles`: its descriptors, by operand; their encoded forms are kept by address. None if the release of Triton may
    have other private names: then Triton launches the kernel, with new descriptors.
    """
    launcher: Any = getattr(compiled, "run", None)
    metas: Any = [None]
    scratch = (
        KNOWN
        and type(launcher).__name__ == "CudaLauncher"
        and (launcher.global_scratch_size or launcher.profile_scratch_size or getattr(launcher, "gsan_enabled", False))
    )
    if KNOWN and type(launcher).__name__ == "CudaLauncher" and not scratch:
        metas = tiles and (getattr(compiled.metadata, "tensordesc_meta", None) or [None])
    if None in metas:
        return None if tiles else lambda operands: compiled[grid](*operands, *constants)
    described: Any = vars(sys.modules[type(launcher).__module__])["make_tensordesc_arg"]
    more = [None] * (described.__code__.co_argcount - 2)
    for tile in tiles.values():
        tile.base = None  # so that the tensor can be freed
    found = [(i, tile, meta, {}) for (i, tile), meta in zip(sorted(tiles.items()), metas, strict=False)]
    active: Any = driver.active
    begin = compiled.function, launcher.launch_cooperative_grid, launcher.launch_pdl
    unused, watched = (None, None), (compiled.packed_metadata, None, None, None)
    if older := triton.__version__.startswith("3.6."):
        begin, launch = (*begin, *unused, *watched), launcher.launch
        if tiles:  # Triton's own wrapper encodes descriptors anew at each launch
            launch = launch.__closure__[launch.__code__.co_freevars.index("launcher")].cell_contents
    else:
        begin = (*begin, *watched, *unused, launcher.arg_annotations, launcher.kernel_signature)
        launch = active.utils.launch

    def run(operands: list[Any]) -> None:
        for i, tile, meta, by_address in reversed(found):  # each becomes several operands
            address = operands[i].data_ptr()
            parts = by_address.get(address)
            if parts is None:
                if len(by_address) >= 256:
                    by_address.clear()
                parts = by_address[address] = described(replace(tile, base=operands[i]), meta, *more)
            operands[i : i + 1] = parts
        operands += constants
        stream = active.get_current_stream(active.get_current_device())
        launch(*grid, stream, *begin, *(operands if older else (operands,)))

    return run


def compiled_together(
    launches: tuple[Any, ...], values: dict[str, Any], ahead: Callable[[], Any] | None = None
) -> tuple[Any, ...]:
    """The launches, after their kernels were compiled in parallel.

    `ahead`: a backward pass whose kernels are compiled at the same time. An error in it is raised when it runs.
    """
    if WARMED.get() is not None or not isinstance(launches[-1].kernel, triton.JITFunction):
        return launches
    values, device = dict(values), values["q"].device

    def load(kernel: Any) -> Any:
        with torch.cuda.device(device):  # the launcher loads the kernel
            return getattr(kernel, "result", lambda: kernel)().run

    warmed: list[Any] = []
    token = WARMED.set(warmed)
    try:
        with ThreadPoolExecutor() as pool, torch.cuda.device(device):
            with triton.AsyncCompileMode(pool, ignore_errors=True):  # `load` raises them
                for x in launches:
                    x(values)
                wanted = [pool.submit(load, kernel) for kernel in warmed]
                if ahead is not None and not torch.cuda.is_current_stream_capturing():
                    ahead()
                    for kernel in warmed[len(wanted) :]:
                        pool.submit(load, kernel)
            for x in wanted:
                x.result()
    finally:
        WARMED.reset(token)
    return launches
