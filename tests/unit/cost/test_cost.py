"""Operations, bytes and times against counts by hand and against brute force over the mask."""

from __future__ import annotations

import io
import json
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from attngen import api, inputs, vocabulary
from attngen.cli import main as cli
from attngen.cost import passes
from attngen.cost.chips import CHIPS, NAMES, chip
from attngen.cost.grids import Visits, visits
from attngen.cost.model import Cost, Line, cost
from attngen.cost.operations import Count, backward, forward
from attngen.cost.passes import Moved, Order, loop_traffic, loops
from attngen.cost.plot import image, series
from attngen.cost.table import amount, data, render, size, time
from attngen.errors import Source, UsageError
from attngen.ir import walk
from attngen.ir.evaluate import evaluate
from attngen.terminal import console

EXAMPLES = sorted((Path(__file__).parents[3] / "examples").glob("*.attn"))
SIZES = {"B": 2, "Hq": 4, "Hkv": 2, "Sq": 200, "Sk": 200, "D": 64, "Dv": 32}


def planned(body: str):  # type: ignore[no-untyped-def]
    return api.plan(api.analyse(Source(f"attention a\n{body}\n")))


def look(body: str, name: str = "h200", tile: tuple[int, int] | None = (32, 32), **sizes: int) -> Cost:
    plan = planned(body)
    values = inputs.examples(plan.attention, SIZES | sizes, only=walk.params(plan.attention.mask))
    return cost(plan, chip(name), "bf16", SIZES | sizes, values, tile)


def line(found: Cost, direction: str, kernel: str, order: str = "") -> Line:
    lines = [x for x in found.lines if x.direction == direction and x.kernel == kernel and order in ("", x.order)]
    return lines[0]


# ---------------------------------------------------------------- grids


@pytest.mark.parametrize("body", ["mask = causal", "mask = k <= q + 10 * h", "mask = hkv == 1", "mask = q - k < 50"])
@pytest.mark.parametrize("tile", [(32, 32), (64, 16)])
def test_visited_pairs_by_brute_force(body: str, tile: tuple[int, int]) -> None:
    plan = planned(body)
    v = visits(plan, SIZES, {}, tile)
    q, k = np.arange(200)[:, None], np.arange(200)[None, :]
    pairs = tiles = walked_q = walked_k = 0
    seen: set[tuple[int, int, int]] = set()
    for b in range(2):
        for h in range(4):
            allowed = np.broadcast_to(
                evaluate(plan.attention.mask, {**SIZES, "b": b, "h": h, "hkv": h // 2, "q": q, "k": k}, {}), (200, 200)
            )
            for q0 in range(0, 200, tile[0]):
                for k0 in range(0, 200, tile[1]):
                    part = allowed[q0 : q0 + tile[0], k0 : k0 + tile[1]]
                    if part.any():
                        tiles += 1
                        pairs += part.size
                        walked_q += part.shape[0]
                        walked_k += part.shape[1]
                        seen |= {(b, h // 2, x) for x in range(k0, min(k0 + tile[1], 200))}
    assert (v.tiles, v.pairs, v.walked_queries, v.walked_keys) == (tiles, pairs, walked_q, walked_k)
    assert v.seen_keys == len(seen)
    assert v.all_pairs == 2 * 4 * 200 * 200


# ---------------------------------------------------------------- loop orders


def whole(n: int, tile: int) -> Visits:
    sizes = {"B": 1, "Hq": 1, "Hkv": 1, "Sq": n, "Sk": n, "D": 1, "Dv": 1}
    return visits(planned(""), sizes, {}, (tile, tile))


@pytest.mark.parametrize("name", ["h200", "v5e"])
def test_a_map_s_tiles_are_counted_on_each_chip(name: str) -> None:
    """Every fourth of 64 tiles: without a map all that the causal part leaves would be."""
    found = look("mask = causal and (q - k) // 32 % 4 == 0", name, (32, 32), Sq=256, Sk=256)
    q, k = np.arange(256)[:, None], np.arange(256)
    seen = ((q >= k) & ((q - k) // 32 % 4 == 0)).reshape(8, 32, 8, 32).any((1, 3)).sum()
    assert found.skipped == pytest.approx(1 - seen / 64) and seen < 36


def test_the_loop_order_table() -> None:
    """Tiles of one row: queries outside load K and V n * n times and store O n times, keys outside the reverse."""
    n = 12
    v = whole(n, 1)
    rows, columns = (x for x in loops(1, 1, 1) if x.direction == "forward")
    assert (rows.order, columns.order) == (Order.QUERIES, Order.KEYS)

    def only(loop: passes.Loop, *names: str) -> Moved:
        from dataclasses import replace

        streams = tuple(replace(s, row_bytes=1) for s in loop.streams if s.name in names)
        return loop_traffic(replace(loop, streams=streams), v)

    assert only(rows, "K") == only(rows, "V") == Moved(n * n, 0)
    assert only(rows, "Q") == Moved(n, 0)
    assert only(rows, "O") == Moved(0, n)
    assert only(columns, "K") == only(columns, "V") == Moved(n, 0)
    assert only(columns, "Q") == Moved(n * n, 0)
    assert only(columns, "O") == Moved(n * n, n * n)


def test_larger_tiles_divide_what_is_walked() -> None:
    loop = loops(64, 64, 2)[0]
    one, two = loop_traffic(loop, whole(256, 16)), loop_traffic(loop, whole(256, 32))
    q = 256 * 64 * 2
    assert one.read - q == 2 * (two.read - q) == 16 * 2 * q
    assert one.written == two.written == q + 256 * 4


# ---------------------------------------------------------------- kernels


def test_products_by_hand() -> None:
    found = look("mask = causal")
    tiles = sum(min(32, 200 - q) * min(32, 200 - k) for q in range(0, 200, 32) for k in range(0, q + 1, 32))
    pairs = 8 * tiles
    assert line(found, "forward", "forward").matrix == 2 * pairs * (64 + 32)
    assert line(found, "backward", "dQ").matrix == 2 * pairs * (64 + 32 + 64)
    assert line(found, "backward", "dK/dV").matrix == 2 * pairs * (64 + 32 + 64 + 32)
    assert line(found, "backward", "one kernel").matrix == 2 * pairs * (3 * 64 + 2 * 32)
    assert line(found, "forward", "unfused").matrix == 2 * 8 * 200 * 200 * (64 + 32)
    assert found.skipped == 1 - tiles / 200**2


def test_what_stays_comes_once() -> None:
    found = line(look("mask = causal"), "forward", "forward")
    assert found.stays == "L2"
    operands = 2 * 4 * 200 * 64 * 2 + 2 * 2 * 200 * (64 + 32) * 2  # Q of every head, K and V of key/value heads
    assert found.main.read == operands
    assert found.main.written == 2 * 4 * 200 * (32 * 2 + 4)
    assert found.near is not None and found.near.read > operands


def test_keys_that_outgrow_vmem_are_read_again() -> None:
    short, long = (line(look("", "v4", (512, 512), Sq=n, Sk=n), "forward", "forward") for n in (8192, 131072))
    assert (short.stays, long.stays) == ("VMEM", "HBM")
    assert short.near is long.near is None
    assert short.main.read == 2 * (4 * 8192 * 64 + 2 * 8192 * 96) * 2
    assert long.main.read == 2 * 4 * (131072 * 64 + 131072 // 512 * 131072 * 96) * 2


def test_pairs_cost_what_the_score_reads() -> None:
    plain = forward(planned(""))
    capped = forward(planned("param cap: f32 where cap > 0\nscore = softcap(qk * scale, cap)"))
    assert plain.every == Count(vector=3, special=1)
    assert capped.every.special == 2  # tanh, and the exponential
    alibi = forward(planned("param slope: f32[Hq]\nscore = qk * scale + alibi(slope)")).every
    assert alibi.vector > plain.every.vector and alibi.special == 1
    random = forward(planned("dropout = 0.1")).every
    assert random.vector > 100
    assert backward(planned("")).every == Count(vector=4, special=1)


def test_a_learned_bias_is_read_and_its_gradient_written() -> None:
    found = look("param bias: f32[Hq, Sq, Sk]\nscore = qk * scale + bias[h, q, k]")
    own = line(found, "backward", "d bias")
    assert own.planned and own.main.written == 4 * 200 * 200 * 4
    plain = line(look(""), "forward", "forward")
    assert line(found, "forward", "forward").main.read - plain.main.read == 4 * 200 * 200 * 4


def test_the_busiest_unit_bounds() -> None:
    found = look("", "h200", None, Sq=8192, Sk=8192, D=128, Dv=128)
    ahead = line(found, "forward", "forward")
    assert ahead.bound == "products"
    assert ahead.seconds == ahead.matrix / chip("h200").matrix.value
    dense = line(found, "forward", "unfused")
    main = chip("h200").main.rate
    assert main is not None and dense.bound == "HBM" and dense.seconds == dense.main.total / main.value
    assert found.total("forward") == ahead.seconds
    kernels = [x.seconds for x in found.lines if x.direction == "backward" and x.planned]
    assert len(kernels) == 3 and found.total("backward") == sum(kernels)


def test_fp32_takes_the_rate_of_fp32() -> None:
    plan = planned("")
    half, full = (cost(plan, chip("a100"), dtype, SIZES | {"Sq": 4096, "Sk": 4096}, {}) for dtype in ("bf16", "fp32"))
    assert line(full, "forward", "forward").seconds > 10 * line(half, "forward", "forward").seconds


# ---------------------------------------------------------------- chips


def test_every_chip_is_whole() -> None:
    assert NAMES == vocabulary.CHIPS
    for c in CHIPS:
        figures = [c.matrix, c.matrix_fp32, c.vector, c.special, c.registers]
        for memory in (c.scratch, c.cache, c.main):
            figures += [] if memory is None else [memory.size, memory.rate]
        for figure in figures:
            assert figure is None or (figure.value > 0 and figure.source.startswith("https://"))
        assert c.main.rate is not None
        assert (c.arch is None) == (c.array is not None)


def test_the_clock_of_the_vector_unit_is_that_of_the_arrays() -> None:
    for c in CHIPS:
        if c.array is not None and c.vector is not None:
            clock = c.vector.value / (8 * 128 * 4 * c.cores)
            cells = c.array.rows * c.array.columns * c.array.count
            a_cycle = 1 if c.array.rows == 128 else 2
            assert c.matrix.value == pytest.approx(2 * cells * a_cycle * clock, rel=0.01)


def test_no_such_chip() -> None:
    with pytest.raises(UsageError, match="no chip 'h300'; there are a100, "):
        chip("h300")


# ---------------------------------------------------------------- every example, and the door


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda p: p.stem)
def test_every_example_has_a_cost(example: Path) -> None:
    plan = api.plan(api.analyse(Source(example.read_text())))
    sizes = inputs.settle(plan.attention, SIZES | {"Sq": 256, "Sk": 256})
    values = inputs.examples(plan.attention, sizes, only=walk.params(plan.attention.mask))
    for name in ("h200", "mi300x", "v6e"):
        found = cost(plan, chip(name), "bf16", sizes, values)
        assert all(np.isfinite(x.seconds) and x.seconds > 0 and x.main.total > 0 for x in found.lines)
        assert 0 <= found.skipped < 1 and 0 <= found.masked <= 1
        out = io.StringIO()
        console(out).print(render(found))
        assert plan.attention.name in out.getvalue() and "which is more than it has" not in out.getvalue()
        assert json.loads(json.dumps(data(found)))["chip"]["name"] == name


@pytest.mark.parametrize("name", ["h200", "mi300x", "v6e"])
def test_a_terminal_of_80_columns_cuts_no_number(name: str) -> None:
    plan = api.plan(api.analyse(Source("attention a\nmask = causal\n")))
    sizes = inputs.settle(plan.attention, SIZES | {"Sq": 131072, "Sk": 131072, "B": 16})
    found = cost(plan, chip(name), "bf16", sizes, {})
    wide, narrow = io.StringIO(), io.StringIO()
    console(wide).print(render(found))  # as wide as it wants to be
    Console(file=narrow, width=80).print(render(found))
    assert max(map(len, wide.getvalue().splitlines())) <= 80 and "…" not in narrow.getvalue()
    for number in (size(found.lines[0].main.read), amount(found.lines[0].matrix, ""), time(found.lines[0].seconds)):
        assert number in wide.getvalue() and number in narrow.getvalue()


def test_numbers_read_well() -> None:
    assert [amount(x, "") for x in (0, 999, 1.5e12)] == ["0", "999", "1.5 T"]
    assert [size(x) for x in (12, 2048, 3 * 1024**3)] == ["12 B", "2 KiB", "3 GiB"]
    assert [time(x) for x in (2.0, 0.0015, 2e-6, 3e-9)] == ["2 s", "1.5 ms", "2 us", "3 ns"]


def test_command_prints_a_table_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["cost", str(EXAMPLES[1]), "--chip", "v5e", "--shape", "B=2", "Hq=4", "Sq=1024", "D=64"]
    assert cli.main(command) == 0
    text = capsys.readouterr().out
    assert "Google TPU v5e, bf16\nB = 2, Hq = 4, Hkv = 4, Sq = 1024, Sk = 1024, D = 64, Dv = 64" in text
    assert "of one head, to n = 8192" in text and "utilisation" in text and "\x1b" not in text
    assert cli.main([*command, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["sizes"]["Dv"] == 64 and found["dense_score"]["longest"]["VMEM"] == 8192
    assert {k["kernel"] for k in found["kernels"] if k["attngen"]} == {"forward", "delta", "dQ", "dK/dV"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--chip", "v5e", "--shape", "X=3"], "has no size 'X'; there are B, Hq,"),
        (["--chip", "v5e", "--shape", "Hq=4", "Hkv=3"], "Hq = 4 is no multiple of Hkv = 3"),
        (["--chip", "v5e", "-o", "plot.pdf"], "a picture ends in .png or .svg"),
        (["--chip", "v5e", "--param", "x=1"], "has no param `x`"),
    ],
)
def test_command_refuses(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["cost", str(EXAMPLES[1]), *words]) == 2
    assert message in capsys.readouterr().err


def test_plot() -> None:
    costs = [look("mask = causal", "v5e", (128, 128), Sq=n, Sk=n) for n in (1024, 16384)]
    assert set(series(costs, "forward")) == {"attngen", "keys outside", "dense"}
    assert series(costs, "backward")["attngen"] == [1e3 * c.total("backward") for c in costs]
    picture = image(costs, "svg")
    assert picture == image(costs, "svg")
    assert "dense score outgrows VMEM" in "".join(ET.fromstring(picture).itertext())
