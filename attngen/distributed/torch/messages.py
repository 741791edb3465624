"""Rows and heads that ranks send each other, with torch.distributed.

Rows travel point to point: a message holds rows of K and of V, one tensor after the other, flat. Heads travel all to
all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

import torch
import torch.distributed as dist
from torch import Tensor

from attngen.distributed.plan.layout import Ranges, length

_dist = cast(Any, dist)
_HEAD_START = 20_000
"""Cycles, some ten microseconds, in which a message begins. A kernel that was there before would hold all
multiprocessors to its end, and those who wait for the message would lose some of theirs (`docs/log`)."""


@dataclass(frozen=True)
class Link:
    """Groups that exchange rows: their process group, the number of the own one, and the dimension of rows."""

    group: Any
    rank: int
    rows: int
    """2 in (B, H, S, D), 0 in (T, H, D)."""

    def taken(self, x: Tensor, ranges: Ranges) -> Tensor:
        return taken(x, ranges, self.rows)

    def sized(self, x: Tensor, rows: int) -> list[int]:
        return [rows if d == self.rows else n for d, n in enumerate(x.shape)]


def taken(x: Tensor, ranges: Ranges, dim: int) -> Tensor:
    """Rows of `x`: a view where they are one stretch."""
    parts = [x.narrow(dim, start, stop - start) for start, stop in ranges]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim)


class Message(NamedTuple):
    """Tensors that travel as one: they are views of `flat`, rows outside heads, however the callers' own lie."""

    flat: Tensor
    tensors: list[Tensor]

    @classmethod
    def empty(cls, shapes: Sequence[Sequence[int]], like: Tensor, dtype: Any) -> Message:
        counts = [torch.Size(shape).numel() for shape in shapes]
        flat: Any = like.new_empty(sum(counts), dtype=dtype)
        return cls(flat, [_rows_outside(x, shape) for x, shape in zip(flat.split(counts), shapes, strict=True)])

    @classmethod
    def of(cls, link: Link, tensors: Sequence[Tensor], ranges: Ranges) -> Message:
        """These rows of tensors, copied."""
        found = cls.empty([link.sized(x, length(ranges)) for x in tensors], tensors[0], tensors[0].dtype)
        for own, x in zip(found.tensors, tensors, strict=True):
            at = 0
            for start, stop in ranges:
                own.narrow(link.rows, at, stop - start).copy_(x.narrow(link.rows, start, stop - start))
                at += stop - start
        return found


def _rows_outside(flat: Tensor, shape: Sequence[int]) -> Tensor:
    if len(shape) == 3:
        return flat.view(shape)
    B, H, S, D = shape
    return flat.view(B, S, H, D).transpose(1, 2)


@dataclass
class Pending:
    """Messages on the way. What is sent is kept until it has left."""

    works: list[Any] = field(default_factory=list[Any])
    sent: list[Message] = field(default_factory=list[Message])
    received: dict[int, list[Tensor]] = field(default_factory=dict[int, list[Tensor]])

    def wait(self) -> dict[int, list[Tensor]]:
        for work in self.works:
            work.wait()
        self.works.clear()
        self.sent.clear()
        return self.received


def post(
    link: Link, send: Mapping[int, Message], receive: Mapping[int, int], like: Sequence[Tensor], dtype: Any
) -> Pending:
    """Begins to send messages to groups, and to receive so many rows of each of `like` from groups, in this dtype."""
    found = Pending()
    if not send and not receive:
        return found
    operations: list[Any] = []
    for target, message in sorted(send.items()):
        found.sent.append(message)
        operations.append(dist.P2POp(dist.isend, message.flat, dist.get_global_rank(link.group, target), link.group))
    for source, rows in sorted(receive.items()):
        flat, found.received[source] = Message.empty([link.sized(x, rows) for x in like], like[0], dtype)
        operations.append(dist.P2POp(dist.irecv, flat, dist.get_global_rank(link.group, source), link.group))
    found.works += dist.batch_isend_irecv(operations)
    if like[0].is_cuda:
        with torch.cuda.device_of(like[0]):
            cast(Any, torch.cuda)._sleep(_HEAD_START)
    return found


# ---------------------------------------------------------------- heads


@dataclass(frozen=True)
class Heads:
    """The members of a group: each has some rows of all heads, or all rows of its own heads.

    `rows`: how many rows each member holds. `order`: the group's rows, which ascend, as rows of the members' tensors
    one after the other; `inverse`: the other way round.
    """

    group: Any
    member: int
    dim: int
    rows: tuple[int, ...]
    order: Ranges
    inverse: Ranges

    @property
    def count(self) -> int:
        return len(self.rows)

    def gathered(self, x: Tensor, heads: Sequence[Sequence[int]]) -> Tensor:
        """The member's own heads of all rows of the group; `heads` are those of each member."""
        blocks = [picked(x, 1, own) for own in heads]
        shapes = [self._sized(blocks[self.member], rows) for rows in self.rows]
        parts = self._exchanged(blocks, shapes)
        return self._moved(torch.cat(parts, self.dim), self.order)

    def scattered(self, x: Tensor, heads: Sequence[Sequence[int]]) -> list[Tensor]:
        """The other way: by member, its heads of the own rows."""
        blocks: tuple[Tensor, ...] = cast(Any, self._moved(x, self.inverse)).split(list(self.rows), self.dim)
        mine = self.rows[self.member]
        shapes = [
            [len(own) if d == 1 else mine if d == self.dim else n for d, n in enumerate(x.shape)] for own in heads
        ]
        return self._exchanged(blocks, shapes)

    def _sized(self, x: Tensor, rows: int) -> list[int]:
        return [rows if d == self.dim else n for d, n in enumerate(x.shape)]

    def _moved(self, x: Tensor, order: Ranges) -> Tensor:
        if len(order) <= 1:
            return x
        return torch.cat([x.narrow(self.dim, start, stop - start) for start, stop in order], self.dim)

    def _exchanged(self, blocks: Sequence[Tensor], shapes: Sequence[Sequence[int]]) -> list[Tensor]:
        sent = torch.cat([b.reshape(-1) for b in blocks])
        counts = [torch.Size(shape).numel() for shape in shapes]
        received: Any = sent.new_empty(sum(counts))
        _dist.all_to_all_single(received, sent, counts, [b.numel() for b in blocks], group=self.group)
        return [x.view(shape) for x, shape in zip(received.split(counts), shapes, strict=True)]


def picked(x: Tensor, dim: int, numbers: Sequence[int]) -> Tensor:
    """Entries of a dimension: a view where they follow one another."""
    if list(numbers) == list(range(numbers[0], numbers[0] + len(numbers))):
        return x.narrow(dim, numbers[0], len(numbers))
    return x.index_select(dim, torch.tensor(list(numbers), device=x.device))


def add_picked(total: Tensor, dim: int, numbers: Sequence[int], x: Tensor) -> None:
    """Adds to entries of a dimension what was picked from there, in order, so that the bits repeat."""
    if list(numbers) == list(range(numbers[0], numbers[0] + len(numbers))):
        total.narrow(dim, numbers[0], len(numbers)).add_(x)
        return
    for i, number in enumerate(numbers):
        total.select(dim, number).add_(x.select(dim, i))
