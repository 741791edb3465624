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


@dataclass(frozen=True, slots=True)
class RangesView:
    """The loops over one axis: the function that computes runs of tiles, and what it reads.

    `parameters` are the names that it takes after the ends of the tile; `in_kernel` and
    `on_host` what is passed for them.
    """

    axis: str
    function: tuple[str, ...]
    parameters: tuple[str, ...]
    in_kernel: tuple[str, ...]
    on_host: tuple[str, ...]
    numbers: tuple[Number, ...]
    tests: tuple[TestView, ...]
    in_ints: bool  # the bounds are the same wherever they are computed


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
