"""Rows that several calls add to, kept without a pass over memory that is not needed.

`adds_of` says, for each call, where the sum of its rows is kept before it and after it. Takes stretches of rows, no
tensors. A `Sum` follows it with tensors: what the first call gives is stored as it is, in the result, and a tensor that
has all rows becomes the result. Sums that the result's half precision would round are kept in float32 beside it until
the last addend. How two terms become one is the caller's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import groupby, pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from attngen.distributed.plan.layout import Ranges


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


class Sum:
    """Rows along `dim`, once all addends have come, in `dtype`. `like` makes a tensor for all rows; `out`: where they
    are wanted, if anywhere."""

    def __init__(
        self, adds: Adds, dim: int, like: Callable[[torch.dtype], Tensor], dtype: torch.dtype, out: Tensor | None = None
    ) -> None:
        self.adds, self.dim, self.like, self.dtype = adds, dim, like, dtype
        self.fixed = out is not None
        self._held: dict[Where, Tensor] = {}
        self._turns = iter(adds.stores)
        if out is not None:
            self._hold(out)

    def add(self, new: Tensor, joined: Callable[[Tensor, Tensor, Tensor, Stretch], None]) -> list[Stretch]:
        """The next addend, which becomes the result if it has all rows as they lie. `joined(into, kept, new, stretch)`
        writes what `kept` and `new` are together, rows of a stretch, to `into`, which may be either of them. Gives the
        stretches whose rows had no addend before."""
        stores = next(self._turns)
        before = dict(self._held)
        if self._fits(new, stores):
            self._hold(new)
        for (start, stop, at), kept, into in stores:
            whole, part = self._tensor(into), new.narrow(self.dim, at, stop - start)
            if kept is not Where.NOWHERE:
                old = before[kept].narrow(self.dim, start, stop - start)
                joined(whole.narrow(self.dim, start, stop - start), old, part, Stretch(start, stop, at))
            elif whole is not new:
                whole.narrow(self.dim, start, stop - start).copy_(part)
        return [s.stretch for s in stores if s.kept is Where.NOWHERE]

    def _fits(self, new: Tensor, stores: Sequence[Store]) -> bool:
        rows = [s.stretch for s in stores]
        in_place = all(r.start == r.at for r in rows)
        all_rows = self.adds.size == new.shape[self.dim] == sum(r.stop - r.start for r in rows)
        return not self.fixed and new.dtype == self.dtype and in_place and all_rows

    def _tensor(self, where: Where) -> Tensor:
        if where not in self._held:
            new = self.like(torch.float32 if where is Where.BESIDE else self.dtype)
            if where is Where.BESIDE and self.dtype != torch.float32:
                self._held[where] = new
            else:
                self._hold(new)
        return self._held[where]

    def _hold(self, result: Tensor) -> None:
        self._held[Where.RESULT] = result
        if self.dtype == torch.float32:
            self._held[Where.BESIDE] = result
        for start, stop in self.adds.none:
            result.narrow(self.dim, start, stop - start).zero_()

    def result(self) -> Tensor:
        """All rows; zeros where there was no addend."""
        return self._tensor(Where.RESULT)


def plus(into: Tensor, kept: Tensor, new: Tensor, _: Stretch) -> None:
    """The sum of two, computed in float32."""
    torch.add(kept.float() if into.dtype == torch.float32 else kept, new, out=into)
