"""Drawn functions of one pair: the spec that is read computes the same, whatever stands inside of what."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from flex.read_back import SIZES, functions_compute, spec_computes
from hypothesis import given, strategies as st

from attngen.flex.spec import read

Tree = Any
LEAVES = ("b", "h", "q", "k", 0, 1, 3, 7, -2, 0.5, -1.25)
OF_TWO: dict[str, Callable[..., Any]] = {
    **{sign: getattr(operator, name) for sign, name in (("+", "add"), ("-", "sub"), ("*", "mul"))},
    "min": torch.minimum, "max": torch.maximum,
    "by 3": lambda a, b: a + b.int() // 3, "rest of 5": lambda a, b: a.int() % 5 - b,
    "/": lambda a, b: a / (b.abs() + 1), "rest": lambda a, b: a - b.float() % 2.5, "rsub": torch.rsub,
}  # fmt: skip
OF_ONE: dict[str, Callable[..., Any]] = {
    "-": operator.neg, "abs": torch.abs, "tanh": lambda x: x.tanh(), "float": lambda x: x.float(),
    "int": lambda x: x.clamp(-1000, 1000).int(), "square": lambda x: x.clamp(-30, 30) ** 2, "sign": torch.sign,
    "floor": lambda x: x.float().floor(), "log": lambda x: torch.log(x.abs() + 1), "bits": lambda x: x.int() & 6 | 1,
    "clamp": lambda x: x.clamp(-4, 9),
}  # fmt: skip
COMPARED: dict[str, Callable[..., Any]] = {
    name: getattr(operator, name) for name in ("lt", "le", "gt", "ge", "eq", "ne")
}
JOINED: dict[str, Callable[..., Any]] = {name: getattr(operator, name) for name in ("and_", "or_", "xor")}

NUMBERS = st.recursive(
    st.sampled_from(LEAVES),
    lambda inner: st.one_of(
        st.tuples(st.sampled_from([*OF_TWO]), inner, inner),
        st.tuples(st.sampled_from([*OF_ONE]), inner),
        st.tuples(st.just("where"), st.tuples(st.sampled_from([*COMPARED]), inner, inner), inner, inner),
    ),
    max_leaves=8,
)
BOOLS = st.recursive(
    st.tuples(st.sampled_from([*COMPARED]), NUMBERS, NUMBERS),
    lambda inner: st.one_of(st.tuples(st.sampled_from([*JOINED]), inner, inner), st.tuples(st.just("not"), inner)),
    max_leaves=3,
)


def computed(tree: Tree, named: dict[str, Any]) -> Any:
    match tree:
        case str():
            return named[tree]
        case int() | float():
            return torch.tensor(tree)
        case ("where", condition, yes, no):
            return torch.where(*(computed(x, named) for x in (condition, yes, no)))
        case ("not", x):
            return ~computed(x, named)
        case (word, x):
            return OF_ONE[word](computed(x, named))
        case (word, x, y):
            return {**OF_TWO, **COMPARED, **JOINED}[word](computed(x, named), computed(y, named))
        case _:
            pytest.fail(f"no tree: {tree}")


@given(BOOLS)
def test_masks(tree: Tree) -> None:
    def mask_mod(b: Any, h: Any, q: Any, k: Any) -> Any:
        return computed(tree, {"b": b, "h": h, "q": q, "k": k})

    small = {**SIZES, "Sq": 16, "Sk": 16}
    qk = torch.zeros(2, 4, 16, 16)
    found = read(None, mask_mod, "one", {})
    _, mask = spec_computes(found, small, qk, np.float32)
    _, wanted = functions_compute(None, mask_mod, small, qk)
    differ = int((torch.tensor(mask) != wanted).sum())
    assert differ <= wanted.numel() // 50, found.text  # where float32 falls on the other side of a comparison


@given(NUMBERS)
def test_scores(tree: Tree) -> None:
    def score_mod(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        return score + computed(tree, {"b": b, "h": h, "q": q, "k": k})

    small = {**SIZES, "Sq": 16, "Sk": 16}
    qk = torch.randn(2, 4, 16, 16, generator=torch.Generator().manual_seed(0))
    found = read(score_mod, None, "one", {})
    score, _ = spec_computes(found, small, qk, np.float32)
    wanted, _ = functions_compute(score_mod, None, small, qk)
    apart = ~torch.isclose(torch.tensor(score).double(), wanted.double(), rtol=1e-4, atol=1e-4)
    assert int(apart.sum()) <= apart.numel() // 50, found.text  # where float32 is cut, or floored, to another int
