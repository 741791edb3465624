"""Streaming: what the kernel folds, tile by tile, is the attention that the normalizer defines.

Takes the attention, the plan and the work that is allowed, returns claims in three groups. `laws`: the normalizer's own
stream lines against its definition (homomorphism, cocycle, one reference for all scores). `kernel`: what the plan
streams in their place (base 2, a factor taken out, log E) against them. `folds`: from those, that merging is a monoid,
that every tiling gives the definition, by induction, and that the end gives the quotient and its logarithm.

The reference point may be -inf, before a row meets a key: such states are cases of their own.
"""

from __future__ import annotations

import math
from dataclasses import replace

from attngen.ir.attention import Attention, Normalizer
from attngen.ir.build import add, apply, div, mul, neg, real, sub
from attngen.ir.nodes import Expr, Literal, Op, Symbol, Type
from attngen.ir.printing import expression as text
from attngen.ir.walk import nodes, substitute
from attngen.plan import KernelPlan
from attngen.plan.score.weights import Form
from attngen.prove.algebra.assumptions import Assumptions, assumptions
from attngen.prove.algebra.equality import equal, quotient, sign_of
from attngen.prove.budget.work import QUESTION, Work
from attngen.prove.definition import definition
from attngen.prove.obligations import lemmas
from attngen.prove.obligations.merging import merging, merging_two
from attngen.prove.obligations.ramps import ramps
from attngen.prove.search.two_tile_example import fold_example, never_vanishes
from attngen.prove.verdict import Claim, Proved, Refuted, Unknown, Verdict, flag

_S, _M, _N, _T = (Symbol(name, Type.FLOAT) for name in ("s", "m", "n", "s'"))
_GAP, _GAP2, _LSE = (Symbol(name, Type.FLOAT) for name in ("gap", "gap2", "lse"))
_LOG2E = real(1.0 / math.log(2.0))
_ORDERED: dict[Expr, Expr] = {_M: add(_S, _GAP), _N: add(add(_S, _GAP), _GAP2)}
"""s < m < n: all that a running maximum meets, up to limits."""


def streaming(attention: Attention, plan: KernelPlan, work: Work) -> tuple[Claim, ...]:
    """The claims of the obligation, in the order in which they rest on each other."""
    proof = _Streaming(definition(attention, plan), plan, work)
    claims = [*proof.claims(), *proof.kernel()]
    return (*claims, *proof.folds(tuple(claims)))


def laws(attention: Attention, work: Work) -> tuple[Claim, ...]:
    """The claims on the stream lines alone, for a file that has no plan (where rescale(m, n) is no exponential)."""
    return tuple(_Laws(attention, work).claims())


def exp(e: Expr) -> Expr:
    return apply(Op.EXP, e)


class _Laws:
    """The spec's lines."""

    def __init__(self, attention: Attention, work: Work):
        self.n: Normalizer = attention.normalizer
        self.assumptions: Assumptions = assumptions(attention)
        self.work = work

    def equal(self, a: Expr, b: Expr, names: tuple[str, str] = ("planned", "true")) -> Verdict:
        return equal(a, b, self.assumptions, self.work.share(), names)

    def ordered(self, a: Expr, b: Expr, names: tuple[str, str] = ("planned", "true")) -> Verdict:
        """Equality for all reals, or else where s < m < n, which is all that a running maximum meets."""
        return self._below(a, b, _ORDERED, names)

    def claims(self) -> list[Claim]:
        n = self.n
        if not n.shift or n.stream_weight is None or n.rescale is None:
            return []
        stream, rescale = n.stream_weight, n.rescale
        moved = substitute(stream, {_M: _N})
        homomorphism = self.ordered(mul(stream, rescale), moved, ("weight(s, m) rescale(m, n)", "weight(s, n)"))
        chain = self._below(
            mul(substitute(rescale, {_M: _T, _N: _M}), rescale),
            substitute(rescale, {_M: _T}),
            {_T: sub(_M, _GAP), _N: add(_M, _GAP2)},
            ("rescale(s', m) rescale(m, n)", "rescale(s', n)"),
        )
        reference = self._below(
            mul(stream, substitute(n.weight, {_S: _T})),
            mul(substitute(stream, {_S: _T}), n.weight),
            {_S: sub(_M, _GAP), _T: sub(_M, _GAP2)},
            ("weight(s, m) weight(s')", "weight(s', m) weight(s)"),
        )
        if isinstance(reference, Proved):
            nonzero = never_vanishes(n, self.assumptions)
            reference = nonzero if isinstance(nonzero, Refuted | Unknown) else reference
        still = self.equal(substitute(rescale, {_N: _M}), real(1.0), ("rescale(m, m)", "1"))
        wrong = any(isinstance(v, Refuted) for v in (homomorphism, chain, still))
        by_rescale = (wrong and self._right_rescale()) or "make weight(s, m) * rescale(m, n) equal weight(s, n)"
        return [
            self._law(
                "homomorphism",
                "weight(s, m) rescale(m, n) = weight(s, n)",
                homomorphism,
                rescale,
                by_rescale,
                fold=True,
            ),
            self._law("cocycle", "rescale(s', m) rescale(m, n) = rescale(s', n)", chain, rescale, by_rescale),
            self._law("rescale in place", "rescale(m, m) = 1", still, rescale, by_rescale),
            self._law(
                "reference",
                "weight(s, m) is weight(s) times a number, never 0, that depends on m alone",
                reference,
                stream,
                "make weight(s, m) equal weight(s) * rescale(0, m)",
                fold=not isinstance(homomorphism, Refuted),
            ),
        ]

    def _below(self, a: Expr, b: Expr, ordered: dict[Expr, Expr], names: tuple[str, str]) -> Verdict:
        """Equality for all reals, or else for points in the order in which they stream."""
        found = self.equal(a, b, names)
        if isinstance(found, Unknown):
            narrower = self.equal(substitute(a, ordered), substitute(b, ordered), names)
            if isinstance(narrower, Proved):
                return Proved(narrower.by, (*narrower.steps, "for references in the order in which they stream"))
        return found

    def _law(self, subject: str, sentence: str, verdict: Verdict, where: Expr, fix: str, fold: bool = False) -> Claim:
        """A law of the stream lines. Where it fails, two tiles folded in numbers show what comes of it."""
        if fold and not isinstance(verdict, Proved):
            example = fold_example(self.n, self.assumptions)
            if example is not None and isinstance(verdict, Refuted):
                verdict = Refuted(example.by, (*example.example, *verdict.example), example.values + verdict.values)
            elif example is not None:
                verdict = example
        fix = fix if isinstance(verdict, Refuted) else ""
        return Claim(subject, sentence, verdict, span=where.span, fix=fix)

    def _right_rescale(self) -> str | None:
        """`rescale(m, n)` as weight(s, m) asks for it, in the language, where it comes out short."""
        if self.n.stream_weight is None:
            return None
        moved, own = substitute(self.n.stream_weight, {_M: _N}), self.work.part(QUESTION // 5)
        found = quotient(moved, self.n.stream_weight, ("m", "n"), self.assumptions, own)
        return None if found is None else f"write rescale(m, n) = {found}"


class _Streaming(_Laws):
    """What the plan streams, and what follows."""

    def __init__(self, attention: Attention, plan: KernelPlan, work: Work):
        super().__init__(attention, work)
        self.score = attention.score
        self.w = plan.weights
        self.plan = plan

    # ------------------------------------------------------------ what the plan streams

    def kernel(self) -> list[Claim]:
        w, n = self.w, self.n
        claims = [
            Claim(
                "denominator",
                "the plan sums weights where the definition does",
                flag(w.sums == n.sums, "the plan's denominator and the definition's differ in the sum"),
                span=n.span,
            )
        ]
        match w.form:
            case Form.EXPONENTIAL:
                claims += self._exponential()
            case Form.SHIFTED:
                claims += self._shifted()
            case Form.DIRECT:
                claims += self._direct()
        return claims

    def _exponential(self) -> list[Claim]:
        w, n = self.w, self.n
        logit = mul(w.factor, w.unit)
        weight = exp(mul(w.kappa, _S))
        claims = [
            Claim("weight", "weight(s) = exp(kappa s)", self.equal(n.weight, weight), span=n.weight.span),
            Claim(
                "natural logit",
                "the plan's natural logit is kappa * score",
                self.equal(w.natural, mul(w.kappa, self.score)),
                span=self.score.span,
            ),
            Claim(
                "base 2",
                "factor * unit = natural * log2 e, so exp2(factor unit - factor max) = exp(kappa (s - m))",
                self.equal(logit, mul(mul(w.kappa, self.score), _LOG2E)),
                span=self.score.span,
            ),
            Claim(
                "positive factor",
                "the factor taken out of the score is positive, so the maximum may be taken without it",
                sign_of(w.factor, self.assumptions, zero=False, work=self.work.share()),
                span=self.score.span,
            ),
        ]
        if n.stream_weight is not None and n.rescale is not None:
            claims += [self._as_streamed(n.stream_weight), self._rescaling(n.rescale, w.kappa)]
        base_2 = next(c.verdict for c in claims if c.subject == "base 2")
        backward: Verdict = Unknown("premises", "rests on base 2")
        if isinstance(base_2, Proved):  # then the logit is kappa s log2 e, with s the score
            kernels = apply(Op.EXP2, sub(mul(mul(w.kappa, _S), _LOG2E), mul(_LSE, _LOG2E)))
            backward = self.equal(kernels, mul(n.weight, exp(neg(_LSE))))
        claims.append(
            Claim(
                "backward weight",
                "backward's p = exp2(x - lse log2 e) is weight(s) / denominator, as lse = log denominator",
                backward,
                span=n.weight.span,
            )
        )
        claims += ramps(self.plan, self.assumptions, self.work)
        return claims + self._infinite_scores() + self._extra_term()

    def _infinite_scores(self) -> list[Claim]:
        """A score of -inf, where the spec writes one, counts as masked: exp2 gives it weight 0 if kappa > 0."""
        if not any(isinstance(node, Literal) and math.isinf(node.value) for node in nodes(self.score)):
            return []
        sentence = "a score of -inf has the logit -inf, and weight 0"
        verdict = sign_of(self.w.kappa, self.assumptions, zero=False, work=self.work.share())
        fix = "mask such pairs instead" if isinstance(verdict, Refuted) else ""
        return [Claim("infinite scores", sentence, verdict, span=self.score.span, fix=fix)]

    def _as_streamed(self, stream: Expr) -> Claim:
        """The kernel's exp(kappa (s - m)) against the spec's weight(s, m), up to a constant that cancels."""
        sentence = "the kernel's exp2(factor unit - factor max) is weight(s, m)"
        kernels = exp(mul(self.w.kappa, sub(_S, _M)))
        verdict = self.ordered(stream, kernels)
        note = ""
        if not isinstance(verdict, Proved):
            number = substitute(stream, {_S: real(0.0), _M: real(0.0)})
            scaled = self.equal(stream, mul(number, kernels))
            if isinstance(scaled, Proved):
                verdict, note = scaled, f"up to the constant {text(number)}, which cancels in weight / denominator"
        return Claim("streamed weight", sentence, verdict, span=stream.span, note=note)

    def _rescaling(self, rescale: Expr, kappa: Expr) -> Claim:
        return Claim(
            "streamed rescale",
            "the kernel's exp2((m - n) kappa log2 e) is rescale(m, n)",
            self.ordered(rescale, exp(mul(kappa, sub(_M, _N)))),
            span=rescale.span,
        )

    def _shifted(self) -> list[Claim]:
        w, n = self.w, self.n
        assert n.stream_weight is not None and n.rescale is not None
        at_lse = substitute(w.stream, {_M: div(_LSE, w.kappa)})
        return [
            self._unit(),
            Claim(
                "streamed weight",
                "the kernel evaluates weight(s, m)",
                self.ordered(w.stream, n.stream_weight),
                span=n.stream_weight.span,
            ),
            self._rescaling(n.rescale, w.kappa),
            Claim(
                "factor",
                "the kernel's factor is kappa log2 e",
                self.equal(w.factor, mul(w.kappa, _LOG2E)),
                span=n.rescale.span,
            ),
            Claim(
                "positive factor",
                "kappa > 0: a state without keys is rescaled by exp2(-inf) = 0",
                sign_of(w.factor, self.assumptions, zero=False, work=self.work.share()),
                span=n.rescale.span,
            ),
            Claim(
                "reference weight",
                "weight(s, m) = weight(s) exp(-kappa m), so that lse = kappa m + log sum",
                self.ordered(w.stream, mul(n.weight, exp(neg(mul(w.kappa, _M))))),
                span=n.stream_weight.span,
                fix="make weight(s, m) equal weight(s) * rescale(0, m)",
            ),
            Claim(
                "backward weight",
                "backward's weight(s, lse / kappa) is weight(s) / denominator, as lse = log denominator",
                self.equal(at_lse, mul(n.weight, exp(neg(_LSE)))),
                span=n.weight.span,
            ),
            *self._extra_term(),
        ]

    def _unit(self) -> Claim:
        return Claim(
            "logit", "the kernel's logit is the score", self.equal(self.w.unit, self.score), span=self.score.span
        )

    def _direct(self) -> list[Claim]:
        w, n = self.w, self.n
        claims = [
            self._unit(),
            Claim(
                "streamed weight", "the kernel evaluates weight(s)", self.equal(w.stream, n.weight), span=n.weight.span
            ),
        ]
        if n.sums:
            wanted = n.extra or real(0.0)
            sentence = "what the kernel adds to the sum is the definition's extra term"
            claims.append(Claim("extra term", sentence, self.equal(w.extra or real(0.0), wanted), span=wanted.span))
        return claims

    def _extra_term(self) -> list[Claim]:
        """The denominator's E as a logarithm, in the scale of the other keys."""
        w, n = self.w, self.n
        wanted = n.extra or real(0.0)
        sentence = "the extra term enters as log E: exp(log E) = E"
        if w.log_extra is None:
            return [Claim("extra term", "there is no extra term", self.equal(real(0.0), wanted), span=wanted.span)]
        verdict = sign_of(wanted, self.assumptions, zero=True, work=self.work.share())
        fix = ""
        if isinstance(verdict, Proved):
            verdict = self.equal(exp(w.log_extra), wanted)
        elif isinstance(verdict, Refuted):
            fix = "state a fact by which the term is not negative (`where … >= 0`), or write it as exp(…)"
        return [Claim("extra term", sentence, verdict, span=wanted.span, fix=fix)]

    # ------------------------------------------------------------ folds

    def folds(self, premises: tuple[Claim, ...]) -> list[Claim]:
        """What follows from the claims so far."""
        n = self.n
        if self.w.form is Form.DIRECT:
            weights = "weight(s)"
            merge, finish = lemmas.addition(), ("the sums are those of the definition, term by term",)
            if n.sums:
                finish += ("den = sum + E, out = acc / den, lse = log den",)
            else:
                finish += ("the denominator is 1: out = acc, lse = log 1 = 0",)
        else:
            weights = "weight(s, m)"
            merge, finish = lemmas.monoid(), lemmas.merged_extra()
        induction = (
            f"P(T): after the keys of T the state is (m, sum {weights}, sum {weights} v), m the max of their scores",
            "base: no key, and (-inf, 0, 0), the empty sums; without a reference point (0, 0)",
            "step: a tile U gives n = max(m, max U), sum * rescale(m, n) + sum over U of weight(s, n)",
            "sum over T of weight(s, m) rescale(m, n) = sum over T of weight(s, n), by homomorphism: P(T + U)",
            "step from -inf, or over a tile that is masked whole: 0 * 0 + sum over U, and weight(-inf, n) = 0",
            "the order of the tiles, and where they are cut, enter nowhere: any tiling gives P(all keys)",
        )
        if self.w.form is Form.DIRECT:
            induction = (induction[0], induction[1], "step: a tile U adds its own sums: P(T + U)", induction[-1])
        return [
            _rests("state monoid", "merging partial states is associative and commutative, with an identity", merge,
                   premises, n, ("homomorphism", "cocycle", "rescale in place", "streamed rescale", "positive factor")),
            _rests("tiles", "folding any tiling gives the sums of the definition", induction, premises, n),
            _rests("finish", "what the kernel writes is sum weight v / denominator, and its logarithm", finish,
                   premises, n),
            self._merge(premises),
        ]  # fmt: skip

    def _merge(self, premises: tuple[Claim, ...]) -> Claim:
        """Parts whose kernels leave the own term out, and the own term that `finish` adds."""
        sentence = "parts of a row's keys, merged and finished once, give the whole, empty parts too"
        found = merging(sums=self.n.sums)
        if isinstance(found, Proved) and self.n.sums:
            two = merging_two()
            found = replace(found, steps=(*found.steps, *two.steps)) if isinstance(two, Proved) else two
        own = self.w.own_term
        if isinstance(found, Proved):
            wanted = self.n.extra or real(0.0)
            verdict = self.equal(real(0.0) if own is None else exp(own), wanted if self.n.sums else real(0.0))
            found = found if isinstance(verdict, Proved) else verdict
        if isinstance(found, Proved):
            return _rests("merge", sentence, found.steps, premises, self.n)
        return Claim("merge", sentence, found, span=self.n.span)


def _rests(
    subject: str,
    sentence: str,
    steps: tuple[str, ...],
    premises: tuple[Claim, ...],
    n: Normalizer,
    needed: tuple[str, ...] | None = None,
) -> Claim:
    """A claim that follows from others by `steps`; Unknown where one of them does not hold."""
    missing = [c.subject for c in premises if not isinstance(c.verdict, Proved)]
    missing = [name for name in missing if needed is None or name in needed]
    verdict: Verdict = Proved("induction" if subject == "tiles" else "sympy", steps)
    if missing:
        verdict = Unknown("premises", f"rests on {', '.join(missing)}")
    return Claim(subject, sentence, verdict, span=n.span)
