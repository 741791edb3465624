"""Which variants get kernels of compute capability 9.0, whose lists they share, whether their tiles can take turns."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from property.kernels import analysed

import attngen
from attngen import inputs
from attngen.plan import KernelPlan, plan
from attngen.plan.chips import Burden
from attngen.plan.hopper import ApartSkeleton, BackwardSkeleton, Schedule, Skeleton
from attngen.plan.host_map import SKIPPED
from attngen.plan.mask.lists import Lists
from attngen.plan.simulate import classify
from attngen.plan.tiles import hopper
from attngen.plan.tiles.hopper import sums_beside, sums_beside_dkdv
from attngen.plan.tiles.hopper_trials import barriers, fits
from attngen.plan.tiles.traits import in_turn, listed, row_terms, traits
from attngen.runtime.loader import SHARED

EXAMPLES = Path(__file__).parents[3] / "examples"
NAMES = sorted(path.stem for path in EXAMPLES.glob("*.attn"))
SERVED = {
    "alibi",
    "block_sparse",
    "causal",
    "cross_attention",
    "custom_normalizer",
    "full_bias",
    "mla",
    "prefix_lm",
    "relative_bias",
    "sink",
}
SERVED |= {"sliding_window", "softcap", "softmax1", "t5_bias", "windowed_alibi"}
LISTED = {"chunked", "documents"}
MAPPED = {"dilated", "natten_2d", "neighbourhood_2d", "rollouts"}
"""Tiles have holes between them; which of them wait for each other is listed, too."""
LENGTHS = ((300, 300), (70, 260), (260, 70), (1, 500), (500, 1), (129, 128))


Own = tuple[int, int] | None


def skeletons(planned: KernelPlan, own: Own) -> Mapping[tuple[int, int], Skeleton]:
    return hopper.skeletons(traits(planned), own)


def backward_skeletons(planned: KernelPlan, own: Own) -> Mapping[tuple[int, int], BackwardSkeleton]:
    return hopper.backward_skeletons(traits(planned), own)


def apart_skeletons(planned: KernelPlan, own: Own) -> Mapping[tuple[int, int], ApartSkeleton]:
    return hopper.apart_skeletons(traits(planned), own)


def text_of(name: str) -> str:
    return (EXAMPLES / f"{name}.attn").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("lines", "apart"),
    [
        ("param ids: int[B, Sk]\nmask = causal and same_document(ids)", (True, False)),
        ("param at: f32[Sk]\nmask = at[q] <= at[k]", (False, False)),
        ("param at: f32[Sk]\nparam length: int[B]\nmask = at[q] <= at[k] and k < length[b]", (True, False)),
        ("param at: f32[Sk]\nparam reach: int[Hq]\nmask = at[q] <= at[k] and q - k < reach[h]", (False, True)),
        ("param at: int[Hkv, Sk]\nmask = at[hkv, q] == at[hkv, k]", (False, True)),
        ("param at: int[B, Hq, Sk]\nmask = at[b, h, q] == at[b, h, k]", (True, True)),
        ("param row: int[B, Sk]\nparam col: int[Hq, Sk]\nmask = row[b, q] <= col[h, k]", (True, True)),
    ],
)
def test_whose_lists_are_whose(lines: str, apart: tuple[bool, bool]) -> None:
    planned = plan(analysed(f"attention a\n\n{lines}\nassume Sq == Sk\n"))
    assert planned.keys.tests and skeletons(planned, None)
    assert listed(planned.keys) == listed(planned.queries) == Lists(*apart)


def test_the_forward_kernel_where_data_decides() -> None:
    """Not for masks of many stretches, whose ends do not fit in registers."""
    rows = skeletons(plan(analysed(text_of("documents"))), None)
    assert set(rows) == {(64, 64), (64, 128), (128, 64), (128, 128), (192, 128), (256, 128), (256, 256)}
    begin = "attention a\n\nparam ids: int[B, Sk]\nassume Sq == Sk\nlet same = ids[b, q] == ids[b, k]\n"
    assert skeletons(plan(analysed(f"{begin}mask = same or k < 9\n")), None)
    assert not skeletons(plan(analysed(f"{begin}mask = same or k < 9 or abs(q - k) < 5\n")), None)


@pytest.mark.parametrize("name", NAMES)
def test_turns_need_barriers(name: str) -> None:
    """Where tiles are fetched far ahead none are left."""
    planned = plan(analysed(text_of(name)))
    for own in (None, (128, 64), (128, 128)):
        for dims, row in skeletons(planned, own).items():
            assert barriers(row) <= 16, dims


def test_who_takes_turns() -> None:
    """Exponentials, where no data decides, no element's place is the pair's, and the spec has no tile of its own."""
    ordered = {
        name: {row.ordered for row in skeletons(plan(analysed(text_of(name))), own).values()}
        for name, own in {"causal": None, "mla": None, "documents": None, "full_bias": None, "sigmoid": None}.items()
    }
    mixed = {"documents": {False, True}}  # but at head dim 64, where there is room
    assert ordered == {"causal": {True}, "mla": {True}, **mixed, "full_bias": {False}, "sigmoid": {False, True}}
    assert not any(row.ordered for row in skeletons(plan(analysed(text_of("causal"))), (128, 128)).values())


@pytest.mark.parametrize("name", NAMES)
def test_who_is_served(name: str) -> None:
    planned = plan(analysed(text_of(name)))
    assert bool(backward_skeletons(planned, None)) == (name in SERVED | LISTED | MAPPED)
    assert in_turn(planned) or name not in SERVED
    assert not in_turn(planned) or name not in LISTED


def test_what_leaves_too_few_registers() -> None:
    chosen = "attention a\nparam table: f32[40]\nscore = qk * scale + table[min(int(abs(qk)), 39)]\n"
    assert not backward_skeletons(plan(analysed(chosen)), None)
    for name in ("full_bias", "softcap", "relative_bias", "t5_bias"):
        rows = backward_skeletons(plan(analysed(text_of(name))), None)
        assert {dims: row.queries for dims, row in rows.items()} == {(32, 32): 64, (64, 64): 64, (128, 128): 64}
    for name in ("causal", "sink", "alibi", "sliding_window", "documents", "prefix_lm", "custom_normalizer"):
        rows = backward_skeletons(plan(analysed(text_of(name))), None)
        assert {dims: row.queries for dims, row in rows.items()} == {(32, 32): 128, (64, 64): 128, (128, 128): 64}


@pytest.mark.parametrize(
    ("name", "least"),
    [("relative_bias", 32), ("sigmoid", 192), ("dilated", 32), ("full_bias", 32), ("natten_2d", 32)],
)
def test_wide_heads_have_rows_of_their_own(name: str, least: int) -> None:
    """Above 128 the portable kernel has registers for small tiles alone."""
    rows = skeletons(plan(analysed(text_of(name))), None)
    assert {(192, 128), (256, 128), (256, 256)} <= set(rows) and min(map(max, rows)) == least


@pytest.mark.parametrize("score", ["qk * scale", "qk * scale + bias[h, q, k]"])
def test_without_a_key_there_is_nothing_to_be_fast_at(score: str) -> None:
    text = f"attention a\nparam bias: f32[Hq, Sq, Sk]\nscore = {score}\nmask = not (true)\n"
    assert not skeletons(plan(analysed(text)), None)
    attngen.compile(text)  # which raises what is refuted


BACKWARDS = {
    "alibi",
    "block_sparse",
    "causal",
    "custom_normalizer",
    "dilated",
    "documents",
    "mla",
    "rollouts",
    "sink",
    "softcap",
    "softmax1",
}


def test_tiles_of_keys_go_backwards_where_each_begins_at_other_queries() -> None:
    for name in NAMES:
        rows = backward_skeletons(plan(analysed(text_of(name))), None)
        if rows:
            assert rows[128, 128].backwards == (name in BACKWARDS), name
            assert rows[64, 64].backwards == (name in BACKWARDS - {"alibi", "custom_normalizer"}), name


TERMS = {
    "block_sparse",
    "causal",
    "chunked",
    "cross_attention",
    "dilated",
    "documents",
    "dropout",
    "mla",
    "prefix_lm",
    "sink",
}
TERMS |= {"neighbourhood_2d", "rollouts", "sliding_window", "softmax1", "window_global"}


def test_scores_of_q_and_k_alone_take_the_log_sum_exp_off_with_a_product() -> None:
    assert {name for name in NAMES if row_terms(plan(analysed(text_of(name))))} == TERMS
    for score in ("qk * scale * 2.0", "qk", "abs(qk) * scale", "qk * scale + 1.0", "qk * scale if qk > 0.0 else 0.0"):
        assert not row_terms(plan(analysed(f"attention a\n\nscore = {score}\nmask = causal\n"))), score


@pytest.mark.parametrize("name", NAMES)
def test_above_head_dim_128_every_mask_is_served(name: str) -> None:
    rows = apart_skeletons(plan(analysed(text_of(name))), None)
    assert set(rows) == (set() if name in {"dropout", "sigmoid"} else {(256, 256), (256, 128), (192, 128), (128, 256)})
    for (dim, v_dim), row in rows.items():
        assert row.dkdv.queries == row.dkdv.keys == row.dq.keys == 64 and row.dq.queries == 128
        tiles = (2 + row.dq.key_stages) * 64 * dim + (2 + row.dq.value_stages) * 64 * v_dim
        assert 2 * tiles <= 227 * 1024  # half precision, in shared memory


def test_sums_of_columns_are_left_to_the_portable_kernel() -> None:
    spec = "attention a\n\nparam tilt: f32[Sk]\nparam sink: f32[Hq]\nscore = qk * scale + tilt[k] + sink[h] * q\n"
    assert sums_beside_dkdv(plan(analysed(spec))) == ("tilt",)
    assert sums_beside_dkdv(plan(analysed(text_of("alibi")))) == ()


def test_a_spec_keeps_its_own_tile() -> None:
    planned = plan(analysed(text_of("causal")))
    assert not apart_skeletons(planned, (64, 128))
    assert backward_skeletons(planned, None) and not backward_skeletons(planned, (64, 128))


def test_gradients_that_the_portable_kernels_sum_are_named() -> None:
    assert sums_beside(plan(analysed(text_of("sink")))) == ("sink",)
    assert sums_beside(plan(analysed(text_of("causal")))) == ()


@pytest.mark.parametrize("name", NAMES)
def test_tiles_of_keys_that_take_turns_are_consecutive(name: str) -> None:
    planned = plan(analysed(text_of(name)))
    if not in_turn(planned):
        return
    attention = planned.attention
    for Sq, Sk in LENGTHS:
        wanted = {"B": 2, "Hq": 2, "Hkv": 1, "Sq": Sq, "Sk": Sk, "D": 16, "Dv": 16}
        sizes = inputs.settle(attention, wanted, fixed=("D", "Dv"))
        params = inputs.examples(attention, sizes)
        for h in range(2):
            met = classify(planned, sizes, params, tile=(16, 32), axis="q", h=h) != SKIPPED
            for column in met.T:  # a tile of keys walks from the first tile of queries that it meets to the last
                walked = np.flatnonzero(column)
                column[walked.min(initial=len(column)) : walked.max(initial=-1) + 1] = True
            for i, row in enumerate(met):
                tiles = np.flatnonzero(row)
                assert tiles.size == 0 or tiles[-1] - tiles[0] + 1 == tiles.size, (name, sizes, i)


@pytest.mark.parametrize(
    ("mask", "expected"),
    [
        ("true", True),
        ("causal", True),
        ("q - k < 64 and q >= k", True),
        ("q + k < Sk", True),  # as keys move on, the end moves back
        ("q - k <= 5 and q + k >= 9", True),  # the start moves back, the end moves on
        ("q <= abs(k - 5)", False),  # the end moves back, then on
        ("k < n[b]", True),  # all queries as long as keys come early
        ("causal and k < n[b]", True),
        ("causal or k < 5", True),  # all queries as long as keys come early, then causal
        ("causal or k > 5", False),
        ("causal or q < 5", False),  # two stretches
        ("0 <= q - k < 64 or k < 5", False),  # the first stretch ends before the last query
        ("q // 7 == k // 7", False),  # not known to rise
    ],
)
def test_tiles_of_keys_that_meet_a_tile_of_queries_are_consecutive(mask: str, expected: bool) -> None:
    assert in_turn(plan(analysed(f"attention a\n\nparam n: int[B]\nmask = {mask}\n"))) == expected


def test_a_mask_whose_pairs_a_param_names_has_a_backward_kernel() -> None:
    """In tiles of 64 queries where kernels evaluate it: a sum of floats may round otherwise in that of bits."""
    found = ("f32", "seen[q, k] + 0.1 > 0.5", 64), ("int", "seen[q, k] > 0", 128), ("bool", "seen[q, k]", 128)
    for param, mask, queries in found:
        named = plan(analysed(f"attention a\n\nparam seen: {param}[Sq, Sk]\nmask = {mask}\n"))
        rows = backward_skeletons(named, None)
        assert {dims: row.queries for dims, row in rows.items()} == {
            (32, 32): queries,
            (64, 64): queries,
            (128, 128): 64,
        }


@pytest.mark.parametrize(
    "mask",
    [
        "seen[q, k]",
        "causal and not seen[q, k]",
        "seen[q, k] or far[q, k] > 2",
        "abs(at[q] - at[k]) <= 8",
        "(q - k) % 3 == 0",
    ],
)
def test_masks_that_are_read_as_bits_take_the_rows_of_plain_masks(mask: str) -> None:
    params = "param seen: bool[Sq, Sk]\nparam far: int[Sq, Sk]\nparam at: int[Sk]\n"
    named, plain = (
        skeletons(plan(analysed(f"attention a\n\n{params}mask = {m}\nassume Sq == Sk\n")), None) for m in (mask, "true")
    )
    for dims, row in plain.items():
        assert (named[dims].queries, named[dims].keys) == (row.queries, row.keys)


def test_latent_attention_has_rows_of_its_own() -> None:
    """Keys of 192 columns come in parts: tiles of 128 keys fit, and no product has columns that are not there."""
    for name in NAMES:
        planned = plan(analysed(text_of(name)))
        own, padded = (skeletons(planned, None).get(dims) for dims in ((192, 128), (256, 128)))
        assert (own is None) == (padded is None)
        assert own is None or (fits(own, (192, 128)) and not (own.keys == 128 and fits(own, (256, 128))))


@pytest.mark.parametrize(
    ("mask", "served"),
    [
        ("0 <= q - k < 64 or (mark[b, k] and causal)", True),
        ("0 <= q - k < 64 or (mark[b, k] and q > k)", False),  # one query later
        ("0 <= q - k < 64 or q - k >= 999", False),  # with a gap between
        ("q < 64 or (mark[b, k] and q < 999)", False),  # all begin at the first query, and so would nobody wait
    ],
)
def test_stretches_of_queries_that_begin_together(mask: str, served: bool) -> None:
    planned = plan(analysed(f"attention a\n\nparam mark: bool[B, Sk]\nmask = {mask}\nassume Sq == Sk\n"))
    rows = hopper.backward_skeletons(traits(replace(planned, map=None)), None)
    assert {row.backwards for row in rows.values()} == ({True} if served else set())


def test_lengths_take_the_rows_of_full_masks() -> None:
    lengths, full = (
        plan(analysed(f"attention a\n\nparam n: int[B]\nmask = {mask}\n")) for mask in ("k < n[b]", "true")
    )
    assert (lengths.burden, full.burden) == (Burden.ENDS, Burden.LIGHT)
    assert skeletons(lengths, None) == skeletons(full, None)
    assert backward_skeletons(lengths, None) == backward_skeletons(full, None) != {}


@pytest.mark.parametrize(
    ("mask", "paired"),
    [("causal", True), ("causal and q - k < 64", False), ("true", False), ("k <= q or k < 9", False)],
)
def test_tiles_of_two_sequences_alternate_where_neighbours_wait_from_their_start(mask: str, paired: bool) -> None:
    hopper = plan(analysed(f"attention subject\nmask = {mask}\n")).hopper
    assert hopper is not None and hopper.backward is not None and hopper.backward.grouped.paired == paired


def test_sequences_have_rows_of_their_own_up_to_head_dim_64() -> None:
    """Tiles of 64 queries in the backward pass; and this forward kernel for a soft cap, which dense calls lack."""
    causal, capped = (plan(analysed(text_of(name))).hopper for name in ("causal", "softcap"))
    assert causal is not None and causal.forward is not None and causal.backward is not None
    assert causal.forward.of_sequences == ()
    (_, (dims, row)) = causal.backward.of_sequences
    assert row == replace(dict(causal.backward.rows)[dims], queries=64) and row.backwards
    alibi = plan(analysed(text_of("alibi"))).hopper
    assert alibi is not None and alibi.backward is not None
    (_, (dims, row)) = alibi.backward.of_sequences
    assert row.backwards and not dict(alibi.backward.rows)[dims].backwards  # 64 queries leave the registers for it
    assert capped is not None and capped.forward is not None and capped.backward is not None
    ((dims, forward),) = capped.forward.of_sequences
    assert dims == (64, 64) and dims not in dict(capped.forward.rows) and forward.queries == 192
    assert capped.backward.of_sequences == ()  # 64 queries in any case


@pytest.mark.parametrize(("name", "table"), [("causal", "HOPPER_BACKWARD"), ("softcap", "HOPPER")])
def test_packed_calls_look_there_first(name: str, table: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dense file has no such rows."""
    key = (64, 64, "sequences")
    dense = attngen.compile(text_of(name), target="triton")
    alone: Any = sys.modules[dense.function.__module__]
    assert key not in alone.host.rows_by_dims(getattr(alone, table))
    packed = attngen.compile(text_of(name), target="triton", geometry=("packed",))
    module: Any = sys.modules[packed.function.__module__]
    rows = getattr(module, table)
    monkeypatch.setitem(sys.modules[f"{SHARED}.devices"].CHIPS, torch.device("cpu"), "sm_90")
    q, out = (torch.zeros(1, 1, 128, 64, dtype=torch.float16) for _ in range(2))
    found = module.host.listed_row(rows, (q, out), (q, q))
    assert found is not None and found[0] == module.host.rows_by_dims(rows)[key]
    wide = torch.zeros(1, 1, 128, 128, dtype=torch.float16)
    found = module.host.listed_row(rows, (wide, wide), (wide, wide))
    assert found is not None and found[0] == module.host.rows_by_dims(rows)[128, 128]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"queries": 100}, "two or three warpgroups have 64 queries each"),
        ({"keys": 100}, "tiles of keys have 64 or 128"),
        ({"stages": 0}, "one tile at least is in flight"),
        ({"registers": 256}, "68608 registers, and a multiprocessor has 65536"),
        ({"spare": 25}, "registers come in eights"),
        ({"schedule": Schedule.ONCE}, "no queries are loaded after those of a program that takes one tile"),
        ({"together": 0}, "one head at least takes its tiles in turn"),
    ],
)
def test_a_row_that_no_kernel_has_cannot_be_made(changes: dict[str, Any], why: str) -> None:
    row = Skeleton(128, 128, 2, True, 240, 24, 1, Schedule.QUEUE, True)
    with pytest.raises(ValueError, match=why):
        replace(row, **changes)


def test_what_decides_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    burden_of = KernelPlan.burden_of
    monkeypatch.setattr(KernelPlan, "burden_of", lambda *given: asked.append(given) or burden_of(*given))
    planned = plan(analysed(text_of("causal")))
    before = len(asked)
    hopper.hopper_plan(planned, None)
    assert len(asked) - before == 1
