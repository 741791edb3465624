"""Pieces of a sequence, merged and finished, against the whole in float64: out, lse and every gradient."""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import attngen
from attngen import reference
from attngen.errors import UsageError
from sequences.ragged import ragged

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SPECS = {
    name: str(EXAMPLES / f"{name}.attn")
    for name in (
        *("alibi", "causal", "chunked", "custom_normalizer", "dilated", "documents", "prefix_lm", "sigmoid", "sink"),
        *("sliding_window", "softcap", "softmax1", "windowed_alibi", "window_global"),
    )
}
SPECS["sink by head"] = "attention s\nparam sink: f32[Hq]\nmask = causal\nnormalizer = softmax(sink = sink[h])\n"
SPECS["biased by row"] = (
    "attention r\nparam column: f32[B, Sk]\nparam row: f32[Sq]\n"
    "score = qk * scale + column[b, k] * row[q]\nmask = causal\n"
)
SPECS["direct"] = (
    "attention d\nparam slope: f32[Hq]\nnormalizer relu {\n    weight(s) = max(s, 0)\n    denominator = sum + 1\n"
    "    shift = none\n}\nscore = qk * scale - slope[h]\nmask = causal\nnormalizer = relu\n"
)
CUTS = ((0, 13, 14, 64, 80), (0, 20, 20, 51, 80))
"""Where queries and where keys are cut."""


def _whole(spec: str) -> tuple[attngen.Kernel, list[torch.Tensor], dict[str, Any]]:
    kernel = attngen.compile(SPECS[spec])
    made = ragged(kernel, ((80, 80),))
    q, k, v = (torch.tensor(x[0][None]) for x in (made.q, made.k, made.v))
    params: dict[str, Any] = {}
    for name, x in made.params.items():
        params[name] = torch.tensor(np.float32(x) if x.dtype == np.float64 else x) if isinstance(x, np.ndarray) else x
        if isinstance(params[name], torch.Tensor) and params[name].is_floating_point():
            params[name].requires_grad_()
    return kernel, [q, k, v], params


@pytest.mark.parametrize("spec", SPECS)
def test_pieces_add_up_to_the_whole(spec: str) -> None:
    kernel, (q, k, v), params = _whole(spec)
    plain = {n: x.detach() if isinstance(x, torch.Tensor) else x for n, x in params.items()}
    arrays = {n: x.numpy() if isinstance(x, torch.Tensor) else x for n, x in plain.items()}
    exact = [x.double().numpy() for x in (q, k, v)]
    right = reference.evaluate(kernel.spec, *exact, params=arrays)
    d_out, d_lse = torch.randn(*right.out.shape), torch.randn(*right.lse.shape)
    finite = np.isfinite(right.lse)
    slopes = reference.gradients(
        kernel.spec, *exact, d_out.double().numpy(), np.where(finite, d_lse.numpy(), 0.0), params=arrays
    )
    dk, dv = torch.zeros_like(k), torch.zeros_like(v)
    dq: list[torch.Tensor] = []
    totals = {n: torch.zeros_like(x) for n, x in params.items() if isinstance(x, torch.Tensor) and x.requires_grad}
    outs, lses = [], []
    for q0, q1 in pairwise(CUTS[0]):
        rows = q[:, :, q0:q1]
        places = [{"q_offset": q0, "k_offset": k0, "Sq": 80, "Sk": 80} for k0, _ in pairwise(CUTS[1])]
        ends = list(pairwise(CUTS[1]))
        parts = [
            kernel.partial(rows, k[:, :, k0:k1], v[:, :, k0:k1], **place, **plain)
            for place, (k0, k1) in zip(places, ends, strict=True)
        ]
        halves = [kernel.merge(parts[2:]), kernel.merge([parts[1], parts[0]])]
        out, lse = kernel.finish(*kernel.merge(halves), **plain)
        assert out.dtype == torch.float32
        outs.append(out)
        lses.append(lse)
        given = {"d_lse": d_lse[:, :, q0:q1], **params}
        own = torch.zeros_like(rows)
        for place, (k0, k1) in zip(places, ends, strict=True):
            sums = (own, dk[:, :, k0:k1], dv[:, :, k0:k1])
            *_, found = kernel.partial_backward(
                rows, k[:, :, k0:k1], v[:, :, k0:k1], d_out[:, :, q0:q1], out, lse, **place, **given, accumulate=sums
            )
            for name, g in found.items():
                totals[name] += g
        for name, g in kernel.finish_backward(d_out[:, :, q0:q1], out, lse, **given).items():
            totals[name] += g
        dq.append(own)
    out, lse = torch.cat(outs, 2), torch.cat(lses, 2)
    assert (np.isfinite(lse.numpy()) == finite).all()
    wrong = {"out": _most(right.out, out), "lse": _most(right.lse[finite], lse[torch.tensor(finite)])}
    wrong |= {n: _most(getattr(slopes, n), g) for n, g in zip("qkv", (torch.cat(dq, 2), dk, dv), strict=True)}
    wrong |= {n: _most(slopes.params[n], g) for n, g in totals.items()}
    assert all(e <= 3e-5 for e in wrong.values()), wrong


def _most(right: Any, found: torch.Tensor) -> float:
    right = np.asarray(right, np.float64).reshape(found.shape)
    return float(np.abs(right - found.detach().numpy()).max() / max(1.0, np.abs(right).max()))


def test_gradients_launch_no_forward_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = attngen.compile("attention counted\nparam slope: f32[Hq]\nscore = qk - slope[h] * float(q - k)\n")
    q, k, v = torch.randn(3, 1, 2, 40, 16)
    place: dict[str, Any] = {"q_offset": 0, "k_offset": 40, "Sq": 80, "Sk": 80, "slope": torch.rand(2)}
    launched: list[str] = []
    names = vars(sys.modules[kernel.piece()[1].function.__module__])
    call = names["_Launch"].__call__
    monkeypatch.setattr(names["_Launch"], "__call__", lambda x, values: (launched.append(_kernel(x)), call(x, values)))
    out, lse = kernel.finish(*kernel.partial(q, k, v, **place), slope=place["slope"])
    assert launched == ["_forward_kernel"]
    place["slope"].requires_grad_()
    kernel.partial_backward(q, k, v, torch.ones_like(out), out, lse, **place)
    assert launched[1:] == ["_rows_kernel", "_dkdv_kernel", "_dq_kernel"]
    assert not out.requires_grad and not lse.requires_grad


@pytest.mark.parametrize("packed", [False, True])
def test_gradients_in_half_precision(packed: bool) -> None:
    """Of learned params too, which need what rounding takes from out."""
    kernel = attngen.compile("attention s\nparam slope: f32[Hq]\nscore = qk - slope[h] * float(q - k)\nmask = causal\n")
    generator = torch.Generator().manual_seed(2)
    whole = [torch.randn(1, 2, 80, 16, generator=generator).half() for _ in range(4)]
    q, k, v, d_out = [x[0].transpose(0, 1).contiguous() for x in whole] if packed else whole
    slope = torch.tensor([0.02, 0.1], requires_grad=True)
    cu, dim = torch.tensor([0, 80], dtype=torch.int32), 0 if packed else 2
    right = kernel.varlen(q, k, v, slope=slope, cu_seqlens_q=cu) if packed else kernel(q, k, v, slope=slope)
    (wanted,) = torch.autograd.grad(right, slope, d_out)
    given: dict[str, Any] = {"q_offset": 0, "Sq": 80, "Sk": 80, "slope": slope}
    if packed:
        given |= {"cu_seqlens_q": cu, "cu_seqlens_k": torch.tensor([0, 40], dtype=torch.int32)}
    keys = [(40 * i, k.narrow(dim, 40 * i, 40), v.narrow(dim, 40 * i, 40)) for i in range(2)]
    with torch.no_grad():
        out, lse = kernel.merge([kernel.partial(q, x, y, k_offset=at, **given) for at, x, y in keys])
    found = [kernel.partial_backward(q, x, y, d_out, out, lse, k_offset=at, **given)[3]["slope"] for at, x, y in keys]
    assert _most(wanted, found[0] + found[1]) < 1e-3


def _kernel(launch: Any) -> str:
    return next(x.fn.__name__ for x in vars(launch).values() if hasattr(x, "fn"))


def test_packed_pieces_each_begin_elsewhere() -> None:
    kernel = attngen.compile("attention c\nmask = 0 <= q - k + Sk - Sq < 9\n")
    lengths, cut = ((20, 30), (7, 7)), (11, 3)
    made = ragged(kernel, lengths)
    whole = [kernel.reference(*(x[b][None] for x in (made.q, made.k, made.v)))[0] for b in range(2)]

    def packed(parts: list[Any]) -> torch.Tensor:
        return torch.tensor(np.concatenate([x.transpose(1, 0, 2) for x in parts]))

    def ends(sizes: list[int]) -> torch.Tensor:
        return torch.tensor(np.cumsum([0, *sizes]), dtype=torch.int32)

    def each(*numbers: int) -> torch.Tensor:
        return torch.tensor(numbers, dtype=torch.int32)

    q, at_q = packed(made.q), ends([n for n, _ in lengths])
    sizes = {"Sq": each(*(n for n, _ in lengths)), "Sk": each(*(n for _, n in lengths))}
    first = kernel.partial(
        q, packed([x[:, :c] for x, c in zip(made.k, cut, strict=True)]),
        packed([x[:, :c] for x, c in zip(made.v, cut, strict=True)]),
        q_offset=0, k_offset=0, cu_seqlens_q=at_q, cu_seqlens_k=ends(list(cut)), **sizes,
    )  # fmt: skip
    last = kernel.partial(
        q, packed([x[:, c:] for x, c in zip(made.k, cut, strict=True)]),
        packed([x[:, c:] for x, c in zip(made.v, cut, strict=True)]),
        q_offset=0, k_offset=each(*cut), cu_seqlens_q=at_q, **sizes,
        cu_seqlens_k=ends([n - c for (_, n), c in zip(lengths, cut, strict=True)]),
    )  # fmt: skip
    out, lse = kernel.finish(*kernel.merge([first, last]))
    assert lse.shape == (4, 27)
    for b, rows in enumerate(whole):
        assert _most(rows.transpose(1, 0, 2), out[at_q[b] : at_q[b + 1]]) <= 2e-5


def test_autograd_and_dropout_are_refused() -> None:
    kernel = attngen.compile("attention c\nmask = causal\n")
    x = torch.randn(1, 2, 8, 16, requires_grad=True)
    with pytest.raises(UsageError, match="partial is not differentiable by autograd"):
        kernel.partial(x, x, x, q_offset=0, k_offset=0, Sq=8, Sk=8)
    dropped = attngen.compile(EXAMPLES / "dropout.attn")
    with torch.no_grad(), pytest.raises(UsageError, match="dropout"):
        dropped.partial(x, x, x, q_offset=0, k_offset=0, Sq=8, Sk=8, rate=0.1)


def test_a_piece_behind_the_end_is_refused() -> None:
    kernel = attngen.compile("attention c\nmask = causal\n")
    x = torch.randn(1, 2, 8, 16)
    with pytest.raises(UsageError, match=r"assumes .*k_offset"):
        kernel.partial(x, x, x, q_offset=0, k_offset=4, Sq=8, Sk=8)


@pytest.mark.parametrize(
    "mask", ["causal", "0 <= q - k < 9", "true", "k >= 5", "q >= 3 and k <= q", "k <= q or k < 4", "k > q and k < q"]
)
def test_visits_and_work(mask: str) -> None:
    kernel = attngen.compile(f"attention c\nmask = {mask}\n") if "k < q" not in mask else _empty(mask)
    q, k = np.arange(24)[:, None], np.arange(31)[None, :]
    allowed = np.broadcast_to(
        {
            "causal": k <= q + 31 - 24, "0 <= q - k < 9": (q >= k) & (q - k < 9), "true": True, "k >= 5": k >= 5,
            "q >= 3 and k <= q": (q >= 3) & (k <= q), "k <= q or k < 4": (k <= q) | (k < 4),
            "k > q and k < q": False,
        }[mask], (24, 31),
    )  # fmt: skip
    for q0, q1 in ((0, 24), (0, 3), (3, 4), (10, 17), (5, 5)):
        for k0, k1 in ((0, 31), (0, 2), (9, 10), (12, 25), (30, 31), (7, 7)):
            own = allowed[q0:q1, k0:k1]
            wanted = "none" if not own.any() else "all" if own.all() else "some"
            assert kernel.visits((q0, q1), (k0, k1), 24, 31) == wanted, (q0, q1, k0, k1)
            assert own.sum() <= kernel.work((q0, q1), (k0, k1), 24, 31) <= own.size
            if mask != "k > q and k < q":
                assert kernel.work((q0, q1), (k0, k1), 24, 31) == own.sum()


def _empty(mask: str) -> attngen.Kernel:
    with pytest.warns(attngen.SpecWarning):
        return attngen.compile(f"attention c\nmask = {mask}\n")


def test_visits_of_documents() -> None:
    kernel = attngen.compile(EXAMPLES / "documents.attn")
    ids = torch.tensor([[0] * 10 + [1] * 10])
    assert kernel.visits((10, 20), (0, 10), 20, 20, ids=ids) == "none"
    assert kernel.visits((10, 20), (0, 11), 20, 20, ids=ids) == "some"
    assert kernel.visits((10, 20), (0, 10), 20, 20) == "some"
    assert kernel.work((10, 20), (5, 20), 20, 20, ids=ids) == 55
    assert kernel.work((10, 20), (5, 20), 20, 20) == 150
