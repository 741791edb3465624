"""Locality: the score of a pair depends on that pair alone, and is final before the running maximum sees it.

Takes the attention and the plan, returns claims. What a pair's logit reads is looked up in the plan's own
expressions, and the level at which a part of it is computed (once a head, a row, a column, or for each pair) is worked
out again from what it reads. This is where a modifier of the score goes: into the logit, before the maximum; a factor
common to a head may wait until after it, if it is positive; dropout comes after the sum.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from attngen.ir.attention import Attention
from attngen.ir.build import apply, conjunction, disjunction
from attngen.ir.nodes import INDICES, SIZES, Apply, Expr, Op, Symbol, Type
from attngen.ir.printing import expression as text
from attngen.ir.walk import nodes, substitute
from attngen.plan import KernelPlan
from attngen.plan.levels import Level, schedule
from attngen.plan.score.ramp import Ramp
from attngen.plan.score.weights import Form
from attngen.prove.definition import definition
from attngen.prove.verdict import Claim, Proved, Refuted, Verdict

_FORBIDDEN = {
    Level.HEAD: {"q", "k", "qk", "x", "ref"},
    Level.ROW: {"k", "qk", "x", "ref"},
    Level.COLUMN: {"q", "qk", "x", "ref"},
    Level.PAIR: set[str](),
}
_IN_KERNEL: dict[Expr, Expr] = {Symbol(a, Type.FLOAT): Symbol(b, Type.FLOAT) for a, b in (("s", "x"), ("m", "ref"))}
"""The names of a pair's score and of the reference point in a kernel's weight."""


def locality(attention: Attention, plan: KernelPlan) -> tuple[Claim, ...]:
    """The claims of the obligation. All are shown by structure, which takes no work to speak of."""
    defined = definition(attention, plan)
    w, n = plan.weights, defined.normalizer
    pair = {*INDICES, *SIZES, *defined.sizes, "qk", "scale"}
    head = pair - {"q", "k", "qk"}
    claims = [
        Claim(
            "the plan's attention",
            "the plan computes the attention of the file, its sizes renamed at most",
            _planned_attention(defined, plan.attention),
            span=defined.score.span,
        ),
        Claim(
            "score",
            "the score of (q, k) reads that pair's q . k, its indices, sizes and params: no other pair, maximum or sum",
            _only(defined.score, pair),
            span=defined.score.span,
        ),
        Claim(
            "logit",
            "the logit that the running maximum sees is final: it reads the pair alone",
            _only(w.unit, pair),
            span=defined.score.span,
        ),
        Claim(
            "mask",
            "the mask of (q, k) reads that pair alone",
            _only(plan.attention.mask, pair - {"qk", *({"scale"} if plan.facts.scale_positive else ())}),
            span=defined.mask.span,
        ),
        Claim(
            "factor",
            "what is multiplied in after the maximum is one number for a head",
            _all(_only(e, head) for e in (w.factor, w.kappa, plan.d_factor)),
            span=defined.score.span,
        ),
        *_rising(plan.ramp, pair, head, defined),
        Claim(
            "weight",
            "a weight reads its own score and the reference point, and what is the head's",
            _only(w.stream, head | ({"s"} if w.form is Form.DIRECT else {"s", "m"})),
            span=n.weight.span,
        ),
        Claim(
            "extra term",
            "the denominator's extra term is one number for a head, so it can be merged after the last key",
            _all(_only(e, head) for e in (w.extra, w.log_extra) if e is not None),
            span=(n.extra or n.weight).span,
        ),
        Claim(
            "levels",
            "what is computed once a head, a row or a column reads nothing that varies inside it",
            _levels(plan),
            span=defined.score.span,
        ),
    ]
    if plan.keeps_key is not None:
        claims.append(
            Claim(
                "cleared keys",
                "a key whose rows of K and V are cleared is forbidden to every query of the head",
                _cleared(plan.attention.mask, plan.keeps_key),
                span=defined.mask.span,
            )
        )
    if defined.dropout is not None:
        claims.append(
            Claim(
                "dropout",
                "dropout multiplies weights that the denominator has summed already, by a probability of the call",
                _only(defined.dropout, set[str]()),
                span=defined.dropout.span,
            )
        )
        o = defined.origin
        claims.append(
            Claim(
                "dropout's counter",
                "k, q and h are counted from ints that all pairs of a sequence share, so each pair has its own bits",
                _all(_only(first, {"b"}) for first in (o.k, o.q, o.h, o.b)),
                span=defined.dropout.span,
            )
        )
    return tuple(claims)


def _rising(ramp: Ramp | None, pair: set[str], head: set[str], defined: Attention) -> Iterator[Claim]:
    """Of the logit that rises from key to key."""
    if ramp is not None:
        parts = ((ramp.unit, pair), (ramp.row, head | {"q", "k0"}), (ramp.factor, head), (ramp.rise, head))
        sentence = "a logit that rises from key to key has one slope for a head, and a row's part that reads no key"
        found = _all([_only(e, allowed) for e, allowed in parts])
        yield Claim("rising logit", sentence, found, span=defined.score.span)


def _only(e: Expr, allowed: set[str]) -> Verdict:
    """Whether `e` reads only these symbols."""
    read = dict.fromkeys(n.id for n in nodes(e) if isinstance(n, Symbol))
    wrong = [name for name in read if name not in allowed]
    if wrong:
        return Refuted("structure", (f"{text(e)} reads {', '.join(wrong)}",))
    return Proved("structure", (f"{text(e)} reads {', '.join(read) or 'nothing that varies'}",))


def _cleared(mask: Expr, keeps: Expr) -> Verdict:
    """That the condition reads no query, and that no pair meets the mask without it."""
    wrong = _only(keeps, {"b", "h", "hkv", "k", *(n.id for n in nodes(mask) if isinstance(n, Symbol))} - {"q", "qk"})
    if not isinstance(wrong, Proved):
        return wrong
    if _implies(mask, keeps):
        return Proved("structure", (f"{text(mask)} implies {text(keeps)}",))
    return Refuted("structure", (f"{text(mask)} may hold where {text(keeps)} does not",))


def _implies(a: Expr, b: Expr) -> bool:
    """By the rules of sequents: what is known on the left is split until it holds, literally, what is wanted."""
    if a == b:
        return True
    plain = _unfolded(a), _unfolded(b)
    if plain != (a, b):
        return _implies(*plain)
    match a, b:
        case _, Apply(op=Op.AND):
            return all(_implies(a, part) for part in b.args)
        case Apply(op=Op.OR), _:
            return all(_implies(part, b) for part in a.args)
        case _, Apply(op=Op.OR):
            known = a.args if isinstance(a, Apply) and a.op is Op.AND else ()
            return any(_implies(a, part) for part in b.args) or any(_implies(part, b) for part in known)
        case Apply(op=Op.AND), _:
            return any(_implies(part, b) for part in a.args)
        case _:
            return False


def _unfolded(e: Expr) -> Expr:
    """The same condition: a choice as two cases, an int below the lesser of two as below both."""
    match e:
        case Apply(op=Op.SELECT, args=(c, then, otherwise)):
            return disjunction(conjunction(c, then), conjunction(apply(Op.NOT, c), otherwise))
        case Apply(op=Op.LT | Op.LE, args=(a, Apply(op=Op.MIN | Op.MAX, args=parts) as b)) if a.type is Type.INT:
            found = [apply(e.op, a, part) for part in parts]
            return conjunction(*found) if b.op is Op.MIN else disjunction(*found)
        case Apply(op=Op.LT | Op.LE, args=(Apply(op=Op.MIN | Op.MAX, args=parts) as a, b)) if b.type is Type.INT:
            found = [apply(e.op, part, b) for part in parts]
            return conjunction(*found) if a.op is Op.MAX else disjunction(*found)
        case _:
            return e


def _all(verdicts: Iterable[Verdict]) -> Verdict:
    """All of them, or the first that fails."""
    steps: list[str] = []
    for verdict in verdicts:
        if not isinstance(verdict, Proved):
            return verdict
        steps += verdict.steps
    return Proved("structure", tuple(steps))


def _planned_attention(defined: Attention, planned: Attention) -> Verdict:
    parts = ("name", "params", "sizes", "score", "normalizer", "dropout", "assumes", "origin")
    changed = [part for part in parts if getattr(defined, part) != getattr(planned, part)]
    if changed:
        return Refuted("structure", tuple(f"the plan's {part} is not the file's" for part in changed))
    return Proved("the same expressions")


def _levels(plan: KernelPlan) -> Verdict:
    """Every binding of the schedule of what the kernels evaluate, its level worked out from what it reads."""
    w = plan.weights
    results: dict[str, Expr] = {"unit": w.unit, "factor": w.factor, "allowed": plan.attention.mask}
    results.update(d_pair=plan.d_pair, d_factor=plan.d_factor)
    if w.form is not Form.EXPONENTIAL:
        results["stream"] = substitute(w.stream, _IN_KERNEL)
    for number, g in enumerate(plan.gradients):
        for what, e in (("pair", g.pair), ("weight", g.weight), ("extra", g.extra)):
            if e is not None:
                results[f"{what}_{number}"] = substitute(e, _IN_KERNEL)
    counts = dict.fromkeys(Level, 0)
    wrong: list[str] = []
    for binding in schedule(results).bindings:
        counts[binding.level] += 1
        read = {n.id for n in nodes(binding.expr) if isinstance(n, Symbol)}
        varying = sorted(read & _FORBIDDEN[binding.level])
        if varying:
            wrong.append(
                f"{text(binding.expr)} is computed once a {binding.level.name.lower()}, and reads {varying[0]}"
            )
    if wrong:
        return Refuted("structure", tuple(wrong))
    named = (f"{count} a {level.name.lower()}" for level, count in counts.items() if count)
    return Proved("structure", (f"values that are given a name: {', '.join(named) or 'none'}",))
