"""What the parity suite runs: shapes, inputs, and the examples with their formulas and valid params.

A `Variant` couples a spec's text with an independent formula; `inputs` draws q, k, v and params for a `Case`.
The formulas stand in `formulas.py`, specs that no example covers in `extras.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from parity import formulas
from torch import Tensor

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
Value = Tensor | int | float | bool


@dataclass(frozen=True)
class Case:
    """One shape. `layout` says how q, k and v lie in memory."""

    name: str
    batch: int = 1
    heads: int = 2
    kv_heads: int = 2
    rows: int = 33
    columns: int = 33
    dim: int = 16
    value_dim: int = 16
    layout: str = "plain"


def wide(case: Case) -> Case:
    """`case` with head dims for which a chip may have kernels of its own."""
    return replace(case, dim=max(40, 4 * case.dim), value_dim=max(40, 4 * case.value_dim))


@dataclass(frozen=True)
class Draw:
    """Random numbers of a case. Floats are multiples of 1/1024, so that float32 params are exact in float64."""

    case: Case
    generator: torch.Generator

    def normal(self, *shape: int) -> Tensor:
        return (torch.randn(shape, generator=self.generator) * 1024).round() / 1024

    def uniform(self, low: float, high: float, *shape: int) -> Tensor:
        return ((torch.rand(shape, generator=self.generator) * (high - low) + low) * 1024).round() / 1024

    def ints(self, low: int, high: int, *shape: int) -> Tensor:
        """Whole numbers in `low … high - 1`."""
        return torch.randint(low, high, shape, generator=self.generator, dtype=torch.int32)


def no_params(draw: Draw) -> dict[str, Value]:
    return {}


@dataclass(frozen=True)
class Variant:
    """A spec, its formula, and how to draw its params. `consts` override the file's
    for small sizes, `large` for large ones.

    `square` specs want Sq == Sk; one with a const `width` wants whole rows of an image, three at least.
    """

    name: str
    text: str
    formula: Callable[..., tuple[Tensor, Tensor]]
    params: Callable[[Draw], dict[str, Value]] = no_params
    consts: dict[str, bool | int | float] = field(default_factory=dict)
    large: dict[str, bool | int | float] = field(default_factory=dict)
    square: bool = False
    dropout: bool = False
    small_only: bool = False  # where a derivative jumps, and some float32 score among millions lies on the other side

    def suited(self, case: Case, large: bool = False) -> Case:
        """`case`, changed as little as this spec's assumptions ask."""
        if not self.square:
            return case
        size = case.columns
        width = int(self.settings(large).get("width", 0))
        if width:
            size = max(3, -(-size // width)) * width
        return replace(case, rows=size, columns=size)

    def settings(self, large: bool) -> dict[str, bool | int | float]:
        return self.large if large else self.consts


def example(name: str, params: Callable[[Draw], dict[str, Value]] = no_params, **options: object) -> Variant:
    text = (EXAMPLES / f"{name}.attn").read_text(encoding="utf-8")
    return Variant(name, text, getattr(formulas, name), params, **options)  # type: ignore[arg-type]


def slopes(draw: Draw) -> dict[str, Value]:
    return {"slope": draw.uniform(0.05, 0.5, draw.case.heads)}


def packed(draw: Draw) -> Tensor:
    """Document ids (B, Sk) in runs of uneven length; a document may come back later."""
    batch, size = draw.case.batch, draw.case.columns
    borders = torch.rand(batch, size, generator=draw.generator) < 0.12
    return (borders.cumsum(1) % 5).to(torch.int32)


def chosen_blocks(draw: Draw) -> dict[str, Value]:
    """Lists of three, with numbers of no block among them, for all blocks of queries but perhaps the last."""
    case = draw.case
    block = 8 if case.columns <= 64 else 128
    blocks = -(-case.columns // block)
    return {"chosen": draw.ints(-1, blocks + 1, case.batch, case.kv_heads, max(1, blocks - 1), 3)}


def branches(draw: Draw) -> dict[str, Value]:
    """A prompt, branches in any order, of which each third is continued by the two numbers behind it, and last numbers
    that mean no tree."""
    batch, size = draw.case.batch, draw.case.columns
    first = draw.ints(0, 7, batch, size)
    first[:, : size // 3] = 0
    last = torch.where(first % 3 == 1, first + 3, first + 1)
    last = torch.where(first == 0, 7, last)
    return {"first": first, "last": last + (draw.uniform(0, 1, batch, size) > 0.97).int()}


EXAMPLE_VARIANTS: tuple[Variant, ...] = (
    example("causal"),
    example("alibi", slopes),
    example(
        "windowed_alibi",
        lambda d: {**slopes(d), "cap": 2.5},
        consts={"window": 11},
        large={"window": 200},
    ),
    example("sliding_window", consts={"window": 9}, large={"window": 256}),
    example("softcap", consts={"cap": 1.5}, large={"cap": 50.0}),
    example("window_global", consts={"radius": 6, "globals": 3}, large={"radius": 100, "globals": 16}, square=True),
    example("prefix_lm", lambda d: {"prefix": d.case.columns // 3}),
    example("documents", lambda d: {"ids": packed(d)}, square=True),
    example("chunked", consts={"chunk": 13}, large={"chunk": 300}),
    example("block_sparse", chosen_blocks, consts={"block": 8}, large={"block": 128}, square=True),
    example("rollouts", branches, square=True),
    example(
        "neighbourhood_2d",
        lambda d: {"x": d.ints(0, 9, d.case.columns), "y": d.ints(-4, 5, d.case.columns)},
        consts={"radius": 2},
        large={"radius": 2},
        square=True,
    ),
    example("dilated", consts={"dilation": 3}, large={"dilation": 4}),
    example(
        "relative_bias", lambda d: {"table": d.normal(d.case.heads, 15)}, consts={"radius": 7}, large={"radius": 7}
    ),
    example("t5_bias", lambda d: {"table": d.normal(32, d.case.heads)}),
    example("full_bias", lambda d: {"bias": d.normal(d.case.heads, d.case.rows, d.case.columns)}),
    example("sink", lambda d: {"sink": d.normal(d.case.heads)}),
    example("softmax1"),
    example("sigmoid"),
    example(
        "natten_2d",
        lambda d: {"bias": d.normal(d.case.heads, 5, 5)},
        consts={"width": 5, "radius": 1},
        large={"width": 32, "radius": 1},
        square=True,
    ),
    example("mla"),
    example("dropout", lambda d: {"p": 0.3}, dropout=True),
    example("cross_attention", lambda d: {"lengths": d.ints(0, d.case.columns + 1, d.case.batch).long()}),
    example(
        "custom_normalizer",
        lambda d: {"temperature": d.uniform(0.5, 2.0, d.case.heads), "escape": d.normal(d.case.heads)},
    ),
)

# ---------------------------------------------------------------- shapes

SMALL: tuple[Case, ...] = (
    Case("square"),
    Case("more_keys", batch=2, heads=2, kv_heads=1, rows=19, columns=45),
    Case("more_queries", rows=40, columns=21, layout="transposed"),  # 19 empty rows under a causal mask
    Case("gqa", batch=2, heads=4, kv_heads=2, rows=35, columns=35, layout="transposed"),
    Case("mqa", heads=3, kv_heads=1, rows=18, columns=37, dim=16, value_dim=32),
    Case("narrow_value", heads=1, kv_heads=1, rows=32, columns=48, dim=32, value_dim=16),  # whole tiles only
    Case("odd_dims", heads=1, kv_heads=1, rows=21, columns=34, dim=24, value_dim=20, layout="strided"),
    Case("decode", batch=2, heads=2, kv_heads=1, rows=1, columns=50),
    Case("one_key", batch=2, rows=18, columns=1),
    Case("single", rows=1, columns=1, dim=8, value_dim=8),
    Case("shared_keys", batch=3, heads=2, kv_heads=1, rows=17, columns=20, layout="expanded"),
    Case("long", heads=1, kv_heads=1, rows=70, columns=67),
)
LARGE: tuple[Case, ...] = (
    Case("d64", batch=2, heads=4, kv_heads=2, rows=1003, columns=1003, dim=64, value_dim=64, layout="transposed"),
    Case("d128_more_keys", batch=1, heads=4, kv_heads=1, rows=517, columns=1100, dim=128, value_dim=128),
    Case("d80_more_queries", batch=2, heads=2, kv_heads=2, rows=900, columns=640, dim=80, value_dim=80),
    Case("mla", batch=1, heads=2, kv_heads=2, rows=777, columns=777, dim=192, value_dim=128),
    Case("d256", batch=1, heads=2, kv_heads=1, rows=384, columns=513, dim=256, value_dim=256, layout="strided"),
)


def lay_out(x: Tensor, layout: str) -> Tensor:
    """The same numbers, otherwise in memory."""
    if layout == "transposed":  # (B, S, H, D) underneath
        return x.transpose(1, 2).contiguous().transpose(1, 2)
    if layout == "strided":  # every second number, from an odd offset
        wide = torch.zeros(*x.shape[:-1], 2 * x.shape[-1] + 1, dtype=x.dtype, device=x.device)
        wide[..., 1::2] = x
        return wide[..., 1::2]
    if layout == "expanded":  # one batch entry, seen from all
        return x[:1].expand(x.shape)
    return x


@dataclass(frozen=True)
class Inputs:
    q: Tensor
    k: Tensor
    v: Tensor
    params: dict[str, Value]
    scale: float | None
    dropout_seed: int | None

    def floats(self) -> tuple[str, ...]:
        """The names of the params that have gradients."""
        return tuple(n for n, p in self.params.items() if isinstance(p, Tensor) and p.dtype.is_floating_point)


def inputs(variant: Variant, case: Case, dtype: torch.dtype, device: str, seed: int = 0) -> Inputs:
    """What the variant is called with; numbers are drawn on the CPU, so that they are the same everywhere."""
    generator = torch.Generator().manual_seed(seed + sum(map(ord, variant.name + case.name)))
    draw = Draw(case, generator)
    shapes = (
        (case.batch, case.heads, case.rows, case.dim),
        (case.batch, case.kv_heads, case.columns, case.dim),
        (case.batch, case.kv_heads, case.columns, case.value_dim),
    )
    q, k, v = (lay_out(draw.normal(*shape).to(dtype).to(device), case.layout) for shape in shapes)
    params = {n: p.to(device) if isinstance(p, Tensor) else p for n, p in variant.params(draw).items()}
    scale = 0.375 if case.name in ("gqa", "mqa") else None
    return Inputs(q, k, v, params, scale, 1234567890123 if variant.dropout else None)


def by_formula(variant: Variant, given: Inputs, consts: dict[str, bool | int | float]) -> tuple[Tensor, Tensor]:
    """The hand-written formula on `given`, in whatever precision that has."""
    scale = given.scale if given.scale is not None else given.q.shape[-1] ** -0.5
    seed = {} if given.dropout_seed is None else {"dropout_seed": given.dropout_seed}
    return variant.formula(given.q, given.k, given.v, scale, **consts, **given.params, **seed)


def in_float64(given: Inputs) -> Inputs:
    """`given` in float64, every float a leaf that asks for its gradient."""

    def leaf(x: Value) -> Value:
        if not isinstance(x, Tensor):
            return x
        return x.detach().double().requires_grad_() if x.dtype.is_floating_point else x

    q, k, v = (x.detach().double().requires_grad_() for x in (given.q, given.k, given.v))
    return replace(given, q=q, k=k, v=v, params={n: leaf(p) for n, p in given.params.items()})
