"""Pieces of a sequence, merged and finished, against the whole in float64: out, lse and every gradient."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import attngen
from attngen.cli import main as cli
from attngen.errors import UsageError
from attngen.runtime.loader import load
from attngen.verify import pieces, sequences
from attngen.verify.comparison import Case

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SPECS = {
    name: str(EXAMPLES / f"{name}.attn")
    for name in (
        *(
            "alibi",
            "causal",
            "chunked",
            "custom_normalizer",
            "dilated",
            "documents",
            "dropout",
            "prefix_lm",
            "sigmoid",
            "sink",
        ),
        *("sliding_window", "softcap", "softmax1", "windowed_alibi", "window_global"),
    )
}
SPECS["sink by head"] = "attention s\nparam sink: f32[Hq]\nmask = causal\nnormalizer = softmax(sink = sink[h])\n"
SPECS["biased by row"] = (
    "attention r\nparam column: f32[B, Sk]\nparam row: f32[Sq]\n"
    "score = qk * scale + column[b, k] * row[q]\nmask = causal\n"
)
SPECS["lists"] = (
    "attention l\nparam t: int[B, Hkv, 3, 3]\nparam u: int[B, Sk, 2]\n"
    "mask = k // 8 in t[b, hkv, q // 8] or q not in u[b, k]\nscore = qk * scale + (0.5 if k in t[b, 0, 0] else 0.0)\n"
)
SPECS["direct"] = (
    "attention d\nparam slope: f32[Hq]\nnormalizer relu {\n    weight(s) = max(s, 0)\n    denominator = sum + 1\n"
    "    shift = none\n}\nscore = qk * scale - slope[h]\nmask = causal\nnormalizer = relu\n"
)
SPECS["dropout, a sink"] = (
    "attention s\nparam slope: f32[Hq]\nparam sink: f32[Hq]\nparam p: f32 where 0 <= p < 1\n"
    "score = qk * scale - slope[h] * (q - k)\nmask = abs(q - k) < 40\n"
    "normalizer = softmax(sink = sink[h])\ndropout = p\n"
)
SPECS["dropout, no sum"] = "attention n\nmask = causal\nnormalizer = sigmoid\ndropout = 0.25\n"
SIZES = (("B", 1), ("Hq", 4), ("Hkv", 2), ("D", 16), ("Dv", 24))


@pytest.mark.parametrize("spec", SPECS)
def test_pieces_add_up_to_the_whole(spec: str) -> None:
    """out, lse and every gradient, as `attngen verify --geometry pieces` compares them."""
    kernel = attngen.compile(SPECS[spec])
    found = list(pieces.compare(kernel, Case("pieces", "fp32", (*SIZES, ("Sq", 80), ("Sk", 80))), "cpu"))
    assert all(c.passed for c in found), found
    assert len(found) == 5 + sum(p.learns for p in kernel.spec.params)


@pytest.mark.parametrize("rows", [1, 2, 5, 80])
def test_cuts_are_each_position_once(rows: int) -> None:
    for empty in (False, True):
        found = pieces.cuts(rows, empty=empty)
        assert [at for start, stop in found for at in range(start, stop)] == list(range(rows))
        assert not empty or any(start == stop for start, stop in found)


def _sink(method: str, change: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What fails of a sink's pieces where a step is `change(whole step, its arguments)`."""
    whole = getattr(attngen.Kernel, method)
    monkeypatch.setattr(attngen.Kernel, method, lambda self, *a, **given: change(partial(whole, self), *a, **given))
    kernel = attngen.compile(SPECS["sink by head"])
    case = Case("wrong", "fp32", (*SIZES, ("Sq", 40), ("Sk", 40)))
    return [c.result for c in pieces.compare(kernel, case, "cpu") if not c.passed]


@pytest.mark.parametrize(
    ("method", "change", "seen_in"),
    [
        ("merge", lambda merge, parts: merge([parts[0], *parts]), {"out", "lse", "d q"}),
        ("merge", lambda merge, parts: merge(parts[:-1]), {"out", "lse", "d v"}),
        ("finish", lambda finish, *part, **given: finish(*finish(*part, **given), **given), {"out", "lse", "d sink"}),
        ("finish", lambda finish, *part, **_: part, {"out", "lse", "d sink"}),
        ("finish_backward", lambda step, *x, **given: {n: 2 * g for n, g in step(*x, **given).items()}, {"d sink"}),
        ("partial", lambda step, *x, k_offset, **at: step(*x, k_offset=max(0, k_offset - 1), **at), {"out", "d k"}),
        ("partial_backward", lambda step, *x, d_lse, **at: step(*x, **at), {"d q", "d k"}),
    ],
)  # fmt: skip
def test_a_step_that_is_wrong_fails(
    method: str, change: Callable[..., Any], seen_in: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert seen_in <= set(_sink(method, change, monkeypatch))


def test_command(capsys: pytest.CaptureFixture[str]) -> None:
    path = str(EXAMPLES / "dropout.attn")
    assert cli.main(["verify", path, "--device", "cpu", "--geometry", "pieces"]) == 0
    assert "36 results of 6 cases within tolerance" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="2"):
        cli.main(["verify", path, "--geometry", "paged"])
    assert "there are dense, lengths, packed, pieces" in capsys.readouterr().err


def _most(right: Any, found: torch.Tensor) -> float:
    right = np.asarray(right, np.float64).reshape(found.shape)
    return float(np.abs(right - found.detach().numpy()).max() / max(1.0, np.abs(right).max()))


def test_gradients_launch_no_forward_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = attngen.compile("attention counted\nparam slope: f32[Hq]\nscore = qk - slope[h] * float(q - k)\n")
    q, k, v = torch.randn(3, 1, 2, 40, 16)
    place: dict[str, Any] = {"q_offset": 0, "k_offset": 40, "Sq": 80, "Sk": 80, "slope": torch.rand(2)}
    launched: list[str] = []
    launch = sys.modules[kernel.piece()[1].function.__module__].host.Launch
    call = launch.__call__
    monkeypatch.setattr(launch, "__call__", lambda x, values: (launched.append(_kernel(x)), call(x, values)))
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
    made = sequences.draw(kernel.spec, sequences.settled(kernel.spec, Case("two", "fp32", SIZES[1:], lengths=lengths)))
    whole = [kernel.reference(*(x[b][None] for x in (made.q, made.k, made.v)))[0] for b in range(2)]

    def packed(parts: Sequence[Any]) -> torch.Tensor:
        return torch.tensor(np.concatenate([x.transpose(1, 0, 2) for x in parts]), dtype=torch.float32)

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


DROPPED = {"p": 0.4, "dropout_seed": 2**40 + 5}


def test_pieces_of_some_heads_and_sequences_drop_what_the_whole_drops() -> None:
    kernel = attngen.compile(SPECS["dropout"])
    q, k, v, d_out = torch.randn(4, 3, 4, 33, 16, generator=torch.Generator().manual_seed(3))
    whole = [x.clone().requires_grad_() for x in (q, k, v)]
    right, lse = kernel(*whole, **DROPPED, return_lse=True)
    slopes = torch.autograd.grad(right, whole, d_out)
    lse = lse.detach()
    own = slice(1, 3), slice(2, 4)
    place: dict[str, Any] = {"Sq": 33, "Sk": 33, "q_offset": 5, "h_offset": 2, **DROPPED}
    tensor = torch.tensor([1, 1], dtype=torch.int32)
    for b_offset in (1, tensor):
        cut = [(at, *(x[own][:, :, at : at + 20] for x in (k, v))) for at in (0, 20)]
        parts = [kernel.partial(q[own][:, :, 5:], x, y, k_offset=at, b_offset=b_offset, **place) for at, x, y in cut]
        assert _most(right[own][:, :, 5:].detach(), kernel.merge(parts)[0]) < 1e-6
        rows = [x[own][:, :, 5:] for x in (d_out, right.detach(), lse)]
        found = [
            kernel.partial_backward(q[own][:, :, 5:], x, y, *rows, k_offset=at, b_offset=b_offset, **place)
            for at, x, y in cut
        ]
        assert _most(slopes[0][own][:, :, 5:], found[0][0] + found[1][0]) < 1e-5
    everywhere = kernel.partial(q[own], k[own], v[own], q_offset=0, k_offset=0, Sq=33, Sk=33, **DROPPED)[0]
    assert _most(right[own].detach(), everywhere) > 0.1, "without offsets, other weights are dropped"


def test_packed_pieces_say_which_sequences_they_are() -> None:
    kernel = attngen.compile(SPECS["dropout"])
    whole = torch.randn(3, 1, 2, 16, 16, generator=torch.Generator().manual_seed(4))
    q, k, v = (x.expand(3, -1, -1, -1) for x in whole)
    right = kernel(q, k, v, **DROPPED)

    def packed(x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x[b].transpose(0, 1) for b in (2, 0)])

    ends = torch.tensor([0, 16, 32], dtype=torch.int32)
    numbers = torch.tensor([2, -1], dtype=torch.int32)  # sequences 2 and 0, in this order
    place: dict[str, Any] = {"q_offset": 0, "k_offset": 0, "Sq": 16, "Sk": 16, "b_offset": numbers, **DROPPED}
    out, _ = kernel.partial(*map(packed, (q, k, v)), **place, cu_seqlens_q=ends, cu_seqlens_k=ends)
    assert _most(packed(right), out) < 1e-6
    assert _most(right[0], right[2]) > 0.1


def test_dropout_wants_a_seed() -> None:
    kernel = attngen.compile(SPECS["dropout"])
    x, place = torch.randn(1, 2, 8, 16), {"q_offset": 0, "k_offset": 0, "Sq": 8, "Sk": 8}
    with pytest.raises(UsageError, match="dropout_seed is missing: all pieces of a call draw from the same one"):
        kernel.partial(x, x, x, p=0.1, **place)
    with pytest.raises(UsageError, match="dropout_seed is missing"):
        kernel.partial_backward(x, x, x, x, x, torch.zeros(1, 2, 8), p=0.1, **place)


def test_autograd_is_refused() -> None:
    kernel = attngen.compile("attention c\nmask = causal\n")
    x = torch.randn(1, 2, 8, 16, requires_grad=True)
    with pytest.raises(UsageError, match="partial is not differentiable by autograd"):
        kernel.partial(x, x, x, q_offset=0, k_offset=0, Sq=8, Sk=8)


def test_a_piece_behind_the_end_is_refused() -> None:
    kernel = attngen.compile("attention c\nmask = causal\n")
    x = torch.randn(1, 2, 8, 16)
    said = "k does not fit: its 8 rows from k_offset = 4 on pass the end of the sequence, Sk = 8"
    with pytest.raises(UsageError, match=said):
        kernel.partial(x, x, x, q_offset=0, k_offset=4, Sq=8, Sk=8)


def test_what_pieces_refuse() -> None:
    """One message with the argument's name, before anything is launched: a kernel would read past the end of a short
    lse."""
    kernel = attngen.compile("attention s\nparam sink: f32[Hq]\nmask = causal\nnormalizer = softmax(sink = sink[h])\n")
    x, sink = torch.randn(1, 2, 8, 16), torch.randn(2)
    place: dict[str, Any] = {"q_offset": 0, "k_offset": 0, "Sq": 8, "Sk": 8}
    out, lse = kernel.partial(x, x, x, **place)

    def back(d_out: Any = x, out: Any = out, lse: Any = lse, **more: Any) -> Any:
        return kernel.partial_backward(x, x, x, d_out, out, lse, **{**place, **more})

    for said, call in {
        "merge needs at least one part": lambda: kernel.merge([]),
        "parts must be a list of pairs (out, lse), not Tensor": lambda: kernel.merge(x),
        "parts[0] must be a pair (out, lse), not Tensor": lambda: kernel.merge((out, lse)),
        "parts[1] must be a pair (out, lse), not a tuple of 3": lambda: kernel.merge([(out, lse), (out, lse, lse)]),
        "lse of parts[0] must have shape (1, 2, 8), that of out of parts[0] without its head dim, not (1, 1, 8)": (
            lambda: kernel.merge([(out, lse[:, :1])])
        ),
        "out of parts[1] must have shape (1, 2, 8, 16), that of parts[0], not (1, 1, 8, 16)": (
            lambda: kernel.merge([(out, lse), (out[:, :1], lse[:, :1])])
        ),
        "out of parts[0] must hold floats, not torch.int64": lambda: kernel.merge([(out.long(), lse)]),
        "no param 'foo'; there are sink": lambda: kernel.finish(out, lse, sink=sink, foo=1),
        "sink must have shape (Hq) = (2,), not (3,)": lambda: kernel.finish(out, lse, sink=torch.ones(3)),
        "sink must be a torch.Tensor, not float": lambda: kernel.finish(out, lse, sink=1.0),
        "lse must be a torch.Tensor, not NoneType": lambda: kernel.finish(out, None, sink=sink),
        "q must be a torch.Tensor, not NoneType": lambda: kernel.partial(None, x, x, **place),
        "Sq must be an int, or a torch.Tensor with an int": lambda: kernel.partial(x, x, x, **{**place, "Sq": "8"}),
        "h_offset must be from 0 to 268435455, not -1": lambda: kernel.partial(x, x, x, **place, h_offset=-1),
        "k_offset must have one int for each sequence, shape (1,), not (2,)": (
            lambda: kernel.partial(x, x, x, **{**place, "k_offset": torch.zeros(2, dtype=torch.int32)})
        ),
        "k_offset must hold ints, not torch.float32": (
            lambda: kernel.partial(x, x, x, **{**place, "k_offset": torch.zeros(1)})
        ),
        "cu_seqlens_q must be a torch.Tensor, not a list of 2": (
            lambda: kernel.partial(x[0], x[0], x[0], **place, cu_seqlens_q=[0, 2])
        ),
        "cu_seqlens_k goes with cu_seqlens_q": lambda: kernel.partial(x, x, x, **place, cu_seqlens_k=sink.int()),
        "d_out must have shape (1, 2, 8, 16), that of out, not (1, 2, 4, 16)": lambda: back(x[:, :, :4]),
        "out must have shape (1, 2, 8, 16), q's with the head dim of v, not (1, 1, 8, 16)": lambda: back(out=x[:, :1]),
        "lse must have shape (1, 2, 8), q's without its head dim, not (1, 2, 4)": lambda: back(lse=lse[:, :, :4]),
        "lse must be float32, not torch.float16": lambda: back(lse=lse.half()),
        "d_lse must be a torch.Tensor, not float": lambda: back(d_lse=1.0),
        "accumulate must be three float32": lambda: back(accumulate=(x, x)),
        "accumulate[1] must have shape (1, 2, 8, 16), that of k, not (2, 2, 8, 16)": (
            lambda: back(accumulate=(x, x.repeat(2, 1, 1, 1), x))
        ),
        "accumulate[0] must be float32, not torch.float16": lambda: back(accumulate=(x.half(), x, x)),
        "d_out must have shape (1, 2, 8, 16), that of out, not (1, 2, 1, 16)": (
            lambda: kernel.finish_backward(x[:, :, :1], out, lse, sink=sink)
        ),
    }.items():
        with pytest.raises(UsageError, match=re.escape(f"s: {said}")):
            call()
    torch.testing.assert_close(kernel.finish(out, lse, sink=sink[:1]), kernel.finish(out, lse, sink=sink[:1].repeat(2)))


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


@pytest.mark.parametrize(
    ("params", "mask", "values"),
    [
        ("param w: f32[Hq]", "k <= q and w[h] >= 0.7", {"w": torch.tensor([0.7, 0.3])}),
        ("param w: f32", "k <= q and w >= 0.7", {"w": 0.7}),
        ("param f: f32[Sk]", "k <= q and f[k] == 0.1", {"f": torch.full((40,), 0.1)}),
        ("param t: f32[Sk]", "abs(t[q] - t[k]) <= 0.3", {"t": torch.arange(40) * 0.1}),
        ("param t: f32[Hq]", "q - k < int(t[h] * 10.0) and q >= k", {"t": torch.tensor([0.7, 0.3])}),
        ("param t: f32[Hq]", "q - k < int(min(exp(t[h]), 50.0)) and q >= k", {"t": torch.tensor([2.0, 3.0])}),
        ("param t: f32[Hq]", "q >= k and not (exp(t[h]) * float(k) <= 20.0)", {"t": torch.tensor([0.0, 3.0])}),
        ("param t: f32[Sk]", "(k <= q if log(t[k]) > 0.0 else k < 3)", {"t": torch.arange(40) * 0.1}),
    ],
)
def test_floats_of_a_mask_are_those_of_a_kernel(params: str, mask: str, values: dict[str, Any]) -> None:
    """In float64, 0.7 of float32 is below 0.7, so that no pair would be allowed. Where a kernel may round otherwise
    than NumPy, nobody says that a pair is not allowed, or that it is."""
    kernel = attngen.compile(f"attention c\n{params}\nmask = {mask}\nassume Sq == Sk\n")
    x = torch.zeros(1, 2, 40, 16)
    _, lse = kernel(x, x, x, **values, return_lse=True)
    allowed = lse[0].exp().round()  # of equal scores: how many keys
    whole, exact = (0, 40), "exp" not in mask and "log" not in mask
    open_questions = 0
    for q in range(40):
        most = int(allowed[:, q].max())
        found = kernel.work((q, q + 1), whole, 40, 40, **values)
        assert found == most if exact else found >= most
        open_questions += found > most
        visits = kernel.visits((q, q + 1), whole, 40, 40, **values)
        assert (
            visits == "some"
            if 0 < int(allowed[:, q].sum()) < 80
            else visits in ("some", "none" if most == 0 else "all")
        )
    assert bool(open_questions) != exact


def _empty(mask: str) -> attngen.Kernel:
    with pytest.warns(attngen.SpecWarning):
        return attngen.compile(f"attention c\nmask = {mask}\n")


@pytest.mark.parametrize(
    "param, refusing", [("out", "finish"), ("lse", "finish_backward"), ("q_offset", "partial"), ("q_range", "visits")]
)
def test_a_param_with_the_name_of_an_argument_is_refused(param: str, refusing: str) -> None:
    kernel = attngen.compile(f"attention c\nparam {param}: int where {param} > 0\nmask = 0 <= q - k < {param}\n")
    said = f"c: the param `{param}` has the name of an argument of {refusing}: rename it in the spec"
    x = torch.ones(1, 2, 8, 16)
    with pytest.raises(UsageError, match=said):
        getattr(kernel, refusing)(x, x, x, **{param: 3})
    assert kernel(x, x, x, **{param: 3}).shape == x.shape


def test_what_visits_refuse() -> None:
    kernel = attngen.compile("attention v\nparam n: int[B]\nparam w: int where w > 0\nmask = q - k < w or k < n[b]\n")
    n, whole = torch.ones(2, dtype=torch.int64), (0, 8)
    for said, q_range, k_range, Sq, more in (
        ("q_range must be a pair of ints (start, stop), not 8", 8, whole, 8, {}),
        ("k_range must be a pair of ints (start, stop), not (0.0, 8)", whole, (0.0, 8), 8, {}),
        ("q_range must lie between 0 and Sq = 8, not be (0, 9)", (0, 9), whole, 8, {}),
        ("k_range must lie between 0 and Sk = 8, not be (-1, 8)", whole, (-1, 8), 8, {}),
        ("Sq must be an int from 0 up, not -8", whole, whole, -8, {}),
        ("no param 'foo'; there are n, w", whole, whole, 8, {"foo": 1}),
        ("n must have 1 dimension (B), not int", whole, whole, 8, {"n": 1}),
        ("w must be an int, not 2.5", whole, whole, 8, {"w": 2.5}),
        ("w must be one int, not shape (2,)", whole, whole, 8, {"w": n}),
        ("w must satisfy 0 < w, not 0", whole, whole, 8, {"w": 0}),
    ):
        for ask in kernel.visits, kernel.work:
            with pytest.raises(UsageError, match=re.escape(f"v: {said}")):
                ask(q_range, k_range, Sq, 8, **{"n": n, "w": 2, **more})  # pyright: ignore[reportArgumentType]
    assert kernel.visits(whole, whole, 8, 8, n=None, w=2) == kernel.visits(whole, whole, 8, 8, w=2) == "some"


def test_visits_of_documents() -> None:
    kernel = attngen.compile(EXAMPLES / "documents.attn")
    ids = torch.tensor([[0] * 10 + [1] * 10])
    assert kernel.visits((10, 20), (0, 10), 20, 20, ids=ids) == "none"
    assert kernel.visits((10, 20), (0, 11), 20, 20, ids=ids) == "some"
    assert kernel.visits((10, 20), (0, 10), 20, 20) == "some"
    assert kernel.work((10, 20), (5, 20), 20, 20, ids=ids) == 55
    assert kernel.work((10, 20), (5, 20), 20, 20) == 150


# ---------------------------------------------------------------- rows of no sequence, heads of a whole


SINK = "attention sunk\nparam sink: f32[Hq]\nmask = causal\nnormalizer = softmax(sink = sink[h])\n"


@pytest.mark.parametrize("file", [False, True])
def test_rows_of_no_sequence_get_no_term_of_their_own(file: bool) -> None:
    kernel = attngen.compile(SINK, arch="portable", geometry=("packed", "pieces"))
    finish, finish_backward = kernel.finish, kernel.finish_backward
    if file:
        module = load(kernel.source, kernel.name)
        finish, finish_backward = module.sunk_finish, module.sunk_finish_backward
    q, k, v = torch.randn(3, 8, 2, 16, generator=torch.Generator().manual_seed(0))
    sink, ends = torch.tensor([0.5, -1.0], requires_grad=True), torch.tensor([0, 3, 6], dtype=torch.int32)
    place = {"q_offset": 0, "k_offset": 0, "Sq": 3, "Sk": 3, "cu_seqlens_q": ends}
    part = kernel.partial(q, k, v, **place, sink=sink.detach())
    out, lse = finish(*part, sink=sink.detach(), cu_seqlens_q=ends)
    whole, whole_lse = kernel.varlen(q, k, v, cu_seqlens_q=ends, sink=sink, return_lse=True)
    torch.testing.assert_close(out, whole.detach(), rtol=1e-5, atol=1e-5)
    assert torch.equal(lse[:, 6:], whole_lse[:, 6:]) and lse[:, 6:].eq(-torch.inf).all()
    d_out, d_lse = torch.ones(8, 2, 16), torch.ones(2, 8)
    (wanted,) = torch.autograd.grad((whole[:6].sum() + whole_lse[:, :6].sum()), sink)
    d_out[6:], d_lse[:, 6:] = torch.nan, torch.nan
    found = finish_backward(d_out, out, lse, d_lse=d_lse, sink=sink, cu_seqlens_q=ends)
    torch.testing.assert_close(found["sink"], wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("spec", "argument"),
    [("score = qk * scale - float(h) * float(abs(q - k))", "h_offset"), ("mask = k + b <= q", "b_offset")],
)
def test_heads_that_a_spec_counts_are_those_of_the_whole(spec: str, argument: str) -> None:
    kernel = attngen.compile(f"attention counted\n{spec}\n", arch="portable", geometry=("dense", "pieces"))
    module = load(kernel.source, kernel.name)
    x = torch.zeros(1, 2, 6, 16)
    place = {"q_offset": 0, "k_offset": 0, "Sq": 6, "Sk": 6}
    for of_piece in (kernel.partial, module.counted_partial):
        for number in (1, torch.tensor([1], dtype=torch.int32)):
            with pytest.raises(ValueError, match=f"{argument} must be 0: the spec reads"):
                of_piece(x, x, x, **place, **{argument: number})
        of_piece(x, x, x, **place, **{argument: 0})


def test_pieces_name_the_sizes_of_the_whole() -> None:
    kernel = attngen.compile("attention biased\nparam t: f32[B, Sk]\nscore = qk + t[b, k]\nassume Sq <= Sk\n")
    x = torch.zeros(1, 1, 5, 16)
    with pytest.raises(UsageError, match=r"t must have shape \(B, Sk\) = \(1, 5\), not \(1, 4\)"):
        kernel.partial(x, x, x, q_offset=0, k_offset=0, Sq=5, Sk=5, t=torch.zeros(1, 4))
    with pytest.raises(UsageError, match="the specification assumes Sq <= Sk; here Sk = 3, Sq = 5"):
        kernel.partial(x, x[:, :, :3], x[:, :, :3], q_offset=0, k_offset=0, Sq=5, Sk=3, t=torch.zeros(1, 3))


def test_pieces_and_the_own_term_are_traced() -> None:
    """The first call of a piece, and of `finish`, inside a compiled function."""
    kernel = attngen.compile(SINK.replace("sunk", "traced"), arch="portable")
    x, sink = torch.randn(1, 2, 5, 16, generator=torch.Generator().manual_seed(0)), torch.tensor([0.5, -1.0])
    place = {"q_offset": 0, "k_offset": 0, "Sq": 5, "Sk": 5}

    def whole(q: Any) -> Any:
        return kernel.finish(*kernel.partial(q, x, x, **place, sink=sink), sink=sink)[0]

    found = torch.compile(whole, backend="eager", fullgraph=True)(x)
    torch.testing.assert_close(found, kernel(x, x, x, sink=sink), rtol=1e-5, atol=1e-5)


def test_what_is_written_to_has_memory_of_its_own() -> None:
    kernel = attngen.compile("attention plain\nmask = causal\n", arch="portable")
    x, z = torch.zeros(1, 1, 5, 16), torch.zeros(1, 1, 5, 16)
    place = {"q_offset": 0, "k_offset": 0, "Sq": 5, "Sk": 5}
    out, lse = kernel.partial(x, x, x, **place)
    flat = torch.zeros(1, 1, 1, 16).expand(1, 1, 5, 16)
    for wrong, message in (
        ((z.clone().requires_grad_(), z, z.clone()), r"accumulate\[0\] must not require a gradient"),
        ((flat, z, z.clone()), r"accumulate\[0\] must have memory for each element"),
        ((z, z, z), "accumulate must be three different torch.Tensors"),
    ):
        with pytest.raises(UsageError, match=message):
            kernel.partial_backward(x, x, x, x, out, lse, **place, accumulate=wrong)
    rows, ends = torch.zeros(5, 1, 16), torch.tensor([0, 5], dtype=torch.int32)
    for wrong_out in (torch.zeros(5, 1, 16, requires_grad=True), torch.zeros(1, 1, 16).expand(5, 1, 16)):
        with pytest.raises(UsageError, match="out must be a tensor with memory for each element"):
            kernel.varlen(rows, rows, rows, cu_seqlens_q=ends, out=wrong_out)
