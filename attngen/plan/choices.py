"""What a printer must know of single operations and loads: which guards, which widths, which division.

Takes every expression that a plan evaluates, gives `Choices`. Each is a claim that the prover checks.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from attngen.errors import InternalError
from attngen.ir.attention import Attention
from attngen.ir.nodes import Apply, Expr, Load, Op
from attngen.ir.walk import nodes
from attngen.plan.access import Access, Corner, accesses, corner
from attngen.plan.facts import Facts
from attngen.plan.width import wide


@dataclass(frozen=True, slots=True)
class Choices:
    """`accesses`: how each load is guarded. `wide`: int operations in 64 bits. `plain_divisions`: `//` and `%` of
    which neither side is negative, so that division towards zero is division downwards. `corners`: loads whose
    extreme indices in a tile are known."""

    accesses: tuple[Access, ...]
    wide: tuple[Apply, ...]
    plain_divisions: tuple[Apply, ...]
    corners: tuple[Corner, ...]

    def access(self, load: Load) -> Access:
        for found in self.accesses:
            if found.load == load:
                return found
        raise InternalError(f"a load of `{load.param}` that the plan does not know")

    def corner(self, load: Load) -> Corner | None:
        return next((c for c in self.corners if c.load == load), None)


def choices(expressions: Iterable[Expr], attention: Attention, facts: Facts) -> Choices:
    roots = tuple(dict.fromkeys(expressions))
    divisions = (
        node for root in roots for node in nodes(root) if isinstance(node, Apply) and node.op in (Op.FLOORDIV, Op.MOD)
    )
    plain = (d for d in divisions if facts.is_nonnegative(d.args[0]) and facts.is_positive(d.args[1]))
    found = accesses(roots, attention.params, facts)
    corners = (corner(a.load) for a in found if not a.guarded)
    return Choices(found, wide(roots, facts), tuple(dict.fromkeys(plain)), tuple(c for c in corners if c is not None))
