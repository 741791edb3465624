"""What `templates/pallas/` reads: frozen views, beside those of kernels' code and operands.

Each holds text or flags that were chosen in `emit.pallas` or in the plan.
"""

from __future__ import annotations

from dataclasses import dataclass

from attngen.emit.pallas.kernel_code import Number


@dataclass(frozen=True, slots=True)
class TestView:
    """A data test: what is compared, and where a program finds its answer in the flat table."""

    name: str
    text: str
    what: str
    held: str
    walked: str
    can: str  # over the extremes of a held tile and of a walked one: whether the test can hold between them
    must: str  # and whether it then holds for every pair
    cell: str

    @property
    def ref(self) -> str:
        return f"{self.name}_ref"

    @property
    def answer(self) -> str:
        return f"*_answer({self.ref}, {self.cell})"

    @property
    def prepared(self) -> str:
        return f"_{self.name}(size, tile, floats, data)"


@dataclass(frozen=True, slots=True)
class AxisView:
    """An axis, and what its length and its tile are called."""

    name: str
    size: str
    tile: str

    @property
    def count(self) -> str:
        """How many tiles there are."""
        return f"_up({self.size}, {self.tile})"


QUERIES, KEYS = AxisView("queries", "Sq", "tile.queries"), AxisView("keys", "Sk", "tile.keys")


@dataclass(frozen=True, slots=True)
class MapView:
    """What the host makes of a mask with holes: for each tile of `held` a list of tiles of `walked`.

    There are lists for so many `places`; `entry` is the number of a list, over the names of `_key_list`. `turned` turns
    what the tile test says of queries and keys.
    """

    name: str
    held: AxisView
    walked: AxisView
    turned: str
    places: str
    entry: str

    @property
    def list(self) -> str:
        return f"_{self.name}_list(batch, head, held, size, tile)"

    def made(self, what: str) -> str:
        return f"_{self.name}_{what}(size, tile, floats, data)"


@dataclass(frozen=True, slots=True)
class RangesView:
    """The loops over one axis: the function that computes runs of tiles, and what it reads.

    `parameters` are the names that it takes after the ends of the tile; `in_kernel` and
    `on_host` what is passed for them. Where there is a `map`, runs are of places in a tile's list.
    """

    axis: str
    function: tuple[str, ...]
    parameters: tuple[str, ...]
    in_kernel: tuple[str, ...]
    on_host: tuple[str, ...]
    numbers: tuple[Number, ...]
    tests: tuple[TestView, ...]
    in_ints: bool  # the bounds are the same wherever they are computed
    map: MapView | None

    @property
    def counted(self) -> bool:
        """Whether the host may know how many tiles are met."""
        return self.in_ints and not self.tests and self.map is None

    @property
    def refs(self) -> list[str]:
        return [t.ref for t in self.tests] if self.map is None else [f"{self.map.name}_map_ref"]

    @property
    def prepared(self) -> list[str]:
        """What the host gives for these."""
        return [t.prepared for t in self.tests] if self.map is None else [self.map.made("map")]

    @property
    def found(self) -> tuple[str, ...]:
        """Finds the runs of a tile."""
        ends, name, block = ("q0, q1", "key", "BK") if self.axis == "k" else ("k0, k1", "query", "BQ")
        given = "".join(f"{text}, " for text in self.in_kernel)
        runs = f"full, partial = _{name}_tiles({ends}, {given}size, {block})"
        return (runs,) if self.map is None else (f"listed = {self.map.list} * ({self.map.walked.count} + 2)", runs)

    def named(self, place: str) -> str:
        """The tile at a place of the walk."""
        return place if self.map is None else f"{self.map.name}_map_ref[listed + 2 + {place}]"

    def looked_up(self, attend: str) -> str:
        """`attend` of places of the walk."""
        return attend if self.map is None else f"_looked_up({self.map.name}_map_ref, listed + 2, {attend})"

    @property
    def pair_refs(self) -> list[str]:
        """As `refs`, of a kernel that takes each pair of tiles."""
        return self.refs if self.map is None else [f"{self.map.name}_kinds_ref"]

    @property
    def pairs_prepared(self) -> list[str]:
        return self.prepared if self.map is None else [f"_numbers({self.map.made('kinds')})"]

    @property
    def pair_lines(self) -> tuple[str, ...]:
        if self.map is None:
            return self.found
        return (f"kind = {self.pair_refs[0]}[{self.map.list} * {self.map.walked.count} + at]",)

    @property
    def meets(self) -> str:
        """Whether the tile `at` holds a pair."""
        return "_among(at, [*full, *partial])" if self.map is None else "kind < 2"


@dataclass(frozen=True, slots=True)
class WalksView:
    """The texts of the plan's `TpuWalks`, whose docstrings say what each is over."""

    length: str
    first: str
    steps: tuple[str, ...]
    needed: str
    suffice: str
    number: str
    brought: str
    grid_unmasked: str
    grid_masked: str
    own: str
    rounds: str
    step: str
    rest: str
    resident_looped: str
    some: str
    none: str
    last: str
    straight_rounds: str
    straight_looped: str
    left: str
    straight_unmasked: str
    straight_masked: str
    pairs: str


@dataclass(frozen=True, slots=True)
class RowInput:
    """lse, den or delta: an array (B, Hq, Sq), and the value of a row that does not exist."""

    name: str
    missing: str

    @property
    def ref(self) -> str:
        return f"{self.name}_ref"


@dataclass(frozen=True, slots=True)
class RowsView:
    """What the backward kernels read of each row beside q and d_out, and what they make of it."""

    inputs: tuple[RowInput, ...]
    held_lines: tuple[str, ...]  # where rows are held
    walked_lines: tuple[str, ...]  # where they are walked
    normalised: bool  # weights are multiplied by inv_den
    has_delta: bool


@dataclass(frozen=True, slots=True)
class Sum:
    """The gradient of one operand, kept beside dQ or dK: `contribution` is a pair's.

    `extra` is what each row adds beside, as an array of four axes on the host.
    """

    name: str
    operand: str
    extent: str
    contribution: str
    extra: str

    @property
    def ref(self) -> str:
        return f"{self.name}_ref"

    @property
    def scratch(self) -> str:
        return f"{self.name}_s"


@dataclass(frozen=True, slots=True)
class PairSum:
    """The gradient of an operand that every pair has a cell of: a kernel of its own."""

    name: str
    operand: str
    text: str
    per_batch: bool
    per_head: bool
    contribution: str
