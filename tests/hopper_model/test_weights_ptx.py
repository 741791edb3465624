"""The PTX of the forward kernel's weights, for compute capability 9.0, on a warp that executes it (`ptx`): what
`machine` takes it to do, and that a row's numbers are its own."""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest
import triton.language as tl

import attngen
from attngen.plan.tiles.hopper import SLACK
from attngen.runtime.exported.ptx import weights_ptx
from hopper_model import ptx
from hopper_model.cases import text_of
from hopper_model.machine import lagging_weights
from hopper_model.numbers import Tile

KINDS = {"bf16": ml_dtypes.bfloat16, "f16": np.float16, "e4m3": ml_dtypes.float8_e4m3fn}
ROUNDED = {"bf16": (1e-2, 1e-6), "f16": (1e-2, 1e-6), "e4m3": (0.13, 2.0**-9)}
"""By how much weights may differ, relatively and absolutely: the last digit of one may be rounded the other way."""
ROWS = 16
"""Of a warp, in eight quads of lanes that have two each."""
INF = float("inf")


@pytest.fixture
def text() -> Callable[..., str]:
    return lambda n, half: tl.constexpr(weights_ptx(n, half, SLACK, False)).value


@pytest.fixture
def ramped() -> Callable[..., str]:
    return lambda n, half: tl.constexpr(weights_ptx(n, half, SLACK, True)).value


@pytest.mark.parametrize(("name", "last"), [("causal", "dtype"), ("alibi", "ahead")])
def test_files_say_by_how_much_a_reference_may_lag(name: str, last: str) -> None:
    assert f"{last}, {SLACK})" in attngen.compile(text_of(name)).source


def executed(
    text: Callable[..., str],
    kind: str,
    x: np.ndarray,
    refs: np.ndarray,
    factor: float,
    slope: float = 0.0,
    ahead: np.ndarray | None = None,
) -> list[np.ndarray]:
    """Weights, and of each row the four threads' sums, its reference, and what earlier sums are multiplied by. `ahead`
    is that of each row's first key, where it grows by `slope` from key to key."""
    n = x.shape[1] // 4
    lanes, pairs = np.meshgrid(np.arange(ptx.LANES), np.arange(n), indexing="ij")
    row, col = lanes // 4 + 8 * (pairs % 2), pairs // 2 * 8 + lanes % 4 * 2
    given = {4 * n + j: x[row, col][:, j] for j in range(n)}
    given |= {5 * n + j: x[row, col + 1][:, j] for j in range(n)}
    given |= {6 * n + j: refs[row][:, j] for j in range(n)}
    given |= {7 * n + j: np.full(ptx.LANES, factor, np.float32) for j in range(n)}
    if ahead is not None:
        firsts = np.float32(slope) * (lanes % 4 * 2).astype(np.float32) + ahead[row]
        given |= {8 * n + j: np.full(ptx.LANES, slope, np.float32) for j in range(n)}
        given |= {9 * n + j: firsts[:, j] for j in range(n)}
    found = ptx.run(text(n, kind), given)
    weights = np.zeros(x.shape, np.float32)
    for j in (j for j in range(n) if kind == "e4m3" and j % 4 < 2):  # words of two pairs
        for place in range(4):
            bits = (found[j] >> 8 * place & 0xFF).astype(np.uint8)
            pair = j + place // 2 * 2
            weights[row[:, pair], col[:, pair] + place % 2] = bits.view(KINDS[kind])
    for j in (j for j in range(n) if kind != "e4m3"):
        for half in (0, 1):
            bits = (found[j] >> 16 * half & 0xFFFF).astype(np.uint16)
            weights[row[:, j], col[:, j] + half] = bits.view(KINDS[kind])
    each = [np.zeros((ROWS, 4), np.float32) for _ in range(3)]
    for k, numbers in enumerate(each):
        for second in (0, 1):
            numbers[np.arange(ptx.LANES) // 4 + 8 * second, np.arange(ptx.LANES) % 4] = found[(k + 1) * n + second]
    return [weights, *each]


def modelled(kind: str, x: np.ndarray, refs: np.ndarray, factor: float) -> list[np.ndarray]:
    reference = Tile(np.broadcast_to(refs[:, None], (ROWS, 4)))
    _, *each = lagging_weights(Tile(x), reference, factor, KINDS[kind], SLACK)
    with np.errstate(all="ignore"):
        shift = np.where(each[1].values[:, :1] == -INF, np.float32(0.0), each[1].values[:, :1])
        weights = np.exp2(x * np.float32(factor) - shift * np.float32(factor))
    return [weights.astype(KINDS[kind]).astype(np.float32), *(e.values for e in each)]


def drawn(keys: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((ROWS, keys)).astype(np.float32) * 3
    return x, x.max(1) + rng.standard_normal(ROWS).astype(np.float32)


def rises(x: np.ndarray, refs: np.ndarray) -> None:
    x[::3] += 40.0


def first_tile(x: np.ndarray, refs: np.ndarray) -> None:
    refs[:] = -INF


def first_of_some(x: np.ndarray, refs: np.ndarray) -> None:
    refs[::2] = -INF


def first_of_lanes_first_rows(x: np.ndarray, refs: np.ndarray) -> None:
    refs[:8] = -INF


def first_of_lanes_second_rows(x: np.ndarray, refs: np.ndarray) -> None:
    refs[8:] = -INF


def no_key(x: np.ndarray, refs: np.ndarray) -> None:
    x[1::2] = -INF
    refs[1::4] = -INF


def few_keys(x: np.ndarray, refs: np.ndarray) -> None:
    x[:, 3:] = -INF
    refs[4:9] = -INF


def lags(x: np.ndarray, refs: np.ndarray) -> None:
    refs -= 4.0


def overflows(x: np.ndarray, refs: np.ndarray) -> None:
    x[5, 7] = 3e4


def as_it_is(x: np.ndarray, refs: np.ndarray) -> None:
    pass


SOME = [first_of_some, first_of_lanes_first_rows, first_of_lanes_second_rows]
CASES = [as_it_is, rises, first_tile, *SOME, no_key, few_keys, lags, overflows]


@pytest.mark.parametrize("change", CASES, ids=lambda f: f.__name__)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("keys", [64, 128])
@pytest.mark.parametrize("factor", [1.0, 0.18])
def test_it_is_what_the_model_says(
    text: Callable[..., str], keys: int, kind: str, factor: float, change: Callable[..., None]
) -> None:
    x, refs = drawn(keys, seed=keys)
    change(x, refs)
    found, wanted = executed(text, kind, x, refs, factor), modelled(kind, x, refs, factor)
    assert np.array_equal(found[2], wanted[2])
    np.testing.assert_allclose(found[3], wanted[3], rtol=1e-5)
    np.testing.assert_allclose(found[1], wanted[1], rtol=1e-3, atol=1e-30)
    rtol, atol = ROUNDED[kind]
    np.testing.assert_allclose(found[0], wanted[0], rtol=rtol, atol=atol)


@pytest.mark.parametrize("change", CASES, ids=lambda f: f.__name__)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("keys", [64, 128])
@pytest.mark.parametrize(("factor", "slope"), [(1.0, 0.7), (0.18, -0.02)])
def test_a_ramp_is_what_the_model_says(
    ramped: Callable[..., str], keys: int, kind: str, factor: float, slope: float, change: Callable[..., None]
) -> None:
    x, refs = drawn(keys, seed=keys)
    change(x, refs)
    ahead = -np.float32(slope) * (np.arange(ROWS, dtype=np.float32) + keys // 2)
    found = executed(ramped, kind, x, refs, factor, slope, ahead)
    place = np.arange(keys, dtype=np.float32)
    tile = Tile(ahead[:, None] + np.float32(slope) * place)
    reference = Tile(np.broadcast_to(refs[:, None], (ROWS, 4)))
    _, *each = lagging_weights(Tile(x), reference, factor, KINDS[kind], SLACK, slope, tile)
    np.testing.assert_allclose(found[2], each[1].values, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(found[3], each[2].values, rtol=1e-4)
    np.testing.assert_allclose(found[1], each[0].values, rtol=1e-3, atol=1e-30)
    with np.errstate(all="ignore"):
        after = np.where(found[2][:, :1] == -INF, np.float32(0.0), found[2][:, :1])
        weights = np.exp2(x.astype(np.float64) * factor + ahead[:, None] + slope * place - after)
    rtol, atol = ROUNDED[kind]
    np.testing.assert_allclose(found[0], weights, rtol=rtol, atol=atol)


def test_a_ramp_streams_the_sums_of_the_definition(ramped: Callable[..., str]) -> None:
    """Far from the first key, too, where what is ahead is large beside its steps."""
    refs, total = np.full(ROWS, -INF, np.float32), np.zeros(ROWS)
    slope, seen = 0.25, []
    for i in reversed(range(12)):
        x = drawn(64, i)[0]
        ahead = np.float32(slope) * (64 * i - 767 - 40_000 * (np.arange(ROWS) % 2)).astype(np.float32)
        _, sums, after, before = executed(ramped, "bf16", x, refs, 0.5, slope, ahead)
        total = total * before[:, 0] + sums.sum(1, dtype=np.float64)
        assert (sums <= 2.0**SLACK).all() and (before <= 1).all() and (after == after[:, :1]).all()
        refs = after[:, 0]
        seen.append(0.5 * x.astype(np.float64) + ahead[:, None] + slope * np.arange(64))
    s = np.concatenate(seen, 1)
    top = s.max(1)
    np.testing.assert_allclose(
        refs + np.log2(total), top + np.log2(np.exp2(s - top[:, None]).sum(1)), rtol=1e-6, atol=1e-4
    )


def test_it_streams_the_sums_of_the_definition(text: Callable[..., str]) -> None:
    """Tile after tile, with maxima that rise: sums times what they are to be multiplied by."""
    refs, total = np.full(ROWS, -INF, np.float32), np.zeros(ROWS)
    seen = []
    for i in range(12):
        x = drawn(64, i)[0] + np.float32(2.0 * i) * np.linspace(-1, 3, ROWS, dtype=np.float32)[:, None]
        _, sums, after, before = executed(text, "bf16", x, refs, 1.0)
        total = total * before[:, 0] + sums.sum(1, dtype=np.float64)
        assert (sums <= 2.0**SLACK).all() and (before <= 1).all() and (after == after[:, :1]).all()
        refs = after[:, 0]
        seen.append(x)
    s = np.concatenate(seen, 1).astype(np.float64)
    np.testing.assert_allclose(refs + np.log2(total), np.log2(np.exp2(s).sum(1)), rtol=1e-6)


@pytest.mark.parametrize("keys", [64, 128])
@pytest.mark.parametrize("scores", [0.0, 5.0, -200.0])
def test_eight_bits_begin_as_high_as_equal_scores_allow(text: Callable[..., str], scores: float, keys: int) -> None:
    """So that no tile of equal scores is weighed again, and small weights have their digits."""
    x, refs = np.full((ROWS, keys), scores, np.float32), np.full(ROWS, -INF, np.float32)
    weights, sums, after, _ = executed(text, "e4m3", x, refs, 0.25)
    assert (sums == 2.0**SLACK).all() and (weights == 2.0**SLACK / (keys // 4)).all()
    assert (executed(text, "e4m3", x, after[:, 0], 0.25)[2] == after).all()


def test_a_factor_without_a_reciprocal(text: Callable[..., str]) -> None:
    x, _ = drawn(64, seed=3)
    weights, sums, after, _ = executed(text, "e4m3", x, np.full(ROWS, -INF, np.float32), 1e-39)
    assert all(np.isfinite(each).all() for each in (weights, sums, after))


@pytest.mark.parametrize("row", [4, 11])
@pytest.mark.parametrize("others", [rises, first_tile, *SOME, overflows])
def test_a_row_does_not_depend_on_its_neighbours(
    text: Callable[..., str], others: Callable[..., None], row: int
) -> None:
    x, refs = drawn(128, seed=1)
    alone = executed(text, "bf16", x, refs, 1.0)
    x_2, refs_2 = x.copy(), refs.copy()
    others(x_2, refs_2)
    x_2[row], refs_2[row] = x[row], refs[row]
    for a, b in zip(alone, executed(text, "bf16", x_2, refs_2, 1.0), strict=True):
        assert np.array_equal(a[row], b[row])


def test_a_score_that_is_no_number_stays_one(text: Callable[..., str]) -> None:
    x, refs = drawn(64, seed=2)
    refs[3] = x[3].max() + 1
    x[3, 9] = np.nan
    weights, sums, after, _ = executed(text, "bf16", x, refs, 1.0)
    assert np.isnan(weights[3, 9]) and np.isnan(sums[3]).any() and np.isfinite(sums[[*range(3), *range(4, ROWS)]]).all()
    assert np.isfinite(after).all() and (after[:, 0] >= refs).all()


def test_a_branch_that_parts_the_lanes_is_an_error() -> None:
    with pytest.raises(AssertionError, match="lanes part"):
        ptx.run("{ .reg .pred a; setp.gt.f32 a, $0, 0f00000000; @a bra.uni done; done: }", {0: np.arange(32.0) - 3})
