"""How much of inputs in 16 bits a kernel of 8-bit floats loses: relative errors of `out` beside those of bfloat16.

Takes a `Kernel` and a device; returns a row for each kind of input and way to quantize it. The truth is the float64
reference on the inputs before they are quantized. A relative error is that of the whole tensor, |out - truth| /
|truth|, by the root of the sum of squares. For target triton; needs torch.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# PyTorch has few types.

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from attngen import inputs, reference
from attngen.errors import UsageError
from attngen.ir.evaluate import Array
from attngen.kernel import Kernel
from attngen.quantized import quantize
from attngen.runtime.devices import pytorch
from attngen.verify.comparison import Case, as_param

WAYS: Mapping[str, Mapping[str, bool]] = {
    "fp8": {},
    "smooth": {"smooth": True},
    "rotate": {"rotate": True},
    "both": {"smooth": True, "rotate": True},
}


@dataclass(frozen=True, slots=True)
class Loss:
    """`errors`: by way, that of bf16 first. `note`: what the inputs are like."""

    note: str
    case: Case
    errors: tuple[tuple[str, float], ...]


def losses(kernel: Kernel, device: str, seed: int = 0) -> Iterator[Loss]:
    """Normal inputs; with outliers, as Shah et al. draw them (FlashAttention-3, 2024, section 4.3); and a key that all
    queries look for among many."""
    sizes = {"B": 1, "Hq": 4, "Hkv": 2, "Sq": 4096, "Sk": 4096, "D": 128, "Dv": 128}
    if device == "cpu":
        sizes |= {"Sq": 96, "Sk": 96, "D": 64, "Dv": 64}
    far = sizes | {"Hq": 1, "Hkv": 1, "Sq": 64, "Sk": 131072 if device != "cpu" else 512}
    for note, wanted in (("normal", sizes), ("with outliers", sizes), ("a needle", far)):
        settled = inputs.settle(kernel.spec, wanted)
        case = Case(note, "bf16", tuple(settled.items()))
        operands = _drawn(note, case, device, seed)
        params = {
            p.name: as_param(p, value, case, device)
            for p, value in zip(
                kernel.spec.params, inputs.examples(kernel.spec, settled, seed=seed).values(), strict=True
            )
        }
        truth = reference.evaluate(kernel.spec, *operands, params=params).out
        yield Loss(note, case, tuple(_errors(kernel, operands, params, truth)))


def _drawn(note: str, case: Case, device: str, seed: int) -> tuple[Any, Any, Any]:
    torch, s = pytorch(), case.size
    rng = np.random.default_rng(seed)

    def drawn(heads: str, length: str, dim: str) -> Array:
        shape = s["B"], s[heads], s[length], s[dim]
        found: Array = rng.standard_normal(shape)
        if note == "with outliers":
            found = found + 10.0 * rng.standard_normal(shape) * (rng.random(shape) < 0.001)
        return found

    q, k, v = drawn("Hq", "Sq", "D"), drawn("Hkv", "Sk", "D"), drawn("Hkv", "Sk", "Dv")
    if note == "a needle":  # a score of twice the root of D, where others are normal numbers
        needle = q.mean((1, 2), keepdims=True)
        q = q + 4.0 * needle / np.linalg.norm(needle, axis=-1, keepdims=True) * s["D"] ** 0.25
        k[:, :, s["Sk"] // 3] = (needle / np.linalg.norm(needle, axis=-1, keepdims=True) * s["D"] ** 0.75)[:, :, 0]
    return tuple(torch.from_numpy(x).to(torch.bfloat16).to(device) for x in (q, k, v))  # pyright: ignore


def _errors(
    kernel: Kernel, operands: tuple[Any, Any, Any], params: Mapping[str, Any], truth: Array
) -> Iterator[tuple[str, float]]:
    torch = pytorch()
    q, k, v = operands
    with torch.no_grad():
        yield "bf16", _relative(kernel(q, k, v, **params), truth)
        for way, chosen in WAYS.items():
            if chosen.get("smooth") and kernel.plan.sees_mean:
                continue
            smooth, rotate = chosen.get("smooth", False), chosen.get("rotate", False)
            try:
                given = (
                    quantize(q, heads=k.shape[1], rotate=rotate),
                    quantize(k, smooth=smooth, rotate=rotate),
                    quantize(v),
                )
            except UsageError:  # of head dims that are no power of two
                continue
            yield way, _relative(kernel(*given, **params), truth)


def _relative(out: Any, truth: Array) -> float:
    return float(np.linalg.norm(out.double().cpu().numpy() - truth) / max(np.linalg.norm(truth), 1e-300))
