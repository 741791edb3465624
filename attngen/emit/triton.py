"""The Triton target: a `KernelPlan` laid out as the views that `templates/triton/` reads.

Takes the plan, the spec's text and the options, gives the source of a standalone module. Every choice stands in the
plan or here; the templates only place it.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import replace
from typing import Any

from attngen.emit.gluon import gluon_backward_view, gluon_view
from attngen.emit.gradients import AXES, PairView, RowSum, gradient_views, leaf_name, pair_view, row_sums
from attngen.emit.jinja import bracket, render
from attngen.emit.kernel_code import HeldTest, KernelCode, KernelWriter, free_names
from attngen.emit.launch import launch_view
from attngen.emit.names import RESERVED, Names
from attngen.emit.options import Options
from attngen.emit.params import views
from attngen.emit.split import split_view
from attngen.emit.tidy import without_unused
from attngen.emit.tile_code import RangeView, range_view
from attngen.emit.triton_expressions import Printer
from attngen.emit.triton_views import BackwardView, Header, KernelView, TestView, WeightView
from attngen.errors import InternalError
from attngen.ir import printing
from attngen.ir.build import mul, real
from attngen.ir.nodes import Expr, Load, Symbol, Type
from attngen.ir.walk import named, reads, substitute, symbols
from attngen.plan.approximate import APPROXIMATIONS
from attngen.plan.data_tests import DataTest
from attngen.plan.footprint import loads_of
from attngen.plan.kernel import Gather, KernelPlan, LeafGradient
from attngen.plan.loops import Loops
from attngen.plan.schedule import Level, level_of
from attngen.plan.tiles import registers, table
from attngen.plan.weights import LOG2E, Form, M, S

X, REF, ROW_REF = Symbol("x", Type.FLOAT), Symbol("ref", Type.FLOAT), Symbol("row_ref", Type.FLOAT)
GRADIENT_RESULTS = ("unit", "unit_scaled", "stream", "slope", "kappa")
SIZE_ARGUMENTS = ("Hq", "Hkv", "Sq", "Sk")
_FAST = frozenset({"_load_pairs", *(f"_{op.value}" for op in APPROXIMATIONS)})
"""Helpers that take the kernel's constant FAST."""


def emit_triton(plan: KernelPlan, text: str, options: Options, proof: tuple[str, ...] = ()) -> str:
    """The generated module. `text` is the spec as written; it appears in the header as a comment."""
    if not RESERVED.isdisjoint(plan.attention.sizes):
        raise InternalError("the plan was made without the target's reserved names")
    return _Emitter(plan, text, options, proof).module()


class _Emitter:
    def __init__(self, plan: KernelPlan, text: str, options: Options, proof: tuple[str, ...]):
        self.plan, self.text, self.options, self.proof = plan, text, options, proof
        self.attention = plan.attention
        self.weights = plan.weights
        self.params = views(self.attention, Names(RESERVED | set(self.attention.sizes)))
        w = plan.weights
        direct = w.form is Form.DIRECT
        self.weight_view = WeightView(
            exponential=w.form is Form.EXPONENTIAL,
            shift=not direct,
            sums=w.sums,
            has_key=direct and (not w.sums or w.extra is not None),
            saves_den=direct and w.sums,
            saves_rest=w.sums and bool(plan.gradients),
        )
        summed = any(g.gather in (Gather.DENSE, Gather.DIAGONAL) for g in plan.gradients)  # over the batches, too
        used_b = summed or any("B" in symbols(e) for e in self._every_expression())
        sizes = (*(("B",) if used_b else ()), *SIZE_ARGUMENTS, *self.attention.sizes)
        self.size_names = sizes
        self.arguments = ("scale", *sizes, *(a for p in self.params for a in p.kernel_arguments))
        self.known = ("batch", "head", "kv_head", "D", "Dv", "FAST", *self.arguments)

    def _every_expression(self) -> list[Expr]:
        a = self.attention
        found = [a.score, a.mask, self.weights.stream, *(d for p in a.params for d in p.shape)]
        found += [e for e in (self.weights.log_extra, self.weights.extra, a.dropout) if e is not None]
        return found

    # ------------------------------------------------------------ the module

    def module(self) -> str:
        forward = self.forward()
        backward = self.backward_view()
        dq_sums = row_sums(self.plan, self.params, Gather.HEAD, Gather.ROW)
        dkdv_sums = row_sums(self.plan, self.params, Gather.COLUMN)
        dq, dq_sums = self.backward_code(Level.ROW, dq_sums)
        dkdv, dkdv_sums = self.backward_code(Level.COLUMN, dkdv_sums)
        backward = self.with_factors(backward, dq, dkdv)
        keys, queries = self.range_view(self.plan.key_loops), self.range_view(self.plan.query_loops)
        tests = tuple(self.test_view(t, r.axis) for r in (self.plan.keys, self.plan.queries) for t in r.tests)
        kernel = self.kernel_view()
        pair_gradients = tuple(self.pair_gradient(g, keys) for g in self.plan.gradients if g.gather not in AXES)
        key_pointers = tuple(p for t in tests if t.axis == "k" for p in t.pointers)
        gradients = gradient_views(self.plan, self.params, {p.name: p.host_lines for p in pair_gradients})
        fast = fast_bwd = None
        tile = self.options.tile or self.attention.tile
        if self.options.arch in ("auto", "sm_90"):
            slower = frozenset(t.head_block for t in self.options.tuned_gpu if t.chip == "sm_90" and t.forward)
            fast = gluon_view(self.plan, keys, self.params, self.arguments, self.size_names, tile, slower)
            mask = self.write(Level.COLUMN, {}, {}, self.plan.query_loops)
            fast_bwd = gluon_backward_view(
                self.plan, queries, dkdv, mask, self.params, self.arguments, self.size_names, gradients, tile
            )
        view = self.weight_view
        outputs = ("out", "lse", *(("den",) if view.saves_den else ()), *(("rest",) if view.saves_rest else ()))
        split = split_view(
            self.plan,
            self.params,
            self.printer(),
            self.known,
            kernel.unspecialized,
            tile,
            outputs,
            tuple(p.removesuffix("_ptr") for p in key_pointers),
            self.n_plain,
        )
        context: dict[str, Any] = dict(  # noqa: C408 - the keys are the templates' names
            a=self.header(),
            longest_bits=self.plan.choices.longest_bits,
            w=self.weight_view,
            kernel=kernel,
            f=forward,
            fast=fast,
            fast_bwd=fast_bwd,
            split=split,
            keys=keys,
            queries=queries,
            # Bounds are computed in 64 bits: a window may be 2**31 - 1, for "no limit".
            wide_names={"q0", "q1", "k0", "k1", *(p.name for p in self.params if not p.by_pointer and p.type == "int")},
            key_arguments=self.range_names(keys),
            query_arguments=self.range_names(queries),
            key_pointers="".join(f"{p}, " for p in key_pointers),
            query_pointers="".join(f"{p}, " for t in tests if t.axis == "q" for p in t.pointers),
            tests=tests,
            bwd=backward,
            dq_code=dq,
            dq_sums=dq_sums,
            dkdv_code=dkdv,
            dkdv_sums=dkdv_sums,
            pair_gradients=pair_gradients,
            dropout=self.attention.dropout is not None,
            params=self.params,
            launch=launch_view(
                self.plan,
                self.params,
                self.size_names,
                tests,
                gradients,
                self.weight_view.saves_den,
                self.weight_view.saves_rest,
                backward.row_tensors,
                tuple(s.name for s in dq_sums),
                tuple(s.name for s in dkdv_sums),
                fast_bwd is not None and fast_bwd.listed,
            ),
            tiles=self.tiles(tile),
            registers=registers(self.plan.burden),
        )
        body = render("triton/module.py.j2", {**context, "uses": frozenset(), "takes_fast": False})
        # The helpers that this variant calls, and what those call in turn, are found in the code itself.
        called = set(re.findall(r"(?<![A-Za-z0-9_])_[a-z][a-z_]*(?=\()", body))
        known = {"uses": frozenset(called), "takes_fast": not _FAST.isdisjoint(called)}
        return without_unused(render("triton/module.py.j2", {**context, **known}))

    def tiles(self, own: tuple[int, int] | None) -> list[tuple[tuple[str, int, int], tuple[tuple[int, ...], ...]]]:
        """The table of tile sizes: the planner's rows, and what was timed in the place of some."""
        rows = {
            (r.chip, r.itemsize, r.head_block): tuple(tuple(t) for t in (r.forward, r.dkdv, r.dq))
            for r in table(own, self.plan.burden, loads_of(self.plan))
        }
        for t in self.options.tuned_gpu:
            key = t.chip, t.itemsize, t.head_block
            rows[key] = (t.forward or rows[key][0], t.dkdv, t.dq)
        return list(rows.items())

    def header(self) -> Header:
        a = self.attention
        # The text stands in comments, whose lines Python ends at these characters and no others.
        lines = re.split(r"\r\n|\r|\n", self.text.strip("\r\n"))
        consts = [f"{name}={value}" for name, value in a.consts]
        tile = self.options.tile or a.tile
        options = ["target=triton", f"precision={self.options.precision}", *consts]
        options += [f"tile={tile[0]}x{tile[1]}"] if tile else []
        options += [f"arch={self.options.arch}"] if self.options.arch != "auto" else []
        for t in self.options.tuned_gpu:
            tuned = "/".join("x".join(map(str, part)) if part else "own" for part in (t.forward, t.dkdv, t.dq))
            options.append(f"tuned={t.chip}/{8 * t.itemsize}/{t.head_block}:{tuned}")
        key = hashlib.sha256("\n".join([self.text, *options]).encode()).hexdigest()
        title = f"{a.name}: fused attention for GPUs, forward and backward, in Triton."
        return Header(
            a.name,
            title,
            f"Attention `{a.name}`, fused, differentiable in every float argument.",
            tuple(f"#     {line}".rstrip() for line in lines),
            hashlib.sha256(self.text.encode()).hexdigest(),
            f"attngen::{a.name}_{key[:12]}",
            " ".join(options),
            self.options.precision,
            tuple(f"# {line}" for line in self.proof),
        )

    # ------------------------------------------------------------ kernels

    def kernel_view(self) -> KernelView:
        unspecialized = [*self.size_names]
        for p in self.params:
            unspecialized += p.strides[:-1] if p.by_pointer else [p.name]
        for x in "qkv":
            unspecialized += [f"{x}_stride_{axis}" for axis in "bhs"]
        return KernelView(
            self.arguments,
            unspecialized,
            "late_tiles_first" if self.plan.longest_first else "heads_in_turn",
            "early_tiles_first" if self.plan.growing_keys else "heads_in_turn",
        )

    @property
    def n_plain(self) -> int:
        """How many of the kernels' arguments come before the strides of q, k and v: the scale, sizes and params."""
        return 1 + len(self.size_names) + sum(len(p.host_arguments) for p in self.params)

    def printer(self) -> Printer:
        return Printer(
            self.plan.choices, {p.name: p for p in self.attention.params}, {p.keyword: p.name for p in self.params}
        )

    def range_view(self, found: Loops) -> RangeView:
        return range_view(found, self.printer(), "BK" if found.axis == "k" else "BQ")

    def range_names(self, view: RangeView) -> tuple[str, ...]:
        """The names that the bounds read, in a stable order."""
        if not view.lines:
            return ()
        read = free_names(view.lines)
        ends = ("q0", "q1") if view.axis == "k" else ("k0", "k1")
        scalars = tuple(p.name for p in self.params if p.by_pointer and p.rank == 0)
        tests = tuple(f"{t.name}_{which}" for t in view.tests for which in ("any_lo", "any_hi", "all_lo", "all_hi"))
        return tuple(n for n in (*ends, *tests, *scalars, *self.known) if n in read)

    def held_tests(self, found: Loops) -> tuple[HeldTest, ...]:
        axis_name, size, block = ("key", "Sk", "BK") if found.axis == "k" else ("query", "Sq", "BQ")
        tests: list[HeldTest] = []
        for t in found.tests:
            held, walked = (t.row, t.col) if found.axis == "k" else (t.col, t.row)
            batch, head = reads(walked, "b"), reads(walked, "h", "hkv")
            leading = {
                (True, True): "(batch * Hq + head)", (True, False): "batch", (False, True): "head",
                (False, False): "0",
            }[batch, head]  # fmt: skip
            code = 0 if t.equal else 1 if found.axis == "k" else 2
            tiles = f"tl.cdiv({size}, {block})"
            tests.append(HeldTest(t.name, f"{axis_name}_{t.name}", f"{leading} * {tiles}", held, tiles, block, code))
        return tuple(tests)

    def forward(self) -> KernelCode:
        w = self.weights
        results: dict[str, Expr] = {"unit": w.unit}
        outside: dict[str, Expr] = {}
        if w.form is Form.EXPONENTIAL:
            results["factor"] = named(w.factor, "logit_scale")
        elif w.form is Form.SHIFTED:
            results["factor"] = named(w.factor, "logit_scale")
            results["stream"] = substitute(w.stream, {S: X, M: REF})
        else:
            results["stream"] = substitute(w.stream, {S: X})
            if w.extra is not None:
                outside["extra"] = w.extra
        if w.log_extra is not None:
            outside["log2_extra"] = mul(w.log_extra, real(LOG2E))
        code = self.write(Level.ROW, results, outside, self.plan.key_loops)
        return self.padded(code, "log2_extra", "extra", "factor")

    def padded(self, code: KernelCode, *names: str) -> KernelCode:
        """`code` with empty texts for results that this variant does not have, so that templates may ask for them."""
        return replace(code, results={**dict.fromkeys(names, ""), **code.results})

    def write(self, held: Level, results: dict[str, Expr], outside: dict[str, Expr], found: Loops) -> KernelCode:
        writer = KernelWriter(self.plan, self.params, held)
        position = ("q0", "q1", "q_idx") if held is Level.ROW else ("k0", "k1", "k_idx")
        known = (*position, *self.known)
        extra: tuple[str, ...] = ()
        if self.attention.dropout is not None:
            outside = {**outside, "drop": self.attention.dropout}
            known = (*known, "seed", "threshold", "inv_keep")
            extra = ("_keep(seed, batch, head, q_idx, k_idx, threshold) * inv_keep",)
        code = writer.write(
            results,
            self.attention.mask,
            known=known,
            used_by_template=extra,
            outside=outside,
            range_arguments=self.range_names(self.range_view(found)),
            tests=self.held_tests(found),
        )
        code = replace(code, results={**code.results, **_whole(code, results)})
        if self.attention.dropout is None:
            return code
        drop = code.results["drop"]
        lines = (
            f"drop = tl.cast({drop}, tl.float32)",
            "threshold = tl.cast(tl.cast(drop * 4294967296.0, tl.int64), tl.uint32)",
            "inv_keep = 1.0 / (1.0 - drop)",
        )
        return replace(code, head_lines=(*code.head_lines, *lines))

    def backward_code(self, held: Level, sums: tuple[RowSum, ...]) -> tuple[KernelCode, tuple[RowSum, ...]]:
        w = self.weights
        results = {"d_pair": self.plan.d_pair, **self.gradient_results()}
        outside: dict[str, Expr] = {}
        for s in sums:
            if s.pair is not None:
                results[f"pair_{s.name}"] = s.pair
            if s.weight is not None:
                results[f"weight_{s.name}"] = substitute(s.weight, {S: X, M: ROW_REF})
            if s.d_extra is not None:
                outside[f"extra_{s.name}"] = s.d_extra
        if any(s.d_extra is not None for s in sums) and w.log_extra is not None:
            outside["log2_extra"] = mul(w.log_extra, real(LOG2E))
        in_tile = held is Level.COLUMN and not self.factor_is_outer()
        (results if in_tile else outside)["factor"] = self.plan.d_factor
        code = self.write(held, results, outside, self.plan.key_loops if held is Level.ROW else self.plan.query_loops)
        code = self.padded(code, *GRADIENT_RESULTS)
        return code, tuple(s.with_code(code, self.backward_view().normalised) for s in sums)

    def pair_gradient(self, g: LeafGradient, keys: RangeView) -> PairView:
        """The kernel of one leaf whose index depends on the pair."""
        assert isinstance(g.leaf, Load)
        name = leaf_name(self.plan, self.params, g)
        results = self.gradient_results()
        row_sum = RowSum(name, "", g.param, False, g.pair, g.weight, None)
        if g.pair is not None:
            results[f"pair_{name}"] = g.pair
        if g.weight is not None:
            results[f"weight_{name}"] = substitute(g.weight, {S: X, M: ROW_REF})
        if g.gather is Gather.SCATTER:
            results.update({f"index_{i}": index for i, index in enumerate(g.leaf.indices)})
        code = self.padded(self.write(Level.ROW, results, {}, self.plan.key_loops), *GRADIENT_RESULTS)
        row_sum = row_sum.with_code(code, self.backward_view().normalised)
        runs = [f"(key_tile >= {r.start}) & (key_tile < {r.stop})" for r in (*keys.full, *keys.partial)]
        view = self.backward_view()
        key_tests = [f"key_{t.name}_{which}" for t in self.plan.keys.tests for which in ("least", "most")]
        seed = ("seed",) if self.attention.dropout is not None else ()
        call = (
            "*_tiled(tma, dq_BQ, q)", "*_tiled(tma, dq_BK, k, v)", "*_tiled(tma, dq_BQ, d_out)",
            *view.row_tensors, "OUTPUTS", *seed, *key_tests, "*arguments", "**sizes",
            "BQ=dq_BQ", "BK=dq_BK", "TMA=tma", "num_warps=dq_warps", "num_stages=1",
        )  # fmt: skip
        tests = tuple(
            f"key_{t.name}_least, key_{t.name}_most = "
            f"_key_{t.name}(arguments[:{self.n_plain}], Sk, dq_BK, B, Hq, q.device)"
            for t in self.plan.keys.tests
        )
        visited = " | ".join(f"({r})" for r in runs) or "key_tile < 0"
        return pair_view(self.plan, self.params, g, code, row_sum.contribution, visited, call, tests)

    # ------------------------------------------------------------ backward

    def gradient_results(self) -> dict[str, Expr]:
        """What every backward kernel evaluates for a pair."""
        w = self.weights
        if w.form is Form.EXPONENTIAL:
            return {"unit_scaled": mul(w.unit, named(w.factor, "logit_scale"))}
        assert w.slope is not None
        results = {
            "unit": w.unit,
            "stream": substitute(w.stream, {S: X, M: ROW_REF}),
            "slope": substitute(w.slope, {S: X, M: ROW_REF}),
        }
        if w.form is Form.SHIFTED:
            results["kappa"] = named(mul(w.kappa, real(LOG2E)), "logit_scale")
        return results

    def backward_view(self) -> BackwardView:
        w = self.weights
        pointers: tuple[str, ...] = ()
        names: tuple[str, ...] = ()
        if w.form is not Form.DIRECT:
            pointers, names = ("lse_ptr",), ("row_lse",) if w.form is Form.EXPONENTIAL else ("row_lse", "row_ref")
        elif w.sums:
            pointers, names = ("den_ptr",), ("inv_den",)
        if w.sums:
            pointers, names = (*pointers, "delta_ptr"), (*names, "delta")
        flags = tuple(
            f"GRAD_{p.name.upper()}" for p in self.params if any(g.param == p.keyword for g in self.plan.gradients)
        )
        return BackwardView(
            w.form,
            w.sums,
            pointers,
            tuple(p.removesuffix("_ptr") for p in pointers),
            names,
            " * inv_den" if w.form is Form.DIRECT and w.sums else "",
            flags,
            "",
            "",
            "",
        )

    def factor_is_outer(self) -> bool:
        """Whether dK can be multiplied by the factor at the end, after the loop over the group's heads."""
        plain = self.printer().text(self.plan.d_factor)
        return not reads(self.plan.d_factor, "h") and free_names([plain]) <= {"scale", "D", "Dv", *self.size_names}

    def with_factors(self, view: BackwardView, dq: KernelCode, dkdv: KernelCode) -> BackwardView:
        def times(text: str) -> str:
            return "" if text == "1.0" else f" * {bracket(text)}"

        outer = self.factor_is_outer()
        return replace(
            view,
            dq_factor=times(dq.results["factor"]),
            dk_factor=times(self.printer().text(self.plan.d_factor)) if outer else "",
            dk_factor_in_tile="" if outer else times(dkdv.results["factor"]),
        )

    # ------------------------------------------------------------ data tests, the launcher

    def test_view(self, t: DataTest, axis: str) -> TestView:
        walked = t.col if axis == "k" else t.row
        position, size, what = ("k_idx", "Sk", "keys") if axis == "k" else ("q_idx", "Sq", "queries")
        test = f"{'key' if axis == 'k' else 'query'}_{t.name}"
        printer = self.printer()
        text = printer.text(walked)
        read = free_names([text])
        scalars = (p.name for p in self.params if p.by_pointer and p.rank == 0 and p.name in read)
        lines = (
            *(f"{name} = tl.load({name}_ptr)" for name in scalars),
            *((f"{position[0]}_safe = tl.minimum({position}, {size} - 1)",) if f"{position[0]}_safe" in read else ()),
        )
        is_float = walked.type is Type.FLOAT
        wide = "float32" if is_float else "int64"
        batch = "batches" if reads(walked, "b") else "1"
        head = "heads" if reads(walked, "h", "hkv") else "1"
        return TestView(
            test, axis, printing.expression(walked), what, (f"{test}_least_ptr", f"{test}_most_ptr"), position, size,
            lines,
            f"tl.full([TILE], {text}, tl.{wide})" if _is_number(text) else f"tl.cast({text}, tl.{wide})",
            'float("-inf")' if is_float else "-9223372036854775807",
            'float("inf")' if is_float else "9223372036854775807",
            f"torch.{wide}", f"({batch}, {head}, n_tiles)", f"n_tiles, {batch}, {head}",
        )  # fmt: skip


def _whole(code: KernelCode, results: dict[str, Expr]) -> dict[str, str]:
    """Logits and weights that are less than one number a pair, brought to the tile's shape, which sums run over.

    A number takes its shape from the products: Gluon's tiles have a layout beside it, which no literal has.
    """
    found: dict[str, str] = {}
    for name in ("unit", "unit_scaled", "stream"):
        if name in results and level_of(results[name]) is not Level.PAIR:
            found[name] = f"tl.where(qk == qk, {code.results[name]}, {code.results[name]})"
    return found


def _is_number(text: str) -> bool:
    return re.fullmatch(r"-?[0-9][0-9a-z.+-]*", text) is not None
