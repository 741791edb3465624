"""The two small machines give the figures that they were published with, and right results."""

from __future__ import annotations

import math
import random

import pytest
from unit.cost.register_machine import Compute, Read, Run, run
from unit.cost.register_programs import (
    attention_in_one_pass,
    product_by_dots,
    product_by_sums,
    softmax_in_three_passes,
    softmax_in_two_passes,
)

from attngen import api
from attngen.cost.chips import chip, longest_dense
from attngen.cost.grids import visits
from attngen.cost.systolic import Cycles, Unit, fused, unfused
from attngen.errors import InternalError, Source

PUBLISHED = Unit(whole=True)


def causal(tile: int) -> Cycles:
    """n = 512, d = 64: the tiles are those that the plan's loop visits."""
    plan = api.plan(api.analyse(Source("attention a\nmask = causal\n")))
    sizes = {"B": 1, "Hq": 1, "Hkv": 1, "Sq": 512, "Sk": 512, "D": 64, "Dv": 64}
    v = visits(plan, sizes, {}, (tile, tile))
    return fused(
        PUBLISHED, tile=v.tile, visited=v.tiles, query_tiles=v.query_tiles, queries=v.queries, head_dim=(64, 64)
    )


@pytest.mark.parametrize(
    ("tile", "total", "matrix", "vector", "utilisation"),
    [(64, 24_556, 13_680, 10_876, "8.4%"), (128, 16_936, 6_360, 10_576, "20.1%")],
)
def test_fused_cycles(tile: int, total: int, matrix: int, vector: int, utilisation: str) -> None:
    found = causal(tile)
    assert (found.total, found.matrix, found.vector) == (total, matrix, vector)
    assert f"{found.utilisation:.1%}" == utilisation


def test_unfused_cycles() -> None:
    found = unfused(PUBLISHED, queries=512, keys=512, head_dim=(64, 64))
    assert (found.total, found.matrix, found.vector) == (20_604, 2_172, 18_432)
    assert f"{found.utilisation:.1%}" == "94.3%"


def test_a_product_in_pieces_that_fit_the_array() -> None:
    array = Unit()
    assert array.product(64, 64, 64) == PUBLISHED.product(64, 64, 64) == 190
    assert array.product(512, 64, 512) == 4 * (512 + 64 + 128 - 2)
    assert array.product(10, 200, 130) == sum(10 + k + n - 2 for k in (128, 72) for n in (128, 2))
    assert unfused(array, queries=512, keys=512, head_dim=(64, 64)).utilisation < 1


# ---------------------------------------------------------------- the register machine


def matrices(rows: int, inner: int, columns: int) -> dict[str, float]:
    rng = random.Random(0)
    cells = {f"a[{i}][{k}]": rng.random() for i in range(rows) for k in range(inner)}
    return cells | {f"b[{k}][{j}]": rng.random() for k in range(inner) for j in range(columns)}


def check_product(done: Run, given: dict[str, float], rows: int, inner: int, columns: int) -> None:
    for i in range(rows):
        for j in range(columns):
            want = sum(given[f"a[{i}][{k}]"] * given[f"b[{k}][{j}]"] for k in range(inner))
            assert done.memory[f"c[{i}][{j}]"] == pytest.approx(want)


@pytest.mark.parametrize(
    ("program", "registers", "cycles", "loads"), [(product_by_dots, 3, 25, 13), (product_by_sums, 6, 22, 10)]
)
def test_two_by_two_product(program, registers: int, cycles: int, loads: int) -> None:  # type: ignore[no-untyped-def]
    given = matrices(2, 2, 2)
    done = run(program(2, 2, 2), given, registers)
    assert (done.cycles, done.loads, done.stores) == (cycles, loads, 4)
    check_product(done, given, 2, 2, 2)


@pytest.mark.parametrize(("program", "registers"), [(product_by_dots, 3), (product_by_sums, 2 + 3 * 5)])
def test_any_product(program, registers: int) -> None:  # type: ignore[no-untyped-def]
    given = matrices(3, 4, 5)
    check_product(run(program(3, 4, 5), given, registers), given, 3, 4, 5)


@pytest.mark.parametrize("n", [1, 2, 7, 32])
@pytest.mark.parametrize(
    ("program", "registers", "reads"), [(softmax_in_three_passes, 3, 3), (softmax_in_two_passes, 4, 2)]
)
def test_softmax(program, registers: int, reads: int, n: int) -> None:  # type: ignore[no-untyped-def]
    rng = random.Random(n)
    x = [rng.uniform(-5, 5) for _ in range(n)]
    done = run(program(n), {f"x[{i}]": x[i] for i in range(n)}, registers)
    assert (done.loads, done.stores) == (reads * n, n)
    total = sum(map(math.exp, x))
    assert [done.memory[f"y[{i}]"] for i in range(n)] == pytest.approx([math.exp(a) / total for a in x])


def test_two_passes_do_not_fit_into_three_registers() -> None:
    with pytest.raises(InternalError, match="no register 3 among 3"):
        run(softmax_in_two_passes(4), {f"x[{i}]": 0.0 for i in range(4)}, 3)


def test_attention_reads_each_key_and_value_once() -> None:
    rng = random.Random(1)
    n = 9
    x, v = ([rng.uniform(-3, 3) for _ in range(n)] for _ in "xv")
    done = run(attention_in_one_pass(n), {f"{c}[{i}]": a[i] for c, a in (("x", x), ("v", v)) for i in range(n)}, 6)
    assert (done.loads, done.stores) == (2 * n, 1)
    weights = [math.exp(a) for a in x]
    assert done.memory["o[0]"] == pytest.approx(sum(w * b for w, b in zip(weights, v, strict=True)) / sum(weights))


def test_the_machine_refuses_an_empty_register() -> None:
    with pytest.raises(InternalError, match="register 1 of 3 holds nothing"):
        run([Read("x", 0), Compute("add", 0, 1, 2)], {"x": 1.0}, 3)


# ---------------------------------------------------------------- memories


def test_the_dense_score_outgrows_vmem_at_8192() -> None:
    vmem = chip("v5e").scratch
    assert longest_dense(vmem, 2) == 8192
    assert longest_dense(vmem, 4) == 5792
