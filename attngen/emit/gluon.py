"""The forward kernel of compute capability 9.0, beside the portable one: what `templates/gluon/` reads.

Takes the plan, the forward kernel's code and the loops' ranges, as the Triton emitter has them, gives a `GluonView`.
The expressions are Triton's own text, which Gluon takes as it is; Gluon adds layouts, shared memory and barriers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from attngen.emit.kernel_code import KernelCode, free_names
from attngen.emit.params import ParamView
from attngen.emit.tile_code import RangeView, numbering, total
from attngen.emit.triton_expressions import Printer
from attngen.ir.build import apply
from attngen.ir.nodes import Expr, Op, Symbol, Type
from attngen.ir.walk import loads, substitute
from attngen.plan.hopper import skeletons
from attngen.plan.kernel import KernelPlan
from attngen.plan.loops import ZERO, Run
from attngen.plan.schedule import Level, level_of

KEYS_AS_FLOATS: Mapping[Expr, str] = {apply(Op.TO_FLOAT, Symbol("k", Type.INT)): "k_float"}
"""Converting a tile's positions anew for every tile would take half as long as its exponentials."""


@dataclass(frozen=True, slots=True)
class Far:
    """A score for tiles whose pairs all read the same elements: those are `elements`, by the symbols that stand for
    them in `unit`; it holds under all `conditions`."""

    unit: Expr
    elements: Mapping[str, str]
    conditions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FarView:
    """`common` lines serve both forms of the score, `near` ones the general form alone."""

    element_lines: tuple[str, ...]
    condition: str
    common: tuple[str, ...]
    near: tuple[str, ...]


def far_unit(unit: Expr, printer: Printer) -> Far | None:
    """None where some element that the pair reads is not known to be the same far from the diagonal."""
    pairs = [e for e in dict.fromkeys(loads(unit)) if level_of(e) is Level.PAIR]
    found = [printer.far(e) for e in pairs]
    known = [f for f in found if f is not None]
    if not pairs or len(known) < len(pairs):
        return None
    symbols = [Symbol(f"col_far_{i}" if i else "col_far", Type.FLOAT) for i in range(len(pairs))]
    conditions = tuple(dict.fromkeys(condition for condition, _ in known))
    elements = {s.id: element for s, (_, element) in zip(symbols, known, strict=True)}
    return Far(substitute(unit, dict(zip(pairs, symbols, strict=True))), elements, conditions)


def far_view(far: Far, code: KernelCode) -> FarView:
    others = [text for name, text in code.results.items() if name not in ("unit", "log2_extra", "extra") and text]
    needed = set(free_names([*others, code.allowed, *code.mask_lines, *code.weight_lines]))
    common: list[str] = []
    near: list[str] = []
    for line in reversed(code.score_lines):
        if line.split(" = ", 1)[0] in needed:
            common.insert(0, line)
            needed |= free_names([line])
        else:
            near.insert(0, line)
    elements = tuple(f"{name} = {text}" for name, text in far.elements.items())
    condition = " & ".join(f"({c})" for c in far.conditions)
    return FarView(elements, condition, tuple(common), tuple(near))


@dataclass(frozen=True, slots=True)
class GluonView:
    """The lines `at` bind the tile of `step`, of which there are `n_steps`. `masked` says whether this warpgroup's own
    queries need a mask there, by the bounds `own_results`.
    """

    code: KernelCode
    far: FarView | None
    floats: bool  # whether the score reads positions of keys as floats
    arguments: tuple[str, ...]
    key_pointers: tuple[str, ...]
    unspecialized: list[str]
    longest_first: bool
    at: tuple[str, ...]
    n_steps: str
    full: tuple[Run, ...]
    own_results: tuple[str, ...]
    masked: str
    test_lines: tuple[str, ...]
    table: tuple[tuple[tuple[int, int], tuple[int | bool | str, ...]], ...]


def gluon_view(
    plan: KernelPlan,
    code: KernelCode,
    far: FarView | None,
    keys: RangeView,
    params: tuple[ParamView, ...],
    arguments: tuple[str, ...],
    sizes: tuple[str, ...],
    key_pointers: tuple[str, ...],
    tile: tuple[int, int] | None,
) -> GluonView | None:
    """None where no query has a key, so that there is nothing to be fast at, and where no row has the spec's tile."""
    table = skeletons(plan.burden, tile)
    if not table or not (keys.partial or keys.full):
        return None
    unspecialized = ["n_work", *sizes]
    for p in params:
        unspecialized += p.strides[:-1] if p.by_pointer else [p.name]

    def own(name: str) -> str:
        return name if name == ZERO else f"own_{name}"

    outside = [
        f"at >= {own(r.stop)}" if r.start == ZERO else f"(at < {own(r.start)}) | (at >= {own(r.stop)})"
        for r in keys.full
    ]
    masked = outside[0] if len(outside) == 1 else " & ".join(f"({text})" for text in outside) or "True"
    body = [*code.score_lines, *code.weight_lines, *code.mask_lines, *(t for t in code.results.values() if t)]
    return GluonView(
        code,
        far,
        "k_float" in free_names([*body, code.allowed]),
        arguments,
        key_pointers,
        unspecialized,
        plan.longest_first,
        *_walk(keys),
        keys.full,
        tuple(own(name) for name in keys.results),
        masked,
        tuple(line.replace("_matching_tiles(", "_matching_key_tiles(") for line in code.test_lines),
        tuple((key, skeleton.row) for key, skeleton in table.items()),
    )


def _walk(keys: RangeView) -> tuple[tuple[str, ...], str]:
    """How a step's tile is found, and how many there are. One stretch needs no case."""
    runs = (*keys.partial, *keys.full)
    names = ("any_lo", "any_hi")
    if len(keys.full) <= 1 and all(r.start in (*names, ZERO) or r.stop in names for r in keys.partial):
        if "any_lo" in keys.results:
            return ("at = any_lo + step",), "any_hi - any_lo"
        return ("at = step",), "any_hi"
    return numbering(runs, "at"), total(runs)
