"""The code of one Triton kernel, and that of the forward pass.

Takes the module's frame and the results that a kernel needs, returns a `KernelCode`: the plan's expressions with the
data tests that they ask, and dropout.
"""

from __future__ import annotations

from dataclasses import replace

from attngen.emit.triton.code.kernel_code import KernelCode, KernelWriter, free_names
from attngen.emit.triton.portable.data_tests import held_tests
from attngen.emit.triton.portable.frame import Frame
from attngen.emit.triton.portable.views import KeptView
from attngen.ir.build import TRUE
from attngen.ir.nodes import Expr
from attngen.plan import passes
from attngen.plan.levels import Level, level_of

BITS = "bits"
"""Where a map's kernel keeps which pairs of the tiles that are held are allowed."""

_ALLOWED = {
    Level.ROW: f"sm90.kept_pairs(qk, sm90.pair_words(qk, {BITS} + k0 // 32 * config.BQ))",
    Level.COLUMN: "sm90.kept_pairs(like, words)",
}
"""The bools of a tile, by these, in the kernels of compute capability 9.0."""


def forward_code(frame: Frame, *, found: passes.Pass | None = None) -> KernelCode:
    """A pair's logit and weight, and what the end of the pass reads of the denominator. `found`: what is evaluated,
    if it is not what portable kernels evaluate."""
    found = found or passes.forward(frame.plan)
    inside = {name: e for name, e in found.head.items() if name in ("factor", "rise")}  # read in the tile function
    outside = {name: e for name, e in found.head.items() if name not in inside}
    results = {**found.pair, **inside}
    code = kernel_code(frame, Level.ROW, replace(found, pair=results, head=outside))
    return padded(code, "log2_extra", "extra", "factor", "value_scale")


def padded(code: KernelCode, *names: str) -> KernelCode:
    """`code` with empty texts for results that this variant does not have, so that templates may ask for them."""
    return replace(code, results={**dict.fromkeys(names, ""), **code.results})


def kernel_code(frame: Frame, held: Level, evaluated: passes.Pass) -> KernelCode:
    """The kernel that holds a row of tiles, or a column, and what it evaluates in the function of a tile, and outside
    of it."""
    results, outside = dict(evaluated.pair), dict(evaluated.head)
    by_rows = held is Level.ROW
    found, ranges = (
        (frame.plan.key_loops, frame.key_ranges()) if by_rows else (frame.plan.query_loops, frame.query_ranges())
    )
    writer = KernelWriter(frame.plan, frame.params, held)
    writer.printer.fetched = None if evaluated.fetched is None else evaluated.fetched.load
    position = ("q0", "q1", "q_idx") if held is Level.ROW else ("k0", "k1", "k_idx")
    known = (*position, *frame.known, *((BITS,) if frame.bits else ()))
    mask, allowed = (TRUE, _ALLOWED[held]) if frame.bits else (frame.plan.mask(held), "")
    extra: tuple[str, ...] = (allowed,) if by_rows and allowed else ()  # else it has a function of its own
    if frame.plan.attention.dropout is not None:
        counted = {f"counted_{i}": e for i, e in frame.plan.attention.counter.items()}
        results, outside = {**results, **counted}, {**outside, "drop": frame.plan.attention.dropout}
        known = (*known, "seed", "threshold", "inv_keep")
        extra = ("seed, threshold, inv_keep",)
    kept = kept_view(frame) if held is Level.ROW else None
    if kept is not None:
        extra = (*extra, f"_kept_keys({', '.join(kept.arguments)})")
    code = writer.write(
        results,
        mask,
        known=known,
        used_by_template=extra,
        outside=outside,
        range_arguments=frame.range_names(ranges),
        tests=held_tests(frame, found),
        diagonals=evaluated.diagonals,
    )
    code = replace(
        code,
        results={**code.results, **_whole(code, results)},
        mask_lines=(f"allowed = {allowed}",) if allowed else code.mask_lines,
        allowed="allowed" if allowed else code.allowed,
    )
    if frame.plan.attention.dropout is None:
        return code
    drop = code.results["drop"]
    lines = (
        f"drop = tl.cast({drop}, tl.float32)",
        "threshold = tl.cast(tl.cast(drop * 4294967296.0, tl.int64), tl.uint32)",
        "inv_keep = 1.0 / (1.0 - drop)",
    )
    return replace(code, head_lines=(*code.head_lines, *lines))


def kept_view(frame: Frame) -> KeptView | None:
    """The function that tells which rows of K and V matter; None where the mask forbids no key by itself."""
    if frame.plan.keeps_key is None:
        return None
    known = ("k_idx", "batch", "head", "kv_head", "D", "Dv", *frame.arguments)
    writer = KernelWriter(frame.plan, frame.params, Level.COLUMN)
    code = writer.write({"kept": frame.plan.keeps_key}, TRUE, known=known)
    lines = (*code.head_lines, *code.held_lines)
    text = code.results["kept"]
    read = free_names([*lines, text, "Sk"])
    turned = frame.plan.narrow
    return KeptView(tuple(n for n in known[1:] if n in read), lines, text, turned)


def _whole(code: KernelCode, results: dict[str, Expr]) -> dict[str, str]:
    """Logits and weights that are less than one number a pair, brought to the tile's shape, which sums run over.

    A number takes its shape from the products: Gluon's tiles have a layout beside it, which no literal has.
    """
    found: dict[str, str] = {}
    for name in ("unit", "logit", "stream"):
        if name in results and level_of(results[name]) is not Level.PAIR:
            found[name] = f"tl.where(qk == qk, {code.results[name]}, {code.results[name]})"
    return found
