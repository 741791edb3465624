"""Brute force for the walks of a plan: each is taken for many small ends of runs, in plain integers.

Takes a plan (mutated or not), returns the first mistake in words, or nothing. Written from what a walk is for; it
shares no code with the prover, nor with the planner.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from random import Random

from attngen.ir.attention import Attention
from attngen.ir.evaluate import evaluate
from attngen.ir.function import results_of
from attngen.ir.nodes import Expr
from attngen.plan.index import Index
from attngen.plan.kernel import KernelPlan
from attngen.plan.mask.holes import named
from attngen.plan.mask.loops import ZERO, Assigned, Loops, Rounded, Run
from attngen.plan.mask.walks import Hull, Share, TwoWalks, Walk, outside
from attngen.plan.split import Split
from mutation.draws import draws

Ends = dict[str, int]
TRIALS = 60


def wrong_portable(plan: KernelPlan) -> str:
    own = plan.gpu_walks
    assert own is not None
    r = Random(0)
    for _ in range(TRIALS):
        for loops, walks in ((plan.key_loops, own.keys), (plan.query_loops, own.queries)):
            ends = ends_of(loops, r)
            for walk, runs in ((walks.unmasked, loops.full), (walks.masked, loops.partial)):
                found = _walked(walk, runs, ends)
                if found:
                    return f"{found}; {ends}"
        ends = ends_of(plan.key_loops, r)
        found = (
            ""
            if own.split is None
            else _cut(plan.key_loops, own.keys, own.split, ends, pieces=r.choice((1, 2, 3, 5, 8, 40)))
        )
        if found:
            return f"{found}; {ends}"
    return ""


def _cut(loops: Loops, walks: TwoWalks, split: Split, ends: Ends, pieces: int) -> str:
    """What is wrong with the tiles that the pieces take, one after the other."""
    taken = dict[bool, list[int]]()
    for piece in range(pieces):
        names = _after(split.counts, {**ends, "piece": piece, "pieces": pieces})
        for step in split.steps:
            if isinstance(step, Rounded):
                bound = _value(step.bound, names)
                names[step.name] = -(-bound // pieces) if step.up else bound // pieces
            else:
                assert isinstance(step, Assigned)
                names[step.name] = _value(step.value, names)
        for masked, walk, run in ((False, walks.unmasked, split.full), (True, walks.masked, split.partial)):
            for step in range(_value(run[0], names), _value(run[1], names)) if run is not None and walk.at else ():
                taken.setdefault(masked, []).append(_after(walk.at, {**ends, "step": step})["at"])
    for masked, runs in ((False, loops.full), (True, loops.partial)):
        found, wanted = sorted(taken.get(masked, [])), _tiles(runs, ends)
        if found != wanted:
            return f"{pieces} pieces take the tiles {found}, and not {wanted}"
    return ""


def wrong_hopper(attention: Attention, plan: KernelPlan) -> str:
    h, r = plan.hopper, Random(0)
    assert h is not None and plan.gpu_walks is not None
    of_keys, of_queries = plan.key_loops, plan.query_loops
    if plan.map is not None:  # then walks are over the entries of lists
        of_keys, of_queries = named("k"), named("q")
    for _ in range(TRIALS):
        keys, queries = ends_of(of_keys, r), ends_of(of_queries, r)
        problems: list[str] = []
        if h.forward is not None:
            problems.append(_walked(h.forward.walk, of_keys.runs, keys))
            problems.append(_shared(h.forward.walk, h.forward.share, plan.gpu_walks.index, keys))
            problems.append(_masked(h.forward.unmasked, _own(of_keys), keys))
        if h.backward is not None:
            problems.append(_covered(h.backward.hull, of_queries, queries))
            problems.append(_masked(h.backward.unmasked, _own(of_queries), queries))
        if h.apart is not None:
            problems.append(_walked(h.apart.queries.walk, of_queries.runs, queries))
            problems.append(_masked(h.apart.queries.unmasked, of_queries.full, queries))
            problems.append(_walked(h.apart.keys.walk, of_keys.runs, keys))
            problems.append(_masked(h.apart.keys.unmasked, of_keys.full, keys))
        found = next(filter(None, problems), "")
        if found:
            return f"{found}; keys {keys}, queries {queries}"
    if h.backward is not None and h.backward.lists is None:
        return _in_turn(attention, plan)
    return ""


def ends_of(loops: Loops, r: Random) -> Ends:
    """Ends of runs that are in order and apart, and those of a part, wherever they are."""
    runs = loops.runs
    names = list(dict.fromkeys(n for run in runs for n in (run.start, run.stop)))
    shared = len(names) < 2 * len(runs)  # one run begins where another ends
    found: Ends = {}
    if shared:
        order = [n for n in (ZERO, "any_lo", "full_lo", "full_hi", "any_hi") if n in names]
        found = dict(zip(order, sorted(r.randint(0, 9) for _ in order), strict=True))
    else:
        cuts = sorted(r.randint(0, 30) for _ in names)
        places = list(zip(cuts[::2], cuts[1::2], strict=True))
        r.shuffle(places)
        for run, (start, stop) in zip(runs, places, strict=True):
            found |= {run.start: start, run.stop: stop}
    found[ZERO] = 0
    for name in names:
        found[f"own_{name}"] = 0 if name == ZERO else r.randint(0, 9)
    found["own_any_lo"], found["own_any_hi"] = sorted((found.get("own_any_lo", 0), found.get("own_any_hi", 9)))
    return found


def _value(e: Expr, names: Mapping[str, int]) -> int:
    return int(evaluate(e, dict(names), {}))


def _after(steps: tuple[Assigned, ...], names: Mapping[str, int]) -> Ends:
    found = dict(names)
    for step in steps:
        found[step.name] = _value(step.value, found)
    return found


def _tiles(runs: tuple[Run, ...], ends: Ends) -> list[int]:
    return sorted(t for run in runs for t in range(ends[run.start], ends[run.stop]))


def _steps(walk: Walk, ends: Ends) -> Iterator[tuple[int, int, int]]:
    n_steps = _value(walk.n_steps, ends)
    for step in range(n_steps):
        yield step, n_steps, _after(walk.at, {**ends, "step": step, "n_steps": n_steps}).get("at", -1)


def _walked(walk: Walk, runs: tuple[Run, ...], ends: Ends) -> str:
    taken = sorted(at for _, _, at in _steps(walk, ends))
    wanted = _tiles(runs, ends)
    n_steps = _value(walk.n_steps, ends)
    if n_steps != max(len(wanted), walk.least):
        return f"has {n_steps} steps for the tiles {wanted}"
    if len(wanted) < walk.least:
        return f"takes tiles before the first: {taken}" if min(taken) < 0 else ""
    return "" if taken == wanted else f"takes the tiles {taken}, and not {wanted}"


def _shared(walk: Walk, share: Share | None, index: Index, ends: Ends) -> str:
    if share is None:
        return ""
    start = ends["own_any_lo"] if "any_lo" in ends else 0
    names = {"start": ends[share.stretch.start], "own_start": ends[share.own.start], "own_stop": ends[share.own.stop]}
    own_steps = index.of("own_steps", BACKWARDS=share.backwards)
    for step, n_steps, at in _steps(walk, ends):
        first, stop = results_of(own_steps, {**names, "n_steps": n_steps})
        first, stop = first if share.begins else 0, stop if share.ends else n_steps
        if not 0 <= first < stop <= n_steps:
            return f"takes steps {first} … {stop - 1} of {n_steps}"
        if not first <= step < stop and start <= at < ends["own_any_hi"]:
            return f"skips tile {at}, which its own rows meet"
    return ""


def _covered(hull: Hull, loops: Loops, ends: Ends) -> str:
    found = _after(hull.steps, ends)
    lost = [t for t in _tiles(loops.runs, ends) if not found["first"] <= t < found["stop"]]
    if lost:
        return f"the hull lacks {lost}"
    return "" if 0 <= found["first"] <= found["stop"] else f"the hull is {found['first']} … {found['stop']}"


def _own(loops: Loops) -> tuple[Run, ...]:
    return tuple(Run(*(n if n == ZERO else f"own_{n}" for n in (run.start, run.stop))) for run in loops.full)


def _masked(unmasked: tuple[Run, ...], full: tuple[Run, ...], ends: Ends) -> str:
    for at in range(12):
        if not evaluate(outside(unmasked), {**ends, "at": at}, {}) and not any(
            ends[run.start] <= at < ends[run.stop] for run in full
        ):
            return f"tile {at} goes without the mask"
    return ""


def _in_turn(attention: Attention, plan: KernelPlan) -> str:
    """Whether some tile of queries meets two tiles of keys and none between them."""
    if plan.queries.tests:
        return "tests of data decide which tiles meet, in no order"
    for drawn in draws(attention, 40, longest=30):
        sq, sk = drawn.sizes["Sq"], drawn.sizes["Sk"]
        for b, h in drawn.heads[:2]:
            for rows, columns in ((4, 4), (2, 5), (8, 2)):
                met: list[range] = []
                for k0 in range(0, sk, columns):
                    env = drawn.env(b, h, k0=k0, k1=min(k0 + columns, sk) - 1)
                    ends = [
                        (int(evaluate(s.lo, env, drawn.params)), int(evaluate(s.hi, env, drawn.params)))
                        for s in plan.queries.any
                    ]
                    runs = [(max(lo, 0) // rows, -(-hi // rows)) for lo, hi in ends if lo < hi]
                    met.append(range(min((a for a, _ in runs), default=0), max((z for _, z in runs), default=0)))
                for tile in range(-(-sq // rows)):
                    numbers = [n for n, tiles in enumerate(met) if tile in tiles]
                    if numbers and len(numbers) != numbers[-1] - numbers[0] + 1:
                        return f"tile {tile} of queries meets the tiles {numbers} of keys; {dict(drawn.sizes)}"
    return ""
