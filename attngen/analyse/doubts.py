"""What is doubtful in a spec whose kernel is right: params without effect, and scores that do a mask's work.

Takes an attention, returns a warning for each.
"""

from __future__ import annotations

import math

from attngen.analyse.unused import unused_params
from attngen.errors import NOWHERE, Diagnostic, Source
from attngen.ir import build, printing, walk
from attngen.ir.attention import Attention
from attngen.ir.nodes import Apply, Expr, Literal, Op, Scalar

_QUOTED = 60


def doubts(attention: Attention, source: Source) -> list[Diagnostic]:
    return [*unused_params(attention, source), *masking_scores(attention, source)]


def masking_scores(attention: Attention, source: Source) -> list[Diagnostic]:
    """A score of -inf by position: its kernel computes every tile, and that of a mask skips tiles without a pair."""
    found: dict[Expr, Diagnostic] = {}
    for node in walk.nodes(attention.score):
        if not isinstance(node, Apply) or node.op is not Op.SELECT:
            continue
        condition, then, otherwise = node.args
        if not _reads_positions(condition) or walk.reads(condition, "qk"):
            continue
        if _is_masked(otherwise) and not _is_masked(then):
            allowed, other = condition, then
        elif _is_masked(then) and not _is_masked(otherwise):
            allowed, other = build.apply(Op.NOT, condition), otherwise
        else:
            continue
        stands = attention.mask != build.TRUE
        form = f"add `and {_quoted(allowed)}` to the mask" if stands else f"write `mask = {_quoted(allowed)}`"
        found[node] = Diagnostic(
            "masking-score",
            "the score is -inf by position, and the kernel computes each such pair: a mask skips tiles of them",
            node.span if node.span != NOWHERE else attention.score.span,
            f"{form}, and {_quoted(other)} in the place of the `if`",
            source,
        )
    return list(found.values())


def _reads_positions(e: Expr) -> bool:
    """Whether it compares q or k, and not only what is read there."""
    return walk.reads(walk.substitute(e, {load: Scalar(load.param, load.type) for load in walk.loads(e)}), "q", "k")


def _is_masked(e: Expr) -> bool:
    return isinstance(e, Literal) and e.value == -math.inf


def _quoted(e: Expr) -> str:
    text = printing.expression(e)
    return text if len(text) <= _QUOTED else "…"
