"""The derivation of one file's kernels as a textbook writes it: a ladder from the dense definition down to what runs.

`ladder` gives a frozen `Ladder` of steps; `render` writes it for a terminal, as Markdown or as LaTeX, and with a proof
each step cites who shows its identity. An exposition: it checks nothing itself, and reads the plan that is emitted.
"""

from __future__ import annotations

from attngen.explain.backward import backward
from attngen.explain.forward import forward
from attngen.explain.rendering import FORMATS, render
from attngen.explain.steps import Ladder, Step, notation as _notation, setting
from attngen.ir.attention import Attention
from attngen.plan.kernel import KernelPlan

__all__ = ["FORMATS", "Ladder", "Step", "ladder", "render"]


def ladder(attention: Attention, plan: KernelPlan) -> Ladder:
    """The steps from the definition of `attention` to the kernels that `plan` describes."""
    at = setting(attention, plan)
    return Ladder(attention.name, _notation(at), (*forward(at), *backward(at)))
