"""The claims of a schedule against brute force over all pairs, for schedules that are right and for edits of them."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

import attngen
from attngen.distributed import Layout, Piece, Round, Schedule, Sequences, Transfer, contiguous, headtail, schedule
from attngen.distributed.plan.coverage import coverage
from attngen.distributed.plan.schedule import Exchange, Masked
from attngen.prove.verdict import Claim, Proved, Refuted, Unknown

MASKS: dict[str, str] = {
    "causal": "mask = causal",
    "window": "mask = 0 <= q - k + Sk - Sq < 5",
    "window and global": "mask = abs(q - k) <= 2 or k < 3",
    "chunked": "mask = k <= q and q // 5 == k // 5",
    "dilated": "mask = k <= q and (q - k) % 3 == 0",
    "documents": "param ids: int[B, Sk]\nmask = ids[b, q] == ids[b, k] and k <= q\nassume Sq == Sk",
    "by head": "param w: int[Hq] where w >= 0\nmask = 0 <= q - k and q - k <= w[h]",
    "full": "mask = true",
}
PACKED = Sequences.of_offsets((0, 7, 7, 8, 21), (0, 9, 9, 11, 24))
SQUARE = Sequences.of_offsets((0, 7, 7, 8, 21))


@cache
def _kernel(mask: str) -> attngen.Kernel:
    return attngen.compile(f"attention a\n{MASKS[mask]}\n")


def _masked(mask: str) -> Masked:
    if mask == "documents":
        return Masked(params={"ids": np.array([[0] * 4 + [2] * 9 + [1] * 3 + [2] * 8])})
    return Masked(params={"w": np.array([1, 6])}) if mask == "by head" else Masked()


def _cases() -> Iterator[tuple[str, Sequences, Layout, Layout | None, Exchange, int]]:
    for mask in MASKS:
        for exchange in ("ring", "gather", "heads"):
            yield mask, Sequences.dense(24), headtail(24, 4), None, exchange, 1
        yield mask, Sequences.dense(24), headtail(24, 4), None, "ring", 2
        if mask != "documents":
            yield mask, Sequences.dense(17, 24), contiguous(17, 3), contiguous(24, 3), "ring", 1
            for exchange in ("ring", "gather"):
                yield mask, PACKED, headtail(21, 3), headtail(24, 3), exchange, 1
            yield mask, SQUARE, headtail(21, 4), None, "ring", 1


CASES = list(_cases())


# ---------------------------------------------------------------- brute force


def _allowed(mask: str, s: Schedule, b: int, masked: Masked) -> Any:
    """By formulas of their own: (head, q, k) of a sequence."""
    rows, keys = s.sequences.sizes(b)
    q, k = np.arange(rows)[:, None], np.arange(keys)[None, :]
    w = np.array([1, 6])[:, None, None]
    match mask:
        case "causal":
            found = k <= q + keys - rows
        case "window":
            found = (q - k + keys - rows >= 0) & (q - k + keys - rows < 5)
        case "window and global":
            found = (abs(q - k) <= 2) | (k < 3)
        case "chunked":
            found = (k <= q) & (q // 5 == k // 5)
        case "dilated":
            found = (k <= q) & ((q - k) % 3 == 0)
        case "documents":
            ids = masked.params["ids"][0]
            found = (ids[:rows, None] == ids[None, :keys]) & (k <= q)
        case "by head":
            found = (q - k >= 0) & (q - k <= w)
        case _:
            found = np.ones((rows, keys), np.bool_)
    return np.broadcast_to(found, (2, rows, keys))


def _truth(mask: str, s: Schedule, masked: Masked) -> dict[str, bool]:
    """Whether each claim holds, row by row and pair by pair."""
    of_q = [{x for r in own for x in range(*r)} for own in s.q_layout.grouped(s.heads).stretches]
    of_k = [{x for r in own for x in range(*r)} for own in s.k_layout.grouped(s.heads).stretches]
    count = [np.zeros(s.sequences.sizes(b), np.int64) for b in range(s.sequences.count)]
    held = used = True
    for r in s.rounds:
        arrived: list[Counter[int]] = [Counter() for _ in of_k]
        for source, target, ranges in r.transfers:
            rows = [x for one in ranges for x in range(*one)]
            used &= source != target and 0 <= source < len(of_k) and 0 <= target < len(of_k)
            used &= not 0 <= source < len(of_k) or of_k[source] >= set(rows)
            if 0 <= target < len(of_k):
                arrived[target].update(rows)
        for group, own in enumerate(r.pieces):
            read: set[int] = set()
            for b, (q0, q1), (k0, k1) in own:
                rows, keys = s.sequences.sizes(b)
                first_q, first_k = s.sequences.q[b], s.sequences.k[b]
                inside = q0 >= 0 and q1 <= rows and k0 >= 0 and k1 <= keys
                held &= inside and of_q[group] >= set(range(first_q + q0, first_q + q1))
                held &= of_k[group] | set(arrived[group]) >= set(range(first_k + k0, first_k + k1))
                read |= set(range(first_k + k0, first_k + k1))
                count[b][max(q0, 0) : max(q1, 0), k0:k1] += 1
            used &= set(arrived[group]) <= read and all(n == 1 for n in arrived[group].values())
    left = (_allowed(mask, s, b, masked) & (own == 0) for b, own in enumerate(count))
    return {
        "held": bool(held),
        "once": all((own <= 1).all() for own in count),
        "complete": not any(x.any() for x in left),
        "used": bool(used),
    }


# ---------------------------------------------------------------- edits


def _edit(s: Schedule, rng: random.Random) -> Schedule | None:
    """`s` with one piece, transfer or stretch changed; None where there is none of the kind."""
    turn = rng.randrange(len(s.rounds))
    r = s.rounds[turn]
    kind = rng.choice(["drop", "double", "move", "later", "q", "k", "unsent", "resent", "rows", "ends", "layout"])
    if kind == "layout":
        a, b = rng.sample(range(s.ranks), 2)
        own = list(s.k_layout.stretches)
        own[a], own[b] = own[b], own[a]
        return replace(s, k_layout=Layout(tuple(own)))
    if kind in ("unsent", "resent", "rows", "ends"):
        if not r.transfers:
            return None
        i = rng.randrange(len(r.transfers))
        t = r.transfers[i]
        others = [x for j, x in enumerate(r.transfers) if j != i]
        match kind:
            case "unsent":
                return _with(s, turn, replace(r, transfers=tuple(others)))
            case "resent":
                again = t if rng.random() < 0.5 else Transfer(t.source, t.target, (_moved(t.rows[0], rng),))
                return _with(s, turn, replace(r, transfers=(*others, t, again)))
            case "rows":
                return _with(s, turn, replace(r, transfers=(*others, t._replace(rows=(_moved(t.rows[0], rng),)))))
            case _:
                end = {rng.choice(["source", "target"]): rng.randrange(-1, s.groups + 1)}
                return _with(s, turn, replace(r, transfers=(*others, t._replace(**end))))
    group = rng.randrange(s.groups)
    if not r.pieces[group]:
        return None
    i = rng.randrange(len(r.pieces[group]))
    p = r.pieces[group][i]
    rest = tuple(x for j, x in enumerate(r.pieces[group]) if j != i)
    match kind:
        case "drop":
            return _with(s, turn, _of(r, group, rest))
        case "double":
            return _with(s, turn, _of(r, group, (*rest, p, p)))
        case "q":
            return _with(s, turn, _of(r, group, (*rest, p._replace(q=_moved(p.q, rng)))))
        case "k":
            return _with(s, turn, _of(r, group, (*rest, p._replace(k=_moved(p.k, rng)))))
        case "move":
            other = rng.randrange(s.groups)
            gone = _of(r, group, rest)
            return _with(s, turn, _of(gone, other, (*gone.pieces[other], p)))
        case _:
            other = rng.randrange(len(s.rounds))
            gone = _with(s, turn, _of(r, group, rest))
            return _with(gone, other, _of(gone.rounds[other], group, (*gone.rounds[other].pieces[group], p)))


def _moved(span: tuple[int, int], rng: random.Random) -> tuple[int, int]:
    """One end or both elsewhere, by one or two."""
    step = rng.choice([-2, -1, 1, 2])
    low, high = rng.choice([(step, 0), (0, step), (step, step)])
    return max(0, span[0] + low), max(0, span[1] + high)


def _of(r: Round, group: int, pieces: tuple[Piece, ...]) -> Round:
    return replace(r, pieces=tuple(pieces if g == group else own for g, own in enumerate(r.pieces)))


def _with(s: Schedule, turn: int, r: Round) -> Schedule:
    return replace(s, rounds=tuple(r if i == turn else own for i, own in enumerate(s.rounds)))


# ---------------------------------------------------------------- tests


def _proved(claims: tuple[Claim, ...]) -> dict[str, bool]:
    assert not any(isinstance(c.verdict, Unknown) for c in claims if c.subject != "complete"), claims
    return {c.subject: isinstance(c.verdict, Proved) for c in claims}


def _made(case: tuple[str, Sequences, Layout, Layout | None, Exchange, int]) -> tuple[Schedule, Masked]:
    mask, sequences, layout, k_layout, exchange, heads = case
    masked = _masked(mask)
    made = schedule(_kernel(mask), layout, sequences, exchange, k_layout=k_layout, heads=heads, masked=masked)
    return made, masked


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c[0]}, {c[4]}, {c[5]}, {c[1].count}, {c[1].q[-1]}")
def test_schedules_are_proved(case: tuple[str, Sequences, Layout, Layout | None, Exchange, int]) -> None:
    made, masked = _made(case)
    assert all(_proved(coverage(_kernel(case[0]), made, masked)).values())
    assert all(_truth(case[0], made, masked).values())


@pytest.mark.parametrize("mask", MASKS)
def test_an_edit_is_refuted_where_brute_force_finds_it(mask: str) -> None:
    """A verdict is what brute force says, claim by claim; and the numbers of a counterexample break the claim."""
    rng, refuted, unchanged = random.Random(mask), Counter[str](), 0
    for case in (c for c in CASES if c[0] == mask):
        made, masked = _made(case)
        for _ in range(60):
            edited = _edit(made, rng)
            if edited is None or edited == made:
                continue
            claims, truth = coverage(_kernel(mask), edited, masked), _truth(mask, edited, masked)
            found = _proved(claims)
            if not truth["once"]:
                truth["complete"] = False  # which rests on it
            assert found == truth, edited
            refuted.update(name for name, holds in found.items() if not holds)
            unchanged += all(truth.values())
            for claim in claims:
                if isinstance(claim.verdict, Refuted):
                    _check_numbers(claim.subject, dict(claim.verdict.values), edited, mask, masked)
    assert min(refuted[name] for name in ("held", "once", "complete", "used")) >= 5, refuted
    assert unchanged < sum(refuted.values())


def _check_numbers(subject: str, at: dict[str, Any], s: Schedule, mask: str, masked: Masked) -> None:
    if subject in ("once", "complete"):
        pieces = [p for r in s.rounds for own in r.pieces for p in own if p.sequence == at["sequence"]]
        times = sum(p.q[0] <= at["q"] < p.q[1] and p.k[0] <= at["k"] < p.k[1] for p in pieces)
        assert times >= 2 if subject == "once" else times == 0
    if subject == "complete":
        assert _allowed(mask, s, at["sequence"], masked)[at["h"], at["q"], at["k"]]


def test_what_the_mask_reads_is_not_given() -> None:
    """Then all keys are needed: a schedule that has them is proved, and one that leaves some out is unknown."""
    kernel, ends = _kernel("documents"), Sequences.dense(24)
    whole = schedule(kernel, headtail(24, 4), ends)
    assert all(_proved(coverage(kernel, whole)).values())
    masked = _masked("documents")
    narrow = schedule(kernel, headtail(24, 4), ends, masked=masked)
    complete = coverage(kernel, narrow)[2].verdict
    assert isinstance(complete, Unknown) and "what the mask reads is not given" in complete.reason
    assert isinstance(coverage(kernel, narrow, masked)[2].verdict, Proved)


def test_the_counterexample_in_words() -> None:
    made = schedule(_kernel("causal"), contiguous(24, 3), Sequences.dense(24))
    first = made.rounds[0]
    less = _with(made, 0, _of(first, 1, ()))
    claim = coverage(_kernel("causal"), less)[2]
    assert isinstance(claim.verdict, Refuted)
    assert claim.verdict.example == ("batch 0, head 0: the mask allows key 8 to query 8, and no rank computes them",)
    twice = _with(made, 0, _of(first, 1, first.pieces[1] * 2))
    claim = coverage(_kernel("causal"), twice)[1]
    assert isinstance(claim.verdict, Refuted)
    assert claim.verdict.example[1] == "rank 1, round 0: sequence 0, queries 8 … 15, keys 8 … 15"


def test_many_ranks() -> None:
    """512 ranks and a million rows; one piece less is seen."""
    kernel = _kernel("causal")
    made = schedule(kernel, headtail(2**20, 512), Sequences.dense(2**20), "gather")
    assert all(_proved(coverage(kernel, made)).values())
    less = _with(made, 0, _of(made.rounds[0], 300, made.rounds[0].pieces[300][1:]))
    assert not _proved(coverage(kernel, less))["complete"]
