"""Range safety: right specs are proved, wrong ones refuted with inputs at which it really goes wrong."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from counted import calls
from numeric_specs import RIGHT, WRONG

from attngen import api, reference
from attngen.errors import NOWHERE, Source
from attngen.ir import build, printing, walk
from attngen.ir.attention import Attention
from attngen.ir.evaluate import evaluate
from attngen.ir.nodes import Expr, Load, Scalar, Symbol
from attngen.plan.kernel import KernelPlan
from attngen.plan.score.weights import Form, S
from attngen.plan.tiles import hopper
from attngen.prove.budget.watchdog import OutOfTime
from attngen.prove.budget.work import Budget, OutOfWork, Work
from attngen.prove.obligations.range_safety import range_safety
from attngen.prove.report import diagnostics
from attngen.prove.verdict import Claim, Proved, Refuted, Unknown

EXAMPLES = sorted((Path(__file__).parents[3] / "examples").glob("*.attn"))


def planned(name: str, body: str) -> tuple[Attention, KernelPlan]:
    a = api.analyse(Source(f"attention {name}\n{body}\n"))
    return a, api.plan(a)


def claims(name: str, body: str) -> tuple[Claim, ...]:
    return range_safety(*planned(name, body), Work())


def complaints(found: tuple[Claim, ...]) -> list[tuple[str, object]]:
    return [(c.subject, c.verdict) for c in found if not isinstance(c.verdict, Proved)]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_examples_are_proved_and_it_is_cheap(path: Path) -> None:
    a = api.analyse(Source(path.read_text(), path.name))
    plan = api.plan(a)
    found: list[Claim] = []
    work = calls(lambda: found.extend(range_safety(a, plan, Work())))
    assert complaints(tuple(found)) == []
    assert {"score", "sums"} <= {c.subject for c in found}
    assert work < 400_000  # about 0.2 s


@pytest.mark.parametrize("name", RIGHT)
def test_no_false_alarm(name: str) -> None:
    assert complaints(claims(name, RIGHT[name])) == []


# ---------------------------------------------------------------- refutations


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_refuted_and_the_numbers_show_it(name: str) -> None:
    body, subject = WRONG[name]
    a, plan = planned(name, body)
    found = range_safety(a, plan, Work())
    refuted = [c for c in found if isinstance(c.verdict, Refuted)]
    assert [c.subject for c in refuted] == [subject]
    claim = refuted[0]
    assert isinstance(claim.verdict, Refuted) and claim.verdict.example
    values = dict(claim.verdict.values)
    _check_inputs(plan.attention, values)
    assert claim.span.line > 1
    assert _goes_wrong(claim.subject, plan, values), (claim.verdict.example, values)


def _leaves(e: Expr, values: dict[str, Any]) -> dict[Expr, Expr]:
    """Each leaf of `e` that the counterexample gives a value, as a symbol named by its text."""
    return {
        node: Symbol(printing.expression(node), node.type)
        for node in walk.nodes(e)
        if isinstance(node, Symbol | Scalar | Load) and printing.expression(node) in values
    }


def _value(e: Expr, values: dict[str, Any], real: Any = np.float32) -> Any:
    put = walk.substitute(e, _leaves(e, values))  # symbols, not numbers, which would be folded in float64
    with np.errstate(all="ignore"):
        return evaluate(put, values, {}, real).item()


def _check_inputs(a: Attention, values: dict[str, Any]) -> None:
    """The inputs are among those that the spec allows."""
    for index, size in (("q", "Sq"), ("k", "Sk"), ("h", "Hq")):
        if index in values:
            assert 0 <= values[index] < values[size]
    for p in a.params:
        if p.where is not None:
            leaf = Scalar(p.name, p.type)
            for text, value in values.items():
                if text == p.name or (text.startswith(f"{p.name}[") and _inside(a, text, values)):
                    assert evaluate(walk.substitute(p.where, {leaf: build.literal(value)}), {}, {}).item()


def _inside(a: Attention, text: str, values: dict[str, Any]) -> bool:
    """Whether the element is one of the tensor's: it is read as 0 outside."""
    roots = [e for e in (a.score, a.mask, a.normalizer.extra) if e is not None]
    load = next(n for root in roots for n in walk.nodes(root) if printing.expression(n) == text)
    assert isinstance(load, Load)
    dims = a.param(load.param).shape
    known = [
        (_value(i, values), _value(d, values))
        for i, d in zip(load.indices, dims, strict=True)
        if all(s in values for s in walk.symbols(d))
    ]
    return len(known) == len(dims) and all(0 <= i < d for i, d in known)


def _goes_wrong(subject: str, plan: KernelPlan, values: dict[str, Any]) -> bool:
    a, w = plan.attention, plan.weights
    if not _mask_holds(a, values):
        return False
    match subject:
        case "score":
            return not math.isfinite(_value(a.score, values))
        case "logit":
            return not math.isfinite(_value(w.unit, values))
        case "factor":
            return not _value(w.factor, values) > 0
        case "extra term":
            assert a.normalizer.extra is not None
            with np.errstate(all="ignore"):
                return not math.isfinite(_value(build.apply(build.Op.LOG, a.normalizer.extra), values, np.float64))
        case "dropout":
            assert a.dropout is not None
            return not 0 <= _value(a.dropout, values) < 1
        case "sums":
            weight = w.stream if w.form is Form.SHIFTED else walk.substitute(w.stream, {S: w.unit})
            with np.errstate(all="ignore"):
                return not np.isfinite(np.float16(_value(weight, values)))
        case "denominator":
            return _value(walk.substitute(w.stream, {S: w.unit}), values) < 0
        case "slope":
            assert w.slope is not None
            return not math.isfinite(_value(walk.substitute(w.slope, {S: w.unit}), values))
        case "infinite scores":
            return _value(walk.substitute(w.stream, {S: build.real(-math.inf)}), values) != 0
        case "derivatives":
            parts = [
                plan.d_factor,
                plan.d_pair,
                *(e for g in plan.gradients for e in (g.pair, g.extra) if e is not None),
            ]
            return any(_known(e, values) and not math.isfinite(_value(e, values)) for e in parts)
        case "domain":
            return _undefined(plan, values)
        case _:
            raise AssertionError(subject)


def _known(e: Expr, values: dict[str, Any]) -> bool:
    """Whether the counterexample gives every leaf of `e` a value."""
    return all(printing.expression(n) in values for n in walk.nodes(e) if isinstance(n, Symbol | Scalar | Load))


def _mask_holds(a: Attention, values: dict[str, Any]) -> bool:
    """Where the counterexample says enough of the mask to tell."""
    put = walk.substitute(a.mask, _leaves(a.mask, values))
    if not walk.symbols(put) <= values.keys() or walk.params(put):
        return True
    return bool(evaluate(put, values, {}).item())


def _undefined(plan: KernelPlan, values: dict[str, Any]) -> bool:
    """Some divisor is 0, some int's exponent negative, or some float too large for an int."""
    for root in (plan.attention.mask, plan.attention.score):
        for node in walk.nodes(root):
            if not isinstance(node, walk.Apply):
                continue
            last = node.args[-1]
            if not _known(last, values):
                continue
            match node.op:
                case build.Op.FLOORDIV | build.Op.MOD if _value(last, values) == 0:
                    return True
                case build.Op.POW if node.type is build.Type.INT and _value(last, values) < 0:
                    return True
                case build.Op.TO_INT if abs(_value(last, values)) >= 2**31:
                    return True
                case _:
                    pass
    return False


def test_no_running_maximum_overflows_in_the_reference_s_sense_too() -> None:
    """The counterexample of the first break, run: float32 sums of exp(s) are inf where the right result is finite."""
    body, _ = WRONG["no_maximum"]
    a, plan = planned("no_maximum", body)
    verdict = next(c.verdict for c in range_safety(a, plan, Work()) if c.subject == "sums")
    assert isinstance(verdict, Refuted)
    values = dict(verdict.values)
    scores = np.array([0.0] * 64 + [values["score"]])
    q = np.ones((1, 1, 1, 1))
    result = reference.evaluate(a, q, scores.reshape(1, 1, -1, 1), np.arange(65.0).reshape(1, 1, -1, 1), scale=1.0)
    assert result.out.item() == pytest.approx(64.0)  # the last key has all the weight
    with np.errstate(over="ignore", invalid="ignore"):
        weights = np.exp(scores.astype(np.float32))
        assert math.isnan(float(weights[-1] * 0.5 / weights.sum()))
    assert any("tile 1: key 64" in line for line in verdict.example)
    assert values["k"] == 64 < values["Sk"]
    assert values["score"] == pytest.approx(89, abs=1)


@pytest.mark.parametrize(
    ("body", "others", "tile"),
    [
        ("mask = causal", "keys 0 to 63 have", 64),
        ("mask = sliding_window(8)", "7 of keys 0 to 63 count", 64),
        ("mask = q < k", "63 of keys 0 to 63 count", 64),
        ("mask = causal\ntile q = 64, k = 32", "keys 0 to 31 have", 32),
        ("mask = causal\nassume Sk % 48 == 0", "keys 0 to 63 have", 64),
        ("param ids: int[B, Sk]\nmask = ids[b, q] != ids[b, k]\nassume Sq == Sk", "keys 0 to 63 have", 64),
        ("mask = k < 7", "", 0),  # no key of the second tile counts
        ("param t: f32[5]\nscore = qk * scale + t[q - k]", "", 0),  # no other key reads that element
    ],
)
def test_the_key_that_overflows_is_there_and_counts(body: str, others: str, tile: int) -> None:
    a, plan = planned("overflow", f"{WRONG['no_maximum'][0]}\n{body}")
    verdict = next(c.verdict for c in range_safety(a, plan, Work()) if c.subject == "sums")
    assert isinstance(verdict, Refuted)
    values = dict(verdict.values)
    assert values["k"] < values["Sk"] and values.get("q", 0) < values.get("Sq", 1)
    said = "\n".join(verdict.example)
    if others:
        assert f"tile 0: {others}" in said and f"tile 1: key {tile} has" in said
        assert values["k"] == tile
    else:
        assert "tile" not in said and "a key has score 89" in said
    names = {n: Symbol(printing.expression(n), n.type) for n in walk.loads(a.mask)}
    assert evaluate(walk.substitute(a.mask, names), values, {}).item()


def test_span_and_fix_point_to_the_place() -> None:
    claim = next(c for c in claims("f", WRONG["divides_by_param"][0]) if isinstance(c.verdict, Refuted))
    assert (claim.span.line, claim.span.column) == (3, 9)
    assert claim.fix == "add `where c > 0`"


@pytest.mark.parametrize(
    ("body", "fix"),
    [
        ("param x: f32\nscore = qk * scale + x ** 13", "bound the base: clamp(…)"),
        ("param x: f32\nscore = qk * scale + x ** -2", "add `where x > 0`"),
        ("score = qk * scale + qk ** -2", "keep the base from 0"),
    ],
)
def test_the_fix_of_a_power_depends_on_what_went_wrong(body: str, fix: str) -> None:
    claim = next(c for c in claims("f", body) if isinstance(c.verdict, Refuted))
    assert claim.fix == fix


def without_maximum(weight: str) -> Claim:
    body = f"param t: f32 where t > 0\n{WRONG['no_maximum'][0]}".replace("exp(s)", weight)
    return next(c for c in claims("f", body) if isinstance(c.verdict, Refuted))


@pytest.mark.parametrize(
    ("weight", "stream", "rescale"),
    [
        ("exp(s)", "exp(s - m)", "exp(m - n)"),
        ("exp2(s)", "exp2(s - m)", "exp2(m - n)"),
        ("exp(s / t)", "exp((s - m) / t)", "exp((m - n) / t)"),
        ("exp(2 * s)", "exp(2.0 * (s - m))", "exp(2.0 * (m - n))"),
    ],
)
def test_the_fix_of_an_overflow_is_right_itself(weight: str, stream: str, rescale: str) -> None:
    lines = f"weight(s, m) = {stream}, rescale(m, n) = {rescale}"
    assert without_maximum(weight).fix == f"keep a running maximum: shift = max, {lines}"
    mended = WRONG["no_maximum"][0].replace("exp(s)", weight).replace("shift = none", f"shift = max, {lines}")
    body = f"param t: f32 where t > 0\n{mended}".replace(", weight", "\n    weight").replace(
        ", rescale", "\n    rescale"
    )
    assert complaints(claims("mended", body)) == []


def test_no_maximum_helps_another_weight() -> None:
    assert "maximum" not in without_maximum("exp(s ** 2)").fix


@pytest.mark.parametrize("weight", ["1 / s", "log(s)", "sqrt(s)", "s ** -2"])
def test_a_weight_without_a_value_is_not_said_to_overflow(weight: str) -> None:
    verdict = without_maximum(weight).verdict
    assert isinstance(verdict, Refuted)
    said = "\n".join(verdict.example)
    assert "has no value there" in said
    assert "row_sum" not in said


def test_the_fix_of_a_probability_names_the_param_only_where_that_mends_it() -> None:
    for text, fix in (("p", "add `where 0 <= p < 1`"), ("2 * p", "bound it: clamp(…, 0, 0.99)")):
        (claim,) = [c for c in claims("f", f"param p: f32 where p >= 0\ndropout = {text}") if c.subject == "dropout"]
        assert claim.fix == fix


def test_the_plan_is_what_is_looked_at() -> None:
    """A planner that took a factor of any sign, or forgot the maximum, is found out."""
    a, plan = planned("alibi", "param slope: f32[Hq]\nscore = qk * scale * slope[h]")
    assert complaints(range_safety(a, plan, Work())) == []
    slope = next(n for n in walk.nodes(a.score) if isinstance(n, Load))
    turned = replace(plan.weights, factor=slope, unit=Symbol("qk", build.Type.FLOAT))
    found = range_safety(a, replace(plan, weights=turned), Work())
    assert [s for s, _ in complaints(found)] == ["factor"]
    scale = Symbol("scale", build.Type.FLOAT)
    a, plan = planned("causal", "mask = causal")
    assert complaints(range_safety(a, plan, Work())) == []
    unsigned = replace(plan, facts=replace(plan.facts, scale_positive=False))
    assert walk.reads(plan.weights.factor, scale.id)
    assert [s for s, _ in complaints(range_safety(a, unsigned, Work()))] == ["factor"]
    plain = replace(plan.weights, form=Form.DIRECT, unit=a.score, stream=a.normalizer.weight, factor=build.real(1.0))
    assert [s for s, _ in complaints(range_safety(a, replace(plan, weights=plain), Work()))] == ["sums"]


def test_limits_are_stated() -> None:
    sums = next(c for c in claims("relu_squared", RIGHT["relu_squared"]) if c.subject == "sums")
    assert "fp16 for scores up to 255.9" in sums.sentence
    score = next(c for c in claims("f", RIGHT["polynomial"]) if c.subject == "score")
    assert "|q . k| <= 2**30" in score.sentence


def test_what_a_condition_keeps_from_zero_is_stated() -> None:
    masked = "param t: f32[B, Sk]\nscore = qk / t[b, k]\nmask = t[b, k] > 0"
    for body in ("score = 1.0 / qk if qk != 0 else 0.0", masked):
        (score,) = [c for c in claims("a", body) if c.subject == "score"]
        assert "a condition keeps from 0 at least 2**-40 away" in score.sentence


@pytest.mark.parametrize(
    ("budget", "reason"),
    [(Budget(effort=1e-6), OutOfWork().reason), (Budget(timeout=1e-6), OutOfTime.reason)],
)
def test_out_of_work_or_time_is_unknown_and_says_which(budget: Budget, reason: str) -> None:
    verdict = range_safety(*planned("f", WRONG["divides_by_distance"][0]), Work(budget))[-1].verdict
    assert isinstance(verdict, Unknown) and verdict.reason == reason


# ---- a reference that lags behind the maximum


def lagging(body: str) -> list[Claim]:
    return [c for c in claims("lags", body) if c.subject == "lagging reference"]


def test_where_the_reference_lags_weights_stay_in_fp16() -> None:
    (claim,) = lagging("mask = causal")
    assert isinstance(claim.verdict, Proved) and "at most 256 in fp16" in claim.sentence


@pytest.mark.parametrize(
    "body", ["score = qk * scale\nnormalizer = sigmoid", "param p: f32 where 0 <= p < 1\nmask = causal\ndropout = p"]
)
def test_where_no_kernel_lets_it_lag_nothing_is_claimed(body: str) -> None:
    assert not lagging(body)


@pytest.mark.parametrize(("slack", "why"), [(15, "leave fp16"), (16, "leave fp16"), (40, "leaves float32")])
def test_a_reference_that_lags_too_far_is_not_proved(slack: int, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hopper, "SLACK", slack)
    (claim,) = lagging("mask = causal")
    assert isinstance(claim.verdict, Unknown) and why in claim.verdict.reason


@pytest.mark.parametrize(
    ("body", "limits"),
    [
        ("mask = causal", "|q . k| <= 2**40, |scale| <= 1024, lengths below 2**27"),
        ("param s: f32[Hq]\nnormalizer = softmax(sink = s[h])", "float params up to 2**40"),
        ("param t: f32[Sk]\nscore = qk * scale + float(floor(t[k]) % 7)", "float params up to 2**20"),
        ("param cap: f32 where cap > 0\nscore = softcap(qk * scale, cap)", "at least 2**-20 away from it"),
    ],
)
def test_the_size_of_inputs_is_part_of_the_claim(body: str, limits: str) -> None:
    """What is beyond it (a cap of 1e-19, a sink of 2.4e38) is not claimed, and `check` says so."""
    spec = api.analyse(Source(f"attention a\n{body}\n"))
    notes = [c.note for c in range_safety(spec, api.plan(spec), Work()) if c.note]
    assert any("range-safety is claimed for" in note and limits in note for note in notes), notes


@pytest.mark.parametrize(
    ("divisor", "fix"),
    [
        ("(Sq // 2)", "add `assume Sq >= 2`"),
        ("(Sq - 5)", "add `assume Sq >= 6`"),
        ("(Sq // 5000)", "guard it"),
        ("(Sq - Sk)", "guard it"),
        ("n", None),  # a scalar that divides gets its own fact
        ("(n - 1)", "guard it"),
    ],
)
def test_a_divisor_that_is_0_for_short_sequences_asks_for_longer_ones(divisor: str, fix: str | None) -> None:
    found = claims("halves", f"param n: int\nmask = k % {divisor} == 0 or n > 9")
    failed = [c for c in found if not isinstance(c.verdict, Proved)]
    assert bool(failed) == (fix is not None) and (fix is None or failed[0].fix.startswith(fix))


@pytest.mark.parametrize(
    ("wrong", "fix", "right"),
    [
        (
            "mask = (k >> h) & 1 == 0",
            "nothing bounds `h` to 0 … 31: write `… >> (h & 31)`",
            "mask = (k >> (h & 31)) & 1 == 0",
        ),
        (
            "mask = (q >> k + 1) & 1 == 0",
            "nothing bounds `k + 1` to 0 … 31: write `… >> ((k + 1) & 31)`",
            "mask = (q >> ((k + 1) & 31)) & 1 == 0",
        ),
        (
            "param s: int[Hq]\nmask = (k >> s[h]) & 1 == 0",
            "nothing bounds `s[h]` to 0 … 31: write `where 0 <= s <= 31` where it is declared, or `… >> (s[h] & 31)`",
            "param s: int[Hq] where 0 <= s <= 31\nmask = (k >> s[h]) & 1 == 0",
        ),
        (
            "score = sqrt(qk)",
            "keep what is under the root above 0: max(…, 1e-6)",
            "score = sqrt(max(qk, 1e-6))",
        ),
        (
            "score = sqrt(abs(qk))",
            "keep what is under the root above 0: max(…, 1e-6)",
            "score = sqrt(max(abs(qk), 1e-6))",
        ),
        ("param x: f32\nscore = qk * sqrt(x)", "add `where x > 0`", "param x: f32 where x > 0\nscore = qk * sqrt(x)"),
        (
            "param g: f32[Hq]\nscore = qk + log(sigmoid(-g[h]))",
            "write logsigmoid(-g[h]), which the prelude has",
            "param g: f32[Hq]\nscore = qk + logsigmoid(-g[h])",
        ),
        (
            "score = qk - log(1 + exp(2 * qk))",
            "write softplus(2.0 * qk), which the prelude has",
            "score = qk - softplus(2.0 * qk)",
        ),
        ("score = log(exp(qk) + 1)", "write softplus(qk), which the prelude has", "score = softplus(qk)"),
        (
            "param x: f32 where x >= 0\nscore = qk * sqrt(x)",
            "add `where x > 0`",
            "param x: f32 where x > 0\nscore = qk * sqrt(x)",
        ),
    ],
)
def test_what_is_advised_is_accepted(wrong: str, fix: str, right: str) -> None:
    """By every obligation; and the mistake is told at its place alone."""
    proof = api.check(Source(f"attention a\n{wrong}\n"))
    told = diagnostics(proof, Source(""))
    assert [d.fix for d in told] == [fix]
    assert told[0].span != NOWHERE
    assert api.check(Source(f"attention a\n{right}\n")).holds
