"""Is a contender right? Dense attention in float32 for a few heads, gradients included, against what it gives.

Takes a cell's inputs and a callable; gives relative errors, `||x - ref|| / ||ref||`, for out, dq, dk, dv, and the
largest absolute error of the log-sum-exp. The dense form is this file's own: autograd, over the rows in blocks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import saved  # noqa: F401  (puts this checkout's attngen on the path)
import torch
from cells import Cell, Inputs, Settings, check_gain, mask_mod, score_mod
from torch import Tensor

from attngen.bench import verdict

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Dense:
    """One head's truth, float32."""

    out: Tensor
    lse: Tensor
    dq: Tensor
    dk: Tensor
    dv: Tensor


def dense(cell: Cell, settings: Settings, inputs: Inputs, b: int, h: int, *, rows: int = 2048) -> Dense:
    """Attention of head h of batch row b, all pairs, `rows` queries at a time; N² never stands in memory at once."""
    q, k, v = (x.detach()[b, h].float().requires_grad_() for x in inputs.qkv)
    grad_out = inputs.grad_out[b, h].float()
    change = score_mod(cell.variant, settings, inputs.params)
    allowed = mask_mod(cell.variant, settings, inputs.params)
    positions = torch.arange(cell.N, device=q.device)
    outs: list[Tensor] = []
    lses: list[Tensor] = []
    for start in range(0, cell.N, rows):
        qi, ki = positions[start : start + rows, None], positions[None, :]
        score = (q[start : start + rows] @ k.T) / math.sqrt(cell.D)
        if change is not None:
            score = change(score, b, h, qi, ki)
        if allowed is not None:
            score = score.masked_fill(~allowed(b, h, qi, ki), -math.inf)
        out = torch.softmax(score, dim=-1) @ v
        out.backward(grad_out[start : start + rows])
        outs.append(out.detach())
        lses.append(torch.logsumexp(score.detach(), dim=-1))
    assert q.grad is not None and k.grad is not None and v.grad is not None
    return Dense(torch.cat(outs), torch.cat(lses), q.grad, k.grad, v.grad)


def heads(cell: Cell) -> list[tuple[int, int]]:
    """The (b, h) that are checked: the ends of both, and the middle where a dense head is cheap."""
    picked = [(0, 0), (cell.B - 1, cell.H - 1)]
    if cell.N <= 4096:
        picked += [(0, cell.H - 1), (cell.B - 1, cell.H // 2)]
    return list(dict.fromkeys(picked))


def poison(like: Tensor, count: int = 6) -> None:
    """Fills what the allocator will hand out next with nan, so that an output never written shows."""
    blocks = [torch.full_like(like, math.nan, requires_grad=False) for _ in range(count)]
    del blocks


def check_inputs(cell: Cell, inputs: Inputs) -> Inputs:
    gain = check_gain(cell.variant)
    return inputs if gain == 1.0 else inputs.scaled(gain)


def truth(cell: Cell, settings: Settings, inputs: Inputs) -> dict[tuple[int, int], Dense]:
    """The dense form of every checked head, on inputs as `check_inputs` gives them; all contenders share it."""
    return {(b, h): dense(cell, settings, inputs, b, h) for b, h in heads(cell)}


def errors(
    inputs: Inputs,
    expected: Mapping[tuple[int, int], Dense],
    attend: Attend,
    *,
    backward: bool,
    lse: Attend | None = None,
) -> dict[str, float]:
    """The worst error over the checked heads, by name; nan or inf where an element of the whole tensor isn't finite."""
    poison(inputs.q)
    out = attend(*inputs.qkv)
    found = {"out": out.detach()}
    if backward:
        poison(inputs.q)
        found |= dict(zip(("dq", "dk", "dv"), torch.autograd.grad(out, inputs.qkv, inputs.grad_out), strict=True))
    worst = {
        name: verdict.error(x, [(x[b, h], getattr(ref, name)) for (b, h), ref in expected.items()])
        for name, x in found.items()
    }
    if lse is not None:
        sums = lse(*inputs.qkv).detach()
        finite = bool(torch.isfinite(sums).all())
        gaps = [float((sums[b, h] - ref.lse).abs().max()) for (b, h), ref in expected.items()]
        worst["lse"] = max(gaps) if finite else math.inf
    return worst
