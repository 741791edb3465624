"""`integer-width`: ints fit their registers, on targets with 64 bits and on those whose ints stay at the end of 32."""

from __future__ import annotations

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given, settings, strategies as st

from attngen import api, targets
from attngen.emit import Options
from attngen.errors import Source
from attngen.ir.build import index, integer
from attngen.plan import plan
from attngen.plan.mask.loops import Rounded
from attngen.plan.mask.segments import Segment
from attngen.prove.budget.work import Work
from attngen.prove.obligations.integer_width import integer_width
from attngen.prove.verdict import Claim, Obligation, Proved, Refuted, Unknown
from attngen.reference import evaluate
from attngen.targets import emit


def claims(target: str, *lines: str) -> tuple[tuple[Claim, ...], int]:
    """The claims about a spec on a target, and the length that its sequences stay below."""
    source = Source("\n".join(("attention subject", *lines, "")), "subject.attn")
    attention = api.analyse(source)
    planned = plan(attention, targets.named(target).limits())
    return integer_width(planned, Work()), planned.choices.longest


RIGHT_ON_BOTH = [
    ("param w: int where w > 0", "mask = q - k < w"),
    ("param c: int where c > 0", "mask = q // c == k // c"),
    ("param c: int where c > 0", "mask = q // c * c <= k and k < q // c * c + c"),
    ("param w: int", "param d: int where d > 0", "mask = abs(q - k) <= w * d"),
    ("param w: int", "mask = q - k <= w + 12345"),
    ("param t: f32[flat]", "score = qk * scale + t[b * Sk + k]"),
    ("param since: int[B, Sk]", "mask = since[b, k] - 1 <= q"),
    ("mask = (q * 7 + 3) % 5 != k % 5",),
    ("param far: int", "mask = q <= k + abs(far)"),
    ("mask = q <= 5000000000 + k",),
    ("param born: int[B, Sk]", "param seen: int[B, Sq]", "mask = not born[b, k] > seen[b, q]"),
    # A bound that 64 bits might not hold, (3 w + q1 // c - 2) c, is not used.
    ("param c: int where c > 0", "param w: int", "mask = k // 8 > k // c - 3 * w or k // c - 3 * w > q // c - 2"),
]


@pytest.mark.parametrize("target", ["triton", "pallas"])
@pytest.mark.parametrize("lines", RIGHT_ON_BOTH, ids=" ".join)
def test_what_fits_or_may_saturate_is_proved(lines: tuple[str, ...], target: str) -> None:
    found, longest = claims(target, *lines)
    assert [c for c in found if not isinstance(c.verdict, Proved)] == []
    assert longest >= 2**24


@pytest.mark.parametrize("field", ["key_loops", "query_loops"])
def test_a_bound_that_a_param_decides_is_brought_to_the_tiles(field: str) -> None:
    planned = plan(api.analyse(Source("attention a\nparam n: int[B]\nmask = k < n[b] and q < n[b]\n")))
    steps = getattr(planned, field).steps
    assert any(isinstance(s, Rounded) and s.clamped for s in steps)
    loose = tuple(replace(s, clamped=False) if isinstance(s, Rounded) else s for s in steps)
    wrong = replace(planned, **{field: replace(getattr(planned, field), steps=loose)})
    unproved = [c for c in integer_width(wrong, Work()) if not isinstance(c.verdict, Proved)]
    assert [c.subject for c in unproved] == ["bounds of loops"]
    assert all(isinstance(c.verdict, Proved) for c in integer_width(planned, Work()))


RASTER = """param w: int where w > 0
score = qk * scale - 0.1 * float((q // w - k // w) * (q // w - k // w) + (q % w - k % w) * (q % w - k % w))"""


@pytest.mark.parametrize(
    ("target", "lines", "bits"),
    [
        ("triton", "mask = q * q <= k * 3", 27),
        ("pallas", "mask = q * q <= k * 3", 15),
        ("triton", "mask = q * q * k <= 5", 20),
        ("triton", "mask = k ** 5 <= q", 12),
        ("pallas", "mask = q * 100 <= k * 100", 24),
        ("triton", RASTER, 27),
        ("pallas", RASTER, 13),
    ],
)
def test_sequences_are_as_long_as_their_products_fit(target: str, lines: str, bits: int) -> None:
    found, longest = claims(target, lines)
    assert longest == 2**bits
    assert [c for c in found if not isinstance(c.verdict, Proved)] == []


@pytest.mark.parametrize("target", ["triton", "pallas"])
@pytest.mark.parametrize(
    "lines",
    [
        ("mask = q - k < 4 * 2 ** min(h, 20)",),
        ("param n: int[Hq] where 0 <= n <= 20", "mask = q - k < 4 * 2 ** n[h]"),
        ("param n: int where 0 <= n < 21", "mask = q % 2 ** n == k % 2 ** n"),
    ],
    ids=" ".join,
)
def test_an_exponent_is_bounded_as_the_file_says(target: str, lines: tuple[str, ...]) -> None:
    found, _ = claims(target, *lines)
    assert [c for c in found if not isinstance(c.verdict, Proved)] == []


def test_a_power_that_nothing_bounds_is_to_be_bounded() -> None:
    found, _ = claims("triton", "mask = q - k < 4 * 2 ** h")
    (open_claim,) = [c for c in found if not isinstance(c.verdict, Proved)]
    assert isinstance(open_claim.verdict, Unknown)
    assert open_claim.fix == "bound the exponent: 2 ** min(h, 16)"
    found, _ = claims("triton", "mask = q - k < 4 * 2 ** min(h, 16)")
    assert [c for c in found if not isinstance(c.verdict, Proved)] == []


WRONG_WITHOUT_64_BITS = [
    ("param a: int", "mask = q * a % 7 <= k"),
    ("param a: int", "score = qk * scale + float(q * a) * 0.001"),
    ("param a: int", "param c: int", "mask = q * a <= c * 2"),
    ("param t: f32[Sk]", "param a: int", "score = qk * scale + t[(k * a) % Sk]"),
]


@pytest.mark.parametrize("lines", WRONG_WITHOUT_64_BITS, ids=" ".join)
def test_what_saturating_would_change_is_refuted_where_there_are_no_64_bits(lines: tuple[str, ...]) -> None:
    assert all(isinstance(c.verdict, Proved) for c in claims("triton", *lines)[0])
    (wrong,) = [c for c in claims("pallas", *lines)[0] if isinstance(c.verdict, Refuted)]
    assert wrong.subject == "saturation"
    assert "where" in wrong.fix
    assert wrong.span.line == len(lines) + 1


@pytest.mark.parametrize("bound", ["a > -1000 and a < 1000"])
def test_a_where_makes_them_right(bound: str) -> None:
    found, _ = claims("pallas", f"param a: int where {bound}", "mask = q * a % 7 <= k % 7 and q < 1000000")
    assert all(isinstance(c.verdict, Refuted) for c in found if c.subject == "saturation")
    found, _ = claims("pallas", f"param a: int where {bound}", "mask = min(q, 1000000) * a % 7 <= k % 7")
    assert all(isinstance(c.verdict, Proved) for c in found)


def test_what_is_refuted_is_wrong_when_it_runs() -> None:
    """q * a leaves 32 bits for a near 2**31: the JAX kernel, emitted without asking the prover, gives another row."""
    text = "attention subject\nparam a: int\nmask = q * a % 7 <= k\n"
    attention = api.analyse(Source(text, "subject.attn"))
    planned = plan(attention, targets.named("jax").limits())
    function = targets.named("jax").load(emit(planned, text, Options(target="jax")), "subject").subject
    random = np.random.default_rng(1)
    q, k, v = (random.standard_normal((1, 1, 8, 16)).astype(np.float32) for _ in "qkv")
    heads_inside = [jnp.swapaxes(jnp.asarray(x), 1, 2) for x in (q, k, v)]
    for a, right in ((3, True), (2**31 - 1, False)):
        out = np.swapaxes(np.asarray(function(*heads_inside, a=a)), 1, 2)
        expected = evaluate(attention, q, k, v, params={"a": a}, scale=None, dropout_seed=None).out
        assert np.allclose(out, expected, atol=1e-5) == right


def test_a_data_test_that_saturating_changes_is_not_used() -> None:
    """Where terms of q stand on both sides, the test has their difference, which may leave 32 bits."""
    lines = "param born: int[B, Sk]\nparam seen: int[B, Sq]\nmask = born[b, k] < seen[b, q]"
    source = Source(f"attention subject\n{lines}\n", "subject.attn")
    proof, _ = api.prove(*api.checked_plan(source, target="jax"))
    assert proof.holds and not proof.dropped
    source = Source(source.text.replace("born[b, k] <", "min(born[b, k], 0) + q <"), "subject.attn")
    proof, _ = api.prove(*api.checked_plan(source, target="jax"))
    assert proof.holds
    assert proof.dropped
    assert api.check(source).unknown == ()
    bounded = source.text.replace("Sk]\n", "Sk] where abs(born) < 1000000\n").replace(
        "Sq]\n", "Sq] where abs(seen) < 1000000\n"
    )
    assert api.check(Source(bounded, "subject.attn"), target="jax").unknown == ()


def test_a_bound_that_saturating_might_change_is_not_used() -> None:
    """z3 says nothing of x where x * x < 10, so neither of q - x + 1: all tiles are visited, and masked."""
    source = Source("attention subject\nparam x: int where x ** 2 < 10\nmask = q - k < x\n", "subject.attn")
    spec, planned = api.checked_plan(source, target="pallas")
    proof, emitted = api.prove(spec, planned)
    assert proof.of(Obligation.INTEGER_WIDTH).unknown
    assert proof.holds
    assert any("skip" in what for what in proof.dropped)
    assert emitted.keys.any == (Segment(integer(0), index("Sk")),)
    assert api.check(source).unknown == ()


HELPERS = """attention subject
param a: int
param n: int where n >= 0 and n < 9
mask = q * a <= 7 and q + a <= 5 and q - a <= 9 and a ** n <= k
"""


@pytest.fixture(scope="module", params=["jax", "pallas"])
def helpers(request: pytest.FixtureRequest):  # type: ignore[no-untyped-def]
    """The generated file that has all of the saturating helpers."""
    target = request.param
    planned = plan(api.analyse(Source(HELPERS, "subject.attn")), targets.named(target).limits())
    return targets.named(target).load(emit(planned, HELPERS, Options(target=target)), "subject")


NEAR_THE_ENDS = st.one_of(
    st.integers(-(2**31), 2**31 - 1),
    st.builds(lambda e, d, s: s * (2**e + d), st.integers(8, 30), st.integers(-700, 700), st.sampled_from([-1, 1])),
    st.builds(lambda d, s: s * (2**31 - 1 - d), st.integers(0, 3000), st.sampled_from([-1, 1])),
)


@example(26188825, 82, 2)  # 2**31 and a little more, which float32 has below it
@settings(max_examples=300)
@given(NEAR_THE_ENDS, NEAR_THE_ENDS, st.integers(0, 8))
def test_saturating_arithmetic_is_what_the_prover_takes_it_for(helpers, a: int, b: int, n: int) -> None:  # type: ignore[no-untyped-def]
    x, y = jnp.int32(a), jnp.int32(b)
    for given_, exact in (
        (helpers._add(x, y), a + b),
        (helpers._sub(x, y), a - b),
        (helpers._mul(x, y), a * b),
        (helpers._saturating_power(x, jnp.int32(n)), a**n),
    ):
        assert int(given_) == max(-(2**31), min(2**31 - 1, exact))


@pytest.mark.parametrize("target", ["jax", "pallas"])
@pytest.mark.parametrize("mask", ["k < off[b] + n[b]", "off[b] <= k < off[b] + n[b]", "k - off[b] < n[b]"])
def test_a_stretch_of_keys_by_any_two_ints_needs_no_bounds(target: str, mask: str) -> None:
    found, _ = claims(target, "param off: int[B]", "param n: int[B]", f"mask = {mask}")
    assert all(isinstance(c.verdict, Proved) for c in found)
    assert {"saturation", "keys, any", "keys, all"} <= {c.subject for c in found}  # no range of tiles is given up


@pytest.mark.parametrize("end", ["2147483647", "-2147483648"])
def test_what_stays_at_an_end_equals_that_end(end: str) -> None:
    found, _ = claims("jax", "param n: int", "param m: int", f"mask = n + m == {end}")
    assert any(isinstance(c.verdict, Refuted) for c in found)


def test_a_refusal_gives_the_elements_and_the_operation_that_leaves() -> None:
    lines = "param pos: int[B, Sk]", "score = qk - float(abs(pos[b, q] - pos[b, k]))", "assume Sq == Sk"
    found, _ = claims("jax", *lines)
    (verdict,) = (c.verdict for c in found if isinstance(c.verdict, Refuted))
    values = dict(verdict.values)
    assert abs(values["pos[b, q]"] - values["pos[b, k]"]) >= 2**31
    assert verdict.example[1].startswith("`pos[b, q] - pos[b, k]` leaves 32 bits")
    found, _ = claims("jax", "param m: int", "mask = (k * m + q) // 4 % 3 != 1")
    (verdict,) = (c.verdict for c in found if isinstance(c.verdict, Refuted))
    values = dict(verdict.values)
    inner, outer = values["k"] * values["m"], values["k"] * values["m"] + values["q"]
    far = "k * m" if abs(inner) >= 2**31 else "k * m + q"
    assert abs(outer) >= 2**31 - 1
    assert verdict.example[1].startswith(f"`{far}` leaves 32 bits")


@pytest.mark.parametrize("mask", ["k - q < n ** 3", "(k + n ** 3) // 2 <= q"])
def test_a_power_of_an_unbounded_param_is_told_how_to_bound_it(mask: str) -> None:
    found, _ = claims("triton", "param n: int", f"mask = {mask}")
    (claim,) = (c for c in found if not isinstance(c.verdict, Proved))
    assert claim.fix == "bound the base where it is declared: `where 0 <= n <= 100`"
    assert claim.span.line == 3
    bounded, _ = claims("triton", "param n: int where 0 <= n <= 100", f"mask = {mask}")
    assert all(isinstance(c.verdict, Proved) for c in bounded)


@pytest.mark.parametrize("mask", ["k <= n", "k - q < n", "k < n", "k < n + m", "q * n < k", "k // 2 < n", "abs(n) < k"])
def test_ints_beyond_what_a_call_lets_through_leave_64_bits(mask: str) -> None:
    source = Source(f"attention subject\nparam n: int\nparam m: int\nmask = {mask}\n", "subject.attn")
    planned = plan(api.analyse(source), targets.named("triton").limits())
    assert all(isinstance(c.verdict, Proved) for c in integer_width(planned, Work()))
    assert planned.choices.reaches
    for reach in planned.choices.reaches:
        for field in ("low", "high"):
            if getattr(reach, field) == 63:
                continue
            wider = tuple(replace(r, **{field: 63}) if r == reach else r for r in planned.choices.reaches)
            edited = replace(planned, choices=replace(planned.choices, reaches=wider))
            found = [c.verdict for c in integer_width(edited, Work()) if not isinstance(c.verdict, Proved)]
            assert len(found) == 1 and isinstance(found[0], Refuted), (reach, field)


@pytest.mark.parametrize("target", ["triton", "jax"])
def test_bounds_of_where_are_taken_as_they_are(target: str) -> None:
    found, _ = claims(target, "param n: int where 1 <= n < 5", "score = qk * scale + abs(n) * (q - k)")
    assert all(isinstance(c.verdict, Proved) for c in found)


def test_a_negative_base_keeps_its_brackets() -> None:
    found, _ = claims("triton", "param n: int where n >= 0", "mask = (-3) ** n > k")
    assert [c.fix for c in found if c.fix] == ["bound the exponent: (-3) ** min(n, 16)"]
