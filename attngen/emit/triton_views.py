"""What `templates/triton/` reads: frozen views, beside those of params, ranges, sums and the launcher.

Each holds text or flags that were chosen in `emit.triton` or in the plan.
"""

from __future__ import annotations

from dataclasses import dataclass

from attngen.plan.weights import Form


@dataclass(frozen=True, slots=True)
class Header:
    name: str
    title: str
    summary: str
    spec_lines: tuple[str, ...]
    digest: str
    options: str
    precision: str


@dataclass(frozen=True, slots=True)
class WeightView:
    """The form of the weights, as the templates need it."""

    exponential: bool
    shift: bool
    sums: bool
    has_key: bool
    saves_den: bool


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

    def row_loads(self, at: str, inside: str, shape: str, kappa: str) -> tuple[str, ...]:
        """Lines that load the rows' values. Rows that met no key, or do not exist, get values that make p zero."""
        lines: list[str] = []
        if "row_lse" in self.row_names or "row_ref" in self.row_names:
            lines += [
                f'row_lse = tl.load(lse_ptr + {at}, mask={inside}, other=float("-inf")){shape}',
                'row_lse = tl.where(row_lse == float("-inf"), float("inf"), row_lse * LOG2E)',
            ]
        if "row_ref" in self.row_names:
            lines.append(f"row_ref = row_lse / {kappa}")
        if "inv_den" in self.row_names:
            lines.append(f'inv_den = 1.0 / tl.load(den_ptr + {at}, mask={inside}, other=float("inf")){shape}')
        if self.has_delta:
            lines.append(f"delta = tl.load(delta_ptr + {at}, mask={inside}, other=0.0){shape}")
        return tuple(lines)


@dataclass(frozen=True, slots=True)
class TestView:
    """The small kernel that finds the extremes of a data vector in each tile."""

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
    shape: str
    grid: str
