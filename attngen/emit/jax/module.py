"""The jax target: a `KernelPlan` laid out as the views that `templates/jax/` reads.

Takes the plan, the spec's text and the options, returns the source of a standalone module in plain JAX: the tiled
algorithm over tiles of queries, some of them at a time under vmap, in each a loop that stops where the plan's range
ends. What params give, the operands, is prepared outside the differentiated core, as for the Pallas target.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from attngen.emit.arrays.data_tests import answers
from attngen.emit.arrays.tile_code import TileCode, free_names, tile_code
from attngen.emit.jax.names import reserved
from attngen.emit.jax.sums import BY_ROWS, sum_view
from attngen.emit.jax.views import KINDS, PassView, TestView, TilesView
from attngen.emit.jax_shared import public_function
from attngen.emit.jax_shared.expressions import Leaf, Printer, division_helpers
from attngen.emit.jax_shared.operands import Leaves, operand_views, size_names
from attngen.emit.jax_shared.tile_loops import range_function
from attngen.emit.jax_shared.tile_tests import tile_test_view
from attngen.emit.options import Options
from attngen.emit.said import words
from attngen.emit.text.header import Header, header
from attngen.emit.text.loop_steps import step_lines
from attngen.emit.text.names import Names
from attngen.emit.text.params import views
from attngen.emit.text.prune import pruned
from attngen.emit.text.render import render
from attngen.emit.text.weights import weight_view
from attngen.ir import printing
from attngen.ir.nodes import Expr, Load, Scalar, Symbol, Type
from attngen.ir.walk import nodes, reads
from attngen.plan import passes
from attngen.plan.ints.facts import scale_use
from attngen.plan.kernel import KernelPlan, by_lists
from attngen.plan.levels import Level, level_of
from attngen.plan.mask.data_tests import DataTest
from attngen.plan.mask.loops import Loops, Rounded
from attngen.plan.operands import Extent
from attngen.plan.score.weights import Form
from attngen.plan.tiles.portable import PORTABLE

_ENDS = ("any_lo", "any_hi", "all_lo", "all_hi")
_ROW_NAMES = {"lse": "row_lse", "den": "inv_den", "delta": "delta"}
_PRECISION = {"ieee": "HIGHEST", "tf32": "DEFAULT"}
_POSITIONS = {"b": "at_b", "h": "at_h", "hkv": "(at_h // (Hq // max(Hkv, 1)))", "q": "q_idx", "k": "k_idx"}


def emit_jax(plan: KernelPlan, text: str, options: Options, proof: tuple[str, ...] = ()) -> str:
    """The generated module. `text` is the spec as written; it appears in the header as a comment."""
    return _Emitter(plan, text, options, proof).module()


class _Emitter:
    def __init__(self, plan: KernelPlan, text: str, options: Options, proof: tuple[str, ...]):
        self.plan, self.text, self.options, self.proof = plan, text, options, proof
        self.attention, self.weights = plan.attention, plan.weights
        self.names = Names(reserved())
        self.params = views(self.attention, self.names)
        self.sizes = size_names(plan, self.names)
        self.leaves = Leaves(plan, self.params, self.sizes)
        self.operands = operand_views(plan, self.params, self.names, self.leaves, spread_pairs=True)
        self.names.take(*(f"sum_{v.name}" for v in self.operands))
        self.by_expr = {v.operand.expr: v for v in self.operands}
        self.tile = self.attention.tile or PORTABLE
        self.weight_view = weight_view(plan)

    # ------------------------------------------------------------ the module

    def module(self) -> str:
        mapped, test = by_lists(self.plan), self.plan.map
        keys, queries = self.tiles(mapped.key_loops), self.tiles(mapped.query_loops)
        dq = self.backward(Level.ROW)
        door = public_function.door(self.plan, self.params, self.sizes, self.leaves, public_function.JAX)
        context: dict[str, Any] = {
            "a": self.header(),
            "answers": answers("low", "high", "least", "most"),
            "longest_bits": self.plan.choices.longest_bits,
            "scale_use": scale_use(self.attention),
            "w": self.weight_view,
            "divisions": division_helpers(self.plan.choices),
            "tile": self.tile,
            "precision": _PRECISION[self.options.precision],
            "keys": keys,
            "queries": queries,
            "tile_test": None if test is None else tile_test_view(test, self.leaves.printer(), self.operands, "size"),
            "forward": self.forward(),
            "dq": dq,
            "dkdv": self.backward(Level.COLUMN),
            "rows": self.rows(),
            "row_lines": self.row_lines(),
            "ref_lines": self.ref_lines(dq.code),
            "normalised": self.normalised(),
            "dropout": self.attention.dropout is not None,
            "drop_lines": self.drop_lines(),
            "operands": self.operands,
            "own_sizes": tuple(self.sizes[s] for s in self.attention.sizes),
            "size_lines": self.size_lines(),
            "operand_lines": (
                *(f'{v.name} = {v.group}["{v.name}"]' for v in self.operands),
                'scale = data["scale"]',
            ),
            "position_lines": self.positions("bhqk"),
            "prepare_lines": (*self.positions("bh"), *self.padding()),
            "door": door,
        }
        return pruned(render("jax/module.py.j2", context))

    def header(self) -> Header:
        return header(
            self.attention.name,
            self.text,
            title="tiled attention in plain JAX, forward and backward.",
            summary="tile by tile, differentiable in every float argument.",
            said=words(self.options, self.attention.consts, self.tile),
            proof=self.proof,
        )

    def positions(self, axes: str) -> tuple[str, ...]:
        """Lines that bind the positions along these axes."""
        sizes = {"b": "B", "h": "Hq", "q": "Sq", "k": "Sk"}
        shapes = {"b": "-1, 1, 1, 1", "h": "1, -1, 1, 1", "q": "1, 1, -1, 1", "k": "1, 1, 1, -1"}
        return tuple(f"at_{a} = jnp.arange({sizes[a]}).reshape({shapes[a]})" for a in axes)

    def padding(self) -> tuple[str, ...]:
        """Lines that bring operands to a whole number of tiles."""
        lines: list[str] = []
        for v in self.operands:
            if v.extent in (Extent.ROW, Extent.PAIR):
                lines.append(f"{v.name} = _padded({v.name}, 2, TILE_Q)")
            if v.extent in (Extent.COLUMN, Extent.PAIR):
                lines.append(f"{v.name} = _padded({v.name}, 3, TILE_K)")
        return tuple(lines)

    # ------------------------------------------------------------ what a pair of tiles computes

    def leaf(self, e: Leaf) -> str:
        """What leaves are called where a pair of tiles is at hand."""
        match e:
            case Symbol():
                return _POSITIONS.get(e.id) or self.sizes.get(e.id, e.id)
            case Scalar() | Load():
                view = self.by_expr[e]
                text = {
                    Extent.HEAD: view.name,
                    Extent.ROW: f"_rows({view.name}, q0)",
                    Extent.COLUMN: f"_columns({view.name}, k0)",
                    Extent.PAIR: f"_columns(_rows({view.name}, q0), k0)",
                    Extent.DISTANCE: f"_at_distance({view.name}, q_idx, k_idx, Sq)",
                }[view.extent]
                return f"({text} != 0)" if e.type is Type.BOOL else text

    def printer(self) -> Printer:
        return Printer(self.plan.choices, self.leaf)

    def write(self, held: Level, results: Mapping[str, Expr], outside: Mapping[str, Expr]) -> TileCode:
        names = self.names.copy()
        results = {**results, **{f"counted_{i}": e for i, e in self.attention.counter.items()}}
        code = tile_code(self.printer(), names, held, results, self.attention.mask, outside, whole_loads=True)
        whole = {
            name: f"jnp.broadcast_to({code.results[name]}, qk.shape)"
            for name in ("unit", "logit", "stream")
            if name in results and level_of(results[name]) is not Level.PAIR
        }
        empty = dict.fromkeys(("factor", "log2_extra", "extra", "kappa", "d_pair", "d_factor"), "")
        edge = "(k_idx < Sk)" if held is Level.ROW else "(q_idx < Sq)"
        mask = code.allowed
        allowed = f"{edge} & {mask if mask.isidentifier() else f'({mask})'}" if mask else edge
        return replace(code, results={**empty, **code.results, **whole}, allowed=allowed)

    def forward(self) -> TileCode:
        found = passes.forward(self.plan)
        return self.write(Level.ROW, found.pair, found.head)

    def backward(self, held: Level) -> PassView:
        own = [(self.by_expr[g.leaf], g) for g in self.plan.gradients]
        own = [(view, g) for view, g in own if (view.extent in BY_ROWS) == (held is Level.ROW)]
        found = passes.backward(self.plan, ((view.name, g) for view, g in own))
        code = self.write(held, found.pair, found.head)
        sums = (sum_view(view, g, code, i, self.normalised()) for i, (view, g) in enumerate(own))
        return PassView(code, tuple(sums))

    def drop_lines(self) -> tuple[str, ...]:
        if self.attention.dropout is None:
            return ()
        drop = self.printer().text(self.attention.dropout)
        return (
            f"drop = jnp.asarray({drop}, jnp.float32)",
            "threshold = _threshold(drop)",
            "inv_keep = 1.0 / (1.0 - drop)",
        )

    # ------------------------------------------------------------ rows

    def normalised(self) -> str:
        return " * inv_den" if self.weight_view.saves_den else ""

    def rows(self) -> tuple[str, ...]:
        """What the backward passes read of each row."""
        return tuple(_ROW_NAMES[row] for row in passes.rows(self.plan))

    def row_lines(self) -> tuple[str, ...]:
        lse = "jnp.where(lse == -jnp.inf, jnp.inf, lse * LOG2E)"
        delta = 'jnp.einsum("bqhd,bqhd->bhq", d_out, out, precision=lax.Precision.HIGHEST) - d_lse'
        lines = {
            "row_lse": f"row_lses = _padded({lse}, 2, TILE_Q, jnp.inf)[..., None]",
            "inv_den": "inv_dens = _padded(1.0 / den, 2, TILE_Q)[..., None]",
            "delta": f"deltas = _padded({delta}, 2, TILE_Q)[..., None]",
        }
        return tuple(lines[name] for name in self.rows())

    def ref_lines(self, code: TileCode) -> tuple[str, ...]:
        """Both backward passes name the head's factor alike."""
        return (f"row_ref = row_lse / {code.results['kappa']}",) if self.weights.form is Form.SHIFTED else ()

    # ------------------------------------------------------------ tile ranges

    def bound_leaf(self, e: Leaf) -> str:
        match e:
            case Symbol():
                return {**_POSITIONS, "q": "q", "k": "k"}.get(e.id) or self.sizes.get(e.id, e.id)
            case Scalar() | Load():
                name = self.by_expr[e].name
                return f"({name} != 0)" if e.type is Type.BOOL else name

    def size_lines(self) -> tuple[str, ...]:
        return tuple(f"{s} = size.{s}" for s in self.sizes.values())

    def tiles(self, found: Loops) -> TilesView:
        printer = Printer(self.plan.choices, self.bound_leaf)
        block = "TILE_K" if found.axis == "k" else "TILE_Q"
        side = "key" if found.axis == "k" else "query"
        if self.plan.map is not None:
            return self.listed(found, side, block)
        lines = step_lines(found.steps, rounded=lambda s: _rounded(s, printer, block), text=printer.text)
        read = free_names(lines)
        answers = [f"{t.name}_{end}" for t in found.tests for end in _ENDS]
        others = ("at_b", "at_h", "scale", *(v.name for v in self.operands))
        arguments = tuple(n for n in (*answers, *others) if n in read)
        body = (*self.size_lines(), *lines)
        return TilesView(
            found.axis,
            arguments,
            range_function(found, (found.full, found.partial), (*arguments, "size"), body, printer),
            tuple(self.test(t, found.axis) for t in found.tests),
            tuple(f"{side}_{t.name}s = _{side}_{t.name}(size, floats, data)" for t in found.tests),
            tuple(f"{', '.join(f'{t.name}_{end}' for end in _ENDS)} = {side}_{t.name}s[number]" for t in found.tests),
            mapped=False,
        )

    def listed(self, found: Loops, side: str, block: str) -> TilesView:
        """The loops over places of lists."""
        tests = "_tile_test(size, floats, data)"
        tests, size = (f"*{tests}", "Sk") if found.axis == "k" else (f"*(x.T for x in {tests})", "Sq")
        printer = Printer(self.plan.choices, self.bound_leaf)
        return TilesView(
            found.axis,
            ("listed[0]", "listed[1]"),
            range_function(found, (found.full, found.partial), (*found.names, "size"), (), printer),
            (),
            (f"{side}_lists = _lists({tests}, {size} % {block})",),
            (f"listed = {side}_lists[number]",),
            mapped=True,
        )

    def test(self, t: DataTest, axis: str) -> TestView:
        held, walked = (t.row, t.col) if axis == "k" else (t.col, t.row)
        printer = self.leaves.printer()
        return TestView(
            f"{'key' if axis == 'k' else 'query'}_{t.name}",
            f"{printing.expression(t.row)} {t.sign} {printing.expression(t.col)}",
            "queries" if axis == "k" else "keys",
            printer.text(held),
            printer.text(walked),
            KINDS[t.code(axis)],
        )


def _rounded(step: Rounded, printer: Printer, block: str) -> str:
    text = printer.text(step.bound)
    if reads(step.bound, "b", "h", "hkv", "scale") or any(isinstance(n, Scalar | Load) for n in nodes(step.bound)):
        text = f"{'_greatest' if step.up else '_least'}({text})"
    return f"{'_up' if step.up else '_down'}({text}, {block})"
