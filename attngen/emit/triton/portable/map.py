"""The map of tiles that hold allowed pairs, as text: what `triton/portable/map.py.j2` reads, and its launches.

Takes the plan's `TileTest` and the module's frame, returns a `MapView`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from attngen.emit.triton.code.kernel_code import KernelCode, KernelWriter
from attngen.emit.triton.code.launches import Launch, tests_apart
from attngen.emit.triton.code.lists import ListView, list_view
from attngen.emit.triton.code.test_views import TestView
from attngen.emit.triton.portable.frame import Frame
from attngen.emit.triton.portable.kernels import kernel_code
from attngen.ir.build import TRUE
from attngen.ir.nodes import Symbol
from attngen.ir.walk import loads
from attngen.plan import passes
from attngen.plan.ints.guards import Access, AxisAccess
from attngen.plan.levels import Level
from attngen.plan.mask.holes import Part, TileTest


@dataclass(frozen=True, slots=True, kw_only=True)
class SideView:
    """The tiles of one axis, `name`: of `tile` positions, of which `rows` are looked at, since a tile may be no power
    of two. The lines `lines` bind what `parts`, (name, text), are made of, by `index` and `size`; their extremes lie at
    `pointer`."""

    name: str
    index: str
    start: str
    size: str
    tile: str
    rows: str
    pointer: str
    lines: tuple[str, ...]
    parts: tuple[tuple[str, str], ...]

    @property
    def ends(self) -> tuple[str, ...]:
        """The names of extremes, in their order in memory."""
        return tuple(f"{name}_{end}" for name, _ in self.parts for end in ("least", "most"))


@dataclass(frozen=True, slots=True, kw_only=True)
class MapAxisView:
    """A map of the tiles of `walked`, a row for each tile of `held`. `noted`: tiles that are held wait for each other
    at these."""

    held: SideView
    walked: SideView
    noted: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class MapView:
    """`code` evaluates the mask for a tile of queries and one of keys; `can`, `must` and `mixed` are
    the test of the tiles' extremes, which reads what the lines `blocks` bind."""

    code: KernelCode
    blocks: tuple[str, ...]
    can: str
    must: str
    mixed: str
    lists: ListView
    arguments: tuple[str, ...]
    unspecialized: list[str]
    sides: tuple[SideView, SideView]
    keys: MapAxisView
    queries: MapAxisView


def map_view(frame: Frame, test: TileTest | None) -> MapView | None:
    if test is None:
        return None
    kernel, lists = frame.kernel_view(), list_view(test.lists)
    assert lists is not None
    blocks, (can, must, mixed) = _test(frame, test)
    queries = _side(frame, Level.ROW, tuple(p for p in test.parts if not p.of_keys))
    keys = _side(frame, Level.COLUMN, tuple(p for p in test.parts if p.of_keys))
    return MapView(
        code=kernel_code(frame, Level.ROW, passes.Pass({}, {})),
        blocks=blocks,
        can=can,
        must=must,
        mixed=mixed,
        lists=lists,
        arguments=kernel.arguments,
        unspecialized=kernel.unspecialized,
        sides=(queries, keys),
        keys=MapAxisView(held=queries, walked=keys, noted=False),
        queries=MapAxisView(held=keys, walked=queries, noted=True),
    )


def _side(frame: Frame, level: Level, parts: tuple[Part, ...]) -> SideView:
    name, axis, tile, rows = ("queries", "q", "BQ", "ROWS") if level is Level.ROW else ("keys", "k", "BK", "BK")
    index = f"{axis}_idx"
    code = KernelWriter(frame.plan, frame.params, level).write(
        {}, TRUE, known=(index, *frame.known), outside={p.name: p.value for p in parts}
    )
    return SideView(
        name=name,
        index=index,
        start=f"{axis}0",
        size=f"S{axis}",
        tile=tile,
        rows=rows,
        pointer=f"{axis}_ends_ptr",
        lines=(*code.head_lines, *code.held_lines),
        parts=tuple((p.name, code.results[p.name]) for p in parts),
    )


def _test(frame: Frame, test: TileTest) -> tuple[tuple[str, ...], tuple[str, str, str]]:
    """The lines that bind the elements which a test reads, inside the tensor whatever the extremes are; its texts."""
    conditions = (test.can, test.must, test.mixed)
    elements = tuple(dict.fromkeys(e for c in conditions for e in loads(c)))
    choices = frame.plan.choices
    everywhere = tuple(Access(e, (AxisAccess(False, low=True, high=True),) * len(e.indices)) for e in elements)
    printer = replace(frame.printer(), choices=replace(choices, accesses=(*everywhere, *choices.accesses)))
    for part in test.parts:
        for end in part.bounds:
            assert isinstance(end, Symbol)
            printer.bind(end, end.id)
    lines: list[str] = []
    for number, e in enumerate(elements):
        lines.append(f"block{number} = {printer.text(e)}")
        printer.bind(e, f"block{number}")
    can, must, mixed = (printer.text(c) for c in conditions)
    return tuple(lines), (can, must, mixed)


# ---------------------------------------------------------------- launches


def tiles_found(
    walked: str, view: MapView | None, tests: tuple[TestView, ...], *, queries: str = "BQ"
) -> tuple[Launch, ...]:
    """The kernels by which a portable one finds its tiles: a map and its lists, or else the extremes of data in tiles.
    `queries`: how many a tile has."""
    if view is None:
        return tests_apart(tests)
    rows, tiles = _counts(walked, queries)
    count = f"{rows}{view.lists.times}"
    lists = Launch(
        kernel="_sort_tiles_kernel",
        grid=count,
        constants=("num_warps=1",),
        scalars=(f"n_walked={tiles}",),
        buffers=(f"walks=((2 * {count},), torch.int32)", f"tiles=(({count} * {tiles},), torch.int32)"),
    )
    return *map_made(walked, view, queries=queries, cut=True), lists


def map_launches(view: MapView, walked: str, counters: str = "", *, noted: bool = False) -> tuple[Launch, ...]:
    """A map, and the lists that kernels of compute capability 9.0 walk. `noted`: these tell who waits for whom."""
    rows, tiles = _counts(walked, "BQ")
    count = f"{rows}{view.lists.times}"
    absent = ("met=None",) if walked == "queries" and not noted else ()
    lists = Launch(
        kernel=f"_list_{walked}_kernel",
        grid=count,
        constants=("num_warps=1",),
        scalars=(f"n_held={rows}", f"n_walked={tiles}", *absent),
        buffers=(f"walks=(({count},), torch.int32)", f"tiles=(({count} * {tiles},), torch.int32)"),
        counters=counters,
        zeroed=True,
    )
    return *map_made(walked, view, cut=False), lists


def map_made(walked: str, view: MapView, *, queries: str = "BQ", cut: bool) -> tuple[Launch, Launch]:
    """The kernel that finds extremes, and the one that makes the map. `cut`: tiles need no mask for it that the tensor
    ends in the tile that is held."""
    rows, tiles = _counts(walked, queries)
    of_queries, of_keys = _counts("keys", queries)
    times, sizes = view.lists.times, (f"BQ={queries}", "BK=BK")
    ends = ((of_queries, "q", view.sides[0]), (of_keys, "k", view.sides[1]))
    extremes = Launch(
        kernel="_extremes_kernel",
        grid=f"({of_keys} + {of_queries}){times}",
        constants=(*sizes, f"ROWS=host.padded({queries})", "num_warps=4"),
        buffers=tuple(
            f"{axis}_ends=(({tiles_of}{times} * {max(1, len(side.ends))},), torch.int64)"
            for tiles_of, axis, side in ends
        ),
    )
    words = f"{rows}{times} * (({tiles} + 31) // 32)"
    made = Launch(
        kernel=f"_map_{walked}_kernel",
        grid=words,
        constants=(*sizes, f"CUT={cut}", "num_warps=4"),
        buffers=(f"map=((2 * {words},), torch.int32)",),
    )
    return extremes, made


def _counts(walked: str, queries: str) -> tuple[str, str]:
    """How many rows a map of these tiles has for each list, and how many tiles a row."""
    of_queries, of_keys = f"host.ceil(Sq, {queries})", "host.ceil(Sk, BK)"
    return (of_queries, of_keys) if walked == "keys" else (of_keys, of_queries)
