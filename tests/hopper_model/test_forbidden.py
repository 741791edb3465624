"""Forbidden rows of K and V in the kernels of compute capability 9.0, on the model of the chip: NaN and infinities
there change no bit of out, lse, dQ, dK and dV. The kernels clear such rows where they lie in shared memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from parity.forbidden import fouled

from attngen import reference
from hopper_model.cases import Case, Change, case
from hopper_model.numbers import FaultError

CAUSAL = "attention causal_lengths\nparam n: int[B]\nmask = causal and k < n[b]\n"
WINDOW = "attention window_lengths\nparam n: int[B]\nmask = 0 <= q - k < 150 and k < n[b]\nassume Sq == Sk\n"
LENGTHS = "attention lengths\nparam n: int[B]\nmask = k < n[b]\n"
PADDING = "attention padding\nparam keep: bool[B, Sk]\nmask = keep[b, k]\n"
NAMED = "attention named\nparam keep: bool[B, Sk]\nparam seen: bool[Sq, Sk]\nmask = keep[b, k] and seen[q, k]\n"
DOCUMENTS = (
    "attention padded_documents\nparam ids: int[B, Sk]\nmask = same_document(ids) and ids[b, k] >= 0\nassume Sq == Sk\n"
)
PARAMS = {
    "n": lambda sizes: torch.tensor([sizes[4] - 45, 77][: sizes[0]]),
    "keep": lambda sizes: torch.arange(sizes[4]).remainder(7).ne(3).repeat(sizes[0], 1),
    "ids": lambda sizes: torch.where(torch.arange(sizes[4]) < sizes[4] - 40, torch.arange(sizes[4]) // 90, -1)[None],
}
Sizes = tuple[int, int, int, int, int]


def made(text: str, dims: tuple[int, int], sizes: Sizes, holds: float, changes: Sequence[Change] = ()) -> Case:
    """With 0 or NaN for what forbidden rows hold."""
    name, values = next((n, value(sizes).numpy()) for n, value in PARAMS.items() if f"param {n}:" in text)
    found = case(text, dims, sizes, torch.float16, changes, **{name: values})
    columns = torch.arange(sizes[4])
    given = torch.as_tensor(values)
    kept = columns < given[:, None] if name == "n" else given >= 0 if name == "ids" else given
    rows = ~kept[:, None].expand(*found.k.shape[:3])
    for x in (found.k, found.v):
        x.masked_fill_(rows[..., None], 0)
        if holds != 0:
            x.copy_(fouled(x, rows))
    assert rows.any() and not rows.all()
    return found


def forward(text: str, dims: tuple[int, int], sizes: Sizes, changes: Sequence[Change] = ()) -> list[torch.Tensor]:
    """out and lse with zeros, then with NaN in forbidden rows."""
    found: list[torch.Tensor] = []
    for holds in (0.0, float("nan")):
        made_ = made(text, dims, sizes, holds, changes)
        found += getattr(made_.module, made_.kernel.name)(made_.q, made_.k, made_.v, return_lse=True, **made_.given)
        assert "_hopper_forward_kernel" in made_.launched
    return found


def backward(text: str, dims: tuple[int, int], sizes: Sizes, changes: Sequence[Change] = ()) -> list[torch.Tensor]:
    """dQ, dK and dV with zeros, then with NaN in forbidden rows."""
    found: list[torch.Tensor] = []
    for holds in (0.0, float("nan")):
        made_ = made(text, dims, sizes, holds, changes)
        d_out = made_.draw("Hq", "Sq", "Dv")
        right = reference.evaluate(made_.kernel.spec, *made_.exact, params=made_.params)
        out, lse = torch.from_numpy(right.out).to(made_.q.dtype), torch.from_numpy(right.lse).float()
        found += made_.differentiated(d_out, torch.zeros_like(lse), (out, lse))
        assert any("_hopper" in name for name in made_.launched)
    return found


def same(found: list[torch.Tensor]) -> bool:
    half = len(found) // 2
    assert all(torch.isfinite(x).all() or x.dtype == torch.float32 for x in found[:half])
    return all(torch.equal(a, b) for a, b in zip(found[:half], found[half:], strict=True))


def slow(*values: object) -> object:
    return pytest.param(*values, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    ("text", "dims", "sizes"),
    [
        (CAUSAL, (128, 128), (1, 2, 1, 200, 200)),
        (NAMED, (64, 64), (2, 2, 1, 200, 140)),
        slow(NAMED, (128, 128), (2, 2, 1, 200, 140)),
        slow(LENGTHS, (64, 64), (1, 2, 1, 260, 200)),
        slow(LENGTHS, (128, 64), (2, 2, 1, 260, 200)),
        slow(CAUSAL, (256, 256), (2, 1, 1, 200, 200)),
        slow(WINDOW, (64, 64), (1, 2, 1, 300, 300)),
        slow(DOCUMENTS, (128, 128), (1, 2, 1, 300, 300)),
        slow(DOCUMENTS, (64, 64), (1, 2, 1, 300, 300)),
    ],
)
def test_reach_no_result(text: str, dims: tuple[int, int], sizes: Sizes) -> None:
    assert same(forward(text, dims, sizes))


@pytest.mark.parametrize(
    ("text", "dims", "sizes"),
    [
        (CAUSAL, (64, 64), (1, 2, 1, 200, 200)),
        (PADDING, (256, 256), (1, 1, 1, 70, 130)),
        (NAMED, (64, 64), (2, 2, 1, 140, 130)),
        slow(NAMED, (128, 128), (2, 2, 1, 140, 130)),
        slow(CAUSAL, (128, 128), (2, 2, 1, 200, 200)),
        slow(WINDOW, (128, 128), (1, 2, 1, 300, 300)),
        slow(DOCUMENTS, (256, 256), (1, 1, 1, 200, 200)),
        slow(LENGTHS, (256, 128), (2, 2, 1, 140, 200)),
        slow(CAUSAL, (256, 256), (2, 1, 1, 200, 200)),
    ],
)
def test_reach_no_gradient(text: str, dims: tuple[int, int], sizes: Sizes) -> None:
    assert same(backward(text, dims, sizes))


UNCLEARED: Change = ("if first < stop:", "if first < 0:")
"""Nothing is cleared."""
UNFENCED: Change = ("held, 0.0))\n        fence_async_shared()", "held, 0.0))")
"""Products may read a row before its zeros."""


@pytest.mark.parametrize(
    ("run", "text", "dims", "sizes"),
    [
        slow(forward, LENGTHS, (64, 64), (1, 2, 1, 260, 200)),
        slow(backward, CAUSAL, (64, 64), (1, 1, 1, 200, 200)),
        slow(backward, PADDING, (256, 256), (1, 1, 1, 140, 130)),
    ],
)
def test_rows_that_are_not_cleared_are_seen(
    run: Callable[..., list[torch.Tensor]], text: str, dims: tuple[int, int], sizes: Sizes
) -> None:
    assert not same(run(text, dims, sizes, [UNCLEARED]))
    with pytest.raises(FaultError, match="no fence between a store and a product"):
        run(text, dims, sizes, [UNFENCED])
