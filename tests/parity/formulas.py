"""Every example's formula, written by hand in plain torch: dense, differentiable, exact in float64, without attngen.

Each function takes `q (B, Hq, Sq, D)`, `k (B, Hkv, Sk, D)`, `v (B, Hkv, Sk, Dv)`, the scale, and the file's consts and
params by name; it gives `out (B, Hq, Sq, Dv)` and `lse (B, Hq, Sq)`. Masks are built from lists and triangles rather
than from the inequalities that the files hold, so that a mistake made there is not made here again.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import torch
from torch import Tensor

Result = tuple[Tensor, Tensor]


# ---------------------------------------------------------------- what all share


def products(q: Tensor, k: Tensor) -> Tensor:
    """`q . k` of every pair, (B, Hq, Sq, Sk)."""
    return q @ heads(q, k).transpose(-1, -2)


def heads(q: Tensor, k: Tensor) -> Tensor:
    """Keys or values with one head for each query head."""
    return k.repeat_interleave(q.shape[1] // k.shape[1], dim=1) if k.shape[1] else k


def normalized(
    scores: Tensor, mask: Tensor | None, v: Tensor, extra: Tensor | None = None, keep: Tensor | None = None
) -> Result:
    """Softmax over the allowed keys; `extra` is the logit of a key without a value; `keep` multiplies the weights.

    A row without a key gives zeros. Its lse is `extra`, which gets the gradient, or -inf.
    """
    allowed = torch.ones_like(scores, dtype=torch.bool) if mask is None else mask.expand(scores.shape)
    scores = scores.masked_fill(~allowed, -math.inf)
    some = allowed.any(-1, keepdim=True)
    if scores.shape[-1] == 0:
        alone = torch.full((), -math.inf).to(scores) if extra is None else extra
        lse = alone.expand(*scores.shape[:-1], 1).squeeze(-1)
        return scores.sum(-1, keepdim=True) * v.sum(-2, keepdim=True), lse
    top = scores.detach().amax(-1, keepdim=True)
    if extra is not None:
        top = torch.maximum(top, extra.detach().expand(top.shape))
        some = torch.ones_like(some)
    top = torch.where(some, top, 0.0)
    weights = torch.exp(scores - top)
    total = weights.sum(-1, keepdim=True)
    if extra is not None:
        total = total + torch.exp(extra - top)
    safe = torch.where(some, total, 1.0)
    lse = torch.where(some, top + torch.log(safe), -math.inf)
    probabilities = weights / safe
    return (probabilities if keep is None else probabilities * keep) @ v, lse.squeeze(-1)


def lower_triangle(q: Tensor, k: Tensor) -> Tensor:
    """(Sq, Sk): the last query beside the last key, and all keys before it."""
    rows, columns = q.shape[2], k.shape[2]
    return torch.ones(rows, columns, dtype=torch.bool, device=q.device).tril(columns - rows)


def behind(q: Tensor, k: Tensor) -> Tensor:
    """(Sq, Sk): how far each key lies behind its query, where the last query stands beside the last key."""
    rows, columns = q.shape[2], k.shape[2]
    positions = torch.arange(columns - rows, columns, device=q.device)
    return positions.unsqueeze(1) - torch.arange(columns, device=q.device)


def from_lists(rows: int, columns: int, allowed: list[tuple[int, int]], device: torch.device) -> Tensor:
    mask = torch.zeros(rows, columns, dtype=torch.bool)
    for i, j in allowed:
        mask[i, j] = True
    return mask.to(device)


# ---------------------------------------------------------------- the examples


def causal(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Result:
    return normalized(products(q, k) * scale, lower_triangle(q, k), heads(q, v))


mla = causal


def alibi(q: Tensor, k: Tensor, v: Tensor, scale: float, *, slope: Tensor) -> Result:
    penalty = slope[:, None, None] * behind(q, k).abs()
    return normalized(products(q, k) * scale - penalty, lower_triangle(q, k), heads(q, v))


def windowed_alibi(q: Tensor, k: Tensor, v: Tensor, scale: float, *, slope: Tensor, cap: Tensor, window: int) -> Result:
    rows, columns = q.shape[2], k.shape[2]
    positions = [i + columns - rows for i in range(rows)]  # of the queries among the keys: the last at the last
    near = from_lists(
        rows,
        columns,
        [(i, j) for i, at in enumerate(positions) for j in range(max(0, at - window + 1), at + 1)],
        q.device,
    )
    behind = torch.tensor(positions, device=q.device)[:, None] - torch.arange(columns, device=q.device)
    scores = cap * torch.tanh(products(q, k) * scale / cap) - slope[:, None, None] * behind
    return normalized(scores, near, heads(q, v))


def sliding_window(q: Tensor, k: Tensor, v: Tensor, scale: float, *, window: int) -> Result:
    band = lower_triangle(q, k) & torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).triu(
        k.shape[2] - q.shape[2] - window + 1
    )
    return normalized(products(q, k) * scale, band, heads(q, v))


def softcap(q: Tensor, k: Tensor, v: Tensor, scale: float, *, cap: float) -> Result:
    return normalized(torch.tanh(products(q, k) * scale / cap) * cap, lower_triangle(q, k), heads(q, v))


def window_global(q: Tensor, k: Tensor, v: Tensor, scale: float, *, radius: int, globals: int) -> Result:
    mask = torch.zeros(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device)
    mask[:globals] = True
    mask[:, :globals] = True
    for i in range(q.shape[2]):
        mask[i, max(0, i - radius) : i + radius + 1] = True
    return normalized(products(q, k) * scale, mask, heads(q, v))


def block_sparse(q: Tensor, k: Tensor, v: Tensor, scale: float, *, block: int, chosen: Tensor) -> Result:
    mask = torch.zeros(*q.shape[:3], k.shape[2], dtype=torch.bool, device=q.device)
    shared = q.shape[1] // k.shape[1]
    for b, h, i in itertools.product(range(q.shape[0]), range(q.shape[1]), range(chosen.shape[2])):
        for j in chosen[b, h // shared, i].tolist():
            if j >= 0:
                mask[b, h, i * block : (i + 1) * block, j * block : (j + 1) * block] = True
    return normalized(products(q, k) * scale, mask & lower_triangle(q, k), heads(q, v))


def rollouts(q: Tensor, k: Tensor, v: Tensor, scale: float, *, first: Tensor, last: Tensor) -> Result:
    size = q.shape[2]
    mask = torch.zeros(q.shape[0], 1, size, size, dtype=torch.bool, device=q.device)
    for b, i in itertools.product(range(q.shape[0]), range(size)):
        branches = torch.arange(int(first[b].min()), int(last[b].max()) + 1, device=q.device)
        own = branches == first[b, i]
        for j in range(i + 1):
            mask[b, 0, i, j] = bool((own & (branches >= first[b, j]) & (branches < last[b, j])).any())
    return normalized(products(q, k) * scale, mask, heads(q, v))


def neighbourhood_2d(q: Tensor, k: Tensor, v: Tensor, scale: float, *, x: Tensor, y: Tensor, radius: int) -> Result:
    places = torch.stack([x, y]).double()
    mask = (places[:, :, None] - places[:, None, :]).abs().amax(0) <= radius
    return normalized(products(q, k) * scale, mask, heads(q, v))


def prefix_lm(q: Tensor, k: Tensor, v: Tensor, scale: float, *, prefix: int) -> Result:
    mask = lower_triangle(q, k)
    mask[:, : int(prefix)] = True
    return normalized(products(q, k) * scale, mask, heads(q, v))


def documents(q: Tensor, k: Tensor, v: Tensor, scale: float, *, ids: Tensor) -> Result:
    same = torch.stack([torch.stack([row == token for token in row]) for row in ids])
    return normalized(products(q, k) * scale, lower_triangle(q, k) & same[:, None], heads(q, v))


def chunked(q: Tensor, k: Tensor, v: Tensor, scale: float, *, chunk: int) -> Result:
    rows, columns = q.shape[2], k.shape[2]
    allowed: list[tuple[int, int]] = []
    for i in range(rows):
        position = i + columns - rows
        if position >= 0:
            allowed += [(i, j) for j in range(position - position % chunk, position + 1)]
    return normalized(products(q, k) * scale, from_lists(rows, columns, allowed, q.device), heads(q, v))


def dilated(q: Tensor, k: Tensor, v: Tensor, scale: float, *, dilation: int) -> Result:
    rows, columns = q.shape[2], k.shape[2]
    allowed = [(i, j) for i in range(rows) for j in range(i + columns - rows, -1, -dilation)]
    return normalized(products(q, k) * scale, from_lists(rows, columns, allowed, q.device), heads(q, v))


def relative_bias(q: Tensor, k: Tensor, v: Tensor, scale: float, *, table: Tensor, radius: int) -> Result:
    bias = table[:, behind(q, k).clamp(-radius, radius) + radius]
    return normalized(products(q, k) * scale + bias, None, heads(q, v))


def t5_bias(q: Tensor, k: Tensor, v: Tensor, scale: float, *, table: Tensor) -> Result:
    offset = -behind(q, k)
    far = offset.abs().clamp(max=128)
    # The bucket of a far offset r is the greatest 8 + i with 8 * 16 ** (i / 8) <= r; in integers,
    # r ** 8 >= 16**i * 8**8.
    logarithmic = 7 + sum((far**8 >= 16**i * 8**8).long() for i in range(8))
    bucket = torch.where(offset.abs() < 8, offset.abs(), logarithmic) + 16 * (offset > 0)
    return normalized(products(q, k) + table[bucket].permute(2, 0, 1), None, heads(q, v))


def full_bias(q: Tensor, k: Tensor, v: Tensor, scale: float, *, bias: Tensor) -> Result:
    return normalized(products(q, k) * scale + bias, None, heads(q, v))


def sink(q: Tensor, k: Tensor, v: Tensor, scale: float, *, sink: Tensor) -> Result:
    return normalized(products(q, k) * scale, lower_triangle(q, k), heads(q, v), extra=sink[:, None, None])


def softmax1(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Result:
    nought = torch.zeros(1, 1, 1, dtype=q.dtype, device=q.device)
    return normalized(products(q, k) * scale, lower_triangle(q, k), heads(q, v), extra=nought)


def sigmoid(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Result:
    weights = torch.sigmoid(products(q, k) * scale - math.log(max(k.shape[2], 1)))
    return weights @ heads(q, v), unit_denominator(weights)


def unit_denominator(weights: Tensor) -> Tensor:
    """The lse of an attention that divides by 1, for every row."""
    return 0.0 * weights.sum(-1)


def natten_2d(q: Tensor, k: Tensor, v: Tensor, scale: float, *, bias: Tensor, width: int, radius: int) -> Result:
    pixels = q.shape[2]
    height = pixels // width
    mask = torch.zeros(pixels, pixels, dtype=torch.bool)
    reach = torch.zeros(2, pixels, pixels, dtype=torch.long)
    for y in range(height):
        for x in range(width):
            top = min(max(y - radius, 0), height - 2 * radius - 1)
            left = min(max(x - radius, 0), width - 2 * radius - 1)
            for row in range(top, top + 2 * radius + 1):
                for column in range(left, left + 2 * radius + 1):
                    pair = y * width + x, row * width + column
                    mask[pair] = True
                    reach[(0, *pair)] = row - y + 2 * radius
                    reach[(1, *pair)] = column - x + 2 * radius
    mask, reach = mask.to(q.device), reach.to(q.device)
    return normalized(products(q, k) * scale + bias[:, reach[0], reach[1]], mask, heads(q, v))


def dropout(q: Tensor, k: Tensor, v: Tensor, scale: float, *, p: float, dropout_seed: int) -> Result:
    keep = philox_keep(q.shape[0], q.shape[1], q.shape[2], k.shape[2], float(p), dropout_seed)
    kept = torch.from_numpy(keep).to(q) / (1.0 - float(np.float32(p)))
    return normalized(products(q, k) * scale, lower_triangle(q, k), heads(q, v), keep=kept)


def cross_attention(q: Tensor, k: Tensor, v: Tensor, scale: float, *, lengths: Tensor) -> Result:
    mask = torch.zeros(k.shape[0], k.shape[2], dtype=torch.bool, device=q.device)
    for row, length in zip(mask, lengths.tolist(), strict=True):
        row[:length] = True
    return normalized(products(q, k) * scale, mask[:, None, None], heads(q, v))


def custom_normalizer(q: Tensor, k: Tensor, v: Tensor, scale: float, *, temperature: Tensor, escape: Tensor) -> Result:
    t = temperature[:, None, None]
    return normalized(products(q, k) * scale / t, lower_triangle(q, k), heads(q, v), extra=escape[:, None, None] / t)


# ---------------------------------------------------------------- dropout's random bits


def philox(key: tuple[int, int], counter: tuple[np.ndarray, ...]) -> np.ndarray:
    """The first word of Philox4x32-10 (Salmon et al., SC 2011), of four uint64 arrays that hold 32-bit counters."""
    word = np.uint64(0xFFFFFFFF)
    c0, c1, c2, c3 = (c.astype(np.uint64) for c in counter)
    k0, k1 = key
    for _ in range(10):
        low = c0 * np.uint64(0xD2511F53)
        high = c2 * np.uint64(0xCD9E8D57)
        c0, c1, c2, c3 = (
            (high >> np.uint64(32)) ^ c1 ^ np.uint64(k0),
            high & word,
            (low >> np.uint64(32)) ^ c3 ^ np.uint64(k1),
            low & word,
        )
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return c0


def philox_keep(batch: int, heads: int, rows: int, columns: int, p: float, seed: int) -> np.ndarray:
    """(B, Hq, Sq, Sk) of bools: which weights survive dropout of probability `p`."""
    b, h, q, k = np.meshgrid(*(np.arange(n, dtype=np.uint64) for n in (batch, heads, rows, columns)), indexing="ij")
    bits = philox((seed & 0xFFFFFFFF, seed >> 32), (k, q, h, b))
    return bits >= np.uint64(int(np.float64(np.float32(p)) * 2.0**32))
