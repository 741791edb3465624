"""Rows that several calls add to, kept without a pass over memory that is not needed.

`adds_of` says, for each call, of which rows it is the first, a later or the last one to give something. Takes stretches
of rows, no tensors. A `Sum` follows it with tensors: what the first call gives is stored as it is, in the result; a
tensor that has all rows becomes the result. Only rows of more than two calls have a sum in float32 between. How two
terms become one is the caller's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from attngen.distributed.layout import Ranges


class Place(NamedTuple):
    """Rows start … stop - 1 of the sum, which lie from row `at` on in what is added."""

    start: int
    stop: int
    at: int


class Stretch(NamedTuple):
    """A place of an addend whose rows have the same addends before it, so many, and `last`: none after it."""

    place: Place
    before: int
    last: bool


@dataclass(frozen=True)
class Adds:
    """The addends of `size` rows, in their order, and the rows that have none."""

    size: int
    stretches: tuple[tuple[Stretch, ...], ...]
    none: Ranges


def placed(ranges: Iterable[tuple[int, int]]) -> list[Place]:
    """Ranges that lie one after the other in what is added."""
    found: list[Place] = []
    at = 0
    for start, stop in ranges:
        found.append(Place(start, stop, at))
        at += stop - start
    return found


def adds_of(size: int, addends: Sequence[Sequence[Place]]) -> Adds:
    ends = sorted({0, size, *(end for places in addends for p in places for end in p[:2])})
    cells = {start: i for i, start in enumerate(ends)}
    total = [0] * len(ends)
    for places in addends:
        for p in places:
            for i in range(cells[p.start], cells[p.stop]):
                total[i] += 1
    seen = [0] * len(ends)
    stretches: list[tuple[Stretch, ...]] = []
    for places in addends:
        own: list[Stretch] = []
        for p in places:
            inside = range(cells[p.start], cells[p.stop])
            for (before, last), group in groupby(inside, lambda i: (seen[i], seen[i] + 1 == total[i])):
                of = list(group)
                start, stop = ends[of[0]], ends[of[-1] + 1]
                own.append(Stretch(Place(start, stop, p.at + start - p.start), before, last))
            for i in inside:
                seen[i] += 1
        stretches.append(tuple(own))
    none = tuple((a, b) for i, (a, b) in enumerate(pairwise(ends)) if a < b and not total[i])
    return Adds(size, tuple(stretches), none)


@dataclass
class Sum:
    """Rows along `dim`, once all addends have come. `out`: where they are wanted, if anywhere."""

    adds: Adds
    dim: int
    like: Callable[[torch.dtype], Tensor]
    """A new tensor for all rows."""
    dtype: torch.dtype
    out: Tensor | None = None
    _between: Tensor | None = None
    _turns: Iterator[tuple[Stretch, ...]] = field(init=False)

    def __post_init__(self) -> None:
        self._turns = iter(self.adds.stretches)
        if self.out is not None:
            self._clear(self.out)

    def add(self, new: Tensor, joined: Callable[[Tensor, Tensor, Tensor, Place], None]) -> list[Stretch]:
        """The next addend. `joined(into, kept, new, place)` writes what `kept` and `new` are together, rows of a place,
        to `into`, which may be `kept`. Gives the stretches that are stored as they are."""
        stretches = next(self._turns)
        firsts = [s for s in stretches if not s.before]
        if self.out is None and new.dtype == self.dtype and self._all(firsts) and new.shape[self.dim] == self.adds.size:
            self.out = new
            return firsts
        out = self._begun()
        for place, before, last in stretches:
            start, stop, at = place
            part, stored = new.narrow(self.dim, at, stop - start), out.narrow(self.dim, start, stop - start)
            if not before:
                stored.copy_(part)
                continue
            if self._between is None and not (before == 1 and last):
                self._between = out if self.dtype == torch.float32 else self.like(torch.float32)
            between = None if self._between is None else self._between.narrow(self.dim, start, stop - start)
            kept, into = stored if before == 1 else between, stored if last else between
            assert kept is not None and into is not None
            joined(into, kept, part, place)
        return firsts

    def _all(self, stretches: Sequence[Stretch]) -> bool:
        """Whether these are all rows, as they lie."""
        return all(p.start == p.at for p, _, _ in stretches) and self.adds.size == sum(
            p.stop - p.start for p, _, _ in stretches
        )

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


def plus(into: Tensor, kept: Tensor, new: Tensor, place: Place) -> None:
    """The sum of two, computed in float32."""
    torch.add(kept.float(), new, out=into)
