"""The functions that compute the ends of runs of tiles: the plan's steps, in the words of a target."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import assert_never

from attngen.ir.nodes import Expr
from attngen.plan.mask.loops import Assigned, Ordered, Rounded, Step


def by_helper(step: Ordered, helper: str = "_sorted_runs") -> str:
    """Two runs in order, where the target has a helper for it."""
    a, b = step.first, step.second
    names = f"{a.start}, {a.stop}, {b.start}, {b.stop}"
    return f"{names} = {helper}({names})"


def step_lines(
    steps: Iterable[Step],
    *,
    rounded: Callable[[Rounded], str],
    text: Callable[[Expr], str],
    ordered: Callable[[Ordered], str] = by_helper,
) -> tuple[str, ...]:
    """The steps, in order. `rounded` prints a bound in tiles, `text` what is assigned, `ordered` a whole line."""

    def line(step: Step) -> str:
        match step:
            case Rounded():
                return f"{step.name} = {rounded(step)}"
            case Assigned():
                return f"{step.name} = {text(step.value)}"
            case Ordered():
                return ordered(step)
            case _:
                assert_never(step)

    return tuple(line(step) for step in steps)


def function_lines(
    head: tuple[str, ...], docstring: tuple[str, ...], body: Iterable[str], results: str
) -> tuple[str, ...]:
    """A whole function. `head`: its decorators and its signature."""
    return (*head, *(f"    {line}" if line else "" for line in (*docstring, *body, f"return {results}")))
