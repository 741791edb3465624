"""A spec's kernel on the model of the chip (`machine`), with inputs for it: what tests of both passes share.

Takes a spec's text, head dims, sizes (B, Hq, Hkv, Sq, Sk) and changes of the generated source; gives a `Case`, ready
to be called. Fresh each time: a module keeps what it has prepared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

import attngen
from attngen import inputs, reference
from attngen.runtime.loader import execute
from hopper_model import machine
from hopper_model.schedule import USUAL, Schedule

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SHORTER = {"window": 100, "chunk": 96, "radius": 40}

Change = tuple[str, str]

FAR = {
    "queries": "attention far\n\nparam offset: int where offset >= 0\n\nmask = q - k >= offset\n",
    "keys": "attention far\n\nparam offset: int where offset >= 0\nparam tilt: f32[Sk]\n\n"
    "score = qk * scale + tilt[k]\nmask = k - q >= offset\n",
}
"""Masks that meet nothing, for a large offset: what a tile would walk lies far behind the last query, or key."""
UNCLAMPED = [
    *((f"items.limited({end}, stop)", end) for end in ("any_lo", "any_hi", "full_lo", "full_hi")),
    *((f"tl.cdiv({size})),", "2**31 - 1),") for size in ("Sk, BK", "Sq, BQ")),
]
"""The loops' ends without their clamps, in the kernels of sm_90's own and in what computes them."""


@dataclass(frozen=True)
class Case:
    """`module` launches on the model, which adds each kernel's name to `launched`."""

    kernel: attngen.Kernel
    module: Any
    launched: list[str]
    sizes: Mapping[str, int]
    params: Mapping[str, Any]
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    generator: torch.Generator

    @property
    def exact(self) -> list[np.ndarray]:
        return [x.detach().float().double().numpy() for x in (self.q, self.k, self.v)]

    @property
    def given(self) -> dict[str, Any]:
        """The params as the generated function takes them."""
        found = {n: x if isinstance(x, bool | int) else torch.as_tensor(np.asarray(x)) for n, x in self.params.items()}
        halves = {"bf16": torch.bfloat16, "f16": torch.float16}
        floats = {p.name: halves.get(p.storage.value, torch.float32) for p in self.kernel.spec.params}
        return {
            n: x.to(floats[n]) if isinstance(x, torch.Tensor) and x.is_floating_point() else x for n, x in found.items()
        }

    def draw(self, heads: str, length: str, dim: str) -> torch.Tensor:
        return drawn(self.generator, self.sizes, heads, length, dim, self.q.dtype)

    def differentiated(
        self,
        d_out: torch.Tensor,
        d_lse: torch.Tensor | None,
        kept: Sequence[torch.Tensor],
        needed: Sequence[bool] = (),
        scale: float | None = None,
    ) -> tuple[torch.Tensor, ...]:
        """The gradients of q, k, v, and of params that are `needed`. `kept`: out, lse, and what else the forward pass
        keeps."""
        attention = self.module._attention
        given = [int(x) if isinstance(x, bool) else x for x in self.given.values()]  # as the operator takes them
        inputs = [self.q, self.k, self.v, *given, self.sizes["D"] ** -0.5 if scale is None else scale]
        rest = attention.operator.signature.inputs[len(inputs) :]  # where tensors hold scalars: none do
        inputs += [False if kind == "bool" else None for _, kind in rest]
        return attention.gradients(d_out, d_lse, tuple(inputs), tuple(kept), [*needed])

    def truth(self) -> reference.Result:
        return reference.evaluate(self.kernel.spec, *self.exact, params=self.params)


def drawn(
    generator: torch.Generator, sizes: Mapping[str, int], heads: str, length: str, dim: str, dtype: torch.dtype
) -> torch.Tensor:
    """Heads are not contiguous."""
    shape = (sizes["B"], sizes[length], sizes[heads], sizes[dim])
    return torch.randn(*shape, generator=generator).to(dtype).transpose(1, 2)


SHAPED = {
    "lengths": "attention lengths\n\nparam n: int[B] where n >= 0\n\nmask = causal and k < n[b]\n",
    "backwards": "attention backwards\n\nmask = q + k < Sk\n",
    "logarithm": "attention logarithm\n\nparam g: f32[Hq]\n\n"
    "score = qk * scale - g[h] * log(1 + abs(q - k))\nmask = causal\n",
}
"""What no example has: ends that move back as keys move on, beside others or alone; a logarithm of each pair."""

RISING = {
    "with a sink": "score = qk * scale + alibi(g)\nmask = causal\nnormalizer = softmax(sink = g[h])\n",
    "towards later keys": "score = qk * scale - g[h] * abs(q - k)\nmask = q <= k\n",
    "under a soft cap": "score = 5.0 * tanh(qk * scale / 5.0) + 3.0 * g[h] * (k - q)\nmask = causal and q - k < 90\n",
    "without a mask": "score = qk * scale + g[h] * (k - q) + q * 0.01\n",
    "of documents": "param ids: int[B, Sk]\nscore = qk * scale + alibi(g)\nmask = causal and ids[b, q] == ids[b, k]\n"
    "assume Sq == Sk\n",
}
RISING = {name: f"attention rising\n\nparam g: f32[Hq]\n{body}" for name, body in RISING.items()}
"""Logits that change by the same amount from key to key."""

LANDMARKS = (
    "attention landmarks\n\nparam mark: bool[B, Sk]\n\n"
    "mask = 0 <= q - k < 100 or (mark[b, k] and causal)\nassume Sq == Sk\n"
)
"""Two stretches of queries that begin together, one of which data may empty."""

_LISTED = {
    "a head's own": "param at: int[Hq, Sk]\nmask = at[h, q] <= at[h, k]\nassume Sq == Sk\n",
    "a batch's and a head's": "param at: int[B, Hq, Sk]\nmask = at[b, h, q] == at[b, h, k]\nassume Sq == Sk\n",
    "everyone's": "param at: f32[Sk]\nmask = at[q] <= at[k]\nassume Sq == Sk\n",
    "a batch's edge": (
        "param at: int[Sk]\nparam length: int[B]\nmask = at[q] <= at[k] and k < length[b]\nassume Sq == Sk\n"
    ),
}
LISTED = {whose: f"attention listed\n\n{body}" for whose, body in _LISTED.items()}
"""By whom tiles that meet are listed: for each batch and head that may differ."""


def text_of(name: str) -> str:
    return (EXAMPLES / f"{name}.attn").read_text(encoding="utf-8")


@lru_cache(maxsize=4)
def compiled(text: str, dtype: str | None = None) -> attngen.Kernel:
    """Once for all changes and schedules."""
    consts = {n: value for n, value in SHORTER.items() if f"const {n} " in text}
    return attngen.compile(text, consts=consts, dtype=dtype)


def case(
    text: str,
    dims: tuple[int, int],
    sizes: tuple[int, int, int, int, int],
    dtype: torch.dtype,
    changes: Sequence[Change] = (),
    schedule: Schedule = USUAL,
    **params: Any,
) -> Case:
    """`changes`: of the source, all over; `schedule`: in what order programs run. `params`: in place of those that
    inputs are drawn with."""
    kernel = compiled(text, "fp8" if dtype is torch.float8_e4m3fn else None)
    source = kernel.source
    for change in changes:
        assert change[0] in source, change[0]
        source = source.replace(*change)
    module = execute(source, kernel.name)
    launched = machine.install(module, schedule)
    wanted = dict(zip(("B", "Hq", "Hkv", "Sq", "Sk"), sizes, strict=True), D=dims[0], Dv=dims[1])
    settled = inputs.settle(kernel.spec, wanted, fixed=("D", "Dv"))
    found = {**inputs.examples(kernel.spec, settled), **params}
    if "ids" in found and "ids" not in params:
        found["ids"] = np.sort(np.asarray(found["ids"]), axis=-1)
    generator = torch.Generator().manual_seed(settled["Sk"])
    q, k, v = (
        drawn(generator, settled, *axes, dtype) for axes in (("Hq", "Sq", "D"), ("Hkv", "Sk", "D"), ("Hkv", "Sk", "Dv"))
    )
    return Case(kernel, module, launched, settled, found, q, k, v, generator)


def relative(mine: torch.Tensor, theirs: np.ndarray) -> float:
    return float(np.linalg.norm(mine.detach().double().numpy() - theirs) / max(np.linalg.norm(theirs), 1e-12))
