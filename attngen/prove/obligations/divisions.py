"""What the printed forms of floor division compute, and that none of their steps leaves its register.

Takes an operation and a width, and asks z3 of the very expressions that the printers print (`ints.divisions`): given
any number and divisor of so many bits, the divisor not 0 and not -1 beside the least int, each step stays inside and
the last is what the language says. The product of the quotient and the divisor stands for itself, with what follows of
it for each sign of both operands, so that the questions are linear.
"""

from __future__ import annotations

from itertools import product

from attngen.ir.build import index, mul
from attngen.ir.nodes import Apply, Expr, Op, Type
from attngen.ir.walk import nodes, substitute
from attngen.plan.ints.divisions import DIVISOR, EXPANSIONS, NUMBER, QUOTIENT, REMAINDER
from attngen.prove.budget.work import Work
from attngen.prove.integers.answers import Answer, Holds, Term
from attngen.prove.integers.z3_door import SolverContext

_MULTIPLE = index("multiple")


def expansion_answer(context: SolverContext, op: Op, bits: int, work: Work) -> Answer:
    answer: Answer = Holds()
    for number_sign, divisor_sign in product((1, -1), repeat=2):
        answer = _with_signs(context, op, 2 ** (bits - 1), number_sign, divisor_sign, work)
        if not isinstance(answer, Holds):
            break
    return answer


def _with_signs(context: SolverContext, op: Op, limit: int, number_sign: int, divisor_sign: int, work: Work) -> Answer:
    expansion = EXPANSIONS[op]
    number, divisor, quotient, multiple = (context.free(s.id) for s in (NUMBER, DIVISOR, QUOTIENT, _MULTIPLE))
    held = substitute(expansion.remainder, {mul(QUOTIENT, DIVISOR): _MULTIPLE})
    remainder = context.term(held)
    at = {REMAINDER.id: remainder}
    value = context.term(expansion.value, at)

    large, small, times = number * number_sign, divisor * divisor_sign, multiple * number_sign
    rounded = quotient * (number_sign * divisor_sign)  # no less than 0, as all of these
    premises: list[Term] = [
        large >= 0,
        small >= 1,
        *_inside([number, divisor], limit),
        context.any_of([number > -limit, divisor < -1, divisor > -1]),
        # Towards zero: what is left has the sign of the number, and is smaller than the divisor.
        times >= 0,
        times <= large,
        large - times < small,
        # The product: `times` is `rounded` times `small`.
        rounded >= 0,
        context.implies(small <= 1, rounded == times),
        context.implies(small >= 2, rounded + rounded <= times),
        context.implies(rounded <= 0, times == 0),
        context.implies(times <= 0, rounded == 0),
    ]

    def left(part: Term) -> Term:
        """Whether that is what a division downwards leaves."""
        return context.all_of([part * divisor_sign >= 0, part * divisor_sign < small])

    cases = (
        [(value == quotient, number - multiple), (value == quotient - 1, number - multiple + divisor)]
        if op is Op.FLOORDIV
        else [(value == part, part) for part in (number - multiple, number - multiple + divisor)]
    )
    right = context.any_of([context.all_of([case, left(part)]) for case, part in cases])
    steps = [context.term(e, at) for root in (held, expansion.value) for e in nodes(root) if _is_step(e)]
    return context.ask_linear(premises, context.all_of([*_inside([quotient, multiple, *steps], limit), right]), work)


def _is_step(e: Expr) -> bool:
    return isinstance(e, Apply) and e.type is Type.INT


def _inside(terms: list[Term], limit: int) -> list[Term]:
    return [fact for t in terms for fact in (t >= -limit, t < limit)]
