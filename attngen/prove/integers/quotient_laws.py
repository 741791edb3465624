"""Floor division by a divisor that is no constant: what follows of it, for a solver of linear arithmetic.

Takes the quotients that terms have, and a solver's connectives, returns laws over their parts. Terms are the solver's
own; they are added, subtracted and compared here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Protocol

from attngen.prove.integers.answers import Term


class Logic(Protocol):
    """A solver's connectives."""

    def implies(self, a: Term, b: Term) -> Term: ...

    def every(self, *terms: Term) -> Term: ...


@dataclass(frozen=True, slots=True)
class Quotient:
    """A floor division by a divisor that is no constant: `value` = number // divisor, `multiple` = value * divisor."""

    number: Term
    divisor: Term
    value: Term
    multiple: Term


def laws(quotients: Sequence[Quotient], logic: Logic) -> list[Term]:
    """What follows from a = c * quotient + remainder, 0 <= remainder < c, without a product of unknowns."""
    found: list[Term] = []
    for x in quotients:
        found.append(
            logic.implies(
                x.divisor > 0,
                logic.every(
                    x.multiple <= x.number,
                    x.number < x.multiple + x.divisor,
                    (x.value >= 0) == (x.number >= 0),
                    (x.value >= 0) == (x.multiple >= 0),
                    (x.value <= 0) == (x.multiple <= 0),
                    logic.implies(x.value >= 1, x.multiple >= x.divisor),
                    logic.implies(x.value >= 1, x.multiple >= x.value),
                    logic.implies(x.divisor == 1, x.value == x.number),
                    logic.implies(x.number >= 0, x.value <= x.number),
                    logic.implies(x.number < 0, x.value >= x.number),
                ),
            )
        )
    for x, y in combinations(quotients, 2):
        if not x.divisor.eq(y.divisor):
            continue
        apart: list[Term] = []
        for a, b in ((x, y), (y, x)):
            apart += [
                logic.implies(a.number <= b.number, logic.every(a.value <= b.value, a.multiple <= b.multiple)),
                logic.implies(a.value < b.value, a.multiple + a.divisor <= b.multiple),
                logic.implies(a.multiple + a.divisor <= b.multiple, a.value < b.value),
                (a.value + 1 == b.value) == (a.multiple + a.divisor == b.multiple),
            ]
        found.append(
            logic.implies(x.divisor > 0, logic.every((x.value == y.value) == (x.multiple == y.multiple), *apart))
        )
    return found


def products(quotients: Sequence[Quotient], logic: Logic) -> list[Term]:
    """The definition itself, for both signs of the divisor."""
    found: list[Term] = []
    for x in quotients:
        rest = x.number - x.multiple
        found.append(x.multiple == x.value * x.divisor)
        found.append(logic.implies(x.divisor > 0, logic.every(rest >= 0, rest < x.divisor)))
        found.append(logic.implies(x.divisor < 0, logic.every(rest <= 0, rest > x.divisor)))
    return found
