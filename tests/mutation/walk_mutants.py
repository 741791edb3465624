"""Mechanical edits of the walks that a plan holds, of the portable kernels and of those of compute capability 9.0.

Takes a plan, gives (what was done, the edited plan). The step of a tile stays what it was: it is a hint for the prover,
and nothing prints it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from attngen.ir.build import add, integer, sub
from attngen.ir.nodes import Expr
from attngen.ir.printing import expression as text
from attngen.plan.hopper import Fetched
from attngen.plan.kernel import KernelPlan
from attngen.plan.mask.loops import Assigned, Rounded, Run
from attngen.plan.mask.walks import Share, Walk
from attngen.plan.split import Split
from mutation.edits import edits


def portable_edits(plan: KernelPlan) -> Iterator[tuple[str, KernelPlan]]:
    """One edit of a walk; and the walk of other tiles in its place."""
    own = plan.gpu_walks
    assert own is not None
    for field in ("keys", "queries"):
        walks = getattr(own, field)
        for name, other in (("unmasked", walks.masked), ("masked", walks.unmasked)):
            edited = [*_walks(getattr(walks, name)), ("the walk of the other tiles", other)]
            for what, made in edited:
                yield (
                    f"{field}, {name}: {what}",
                    replace(plan, gpu_walks=replace(own, **{field: replace(walks, **{name: made})})),
                )
    if own.split is not None:
        for what, made in _splits(own.split):
            yield f"pieces, {what}", replace(plan, gpu_walks=replace(own, split=made))


def _splits(split: Split) -> Iterator[tuple[str, Split]]:
    for field in ("counts", "steps"):
        steps = getattr(split, field)
        for n, step in enumerate(steps):
            if isinstance(step, Rounded):
                made = [("rounded the other way", replace(step, up=not step.up))]
            else:
                made = [(what, Assigned(step.name, e)) for what, e in _tile_edits(step.value)]
            for what, other in made:
                yield f"{step.name}: {what}", replace(split, **{field: (*steps[:n], other, *steps[n + 1 :])})
    for field in ("full", "partial"):
        run = getattr(split, field)
        for at in (0, 1) if run is not None else ():
            for what, e in _tile_edits(run[at]):
                yield f"{field}: {what}", replace(split, **{field: (e, run[1]) if at == 0 else (run[0], e)})


def hopper_edits(plan: KernelPlan) -> Iterator[tuple[str, KernelPlan]]:
    """One edit of a walk, a share, a hull, of what goes without a mask, or of who waits for whom."""
    own = plan.hopper
    if own is None:
        return
    if own.forward is not None:
        f = own.forward
        forward = [(f"walk: {what}", replace(f, walk=w)) for what, w in _walks(f.walk)]
        forward += [(f"share {what}", replace(f, share=x)) for what, x in _shares(f.share)]
        forward += [(what, replace(f, unmasked=runs)) for what, runs in _unmasked(f.unmasked, "own_")]
        forward += [(f"fetched: {what}", replace(f, fetched=x)) for what, x in _fetched(f.fetched)]
        for what, made in forward:
            yield f"forward, {what}", replace(plan, hopper=replace(own, forward=made))
    if own.backward is not None:
        b = own.backward
        backward = []
        for n, s in enumerate(b.hull.steps):
            steps = [
                (what, (*b.hull.steps[:n], Assigned(s.name, x), *b.hull.steps[n + 1 :]))
                for what, x in _tile_edits(s.value)
            ]
            backward += [(f"hull: {what}", replace(b, hull=replace(b.hull, steps=x))) for what, x in steps]
        backward += [(what, replace(b, unmasked=runs)) for what, runs in _unmasked(b.unmasked, "own_")]
        if b.lists is not None:
            backward.append(("no list of who waits for whom", replace(b, lists=None)))
        for what, made in backward:
            yield f"backward, {what}", replace(plan, hopper=replace(own, backward=made))
    if own.apart is not None:
        for field in ("queries", "keys"):
            found = getattr(own.apart, field)
            edited = [(f"walk: {what}", replace(found, walk=w)) for what, w in _walks(found.walk)]
            edited += [(what, replace(found, unmasked=runs)) for what, runs in _unmasked(found.unmasked, "")]
            for what, made in edited:
                apart = replace(own.apart, **{field: made})
                yield f"apart, {field}, {what}", replace(plan, hopper=replace(own, apart=apart))


def _tile_edits(e: Expr) -> Iterator[tuple[str, Expr]]:
    """Edits of a tile's number, and another one beside it."""
    yield from edits(e)
    yield f"{text(e)} + 1", add(e, integer(1))
    yield f"{text(e)} - 1", sub(e, integer(1))


def _fetched(own: Fetched | None) -> Iterator[tuple[str, Fetched]]:
    if own is None:
        return
    for axis, e in enumerate(own.place):
        for what, other in (("one further on", add(e, integer(1))), ("another axis", own.place[axis - 1])):
            yield f"axis {axis}, {what}", replace(own, place=(*own.place[:axis], other, *own.place[axis + 1 :]))


def _walks(walk: Walk) -> Iterator[tuple[str, Walk]]:
    for what, e in _tile_edits(walk.n_steps):
        yield f"n_steps: {what}", replace(walk, n_steps=e)
    for n, s in enumerate(walk.at):
        for what, e in _tile_edits(s.value):
            yield f"at: {what}", replace(walk, at=(*walk.at[:n], Assigned(s.name, e), *walk.at[n + 1 :]))


def _shares(share: Share | None) -> Iterator[tuple[str, Share]]:
    if share is not None:
        yield "of the other end", replace(share, backwards=not share.backwards)
        yield "that ends early", replace(share, ends=True)
        yield "that begins late", replace(share, begins=True)
        start, stop = share.stretch.start, share.stretch.stop
        yield "of a stretch that ends at once", replace(share, stretch=Run(start, start))
        yield "of a stretch turned round", replace(share, stretch=Run(stop, start))


def _unmasked(runs: tuple[Run, ...], prefix: str) -> Iterator[tuple[str, tuple[Run, ...]]]:
    for n, run in enumerate(runs):
        for what, other in (
            ("all runs go without a mask", Run(run.start, f"{prefix}any_hi")),
            ("a run that ends at once", Run(run.start, run.start)),
            ("from the first tile on", Run("0", run.stop)),
        ):
            if other != run:
                yield what, (*runs[:n], other, *runs[n + 1 :])
        yield "a run less", (*runs[:n], *runs[n + 1 :])
