"""Words that claims about numbers share, and the place in the file that they point to."""

from __future__ import annotations

from attngen.errors import NOWHERE, Span
from attngen.ir import walk
from attngen.ir.nodes import Apply, Expr
from attngen.prove.intervals.ingredients import restate
from attngen.prove.search.witness import Witness

BY = "intervals"
nothing_found = "intervals do not show it, and trying inputs did not refute it"


def example(witness: Witness, lines: tuple[str, ...]) -> tuple[str, ...]:
    """The lines of a counterexample: the inputs, then what they lead to."""
    inputs = restate(witness.values)
    return ((f"take {inputs}",) if inputs else ()) + lines


def span_of(e: Expr, *roots: Expr) -> Span:
    """Where `e` stands in the file, or what it was made from: the first node of the roots that is like it."""
    if e.span != NOWHERE:
        return e.span
    for root in roots:
        for node in walk.nodes(root):
            if node == e and node.span != NOWHERE:
                return node.span
    if isinstance(e, Apply):
        for root in roots:
            for node in walk.nodes(root):
                if isinstance(node, Apply) and node.op is e.op and node.span != NOWHERE:
                    return node.span
    return next((root.span for root in roots if root.span != NOWHERE), NOWHERE)
