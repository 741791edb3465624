"""What each program sums of a gradient with an element for each pair, as formulas, for any number of batches and heads.

Executes the plan's `Summed` in z3; `obligations.questions` says how. Along an axis, `count` batches or query heads read
`whole` elements, `group` of them each, or `all` read one. What is shown: there is a program for each element, a batch
or head is summed by the program of the element that it reads and by no other, and none is summed that is not there.
"""

from __future__ import annotations

from attngen.ir.build import FALSE, TRUE
from attngen.ir.walk import substitute
from attngen.plan.summed import ALL, Summed
from attngen.prove.budget.work import Work
from attngen.prove.integers.answers import Answer, Holds
from attngen.prove.integers.z3_door import SolverContext
from attngen.prove.obligations.questions import Names, Questions, remembered
from attngen.prove.search.small_summed import wrong_sum


def summed_answer(context: SolverContext, summed: Summed, work: Work) -> Answer:
    """Whether each batch and head is summed once, by the program of its element."""

    def ask() -> Answer:
        answer = _of_all(context, summed, work)
        return _of_each(context, summed, work) if isinstance(answer, Holds) else answer

    return remembered(summed, work, ask, lambda: wrong_sum(summed))


def _of_all(context: SolverContext, summed: Summed, work: Work) -> Answer:
    """All read one element."""
    asked = Questions(context, ("whole", "group", "count"), work)
    names: Names = {**asked.sizes, "program": context.number(0)}
    programs, first, stop = (
        asked.value(substitute(e, {ALL: TRUE}), names) for e in (summed.programs, summed.first, summed.stop)
    )
    asked.show(programs == 1, first == 0, stop == asked.sizes["count"])
    return asked.answer


def _of_each(context: SolverContext, summed: Summed, work: Work) -> Answer:
    """There is an element for each `group` of them."""
    asked = Questions(context, ("whole", "group"), work)
    whole, group = (asked.sizes[name] for name in ("whole", "group"))
    program, member, element = (context.free(name) for name in ("program", "member", "element"))
    names: Names = {**asked.sizes, "program": program, "count": whole * group}
    asked.known += [program >= 0, program < whole, member >= 0, member < whole * group]
    asked.known += [element * group <= member, member < element * group + group]
    programs, first, stop = (
        asked.value(substitute(e, {ALL: FALSE}), names) for e in (summed.programs, summed.first, summed.stop)
    )
    asked.show(programs == whole, first == program * group, stop == program * group + group)
    asked.rising({"n": element}, {"n": context.number(0)}, "n", group)
    asked.rising({"n": element}, {"n": whole}, "n", group)
    asked.show(element >= 0, element < whole)
    asked.rising({"n": program}, {"n": element}, "n", group)
    inside = context.all_of([first <= member, member < stop])
    asked.show(context.implies(program == element, inside), context.implies(inside, program == element))
    return asked.answer
