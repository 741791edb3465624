"""What a printer must know of single operations and loads: which guards, which widths, which division.

Takes every expression that a plan evaluates, returns `Choices`. Each is a claim that the prover checks. Whether an
element is inside its tensor may rest on no fact that a call leaves unchecked (`ir.checked`), nor may a division or a
width by which an index is computed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from attngen.errors import InternalError
from attngen.ir.attention import Attention
from attngen.ir.checked import checked
from attngen.ir.nodes import Apply, Expr, Load, Op
from attngen.ir.walk import nodes
from attngen.plan.ints.clipping import clipped
from attngen.plan.ints.facts import Facts, facts as read_facts
from attngen.plan.ints.guards import Access, Corner, accesses, corner
from attngen.plan.ints.reach import Reach, reaches
from attngen.plan.ints.width import WideInts, longest, wide


@dataclass(frozen=True, slots=True)
class Choices:
    """`accesses`: how each load is guarded. `ints`: what the target does beyond 32 bits; `wide`: the operations that
    may get there; `clipped`: others, which stay at the end of their tensor's dtype. `longest`: sequences must be
    shorter, a power of two. `plain_divisions`: `//` and `%` of which neither side is negative, so that division towards
    zero is division downwards. `corners`: loads whose extreme indices in a tile are known. `reaches`: how large ints of
    a call may be. `approximate`: functions that the target may compute by one approximate instruction."""

    accesses: tuple[Access, ...]
    ints: WideInts
    longest: int
    wide: tuple[Apply, ...]
    plain_divisions: tuple[Apply, ...]
    corners: tuple[Corner, ...]
    reaches: tuple[Reach, ...]
    clipped: tuple[Apply, ...] = ()
    approximate: tuple[Apply, ...] = ()

    def access(self, load: Load) -> Access:
        for found in self.accesses:
            if found.load == load:
                return found
        raise InternalError(f"a load of `{load.param}` that the plan does not know")

    def reach(self, param: str) -> Reach | None:
        return next((r for r in self.reaches if r.param == param), None)

    @property
    def longest_bits(self) -> int:
        """`longest` is two to this."""
        return self.longest.bit_length() - 1

    def corner(self, load: Load) -> Corner | None:
        return next((c for c in self.corners if c.load == load), None)


def choices(expressions: Iterable[Expr], attention: Attention, facts: Facts, ints: WideInts) -> Choices:
    roots = tuple(dict.fromkeys(expressions))
    safe = read_facts(checked(attention))
    divisions = (
        node for root in roots for node in nodes(root) if isinstance(node, Apply) and node.op in (Op.FLOORDIV, Op.MOD)
    )
    plain = (d for d in divisions if safe.is_nonnegative(d.args[0]) and safe.is_positive(d.args[1]))
    found = accesses(roots, attention.params, safe)
    corners = (corner(a.load) for a in found if not a.guarded)
    below = longest(roots, facts, ints)
    stay = clipped(roots) if ints is WideInts.BITS_64 else ()
    return Choices(
        found,
        ints,
        below,
        tuple(e for e in wide(roots, facts, safe, below) if e not in stay),
        tuple(dict.fromkeys(plain)),
        tuple(c for c in corners if c is not None),
        reaches(roots, attention, safe) if ints is WideInts.BITS_64 else (),
        stay,
    )
