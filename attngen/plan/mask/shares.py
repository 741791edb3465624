"""Which query heads an item of the backward kernel walks, where several share keys and values.

The `group` query heads that share keys are its members. They are cut into `shares` of `span` members each, the last
with those that are left. An item is a tile of keys for one share: it takes the keys once, walks its members one after
the other, and sums their dK and dV. If there are several shares, each item leaves its sums as a `part` in float32, and
a kernel adds the parts of a tile in the order of the shares. So heads of few keys still make as many items as the chip
needs, and the bits repeat.

The launcher chooses `span` for each call. Targets print these values; `prove.obligations.shares` shows, for any span,
that each member of a group is in exactly one share, that no two items leave their sums in one place, and that the parts
which are added are those of the shares.
"""

from __future__ import annotations

from dataclasses import dataclass

from attngen.ir.build import add, apply, floordiv, index, integer, maximum, minimum, mul, sub
from attngen.ir.nodes import Expr, Op

N_TILES, GROUP, SPAN, SHARES = (index(name) for name in ("n_tiles", "group", "span", "shares"))
HEAD, KV_HEAD, SHARE, TILE = (index(name) for name in ("head", "kv_head", "share", "tile"))


CACHED = 24 * 2**20
"""Bytes of a head's rows that stay in the cache. Neighbours that begin at queries of their own, and walk to the end,
read rows of more that have left it (`docs/log`, "Long sequences")."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """How many heads of items a call wants: so many that there are about `items` tiles of keys, at least `least` and at
    most `most`. onwards: items of several members take tiles of keys from the first to the last, so many heads in turn.
    far: where a head's rows of Q, dO and dQ have more than `CACHED` bytes, all do, so many heads in turn, and 2 where
    they have three times as many; 0: never. If `onwards`, a quarter is enough where keys are half again as many.
    few: sequences with fewer tiles of keys, in the mean, are walked by whole groups, two heads in turn, if tiles of
    keys are taken backwards.
    """

    items: int
    least: int
    most: int
    onwards: bool
    far: int = 0
    few: int = 16

    @property
    def heads(self) -> Expr:
        """Over `n_tiles`, how many tiles of keys a head has."""
        return maximum(integer(self.least), minimum(integer(self.most), floordiv(integer(self.items), N_TILES)))


@dataclass(frozen=True, slots=True)
class Shares:
    """`shares`: how many of `span` members a group has. The item's `head` is share `share` of `kv_head`, which is
    counted through all batches, and has the members `first` … `stop` - 1; `part` is the place of its sums, for tile
    `tile`. `head_of`: the head of share `share` of `kv_head`.
    """

    shares: Expr
    kv_head: Expr
    share: Expr
    first: Expr
    stop: Expr
    part: Expr
    head_of: Expr


def shares() -> Shares:
    """The shares of the backward kernel, whatever the sizes are."""
    first = mul(SHARE, SPAN)
    return Shares(
        shares=floordiv(sub(add(GROUP, SPAN), integer(1)), SPAN),
        kv_head=floordiv(HEAD, SHARES),
        share=apply(Op.MOD, HEAD, SHARES),
        first=first,
        stop=minimum(add(first, SPAN), GROUP),
        part=add(mul(HEAD, N_TILES), TILE),
        head_of=add(mul(KV_HEAD, SHARES), SHARE),
    )
