"""What each program sums of a gradient with an element for each pair, as formulas, for any number of batches and heads.

Executes functions of `plan.index` in z3; `obligations.questions` says how. Along an axis, `count` batches or query
heads read `whole` elements, `group` of them each, or `all` read one. What is shown: there is a program for each
element, a batch or head is summed by the program of the element that it reads and by no other, and none is summed that
is not there.
"""

from __future__ import annotations

from attngen.ir.build import FALSE, TRUE
from attngen.plan.index import Index
from attngen.prove.budget.work import Work
from attngen.prove.integers.answers import Answer, Holds, Term
from attngen.prove.integers.z3_door import SolverContext
from attngen.prove.obligations.questions import Names, Questions, remembered
from attngen.prove.search.small_summed import wrong_sum


def summed_answer(index: Index, work: Work) -> Answer:
    """Whether each batch and head is summed once, by the program of its element."""
    ends = (index.of(name, ALL=one) for one in (False, True) for name in ("sum_start", "sum_stop"))
    functions = (index.of("sum_programs"), *ends)

    def ask(context: SolverContext) -> Answer:
        answer = _of_all(context, index, work)
        return _of_each(context, index, work) if isinstance(answer, Holds) else answer

    return remembered(functions, work, ask, lambda: wrong_sum(*functions))


def _summed(asked: Questions, index: Index, names: Names, one: bool) -> list[Term]:
    """How many programs there are, and what one sums."""
    given = {**names, "one": asked.context.term(TRUE if one else FALSE, {})}
    functions = index.of("sum_programs"), index.of("sum_start", ALL=one), index.of("sum_stop", ALL=one)
    return [asked.run(f, given, "a program").results[0] for f in functions]


def _of_all(context: SolverContext, index: Index, work: Work) -> Answer:
    """All read one element."""
    asked = Questions(context, ("whole", "group", "count"), work)
    programs, first, stop = _summed(asked, index, {**asked.sizes, "program": context.number(0)}, one=True)
    asked.show(programs == 1, first == 0, stop == asked.sizes["count"])
    return asked.answer


def _of_each(context: SolverContext, index: Index, work: Work) -> Answer:
    """There is an element for each `group` of them."""
    asked = Questions(context, ("whole", "group"), work)
    whole, group = (asked.sizes[name] for name in ("whole", "group"))
    program, member, element = (context.free(name) for name in ("program", "member", "element"))
    names: Names = {**asked.sizes, "program": program, "count": whole * group}
    asked.known += [program >= 0, program < whole, member >= 0, member < whole * group]
    asked.known += [element * group <= member, member < element * group + group]
    programs, first, stop = _summed(asked, index, names, one=False)
    asked.show(programs == whole, first == program * group, stop == program * group + group)
    asked.rising({"n": element}, {"n": context.number(0)}, "n", group)
    asked.rising({"n": element}, {"n": whole}, "n", group)
    asked.show(element >= 0, element < whole)
    asked.rising({"n": program}, {"n": element}, "n", group)
    inside = context.all_of([first <= member, member < stop])
    asked.show(context.implies(program == element, inside), context.implies(inside, program == element))
    return asked.answer
