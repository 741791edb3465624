"""The backward kernels of compute capability 9.0, by their own launcher, on a model of the chip: right, no races."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from attngen import reference
from hopper_model.cases import EXAMPLES, FAR, LANDMARKS, LISTED, SHAPED, UNCLAMPED, Change, case, relative, text_of
from hopper_model.numbers import FaultError, Tile
from hopper_model.schedule import USUAL, Schedule

NAMES = sorted(path.stem for path in EXAMPLES.glob("*.attn"))
ELSEWHERE = {"dropout", "sigmoid", "windowed_alibi"}  # the last has a tile of its own
SQUARE = {name for name in NAMES if "assume Sq == Sk" in text_of(name)}
SUMMED = [
    "alibi",
    "block_sparse",
    "causal",
    "chunked",
    "cross_attention",
    "custom_normalizer",
    "documents",
    "full_bias",
    "mla",
    "prefix_lm",
    "relative_bias",
]
SUMMED += ["sink", "sliding_window", "softcap", "softmax1"]
"""Served at head dim 128, too, by one kernel that sums dQ over programs."""
TILT = "attention tilted\n\nparam tilt: f32[Sk]\nscore = qk * scale + tilt[k]\nmask = causal\n"


def gradients(
    text: str,
    dims: tuple[int, int],
    sizes: tuple[int, int, int, int, int],
    dtype: torch.dtype = torch.bfloat16,
    learned: bool = False,
    changes: Sequence[Change] = (),
    steep: float = 1.0,
    schedule: Schedule = USUAL,
    **params: Any,
) -> tuple[dict[str, float], list[str]]:
    """Relative errors by name against the definition, and the kernels that ran. `changes`: of the source, all over;
    `steep`: what queries are multiplied by."""
    made = case(text, dims, sizes, dtype, changes, schedule, **params)
    made = replace(made, q=made.q * steep)
    d_out = made.draw("Hq", "Sq", "Dv")
    forward = made.truth()
    lse = torch.from_numpy(forward.lse).float()
    d_lse = torch.where(torch.isfinite(lse), torch.randn(lse.shape, generator=made.generator), 0.0)
    out = torch.from_numpy(forward.out).to(dtype)
    kept = (out, lse)
    plan = made.kernel.plan
    if plan.weights.sums and plan.gradients:
        rest = (torch.from_numpy(forward.out) - out.double()).to(dtype) if learned else out.new_empty(0)
        kept = (out, lse, rest)
    names = list(dict.fromkeys(g.param for g in plan.gradients))
    found = made.differentiated(d_out, d_lse, kept, [learned] * len(names))
    cotangents = (d_out.double().numpy(), d_lse.double().numpy())
    right = reference.gradients(made.kernel.spec, *made.exact, *cotangents, params=made.params)
    expected = {"q": right.q, "k": right.k, "v": right.v, **({n: right.params[n] for n in names} if learned else {})}
    errors = {name: relative(mine, theirs) for (name, theirs), mine in zip(expected.items(), found, strict=False)}
    return errors, made.launched


WHOLE = ("span = host.equal_share(group, heads, wanted)", "span = group")
"""Items that walk all query heads that share keys, however few there are."""


def slow(value: Any) -> Any:
    return pytest.param(value, marks=pytest.mark.slow)


def cases(names: list[str], always: set[str]) -> list[Any]:
    return [n if n in always else slow(n) for n in names]


@pytest.mark.parametrize("name", cases(SUMMED, {"documents", "prefix_lm"}))
def test_examples_by_one_kernel(name: str) -> None:
    """Several items a program, of heads in groups; dQ's parts are added in turn."""
    sizes = (1, 4, 2, 200, 333) if name not in SQUARE else (1, 2, 1, 420, 420)
    errors, launched = gradients(text_of(name), (128, 128), sizes)
    assert {"_hopper_backward_kernel", "_collect_kernel"} <= set(launched)
    assert all(e <= 8e-3 for e in errors.values()), errors


@pytest.fixture
def poisoned() -> Iterator[None]:
    """New memory is full of NaN, and of the largest int."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("causal", (1, 2, 1, 130, 200)),
        ("causal", (3, 11, 11, 1, 1)),
        ("documents", (1, 9, 9, 1, 1)),
        ("documents", (3, 11, 11, 1, 1)),
    ],
    ids=str,
)
def test_what_programs_count_with_is_cleared(name: str, sizes: tuple[int, int, int, int, int]) -> None:
    """By the kernel of the rows, however few there are for each tile of queries."""
    errors, launched = gradients(text_of(name), (128, 128), sizes)
    assert {"_hopper_backward_kernel", "_collect_kernel"} <= set(launched)
    assert all(e <= 8e-3 for e in errors.values()), errors


@pytest.mark.parametrize("name", cases(SUMMED, {"sink", "softcap"}))
def test_examples_by_one_kernel_at_head_dim_64(name: str) -> None:
    """Tiles of 128 queries, or 64 where the score holds many registers."""
    errors, launched = gradients(text_of(name), (64, 64), (1, 4, 2, 420, 420 if name in SQUARE else 333))
    assert {"_hopper_backward_kernel", "_collect_kernel"} <= set(launched)
    assert all(e <= 8e-3 for e in errors.values()), errors


def test_three_parts_add_up_to_a_number() -> None:
    """To its last bit, though each has eight."""
    made = case(text_of("causal"), (128, 128), (1, 1, 1, 8, 8), torch.bfloat16)
    three = made.module._rows_kernel.function.__globals__["three_parts"]
    drawn = np.random.default_rng(0)
    x = (drawn.standard_normal(10_000) * 2.0 ** drawn.integers(-40, 40, 10_000)).astype(np.float32)
    parts = [part.values.astype(np.float64) for part in three(Tile(x))]
    assert np.array_equal(sum(parts), x.astype(np.float64))


@pytest.mark.parametrize("steep", [1e-3, 20.0])
@pytest.mark.parametrize("name", ["causal", slow("sink")])
def test_log_sum_exps_of_any_size(name: str, steep: float) -> None:
    errors, launched = gradients(text_of(name), (64, 64), (1, 2, 1, 130, 140), torch.float16, steep=steep)
    assert "_hopper_backward_kernel" in launched
    assert all(e <= 8e-3 for e in errors.values()), errors


def test_the_scale_decides_at_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    made = case(text_of("causal"), (64, 64), (1, 1, 1, 8, 8), torch.bfloat16)
    prepared, asked = made.module._attention.backward_launches, []

    def prepare(*arguments: Any) -> Any:
        asked.append(arguments[-1].usual)
        if not asked[-1]:
            raise FaultError("the portable kernels are not modelled")
        return prepared(*arguments)

    monkeypatch.setattr(made.module._attention, "backward_launches", prepare)
    lse, d_out = torch.zeros(1, 1, 8), torch.zeros_like(made.q)
    for scale in (0.125, 3.0):
        made.differentiated(d_out, None, (d_out, lse), scale=scale)
    for scale in (1e-20, 1e20, 0.0, -1.0):
        with pytest.raises(FaultError):
            made.differentiated(d_out, None, (d_out, lse), scale=scale)
    assert asked == [True, False, False, False, False]


@pytest.mark.parametrize("usual", [True, False])
def test_a_scale_that_log_sum_exps_cannot_be_divided_by_takes_the_portable_kernels(usual: bool) -> None:
    made = case(text_of("causal"), (64, 64), (1, 1, 1, 8, 8), torch.bfloat16)
    q, k, v = (x.contiguous() for x in (made.q, made.k, made.v))
    asked = made.module.Backward(has_d_lse=False, precise=False, needed=(), usual=usual)
    known = made.module._attention.layout((q, k, v), ())
    found = made.module._backward_launches(known, {}, q, k, v, q, q, k, v, asked)
    names = ("_rows_kernel", "_hopper_backward_kernel", "_collect_kernel")
    assert tuple(x.kernel.name for x in found) == (names if usual else ("_rows_kernel", "_dkdv_kernel", "_dq_kernel"))


BACKWARDS = ("128 3      yes   2        256  ", "128 3      yes   1        1    ")
"""So few heads a group that there are several, as there are in a large batch."""


@pytest.mark.parametrize("name", cases(["causal", "sink", "softcap", "documents"], {"causal", "documents"}))
@pytest.mark.parametrize("heads", [(2, 4, 2), (5, 1, 1)], ids=str)
@pytest.mark.parametrize("dim", [64, 128])
def test_tiles_of_keys_from_the_last_to_the_first(name: str, heads: tuple[int, int, int], dim: int) -> None:
    """But for the last group of heads."""
    changes = [BACKWARDS] if dim == 128 else [("128 3      no    4        512  ", "128 3      no    1        1    ")]
    sizes = (*heads, 400, 400) if name in SQUARE else (*heads, 300, 400)
    errors, launched = gradients(text_of(name), (dim, dim), sizes, changes=changes)
    assert {"_hopper_backward_kernel", "_collect_kernel"} <= set(launched)
    assert all(e <= 8e-3 for e in errors.values()), errors


@pytest.mark.parametrize("dim", [64, 128])
@pytest.mark.parametrize("name", SHAPED)
def test_masks_and_scores_that_no_example_has(name: str, dim: int) -> None:
    """Nothing is listed: the tiles of keys that meet a tile of queries are consecutive."""
    errors, launched = gradients(SHAPED[name], (dim, dim), (2, 4, 2, 200, 333))
    assert launched == ["_rows_kernel", "_hopper_backward_kernel", "_collect_kernel"]
    assert all(e <= 8e-3 for e in errors.values()), errors


@pytest.mark.parametrize("dim", [64, 128])
@pytest.mark.parametrize("marked", [(), (3,), (3, 150, 151, 299)], ids=str)
def test_stretches_of_queries_that_begin_together(dim: int, marked: tuple[int, ...]) -> None:
    """Some tiles of keys meet a window of queries, some all behind them."""
    mark = np.zeros((2, 420), bool)
    mark[:, list(marked)] = True
    errors, launched = gradients(LANDMARKS, (dim, dim), (2, 4, 2, 420, 420), mark=mark)
    mapped = ["_extremes_kernel", "_map_queries_kernel", "_list_queries_kernel"]
    assert launched == ["_rows_kernel", *mapped, "_hopper_backward_kernel", "_collect_kernel"]
    assert all(e <= 8e-3 for e in errors.values()), errors


@pytest.mark.parametrize("dim", [128, 256])
@pytest.mark.parametrize("whose", LISTED)
def test_whose_lists_they_are(whose: str, dim: int) -> None:
    errors, launched = gradients(LISTED[whose], (dim, dim), (2, 2, 2, 270, 270))
    ways = [{"_list_walks_kernel"}, {"_list_queries_met_kernel", "_list_keys_met_kernel"}]
    ways += [{"_map_queries_kernel", "_list_queries_kernel"}]
    assert any(way <= set(launched) for way in ways)
    assert all(e <= 8e-3 for e in errors.values()), errors


@pytest.mark.parametrize("name", cases([n for n in NAMES if n not in ELSEWHERE], {"documents"}))
def test_examples_by_two_kernels(name: str) -> None:
    sizes = (1, 4, 2, 200, 333) if name not in SQUARE else (1, 4, 2, 260, 260)
    errors, launched = gradients(text_of(name), (256, 256), sizes)
    assert {"_hopper_dkdv_kernel", "_hopper_dq_kernel"} <= set(launched)
    assert all(e <= 8e-3 for e in errors.values()), errors


@pytest.mark.parametrize("dims", [(64, 64), (32, 8), (192, 128), slow((128, 120)), slow((136, 72))], ids=str)
@pytest.mark.parametrize(
    "sizes",
    [(1, 4, 2, 130, 70), (1, 2, 2, 5, 300), (1, 1, 1, 1, 1), slow((2, 3, 1, 300, 64)), slow((1, 2, 1, 129, 193))],
    ids=str,
)
def test_shapes(dims: tuple[int, int], sizes: tuple[int, int, int, int, int]) -> None:
    """Ragged, in groups, with rows that meet no key, shorter than a tile."""
    errors, _ = gradients(text_of("causal"), dims, sizes, torch.float16)
    assert all(e <= 1e-3 for e in errors.values()), errors


def test_keys_that_nobody_sees_have_no_steps() -> None:
    """A program goes from items without work to those with some."""
    errors, launched = gradients(text_of("sliding_window"), (128, 128), (1, 8, 2, 200, 900))
    assert "_hopper_backward_kernel" in launched
    assert all(e <= 8e-3 for e in errors.values()), errors


@pytest.mark.parametrize("name", ["alibi", "sink", "custom_normalizer"])
def test_gradients_of_params_that_dq_sums(name: str) -> None:
    errors, launched = gradients(text_of(name), (256, 256), (1, 2, 1, 130, 200), learned=True)
    assert {"_hopper_dkdv_kernel", "_hopper_dq_kernel"} <= set(launched)
    assert len(errors) > 3 and all(e <= 8e-3 for e in errors.values()), errors


NOWHERE = "score = qk * scale + log(float(Sk - k)) / float(Sq - q)\n"
AHEAD = "mask = k >= q\n"


@pytest.mark.parametrize("dim", [128, 256, slow(64)])
@pytest.mark.parametrize(
    "body",
    [
        AHEAD,
        "mask = k >= q + Sk - Sq\n",
        NOWHERE,
        slow(f"{NOWHERE}{AHEAD}"),
        slow(f"{NOWHERE}mask = q + k < Sk\n"),
        slow(f"{NOWHERE}mask = q < 77\n"),
        slow(f"{NOWHERE}mask = causal and q - k < 60\n"),
        "score = qk * scale + 4.0 * float(max(k - Sk, -1))\n",
    ],
)
def test_keys_and_queries_beyond_the_tensor_count_for_nothing(body: str, dim: int) -> None:
    """Also where a mask has one bound, or none; where a score has no value there; where it is so large that zero times
    a key's weight is no number."""
    text = f"attention edge\n\n{body}"
    errors, launched = gradients(text, (dim, dim), (1, 2, 1, 150, 200))
    assert any("hopper" in kernel for kernel in launched)
    assert all(e <= 1.2e-2 for e in errors.values()), errors


@pytest.mark.slow
def test_keys_beyond_their_own_end_count_for_nothing() -> None:
    """By two kernels: at head dims up to 128 such a mask is the portable kernels'."""
    errors, launched = gradients(f"attention edge\n\n{NOWHERE}mask = k < 70\n", (256, 256), (1, 2, 1, 150, 200))
    assert {"_hopper_dkdv_kernel", "_hopper_dq_kernel"} <= set(launched)
    assert all(e <= 1.2e-2 for e in errors.values()), errors


def test_sums_over_queries_take_nothing_from_beyond_the_tensor() -> None:
    text = "attention edge\n\nparam a: f32[Hq]\nscore = qk * scale + a[h] * log(float(Sq - q))\n"
    errors, launched = gradients(text, (256, 256), (1, 2, 1, 130, 200), learned=True)
    assert "_hopper_dq_kernel" in launched and errors.keys() == {"q", "k", "v", "a"}
    assert all(e <= 8e-3 for e in errors.values()), errors


def test_a_sum_of_columns_that_nobody_wants_is_no_hindrance() -> None:
    errors, launched = gradients(TILT, (256, 256), (1, 2, 1, 100, 100))
    assert launched[1:] == ["_hopper_dkdv_kernel", "_hopper_dq_kernel"]
    assert all(e <= 8e-3 for e in errors.values()), errors


@pytest.mark.parametrize("offset", [2**31 - 64, 2**31 - 1])
@pytest.mark.parametrize("far", FAR)
@pytest.mark.parametrize("dim", [128, 256])
def test_a_tile_that_meets_nothing_reads_nothing_outside(far: str, dim: int, offset: int) -> None:
    errors, _ = gradients(FAR[far], (dim, dim), (1, 2, 1, 130, 130), offset=offset)
    assert all(e == 0 for e in errors.values()), errors


@pytest.mark.parametrize(("far", "partition"), [("queries", "_load_query_tiles"), ("keys", "_load_key_tiles")])
def test_without_the_clamp_it_would(far: str, partition: str) -> None:
    with pytest.raises(FaultError, match=partition):
        gradients(FAR[far], (256, 256), (1, 2, 1, 130, 130), changes=UNCLAMPED, offset=2**31 - 64)


ROWS = {
    "two tiles of weights ahead": ("256 256   | 64 64 2      1 ", "256 256   | 64 64 2      2 "),
    "dQ: two heads in turn": ("128 64 2        1        1  ", "128 64 2        1        2  "),
    "dQ: one place of keys, two of values": ("128 64 2        1        1  ", "128 64 1        2        1  "),
}


@pytest.mark.slow
@pytest.mark.parametrize("what", ROWS)
def test_other_rows_of_the_table(what: str) -> None:
    errors, _ = gradients(text_of("softcap"), (256, 256), (1, 2, 1, 300, 260), changes=[ROWS[what]])
    assert all(e <= 8e-3 for e in errors.values()), errors


GIVEN_BACK = "sm90.release(rings.k, step)"
LAST_PRODUCT = "dv, p, dk, slopes = warpgroup_mma_wait(0, deps=(dv_token, p, dk_token, slopes))"
DS_GIVEN_BACK = "mbarrier.arrive(rings.ds.free.index(place), count=1)"
NEXT_ITEM = "        item = sm90.next_item(rings.notes, round, 4)\n"
KEYS_GIVEN_BACK = "        mbarrier.arrive(rings.k.free, count=1)\n"
KEYS_THERE = "        mbarrier.wait(rings.k.ready, round & 1)\n"
DQ_DONE = "dq = warpgroup_mma_wait(0, deps=(dq_token,))"
DS_THERE = "barrier_sync(rings.ds.stored + place, rings.ds.threads, 4)"
FAULTS = {
    "the copy engine reads before a fence": (256, ("    fence_async_shared()\n    BARRIER()", "    pass")),
    "keys are given back before dQ's product": (
        256,
        (f"(dq_token, slopes))\n        {GIVEN_BACK}\n", "(dq_token, slopes))\n"),
        ("(qk_token,))\n        at = step\n", f"(qk_token,))\n        {GIVEN_BACK}\n        at = step\n"),
    ),
    "dO is read before it is there": (
        256,
        (
            "        place = sm90.await_tile(rings.d_out, turn)\n        dp_token",
            "        place = turn % 2\n        dp_token",
        ),
    ),
    "scores are read before they are waited for": (
        256,
        (
            "dv, p = warpgroup_mma_wait(1, deps=(dv_token, p))",
            "qk, dv, p = warpgroup_mma_wait(1, deps=(qk_token, dv_token, p))",
        ),
    ),
    "weights are handed over where others may still be read": (
        256,
        ("    if turn >= PLACES:\n        barrier_sync(handover.free + place, handover.threads, 4)\n", ""),
    ),
    "weights are taken before they are handed over": (
        256,
        ("    barrier_sync(handover.stored + place, handover.threads, 4)\n", ""),
    ),
    "nobody gives a tile of queries back": (256, ("sm90.release(rings.q, turn + step)", "pass")),
    "an item's keys are given back at its start": (
        128,
        (KEYS_GIVEN_BACK, ""),
        (KEYS_THERE, KEYS_THERE + KEYS_GIVEN_BACK),
    ),
    "results are copied without a fence": (
        128,
        (
            "            fence_async_shared()\n            BARRIER()\n            COPY_OUT",
            "            COPY_OUT",
        ),
    ),
    "the next values come before dV is copied": (
        128,
        (
            "            tma.store_wait(0)\n        mbarrier.arrive(rings.v.free, count=1)\n",
            "        mbarrier.arrive(rings.v.free, count=1)\n",
        ),
    ),
    "dS is not waited for": (
        128,
        (DS_THERE, DS_THERE.replace("barrier_sync", "barrier_arrive")),
    ),
    "dS of what is passed over is what was there": (128, (".store(no_ds)", ".load()")),
    "a half walks the other's queries": (128, ("BK // 2 if SHARE == 2 else 0", "BK // 2 if SHARE == 1 else 0")),
    "dS is stored where dQ's product may still read": (
        128,
        ("    mbarrier.wait(ds.free.index(place), (turn // PLACES & 1) ^ 1)\n", ""),
    ),
    "dS is given back under dQ's product": (
        128,
        (DS_GIVEN_BACK, "pass"),
        (DQ_DONE, f"{DS_GIVEN_BACK}\n{8 * ' '}{DQ_DONE}"),
    ),
    "a product reads dS without a fence": (
        128,
        ("    fence_async_shared()\n    barrier_arrive(ds.stored", "    barrier_arrive(ds.stored"),
    ),
    "keys are given back before dQ's last product": (
        128,
        (KEYS_GIVEN_BACK + NEXT_ITEM, NEXT_ITEM),
        (f"{KEYS_THERE}        for member", f"{KEYS_THERE}{KEYS_GIVEN_BACK}        for member"),
    ),
    "all of dS lies in one place": (
        128,
        (
            "ds.tiles.index(first + place).store(slopes)",
            "ds.tiles.index(first).store(slopes)",
        ),
    ),
    "queries are fetched where others may still be read": (
        128,
        ("    if turn >= PLACES:\n        barrier_sync(ring.free + place, ring.threads, 1)\n    return", "    return"),
    ),
    "nobody comes for the last places of queries": (
        128,
        ("\n        barrier_sync(ring.free + (turn - 1 - last) % PLACES, ring.threads, 1)\n", "\n        pass\n"),
    ),
    "dO of a tile is not waited for": (
        128,
        ("        sm90.await_tile(rings.d_out, turn)\n", "        pass\n"),
    ),
    "a tile of queries is given back under its last product": (
        128,
        (
            f"{LAST_PRODUCT}\n    sm90.release(rings.q, turn)",
            f"sm90.release(rings.q, turn)\n    {LAST_PRODUCT}",
        ),
    ),
    "nobody tells that a part of dQ is added": (
        128,
        ("sm90.tell_step(adding.added, turn)", "pass"),
    ),
    "the next item is not waited for": (
        128,
        ("    mbarrier.wait(note.ready, round & 1)\n", ""),
    ),
    "terms of a tile of queries are not waited for": (
        128,
        ("nbytes + work.terms_desc.block_type.nbytes", "nbytes"),
        (
            "sm90.fetch(d_out_desc, rings.d_out, stage, batch, head, q0)",
            "sm90.fetch(d_out_desc, rings.d_out, stage, batch, head, q0, config.BQ * 32)",
        ),
        (
            "def fetch(desc, ring, stage, batch, head, start)",
            "def fetch(desc, ring, stage, batch, head, start, more=0)",
        ),
        ("index(stage), desc.block_type.nbytes)", "index(stage), desc.block_type.nbytes + more)"),
        ("ready, rings.rows.index(stage)", "rings.d_out.ready.index(stage), rings.rows.index(stage)"),
    ),
    "dK is stored where dQ's product may still read dS": (
        128,
        ("mbarrier.wait(ds.free.index(place), (used & 1) ^ 1)", "pass"),
    ),
    "parts of dQ wait for a turn that is never passed": (
        128,
        (
            "items.passed_turn(order)",
            "order",
        ),
    ),
}
"""Head dim, and what is changed."""


@pytest.mark.parametrize("what", FAULTS)
def test_the_model_sees_faults(what: str) -> None:
    """In one order or another: whoever should have waited may come late by chance. An item walks the whole group."""
    dim, *changes = FAULTS[what]

    def goes_wrong(seed: int) -> bool:
        schedule = Schedule(seed=seed)
        try:
            errors, _ = gradients(
                text_of("causal"), (dim, dim), (1, 2, 1, 400, 400), changes=[WHOLE, *changes], schedule=schedule
            )
        except FaultError:
            return True
        return not all(e <= 8e-3 for e in errors.values())

    assert any(goes_wrong(seed) for seed in range(20))
