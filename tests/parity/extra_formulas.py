"""The formulas of the specs in `extras.py`: dense, in plain torch, by hand, as `formulas.py` has the examples'."""

from __future__ import annotations

import math

import torch
from parity import formulas
from parity.formulas import Result, heads, normalized, products, unit_denominator
from torch import Tensor


def grid(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    """Positions of queries (Sq, 1) and keys (1, Sk)."""
    return torch.arange(q.shape[2], device=q.device)[:, None], torch.arange(k.shape[2], device=q.device)[None]


# ---------------------------------------------------------------- masks


def runtime_window(q: Tensor, k: Tensor, v: Tensor, scale: float, *, window: int) -> Result:
    return formulas.sliding_window(q, k, v, scale, window=int(window))


def runtime_chunk(q: Tensor, k: Tensor, v: Tensor, scale: float, *, c: int) -> Result:
    return formulas.chunked(q, k, v, scale, chunk=int(c))


def two_sided(q: Tensor, k: Tensor, v: Tensor, scale: float, *, ahead: int) -> Result:
    mask = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).triu(-3).tril(int(ahead))
    return normalized(products(q, k) * scale, mask, heads(q, v))


def time_window(
    q: Tensor, k: Tensor, v: Tensor, scale: float, *, time_q: Tensor, time_k: Tensor, horizon: float, rate: Tensor
) -> Result:
    age = time_q[:, None, :, None] - time_k[:, None, None, :]
    return normalized(products(q, k) * scale - rate[:, None, None] * age, (age >= 0) & (age <= horizon), heads(q, v))


def logic(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Result:
    i, j = grid(q, k)
    refused = torch.logical_or(j > i, torch.remainder(i - j, 3) == 1)
    return normalized(products(q, k) * scale, torch.logical_or(~refused, j == 0), heads(q, v))


def int_and_bool(
    q: Tensor, k: Tensor, v: Tensor, scale: float, *, offset: int, forwards: bool, valid: Tensor
) -> Result:
    i, j = grid(q, k)
    side = j >= i - int(offset) if bool(forwards) else j <= i + int(offset)
    return normalized(products(q, k) * scale, side & valid[:, None, None, :], heads(q, v))


def window_per_head(q: Tensor, k: Tensor, v: Tensor, scale: float, *, window: Tensor) -> Result:
    gap = formulas.behind(q, k)
    mask = (gap >= 0) & (gap <= window[:, None, None])
    return normalized(products(q, k) * scale, mask, heads(q, v))


def two_documents(q: Tensor, k: Tensor, v: Tensor, scale: float, *, doc_q: Tensor, doc_k: Tensor) -> Result:
    mask = (doc_q[:, None, :, None] == doc_k[:, None, None, :]) | (doc_k == 0)[:, None, None, :]
    return normalized(products(q, k) * scale, mask, heads(q, v))


def event_order(q: Tensor, k: Tensor, v: Tensor, scale: float, *, seen: Tensor, born: Tensor) -> Result:
    mask = born[:, None, None, :] <= seen[:, None, :, None]
    return normalized(products(q, k) * scale, mask, heads(q, v))


def causal_lengths(q: Tensor, k: Tensor, v: Tensor, scale: float, *, n: Tensor) -> Result:
    mask = (formulas.behind(q, k) >= 0) & (grid(q, k)[1] < n[:, None, None, None])
    return normalized(products(q, k) * scale, mask, heads(q, v))


def log_distance(q: Tensor, k: Tensor, v: Tensor, scale: float, *, g: Tensor) -> Result:
    i, j = grid(q, k)
    score = products(q, k) * scale
    score = score - g[:, None, None] * torch.log1p((i - j).abs().to(score.dtype))
    return normalized(score, formulas.behind(q, k) >= 0, heads(q, v))


def packed_bias(
    q: Tensor, k: Tensor, v: Tensor, scale: float, *, doc: Tensor, shared: Tensor, offset: Tensor
) -> Result:
    i, j = grid(q, k)
    inside = (i - j >= 0) & (i - j < offset.shape[1])
    near = torch.where(inside, offset[:, (i - j).clamp(0, offset.shape[1] - 1)], torch.zeros_like(offset[0, 0]))
    same = doc[:, None, :, None] == doc[:, None, None, :]
    return normalized(products(q, k) * scale + shared + near, same & (j <= i), heads(q, v))


def block_bools(q: Tensor, k: Tensor, v: Tensor, scale: float, *, on: Tensor) -> Result:
    i, j = grid(q, k)
    spread = on.repeat_interleave(8, 0).repeat_interleave(8, 1)[: q.shape[2], : k.shape[2]]
    return normalized(products(q, k) * scale, spread | ((j <= i) & ~on[0, 1]), heads(q, v))


def nothing(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Result:
    return normalized(products(q, k) * scale, torch.zeros(1, 1, dtype=torch.bool, device=q.device), heads(q, v))


def rounding(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Result:
    rows, columns = q.shape[2], k.shape[2]
    allowed = [(i, j) for i in range(rows) for j in range(columns) if math.floor(i * 0.4375) <= math.ceil(j * 0.375)]
    i, j = grid(q, k)
    gap = (i - j).to(q)
    bump = 0.1 * (j % 2 == 0).to(q) + 0.2 * torch.sign(gap) + torch.trunc(gap / 4) / 16
    scores = products(q, k) / math.sqrt(q.shape[3]) + bump + v.shape[3] / 64 + q.shape[0] / 8
    return normalized(scores, formulas.from_lists(rows, columns, allowed, q.device), heads(q, v))


# ---------------------------------------------------------------- scores


def definitions(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Result:
    i, j = grid(q, k)
    return normalized(products(q, k) * scale - 0.3 * torch.sqrt(1.0 + (i - j).abs().to(q)), None, heads(q, v))


def kinks(q: Tensor, k: Tensor, v: Tensor, scale: float, *, bias: Tensor) -> Result:
    i, j = grid(q, k)
    x = products(q, k) * scale
    low = torch.minimum(x, torch.full_like(x, 0.8)) + torch.clamp(0.5 * x, -0.4, 0.6)
    scores = low - (x - bias[:, None, None]).abs() + torch.where((i + j) % 2 == 0, 0.7 * x, bias[:, None, None] * 2)
    return normalized(scores, None, heads(q, v))


def transcendental(q: Tensor, k: Tensor, v: Tensor, scale: float, *, amplitude: Tensor, period: Tensor) -> Result:
    i, j = grid(q, k)
    x = products(q, k) * scale
    wave = amplitude[:, None, None] * torch.cos(2 * math.pi * (i - j).to(q) / period[:, None, None])
    scores = torch.log1p(torch.exp(x)) + x / torch.sqrt(1 + x**2) + torch.erf(x) * 0.5 + x * torch.sigmoid(x) + wave
    return normalized(scores + torch.log2(1.0 + x**2) + 0.3 * torch.sin(x), None, heads(q, v))


def scalars(q: Tensor, k: Tensor, v: Tensor, scale: float, *, gain: Tensor, slope: Tensor, n: int) -> Result:
    i, j = grid(q, k)
    return normalized(products(q, k) * scale * gain - slope * (i - j).abs() / n, None, heads(q, v))


def half_tables(q: Tensor, k: Tensor, v: Tensor, scale: float, *, near: Tensor, far: Tensor) -> Result:
    i, j = grid(q, k)
    index = (i - j).clamp(-4, 4) + 4
    return normalized(products(q, k) * scale + near[:, index] + far[index].permute(2, 0, 1), None, heads(q, v))


def scatter(q: Tensor, k: Tensor, v: Tensor, scale: float, *, table: Tensor) -> Result:
    i, j = grid(q, k)
    return normalized(products(q, k) * scale + table[:, (7 * i + 3 * j) % table.shape[1]], None, heads(q, v))


def kinds(q: Tensor, k: Tensor, v: Tensor, scale: float, *, kind: Tensor, weight: Tensor, pair: Tensor) -> Result:
    column = weight[kind.long()].permute(0, 2, 1)[:, :, None, :]
    both = pair[kind[:, : q.shape[2], None].long(), kind[:, None, :].long()][:, None]
    return normalized(products(q, k) * scale + column + both, None, heads(q, v))


def rows_and_columns(q: Tensor, k: Tensor, v: Tensor, scale: float, *, t: Tensor, u: Tensor, w: Tensor) -> Result:
    scores = products(q, k) * scale * t[:, None, :, None] + u[:, :, None, :] + w[None, :, :, None] * t[:, None, :, None]
    return normalized(scores, formulas.lower_triangle(q, k), heads(q, v))


def shared_bias(
    q: Tensor, k: Tensor, v: Tensor, scale: float, *, everyone: Tensor, each: Tensor, group: Tensor
) -> Result:
    gain = group.repeat_interleave(q.shape[1] // k.shape[1])[:, None, None]
    return normalized(products(q, k) * scale * gain + everyone + each, None, heads(q, v))


def small_network(
    q: Tensor, k: Tensor, v: Tensor, scale: float, *, width: Tensor, first: Tensor, last: Tensor
) -> Result:
    i, j = grid(q, k)
    far = torch.log1p(width * (i - j).clamp(min=0)) / torch.log1p(width * i.clamp(min=4))
    hidden = torch.stack([torch.relu(first[0] * far + 0.1), torch.tanh(first[1] * far)])
    bias = torch.einsum("hn,nij->hij", last[:, :2], hidden) + first[2]
    return normalized(products(q, k) * scale + bias, formulas.lower_triangle(q, k), heads(q, v))


def within_a_table(q: Tensor, k: Tensor, v: Tensor, scale: float, *, table: Tensor) -> Result:
    bias = torch.zeros(q.shape[1], q.shape[2], k.shape[2], dtype=q.dtype, device=q.device)
    for n in range(table.shape[1]):
        on = torch.zeros_like(bias[0])
        for i in range(q.shape[2]):
            if 0 <= i - n < k.shape[2]:
                on[i, i - n] = 1
        bias = bias + table[:, n, None, None] * on
    return normalized(products(q, k) * scale + bias, None, heads(q, v))


def minus_infinity(q: Tensor, k: Tensor, v: Tensor, scale: float, *, valid: Tensor) -> Result:
    return normalized(products(q, k) * scale, valid[:, None, :, :], heads(q, v))


def named_pairs(q: Tensor, k: Tensor, v: Tensor, scale: float, *, seen: Tensor) -> Result:
    return normalized(products(q, k) * scale, seen, heads(q, v))


def named_pairs_by_head(q: Tensor, k: Tensor, v: Tensor, scale: float, *, bad: Tensor, near: Tensor) -> Result:
    mask = formulas.lower_triangle(q, k) & (near.transpose(1, 2) | ~bad)
    return normalized(products(q, k) * scale, mask, heads(q, v))


# ---------------------------------------------------------------- normalizers


def relu_squared(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Result:
    mask = formulas.lower_triangle(q, k)
    weights = torch.relu(products(q, k) * scale).square() * mask
    return weights @ heads(q, v), unit_denominator(weights)


def relu_mean(q: Tensor, k: Tensor, v: Tensor, scale: float, *, floor_: Tensor) -> Result:
    mask = formulas.lower_triangle(q, k)
    weights = torch.relu(products(q, k) * scale) * mask
    total = weights.sum(-1, keepdim=True) + floor_[:, None, None] ** 2
    return weights / total @ heads(q, v), torch.log(total.squeeze(-1))


def relu_sum(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Result:
    weights = torch.relu(products(q, k) * scale - 0.6)
    total = weights.sum(-1, keepdim=True)
    safe = torch.where(total > 0, total, 1.0)
    lse = torch.where(total > 0, torch.log(safe), -math.inf).squeeze(-1)
    return weights / safe @ heads(q, v), lse


def base_two(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Result:
    return normalized(products(q, k) * scale * math.log(2.0), formulas.lower_triangle(q, k), heads(q, v))


def learned_sink(
    q: Tensor, k: Tensor, v: Tensor, scale: float, *, level: Tensor, gain: Tensor, lengths: Tensor
) -> Result:
    mask = torch.arange(k.shape[2], device=q.device) < lengths[:, None]
    extra = (level * gain)[:, :, None, None]
    return normalized(products(q, k) * scale, mask[:, None, None], heads(q, v), extra=extra)


def sigmoid_masked(q: Tensor, k: Tensor, v: Tensor, scale: float, *, offset: Tensor) -> Result:
    mask = formulas.lower_triangle(q, k)
    weights = torch.sigmoid(products(q, k) * scale + offset[:, None, None]) * mask
    return weights @ heads(q, v), unit_denominator(weights)


def sigmoid_infinite(q: Tensor, k: Tensor, v: Tensor, scale: float, *, valid: Tensor) -> Result:
    weights = torch.sigmoid(products(q, k) * scale) * valid[:, None, :, :]
    return weights @ heads(q, v), unit_denominator(weights)


def dropout_everywhere(
    q: Tensor, k: Tensor, v: Tensor, scale: float, *, sink: Tensor, p: float, dropout_seed: int
) -> Result:
    half = torch.tensor(float(p) / 2, dtype=torch.float32).item()
    keep = formulas.philox_keep(q.shape[0], q.shape[1], q.shape[2], k.shape[2], half, dropout_seed)
    kept = torch.from_numpy(keep).to(q) / (1.0 - half)
    return normalized(products(q, k) * scale, None, heads(q, v), extra=sink[:, None, None], keep=kept)


def sigmoid_dropout(q: Tensor, k: Tensor, v: Tensor, scale: float, *, dropout_seed: int) -> Result:
    keep = formulas.philox_keep(q.shape[0], q.shape[1], q.shape[2], k.shape[2], 0.25, dropout_seed)
    weights = torch.sigmoid(products(q, k) * scale - 1.0)
    return (weights * torch.from_numpy(keep).to(q) / 0.75) @ heads(q, v), unit_denominator(weights)


def content_buckets(q: Tensor, k: Tensor, v: Tensor, scale: float, *, table: Tensor, kind: Tensor) -> Result:
    found = products(q, k)
    bucket = (torch.floor(found * scale * 4) + 8).clamp(0, 15).long()
    level = kind.to(found)[found.abs().long().clamp(max=39)]
    at_head = torch.arange(q.shape[1], device=q.device)[:, None, None]
    return normalized(found * scale + table[at_head, bucket] + level / 4, formulas.lower_triangle(q, k), heads(q, v))


def content_by_batch(q: Tensor, k: Tensor, v: Tensor, scale: float, *, table: Tensor) -> Result:
    found = products(q, k) * scale
    cell = torch.floor(found).long() + 1
    inside = (cell >= 0) & (cell < 3)
    at_batch = torch.arange(q.shape[0], device=q.device)[:, None, None, None]
    return normalized(found + torch.where(inside, table[at_batch, cell.clamp(0, 2)], 0.0), None, heads(q, v))


def rounded_distance(q: Tensor, k: Tensor, v: Tensor, scale: float, *, table: Tensor) -> Result:
    i, j = grid(q, k)
    gap = (i - j).abs().double()
    near = torch.floor(gap / 2.5).long().clamp(max=20)
    far = (20 + torch.ceil(torch.sqrt(gap + 0.5)).long()).clamp(max=39)
    side = (39 * torch.sigmoid((j - i).clamp(-40, 40).double() / 8)).long()
    return normalized(products(q, k) * scale + table[:, near] + table[:, far] + table[:, side], None, heads(q, v))
