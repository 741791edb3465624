"""What the templates of the portable targets read, beside params and the lines of `tile_code`: frozen views."""

from __future__ import annotations

from dataclasses import dataclass

from attngen.emit.text.facts import FactsView
from attngen.emit.text.params import ParamView


@dataclass(frozen=True, slots=True)
class TilesView:
    """The function that gives the tiles of one loop, its arguments, and the loop over what it returns."""

    arguments: tuple[str, ...]
    function: tuple[str, ...]
    loop: str  # what the loop binds
    reads_tensors: bool = False  # whether ends of runs are values of tensors


@dataclass(frozen=True, slots=True)
class TestView:
    """A data test: the function that finds the walked side's extremes, and how its answer is bound."""

    name: str
    text: str
    arguments: tuple[str, ...]
    lines: tuple[str, ...]
    value: str


@dataclass(frozen=True, slots=True)
class LeafView:
    """The sums of one leaf of a param: where they are kept, what a pair adds, what a row adds at the end."""

    name: str
    position: int  # of its param among those with gradients
    shape: str  # of the sums; empty where cells of the param are added to
    contribution: str  # of a pair; empty where only rows contribute
    tile_lines: tuple[str, ...]
    row_lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class GradientView:
    """One float param's gradient: `lines` add the sums of its leaves to `total` (float32, the param's shape)."""

    param: str
    total: str
    position: int  # of the param among the differentiable function's arguments
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DoorView:
    """The public function: arguments, checks, conversions, docs."""

    params: tuple[ParamView, ...]
    tensors: tuple[str, ...]  # q, k, v and the params that are tensors, and
    public_arguments: str
    check_lines: tuple[str, ...]
    convert_lines: tuple[str, ...]
    param_docs: tuple[str, ...]
    signs_scale: bool
    facts: FactsView
