"""What a schedule costs each rank: work, bytes and time on a chip and its link, from the cost model.

Takes a plan, a schedule, the work of each row, sizes and a chip; returns `Estimate`, arrays by rank. A bound from
below, not a prediction: a rank never waits for another, kernels run at the speed of their busiest unit, and messages of
the next round are on their way while a round is computed. The backward pass goes through the rounds from the last to
the first, and fetches nothing that was kept, as on torch.distributed; JAX fetches all again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from attngen.cost.chips import ITEMSIZE, Chip, Dtype
from attngen.cost.model import pair_seconds
from attngen.distributed.plan.coverage import Pieces
from attngen.distributed.plan.layout import Layout, length
from attngen.distributed.plan.schedule import Schedule
from attngen.plan import KernelPlan

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """By rank: `pairs` of all its heads that it computes; bytes that it receives and sends, forward and backward;
    seconds, forward and backward. `alone`: what one chip takes for everything, over the number of ranks."""

    pairs: Floats
    received: tuple[Floats, Floats]
    sent: tuple[Floats, Floats]
    seconds: tuple[Floats, Floats]
    alone: tuple[float, float]
    gathered: float
    """Bytes of K and V that a rank would receive if it fetched those of every other group, on average."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A chip, and how many bytes a second leave it while as many arrive."""

    chip: Chip
    link: float
    dtype: Dtype


def estimate(
    plan: KernelPlan, schedule: Schedule, work: Floats, sizes: Mapping[str, int], machine: Machine
) -> Estimate:
    """`work`: keys that each row of queries may attend to (`schedule.row_work`)."""
    s, n = schedule, schedule.heads
    batches = 1 if s.sequences.packed else sizes["B"]
    item = ITEMSIZE[machine.dtype]
    q_heads, k_heads = sizes["Hq"] / n, -(-sizes["Hkv"] // n)
    key_row = batches * k_heads * (sizes["D"] + sizes["Dv"])
    total = np.concatenate([[0.0], np.cumsum(work)]) * batches * sizes["Hq"]
    of_group = np.array([sum(total[b] - total[a] for a, b in own) for own in s.q_layout.grouped(n).stretches])
    pairs = np.repeat(of_group / n, n)
    arrived, left = _rows_sent(s)
    computed = _shares(s) * (of_group / n)
    per_pair = pair_seconds(plan, machine.chip, machine.dtype, sizes, 1.0)
    inward, outward = _heads(s, batches * q_heads * item, sizes, key_row * item)
    found: list[tuple[Floats, Floats, Floats]] = []
    for backward in (False, True):
        fetch = [x * (key_row * item) for x in (_rows_sent(s, again=True) if backward else (arrived, left))]
        home = [x * (key_row * 4.0 * backward) for x in (left, arrived)]  # dK and dV go home in float32
        busy = computed * per_pair[backward]
        wire = [np.maximum(*x) / machine.link for x in (fetch, home)]
        around = [np.maximum(*x) / machine.link for x in (inward, outward)]
        groups = _rounds(*(x[::-1] if backward else x for x in (busy, *wire)))
        first, last = (inward, outward) if not backward else (outward[::-1], inward[::-1])
        received, sent = (np.repeat(fetch[i].sum(0) + home[i].sum(0), n) + first[i] + last[i] for i in (0, 1))
        found.append((received, sent, np.repeat(groups, n) + around[0] + around[1]))
    keys = np.repeat([s.k_layout.grouped(n).rows(g) for g in range(s.groups)], n)
    return Estimate(
        pairs=pairs,
        received=(found[0][0], found[1][0]),
        sent=(found[0][1], found[1][1]),
        seconds=(found[0][2], found[1][2]),
        alone=(float(pairs.mean()) * per_pair[0], float(pairs.mean()) * per_pair[1]),
        gathered=float((s.k_layout.total - keys).mean()) * key_row * item,
    )


def _rounds(busy: Floats, fetch: Floats, home: Floats) -> Floats:
    """Seconds of each group, from those of each round: what a round fetches arrives during the round before, and the
    gradients that it sends home travel during the round after."""
    if not len(busy):
        return busy.sum(0)
    none = np.zeros((1, busy.shape[1]))
    meanwhile = np.concatenate([fetch[1:], none]) + np.concatenate([none, home[:-1]])
    return fetch[0] + np.maximum(busy, meanwhile).sum(0) + home[-1]


def _shares(s: Schedule) -> Floats:
    """What part of its pairs a group computes in each round, by the area of its pieces."""
    work = Pieces.of(s)
    area = np.zeros((len(s.rounds), s.groups))
    np.add.at(area, (work.turn, work.group), (work.q1 - work.q0) * (work.k1 - work.k0))
    whole: Floats = np.maximum(area.sum(0), 1.0)
    return area / whole


def _rows_sent(s: Schedule, *, again: bool = False) -> tuple[Floats, Floats]:
    """Rows of K and V that arrive at each group and leave it, by round; `again`: in the backward pass."""
    arrived, left = np.zeros((len(s.rounds), s.groups)), np.zeros((len(s.rounds), s.groups))
    kept = s.kept() if again else (None,) * s.groups
    for turn, r in enumerate(s.rounds):
        for source, target, rows in r.transfers:
            count = 0 if kept[target] == turn else length(rows)
            arrived[turn, target] += count
            left[turn, source] += count
    return arrived, left


def _heads(
    s: Schedule, q_item: float, sizes: Mapping[str, int], key_row: float
) -> tuple[tuple[Floats, Floats], tuple[Floats, Floats]]:
    """Bytes that ranks exchange with the other members of their group, received and sent: q, k and v before, out
    after."""
    q, q_rest = _members(s.q_layout, s.heads)
    k, k_rest = _members(s.k_layout, s.heads)
    others = s.heads - 1
    before = (
        q_rest * q_item * sizes["D"] + k_rest * key_row,
        q * others * q_item * sizes["D"] + k * others * key_row,
    )
    after = q * others * q_item * sizes["Dv"], q_rest * q_item * sizes["Dv"]
    return before, after


def _members(layout: Layout, heads: int) -> tuple[Floats, Floats]:
    """Rows of each rank, and those of the other members of its group."""
    own = np.array([layout.rows(r) for r in range(layout.ranks)], np.float64)
    return own, np.repeat(own.reshape(-1, heads).sum(1), heads) - own
