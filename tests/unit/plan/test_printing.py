"""The text of a plan: complete, aligned, and the same on every run."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from attngen import api, targets
from attngen.errors import Source
from attngen.ir import printing, walk
from attngen.ir.nodes import Type
from attngen.ir.pieces import piece_of
from attngen.plan import plan
from attngen.plan.kernel import KernelPlan
from attngen.plan.printing import CHIP, plan_text
from attngen.plan.tiles.portable import HEAD_BLOCKS
from attngen.prove.obligations.reads import with_needs

ROOT = Path(__file__).parents[3]
EXAMPLES = sorted((ROOT / "examples").glob("*.attn"))


def planned(text: str) -> KernelPlan:
    """With every walk: those of GPUs and of TPUs."""
    attention = api.analyse(Source(text))
    return with_needs(attention, plan(attention, replace(targets.named("triton").limits(), tpu=True)))


def sections(text: str) -> dict[str, list[str]]:
    """The lines of each section, without the indent."""
    head, *rest = text.rstrip("\n").split("\n\n")
    assert head.startswith("plan ")
    found = {}
    for part in rest:
        title, *lines = part.split("\n")
        assert all(line.startswith("    ") for line in lines), part
        found[title] = [line.removeprefix("    ") for line in lines]
    return found


def test_a_whole_plan() -> None:
    text = plan_text(
        planned(
            """
            attention two
            param n: int where 1 < n and n <= 50
            param bias: f32[Hq] where bias > 0
            score = qk * scale + bias[h]
            mask = k <= q
            normalizer = softmax(sink = bias[h])
            tile q = 128, k = 32
            """
        )
    )
    above, below = text.split(f"tiles on {CHIP}\n")
    tiles, other = below.split("\nkernels of compute capability 9.0\n")
    hopper, others = other.split("\nsequences\n")
    sequences, tpu = others.split("\nkernels of a TPU\n")
    assert (
        sequences
        == """\
    lengths, of start, stop and total:
        begin = min(max(start, 0), total)
        first = max(min(begin, total - 1), 0)
        size = min(max(stop, begin), total) - begin
        slot = sequence * ((total + tile - 1) // tile)
        slots = n_sequences * ((total + tile - 1) // tile)
        before = own_tiles < tiles or own_tiles == tiles and sequence < own
        paired = earlier + order + min(order, most) if rank % 2 == 0 else earlier - least + (2 * order + 1)
        within = max(size - start, 0)
    packed, of start, stop and total:
        begin = min(max(start, 0), total)
        first = max(min(begin, total - 1), 0)
        size = min(max(stop, begin), total) - begin
        slot = begin // tile + sequence
        slots = total // tile + n_sequences
        before = own_tiles < tiles or own_tiles == tiles and sequence < own
        paired = earlier + order + min(order, most) if rank % 2 == 0 else earlier - least + (2 * order + 1)
        within = max(size - start, 0)
    a batch of one is computed as packed rows: head dims up to 128, where no param learns
"""
    )
    assert (
        above
        == """\
plan two

facts
    0 < bias
    2 <= n <= 50

weights: exponential
    weight = exp2(factor * (unit - m)), where m is the running maximum of unit
    factor  = 1.0
    unit    = qk * (scale * 1.4426950408889634) + bias[h] * 1.4426950408889634
    natural = qk * scale + bias[h]
    denominator = sum + exp(bias[h])
    the last summand enters as one more key of natural logit bias[h]

forward, dQ: the keys that the queries q0 … q1 meet
    any: 0 … min(Sk, q1 + 1)
    all: 0 … min(Sk, q0 + 1)
    any_hi = min(Sk, q1 + 1) / tile, rounded up
    any_hi = max(any_hi, 0)
    full_hi = min(Sk, q0 + 1) / tile, rounded down
    full_hi = max(full_hi, 0)
    full_hi = min(max(full_hi, 0), any_hi)
    without a mask: n_steps = full_hi
        at = step
    with the mask: n_steps = any_hi - full_hi
        at = full_hi + step

dK/dV: the queries that the keys k0 … k1 meet
    any: max(0, k0) … Sq
    all: max(0, k1) … Sq
    any_lo = max(0, k0) / tile, rounded down
    any_hi = Sq / tile, rounded up
    any_hi = max(any_hi, any_lo)
    full_lo = max(0, k1) / tile, rounded up
    full_hi = Sq / tile, rounded down
    full_hi = max(full_hi, full_lo)
    full_lo = min(max(full_lo, any_lo), any_hi)
    full_hi = min(max(full_hi, full_lo), any_hi)
    without a mask: n_steps = full_hi - full_lo
        at = full_lo + step
    with the mask: n_steps = full_lo - any_lo + (any_hi - full_hi)
        at = any_lo + step
        at = at if step < full_lo - any_lo else full_hi + step - (full_lo - any_lo)

asked of a key alone: rows of K and V that break it reach nothing
    none

forward, short queries: number `piece` of `pieces` of that walk
    a tile holds the rows of all heads that share keys
    n_full = full_hi
    n_walked = n_full + any_hi - full_hi
    share = n_walked / pieces, rounded up
    first = min(piece * share, n_walked)
    stop = min(first + share, n_walked)
    without a mask: min(first, n_full) … min(stop, n_full)
    with the mask: max(first, n_full) - n_full … max(stop, n_full) - n_full

d natural / d qk = factor * pair
    factor = scale
    pair   = 1.0

gradients
    bias[h]: summed by head
        d natural   = 1.0
        d log extra = 1.0

order
    tiles of queries: late ones first, heads in turn
    tiles of keys: early ones first, heads in turn
    side_by_side(item, n_tiles, heads, together)
        first = item // (n_tiles * together) * together
        width = min(heads - first, together)
        i = item - first * n_tiles
        order = i // width
        return first, order, first + i % width
    head_after_head(n_tiles, n_heads, program)
        i = program // n_tiles
        return program % n_tiles, i // n_heads, i % n_heads

ints
    sequences are shorter than 2**27

"""
    )
    own, heading, columns, *rows = tiles.rstrip("\n").split("\n")
    assert own == "    tile q = 128, k = 32, smaller where the chip has no room"
    assert hopper == "    none\n"  # no kernel of its own has tiles of 32 keys
    assert (
        tpu
        == """\
    keys without a mask: 0 … full_hi
    keys with the mask: full_hi … any_hi
    queries without a mask: full_lo … full_hi
    queries with the mask: any_lo … full_lo, full_hi … any_hi
    one list of runs lo … hi, numbered through from the first one's start
        a run's tiles = hi - lo
        at            = start + step
    for each run after it, from its start
        passed = passed + (hi - lo)
        at     = at if step < passed else start + step - passed
    the grid brings, of the unmasked tiles and then the masked ones
        steps, each has = max(n_full + n_partial, 1)
        or all          = n_tiles
        number          = min(step, max(n_full + n_partial - 1, 0))
        where `at` lies = min(max(at, 0), n_tiles - 1)
        unmasked    = step < n_full
        masked      = n_full <= step and step < n_full + n_partial
        as its step = step - n_full
    a loop of `count` steps, `unroll` of them, j = 0 …, in each round i
        rounds = count / unroll, rounded down
        step            = i * unroll + j
        one by one from = rounds * unroll
    masked tiles in vector memory: a loop, and the last one
        looped = n_partial - 1
        last   = n_partial - 1
        the last one if = 0 < n_partial
        no tile if      = n_partial <= 0
    where n_full and n_partial are known: unmasked tiles in a loop, then all that are left, by number i
        rounds = max(n_full - 1 + min(n_partial, 1), 0) / unroll, rounded down
        looped = rounds * unroll
        left   = n_full - looped
        unmasked step = looped + i
        masked step   = i
    a gradient for each pair: its tile is summed if, for some run
        lo <= at and at < hi
"""
    )
    assert heading == "    (queries, keys, warps, stages) by bytes of an element and head dim"
    assert columns.split() == ["bytes", "head", "dim", "forward", "dkdv", "dq"]
    assert len(rows) == 2 * len(HEAD_BLOCKS)
    starts = {tuple(i for i, c in enumerate(row) if c == "(") for row in rows}
    assert starts == {tuple(columns.index(kernel) for kernel in ("forward", "dkdv", "dq"))}


def test_kernels_of_compute_capability_9() -> None:
    lines = sections(plan_text(planned("attention a\nmask = causal\n")))["kernels of compute capability 9.0"]
    assert lines[:6] == [
        "forward, from the last tile of keys",
        "    the reference may lag behind the maximum by 8 powers of two",
        "    n_steps = max(any_hi, 1)",
        "    at = n_steps - 1 - step",
        "    masked: own_full_hi <= at",
        "    a warpgroup's own steps may begin late",
    ]
    assert "    dQ is added in turn: each waits for the tile of keys before it" in lines
    counts = lines.index("        counts: queue, added")
    assert lines[counts + 1 : counts + 3] == [
        "        a program that prepares 32 rows clears 128 ints",
        "        sequences: if tiles of 64 queries are at most 30 times those programs",
    ]
    few = "max(2, min(8, 150994944 // size))"
    large = "25165824 < size or 32 <= n_tiles and 1073741824 < B * Hq * n_tiles * (512 * (D + Dv))"
    heads = f"(16 if size < 12582912 else {few}) if {large} else 32 if n_tiles < 32 else B * Hq"
    wanted = f"{heads} heads of items are wanted; {few} of several sequences"
    assert f"    query heads that share keys: {wanted}" in lines
    assert "    heads with size > 25165824: onwards, so many in turn" in lines
    assert sum(line.startswith("    head dims 128, 128: ") for line in lines) == 2


def test_data_tests_segments_and_absent_gradients() -> None:
    found = sections(
        plan_text(planned("attention packed\nparam ids: int[B, Sk]\nmask = same_document(ids) and (causal or k < 4)\n"))
    )
    keys = found["forward, dQ: the keys that the queries q0 … q1 meet"]
    assert keys[0].startswith("test0: ids[b, q] == ")
    assert keys[0].endswith("from the extremes of each tile of keys and of the tile of queries")
    assert [line.split(":")[0] for line in keys[1:5]] == ["any", "any", "all", "all"]
    assert all("test0_any_lo" in line and "test0_any_hi" in line for line in keys if line.startswith("any:"))
    queries = found["dK/dV: the queries that the keys k0 … k1 meet"]
    assert queries[0].endswith("from the extremes of each tile of queries and of the tile of keys")
    assert found["gradients"] == ["none"]
    assert found["facts"] == ["none"]
    assert found["forward, short queries: number `piece` of `pieces` of that walk"] != ["none"]


def test_what_cannot_be_solved_says_so() -> None:
    found = sections(plan_text(planned("attention odd\nmask = (q * k) % 3 == 0\n")))
    assert found["forward, dQ: the keys that the queries q0 … q1 meet"] == [
        "any: 0 … Sk",
        "all: nothing",
        "any_hi = Sk / tile, rounded up",
        "any_hi = max(any_hi, 0)",
        "with the mask: n_steps = any_hi",
        "    at = step",
    ]
    assert found["forward, short queries: number `piece` of `pieces` of that walk"][-1] == "with the mask: first … stop"


def test_direct_weights() -> None:
    found = sections(
        plan_text(planned("attention gate\nparam bias: f32\nscore = qk * scale + bias\nnormalizer = sigmoid\n"))
    )
    assert found["weights: direct"] == [
        "weight = stream(s), without a running maximum",
        "s      = qk * scale + bias",
        "stream = sigmoid(s)",
        "slope  = sigmoid(s) * (1.0 - sigmoid(s))",
        "denominator = 1.0",
    ]
    assert found["gradients"] == ["bias: summed by head", "    d natural = 1.0"]
    assert found["order"][:2] == ["tiles of queries: heads one by one", "tiles of keys: heads one by one"]
    assert found["order"][-3:] == [
        "head_after_head(n_tiles, n_heads, program)",
        "    i = program // n_tiles",
        "    return program % n_tiles, i // n_heads, i % n_heads",
    ]


def test_dropout() -> None:
    lines = sections(plan_text(planned("attention thin\ndropout = 0.25\n")))["weights: exponential"]
    assert lines[-1] == "normalised, then kept with probability 1 - 0.25, by Philox of the pair"
    piece = piece_of(api.analyse(Source("attention thin\ndropout = 0.25\n")), each=True).own
    lines = sections(plan_text(api.plan(piece)))["weights: exponential"]
    assert lines[-1] == "a pair is counted as (k + k_offset[b], q + q_offset[b], h + h_offset[b], b + b_offset[b])"
    assert "dropout = 0.25, counted as (k + k_offset[b], q + q_offset[b]" in printing.attention(piece)


def test_shifted_weights() -> None:
    found = sections(
        plan_text(
            planned(
                """
                attention powered
                param e: f32[Hq]
                normalizer cubed {
                    weight(s) = exp(s) * (1 + exp(-abs(s)))
                    denominator = sum + exp(e[h])
                    shift = max
                    weight(s, m) = exp(s - m) * (1 + exp(-abs(s)))
                    rescale(m, n) = exp(m - n)
                }
                normalizer = cubed
                """
            )
        )
    )
    lines = found["weights: shifted"]
    assert lines[:2] == [
        "weight = stream(s, m), where m is the running maximum of s",
        "rescale(m, n) = exp2(factor * (m - n))",
    ]
    assert lines[2:4] == ["s      = qk * scale", "stream = exp(s - m) * (1.0 + exp(-abs(s)))"]
    assert lines[5:] == [
        "factor = 1.4426950408889634",
        "denominator = sum + exp(e[h])",
        "the last summand enters as one more key of natural logit e[h]",
    ]
    assert found["gradients"] == ["e[h]: summed by head", "    d log extra = 1.0"]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_every_example_prints(path: Path) -> None:
    spec = api.analyse(Source(path.read_text(encoding="utf-8"), path.name))
    text = plan_text(api.plan(spec))
    found = sections(text)
    assert text.startswith(f"plan {spec.name}\n") and text.endswith("\n") and not text.endswith("\n\n")
    rare = {"approximate in half precision", "one for each diagonal of a tile"} & found.keys()
    assert len(found) == 13 + len(rare) and all(found.values())
    for param in spec.params:
        has_gradient = any(line.startswith((f"{param.name}:", f"{param.name}[")) for line in found["gradients"])
        in_scores = param.type is Type.FLOAT and (spec.dropout is None or param.name not in walk.params(spec.dropout))
        assert has_gradient == in_scores, param.name


def test_the_text_does_not_depend_on_the_run() -> None:
    texts = [
        subprocess.run(
            [sys.executable, "-m", "attngen", "compile", "examples/window_global.attn", "--emit", "plan"],
            cwd=ROOT, env={**os.environ, "PYTHONHASHSEED": seed}, check=True, capture_output=True, text=True,
        ).stdout
        for seed in ("1", "2")
    ]  # fmt: skip
    assert texts[0] == texts[1] and texts[0].startswith("plan window_global\n")
