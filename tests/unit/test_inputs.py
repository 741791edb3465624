"""Example inputs fulfil every fact of the spec, and say so where none do."""

from __future__ import annotations

import numpy as np
import pytest

from attngen import api, inputs
from attngen.errors import Source, UsageError
from attngen.inputs import Ints
from attngen.ir.attention import Attention

SIZES = {"B": 2, "Hq": 4, "Hkv": 2, "Sq": 33, "Sk": 80, "D": 16, "Dv": 16}


def spec(body: str) -> Attention:
    return api.analyse(Source(f"attention a\n{body}\n"))


def test_sizes_stay_where_nothing_forbids() -> None:
    assert inputs.settle(spec("mask = causal"), SIZES) == SIZES


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        (["Sq == Sk"], {"Sq": 33, "Sk": 33}),
        (["Sq == Sk", "Sk % 32 == 0"], {"Sq": 32, "Sk": 32}),
        (["Sk >= 7 * 32", "Sk % 32 == 0", "Sq == Sk"], {"Sq": 224, "Sk": 224}),
        (["Hq == Hkv"], {"Hq": 2, "Hkv": 2}),
        (["Sq <= 4"], {"Sq": 4}),
        (["D == 2 * Dv"], {"D": 16, "Dv": 8}),
    ],
)
def test_sizes_move_as_little_as_the_assumes_allow(facts: list[str], expected: dict[str, int]) -> None:
    found = inputs.settle(spec("\n".join(f"assume {fact}" for fact in facts)), SIZES)
    moved = {name: value for name, value in found.items() if value != SIZES[name]}
    assert {**{n: SIZES[n] for n in expected}, **moved} == expected


def test_fixed_sizes_stay_and_the_rest_moves() -> None:
    found = inputs.settle(spec("assume Sq == Sk"), SIZES, fixed=["Sk"])
    assert (found["Sq"], found["Sk"]) == (80, 80)
    with pytest.raises(UsageError, match="fulfil `assume Sq == Sk`"):
        inputs.settle(spec("assume Sq == Sk"), SIZES, fixed=["Sq", "Sk"])


def test_size_of_a_param_is_bound() -> None:
    a = spec("param t: f32[Hq, n]\nassume n >= 2 * Sk\nscore = qk + t[h, k]")
    sizes = inputs.settle(a, SIZES)
    assert sizes["n"] >= 2 * sizes["Sk"]
    assert inputs.examples(a, sizes)["t"].shape == (4, sizes["n"])  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "declaration",
    [
        "cap: f32 where cap > 0",
        "p: f32 where 0 <= p < 1",
        "low: f32 where low < -3.0",
        "tiny: f32 where 0 < tiny < 0.01",
        "n: int where n % 7 == 3",
        "w: int where 0 < w <= Sk",
        "n: int where n < -2",
        "t: bool where not t",
        "ids: int[B, Sk] where ids >= 1",
        "lengths: int[B] where 0 <= lengths <= Sk",
        "slope: f32[Hq] where slope > 0",
        "slope: bf16[Hq] where slope < 0",
        "heat: f16[Sq, Sk] where 1 <= heat < 100",
        "on: bool[B, Sk] where not on",
        "odd: int[Sq, Sk] where odd % 2 == 1",
    ],
)
@pytest.mark.parametrize("seed", [0, 1])
def test_values_fulfil_their_where(declaration: str, seed: int) -> None:
    a = spec(f"param {declaration}")
    param = a.params[0]
    value = inputs.examples(a, SIZES, seed=seed)[param.name]
    assert np.shape(value) == tuple(int(inputs.evaluate(dim, SIZES, {})) for dim in param.shape)
    assert param.where is not None
    assert inputs.evaluate(param.where, SIZES, {param.name: value}).all()
    assert np.array_equal(inputs.round_to(param.storage, np.asarray(value)), value)


def test_documents_are_runs_and_bools_padding() -> None:
    a = spec("param ids: int[B, Sk]\nparam valid: bool[B, Sk]\nmask = same_document(ids) and valid[b, k]")
    found = inputs.examples(a, SIZES)
    for row in found["ids"]:  # type: ignore[union-attr]
        assert sorted(row) == list(row) and 1 < len(set(row)) <= 3
    for row in found["valid"]:  # type: ignore[union-attr]
        assert row[0] and list(row) == sorted(row, reverse=True)


def test_same_seed_same_values_and_another_seed_others() -> None:
    a = spec("param x: f32[Hq]")
    one, same, other = (inputs.examples(a, SIZES, seed=seed)["x"] for seed in (0, 0, 1))
    assert np.array_equal(one, same) and not np.array_equal(one, other)


def test_only_leaves_out_the_rest() -> None:
    a = spec("param bias: f32[Hq, Sq, Sk]\nparam w: int\nscore = qk + bias[h, q, k]\nmask = k < w")
    assert list(inputs.examples(a, SIZES, only=("w",))) == ["w"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"x": 1}, "has no param `x`; it has `cap`, `ids`, `n`"),
        ({"ids": 1}, "`ids` is a tensor"),
        ({"cap": -1.0}, "`cap` = -1.0 breaks `cap > 0|`cap` = -1.0 breaks `0.0 < cap`"),
        ({"cap": True}, "`cap` is f32; True doesn't fit"),
        ({"n": 1.5}, "`n` is int; 1.5 doesn't fit"),
        ({"n": 5}, "`n` = 5 breaks `.*n.*4"),
    ],
)
def test_given_values_are_checked(given: dict[str, float], message: str) -> None:
    a = spec("param cap: f32 where cap > 0\nparam ids: int[B, Sk]\nparam n: int\nassume n <= 4")
    with pytest.raises(UsageError, match=message):
        inputs.examples(a, SIZES, given)


def test_given_values_are_kept() -> None:
    a = spec("param cap: f32 where cap > 0\nparam n: int")
    assert inputs.examples(a, SIZES, {"cap": 3, "n": 7}) == {"cap": 3.0, "n": 7}


def test_a_fact_that_nothing_fulfils() -> None:
    with pytest.raises(UsageError, match="found no example value for param `n`"):
        inputs.examples(spec("param n: int where n * n == 3"), SIZES)


@pytest.mark.parametrize(("window", "length"), [(24, 96), (1024, 4096), (8192, 32768), (100000, 32768)])
def test_pictures_are_long_enough_for_the_constants(window: int, length: int) -> None:
    assert inputs.telling_length(spec(f"mask = sliding_window({window})")) == length


@pytest.mark.parametrize(
    ("declaration", "least", "greatest"),
    [
        ("param n: int", -(2**31), 2**31 - 1),
        ("param n: int where n != -2147483648 and n < 2147483647", -(2**31) + 1, 2**31 - 2),
        ("param n: int where n > 0 and n % 4 == 0", 4, 2**31 - 4),
        ("param n: int where 0 <= n <= 1000", 0, 1000),
    ],
)
def test_ints_at_an_end_are_as_far_as_their_where_allows(declaration: str, least: int, greatest: int) -> None:
    found = spec(f"{declaration}\nmask = k < n")
    sizes = inputs.settle(found, SIZES)
    drawn = [inputs.examples(found, sizes, ints=ints)["n"] for ints in (Ints.LEAST, Ints.GREATEST)]
    assert drawn == [least, greatest]


def test_ints_of_which_floats_are_made_or_that_facts_tie_together_stay_near() -> None:
    found = spec(
        "param a: int\nparam c: int\nparam d: int where d > c\nparam ids: int[Sk]\n"
        "score = qk * scale + float(a)\nmask = k // 2 < c - d and ids[k] < 3"
    )
    assert inputs.far_ints(found) == {"ids"}
    ids = inputs.examples(found, inputs.settle(found, SIZES), ints=Ints.LEAST)["ids"]
    assert isinstance(ids, np.ndarray) and ids.min() < -(2**31) + 8 and ids.max() < 3
