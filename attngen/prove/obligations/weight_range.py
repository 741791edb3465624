"""How large weights and their sums become, and what fp16, bf16 and fp32 can hold of them.

Takes the questions about an attention and its plan, returns claims. Exponentials under a running maximum are at most 1.
Other weights are bounded over the scores that every kernel must bear (`LEAST_SCORE`), in every dtype, since products
with v take them in the dtype; how far beyond it goes is said. What overflows earlier is refuted: two tiles of keys, the
score, the wrong result and the right one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from attngen.errors import Span
from attngen.ir import build, printing, walk
from attngen.ir.build import apply, conjunction, real
from attngen.ir.nodes import Apply, Expr, Op
from attngen.plan.kernel import KernelPlan
from attngen.plan.score.weights import Form, M, N, S
from attngen.prove.intervals import interval_type as i
from attngen.prove.intervals.input_boxes import LEAST, LEAST_SCORE, LONGEST
from attngen.prove.intervals.interval_type import HALF_MAX, Interval, number
from attngen.prove.obligations.finite import Finiteness, Holds
from attngen.prove.search.witness import Witness, facts_of
from attngen.prove.search.wording import BY, example, nothing_found, span_of
from attngen.prove.verdict import Claim, Proved, Refuted, Unknown

_LARGEST_V = 2.0**16
_WEIGHT_MAX = i.FLOAT_MAX / (LONGEST * _LARGEST_V)
"""Weights up to here keep the sum over all keys of weight * v inside fp32."""
_E4M3_MAX = 448.0


def sums(questions: Finiteness, plan: KernelPlan) -> Iterator[Claim]:
    if plan.weights.form is Form.EXPONENTIAL:
        yield _exponential(plan)
        return
    yield from _Weights(questions, plan).claims()


def _exponential(plan: KernelPlan) -> Claim:
    extra = plan.weights.log_extra is not None
    keys = "keys, plus 1 for the extra term" if extra else "keys"
    but = "; but where the reference lags, above" if plan.hopper is not None and plan.hopper.slack else ""
    raised = plan.numerics.raised
    formats = f"at most 2**{raised} in e4m3, which ends at 448" if raised else "at most 1 in fp16, bf16 and fp32"
    sentence = f"1 <= row_sum <= number of {keys}, and a weight is {formats}{but}"
    steps = (
        "exponents are at most 0, so each weight is in [0, 1]",
        "the key that has the maximum has weight exp2(0) = 1, so row_sum >= 1 where a key counts: no division by 0",
        f"row_sum <= 2**27 < {i.FLOAT_MAX:.3g}, and |acc| <= 2**27 * max |v|, both in fp32; finite for |v| <= 2**100",
        "rescaling multiplies by at most 1",
    )
    if 2.0**raised > _E4M3_MAX:
        return Claim("sums", sentence, Unknown(BY, f"2**{raised} > 448"), span=plan.attention.normalizer.span)
    return Claim("sums", sentence, Proved(BY, steps), span=plan.attention.normalizer.span)


@dataclass
class _Weights:
    """The weight as the kernel evaluates it: `stream` over s (and m >= s), where the scores lie in `scores`."""

    questions: Finiteness
    plan: KernelPlan

    def claims(self) -> Iterator[Claim]:
        a, w = self.plan.attention, self.plan.weights
        scores = self.questions.finite(w.unit, (a.mask,))
        if not isinstance(scores, Holds):
            return  # said elsewhere
        self.scores = scores.values
        self.span: Span = span_of(w.stream, a.normalizer.weight) if w.stream.span.line else a.normalizer.span
        wrong = self._overflow()
        if wrong is not None:
            yield wrong
            return
        yield self._bounded()
        if self.plan.numerics.raised:
            yield self._of_eight_bits()
        if w.sums:
            yield self._sign()
        yield from self._slope()

    # ------------------------------------------------------------ intervals

    def _within(self, bound: float) -> Interval:
        return i.meet(self.scores, Interval(-bound, bound, minus=True, masked=True))

    def _at(self, e: Expr, bound: float) -> Interval:
        """The values of `e` over s (and m >= s) for |scores| <= bound."""
        w = self.plan.weights
        within = self._within(bound)
        place = self.questions.place(LEAST, (), (e,)).with_interval(S, within)
        if w.form is Form.SHIFTED:
            place = place.with_interval(M, Interval(-bound, bound)).given(apply(Op.LE, S, M))
        return i.EMPTY if place.dead else place.of(e)  # nothing, where no pair counts

    def _limit(self, most: float) -> float:
        """The largest |score|, as far as intervals show, at which weights are at most `most`; inf if all are."""

        def fine(bound: float) -> bool:
            values = self._at(self.plan.weights.stream, bound)
            return values.finite and values.magnitude <= most

        top = max(self.scores.magnitude, LEAST_SCORE)
        if fine(top):
            return math.inf
        low, high = 0.0, top
        for _ in range(40):
            middle = math.sqrt(low * high) if low > 1 else (low + high) / 2 if high < 4 else 2.0
            low, high = (middle, high) if fine(middle) else (low, middle)
        return low

    # ------------------------------------------------------------ claims

    def _bounded(self) -> Claim:
        limits = {"fp16": self._limit(HALF_MAX), "bf16 and fp32": self._limit(_WEIGHT_MAX)}
        values = self._at(self.plan.weights.stream, LEAST_SCORE)
        text = printing.expression(self.plan.weights.stream)
        if all(math.isinf(x) for x in limits.values()):
            sentence = f"weights and their sums stay finite in fp16, bf16 and fp32, whatever the score: {text}"
        else:
            upto = ", ".join(f"{name} for scores up to {_shown(x)}" for name, x in limits.items())
            sentence = f"weights and their sums stay finite: {upto}, and |v| <= 2**16: {text}"
        steps = (
            f"scores in {self._within(LEAST_SCORE)}: weights in {values}",
            f"fp16 holds {HALF_MAX:g}; 2**27 keys times |v| <= 2**16 leave {number(2.0**85)} for a weight in fp32",
        )
        short = {name: x for name, x in limits.items() if x < min(LEAST_SCORE, self.scores.magnitude)}
        if not values.finite or short:
            return Claim("sums", sentence, Unknown(BY, f"{nothing_found}: {values}"), span=self.span)
        return Claim("sums", sentence, Proved(BY, steps), span=self.span)

    def _of_eight_bits(self) -> Claim:
        raised = self.plan.numerics.raised
        values = self._at(self.plan.weights.stream, LEAST_SCORE)
        sentence = f"weights times 2**{raised} are at most 448, the largest number of e4m3"
        fits = values.finite and values.magnitude * 2.0**raised <= _E4M3_MAX
        verdict = Proved(BY, (f"weights in {values}",)) if fits else Unknown(BY, f"weights in {values}")
        return Claim("weights of 8 bits", sentence, verdict, span=self.span)

    def _search(self, e: Expr, kind: str) -> Witness | None:
        """Inputs at which the weight `e` goes wrong: is negative, or, for |score| <= LEAST_SCORE, leaves its range."""
        a, w = self.plan.attention, self.plan.weights
        search = self.questions.search()
        conditions: tuple[Expr, ...]
        if w.form is Form.DIRECT:
            target = walk.substitute(e, {S: w.unit})
            conditions = (a.mask,) if kind == "negative" else (a.mask, _bounded(w.unit))
        else:
            target, conditions = e, (apply(Op.LE, S, M), _bounded(S), _bounded(M))
        if kind == "negative":
            return search.find(apply(Op.LT, target, real(0.0)), conditions, "true")
        return search.find(target, conditions, "too large for fp16" if kind == "fp16" else "not finite")

    def _overflow(self) -> Claim | None:
        w = self.plan.weights
        values = self._at(w.stream, LEAST_SCORE)
        if values.finite and values.magnitude <= HALF_MAX:
            return None
        single, half = self._search(w.stream, "fp32"), self._search(w.stream, "fp16")
        found = single or half
        if found is None:
            return None
        text = printing.expression(w.stream)
        lines: list[str] = []
        named: list[tuple[str, int | float | bool | str]] = list(found.named())
        shown = found
        if _has_no_value(found):
            lines.append(
                f"`{printing.expression(found.node)}` is {_shown(found.result)}: the weight has no value there"
            )
        elif w.form is Form.DIRECT:
            score, weight = found.at(w.unit), found.at(walk.substitute(w.stream, {S: w.unit}))
            shown, others = self._in_second_tile(found) or (found, 0)
            lines += self._tiles(found, others, score, weight, single=found is single)
            named = [*shown.named(), ("score", score), ("weight", weight), *([("tile", 1)] if others else [])]
        else:
            weight = found.at(w.stream)
            lines.append(f"`{text}` is {_shown(weight)}: {_what(found is single)}")
            named += [("weight", weight)]
        limit = self._limit(HALF_MAX)
        if single is not None and half is not None and w.form is Form.DIRECT and half.at(w.unit) < found.at(w.unit):
            lines.append(f"with fp16 tensors scores may be {limit:.4g} at most: beyond, the weight is inf in fp16")
            named += [("fp16 limit", limit)]
        sentence = f"weights and their sums stay finite for scores up to {LEAST_SCORE:g}: {text}"
        fix = (w.sums and w.form is Form.DIRECT and _with_maximum(w.stream)) or (
            "bound the score, with clamp or min, or write the weight so that no part of it overflows"
        )
        refuted = Refuted(BY, example(shown, tuple(lines)), tuple(named))
        return Claim("sums", sentence, refuted, span=self.span, fix=fix)

    def _in_second_tile(self, found: Witness) -> tuple[Witness, int] | None:
        """The same numbers with the key the first of the second tile, and how many keys of the first tile count.

        None where the mask, the facts or the score forbid it.
        """
        a, w, wide = self.plan.attention, self.plan.weights, self._wide
        q, k, sq, sk = (build.index(name) for name in ("q", "k", "Sq", "Sk"))
        has_queries = any(e in (q, sq) for e, _ in found.values) or walk.reads(a.mask, "q", "Sq")
        for longest in (2 * wide, wide + 1, 30 * wide, 2048):
            for query in (wide, longest - 1, 0):
                sizes = {sq: longest, q: query} if has_queries else {}
                there = found.moved({**sizes, k: wide, sk: longest}, a)
                if there is None or not all(there.at(e) for e in (a.mask, *facts_of(a))):
                    continue
                if there.at(w.unit) == found.at(w.unit):
                    first = (there.moved({k: at}, a) for at in range(wide))
                    others = sum(one is not None and bool(one.at(a.mask)) for one in first)
                    if others:
                        return there, others
        return None

    @property
    def _wide(self) -> int:
        return (self.plan.attention.tile or (64, 64))[1]

    def _tiles(self, found: Witness, others: int, score: float, weight: float, *, single: bool) -> list[str]:
        """A first tile of keys with score 0, of which `others` count, and this key in the second one."""
        w, wide = self.plan.weights, self._wide
        low = found.at(walk.substitute(w.stream, {S: real(0.0)}))
        which = f"keys 0 to {wide - 1}" if others == wide else f"{others} of keys 0 to {wide - 1} count, and"
        lines = [f"tile 0: {which} have score 0 and weight {low:g}"] if others else []
        place = f"tile 1: key {wide}" if others else "a key"
        within = "" if found.node == self.plan.weights.stream or not single else self._inside(found)
        lines.append(f"{place} has score {score:g} and weight {_shown(weight)}: {within}{_what(single)}")
        if not w.sums:
            right = f"{others} * {low:g} * v + {_shown(weight)} * v" if others else f"{_shown(weight)} * v"
            lines.append(f"the output is inf or NaN; right is {right}")
            return lines
        total = others * low + weight
        right = weight / total if math.isfinite(total) and total else 1.0
        row = "row_sum = inf, and out = acc / row_sum = NaN" if single else "out = inf * v / row_sum = inf"
        lines.append(f"so {row}; right is a share of {right:.6g} for that key, and an output near its v")
        return lines

    def _inside(self, found: Witness) -> str:
        """Names the part that overflows where the weight itself would not."""
        weight = found.at(walk.substitute(self.plan.weights.stream, {S: self.plan.weights.unit}))
        return f"`{printing.expression(found.node)}` is " if abs(weight) <= i.FLOAT_MAX else ""

    def _sign(self) -> Claim:
        """Weights that are summed are not negative: else the denominator could vanish or its logarithm be NaN."""
        w = self.plan.weights
        sentence = "no weight is negative, so the denominator is not, and lse is its logarithm"
        values = self._at(w.stream, min(max(self.scores.magnitude, LEAST_SCORE), 2.0**40))
        if values.low >= 0 and not values.nan:
            return Claim("denominator", sentence, Proved(BY, (f"weights in {values}",)), span=self.span)
        found = self._search(w.stream, "negative")
        if found is None:
            values = self._at(w.stream, LEAST_SCORE)
            verdict = Unknown(BY, nothing_found)
            if values.low >= 0 and not values.nan:
                sentence += f"; for scores up to {LEAST_SCORE:g}"
                verdict = Proved(BY, (f"weights in {values}",))
            return Claim("denominator", sentence, verdict, span=self.span)
        weight = found.at(walk.substitute(w.stream, {S: w.unit}) if w.form is Form.DIRECT else w.stream)
        lines = (
            f"the weight is {weight:g}: with enough such keys the denominator is negative, and lse = log of it is NaN",
        )
        fix = "make the weight non-negative, or write denominator = 1"
        named = (*found.named(), ("weight", weight))
        return Claim("denominator", sentence, Refuted(BY, example(found, lines), named), span=self.span, fix=fix)

    def _slope(self) -> Iterator[Claim]:
        w = self.plan.weights
        if w.slope is None:
            return
        values = self._at(w.slope, LEAST_SCORE)
        text = printing.expression(w.slope)
        sentence = f"the slope of the weight is finite: {text}"
        if values.finite:
            yield Claim("slope", sentence, Proved(BY, (f"slopes in {values}",)), span=self.span)
            return
        found = self._search(w.slope, "fp32")
        if found is None:
            yield Claim("slope", sentence, Unknown(BY, nothing_found), span=self.span)
            return
        node = printing.expression(found.node)
        lines = (f"`{node}` is {_shown(found.result)}, and so are the gradients of q and k",)
        named = (*found.named(), (node, found.result))
        yield Claim("slope", sentence, Refuted(BY, example(found, lines), named), span=self.span)


def _with_maximum(e: Expr) -> str:
    """How the weight exp(c s) is streamed with a running maximum; empty for other weights."""
    if not (isinstance(e, Apply) and e.op in (Op.EXP, Op.EXP2) and _proportional(e.args[0])):
        return ""
    stream, rescale = (
        printing.expression(apply(e.op, walk.substitute(e.args[0], {S: apply(Op.SUB, a, b)})))
        for a, b in ((S, M), (M, N))
    )
    return f"keep a running maximum: shift = max, weight(s, m) = {stream}, rescale(m, n) = {rescale}"


def _proportional(e: Expr) -> bool:
    """Whether `e` is the score times what does not depend on it."""
    match e:
        case Apply(op=Op.MUL, args=(a, b)):
            return (_proportional(a) and not walk.reads(b, "s")) or (_proportional(b) and not walk.reads(a, "s"))
        case Apply(op=Op.DIV, args=(a, b)):
            return _proportional(a) and not walk.reads(b, "s")
        case _:
            return e == S


def _has_no_value(w: Witness) -> bool:
    """Whether the weight is undefined at these inputs, by its definition, rather than too large."""
    match w.node:
        case Apply(op=Op.DIV):
            return w.operands[1] == 0
        case Apply(op=Op.LOG | Op.LOG2 | Op.RSQRT):
            return w.operands[0] <= 0
        case Apply(op=Op.SQRT):
            return w.operands[0] < 0
        case Apply(op=Op.POW):
            return w.operands[0] == 0
        case _:
            return False


def _bounded(e: Expr) -> Expr:
    return conjunction(
        apply(Op.LE, real(-LEAST_SCORE), e),
        apply(Op.LE, e, real(LEAST_SCORE)),
    )


def _what(single: bool) -> str:
    if single:
        return f"not finite in fp32, whose largest number is {i.FLOAT_MAX:.3g}"
    return f"inf in fp16, in which it is multiplied with v and whose largest number is {HALF_MAX:g}"


def _shown(x: float) -> str:
    return "NaN" if x != x else number(x)
