"""Specs for what no example covers, each with its own formula (`extra_formulas.py`) in plain torch.

Every feature of language.md that reaches a kernel stands in one of them: definitions with arguments, run-time windows
and chunks, float data in masks, `or` and `not`, int and bool params, kinks, tables in half precision, tables indexed by
more than an offset, or by a number, row and column biases, a select that keeps an index inside, weights that are no
exponentials, constant masks.
"""

from __future__ import annotations

import torch
from parity import extra_formulas as f
from parity.variants import Draw, Value, Variant, packed
from torch import Tensor


def extra(name: str, body: str, formula, params=None, **options) -> Variant:  # type: ignore[no-untyped-def]
    text = f"attention {name}\n{body}"
    return Variant(name, text, formula, **({} if params is None else {"params": params}), **options)


def event_times(d: Draw) -> dict[str, Value]:
    """Times in eighths, so that a border of the window is met exactly."""
    c = d.case
    return {
        "time_q": (d.uniform(0, 12, c.batch, c.rows) * 8).round() / 8,
        "time_k": (d.uniform(0, 12, c.batch, c.columns) * 8).round().sort(dim=1).values / 8,
        "horizon": 2.5,
        "rate": d.uniform(0.1, 0.6, c.heads),
    }


def bools(d: Draw, *shape: int, share: float = 0.7) -> Tensor:
    return torch.rand(shape, generator=d.generator) < share


def blocks(d: Draw, *shape: int) -> Tensor:
    """Blocks of 20 rows and 24 columns, half of them whole and the others empty but for a few elements."""
    *leading, rows, columns = shape
    found = bools(d, *leading, rows // 20 + 1, columns // 24 + 1, share=0.5)
    wide = found.repeat_interleave(20, -2).repeat_interleave(24, -1)[..., :rows, :columns]
    return wide ^ bools(d, *shape, share=0.01)


EXTRAS: tuple[Variant, ...] = (
    extra(
        "runtime_window",
        "param window: int where window >= 1\nmask = sliding_window(window)\n",
        f.runtime_window,
        lambda d: {"window": 12},
    ),
    extra("runtime_chunk", "param c: int where c >= 1\nmask = chunked(c)\n", f.runtime_chunk, lambda d: {"c": 11}),
    extra("two_sided", "param ahead: int\nmask = q - 3 <= k <= q + ahead\n", f.two_sided, lambda d: {"ahead": 5}),
    extra(
        "time_window",
        """
param time_q:  f32[B, Sq]
param time_k:  f32[B, Sk]
param horizon: f32 where horizon >= 0
param rate:    f32[Hq]
let age = time_q[b, q] - time_k[b, k]
score = qk * scale - rate[h] * age
mask  = 0 <= age <= horizon
""",
        f.time_window,
        event_times,
    ),
    extra("logic", "mask = not (k > q or (q - k) % 3 == 1) or k == 0\n", f.logic),
    extra(
        "int_and_bool",
        """
param offset: int
param forwards: bool
param valid: bool[B, Sk]
mask = ((k >= q - offset) if forwards else (k <= q + offset)) and valid[b, k]
""",
        f.int_and_bool,
        lambda d: {"offset": 4, "forwards": d.case.batch == 1, "valid": bools(d, d.case.batch, d.case.columns)},
    ),
    extra(
        "window_per_head",
        "param window: int[Hq] where window >= 0\nmask = causal and q + Sk - Sq - k <= window[h]\n",
        f.window_per_head,
        lambda d: {"window": d.ints(0, 20, d.case.heads)},
    ),
    extra(
        "two_documents",
        """
param doc_q: int[B, Sq]
param doc_k: int[B, Sk]
mask = doc_q[b, q] == doc_k[b, k] or doc_k[b, k] == 0
""",
        f.two_documents,
        lambda d: {"doc_q": d.ints(1, 6, d.case.batch, d.case.rows).sort(dim=1).values, "doc_k": packed(d)},
    ),
    extra(
        "event_order",
        "param seen: int[B, Sq]\nparam born: int[B, Sk]\nmask = not born[b, k] > seen[b, q]\n",
        f.event_order,
        lambda d: {
            "seen": d.ints(-5, 60, d.case.batch, d.case.rows).sort(dim=1).values,
            "born": d.ints(0, 50, d.case.batch, d.case.columns),
        },
    ),
    extra(
        "causal_lengths",
        "param n: int[B]\nmask = causal and k < n[b]\n",
        f.causal_lengths,
        lambda d: {"n": d.ints(-1, d.case.columns + 2, d.case.batch)},
    ),
    extra(
        "log_distance",
        "param g: f32[Hq]\nscore = qk * scale - g[h] * log(1 + abs(q - k))\nmask = causal\n",
        f.log_distance,
        lambda d: {"g": d.uniform(0.05, 0.9, d.case.heads)},
    ),
    extra("nothing", "mask = false\n", f.nothing),
    extra(
        "rounding",
        """
score = qk / sqrt(D) + 0.1 * float(k % 2 == 0) + 0.2 * sign(q - k) + int((q - k) / 4) / 16 + Dv / 64 + B / 8
mask  = floor(q * 0.4375) <= ceil(k * 0.375)
""",
        f.rounding,
    ),
    extra(
        "definitions",
        """
const rate = 0.3
let gap = abs(q - k)
let root(x) = sqrt(1.0 + x)
let decay(x, r) = -r * root(x)
score = qk * scale + decay(gap, rate)
""",
        f.definitions,
    ),
    extra(
        "kinks",
        """
param bias: f32[Hq]
let x = qk * scale
let low = min(x, 0.8) + clamp(0.5 * x, -0.4, 0.6)
score = low - abs(x - bias[h]) + (0.7 * x if (q + k) % 2 == 0 else 2 * bias[h])
""",
        f.kinks,
        lambda d: {"bias": d.normal(d.case.heads)},
        small_only=True,
    ),
    extra(
        "transcendental",
        """
param amplitude: f32[Hq]
param period: f32[Hq] where period > 0
let x = qk * scale
let softplus(y) = max(y, 0) + log(1 + exp(-abs(y)))
score = softplus(x) + x * rsqrt(1 + x ** 2) + 0.5 * erf(x) + x * sigmoid(x) + log2(1.0 + x ** 2) + 0.3 * sin(x) +
    amplitude[h] * cos(2 * pi * (q - k) / period[h])
""",
        f.transcendental,
        lambda d: {"amplitude": d.normal(d.case.heads), "period": d.uniform(150.0, 300.0, d.case.heads)},
    ),
    extra(
        "scalars",
        """
param gain: f32
param slope: f32 where slope >= 0
param n: int where n > 0
score = qk * scale * gain - slope * abs(q - k) / n
""",
        f.scalars,
        lambda d: {"gain": d.uniform(0.5, 1.5), "slope": 0.75, "n": 4},
    ),
    extra(
        "half_tables",
        """
param near: bf16[Hq, 9]
param far:  f16[9, Hq]
let index = clamp(q - k, -4, 4) + 4
score = qk * scale + near[h, index] + far[index, h]
""",
        f.half_tables,
        lambda d: {"near": d.normal(d.case.heads, 9).bfloat16(), "far": d.normal(9, d.case.heads).half()},
    ),
    extra(
        "scatter",
        "param table: f32[Hq, n]\nscore = qk * scale + table[h, (7 * q + 3 * k) % n]\n",
        f.scatter,
        lambda d: {"table": d.normal(d.case.heads, 19)},
    ),
    extra(
        "kinds",
        """
param kind: int[B, Sk]
param weight: f32[types, Hq]
param pair: f32[types, types]
score = qk * scale + weight[kind[b, k], h] + pair[kind[b, q], kind[b, k]]
""",
        f.kinds,
        lambda d: {
            "kind": d.ints(0, 4, d.case.batch, d.case.columns).long(),
            "weight": d.normal(4, d.case.heads),
            "pair": d.normal(4, 4),
        },
        square=True,
    ),
    extra(
        "rows_and_columns",
        """
param t: f32[B, Sq]
param u: f32[B, Hq, Sk]
param w: f32[Hq, Sq]
score = qk * scale * t[b, q] + u[b, h, k] + w[h, q] * t[b, q]
mask  = causal
""",
        f.rows_and_columns,
        lambda d: {
            "t": d.normal(d.case.batch, d.case.rows),
            "u": d.normal(d.case.batch, d.case.heads, d.case.columns),
            "w": d.normal(d.case.heads, d.case.rows),
        },
    ),
    extra(
        "shared_bias",
        """
param everyone: f32[Sq, Sk]
param each: f32[B, Hq, Sq, Sk]
param group: f32[Hkv]
score = qk * scale * group[hkv] + everyone[q, k] + each[b, h, q, k]
""",
        f.shared_bias,
        lambda d: {
            "everyone": d.normal(d.case.rows, d.case.columns),
            "each": d.normal(d.case.batch, d.case.heads, d.case.rows, d.case.columns),
            "group": d.uniform(0.5, 1.5, d.case.kv_heads),
        },
    ),
    extra(
        "within_a_table",
        "param table: f32[Hq, n]\nscore = qk * scale + (table[h, q - k] if 0 <= q - k < n else 0.0)\n",
        f.within_a_table,
        lambda d: {"table": d.normal(d.case.heads, 7)},
    ),
    extra(
        "minus_infinity",
        "param valid: bool[B, Sq, Sk]\nscore = qk * scale if valid[b, q, k] else -inf\n",
        f.minus_infinity,
        lambda d: {"valid": bools(d, d.case.batch, d.case.rows, d.case.columns, share=0.2)},
    ),
    extra(
        "named_pairs",
        "param seen: bool[Sq, Sk]\nmask = seen[q, k]\n",
        f.named_pairs,
        lambda d: {"seen": blocks(d, d.case.rows, d.case.columns)},
    ),
    extra(
        "named_pairs_by_head",
        "param bad: bool[B, Hq, Sq, Sk]\nparam near: bool[Hq, Sk, Sq]\n"
        "mask = causal and (near[h, k, q] or not bad[b, h, q, k])\n",
        f.named_pairs_by_head,
        lambda d: {
            "bad": blocks(d, d.case.batch, d.case.heads, d.case.rows, d.case.columns),
            "near": bools(d, d.case.heads, d.case.columns, d.case.rows, share=0.02),
        },
    ),
    extra(
        "relu_squared",
        """
normalizer squared {
    weight(s)   = max(s, 0.0) ** 2
    denominator = 1
    shift       = none
}
mask = causal
normalizer = squared
""",
        f.relu_squared,
    ),
    extra(
        "relu_mean",
        """
param floor_: f32[Hq]
normalizer mean(e) {
    weight(s)   = max(s, 0.0)
    denominator = sum + e ** 2
    shift       = none
}
mask = causal
normalizer = mean(e = floor_[h])
""",
        f.relu_mean,
        lambda d: {"floor_": d.uniform(0.5, 1.5, d.case.heads)},
    ),
    extra(
        "relu_sum",
        """
normalizer relative {
    weight(s)   = max(s, 0.0)
    denominator = sum
    shift       = none
}
score = qk * scale - 0.6
normalizer = relative
""",
        f.relu_sum,
    ),
    extra(
        "base_two",
        """
normalizer base_two {
    weight(s)     = exp2(s)
    denominator   = sum
    shift         = max
    weight(s, m)  = exp2(s - m)
    rescale(m, n) = exp2(m - n)
}
mask = causal
normalizer = base_two
""",
        f.base_two,
    ),
    extra(
        "learned_sink",
        """
param level: f32[B, Hq]
param gain: f32
param lengths: int[B] where lengths >= 0
mask = k < lengths[b]
normalizer = softmax(sink = level[b, h] * gain)
""",
        f.learned_sink,
        lambda d: {
            "level": d.normal(d.case.batch, d.case.heads),
            "gain": d.uniform(0.5, 1.5),
            "lengths": d.ints(0, d.case.columns + 1, d.case.batch),
        },
    ),
    extra(
        "sigmoid_masked",
        "param offset: f32[Hq]\nscore = qk * scale + offset[h]\nmask = causal\nnormalizer = sigmoid\n",
        f.sigmoid_masked,
        lambda d: {"offset": d.normal(d.case.heads)},
    ),
    extra(
        "dropout_everywhere",
        """
param sink: f32[Hq]
param p: f32 where 0 <= p < 1
dropout = p / 2
normalizer = softmax(sink = sink[h])
""",
        f.dropout_everywhere,
        lambda d: {"sink": d.normal(d.case.heads), "p": 0.5},
        dropout=True,
    ),
    extra(
        "sigmoid_infinite",
        "param valid: bool[B, Sq, Sk]\nscore = qk * scale if valid[b, q, k] else -inf\nnormalizer = sigmoid\n",
        f.sigmoid_infinite,
        lambda d: {"valid": bools(d, d.case.batch, d.case.rows, d.case.columns, share=0.2)},
    ),
    extra(
        "sigmoid_dropout",
        "const p = 0.25\nscore = qk * scale - 1.0\nnormalizer = sigmoid\ndropout = p\n",
        f.sigmoid_dropout,
        dropout=True,
    ),
    extra(
        "packed_bias",
        """
param doc: int[B, Sk]
param shared: f32[Hq, Sq, Sk]
param offset: f32[Hq, n]
score = qk * scale + shared[h, q, k] + (offset[h, q - k] if q - k < n else 0.0)
mask  = causal and doc[b, q] == doc[b, k]
""",
        f.packed_bias,
        lambda d: {
            "doc": packed(d),
            "shared": d.normal(d.case.heads, d.case.rows, d.case.columns),
            "offset": d.normal(d.case.heads, 16),
        },
        square=True,
    ),
    extra(
        "small_network",
        """
param width: f32 where width > 0
param first: f32[n]
param last: f32[Hq, n]
let far = log(width * max(q - k, 0) + 1.0) / log(width * max(float(q), 4.0) + 1.0)
score = qk * scale + last[h, 0] * max(first[0] * far + 0.1, 0) + last[h, 1] * tanh(first[1] * far) + first[n - 1]
mask  = causal
""",
        f.small_network,
        lambda d: {"width": d.uniform(0.5, 2.0), "first": d.normal(3), "last": d.normal(d.case.heads, 3)},
        square=True,
        small_only=True,
    ),
    extra(
        "block_bools",
        "const size = 8\nparam on: bool[m, n]\nmask = on[q // size, k // size] or not (on[0, 1] or k > q)\n",
        f.block_bools,
        lambda d: {"on": bools(d, -(-d.case.rows // 8), -(-d.case.columns // 8) + 1, share=0.5)},
    ),
    extra(
        "content_buckets",
        """
param table: f32[Hq, 16]
param kind: int[40]
score = qk * scale + table[h, clamp(floor(qk * scale * 4) + 8, 0, 15)] + kind[min(int(abs(qk)), 39)] / 4
mask  = causal
""",
        f.content_buckets,
        lambda d: {"table": d.normal(d.case.heads, 16), "kind": d.ints(-3, 4, 40)},
        small_only=True,
    ),
    extra(
        "content_by_batch",
        "param table: f32[B, 3]\nscore = qk * scale + table[b, floor(qk * scale) + 1]\n",
        f.content_by_batch,
        lambda d: {"table": d.normal(d.case.batch, 3)},
        small_only=True,
    ),
    extra(
        "rounded_distance",
        """
param table: f32[Hq, 40]
let gap = abs(q - k)
let near = min(floor(gap / 2.5), 20)
let far = min(20 + int(ceil(sqrt(gap + 0.5))), 39)
let side = int(39 * sigmoid(clamp(k - q, -40, 40) / 8))
score = qk * scale + table[h, near] + table[h, far] + table[h, side]
""",
        f.rounded_distance,
        lambda d: {"table": d.normal(d.case.heads, 40)},
        small_only=True,
    ),
)
