"""The launches of the forward and the backward pass, each in the ways that the generated file has for it.

Takes the views of the kernels, returns `ForwardLaunches` and `BackwardLaunches` for `templates/triton/host/`.
"""

from __future__ import annotations

from dataclasses import dataclass

from attngen.emit.triton.code.launches import Launch, Way, tests_count, tests_within
from attngen.emit.triton.code.test_views import TestView
from attngen.emit.triton.hopper.backward import GluonApartView, GluonBackwardView
from attngen.emit.triton.hopper.forward import GluonView
from attngen.emit.triton.portable.map import MapLaunches, MapView, fits, tiles_found
from attngen.emit.triton.portable.param_gradients import PairView, RowSum
from attngen.emit.triton.portable.split import SplitView
from attngen.emit.triton.portable.views import BackwardView
from attngen.plan.mask.turns import Cells

_DIMS = ("D=D", "Dv=Dv")
_PORTABLE = ("**known.constants", "BQ=BQ", "BK=BK")
_PORTABLE_BACKWARD = ('**{**known.constants, "ALIGN": align}', "BQ=BQ", "BK=BK")
PORTABLE_OPTIONS = ("num_warps=warps", "num_stages=stages")
_HOPPER = ("**known.wide", "BQ=BQ", "BK=BK")
_LISTS = (*_DIMS, "BQ=BQ", "BK=BK", "FAST=True")
BLOCKS = "BQ, BK = row.BQ, row.BK"
BOUNDS = ("q_start", "q_stop", "k_start", "k_stop")


def _of_row(*names: str) -> tuple[str, ...]:
    return tuple(f"{name}=row.{name}" for name in names)


def _tiles(rows: str, *tensors: str) -> tuple[str, ...]:
    return tuple(f"{name}={rows}" for name in tensors)


# ---------------------------------------------------------------- forward


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardLaunches:
    """The first of the `ways` that is possible, or `otherwise`."""

    ways: tuple[Way, ...]
    otherwise: Way


def forward_launches(
    *,
    split: SplitView | None,
    fast: GluonView | None,
    tests: tuple[TestView, ...],
    map: MapView | None,
    results: int,
    precise: bool,
    registers: bool,
) -> ForwardLaunches:
    """`tests` are those of keys. `results`: how many numbers describe a tile's walk. `precise`: whether kernels have
    the constant PRECISE; `registers`: whether the module limits those of its tiles."""
    rounding = ("PRECISE=precise",) if precise else ()
    options = (*rounding, *PORTABLE_OPTIONS)
    limit = ("**host.register_limit(REGISTERS, q, BQ, BK, warps, stages)",) if registers else ()
    portable = Launch(
        kernel="_forward_kernel",
        grid="host.ceil(Sq, BQ) * B * Hq",
        constants=(*_PORTABLE, *options, *limit),
        tiles=(*_tiles("BQ", "q"), *_tiles("BK", "k", "v")),
        tiled="tma",
    )
    return ForwardLaunches(
        ways=(
            *((_split(split, tests, map, rounding),) if split is not None else ()),
            *((_hopper(fast, results, rounding),) if fast is not None else ()),
        ),
        otherwise=Way(
            bind=("tma = host.has_tma(q, k, v)", "BQ, BK, warps, stages = host.tiles(TILES, q, v)[0]"),
            launches=(*tiles_found("keys", map, tests), portable),
        ),
    )


def _split(split: SplitView, tests: tuple[TestView, ...], map: MapView | None, rounding: tuple[str, ...]) -> Way:
    cut = split.cut
    rows, heads = ("Hq // Hkv * Sq", "Hkv") if split.packed else ("Sq", "Hq")
    whole = "host.ceil(Sq, host.tiles(TILES, q, v)[0][0]) * B * Hq"
    pieces = Launch(
        kernel="_split_kernel",
        grid=f"host.ceil({rows}, BQ) * B * {heads} * pieces",
        constants=(*_PORTABLE, *PORTABLE_OPTIONS),
        tiles=_tiles("BK", "k", "v"),
        tiled="tma",
        scalars=("pieces=pieces",),
        buffers=(f"parts=((B * Hq * Sq * pieces * (host.padded(Dv) + {cut.beside}),), torch.float32)",),
    )
    merge = Launch(
        kernel="_merge_kernel",
        grid="B * Hq * Sq",
        constants=(
            *_DIMS,
            f"PIECES={cut.merged}",
            'ALIGN=known.constants["ALIGN"]',
            *rounding,
            f"num_warps={cut.merging_warps}",
        ),
    )
    return Way(
        when=f"pieces := host.split_pieces(SPLIT, q, k, v, {split.packed}, {whole})",
        bind=(
            "tma = host.has_tma(k, v)",
            f"BQ, BK, warps, stages = host.split_tile(SPLIT, q, k, v, {split.packed})",
            *(("every = host.padded(Sq)",) if map is not None else ()),
        ),
        launches=(*tiles_found("keys", map, tests, queries="every"), pieces, merge),
    )


def _geometry(*, listed: bool, packed: str, none: tuple[str, ...] = ()) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Constants and scalars of a kernel that may also take tiles of sequences, where it does; `none`: what it has to be
    given where it takes none."""
    if not listed:
        return (), ()
    return (f"PACKED={packed}",), tuple(f"{name}=None" for name in none)


def hopper_forward(fast: GluonView, rounding: tuple[str, ...], *, sequences: bool) -> Launch:
    """`sequences`: of tiles of sequences."""
    row = _of_row("STAGES", "SCHEDULE", "ORDERED", "OUT_APART", "PIPELINED", "REGISTERS", "SPARE")
    none = () if sequences else ("items", "q_slots")
    flags, absent = _geometry(listed=fast.sequences, packed=str(sequences and "packed"), none=none)
    fetched = fast.fetched
    fetches = (f"FETCHES={not sequences and 'fetches'}",) if fetched else ()
    return Launch(
        kernel="_hopper_forward_kernel",
        own=True,
        grid='n_work if row.SCHEDULE == "once" else min(n_work, host.multiprocessors(q.device))',
        constants=(
            '**{**known.wide, "BLOCK_D": max(64, host.hopper_columns(D, Dv)[0])}',
            "BQ=BQ",
            "BK=BK",
            *row,
            *rounding,
            *fetches,
            *flags,
        ),
        tiles=(
            *_tiles("64", "q", "out"),
            *_tiles("BK", "k", "v"),
            *(("**(dict(pairs=64) if fetches else {})",) if fetched and not sequences else ()),
        ),
        scalars=("n_work=n_work", "together=max(row.together, row.ahead // n_tiles)", *absent),
        names=(*((f'pairs="{fetched.param}"',) if fetched else ()), *(('v="turned"',) if fast.narrow else ())),
        ragged=sequences,
        narrow=fast.narrow,
    )


def _hopper(fast: GluonView, results: int, rounding: tuple[str, ...]) -> Way:
    forward = hopper_forward(fast, rounding, sequences=False)
    when = " and ".join((*fits(fast.map), "(row := host.hopper_row(HOPPER, q, k, v, out)) is not None"))
    bind = (BLOCKS, "n_tiles = host.ceil(Sq, BQ)", "n_work = n_tiles * B * Hq")
    bind += ('fetches = host.fetches_pairs(row, known.wide, known.values["fetched"])',) if fast.fetched else ()
    turned = ('host.turn_values(B, Hkv, Sk, Dv, known.constants["ALIGN"])',) if fast.narrow else ()
    if fast.lists is None:
        taken = '*((host.add_queue,) if row.SCHEDULE == "queue" else ())'
        return Way(when=when, bind=bind, before=(taken, *turned), launches=(forward,))
    if fast.map is not None:
        named = MapLaunches(map=fast.map, walked="keys").named()
        return Way(when=when, bind=bind, before=("host.add_queue", *turned), launches=(*named, forward))
    tests = fast.tests
    lists = Launch(
        kernel="_list_key_runs_kernel",
        grid=f"n_lists{tests_count(tests)}",
        constants=(*_DIMS, "BQ=BQ", "BK=BK", "ROWS=host.padded(BQ)", "FAST=True", "num_warps=1"),
        buffers=(f"lists=((n_lists, {results}), torch.int32)", *tests_within(tests)),
        names=('counts="queue"',),
    )
    bind = (*bind, f"n_lists = n_tiles * (1 + BQ // 64){fast.lists.times}")
    return Way(when=when, bind=bind, before=("host.add_queue", *turned), launches=(lists, forward))


# ---------------------------------------------------------------- backward


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The launches that make one part of the gradients, `name`: the last of the `ways` that is possible."""

    name: str
    otherwise: Way
    ways: tuple[Way, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BackwardLaunches:
    """All at once by the first of the `ways` that is possible, or else `first` and then each of the `parts`, which read
    what the lines `bind` bind. `pairs`: kernels that gather a param's gradient over pairs, by name. `usual`: whether
    launches depend on the size of the scale.
    """

    ways: tuple[Way, ...]
    bind: tuple[str, ...]
    first: Way
    parts: tuple[Part, ...]
    pairs: tuple[tuple[str, Way], ...]
    usual: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class BackwardKernels:
    """The kernels of the backward pass. `flags`: constants that say which params' gradients are wanted, by position;
    `precise`: whether delta takes what rounding took from out."""

    bwd: BackwardView
    whole: GluonBackwardView | None
    apart: GluonApartView | None
    counts_apart: bool
    cells: Cells
    key_tests: tuple[TestView, ...]
    query_tests: tuple[TestView, ...]
    dq_sums: tuple[RowSum, ...]
    dkdv_sums: tuple[RowSum, ...]
    pairs: tuple[PairView, ...]
    precise: bool
    map: MapView | None

    @property
    def flags(self) -> tuple[str, ...]:
        return tuple(f"{flag}=needed[{i}]" for i, flag in enumerate(self.bwd.flags))

    @property
    def has_rows(self) -> bool:
        """Whether a kernel makes first what each row needs."""
        return self.bwd.has_delta or self.bwd.has_lse


def backward_launches(kernels: BackwardKernels) -> BackwardLaunches:
    whole, apart = kernels.whole, kernels.apart
    counters = "dict(query_counts=4, key_counts=4) if apart is not None else {}" if kernels.counts_apart else ""
    tensors = "q, k, v, d_out, dq, dk, dv"
    return BackwardLaunches(
        ways=(_whole(kernels, whole),) if whole is not None else (),
        bind=(
            "tma = host.has_tma(q, k, v, d_out)",
            *((f"apart = {_if_it_fits(f'host.hopper_row(HOPPER_APART, {tensors})', kernels.map)}",) if apart else ()),
        ),
        first=Way(launches=row_launches(kernels, counters=counters), after=("*by_keys", "*by_rows")),
        parts=(
            Part(
                name="by_keys",
                otherwise=_portable_dkdv(kernels),
                ways=(_hopper_dkdv(kernels, apart),) if apart is not None else (),
            ),
            Part(
                name="by_rows",
                otherwise=_portable_dq(kernels),
                ways=(_hopper_dq(kernels, apart),) if apart is not None else (),
            ),
        ),
        pairs=tuple(launch for pair in kernels.pairs for launch in pair.launches),
        usual=whole is not None and whole.row_terms,
    )


def _if_it_fits(row: str, map: MapView | None) -> str:
    return " ".join((row, *(f"if {condition} else None" for condition in fits(map))))


def row_launches(
    kernels: BackwardKernels, *, counters: str, terms: bool = False, batches: str = "B"
) -> tuple[Launch, ...]:
    """`terms`: the log-sum-exp and delta go into a row's terms, and elsewhere only where pairs are summed. `batches`:
    how many the tensors have, whichever sequences their rows belong to."""
    if not kernels.has_rows:
        return ()
    bwd, whole = kernels.bwd, kernels.whole
    results = (*(("lse",) if bwd.has_lse else ()), *(("delta",) if bwd.has_delta else ()))
    left_out = terms and not bwd.flags
    none = results if left_out else ()
    none = none if terms or whole is None or not whole.row_terms else (*none, "terms")
    return (
        Launch(
            kernel="_rows_kernel",
            grid=f"host.ceil(Sq, {kernels.cells.rows}) * {batches} * Hq",
            constants=(
                "Dv=Dv",
                f"ROWS={kernels.cells.rows}",
                "ALIGN=align",
                f"HAS_D_LSE={'has_d_lse' if bwd.has_delta else 'False'}",
                *(("PRECISE=precise",) if kernels.precise else ()),
            ),
            scalars=tuple(f"{name}=None" for name in none),
            buffers=(
                *(() if left_out else (f"{name}=(({batches}, Hq, Sq), torch.float32)" for name in results)),
                *((f"terms=(({batches}, Hq, Sq, 16), torch.bfloat16)",) if terms else ()),
            ),
            counters=counters,
            names=('lse="natural_lse"', 'scaled_lse="lse"') if bwd.has_lse else (),
        ),
    )


def _unless(when: str, elsewhere: tuple[int, ...]) -> str:
    return " and ".join((*(f"not needed[{i}]" for i in elsewhere), when))


def whole_launches(kernels: BackwardKernels, view: GluonBackwardView, *, sequences: bool) -> tuple[Launch, ...]:
    """One kernel makes dQ, dK and dV. `sequences`: of tiles of sequences."""
    kinds = kernels.cells.kinds(listed=view.lists is not None).items()
    counters = f"dict({', '.join(f'{name}={n} * n_cells' if n > 1 else f'{name}=n_cells' for name, n in kinds)})"
    later = "" if kernels.has_rows else counters
    of_items, of_parts = ("items", "q_slots", "k_slots"), (*BOUNDS, "n_sequences", "q_slots", "k_slots")
    packed = str(sequences and "packed")
    flags, absent = _geometry(listed=view.sequences, packed=packed, none=() if sequences else of_items)
    _, missing = _geometry(listed=view.sequences, packed=packed, none=() if sequences else of_parts)
    backward = Launch(
        kernel="_hopper_backward_kernel",
        own=True,
        grid="min(n_work, host.multiprocessors(q.device))",
        constants=(*_HOPPER, *_of_row("STAGES", "EARLY", "SPARE"), "BACKWARDS=backwards", "SHARED=shares > 1", *flags),
        tiles=(
            *_tiles("BQ", "q", "d_out", *(("terms",) if view.row_terms else ())),
            *_tiles("BK // 2", "k", "v", "dk", "dv"),
        ),
        scalars=("n_work=n_work", "together=together", "span=span if shares > 1 else None", "parts=None", *absent),
        buffers=('dq_parts=((n_parts * BQ * blocks["BLOCK_D"],), torch.float32)', "**parts"),
        counters="" if view.lists is not None else later,
        zeroed=True,
        ragged=sequences,
    )
    collect = Launch(
        kernel="_collect_kernel",
        grid="n_parts + (2 * n_tiles * heads if shares > 1 else 0)",
        constants=(*_DIMS, "**blocks", "BQ=BQ", "BK=BK", "SHARED=shares > 1", "ALIGN=align", *flags),
        scalars=("n_parts=n_parts", *missing),
    )
    lists = _lists(
        "_list_walks_kernel",
        len(view.runs),
        kernels.query_tests,
        counts="queue",
        counters=later,
        some=view.lists is not None,
        map=kernels.map,
        walked="queries",
        sequences=sequences,
    )
    batches = "P" if sequences else "B"
    rows = row_launches(kernels, counters=counters, terms=view.row_terms, batches=batches)
    return (*rows, *lists, backward, collect)


def whole_lines(view: GluonBackwardView, n_tiles: str, n_parts: str, *, sequences: bool) -> tuple[str, ...]:
    """What `whole_launches` reads; `n_tiles` of keys, `n_parts` of dQ. `sequences`: these are of all sequences
    together; how many heads take tiles in turn depends on how many one has (`docs/log`, "Hopper: sequences")."""
    n_lists = () if view.lists is None or view.mapped else (f"n_lists = 3 * n_tiles{view.lists.times}",)
    return (
        BLOCKS,
        f"n_tiles, n_parts = {n_tiles}, {n_parts}",
        *(view.listed_shared if sequences else view.shared),
        f"n_work, n_cells = n_tiles * heads * shares, {view.room}",
        'blocks = {name: known.wide[name] for name in ("BLOCK_D", "BLOCK_DV")}',
        'parts = {"parts": ((n_work * BK * sum(blocks.values()),), torch.float32)} if shares > 1 else {}',
        *n_lists,
    )


def whole_when(view: GluonBackwardView, found: str, *, sequences: bool = False) -> str:
    """When the kernel of all three may run, whose row is `found`."""
    needs = (*fits(view.map, walked="queries", sequences=sequences), *(("usual",) if view.row_terms else ()), found)
    return _unless(" and ".join(needs), view.elsewhere)


def _whole(kernels: BackwardKernels, view: GluonBackwardView) -> Way:
    return Way(
        when=whole_when(view, "(row := host.hopper_row(HOPPER_BACKWARD, q, k, v, d_out, dk, dv)) is not None"),
        bind=whole_lines(view, "host.ceil(Sk, BK)", "host.ceil(Sq, BQ) * B * Hq", sequences=False),
        launches=whole_launches(kernels, view, sequences=False),
    )


def _lists(
    kernel: str,
    width: int,
    tests: tuple[TestView, ...],
    *,
    counts: str,
    counters: str,
    some: bool,
    map: MapView | None,
    walked: str,
    sequences: bool = False,
) -> tuple[Launch, ...]:
    """The kernel that lists which tiles another one walks, by `width` numbers each, where there is `some`."""
    if not some:
        return ()
    if map is not None:
        found = MapLaunches(map=map, walked=walked, sequences=sequences)
        return found.named(counters, noted=kernel == "_list_walks_kernel")
    return (
        Launch(
            kernel=kernel,
            grid=f"n_lists{tests_count(tests)}",
            constants=_LISTS,
            buffers=(f"walks=((n_lists, {width}), torch.int32)", *tests_within(tests)),
            names=(f'counts="{counts}"',),
            counters=counters,
            zeroed=True,
        ),
    )


def _hopper_dkdv(kernels: BackwardKernels, view: GluonApartView) -> Way:
    walk = view.queries
    counters = "" if kernels.has_rows else "dict(query_counts=4)"
    lists = _lists(
        "_list_queries_met_kernel",
        len(walk.ends),
        kernels.query_tests,
        counts="query_counts",
        counters=counters,
        some=walk.lists is not None,
        map=kernels.map,
        walked="queries",
    )
    launch = Launch(
        kernel="_hopper_dkdv_kernel",
        own=True,
        grid="n_work",
        constants=(*_HOPPER, *_of_row("STAGES", "AHEAD", "SPARE")),
        tiles=(*_tiles("BQ", "q", "d_out"), *_tiles("BK", "k", "v", "dk", "dv")),
        scalars=("n_work=n_work", "together=row.together"),
    )
    bind = ["row = apart[0]", BLOCKS, "n_work = host.ceil(Sk, BK) * B * Hkv"]
    if walk.lists is not None:
        bind.append(f"n_lists = host.ceil(Sk, BK){walk.lists.times}")
    when = _unless("apart is not None", view.elsewhere)
    return Way(when=when, bind=tuple(bind), launches=(*lists, launch))


def _hopper_dq(kernels: BackwardKernels, view: GluonApartView) -> Way:
    walk = view.keys
    counters = "" if kernels.has_rows else "dict(key_counts=4)"
    lists = _lists(
        "_list_keys_met_kernel",
        len(walk.ends),
        kernels.key_tests,
        counts="key_counts",
        counters=counters,
        some=walk.lists is not None,
        map=kernels.map,
        walked="keys",
    )
    launch = Launch(
        kernel="_hopper_dq_kernel",
        own=True,
        grid="n_work",
        constants=(
            *_HOPPER,
            *_of_row("K_STAGES", "V_STAGES", "SPARE"),
            *kernels.flags,
        ),
        tiles=(*_tiles("BQ // 2", "q", "d_out", "dq"), *_tiles("BK", "k", "v")),
        scalars=("n_work=n_work", "together=row.together"),
        buffers=_dq_sums(kernels, "64"),
    )
    bind = ["row = apart[1]", BLOCKS, "n_work = host.ceil(Sq, BQ) * B * Hq"]
    if walk.lists is not None:
        bind.append(f"n_lists = host.ceil(Sq, BQ){walk.lists.times}")
    return Way(when="apart is not None", bind=tuple(bind), launches=(*lists, launch))


def _portable_dkdv(kernels: BackwardKernels) -> Way:
    launch = Launch(
        kernel="_dkdv_kernel",
        grid="host.ceil(Sk, BK) * B * Hkv",
        constants=(*_PORTABLE_BACKWARD, *kernels.flags, *PORTABLE_OPTIONS),
        tiles=(*_tiles("BQ", "q", "d_out"), *_tiles("BK", "k", "v")),
        tiled="tma",
        buffers=tuple(f"{s.name}=((B, Hq, Sk), torch.float32)" for s in kernels.dkdv_sums),
    )
    return Way(
        bind=("BQ, BK, warps, stages = host.tiles(TILES, q, v)[1]",),
        launches=(*tiles_found("queries", kernels.map, kernels.query_tests), launch),
    )


def _portable_dq(kernels: BackwardKernels) -> Way:
    launch = Launch(
        kernel="_dq_kernel",
        grid="host.ceil(Sq, BQ) * B * Hq",
        constants=(*_PORTABLE_BACKWARD, *kernels.flags, *PORTABLE_OPTIONS),
        tiles=(*_tiles("BQ", "q", "d_out"), *_tiles("BK", "k", "v")),
        tiled="tma",
        buffers=_dq_sums(kernels, "BQ"),
    )
    return Way(
        bind=("BQ, BK, warps, stages = host.tiles(TILES, q, v)[2]",),
        launches=(*tiles_found("keys", kernels.map, kernels.key_tests), launch),
    )


def _dq_sums(kernels: BackwardKernels, rows: str) -> tuple[str, ...]:
    """A number for each row, or for so many rows together."""
    return tuple(
        f"{s.name}=((B, Hq, {'Sq' if s.per_row else f'host.ceil(Sq, {rows})'}), torch.float32)" for s in kernels.dq_sums
    )
