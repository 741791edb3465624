"""Rows that several calls add to, kept without a pass over memory that is not needed.

`adds_of` says, for each call, where the sum of its rows is kept before it and after it. Takes stretches of rows, no
tensors. A `Sum` follows it with tensors: what the first call gives is stored as it is, in the result, and a tensor that
has all rows becomes the result. Sums that the result's half precision would round are kept in float32 beside it until
the last addend. How two terms become one is the caller's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import groupby, pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from attngen.distributed.layout import Ranges


class Stretch(NamedTuple):
    """Rows start … stop - 1 of the sum, which lie from row `at` on in what is added."""

    start: int
    stop: int
    at: int


class Where(Enum):
    """Where the sum of some rows is kept: nowhere yet, in the result, or in float32 beside it."""

    NOWHERE = "nowhere"
    RESULT = "result"
    BESIDE = "beside"


class Store(NamedTuple):
    """What becomes of a stretch of an addend: where the sum of its rows is kept before, and where after."""

    stretch: Stretch
    kept: Where
    into: Where


@dataclass(frozen=True)
class Adds:
    """The addends of `size` rows, in their order, and the rows that have none."""

    size: int
    stores: tuple[tuple[Store, ...], ...]
    none: Ranges


def placed(ranges: Iterable[tuple[int, int]]) -> list[Stretch]:
    """Ranges that lie one after the other in what is added."""
    found: list[Stretch] = []
    at = 0
    for start, stop in ranges:
        found.append(Stretch(start, stop, at))
        at += stop - start
    return found


def adds_of(size: int, addends: Sequence[Sequence[Stretch]], wide: Sequence[bool] | None = None) -> Adds:
    """`wide`: which addends are in float32, so that the result may not keep them before the others have come."""
    wide = [False] * len(addends) if wide is None else wide
    ends = sorted({0, size, *(end for own in addends for s in own for end in s[:2])})
    cells = {start: i for i, start in enumerate(ends)}
    left = [0] * len(ends)
    for s in (s for own in addends for s in own):
        for i in range(cells[s.start], cells[s.stop]):
            left[i] += 1
    none = tuple((a, b) for i, (a, b) in enumerate(pairwise(ends)) if a < b and not left[i])
    kept = [Where.NOWHERE] * len(ends)
    stores: list[tuple[Store, ...]] = []
    for stretches, exact in zip(addends, wide, strict=True):
        own: list[Store] = []
        for s in stretches:
            inside = range(cells[s.start], cells[s.stop])
            into = {i: _into(kept[i], last=left[i] == 1, exact=exact) for i in inside}
            for (before, after), group in groupby(inside, lambda i, into=into: (kept[i], into[i])):
                of = list(group)
                start, stop = ends[of[0]], ends[of[-1] + 1]
                own.append(Store(Stretch(start, stop, s.at + start - s.start), before, after))
            for i in inside:
                kept[i], left[i] = into[i], left[i] - 1
        stores.append(tuple(own))
    return Adds(size, tuple(stores), none)


def _into(kept: Where, *, last: bool, exact: bool) -> Where:
    rounds = kept is not Where.NOWHERE or exact  # what is stored would lose bits in half precision
    return Where.BESIDE if rounds and not last else Where.RESULT


@dataclass
class Sum:
    """Rows along `dim`, once all addends have come. `out`: where they are wanted, if anywhere."""

    adds: Adds
    dim: int
    like: Callable[[torch.dtype], Tensor]
    """A new tensor for all rows."""
    dtype: torch.dtype
    out: Tensor | None = None
    _beside: Tensor | None = None
    _turns: Iterator[tuple[Store, ...]] = field(init=False)

    def __post_init__(self) -> None:
        self._turns = iter(self.adds.stores)
        if self.out is not None:
            self._clear(self.out)

    def add(self, new: Tensor, joined: Callable[[Tensor, Tensor, Tensor, Stretch], None]) -> list[Stretch]:
        """The next addend. `joined(into, kept, new, stretch)` writes what `kept` and `new` are together, rows of a
        stretch, to `into`, which may be `kept`. Gives the stretches whose rows had no addend before."""
        stores = next(self._turns)
        firsts = [s.stretch for s in stores if s.kept is Where.NOWHERE]
        if self.out is None and new.dtype == self.dtype and self._all(firsts) and new.shape[self.dim] == self.adds.size:
            self.out = new
            return firsts
        for stretch, kept, into in stores:
            start, stop, at = stretch
            part, target = new.narrow(self.dim, at, stop - start), self._rows(into, stretch)
            if kept is Where.NOWHERE:
                target.copy_(part)
            else:
                joined(target, self._rows(kept, stretch), part, stretch)
        return firsts

    def _rows(self, where: Where, of: Stretch) -> Tensor:
        whole = self._begun()
        if where is Where.BESIDE and self.dtype != torch.float32:
            self._beside = self.like(torch.float32) if self._beside is None else self._beside
            whole = self._beside
        return whole.narrow(self.dim, of.start, of.stop - of.start)

    def _all(self, stretches: Sequence[Stretch]) -> bool:
        """Whether these are all rows, as they lie."""
        return all(p.start == p.at for p in stretches) and self.adds.size == sum(p.stop - p.start for p in stretches)

    def _begun(self) -> Tensor:
        if self.out is None:
            self.out = self.like(self.dtype)
            self._clear(self.out)
        return self.out

    def _clear(self, out: Tensor) -> None:
        for start, stop in self.adds.none:
            out.narrow(self.dim, start, stop - start).zero_()

    def result(self) -> Tensor:
        """All rows; zeros where there was no addend."""
        return self._begun()


def plus(into: Tensor, kept: Tensor, new: Tensor, _: Stretch) -> None:
    """The sum of two, computed in float32."""
    torch.add(kept.float(), new, out=into)
