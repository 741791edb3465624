"""Specs drawn from the grammar, and whether the prover's verdict on one stands up to brute force.

Takes hypothesis's draws, gives a `Verdict` a spec: proved, refuted or unknown, and the contradiction if there is one: a
proof that brute force breaks, or a refutation of a plan that computes what the definition says.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from hypothesis import strategies as st
from property import grammar

from attngen.analyse import analyse
from attngen.errors import Source, SpecError
from attngen.ir.attention import Attention
from attngen.plan.kernel import KernelPlan
from attngen.prove.budget.work import Work
from attngen.prove.discharge import PROVERS
from attngen.prove.verdict import Claim, Obligation, Refuted, Unknown
from attngen.syntax.parser import parse
from mutation import reading
from mutation.machine import not_finite, wrong_numbers, wrong_stream
from mutation.mutants import planned_anyhow
from mutation.walks import wrong_walk

_PROVERS = dict(PROVERS)

# ---------------------------------------------------------------- what is drawn

plain_ints = st.recursive(
    st.sampled_from(
        ["q", "k", "q - k", "q + Sk - Sq - k", "k - q", "w", "c", "Sk", "Sq", "h", "b", "1", "2", "5", "9"]
    ),
    lambda inner: st.one_of(
        st.tuples(inner, inner).map("({0[0]} + {0[1]})".format),
        st.tuples(inner, inner).map("({0[0]} - {0[1]})".format),
        st.tuples(st.integers(-3, 4), inner).map("({0[0]}) * ({0[1]})".format),
        st.tuples(inner, st.one_of(st.integers(1, 9).map(str), st.just("c"))).map("({0[0]}) // {0[1]}".format),
        st.tuples(inner, st.one_of(st.integers(1, 9).map(str), st.just("c"))).map("({0[0]}) % {0[1]}".format),
    ),
    max_leaves=3,
)
_signs = st.sampled_from(["<", "<=", ">", ">=", "==", "!="])
plain_masks = st.recursive(
    st.one_of(
        st.tuples(plain_ints, _signs, plain_ints).map(" ".join),
        st.tuples(plain_ints, _signs, plain_ints, _signs, plain_ints).map(" ".join),
        st.sampled_from(["causal", "flag", "chunked(c)", "prefix_lm(w)", "sliding_window(w)", "dilated(c)"]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, min_size=2, max_size=3).map(lambda p: "(" + " and ".join(p) + ")"),
        st.lists(inner, min_size=2, max_size=3).map(lambda p: "(" + " or ".join(p) + ")"),
        inner.map("(not ({}))".format),
    ),
    max_leaves=4,
)
"""Masks of affine, `//`, `%` and boolean parts alone: of these the prover must know nearly all."""

_partial = st.sampled_from(
    ["log({})", "log2({})", "sqrt({})", "rsqrt({})", "1.0 / ({})", "({}) ** -1", "exp({})", "exp2({}) * 0.5", "abs({})"]
)
scores = st.one_of(
    grammar.scores,
    st.tuples(_partial, grammar.floats).map(lambda p: f"qk * scale + {p[0].format(p[1])}"),
    st.tuples(_partial, st.sampled_from(["cap", "span", "bias", "float(q - k)", "float(q)", "slope[h]"])).map(
        lambda p: f"qk * scale + {p[0].format(p[1])}"
    ),
)

_weights = ("exp(s)", "exp(2 * s)", "exp2(s)", "exp(s / cap)", "(1 + s ** 2) * exp(s)", "exp(s) + 1",
            "max(s, 0)", "sigmoid(s)", "exp(-s)", "exp(s) * cap", "(2 + tanh(s)) * exp(cap * s)",
            "exp(s + 1)", "abs(s)")  # fmt: skip
_streams = ("exp(s - m)", "exp(2 * (s - m))", "exp2(s - m)", "exp((s - m) / cap)", "(1 + s ** 2) * exp(s - m)",
            "exp(s - m) + exp(-m)", "exp(m - s)", "exp(s - 2 * m)", "exp(s) / exp(m)",
            "(2 + tanh(s)) * exp(cap * (s - m))", "exp(s - m + 1)", "exp(s)", "2 * exp(s - m)")  # fmt: skip
_rescales = ("exp(m - n)", "exp(2 * (m - n))", "exp2(m - n)", "exp((m - n) / cap)", "exp(n - m)", "1.0", "exp(m)",
             "exp(cap * (m - n))", "exp(m) / exp(n)", "exp(m - n) * 2", "2.0 ** -1 * exp(m - n)")  # fmt: skip
_extras = (
    "sum",
    "sum",
    "sum + 1",
    "sum + exp(slope[h])",
    "sum + cap",
    "sum + bias",
    "1",
    "sum + 0.5",
    "sum + exp2(bias)",
)
_fitting = (
    (0, 0, 0),
    (1, 1, 1),
    (2, 2, 2),
    (3, 3, 3),
    (4, 4, 0),
    (5, 5, 0),
    (10, 9, 7),
    (11, 0, 0),
    (0, 8, 8),
    (9, 0, 0),
)


@st.composite
def normalizers(draw: st.DrawFn) -> str:
    """Half of them agree with themselves, half are put together at random."""
    extra = draw(st.sampled_from(_extras))
    shift = draw(st.integers(0, 3)) > 0
    if draw(st.booleans()):
        w, s, r = draw(st.sampled_from(_fitting))
        lines = (_weights[w], _streams[s], _rescales[r])
    else:
        lines = tuple(draw(st.sampled_from(x)) for x in (_weights, _streams, _rescales))
    body = [f"weight(s) = {lines[0]}", f"denominator = {extra}", f"shift = {'max' if shift else 'none'}"]
    body += [f"weight(s, m) = {lines[1]}", f"rescale(m, n) = {lines[2]}"] if shift else []
    return "normalizer mine {\n    " + "\n    ".join(body) + "\n}\nnormalizer = mine"


@st.composite
def indexed(draw: st.DrawFn) -> str:
    """A score with a load at an index of the language's ints, within a table or not."""
    index = draw(plain_ints)
    form = draw(st.sampled_from(["{}", "clamp({}, 0, 8)", "abs({})", "({}) % 9", "min(abs({}), Sk - 1)", "max({}, 0)"]))
    size = draw(st.sampled_from(["9", "Sk", "Sq", "17"]))
    return f"param table: f32[Hq, {size}]\nscore = qk * scale + table[h, {form.format(index)}]"


def text_of(*lines: str) -> str:
    """The file of these lines, with the params that they name."""
    own = grammar.spec(*lines).splitlines()
    named = [line for line in own if line.startswith("param table")]
    return (
        "\n".join([own[0], *(x for x in own[1:] if x not in named), *named]) + "\n" if named else grammar.spec(*lines)
    )


# ---------------------------------------------------------------- what is made of it


@dataclass
class Tally:
    """Counts by family and verdict; `wrong` are the contradictions, each with its file."""

    counts: dict[str, Counter[str]] = field(default_factory=dict[str, Counter[str]])
    wrong: list[str] = field(default_factory=list[str])
    unknown: list[str] = field(default_factory=list[str])

    def add(self, family: str, text: str, obligations: Sequence[Obligation]) -> None:
        own = self.counts.setdefault(family, Counter())
        verdict, problem, claims = settled(text, obligations)
        own[verdict] += 1
        if problem:
            own["contradicted"] += 1
            self.wrong.append(f"{problem}\n{text}")
        if verdict == "unknown":
            self.unknown.append(f"{claims}\n{text}")


def settled(text: str, obligations: Sequence[Obligation]) -> tuple[str, str, str]:
    """(verdict, contradiction or "", the claims that are not proved) of one file."""
    try:
        source = Source(text, "drawn.attn")
        attention = analyse(parse(source), source, {})
    except SpecError:
        return "no spec", "", ""
    planned = planned_anyhow(attention)
    if planned is None:
        return "no spec", "", ""
    claims = [(o, c) for o in obligations for c in _PROVERS[o](attention, planned, Work())]
    refuted = [(o, c) for o, c in claims if isinstance(c.verdict, Refuted)]
    unknown = [(o, c) for o, c in claims if isinstance(c.verdict, Unknown)]
    said = "; ".join(f"{o.value}, {c.subject}: {_reason(c)}" for o, c in (*refuted, *unknown))
    if refuted:
        kinds = {o for o, _ in refuted}
        broken = ""
        if not kinds <= BY_NUMBERS:
            found = reading.read_outside(attention, [c for _, c in refuted])
            broken = found or breaks(attention, planned, obligations)
        spurious = not broken and not kinds <= BY_NUMBERS
        return "refuted", f"refuted, and brute force finds nothing: {said}" if spurious else "", said
    if unknown:
        return "unknown", "", said
    broken = breaks(attention, planned, obligations)
    return "proved", f"proved, and brute force shows: {broken}" if broken else "", ""


BY_NUMBERS = {Obligation.STREAMING, Obligation.RANGE_SAFETY, Obligation.GRADIENTS, Obligation.EMPTY_ROWS}
"""Obligations whose refutations come with values at which they were evaluated: brute force need not meet the same."""


def breaks(attention: Attention, planned: KernelPlan, obligations: Sequence[Obligation]) -> str:
    found: list[str] = []
    if Obligation.TILE_RANGES in obligations:
        found.append(wrong_walk(attention, planned, count=6, longest=16))
    if Obligation.INDEX_BOUNDS in obligations:
        found.append(reading.wrong_read(attention, planned))
    if Obligation.INTEGER_WIDTH in obligations:
        found.append(reading.wrong_width(attention, planned))
    if Obligation.STREAMING in obligations or Obligation.GRADIENTS in obligations:
        found += [wrong_numbers(attention, planned, count=3), wrong_stream(attention)]
    if Obligation.RANGE_SAFETY in obligations:
        found.append(not_finite(attention))
    return next((x for x in found if x), "")


def _reason(c: Claim) -> str:
    match c.verdict:
        case Refuted(example=example):
            return " | ".join(example)[:300]
        case Unknown(reason=reason):
            return reason[:200]
        case _:
            return ""
