"""The specs whose plans are mutated: every example, with constants small enough for brute force, and more.

The further ones hold what the examples lack: normalizers of each form (exponential, shifted, direct) with an extra
term, kinks, data tests of each kind, run-time windows and chunk sizes, and loads by q - k.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from attngen.analyse import analyse
from attngen.errors import Source
from attngen.ir.attention import Attention
from attngen.syntax.parser import parse

EXAMPLES = Path(__file__).parents[2] / "examples"


@dataclass(frozen=True)
class Spec:
    name: str
    text: str
    consts: Mapping[str, int | float]

    def attention(self) -> Attention:
        source = Source(self.text, f"{self.name}.attn")
        return analyse(parse(source), source, dict(self.consts))


SMALL: Mapping[str, Mapping[str, int | float]] = {
    "block_sparse": {"block": 4},
    "chunked": {"chunk": 5},
    "dilated": {"dilation": 3},
    "natten_2d": {"width": 4, "radius": 1},
    "neighbourhood_2d": {"radius": 2},
    "relative_bias": {"radius": 3},
    "sliding_window": {"window": 5},
    "t5_bias": {"buckets": 8, "furthest": 8},
    "window_global": {"radius": 2, "globals": 2},
    "windowed_alibi": {"window": 6},
}
"""Constants in the place of an example's own, so that sequences of a dozen show what they do."""

MORE: Mapping[str, str] = {
    "run_time_window": "param w: int\nmask = 0 <= q - k < w",
    "run_time_chunk": "param c: int where c >= 1\nmask = chunked(c)",
    "run_time_two_sided": """
        param left: int where left >= 0
        param right: int where right >= 0
        mask = -left <= k - q <= right
    """,
    "window_of_head": "param window: int[Hq]\nmask = 0 <= q + Sk - Sq - k < window[h]",
    "strided": "param d: int where d >= 1\nmask = causal and (q - k) % d == 0",
    "or_of_windows": "mask = abs(q - k) <= 1 or 4 <= q - k < 7",
    "gap": "mask = causal and not (2 <= q - k < 5)",
    "cut": "param n: int where n >= 0\nmask = (q < n) == (k < n)",
    "steep": "mask = 2 * k <= 3 * q + 1 and k + q < Sk + 2",
    "sorted_documents": "param first: int[B, Sq]\nparam second: int[B, Sk]\nmask = first[b, q] == second[b, k]",
    "times": "param t: f32[B, Sk]\nparam span: f32 where span > 0\nassume Sq == Sk\n"
    "mask = 0 <= t[b, q] - t[b, k] < span",
    "lengths": "param n: int[B] where n >= 0\nmask = k < n[b]",
    "causal_lengths": "param n: int[B] where n >= 0\nmask = causal and k < n[b]",
    "apart_from": "param c: int\nmask = q <= abs(k - c)",
    "padded": "param valid: bool[B, Sk]\nmask = causal and valid[b, k]",
    "row_limit": "param last: int[B, Sq]\nmask = k <= last[b, q]",
    "learned_softcap": "param cap: f32 where cap > 0.5\nscore = softcap(qk * scale, cap)",
    "kinks": """
        param slope: f32[Hq]
        param cap: f32 where cap > 0.5
        score = min(qk * scale, cap) - slope[h] * abs(q - k) + max(slope[h], 0.25) * clamp(qk, -1.0, 1.0)
        mask = causal
    """,
    "gated": """
        param row: f32[B, Sq]
        param col: f32[Hq, Sk]
        param gain: f32[B, Hkv]
        score = qk * scale * sigmoid(row[b, q]) + gain[b, hkv] * col[h, k] + row[b, q] ** 2
    """,
    "distance_bias": """
        const r = 3
        const n = 2 * r + 1
        param bias: f32[B, Hq, n]
        score = qk * scale + bias[b, h, clamp(k - q, -r, r) + r]
        mask = abs(q - k) <= 5
    """,
    "product_bias": """
        param left: f32[Hq, Sq]
        param table: f32[8]
        score = qk * scale * exp(min(left[h, q], 4.0)) + table[min(q * k, 7)]
    """,
    "index_of_data": "param kind: int[Sk] where 0 <= kind < 9\nparam t: f32[9]\nscore = qk * scale + t[kind[k]]",
    "guarded_by_clamp": "param table: f32[Hq, Sk]\nscore = qk * scale + table[h, min(q + k, Sk - 1)]",
    "temperature": """
        param tau: f32 where tau > 0.25
        normalizer cooled(t) {
            weight(s) = exp(s / t)
            denominator = sum
            shift = max
            weight(s, m) = exp((s - m) / t)
            rescale(m, n) = exp((m - n) / t)
        }
        normalizer = cooled(t = tau)
    """,
    "binary": """
        normalizer binary {
            weight(s) = exp2(s)
            denominator = sum + 0.5
            shift = max
            weight(s, m) = exp2(s - m)
            rescale(m, n) = exp2(m - n)
        }
        normalizer = binary
        mask = causal
    """,
    "shifted_extra": """
        param eps: f32[Hq] where eps > 0
        normalizer squared(e) {
            weight(s) = (1 + s ** 2) * exp(s)
            denominator = sum + e
            shift = max
            weight(s, m) = (1 + s ** 2) * exp(s - m)
            rescale(m, n) = exp(m - n)
        }
        normalizer = squared(e = eps[h])
        mask = 0 <= q - k < 5
    """,
    "shifted_param": """
        param a: f32 where a > 0.25
        normalizer leaning(a) {
            weight(s) = (2 + tanh(s)) * exp(a * s)
            denominator = sum
            shift = max
            weight(s, m) = (2 + tanh(s)) * exp(a * (s - m))
            rescale(m, n) = exp(a * (m - n))
        }
        normalizer = leaning(a = a)
    """,
    "relu": """
        normalizer relu {
            weight(s) = max(s, 0)
            denominator = sum + 1
            shift = none
        }
        normalizer = relu
        mask = causal
    """,
    "direct_extra": """
        param floor_: f32[Hq] where floor_ > 0
        normalizer logistic(e) {
            weight(s) = sigmoid(s)
            denominator = sum + e
            shift = none
        }
        normalizer = logistic(e = floor_[h])
    """,
    "softplus": """
        normalizer softplus {
            weight(s) = max(s, 0) + log(1 + exp(-abs(s)))
            denominator = sum
            shift = none
        }
        normalizer = softplus
    """,
    "unnormalised": """
        param g: f32
        normalizer gated(g) {
            weight(s) = sigmoid(s + g)
            denominator = 1
            shift = none
        }
        normalizer = gated(g = g)
    """,
}


def _declared(name: str, body: str) -> str:
    lines = [line.strip() for line in body.strip().splitlines()]
    return "\n".join([f"attention {name}", *lines]) + "\n"


def corpus() -> tuple[Spec, ...]:
    """All of them, examples first, in a fixed order."""
    examples = [Spec(p.stem, p.read_text(), SMALL.get(p.stem, {})) for p in sorted(EXAMPLES.glob("*.attn"))]
    return (*examples, *(Spec(name, _declared(name, body), {}) for name, body in MORE.items()))
