"""The Hopper kernels without one of their parts: what the part costs, where others do not hide it.

    python benchmarks/without.py -o "$OUT/without.json"       # on an H100 or H200; --kernels DIR as for gpu.py

A line of the generated file is replaced by one that does less, so results are wrong, and the time is what counts:
bfloat16, 16,384 tokens, N = 16384, causal and full, D = 64 and 128. All forms of a kernel take turns, so that a card
that throttles slows all of them alike. What the whole kernel takes is in the same run, as `nothing`.
"""

from __future__ import annotations

import argparse
import re
import statistics
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import peers
import torch
from cells import FULL_SIZE, Cell, make_inputs

from attngen.files import json_rows
from attngen.runtime.loader import load

Change = tuple[str, str]

DIMS = (64, 128)
VARIANTS = ("causal", "full")

_EXPONENTIALS = ('make += [f"ex2.approx.ftz.f32 w{j}, w{j};" for j', 'make += [f"mov.f32 w{j}, w{j};" for j')
_SUMS = ("for j in range(4, 2 * n)]", "for j in ()]")
_TEST = (
    '*passed,\n        "or.pred a, a, b; vote.sync.any.pred a, a, -1; @!a bra.uni done;",',
    '"bra.uni done;",',
)
_RESCALING = ("acc = sm90.rescaled(acc, rescale)", "acc = acc")
_WEIGHTS_AGAIN = ("p = tl.exp2(qk * logit_scale - row_lse)", "p = qk * logit_scale - row_lse")
_ADDING = ("if joins:\n            gl.atomic_add", "if turn < -1:\n            gl.atomic_add")
_FIRST_PARTS = (
    "else:\n            gl.store(cells, held)",
    "elif turn < -1:\n            gl.store(cells, held)",
)
_TURNS = (("setp.ne.s32 p, v, $2;", "setp.ne.s32 p, v, v;"),)

WITHOUT: Mapping[str, Mapping[str, tuple[Change, ...]]] = {
    "forward": {
        "nothing": (),
        "exponentials": (_EXPONENTIALS,),
        "the test of sums": (_TEST,),
        "sums": (_SUMS,),
        "rescaling of sums": (_RESCALING,),
        "all of these": (_EXPONENTIALS, _SUMS, _TEST, _RESCALING),
    },
    "backward": {
        "nothing": (),
        "exponentials": (_WEIGHTS_AGAIN,),
        "turns": _TURNS,
        "writing dQ": (_ADDING, _FIRST_PARTS),
        "all of these": (_WEIGHTS_AGAIN, *_TURNS, _ADDING, _FIRST_PARTS),
    },
}
"""Direction, the part that is left out, and what stands in the file instead."""


def changed(source: str, changes: tuple[Change, ...], mark: str) -> str:
    """The file without a part; its operators are marked, since each name exists once. ValueError: no such line."""
    for old, new in changes:
        if old not in source:
            raise ValueError(f"the generated file has no line {old!r}")
        source = source.replace(old, new)
    return re.sub(r'"(attngen::\w+)"', rf'"\1_{mark}"', source)


def call(cell: Cell, kernels: peers.Kernels, direction: str, without: str) -> Callable[[], object]:
    """What is timed."""
    inputs = make_inputs(cell, FULL_SIZE, device="cuda", seed=0)
    source = kernels.path(cell.variant).read_text(encoding="utf-8")
    number = list(WITHOUT[direction]).index(without)
    module = load(changed(source, WITHOUT[direction][without], f"{direction}_{number}"), f"{cell.variant}_{number}")
    attend = getattr(module, kernels.functions[cell.variant])
    if direction == "forward":
        return partial(attend, *inputs.qkv)
    out = attend(*inputs.qkv)
    return partial(torch.autograd.grad, out, inputs.qkv, inputs.grad_out, retain_graph=True)


def compiled(directory: Path, variant: str, head_dim: int, direction: str, without: str) -> None:
    """Leaves the kernels in Triton's cache. A length compiles nothing, so a short one will do."""
    call(Cell(variant, head_dim, 128, tokens=128), peers.Kernels.at(directory), direction, without)()


def milliseconds(works: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    from triton.testing import do_bench

    spent: dict[str, list[float]] = {name: [] for name in works}
    for turn in range(rounds):
        for name in reversed(works) if turn % 2 else works:
            spent[name].append(do_bench(works[name], warmup=10, rep=60, return_mode="median"))
    return {name: round(statistics.median(times), 4) for name, times in spent.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernels", type=Path, default=peers.ROOT / "build" / "kernels", metavar="DIR")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--at-once", type=int, default=12, help="processes that compile at a time")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE")
    args = parser.parse_args()
    kernels = peers.Kernels.at(args.kernels)
    found: list[dict[str, Any]] = []
    cases = [(v, d, way, part) for way in WITHOUT for d in DIMS for v in VARIANTS for part in WITHOUT[way]]
    with ProcessPoolExecutor(args.at_once, get_context("spawn")) as pool:
        for _ in pool.map(partial(compiled, args.kernels), *zip(*cases, strict=True)):
            pass
    for direction in WITHOUT:
        for head_dim in DIMS:
            for variant in VARIANTS:
                cell = Cell(variant, head_dim, 16384)
                works = {part: call(cell, kernels, direction, part) for part in WITHOUT[direction]}
                times = milliseconds(works, args.rounds)
                found.append({"direction": direction, "cell": cell.key, "ms": times})
                whole = times["nothing"]
                print(direction, cell.key, *(f"{n} {t / whole:.3f}" for n, t in times.items()), flush=True)
    date = datetime.now(UTC).date().isoformat()
    record = {"machine": torch.cuda.get_device_name(), "date": date, "torch": torch.__version__, "without": found}
    if args.output is not None:
        args.output.write_text(json_rows(record), encoding="utf-8")


if __name__ == "__main__":
    main()
