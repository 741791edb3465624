"""Times the kernels of a generated file at candidates of one's choice, on the GPU that is here: `tune.gpu`'s timer.

Takes the loaded module and its function's arguments; returns milliseconds, or says why there are none. What a candidate
makes of the inputs is compared with what the file's own tiles and rows make of them before it is timed.
"""

from __future__ import annotations

import importlib
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import ModuleType
from typing import Any

from attngen.bench import clock
from attngen.bench.race import DeviceLostError, failure, mistakes
from attngen.plan.tiles.hopper_trials import Rows
from attngen.tune.gpu import LostError, RefusedError, Setting
from attngen.tune.tables import holding, own_tiles, runtime_of

torch: Any = importlib.import_module("torch")

TOLERANCE = 1e-2
"""Of `||x - own|| / ||own||`: other tiles round otherwise; what is wrong is far off."""

PATIENCE_S = 20.0
"""For a forward and a backward pass."""


class Bench:
    """`function(q, k, v, **params)` of `module`, whose tables are put back after each trial. `planned` are the rows in
    them for these head dims; `rows` those of them that calls take."""

    def __init__(
        self,
        module: ModuleType,
        function: Callable[..., Any],
        qkv: tuple[Any, Any, Any],
        grad_out: Any,
        params: Mapping[str, Any],
        planned: Rows,
        *,
        device: str = "cuda",
        rep_ms: float = 30.0,
    ):
        self.module: Any = module
        self.function, self.qkv, self.grad_out, self.params = function, qkv, grad_out, params
        self.device, self.rep_ms = device, rep_ms
        q, _, v = qkv
        self.chip: str = runtime_of(module, "devices").chip(q.device)
        self.head_block: int = max(16, 1 << (max(q.shape[3], v.shape[3]) - 1).bit_length())
        self.row = (self.chip, q.element_size(), self.head_block)
        self.own = own_tiles(module, self.row)
        self.rows = self._taken(planned)
        self.expected = self._results()

    def _taken(self, planned: Rows) -> Rows:
        def takes(name: str) -> bool:
            table: Any = getattr(self.module, name, None)
            return table is not None and self.module.host.hopper_row(table, *self.qkv) is not None

        backward = planned.backward if takes("HOPPER_BACKWARD") else None
        apart = planned.apart if takes("HOPPER_APART") and backward is None else None
        return replace(planned, forward=planned.forward if takes("HOPPER") else None, backward=backward, apart=apart)

    def __call__(self, kernel: str, setting: Setting) -> float:
        """Milliseconds at the median. Raises `RefusedError`, `LostError`."""
        try:
            with holding(self.module, self.row, self.rows, kernel, setting):
                return self._timed(kernel)
        except LostError:
            raise
        except mistakes() as error:
            try:
                text = failure(f"{kernel} {setting}", error, self.device)
            except DeviceLostError as lost:
                raise LostError(str(lost)) from error
            raise RefusedError(text.strip().splitlines()[0][:200]) from error

    def _results(self) -> tuple[Any, ...]:
        out = self.function(*self.qkv, **self.params)
        found = (out.detach(), *torch.autograd.grad(out, self.qkv, self.grad_out))
        self._await()
        return found

    def _await(self) -> None:
        """Kernels that wait for each other for good would keep this process, too."""
        if self.device != "cuda":
            return
        done = torch.cuda.Event()
        done.record()
        end = time.monotonic() + PATIENCE_S
        while not done.query():
            if time.monotonic() > end:
                raise LostError(f"no end after {PATIENCE_S:.0f} s")
            time.sleep(2e-4)

    def _timed(self, kernel: str) -> float:
        for x, own in zip(self._results(), self.expected, strict=True):
            gap = float((x.float() - own.float()).norm() / own.float().norm().clamp(min=1e-30))
            if not (gap <= TOLERANCE and bool(torch.isfinite(x).all())):
                raise RefusedError(f"wrong results: {gap if math.isfinite(gap) else 'not finite'}")
        if kernel == "forward":
            work: Callable[[], object] = lambda: self.function(*self.qkv, **self.params)  # noqa: E731
        else:
            out = self.function(*self.qkv, **self.params)
            work = lambda: torch.autograd.grad(out, self.qkv, self.grad_out, retain_graph=True)  # noqa: E731
        return clock.summary(clock.sample(work, device=self.device, warmup_ms=5.0, rep_ms=self.rep_ms)).ms
