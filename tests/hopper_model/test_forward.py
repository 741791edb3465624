"""The forward kernel of compute capability 9.0, by its own launcher, on a model of the chip: right, no races."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from attngen import reference
from hopper_model.cases import (
    EXAMPLES,
    FAR,
    LISTED,
    RISING,
    SHAPED,
    UNCLAMPED,
    Change,
    case,
    compiled,
    relative,
    text_of,
)
from hopper_model.numbers import FaultError
from hopper_model.schedule import USUAL, Schedule

ELSEWHERE = {"dilated", "dropout", "sigmoid"}
NAMES = sorted({path.stem for path in EXAMPLES.glob("*.attn")} - ELSEWHERE)
ALWAYS = {"causal", "documents", "relative_bias", "softcap", "window_global"}
"""A plain one; one whose tiles data decides; a bias by distance; one whose score bends; one of several stretches."""
SQUARE = {name for name in NAMES if "assume Sq == Sk" in text_of(name)}


def forward(
    text: str,
    dims: tuple[int, int],
    sizes: tuple[int, int, int, int, int],
    changes: Sequence[Change] = (),
    steep: float = 1.0,
    schedule: Schedule = USUAL,
    **params: Any,
) -> tuple[float, float]:
    """Errors against the definition: of out, relative, and of the log-sum-exp, the greatest. float16. Queries are
    multiplied by `steep`."""
    made = case(text, dims, sizes, torch.float16, changes, schedule, **params)
    made = replace(made, q=made.q * steep)
    function = getattr(made.module, made.kernel.name)
    out, lse = function(made.q, made.k, made.v, return_lse=True, **made.given)
    hopper = made.kernel.plan.hopper
    assert hopper is not None
    lists = ["_list_key_runs_kernel"] if made.kernel.plan.keys.tests else []
    lists = ["_extremes_kernel", "_map_keys_kernel", "_list_keys_kernel"] if made.kernel.plan.map else lists
    assert made.launched == [*lists, "_hopper_forward_kernel"]
    right = made.truth()
    met = np.isfinite(right.lse)
    if not np.array_equal(lse.numpy()[~met], right.lse[~met]):
        return relative(out, right.out), float("inf")
    return relative(out, right.out), float(np.abs(lse.double().numpy()[met] - right.lse[met]).max(initial=0.0))


def slow(value: Any) -> Any:
    return pytest.param(value, marks=pytest.mark.slow)


@pytest.mark.parametrize("name", [n if n in ALWAYS else slow(n) for n in NAMES])
def test_examples(name: str) -> None:
    """Several items a program, of heads in groups."""
    sizes = (1, 4, 2, 200, 333) if name not in SQUARE else (1, 2, 1, 260, 260)
    error, lse_error = forward(text_of(name), (128, 128), sizes)
    assert error <= 1e-3 and lse_error <= 1e-4


@pytest.mark.parametrize("name", SHAPED)
def test_masks_and_scores_that_no_example_has(name: str) -> None:
    error, lse_error = forward(SHAPED[name], (128, 128), (2, 4, 2, 200, 333))
    assert error <= 1e-3 and lse_error <= 1e-4


@pytest.mark.parametrize(
    ("name", "dim"), [*((name, 128) for name in RISING), ("with a sink", 64), ("of documents", 64)]
)
def test_logits_that_rise_from_key_to_key(name: str, dim: int) -> None:
    assert compiled(RISING[name]).plan.ramp is not None
    error, lse_error = forward(RISING[name], (dim, dim), (2, 4, 2, 200, 200 if "Sq == Sk" in RISING[name] else 333))
    assert error <= 1e-3 and lse_error <= 1e-4


PAIRS = {
    "a head's": "attention a\nparam bias: f32[Hq, Sq, Sk]\nscore = qk * scale + bias[h, q, k]\n",
    "everybody's": "attention b\nparam bias: f32[Sq, Sk]\nscore = qk * scale + bias[q, k]\nmask = causal\n",
    "a batch row's": "attention c\nparam bias: f32[B, 2, Sq, Sk]\nscore = tanh(qk * scale + bias[b, 1, q, k])\n"
    "mask = k != 3 or bias[b, 1, q, k] > 0.0\n",
    "without a maximum": "attention d\nparam bias: f32[Hkv, Sq, Sk]\nscore = qk * scale + bias[hkv, q, k]\n"
    "normalizer positive {\nweight(s) = max(s, 0.0)\ndenominator = sum + 1\nshift = none\n}\nnormalizer = positive\n",
}


@pytest.mark.parametrize("keys", [336, 333])
@pytest.mark.parametrize("name", PAIRS)
def test_tiles_of_pairs(name: str, keys: int) -> None:
    """They come with the keys where rows lie 16 bytes apart; else threads load their own elements. float32 alike."""
    sizes = (2, 4, 2, 200, keys)
    made = case(
        PAIRS[name], {"a head's": (128, 128), "everybody's": (32, 16)}.get(name, (64, 64)), sizes, torch.float16
    )
    out, lse = getattr(made.module, made.kernel.name)(made.q, made.k, made.v, return_lse=True, **made.given)
    (known,) = made.module._attention.ready.values()
    ((*_, launch),) = known.forward.values()
    assert launch.options["FETCHES"] == (keys == 336) and made.launched == ["_hopper_forward_kernel"]
    right = made.truth()
    assert relative(out, right.out) <= 1e-3 and float(np.abs(lse.double().numpy() - right.lse).max()) <= 1e-4


@pytest.mark.parametrize("wrong", ["[head, q0, at * BK]", "[head, q0 + part * 64, 0]", "[0, q0 + part * 64, at * BK]"])
def test_a_tile_of_pairs_that_comes_from_elsewhere_is_seen(wrong: str) -> None:
    change = "[head, q0 + part * 64, at * BK]", wrong
    error, _ = forward(PAIRS["a head's"], (128, 128), (1, 4, 2, 200, 336), [change])
    assert error > 0.1


DIMS = [(64, 64), (128, 128), (256, 256), (192, 128), slow((64, 128)), slow((72, 120))]
SIZES = [(1, 4, 2, 300, 200), (1, 2, 2, 130, 1), (2, 3, 1, 129, 193), slow((1, 2, 1, 200, 900)), slow((1, 1, 1, 1, 1))]


@pytest.mark.parametrize("dims", DIMS, ids=str)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_shapes(dims: tuple[int, int], sizes: tuple[int, int, int, int, int]) -> None:
    """With two warpgroups and with three, the next scores under way or not, the result in the queries' place or apart;
    ragged, with rows that meet no key, shorter than a tile."""
    error, lse_error = forward(text_of("causal"), dims, sizes)
    assert error <= 1e-3 and lse_error <= 1e-4


STEEP = 8.0
"""So that maxima rise by more than the reference lags behind, again and again."""
UNSCALED: dict[str, Change] = {
    "acc": ("acc = sm90.rescaled(acc, rescale)", "acc = acc"),
    "the sum": ("row_sum = row_sum * rescale + sums", "row_sum = row_sum + sums"),
}


@pytest.mark.parametrize("dim", [64, 128])
def test_maxima_that_rise(dim: int) -> None:
    error, lse_error = forward(text_of("causal"), (dim, dim), (1, 4, 2, 200, 333), steep=STEEP)
    assert error <= 1e-3 and lse_error <= 1e-4


@pytest.mark.parametrize("what", UNSCALED)
def test_what_is_not_rescaled_is_seen(what: str) -> None:
    error, lse_error = forward(text_of("causal"), (128, 128), (1, 4, 2, 200, 333), [UNSCALED[what]], steep=STEEP)
    assert error > 0.1 or lse_error > 1


@pytest.mark.parametrize("name", ["alibi", "sink"])
def test_both_passes_together(name: str) -> None:
    """What the forward saves is what the backward reads, a learned param's share of the rounding included."""
    made = case(text_of(name), (256, 256), (1, 2, 1, 130, 200), torch.float16)
    params = {n: x.requires_grad_() for n, x in made.given.items()}
    leaves = [x.requires_grad_() for x in (made.q, made.k, made.v)]
    out = getattr(made.module, made.kernel.name)(*leaves, **params)
    d_out = made.draw("Hq", "Sq", "Dv")
    found = torch.autograd.grad(out, [*leaves, *params.values()], d_out)
    assert made.launched == ["_hopper_forward_kernel", "_rows_kernel", "_hopper_dkdv_kernel", "_hopper_dq_kernel"]
    right = reference.gradients(made.kernel.spec, *made.exact, d_out.double().numpy(), None, params=made.params)
    expected = [right.q, right.k, right.v, *(right.params[n] for n in params)]
    errors = [relative(mine, theirs) for mine, theirs in zip(found, expected, strict=True)]
    assert relative(out, made.truth().out) <= 1e-3 and max(errors) <= 2e-3, errors


@pytest.mark.parametrize("offset", [2**31 - 64, 2**31 - 1])
@pytest.mark.parametrize(("far", "dim"), [("queries", 64), ("queries", 128), ("keys", 128)])
def test_a_tile_that_meets_nothing_reads_nothing_outside(far: str, dim: int, offset: int) -> None:
    assert forward(FAR[far], (dim, dim), (1, 2, 1, 130, 130), offset=offset) == (0.0, 0.0)


def test_queries_past_the_end_meet_one_tile() -> None:
    """Of the second tile, 128 … 255, the second warpgroup has no query: of six tiles of keys it takes one, the last."""
    begin = "_Walk = namedtuple("
    weighed = '    """The weights P of 64 queries for the keys k0 … k0 + BK - 1, packed, and'
    counting = [(begin, f"WEIGHED = []\n{begin}"), (weighed, f"    WEIGHED.append(terms)\n{weighed}")]
    made = case(text_of("causal"), (128, 128), (1, 1, 1, 180, 700), torch.float16, counting)
    made.module.causal(made.q, made.k, made.v)
    assert len(made.module.WEIGHED) == 5 + 6 + 6 + 1


def test_without_the_clamp_it_would() -> None:
    with pytest.raises(FaultError, match=r"_attend_tiles|_load_tiles"):
        forward(FAR["keys"], (128, 128), (1, 2, 1, 130, 130), UNCLAMPED, offset=2**31 - 64)


def ids(rows: int, length: int, kind: str) -> np.ndarray:
    """Which document each token of each row of the batch belongs to; rows differ."""
    rng = np.random.default_rng(7)
    lengths = {"long": (90, 180), "short": (5, 40)}.get(kind, (1, 60))
    found = np.stack([np.repeat(np.arange(length), rng.integers(*lengths, length))[:length] for _ in range(rows)])
    return rng.permuted(found, axis=1) % 5 if kind == "shuffled" else found


BEGIN = "attention tested\n\nparam ids: int[B, Sk]\n"
TESTED = {
    "documents": BEGIN + "mask = causal and same_document(ids)\nassume Sq == Sk\n",
    "both ways": BEGIN + "mask = same_document(ids)\nassume Sq == Sk\n",
    "and the first keys": BEGIN + "mask = causal and (same_document(ids) or k < 70)\nassume Sq == Sk\n",
    "padded": BEGIN + "param keep: bool[B, Sk]\nmask = same_document(ids) and keep[b, k]\nassume Sq == Sk\n",
    "capped": BEGIN + "score = softcap(qk * scale, 5.0)\nmask = causal and same_document(ids)\nassume Sq == Sk\n",
}


@pytest.mark.parametrize("kind", ["long", "short", slow("shuffled")])
@pytest.mark.parametrize("what", [w if w in ("documents", "padded") else slow(w) for w in TESTED])
def test_documents(what: str, kind: str) -> None:
    """Rows of the batch differ; several documents a tile, or tiles within one; in any order; rows that meet no key."""
    error, lse_error = forward(TESTED[what], (128, 128), (2, 4, 2, 333, 333), ids=ids(2, 333, kind))
    assert error <= 1e-3 and lse_error <= 1e-4


@pytest.mark.parametrize("whose", LISTED)
def test_whose_lists_they_are(whose: str) -> None:
    """A list for each batch and head that may differ, and no more."""
    error, lse_error = forward(LISTED[whose], (128, 128), (2, 2, 2, 270, 270))
    assert error <= 1e-3 and lse_error <= 1e-4


def test_a_count_that_nobody_reaches_is_a_fault() -> None:
    """Programs that find extremes, and do not say so."""
    silent = ('tl.atomic_add(counts_ptr + 2, 1, sem="release")', "pass")
    with pytest.raises(FaultError, match=r"deadlock: program \d+ waits for a count that stays at 0"):
        forward(TESTED["documents"], (128, 128), (1, 1, 1, 130, 130), [silent])


PART = "part = 0 if ROWS == BQ else 1 + q0 % BQ // ROWS"
OWN = "n_steps, own_any_lo, own_any_hi"
LIST_FAULTS: dict[str, Change] = {
    "the lists of another batch": ("lists_ptr + items.entry_of(place", "lists_ptr + items.entry_of(0"),
    "the list of the other half": (PART, PART.replace("1 + ", "2 - ")),
    "the list of a half for a whole tile": (PART, PART.replace("0 if", "1 if")),
    "a mask is left out": ("tl.store(ends + 0, items.limited(full_lo, stop))", "tl.store(ends + 0, 0)"),
    "a tile too few": ("items.limited(any_hi, stop))", "items.limited(any_hi, stop) - 1)"),
    "a tile too few of a warpgroup's own": (OWN, OWN.replace("own_any_hi", "own_any_hi - 1")),
}


@pytest.mark.parametrize("what", LIST_FAULTS)
def test_a_wrong_list_is_seen(what: str) -> None:
    change = LIST_FAULTS[what]
    error, _ = forward(TESTED["documents"], (128, 128), (2, 2, 1, 333, 333), [change], ids=ids(2, 333, "long"))
    assert not error <= 1e-3


SCORES = "        qk = warpgroup_mma_wait(1 if config.PIPELINED else 0, deps=(qk_token,))\n"
VALUES_THERE = "v = sm90.arrived(rings.v, turn + step - 1, BK, config.BLOCK_DV)"
VALUES_PERHAPS = "v = rings.v.tiles.index((turn + step - 1) % rings.v.ready.shape[0]).reshape([BK, config.BLOCK_DV])"
KEYS_GIVEN_BACK = "        sm90.release(rings.k, turn + step)\n"
VALUES_GIVEN_BACK = "            sm90.release(rings.v, turn + step - 1)\n"
HOLD_BACK = "            sm90.pin_order(n_steps)\n"
QUERIES_THERE = "        mbarrier.wait(rings.q.ready.index(PART), round & 1)\n"
QUERIES_GIVEN_BACK = (
    '    if config.OUT_APART and config.SCHEDULE != "once":\n'
    "        sm90.release(rings.q, PART)  # the next queries arrive during the last product\n"
)
QUERIES_GIVEN_BACK_EARLY = (
    (QUERIES_GIVEN_BACK, ""),
    (QUERIES_THERE + "        q = ", f"{QUERIES_THERE}        sm90.release(rings.q, PART)\n        q = "),
)
MAY_START = "        sm90.await_products(config.ORDER, PART)\n"
NEXT_MAY_START = "        sm90.pass_products(config.ORDER, (PART + 1) % config.PARTS)\n"
FAULTS: dict[str, tuple[int, tuple[Change, ...]]] = {
    "keys are given back under the product": (
        128,
        ((SCORES + KEYS_GIVEN_BACK, SCORES), (NEXT_MAY_START, KEYS_GIVEN_BACK + NEXT_MAY_START)),
    ),
    "values are given back under the product": (
        128,
        ((VALUES_GIVEN_BACK, ""), (HOLD_BACK, VALUES_GIVEN_BACK + HOLD_BACK)),
    ),
    "values are not waited for": (128, ((VALUES_THERE, VALUES_PERHAPS),)),
    "scores are read before they are waited for": (
        64,
        ((SCORES, SCORES.replace("1 if config.PIPELINED else 0", "1")),),
    ),
    "nobody gives keys back": (64, ((KEYS_GIVEN_BACK, ""),)),
    "the phase of a tile is the other one": (
        64,
        (("turn // PLACES & 1)\n    return place", "(turn // PLACES & 1) ^ 1)\n    return place"),),
    ),
    "queries are not waited for": (128, ((QUERIES_THERE + "        q = ", "        q = "),)),
    "queries are given back while they are read": (128, QUERIES_GIVEN_BACK_EARLY),
    "queries are given back while they are read, by one of three": (64, QUERIES_GIVEN_BACK_EARLY),
    "results are copied without a fence": (128, ((".store(out)\n    fence_async_shared()", ".store(out)"),)),
    "a result is stored over one on its way": (
        128,
        (("results.tiles.index(PART)\n        tma.store_wait(0)", "results.tiles.index(PART)"),),
    ),
    "nobody waits for the last result": (128, (("    tma.store_wait(0)\n\n\n", "\n\n"),)),
    "the next item is not waited for": (128, ((f"    {QUERIES_THERE}            slot = ", "            slot = "),)),
    "a result goes where the next item's does": (128, (("(round - 1 & 1)", "(round & 1)"),)),
    "the next item is told before the last was read": (
        128,
        (("sm90.await_place(rings.q, part, round)\n                    if", "if"),),
    ),
    "nobody may start first": (
        64,
        (("    if PART == config.PARTS - 1:\n        sm90.pass_products(config.ORDER, 0)\n", ""),),
    ),
    "a warpgroup starts out of order": (128, ((MAY_START + "        qk_token = ", "        qk_token = "),)),
    "a warpgroup lets nobody start": (128, ((NEXT_MAY_START, ""),)),
    "a warpgroup lets nobody start, of three": (64, ((NEXT_MAY_START, ""),)),
    "who passes a tile by lets nobody start": (
        64,
        (("    await_products(FIRST, PART)\n    pass_products(FIRST, NEXT)\n", ""),),
    ),
    "nobody is there for the last": (64, ((f"    if PART == 0:\n{MAY_START}", ""),)),
}
"""Head dim, and what is changed."""

LET_GO = "    await_tile(v_ring, turn)\n    release(v_ring, turn)\n\n"
LISTED_FAULTS: dict[str, Change] = {
    "a tile is let go before it is there": (LET_GO, LET_GO.split("\n", 1)[1]),
    "nobody gives back what was let go": (LET_GO, "\n"),
}


def goes_wrong(text: str, dim: int, changes: Sequence[Change], **params: Any) -> bool:
    try:
        error, _ = forward(text, (dim, dim), (1, 2, 1, 500, 500), changes, **params)
    except FaultError:
        return True
    return not error <= 1e-3


@pytest.mark.parametrize("what", FAULTS)
def test_the_model_sees_faults(what: str) -> None:
    """In one order or another: whoever should have waited may come late by chance."""
    dim, changes = FAULTS[what]
    assert any(goes_wrong(text_of("causal"), dim, changes, schedule=Schedule(seed=seed)) for seed in range(20))


@pytest.mark.parametrize("what", LISTED_FAULTS)
def test_the_model_sees_faults_of_tiles_that_are_let_go(what: str) -> None:
    short, change = ids(1, 500, "short"), LISTED_FAULTS[what]
    schedules = [Schedule(seed=seed) for seed in range(20)]
    assert any(goes_wrong(text_of("documents"), 128, [change], ids=short, schedule=s) for s in schedules)
