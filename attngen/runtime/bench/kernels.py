"""The kernels' own time: what a call runs on the device, without the host that launches it.

Where the host is slow, events around a short call (`clock.sample`) count how long the device waits for its next kernel.
torch's profiler records what the device runs. Takes calls by name, gives milliseconds by name; `per_call`, which adds
up, takes records alone and needs no GPU.
"""

from __future__ import annotations

import importlib
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

torch: Any = importlib.import_module("torch")

CLEARING = "bitwise_not_kernel"
"""In the name of the kernel that clears the L2 cache, and of no contender's."""
LEAD = 4
"""Clearings at the start of a profile, after which nobody is called: records may be lost there."""
CALLS, LEAST, BUDGET_MS = 10, 3, 40.0
"""Calls of each contender in a profile; fewer, but never fewer than so many, where the slowest takes longer."""


@dataclass(frozen=True, slots=True)
class Activity:
    """What the device did on its own account: a kernel, a copy or a fill. Microseconds."""

    name: str
    start: float
    duration: float


def activities(events: Iterable[Any]) -> list[Activity]:
    """The device's part of a profile's events. Ranges that a program gives a name to are no work."""
    device = torch.autograd.DeviceType.CUDA
    return [
        Activity(e.name, e.time_range.start, e.time_range.elapsed_us())
        for e in events
        if e.device_type == device and not e.is_user_annotation
    ]


def per_call(found: Iterable[Activity], called: Sequence[str]) -> dict[str, float]:
    """Milliseconds that the device works for one call, by contender: the sum of what it runs, at the median of calls.

    `called` says who was called after each clearing of the cache, in order; "" is nobody. What comes first may be lost,
    so clearings are matched from the last one back. Those calls count that ran what most calls of the contender ran;
    where there is no such majority, or there are more clearings than were asked for, there is no figure.
    """
    groups: list[list[Activity]] = []
    for activity in sorted(found, key=lambda a: a.start):
        if CLEARING in activity.name:
            groups.append([])
        elif groups:
            groups[-1].append(activity)
    if len(groups) > len(called):
        return {}
    seen = list(zip(called[len(called) - len(groups) :], groups, strict=True))
    times: dict[str, float] = {}
    for name in dict.fromkeys(called):
        ran = [
            (tuple(sorted(a.name for a in group)), sum(a.duration for a in group)) for who, group in seen if who == name
        ]
        usual, count = Counter(names for names, _ in ran).most_common(1)[0] if ran else ((), 0)
        if name and usual and 2 * count > len(ran):
            times[name] = statistics.median(spent for names, spent in ran if names == usual) / 1e3
    return times


def calls_of(slowest_ms: float) -> int:
    """How many calls of each contender a profile has."""
    return max(LEAST, min(CALLS, int(BUDGET_MS / max(slowest_ms, 1e-3))))


def profiled(works: Mapping[str, Callable[[], object]], count: int) -> dict[str, float]:
    """`per_call` of `count` calls of each, turn about, the L2 cache cleared before each, in one profile of this GPU."""
    profiler: Any = importlib.import_module("torch.profiler")
    driver: Any = importlib.import_module("triton.runtime").driver
    cache = driver.active.get_empty_cache_for_benchmark()
    cache.bitwise_not_()  # loads it
    torch.cuda.synchronize()
    called = [""] * LEAD
    with profiler.profile(activities=[profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(LEAD):
            cache.bitwise_not_()
        for _ in range(count):
            for name, work in works.items():
                cache.bitwise_not_()
                called.append(name)
                work()
        torch.cuda.synchronize()
    return per_call(activities(profile.events() or ()), called)
