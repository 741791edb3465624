"""Schedules: every allowed pair is computed on one rank, whose keys lie there or arrive in that round."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
import torch.distributed as dist

import attngen
from attngen.distributed import (
    Layout,
    Schedule,
    Sequences,
    balanced,
    context_parallel,
    contiguous,
    headtail,
    row_work,
    schedule,
)
from attngen.distributed.plan.layout import TILE, Range, length
from attngen.distributed.plan.program import Call, fewer_together, steps, turns
from attngen.distributed.plan.schedule import EXCHANGES, Exchange, Masked
from attngen.errors import UsageError
from attngen.ir.evaluate import evaluate

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
CUT = (0, 13, 13, 60, 61, 95)
"""Sequences of any length, an empty one among them."""
IDS = np.repeat(np.arange(5), np.diff(CUT))[None]
MASKS: dict[str, tuple[str, dict[str, Any]]] = {
    "causal": ("mask = causal", {}),
    "window": ("mask = 0 <= q - k < 9", {}),
    "prefix": ("param prefix: int\nmask = k <= q or k < prefix", {"prefix": 21}),
    "everything": ("mask = true", {}),
    "dilated": ("mask = causal and (q - k) % 5 == 0", {}),
    "chunked": ("mask = causal and q // 16 == k // 16", {}),
    "global": ("mask = abs(q - k) <= 4 or q < 3 or k < 3\nassume Sq == Sk", {}),
    "documents": ("param ids: int[B, Sk]\nmask = causal and same_document(ids)\nassume Sq == Sk", {"ids": IDS}),
    "by head": ("mask = k <= q and q - k < 4 * (h + 1)", {}),
}


def allowed(kernel: attngen.Kernel, sequences: Sequences, params: dict[str, Any]) -> np.ndarray:
    """(rows of queries, rows of keys), some head."""
    found = np.zeros((sequences.q[-1], sequences.k[-1]), bool)
    for b in range(sequences.count):
        Sq, Sk = sequences.sizes(b)
        env = {"q": np.arange(Sq)[:, None], "k": np.arange(Sk), "Sq": Sq, "Sk": Sk, "b": 0, "h": 3}
        own = np.broadcast_to(evaluate(kernel.spec.mask, env, params), (Sq, Sk))
        found[sequences.q[b] : sequences.q[b + 1], sequences.k[b] : sequences.k[b + 1]] = own
    return found


def computed(s: Schedule) -> np.ndarray:
    """How often each pair is computed; on the way, that keys are there, and nothing arrives in vain."""
    ends = s.sequences
    times = np.zeros((ends.q[-1], ends.k[-1]), int)
    queries, keys = s.q_layout.grouped(s.heads), s.k_layout.grouped(s.heads)
    for r in s.rounds:
        for group, pieces in enumerate(r.pieces):
            arrived = [rows for t in r.transfers if t.target == group for rows in t.rows]
            assert len({t.source for t in r.transfers if t.target == group}) <= (1 if len(s.rounds) > 1 else s.groups)
            there, used = np.zeros(ends.k[-1], bool), np.zeros(ends.k[-1], bool)
            for a, b in (*keys.stretches[group], *arrived):
                assert not there[a:b].any(), "keys arrive that are there"
                there[a:b] = True
            mine = np.zeros(ends.q[-1], bool)
            for a, b in queries.stretches[group]:
                mine[a:b] = True
            for b, (q0, q1), (k0, k1) in pieces:
                assert 0 <= q0 < q1 <= ends.sizes(b)[0] and 0 <= k0 < k1 <= ends.sizes(b)[1]
                rows, columns = slice(ends.q[b] + q0, ends.q[b] + q1), slice(ends.k[b] + k0, ends.k[b] + k1)
                assert there[columns].all() and mine[rows].all()
                used[columns] = True
                times[rows, columns] += 1
            assert all(used[a:b].all() for a, b in arrived)
    return times


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("packed", [False, True])
def test_each_allowed_pair_is_computed_once(mask: str, packed: bool) -> None:
    text, params = MASKS[mask]
    if packed and "ids" in params:
        pytest.skip("documents are the sequences of packed tensors")
    kernel = attngen.compile(f"attention a\n{text}\n")
    sequences = Sequences.of_offsets(CUT) if packed else Sequences.dense(95)
    masked = Masked(params=params, extents={"Hq": 4})
    right = allowed(kernel, sequences, params)
    work = row_work(kernel, sequences, masked)
    assert (work >= (right.sum(1) if mask != "by head" else 0)).all()
    exchanges: tuple[tuple[Exchange, int], ...] = (("ring", 1), ("gather", 1), ("ring", 2), ("gather", 2), ("heads", 1))
    for layout in (contiguous(95, 4), headtail(95, 4), balanced(work, 4, sequences.q), contiguous(95, 4).divided(1)):
        for exchange, heads in exchanges:
            made = schedule(kernel, layout, sequences, exchange, heads=heads, masked=masked)
            times = computed(made)
            assert times.max() <= 1 and (times[right] == 1).all()


def test_a_window_needs_its_neighbour_alone() -> None:
    kernel = attngen.compile("attention a\nmask = 0 <= q - k < 9\n")
    ring = schedule(kernel, contiguous(96, 4), Sequences.dense(96))
    assert len(ring.rounds) == 2
    assert [(t.source, t.target, t.rows) for t in ring.rounds[1].transfers] == [
        (0, 1, ((16, 24),)), (1, 2, ((40, 48),)), (2, 3, ((64, 72),)),
    ]  # fmt: skip
    assert [ring.received(g) for g in range(4)] == [0, 8, 8, 8]
    gathered = schedule(kernel, contiguous(96, 4), Sequences.dense(96), "gather")
    assert gathered.rounds[0].pieces[2] == ((0, (48, 72), (40, 72)),)


def test_documents_send_only_what_crosses() -> None:
    kernel = attngen.compile("attention a\nmask = causal\n")
    ring = schedule(kernel, contiguous(95, 4), Sequences.of_offsets((0, 23, 40, 71, 95)))
    crossing = [(t.source, t.target, t.rows) for r in ring.rounds for t in r.transfers]
    assert crossing == [(1, 2, ((40, 47),))]


def test_what_is_unknown_costs_transfers_alone() -> None:
    text, params = MASKS["documents"]
    kernel = attngen.compile(f"attention a\n{text}\n")
    blind = schedule(kernel, contiguous(95, 4), Sequences.dense(95))
    knowing = schedule(kernel, contiguous(95, 4), Sequences.dense(95), masked=Masked(params=params))
    assert sum(map(knowing.received, range(4))) < sum(map(blind.received, range(4)))
    by_head = attngen.compile(f"attention a\n{MASKS['by head'][0]}\n")
    assert (computed(schedule(by_head, contiguous(95, 4), Sequences.dense(95))) == 1).all()


def test_queries_and_keys_may_lie_differently() -> None:
    kernel = attngen.compile("attention a\nmask = causal\n")
    made = schedule(
        kernel, contiguous(30, 3), Sequences.dense(30, 50), k_layout=headtail(50, 3), masked=Masked(params={})
    )
    times = computed(made)
    assert times.max() == 1 and (times[allowed(kernel, Sequences.dense(30, 50), {})] == 1).all()


def test_mistakes_are_refused() -> None:
    kernel = attngen.compile("attention a\n")
    with pytest.raises(UsageError, match="the layout of queries has 8 rows, and the sequences have 9"):
        schedule(kernel, contiguous(8, 2), Sequences.dense(9))
    with pytest.raises(UsageError, match="no exchange 'rign'; there are ring, gather, heads"):
        schedule(kernel, contiguous(8, 2), Sequences.dense(8), "rign")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="offsets of queries must begin with 0 and never fall: 0, 4, 3"):
        Sequences.of_offsets((0, 4, 3))
    with pytest.raises(UsageError, match="queries lie on 2 ranks and keys on 1"):
        schedule(kernel, contiguous(8, 2), Sequences.dense(8), k_layout=Layout((((0, 8),),)))


def test_queries_that_see_nothing_of_a_round_are_not_computed_in_it() -> None:
    kernel = attngen.compile("attention w\nmask = 0 <= q - k < 9\n")
    made = schedule(kernel, contiguous(95, 3), Sequences.dense(95))
    (away,) = (r for r in made.rounds if r.transfers)
    assert [p.q for own in away.pieces for p in own] == [(31, 39), (63, 71)]
    assert [p.k for own in away.pieces for p in own] == [(23, 31), (55, 63)]


def test_keys_in_a_gap_are_neither_sent_nor_computed() -> None:
    kernel = attngen.compile("attention g\nmask = 0 <= k < 8 or 16 <= k < 80\n")
    layout = Layout((((0, 8), (16, 512)), ((8, 16),)))
    made = schedule(kernel, layout, Sequences.dense(512))
    assert all(p.q[0] < p.q[1] and p.k[0] < p.k[1] for r in made.rounds for own in r.pieces for p in own)
    assert all(t.target == 1 for r in made.rounds for t in r.transfers)
    assert {p.k for r in made.rounds for p in r.pieces[0]} == {(0, 8), (16, 80)}


def test_a_gather_computes_first_what_needs_no_keys_of_others() -> None:
    kernel = attngen.compile("attention c\nmask = causal\n")
    made = schedule(kernel, headtail(4096, 2), Sequences.dense(4096), "gather")
    (step,) = steps(made, 0, together=False)
    assert [(c.pieces[0].q, c.pieces[0].k) for c in step.early] == [((0, 1024), (0, 1024))]
    assert [(c.pieces[0].q, c.pieces[0].k) for c in step.calls] == [((3072, 4096), (0, 4096))]


def of(calls: Iterable[Call]) -> list[tuple[Range, Range]]:
    return [(p.q, p.k) for call in calls for p in call.pieces]


def test_the_backward_pass_ends_with_the_own_keys() -> None:
    kernel = attngen.compile("attention c\nmask = causal\n")
    own = steps(schedule(kernel, headtail(4096, 2), Sequences.dense(4096)), 0, together=False)
    remote, nothing, last = turns(own)
    assert of(remote.calls) == [((3072, 4096), (1024, 3072))] and not nothing.calls
    assert of(last.calls) == [((0, 1024), (0, 1024)), ((3072, 4096), (0, 1024)), ((3072, 4096), (3072, 4096))]


@pytest.mark.parametrize(("mask", "ranks"), [("causal", 4), ("0 <= q - k < 700", 8), ("q <= k", 5)])
def test_gradients_come_home_while_something_is_computed(mask: str, ranks: int) -> None:
    kernel = attngen.compile(f"attention t\nmask = {mask}\n")
    made = schedule(kernel, headtail(4096, ranks), Sequences.dense(4096))
    for group in range(ranks):
        order = turns(steps(made, group, together=False))
        assert [s for t in order for s in t.home] == [t.step for t in order if t.step is not None]
        for turn in order:
            assert turn.calls or sum(1 for s in turn.home if s.send) in (0, 2)  # no more than two are on their way


@pytest.mark.parametrize(("ranks", "first"), [(2, False), (4, True)])
def test_a_call_of_own_keys_hides_what_is_fetched_again(ranks: int, first: bool) -> None:
    """On four ranks a gather brings more rows than a rank holds, so they are not kept."""
    kernel = attngen.compile("attention t\n")
    made = schedule(kernel, headtail(4096, ranks), Sequences.of_offsets([0, 50, 100, 4096]), "gather")
    own = steps(made, 0, together=False)
    order = turns(own)
    assert (order[0].step is None and len(order[0].calls) == 1) == first
    calls = [c for s in own for c in (*s.early, *s.calls)]
    assert sorted(map(repr, calls)) == sorted(repr(c) for t in order for c in t.calls)


def test_no_more_than_two_rounds_of_gradients_are_on_their_way() -> None:
    """The first of eight ranks sends in every round and computes nothing but its own keys: its buffers stay few."""
    kernel = attngen.compile("attention c\nmask = causal\n")
    order = turns(steps(schedule(kernel, contiguous(4096, 8), Sequences.dense(4096)), 0, together=False))
    going = 0
    for turn in order:
        going -= sum(1 for s in turn.home if s.send)
        going += turn.step is not None and bool(turn.step.send)
        assert 0 <= going <= 2
    assert going == 0 and sum(1 for t in order if t.step is not None and t.step.send) == 7


def test_rows_that_ranks_do_not_divide_evenly_are_kept() -> None:
    kernel = attngen.compile("attention t\n")
    made = schedule(kernel, contiguous(4097, 2), Sequences.dense(4097))
    assert {length(x) for x in made.k_layout.stretches} == {2048, 2049}
    assert made.kept() == (1, 1)


@pytest.mark.parametrize(("mask", "ranks"), [("causal", 2), ("0 <= q - k < 700", 4), ("full", 4), ("full", 1)])
@pytest.mark.parametrize("exchange", EXCHANGES[:2])
def test_what_arrives_last_is_not_sent_again(mask: str, ranks: int, exchange: Exchange) -> None:
    kernel = attngen.compile("attention t\n" if mask == "full" else f"attention t\nmask = {mask}\n")
    made = schedule(kernel, contiguous(4096, ranks), Sequences.dense(4096), exchange)
    by_rank = [steps(made, group, together=False) for group in range(ranks)]
    for i in range(len(made.rounds)):
        for group, own in enumerate(by_rank):
            again = {g for g, s in enumerate(by_rank) if group in dict(s[i].again)}
            needed = set() if own[i].kept else {source for source, _ in own[i].receive}
            assert again == needed
    for own in by_rank:
        last = next((s for s in reversed(own) if s.receive), None)
        kept = [s for s in own if s.kept]
        fits = last is not None and sum(rows for _, rows in last.receive) <= 4096 // ranks  # rows of every rank
        assert kept == ([last] if fits else [])


@pytest.mark.parametrize(("mask", "fewer"), [("0 <= q - k < 100", True), ("causal", False)])
def test_stretches_whose_keys_do_not_meet_can_be_one_call(mask: str, fewer: bool) -> None:
    made = schedule(
        attngen.compile(f"attention t\nmask = {mask}\n"), headtail(4096, 2), Sequences.dense(4096), "gather"
    )
    assert fewer_together(made) == fewer
    own = steps(made, 0, together=True)
    assert [len(c.pieces) for step in own for c in (*step.early, *step.calls)] == ([2] if fewer else [1, 1])


@pytest.mark.parametrize("exchange", ["ring", "gather"])
def test_pieces_begin_whole_tiles_apart(exchange: Exchange) -> None:
    """A window's 4,095 keys before a query are 4,096 for it. What would be more than an eighth more is not sent."""
    sequences, window = Sequences.of_offsets((0, 70, 32838)), "attention window\nmask = 0 <= q - k < 4096"
    kernel = attngen.compile(window)
    layout = balanced(row_work(kernel, sequences), 2, sequences.q)
    found = schedule(kernel, layout, sequences, exchange)
    long = [p for r in found.rounds for own in r.pieces for p in own if p.sequence == 1]
    assert len(long) >= 3 and all((p.q[0] - p.k[0]) % TILE == 0 for p in long)
    assert any(length(t.rows) == 4096 for r in found.rounds for t in r.transfers)
    narrow = attngen.compile(window.replace("4096", "300"))
    kept = schedule(narrow, contiguous(32838, 2), sequences, exchange)
    assert sum(length(t.rows) for r in kept.rounds for t in r.transfers) == 299


def test_what_does_not_go_together_is_refused_before_messages() -> None:
    """Each rank refuses it alone: one that has sent would leave the others waiting."""
    kernel = attngen.compile("attention c\nmask = causal\n")
    q = torch.randn(1, 2, 8, 16)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        for exchange in EXCHANGES:
            here: Any = context_parallel(kernel, exchange=exchange).over(cast(Any, torch.tensor(8)))
            for said, operands in (
                ("v must have the 2 heads of k, not 4", (q, q, q.repeat(1, 2, 1, 1))),
                ("v must have q's dtype torch.float32, not torch.float16", (q, q, q.half())),
                ("k must have q's head dim 16, not 8", (q, q[..., :8], q)),
                ("k must have q's batch 1, not 2", (q, q.repeat(2, 1, 1, 1), q)),
                ("q's 2 heads must be a multiple of the 4 heads", (q, *(q.repeat(1, 2, 1, 1),) * 2)),
                ("q must be a torch.Tensor, not ndarray", (q.numpy(), q, q)),
            ):
                with pytest.raises(UsageError, match=said):
                    here(*operands)
        attend: Any = context_parallel(kernel)
        for wrong in torch.tensor([0.0, 5.7, 8.0]), torch.tensor([[0, 8]]), 5:
            with pytest.raises(UsageError, match="cu_seqlens must be a sequence of ints"):
                attend.over(cu_seqlens=wrong)
        with pytest.raises(UsageError, match="dim must be one of the tensor's 4 dimensions, not 9"):
            attend.over(8).unshard(q, 9)
        with pytest.raises(UsageError, match="group must be a process group or a DeviceMesh, not 'world'"):
            context_parallel(kernel, cast(Any, "world"))
        with pytest.raises(UsageError, match="layout None is not known"):
            context_parallel(kernel, layout=cast(Any, None))
    finally:
        dist.destroy_process_group()


def test_queries_without_keys_need_none() -> None:
    kernel = attngen.compile("attention a\nparam a: int[B, Sq]\nparam c: int[B, Sk]\nmask = a[b, q] == c[b, k]\n")
    said = {"a": np.zeros(7, np.int64), "c": np.zeros(6, np.int64)}
    sequences = Sequences.of_offsets((0, 5, 6, 7), (0, 5, 6, 6))
    made = schedule(kernel, contiguous(7, 2), sequences, k_layout=contiguous(6, 2), masked=Masked(params=said))
    assert {p.sequence for r in made.rounds for own in r.pieces for p in own} == {0, 1}
    assert row_work(kernel, sequences, Masked(params=said)).tolist() == [5.0] * 5 + [1.0, 0.0]


def test_a_call_repeats_the_numbers_of_over() -> None:
    """On one rank: what the layout was made with is what the kernel computes with."""
    kernel = attngen.compile("attention a\nparam n: int where n >= 0\nmask = k <= q or k < n\n", tile=(16, 16))
    q = torch.randn(1, 1, 8, 16)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        here = context_parallel(kernel, layout="contiguous").over(8, n=3)
        torch.testing.assert_close(here(q, q, q, n=3), kernel(q, q, q, n=3))
        for said, given in ((3, 4), (3, torch.tensor(4)), (torch.tensor(3), 4), (np.array(3), torch.tensor(4))):
            here = context_parallel(kernel, layout="contiguous").over(8, n=said)
            with pytest.raises(UsageError, match=r"n is 4 here, and over\(…\) was given 3"):
                here(q, q, q, n=given)
    finally:
        dist.destroy_process_group()
