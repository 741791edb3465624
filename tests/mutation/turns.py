"""The turns of a plan: edits of them, and brute force, the parts of few tiles that are added in order.

`edited_turns` takes `Turns`, returns each with one edit; `wrong_turns` takes a plan (mutated or not), returns the first
mistake in words, or nothing. They share no code with the prover.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from attngen.ir.build import add, integer, sub
from attngen.ir.evaluate import evaluate
from attngen.ir.nodes import Expr
from attngen.ir.printing import expression as text
from attngen.plan.kernel import KernelPlan
from attngen.plan.mask.turns import Turns
from mutation.edits import Edit, edits


def off_by_one(e: Expr) -> Iterator[Edit]:
    yield from edits(e)
    yield f"{text(e)} + 1", add(e, integer(1))
    yield f"{text(e)} - 1", sub(e, integer(1))


def edited_turns(t: Turns) -> Iterator[tuple[str, Turns]]:
    for field in ("awaited", "passed"):
        for what, e in off_by_one(getattr(t, field)):
            yield f"{field}: {what}", replace(t, **{field: e})


def wrong_turns(plan: KernelPlan) -> str:
    """The tiles of a head come in order. Each waits for its turn in a cell that is 0 at first, and passes another."""
    assert plan.hopper is not None
    cell = 0
    for order in range(5):
        names = {"order": order, "n_tiles": 5}
        if order and cell != _value(plan.hopper.turns.awaited, names):
            return f"place {order} waits for a turn that no earlier one passes"
        before, cell = cell, _value(plan.hopper.turns.passed, names)
        if cell < 1 or cell == before:
            return f"place {order} leaves the cell at {cell}"
    return ""


def _value(e: Expr, names: dict[str, int]) -> int:
    return int(evaluate(e, names, {}))
