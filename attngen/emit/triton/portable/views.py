"""What `templates/triton/` reads: frozen views, beside those of params, ranges, sums and the launcher.

Each holds text or flags that were chosen in `emit.triton` or in the plan.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from attngen.emit.text.divisions import HelperView
from attngen.emit.text.render import bracket
from attngen.emit.triton.code.kernel_code import KernelCode
from attngen.emit.triton.code.test_views import TestView
from attngen.emit.triton.code.tile_loops import RangeView

if TYPE_CHECKING:
    from attngen.emit.triton.portable.param_gradients import PairView


def strides(*tensors: str) -> tuple[str, ...]:
    """The arguments that say where the rows of these tensors are."""
    return tuple(f"{x}_strides" for x in tensors)


@dataclass(frozen=True, slots=True)
class KernelView:
    """What all main kernels share: arguments, whether a function asks if it may be approximate (`fast`), and the params
    (`flags`) whose gradients a call may leave out."""

    arguments: tuple[str, ...]
    unspecialized: list[str]
    fast: bool = False
    flags: tuple[str, ...] = ()

    @property
    def tiling(self) -> tuple[str, ...]:
        """The fields of `_Tiling`, short of the flags: what functions of a tile are compiled for."""
        return ("D", "Dv", "BQ", "BK", *(("FAST",) if self.fast else ()))

    def entry(
        self,
        pointers: tuple[str, ...],
        strided: tuple[str, ...] = (),
        flags: tuple[str, ...] = (),
        more: tuple[str, ...] = (),
        *,
        place: PlaceView,
    ) -> EntryView:
        """A kernel that reads q, k and v: `pointers` stand between these and the arguments that all have. `strided` are
        further tensors of rows. `flags` and `more` are constants of its own, of which functions of a tile read the
        flags."""
        fast = ("FAST",) if self.fast else ()
        return EntryView(
            operands=(
                "q_ptr",
                "k_ptr",
                "v_ptr",
                *pointers,
                *place.operands,
                *self.arguments,
                *strides("q", "k", "v", *strided),
            ),
            constants=("D", "Dv", "BQ", "BK", "ALIGN", *fast, *flags, *more, *place.constants),
            tiling=f"_Tiling({', '.join((*self.tiling, *flags))})",
        )


@dataclass(frozen=True, slots=True)
class ListedView:
    """The row of a tile that is held, among the `count` of each list; it has room for `room` tiles."""

    row: str
    count: str
    room: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceView:
    """Where the rows of a program's sequence are.

    `prefix` begins the names of the kernels, which have `operands` and `constants` more. The lines bind which tile of
    which sequence and head a program takes, and rebind sizes and pointers to that sequence: `query_lines` in a kernel
    that holds a tile of queries, `key_lines` in one that holds keys. `row` and `column` are the numbers of a head's
    first query and first key among those of all, `rows` by axis how many rows the tensor has, and `moved` by tensor the
    line that moves its pointer to the sequence. `listed` by axis: the row of a list that a tile of it has.
    """

    prefix: str = ""
    operands: tuple[str, ...] = ()
    constants: tuple[str, ...] = ()
    query_lines: tuple[str, ...]
    key_lines: tuple[str, ...]
    row: str
    column: str
    rows: Mapping[str, str]
    listed: Mapping[str, ListedView]
    moved: Mapping[str, str] = field(default_factory=dict[str, str])

    def of(self, *tensors: str) -> PlaceView:
        """With the lines that move the pointers of a kernel's tensors to its sequence."""
        lines = tuple(self.moved[x] for x in ("q", "k", "v", *tensors) if x in self.moved)
        return replace(self, query_lines=(*self.query_lines, *lines), key_lines=(*self.key_lines, *lines))


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryView:
    """The head of a kernel: its operands and constants, which operands it isn't specialized for, and what it hands on
    as `tiling`."""

    operands: tuple[str, ...]
    constants: tuple[str, ...]
    unspecialized: str = "UNSPECIALIZED"
    tiling: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopView:
    """A loop over tiles of which all need a mask or none does: `tile` is that of `step`, behind the lines `at`."""

    steps: str
    at: tuple[str, ...]
    tile: str
    masked: bool


def loop_views(found: RangeView, full: str = "", partial: str = "") -> tuple[LoopView, ...]:
    """The loops that have steps. `full` and `partial`: their ends, where these are not all steps."""
    ends = ((found.unmasked, full, False), (found.masked, partial, True))
    loops: list[LoopView] = []
    for walk, own, masked in ends:
        match walk.at:
            case ():
                continue
            case (line,) if found.lists is not None:
                at, tile = (f"at = tl.load(listed + {bracket(line.removeprefix('at = '))})",), "at"
            case (line,):
                at, tile = (), bracket(line.removeprefix("at = "))
            case _:
                at, tile = walk.at, "at"
        loops.append(LoopView(steps=own or walk.n_steps, at=at, tile=tile, masked=masked))
    return tuple(loops)


@dataclass(frozen=True, slots=True, kw_only=True)
class StateView:
    """What a function of a tile takes and gives back, by name."""

    state: tuple[str, ...]

    @property
    def carried(self) -> str:
        """The name of all of it in a loop."""
        first, *rest = self.state
        return "state" if rest else first

    @property
    def unpack_lines(self) -> tuple[str, ...]:
        return (f"{', '.join(self.state)} = state",) if len(self.state) > 1 else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class WeighView(StateView):
    """How `_attend_tile` makes weights of a tile's scores.

    `state` is what is summed or kept for each row, `held` the names of what does not depend on the key. `rescale` is by
    what a new row maximum changes the sums; empty where the weights have none. The lines bind `weight`, apply dropout
    to it, and load `v`. `multiplied`: the weights as their product with values reads them.
    """

    code: KernelCode
    held: tuple[str, ...]
    rescale: str
    weight_lines: tuple[str, ...]
    dropout_lines: tuple[str, ...]
    value_lines: tuple[str, ...]
    multiplied: str

    @property
    def sums(self) -> bool:
        return "row_sum" in self.state

    @property
    def begin(self) -> str:
        """The function of the runtime that returns the state of rows without a key so far."""
        return "no_values" if not self.sums else "no_keys" if "row_max" in self.state else "no_sums"


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishView:
    """The end of the forward pass, from a row's sums to its results.

    `parameters` are those of `_finish` beside the sums, `arguments` what a kernel gives for them, `results` the names
    of what comes back. `empty`: which rows have met no key.
    """

    parameters: tuple[str, ...]
    arguments: tuple[str, ...]
    results: tuple[str, ...]
    empty: str
    saves_den: bool
    saves_rest: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardView:
    """What `forward.py.j2` reads. `tile_lines` bind what the tile of queries has, `walk_lines` the ends of its walk."""

    entry: EntryView
    place: PlaceView
    weigh: WeighView
    tile_lines: tuple[str, ...]
    walk_lines: tuple[str, ...]
    loops: tuple[LoopView, ...]
    finish: FinishView


@dataclass(frozen=True, slots=True, kw_only=True)
class HelpersView:
    """`tiling` are the fields of `_Tiling`; the last ones, `flags`, are false where they are not given."""

    tiling: tuple[str, ...]
    flags: tuple[str, ...]
    unspecialized: list[str]
    kept: KeptView | None
    divisions: tuple[HelperView, ...]

    @property
    def tiling_fields(self) -> str:
        """What `namedtuple` takes after the name."""
        defaults = f", defaults=({'False, ' * len(self.flags)})" if self.flags else ""
        return f'"{" ".join((*self.tiling, *self.flags))}"{defaults}'


@dataclass(frozen=True, slots=True)
class KeptView:
    """The function `_kept_keys`, by which kernels clear the rows of K and V that a condition on the key alone forbids:
    what it takes beside the keys' positions, its lines, and the condition inside the tensor. `turned`: values lie in
    the order of 8-bit products."""

    arguments: tuple[str, ...]
    lines: tuple[str, ...]
    text: str
    turned: bool = False

    def key(self, place: str) -> str:
        """The key of a tile whose values stand at this place."""
        return f"quads.key_at({place})" if self.turned else place

    @property
    def parameters(self) -> tuple[str, ...]:
        return tuple(f"{n}: tl.constexpr" if n in ("D", "Dv") else n for n in self.arguments)


@dataclass(frozen=True, slots=True)
class BackwardView:
    """What the backward kernels read of each row, and the factors that stay outside the loops."""

    has_delta: bool
    row_pointers: tuple[str, ...]
    row_names: tuple[str, ...]
    normalised: str
    flags: tuple[str, ...]
    dq_factor: str
    dk_factor: str
    dk_factor_in_tile: str

    @property
    def has_lse(self) -> bool:
        """Whether the kernels read the log-sum-exp: prepared, to base 2, and inf where a row met no key."""
        return "row_lse" in self.row_names

    def row_loads(self, at: str, inside: str, shape: str, kappa: str) -> tuple[str, ...]:
        """Lines that load the rows' values. Rows that met no key, or do not exist, get values that make p zero.

        `inside` is the mask of the rows that exist; empty where all of them do.
        """

        def load(pointer: str, missing: float) -> str:
            other = repr(missing) if missing == 0.0 else f'float("{missing}")'
            mask = f", mask={inside}, other={other}" if inside else ""
            return f"tl.load({pointer} + {at}{mask}){shape}"

        lines: list[str] = []
        if self.has_lse:
            lines.append(f"row_lse = {load('lse_ptr', math.inf)}")
        if "row_ref" in self.row_names:
            lines.append(f"row_ref = row_lse / {kappa}")
        if "inv_den" in self.row_names:
            lines.append(f"inv_den = 1.0 / {load('den_ptr', math.inf)}")
        if self.has_delta:
            lines.append(f"delta = {load('delta_ptr', 0.0)}")
        return tuple(lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class RangesView:
    """What `tile_ranges.py.j2` reads; `arguments` are those of every kernel."""

    functions: tuple[tuple[str, ...], ...]
    tests: tuple[TestView, ...]
    arguments: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SlopeView:
    """From a tile's scores to their gradient: `weight_lines` bind `weight`, whose name that is; the others sum dV,
    bring `dp` to what dS needs, and bind `ds`."""

    weight: str
    weight_lines: tuple[str, ...]
    value_lines: tuple[str, ...]
    dp_lines: tuple[str, ...]
    ds_lines: tuple[str, ...]
    ds: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SumView:
    """What pairs give to the gradient of a param, `contribution`, is summed under `name` where a call asks for it."""

    name: str
    flag: str
    contribution: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DqView(StateView):
    """What `backward_dq.py.j2` reads.

    `state` is what is summed, which starts as `zeros`; `held` are the names of what does not depend on the key.
    `key_lines` load `k`, `sum_lines` store the sums.
    """

    entry: EntryView
    place: PlaceView
    code: KernelCode
    slope: SlopeView
    zeros: tuple[str, ...]
    held: tuple[str, ...]
    sums: tuple[SumView, ...]
    key_lines: tuple[str, ...]
    tile_lines: tuple[str, ...]
    walk_lines: tuple[str, ...]
    loops: tuple[LoopView, ...]
    factor: str
    sum_lines: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DkdvView(StateView):
    """What `backward_dkdv.py.j2` reads; see `DqView`. `row_lines` load the rows' values, `head_lines` bind what depends
    on the head."""

    entry: EntryView
    place: PlaceView
    code: KernelCode
    slope: SlopeView
    zeros: tuple[str, ...]
    held: tuple[str, ...]
    sums: tuple[SumView, ...]
    row_lines: tuple[str, ...]
    tile_lines: tuple[str, ...]
    head_lines: tuple[str, ...]
    walk_lines: tuple[str, ...]
    loops: tuple[LoopView, ...]
    factor: str
    sum_lines: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PairKernelView:
    """What `pair_gradient.py.j2` reads, and the template `body`; see `DqView`. `row_lines` bind what a tile of queries
    has."""

    pair: PairView
    body: str
    summary: str
    entry: EntryView
    slope: SlopeView
    held: tuple[str, ...]
    seed_lines: tuple[str, ...]
    row_lines: tuple[str, ...]
    loops: tuple[LoopView, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowValuesView:
    """What `backward_delta.py.j2` reads: which values of a row it prepares, and how many counters a program clears."""

    entry: EntryView
    summary: str
    lse: bool
    delta: bool
    rest: bool
    terms: bool
    cleared: int
    store_lse: tuple[str, ...]
    store_delta: tuple[str, ...]
