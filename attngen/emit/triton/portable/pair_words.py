"""Bools of named pairs as bits of words, which the kernels of compute capability 9.0 read in place of a byte a pair.

Takes the module's frame and a kernel's loops, returns a `PairWords` for each of their data tests of pairs. The kernel
that finds a test's extremes packs what it has read: a word holds 32 neighbours of the walked axis.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from attngen.emit.triton.portable.data_tests import lists_of
from attngen.emit.triton.portable.frame import Frame
from attngen.errors import InternalError
from attngen.ir.nodes import Apply, Expr, Literal, Op
from attngen.plan.mask.data_tests import UNIT, DataTest
from attngen.plan.mask.loops import Loops


@dataclass(frozen=True, slots=True)
class PairWords:
    """The bits of the test called `test` stand for the condition `meant`, or, if `turned`, for its opposite. The lines
    `begin` find a head's words, once; `found` is the text of a tile's bools.
    """

    test: str
    meant: Expr
    turned: bool
    begin: tuple[str, ...]
    found: str

    @property
    def pointer(self) -> str:
        return f"{self.words}_ptr"

    @property
    def words(self) -> str:
        return f"{self.test}_words"

    @property
    def pairs(self) -> str:
        return f"{self.test}_pairs"

    @property
    def text(self) -> str:
        """The condition, by the bools of the tile."""
        return f"({self.pairs} == 0)" if self.turned else self.pairs


def pair_words(frame: Frame, found: Loops) -> tuple[PairWords, ...]:
    return tuple(_words(frame, t, found.axis) for t in found.tests if t.of_pairs)


def with_words(frame: Frame, words: Iterable[PairWords]) -> Frame:
    """The frame of kernels that read these."""
    pointers = tuple(w.pointer for w in words)
    names = tuple(w.words for w in words)
    return replace(frame, arguments=(*pointers, *frame.arguments), known=(*frame.known, *pointers, *names))


def _words(frame: Frame, t: DataTest, axis: str) -> PairWords:
    walked = t.col if axis == "k" else t.row
    meant, turned = _condition(walked)
    held, size, block = ("Sq", "Sk", "BK") if axis == "k" else ("Sk", "Sq", "BQ")
    test = f"{'key' if axis == 'k' else 'query'}_{t.name}"
    stride = f"({size} + {block} - 1) // {block} * ({block} // 32)"
    number, each = lists_of(walked), f"(({held} + {UNIT - 1}) // {UNIT} * {UNIT}) * ({stride})"
    first = f" + tl.cast({number}, tl.int64) * {each}" if number != "0" else ""
    like, rows, columns = ("qk", "q0", "k0") if axis == "k" else ("like", "k0", "q0")
    return PairWords(
        test,
        meant,
        turned,
        (f"{test}_words = {test}_words_ptr{first}",),
        f"sm90.named_pairs({like}, {test}_words, {rows}, {held} - 1, {columns}, {stride})",
    )


def _condition(side: Expr) -> tuple[Expr, bool]:
    """The condition of a test of pairs, and whether the test is of its opposite."""
    match side:
        case Apply(op=Op.TO_INT, args=(condition,)):
            return condition, False
        case Apply(op=Op.SUB, args=(Literal(value=1), Apply(op=Op.TO_INT, args=(condition,)))):
            return condition, True
        case _:
            raise InternalError(f"no test of pairs: {side}")
