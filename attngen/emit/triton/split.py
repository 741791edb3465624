"""Short queries, whose walk over keys is cut into pieces: what `split.py.j2` and `launch/split.py.j2` read.

Takes the plan, the kernels' arguments and the names of what the launcher hands over, gives a `SplitView`. The main loop
is the forward kernel's own code, in which a head of each row may stand where there is one head; the end of the pass is
the forward kernel's, too, in a kernel that merges the pieces.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from attngen.emit.options import Options
from attngen.emit.text.params import ParamView
from attngen.emit.triton.expressions import Printer
from attngen.emit.triton.kernel_code import KernelCode, KernelWriter
from attngen.emit.triton.tile_loops import in_brackets, plain_lines
from attngen.ir.build import TRUE
from attngen.ir.nodes import Expr
from attngen.plan import passes
from attngen.plan.footprint import loads_of
from attngen.plan.kernel import KernelPlan
from attngen.plan.levels import Level
from attngen.plan.split import CUT, Cut, shares


@dataclass(frozen=True, slots=True)
class SplitView:
    """`lines` bind what a piece walks; `full` and `partial` are the ends of its two loops. There are `rows` of one of
    the `heads` by which programs go. `merge` is the code of the merging kernel, whose results end the pass. `cut`: by
    what the launcher decides at the call."""

    cut: Cut
    packed: bool
    rows: str
    heads: str
    lines: tuple[str, ...]
    full: str
    partial: str
    merge: KernelCode
    unspecialized: list[str]
    table: tuple[tuple[tuple[str, int], tuple[int, ...]], ...]
    arguments: tuple[str, ...]
    merge_arguments: tuple[str, ...]


def split_view(
    plan: KernelPlan,
    options: Options,
    params: tuple[ParamView, ...],
    printer: Printer,
    known: tuple[str, ...],
    unspecialized: list[str],
    tile: tuple[int, int] | None,
    outputs: tuple[str, ...],
    tests: tuple[str, ...],
) -> SplitView | None:
    """None where queries are never so much shorter than keys. `known`: names that a kernel has of itself. `tile`: the
    spec's own. `outputs`: what the forward pass writes. `tests`: the tensors that answer data tests."""
    split = plan.split
    if split is None:
        return None

    def ends(run: tuple[Expr, Expr] | None) -> str:
        return "" if run is None else ", ".join(map(printer.text, run))

    loops = (plan.key_loops.full, plan.key_loops.partial)
    counts = (
        f"{s.name} = {in_brackets(runs, printer).text(s.value)}" for s, runs in zip(split.counts, loops, strict=True)
    )
    seed = ("seed",) if plan.attention.dropout is not None else ()
    return SplitView(
        CUT,
        split.packed,
        "group * Sq" if split.packed else "Sq",
        "Hkv" if split.packed else "Hq",
        (*counts, *plain_lines(split.steps, printer, "pieces")),
        ends(split.full),
        ends(split.partial),
        _merge(plan, params, known),
        ["pieces", *unspecialized],
        tuple(
            (key, share.row)
            for key, share in shares(tile, plan.burden, loads_of(plan).chosen).items()
            if options.holds(*key)
        ),
        ("q", "*ready.tiles(k, v)", "parts", *seed, *tests, "ready.pieces", "*plain", "*known.strides"),
        ("parts", *outputs, "ready.pieces", "*plain"),
    )


def _merge(plan: KernelPlan, params: tuple[ParamView, ...], known: tuple[str, ...]) -> KernelCode:
    """What merging and finishing read: the logits' factor, and the denominator's extra term."""
    outside = passes.forward(plan).head
    code = KernelWriter(plan, params, Level.ROW).write({}, TRUE, known=known, outside=outside)
    return replace(code, results={**dict.fromkeys(("factor", "log2_extra", "extra"), ""), **code.results})
