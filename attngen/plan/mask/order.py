"""Names of the ints by which tiles are taken in an order, and values that depend on which way it goes.

The functions that say which item is which tile are `plan.index`.
"""

from __future__ import annotations

from dataclasses import dataclass

from attngen.ir.build import index
from attngen.ir.nodes import Expr

ITEM, N_TILES, ORDER, TILE = (index(name) for name in ("item", "n_tiles", "order", "tile"))


@dataclass(frozen=True, slots=True)
class Directed:
    """A value for tiles that are taken from the first to the last, and for those taken from the last to the first."""

    onwards: Expr
    backwards: Expr
