"""What a stretch of queries needs of a stretch of keys: nothing, some of it or all, and how many pairs.

Takes a kernel's plan and spec, and params on the host; evaluates the plan's stretches in NumPy. A mask that reads data
of rows is evaluated pair by pair, up to a limit.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any, Literal, Protocol

import numpy as np

from attngen.ir.attention import Attention
from attngen.ir.evaluate import evaluate
from attngen.ir.nodes import Symbol
from attngen.ir.walk import params as read_params
from attngen.ir.walk import symbols
from attngen.plan import KernelPlan

Range = tuple[int, int]
"""Positions start … stop - 1."""


class Planned(Protocol):
    """What is asked of a kernel here."""

    @property
    def spec(self) -> Attention: ...
    @property
    def plan(self) -> KernelPlan: ...


_MOST = 2**26
"""Pairs that are looked at one by one."""


def visits(
    kernel: Planned,
    q_range: Range,
    k_range: Range,
    sizes: Range,
    params: Mapping[str, Any],
) -> Literal["none", "some", "all"]:
    area = _area(q_range, k_range)
    if area == 0:
        return "none"
    data = _data(kernel, params)
    if data is None:
        return "some"
    if _reads_rows(kernel) and area <= _MOST:
        allowed = _pairs(kernel, q_range, k_range, sizes, data)
        return "all" if allowed.all() else "some" if allowed.any() else "none"
    ends = _rows(kernel, q_range, sizes, data)
    if not _covered(kernel, "any", ends, data, k_range).any():
        return "none"
    return "all" if (_covered(kernel, "all", ends, data, k_range) == k_range[1] - k_range[0]).all() else "some"


def work(
    kernel: Planned,
    q_range: Range,
    k_range: Range,
    sizes: Range,
    params: Mapping[str, Any],
) -> int:
    area = _area(q_range, k_range)
    data = _data(kernel, params) if area else None
    if data is None:
        return area
    if _reads_rows(kernel) and area <= _MOST:
        return int(_pairs(kernel, q_range, k_range, sizes, data).sum((-1, -2)).max())
    counts = _covered(kernel, "any", _rows(kernel, q_range, sizes, data), data, k_range)
    return int(np.broadcast_to(counts, (*counts.shape[:-1], q_range[1] - q_range[0])).sum(-1).max())


def _rows(kernel: Planned, q_range: Range, sizes: Range, data: Mapping[str, Any]) -> dict[str, Any]:
    """Each query is a tile of its own: its stretches are exact where the mask can be solved for the key."""
    rows = np.arange(*q_range, dtype=np.int64)
    return {**_env(kernel, sizes, data), "q0": rows, "q1": rows}


def _area(q_range: Range, k_range: Range) -> int:
    return max(0, q_range[1] - q_range[0]) * max(0, k_range[1] - k_range[0])


def _data(kernel: Planned, params: Mapping[str, Any]) -> dict[str, Any] | None:
    """What the mask reads, in NumPy; None where something is missing."""
    needed = read_params(kernel.spec.mask)
    if any(name not in params for name in needed):
        return None
    return {n: x.detach().cpu().numpy() if hasattr(x, "detach") else x for n, x in params.items() if n in needed}


def _reads_rows(kernel: Planned) -> bool:
    """Whether the mask reads data of rows, which ranges do not know."""
    return bool(kernel.plan.keys.tests) or any(
        symbols(d) & {"Sq", "Sk"}
        for p in kernel.spec.params
        if p.name in read_params(kernel.spec.mask)
        for d in p.shape
    )


def _env(kernel: Planned, sizes: Range, data: Mapping[str, Any]) -> dict[str, Any]:
    """Batches and heads along the first axes, as many as the mask's params have."""
    found: dict[str, int] = {"B": 1, "Hq": 1, "Hkv": 1, "D": 1, "Dv": 1, "Sq": sizes[0], "Sk": sizes[1]}
    for p in kernel.spec.params:
        for axis, d in enumerate(p.shape if p.name in data else ()):
            if isinstance(d, Symbol) and d.id not in ("Sq", "Sk"):
                found[d.id] = int(np.shape(data[p.name])[axis])
    found["Hq"] = max(found["Hq"], found["Hkv"])
    renamed = dict(zip(kernel.spec.sizes, kernel.plan.attention.sizes, strict=True))
    found |= {renamed[name]: found[name] for name in renamed if name in found}
    heads = np.arange(found["Hq"])[:, None]
    return found | {
        "b": np.arange(found["B"])[:, None, None],
        "h": heads,
        "hkv": heads // (found["Hq"] // found["Hkv"]),
    }


def _pairs(kernel: Planned, q_range: Range, k_range: Range, sizes: Range, data: Mapping[str, Any]) -> Any:
    env = _env(kernel, sizes, data)
    env = env | {name: env[name][..., None] for name in ("b", "h", "hkv")}
    q, k = np.arange(*q_range)[:, None], np.arange(*k_range)[None, :]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        allowed = evaluate(kernel.spec.mask, {**env, "q": q, "k": k}, data)
    return np.broadcast_to(allowed, (*np.shape(allowed)[:-2], q.shape[0], k.shape[1]))


def _covered(kernel: Planned, which: str, env: Mapping[str, Any], data: Mapping[str, Any], k_range: Range) -> Any:
    """How many keys of the range are in the stretches `any` or `all`, by batch, head and row."""
    ranges = kernel.plan.keys
    unknown = {t.bound(f"all_{end}").id for t in ranges.tests for end in ("lo", "hi")}
    open_ends = {t.bound("any_lo").id: 0 for t in ranges.tests} | {
        t.bound("any_hi").id: env["Sk"] for t in ranges.tests
    }
    ends: list[tuple[Any, Any]] = []
    for s in getattr(ranges, which):
        if unknown & (symbols(s.lo) | symbols(s.hi)):
            continue
        known = {**env, **open_ends}
        low, high = (evaluate(e, known, data) for e in (s.lo, s.hi))
        low = np.maximum(low, k_range[0])
        ends.append((low, np.maximum(np.minimum(high, k_range[1]), low)))
    if not ends:
        return np.zeros(1, np.int64)
    bounds = np.stack(np.broadcast_arrays(*(end for own in ends for end in own)))
    lows, highs = bounds[::2], bounds[1::2]
    order = np.argsort(lows, 0, kind="stable")
    lows, highs = np.take_along_axis(lows, order, 0), np.take_along_axis(highs, order, 0)
    reach = np.full(lows.shape[1:], k_range[0])
    total = np.zeros(lows.shape[1:], np.int64)
    for low, high in zip(lows, highs, strict=True):
        begin = np.maximum(low, reach)
        total += np.maximum(high - begin, 0)
        reach = np.maximum(reach, high)
    return np.atleast_1d(total)
