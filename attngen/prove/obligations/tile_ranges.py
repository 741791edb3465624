"""Obligation `tile-ranges`: the loops skip no pair that the mask allows, and drop the mask only where it allows all.

Takes the mask and the plan's ranges, for the forward and dQ loops (over keys) and the dK/dV loop (over queries), and
asks z3, for all sizes, params, tile positions and tile sizes that the `where`s and `assume`s allow:

* any: an allowed pair (q, k) with q in the held tile has k inside one of the stretches;
* all: in each stretch of `all`, every pair with the held tile is allowed and inside the sequence;
* data tests: what the kernel concludes from the least and greatest values of two tiles follows;
* loops: of the walked tiles, each that meets `any` is visited, none twice, and one that is visited without the mask
  lies inside a stretch of `all`;
* maps: where kernels walk lists in place of these loops, what a list is made of holds for every pair of two tiles;
* pieces: where short queries cut the walk over keys, each walked tile is in one piece, whatever their number;
* the walks of the target's kernels: the portable ones (`portable_walks`) and those of compute capability 9.0
  (`hopper_walks`), or a TPU's (`tpu_walks`).

A refuted claim comes with sizes and a pair, found by z3 or by trying small sizes, and evaluated again in NumPy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING

from attngen.ir import printing
from attngen.ir.attention import Attention
from attngen.ir.build import conjunction, index, is_literal
from attngen.ir.checked import without_facts
from attngen.ir.nodes import SIZES, Apply, Expr, Op, Type
from attngen.ir.walk import loads, params, substitute
from attngen.plan.index import items
from attngen.plan.kernel import KernelPlan, by_lists
from attngen.plan.mask.data_tests import DataTest
from attngen.plan.mask.holes import TileTest
from attngen.plan.mask.lists import Lists
from attngen.plan.mask.loops import Loops
from attngen.plan.mask.ranges import TileRanges
from attngen.plan.split import Split
from attngen.prove.algebra.sample_points import Undefined, points
from attngen.prove.budget.work import QUESTION, Work
from attngen.prove.integers.answers import Answer, Fails, Holds, Open, Term
from attngen.prove.integers.confirm import reads_functions
from attngen.prove.integers.z3_door import SolverContext
from attngen.prove.obligations.diagonals import diagonals
from attngen.prove.obligations.hopper_walks import hopper_walks
from attngen.prove.obligations.lists import entries_answer
from attngen.prove.obligations.portable_walks import portable_walks
from attngen.prove.obligations.tile_tests import test_answer
from attngen.prove.obligations.tile_walks import loops_answer, pieces_answer, starts_answer
from attngen.prove.obligations.tpu_walks import tpu_walks
from attngen.prove.obligations.walk_claims import LISTS, WalkClaims
from attngen.prove.verdict import MAP, Claim, Proved, Refuted, Unknown, Verdict

if TYPE_CHECKING:
    from attngen.prove.search.small_settings import Setting
    from attngen.prove.search.tile_search import Example, TileSearch

LOOPS = {"k": "forward and dQ", "q": "dK/dV"}
WALKED = {"k": "keys", "q": "queries"}
TRIAL = 3_000_000
"""Units for a search for small numbers, once a claim is in doubt."""


def tile_ranges(attention: Attention, plan: KernelPlan, work: Work) -> tuple[Claim, ...]:
    """Claims about both directions. `attention` is the spec itself, `plan` what is emitted."""
    claims = [_possible(attention, work), _same_mask(attention, plan, work)]
    for ranges, loops in ((plan.keys, plan.key_loops), (plan.queries, plan.query_loops)):
        claims += _Direction(plan, ranges, loops, work).claims()
    walks = dict.fromkeys(p.gpu_walks for p in (plan, by_lists(plan)))
    claims += [_pieces(plan, own.split, work) for own in walks if own is not None and own.split is not None]
    asked = WalkClaims(plan, work)
    claims += _map(asked, plan.map) if plan.map is not None else ()
    claims += [*portable_walks(asked), *tpu_walks(asked), *hopper_walks(asked)]
    return (*claims, *diagonals(plan, work))


def _map(claims: WalkClaims, test: TileTest) -> Iterator[Claim]:
    """What its test says of tiles, and where its lists lie, on any target."""
    sentence = "what the extremes of two tiles say of the mask holds for each of their pairs"
    yield claims.claim(MAP, sentence, test_answer(claims.plan.attention, test, claims.work))
    if claims.plan.gpu_walks is not None:
        yield claims.claim("lists, map", LISTS, entries_answer(test.lists, items(), claims.work))
    elif claims.plan.tpu_walks is not None:  # of batches and heads that share lists the place is 0
        yield claims.claim("lists, map", LISTS, entries_answer(Lists(True, True), items(), claims.work))


def _pieces(plan: KernelPlan, found: Split, work: Work) -> Claim:
    sentence = (
        "forward, short queries: each walked tile of keys is in one piece, in the loop that has or lacks the mask"
    )
    bare = replace(plan.attention, params=(), assumes=())  # no fact bears on it, and some are hard to reckon with
    answer = pieces_answer(SolverContext(bare), found, work.part())
    return Claim("keys, pieces", sentence, _plain_verdict(answer), span=plan.attention.mask.span)


def _possible(attention: Attention, work: Work) -> Claim:
    """From facts that exclude each other everything would follow."""
    sentence = "some call satisfies every `where` and `assume`"
    facts = [*(p.where for p in attention.params if p.where is not None), *attention.assumes]
    span = facts[0].span if facts else attention.mask.span
    if not facts or _satisfied(attention, facts):
        return Claim("facts", sentence, Proved("trial"), span=span)
    answer = SolverContext(attention).possible(work.part())
    if isinstance(answer, Fails):
        invented = any(reads_functions(fact) for fact in facts)
        unknown = Unknown("z3", "it knows nothing of the functions in the facts, and no numbers tried satisfy them")
        return Claim("facts", sentence, unknown if invented else Proved("z3"), span=span)
    if isinstance(answer, Holds):
        text = ", ".join(printing.expression(fact) for fact in facts)
        return Claim("facts", sentence, Refuted("z3", (f"no sizes and params satisfy all of: {text}",)), span=span)
    return Claim("facts", sentence, Unknown("z3", answer.reason), span=span)


def _satisfied(attention: Attention, facts: list[Expr]) -> bool:
    """Whether numbers were found that fulfil the facts."""
    if not any(loads(fact) for fact in facts):
        tensors = [p for p in attention.params if not p.is_scalar and p.where is not None]
        for point in points(attention, positive_scale=False, count=1):
            try:
                for p in tensors:  # an element of each: what it may be does not depend on its place
                    point.element(p.name, (0,) * len(p.shape))
            except Undefined:
                continue
            return True
    from attngen.prove.search.small_settings import settings

    return next(settings(attention, conjunction(attention.mask, *facts)), None) is not None


def _same_mask(attention: Attention, plan: KernelPlan, work: Work) -> Claim:
    """The plan may rename sizes, and nothing else."""
    names: dict[Expr, Expr] = {
        index(a): index(b) for a, b in zip(attention.sizes, plan.attention.sizes, strict=True) if a != b
    }
    context = SolverContext(plan.attention)
    own, planned = substitute(attention.mask, names), context.term(plan.attention.mask)
    answer = context.ask([], planned == context.term(own), work.part())
    sentence = "the mask that the kernels apply is the file's"
    verdict: Verdict
    if isinstance(answer, Holds) or own == plan.attention.mask:
        verdict = Proved("z3")
    elif isinstance(answer, Fails):
        verdict = Refuted("z3", (f"they differ at {answer.text()}",), tuple(answer.values.items()))
    else:
        verdict = Unknown("z3", answer.reason)
    return Claim("mask", sentence, verdict, span=attention.mask.span)


@dataclass
class _Direction:
    plan: KernelPlan
    ranges: TileRanges
    loops: Loops
    work: Work

    def __post_init__(self) -> None:
        self.mask = self.plan.attention.mask
        self.axis = self.ranges.axis
        self.name = WALKED[self.axis]
        self.held = "q" if self.axis == "k" else "k"
        self.size = "Sk" if self.axis == "k" else "Sq"
        self.held_size = "Sq" if self.axis == "k" else "Sk"

    @cached_property
    def trial(self) -> TileSearch:
        from attngen.prove.search.tile_search import TileSearch

        return TileSearch(self.plan.attention, self.mask, self.ranges, self.loops)

    def claims(self) -> list[Claim]:
        found = [self.covers()]
        found += [self.full(number) for number in range(len(self.ranges.all))]
        found += [self.data_test(t) for t in self.ranges.tests]
        return [*found, self.walks()]

    # ------------------------------------------------------------ positions

    def pair(self, context: SolverContext) -> tuple[list[Term], Term]:
        """Premises that put a pair's held position into a tile; and the walked position, of which nothing is known."""
        first, last = context.integer(f"{self.held}0"), context.integer(f"{self.held}1")
        own, at = context.integer(self.held), context.free(self.axis)
        return [first >= 0, first <= own, own <= last, last < context.integer(self.held_size)], at

    def answers(self, context: SolverContext, at: Term, *, every: bool) -> list[Term]:
        """What a data test's answer means for the pair (as `data_test` shows)."""
        found: list[Term] = []
        for t in self.ranges.tests:
            row, col = context.term(t.row), context.term(t.col)
            holds = _holds(t, row, col)
            low, high = (context.integer(t.bound(f"{'all' if every else 'any'}_{end}").id) for end in ("lo", "hi"))
            inside = context.all_of([low <= at, at < high])
            found.append(context.implies(inside, holds) if every else context.implies(holds, inside))
        return found

    def answered(self, context: SolverContext) -> list[Term]:
        """What every answer of a data test is like: runs of tiles from 0 on, perhaps empty."""
        found: list[Term] = []
        for t in self.ranges.tests:
            for which in ("any", "all"):
                low, high = (context.integer(t.bound(f"{which}_{end}").id) for end in ("lo", "hi"))
                found += [low >= 0, low <= high]
        return found

    def covers(self) -> Claim:
        context = SolverContext(self.plan.attention)
        premises, at = self.pair(context)
        premises += [at >= 0, at < context.integer(self.size), context.term(self.mask)]
        premises += self.answers(context, at, every=False)
        stretches = [context.all_of([context.term(s.lo) <= at, at < context.term(s.hi)]) for s in self.ranges.any]
        what = "query" if self.held == "q" else "key"
        return self.decide(
            f"{self.name}, any",
            f"{LOOPS[self.axis]}: no allowed pair of a tile is outside `any` (no {what} loses a pair)",
            partial(context.ask, premises, context.any_of(stretches)),
            context,
            lambda setting, first, last, q, k: self.trial.lost(setting, first, last, q, k),
            lambda work: self.trial.search_ranges(None, work),
        )

    def full(self, number: int) -> Claim:
        context = SolverContext(self.plan.attention)
        premises, at = self.pair(context)
        s = self.ranges.all[number]
        premises += [context.term(s.lo) <= at, at < context.term(s.hi), *self.answers(context, at, every=True)]
        inside = context.all_of([at >= 0, at < context.integer(self.size)])
        return self.decide(
            f"{self.name}, all" + (f" {number + 1}" if len(self.ranges.all) > 1 else ""),
            f"{LOOPS[self.axis]}: every pair of a tile with a stretch of `all` is allowed, and inside the sequence",
            partial(context.ask, premises, context.all_of([inside, context.term(self.mask)])),
            context,
            lambda setting, first, last, q, k: self.trial.wrong(number, setting, first, last, q, k),
            lambda work: self.trial.search_ranges(number, work),
        )

    # ------------------------------------------------------------ tiles

    def data_test(self, t: DataTest) -> Claim:
        """Values of the two sides stand for themselves: any row's and any column's between their tiles' extremes."""
        context = SolverContext(self.plan.attention)
        here, there = context.unknown("here", t.row.type), context.unknown("there", t.row.type)
        names = ("here_least", "here_most", "there_least", "there_most")
        least, most, low, high = ends = [context.unknown(name, t.row.type) for name in names]
        between = [least <= here, here <= most, low <= there, there <= high]
        row, col = (here, there) if self.axis == "k" else (there, here)
        holds = _holds(t, row, col)
        at: dict[str, Term] = dict(zip(names, ends, strict=True))
        can, must = context.term(t.can(self.axis), at), context.term(t.must(self.axis), at)
        conclusion = context.all_of([context.implies(holds, can), context.implies(must, holds)])
        answer = context.ask(between, conclusion, self.work.part())
        sentence = f"{LOOPS[self.axis]}: what the extremes of two tiles say of `{t.name}` holds for each of their pairs"
        verdict = _plain_verdict(answer)
        if isinstance(verdict, Proved) and max(_roundings(t.row), _roundings(t.col)) > 1:
            verdict = Unknown("structure", "a side of the comparison is rounded twice: the error may exceed its value")
        return Claim(f"{self.name}, {t.name}", sentence, verdict, span=self.mask.span)

    def walks(self) -> Claim:
        sentence = (
            f"{LOOPS[self.axis]}: each tile of {self.name} that meets `any` is walked, none twice, "
            "none before the first, and without the mask only inside `all`"
        )
        bare = SolverContext(without_facts(self.plan.attention))  # rows before the first would be read
        answer = starts_answer(bare, self.ranges, self.pair(bare)[0], self.work.part())
        if isinstance(answer, Holds):
            context = SolverContext(self.plan.attention)
            premises, _ = self.pair(context)
            answer = loops_answer(
                SolverContext(self.plan.attention), self.ranges, self.loops, self.work.part(3 * QUESTION)
            )
            if isinstance(answer, Fails):  # it may hold for these stretches, if not for any
                premises += self.answered(context)
                answer = loops_answer(context, self.ranges, self.loops, self.work.part(3 * QUESTION // 2), premises)
        if isinstance(answer, Holds):
            return Claim(f"{self.name}, loops", sentence, Proved("z3"), span=self.mask.span)
        example = self.trial.search_loops(self.work.part(TRIAL))
        verdict = (
            Refuted("trial", example.lines, example.values)
            if example is not None
            else Unknown("z3", f"the order of the runs is not shown, and small sizes show no mistake{_why(answer)}")
        )
        return Claim(f"{self.name}, loops", sentence, verdict, span=self.mask.span)

    # ------------------------------------------------------------ verdicts

    def decide(
        self,
        subject: str,
        sentence: str,
        ask: Callable[[Work], Answer],
        context: SolverContext,
        confirm: Callable[[Setting, int, int, int, int], Example | None],
        search: Callable[[Work], Example | None],
    ) -> Claim:
        answer = ask(self.work.part(5 * QUESTION))
        claim = partial(Claim, subject, sentence, span=self.mask.span)
        if isinstance(answer, Holds):
            return claim(Proved(f"z3, {context.queries} {'query' if context.queries == 1 else 'queries'}"))
        example = search(self.work.part(TRIAL))
        if example is None and isinstance(answer, Fails) and not params_with_dims(self.plan.attention, self.mask):
            example = self.confirmed(answer.values, confirm)
        if example is not None:
            return claim(Refuted("z3" if isinstance(answer, Fails) else "trial", example.lines, example.values))
        reason = "its values do not hold when evaluated" if isinstance(answer, Fails) else answer.reason
        return claim(Unknown("z3", reason))

    def confirmed(
        self, values: Mapping[str, int | float | bool], confirm: Callable[[Setting, int, int, int, int], Example | None]
    ) -> Example | None:
        """z3's numbers, evaluated."""
        from attngen.prove.search.small_settings import Setting

        attention = self.plan.attention
        sizes = {"B": 1, "Hq": 1, "Hkv": 1, "Sq": 1, "Sk": 1, "D": 64, "Dv": 64, **dict.fromkeys(attention.sizes, 1)}
        sizes |= {name: int(value) for name, value in values.items() if name in (*SIZES, *attention.sizes)}
        scalars = {p.name: values[p.name] for p in attention.params if p.is_scalar and p.name in values}
        first, last, q, k = (int(values[name]) for name in (f"{self.held}0", f"{self.held}1", "q", "k"))
        return confirm(Setting(sizes, scalars), first, last, q, k)


def params_with_dims(attention: Attention, *expressions: Expr) -> bool:
    """Whether any of these reads a tensor, whose elements a solver's model does not name."""
    return any(not attention.param(name).is_scalar for e in expressions for name in params(e))


def _roundings(e: Expr) -> int:
    """How many operations round on the way to a float. The kernels widen a side by a few roundings of its value: more
    than one of them loses, but two may leave nothing of a small difference of large numbers."""
    if not isinstance(e, Apply) or e.type is not Type.FLOAT:
        return 0
    inner = sum(_roundings(a) for a in e.args)
    exact = e.op in (Op.NEG, Op.ABS, Op.SIGN, Op.MIN, Op.MAX, Op.SELECT) or (
        e.op is Op.SUB and is_literal(e.args[0], 0)
    )
    return inner if exact else inner + 1


def _why(answer: Answer) -> str:
    """What stopped the solver, to end a sentence."""
    return f": {answer.reason}" if isinstance(answer, Open) else ""


def _holds(t: DataTest, row: Term, col: Term) -> Term:
    match t.sign:
        case "==":
            return row == col
        case "<=":
            return row <= col
        case "<":
            return row < col


def _plain_verdict(answer: Answer) -> Verdict:
    match answer:
        case Holds():
            return Proved("z3")
        case Fails():
            return Refuted("z3", (f"not at {answer.text()}",), tuple(answer.values.items()))
        case _:
            return Unknown("z3", answer.reason)
