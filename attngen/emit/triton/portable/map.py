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
from attngen.emit.triton.portable.kernels import BITS, kernel_code
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
    axis: str
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
    the test of the tiles' extremes, which reads what the lines `blocks` bind. `of_sequences`: the lists of their tiles.
    `as_bits`: what pairs are found to be is kept for kernels of compute capability 9.0.
    """

    code: KernelCode
    blocks: tuple[str, ...]
    can: str
    must: str
    mixed: str
    as_bits: bool
    lists: ListView
    of_sequences: ListView
    arguments: tuple[str, ...]
    unspecialized: list[str]
    sides: tuple[SideView, SideView]
    keys: MapAxisView
    queries: MapAxisView

    @property
    def shares(self) -> int:
        """So many programs share 32 tiles."""
        return 8 if self.as_bits else 1


def map_view(frame: Frame, test: TileTest | None) -> MapView | None:
    if test is None:
        return None
    kernel = frame.kernel_view()
    lists, of_sequences = (list_view(test.lists_of(sequences=sequences)) for sequences in (False, True))
    assert lists is not None and of_sequences is not None
    blocks, (can, must, mixed) = _test(frame, test)
    queries = _side(frame, Level.ROW, tuple(p for p in test.parts if not p.of_keys))
    keys = _side(frame, Level.COLUMN, tuple(p for p in test.parts if p.of_keys))
    return MapView(
        code=kernel_code(frame, Level.ROW, passes.Pass({}, {})),
        blocks=blocks,
        can=can,
        must=must,
        mixed=mixed,
        as_bits=test.as_bits,
        lists=lists,
        of_sequences=of_sequences,
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
        axis=axis,
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
    elements = tuple(dict.fromkeys(e for c in test.conditions for e in loads(c)))
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
    can, must, mixed = (printer.text(c) for c in test.conditions)
    return tuple(lines), (can, must, mixed)


def of_map(map: MapView | None) -> tuple[str, ...]:
    """What kernels of compute capability 9.0 read of it."""
    if map is None:
        return ()
    return ("walks_ptr", "tiles_ptr", *((f"{BITS}_ptr",) if map.as_bits else ()))


def found_of(map: MapView | None) -> tuple[str, ...]:
    """What they know of a row of it: where its tiles are listed, and which of their pairs are allowed."""
    if map is None:
        return ()
    return ("met", *((BITS,) if map.as_bits else ()))


# ---------------------------------------------------------------- launches


@dataclass(frozen=True, slots=True, kw_only=True)
class MapLaunches:
    """The kernels that make a map of the tiles of the axis `walked`, and lists of what it names. A tile has so many
    `queries`. `sequences`: the tiles are those of sequences, which have slots."""

    map: MapView
    walked: str
    queries: str = "BQ"
    sequences: bool = False

    def sorted(self) -> tuple[Launch, ...]:
        """With the lists that portable kernels walk."""
        lists = Launch(
            kernel="_sort_tiles_kernel",
            grid=self._rows,
            constants=("num_warps=1",),
            scalars=(f"n_walked={self._room}",),
            buffers=(f"walks=((2 * {self._rows},), torch.int32)", self._tiles),
        )
        return *self.made(cut=True), lists

    def named(self, counters: str = "", *, noted: bool = False) -> tuple[Launch, ...]:
        """With the lists that kernels of compute capability 9.0 walk. `noted`: these tell who waits for whom."""
        notes: tuple[str, ...] = ()
        if self.walked == "queries":
            notes = (f"n_slots={self._count(self.walked)}",)
            notes += (*(("met=None",) if not noted else ()), *(("firsts=None",) if not self.sequences else ()))
        lists = Launch(
            kernel=f"_list_{self.walked}_kernel",
            grid=self._rows,
            constants=("WORDS=BQ * BK // 32", "num_warps=1"),
            scalars=(f"n_held={self._held}", f"n_walked={self._room}", *notes),
            buffers=(f"walks=(({self._rows},), torch.int32)", self._tiles),
            counters=counters,
            zeroed=True,
        )
        return *self.made(cut=False), lists

    @property
    def _bits(self) -> tuple[str, ...]:
        """The buffer of the pairs' bits."""
        return (f"bits=(({self._rows} * {self._room} * {self.queries} * BK // 32,), torch.int32)",)

    def made(self, *, cut: bool) -> tuple[Launch, Launch]:
        """The kernel that finds extremes, and the one that makes the map. `cut`: it is for portable kernels, for which
        tiles need no mask where the tensor ends in the tile that is held, and which look at pairs themselves."""
        prefix, packed = ("_sequence", ("PACKED=packed",)) if self.sequences else ("", ())
        slots = ("q_slots=q_slots", "k_slots=k_slots") if self.sequences else ()
        sizes = (f"BQ={self.queries}", "BK=BK", *packed)
        of_queries, of_keys = self._count("queries"), self._count("keys")
        ends = ((of_queries, "q", self.map.sides[0]), (of_keys, "k", self.map.sides[1]))
        extremes = Launch(
            kernel=f"{prefix}_extremes_kernel",
            grid=f"({of_keys} + {of_queries}){self._times}",
            constants=(*sizes, f"ROWS=host.padded({self.queries})", "num_warps=4"),
            scalars=slots,
            buffers=tuple(
                f"{axis}_ends=(({tiles_of}{self._times} * {max(1, len(side.ends))},), torch.int64)"
                for tiles_of, axis, side in ends
            ),
        )
        times = f" * {self.map.shares}" if self.map.shares > 1 else ""
        firsts = (f"firsts=(({self._rows},), torch.int32)",) if self.sequences and self.walked == "queries" else ()
        kept = self.map.as_bits and not cut
        made = Launch(
            kernel=f"{prefix}_map_{self.walked}_kernel",
            grid=f"{self._rows} * host.ceil({self._room}, 32){times}",
            constants=(*sizes, f"CUT={cut}", "num_warps=4"),
            scalars=(*slots, *(() if kept else ("bits=None",))),
            buffers=(f"map=(({self._rows} * {self._room},), torch.int8)", *(self._bits if kept else ()), *firsts),
        )
        return extremes, made

    @property
    def _times(self) -> str:
        """The number of lists, as a factor."""
        return (self.map.of_sequences if self.sequences else self.map.lists).times

    def _count(self, axis: str) -> str:
        """How many tiles of an axis a list may be of."""
        if self.sequences:
            return "q_slots" if axis == "queries" else "k_slots"
        return self._most(axis)

    def _most(self, axis: str) -> str:
        """How many tiles of an axis a sequence has at most."""
        return f"host.ceil(Sq, {self.queries})" if axis == "queries" else "host.ceil(Sk, BK)"

    @property
    def _held(self) -> str:
        return self._count("keys" if self.walked == "queries" else "queries")

    @property
    def _rows(self) -> str:
        """How many rows all lists have."""
        return f"{self._held}{self._times}"

    @property
    def _room(self) -> str:
        """How many tiles a row has room for."""
        return self._most(self.walked)

    @property
    def _tiles(self) -> str:
        return f"tiles=(({self._rows} * {self._room},), torch.int32)"


_MOST_PAIRS = "2**35"
"""Of so many pairs a map keeps bits, which take 4 GiB then. Beyond, portable kernels ask the mask of each pair."""


def fits(map: MapView | None, *, walked: str = "keys", sequences: bool = False) -> tuple[str, ...]:
    """The condition under which a map's bits are kept, if it has some: of whole tiles of 192 x 128 pairs at most."""
    if map is None or not map.as_bits:
        return ()
    pairs = f"(Sq + 191) * (Sk + 127){map.lists.times}"
    if sequences:
        of_keys, of_queries = (f"host.slots({size}, 128, B, packed)" for size in ("Sk", "Sq"))
        pairs = f"{of_queries} * 192 * (Sk + 127)" if walked == "keys" else f"{of_keys} * 128 * (Sq + 127)"
        pairs += map.of_sequences.times
    return (f"{pairs} <= {_MOST_PAIRS}",)


def tiles_found(
    walked: str, view: MapView | None, tests: tuple[TestView, ...], *, queries: str = "BQ"
) -> tuple[Launch, ...]:
    """The kernels by which a portable one finds its tiles: a map and its lists, or else the extremes of data in tiles.
    `queries`: how many a tile has."""
    if view is None:
        return tests_apart(tests)
    return MapLaunches(map=view, walked=walked, queries=queries).sorted()
