"""What to write where a number can be infinite or have no value: facts and forms that lead out.

Takes the questions about an attention and the operation that fails, returns a sentence. A fact of a param is tried
before it is proposed: with it, the expression must be finite.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from attngen.ir import build, printing, walk
from attngen.ir.build import apply, conjunction, index
from attngen.ir.nodes import Apply, Expr, Literal, Load, Op, Scalar, Type
from attngen.prove.obligations.finite import Finiteness, Holds
from attngen.prove.search.witness import Witness

Leads = Callable[[Finiteness], bool]
"""Whether the question has the right answer."""

_ABOVE_ZERO = "keep what is under the root above 0: max(…, 1e-6)"
_Q, _K = index("q"), index("k")
_DISTANCE = build.sub(build.sub(build.add(_Q, index("Sk")), index("Sq")), _K)
_CAUSAL = apply(Op.LE, build.integer(0), _DISTANCE)


def fact_for(questions: Finiteness, part: Expr, leads: Leads) -> str:
    """Which `where` mends it, if `part` reads one param and nothing else."""
    leaves = tuple(dict.fromkeys(n for n in walk.nodes(part) if isinstance(n, Scalar | Load)))
    if len({leaf.param for leaf in leaves}) != 1 or leaves[0].type is Type.BOOL:
        return ""
    outside = walk.substitute(part, {leaf: build.integer(0) for leaf in leaves})
    if any(walk.symbols(outside)):
        return ""
    name, own = leaves[0].param, Scalar(leaves[0].param, leaves[0].type)
    for text, fact in _facts(own):
        if leads(questions.given(name, fact)):
            return _added(questions, name, text)
    return ""


def _facts(own: Scalar) -> Iterator[tuple[str, Expr]]:
    if own.type is Type.INT:
        for least in (1, 2):
            yield f"{own.param} >= {least}", apply(Op.LE, build.integer(least), own)
    else:
        yield f"{own.param} > 0", apply(Op.LT, build.real(0.0), own)
        yield f"{own.param} >= 1", apply(Op.LE, build.real(1.0), own)
        yield f"{own.param} > 1", apply(Op.LT, build.real(1.0), own)


def _added(questions: Finiteness, name: str, fact: str) -> str:
    stated = questions.attention.param(name).where is not None
    return f"add `and {fact}` to the `where` of `{name}`" if stated else f"add `where {fact}`"


def fix_of(questions: Finiteness, w: Witness, e: Expr, conditions: tuple[Expr, ...]) -> str:
    """What to write in the place of the operation at which `e` is not finite."""
    if not isinstance(w.node, Apply):
        return "a score of +inf has no weight; write -inf for a pair that shall not count"

    def fact(part: Expr) -> str:
        return fact_for(questions, part, lambda given: isinstance(given.finite(e, conditions), Holds))

    first, last = w.node.args[0], w.node.args[-1]
    match w.node.op:
        case Op.DIV if isinstance(last, Apply) and last.op in (Op.SQRT, Op.RSQRT):
            return fact(last.args[0]) or _ABOVE_ZERO  # the derivative of a root
        case Op.DIV if isinstance(last, Apply) and last.op is Op.TO_FLOAT:
            return fact(last) or f"guard it: `… if {printing.expression(last.args[0])} != 0 else …`"
        case Op.DIV:
            return fact(last) or "keep the divisor from 0: max(…, 1e-6), or mask such pairs"
        case Op.LOG if isinstance(first, Apply) and first.op is Op.SIGMOID:
            return f"write {_of_prelude('logsigmoid', first)}"
        case Op.LOG | Op.LOG2:
            clamped = _clamped(first)
            form = clamped or f"max({_short(first)}, 1e-6)"
            found = "" if clamped else fact(first)  # who clamps it expects what no fact allows
            return found or f"write {w.node.op.value}({form}), or mask such pairs"
        case Op.SQRT | Op.RSQRT:
            # At 0 a root has a value, and no derivative.
            return fact(first) or _ABOVE_ZERO
        case Op.EXP if any(_is_log_of_one_more(x, w.node) for x in walk.nodes(questions.attention.score)):
            return f"write {_of_prelude('softplus', w.node)}"
        case Op.EXP | Op.EXP2:
            return "bound the exponent: min(…, 80)"
        case Op.POW:
            return _power(questions, w, e, conditions) or fact(first) or _bounded_base(w)
        case _:
            return ""


def _of_prelude(function: str, applied: Apply) -> str:
    return f"{function}({printing.expression(applied.args[0])}), which the prelude has"


def _is_log_of_one_more(e: Expr, x: Expr) -> bool:
    """Whether `e` is log(1 + x)."""
    if not (isinstance(e, Apply) and e.op is Op.LOG):
        return False
    one = build.real(1.0)
    return e.args[0] in (build.add(one, x), build.add(x, one))


def _clamped(part: Expr) -> str:
    """A clamp or max whose lower end is a number, with an end above 0 in its place."""
    match part:
        case Apply(op=Op.MIN, args=(Apply(op=Op.MAX, args=(x, Literal())), Literal() as high)):
            return f"clamp({_short(x)}, 1e-6, {printing.expression(high)})"
        case Apply(op=Op.MAX, args=(x, Literal())):
            return f"max({_short(x)}, 1e-6)"
        case _:
            return ""


def _short(e: Expr) -> str:
    text = printing.expression(e)
    return text if len(text) <= 48 else "…"


def _bounded_base(w: Witness) -> str:
    return "bound the base: clamp(…)" if w.operands[0] != 0 else "keep the base from 0"


def _power(questions: Finiteness, w: Witness, e: Expr, conditions: tuple[Expr, ...]) -> str:
    """For a decay: a base of at most 1, and the distance to the last key as the exponent."""
    assert isinstance(w.node, Apply)
    base, exponent = w.node.args
    if not isinstance(base, Scalar | Load) or not walk.reads(exponent, "q", "k"):
        return ""
    own = Scalar(base.param, Type.FLOAT)
    fact = conjunction(apply(Op.LT, build.real(0.0), own), apply(Op.LE, own, build.real(1.0)))
    decays = questions.given(base.param, fact)
    aligned = walk.substitute(e, {w.node: apply(Op.POW, base, _DISTANCE)})
    text = f"{printing.expression(base)} ** distance"
    for tried, under, way in (
        (e, conditions, ""),
        (aligned, conditions, f"write {text}"),
        (aligned, (*conditions, _CAUSAL), f"write {text}, with `causal` in the mask"),
    ):
        if isinstance(questions.finite(tried, under), Holds):
            return way
        if isinstance(decays.finite(tried, under), Holds):
            return "; ".join(filter(None, (way, _added(questions, base.param, f"0 < {base.param} <= 1"))))
    return ""
