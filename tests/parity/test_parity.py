"""The one parity suite: specs x shapes x dtypes, forward and every gradient, against two independent float64 results.

Wanted numbers come from the reference (`attngen.reference`, which shares the front end's mistakes) and from the
formula written by hand (`formulas.py`, which shares nothing). A kernel must agree with both.

    pytest tests/parity                          a sample of the matrix, in Triton's and in Pallas' interpreter
    pytest tests/parity -m "slow and not gpu"    the rest of it
    pytest tests/parity -m "gpu and not slow"    a sample on the card, large shapes too; `-m gpu` runs everything

The samples are chosen by index, not at random: every spec meets several shapes, every shape and dtype many specs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pytest
import torch
from parity import variants
from parity.compare import Numbers, cotangents, disagreements, numbers
from parity.extras import EXTRAS
from parity.jax_side import by_pallas
from parity.variants import EXAMPLE_VARIANTS, LARGE, SMALL, Case, Inputs, Variant

import attngen
from attngen import Kernel, reference

# Triton's interpreter is NumPy, which mentions its overflows to infinity; a GPU does the same without a word.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Conversion of an array with ndim > 0:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning:triton.runtime.interpreter"),
    pytest.mark.filterwarnings("ignore:no GPU found:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*no TPU found:UserWarning"),
]

EVERY = EXAMPLE_VARIANTS + EXTRAS
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.float16: 2e-2}
# Below this, numbers count as small: what cancels to nothing (the gradient of a row with one key) has rounding errors
# of the size of its terms, not of the result.
FLOOR = {torch.float32: 0.1, torch.bfloat16: 1.0, torch.float16: 1.0}
TILE = (16, 16)
"""Tiles of the small shapes, so that they have full, partial and skipped ones."""


@dataclass(frozen=True)
class Run:
    variant: Variant
    case: Case
    dtype: torch.dtype
    device: str
    large: bool = False
    with_lse: bool = True
    target: str = "triton"
    planned: bool = False  # tiles, and the chip's own kernels, as the planner chooses them, though the shape is small

    def __str__(self) -> str:
        dtype = str(self.dtype).removeprefix("torch.")
        how = f"{self.target}{'-planned' if self.planned else ''}"
        return f"{self.variant.name}-{self.case.name}-{dtype}-{self.device}-{how}"


def matrix() -> list[object]:
    """Every run, marked `gpu` and, where it is not in the sample, `slow`."""
    runs: list[object] = []
    for i, variant in enumerate(EVERY):
        wanted = 3 if variant in EXAMPLE_VARIANTS else 2
        sample = {(5 * i + 4 * step) % len(SMALL) for step in range(wanted)}
        for j, case in enumerate(SMALL):
            lse = (i + j) % 2 == 0
            halves = {(5 * i + 1) % len(SMALL): torch.bfloat16, (5 * i + 7) % len(SMALL): torch.float16}
            for device in ("cpu", "cuda"):
                gpu = [pytest.mark.gpu] if device == "cuda" else []
                slow = [] if j in sample else [pytest.mark.slow]
                run = Run(variant, case, torch.float32, device, with_lse=lse)
                runs.append(pytest.param(run, id=str(run), marks=gpu + slow))
                if j in halves:
                    slow = [] if device == "cuda" or i % 4 == 0 else [pytest.mark.slow]
                    run = Run(variant, case, halves[j], device, with_lse=lse)
                    runs.append(pytest.param(run, id=str(run), marks=gpu + slow))
        for j, case in enumerate(() if variant.small_only else LARGE):
            for n, dtype in enumerate((torch.bfloat16, torch.float16, torch.float32)):
                slow = [] if (i + j) % len(LARGE) == 0 and n != 1 else [pytest.mark.slow]
                run = Run(variant, case, dtype, "cuda", large=True, with_lse=(i + j) % 2 == 0)
                runs.append(pytest.param(run, id=str(run), marks=[pytest.mark.gpu, *slow]))
    by_jax = [run for target in ("pallas", "jax") for i, v in enumerate(EVERY) for run in jax_runs(i, v, target)]
    planned = [run for i, variant in enumerate(EVERY) for run in planned_runs(i, variant)]
    return [*runs, *(on_target(run, "torch") for run in runs), *by_jax, *planned]


def on_target(run: object, target: str) -> object:
    """The same run for another target."""
    (given,) = run.values  # type: ignore[attr-defined]
    moved = replace(given, target=target)
    return pytest.param(moved, id=str(moved), marks=run.marks)  # type: ignore[attr-defined]


def jax_runs(i: int, variant: Variant, target: str) -> list[object]:
    """Every small shape by way of JAX; the sample has one of each spec, chosen so that all shapes occur."""
    runs: list[object] = []
    sample = {(3 * i + 2) % len(SMALL)}
    for j, case in enumerate(SMALL):
        slow = [] if j in sample else [pytest.mark.slow]
        run = Run(variant, case, torch.float32, "cpu", with_lse=(i + j) % 2 == 0, target=target)
        runs.append(pytest.param(run, id=str(run), marks=slow))
        if j == (2 * i + 1) % len(SMALL):
            slow = [] if i % 4 == 0 else [pytest.mark.slow]
            run = Run(variant, case, torch.bfloat16, "cpu", with_lse=(i + j) % 2 == 0, target=target)
            runs.append(pytest.param(run, id=str(run), marks=slow))
    return runs


def planned_runs(i: int, variant: Variant) -> list[object]:
    """Every small shape on the card, in half precision, with head dims for which a chip may have its own kernels."""
    runs: list[object] = []
    sample = {(5 * i + 4 * step) % len(SMALL) for step in range(3)}
    for j, case in enumerate(SMALL):
        for dtype in (torch.bfloat16, torch.float16):
            run = Run(variant, variants.wide(case), dtype, "cuda", with_lse=(i + j) % 2 == 0, planned=True)
            slow = [] if j in sample and dtype == torch.bfloat16 else [pytest.mark.slow]
            runs.append(pytest.param(run, id=str(run), marks=[pytest.mark.gpu, *slow]))
    return runs


@cache
def kernel(name: str, large: bool, target: str = "triton", planned: bool = False) -> Kernel:
    """The spec's kernel, compiled once a process; large shapes have the tiles that the planner chooses."""
    variant = next(v for v in EVERY if v.name == name)
    tile = None if large or planned else TILE
    return attngen.compile(variant.text, target, tile=tile, consts=variant.settings(large))


def by_kernel(run_kernel: Kernel, given: Inputs, with_lse: bool) -> Numbers:
    leaves = {n: x.detach().requires_grad_() for n, x in (("q", given.q), ("k", given.k), ("v", given.v))}
    params = dict(given.params)
    for name in given.floats():
        leaves[name] = params[name] = params[name].detach().requires_grad_()  # type: ignore[union-attr]
    options = {"scale": given.scale} if given.scale is not None else {}
    if given.dropout_seed is not None:
        options["dropout_seed"] = given.dropout_seed
    q, k, v = (leaves[n] for n in "qkv")
    out, lse = run_kernel(q, k, v, **params, **options, return_lse=True)
    assert out.dtype == q.dtype and lse.dtype == torch.float32
    found = numbers(out, lse, leaves, with_lse)
    if not with_lse:
        assert torch.equal(run_kernel(q, k, v, **params, **options), out)
    return found


def by_formula(variant: Variant, given: Inputs, large: bool, with_lse: bool) -> Numbers:
    exact = variants.in_float64(given)
    leaves = {"q": exact.q, "k": exact.k, "v": exact.v, **{n: exact.params[n] for n in exact.floats()}}
    out, lse = variants.by_formula(variant, exact, variant.settings(large))
    return numbers(out, lse, leaves, with_lse)  # type: ignore[arg-type]


def by_reference(run_kernel: Kernel, given: Inputs, with_lse: bool) -> Numbers:
    arrays = [x.detach().double().cpu().numpy() for x in (given.q, given.k, given.v)]
    params = {n: _array(p) for n, p in given.params.items()}
    options = {"params": params, "scale": given.scale, "dropout_seed": given.dropout_seed}
    result = reference.evaluate(run_kernel.spec, *arrays, **options)
    d_out, d_lse = cotangents(torch.from_numpy(result.out), torch.from_numpy(result.lse), with_lse)
    gradients = reference.gradients(run_kernel.spec, *arrays, d_out.numpy(), d_lse.numpy(), **options)
    found = {"out": result.out, "lse": result.lse, "d_q": gradients.q, "d_k": gradients.k, "d_v": gradients.v}
    found |= {f"d_{n}": gradients.params[n] for n in given.floats()}
    return Numbers({n: torch.from_numpy(np.array(x)) for n, x in found.items()})


def _array(value: variants.Value) -> object:
    if not isinstance(value, torch.Tensor):
        return value
    value = value.detach().cpu()
    return (value.double() if value.dtype.is_floating_point else value).numpy()


@pytest.mark.parametrize("run", matrix())
def test_kernel_is_the_formula_and_the_reference(run: Run) -> None:
    case = run.variant.suited(run.case, run.large)
    given = variants.inputs(run.variant, case, run.dtype, run.device)
    compiled = kernel(run.variant.name, run.large, run.target, run.planned)
    got = (by_pallas if run.target in ("pallas", "jax") else by_kernel)(compiled, given, run.with_lse)
    tolerance, floor = TOLERANCE[run.dtype], FLOOR[run.dtype]
    halves = frozenset(f"d_{n}" for n in given.floats() if given.params[n].dtype != torch.float32)  # type: ignore[union-attr]
    formula = by_formula(run.variant, given, run.large, run.with_lse)
    off = disagreements(got, formula, tolerance, floor, halves)
    assert not off, "against the formula: " + "; ".join(off)
    oracle = by_reference(compiled, given, run.with_lse)
    off = disagreements(got, oracle, tolerance, floor, halves)
    assert not off, "against the reference: " + "; ".join(off)


# ---------------------------------------------------------------- what the matrix does not vary

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def named(name: str) -> Variant:
    return next(v for v in EVERY if v.name == name)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "case",
    [
        Case("no_keys", rows=5, columns=0),
        Case("no_queries", rows=0, columns=5),
        Case("no_batch", batch=0, rows=5, columns=5),
    ],
    ids=lambda case: case.name,
)
@pytest.mark.parametrize("name", ["causal", "sink", "learned_sink"])
def test_nothing_in_nothing_out(name: str, case: Case, device: str) -> None:
    variant = named(name)
    given = variants.inputs(variant, case, torch.float32, device)
    got = by_kernel(kernel(name, False), given, True)
    assert got.values["out"].shape == (case.batch, case.heads, case.rows, case.value_dim)
    right = by_reference(kernel(name, False), given, True)  # a sink is the lse of no key, and gets its gradient
    for key, value in got.values.items():
        torch.testing.assert_close(value.double().cpu(), right.values[key], atol=2e-5, rtol=2e-5, check_device=False)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("tile", [(32, 16), (16, 64), None], ids=str)
@pytest.mark.parametrize("name", ["sliding_window", "documents", "relative_bias"])
def test_other_tiles(name: str, tile: tuple[int, int] | None, device: str) -> None:
    variant = named(name)
    given = variants.inputs(variant, variant.suited(SMALL[-1]), torch.float32, device)
    compiled = attngen.compile(variant.text, tile=tile, consts=variant.consts)
    off = disagreements(
        by_kernel(compiled, given, True), by_formula(variant, given, False, True), 2e-5, 0.1, frozenset()
    )
    assert not off, "; ".join(off)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("wanted", ["q", "v", "k", "slope"])
def test_gradients_of_some_inputs_only(wanted: str, device: str) -> None:
    variant = named("alibi")
    given = variants.inputs(variant, SMALL[3], torch.float32, device)
    everything = by_kernel(kernel("alibi", False), given, False)
    tensors = {"q": given.q, "k": given.k, "v": given.v, **given.params}
    leaf = tensors[wanted] = tensors[wanted].detach().requires_grad_()  # type: ignore[union-attr]
    q, k, v = (tensors.pop(n) for n in "qkv")
    out = kernel("alibi", False)(q, k, v, **tensors, scale=given.scale)
    d_out, _ = cotangents(out, out[..., 0], False)
    (gradient,) = torch.autograd.grad(out, leaf, d_out.to(out))
    assert torch.equal(gradient.double().cpu(), everything.values[f"d_{wanted}"])


@pytest.mark.parametrize("device", DEVICES)
def test_cotangents_and_params_of_any_strides(device: str) -> None:
    """`out.sum()` hands over a cotangent of stride 0; the bias lies transposed; the result is laid out otherwise."""
    variant = named("full_bias")
    given = variants.inputs(variant, SMALL[1], torch.float32, device)
    bias = given.params["bias"]
    assert isinstance(bias, torch.Tensor)
    leaves = [x.detach().requires_grad_() for x in (given.q, given.k, given.v, bias.mT.contiguous().mT)]
    exact = [x.detach().double().requires_grad_() for x in leaves]
    out = kernel("full_bias", False)(*leaves[:3], bias=leaves[3])
    want, _ = variant.formula(*exact[:3], given.q.shape[-1] ** -0.5, bias=exact[3])
    got = torch.autograd.grad(out.sum() + out.transpose(1, 2).flatten(2)[0, :, 0].sum(), leaves)
    expected = torch.autograd.grad(want.sum() + want.transpose(1, 2).flatten(2)[0, :, 0].sum(), exact)
    for one, other in zip(got, expected, strict=True):
        assert (one.double() - other).abs().max() < 2e-5 * max(1.0, other.abs().max().item())


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ["windowed_alibi", "full_bias", "dropout"])
def test_the_same_bits_every_time(name: str, device: str) -> None:
    variant = named(name)
    given = variants.inputs(variant, SMALL[3], torch.float32, device)
    once, again = (by_kernel(kernel(name, False), given, True) for _ in range(2))
    different = [n for n in once.values if not torch.equal(once.values[n], again.values[n])]
    assert different == []


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ["causal", "softmax1", "sink", "sigmoid", "softcap", "custom_normalizer", "base_two"])
@pytest.mark.parametrize("scale", [60.0, -60.0])
def test_large_scores_stay_finite(name: str, scale: float, device: str) -> None:
    """Scores of several hundred: float32 keeps few digits behind the point, and nothing overflows."""
    variant = named(name)
    given = replace(variants.inputs(variant, SMALL[0], torch.float32, device), scale=scale)
    got = by_kernel(kernel(name, False), given, True)
    want = by_formula(variant, given, False, True)
    assert all(torch.isfinite(value).all() for value in got.values.values())
    off = disagreements(got, want, 2e-3, 0.1, frozenset())
    assert not off, "; ".join(off)
