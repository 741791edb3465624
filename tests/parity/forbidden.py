"""Specs with keys that a condition on the key alone forbids, and what such rows of K and V may hold.

`Forbidding` couples a spec with its params and says which keys each head forbids, by hand. `fouled` writes NaN and
infinities into the rows that no head may read. Whatever they hold, every result must have the same bits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from parity.variants import Case, Draw, Inputs, Value
from torch import Tensor


@dataclass(frozen=True)
class Forbidding:
    """`keeps` gives which keys each head may read, (B, Hq, Sk) or what broadcasts to it."""

    name: str
    body: str
    params: Callable[[Draw], dict[str, Value]]
    keeps: Callable[[Inputs], Tensor]
    square: bool = False
    dropout: bool = False

    @property
    def text(self) -> str:
        return f"attention {self.name}\n{self.body}"


def lengths(draw: Draw) -> dict[str, Value]:
    """Of which none is a tile's end, and one is short."""
    size = draw.case.columns
    return {"n": torch.tensor([size - 7, size // 3][: draw.case.batch], dtype=torch.int64)}


def padding(draw: Draw) -> dict[str, Value]:
    return {"keep": torch.rand(draw.case.batch, draw.case.columns, generator=draw.generator) < 0.7}


def places(given: Inputs) -> Tensor:
    return torch.arange(given.k.shape[2])


def below_length(given: Inputs) -> Tensor:
    return places(given) < tensor(given, "n")[:, None, None]


def kept(given: Inputs) -> Tensor:
    return tensor(given, "keep")[:, None]


def tensor(given: Inputs, name: str) -> Tensor:
    found = given.params[name]
    assert isinstance(found, Tensor)
    return found


def document_ids(draw: Draw) -> dict[str, Value]:
    """Runs of documents; padding, of id -1, behind the last."""
    size = draw.case.columns
    ids = (torch.arange(size) // 11).repeat(draw.case.batch, 1).to(torch.int32)
    ids[:, size - 10 :] = -1
    return {"ids": ids}


EVERY = (
    Forbidding("lengths", "param n: int[B]\nmask = k < n[b]\n", lengths, below_length),
    Forbidding("causal_lengths", "param n: int[B]\nmask = causal and k < n[b]\n", lengths, below_length),
    Forbidding("padding", "param keep: bool[B, Sk]\nmask = keep[b, k]\n", padding, kept),
    Forbidding(
        "padding_by_head",
        "const window = 21\nparam keep: bool[Hq, Sk]\nmask = keep[h, k] and sliding_window(window)\n",
        lambda d: {"keep": torch.rand(d.case.heads, d.case.columns, generator=d.generator) < 0.6},
        lambda given: tensor(given, "keep")[None],
    ),
    Forbidding(
        "padding_and_pairs",
        "param keep: bool[B, Sk]\nparam seen: bool[Sq, Sk]\nmask = keep[b, k] and seen[q, k]\n",
        lambda d: {**padding(d), "seen": torch.rand(d.case.rows, d.case.columns, generator=d.generator) < 0.8},
        kept,
    ),
    Forbidding("first_keys", "mask = k < 21\n", lambda d: {}, lambda given: places(given) < 21),
    Forbidding(
        "padded_documents",
        "param ids: int[B, Sk]\nmask = same_document(ids) and ids[b, k] >= 0\nassume Sq == Sk\n",
        document_ids,
        lambda given: tensor(given, "ids")[:, None] >= 0,
        square=True,
    ),
    Forbidding(
        "either_stretch",
        "param n: int[B]\nmask = (causal and k < n[b]) or (k < 5 and q >= k) or (k == 33 and q < 20)\n",
        lambda d: {"n": torch.tensor([11, 23][: d.case.batch])},
        lambda given: below_length(given) | (places(given) == 33),
    ),
    Forbidding(
        "sink_and_cap",
        "param sink: f32[Hq]\nparam n: int[B]\nparam cap: f32 where cap > 0.5\n"
        "score = softcap(qk * scale, cap)\nmask = k < n[b]\nnormalizer = softmax(sink = sink[h])\n",
        lambda d: {"sink": d.normal(d.case.heads), "cap": 2.5, **lengths(d)},
        below_length,
    ),
    Forbidding(
        "gate",
        "param keep: bool[B, Sk]\nparam bias: f32[Hq, Sk]\nscore = qk * scale + bias[h, k]\nmask = keep[b, k]\n"
        "normalizer = sigmoid\n",
        lambda d: {**padding(d), "bias": d.normal(d.case.heads, d.case.columns)},
        kept,
    ),
    Forbidding(
        "relu_mean",
        "param n: int[B]\nnormalizer relu {\n    weight(s) = max(s, 0.0)\n    denominator = sum + 0.5\n"
        "    shift = none\n}\nnormalizer = relu\nmask = k < n[b]\n",
        lengths,
        below_length,
    ),
    Forbidding(
        "tempered",
        "param n: int[B]\nparam temperature: f32[Hq] where temperature > 0.1\nnormalizer soft(t) {\n"
        "    weight(s) = exp(s / t)\n    denominator = sum\n    shift = max\n    weight(s, m) = exp((s - m) / t)\n"
        "    rescale(m, n) = exp((m - n) / t)\n}\nnormalizer = soft(t = temperature[h])\nmask = k < n[b]\n",
        lambda d: {**lengths(d), "temperature": d.uniform(0.5, 2.0, d.case.heads)},
        below_length,
    ),
    Forbidding(
        "biases",
        "param n: int[B]\nparam bias: f32[Hq, Sq, Sk]\nparam table: f32[Hq, 65]\nparam rows: f32[Hq, Sq]\n"
        "param spot: f32[Hq, 7]\n"
        "score = qk * scale + bias[h, q, k] + relative_bias(table, 32) + rows[h, q] + spot[h, (q + k) % 7]\n"
        "mask = k < n[b]\n",
        lambda d: {
            **lengths(d),
            "bias": d.normal(d.case.heads, d.case.rows, d.case.columns),
            "table": d.normal(d.case.heads, 65),
            "rows": d.normal(d.case.heads, d.case.rows),
            "spot": d.normal(d.case.heads, 7),
        },
        below_length,
    ),
)

CASE = Case("forbidden", batch=2, heads=2, kv_heads=1, rows=19, columns=37, dim=16, value_dim=24)


def case_of(spec: Forbidding, case: Case = CASE) -> Case:
    return replace(case, rows=case.columns) if spec.square else case


def unread(spec: Forbidding, given: Inputs) -> Tensor:
    """The rows of K and V, (B, Hkv, Sk), that no head may read."""
    batch, heads, _, _ = given.q.shape
    kv_heads, columns = given.k.shape[1:3]
    read = spec.keeps(given).expand(batch, heads, columns)
    return ~read.reshape(batch, kv_heads, -1, columns).any(2)


def fouled(x: Tensor, rows: Tensor) -> Tensor:
    """`x` with NaN, inf and -inf in these rows, all of a row or its last element."""
    found = x.clone()
    for number, (b, h, s) in enumerate(rows.nonzero().tolist()):
        what = (float("nan"), float("inf"), float("-inf"))[number % 3]
        found[b, h, s, -1 if number % 4 == 3 else slice(None)] = what
    return found
