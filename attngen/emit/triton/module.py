"""The Triton target: a `KernelPlan` laid out as the views that `templates/triton/` reads.

Takes the plan, the spec's text and the options, returns the source of a standalone module. The rooms beside this module
make the views, from the plan; here they meet, and the templates lay them out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from attngen.emit.options import Options
from attngen.emit.text.fold import without_dead_branches
from attngen.emit.text.long_lines import without_long_lines
from attngen.emit.text.prune import without_unread
from attngen.emit.text.render import render
from attngen.emit.text.units import Unit, cut
from attngen.emit.text.weights import WeightView, weight_view
from attngen.emit.torch_shared.leaves import AXES
from attngen.emit.triton.code.expressions import division_helpers
from attngen.emit.triton.code.kernel_code import KernelCode
from attngen.emit.triton.code.names import reserved
from attngen.emit.triton.code.test_views import TestView
from attngen.emit.triton.hopper.backward import (
    GluonApartView,
    GluonBackwardView,
    GluonPairView,
    WalkView,
    gluon_apart_view,
    gluon_backward_view,
    gluon_pair_view,
)
from attngen.emit.triton.hopper.forward import GluonView, gluon_view
from attngen.emit.triton.hopper.narrowed import by_kernel, everywhere
from attngen.emit.triton.hopper.shares import LIMITS
from attngen.emit.triton.host.call import CallParts, call_view
from attngen.emit.triton.host.header import triton_header
from attngen.emit.triton.host.passes import BackwardKernels, backward_launches, forward_launches
from attngen.emit.triton.host.scope import scope_view
from attngen.emit.triton.host.tables import register_limits, row_lines, share_lines, tile_lines, tile_rows
from attngen.emit.triton.placement import API, fields_of_the_runtime, one_file, tidied
from attngen.emit.triton.portable.backward import backward_view, pair_gradient, with_factors
from attngen.emit.triton.portable.data_tests import test_view
from attngen.emit.triton.portable.frame import Frame, frame_of
from attngen.emit.triton.portable.kernels import forward_code, kept_view, kernel_code
from attngen.emit.triton.portable.map import MapView, map_view
from attngen.emit.triton.portable.param_gradients import GradientView, RowSum, gradient_views
from attngen.emit.triton.portable.passes import Codes, PortableViews, codes_of, portable_views
from attngen.emit.triton.portable.split import split_view
from attngen.emit.triton.portable.tile_gradients import pair_kernel_view, row_values_view
from attngen.emit.triton.portable.views import (
    BackwardView,
    DkdvView,
    DqView,
    ForwardView,
    HelpersView,
    KernelView,
    PairKernelView,
    RangesView,
    RowValuesView,
)
from attngen.emit.triton.sequences.call import SequenceParts, sequence_call_view
from attngen.emit.triton.sequences.rows import refuse_sequences, sequence_place, sequence_view
from attngen.errors import InternalError
from attngen.plan import passes
from attngen.plan.index import items
from attngen.plan.kernel import KernelPlan, by_lists
from attngen.plan.levels import Level
from attngen.plan.mask.turns import Cells
from attngen.plan.sides import GEOMETRIES


def emit_triton(plan: KernelPlan, text: str, options: Options, proof: tuple[str, ...] = ()) -> str:
    """The generated module, as one file. `text` is the spec as written; it appears in the header as a comment."""
    return one_file(own_part(plan, text, options, proof))


def own_part(plan: KernelPlan, text: str, options: Options, proof: tuple[str, ...] = ()) -> list[Unit]:
    """What of the module depends on the spec: it imports the runtime (`placement`)."""
    if not reserved().isdisjoint(plan.attention.sizes):
        raise InternalError("the plan was made without the target's reserved names")
    if plan.gpu_walks is None or plan.gpu_walks.index != items() or plan.geometries not in ((), GEOMETRIES):
        raise InternalError("the plan has other functions than the runtime that its kernels call")
    context = _context(plan, text, options, proof)
    units = cut(render("triton/module.py.j2", context))
    if options.head_dim is not None:
        constants = by_kernel(context["fast"], context["fast_bwd"], context["apart"])
        units = without_dead_branches(units, everywhere(options.head_dim), constants)
    return without_long_lines(tidied(without_unread(units, fields_of_the_runtime())))


def _context(plan: KernelPlan, text: str, options: Options, proof: tuple[str, ...]) -> dict[str, Any]:
    """The views, by the names that the templates call them."""
    if options.forward:
        plan = replace(plan, gradients=())
    frame, of_sequences = (
        replace(frame_of(plan), plan=by_lists(plan, sequences=sequences)) for sequences in (False, True)
    )
    weights = weight_view(plan, forward=options.forward)
    codes = codes_of(frame)
    forward, dq, dkdv, dq_sums, dkdv_sums = codes.forward, codes.dq, codes.dkdv, codes.dq_sums, codes.dkdv_sums
    # Gluon has no pipeliner, from which an element that many pairs share is hidden elsewhere; it fails at how.
    plain = replace(frame.plan, choices=replace(plan.choices, corners=()))
    by_bits = replace(frame, bits=plan.map is not None and plan.map.as_bits)
    hopper_codes = codes_of(by_bits, by_diagonal=True) if plan.diagonals or by_bits.bits else codes
    hopper_forward = forward_code(replace(by_bits, plan=plain), found=passes.hopper_forward(plan))
    backward = with_factors(frame, backward_view(frame), dq, dkdv)
    keys, queries = frame.key_ranges(), frame.query_ranges()
    map = map_view(replace(frame, plan=plain), plan.map)
    tests = _test_views(frame)
    pair_gradients = tuple(pair_gradient(frame, g, map) for g in plan.gradients if g.gather not in AXES)
    of_pairs = tuple(g.code for g in pair_gradients)
    takes_fast = any(code.reads("FAST") for code in (forward, *(() if options.forward else (dq, dkdv, *of_pairs))))
    kernel = replace(frame.kernel_view(), fast=takes_fast, flags=() if options.forward else backward.flags)
    key_tests, query_tests = (tuple(t for t in tests if t.axis == axis) for axis in "kq")
    gradients = gradient_views(plan, frame.params, {p.name: p.host_lines for p in pair_gradients})
    mask = kernel_code(by_bits, Level.COLUMN, passes.Pass({}, {}))
    hopper = _hopper_views(
        frame,
        options,
        hopper_forward,
        weights,
        key_tests,
        hopper_codes,
        mask,
        backward,
        gradients,
        map,
    )
    fast_bwd, apart = hopper.fast_bwd, hopper.apart
    split = split_view(frame, options, weights, kernel, keys, forward)
    tiles = tile_rows(plan, options)
    scope = scope_view(options)
    registers = register_limits(plan, tiles)
    counts_apart = apart is not None and bool(tests)
    counts = fast_bwd is not None or counts_apart
    cells = Cells() if plan.hopper is None else plan.hopper.cells
    kernels = BackwardKernels(
        bwd=backward,
        whole=fast_bwd,
        apart=apart,
        counts_apart=counts_apart,
        cells=cells,
        key_tests=key_tests,
        query_tests=query_tests,
        dq_sums=dq_sums,
        dkdv_sums=dkdv_sums,
        pairs=pair_gradients,
        precise=weights.saves_rest,
        map=map,
    )
    launched = backward_launches(kernels)
    row_values = row_values_view(
        backward,
        weights,
        terms=fast_bwd is not None and fast_bwd.row_terms,
        cleared=cells.cleared if counts else 0,
        needed=bool(gradients),
    )
    pair_kernels = tuple(pair_kernel_view(frame, g, backward, weights, kernel, keys) for g in pair_gradients)
    portable = portable_views(frame, codes, backward, weights, kernel)
    sequences = _sequence_views(of_sequences, options, backward, weights, kernel)
    call = call_view(
        plan,
        CallParts(
            params=frame.params,
            weights=weights,
            gradients=gradients,
            pairs=bool(pair_gradients),
            sums_of_none=any(s.d_extra is not None for s in dq_sums),
            forward_only=options.forward,
            fetched=hopper.fetched,
            fast=takes_fast,
            only=scope.only,
        ),
    )
    seq = None
    if sequences is not None:
        parts = SequenceParts(
            geometry=options.geometry,
            params=frame.params,
            weights=weights,
            gradients=gradients,
            kernels=kernels,
            fast=hopper.fast,
            listed=hopper.sequences,
            key_tests=key_tests,
            backward=not options.forward,
        )
        seq = sequence_call_view(plan, call, parts)
    tables = {"TILES": tile_lines(tiles)}
    tables |= {"SPLIT": share_lines(split.table)} if split is not None else {}
    tables |= hopper.tables
    return {
        "helpers": HelpersView(
            tiling=kernel.tiling,
            flags=kernel.flags,
            unspecialized=kernel.unspecialized,
            kept=kept_view(frame),
            divisions=division_helpers(plan.choices),
        ),
        "ranges": RangesView(functions=frame.range_functions(), tests=tests, arguments=kernel.arguments),
        "forward": portable.forward,
        "dq": portable.dq,
        "dkdv": portable.dkdv,
        "row_values": row_values,
        "gluon": GLUON if hopper.some else (),
        "modules": _modules(plan, options, gluon=hopper.some),
        "api": API,
        "sections": _sections(
            hopper_forward,
            hopper_codes,
            key_tests,
            query_tests,
            portable,
            sequences,
            split is not None,
            row_values,
            pair_kernels,
            hopper,
            mapped=map is not None,
            backward=not options.forward,
        ),
        "scope": scope,
        "a": triton_header(plan, text, options, proof),
        "w": weights,
        "kernel": kernel,
        "kept": kept_view(frame),
        "f": forward,
        "fast": hopper.fast,
        "fast_bwd": fast_bwd,
        "apart": apart,
        "pair": hopper.pair,
        "map": map,
        "limits": LIMITS,
        "split": split,
        "keys": keys,
        "queries": queries,
        "query_pointers": "".join(f"{p}, " for t in query_tests for p in t.pointers),
        "tests": tests,
        "query_tests": query_tests,
        "bwd": backward,
        "call": call,
        "seq": seq,
        "sequence": sequence_view(frame) if sequences is not None else None,
        "exported": repr([f"{plan.attention.name}{end}" for end in _endings(options)]).replace("'", '"'),
        "forward_launches": forward_launches(
            split=split,
            fast=hopper.fast,
            tests=key_tests,
            map=map,
            results=len(keys.results),
            precise=weights.saves_rest,
            registers=bool(registers),
        ),
        "backward_launches": None if options.forward else launched,
        "hopper": hopper.some,
        "listed": hopper.sequences,
        "tables": tables,
        "registers": registers,
    }


GLUON = (
    *("BARRIER", "COPY_IN", "COPY_OUT", "REINTERPRET", "fence_async_shared", "gl", "gluon", "mbarrier", "tma"),
    *("warpgroup_mma", "warpgroup_mma_init", "warpgroup_mma_wait"),
)
"""What kernels take from Gluon by these names."""


def _modules(plan: KernelPlan, options: Options, *, gluon: bool) -> tuple[str, ...]:
    """Those of the runtime that are called by their names."""
    of_gluon = ("sm90", *(("quads",) if plan.narrow else ())) if gluon else ()
    return tuple(sorted(("host", "items", "rows", *of_gluon, *(("ragged",) if options.sequences else ()))))


def _test_views(frame: Frame) -> tuple[TestView, ...]:
    return tuple(test_view(frame, t, r.axis) for r in (frame.plan.keys, frame.plan.queries) for t in r.tests)


def _endings(options: Options) -> tuple[str, ...]:
    """Of the public functions' names, in order."""
    endings = {"dense": "", "packed": "_varlen", "lengths": "_lengths"}
    return tuple(end for kind, end in endings.items() if kind in options.geometry)


def _sequence_views(
    frame: Frame, options: Options, backward: BackwardView, weights: WeightView, kernel: KernelView
) -> PortableViews | None:
    """The portable kernels once more, for sequences, where the file holds some."""
    if not options.sequences:
        return None
    refuse_sequences(frame.plan)
    own = replace(frame, place=sequence_place(frame))
    return portable_views(own, codes_of(own), backward, weights, kernel)


@dataclass(frozen=True, slots=True)
class _HopperViews:
    """The kernels of compute capability 9.0, where the file holds them."""

    fast: GluonView | None = None
    fast_bwd: GluonBackwardView | None = None
    apart: GluonApartView | None = None
    pair: GluonPairView | None = None

    @property
    def tables(self) -> dict[str, tuple[str, ...]]:
        """The tables by name, as text."""
        found = {} if self.fast is None else {"HOPPER": row_lines((self.fast.table,))}
        found |= {} if self.fast_bwd is None else {"HOPPER_BACKWARD": row_lines((self.fast_bwd.table,))}
        return found if self.apart is None else {**found, "HOPPER_APART": row_lines((self.apart.dkdv, self.apart.dq))}

    @property
    def fetched(self) -> str:
        return self.fast.fetched.param if self.fast is not None and self.fast.fetched is not None else ""

    @property
    def sequences(self) -> bool:
        return any(view is not None and view.sequences for view in (self.fast, self.fast_bwd))

    @property
    def some(self) -> bool:
        return any(view is not None for view in (self.fast, self.fast_bwd, self.apart))


def _hopper_views(
    frame: Frame,
    options: Options,
    forward: KernelCode,
    weights: WeightView,
    key_tests: tuple[TestView, ...],
    codes: Codes,
    mask: KernelCode,
    backward: BackwardView,
    gradients: tuple[GradientView, ...],
    map: MapView | None,
) -> _HopperViews:
    """Nothing where the file is meant for other chips. `frame` is that of the forward kernel, `codes` those of backward
    kernels; `mask` the code of the mask alone, of a tile with keys down."""
    plan, params = frame.plan, frame.params
    hopper = plan.hopper
    held = options.arch != "portable" and options.holds("sm_90", min(plan.numerics.itemsizes))
    if hopper is None or plan.gpu_walks is None or not held:
        return _HopperViews()
    if options.head_dim is not None:
        hopper = hopper.for_head_dim(options.head_dim)
    if options.forward:
        hopper = replace(hopper, backward=None, apart=None)
    tuned = tuple(t for t in options.tuned_gpu if (t.chip, t.itemsize) == ("sm_90", 2))
    printer = frame.printer()
    sequences = options.sequences
    fast_bwd = gluon_backward_view(hopper, printer, params, frame.sizes, gradients, tuned, map=map, sequences=sequences)
    return _HopperViews(
        gluon_view(frame, hopper.forward, forward, weights, key_tests, tuned, map=map, sequences=sequences),
        fast_bwd,
        gluon_apart_view(
            plan,
            hopper.apart,
            printer,
            codes.dq,
            codes.dq_sums,
            params,
            backward.flags,
            frame.sizes,
            gradients,
            tuned,
            map=map,
        ),
        gluon_pair_view(codes.dkdv, mask, backward.dk_factor_in_tile),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A template of `templates/triton/` that the file includes, and the views that are called differently in each."""

    template: str
    code: KernelCode | None = None
    sums: tuple[RowSum, ...] = ()
    walk: WalkView | None = None
    tests: tuple[TestView, ...] = ()
    pair_kernel: PairKernelView | None = None
    own: ForwardView | DqView | DkdvView | None = None


@dataclass(frozen=True, slots=True)
class Section:
    title: str
    parts: tuple[Part, ...]


def _sections(
    forward: KernelCode,
    backward_codes: Codes,
    key_tests: tuple[TestView, ...],
    query_tests: tuple[TestView, ...],
    portable: PortableViews,
    sequences: PortableViews | None,
    split: bool,
    row_values: RowValuesView | None,
    pair_kernels: tuple[PairKernelView, ...],
    hopper: _HopperViews,
    *,
    mapped: bool,
    backward: bool,
) -> tuple[Section, ...]:
    """What the file holds behind its tables, in order."""
    which = ("tile_ranges", *(("map",) if mapped else ()))
    found = [
        Section("the mask: which tiles meet", tuple(Part(template=f"portable/{name}") for name in which)),
        Section("helpers", (Part(template="portable/helpers"),)),
        Section(
            "forward",
            (
                Part(template="portable/attend_tile"),
                Part(template="portable/forward", own=portable.forward),
            ),
        ),
    ]
    if sequences is not None:
        found.append(
            Section(
                "forward, sequences that begin and end anywhere",
                (
                    Part(template="sequences/rows"),
                    Part(template=f"sequences/{'map' if mapped else 'tests'}"),
                    Part(template="portable/forward", own=sequences.forward),
                ),
            )
        )
    if split:
        found.append(Section("forward, short queries", (Part(template="short_queries/kernels"),)))
    if hopper.some:
        shared = [Part(template="hopper/helpers")]
        shared += [Part(template="hopper/sequences")] if hopper.sequences else []
        own = (Part(template="hopper/forward", code=forward),) if hopper.fast is not None else ()
        found.append(Section("forward, for compute capability 9.0", (*shared, *own)))
    if backward:
        found.append(
            Section(
                "backward",
                (
                    *((Part(template="portable/backward_delta"),) if row_values is not None else ()),
                    Part(template="portable/dq_tile"),
                    Part(template="portable/backward_dq", own=portable.dq),
                    Part(template="portable/dkdv_tile"),
                    Part(template="portable/backward_dkdv", own=portable.dkdv),
                    *(Part(template="portable/pair_gradient", pair_kernel=g) for g in pair_kernels),
                ),
            )
        )
        if sequences is not None:
            parts = (
                Part(template="portable/backward_dq", own=sequences.dq),
                Part(template="portable/backward_dkdv", own=sequences.dkdv),
            )
            found.append(Section("backward, sequences that begin and end anywhere", parts))
        found += _hopper_backward(backward_codes, key_tests, query_tests, hopper)
    return (
        *found,
        Section("tables", (Part(template="host/tables"),)),
        Section("launches", (Part(template="host/params"), Part(template="host/launching"))),
        Section("registered", (Part(template="host/registered"),)),
    )


def _hopper_backward(
    codes: Codes,
    key_tests: tuple[TestView, ...],
    query_tests: tuple[TestView, ...],
    hopper: _HopperViews,
) -> list[Section]:
    parts: list[Part] = []
    if hopper.fast_bwd is not None:
        parts.append(Part(template="hopper/backward", code=codes.dkdv))
    if hopper.apart is not None:
        walk, keys = hopper.apart.queries, hopper.apart.keys
        parts.append(Part(template="hopper/dkdv", code=codes.dkdv, sums=codes.dkdv_sums, walk=walk, tests=query_tests))
        parts.append(Part(template="hopper/dq", code=codes.dq, sums=codes.dq_sums, walk=keys, tests=key_tests))
    if not parts:
        return []
    shared = (Part(template="hopper/rings"), Part(template="hopper/pairs", code=codes.dkdv))
    return [Section("backward, for compute capability 9.0", (*shared, *parts))]
