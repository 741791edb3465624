"""Gradients of float params on their way out: sums kept by the main kernels, and what the host does with them.

Takes the plan's `LeafGradient`s, returns `RowSum`s (for the dQ and dK/dV templates), `GradientView`s (for the launcher)
and `PairView`s (leaves whose index depends on the pair: kernels of their own).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from attngen.emit.text.params import ParamView
from attngen.emit.text.precedence import times
from attngen.emit.torch_shared.calls import RUNTIME
from attngen.emit.torch_shared.expressions import python
from attngen.emit.torch_shared.leaves import AXES, gathered, host_names, leaf_name, scattered, summed, to_size
from attngen.emit.triton.code.expressions import Printer
from attngen.emit.triton.code.kernel_code import KernelCode
from attngen.emit.triton.code.launches import Launch, Way
from attngen.ir import printing
from attngen.ir.function import inlined
from attngen.ir.nodes import Expr, Load, Symbol
from attngen.ir.walk import reads
from attngen.plan.index import items
from attngen.plan.kernel import Gather, KernelPlan, LeafGradient
from attngen.plan.needs import LENGTHS
from attngen.plan.score.distance import distance_index


@dataclass(frozen=True, slots=True)
class RowSum:
    """A running sum over the walked axis: one number for each held row (or column), kept beside dQ (or dK)."""

    name: str
    flag: str
    param: str
    per_row: bool
    gradient: LeafGradient
    contribution: str = ""
    extra: str = ""

    @property
    def pointer(self) -> str:
        return f"{self.name}_ptr"

    @property
    def d_extra(self) -> Expr | None:
        return self.gradient.extra

    def with_code(self, code: KernelCode, normalised: str) -> RowSum:
        """With the texts that the kernel's code gives to the parts."""
        g, texts = self.gradient, code.results
        parts: list[str] = []
        if g.pair is not None:
            parts.append(times("g", texts.get(f"pair_{self.name}")))
        if g.weight is not None:
            parts.append(times("dp", texts.get(f"weight_{self.name}")) + normalised)
        extra = ""
        if g.extra is not None:
            share = f"tl.exp2({texts['log2_extra']} - row_lse)" if "log2_extra" in texts else "inv_den"
            extra = times(f"-delta * {share}", texts.get(f"extra_{self.name}"))
        return replace(self, contribution=" + ".join(parts) or "g * 0.0", extra=extra)


@dataclass(frozen=True, slots=True)
class GradientView:
    """One float param's gradient on the host, `total`, float32 and of the param's shape: it begins as `sum`, the first
    leaf's part, or as zeros where no expression says that, and `lines` add what is missing.
    """

    param: str
    total: str
    number: int  # among the gradients
    position: int  # among the function's inputs
    sum: str
    lines: tuple[str, ...]
    scatters: bool


def flag(param: ParamView) -> str:
    return f"GRAD_{param.name.upper()}"


def row_sums(plan: KernelPlan, params: tuple[ParamView, ...], *kinds: Gather) -> tuple[RowSum, ...]:
    found: list[RowSum] = []
    for g in plan.gradients:
        if g.gather in kinds:
            param = next(p for p in params if p.keyword == g.param)
            name = leaf_name(plan, params, g)
            found.append(RowSum(name, flag(param), param.name, g.gather is not Gather.HEAD, g))
    return tuple(found)


def gradient_views(
    plan: KernelPlan, params: tuple[ParamView, ...], pair_lines: dict[str, tuple[str, ...]]
) -> tuple[GradientView, ...]:
    """`pair_lines` gives the launches of leaves that have kernels of their own, by leaf name."""
    found: list[GradientView] = []
    for position, view in enumerate(params):
        own = [g for g in plan.gradients if g.param == view.keyword]
        if not own:
            continue
        total = f"total_{view.name}"
        lines: list[str] = []
        first, scatters = "", False
        for g in own:
            name = leaf_name(plan, params, g)
            if g.gather not in AXES:
                lines += pair_lines[name]
                scatters = True
                continue
            axes, tiles = AXES[g.gather], g.gather is Gather.HEAD
            value = f'values["{name}"]'
            text = summed(plan.attention, g.leaf, axes, value, tiles=tiles)
            if text is None:
                given = f"{value}.sum(-1)" if tiles else value
                lines += scattered(plan.attention, params, g.leaf, axes, given, total, RUNTIME)
                scatters = True
            elif g is own[0]:
                first = to_size(g.leaf, text, view.name)
            else:
                lines.append(f"{total} += {to_size(g.leaf, text, total)}")
        found.append(GradientView(view.name, total, len(found), 3 + position, first, tuple(lines), scatters))
    return tuple(found)


# ---------------------------------------------------------------- leaves with kernels of their own


@dataclass(frozen=True, slots=True)
class PairView:
    """One kernel that `pair_gradient.py.j2` lays out; the texts are those of its `code`. `launches` are how it is
    launched, by name, and `host_lines` do that and add what it gives to the gradient."""

    name: str
    gather: str
    text: str
    code: KernelCode
    contribution: str
    outputs: tuple[str, ...]
    batches: str  # the batches and heads that one program sums over, as the bounds of a range
    heads: str
    batch: str
    head: str
    constants: tuple[str, ...]  # of the kernel, beside those that all have
    index: tuple[str, ...]  # what the tile function returns beside the contribution (scatter)
    index_names: tuple[str, ...]
    offset: str
    inside: str
    visited: str
    host_lines: tuple[str, ...]
    launches: tuple[tuple[str, Way], ...]


def pair_view(
    plan: KernelPlan,
    params: tuple[ParamView, ...],
    gradient: LeafGradient,
    code: KernelCode,
    contribution: str,
    visited: str,
    before: tuple[Launch, ...],
    printer: Printer,
) -> PairView:
    """`before`: what finds the tiles of keys, for the kernel's own tiles, which need not be those of dQ. `printer`
    prints for kernels."""
    leaf = gradient.leaf
    assert isinstance(leaf, Load)
    attention = plan.attention
    name = leaf_name(plan, params, gradient)
    param = next(p.name for p in params if p.keyword == gradient.param)
    total = f"total_{param}"
    per_batch, per_head = _reads_any(leaf, "b"), _reads_any(leaf, "h", "hkv")
    shape = attention.param(leaf.param).shape
    sizes = [_kernel_size(d) for d in shape]
    outputs: tuple[str, ...]
    host: list[str]
    launches: tuple[tuple[str, Way], ...]
    names: tuple[str, ...] = ()
    texts = tuple(code.results.get(f"index_{i}", "0") for i in range(len(sizes)))
    if gradient.gather is Gather.SCATTER:
        outputs = ("cells_ptr", "cell_strides", "largest_ptr", "unit_ptr")
        names = tuple(f"index_{i}" for i in range(len(sizes)))
        batches, heads = "tl.program_id(1), tl.program_id(1) + 1", "tl.program_id(2), tl.program_id(2) + 1"
        whole = ", ".join(python(d, host_names(attention, params)) for d in shape)
        host = _scatter_lines(name, total, whole)
        grid = "host.ceil(Sq, BQ), B, Hq"
        measure = _way(name, grid, before, "MEASURE=True", buffers=(f"largest=(({grid}), torch.float32)",))
        launches = ((f"{name} measured", measure), (name, _way(name, grid, (), "MEASURE=False")))
        cells, constants = names, ("MEASURE",)
    elif gradient.gather is Gather.DENSE:
        outputs = ("cells_ptr", "cell_strides")
        axes = tuple(_axis(leaf, param, *axis) for axis in _AXES)
        batches, heads = (axis.members for axis in axes)
        first = gradient is next(g for g in plan.gradients if g.param == gradient.param)
        host = _dense_lines(name, total, first=first)
        grid = f"host.ceil(Sq, BQ) * host.ceil(Sk, BK), {', '.join(axis.programs for axis in axes)}"
        flags = {flag: test for axis in axes for flag, test in axis.flag}
        launches = ((name, _way(name, grid, before, *(f"{flag}={test}" for flag, test in flags.items()))),)
        cells, constants = tuple(_dense_index(i) for i in leaf.indices), tuple(flags)
    else:
        outputs = ("above_ptr", "below_ptr")
        batches = "tl.program_id(1), tl.program_id(1) + 1" if per_batch else "0, B"
        heads = "tl.program_id(2), tl.program_id(2) + 1" if per_head else "0, Hq"
        held = ("B" if per_batch else "1", "Hq" if per_head else "1")
        host = _diagonal_lines(plan, params, leaf, name, total, held)
        n_diagonals = "host.ceil(Sq, BQ) + host.ceil(Sk, BK) - 1"
        ends = tuple(f"{end}=(({', '.join(held)}, {n_diagonals}, BQ), torch.float32)" for end in ("above", "below"))
        square = ("BQ = BK = min(BQ, BK)",)
        grid = f"{n_diagonals}, {', '.join(held)}"
        launches = ((name, _way(name, grid, before, buffers=ends, bind=square)),)
        cells, constants = (), ()
    offset = " + ".join(f"tl.cast({i}, tl.int64) * cell_strides[{n}]" for n, i in enumerate(cells))
    inside = " & ".join(f"({i} >= 0) & ({i} < {n})" for i, n in zip(cells, sizes, strict=False))
    return PairView(
        name, gradient.gather.value, printing.expression(leaf), code, contribution, outputs, batches, heads,
        "tl.program_id(1)" if per_batch else "0", _dense_head(leaf), constants, texts if names else (), names, offset,
        inside, visited, tuple(host), launches,
    )  # fmt: skip


def _reads_any(leaf: Load, *ids: str) -> bool:
    return any(reads(i, *ids) for i in leaf.indices)


def _kernel_size(size: Expr) -> str:
    return printing.expression(size)


def _dense_index(i: Expr) -> str:
    return {"q": "q_idx", "k": "k_idx", "b": "batch", "h": "head", "hkv": "kv_head"}[_id(i)]


def _dense_head(leaf: Load) -> str:
    if _reads_any(leaf, "h"):
        return "tl.program_id(2)"
    return "tl.program_id(2) * group" if _reads_any(leaf, "hkv") else "0"


def _id(i: Expr) -> str:
    assert isinstance(i, Symbol)
    return i.id


_AXES = ((1, "B", "ALL_BATCHES", ("b",)), (2, "Hq", "ALL_HEADS", ("h", "hkv")))
"""The axes of the grid of a dense gradient: the number, what is counted, a constant of the kernel, and the indices."""


@dataclass(frozen=True, slots=True)
class _Axis:
    """How many `programs` there are, on the host; the `members` of one, as the bounds of a range; and, where the index
    reads the axis, the constant that tells whether all read one element, with its value on the host."""

    programs: str
    members: str
    flag: tuple[tuple[str, str], ...] = ()


def _axis(leaf: Load, param: str, number: int, count: str, flag: str, ids: tuple[str, ...]) -> _Axis:
    read = next(((i, at) for at, e in enumerate(leaf.indices) if (i := _id(e)) in ids), None)
    program, group = f"tl.program_id({number})", "group" if read is not None and read[0] == "hkv" else "1"
    given = "True" if read is None else flag
    start = f"items.sum_start({program}, {group}, {given})"
    stop = f"items.sum_stop({program}, {count}, {group}, {given})"
    if read is None:
        return _Axis("1", f"{start}, {stop}")
    whole = LENGTHS[read[0]]
    test = f"{param}.shape[{read[1]}] == 1 < {whole}"
    (programs,) = inlined(items().of("sum_programs"))
    return _Axis(python(programs, {"one": test, "whole": whole}), f"{start}, {stop}", ((flag, test),))


def _way(
    name: str,
    grid: str,
    before: tuple[Launch, ...],
    *constants: str,
    buffers: tuple[str, ...] = (),
    bind: tuple[str, ...] = (),
) -> Way:
    """How the kernel is launched: by dQ's tiles, or what `bind` makes of them."""
    launch = Launch(
        kernel=f"_{name}_kernel",
        grid=f"({grid})",
        constants=(
            '**{**known.constants, "ALIGN": align}',
            "BQ=BQ",
            "BK=BK",
            *constants,
            "num_warps=warps",
            "num_stages=1",
        ),
        tiles=("q=BQ", "d_out=BQ", "k=BK", "v=BK"),
        tiled="tma",
        buffers=buffers,
    )
    return Way(bind=("BQ, BK, warps, _ = host.tiles(TILES, q, v)[2]", *bind), launches=(*before, launch))


def _run(name: str) -> tuple[str, ...]:
    return (f'for launch in pairs["{name}"]:', "    launch(values)")


def _given(cells: str, strides: str) -> str:
    return f"values.update(cells={cells}, cell_strides={strides}.stride())"


def _dense_lines(name: str, total: str, *, first: bool) -> list[str]:
    """`first`: nothing is in `total` yet, and the kernel writes each cell once."""
    if first:
        return [_given(total, total), *_run(name)]
    return [f"cells = torch.zeros_like({total})", _given("cells", "cells"), *_run(name), f"{total} += cells"]


def _scatter_lines(name: str, total: str, whole: str) -> list[str]:
    """`whole`: the param's shape. Along a dim that a call gave with a size of 1, all cells are one."""
    return [
        f"cells = torch.zeros({total}.shape, dtype=torch.int64, device=q.device)",
        "unit = torch.ones((), dtype=torch.float32, device=q.device)",
        _given("cells", f"cells.expand({whole})"),
        'values["unit"] = unit',
        *_run(f"{name} measured"),
        "# The unit is so small that rounding is lost in float32, and so large that the sum of all pairs fits 63 bits.",
        '_, exponent = torch.frexp(values["largest"].amax().clamp(min=1e-30))',
        "unit = torch.ldexp(torch.ones_like(unit), exponent - (62 - (B * Hq * Sq * Sk).bit_length()))",
        'values["unit"] = unit',
        *_run(name),
        f"{total} += (cells.double() * unit).float()",
    ]


def _diagonal_lines(
    plan: KernelPlan, params: tuple[ParamView, ...], leaf: Load, name: str, total: str, held: tuple[str, str]
) -> list[str]:
    """`held`: the batches and heads that are summed apart."""
    batches, heads = held
    indices = distance_index(leaf)
    assert indices is not None
    lines = gathered(plan.attention, params, leaf, ("b", "h", "distance"), indices, name, total, RUNTIME)
    return [
        *_run(name),
        'above, below = values["above"], values["below"]',
        "side = above.shape[3]",
        "# A diagonal crosses two rows of tiles: above in one, below in the next.",
        f"{name} = torch.nn.functional.pad(above, (0, 0, 1, 0)) + torch.nn.functional.pad(below, (0, 0, 0, 1))",
        f"{name} = {name}.flatten(2)",
        f"distances = torch.arange({name}.shape[2], device=q.device) - host.ceil(Sk, side) * side",
        *(line.replace("arange(B,", f"arange({batches},").replace("arange(Hq,", f"arange({heads},") for line in lines),
    ]
