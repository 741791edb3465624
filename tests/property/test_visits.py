"""`visits`, `work` and what a schedule asks, against the mask evaluated pair by pair: random masks, and every example.

Where an answer is certain it must be right; and since these areas are small, every answer is exact.
"""

from __future__ import annotations

import functools
import random
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import attngen.visits
from attngen import api, inputs
from attngen.errors import Source, SpecError
from attngen.ir.attention import Attention
from attngen.ir.build import index
from attngen.ir.evaluate import evaluate
from attngen.ir.nodes import Load, Type
from attngen.ir.walk import params as read_params
from attngen.plan import KernelPlan, host_map
from attngen.plan.mask.data_tests import DataTest, Sign
from attngen.visits import Case, needed, row_work, visits, work

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.attn"))
HALF_LINES = (
    "k <= q + {c}", "k >= {c}", "k < n + {c}", "q - k < w", "k <= q + Sk - Sq", "k < Sk - {p}", "q >= {c}", "q < m",
    "k + q < Sk + {c}", "k + q >= n", "k >= q - w", "2 * k <= q + {c}", "k <= 2 * q + {c}", "3 * k >= q - {p}",
    "abs(q - k) <= w", "abs(k - n) > {p}", "k == q", "k != q", "min(k, {p}) <= q", "max(k, q) < n", "w < 3", "n >= m",
)  # fmt: skip
OTHERS = (
    "k // {p} == q // {p}", "k % {p} == 0", "(q - k) % {p} == 0", "k // {p} <= q // {p}", "k * k <= q * n",
    "k // {p} < n", "k <= q // {p}", "(q + k) // {p} >= w",
)  # fmt: skip


@dataclass(frozen=True)
class Subject:
    spec: Attention
    plan: KernelPlan


def _mask(rng: random.Random, depth: int, atoms: tuple[str, ...]) -> str:
    if depth == 0 or rng.random() < 0.3:
        return rng.choice(atoms).format(c=rng.randint(-6, 9), p=rng.randint(1, 7))
    op = rng.choice(["and", "or", "not"])
    first = f"({_mask(rng, depth - 1, atoms)})"
    return f"not {first}" if op == "not" else f"{first} {op} ({_mask(rng, depth - 1, atoms)})"


def _check(
    subject: Subject, rng: random.Random, case: Case, allowed: Any, *, ranges: int = 8, exact: bool = True
) -> None:
    """`allowed`: (batch, head, query, key). Unless `exact`, an answer may be "some", and count more pairs."""
    rows, keys = case.sizes
    for _ in range(ranges):
        q0, k0 = rng.randint(0, rows), rng.randint(0, keys)
        q = q0, rng.choice([rng.randint(q0, rows), min(q0 + 1, rows)])
        k = k0, rng.choice([rng.randint(k0, keys), min(k0 + 2, keys)])
        own = allowed[..., q[0] : q[1], k[0] : k[1]]
        wanted = "none" if not own.any() else "all" if own.all() else "some"
        found, count = visits(subject, q, k, case), own.sum((-1, -2)).max()
        assert found == wanted or (not exact and found == "some"), (q, k, case)
        assert work(subject, q, k, case) == count or (not exact and work(subject, q, k, case) > count), (q, k, case)
    some = allowed.any((0, 1))
    stretches = [(start, min(start + 5, rows)) for start in range(0, rows, 5)]
    for (start, stop), keys_met in zip(stretches, needed(subject, stretches, case), strict=True):
        there = np.zeros(keys, np.bool_)
        for a, b in keys_met:
            there[a:b] = True
        assert not (some[start:stop].any(0) & ~there).any(), (start, stop, case)
    assert (row_work(subject, case) >= allowed.sum(-1).mean((0, 1)) - 1e-9).all(), case


@pytest.fixture(params=["pairs", "tiles", "tiles alone"])
def looking(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Masks with holes are asked by small tiles, of which open ones are looked at pair by pair, or are not."""
    if request.param != "pairs":
        monkeypatch.setattr(host_map, "TILE", (4, 5))
        monkeypatch.setattr(host_map, "_AT_ONCE", 512)
        monkeypatch.setattr(attngen.visits, "_MOST_OF_ALL", 0)
    if request.param == "tiles alone":
        monkeypatch.setattr(attngen.visits, "HostMap", functools.partial(host_map.HostMap, left=0))
    return request.param


@pytest.mark.parametrize("atoms", [HALF_LINES, (*HALF_LINES, *OTHERS)], ids=["half-lines", "any"])
@pytest.mark.parametrize("part", range(4))
def test_random_masks(atoms: tuple[str, ...], part: int, looking: str) -> None:
    rng, done = random.Random(part), 0
    while done < 30:
        mask = _mask(rng, 2, atoms)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                spec = api.analyse(Source(f"attention a\nparam n: int\nparam w: int\nparam m: int\nmask = {mask}\n"))
                subject = Subject(spec, api.plan(spec))
        except SpecError:
            continue
        done += 1
        for _ in range(3):
            rows, keys = rng.randint(1, 30), rng.randint(1, 40)
            values = {name: rng.randint(-5, 35) for name in "nwm"}
            env = {"q": np.arange(rows)[:, None], "k": np.arange(keys)[None, :], "Sq": rows, "Sk": keys}
            allowed = np.broadcast_to(evaluate(spec.mask, env, values), (1, 1, rows, keys))
            _check(subject, rng, Case(sizes=(rows, keys), params=values), allowed, exact=looking != "tiles alone")


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_examples(path: Path, looking: str) -> None:
    rng, spec = random.Random(path.stem), api.analyse(Source(path.read_text()))
    subject = Subject(api.callable_spec(spec, api.plan(spec)), api.plan(spec))
    for seed, (rows, keys) in enumerate([(96, 96), (40, 131), (131, 40)]):
        wanted = {"B": 2, "Hq": 4, "Hkv": 2, "Sq": rows, "Sk": keys, "D": 16, "Dv": 16}
        sizes = inputs.settle(subject.spec, wanted)
        values = inputs.examples(subject.spec, sizes, only=read_params(spec.mask), seed=seed)
        extents = {name: sizes[name] for name in ("B", "Hq", "Hkv", "D", "Dv")}
        case = Case(sizes=(sizes["Sq"], sizes["Sk"]), params=values, extents=extents)
        heads = np.arange(sizes["Hq"])[:, None, None]
        env = {
            **sizes,
            "b": np.arange(sizes["B"])[:, None, None, None],
            "h": heads,
            "hkv": heads // (sizes["Hq"] // sizes["Hkv"]),
            "q": np.arange(case.sizes[0])[:, None],
            "k": np.arange(case.sizes[1])[None, :],
        }
        shape = (sizes["B"], sizes["Hq"], *case.sizes)
        with np.errstate(all="ignore"):
            allowed = np.broadcast_to(evaluate(spec.mask, env, values), shape)
        _check(subject, rng, case, allowed, ranges=12, exact=looking != "tiles alone")


@pytest.mark.parametrize(("sign", "holds"), [("==", np.equal), ("<=", np.less_equal), ("<", np.less)])
def test_keys_of_a_test_of_data_reach_from_the_first_to_the_last_that_holds(sign: Sign, holds: Any) -> None:
    row, col = (Load(name, (index(at),), Type.INT) for name, at in (("a", "q"), ("c", "k")))
    g = np.random.default_rng(5)
    data = {"a": g.integers(0, 9, 40), "c": g.integers(1, 8, 30)}
    env = {"q": np.arange(40), "k": np.arange(30)}
    test = DataTest("test0", sign, row, col)
    low, high = (attngen.visits._hull(test, env, data)[test.bound(end).id] for end in ("any_lo", "any_hi"))
    for q, found in enumerate(holds(data["a"][:, None], data["c"])):
        at = np.flatnonzero(found)
        assert (low[q], high[q]) == ((at[0], at[-1] + 1) if len(at) else (0, 0))
