"""Calls whose tensors have no elements, in every geometry: what tests of the host's part and of the card share.

One sequence; a side has 18 rows or none. Takes a generated module, and gives a function that gives out, lse and the
gradients by name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from attngen import vocabulary

NO_KEYS, NO_QUERIES, ALL = (18, 0), (0, 18), (18, 18)
HEADS, KV_HEADS = 4, 2
SINK = 0.5
SPECS = {
    "causal": "mask = causal",
    "sink": "param sink: f32[Hq]\nmask = causal\nnormalizer = softmax(sink = sink[h])",
    "documents": "param ids: int[B, Sk]\nparam bias: f32[B, Sk]\nscore = qk * scale + bias[b, k]\n"
    "mask = causal and ids[b, q + Sk - Sq] == ids[b, k]",
    "keep": "param keep: bool[B, Sk]\nmask = causal and keep[b, k]",
    "pairs": "param pairs: f32[Hq, Sq, Sk]\nscore = qk * scale + pairs[h, q, k]\nmask = causal",
}
"""A size of its own, `f32[n]`, has an element at least: a call is refused else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    spec: str
    geometry: str
    rows: tuple[int, int]
    D: int
    dtype: torch.dtype = torch.float16

    @property
    def exists(self) -> bool:
        """Params of pairs are for dense tensors alone."""
        return self.geometry == "dense" or self.spec != "pairs"


def calls() -> list[Call]:
    """Every spec in every geometry, without rows on one side."""
    found = [
        Call(spec=spec, geometry=geometry, rows=rows, D=D)
        for spec in SPECS
        for geometry in vocabulary.GEOMETRIES
        for rows in (NO_KEYS, NO_QUERIES)
        for D in (64, 128, 256)
    ]
    return [call for call in found if call.exists]


def text(spec: str) -> str:
    return f"attention a\n{SPECS[spec]}\n"


def params(call: Call, device: str) -> dict[str, torch.Tensor]:
    n_queries, n_keys = (max(call.rows),) * 2 if call.geometry == "pieces" else call.rows  # of the whole sequence
    keys = (n_keys,) if call.geometry == "packed" else (1, n_keys)
    made = {
        "sink": torch.full((HEADS,), SINK),
        "ids": torch.zeros(keys, dtype=torch.int32),
        "bias": torch.zeros(keys),
        "keep": torch.ones(keys, dtype=torch.bool),
        "pairs": torch.zeros(HEADS, n_queries, n_keys),
    }
    given = {name: x.to(device) for name, x in made.items() if f"param {name}:" in SPECS[call.spec]}
    return {name: x.requires_grad_(x.is_floating_point()) for name, x in given.items()}


def operands(call: Call, device: str) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)

    def drawn(heads: int, rows: int) -> torch.Tensor:
        shape = (rows, heads, call.D) if call.geometry == "packed" else (1, heads, rows, call.D)
        return torch.randn(shape, generator=generator).to(device, call.dtype).requires_grad_()

    n_queries, n_keys = call.rows
    return {"q": drawn(HEADS, n_queries), "k": drawn(KV_HEADS, n_keys), "v": drawn(KV_HEADS, n_keys)}


def prepared(module: Any, call: Call, device: str) -> Callable[[], dict[str, torch.Tensor]]:
    """A function that makes the call and gives out, lse, and the gradient of each operand and param by name; of a piece
    those of the operands alone. It makes no tensor on another device, so that a graph can hold it."""
    tensors, given = operands(call, device), params(call, device)
    if call.geometry == "pieces":
        return partial(piece, module, call, tensors, given)

    def ends(rows: int) -> torch.Tensor:
        return torch.tensor([0, rows] if call.geometry == "packed" else [rows], dtype=torch.int32, device=device)

    n_queries, n_keys = (ends(rows) for rows in call.rows)
    bounds = {
        "dense": {},
        "lengths": {"q_stop": n_queries, "k_stop": n_keys},
        "packed": {"cu_seqlens_q": n_queries, "cu_seqlens_k": n_keys},
    }
    ending = {"dense": "", "lengths": "_lengths", "packed": "_varlen"}
    attend = getattr(module, f"a{ending[call.geometry]}")
    learned = {name: x for name, x in (tensors | given).items() if x.requires_grad}

    def called() -> dict[str, torch.Tensor]:
        out, lse = attend(*tensors.values(), **bounds[call.geometry], **given, return_lse=True)
        grads = torch.autograd.grad(out, [*learned.values()], torch.ones_like(out))
        return {"out": out.detach(), "lse": lse.detach(), **dict(zip(learned, grads, strict=True))}

    return called


def piece(
    module: Any, call: Call, tensors: dict[str, torch.Tensor], given: dict[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    place = {"q_offset": 0, "k_offset": 0, "Sq": max(call.rows), "Sk": max(call.rows)}
    with torch.no_grad():
        out, lse = module.a_partial(*tensors.values(), **place, **given)
        d_out = torch.ones_like(out, dtype=call.dtype)
        *grads, _ = module.a_partial_backward(*tensors.values(), d_out, out, lse, **place, **given)
    return {"out": out, "lse": lse, **dict(zip(tensors, grads, strict=True))}
