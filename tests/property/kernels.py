"""One spec, compiled with small tiles and run in Triton's interpreter beside the float64 reference.

Takes a spec's text, sizes and a seed, gives the error of out, lse and every gradient, relative to the largest number of
the result (or to `FLOOR`, where all of it is smaller: a gradient that is zero but for cancellation has no scale).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import torch

from attngen import reference, targets
from attngen.analyse import analyse
from attngen.emit import Options
from attngen.errors import Source
from attngen.ir.attention import Attention, Param
from attngen.ir.evaluate import evaluate
from attngen.ir.nodes import Type
from attngen.plan import KernelPlan, plan
from attngen.runtime.loader import load
from attngen.syntax.parser import parse
from attngen.targets import emit

FLOOR = 0.1
STORAGE = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


class Sizes(NamedTuple):
    B: int
    Hq: int
    Hkv: int
    Sq: int
    Sk: int
    D: int
    Dv: int


@dataclass(frozen=True)
class Compiled:
    attention: Attention
    plan: KernelPlan
    source: str
    function: Callable[..., Any] = field(repr=False)


def analysed(text: str, **consts: bool | int | float) -> Attention:
    source = Source(text, "spec.attn")
    return analyse(parse(source), source, consts)


@functools.lru_cache(maxsize=64)
def compiled(text: str, tile: tuple[int, int] = (16, 16)) -> Compiled:
    attention = replace(analysed(text), tile=tile)
    planned = plan(attention, targets.named("triton").limits())
    source = emit(planned, text, Options())
    return Compiled(attention, planned, source, getattr(load(source, attention.name), attention.name))


def values(attention: Attention, sizes: Sizes, generator: np.random.Generator, length: int) -> dict[str, Any]:
    """A value for each param: floats in 0.1 … 0.9, scalar ints 1 … 9, int tensors sorted along the last axis, so that
    documents form; sizes bound at the call are `length`."""
    env: dict[str, Any] = {**sizes._asdict(), **dict.fromkeys(attention.sizes, length)}
    return {p.name: _value(p, tuple(int(evaluate(d, env, {})) for d in p.shape), generator) for p in attention.params}


def _value(p: Param, shape: tuple[int, ...], generator: np.random.Generator) -> Any:
    if p.type is Type.FLOAT:
        drawn = torch.tensor(generator.uniform(0.1, 0.9, shape))
        return drawn.to(STORAGE[p.storage.value]).requires_grad_()
    if p.type is Type.INT:
        if not shape:
            return int(generator.integers(1, 10))
        return torch.tensor(np.sort(generator.integers(0, 6, shape), -1))
    return torch.tensor(generator.random(shape) > 0.3) if shape else bool(generator.random() > 0.3)


def leaf(generator: np.random.Generator, *shape: int) -> torch.Tensor:
    return torch.tensor(generator.standard_normal(shape), dtype=torch.float32).requires_grad_()


def errors(
    text: str,
    sizes: Sizes,
    *,
    seed: int = 0,
    scale: float | None = None,
    params: Mapping[str, Any] | None = None,
    inputs: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None = None,
    tile: tuple[int, int] = (16, 16),
    length: int = 33,
    forward_only: bool = False,
) -> dict[str, float]:
    """`params` replaces some of the drawn values; `inputs` are q, k, v, each with a leaf that requires a gradient."""
    kernel = compiled(text, tile)
    attention = kernel.attention
    generator = np.random.default_rng(seed)
    B, Hq, Hkv, Sq, Sk, D, Dv = sizes
    q, k, v = inputs or (
        leaf(generator, B, Hq, Sq, D), leaf(generator, B, Hkv, Sk, D), leaf(generator, B, Hkv, Sk, Dv)
    )  # fmt: skip
    given = {**values(attention, sizes, generator, length), **(params or {})}
    out, lse = kernel.function(q, k, v, **given, scale=scale, return_lse=True, dropout_seed=7)
    want = reference.evaluate(attention, q, k, v, params=given, scale=scale, dropout_seed=7)
    found = {"out": _error(out, want.out), "lse": _error(lse, want.lse)}
    if forward_only:
        return found
    finite = torch.isfinite(lse.detach())
    d_out = torch.tensor(generator.standard_normal(out.shape), dtype=torch.float32)
    d_lse = torch.where(finite, torch.tensor(generator.standard_normal(lse.shape), dtype=torch.float32), 0.0)
    floats = {n: x for n, x in given.items() if isinstance(x, torch.Tensor) and x.requires_grad}
    loss = (out * d_out).sum() + (torch.where(finite, lse, 0.0) * d_lse).sum()
    leaves = {"q": q, "k": k, "v": v, **floats}
    got = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
    wanted = reference.gradients(
        attention, q, k, v, d_out.double(), d_lse.double(), params=given, scale=scale, dropout_seed=7
    )
    expected = {"q": wanted.q, "k": wanted.k, "v": wanted.v, **wanted.params}
    for name, gradient in zip(leaves, got, strict=True):
        found[f"d_{name}"] = _error(torch.zeros_like(leaves[name]) if gradient is None else gradient, expected[name])
    return found


def _error(got: torch.Tensor, want: Any) -> float:
    have, want = got.detach().double().numpy(), np.asarray(want)
    if have.shape != want.shape:
        return float("inf")
    finite = np.isfinite(want)
    if not np.array_equal(have[~finite], want[~finite], equal_nan=True) or not np.isfinite(have[finite]).all():
        return float("inf")
    largest = np.abs(want[finite]).max(initial=FLOOR)
    return float(np.abs(have[finite] - want[finite]).max(initial=0.0) / largest)


def largest_score(text: str, sizes: Sizes, params: Mapping[str, Any], inputs: tuple[torch.Tensor, ...]) -> float:
    """The largest finite score's size: what a relative error of the score is multiplied by in the weights."""
    attention = compiled(text).attention
    q, k, _ = (x.detach().double().numpy() for x in inputs)
    group = sizes.Hq // sizes.Hkv
    env: dict[str, Any] = {**sizes._asdict(), "scale": sizes.D**-0.5}
    env["qk"] = q @ np.repeat(k, group, 1).swapaxes(-1, -2)
    env["b"] = np.arange(sizes.B)[:, None, None, None]
    env["h"] = np.arange(sizes.Hq)[None, :, None, None]
    env["hkv"] = env["h"] // group
    env["q"], env["k"] = np.arange(sizes.Sq)[:, None], np.arange(sizes.Sk)
    score = evaluate(attention.score, env, params)
    return float(np.abs(score[np.isfinite(score)]).max(initial=0.0))
