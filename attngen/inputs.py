"""Example inputs: sizes and param values that a spec accepts, for pictures and for verification.

Takes an `Attention` and what the caller wants of the sizes; returns sizes that fulfil every `assume`, and for each
param a value that fulfils its `where`. The values are drawn to look like what such a param is for: int vectors along
the sequence are runs (packed documents), other ints are lengths, bools are padding, floats along the sequence that the
mask reads are rising times. Same seed, same values. Knows nothing of plans and kernels.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import StrEnum
from itertools import chain
from typing import Any, TypeAlias, assert_never

import numpy as np

from attngen.errors import UsageError
from attngen.ir import build, printing, walk
from attngen.ir.attention import Attention, Param
from attngen.ir.evaluate import Array, evaluate
from attngen.ir.lists import empty_sizes
from attngen.ir.nodes import SIZES, Apply, Expr, Literal, Op, Storage, Symbol, Type

Value: TypeAlias = bool | int | float | Array

_GRID = 1_000_000  # sizes tried at once
_FEW = 3  # elements of a list


class Ints(StrEnum):
    """Which values int params get: those that masks are written for, or those at an end of 32 bits."""

    TELLING = "telling"
    LEAST = "least"
    GREATEST = "greatest"


# ---------------------------------------------------------------- sizes


def settle(
    attention: Attention, wanted: Mapping[str, int], fixed: Collection[str] = (), *, empty: bool = False
) -> dict[str, int]:
    """The sizes closest to `wanted` that fulfil every `assume` about sizes alone; those named in `fixed` stay.

    `wanted` gives every one of the language's sizes; a size bound at the call is taken as long as the keys unless it is
    given, one of lists alone as a few. Sizes are at least 1, or with `empty` 0. Raises `UsageError` where nothing near
    fits.
    """
    lists = empty_sizes(attention)
    target = {name: wanted.get(name, _FEW if name in lists else wanted["Sk"]) for name in (*SIZES, *attention.sizes)}
    facts = [fact for fact in attention.assumes if not walk.params(fact) and walk.symbols(fact) <= set(target)]
    free = [name for name in target if name not in fixed and any(walk.reads(fact, name) for fact in facts)]
    if "Hq" in free or "Hkv" in free:
        groups = build.apply(Op.MOD, build.index("Hq"), build.index("Hkv"))
        facts.append(build.apply(Op.EQ, groups, build.integer(0)))
    budget = int(_GRID ** (1 / max(len(free), 1)))
    choices = [_near(target[name], target.values(), budget, 0 if empty else 1) for name in free]
    env: dict[str, Any] = dict(target)
    distance: Array = np.zeros(())
    for axis, (name, values) in enumerate(zip(free, choices, strict=True)):
        env[name] = values.reshape([-1 if i == axis else 1 for i in range(len(free))])
        distance = distance + np.abs(env[name] - target[name]) / max(target[name], 1)
    shape = tuple(len(values) for values in choices)
    for fact in facts:
        holds = np.broadcast_to(evaluate(fact, env, {}), shape)
        if not holds.any():
            raise UsageError(f"no sizes near {_sizes_text(target)} fulfil `assume {printing.expression(fact)}`")
        distance = np.where(holds, distance, np.inf)
    best = np.unravel_index(int(np.argmin(distance)), shape) if shape else ()
    if not np.isfinite(distance[best]):
        raise UsageError(f"no sizes near {_sizes_text(target)} fulfil every `assume` of {attention.name}")
    return target | {name: int(values[i]) for name, values, i in zip(free, choices, best, strict=True)}


def _near(value: int, others: Iterable[int], budget: int, least: int) -> Array:
    """At most `budget` sizes to try in the place of `value`, none below `least`, the likely ones first."""
    around = (value + sign * step for step in range(1, 9) for sign in (1, -1))
    round_numbers = (16 * i for i in range(1, 129))
    powers = (2**i for i in range(13))
    likely = chain([value], others, around, round_numbers, powers, range(1, 4097))
    return np.array(list(dict.fromkeys(x for x in likely if x >= least))[: max(budget, 1)], np.int64)


def _sizes_text(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{name}={value}" for name, value in sizes.items())


def sizes_of(attention: Attention, data: Mapping[str, Array]) -> dict[str, int]:
    """The sizes that the shapes of tensor params say. Raises `UsageError` where they say two."""
    found: dict[str, int] = {}
    empty = [build.index(name) for name in empty_sizes(attention)]
    for name, value in data.items():
        param = _named(attention, name)
        dims = ", ".join(map(printing.expression, param.shape))
        if param.is_scalar:
            raise UsageError(f"param `{name}` is a scalar; only tensors can be given data")
        lengths = zip(param.shape, value.shape, strict=False)
        if value.ndim != len(param.shape) or any(n == 0 and dim not in empty for dim, n in lengths):
            raise UsageError(f"param `{name}` has the shape ({dims}), and its data {value.shape}")
        for dim, n in zip(param.shape, value.shape, strict=True):
            if isinstance(dim, Symbol) and found.setdefault(dim.id, n) != n:
                raise UsageError(f"the data say both {dim.id} = {found[dim.id]} and {dim.id} = {n}")
    return found


# ---------------------------------------------------------------- params


def examples(
    attention: Attention,
    sizes: Mapping[str, int],
    given: Mapping[str, bool | int | float] | None = None,
    *,
    data: Mapping[str, Array] | None = None,
    only: Collection[str] | None = None,
    seed: int = 0,
    ints: Ints = Ints.TELLING,
) -> dict[str, Value]:
    """A value for every param: `given` scalars and tensors of `data` as they are, the others drawn. Tensors are NumPy
    arrays.

    `only` leaves out all params but those named (a dense bias that a picture of the mask has no use for, say).
    `ints` other than `TELLING` concern the params of `far_ints`, and of a tensor some elements.
    Every value is representable in the param's storage. Raises `UsageError` for a given value that doesn't fit, and
    where no value that fulfils the facts is found.
    """
    given, data = dict(given or {}), dict(data or {})
    for name in given:
        if not _named(attention, name).is_scalar:
            raise UsageError(f"param `{name}` is a tensor; only scalars can be given a value")
    rng = np.random.default_rng(seed)
    values: dict[str, Value] = {}
    wanted = [p for p in attention.params if only is None or p.name in {*only, *given, *data}]
    far = frozenset[str]() if ints is Ints.TELLING else far_ints(attention)
    for param in sorted(wanted, key=lambda p: not p.is_scalar):  # facts about tensors may read scalars
        facts = _facts(attention, param, values)
        if param.name in given:
            values[param.name] = _given(param, given[param.name], facts, sizes, values)
        elif param.name in data:
            values[param.name] = _given_tensor(param, data[param.name], facts, sizes, values)
        elif param.is_scalar:
            candidates = _scalar_candidates(param.storage, max(sizes["Sq"], sizes["Sk"]))
            candidates = _by_size(param.storage, candidates, facts, ints) if param.name in far else candidates
            values[param.name] = _first(param, candidates, facts, sizes, values).item()
        else:
            value = _tensor(attention, param, facts, sizes, values, rng)
            if param.name in far:
                ends = _by_size(param.storage, np.zeros(1, np.int64), facts, ints)
                ends = ends[_holds(param, ends, facts, sizes, values)][:_ENDS]
                value = (
                    np.where(rng.random(value.shape) < 0.25, rng.choice(ends, value.shape), value)
                    if len(ends)
                    else value
                )
            values[param.name] = value
    _check_assumes(attention, sizes, values)
    return {p.name: values[p.name] for p in wanted}


def far_ints(attention: Attention) -> frozenset[str]:
    """The int params that can be far from 0: no float is made of them, and no fact ties them to another param."""
    n = attention.normalizer
    roots = [attention.score, attention.dropout, n.weight, n.extra, n.stream_weight, n.rescale]
    floats = [
        node.args[0] if node.op is Op.TO_FLOAT else node.args[1]
        for root in roots
        if root is not None
        for node in walk.nodes(root)
        if isinstance(node, Apply) and node.op in (Op.TO_FLOAT, Op.POW)
    ]
    facts = [*attention.assumes, *(p.where for p in attention.params if p.where is not None)]
    tied = [fact for fact in facts if len(set(walk.params(fact))) > 1]
    near = {name for e in (*floats, *tied) for name in walk.params(e)}
    return frozenset(p.name for p in attention.params if p.type is Type.INT and p.name not in near)


_ENDS = 8
"""So many values at an end of the storage are drawn from."""


def _by_size(storage: Storage, candidates: Array, facts: Sequence[Expr], ints: Ints) -> Array:
    """The candidates, powers of two, the facts' constants and the storage's ends, from the end that is asked for."""
    low, high = _int_ends(storage)
    stated = (n.value for fact in facts for n in walk.nodes(fact) if isinstance(n, Literal) and n.type is Type.INT)
    near_facts = {int(value) + step for value in stated for step in (-1, 0, 1)}
    powers = {sign * 2**i + step for i in range(31) for sign in (1, -1) for step in (-1, 0, 1)}
    at_ends = {end for step in range(64) for end in (high - step, low + step)}
    found = {*candidates.tolist(), *powers, *near_facts, *at_ends}
    inside = [x for x in found if low <= x <= high]
    return np.array(sorted(inside, reverse=ints is Ints.GREATEST), np.int64)


def _int_ends(storage: Storage) -> tuple[int, int]:
    assert storage.ends is not None
    return storage.ends


def _named(attention: Attention, name: str) -> Param:
    names = {p.name for p in attention.params}
    if name not in names:
        raise UsageError(f"{attention.name} has no param `{name}`" + (f"; it has {_listed(names)}" if names else ""))
    return attention.param(name)


def _listed(names: Collection[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names))


def _facts(attention: Attention, param: Param, known: Mapping[str, Value]) -> list[Expr]:
    """What must hold of `param`, as far as it can be evaluated now. A tensor stands in its own fact as a scalar."""
    readable = {*known, param.name}
    facts = [fact for fact in [param.where] if fact is not None]
    if param.is_scalar:
        facts += [fact for fact in attention.assumes if param.name in walk.params(fact)]
    sizes = {*SIZES, *attention.sizes}
    return [fact for fact in facts if set(walk.params(fact)) <= readable and walk.symbols(fact) <= sizes]


def _holds(
    param: Param, value: Any, facts: Sequence[Expr], sizes: Mapping[str, int], known: Mapping[str, Value]
) -> Array:
    """Where the facts hold, element by element."""
    result: Array = np.ones(np.shape(value), np.bool_)
    for fact in facts:
        result = result & evaluate(fact, sizes, {**known, param.name: value})
    return result


def _given(
    param: Param, value: bool | int | float, facts: Sequence[Expr], sizes: Mapping[str, int], known: Mapping[str, Value]
) -> Value:
    fits = isinstance(value, bool) if param.type is Type.BOOL else not isinstance(value, bool)
    if not fits or (param.type is Type.INT and not isinstance(value, int)):
        raise UsageError(f"param `{param.name}` is {param.storage.value}; {value!r} doesn't fit")
    for fact in facts:
        if not _holds(param, value, [fact], sizes, known):
            raise UsageError(f"param `{param.name}` = {value!r} breaks `{printing.expression(fact)}`")
    return float(value) if param.type is Type.FLOAT else value


_KINDS = {Type.BOOL: "bu", Type.INT: "iu", Type.FLOAT: "f"}
"""What NumPy calls the kinds of numbers that data may have. A bool may come as bytes."""


def _given_tensor(
    param: Param, value: Array, facts: Sequence[Expr], sizes: Mapping[str, int], known: Mapping[str, Value]
) -> Array:
    shape = tuple(int(evaluate(dim, sizes, {})) for dim in param.shape)
    dims = ", ".join(map(printing.expression, param.shape))
    if value.shape != shape:
        raise UsageError(f"param `{param.name}` must have shape ({dims}) = {shape}, and its data have {value.shape}")
    if value.dtype.kind not in _KINDS[param.type] or (param.type is Type.BOOL and value.dtype.itemsize != 1):
        raise UsageError(f"param `{param.name}` is {param.storage.value}, and its data are {value.dtype}")
    whole = {Type.BOOL: np.bool_, Type.INT: np.int64, Type.FLOAT: np.float64}[param.type]
    kept = round_to(param.storage, value.astype(whole))
    if param.type is Type.INT and not np.array_equal(kept, value):
        raise UsageError(f"param `{param.name}` is {param.storage.value}, and its data do not fit in it")
    for fact in facts:
        wrong = np.argwhere(~_holds(param, kept, [fact], sizes, known))
        if len(wrong):
            at = tuple(map(int, wrong[0]))
            said = f"`{param.name}` at {at} is {kept[at]}, which breaks `{printing.expression(fact)}`"
            raise UsageError(f"the data of param {said}")
    return kept


def _scalar_candidates(storage: Storage, length: int) -> Array:
    """Values to try for one number, the most telling first."""
    match storage.type:
        case Type.BOOL:
            return np.array([True, False])
        case Type.INT:
            likely = [length // 4, length // 3, length // 2, 3, 2, 4, 8, 16, 1, 0, length, length - 1, -1]
            low, high = _int_ends(storage)
            found = np.array([*likely, *range(2 * length), *range(-1, -65, -1)], np.int64)
            return found[(found >= low) & (found <= high)]
        case Type.FLOAT:
            likely = [0.5, 1.0, 2.0, 0.25, 0.125, 4.0, 8.0, 16.0, 32.0, 64.0, 0.0, -0.5, -1.0, -2.0, -8.0]
            fine = [i / 64 for i in range(-640, 641)]
            return round_to(storage, np.array([*likely, *fine, *(float(2**i) for i in range(7, 16)), 1e-3, 1e-6]))
        case _:
            assert_never(storage.type)


def _first(
    param: Param, candidates: Array, facts: Sequence[Expr], sizes: Mapping[str, int], known: Mapping[str, Value]
) -> Array:
    """The first candidate that fulfils the facts."""
    fitting = candidates[_holds(param, candidates, facts, sizes, known)]
    if not len(fitting):
        said = " and ".join(f"`{printing.expression(fact)}`" for fact in facts)
        raise UsageError(f"found no example value for param `{param.name}` with {said}")
    return fitting[0]


def _tensor(
    attention: Attention,
    param: Param,
    facts: Sequence[Expr],
    sizes: Mapping[str, int],
    known: Mapping[str, Value],
    rng: np.random.Generator,
) -> Array:
    shape = tuple(int(evaluate(dim, sizes, {})) for dim in param.shape)
    sequences = sum(1 for dim in param.shape if isinstance(dim, Symbol) and dim.id in ("Sq", "Sk"))
    last = param.shape[-1]
    along = sequences == 1 and isinstance(last, Symbol) and last.id in ("Sq", "Sk")
    length = max(sizes["Sq"], sizes["Sk"])
    drafts: list[Array]
    match param.type:
        case Type.INT:
            sought = _sought(attention, param, sizes, known)
            if sought is not None:
                full = rng.integers(sought[0], sought[1] + 1, shape)
                drafts = [np.where(rng.random(shape) < _ABSENT, -1, full), full]
            elif along:
                drafts = [_runs(shape, rng)]
            elif sequences:
                drafts = [rng.integers(0, 4, shape)]
            else:
                drafts = [rng.integers(length // 2, length + 1, shape), rng.integers(0, 4, shape)]
            drafts = [np.clip(draft, *_int_ends(param.storage)) for draft in drafts]
        case Type.BOOL:
            ends = rng.integers((shape[-1] + 1) // 2, shape[-1] + 1, (*shape[:-1], 1))
            drafts = [np.arange(shape[-1]) < ends] if along else [rng.random(shape) < 0.75]
            drafts.append(~drafts[0])
        case Type.FLOAT:
            x = rng.standard_normal(shape) / 2
            if along and param.name in walk.params(attention.mask):
                x = np.cumsum(rng.exponential(1.0, shape), axis=-1)
            drafts = [
                round_to(param.storage, draft)
                for draft in (x, np.abs(x), -np.abs(x), np.exp(-np.abs(x)), 1 + np.abs(x))
            ]
        case _:
            assert_never(param.type)
    value = drafts[0]
    for draft in drafts[1:]:
        value = np.where(_holds(param, value, facts, sizes, known), value, draft)
    good = _holds(param, value, facts, sizes, known)
    if good.all():
        return value
    return np.where(good, value, _first(param, _scalar_candidates(param.storage, length), facts, sizes, known))


_ABSENT = 0.2
"""So much of a list is -1, which equals nothing."""


def _sought(
    attention: Attention, param: Param, sizes: Mapping[str, int], known: Mapping[str, Value]
) -> tuple[int, int] | None:
    """The least and greatest int, from 0 on, that `in` looks for in the param's lists; None where it looks in none."""
    roots = (attention.mask, attention.score)
    members = [load.member for root in roots for load in walk.loads(root) if load.param == param.name and load.member]
    if not members:
        return None
    positions = {"q": np.arange(sizes["Sq"])[:, None], "k": np.arange(sizes["Sk"])}
    env = {**sizes, "b": 0, "h": 0, "hkv": 0, **positions}
    known_members = [e for e in members if walk.symbols(e) <= env.keys() and set(walk.params(e)) <= known.keys()]
    found = [evaluate(e, env, known) for e in known_members] or [positions["k"]]
    most = max(int(x.max(initial=0)) for x in found)
    return min(max(min(int(x.min(initial=most)) for x in found), 0), most), most


def _runs(shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """Rising ids along the last axis: three runs of uneven lengths, as packed documents have them."""
    length = shape[-1]
    cuts = rng.integers(1, max(length, 2), (*shape[:-1], 2, 1))
    return (np.arange(length) >= cuts).sum(axis=-2, dtype=np.int64)


def round_to(storage: Storage, value: Array) -> Array:
    """`value` as the storage keeps it, in float64."""
    match storage:
        case Storage.F32:
            return value.astype(np.float32).astype(np.float64)
        case Storage.F16:
            return value.astype(np.float16).astype(np.float64)
        case Storage.BF16:  # the upper half of a float32, which NumPy has no type for
            bits = value.astype(np.float32).view(np.uint32) & np.uint32(0xFFFF0000)
            return bits.view(np.float32).astype(np.float64)
        case Storage.U8 | Storage.I8 | Storage.I16:
            return value.astype({"u8": np.uint8, "i8": np.int8, "i16": np.int16}[storage.value]).astype(np.int64)
        case Storage.INT | Storage.BOOL:
            return value
        case _:
            assert_never(storage)


def _check_assumes(attention: Attention, sizes: Mapping[str, int], values: Mapping[str, Value]) -> None:
    for fact in attention.assumes:
        about_one_call = walk.symbols(fact) <= set(sizes) and set(walk.params(fact)) <= set(values)
        if about_one_call and not np.all(evaluate(fact, sizes, values)):
            where = _sizes_text({name: value for name, value in sizes.items() if walk.reads(fact, name)})
            raise UsageError(f"`assume {printing.expression(fact)}` fails" + (f" at {where}" if where else ""))


def telling_length(attention: Attention, least: int = 96) -> int:
    """A sequence length at which the mask's constants show: four times the largest, within `least` and 32768."""
    ints = [node.value for node in walk.nodes(attention.mask) if isinstance(node, Literal) and node.type is Type.INT]
    largest = int(max(map(abs, ints), default=0))
    return least if 2 * largest <= least else min(32768, 2 ** math.ceil(math.log2(4 * largest)))
