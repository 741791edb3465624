"""Floor division and its remainder as each target prints them, at the ends of int32, beside Python's own."""

from __future__ import annotations

import itertools
import math
import re
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from property.registers import NAMESPACE, Left, Register

import attngen
from attngen import api, reference, targets
from attngen.emit import Options
from attngen.errors import Source
from attngen.ir import build
from attngen.ir.nodes import Op, Scalar, Type
from attngen.plan import plan
from attngen.plan.ints.divisions import DIVISOR, EXPANSIONS, QUOTIENT, REMAINDER
from attngen.prove.budget.work import Work
from attngen.prove.integers.z3_door import SolverContext
from attngen.prove.obligations.divisions import expansion_answer
from attngen.prove.obligations.integer_width import integer_width
from attngen.prove.verdict import Proved, Refuted
from attngen.runtime.loader import load
from attngen.targets import emit

LEAST, MOST = -(2**31), 2**31 - 1
ENDS = (
    LEAST,
    LEAST + 1,
    LEAST + 2,
    -(2**30),
    -46341,
    -8,
    -7,
    -3,
    -2,
    -1,
    0,
    1,
    2,
    3,
    7,
    8,
    46341,
    2**30,
    MOST - 1,
    MOST,
)
PAIRS = [(a, b) for a, b in itertools.product(ENDS, ENDS) if b != 0 and (a, b) != (LEAST, -1)]
SPEC = "attention subject\nparam u: int\nparam w: int where w != 0\nmask = (q - u) // w == 7 or (q - u) % w == 3\n"


def module(target: str) -> Any:
    source = api.analyse(Source(SPEC, "subject.attn"))
    planned = plan(source, targets.named(target).limits())
    return load(emit(planned, SPEC, Options(target=target)), "subject")


def helpers(target: str) -> dict[str, str]:
    """The text of each division helper of a generated file."""
    source = api.analyse(Source(SPEC, "subject.attn"))
    text = emit(plan(source, targets.named(target).limits()), SPEC, Options(target=target))
    return {
        name: re.search(rf"^def {name}\(.*?(?=\n\n\n)", text, re.S | re.M)[0] for name in ("_floor_div", "_floor_mod")
    }


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize(("name", "exact"), [("_floor_div", lambda a, b: a // b), ("_floor_mod", lambda a, b: a % b)])
def test_no_step_of_a_printed_division_leaves_its_register(name: str, exact: Any, bits: int) -> None:
    scope = dict(NAMESPACE)
    exec(helpers("triton")[name], scope)
    widen = {LEAST: -(2 ** (bits - 1)), MOST: 2 ** (bits - 1) - 1}
    for a, b in PAIRS:
        a, b = widen.get(a, a), widen.get(b, b)
        assert scope[name](Register(a, bits), Register(b, bits)).value == exact(a, b), (a, b)
    with pytest.raises(Left):
        scope[name](Register(LEAST), Register(-1))


@triton.jit
def _both(a_ptr, b_ptr, quotient_ptr, remainder_ptr, N: tl.constexpr, DIV: tl.constexpr, MOD: tl.constexpr):
    at = tl.arange(0, N)
    a, b = tl.load(a_ptr + at), tl.load(b_ptr + at)
    tl.store(quotient_ptr + at, DIV(a, b))
    tl.store(remainder_ptr + at, MOD(a, b))


def _by_triton(a: np.ndarray, b: np.ndarray) -> tuple[Any, Any]:
    generated = module("triton")
    n = 1 << math.ceil(math.log2(len(a)))
    operands = [torch.ones(n, dtype=torch.int32) for _ in range(4)]
    for x, values in zip(operands, (a, b), strict=False):
        x[: len(values)] = torch.from_numpy(values)
    _both[(1,)](*operands, N=n, DIV=generated._floor_div, MOD=generated._floor_mod)
    return operands[2][: len(a)], operands[3][: len(a)]


def _by_helpers(target: str, array: Any) -> Any:
    def compute(a: np.ndarray, b: np.ndarray) -> tuple[Any, Any]:
        generated = module(target)
        return generated._floor_div(array(a), array(b)), generated._floor_mod(array(a), array(b))

    return compute


TARGETS = {
    "triton": _by_triton,
    "torch": _by_helpers("torch", lambda x: torch.from_numpy(x).long()),
    "jax": _by_helpers("jax", jnp.asarray),
    "pallas": _by_helpers("pallas", jnp.asarray),
}


@pytest.mark.parametrize("target", TARGETS)
def test_divisions_of_each_target_are_pythons_at_the_ends_of_int32(target: str) -> None:
    a, b = (np.array(x, np.int32) for x in zip(*PAIRS, strict=True))
    quotient, remainder = TARGETS[target](a, b)
    assert np.asarray(quotient).tolist() == [x // y for x, y in PAIRS]
    assert np.asarray(remainder).tolist() == [x % y for x, y in PAIRS]


@pytest.mark.parametrize("target", ["jax", "pallas"])
def test_the_least_int_by_minus_one_stays_at_the_end(target: str) -> None:
    text = "attention subject\nparam n: int\nparam m: int where m != 0\nmask = k <= q and n // m <= k and n % m <= k\n"
    planned = plan(api.analyse(Source(text)), targets.named(target).limits())
    generated = load(emit(planned, text, Options(target=target)), "subject")
    assert int(generated._saturating_floor_div(jnp.int32(LEAST), jnp.int32(-1))) >= MOST - 2048
    assert int(generated._saturating_floor_mod(jnp.int32(LEAST), jnp.int32(-1))) == 0
    assert int(generated._saturating_floor_div(jnp.int32(LEAST), jnp.int32(7))) == LEAST // 7


# ---------------------------------------------------------------- the proof


BARE = api.analyse(Source("attention bare\n"))
WRONG = {
    "towards zero": (Op.FLOORDIV, QUOTIENT),
    "the remainder's sign": (Op.MOD, REMAINDER),
    "a step that leaves": (Op.FLOORDIV, build.add(build.sub(QUOTIENT, build.integer(1)), build.integer(1))),
    "down twice": (Op.FLOORDIV, build.sub(EXPANSIONS[Op.FLOORDIV].value, build.integer(1))),
    "the divisor added first": (Op.MOD, build.sub(build.add(REMAINDER, DIVISOR), DIVISOR)),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_expansion_is_not_proved(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    op, value = WRONG[what]
    monkeypatch.setitem(EXPANSIONS, op, replace(EXPANSIONS[op], value=value))
    planned = plan(api.analyse(Source(SPEC)), targets.named("triton").limits())
    found = [c for c in integer_width(planned, Work()) if c.subject == "divisions"]
    assert len(found) == 1 and not isinstance(found[0].verdict, Proved)


def test_the_expansions_are_proved_at_both_widths() -> None:
    for op, bits in itertools.product(EXPANSIONS, (32, 64)):
        assert type(expansion_answer(SolverContext(BARE), op, bits, Work())).__name__ == "Holds"


def test_a_division_of_the_least_int_by_minus_one_is_wide() -> None:
    lines = ("param n: int", "param m: int where m != 0", "mask = n // m <= k and n % m <= k and (k - q) // m < 3")
    planned = plan(api.analyse(Source("\n".join(("attention subject", *lines, "")))), targets.named("triton").limits())
    divisions = [e for e in planned.choices.wide if e.op in EXPANSIONS]
    assert {(e.op, e.args[0]) for e in divisions} == {(op, Scalar("n", Type.INT)) for op in EXPANSIONS}
    narrow = replace(planned, choices=replace(planned.choices, wide=()))
    assert any(isinstance(c.verdict, Refuted) for c in integer_width(narrow, Work()))


# ---------------------------------------------------------------- whole kernels

KERNELS: dict[str, list[dict[str, int]]] = {
    "const chunk = 2147483647\nmask = (k - 30) // chunk == (q - 30) // chunk": [{}],
    "mask = (k - q) % 2147483647 < 20": [{}],
    "param n: int where n != 0\nmask = k // n == q // n": [{"n": LEAST}, {"n": LEAST + 2}],
    "param chunk: int where chunk > 0\nmask = (k - q) // chunk == 0": [{"chunk": MOST - 1}],
    "param n: int\nparam m: int where m != 0\nmask = k <= q and n % m <= k": [
        {"n": LEAST, "m": 7},
        {"n": MOST, "m": LEAST},
    ],
    "param n: int\nmask = k >= q * n": [{"n": MOST}],  # a bound of 2**58 in tiles
}


@pytest.mark.parametrize("text", KERNELS)
def test_kernels_that_divide_at_the_ends_of_int32_are_right(text: str) -> None:
    kernel = attngen.compile(f"attention subject\n{text}\n", tile=(16, 16))
    random = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(1, 1, 37, 16, generator=random) for _ in range(3))
    for params in KERNELS[text]:
        expected = reference.evaluate(kernel.spec, q, k, v, params=params).out
        assert np.abs(kernel(q, k, v, **params).numpy() - expected).max() < 1e-5, params


def test_elements_in_32_bits_are_divided_in_64_where_they_must_be() -> None:
    kernel = attngen.compile("attention subject\nparam t: int[Sk]\nmask = t[k] // -1 > q + 2147483600\n", tile=(16, 16))
    random = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(1, 1, 20, 16, generator=random) for _ in range(3))
    t = torch.full((20,), LEAST, dtype=torch.int32)
    t[3] = 5
    expected = reference.evaluate(kernel.spec, q, k, v, params={"t": t}).out
    assert np.abs(expected).max() > 0.01
    assert np.abs(kernel(q, k, v, t=t).numpy() - expected).max() < 1e-5
