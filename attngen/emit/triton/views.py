"""What `templates/triton/` reads: frozen views, beside those of params, ranges, sums and the launcher.

Each holds text or flags that were chosen in `emit.triton` or in the plan.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from attngen.plan.score.weights import Form


@dataclass(frozen=True, slots=True)
class Header:
    name: str
    title: str
    summary: str
    spec_lines: tuple[str, ...]
    digest: str  # of the spec's text
    operator: str  # the custom operator's name, unique to text and options
    options: str
    precision: str
    proof: tuple[str, ...]  # comment lines: what was proved


@dataclass(frozen=True, slots=True)
class WeightView:
    """The form of the weights, as the templates need it."""

    exponential: bool
    shift: bool
    sums: bool
    saves_den: bool
    saves_rest: bool  # what out loses in rounding, for the gradients of params


@dataclass(frozen=True, slots=True)
class KernelView:
    """Arguments that all main kernels share, and the order in which programs take tiles."""

    arguments: tuple[str, ...]
    unspecialized: list[str]
    order: str
    key_order: str

    @property
    def orders(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((self.order, self.key_order)))


@dataclass(frozen=True, slots=True)
class KeptView:
    """The function `_kept_keys`, by which kernels clear the rows of K and V that a condition on the key alone forbids:
    what it takes beside the keys' positions, its lines, and the condition inside the tensor."""

    arguments: tuple[str, ...]
    lines: tuple[str, ...]
    text: str

    @property
    def parameters(self) -> tuple[str, ...]:
        return tuple(f"{n}: tl.constexpr" if n in ("D", "Dv") else n for n in self.arguments)


@dataclass(frozen=True, slots=True)
class BackwardView:
    """What the backward kernels read of each row, and the factors that stay outside the loops."""

    form: Form
    has_delta: bool
    row_pointers: tuple[str, ...]
    row_tensors: tuple[str, ...]
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


@dataclass(frozen=True, slots=True)
class TestView:
    """The small kernel that finds the extremes of a data vector in each tile: of each batch and of each head, where the
    vector differs from batch to batch and from head to head."""

    name: str
    axis: str
    text: str
    what: str
    pointers: tuple[str, ...]
    index: str
    size: str
    lines: tuple[str, ...]
    value: str
    lowest: str
    highest: str
    dtype: str
    per_batch: bool
    per_head: bool

    @property
    def batches(self) -> str:
        return "B" if self.per_batch else "1"

    @property
    def heads(self) -> str:
        return "Hq" if self.per_head else "1"

    @property
    def count(self) -> str:
        """How many tiles there are in all; a batch and a head have `n_tiles`."""
        return " * ".join(("n_tiles", *(("B",) if self.per_batch else ()), *(("Hq",) if self.per_head else ())))

    @property
    def place(self) -> str:
        """Tile, batch and head of the tile `number` of all, and how many tiles and heads there are."""
        rest = "number // n_tiles"
        batch, head = {
            (True, True): (f"{rest} // Hq", f"{rest} % Hq"),
            (True, False): (rest, "0"),
            (False, True): ("0", rest),
            (False, False): ("0", "0"),
        }[self.per_batch, self.per_head]
        return f"number % n_tiles, {batch}, {head}, n_tiles, {self.heads}"
