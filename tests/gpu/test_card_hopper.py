"""The kernels of compute capability 9.0 on the card, beside the portable ones: the same numbers on every run."""

from __future__ import annotations

import faulthandler
import math
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from card_tables import NO_ROWS

import attngen
from attngen import reference
from attngen.ir.evaluate import evaluate

EXAMPLES = Path(__file__).parents[2] / "examples"

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0), reason="needs a Hopper GPU"
    ),
]

SHAPES = [(2, 4, 2, 512, 512), (2, 6, 2, 300, 777), (1, 3, 1, 130, 64), (1, 2, 2, 5, 900), (3, 2, 1, 700, 257)]
MANY_HEADS = {(128, 128): (16, 16, 8, 600, 1000), (64, 64): (16, 32, 16, 600, 1000)}
"""So many of K that causal tiles of keys are taken from the last to the first, in all groups of heads but one."""
DIMS = [(64, 64), (128, 128), (256, 256), (192, 128), (64, 128), (80, 72)]
CASES = [
    *((name, dims) for name in ("causal", "softmax1", "prefix_lm") for dims in DIMS),
    *((name, dims) for name in ("sliding_window", "softcap", "alibi") for dims in ((128, 128), (256, 256))),
    *((name, (64, 64)) for name in ("sliding_window", "alibi", "cross_attention", "chunked")),
    *(("documents", dims) for dims in ((64, 64), (128, 128), (256, 256), (192, 128), (64, 128))),
]


@pytest.fixture(autouse=True)
def watchdog() -> Iterator[None]:
    """Ends the process where a kernel hangs: its warps would wait for each other, and this one for them, for ever."""
    faulthandler.dump_traceback_later(120, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


def module_of(kernel: attngen.Kernel) -> ModuleType:
    return sys.modules[kernel.function.__module__]


def both(
    kernel: attngen.Kernel,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    monkeypatch: pytest.MonkeyPatch,
    **params: Any,
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """(out, lse) by the chip's own kernel, twice, and by the portable one."""
    module = module_of(kernel)
    assert kernel.function is not None and module.host.hopper_row(module.HOPPER, q, k, v) is not None
    found = []
    for portable in (False, False, True):
        if portable:
            monkeypatch.setattr(module, "HOPPER", NO_ROWS)
            module._attention.ready.clear()
        poison = [torch.full((*q.shape[:3], v.shape[3]), math.nan, device="cuda", dtype=q.dtype) for _ in range(4)]
        del poison
        found.append(kernel(q, k, v, return_lse=True, **params))
    monkeypatch.undo()
    module._attention.ready.clear()
    return found


@pytest.mark.parametrize(("name", "dims"), CASES, ids=str)
def test_it_gives_what_the_portable_kernel_gives(
    name: str, dims: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = attngen.compile(EXAMPLES / f"{name}.attn", consts={"window": 100} if name == "sliding_window" else {})
    for B, Hq, Hkv, Sq, Sk in SHAPES:
        Sq = Sk if name == "documents" else Sq
        for dtype in (torch.float16, torch.bfloat16):
            generator = torch.Generator("cuda").manual_seed(Sq)

            def draw(heads: int, length: int, dim: int) -> torch.Tensor:
                x = torch.randn(B, length, heads, dim, generator=generator, device="cuda")  # noqa: B023
                return x.to(dtype).transpose(1, 2)  # noqa: B023 - heads are not contiguous

            params = params_of(kernel, B, Hq, Sq, Sk, generator)
            q, k, v = draw(Hq, Sq, dims[0]), draw(Hkv, Sk, dims[0]), draw(Hkv, Sk, dims[1])
            (out, lse), (again, lse_again), (expected, expected_lse) = both(kernel, q, k, v, monkeypatch, **params)
            assert torch.equal(out, again) and torch.equal(lse, lse_again)
            torch.testing.assert_close(lse, expected_lse, rtol=0, atol=3e-3)
            torch.testing.assert_close(out.float(), expected.float(), rtol=2e-2, atol=2e-2)
            assert (out.float() - expected.float()).norm() <= 6e-3 * expected.float().norm()


STEEP = [("causal", 12.0, 0.05), ("causal", 12.0, 4.0), ("full", 12.0, 4.0), ("full", 30.0, -4.0), ("alibi", 1.0, 0.0)]
"""Spec, by what queries are multiplied, and by how much more late keys are than early ones: references move often, in
some rows of a warp and not in others, or hardly."""


@pytest.mark.parametrize(
    ("name", "steep", "grows", "dims"),
    [(*case, (d, d)) for case in STEEP for d in (64, 128, 256)],
    ids=str,
)
def test_references_move_where_sums_of_weights_are_too_large(
    name: str, steep: float, grows: float, dims: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = attngen.compile("attention full\n\nmask = true\n" if name == "full" else EXAMPLES / f"{name}.attn")
    generator = torch.Generator("cuda").manual_seed(dims[0])
    q, k, v = (torch.randn(2, 2, 1100, dims[0], generator=generator, device="cuda") for _ in range(3))
    k = k * (1 + grows * torch.linspace(0, 1, 1100, device="cuda")[:, None])
    params = {"slope": torch.tensor([4.0, 0.02], device="cuda")} if name == "alibi" else {}
    args = (q * steep).half(), k.half(), v.half()
    (out, lse), (again, lse_again), (expected, expected_lse) = both(kernel, *args, monkeypatch, **params)
    assert torch.equal(out, again) and torch.equal(lse, lse_again)
    torch.testing.assert_close(lse, expected_lse, rtol=1e-5, atol=3e-3)
    assert (out.float() - expected.float()).norm() <= 6e-3 * expected.float().norm()


def test_a_thousand_runs_give_the_same_bits() -> None:
    kernel = attngen.compile(EXAMPLES / "causal.attn")
    generator = torch.Generator("cuda").manual_seed(0)
    q, k, v = (torch.randn(2, 4, 1500, 128, generator=generator, device="cuda").bfloat16() for _ in range(3))
    out, lse = kernel(q, k, v, return_lse=True)
    assert module_of(kernel).host.hopper_row(module_of(kernel).HOPPER, q, k, v) is not None
    for _ in range(1000):
        again, lse_again = kernel(q, k, v, return_lse=True)
        assert torch.equal(out, again) and torch.equal(lse, lse_again)


def test_it_differentiates_as_the_portable_one(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = attngen.compile(EXAMPLES / "alibi.attn")
    module = (kernel.function, module_of(kernel))[1]
    generator = torch.Generator("cuda").manual_seed(0)
    q, k, v = (torch.randn(2, 4, 700, 128, generator=generator, device="cuda").bfloat16() for _ in range(3))
    leaves = [*(x.requires_grad_() for x in (q, k, v)), torch.rand(4, device="cuda", requires_grad=True)]
    found = []
    for portable in (False, True):
        if portable:
            monkeypatch.setattr(module, "HOPPER", NO_ROWS)
            module._attention.ready.clear()
        out = kernel(q, k, v, slope=leaves[3])
        found.append(torch.autograd.grad(out.float().square().sum(), leaves))
    module._attention.ready.clear()
    for a, b in zip(*found, strict=True):
        assert (a.float() - b.float()).norm() <= 2e-2 * b.float().norm()


BACKWARD = [
    *(("causal", dims) for dims in ((64, 64), (128, 128), (80, 72))),
    *((name, dims) for name in ("softmax1", "sink") for dims in ((64, 64), (128, 128))),
    *((name, (128, 128)) for name in ("sliding_window", "full_bias", "custom_normalizer", "softcap", "alibi")),
    *((name, (128, 128)) for name in ("prefix_lm", "relative_bias", "windowed_alibi", "documents", "chunked")),
]


def compiled(name: str) -> attngen.Kernel:
    """An example without a tile of its own, its window a short one."""
    lines = (EXAMPLES / f"{name}.attn").read_text(encoding="utf-8").split("\n")
    text = "\n".join(line for line in lines if not line.startswith("tile "))
    shorter = {"window": 100, "chunk": 96}
    return attngen.compile(text, consts={n: value for n, value in shorter.items() if f"const {n} " in text})


def params_of(
    kernel: attngen.Kernel, batches: int, Hq: int, Sq: int, Sk: int, generator: torch.Generator
) -> dict[str, Any]:
    """What a spec takes besides q, k, v; no gradient is asked for."""
    sizes = {"B": batches, "Hq": Hq, "Sq": Sq, "Sk": Sk}
    found: dict[str, Any] = {}
    for p in kernel.spec.params:
        shape = [int(evaluate(d, sizes, {})) for d in p.shape]
        if p.name == "prefix":
            found[p.name] = 150
        elif p.name == "ids":  # the first batch's documents one after the other, those of others in any order
            found[p.name] = torch.randint(0, 5, shape, generator=generator, device="cuda")
            found[p.name][0] = found[p.name][0].sort().values
        elif p.name == "lengths":
            found[p.name] = torch.randint(0, Sk + 1, shape, generator=generator, device="cuda")
        else:
            found[p.name] = torch.rand(shape, generator=generator, device="cuda") if shape else 0.75
    return found


def drawn(
    heads: tuple[int, int], lengths: tuple[int, int], dims: tuple[int, int], dtype: torch.dtype, batches: int, seed: int
) -> tuple[list[torch.Tensor], torch.Generator]:
    """Leaves q, k, v whose heads are not contiguous."""
    generator = torch.Generator("cuda").manual_seed(seed)
    shapes = ((heads[0], lengths[0], dims[0]), (heads[1], lengths[1], dims[0]), (heads[1], lengths[1], dims[1]))
    made = [torch.randn(batches, n, h, d, generator=generator, device="cuda").to(dtype) for h, n, d in shapes]
    return [x.transpose(1, 2).requires_grad_() for x in made], generator


def check_gradients(kernel: attngen.Kernel, dims: tuple[int, int], lengths: Sequence[tuple[int, int]]) -> None:
    """Of q, k, v, against the definition in float64."""
    for Sq, Sk in lengths:
        leaves, generator = drawn((4, 2), (Sq, Sk), dims, torch.bfloat16, 1, Sk)
        params = params_of(kernel, 1, 4, Sq, Sk, generator)
        out, lse = kernel(*leaves, return_lse=True, **params)
        d_out, d_lse = torch.randn_like(out), torch.where(torch.isfinite(lse), torch.randn_like(lse), 0.0)
        found = torch.autograd.grad((out, lse), leaves, (d_out, d_lse))
        exact = [x.detach().double().cpu().numpy() for x in (*leaves, d_out, d_lse)]
        given = {n: x.cpu().numpy() if isinstance(x, torch.Tensor) else x for n, x in params.items()}
        wanted = reference.gradients(kernel.spec, *exact, params=given)
        for mine, theirs in zip(found, (wanted.q, wanted.k, wanted.v), strict=True):
            error = mine.double().cpu() - torch.from_numpy(theirs)
            assert error.norm() <= 1e-2 * float(np.linalg.norm(theirs)) + 1e-6


@pytest.mark.parametrize(("name", "dims"), [(n, d) for n, d in BACKWARD if d != (80, 72)], ids=str)
def test_its_gradients_are_those_of_the_definition(name: str, dims: tuple[int, int]) -> None:
    kernel = compiled(name)
    leaves, _ = drawn((4, 2), (16, 16), dims, torch.bfloat16, 1, 0)
    assert module_of(kernel).host.hopper_row(module_of(kernel).HOPPER_BACKWARD, *leaves[:3]) is not None
    check_gradients(kernel, dims, [(333, 333), (130, 130)] if name == "documents" else [(200, 333), (270, 130)])


EDGES = [
    "mask = k >= q\n",
    "mask = k >= q + Sk - Sq\n",
    "mask = q + k < Sk\n",
    "score = qk * scale + 4.0 * float(max(k - Sk, -1))\n",
    "score = qk * scale + log(float(Sk - k)) / float(Sq - q)\n",
    "score = qk * scale + log(float(Sk - k)) / float(Sq - q)\nmask = 0 <= q - k < 60\n",
]
"""Masks with one bound or none, and scores that have no value, or a very large one, beyond the tensor."""


@pytest.mark.parametrize("dim", [64, 128, 256])
@pytest.mark.parametrize("body", EDGES)
def test_keys_and_queries_beyond_the_tensor_count_for_nothing(body: str, dim: int) -> None:
    check_gradients(attngen.compile(f"attention edge\n\n{body}"), (dim, dim), [(200, 333), (150, 150), (270, 130)])


@pytest.mark.parametrize(("name", "dims"), BACKWARD, ids=str)
def test_its_gradients_are_those_of_the_portable_kernels(
    name: str, dims: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = compiled(name)
    module = (kernel.function, module_of(kernel))[1]
    for B, Hq, Hkv, Sq, Sk in (*SHAPES, *([MANY_HEADS[dims]] if dims in MANY_HEADS else ())):
        Sq = Sk if name == "documents" else Sq
        for dtype in (torch.float16, torch.bfloat16):
            leaves, generator = drawn((Hq, Hkv), (Sq, Sk), dims, dtype, B, Sk)
            assert module.host.hopper_row(module.HOPPER_BACKWARD, *leaves[:3]) is not None
            params = params_of(kernel, B, Hq, Sq, Sk, generator)
            out, lse = kernel(*leaves, return_lse=True, **params)
            d_out, d_lse = torch.randn_like(out), torch.randn_like(lse)
            d_lse = torch.where(torch.isfinite(lse), d_lse, 0.0)
            found = []
            for portable in (False, False, True):
                if portable:
                    monkeypatch.setattr(module, "HOPPER_BACKWARD", NO_ROWS)
                    module._attention.ready.clear()
                poison = [torch.full_like(x, math.nan) for x in (*leaves, *leaves)]
                del poison
                found.append(torch.autograd.grad((out, lse), leaves, (d_out, d_lse), retain_graph=True))
            monkeypatch.undo()
            module._attention.ready.clear()
            for mine, again, expected in zip(*found, strict=True):
                assert torch.equal(mine, again)
                assert (mine.float() - expected.float()).norm() <= 6e-3 * expected.float().norm() + 1e-6


def test_a_wanted_sum_over_pairs_calls_the_portable_kernels() -> None:
    kernel = attngen.compile(EXAMPLES / "sink.attn")
    generator = torch.Generator("cuda").manual_seed(0)
    q, k, v = (torch.randn(2, 4, 700, 128, generator=generator, device="cuda").bfloat16() for _ in range(3))
    leaves = [x.requires_grad_() for x in (q, k, v)]
    sink = torch.randn(4, generator=generator, device="cuda")
    plain = torch.autograd.grad(kernel(*leaves, sink=sink).float().square().sum(), leaves)
    leaves.append(sink.requires_grad_())
    wanted = torch.autograd.grad(kernel(*leaves[:3], sink=sink).float().square().sum(), leaves)
    assert wanted[3].abs().min() > 0
    for a, b in zip(plain, wanted, strict=False):
        assert (a.float() - b.float()).norm() <= 6e-3 * b.float().norm()


TURNS = [
    *(("causal", heads, dim) for heads, dim in (((2, 8), 128), ((8, 8), 128), ((2, 8), 64), ((8, 16), 64))),
    *(("documents", heads, dim) for heads, dim in (((8, 8), 128), ((2, 8), 64), ((2, 4), 256))),
]


@pytest.mark.parametrize(("name", "heads", "dim"), TURNS)
def test_turns_give_the_same_bits_every_time(name: str, heads: tuple[int, int], dim: int) -> None:
    """Tiles of keys from the first to the last, or from the last to the first; lists made anew each time."""
    kernel = attngen.compile(EXAMPLES / f"{name}.attn")
    generator = torch.Generator("cuda").manual_seed(0)
    leaves = [torch.randn(*heads, 2100, dim, generator=generator, device="cuda").bfloat16() for _ in range(3)]
    params = params_of(kernel, heads[0], heads[1], 2100, 2100, generator)
    out = kernel(*(x.requires_grad_() for x in leaves), **params)
    d_out = torch.randn_like(out)
    first = torch.autograd.grad(out, leaves, d_out, retain_graph=True)
    for _ in range(1000):
        if name == "documents":
            assert torch.equal(kernel(*leaves, **params), out)
        again = torch.autograd.grad(out, leaves, d_out, retain_graph=True)
        assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


# ---------------------------------------------------------------- backward, dK/dV and dQ apart

APART_DIMS = ((256, 256), (192, 128), (160, 160), (136, 72), (128, 256))
APART = [
    *(("causal", dims) for dims in APART_DIMS),
    *((n, (256, 256)) for n in ("sliding_window", "softcap", "alibi", "prefix_lm", "relative_bias", "full_bias")),
    *((n, (256, 256)) for n in ("sink", "softmax1", "custom_normalizer", "t5_bias", "chunked", "documents", "dilated")),
    *((n, (192, 128)) for n in ("cross_attention", "documents", "softcap", "prefix_lm", "window_global")),
]
SQUARE = {"documents", "window_global"}  # as many queries as keys
APART_SHAPES = [(2, 4, 2, 512, 512), (2, 6, 2, 300, 777), (1, 3, 1, 130, 64), (1, 2, 2, 5, 900), (3, 2, 1, 700, 257)]
"""Ragged, in groups, with rows that meet no key (more queries than keys), shorter than a tile."""


@pytest.mark.parametrize(("name", "dims"), APART, ids=str)
def test_the_two_kernels_give_the_gradients_of_the_definition(name: str, dims: tuple[int, int]) -> None:
    kernel = compiled(name)
    module = (kernel.function, module_of(kernel))[1]
    for Sq, Sk in ((200, 333), (270, 130)) if name not in SQUARE else ((333, 333), (130, 130)):
        leaves, generator = drawn((4, 2), (Sq, Sk), dims, torch.bfloat16, 1, Sk)
        assert module.host.hopper_row(module.HOPPER_APART, *leaves[:3]) is not None
        params = params_of(kernel, 1, 4, Sq, Sk, generator)
        out, lse = kernel(*leaves, return_lse=True, **params)
        d_out, d_lse = torch.randn_like(out), torch.where(torch.isfinite(lse), torch.randn_like(lse), 0.0)
        found = torch.autograd.grad((out, lse), leaves, (d_out, d_lse))
        exact = [x.detach().double().cpu().numpy() for x in (*leaves, d_out, d_lse)]
        given = {n: x.cpu().numpy() if isinstance(x, torch.Tensor) else x for n, x in params.items()}
        wanted = reference.gradients(kernel.spec, *exact, params=given)
        for mine, theirs in zip(found, (wanted.q, wanted.k, wanted.v), strict=True):
            error = mine.double().cpu() - torch.from_numpy(theirs)
            assert error.norm() <= 1e-2 * float(np.linalg.norm(theirs)) + 1e-6


@pytest.mark.parametrize(("name", "dims"), APART, ids=str)
def test_the_two_kernels_give_the_gradients_of_the_portable_ones(
    name: str, dims: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = compiled(name)
    module = (kernel.function, module_of(kernel))[1]
    for B, Hq, Hkv, Sq, Sk in APART_SHAPES:
        Sq = Sk if name in SQUARE else Sq
        for dtype in (torch.float16, torch.bfloat16):
            leaves, generator = drawn((Hq, Hkv), (Sq, Sk), dims, dtype, B, Sk)
            params = params_of(kernel, B, Hq, Sq, Sk, generator)
            out, lse = kernel(*leaves, return_lse=True, **params)
            torch.manual_seed(0)  # of five queries alone, a draw may round worse than the bound
            d_out = torch.randn_like(out)
            d_lse = torch.where(torch.isfinite(lse), torch.randn_like(lse), 0.0)
            found = []
            for portable in (False, False, True):
                if portable:
                    monkeypatch.setattr(module, "HOPPER_APART", NO_ROWS)
                    module._attention.ready.clear()
                poison = [torch.full_like(x, math.nan) for x in (*leaves, *leaves)]
                del poison
                found.append(torch.autograd.grad((out, lse), leaves, (d_out, d_lse), retain_graph=True))
            monkeypatch.undo()
            module._attention.ready.clear()
            for mine, again, expected in zip(*found, strict=True):
                assert torch.equal(mine, again)
                assert (mine.float() - expected.float()).norm() <= 6e-3 * expected.float().norm() + 1e-6


@pytest.mark.parametrize("name", ["alibi", "sink", "custom_normalizer", "relative_bias"])
def test_dq_sums_the_gradients_of_params(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = compiled(name)
    module = (kernel.function, module_of(kernel))[1]
    leaves, generator = drawn((4, 2), (333, 300), (256, 256), torch.bfloat16, 2, 0)
    params = params_of(kernel, 2, 4, 333, 300, generator)
    learned = {n: torch.as_tensor(x, device="cuda").requires_grad_() for n, x in params.items()}
    found = []
    for portable in (False, False, True):
        if portable:
            monkeypatch.setattr(module, "HOPPER_APART", NO_ROWS)
            module._attention.ready.clear()
        out = kernel(*leaves, **learned)
        found.append(torch.autograd.grad(out.float().square().sum(), [*leaves, *learned.values()]))
    module._attention.ready.clear()
    for mine, again, expected in zip(*found, strict=True):
        assert torch.equal(mine, again)
        assert (mine.float() - expected.float()).norm() <= 1e-2 * expected.float().norm()


def test_a_sum_of_columns_takes_the_portable_kernel_for_dk_and_dv_alone() -> None:
    kernel = attngen.compile("attention a\n\nparam tilt: f32[Sk]\nscore = qk * scale + tilt[k]\nmask = causal\n")
    module = (kernel.function, module_of(kernel))[1]
    leaves, generator = drawn((2, 2), (300, 300), (256, 256), torch.bfloat16, 1, 0)
    tilt = torch.randn(300, generator=generator, device="cuda").requires_grad_()
    out = kernel(*leaves, tilt=tilt)
    d_out = torch.randn_like(out)
    found = torch.autograd.grad(out, [*leaves, tilt], d_out)
    ((_, launches, _pairs),) = (x for known in module._attention.ready.values() for x in known.backward.values())
    assert [launch.kernel.__name__ for launch in launches[1:]] == ["_dkdv_kernel", "_hopper_dq_kernel"]
    exact = [x.detach().double().cpu().numpy() for x in (*leaves, d_out)]
    wanted = reference.gradients(kernel.spec, *exact, params={"tilt": tilt.detach().double().cpu().numpy()})
    for mine, theirs in zip(found, (wanted.q, wanted.k, wanted.v, wanted.params["tilt"]), strict=True):
        error = mine.double().cpu() - torch.from_numpy(theirs)
        assert error.norm() <= 1e-2 * float(np.linalg.norm(theirs))


def test_two_kernels_give_the_same_bits_every_time() -> None:
    kernel = attngen.compile(EXAMPLES / "causal.attn")
    leaves, _ = drawn((8, 8), (2100, 2100), (256, 256), torch.bfloat16, 1, 0)
    out = kernel(*leaves)
    d_out = torch.randn_like(out)
    first = torch.autograd.grad(out, leaves, d_out, retain_graph=True)
    for _ in range(1000):
        again = torch.autograd.grad(out, leaves, d_out, retain_graph=True)
        assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
