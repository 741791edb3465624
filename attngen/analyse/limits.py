"""How large and deep an expression may grow once its lets are put in, measured without walking what is shared.

Takes expressions, returns their size and depth as trees. A let that doubles its argument sixty times is a graph of
sixty nodes and a tree of 2**60: every later pass that compares, hashes or prints would walk the tree.
"""

from __future__ import annotations

from attngen.ir import walk
from attngen.ir.nodes import Expr, Op

MAX_NODES = 20_000
"""Nodes of one expression, as a tree."""

MAX_DEPTH = 100
"""Levels of one expression. Comparing costs Python four frames a level, a derivative can double the levels, and Python
stops at 1,000 frames."""

MAX_WORK = 500_000
"""What analysing one file may cost, about a second: one for each node compared."""

_CHECK_COST = 14
"""The cost of looking at one node of the syntax tree."""

# The operations whose simplification compares or flattens their arguments.
_COMPARING = frozenset({Op.SUB, Op.MIN, Op.MAX, Op.SELECT, Op.LT, Op.LE, Op.EQ, Op.NE})
_FLATTENING = frozenset({Op.AND, Op.OR, Op.NOT})


class Budget:
    """The size and depth of every expression built so far, and the work spent on a file."""

    def __init__(self) -> None:
        # By identity; each entry holds its expression, so that no identity is used twice.
        self._known: dict[int, tuple[Expr, int, int]] = {}
        self.spent = 0

    @property
    def exhausted(self) -> bool:
        return self.spent > MAX_WORK

    def check(self) -> None:
        """Accounts for one node of the syntax tree looked at."""
        self.spent += _CHECK_COST

    def apply(self, op: Op, args: tuple[Expr, ...]) -> None:
        """Accounts for what `build.apply` will compare."""
        if op in _COMPARING:
            self.spent += min(self.measure(a)[0] for a in args)
        elif op in _FLATTENING:
            self.spent += sum(self.measure(a)[0] for a in args)

    def scan(self, e: Expr) -> None:
        """Accounts for a walk over `e`."""
        self.spent += self.measure(e)[0]

    def measure(self, e: Expr) -> tuple[int, int]:
        """The nodes and the depth of `e` as a tree."""
        known = self._known.get(id(e))
        if known is not None:
            return known[1], known[2]
        parts = [self.measure(c) for c in walk.children(e)]
        nodes = 1 + sum(n for n, _ in parts)
        depth = 1 + max((d for _, d in parts), default=0)
        self._known[id(e)] = (e, nodes, depth)
        return nodes, depth
