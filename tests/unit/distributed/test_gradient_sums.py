"""What a rank's backward pass adds, in its own order, with numbers in place of kernels and messages."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
import torch

import attngen
from attngen.distributed import Layout, Sequences, headtail, schedule
from attngen.distributed.plan.program import Call, steps
from attngen.distributed.torch import run
from attngen.distributed.torch.messages import Link, Message, Pending
from attngen.distributed.torch.run import Drawn, Run

HEADS, DIM = 2, 4
TOTAL = 61
MASKS = ["causal", "0 <= q - k < 12", "abs(q - k) < 8", "q <= k"]


@pytest.fixture(autouse=True)
def new_memory_is_nan() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)  # fills what is allocated with NaN
    yield
    torch.use_deterministic_algorithms(False)


class Sums:
    """Stands for a rank's kernels and its messages, and knows what the rank's gradients must be."""

    def __init__(self, run_: Run, rows: tuple[int, int], dtype: torch.dtype) -> None:
        self.run, self.dtype, self.dim = run_, dtype, run_.link.rows
        self.operands = [torch.zeros(self.shape(n)).to(dtype) for n in (rows[0], rows[1], rows[1])]
        self.expected = [torch.zeros(self.shape(n)) for n in (rows[0], rows[1], rows[1])]
        self.calls: list[Call] = []
        self.steps = run_.steps[::-1]
        self.away = [{n: [torch.zeros(self.shape(r)) for _ in "kv"] for n, r in s.receive} for s in self.steps]
        """What goes home, step by step; `step` is the one that is computed, `fetched` counts those that were begun."""
        self.step = self.fetched = 0

    def shape(self, rows: int) -> tuple[int, ...]:
        return (rows, HEADS, DIM) if self.dim == 0 else (1, HEADS, rows, DIM)

    def drawn(self, rows: int, dtype: torch.dtype) -> Any:
        return torch.randn(self.shape(rows)).to(dtype)

    def add(self, total: torch.Tensor, rows: tuple[int, int], g: Any, at: int) -> None:
        size = rows[1] - rows[0]
        total.narrow(self.dim, rows[0], size).add_(g.narrow(self.dim, at, size))

    def slopes(self, *_: Any) -> Any:
        call = self.calls[-1]
        gradients = [self.drawn(sum(b - a for a, b in call.q), self.dtype)]
        at = 0
        for start, stop in call.q:
            self.add(self.expected[0], (start, stop), gradients[0], at)
            at += stop - start
        for n in (1, 2):
            g, at = self.drawn(sum(p.stop - p.start for p in call.k), self.dtype), 0
            for p in call.k:
                rows = p.start, p.stop
                if p.source == self.run.link.rank:
                    self.add(self.expected[n], rows, g, at)
                else:
                    self.add(self.away[self.step][p.source][n - 1], rows, g, at)
                at += p.stop - p.start
            gradients.append(g)
        single = self.run.sequences.packed and len(call.pieces) == 1
        return tuple(g.transpose(0, 1).unsqueeze(0) if single else g for g in gradients), {}

    def post(self, link: Link, send: dict[int, Message], receive: dict[int, int], like: Any, dtype: Any) -> Pending:
        received = {source: [self.drawn(rows, dtype) for _ in like] for source, rows in receive.items()}
        if dtype == self.dtype:  # K and V
            step = self.steps[self.fetched]
            assert [*send] == [n for n, _ in step.again] and receive == ({} if step.kept else dict(step.receive))
            self.fetched += 1
            return Pending(received=received)
        assert self.away[self.step].keys() == send.keys()
        for target, message in send.items():
            for mine, right in zip(message.tensors, self.away[self.step][target], strict=True):
                torch.testing.assert_close(mine, right)
        for target, rows in self.steps[self.step].send:
            at = 0
            for start, stop in rows:
                for n in (1, 2):
                    self.add(self.expected[n], (start, stop), received[target][n - 1], at)
                at += stop - start
        self.step += 1
        return Pending(received=received)


def layout(ranks: int, cuts: int, draw: random.Random) -> Layout:
    ends = sorted({0, TOTAL, *(draw.randint(0, TOTAL) for _ in range(cuts))})
    own: list[list[tuple[int, int]]] = [[] for _ in range(ranks)]
    for part in pairwise(ends):
        own[draw.randrange(ranks)].append(part)
    return Layout(tuple(map(tuple, own)))


def sums_are_right(made: Any, packed: bool, monkeypatch: pytest.MonkeyPatch, kernel: attngen.Kernel) -> None:
    for group in range(made.groups):
        of_rank = steps(made, group, together=packed)
        whole = Run(kernel, of_rank, made.sequences, Link(None, group, 0 if packed else 2))
        rows = [sum(b - a for a, b in x.grouped(made.heads).stretches[group]) for x in (made.q_layout, made.k_layout)]
        sums = Sums(whole, (rows[0], rows[1]), torch.float16)

        class Seen(run._Params):  # pyright: ignore[reportPrivateUsage]
            def __init__(self, run_: Run, call: Call, *rest: Any, of: Sums = sums) -> None:
                of.calls.append(call)
                super().__init__(run_, call, *rest)

        monkeypatch.setattr(run, "_Params", Seen)
        monkeypatch.setattr(run, "post", sums.post)
        monkeypatch.setattr(run.torch_pieces, "slopes", sums.slopes)
        q, k, v = sums.operands
        lse = torch.zeros((HEADS, rows[0]) if packed else (1, HEADS, rows[0]))
        last = next((s for s in of_rank if s.kept), None)
        kept = {n: [sums.drawn(r, sums.dtype) for _ in "kv"] for n, r in last.receive} if last is not None else {}
        *found, _ = run.backward(whole, (q, k, v), (q, None), (q, lse), kept, None, {}, Drawn(), exact=False)
        assert len(sums.calls) == sum(len(s.early) + len(s.calls) for s in of_rank)
        for mine, right in zip(found, sums.expected, strict=True):
            assert mine.dtype == torch.float16
            torch.testing.assert_close(mine, right.half(), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("mask", MASKS)
def test_gradients_are_the_sums_of_all_calls_and_of_what_comes_home(mask: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = attngen.compile(f"attention t\nmask = {mask}\n")
    draw = random.Random(0)
    for _ in range(60):
        ranks, packed = draw.choice([2, 3, 4, 5]), draw.random() < 0.5
        ends = sorted(draw.randint(0, TOTAL) for _ in range(draw.choice([0, 3])))
        sequences = Sequences((0, *ends, TOTAL), (0, *ends, TOTAL), packed=True) if packed else Sequences.dense(TOTAL)
        own = layout(ranks, draw.choice([3, 5, 9]), draw)
        of_keys = own if draw.random() < 0.7 else layout(ranks, 4, draw)
        made = schedule(kernel, own, sequences, draw.choice(["ring", "ring", "gather"]), k_layout=of_keys)
        sums_are_right(made, packed, monkeypatch, kernel)


def test_a_rank_that_receives_nothing_in_a_round_before_it_receives(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = attngen.compile("attention t\nmask = abs(q - k) < 8\n")
    sequences = Sequences.dense(64)
    made = schedule(kernel, headtail(64, 5), sequences)
    waits = [[bool(s.receive) for s in steps(made, g, together=False)] for g in range(made.groups)]
    assert any(False in found[1 : found.index(True)] for found in waits if True in found)
    sums_are_right(made, False, monkeypatch, kernel)


def test_what_comes_home_is_not_rounded_before_others_are_added() -> None:
    from attngen.distributed.torch.sums import Sum, adds_of, placed, plus

    total = Sum(adds_of(1, [placed([(0, 1)])] * 2, [True, False]), 0, lambda d: torch.empty(1, dtype=d), torch.float16)
    total.add(torch.tensor([1.0 + 2**-11]), plus)
    total.add(torch.tensor([2**-11]).half(), plus)
    assert total.result().item() == 1.0 + 2**-10


@pytest.mark.parametrize("packed", [False, True])
def test_sums_have_their_columns_inside_wherever_those_of_tensors_lie(packed: bool) -> None:
    """As the kernel that adds them reads them."""
    from attngen.distributed.torch.run import _batched, _gradient  # pyright: ignore[reportPrivateUsage]
    from attngen.distributed.torch.sums import adds_of, placed
    from attngen.runtime.merging import add_into

    shape, dim = ((9, DIM, HEADS), 0) if packed else ((1, HEADS, DIM, 9), 2)
    x = torch.randn(shape).half().mT
    adds = adds_of(9, [placed([(2, 7)]), placed([(0, 9)]), placed([(3, 5)])])
    total = _gradient(Link(None, 0, dim), adds, x, torch.float16)
    expected = torch.zeros(x.shape)
    for start, stop in ((2, 7), (0, 9), (3, 5)):
        part = torch.randn(x.shape).half().narrow(dim, start, stop - start).contiguous()
        expected.narrow(dim, start, stop - start).add_(part.float())
        total.add(part, lambda into, kept, new, _: add_into(*map(_batched, (into, kept, new))))
    assert torch.equal(total.result(), expected.half())
