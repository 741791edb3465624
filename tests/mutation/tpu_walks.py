"""The walks of a TPU's kernels: edits of them, and brute force, kernels with few tiles whose every form is taken.

`run_edits` and `step_edits` take a plan, return each with one edit: of its runs and how they are numbered, or of what
is the same for every spec. `wrong_tpu` takes a plan (mutated or not), returns the first mistake in words, or nothing.
It shares no code with the prover, nor with the planner.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from functools import partial as partial_of
from itertools import pairwise, product
from random import Random
from typing import Any, NamedTuple

from attngen.ir.build import add, integer, sub
from attngen.ir.evaluate import evaluate
from attngen.ir.nodes import Expr, Type
from attngen.ir.printing import expression as text
from attngen.plan.kernel import KernelPlan
from attngen.plan.mask.loops import Assigned, Rounded, Run
from attngen.plan.mask.tpu_walks import TpuWalks
from attngen.plan.mask.walks import Fold
from mutation.edits import Edit, edits
from mutation.taken_walks import ends_of

Names = dict[str, int]
Spans = list[tuple[int, int]]
TRIALS = 15


class Taken(NamedTuple):
    """The tiles that a kernel takes, by kind."""

    unmasked: list[int]
    masked: list[int]


def run_edits(plan: KernelPlan) -> Iterator[tuple[str, KernelPlan]]:
    for what, made in _of_runs(plan.tpu_walks):
        yield what, replace(plan, tpu_walks=made)


def step_edits(plan: KernelPlan) -> Iterator[tuple[str, KernelPlan]]:
    for what, made in _of_steps(plan.tpu_walks):
        yield what, replace(plan, tpu_walks=made)


def _of_runs(walks: TpuWalks) -> Iterator[tuple[str, TpuWalks]]:
    for axis in ("keys", "queries"):
        lists = getattr(walks, axis)
        for kind in ("unmasked", "masked"):
            for what, runs in _runs(getattr(lists, kind)):
                yield f"{axis}, {kind}: {what}", replace(walks, **{axis: replace(lists, **{kind: runs})})
        exchanged = replace(lists, unmasked=lists.masked, masked=lists.unmasked)
        yield f"{axis}: the lists exchanged", replace(walks, **{axis: exchanged})
    fold = walks.numbering
    for n, s in enumerate(fold.steps):
        for what, e in _off_by_one(s.value):
            steps = (*fold.steps[:n], Assigned(s.name, e), *fold.steps[n + 1 :])
            yield f"{s.name}: {what}", replace(walks, numbering=replace(fold, steps=steps))
    for field in ("length", "first"):
        for what, e in _off_by_one(getattr(fold, field)):
            yield f"{field}: {what}", replace(walks, numbering=replace(fold, **{field: e}))


def _of_steps(walks: TpuWalks) -> Iterator[tuple[str, TpuWalks]]:
    for part in ("grid", "rounds", "resident", "straight"):
        given = getattr(walks, part)
        for field in fields(given):
            for what, value in _values(getattr(given, field.name)):
                yield f"{part}, {field.name}: {what}", replace(walks, **{part: replace(given, **{field.name: value})})
    for what, e in _off_by_one(walks.pairs):
        yield f"pairs: {what}", replace(walks, pairs=e)


def _values(given: Expr | Rounded) -> Iterator[tuple[str, Expr | Rounded]]:
    match given:
        case Rounded():
            yield "rounded the other way", replace(given, up=not given.up)
            for what, e in _off_by_one(given.bound):
                yield what, replace(given, bound=e)
        case _:
            yield from _off_by_one(given)


def _off_by_one(e: Expr) -> Iterator[Edit]:
    yield from edits(e)
    if e.type is Type.INT:
        yield f"{text(e)} + 1", add(e, integer(1))
        yield f"{text(e)} - 1", sub(e, integer(1))


def _runs(runs: tuple[Run, ...]) -> Iterator[tuple[str, tuple[Run, ...]]]:
    for n, run in enumerate(runs):
        yield f"without run {n}", (*runs[:n], *runs[n + 1 :])
        yield f"run {n} twice", (*runs, run)
        yield f"run {n} from the first tile on", (*runs[:n], Run("0", run.stop), *runs[n + 1 :])
        yield f"run {n} from its end to its start", (*runs[:n], Run(run.stop, run.start), *runs[n + 1 :])
    if len(runs) > 1:
        yield "in the reverse order", runs[::-1]


# ---------------------------------------------------------------- brute force


def wrong_tpu(plan: KernelPlan) -> str:
    r, walks = Random(0), plan.tpu_walks
    for n_full, n_partial, unroll in product(range(7), range(3), (1, 2, 4)):
        wanted = [list(range(2, 2 + n_full)), list(range(20, 20 + n_partial))]
        found = _Kernel(walks, *wanted, _listed, len).wrong(wanted, unroll)
        if found:
            return found
    for _ in range(TRIALS):
        for lists, loops in ((walks.keys, plan.key_loops), (walks.queries, plan.query_loops)):
            ends = ends_of(loops, r)
            full, partial, *runs = (
                [(ends[run.start], ends[run.stop]) for run in runs]
                for runs in (lists.unmasked, lists.masked, loops.full, loops.partial)
            )
            tiles = [sorted(t for lo, hi in own for t in range(lo, hi)) for own in runs]
            numbered, total = partial_of(_numbered, walks.numbering), partial_of(_total, walks.numbering)
            found = _Kernel(walks, full, partial, numbered, total).wrong(tiles, r.choice((1, 2, 4)))
            if found or _among(walks, [*full, *partial], [*tiles[0], *tiles[1]]):
                return f"{found or 'a tile of pairs'}; {ends}"
    return ""


def _among(walks: TpuWalks, runs: Spans, wanted: list[int]) -> bool:
    return any(
        (at in wanted) != any(_value(walks.pairs, {"at": at, "lo": lo, "hi": hi}) for lo, hi in runs)
        for at in range(-1, 32)
    )


def _listed(step: int, tiles: list[int]) -> int:
    return tiles[step] if 0 <= step < len(tiles) else -1


def _numbered(fold: Fold, step: int, runs: Spans) -> int:
    names = {"step": step, "start": runs[0][0], "passed": 0}
    names["at"] = _value(fold.first, names)
    for (lo, hi), (start, _) in pairwise(runs):
        names |= {"lo": lo, "hi": hi, "start": start}
        for s in fold.steps:
            names[s.name] = _value(s.value, names)
    return names["at"]


def _total(fold: Fold, runs: Spans) -> int:
    return sum(_value(fold.length, {"lo": lo, "hi": hi}) for lo, hi in runs)


@dataclass(frozen=True)
class _Kernel:
    """A kernel whose two lists hold anything that `numbered` and `total` take: runs, or the tiles themselves."""

    walks: TpuWalks
    full: list[Any]
    partial: list[Any]
    numbered: Callable[[int, list[Any]], int]
    total: Callable[[list[Any]], int]

    @property
    def counts(self) -> Names:
        return {"n_full": self.total(self.full), "n_partial": self.total(self.partial)}

    def wrong(self, wanted: list[list[int]], unroll: int) -> str:
        """What is wrong with the tiles that each form takes, without the mask and with it."""
        n_tiles = max([0, *wanted[0], *wanted[1]]) + 1
        for name, taken in (
            ("the grid", self.by_grid(n_tiles, _value(self.walks.grid.needed, self.counts))),
            (
                "the grid with a step for each",
                self.by_grid(n_tiles, _value(self.walks.grid.suffice, {"n_tiles": n_tiles})),
            ),
            ("the loops", self.in_loops(unroll)),
            ("the tails", self.in_tails(unroll)),
        ):
            if isinstance(taken, str):
                return f"{name}: {taken}"
            if [sorted(t) for t in taken] != wanted:
                return f"{name}: {taken} for {wanted}, {unroll} in a round"
        return ""

    def by_grid(self, n_tiles: int, steps: int) -> Taken | str:
        grid, taken, before = self.walks.grid, Taken([], []), -1
        if steps < 1:
            return "never starts"
        for step in range(steps if self.full or self.partial else 0):
            names = {**self.counts, "step": step}
            at = self.numbered(_value(grid.number, names), [*self.full, *self.partial])
            brought = _value(grid.brought, {"at": at, "n_tiles": n_tiles})
            if not 0 <= brought < n_tiles:
                return f"tile {brought} of {n_tiles}"
            own = -1
            if self.full and _value(grid.unmasked, names):
                own = self.numbered(step, self.full)
                taken.unmasked.append(own)
            if self.partial and _value(grid.masked, names):
                if own >= 0:
                    return f"two tiles at step {step}"
                own = self.numbered(_value(grid.own, names), self.partial)
                taken.masked.append(own)
            if own not in (-1, brought):
                return f"step {step} takes tile {own}, and tile {brought} is there"
            if own < 0 <= before != brought:
                return f"step {step} brings tile {brought} for nothing"
            before = brought
        return taken

    def in_loops(self, unroll: int) -> Taken | str:
        resident, counts, masked = self.walks.resident, self.counts, list[int]()
        whole = self.loop(counts["n_full"], unroll) if self.full else []
        if self.partial:
            masked = self.loop(_value(resident.looped, counts), 1)
            ends = _value(resident.some, counts), _value(resident.none, counts)
            if sum(ends) != 1:
                return f"ends {sum(ends)} times"
            masked += [_value(resident.last, counts)] * ends[0]
        return self.taken(whole, masked)

    def in_tails(self, unroll: int) -> Taken | str:
        straight, names = self.walks.straight, {**self.counts, "unroll": unroll}
        names["rounds"] = _rounds(straight.rounds, names)
        names["looped"] = _value(straight.looped, names)
        left = _value(straight.left, names)
        if left + names["n_partial"] < 1 <= names["n_full"] + names["n_partial"]:
            return "nothing is left"
        whole = self.loop(names["looped"], unroll)
        whole += [_value(straight.unmasked, {**names, "i": i}) for i in range(left)]
        return self.taken(whole, [_value(straight.masked, {**names, "i": i}) for i in range(names["n_partial"])])

    def loop(self, count: int, unroll: int) -> list[int]:
        rounds, names = self.walks.rounds, {"count": count, "unroll": unroll}
        n = names["rounds"] = _rounds(rounds.rounds, names)
        taken = [_value(rounds.step, {**names, "i": i, "j": j}) for i in range(n) for j in range(unroll)]
        return taken + (list(range(_value(rounds.rest, names), count)) if unroll > 1 else [])

    def taken(self, whole: list[int], masked: list[int]) -> Taken | str:
        if (whole and not self.full) or (masked and not self.partial):
            return "tiles of no run"
        return Taken([self.numbered(s, self.full) for s in whole], [self.numbered(s, self.partial) for s in masked])


def _rounds(rounded: Rounded, names: Names) -> int:
    bound = _value(rounded.bound, names)
    return -(-bound // names["unroll"]) if rounded.up else bound // names["unroll"]


def _value(e: Expr, names: Names) -> int:
    return int(evaluate(e, dict(names), {}))
