"""The program that computes a walk's runs binds names alone, also where the full tiles would begin at 0."""

from __future__ import annotations

from attngen.ir.build import index, integer
from attngen.plan.mask.loops import ZERO, Assigned, Rounded, Run, loops
from attngen.plan.mask.ranges import TileRanges
from attngen.plan.mask.segments import Segment


def test_full_tiles_from_0_start_where_the_allowed_ones_do() -> None:
    allowed = Segment(index("first"), index("stop"))
    found = loops(TileRanges("k", (allowed,), (Segment(integer(0), index("q0")),), ()))
    assert found.full == (Run("full_lo", "full_hi"),)
    assert found.partial == (Run("any_lo", "full_lo"), Run("full_hi", "any_hi"))
    names = {s.name for s in found.steps if isinstance(s, Rounded | Assigned)}
    assert names == {"any_lo", "any_hi", "full_lo", "full_hi"} and ZERO not in names
