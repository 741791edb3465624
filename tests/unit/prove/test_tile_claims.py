"""Tile ranges, index bounds and widths: the right ones are proved, wrong ones refuted with numbers that hold."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from property.kernels import analysed

from attngen.errors import Span
from attngen.ir.attention import Attention
from attngen.ir.build import add, integer
from attngen.ir.evaluate import evaluate
from attngen.ir.nodes import Apply, Op
from attngen.ir.walk import nodes
from attngen.plan import KernelPlan, plan
from attngen.plan.ints.guards import AxisAccess
from attngen.plan.kernel import with_loops
from attngen.plan.mask.loops import Assigned, Ordered, Rounded, Run, loops
from attngen.plan.mask.ranges import TileRanges
from attngen.prove.budget.work import Work
from attngen.prove.obligations.index_bounds import index_bounds
from attngen.prove.obligations.integer_width import integer_width
from attngen.prove.obligations.reads import with_needs
from attngen.prove.obligations.tile_ranges import tile_ranges
from attngen.prove.verdict import Claim, Proved, Refuted

EXAMPLES = sorted((Path(__file__).parents[3] / "examples").glob("*.attn"))


def spec(*lines: str) -> Attention:
    return analysed("\n".join(["attention subject", *lines]))


def refuted(claims: tuple[Claim, ...]) -> list[Claim]:
    return [c for c in claims if isinstance(c.verdict, Refuted)]


def all_claims(attention: Attention, planned: KernelPlan) -> tuple[Claim, ...]:
    return (
        *tile_ranges(attention, planned, Work()),
        *index_bounds(attention, planned, Work()),
        *integer_width(planned, Work()),
    )


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_every_example_is_proved(path: Path) -> None:
    attention = analysed(path.read_text(encoding="utf-8"))
    for claim in all_claims(attention, plan(attention)):
        assert isinstance(claim.verdict, Proved), claim


UNSEEN = {
    "run-time window": ("param w: int where w > 0", "mask = 0 <= q - k < w"),
    "window of any sign": ("param w: int", "mask = 0 <= q - k < w"),
    "run-time chunks": ("param c: int where c > 0", "mask = chunked(c)"),
    "chunks and a prefix": ("param c: int where c > 0", "mask = q // c == k // c or k < 4"),
    "run-time window and global tokens": (
        "param g: int where g >= 0",
        "param w: int where w >= 0",
        "mask = abs(q - k) <= w or k < g or q < g",
    ),
    "modulo": ("mask = (q - k) % 3 == 0 and causal",),
    "time window": ("param t: f32[B, Sk]", "mask = t[b, q] - t[b, k] < 2.5 and causal", "assume Sq == Sk"),
    "a fact about two params": (
        "param near: int where 0 < near and near < far",
        "param far: int where far > 4",
        "mask = near <= q - k < far",
    ),
    "lengths": ("param length: int[B]", "mask = k < length[b]"),
    "documents with a hole": ("param ids: int[B, Sk]", "mask = same_document(ids) and not (k == 3)", "assume Sq == Sk"),
    "padding and causal chunks": (
        "param n: int[B]",
        "param c: int where c >= 1",
        "mask = (k < n[b] or causal) and q // c >= k // c",
    ),
    "rational slope": ("mask = q * 2 >= k * 3",),
    "checkerboard": ("mask = (q // 4) % 2 == (k // 4) % 2",),
    "strided": ("param w: int where w > 0", "mask = k // w <= q // w and k % w < 3"),
    "named pairs": ("param seen: bool[Sq, Sk]", "mask = seen[q, k]"),
    "pairs that are not named": ("param bad: bool[B, Hq, Sq, Sk]", "mask = causal and not bad[b, h, q, k]"),
    "valid keys": ("param valid: bool[B, Sk]", "mask = valid[b, k] and causal"),
    "corners": ("mask = max(q, k) < 7 or min(q, k) > 11",),
    "neighbouring chunks": ("param c: int where c >= 1", "mask = (q + Sk - Sq) // c - k // c <= 2 and causal"),
    "antidiagonal": ("param t: f32[Sq, Sk]", "score = qk * scale + t[q, k]", "mask = (q + k) // 3 <= 11"),
    "no product to solve": ("mask = q * q <= k",),
    "a flag": ("param p: bool", "mask = causal if p else abs(q - k) < 5"),
    "a table by distance": ("param tab: f32[65]", "score = qk * scale + tab[clamp(q - k, -32, 32) + 32]"),
    "a table of any length": ("param tab: f32[n]", "score = qk * scale + tab[min(abs(q - k), n - 1)]"),
    "a table by remainder": ("param tab: f32[n]", "score = qk * scale + tab[(q * k) % n]"),
    "a table by data": (
        "param ids: int[B, Sk] where ids >= 0",
        "param tab: f32[n]",
        "score = qk * scale + tab[min(ids[b, k], n - 1)]",
    ),
}


@pytest.mark.parametrize("lines", UNSEEN.values(), ids=list(UNSEEN))
def test_right_specs_are_proved(lines: tuple[str, ...]) -> None:
    attention = spec(*lines)
    for claim in all_claims(attention, plan(attention)):
        assert isinstance(claim.verdict, Proved), claim


# ---------------------------------------------------------------- wrong ranges


def with_keys(planned: KernelPlan, keys: TileRanges) -> KernelPlan:
    return with_loops(replace(planned, keys=keys), loops(keys), planned.query_loops)


@pytest.mark.parametrize(
    "lines", [("mask = sliding_window(5)",), ("const w = 1000", "mask = sliding_window(w)"), UNSEEN["run-time window"]]
)
@pytest.mark.parametrize(
    ("kind", "end", "by"), [("any", "lo", 1), ("any", "hi", -1), ("all", "lo", -1), ("all", "hi", 1), ("any", "lo", 64)]
)
def test_a_bound_off_by_a_little_loses_or_adds_a_pair(lines: tuple[str, ...], kind: str, end: str, by: int) -> None:
    attention = spec(*lines)
    planned = plan(attention)
    (segment,) = getattr(planned.keys, kind)
    moved = replace(segment, **{end: add(getattr(segment, end), integer(by))})
    found = refuted(tile_ranges(attention, with_keys(planned, replace(planned.keys, **{kind: (moved,)})), Work()))
    assert found
    # The numbers hold: the pair is allowed and outside, or inside and forbidden.
    verdict = found[0].verdict
    assert isinstance(verdict, Refuted)
    env = {"B": 1, "Hq": 1, "Hkv": 1, "b": 0, "h": 0, "hkv": 0, **dict(verdict.values)}
    scalars = {p.name: env[p.name] for p in attention.params}
    allowed = bool(evaluate(attention.mask, env, scalars))
    inside = int(evaluate(moved.lo, env, scalars)) <= env["k"] < int(evaluate(moved.hi, env, scalars))
    assert env["q0"] <= env["q"] <= env["q1"]
    assert allowed != inside or not 0 <= env["k"] < env["Sk"]


def test_a_mask_that_is_not_the_files_is_refuted() -> None:
    attention = spec("mask = causal")
    other = plan(spec("mask = sliding_window(7)"))
    assert [c.subject for c in refuted(tile_ranges(attention, other, Work()))] == ["mask"]


def test_facts_that_exclude_each_other_prove_nothing() -> None:
    attention = spec("param w: int where w > 5", "mask = 0 <= q - k < w", "assume w < 3")
    found = refuted(tile_ranges(attention, plan(attention), Work()))
    assert [c.subject for c in found] == ["facts"]
    assert found[0].span != Span(0, 0, 0, 0)


def steps(planned: KernelPlan, change: int) -> KernelPlan:
    """The forward loop with a wrong step: 0 rounded the wrong way, 1 one tile short, 2 an exchange left out."""
    found = list(planned.key_loops.steps)
    for number, step in enumerate(found):
        if change == 0 and isinstance(step, Rounded):
            found[number] = replace(step, up=not step.up)
            break
        if change == 1 and isinstance(step, Assigned):
            found[number] = Assigned(step.name, add(step.value, integer(-1)))
            break
        if change == 2 and isinstance(step, Ordered):
            del found[number]
            break
    return with_loops(planned, replace(planned.key_loops, steps=tuple(found)), planned.query_loops)


@pytest.mark.parametrize("change", [0, 1, 2])
def test_wrong_steps_of_the_loops_are_refuted(change: int) -> None:
    attention = spec("mask = abs(q - k) <= 6 or q < 3 or k < 3")
    planned = plan(attention)
    found = refuted(tile_ranges(attention, steps(planned, change), Work()))
    assert [c.subject for c in found] == ["keys, loops"]


def test_a_run_that_is_walked_twice_is_refuted() -> None:
    attention = spec("mask = causal")
    planned = plan(attention)
    twice = replace(planned.key_loops, partial=(*planned.key_loops.partial, Run("0", "full_hi")))
    found = refuted(
        tile_ranges(attention, with_loops(replace(planned, hopper=None), twice, planned.query_loops), Work())
    )
    assert [c.subject for c in found] == ["keys, loops"]
    assert isinstance(found[0].verdict, Refuted)
    assert "2 times" in found[0].verdict.example[-1]


# ---------------------------------------------------------------- wrong loads and widths


@pytest.mark.parametrize(
    ("lines", "axis", "kept"),
    [
        (("param t: f32[Sk]", "score = qk * scale + t[q - k]"), 0, AxisAccess(False, low=False, high=True)),
        (("param t: f32[Sk]", "score = qk * scale + t[q + 1]"), 0, AxisAccess(False, low=True, high=False)),
        (("param t: f32[Sk]", "score = qk * scale + t[k]"), 0, AxisAccess(False, low=False, high=False)),
        (("param t: f32[Hq]", "score = qk * scale + t[b]"), 0, AxisAccess(False, low=False, high=False)),
    ],
)
def test_a_missing_guard_is_refuted(lines: tuple[str, ...], axis: int, kept: AxisAccess) -> None:
    attention = spec(*lines)
    planned = with_needs(attention, plan(attention))
    (access,) = planned.choices.accesses
    axes = tuple(kept if n == axis else a for n, a in enumerate(access.axes))
    choices = replace(planned.choices, accesses=(replace(access, axes=axes),))
    claims = index_bounds(attention, replace(planned, choices=choices), Work())
    found = [c for c in refuted(claims) if not c.subject.startswith("read of")]
    assert len(found) == 1
    assert isinstance(found[0].verdict, Refuted)


OF_ELEMENTS = {
    "an index that is an element": ("param i: int[Sk] where 0 <= i < 9", "t[i[k]]"),
    "a remainder of one": ("param i: int[Sk] where i >= 0", "t[i[k] % 9]"),
    "a divisor of a row": ("param i: int[B, Sk] where 1 <= i <= 8", "t[8 // i[b, k]]"),
    "a difference of elements": ("param i: int[Sk] where 3 <= i <= 7", "t[i[k] - 3]"),
    "a choice by a float": ("param x: f32 where x > 0", "t[8 if 0.0 < x else k]"),
}
"""Indices that are inside t, of 9 elements, if the facts hold that no call checks."""


@pytest.mark.parametrize(("param", "load"), OF_ELEMENTS.values(), ids=OF_ELEMENTS)
def test_no_guard_rests_on_what_a_tensor_is_said_to_hold(param: str, load: str) -> None:
    attention = spec(param, "param t: f32[9]", f"score = qk * scale + {load}")
    planned = with_needs(attention, plan(attention))
    (access,) = (a for a in planned.choices.accesses if a.load.param == "t")
    if "%" in load:  # floored whatever the element is, so that there is nothing to compare
        assert not planned.choices.plain_divisions
        return
    bare = replace(access, axes=(AxisAccess(False, low=False, high=False),))
    others = tuple(a for a in planned.choices.accesses if a != access)
    unguarded = replace(planned, choices=replace(planned.choices, accesses=(*others, bare)))
    assert access.axes[0].low or access.axes[0].high
    assert all(isinstance(c.verdict, Proved) for c in index_bounds(attention, planned, Work()))
    claims = index_bounds(attention, unguarded, Work())
    assert [c.subject for c in claims if not isinstance(c.verdict, Proved)] == [load]


def test_an_index_is_wide_enough_whatever_tensors_hold() -> None:
    attention = spec(
        "param i: int[Sk] where 0 <= i < 100",
        "param t: f32[Sk]",
        f"score = qk + t[min(max(i[k], 0) + {2**30}, Sk - 1)]",
    )
    planned = plan(attention)
    assert planned.choices.wide
    assert all(isinstance(c.verdict, Proved) for c in integer_width(planned, Work()))
    narrow = replace(planned, choices=replace(planned.choices, wide=()))
    assert any(not isinstance(c.verdict, Proved) for c in integer_width(narrow, Work()))


FLOATS = (
    "min(int(sqrt(abs(q - k))), 39)", "min(floor(sqrt(abs(q - k))), 39)", "min(ceil(sqrt(abs(q - k))), 39)",
    "int(39 * sigmoid(k - q))", "floor(39 * exp(-abs(q - k)))", "int(20 + 19 * cos(q - k))",
    "int(19.5 + 19 * tanh(q - k))", "int(39 * erf(abs(q - k)))", "int(sqrt(abs(q - k))) // 4", "int(clamp(qk, 0, 39))",
    "min(int(abs(qk)), 39)", "int(39 * share)", "floor(log2(1 + abs(q - k)))", "clamp(int(1 / x[h]), 0, 39)",
    "abs(int(qk)) % 40",
)  # fmt: skip
"""Indices that are made of floats, all of them inside 0 … 39 where the floats are numbers."""


def with_table(index: str) -> Attention:
    params = ("param table: f32[Hq, 40]", "param x: f32[Hq]", "param share: f32 where 0 <= share <= 1")
    return spec(*params, f"score = qk * scale + x[h] + share + table[h, {index}]")


@pytest.mark.parametrize("index", FLOATS)
def test_indices_made_of_floats_are_proved(index: str) -> None:
    attention = with_table(index)
    for claim in all_claims(attention, plan(attention)):
        assert isinstance(claim.verdict, Proved), claim


@pytest.mark.parametrize("index", [i for i in FLOATS if not i.startswith("clamp(") and not i.endswith("% 40")])
def test_without_a_guard_they_are_not_proved(index: str) -> None:
    """Rounding, NaN and infinities are none of z3's: what it shows of reals is no proof."""
    attention = with_table(index)
    planned = plan(attention)
    bare = AxisAccess(False, low=False, high=False)
    accesses = tuple(
        replace(a, axes=(a.axes[0], bare)) if a.load.param == "table" else a for a in planned.choices.accesses
    )
    claims = index_bounds(attention, replace(planned, choices=replace(planned.choices, accesses=accesses)), Work())
    (claim,) = (c for c in claims if c.subject.startswith("table"))
    assert not isinstance(claim.verdict, Proved)


@pytest.mark.parametrize(
    ("index", "low", "high"),
    [
        ("clamp(floor(4 * qk) + 8, 0, 39)", False, False),  # whatever the float becomes
        ("min(int(sqrt(abs(q - k))), 39)", True, False),
        ("int(39 * sigmoid(k - q))", True, True),  # NaN may become any int
        ("int(clamp(qk, 0, 39))", True, True),
    ],
)
def test_what_is_not_seen_to_stay_inside_is_guarded(index: str, low: bool, high: bool) -> None:
    (access,) = (a for a in plan(with_table(index)).choices.accesses if a.load.param == "table")
    assert access.axes[1] == AxisAccess(False, low, high)


def test_a_corner_that_is_not_extreme_is_refuted() -> None:
    attention = spec("param t: f32[65]", "score = qk * scale + t[clamp(q - k, -32, 32) + 32]")
    planned = plan(attention)
    (corner,) = planned.choices.corners
    wrong = replace(planned.choices, corners=(replace(corner, rises_in_k=True),))
    assert not refuted(index_bounds(attention, planned, Work()))
    assert len(refuted(index_bounds(attention, replace(planned, choices=wrong), Work()))) == 1


def test_a_product_that_leaves_32_bits_is_refuted() -> None:
    planned = plan(spec("mask = q * 100 <= k * 100"))
    assert planned.choices.wide
    narrow = replace(planned, choices=replace(planned.choices, wide=()))
    (claim,) = refuted(integer_width(narrow, Work()))
    assert isinstance(claim.verdict, Refuted)
    values = dict(claim.verdict.values)
    assert np.abs(values["q"]) * 100 >= 2**31 or np.abs(values["k"]) * 100 >= 2**31


def test_longer_sequences_than_64_bits_hold_are_not_proved() -> None:
    planned = plan(spec("mask = q * q * k <= Sk * Sk * Sk"))
    assert planned.choices.longest == 2**20
    assert not refuted(integer_width(planned, Work()))
    longer = replace(planned, choices=replace(planned.choices, longest=2**27))
    assert not all(isinstance(c.verdict, Proved) for c in integer_width(longer, Work()))


def test_a_division_towards_zero_with_a_negative_side_is_refuted() -> None:
    planned = plan(spec("mask = (q - k) // 2 <= 3"))
    division = next(n for n in nodes(planned.attention.mask) if isinstance(n, Apply) and n.op is Op.FLOORDIV)
    wrong = replace(planned, choices=replace(planned.choices, plain_divisions=(division,)))
    assert not refuted(integer_width(planned, Work()))
    assert len(refuted(integer_width(wrong, Work()))) == 1
