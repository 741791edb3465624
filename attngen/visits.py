"""What a stretch of queries needs of a stretch of keys: nothing, some of it or all, and how many pairs.

Takes a kernel's plan and spec, and params on the host; evaluates the plan's stretches in NumPy, for each query alone. A
mask with holes is asked tile by tile (`plan/host_map.py`). Another one that reads data of rows, or that stretches do
not solve exactly, is evaluated pair by pair, up to a limit; beyond it, a comparison of row data with column data is
answered by the hull of the keys for which it holds.

Floats are float32, as in a kernel. Where a kernel may round otherwise (`ir.rounded`), a pair may be allowed.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from attngen.errors import UsageError
from attngen.ir import printing
from attngen.ir.attention import Attention, Param
from attngen.ir.build import integer
from attngen.ir.evaluate import as_array, evaluate
from attngen.ir.nodes import Expr, Literal as Number, Load, Symbol
from attngen.ir.rounded import bounds, varies
from attngen.ir.walk import params as read_params, symbols, transform
from attngen.piece_arguments import check_known, check_params, check_stretch
from attngen.plan import KernelPlan
from attngen.plan.host_map import HostMap
from attngen.plan.mask.data_tests import DataTest
from attngen.plan.mask.holes import map_of

Range = tuple[int, int]
"""Positions start … stop - 1."""
Rows: TypeAlias = npt.NDArray[np.int64]


class Planned(Protocol):
    """What is asked of a kernel here."""

    @property
    def spec(self) -> Attention: ...
    @property
    def plan(self) -> KernelPlan: ...


_MOST = 2**26
"""Pairs that are looked at one by one."""
_MOST_OF_ALL = 2**22
"""The same where every query of a sequence is asked about."""
_AT_ONCE = 2**18
"""Rows that are looked at together."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """What a mask is asked about: a sequence's Sq and Sk, and what else it reads, as far as it is known on the host."""

    sizes: Range
    params: Mapping[str, Any]
    extents: Mapping[str, int] = field(default_factory=dict[str, int])
    """Sizes beside Sq and Sk, by name: B, Hq, Hkv, D, Dv."""


def asked(kernel: Planned, q_range: Any, k_range: Any, Sq: Any, Sk: Any, params: Mapping[str, Any]) -> Case:
    """The case of a call, where a param may be None. Raises `UsageError` for an argument that does not fit."""
    spec = kernel.spec
    check_known(spec.name, spec.params, params)
    check_stretch(spec.name, "q_range", q_range, "Sq", Sq)
    check_stretch(spec.name, "k_range", k_range, "Sk", Sk)
    sizes: dict[str, int] = {"Sq": Sq, "Sk": Sk}
    given = {n: x for n, x in params.items() if x is not None and n in read_params(spec.mask)}
    shapes = check_params(spec, given, sizes)
    values = {n: as_array(x, spec.param(n).type) for n, x in given.items()}
    values = {n: np.broadcast_to(x, shapes[n]) if n in shapes else x for n, x in values.items()}
    for p in spec.params:
        if p.name not in values or not p.is_scalar or p.where is None:
            continue
        known = {*read_params(p.where)} <= {*values} and symbols(p.where) <= {*sizes}
        if known and not evaluate(p.where, sizes, values, np.float32).all():
            fact = printing.expression(p.where)
            raise UsageError(f"{spec.name}: {p.name} must satisfy {fact}, not {values[p.name].item()}")
    return Case(sizes=(Sq, Sk), params=values)


def visits(
    kernel: Planned,
    q_range: Range,
    k_range: Range,
    case: Case,
) -> Literal["none", "some", "all"]:
    area = _area(q_range, k_range)
    if area == 0:
        return "none"
    data = _data(kernel, case)
    if data is None:
        return "some"
    found_map = _map(kernel, case, data)
    if found_map is not None:
        least, most = found_map.counts(q_range, k_range)
        return "none" if not most.any() else "all" if (least == k_range[1] - k_range[0]).all() else "some"
    if area > _MOST or not _reads_rows(kernel):
        least, most = _bounds(kernel, q_range, k_range, case, data)
        if not most.any():
            return "none"
        if (least == k_range[1] - k_range[0]).all():
            return "all"
        if area > _MOST or bool((least == most).all()):
            return "some"
    found: set[bool] = set()
    for certain, possible in _blocks(kernel, q_range, k_range, case, data):
        found |= {bool(possible.any()), bool(certain.all())}
        if len(found) == 2:
            return "some"
    return "all" if found == {True} else "none"


def work(
    kernel: Planned,
    q_range: Range,
    k_range: Range,
    case: Case,
) -> int:
    area = _area(q_range, k_range)
    data = _data(kernel, case) if area else None
    if data is None:
        return area
    found_map = _map(kernel, case, data)
    if found_map is not None:
        return int(found_map.counts(q_range, k_range)[1].sum(-1).max())
    if area > _MOST or not _reads_rows(kernel):
        least, most = _bounds(kernel, q_range, k_range, case, data)
        if area > _MOST or bool((least == most).all()):
            return int(np.broadcast_to(most, (*most.shape[:-1], q_range[1] - q_range[0])).sum(-1).max())
    counts = [possible.sum((-1, -2)) for _, possible in _blocks(kernel, q_range, k_range, case, data)]
    return int(np.max(np.sum(counts, 0)))


def _bounds(kernel: Planned, q_range: Range, k_range: Range, case: Case, data: Mapping[str, Any]) -> tuple[Any, Any]:
    """By row, how many keys are certainly allowed, and how many may be. The same, where the mask is solved exactly."""
    ends = _rows(kernel, np.arange(*q_range), case, data)
    return _covered(kernel, "all", ends, data, k_range), _covered(kernel, "any", ends, data, k_range)


def _blocks(
    kernel: Planned, q_range: Range, k_range: Range, case: Case, data: Mapping[str, Any]
) -> Iterator[tuple[Any, Any]]:
    """The mask by its definition, some rows at a time: which pairs are certainly allowed, and which may be."""
    certain, possible = bounds(kernel.spec.mask)
    rows = max(1, _AT_ONCE // (k_range[1] - k_range[0]))
    for start in range(*q_range, rows):
        own = np.arange(start, min(start + rows, q_range[1]))
        found = _pairs(kernel, possible, own, k_range, case, data)
        yield found if certain is possible else _pairs(kernel, certain, own, k_range, case, data), found


def row_work(kernel: Planned, case: Case) -> npt.NDArray[np.float64]:
    """Keys that each query may attend to, at least: the mean over batches and heads. See `needed`."""
    rows, keys = case.sizes
    data = _data(kernel, case)
    if data is None:
        return np.full(rows, float(keys))
    found_map = _map(kernel, case, data)
    if found_map is not None and rows and keys:
        return found_map.counts((0, rows), (0, keys))[1].mean((0, 1), dtype=np.float64)
    _, possible = bounds(kernel.spec.mask)
    found = [np.empty(0)]
    for part in _spans((0, rows)):
        if _exact(kernel, case):
            counts = _pairs(kernel, possible, np.arange(*part), (0, keys), case, data).sum(-1)
        else:
            counts = _covered(kernel, "any", _rows(kernel, np.arange(*part), case, data), data, (0, keys))
        counts = np.broadcast_to(counts, (*counts.shape[:-1], part[1] - part[0]))
        found.append(counts.reshape(-1, part[1] - part[0]).mean(0, dtype=np.float64))
    return np.concatenate(found)


def needed(kernel: Planned, q_ranges: Sequence[Range], case: Case) -> list[tuple[Range, ...]]:
    """For each range of queries, stretches of keys that hold every key to which some of them may attend: ascending,
    apart.

    All keys, where the mask reads what `case` does not know. A narrow gap counts as needed, so that stretches are few.
    """
    keys = case.sizes[1]
    data = _data(kernel, case)
    if data is None or keys == 0:
        return [((0, keys),) if _area(r, (0, keys)) else () for r in q_ranges]
    found_map = _map(kernel, case, data)
    if found_map is not None and not _exact(kernel, case):
        return [tuple(_few(_keys_met(found_map, r, keys), keys)) for r in q_ranges]
    _, possible = bounds(kernel.spec.mask)
    found: list[list[Range]] = [[] for _ in q_ranges]
    parts = [(i, part) for i, r in enumerate(q_ranges) for part in _spans(r)]
    while parts:
        here, count = [parts.pop(0)], 0
        while parts and (count := count + here[-1][1][1] - here[-1][1][0]) < _AT_ONCE:
            here.append(parts.pop(0))
        rows = np.concatenate([np.arange(*part) for _, part in here])
        if _exact(kernel, case):
            seen = _pairs(kernel, possible, rows, (0, keys), case, data)
            at = 0
            for i, (start, stop) in here:
                own = np.flatnonzero(seen[..., at : at + stop - start, :].reshape(-1, keys).any(0))
                found[i] += _union(own, own + 1)
                at += stop - start
        else:
            lows, highs = _ends(kernel, "any", _rows(kernel, rows, case, data), data, (0, keys))
            lows, highs = (np.broadcast_to(x, (*x.shape[:-1], len(rows))) for x in (lows, highs))
            at = 0
            for i, (start, stop) in here:
                own = slice(at, at + stop - start)
                found[i] += _union(lows[..., own].reshape(-1), highs[..., own].reshape(-1))
                at += stop - start
    return [tuple(_few(_joined(ranges), keys)) for ranges in found]


def seeing(kernel: Planned, q_range: Range, case: Case) -> Callable[[Range], Range] | None:
    """A function that says of a range of keys which queries of `q_range` may attend to some of it: from the first to
    the last. None, where stretches do not say: the mask reads data of rows, or what `case` does not know."""
    found_map = mapped(kernel, case)
    if found_map is not None and q_range[0] < q_range[1]:
        return _seeing_by_tiles(found_map, q_range, case.sizes[1])
    if _reads_rows(kernel):
        return None
    ends = stretches(kernel, np.arange(*q_range), case)
    if ends is None:
        return None
    lows, highs = (x.reshape(-1, x.shape[-1]) for x in ends)
    first, last = (list(zip(lows[:, i].tolist(), highs[:, i].tolist(), strict=True)) for i in (0, -1))

    def narrowed(keys: Range) -> Range:
        if all(any(max(low, keys[0]) < min(high, keys[1]) for low, high in row) for row in (first, last)):
            return q_range
        own = np.flatnonzero((np.maximum(lows, keys[0]) < np.minimum(highs, keys[1])).any(0))
        return (q_range[0] + int(own[0]), q_range[0] + int(own[-1]) + 1) if own.size else (q_range[0], q_range[0])

    return narrowed


def _seeing_by_tiles(found: HostMap, q_range: Range, keys: int) -> Callable[[Range], Range]:
    q_ends, k_ends, some = found.met(q_range, (0, keys))

    def narrowed(k_range: Range) -> Range:
        own = (k_ends[:-1] < k_range[1]) & (k_ends[1:] > k_range[0])
        met = np.flatnonzero(some[:, own].any(1))
        return (int(q_ends[met[0]]), int(q_ends[met[-1] + 1])) if met.size else (q_range[0], q_range[0])

    return narrowed


def stretches(kernel: Planned, rows: Rows, case: Case) -> tuple[Any, Any] | None:
    """Where the plan's stretches `any` begin and end for each of these queries, (stretch, batch, head, row): no key
    outside is allowed. None, where the mask reads what `case` does not know."""
    data = _data(kernel, case)
    if data is None:
        return None
    lows, highs = _ends(kernel, "any", _rows(kernel, rows, case, data), data, (0, case.sizes[1]))
    return tuple(np.broadcast_to(x, (*x.shape[:-1], len(rows))) for x in (lows, highs))  # pyright: ignore[reportReturnType]


def pairs(kernel: Planned, rows: Rows, k_range: Range, case: Case) -> Any:
    """Which pairs may be allowed, (batch, head, row, key), by the mask's definition; it may read what `case` knows."""
    data = _data(kernel, case)
    if data is None:
        raise UsageError(f"{kernel.spec.name}: the mask reads more than is given")
    allowed = _pairs(kernel, bounds(kernel.spec.mask)[1], rows, k_range, case, data)
    return allowed.reshape((1,) * (4 - allowed.ndim) + allowed.shape)


def mapped(kernel: Planned, case: Case) -> HostMap | None:
    """What the mask allows of tiles, where it has holes between them and reads no more than `case` knows."""
    data = _data(kernel, case)
    return None if data is None else _map(kernel, case, data)


def _map(kernel: Planned, case: Case, data: Mapping[str, Any]) -> HostMap | None:
    plan = kernel.plan
    mask = plan.attention.mask
    test = plan.map or map_of(mask, plan.keys, plan.facts)  # of targets whose kernels have no map, too
    return None if test is None else HostMap(test=test, mask=mask, env=_env(kernel, case, data), data=data)


def _keys_met(found: HostMap, q_range: Range, keys: int) -> list[Range]:
    if q_range[0] == q_range[1]:
        return []
    _, ends, some = found.met(q_range, (0, keys))
    met = np.flatnonzero(some.any(0))
    return _union(ends[met], ends[met + 1])


def _exact(kernel: Planned, case: Case) -> bool:
    return _reads_rows(kernel) and case.sizes[0] * case.sizes[1] <= _MOST_OF_ALL


def _spans(rows: Range) -> list[Range]:
    return [(start, min(start + _AT_ONCE, rows[1])) for start in range(*rows, _AT_ONCE)]


def _union(lows: Any, highs: Any) -> list[Range]:
    lows, highs = lows[lows < highs], highs[lows < highs]
    if not lows.size:
        return []
    order = np.argsort(lows, kind="stable")
    lows, reach = lows[order], np.maximum.accumulate(highs[order])
    first = np.concatenate([[True], lows[1:] > reach[:-1]])
    last = np.concatenate([first[1:], [True]])
    return [(int(a), int(b)) for a, b in zip(lows[first], reach[last], strict=True)]


def _joined(ranges: list[Range]) -> list[Range]:
    lows, highs = np.array(ranges, np.int64).reshape(-1, 2).T
    return _union(lows, highs)


def _few(ranges: list[Range], size: int) -> list[Range]:
    """At most eight, with gaps that are worth another kernel: a tile at least, or a 64th of a short sequence."""
    gaps = sorted((b[0] - a[1] for a, b in pairwise(ranges)), reverse=True)
    least = max(min(128, size // 64), gaps[7] if len(gaps) > 7 else 0)
    found = ranges[:1]
    for start, stop in ranges[1:]:
        if start - found[-1][1] <= least:
            found[-1] = found[-1][0], stop
        else:
            found.append((start, stop))
    return found


def _rows(kernel: Planned, rows: Rows, case: Case, data: Mapping[str, Any]) -> dict[str, Any]:
    """Each query is a tile of its own: its stretches are exact where the mask can be solved for the key."""
    env = _env(kernel, case, data) | {"q0": rows, "q1": rows}
    for test in kernel.plan.keys.tests:
        if varies(test.row) or varies(test.col):  # rows of pairs are as long as the sequence
            env |= {test.bound("any_lo").id: np.zeros_like(rows), test.bound("any_hi").id: rows * 0 + case.sizes[1]}
        else:
            env |= _hull(test, {**env, "q": rows, "k": np.arange(case.sizes[1], dtype=np.int64)}, data)
    return env


def _hull(test: DataTest, env: Mapping[str, Any], data: Mapping[str, Any]) -> dict[str, Any]:
    """For each row, from the first to the last key for which the test holds: a row's value is sought among the keys'
    values in order, each with the first and the last key that has it (`==`), or one that the test holds for."""
    row, col = (evaluate(e, env, data, np.float32) for e in (test.row, test.col))
    shape = np.broadcast_shapes(row.shape[:-1], col.shape[:-1])
    row, col = (np.broadcast_to(x, (*shape, len(env[axis]))) for axis, x in (("q", row), ("k", col)))
    low, high = np.empty(row.shape, np.int64), np.empty(row.shape, np.int64)
    for at in np.ndindex(*shape):
        order = np.argsort(col[at], kind="stable")
        values = col[at][order]
        left = np.searchsorted(values, row[at], "right" if test.sign == "<" else "left")
        if test.sign == "==":
            right = np.searchsorted(values, row[at], "right")
            first, last = np.append(order, 0)[left], order[right - 1]
        else:
            right = np.full(left.shape, len(values))
            first = np.append(np.minimum.accumulate(order[::-1])[::-1], 0)[left]
            last = np.append(np.maximum.accumulate(order[::-1])[::-1], 0)[left]
        some = left < right
        low[at], high[at] = np.where(some, first, 0), np.where(some, last + 1, 0)
    return {test.bound("any_lo").id: low, test.bound("any_hi").id: high}


def _area(q_range: Range, k_range: Range) -> int:
    return max(0, q_range[1] - q_range[0]) * max(0, k_range[1] - k_range[0])


_OF_INDEX = {"b": "B", "h": "Hq", "hkv": "Hkv"}


def _data(kernel: Planned, case: Case) -> dict[str, Any] | None:
    """What the mask reads, in NumPy; None where something is missing."""
    mask = kernel.spec.mask
    read = read_params(mask)
    if any(name not in case.params for name in read):
        return None
    given = {n: as_array(x, kernel.spec.param(n).type) for n, x in case.params.items() if n in read}
    sizes = {**case.extents, "Sq": case.sizes[0], "Sk": case.sizes[1]}
    params = [p for p in kernel.spec.params if p.name in given and p.shape]
    for p in params:
        own = np.shape(given[p.name])
        if len(own) != len(p.shape):
            raise UsageError(f"{kernel.spec.name}: {p.name} must have {len(p.shape)} dimensions, not shape {own}")
        for d, length in zip(p.shape, own, strict=True):
            if isinstance(d, Symbol) and length != 1 and d.id not in ("Sq", "Sk"):
                sizes[d.id] = length
    if {_OF_INDEX.get(name, name) for name in _told_apart(mask, given)} & {"B", "Hq", "Hkv", "D", "Dv"} - sizes.keys():
        return None
    return {**given, **{p.name: np.broadcast_to(given[p.name], _wanted(p, given, sizes)) for p in params}}


def _told_apart(mask: Expr, given: Mapping[str, Any]) -> frozenset[str]:
    """The symbols on which the mask depends, where one element of a param stands for all of a dimension. The sizes of
    the others do not matter."""

    def one_for_all(e: Expr) -> Expr | None:
        if not isinstance(e, Load):
            return None
        lengths = np.shape(given[e.param])[: len(e.indices)]
        kept = (integer(0) if n == 1 else transform(i, one_for_all) for i, n in zip(e.indices, lengths, strict=True))
        return replace(e, indices=tuple(kept), member=e.member and transform(e.member, one_for_all))

    return symbols(transform(mask, one_for_all))


def _wanted(p: Param, given: Mapping[str, Any], sizes: Mapping[str, int]) -> list[int]:
    found: list[int] = []
    for d, n in zip(p.shape, np.shape(given[p.name]), strict=True):
        match d:
            case Symbol() if n == 1:
                found.append(sizes.get(d.id, 1))
            case Number() if n == 1:
                found.append(int(d.value))
            case _:
                found.append(n)
    return found


def _reads_rows(kernel: Planned) -> bool:
    """Whether the mask reads data of rows, which ranges do not know."""
    return bool(kernel.plan.keys.tests) or any(
        symbols(d) & {"Sq", "Sk"}
        for p in kernel.spec.params
        if p.name in read_params(kernel.spec.mask)
        for d in p.shape
    )


def _env(kernel: Planned, case: Case, data: Mapping[str, Any]) -> dict[str, Any]:
    """Batches and heads along the first axes, as many as are known: `_data` sees to it that the mask reads no more."""
    found: dict[str, int] = {"B": 1, "Hq": 1, "Hkv": 1, "D": 1, "Dv": 1, **case.extents}
    found |= {"Sq": case.sizes[0], "Sk": case.sizes[1]}
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


def _pairs(kernel: Planned, mask: Expr, rows: Rows, k_range: Range, case: Case, data: Mapping[str, Any]) -> Any:
    env = _env(kernel, case, data)
    env = env | {name: env[name][..., None] for name in ("b", "h", "hkv")}
    q, k = rows[:, None], np.arange(*k_range)[None, :]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        allowed = evaluate(mask, {**env, "q": q, "k": k}, data, np.float32)
    return np.broadcast_to(allowed, (*np.shape(allowed)[:-2], q.shape[0], k.shape[1]))


def _ends(
    kernel: Planned, which: str, env: Mapping[str, Any], data: Mapping[str, Any], k_range: Range
) -> tuple[Any, Any]:
    """The stretches `any` or `all`, cut to the range: where they begin and end, (stretch, batch, head, row), by rows in
    the order in which they begin."""
    ranges = kernel.plan.keys
    unknown = {t.bound(f"all_{end}").id for t in ranges.tests for end in ("lo", "hi")}
    ends: list[tuple[Any, Any]] = []
    for s in getattr(ranges, which):
        if unknown & (symbols(s.lo) | symbols(s.hi)):
            continue
        low, high = np.asarray(k_range[0]), np.asarray(k_range[1])
        if not (varies(s.lo) or varies(s.hi)):
            low, high = (evaluate(e, env, data, np.float32) for e in (s.lo, s.hi))
        elif which == "all":
            continue
        low = np.maximum(low, k_range[0])
        ends.append((low, np.maximum(np.minimum(high, k_range[1]), low)))
    if not ends:
        return np.zeros((1, 1), np.int64), np.zeros((1, 1), np.int64)
    bounds = np.stack([np.atleast_1d(x) for x in np.broadcast_arrays(*(end for own in ends for end in own))])
    lows, highs = bounds[::2], bounds[1::2]
    order = np.argsort(lows, 0, kind="stable")
    return np.take_along_axis(lows, order, 0), np.take_along_axis(highs, order, 0)


def _covered(kernel: Planned, which: str, env: Mapping[str, Any], data: Mapping[str, Any], k_range: Range) -> Any:
    """How many keys of the range are in the stretches `any` or `all`, by batch, head and row."""
    lows, highs = _ends(kernel, which, env, data, k_range)
    reach = np.full(lows.shape[1:], k_range[0])
    total = np.zeros(lows.shape[1:], np.int64)
    for low, high in zip(lows, highs, strict=True):
        begin = np.maximum(low, reach)
        total += np.maximum(high - begin, 0)
        reach = np.maximum(reach, high)
    return total
