"""Times the kernels of a generated file at tiles of one's choice, on the GPU that is here: the timer of `runtime.tune`.

Takes the loaded module and its function's arguments; gives milliseconds, or says why there are none. What a tile makes
of the inputs is compared with what the file's own tiles make of them before it is timed.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from attngen.plan.tiles import KERNELS, Tile
from attngen.runtime.bench import clock
from attngen.runtime.bench.race import MISTAKES, DeviceLostError, failure
from attngen.runtime.tune import LostError, RefusedError

torch: Any = importlib.import_module("torch")

TOLERANCE = 1e-2
"""Of `||x - own|| / ||own||`: other tiles round otherwise; what is wrong is far off."""


class Bench:
    """`function(q, k, v, **params)` of `module`; its tables are put back after each trial."""

    def __init__(
        self,
        module: ModuleType,
        function: Callable[..., Any],
        qkv: tuple[Any, Any, Any],
        grad_out: Any,
        params: Mapping[str, Any],
        *,
        device: str = "cuda",
        rep_ms: float = 30.0,
    ):
        self.module: Any = module
        self.function, self.qkv, self.grad_out, self.params = function, qkv, grad_out, params
        self.device, self.rep_ms = device, rep_ms
        q, _, v = qkv
        self.chip: str = self.module._chip(q.device)
        self.head_block: int = max(16, 1 << (max(q.shape[3], v.shape[3]) - 1).bit_length())
        self.row = (self.chip, q.element_size(), self.head_block)
        self.own = {name: Tile(*tile) for name, tile in zip(KERNELS, self.module.TILES[self.row], strict=True)}
        hopper: Any = getattr(self.module, "_hopper", None)
        self.own_forward = bool(hopper is not None and hopper(q, v) is not None)
        rows: list[Any] = [getattr(self.module, name, None) for name in ("_hopper_backward", "_hopper_apart")]
        self.own_backward = any(row is not None and row(q, v) is not None for row in rows)
        self.expected = self._results()

    def __call__(self, kernel: str, tile: Tile | None) -> float:
        """Milliseconds at the median. Raises `RefusedError`, `LostError`."""
        tables = dict(self.module.TILES), dict(getattr(self.module, "HOPPER", {}))
        try:
            self._set(kernel, tile)
            return self._timed(kernel)
        except MISTAKES as error:
            try:
                text = failure(f"{kernel} {tile}", error, self.device)
            except DeviceLostError as lost:
                raise LostError(str(lost)) from error
            raise RefusedError(text.strip().splitlines()[0][:200]) from error
        finally:
            self.module.TILES.update(tables[0])
            if self.own_forward:
                self.module.HOPPER.update(tables[1])
            self.module._READY.clear()

    def _set(self, kernel: str, tile: Tile | None) -> None:
        self.module._READY.clear()
        if tile is None:
            return
        tiles = {**self.own, kernel: tile}
        self.module.TILES[self.row] = tuple(tuple(tiles[name]) for name in KERNELS)
        if kernel == "forward" and self.own_forward:
            self.module.HOPPER.clear()

    def _results(self) -> tuple[Any, ...]:
        out = self.function(*self.qkv, **self.params)
        return (out.detach(), *torch.autograd.grad(out, self.qkv, self.grad_out))

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
