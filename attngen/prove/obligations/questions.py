"""Questions to z3 that build on each other: what is shown is a premise of what is asked next.

Divisors may be unknowns: each quotient is an unknown with its definition, q * c <= a < q * c + c.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Iterable, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

from attngen.errors import InternalError
from attngen.ir.build import index
from attngen.ir.function import Assigned, Function
from attngen.ir.nodes import Apply, Expr, Op, Type
from attngen.ir.walk import nodes, substitute
from attngen.prove.budget.work import Work
from attngen.prove.integers.answers import Answer, Fails, Holds, Open, Term
from attngen.prove.integers.z3_door import SolverContext

Names = dict[str, Term]
Contracts = Mapping[str, Callable[[Function, Names], list[Term]]]
"""By name of a function, what it returns for some args, of which no more is known than the contract says."""
Lemmas = Mapping[str, Callable[[Term], Term]]
"""By name, what shows something of a value as soon as it is bound, and returns it, or what is shown to be the same."""


def results(context: SolverContext, f: Function, args: Names) -> list[Term]:
    """What a function returns that divides by literals alone, and calls no other."""
    found = dict(args)
    for step in f.body:
        assert isinstance(step, Assigned)
        found[step.name] = context.term(step.value, found)
    return [context.term(e, found) for e in f.results]


class Questions:
    """What is known, and the answer to all that was asked so far."""

    def __init__(self, context: SolverContext, sizes: Iterable[str], work: Work):
        """`sizes`: names of ints that are at least 1."""
        self.context, self.work = context, work
        self.sizes = {name: context.free(name) for name in sizes}
        self.known: list[Term] = [size >= 1 for size in self.sizes.values()]
        self.answer: Answer = Holds()
        self.quotients: list[tuple[Term, Term, Term]] = []
        self.shown = False
        self.taken = {*self.sizes}
        self._told: tuple[int, Term | None] = 0, None

    def fresh(self, name: str, type: Type = Type.INT) -> Term:
        """An unknown of that name, of which nothing is known yet: two of one name would be one."""
        if name in self.taken:
            raise InternalError(f"two unknowns of a proof are called {name}")
        self.taken.add(name)
        return self.context.unknown(name, type)

    def show(self, *conclusions: Term) -> None:
        """Asks for each, one after the other, unless that was `shown`; each is a premise of those after it."""
        for conclusion in conclusions:
            if isinstance(self.answer, Holds) and not self.shown:
                self.answer = self.context.ask_core([self._all_known()], conclusion, self.work)
            self.known.append(conclusion)

    def _all_known(self) -> Term:
        """What is known, as one term, to which what is new is added: each question would hand all of it over again."""
        count, term = self._told
        new = self.known[count:]
        if new:
            term = self.context.every(*(() if term is None else (term,)), *new)
            self._told = len(self.known), term
        return term

    def follows(self, conclusion: Term, *reasons: Term, kept: bool = True) -> None:
        """Asks for the reasons, and then what follows of them alone: among all that is known z3 would not find it.
        `kept`: it is a premise of what comes after."""
        self.show(*(r for r in reasons if not any(r.eq(k) for k in self.known)))
        if isinstance(self.answer, Holds):
            self.answer = self.context.ask_core(reasons, conclusion, self.work)
            self.known += [conclusion] if kept else []

    def rising(self, one: Names, other: Names, name: str, factor: Term) -> list[Term]:
        """What products with a factor of at least 1 keep of an order: shown once, of any ints."""
        self.show(factor >= 1)
        if isinstance(self.answer, Holds) and not self.shown:
            self.answer = remembered("rising", self.work, lambda own: _rising_answer(own, self.work), lambda: None)
        pairs = (one[name], other[name]), (other[name], one[name])
        found = [self.context.implies(a < b, a * factor + factor <= b * factor) for a, b in pairs]
        self.known += found
        return found

    def as_any(self, shown: bool) -> AbstractContextManager[None]:
        """Within it nothing is asked, if it is `shown` of any other, of which as much is known."""
        return _shown(self, shown or self.shown)

    def value(self, e: Expr, names: Names) -> Term:
        """The value of `e`, whose divisors are shown to be positive."""
        found = dict(names)
        for node in [n for n in nodes(e) if isinstance(n, Apply) and n.op in (Op.FLOORDIV, Op.MOD)]:
            a, c = (self.value(x, names) for x in node.args)
            self.show(c >= 1)
            name = f"quotient {len(self.quotients)}"
            known = (q for x, y, q in self.quotients if x.eq(a) and y.eq(c))
            q = next(known, self.context.free(name))
            self.quotients.append((a, c, q))
            self.known += [q * c <= a, a < q * c + c]
            found[name] = q if node.op is Op.FLOORDIV else a - q * c
            e = substitute(e, {node: index(name)})
        return self.context.term(e, found)

    def run(
        self, f: Function, args: Names, name: str, contracts: Contracts | None = None, lemmas: Lemmas | None = None
    ) -> Run:
        """Executes a function for these args. Of a function that has a contract, what it returns is known by that
        alone."""
        found: Names = {p.id: args[p.id] for p in f.params}
        for step in f.body:
            if isinstance(step, Assigned):
                value = self.value(step.value, found)
                found[step.name] = self.fresh(f"`{step.name}` of {f.name}, {name}", step.value.type)
                self.known.append(found[step.name] == value)
                found[step.name] = (lemmas or {}).get(step.name, _same)(found[step.name])
                continue
            given = {p.id: self.value(e, found) for p, e in zip(step.function.params, step.args, strict=True)}
            contract = (contracts or {}).get(step.function.name)
            if contract is not None:
                results = contract(step.function, given)
            else:
                results = self.run(step.function, given, f"called by {f.name}, {name}", contracts).results
            found |= zip(step.names, results, strict=True)
            found |= {bound: (lemmas or {}).get(bound, _same)(found[bound]) for bound in step.names}
        return Run(found, [self.value(e, found) for e in f.results])


def _same(term: Term) -> Term:
    return term


@dataclass(frozen=True, slots=True)
class Run:
    """What the names of a function stand for, and what it returns."""

    names: Names
    results: list[Term]


@contextmanager
def _shown(asked: Questions, shown: bool) -> Generator[None]:
    before, asked.shown = asked.shown, shown
    yield
    asked.shown = before


def _rising_answer(context: SolverContext, work: Work) -> Answer:
    a, b, factor = (context.free(f"any {name}") for name in ("number", "other number", "factor"))
    return context.ask_core([factor >= 1, a < b], a * factor + factor <= b * factor, work)


_SHOWN: dict[Hashable, int] = {}
"""What is shown, and the units that it took: nothing of a spec bears on it, and each proof pays for it."""


def remembered(
    key: Hashable,
    work: Work,
    ask: Callable[[SolverContext], Answer],
    search: Callable[[], Mapping[str, int | float | bool] | None],
) -> Answer:
    """The answer to `ask`, for as many units as it took. It is asked in a context of its own, so neither the answer nor
    the units depend on what was asked before. Where z3 does not show a step, small sizes are tried: a step can fail
    without harm."""
    if _SHOWN.get(key, work.left + 1) <= work.left:
        work.charge(_SHOWN[key])
        return Holds()
    spent = work.spent
    answer = ask(SolverContext())
    if isinstance(answer, Holds):
        _SHOWN[key] = work.spent - spent
        return answer
    found = search()
    return Open("z3 does not show it, and small sizes show no mistake") if found is None else Fails(found)
