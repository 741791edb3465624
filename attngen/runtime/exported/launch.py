# pyright: strict, reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false, reportPrivateUsage=false
# PyTorch and Triton have few types, and private names.

"""A launch of a kernel, kept for calls of one layout; and several, whose kernels are compiled side by side."""

from __future__ import annotations

import math
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

from .devices import padded
from .releases import KNOWN

NONE: dict[str, Any] = {}
SAME = "what is the same in all calls"  # a key of `values`, which no parameter can be called
WARMED: ContextVar[list[Any] | None] = ContextVar("kernels that launches compile and do not run", default=None)
# Triton's interpreter changes `triton.language` for all threads while a kernel runs: there, kernels take turns.
ONE_AT_A_TIME: Any = triton.__dict__.setdefault("_interpreter_turn", threading.RLock())


class Launch:
    """A kernel, and how calls of one layout launch it. It finds its parameters by name among a call's `values`, and
    those that all calls share in `values[SAME]`.

    `options`: constants, of which the kernel may take some, and those of Triton, in small letters. `tiles`: rows of a
    tile, by tensor that a descriptor reads. `scalars`: more values. `buffers`: shapes and dtypes of what it allocates.
    `zeros`: shapes of float32 tensors to clear. `counters`: sizes of int32 counters for later kernels; `clears`: this
    kernel clears them. `names`: parameters that take a value of another name. `run`: launches the compiled kernel
    with a call's values, without Triton's lookup.
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
        self.kernel, self.tiles, n_counters = kernel, tiles, sum(counters.values())
        cells = {"counters": ((n_counters,), torch.int32)} if counters else NONE
        made: dict[str, Any] = {**buffers, **cells} if clears else buffers
        # With strides, since `new_empty` takes longer.
        self.buffers = [(x, n, [math.prod(n[i + 1 :]) for i in range(len(n))], dtype) for x, (n, dtype) in made.items()]
        self.zeros = {**{x: (shape, torch.float32) for x, shape in zeros.items()}, **(NONE if clears else cells)}
        self.options = {x: value for x, value in options.items() if x in kernel.arg_names or x.islower()}
        self.grid = grid if isinstance(grid, tuple) else (grid, 1, 1)
        self.counters = {x: sum([*counters.values()][:i]) for i, x in enumerate(counters)}  # where each begins
        self.scalars = {"counters": None, "n_counters": n_counters, **scalars}
        given = [x.removesuffix("_ptr").removesuffix("_desc") for x in kernel.arg_names if x not in options]
        self.names: list[str] = [names.get(x) or x for x in given]
        self.places = {given.index(x): x for x in tiles}
        self.constants = [options[x] for x in kernel.arg_names if x in options]
        self.run: Callable[[dict[str, Any]], Any] | None = None

    def __call__(self, values: dict[str, Any]) -> None:
        values.update(self.scalars)
        for name, shape, strides, dtype in self.buffers:
            values[name] = values["q"].new_empty_strided(shape, strides, dtype=dtype)
        for name, (shape, dtype) in self.zeros.items():
            values[name] = values["q"].new_zeros(shape, dtype=dtype)
        for name, start in self.counters.items():
            values[name] = values["counters"][start:] if start else values["counters"]
        watched: Any = knobs.runtime.launch_enter_hook  # a profiler's, which Triton calls at each launch
        if self.run is not None and not getattr(watched, "calls", watched):
            self.run(values)
            return
        operands = self.operands(values)
        for i, name in self.places.items():
            operands[i] = self.descriptor(name, operands[i])
        compiled = self.launch(*operands)
        if compiled is not None:  # as under the interpreter
            self.run = direct(compiled, self, operands, {*values[SAME], *self.scalars})

    def operands(self, values: dict[str, Any]) -> list[Any]:
        return [values[x] if x in values else values[SAME][x] for x in self.names]

    def launch(self, *operands: Any) -> Any:
        if (warmed := WARMED.get()) is not None:
            warmed.append(self.kernel.warmup(*operands, grid=self.grid, **self.options))
            return None
        with nullcontext() if isinstance(self.kernel, triton.JITFunction) else ONE_AT_A_TIME:
            return self.kernel[self.grid](*operands, **self.options)

    def descriptor(self, name: str, x: Tensor) -> Any:
        """By which the copy engine reads tiles of `x`, or Triton's interpreter in its place."""
        return TensorDescriptor(x, list(x.shape), list(x.stride()), [1, 1, self.tiles[name], padded(x.shape[3])])


def direct(compiled: Any, own: Launch, operands: list[Any], same: set[str]) -> Callable[[dict[str, Any]], Any] | None:
    """A function that calls the compiled launcher directly, since Triton's Python takes longer than the launch.

    `operands`: those of a first call; encoded forms of descriptors among them are kept by address. `same`: names of
    values that all calls share. None if the release of Triton may have other private names: then Triton launches the
    kernel, with new descriptors.
    """
    grid, constants, tiles = own.grid, own.constants, own.places
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
        return None if tiles else lambda values: compiled[grid](*own.operands(values), *constants)
    described: Any = vars(sys.modules[type(launcher).__module__])["make_tensordesc_arg"]
    more = [None] * (described.__code__.co_argcount - 2)
    # The launcher's operands, of which each call fills in tensors and numbers, and descriptors: each takes many places.
    whole: list[Any] = []
    filled: list[tuple[int, str]] = []
    encoded: list[tuple[slice, str, Any, Any, dict[int, list[Any]]]] = []
    for i, (name, x) in enumerate(zip(own.names, operands, strict=True)):
        at = len(whole)
        if i in tiles:
            meta = metas[len(encoded)]
            whole += described(x, meta, *more)
            encoded.append((slice(at, len(whole)), name, x, meta, {}))
            x.base = None  # so that the tensor can be freed
        elif name in same and not isinstance(x, Tensor):
            whole.append(x)
        else:
            whole.append(None)
            filled.append((at, name))
    whole += constants
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

    def run(values: dict[str, Any]) -> None:
        operands = whole.copy()
        for i, name in filled:
            operands[i] = values[name]
        for places, name, tile, meta, by_address in encoded:
            address = values[name].data_ptr()
            parts = by_address.get(address)
            if parts is None:
                if len(by_address) >= 256:
                    by_address.clear()
                parts = by_address[address] = described(replace(tile, base=values[name]), meta, *more)
            operands[places] = parts
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
