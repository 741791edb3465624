"""Specs written to language.md alone, none of which an example or the Pallas target was written for, with formulas by
hand in plain torch. Each mixes features that no other spec has together.
"""

from __future__ import annotations

import math

import torch
from parity import formulas
from parity.extra_formulas import grid
from parity.extras import bools, extra
from parity.formulas import Result, heads, normalized, products, unit_denominator
from parity.variants import Draw, Value, Variant
from torch import Tensor


def events(d: Draw) -> dict[str, Value]:
    c = d.case
    return {
        "at_q": d.normal(c.batch, c.rows),
        "at_k": d.normal(c.batch, c.columns),
        "omega": d.uniform(0.2, 2.0, c.heads),
        "decay": d.uniform(0.1, 0.5),
    }


def rotation(
    q: Tensor, k: Tensor, v: Tensor, scale: float, *, at_q: Tensor, at_k: Tensor, omega: Tensor, decay: Tensor
) -> Result:
    gap = at_q[:, None, :, None] - at_k[:, None, None, :]
    scores = products(q, k) * scale * torch.cos(omega[:, None, None] * gap) - decay * torch.sqrt(1 + gap * gap)
    return normalized(scores, None, heads(q, v))


def group_windows(q: Tensor, k: Tensor, v: Tensor, scale: float, *, reach: Tensor, tilt: Tensor) -> Result:
    share = q.shape[1] // k.shape[1]
    i, j = grid(q, k)
    near = (i - j).abs() <= reach.repeat_interleave(share)[:, None, None]
    tilts = tilt.repeat_interleave(share)[:, None, None]
    return normalized(products(q, k) * scale + tilts * (i + 2 * j) / 64, near, heads(q, v))


def plane(q: Tensor, k: Tensor, v: Tensor, scale: float, *, place: Tensor, rate: Tensor) -> Result:
    apart = place[:, :, None] - place[:, None, :]
    return normalized(
        products(q, k) * scale - rate[:, None, None] * (1 + apart.square().sum(-1)).sqrt()[:, None], None, heads(q, v)
    )


def log_buckets(q: Tensor, k: Tensor, v: Tensor, scale: float, *, table: Tensor) -> Result:
    behind = formulas.behind(q, k)
    bucket = torch.tensor([[abs(int(x)).bit_length() for x in row] for row in behind.tolist()], dtype=torch.long)
    bucket = bucket.reshape(behind.shape).clamp(max=5) + 6 * (behind < 0)
    each = table.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
    return normalized(products(q, k) * scale + each[bucket].permute(2, 0, 1), None, heads(q, v))


def typed_pairs(
    q: Tensor, k: Tensor, v: Tensor, scale: float, *, kind_q: Tensor, kind_k: Tensor, table: Tensor, on: Tensor
) -> Result:
    rows, columns, batch = kind_q.long(), kind_k.long(), torch.arange(q.shape[0])
    bias = table[batch[:, None, None], rows[:, :, None], columns[:, None, :]]
    allowed = on[:, columns].transpose(0, 1)[:, :, None, :]
    return normalized(products(q, k) * scale + bias[:, None], allowed, heads(q, v))


def soft_sink(
    q: Tensor, k: Tensor, v: Tensor, scale: float, *, level: Tensor, window: int, share: float, dropout_seed: int
) -> Result:
    behind = formulas.behind(q, k)
    mask = (behind >= 0) & (behind < int(window))
    drop = torch.tensor(float(share) * 0.5, dtype=torch.float32).item()
    keep = formulas.philox_keep(q.shape[0], q.shape[1], q.shape[2], k.shape[2], drop, dropout_seed)
    escape = torch.nn.functional.softplus(level)[:, :, None, None]
    kept = torch.from_numpy(keep).to(q) / (1 - drop)
    return normalized(products(q, k) / math.sqrt(q.shape[3]), mask, heads(q, v), extra=escape, keep=kept)


def sharp(q: Tensor, k: Tensor, v: Tensor, scale: float, *, gain: Tensor, rest: Tensor) -> Result:
    powers = products(q, k) * scale * gain[:, :, None, None] * math.log(2)
    return normalized(powers, formulas.lower_triangle(q, k), heads(q, v), extra=rest.log()[:, None, None])


def quadratic(q: Tensor, k: Tensor, v: Tensor, scale: float, *, add: Tensor, blocked: Tensor, across: Tensor) -> Result:
    scores = products(q, k) * scale + across.mT.repeat_interleave(q.shape[1] // k.shape[1], dim=0)
    weights = (torch.relu(scores) + 0.125) ** 2 * ~blocked[:, None]
    total = weights.sum(-1, keepdim=True) + add.exp()
    lse = torch.where((~blocked).any(-1)[:, None], torch.log(total.squeeze(-1)), -math.inf)
    return weights / total @ heads(q, v), lse


def patches(q: Tensor, k: Tensor, v: Tensor, scale: float, *, c: int, power: int, gate: Tensor) -> Result:
    i, j = grid(q, k)
    same = torch.div(i, c, rounding_mode="floor") == torch.div(j, c, rounding_mode="floor")
    band = (i - 2 <= j) & (j <= i) | (j >= 20) & (j < 24)
    mask = (~same | (j % 2 == 0)) & band | (j == 0)
    x = products(q, k) * scale
    bent = torch.where((i + j) % 3 == 0, x, x.abs() ** int(power) * x.sign() ** int(power))
    weights = torch.sigmoid(bent * gate[:, None, :, None] - math.log(8)) * mask
    return weights @ heads(q, v), unit_denominator(weights)


def staircase(q: Tensor, k: Tensor, v: Tensor, scale: float, *, last: Tensor, first: Tensor, deep: bool) -> Result:
    i, j = grid(q, k)
    mask = (j <= last[:, None, :, None]) & (j >= first[:, :, None, None]) & ((3 * j <= 2 * i + 5) | bool(deep))
    x = products(q, k) * scale
    return normalized(x + torch.log1p(x.square()) - torch.clamp(x, -0.25, 2.0), mask, heads(q, v))


def votes(q: Tensor, k: Tensor, v: Tensor, scale: float, *, red: Tensor, blue: Tensor, strict: bool) -> Result:
    i, j = grid(q, k)
    rows, columns = red[:, None, :, None], blue[:, None, None, :]
    agree = torch.where(rows, columns, ~columns & (j % 2 == 0))
    mask = torch.where((i > j).expand(agree.shape), rows == columns, agree) if bool(strict) else rows != columns
    return normalized(products(q, k) * scale - (rows & columns).to(q) * 0.5, mask, heads(q, v))


UNSEEN: tuple[Variant, ...] = (
    extra(
        "rotation",
        """
param at_q: f32[B, Sq]
param at_k: f32[B, Sk]
param omega: f32[Hq] where omega > 0
param decay: f32 where decay >= 0
let gap = at_q[b, q] - at_k[b, k]
score = qk * scale * cos(omega[h] * gap) - decay * sqrt(1 + gap ** 2)
""",
        rotation,
        events,
    ),
    extra(
        "group_windows",
        """
param reach: int[Hkv] where reach >= 0
param tilt:  f32[Hkv]
score = qk * scale + tilt[hkv] * (q + 2 * k) / 64
mask  = not abs(q - k) > reach[hkv]
""",
        group_windows,
        lambda d: {"reach": d.ints(0, 12, d.case.kv_heads), "tilt": d.normal(d.case.kv_heads)},
    ),
    extra(
        "plane",
        """
assume Sq == Sk
param place: f32[B, Sk, 2]
param rate:  f32[Hq]
let dx = place[b, q, 0] - place[b, k, 0]
let dy = place[b, q, 1] - place[b, k, 1]
score = qk * scale - rate[h] * sqrt(1 + dx ** 2 + dy ** 2)
""",
        plane,
        lambda d: {"place": d.normal(d.case.batch, d.case.columns, 2), "rate": d.uniform(0.1, 0.5, d.case.heads)},
        square=True,
    ),
    extra(
        "log_buckets",
        """
const per_side = 6
const both = 2 * per_side
param table: f16[both, Hkv]
let behind = q + Sk - Sq - k
let bucket = min(floor(log2(abs(behind) + 0.5) + 1), per_side - 1)
score = qk * scale + table[max(bucket, 0) + (per_side if behind < 0 else 0), hkv]
""",
        log_buckets,
        lambda d: {"table": d.normal(12, d.case.kv_heads).half()},
    ),
    extra(
        "typed_pairs",
        """
param kind_q: int[B, Sq]
param kind_k: int[B, Sk]
param table:  f32[B, n, n]
param on:     bool[Hq, n]
score = qk * scale + table[b, kind_q[b, q], kind_k[b, k]]
mask  = on[h, kind_k[b, k]]
""",
        typed_pairs,
        lambda d: {
            "kind_q": d.ints(0, 5, d.case.batch, d.case.rows),
            "kind_k": d.ints(0, 5, d.case.batch, d.case.columns),
            "table": d.normal(d.case.batch, 5, 5),
            "on": bools(d, d.case.heads, 5),
        },
    ),
    extra(
        "soft_sink",
        """
param level:  f32[B, Hq]
param window: int where window >= 1
param share:  f32 where 0 <= share <= 1
let softplus(x) = max(x, 0.0) + log(1.0 + exp(-abs(x)))
score = qk * rsqrt(D)
mask  = sliding_window(window)
normalizer = softmax(sink = softplus(level[b, h]))
dropout = share * 0.5
""",
        soft_sink,
        lambda d: {"level": d.normal(d.case.batch, d.case.heads), "window": 7, "share": 0.5},
        dropout=True,
    ),
    extra(
        "sharp",
        """
param gain: f32[B, Hq] where gain > 0
param rest: f32[Hq] where rest > 0
normalizer sharpened(g, e) {
    weight(s)     = exp2(g * s)
    denominator   = sum + e
    shift         = max
    weight(s, m)  = exp2(g * (s - m))
    rescale(m, n) = exp2(g * (m - n))
}
mask = causal
normalizer = sharpened(g = gain[b, h], e = rest[h])
""",
        sharp,
        lambda d: {
            "gain": d.uniform(0.5, 3.0, d.case.batch, d.case.heads),
            "rest": d.uniform(0.5, 3.0, d.case.heads),
        },
    ),
    extra(
        "quadratic",
        """
param add:     f32 where add <= 4
param blocked: bool[B, Sq, Sk]
param across:  f32[Hkv, Sk, Sq]
normalizer squares(e) {
    weight(s)   = (max(s, 0) + 0.125) ** 2
    denominator = sum + e
    shift       = none
}
score = qk * scale + across[hkv, k, q]
mask  = not blocked[b, q, k]
normalizer = squares(e = exp(add))
""",
        quadratic,
        lambda d: {
            "add": d.uniform(-1.0, 1.0),
            "blocked": bools(d, d.case.batch, d.case.rows, d.case.columns, share=0.4),
            "across": d.normal(d.case.kv_heads, d.case.columns, d.case.rows),
        },
    ),
    extra(
        "patches",
        """
param c:     int where c >= 1
param power: int where 1 <= power <= 3
param gate:  f32[B, Sq]
let x = qk * scale
let bent = x if (q + k) % 3 == 0 else x ** power
score = bent * gate[b, q] - log(8)
mask  = (q // c != k // c or k % 2 == 0) and (q - 2 <= k <= q or 20 <= k < 24) or k == 0
normalizer = sigmoid
""",
        patches,
        lambda d: {"c": 6, "power": 3, "gate": d.uniform(0.5, 1.5, d.case.batch, d.case.rows)},
    ),
    extra(
        "staircase",
        """
param last:  int[B, Sq]
param first: int[B, Hq]
param deep:  bool
let x = qk * scale
score = x + log(1 + x ** 2) - clamp(x, -0.25, 2.0)
mask  = first[b, h] <= k <= last[b, q] and (3 * k <= 2 * q + 5 or deep)
""",
        staircase,
        lambda d: {
            "last": d.ints(-1, d.case.columns, d.case.batch, d.case.rows),
            "first": d.ints(0, 9, d.case.batch, d.case.heads),
            "deep": False,
        },
        small_only=True,
    ),
    extra(
        "votes",
        """
param red:    bool[B, Sq]
param blue:   bool[B, Sk]
param strict: bool
let r = red[b, q]
let c = blue[b, k]
score = qk * scale - float(r and c) * 0.5
mask  = ((r == c) if q > k else (c if r else not c and k % 2 == 0)) if strict else r != c
""",
        votes,
        lambda d: {
            "red": bools(d, d.case.batch, d.case.rows),
            "blue": bools(d, d.case.batch, d.case.columns),
            "strict": True,
        },
    ),
)
