"""The Pallas target: a `KernelPlan` laid out as the views that `templates/pallas/` reads.

Takes the plan, the spec's text and the options, returns the source of a standalone module for TPUs. Every choice stands
in the plan or here; the templates only place it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, assert_never

from attngen.emit.jax_shared import public_function
from attngen.emit.jax_shared.expressions import Leaf, Printer, division_helpers
from attngen.emit.jax_shared.operands import Leaves, OperandView, cell, operand_views, size_names
from attngen.emit.jax_shared.tile_loops import range_function
from attngen.emit.jax_shared.tile_tests import TileTestView, tile_test_view
from attngen.emit.options import Options
from attngen.emit.pallas.kernel_code import KernelWriter, Number, PallasCode
from attngen.emit.pallas.names import reserved
from attngen.emit.pallas.views import (
    KEYS,
    QUERIES,
    MapView,
    PairSum,
    RangesView,
    RowInput,
    RowsView,
    Sum,
    TestView,
    WalksView,
)
from attngen.emit.said import words
from attngen.emit.text.header import Header, header
from attngen.emit.text.loop_steps import step_lines
from attngen.emit.text.names import Names
from attngen.emit.text.params import views
from attngen.emit.text.prune import pruned
from attngen.emit.text.render import render
from attngen.emit.text.weights import weight_view
from attngen.errors import InternalError
from attngen.ir import printing
from attngen.ir.build import index, integer, real
from attngen.ir.function import inlined
from attngen.ir.nodes import Expr, Load, Scalar, Symbol, Type
from attngen.ir.walk import named, reads, substitute
from attngen.plan import passes
from attngen.plan.index import items
from attngen.plan.ints.facts import scale_use
from attngen.plan.kernel import Gather, KernelPlan, LeafGradient, by_lists
from attngen.plan.levels import Level
from attngen.plan.mask.data_tests import DataTest
from attngen.plan.mask.lists import Lists
from attngen.plan.mask.loops import Loops, Rounded, Step
from attngen.plan.mask.tpu_walks import Runs, TpuWalks
from attngen.plan.operands import Extent, expressions, outside_of_indices
from attngen.plan.score.fold_factor import folded
from attngen.plan.score.weights import Form
from attngen.plan.tiles import tpu as tpu_tiles

_WITH_ROWS = (Extent.HEAD, Extent.ROW, Extent.DISTANCE)
"""Operands whose gradients are summed where a tile of queries is held, beside dQ."""
_WITH_COLUMNS = (Extent.HEAD, Extent.COLUMN)
"""And where a tile of keys is: a head's pairs may be summed in either order."""
_ALONG_ROWS = (Extent.HEAD, Extent.ROW)
_ENDS = ("any_lo", "any_hi", "all_lo", "all_hi")
_PRECISION = {"ieee": "HIGHEST", "tf32": "DEFAULT"}


def emit_pallas(plan: KernelPlan, text: str, options: Options, proof: tuple[str, ...] = ()) -> str:
    """The generated module. `text` is the spec as written; it appears in the header as a comment."""
    return _Emitter(plan, text, options, proof).module()


@dataclass(frozen=True, slots=True)
class LaunchView:
    fuses: bool  # dQ, dK and dV can come from one kernel
    walked_bytes: int  # of vectors, for each walked position
    held_bytes: int
    pair_bytes: int  # of operands that each pair has a cell of
    tile_bytes: int  # of values in flight, for each pair of a tile
    crossable: bool  # wide matrix units may have keys down and queries across


@dataclass(frozen=True, slots=True)
class SpreadView:
    """Whether XLA may spread batches, and heads, over a mesh."""

    batches: bool
    heads: bool


class _Emitter:
    def __init__(self, plan: KernelPlan, text: str, options: Options, proof: tuple[str, ...]):
        self.plan, self.text, self.options, self.proof = plan, text, options, proof
        self.attention, self.weights = plan.attention, plan.weights
        self.names = Names(reserved())
        self.params = views(self.attention, self.names)
        self.sizes = size_names(plan, self.names)
        self.leaves = Leaves(plan, self.params, self.sizes)
        self.operands = operand_views(plan, self.params, self.names, self.leaves, spread_pairs=False)
        self.by_expr = {v.operand.expr: v for v in self.operands}
        self.weight_view = weight_view(plan)

    # ------------------------------------------------------------ the module

    def module(self) -> str:
        mapped = by_lists(self.plan)
        walks = mapped.tpu_walks
        assert walks is not None
        keys, queries = self.ranges(mapped.key_loops, walks.keys), self.ranges(mapped.query_loops, walks.queries)
        dq, dq_sums = self.backward(Level.ROW, keys, _WITH_ROWS)
        dkdv, dkdv_sums = self.backward(Level.COLUMN, queries, (Extent.COLUMN,))
        fused, fused_sums = self.backward(Level.COLUMN, queries, _WITH_COLUMNS)
        door = public_function.door(self.plan, self.params, self.sizes, self.leaves, public_function.PALLAS)
        table = tpu_tiles.table(self.attention.tile)
        for t in self.options.tuned:
            table[t.chip, t.itemsize] = tpu_tiles.row(t.forward, t.dkdv, t.dq)
        context: dict[str, Any] = {
            "a": self.header(),
            "longest_bits": self.plan.choices.longest_bits,
            "scale_use": scale_use(self.attention),
            "w": self.weight_view,
            "divisions": division_helpers(self.plan.choices),
            "f": self.forward(keys),
            "across_code": self.forward(keys, across=True),
            "keys": keys,
            "queries": queries,
            "tile_test": self.tile_test(),
            "places": () if self.plan.map is None else self.places(self.plan.map.lists),
            "walks": _walks(walks, Printer(self.plan.choices, _name)),
            "rows": self.rows(),
            "dq_code": dq,
            "dq_sums": dq_sums,
            "dkdv_code": dkdv,
            "dkdv_sums": dkdv_sums,
            "fused_code": fused,
            "fused_sums": fused_sums,
            "pair_sums": [self.pair_sum(g, keys) for g in self.pair_gradients()],
            "dropout": self.attention.dropout is not None,
            "operands": self.operands,
            "own_sizes": tuple(self.sizes[s] for s in self.attention.sizes),
            "size_lines": self.size_lines(),
            "operand_lines": (
                *(f'{v.name} = {v.group}["{v.name}"]' for v in self.operands),
                'scale = data["scale"]',
            ),
            "position_lines": public_function.PAIRS_AT,
            "launch": self.launch(),
            "door": door,
            "spread": self.spread(),
            "vmem": tpu_tiles.VMEM,
            "straight": tpu_tiles.STRAIGHT,
            "lists": tpu_tiles.LISTS,
            "wide": tpu_tiles.WIDE,
            "piece": tpu_tiles.PIECE,
            "ahead": tpu_tiles.AHEAD,
            "tiles": [(key, tuple((t.queries, t.keys, t.unroll) for t in row)) for key, row in table.items()],
        }
        return pruned(render("pallas/module.py.j2", context))

    def header(self) -> Header:
        a = self.attention
        return header(
            a.name,
            self.text,
            title="fused attention for TPUs, forward and backward, in Pallas.",
            summary="fused, differentiable in every float argument.",
            said=words(self.options, a.consts, a.tile),
            proof=self.proof,
            precision=_PRECISION[self.options.precision],
        )

    def launch(self) -> LaunchView:
        extents = [v.extent for v in self.operands]
        return LaunchView(
            fuses=self.fuses(),
            walked_bytes=4 * (2 + len(extents)),
            held_bytes=4 * 128 * (4 + len(extents)),
            pair_bytes=4 * extents.count(Extent.PAIR),
            tile_bytes=4 * 6,
            crossable=self.weights.form is Form.EXPONENTIAL and self.attention.dropout is None,
        )

    def spread(self) -> SpreadView:
        """Operands are cut like q. A core that reads its batch or head, or how many there are, must have them all."""
        read = {n.id for n in outside_of_indices(expressions(self.plan)) if isinstance(n, Symbol)}
        alone = self.attention.dropout is not None  # which counts batches and heads
        return SpreadView(
            batches=not alone and not read & {"b", "B"}, heads=not alone and not read & {"h", "hkv", "Hq", "Hkv"}
        )

    # ------------------------------------------------------------ kernels

    def write(
        self,
        held: Level,
        results: Mapping[str, Expr],
        outside: Mapping[str, Expr],
        ranges: RangesView,
        *,
        across: bool = False,
    ) -> PallasCode:
        factor, results = folded(results) if self.folds() else (None, results)
        if factor is not None:
            outside = {"fold": named(factor, "logit_scale"), **outside}
        if self.attention.dropout is not None:
            o = self.attention.origin
            first = {"first_b": o.b, "first_h": o.h, "first_q": o.q, "first_k": o.k}
            outside = {**outside, "drop": self.attention.dropout, **first}
        writer = KernelWriter(self.plan, self.operands, self.leaves, self.names, held, across=across)
        for number in ranges.numbers:
            writer.numbers.setdefault(number.name, number)
        code = writer.write(results, self.attention.mask, outside)
        code = code.with_dropout(self.attention.origin)
        return code.with_results("fold", "log2_extra", "extra", "factor", "kappa", "d_factor")

    def folds(self) -> bool:
        """Whether q may have the factor of q . k inside: not where a param's gradient is summed along rows.

        q times the factor is rounded to q's dtype, alike in every kernel. In bfloat16 what a row's derivatives lose by
        it, times the row's position, was 0.57 of such a gradient where logits had a deviation of 100, 0.003 without.
        """
        return not any(g.pair is not None and self.by_expr[g.leaf].extent in _ALONG_ROWS for g in self.plan.gradients)

    def forward(self, keys: RangesView, *, across: bool = False) -> PallasCode:
        found = passes.forward(self.plan, scaled=True)
        outside = {n: named(e, "extra_term") if n in ("extra", "log2_extra") else e for n, e in found.head.items()}
        return self.write(Level.ROW, found.pair, outside, keys, across=across)

    def backward(
        self, held: Level, ranges: RangesView, extents: tuple[Extent, ...]
    ) -> tuple[PallasCode, tuple[Sum, ...]]:
        own = [(self.by_expr[g.leaf], g) for g in self.plan.gradients if self.by_expr[g.leaf].extent in extents]
        results, outside = self.again((view.name, g) for view, g in own)
        code = self.write(held, results, outside, ranges)
        return code, tuple(self.sum(view, g, code, held) for view, g in own)

    def again(self, own: Iterable[tuple[str, LeafGradient]]) -> tuple[dict[str, Expr], dict[str, Expr]]:
        """What a backward kernel evaluates for a pair, and for a head."""
        own = tuple(own)
        found = passes.backward(self.plan, own)
        first = {n: found.pair[n] for n in ("logit", "stream", "slope") if n in found.pair}
        parts = [f"{part}_{name}" for name, g in own for part in ("pair", "weight") if getattr(g, part) is not None]
        results = first | dict.fromkeys(("d_pair", *parts), real(1.0)) | dict(found.pair)
        outside = {n: named(e, "d_factor") if n == "d_factor" else e for n, e in found.head.items()}
        if "log2_extra" in outside:
            outside["log2_extra"] = named(outside["log2_extra"], "extra_term")
        return results, outside

    def sum(self, view: OperandView, g: LeafGradient, code: PallasCode, held: Level) -> Sum:
        extra = ""
        if g.extra is not None:  # a row's, summed on the host: the kernels' numbers have the same names there
            term = code.results["log2_extra"]
            share = f"jnp.exp2({term} - lse[..., None])" if term else "(1.0 / den[..., None])"
            extra = f"-delta[..., None] * {share} * {_factor(code.results.get(f'extra_{view.name}', '1.0'))}"
        return Sum(f"sum_{view.name}", view.name, view.extent.value, self.contribution(view.name, g, code, held), extra)

    def contribution(self, name: str, g: LeafGradient, code: PallasCode, held: Level) -> str:
        parts: list[str] = []
        if g.pair is not None:
            parts.append(f"g * {_factor(code.results[f'pair_{name}'])}")
        if g.weight is not None:
            share = "_across(inv_den, width)" if held is Level.ROW else "inv_den"
            normalised = f" * {share}" if self.rows().normalised else ""
            parts.append(f"dp * {_factor(code.results[f'weight_{name}'])}{normalised}")
        return " + ".join(parts) or "g * 0.0"

    def pair_gradients(self) -> list[LeafGradient]:
        return [g for g in self.plan.gradients if g.gather in (Gather.DENSE, Gather.SCATTER)]

    def pair_sum(self, g: LeafGradient, keys: RangesView) -> tuple[PairSum, PallasCode]:
        view = self.by_expr[g.leaf]
        results, outside = self.again(((view.name, replace(g, extra=None)),))
        outside.pop("d_factor", None)
        code = self.write(Level.ROW, results, outside, keys)
        return PairSum(
            f"pairs_of_{view.name}",
            view.name,
            printing.expression(g.leaf),
            view.operand.per_batch,
            view.operand.per_head,
            self.contribution(view.name, g, code, Level.ROW),
        ), code

    def fuses(self) -> bool:
        """Whether one kernel can give dQ, dK, dV and every operand's gradient: none needs a tile of queries held."""
        own = {self.by_expr[g.leaf].extent for g in self.plan.gradients}
        return not own & (set(_WITH_ROWS) - set(_WITH_COLUMNS))

    def rows(self) -> RowsView:
        """What each row brings to the backward kernels."""
        w = self.weights
        inputs: list[RowInput] = []
        held: list[str] = []
        walked: list[str] = []

        def take(name: str, missing: str, line: str) -> None:
            inputs.append(RowInput(name, missing))
            held.append(line.replace("ROW", f"_held({name}_ref[...])"))
            walked.append(line.replace("ROW", f"{name}_ref[walked]"))

        for row in passes.rows(self.plan):
            match row:
                case "lse":
                    take("lse", "jnp.inf", "row_lse = ROW")
                case "den":
                    take("den", "jnp.inf", "inv_den = 1.0 / ROW")
                case "delta":
                    take("delta", "0.0", "delta = ROW")
                case _:
                    assert_never(row)
        normalised = w.form is Form.DIRECT and w.sums
        return RowsView(tuple(inputs), tuple(held), tuple(walked), normalised, w.sums)

    # ------------------------------------------------------------ tile ranges

    def size_lines(self) -> tuple[str, ...]:
        return tuple(f"{s} = size.{s}" for s in self.sizes.values())

    def ranges(self, found: Loops, runs: Runs) -> RangesView:
        numbers: dict[str, Number] = {}
        plain: dict[str, tuple[str, str]] = {}

        def leaf(e: Leaf) -> str:
            match e:
                case Symbol():
                    if e.id in ("b", "h"):
                        name = {"b": "batch", "h": "head"}[e.id]
                        plain[name] = (name, f"at_{e.id}")
                        return name
                    if e.id == "hkv":
                        plain["kv_head"] = ("_share(head, Hq, Hkv)", "(at_h // (Hq // max(Hkv, 1)))")
                        return "kv_head"
                    if e.id == "scale":
                        numbers["scale"] = Number("scale", "scale", "0")
                        plain["scale"] = ("scale_ref[0]", "scale")
                        return "scale"
                    return self.sizes.get(e.id, e.id)
                case Scalar() | Load():
                    view = self.by_expr[e]
                    numbers[view.name] = Number(view.name, view.name, view.number)
                    plain[view.name] = (f"{view.name}_ref[{view.number}]", view.name)
                    return f"({view.name} != 0)" if e.type is Type.BOOL else view.name

        map = self.map(found.axis)
        if map is not None:
            begin = f"{map.name}_map_ref[listed"
            plain |= {name: (f"{begin}{' + 1' * n}]", name) for n, name in enumerate(found.names)}
        printer = Printer(self.plan.choices, leaf)
        lines = _steps(found.steps, printer)
        views = tuple(self.test(t, found.axis) for t in found.tests)
        answers = tuple(f"{t.name}_{end}" for t in found.tests for end in _ENDS)
        parameters = (*answers, *plain)
        body = (*self.size_lines(), *lines) if lines else ()
        return RangesView(
            found.axis,
            range_function(found, (runs.unmasked, runs.masked), (*parameters, "size", "block"), body, printer),
            parameters,
            (*(t.answer for t in views), *(kernel for kernel, _ in plain.values())),
            tuple(host for _, host in plain.values()),
            tuple(numbers.values()),
            views,
            found.in_ints,
            map,
        )

    def tile_test(self) -> TileTestView | None:
        test = self.plan.map
        if test is None:
            return None
        given = f"size, tile, {self.places(test.lists)[1]}"
        return tile_test_view(test, self.leaves.printer(), self.operands, given)

    def places(self, lists: Lists) -> tuple[str, str]:
        """How many batches, and heads, have lists of their own."""
        return "B" if lists.by_batch else "1", "1" if not lists.by_head else "Hkv" if lists.shared else "Hq"

    def map(self, axis: str) -> MapView | None:
        """Of the tiles of an axis."""
        if self.plan.map is None:
            return None
        lists = self.plan.map.lists
        batches, heads = self.places(lists)
        held, walked = (QUERIES, KEYS) if axis == "k" else (KEYS, QUERIES)
        return MapView(
            name="key" if axis == "k" else "query",
            held=held,
            walked=walked,
            turned="" if axis == "k" else ".mT",
            places=f"{batches}, {heads}",
            entry=self.list_entry(),
        )

    def list_entry(self) -> str:
        """The number of the list of a batch, a head and a tile, by the functions that are proved."""
        (place,) = inlined(items().of("list_of", BY_BATCH=True, BY_HEAD=True))
        (entry,) = inlined(items().of("entry_of"))
        own: dict[Expr, Expr] = {index("place"): place, index("part"): integer(0), index("parts"): integer(1)}

        def leaf(e: Leaf) -> str:
            return {"Hq": "heads"}.get(_name(e), _name(e))

        return Printer(replace(self.plan.choices, wide=()), leaf).text(substitute(entry, own))

    def test(self, t: DataTest, axis: str) -> TestView:
        held, walked = (t.row, t.col) if axis == "k" else (t.col, t.row)
        batch = reads(t.row, "b") or reads(t.col, "b")
        head = reads(t.row, "h", "hkv") or reads(t.col, "h", "hkv")
        program = cell(batch, head)
        printer, extremes = self.leaves.printer(), Printer(self.plan.choices, _name)
        return TestView(
            f"{'key' if axis == 'k' else 'query'}_{t.name}",
            f"{printing.expression(t.row)} {t.sign} {printing.expression(t.col)}",
            "queries" if axis == "k" else "keys",
            printer.text(held),
            printer.text(walked),
            extremes.text(t.can(axis)),
            extremes.text(t.must(axis)),
            f"({program}) * n_held + held",
        )


def _steps(steps: Iterable[Step], printer: Printer) -> tuple[str, ...]:
    def rounded(step: Rounded) -> str:
        return f"{'_up' if step.up else '_down'}({printer.text(step.bound)}, block)"

    return step_lines(steps, rounded=rounded, text=printer.text)


def _name(e: Leaf) -> str:
    """Values of walks, and what a data test concludes, are over names that the templates bind."""
    if not isinstance(e, Symbol):
        raise InternalError("a param in a walk")
    return e.id


def _walks(walks: TpuWalks, printer: Printer) -> WalksView:
    grid, rounds, resident, straight = walks.grid, walks.rounds, walks.resident, walks.straight
    return WalksView(
        length=printer.text(walks.numbering.length),
        first=printer.text(walks.numbering.first),
        steps=_steps(walks.numbering.steps, printer),
        needed=printer.text(grid.needed),
        suffice=printer.text(grid.suffice),
        number=printer.text(grid.number),
        brought=printer.text(grid.brought),
        grid_unmasked=printer.text(grid.unmasked),
        grid_masked=printer.text(grid.masked),
        own=printer.text(grid.own),
        rounds=_in_rounds(rounds.rounds, printer),
        step=printer.text(rounds.step),
        rest=printer.text(rounds.rest),
        resident_looped=printer.text(resident.looped),
        some=printer.text(resident.some),
        none=printer.text(resident.none),
        last=printer.text(resident.last),
        straight_rounds=_in_rounds(straight.rounds, printer),
        straight_looped=printer.text(straight.looped),
        left=printer.text(straight.left),
        straight_unmasked=printer.text(straight.unmasked),
        straight_masked=printer.text(straight.masked),
        pairs=printer.text(walks.pairs),
    )


def _in_rounds(count: Rounded, printer: Printer) -> str:
    return f"{'_up' if count.up else '_down'}({printer.text(count.bound)}, unroll)"


def _factor(text: str) -> str:
    return text if re.fullmatch(r"[\w.]+", text) else f"({text})"
