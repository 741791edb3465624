"""Short queries against more keys, the walk over keys cut into pieces: specs against both float64 results.

As `test_parity.py`, with a split forced where small shapes would have none, so that tiles have several heads, the last
piece may be short or have nothing, and the merge has more pieces than it takes at a time.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from types import ModuleType

import pytest
import torch
from parity import formulas, variants
from parity.compare import disagreements
from parity.test_parity import EVERY, FLOOR, TILE, TOLERANCE, by_formula, by_kernel, by_reference, named
from parity.variants import Case, Variant

import attngen
from attngen import Kernel

pytestmark = [
    pytest.mark.filterwarnings("ignore:Conversion of an array with ndim > 0:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning:triton.runtime.interpreter"),
    pytest.mark.filterwarnings("ignore:no GPU found:UserWarning"),
]

CASES = (
    (Case("decode_gqa", batch=2, heads=4, kv_heads=1, rows=1, columns=83), 3),
    (Case("some", heads=4, kv_heads=2, rows=5, columns=64, value_dim=32, layout="transposed"), 2),
    (Case("two_tiles", heads=4, kv_heads=1, rows=7, columns=70, layout="strided"), 5),
    (Case("more_queries", heads=2, kv_heads=1, rows=20, columns=9), 2),  # 11 empty rows under a causal mask
    (Case("many_pieces", batch=2, heads=1, kv_heads=1, rows=3, columns=280, dim=24, value_dim=20), 18),
    (Case("one_piece", heads=2, kv_heads=2, rows=4, columns=50), 1),
)
"""Shapes, and into how many pieces each is cut."""

SAMPLE = {
    "causal", "sliding_window", "alibi", "softcap", "sink", "sigmoid", "softmax1", "custom_normalizer", "dropout",
    "prefix_lm", "cross_attention", "two_documents", "full_bias", "relative_bias", "window_per_head", "time_window",
    "learned_sink", "relu_mean", "relu_sum", "heat_per_head", "reach_per_head", "kinds_per_key_head", "dilated",
    "event_order", "ranks_per_key_head", "thirds_per_head",
}  # fmt: skip
"""Examples and extras of each kind, a shape or three each, in every run."""


def reach_per_head(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> formulas.Result:
    at_q, at_k, head = (torch.arange(n, device=q.device) for n in (q.shape[2], k.shape[2], q.shape[1]))
    mask = at_k <= at_q[:, None] + 3 * head[:, None, None]
    return formulas.normalized(formulas.products(q, k) * scale, mask, formulas.heads(q, v))


def kinds_per_key_head(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, *, kind: torch.Tensor
) -> formulas.Result:
    per_head = kind.repeat_interleave(q.shape[1] // kind.shape[1], 1)
    mask = per_head[:, :, None] == torch.arange(q.shape[2], device=q.device)[:, None]
    return formulas.normalized(formulas.products(q, k) * scale, mask, formulas.heads(q, v))


def ranks_per_key_head(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, *, rank: torch.Tensor
) -> formulas.Result:
    per_head = rank.repeat_interleave(q.shape[1] // rank.shape[1], 1)
    mask = per_head[:, :, None] <= torch.arange(q.shape[2], device=q.device)[:, None]
    return formulas.normalized(formulas.products(q, k) * scale, mask, formulas.heads(q, v))


def thirds_per_head(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> formulas.Result:
    at_q, at_k, head = (torch.arange(n, device=q.device) for n in (q.shape[2], k.shape[2], q.shape[1]))
    mask = ((at_k // 8 + head[:, None, None]) % 3 == 0) & (at_k <= at_q[:, None] + 60)
    return formulas.normalized(formulas.products(q, k) * scale, mask, formulas.heads(q, v))


OWN = (
    Variant(
        "heat_per_head",
        "attention heat_per_head\nparam heat: f32[Hq]\nscore = qk * scale * (1 + abs(heat[h]))\nmask = causal\n",
        lambda q, k, v, scale, *, heat: formulas.causal(q * (1 + heat[:, None, None].abs()), k, v, scale),
        lambda d: {"heat": d.uniform(0.5, 2.0, d.case.heads)},
    ),
    Variant("reach_per_head", "attention reach_per_head\nmask = k <= q + 3 * h\n", reach_per_head),
    Variant(
        "kinds_per_key_head",
        "attention kinds_per_key_head\nparam kind: int[B, Hkv, Sk]\nmask = kind[b, hkv, k] == q\n",
        kinds_per_key_head,
        lambda d: {"kind": d.ints(0, d.case.rows, d.case.batch, d.case.kv_heads, d.case.columns)},
    ),
    Variant(
        "ranks_per_key_head",
        "attention ranks_per_key_head\nparam rank: int[B, Hkv, Sk]\nmask = rank[b, hkv, k] <= q\n",
        ranks_per_key_head,
        lambda d: {"rank": d.ints(-3, d.case.rows + 3, d.case.batch, d.case.kv_heads, d.case.columns)},
    ),
    Variant(
        "thirds_per_head",
        "attention thirds_per_head\nmask = (k // 8 + h) % 3 == 0 and k <= q + 60\n",
        thirds_per_head,
    ),
)
"""Where heads keep their rows in tiles of their own: they differ in the logits' factor, loops' ends, data tests, lists.
Not so those of `ranks_per_key_head`: a list is one for all heads that share keys."""

SPLITTING = [*(v for v in EVERY if not v.square), *OWN]


def compiled(variant: Variant) -> Kernel:
    return made(variant.name)


@cache
def made(name: str) -> Kernel:
    variant = next(v for v in SPLITTING if v.name == name)
    return attngen.compile(variant.text, tile=TILE, consts=variant.consts)


def module_of(run: Kernel) -> ModuleType:
    return sys.modules[run.function.__module__]


@contextmanager
def cut(run: Kernel, pieces: int) -> Iterator[list[str]]:
    """Every call inside is split into so many pieces; gives the names of the kernels that run."""
    module = module_of(run)
    own, launch, launched = module.host.split_pieces, module.host.Launch.launch, []

    def noted(self, *arguments):  # type: ignore[no-untyped-def]
        launched.append(self.kernel.__name__)
        return launch(self, *arguments)

    module.host.split_pieces, module.host.Launch.launch = lambda *_: pieces, noted
    module._attention.ready.clear()
    try:
        yield launched
    finally:
        module.host.split_pieces, module.host.Launch.launch = own, launch
        module._attention.ready.clear()


def matrix() -> list[object]:
    runs: list[object] = []
    for i, variant in enumerate(SPLITTING):
        often = 3 if variant.name in ("causal", "alibi", "sliding_window") else 1
        sample = {(i + 2 * step) % len(CASES) for step in range(often)} if variant.name in SAMPLE else set()
        for j, (case, pieces) in enumerate(CASES):
            for device in ("cpu", "cuda"):
                marks = [pytest.mark.gpu] if device == "cuda" else []
                marks += [] if j in sample else [pytest.mark.slow]
                runs.append(
                    pytest.param(variant, case, pieces, device, id=f"{variant.name}-{case.name}-{device}", marks=marks)
                )
    return runs


@pytest.mark.parametrize(("variant", "case", "pieces", "device"), matrix())
def test_a_split_call_is_the_formula_and_the_reference(variant: Variant, case: Case, pieces: int, device: str) -> None:
    given = variants.inputs(variant, case, torch.float32, device)
    run = compiled(variant)
    if not hasattr(module_of(run), "_split_kernel"):
        assert variant.name == "nothing"  # no query has a key
        return
    with cut(run, pieces) as launched:
        got = by_kernel(run, given, True)
    found = ["_extremes_kernel", "_map_keys_kernel", "_sort_tiles_kernel"] if run.plan.map else []
    launched = [name for name in launched if "_test" not in name]
    assert launched[: len(found) + 2] == [*found, "_split_kernel", "_merge_kernel"]
    tolerance, floor = TOLERANCE[torch.float32], FLOOR[torch.float32]
    halves = frozenset(f"d_{n}" for n in given.floats() if given.params[n].dtype != torch.float32)  # type: ignore[union-attr]
    off = disagreements(got, by_formula(variant, given, False, True), tolerance, floor, halves)
    assert not off, "against the formula: " + "; ".join(off)
    off = disagreements(got, by_reference(run, given, True), tolerance, floor, halves)
    assert not off, "against the reference: " + "; ".join(off)


def test_the_sample_names_specs() -> None:
    assert {v.name for v in SPLITTING} >= SAMPLE


DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ["windowed_alibi", "dropout", "sigmoid"])
def test_the_same_bits_every_time(name: str, device: str) -> None:
    variant = named(name)
    given = variants.inputs(variant, CASES[2][0], torch.float32, device)
    run = compiled(variant)
    with cut(run, 3):
        once, again = (by_kernel(run, given, True) for _ in range(2))
    assert [n for n in once.values if not torch.equal(once.values[n], again.values[n])] == []


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("scale", [60.0, -60.0])
def test_large_scores_stay_finite(scale: float, device: str) -> None:
    variant = named("sink")
    given = replace(variants.inputs(variant, CASES[0][0], torch.float32, device), scale=scale)
    run = compiled(variant)
    with cut(run, 4):
        got = by_kernel(run, given, True)
    assert all(torch.isfinite(value).all() for value in got.values.values())
    assert not disagreements(got, by_formula(variant, given, False, True), 2e-3, 0.1, frozenset())


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_keeps_what_rounding_takes_where_a_param_learns(dtype: torch.dtype, device: str) -> None:
    variant = named("alibi")
    given = variants.inputs(variant, CASES[1][0], dtype, device)
    run = compiled(variant)
    with cut(run, 3) as launched:
        got = by_kernel(run, given, True)
    assert [name for name in launched if "_test" not in name][:2] == ["_split_kernel", "_merge_kernel"]
    off = disagreements(got, by_formula(variant, given, False, True), TOLERANCE[dtype], FLOOR[dtype], frozenset())
    assert not off, "; ".join(off)


def test_pieces_change_nothing_but_rounding() -> None:
    """Also where there are more pieces than tiles, so that some have nothing."""
    variant = named("sliding_window")
    given = variants.inputs(variant, CASES[2][0], torch.float32, "cpu")
    run = compiled(variant)
    q, k, v = (x.detach() for x in (given.q, given.k, given.v))
    out, lse = run(q, k, v, return_lse=True)
    for pieces in (1, 2, 3, 4, 7, 40):
        with cut(run, pieces):
            again, lse_again = run(q, k, v, return_lse=True)
        torch.testing.assert_close(again, out, rtol=0, atol=1e-6)
        torch.testing.assert_close(lse_again, lse, rtol=0, atol=1e-6)


def test_a_short_query_is_split_of_itself() -> None:
    """By shapes alone: sixteen rows and long keys are, a few keys are not, nor are queries that fill the card."""
    run = compiled(named("causal"))
    module = module_of(run)

    def pieces(rows: int, columns: int, batch: int = 1) -> int:
        q, k, v = (torch.empty(batch, heads, size, 16) for heads, size in ((4, rows), (2, columns), (2, columns)))
        whole = module.host.ceil(rows, module.host.tiles(module.TILES, q, v)[0][0]) * batch * 4
        return module.host.split_pieces(module.SPLIT, q, k, v, True, whole)

    assert pieces(1, 64) > 1
    assert pieces(16, 4096) > 1
    assert pieces(1, 4096, batch=64) == 1  # whole rounds already; heads share what is read
    assert pieces(1, 4096, batch=8) == 2  # four rounds of programs, not two
    assert pieces(1, 63) == 0
    assert pieces(32, 4096) == 0
    assert pieces(4096, 4096) == 0
