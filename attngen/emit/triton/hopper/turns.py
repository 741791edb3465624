"""The order of tickets and the turns of dQ, as text for the kernels of compute capability 9.0.

Takes the plan's `Turns`, returns a `TurnsView`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from attngen.emit.triton.code.expressions import Printer
from attngen.ir.nodes import Apply, Expr, Op
from attngen.ir.walk import nodes
from attngen.plan.mask.turns import HEADS, ORDER, Directed, Turns


@dataclass(frozen=True, slots=True)
class DirectedView:
    onwards: str
    backwards: str


def directed_view(d: Directed, printer: Printer) -> DirectedView:
    return DirectedView(printer.text(d.onwards), printer.text(d.backwards))


@dataclass(frozen=True, slots=True)
class TurnsView:
    """The fields of `Turns`, the last of its steps apart, as `order`. `key_steps`: the steps where the number of heads
    has no name. `their_tile` and `their_turn` call it `others`.
    """

    few: str
    steps: tuple[str, ...]
    key_steps: tuple[str, ...]
    order: str
    back: str
    head: str
    tile: DirectedView
    before: DirectedView
    awaited: str
    passed: str
    their_tile: DirectedView
    their_turn: str


def plainly(printer: Printer, *values: Expr) -> Printer:
    """The printer for values whose ints are not negative: their divisions need no helper."""
    divisions = {e for v in values for e in nodes(v) if isinstance(e, Apply) and e.op in (Op.FLOORDIV, Op.MOD)}
    return replace(printer, choices=replace(printer.choices, plain_divisions=frozenset(divisions)))


def turns_view(turns: Turns, printer: Printer) -> TurnsView:
    plain = plainly(printer, turns.few, turns.back, turns.head, *(s.value for s in turns.steps))

    def named(order: str = "order", heads: str = "heads") -> Printer:
        return replace(plain, names={**plain.names, ORDER: order, HEADS: heads})

    def text(e: Expr, **names: str) -> str:
        return named(**names).text(e)

    *steps, last = turns.steps
    return TurnsView(
        few=text(turns.few),
        steps=tuple(f"{s.name} = {text(s.value)}" for s in steps),
        key_steps=tuple(f"{s.name} = {text(s.value, heads='n_work // n_tiles')}" for s in steps),
        order=text(last.value),
        back=text(turns.back),
        head=text(turns.head),
        tile=directed_view(turns.tile, named()),
        before=directed_view(turns.before, named()),
        awaited=text(turns.awaited),
        passed=text(turns.passed),
        their_tile=directed_view(turns.tile, named("others")),
        their_turn=text(turns.passed, order="others"),
    )
