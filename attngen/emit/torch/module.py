"""The torch target: a `KernelPlan` laid out as the views that `templates/torch/` reads.

Takes the plan, the spec's text and the options, returns the source of a standalone module in plain PyTorch: the tiled
algorithm as loops over slices, all batches and heads at a time, its backward pass by recomputation.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attngen.emit.arrays.data_tests import answers
from attngen.emit.arrays.tile_code import TileCode, free_names, tile_code
from attngen.emit.arrays.views import DoorView, TestView
from attngen.emit.options import Options
from attngen.emit.said import words
from attngen.emit.text.header import Header, header
from attngen.emit.text.names import Names
from attngen.emit.text.params import views
from attngen.emit.text.prune import pruned
from attngen.emit.text.render import render
from attngen.emit.text.weights import weight_view
from attngen.emit.torch.leaves import Leaves
from attngen.emit.torch.names import reserved
from attngen.emit.torch.param_gradients import gradient_views, leaf_views
from attngen.emit.torch.tile_loops import tiles_view
from attngen.emit.torch_shared.checks import check_lines, size_checks
from attngen.emit.torch_shared.facts import torch_facts
from attngen.emit.torch_shared.leaves import host_names
from attngen.emit.torch_shared.public_function import bound_sizes, conversions, param_doc, repeated, zeros
from attngen.errors import InternalError
from attngen.ir import printing
from attngen.ir.nodes import SIZES, Expr
from attngen.plan import passes
from attngen.plan.ints.facts import scale_use
from attngen.plan.kernel import KernelPlan
from attngen.plan.levels import Level, level_of
from attngen.plan.score.weights import Form
from attngen.plan.tiles.portable import PORTABLE

_OPTIONAL = ("unit", "factor", "logit", "log2_extra", "extra", "kappa", "stream", "slope", "d_pair", "d_factor")
_ROW_NAMES = {"lse": "row_lse", "den": "inv_den", "delta": "delta"}


def emit_torch(plan: KernelPlan, text: str, options: Options, proof: tuple[str, ...] = ()) -> str:
    """The generated module. `text` is the spec as written; it appears in the header as a comment."""
    if not reserved().isdisjoint(plan.attention.sizes):
        raise InternalError("the plan was made without the target's reserved names")
    return _Emitter(plan, text, options, proof).module()


class _Emitter:
    def __init__(self, plan: KernelPlan, text: str, options: Options, proof: tuple[str, ...]):
        self.plan, self.text, self.options, self.proof = plan, text, options, proof
        self.attention = plan.attention
        self.params = views(self.attention, Names(reserved() | set(self.attention.sizes)))
        self.leaves = Leaves(plan, self.params)
        self.tile = self.attention.tile or PORTABLE
        self.weight_view = weight_view(plan)

    def module(self) -> str:
        masked = self.forward().masked
        keys = tiles_view(self.plan.key_loops, self.leaves, masked=masked)
        forward, backward = self.forward(), self.backward()
        leaves = leaf_views(self.plan, self.params, self.leaves, backward, self.normalised())
        gradients = gradient_views(self.plan, self.params)
        tests = tuple(self.test_view(i) for i in range(len(self.plan.key_loops.tests)))
        params = "".join(f", {p.name}" for p in self.params)
        dropout = self.attention.dropout is not None
        context: dict[str, Any] = dict(  # noqa: C408 - the keys are the templates' names
            a=self.header(),
            answers=answers("least", "most", "low", "high"),
            longest_bits=self.plan.choices.longest_bits,
            scale_use=scale_use(self.attention),
            w=self.weight_view,
            tile=self.tile,
            keys=keys,
            tests=tests,
            test_lines=tuple(
                f"key_{t.name}_least, key_{t.name}_most = _key_{t.name}({', '.join(t.arguments)})" for t in tests
            ),
            key_loop=f"{keys.loop} in _key_tiles({', '.join(keys.arguments)})",
            forward=forward,
            backward=backward,
            plain_params=params,
            size_lines=tuple(bound_sizes(self.plan, self.params)),
            repeat_lines=tuple(repeated(self.plan, self.params)),
            dropout=dropout,
            seed=", seed" if dropout else "",
            drop_lines=self.drop_lines(),
            leaves=leaves,
            gradients=gradients,
            returned=", ".join(["dq", "dk", "dv", *(g.total for g in gradients)]),
            row_lines=self.row_lines(),
            row_names=self.row_names(),
            ref_lines=(f"row_ref = row_lse / {backward.results['kappa']}",)
            if self.plan.weights.form is Form.SHIFTED
            else (),
            normalised=self.normalised(),
            saved_tensors="".join(f"{p.name}, " for p in self.params if p.by_pointer),
            values=tuple(p.name for p in self.params if not p.by_pointer),
            returned_gradients=self.returned_gradients(),
            door=self.door(),
            keeps=self.keeps(),
        )
        return pruned(render("torch/module.py.j2", context))

    def header(self) -> Header:
        return header(
            self.attention.name,
            self.text,
            title="tiled attention in plain PyTorch, forward and backward.",
            summary="tile by tile, differentiable in every float argument.",
            said=words(self.options, self.attention.consts, self.tile, precision=False),
            proof=self.proof,
        )

    # ------------------------------------------------------------ loops

    def write(self, results: Mapping[str, Expr], outside: Mapping[str, Expr]) -> TileCode:
        names = Names(reserved() | set(self.attention.sizes))
        names.take(*self.leaves.names())
        outside = {**outside, **{t.name: t.row for t in self.plan.key_loops.tests}}
        if self.attention.dropout is not None:
            outside["drop"] = self.attention.dropout
        results = {**results, **{f"counted_{i}": e for i, e in self.attention.counter.items()}}
        code = tile_code(self.leaves.printer(), names, Level.ROW, results, self.attention.mask, outside)
        whole = {
            name: f"torch.as_tensor({code.results[name]}, dtype=torch.float32, device=q.device).expand(qk.shape)"
            for name in ("unit", "logit", "stream")
            if name in results and level_of(results[name]) is not Level.PAIR
        }
        empty = dict.fromkeys(_OPTIONAL, "")
        return TileCode(
            code.head_lines, (*code.held_lines, *self.held_tests(code)), code.score_lines, code.weight_lines,
            code.mask_lines, {**empty, **code.results, **whole}, code.allowed,
        )  # fmt: skip

    def forward(self) -> TileCode:
        found = passes.forward(self.plan)
        return self.write(found.pair, found.head)

    def backward(self) -> TileCode:
        found = passes.backward(self.plan, ((str(number), g) for number, g in enumerate(self.plan.gradients)))
        return self.write(found.pair, found.head)

    def drop_lines(self) -> tuple[str, ...]:
        if self.attention.dropout is None:
            return ()
        drop = self.leaves.printer().text(self.attention.dropout)
        return (
            f"drop = torch.as_tensor({drop}, dtype=torch.float32, device=q.device)",
            "threshold = (drop.double() * 4294967296.0).long()",
            "inv_keep = 1.0 / (1.0 - drop)",
        )

    def normalised(self) -> str:
        return " * inv_den" if self.weight_view.saves_den else ""

    def row_names(self) -> tuple[str, ...]:
        """What the backward pass reads of each row."""
        return tuple(_ROW_NAMES[row] for row in passes.rows(self.plan))

    def row_lines(self) -> tuple[str, ...]:
        lines = {
            "row_lse": "row_lses = torch.where(lse == -math.inf, math.inf, lse * LOG2E)[..., None]",
            "inv_den": "inv_dens = 1.0 / den[..., None]",
            "delta": "deltas = (d_out * out).sum(-1, keepdim=True) - d_lse[..., None]",
        }
        return tuple(lines[name] for name in self.row_names())

    def keeps(self) -> str:
        """Which keys a condition on the key alone leaves; empty where it leaves all."""
        found = self.plan.keeps_key
        return "" if found is None else self.leaves.printer().text(found)

    # ------------------------------------------------------------ data tests

    def test_view(self, number: int) -> TestView:
        t = self.plan.key_loops.tests[number]
        value = self.leaves.printer().text(t.col)
        read = free_names([value])
        arguments = tuple(
            n
            for n in ("q", *SIZES, "batch", "head", "kv_head", "scale", *self.leaves.names())
            if n in read | {"q", "Sk"}
        )
        return TestView(t.name, printing.expression(t.col), arguments, (), value)

    def held_tests(self, code: TileCode) -> tuple[str, ...]:
        """Lines that answer the data tests for the tile that is held, by the names of this pass."""
        lines: list[str] = []
        for t in self.plan.key_loops.tests:
            bounds = ", ".join(f"{t.name}_{which}" for which in ("any_lo", "any_hi", "all_lo", "all_hi"))
            held = code.results[t.name]
            lines.append(f'{bounds} = _matching_tiles({held}, key_{t.name}_least, key_{t.name}_most, "{t.sign}")')
        return tuple(lines)

    # ------------------------------------------------------------ the door

    def returned_gradients(self) -> str:
        """`dq, dk, dv` is followed by these: one for each param."""
        totals = {g.param: g.total for g in gradient_views(self.plan, self.params)}
        return "".join(f", {totals.get(p.name, zeros(p, number))}" for number, p in enumerate(self.params))

    def door(self) -> DoorView:
        checks = (*check_lines(self.plan, self.params, spans=False), *size_checks(self.plan, self.params))
        return DoorView(
            self.params,
            ("q", "k", "v", *(p.name for p in self.params if p.rank)),
            "".join(f", {p.keyword}" for p in self.params),
            checks,
            (
                *conversions(self.params, "torch.full((), {}, dtype=torch.float32, device=q.device)"),
                *(f"{p.name} = {p.name}.bool()" for p in self.params if p.rank and p.type == "bool"),  # from uint8
            ),
            tuple(param_doc(self.plan, p) for p in self.params),
            self.plan.facts.scale_positive,
            torch_facts(self.plan, self.params, host_names(self.attention, self.params)),
        )
