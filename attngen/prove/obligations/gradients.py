"""Gradients: the planned derivatives are the definition's, none is missing, and each is gathered where it belongs.

Takes the attention, the plan and the work that is allowed, returns claims: d natural / d qk, and for every float leaf
(a scalar param, or one load) that the score, the weight or the extra term reads, its share through each of them. The
true derivatives are sympy's, of the definition's own expressions; at kinks the side that the kernel takes is compared
and named.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from attngen.errors import NOWHERE, Span
from attngen.ir import build
from attngen.ir.attention import Attention
from attngen.ir.build import add, div, is_literal, mul, neg, real, sub
from attngen.ir.nodes import COMPARISONS, Apply, Expr, Load, Op, Scalar, Symbol, Type
from attngen.ir.printing import expression as text
from attngen.ir.walk import nodes, reads, substitute, transform
from attngen.plan import KernelPlan
from attngen.plan.kernel import Gather, LeafGradient
from attngen.plan.score.derivative import derivative
from attngen.plan.score.distance import DISTANCE, distance_index
from attngen.plan.score.weights import Form
from attngen.prove.algebra.assumptions import assumptions
from attngen.prove.algebra.equality import derivative_is, equal
from attngen.prove.algebra.sympy_door import Term, same
from attngen.prove.algebra.terms import Reading
from attngen.prove.budget.work import OutOfWork, Work
from attngen.prove.definition import definition
from attngen.prove.obligations import lemmas
from attngen.prove.obligations.summed import summed_answer
from attngen.prove.obligations.walk_claims import verdict_of
from attngen.prove.verdict import Claim, Proved, Refuted, Unknown, Verdict, flag

_QK, _S, _M = (Symbol(name, Type.FLOAT) for name in ("qk", "s", "m"))
_ZERO = real(0.0)


def gradients(attention: Attention, plan: KernelPlan, work: Work) -> tuple[Claim, ...]:
    """The claims of the obligation: qk first, then every leaf, then what holds for all."""
    try:
        return _Gradients(definition(attention, plan), plan, work).claims()
    except OutOfWork as stop:  # while leaves were told apart
        sentence = "every planned derivative is the definition's, and none is missing"
        return (Claim("gradients", sentence, Unknown("sympy", stop.reason), span=attention.score.span),)


@dataclass
class _Leaf:
    """One element of a float param: the ways in which it is written, and what is planned for it."""

    name: str
    span: Span
    ways: dict[Scalar | Load, None] = field(default_factory=dict[Scalar | Load, None])
    defined: bool = False
    planned: list[LeafGradient] = field(default_factory=list[LeafGradient])


class _Gradients:
    def __init__(self, attention: Attention, plan: KernelPlan, work: Work):
        self.attention = attention
        self.plan = plan
        self.w = plan.weights
        self.n = attention.normalizer
        self.assumptions = assumptions(attention)
        self.work = work
        # What stays of weight(s) when a reference point m is taken out of it.
        self.reference: Expr | None = None
        if self.w.form is Form.SHIFTED:
            self.reference = build.apply(Op.EXP, neg(mul(self.w.kappa, _M)))
        self.natural = attention.score
        if self.w.form is Form.EXPONENTIAL:
            self.natural = mul(self.w.kappa, attention.score)

    def claims(self) -> tuple[Claim, ...]:
        leaves = self._leaves()
        claims = [self._qk(), *self._slope(), self._lemma()]
        for leaf in leaves.values():
            loads = (w for other in leaves.values() if other is not leaf for w in other.ways if isinstance(w, Load))
            claims += self._leaf(leaf, tuple(w for w in loads if w.param in {own.param for own in leaf.ways}))
        return (*claims, *self._summed(), self._complete(leaves))

    def _is(
        self,
        planned: Expr,
        e: Expr,
        leaves: tuple[Expr, ...],
        factor: Expr | None = None,
        others: tuple[Load, ...] = (),
    ) -> Verdict:
        return derivative_is(planned, ((e, factor),), leaves, self.assumptions, self.work.share(), others)

    def _qk(self) -> Claim:
        verdict = self._is(mul(self.plan.d_factor, self.plan.d_pair), self.natural, (_QK,))
        sentence = "the planned factor * pair derivative is d natural / d qk"
        note = _kinks(self.attention.score, {_QK})
        return Claim("d score / d qk", sentence, verdict, span=self.attention.score.span, note=note)

    def _slope(self) -> list[Claim]:
        w, weight = self.w, self.n.weight
        if w.form is Form.EXPONENTIAL:
            return []
        verdict = self._is(w.slope or _ZERO, weight, (_S,), self.reference)
        sentence = "the planned slope is d weight / d s, at the kernel's reference point"
        return [Claim("d weight / d s", sentence, verdict, span=weight.span, note=_kinks(weight, {_S}))]

    def _lemma(self) -> Claim:
        sentence = "dL / d natural = p (dp - delta), and -delta E / denominator for the extra term"
        return Claim("backward", sentence, Proved("sympy", lemmas.backward()), span=self.n.span)

    # ------------------------------------------------------------ leaves

    def _leaves(self) -> dict[Term, _Leaf]:
        """Every float leaf of the definition and of the plan, by what it is: two spellings of one element are one."""
        reading = Reading(self.assumptions, self.work)
        found: dict[Term, _Leaf] = {}

        def note(node: Scalar | Load) -> _Leaf:
            span = node.span if node.span != NOWHERE else self.attention.param(node.param).span
            leaf = found.setdefault(reading.term(node), _Leaf(text(node), span))
            leaf.ways.setdefault(node)
            return leaf

        defined = [self.attention.score, self.n.weight, *([self.n.extra] if self.n.sums and self.n.extra else [])]
        for e in defined:
            for node in nodes(e):
                if isinstance(node, Scalar | Load) and node.type is Type.FLOAT and not self._is_fixed(node):
                    note(node).defined = True
        for g in self.plan.gradients:
            note(g.leaf).planned.append(g)
            for e in (g.pair, g.weight, g.extra):
                for node in nodes(e) if e is not None else ():
                    if isinstance(node, Scalar | Load) and reading.term(node) in found:
                        note(node)
        return found

    def _is_fixed(self, node: Scalar | Load) -> bool:
        return self.attention.param(node.param).fixed

    def _leaf(self, leaf: _Leaf, others: tuple[Load, ...]) -> list[Claim]:
        """`others` are the other loads of its param."""
        ways = tuple(leaf.ways)
        claims: list[Claim] = []

        def total(parts: list[Expr | None]) -> Expr:
            found = _ZERO
            for part in parts:
                found = found if part is None else add(found, part)
            return found

        def claim(what: str, planned: list[Expr | None], e: Expr | None, factor: Expr | None = None) -> None:
            given = total(planned)
            if (e is None or not _reads(e, ways)) and given == _ZERO:
                return
            verdict = self._is(given, e or _ZERO, ways, factor, others)
            sentence = f"the planned derivative is d {what} / d {leaf.name}"
            note = "" if e is None else _kinks(e, set(ways))
            claims.append(Claim(f"d {what} / d {leaf.name}", sentence, verdict, span=leaf.span, note=note))

        claim("natural" if self.w.form is Form.EXPONENTIAL else "score", [g.pair for g in leaf.planned], self.natural)
        if self.w.form is Form.EXPONENTIAL:
            claim("weight", [g.weight for g in leaf.planned], None)  # through kappa, in `natural`
        else:
            claim("weight", [g.weight for g in leaf.planned], self.n.weight, self.reference)
        extra = self.n.extra if self.n.sums else None
        if self.w.form is Form.DIRECT or extra is None:
            claim("extra term", [g.extra for g in leaf.planned], extra)
        else:
            claim("log extra term", [g.extra for g in leaf.planned], extra, div(real(1.0), extra))
        for g in leaf.planned:
            verdict = self._gathered(g)
            sentence = f"its contributions are summed by {g.gather.value}, which its index allows"
            claims.append(Claim(f"gather {text(g.leaf)}", sentence, verdict, span=leaf.span))
        return claims

    def _complete(self, leaves: dict[Term, _Leaf]) -> Claim:
        """No leaf goes without a gradient unless its derivatives are zero, as the claims before this one show."""
        listed = [leaf.name for leaf in leaves.values() if leaf.defined]
        missing = [leaf.name for leaf in leaves.values() if leaf.defined and not leaf.planned]
        twice = [name for name, count in _counted(self.plan.gradients) if count > 1]
        steps = (f"float leaves that the definition reads: {', '.join(listed) or 'none'}",)
        if missing:
            steps += (f"planned as zero: {', '.join(missing)}; their claims above show the derivative",)
        verdict: Verdict = Proved("structure", steps)
        if twice:
            verdict = Refuted("structure", (f"{', '.join(twice)} is planned twice: its gradient would be doubled",))
        floats = [p for p in self.attention.params if p.type is Type.FLOAT]
        unused = [p.name for p in floats if not p.fixed and p.name not in _names(leaves)]
        fixed = [p.name for p in floats if p.fixed]
        notes = (
            [f"gradient zero, as only the mask, dropout or nothing reads them: {', '.join(unused)}"] if unused else []
        )
        notes += [f"no gradient, since the file says `fixed`: {', '.join(fixed)}"] if fixed else []
        note = "; ".join(notes)
        sentence = "every float leaf that the score, the weight or the extra term reads has its gradient"
        return Claim("complete", sentence, verdict, span=self.attention.score.span, note=note)

    # ------------------------------------------------------------ gathering

    def _gathered(self, g: LeafGradient) -> Verdict:
        if g.extra is not None and g.gather not in (Gather.HEAD, Gather.ROW):
            return flag(False, f"the extra term's part is a row's, which sums by {g.gather.value} leave out")
        if isinstance(g.leaf, Scalar):
            return flag(g.gather is Gather.HEAD, f"{g.param} is a scalar, summed by {g.gather.value}")
        reads = {n.id for i in g.leaf.indices for n in nodes(i) if isinstance(n, Symbol)}
        match g.gather:
            case Gather.HEAD:
                return _free(g.leaf, reads, ("q", "k", "qk"))
            case Gather.ROW:
                return _free(g.leaf, reads, ("k", "qk"))
            case Gather.COLUMN:
                return _free(g.leaf, reads, ("q", "qk"))
            case Gather.DENSE:
                ids = [i.id for i in g.leaf.indices if isinstance(i, Symbol)]
                plain = len(ids) == len(set(ids)) == len(g.leaf.indices) and {"q", "k"} <= set(ids)
                plain = plain and set(ids) <= {"b", "h", "hkv", "q", "k"} and not {"h", "hkv"} <= set(ids)
                return flag(plain, f"the index of {text(g.leaf)} is not q and k themselves")
            case Gather.DIAGONAL:
                return self._diagonal(g.leaf)
            case Gather.SCATTER:
                return Proved("structure", ("integer sums of any cells, in any order, are the same",))

    def _summed(self) -> list[Claim]:
        """Nothing of a spec bears on it but that it has such a gradient."""
        if self.plan.gpu_walks is None or not any(g.gather is Gather.DENSE for g in self.plan.gradients):
            return []
        answer = summed_answer(self.plan.gpu_walks.index, self.work)
        sentence = (
            "each batch and head is summed once, by the program that writes the element which it reads, also where a "
            "call gives the param with a size of 1"
        )
        return [Claim("gather by dense", sentence, verdict_of(answer), span=self.attention.score.span)]

    def _diagonal(self, leaf: Load) -> Verdict:
        """The index is that of the planned function of q - k, and moves with neither of them alone."""
        planned = distance_index(leaf)
        if planned is None:
            return self._moves(leaf)
        difference = sub(build.index("q"), build.index("k"))
        for mine, true in zip(planned, leaf.indices, strict=True):
            if any(isinstance(n, Symbol) and n.id in ("q", "k") for n in nodes(mine)):
                return self._moves(leaf)
            verdict = equal(substitute(mine, {DISTANCE: difference}), true, self.assumptions, self.work.share())
            if not isinstance(verdict, Proved):
                return verdict
        return Proved("sympy", (f"{text(leaf)} is a function of q - k",))

    def _moves(self, leaf: Load) -> Verdict:
        """The index at (q + d, k + d) against that at (q, k)."""
        moved: dict[Expr, Expr] = {build.index(i): add(build.index(i), build.index("D")) for i in ("q", "k")}
        reading = Reading(self.assumptions, self.work)
        if all(same(reading.term(substitute(i, moved)), reading.term(i), self.work) for i in leaf.indices):
            return Unknown("structure", "the plan gives no function of q - k for this index")
        for i in leaf.indices:
            verdict = equal(
                substitute(i, moved), i, self.assumptions, self.work.share(), ("index of (q + D, k + D)", "of (q, k)")
            )
            if isinstance(verdict, Refuted):
                return verdict
        return Unknown("sympy", f"whether {text(leaf)} depends on q - k alone is not clear")


def _free(leaf: Load, reads: set[str], forbidden: tuple[str, ...]) -> Verdict:
    found = [name for name in forbidden if name in reads]
    return flag(not found, f"the index of {text(leaf)} reads {', '.join(found)}")


def _reads(e: Expr, leaves: tuple[Expr, ...]) -> bool:
    return any(n in leaves for n in nodes(e))


def _counted(planned: tuple[LeafGradient, ...]) -> list[tuple[str, int]]:
    found: dict[Expr, int] = {}
    for g in planned:
        found[g.leaf] = found.get(g.leaf, 0) + 1
    return [(text(leaf), count) for leaf, count in found.items()]


def _names(leaves: dict[Term, _Leaf]) -> set[str]:
    return {way.param for leaf in leaves.values() for way in leaf.ways}


def _kinks(e: Expr, leaves: set[Symbol] | set[Scalar | Load]) -> str:
    """The kinks of `e` in these leaves, each with the side that the kernel takes there."""

    def moves(part: Expr) -> bool:
        return part.type is Type.FLOAT and any(n in leaves for n in nodes(part))

    found: dict[str, None] = {}
    for node in nodes(e):
        if not isinstance(node, Apply) or not any(map(moves, node.args)):
            continue
        a, b = text(node.args[0]), text(node.args[-1])
        match node.op:
            case Op.ABS if not _is_smooth(e, node):
                found[f"abs is flat where {a} = 0"] = None
            case Op.MIN | Op.MAX:
                found[f"{node.op.value} takes {a} where it equals {b}"] = None
            case Op.SIGN:
                found[f"sign({a}) has derivative 0"] = None
            case Op.FLOOR | Op.CEIL | Op.TO_INT:
                found[f"{node.op.value}({a}) has derivative 0"] = None
            case op if op in COMPARISONS:
                found[f"the branch of `{text(node)}` is taken as it is at {a} = {b}"] = None
            case _:
                pass
    return "; ".join(found)


def _is_smooth(e: Expr, kink: Apply) -> bool:
    """Whether `e` has one derivative where this |x| has a kink, as the prelude's softplus: by |x| it is 0 where x = 0.

    The derivative is the planner's, for a note alone: what is claimed of kinks is sympy's.
    """
    size = Symbol("size", Type.FLOAT)
    zero: dict[Expr, Expr] = {size: _ZERO}
    slope = derivative(substitute(e, {kink: size}), size)
    at_zero: dict[int, Expr] = {}
    known: dict[int, bool] = {}

    def vanishes(part: Expr) -> bool:
        if id(part) not in known:
            known[id(part)] = is_literal(transform(part, zero.get, at_zero), 0) or by_parts(part)
        return known[id(part)]

    def by_parts(part: Expr) -> bool:
        if isinstance(part, Apply) and part.op in (Op.ADD, Op.SUB, Op.NEG):
            return all(map(vanishes, part.args))
        if isinstance(part, Apply) and part.op is Op.MUL:
            a, b = part.args  # the other factor is finite for every |x| if it does not depend on it
            return (vanishes(a) and not reads(b, size.id)) or (vanishes(b) and not reads(a, size.id))
        return False

    return slope is None or vanishes(slope)
