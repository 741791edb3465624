"""Times one callable, in milliseconds: `triton.testing.do_bench` on a GPU, a plain loop on the CPU for dry runs."""

from __future__ import annotations

import importlib
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

torch: Any = importlib.import_module("torch")


@dataclass(frozen=True, slots=True)
class Timing:
    """Milliseconds over `runs` runs: the median, and the quantiles 0.2 and 0.8 as the spread."""

    ms: float
    q20: float
    q80: float
    runs: int

    def record(self, flops: float, graph_ms: float | None = None) -> dict[str, float | int]:
        """As the JSON has it; `graph_ms` where a CUDA graph's replay was timed, too."""
        tflops = flops / (self.ms * 1e-3) / 1e12
        found = {"ms": self.ms, "q20": self.q20, "q80": self.q80, "runs": self.runs, "tflops": tflops}
        return found if graph_ms is None else {**found, "graph_ms": graph_ms}


def quantile(values: Sequence[float], p: float) -> float:
    """Linear between the order statistics, as numpy has it."""
    ordered = sorted(values)
    place = p * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def summary(samples: Sequence[float]) -> Timing:
    return Timing(statistics.median(samples), quantile(samples, 0.2), quantile(samples, 0.8), len(samples))


def sample(work: Callable[[], object], *, device: str, warmup_ms: float, rep_ms: float) -> list[float]:
    """Milliseconds of each run. On a GPU the L2 cache is cleared before each, and the clock is the device's own."""
    if device == "cuda":
        testing: Any = importlib.import_module("triton.testing")
        return list(testing.do_bench(work, warmup=warmup_ms, rep=rep_ms, return_mode="all"))
    spent: list[float] = []
    work()
    while not spent or sum(spent) < rep_ms:
        start = time.perf_counter()
        work()
        spent.append((time.perf_counter() - start) * 1e3)
    return spent


def once(work: Callable[[], object], device: str) -> float:
    """Seconds of one call on the host's clock, device work included."""
    start = time.perf_counter()
    work()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start
