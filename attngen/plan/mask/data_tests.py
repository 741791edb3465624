"""Comparisons of row data with column data, answered at run time from the least and greatest value of each tile.

Takes a comparison of a mask, returns the two `Sides` of the `DataTest` that decides it: what depends on q, and what on
k. Which tiles an answer leaves is the business of `ranges`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal as OneOf, TypeAlias

from attngen.ir.build import TRUE, index, integer, sub
from attngen.ir.function import inlined
from attngen.ir.nodes import Apply, Expr, Literal, Load, Op, Symbol, Type
from attngen.ir.walk import nodes, reads, substitute
from attngen.plan.index import tests
from attngen.plan.ints.linear import additive, total

Sign: TypeAlias = OneOf["==", "<=", "<"]


@dataclass(frozen=True, slots=True)
class DataTest:
    """`row == col`, `row <= col` or, of ints, `row < col`. `row` reads q and `col` reads k, each with a load in it or
    plain.

    In bounds, its answer for axis `k` stands as the symbols `NAME_any_lo`, `NAME_any_hi`, `NAME_all_lo`, `NAME_all_hi`
    (positions): the hull of the tiles in which the test can hold for some pair, and a run of tiles, perhaps empty, in
    which it holds for every pair.
    """

    name: str
    sign: Sign
    row: Expr
    col: Expr

    def bound(self, which: str) -> Symbol:
        return Symbol(f"{self.name}_{which}", Type.INT)

    def code(self, axis: str) -> int:
        """What the runtime's functions call the test, where tiles of `axis` are walked."""
        return 0 if self.sign == "==" else {"<=": 1, "<": 3}[self.sign] + (axis == "q")

    def can(self, axis: str) -> Expr:
        """Whether the test can hold between the held tile's values, from `here_least` to `here_most`, and those of a
        tile of `axis`, from `there_least` to `there_most`: the runtime's function, over these."""
        return self._held("can_hold", axis)

    def must(self, axis: str) -> Expr:
        """Whether it then holds for every pair."""
        return self._held("must_hold", axis)

    def _held(self, name: str, axis: str) -> Expr:
        (found,) = inlined(tests().of(name, TEST=self.code(axis)))
        names = {"least": "here_least", "most": "here_most", "low": "there_least", "high": "there_most"}
        values: dict[Expr, Expr] = {index(own): Symbol(given, self.row.type) for own, given in names.items()}
        return substitute(found, {**values, Symbol("there", Type.BOOL): TRUE})


@dataclass(frozen=True, slots=True)
class Sides:
    """The sides of a test. `strict`: what was compared is `row < col`, of floats, and the test is `row <= col`."""

    row: Expr
    col: Expr
    sign: Sign
    strict: bool


def sides(c: Apply, axis: str, other: str) -> Sides | None:
    """The sides of a comparison whose difference falls into a part of q and a part of k, one of them with data."""
    left, right = c.args
    if left.type is Type.BOOL or c.op is Op.NE or reads(c, "qk", "D", "Dv"):
        return None  # a kernel that finds extremes knows no head dims
    parts = additive(left, right)
    if any(isinstance(t, Literal) and not math.isfinite(t.value) for t, _ in parts):
        return None  # moved to the other side, infinity less infinity would be no number
    own = [t for t in parts if reads(t[0], axis)]
    if not own or any(reads(t[0], other) for t in own):
        return None
    if not any(reads_data(t[0], "q", "k") for t in parts) and left.type is Type.INT:
        return None
    # left - right = row part + column part: compare the row part with the negated column part.
    rows = [t for t in parts if not reads(t[0], "k")]
    columns = [(t, -sign) for t, sign in parts if reads(t, "k")]
    row, col = total(rows, left.type), total(columns, left.type)
    if left.type is Type.INT and all(sign < 0 for _, sign in (*rows, *columns)):
        # -1 - x, which 32 bits hold for every x that they hold.
        row, col = (sub(integer(-1), total([(t, -sign) for t, sign in p], left.type)) for p in (rows, columns))
    strict = c.op is Op.LT
    if strict and left.type is Type.INT:
        return Sides(row, col, "<", strict=False)
    return Sides(row, col, "==" if c.op is Op.EQ else "<=", strict)


def reads_data(e: Expr, *axes: str) -> bool:
    """Whether `e` holds a load whose index depends on one of these axes."""
    return any(isinstance(n, Load) and reads(n, *axes) for n in nodes(e))
