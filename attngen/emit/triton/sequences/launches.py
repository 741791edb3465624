"""The launches for sequences that begin and end anywhere, each in the ways that the generated file has for it.

Takes the views of the kernels, returns the ways of the forward pass, those of the backward pass by one kernel, and its
parts by portable kernels.
"""

from __future__ import annotations

from dataclasses import replace

from attngen.emit.triton.code.launches import Launch, Way, tests_apart
from attngen.emit.triton.code.test_views import TestView
from attngen.emit.triton.hopper.forward import GluonView
from attngen.emit.triton.host.passes import (
    BLOCKS,
    PORTABLE_OPTIONS,
    BackwardKernels,
    hopper_forward,
    row_launches,
    whole_launches,
    whole_lines,
    whole_when,
)
from attngen.emit.triton.portable.map import MapLaunches, MapView, fits

_SLOTS = ("q_slots, k_slots = host.slots(Sq, BQ, B, packed), host.slots(Sk, BK, B, packed)",)
_SEQUENCE = ('**{**known.constants, "ALIGN": align}', "BQ=BQ", "BK=BK", "PACKED=packed")


def _found(walked: str, map: MapView | None, tests: tuple[TestView, ...]) -> tuple[tuple[Launch, ...], tuple[str, ...]]:
    """The kernels by which a portable one finds its tiles, and the lines that they read: each sequence has a map, or
    extremes, of its own."""
    if map is None:
        return tests_apart(tuple(replace(t, per_batch=True) for t in tests), "sequence_"), ()
    return MapLaunches(map=map, walked=walked, sequences=True).sorted(), _SLOTS


def _before(which: str, *, listed: bool, tile: str = "") -> Launch:
    """The kernel that clears what no sequence has, and lists the tiles of sequences, which another one takes,
    `tile` rows each. `listed`: kernels of this file may want a list."""
    forward = which == "forward"
    dims = ("Dv=Dv",) if forward else ("D=D", "Dv=Dv")
    order = () if forward else (f"PAIRED={'paired' if tile else False}",)
    sizes = (f"TILE={tile or 16}", *order) if listed else ()
    slots = "q_slots" if forward else "k_slots"
    none = ("items=None", *(("queue=None",) if forward else ()), "q_rows=None", "k_rows=None") if listed else ()
    own = ("q_rows=q_rows", "k_rows=k_rows", "q_slots=q_slots", "k_slots=k_slots")
    items = (f"items=((8 * {slots} + 8,), torch.int32)", *(("queue=((4,), torch.int32)",) if forward else ()))
    return Launch(
        kernel=f"_before_{which}_kernel",
        grid="(B, Hq, 1)",
        constants=(*dims, *sizes, "PACKED=packed", "ALIGN=align", "num_warps=4"),
        scalars=own if tile else none,
        buffers=items if tile else (),
    )


_FOUND = "(found := host.listed_row({}, (q, {}), (k, v{}))) is not None"


def sequence_forward(
    fast: GluonView | None, *, listed: bool, tests: tuple[TestView, ...], map: MapView | None, precise: bool
) -> tuple[tuple[Way, ...], Way]:
    """The first of the ways that is possible, or else the portable one. That has no limit of registers: pointers take
    more than descriptors, and what does not fit would spill."""
    rounding = ("PRECISE=precise",) if precise else ()
    launch = Launch(
        kernel="_sequence_forward_kernel",
        grid="host.slots(Sq, BQ, B, packed) * Hq",
        constants=(*_SEQUENCE, *rounding, *PORTABLE_OPTIONS),
    )
    begin = _before("forward", listed=listed)
    found, slots = _found("keys", map, tests)
    portable = Way(
        bind=("BQ, BK, warps, stages = host.sequence_tiles(TILES, q, v)[0]", *slots), launches=(begin, *found, launch)
    )
    if fast is None or not fast.sequences:
        return (), portable
    way = Way(
        when=" and ".join((*fits(map, sequences=True), _FOUND.format("HOPPER", "out", ""))),
        bind=(
            "row, q_rows, k_rows = found",
            BLOCKS,
            *_SLOTS,
            "n_tiles, n_work = q_slots, q_slots * Hq",
        ),
        launches=(
            _before("forward", listed=True, tile="BQ"),
            *(MapLaunches(map=map, walked="keys", sequences=True).named() if map is not None else ()),
            hopper_forward(fast, rounding, sequences=True),
        ),
    )
    return (way,), portable


def sequence_whole(kernels: BackwardKernels) -> tuple[Way, ...]:
    """One kernel makes dQ, dK and dV of all sequences."""
    view = kernels.whole
    if view is None or not view.sequences:
        return ()
    found = _FOUND.format("HOPPER_BACKWARD", "d_out", ", dk, dv")
    cells = kernels.cells
    slots = f"host.slots(Sq, {cells.least}, B, packed)"
    few = f"{slots} <= {cells.most} * host.ceil(Sq, {cells.rows}) * P and P * Hq * Sq < 2**30"
    rows, *rest = whole_launches(kernels, view, sequences=True)
    return (
        Way(
            when=f"{few} and {whole_when(view, found, sequences=True)}",
            bind=(
                "row, q_rows, k_rows = found",
                *_first(whole_lines(view, "k_slots", "q_slots * Hq", sequences=True)),
            ),
            launches=(rows, _before("backward", listed=True, tile="BK"), *rest),
        ),
    )


def _first(lines: tuple[str, ...]) -> tuple[str, ...]:
    """Slots are counted when tiles are known."""
    blocks, *rest = lines
    return (blocks, *_SLOTS, *rest)


def sequence_backward(kernels: BackwardKernels, *, listed: bool) -> tuple[tuple[str, Way], ...]:
    """What no sequence has, what each row needs, dK and dV, dQ, in order."""
    terms = ("terms=None",) if kernels.whole is not None and kernels.whole.row_terms else ()
    rows = tuple(replace(launch, scalars=terms) for launch in row_launches(kernels, counters="", batches="P"))
    by_keys = Launch(
        kernel="_sequence_dkdv_kernel",
        grid="host.slots(Sk, BK, B, packed) * Hkv",
        constants=(*_SEQUENCE, *kernels.flags, *PORTABLE_OPTIONS),
        zeros=tuple(f"{s.name}=(P, Hq, Sk)" for s in kernels.dkdv_sums),
    )
    by_rows = Launch(
        kernel="_sequence_dq_kernel",
        grid="host.slots(Sq, BQ, B, packed) * Hq",
        constants=(*_SEQUENCE, *kernels.flags, *PORTABLE_OPTIONS),
        zeros=tuple(
            f"{s.name}={'(P, Hq, Sq)' if s.per_row else '(B, Hq, host.ceil(Sq, BQ))'}" for s in kernels.dq_sums
        ),
    )
    tiles = "BQ, BK, warps, stages = host.sequence_tiles(TILES, q, v)[{}]".format
    by_queries = _found("queries", kernels.map, kernels.query_tests)
    of_keys = _found("keys", kernels.map, kernels.key_tests)
    return (
        ("outside", Way(launches=(_before("backward", listed=listed),))),
        *((("rows", Way(launches=rows)),) if rows else ()),
        ("by_keys", Way(bind=(tiles(1), *by_queries[1]), launches=(*by_queries[0], by_keys))),
        ("by_rows", Way(bind=(tiles(2), *of_keys[1]), launches=(*of_keys[0], by_rows))),
    )
