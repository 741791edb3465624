"""Variants of attention to draw from: a spec, its params, and the same as elementwise torch functions.

The torch functions are written by hand, apart from the specs: the dense truth and FlexAttention both take them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from grouped import Formula, Shape
from saved import Spec, example
from torch import Tensor

Consts = Mapping[str, int | float]
Params = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """`choices` are the values of each constant; `square` says whether the spec assumes Sq == Sk."""

    spec: Callable[[Consts], Spec]
    formula: Callable[[Consts, Params, Shape], Formula]
    params: Callable[[Consts, Shape, torch.Generator], Params] = lambda consts, shape, generator: {}
    choices: Mapping[str, Sequence[int | float]]
    square: bool = False


def text(source: str, **named: str) -> Callable[[Consts], Spec]:
    """A spec of a few lines, whose constants are given to the compiler."""
    return lambda consts: Spec(source.format(**named), consts)


def of_example(name: str) -> Callable[[Consts], Spec]:
    return lambda consts: example(name, **consts)


def causal(shape: Shape) -> Callable[..., Any]:
    """The last query is aligned with the last key."""
    offset = shape.Sk - shape.Sq
    return lambda b, h, q, k: k <= q + offset


def integers(generator: torch.Generator, low: int, high: int, *dims: int) -> Tensor:
    drawn = torch.randint(low, high, dims, generator=generator, device=generator.device)
    return drawn.to(torch.int32)


def slopes(shape: Shape, generator: torch.Generator) -> Tensor:
    exponent = torch.arange(1, shape.Hq + 1, device=generator.device)
    return 2.0 ** (-8.0 * exponent / shape.Hq)


def document_ids(shape: Shape, generator: torch.Generator, documents: int) -> Tensor:
    """[B, Sk]: uneven documents, cut off the tile grid, other ones in each batch row."""
    cuts = torch.rand(shape.B, documents - 1, generator=generator, device=generator.device).sort(-1).values
    ends = (cuts * (shape.Sk - 1)).int().contiguous() + 1
    positions = torch.arange(shape.Sk, device=generator.device, dtype=torch.int32).expand(shape.B, -1).contiguous()
    return torch.searchsorted(ends, positions, right=True).to(torch.int32)


# ---- formulas --------------------------------------------------------------------------------------------------------


def _alibi(consts: Consts, params: Params, shape: Shape) -> Formula:
    slope, offset = params["slope"], shape.Sk - shape.Sq
    return Formula(lambda s, b, h, q, k: s - slope[h] * (q + offset - k), causal(shape))


def _softcap(consts: Consts, params: Params, shape: Shape) -> Formula:
    cap = consts["cap"]
    return Formula(lambda s, b, h, q, k: cap * torch.tanh(s / cap), causal(shape))


def _window(consts: Consts, params: Params, shape: Shape) -> Formula:
    window, offset = consts["window"], shape.Sk - shape.Sq
    return Formula(None, lambda b, h, q, k: (k <= q + offset) & (q + offset - k < window))


def _both_sides(consts: Consts, params: Params, shape: Shape) -> Formula:
    radius = consts["radius"]
    return Formula(None, lambda b, h, q, k: (q - k <= radius) & (k - q <= radius))


def _prefix(consts: Consts, params: Params, shape: Shape) -> Formula:
    prefix, seen = params["prefix"], causal(shape)
    return Formula(None, lambda b, h, q, k: seen(b, h, q, k) | (k < prefix))


def _prefix_batch(consts: Consts, params: Params, shape: Shape) -> Formula:
    prefix = params["n"]
    return Formula(None, lambda b, h, q, k: (k <= q) | (k < prefix[b]), batches=True)


def _window_head(consts: Consts, params: Params, shape: Shape) -> Formula:
    window = params["window"]
    return Formula(None, lambda b, h, q, k: (k <= q) & (q - k < window[h]), heads=True)


def _lengths(consts: Consts, params: Params, shape: Shape) -> Formula:
    length = params["len"]
    return Formula(None, lambda b, h, q, k: k < length[b], batches=True)


def _pairs(consts: Consts, params: Params, shape: Shape) -> Formula:
    seen = params["anc"]
    return Formula(None, lambda b, h, q, k: seen[q, k])


def _documents(consts: Consts, params: Params, shape: Shape) -> Formula:
    ids = params["ids"]
    return Formula(None, lambda b, h, q, k: (k <= q) & (ids[b, q] == ids[b, k]), batches=True)


def _relative(consts: Consts, params: Params, shape: Shape) -> Formula:
    radius, offset = int(consts["radius"]), shape.Sk - shape.Sq
    table = params["table"].bfloat16()  # which holds its values; from a float32 table FlexAttention takes twice as long
    return Formula(lambda s, b, h, q, k: s + table[h, torch.clamp(q + offset - k, -radius, radius) + radius])


def _t5(consts: Consts, params: Params, shape: Shape) -> Formula:
    table, offset = params["table"].bfloat16(), shape.Sk - shape.Sq

    def score(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        ahead = k - (q + offset)
        distance = torch.abs(ahead)
        far = 8 + (torch.log(torch.clamp(distance, min=8) / 8.0) / math.log(128 / 8) * 8).to(torch.int32)
        bucket = torch.where(distance < 8, distance, torch.clamp(far, max=15)) + torch.where(ahead > 0, 16, 0)
        return s * math.sqrt(shape.D) + table[bucket, h]  # T5 does not scale

    return Formula(score)


def _log_distance(consts: Consts, params: Params, shape: Shape) -> Formula:
    g = params["g"]
    return Formula(lambda s, b, h, q, k: s - g[h] * torch.log(1.0 + torch.clamp(q - k, min=0)), causal(shape))


def _window_global(consts: Consts, params: Params, shape: Shape) -> Formula:
    radius, first = consts["radius"], consts["globals"]
    return Formula(None, lambda b, h, q, k: ((q - k <= radius) & (k - q <= radius)) | (q < first) | (k < first))


def _window_landmarks(consts: Consts, params: Params, shape: Shape) -> Formula:
    window, landmark = consts["window"], params["g"]
    return Formula(None, lambda b, h, q, k: (k <= q) & ((q - k < window) | landmark[b, k]), batches=True)


def _chunked(consts: Consts, params: Params, shape: Shape) -> Formula:
    chunk, offset = consts["chunk"], shape.Sk - shape.Sq
    return Formula(None, lambda b, h, q, k: (k <= q + offset) & ((q + offset) // chunk == k // chunk))


def _bias(consts: Consts, params: Params, shape: Shape) -> Formula:
    bias = params["bias"]
    return Formula(lambda s, b, h, q, k: s + bias[h, q, k])


# ---- params ----------------------------------------------------------------------------------------------------------


def _tree(shape: Shape, generator: torch.Generator) -> Tensor:
    """[Sq, Sk]: which key is a query's ancestor, or the query itself, in a tree of drafts behind a common prompt."""
    n, device = shape.Sk, generator.device
    seen = torch.ones(n, n, dtype=torch.bool, device=device).tril()
    branch = integers(generator, 0, 4, n)
    drafted = torch.arange(n, device=device) >= n // 2
    return seen & ((branch[:, None] == branch[None, :]) | ~drafted[None, :])


VARIANTS: Mapping[str, Variant] = {
    "full": Variant(spec=text("attention full\n"), formula=lambda c, p, s: Formula(), choices={}),
    "causal": Variant(spec=of_example("causal"), formula=lambda c, p, s: Formula(None, causal(s)), choices={}),
    "alibi": Variant(
        spec=of_example("alibi"),
        formula=_alibi,
        params=lambda c, s, g: {"slope": slopes(s, g)},
        choices={},
    ),
    "softcap": Variant(spec=of_example("softcap"), formula=_softcap, choices={"cap": (20.0, 30.0, 50.0)}),
    "sliding_window": Variant(
        spec=of_example("sliding_window"), formula=_window, choices={"window": (128, 512, 1000, 1024, 4096)}
    ),
    "window_both": Variant(
        spec=text("attention window_both\nconst radius = 256\nmask = abs(q - k) <= radius\nassume Sq == Sk\n"),
        formula=_both_sides,
        choices={"radius": (100, 256, 512)},
        square=True,
    ),
    "prefix_lm": Variant(
        spec=of_example("prefix_lm"),
        formula=_prefix,
        params=lambda c, s, g: {"prefix": s.Sk // 3},
        choices={},
    ),
    "prefix_batch": Variant(
        spec=text("attention prefix_batch\nparam n: int[B]\nmask = causal or k < n[b]\nassume Sq == Sk\n"),
        formula=_prefix_batch,
        params=lambda c, s, g: {"n": integers(g, 0, s.Sk // 2, s.B)},
        choices={},
        square=True,
    ),
    "window_head": Variant(
        spec=text("attention window_head\nparam window: int[Hq]\nmask = 0 <= q - k < window[h]\nassume Sq == Sk\n"),
        formula=_window_head,
        params=lambda c, s, g: {"window": integers(g, 64, 1025, s.Hq)},
        choices={},
        square=True,
    ),
    "lengths": Variant(
        spec=text("attention lengths\nparam len: int[B]\nmask = k < len[b]\n"),
        formula=_lengths,
        params=lambda c, s, g: {"len": integers(g, s.Sk // 2, s.Sk + 1, s.B)},
        choices={},
    ),
    "pairs": Variant(
        spec=text("attention pairs\nparam anc: bool[Sq, Sk]\nmask = anc[q, k]\nassume Sq == Sk\n"),
        formula=_pairs,
        params=lambda c, s, g: {"anc": _tree(s, g)},
        choices={},
        square=True,
    ),
    "documents": Variant(
        spec=of_example("documents"),
        formula=_documents,
        params=lambda c, s, g: {"ids": document_ids(s, g, 8)},
        choices={},
        square=True,
    ),
    "relative_bias": Variant(
        spec=of_example("relative_bias"),
        formula=_relative,
        params=lambda c, s, g: {
            "table": torch.randn(s.Hq, 2 * int(c["radius"]) + 1, generator=g, device=g.device).bfloat16().float()
        },
        choices={"radius": (127, 31)},
    ),
    "t5_bias": Variant(
        spec=of_example("t5_bias"),
        formula=_t5,
        params=lambda c, s, g: {"table": torch.randn(32, s.Hq, generator=g, device=g.device).bfloat16().float()},
        choices={},
    ),
    "log_distance": Variant(
        spec=text(
            "attention log_distance\nparam g: f32[Hq]\nscore = qk * scale - g[h] * log(1 + q - k)\n"
            "mask = causal\nassume Sq == Sk\n"
        ),
        formula=_log_distance,
        params=lambda c, s, g: {"g": torch.rand(s.Hq, generator=g, device=g.device)},
        choices={},
        square=True,
    ),
    "window_global": Variant(
        spec=of_example("window_global"),
        formula=_window_global,
        choices={"radius": (256, 512), "globals": (16, 64)},
        square=True,
    ),
    "window_landmarks": Variant(
        spec=text(
            "attention window_landmarks\nconst window = 1024\nparam g: bool[B, Sk]\n"
            "mask = 0 <= q - k < window or (g[b, k] and causal)\nassume Sq == Sk\n"
        ),
        formula=_window_landmarks,
        params=lambda c, s, g: {"g": torch.rand(s.B, s.Sk, generator=g, device=g.device) < 1 / 64},
        choices={"window": (512, 1024)},
        square=True,
    ),
    "chunked": Variant(spec=of_example("chunked"), formula=_chunked, choices={"chunk": (512, 1024, 2000)}),
    "full_bias": Variant(
        spec=of_example("full_bias"),
        formula=_bias,
        params=lambda c, s, g: {"bias": torch.randn(s.Hq, s.Sq, s.Sk, generator=g, device=g.device).bfloat16().float()},
        choices={},
    ),
}
