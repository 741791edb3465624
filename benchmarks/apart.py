"""The backward pass above head dim 128, whose dK/dV and dQ have a kernel each: right or not, how fast, in which form.

    python benchmarks/gpu.py prepare build/kernels                  # where attngen is installed
    python benchmarks/apart.py --kernels build/kernels -o apart.json  # on an H100 or H200; about three minutes

First every variant and form in a process of its own, which is ended if it hangs, against dense attention in float64 on
ragged lengths and heads in groups; this compiles what is timed, too. Then causal and full, D = 256, N = 4096 and 16384,
the two kernels in each form beside the portable ones and cuDNN, turn about; and each kernel's own time. A form is a
change of the table HOPPER_APART in the generated file.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import math
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import peers
import torch
from cells import FULL_SIZE, VARIANTS, Cell, fraction, make_inputs, mask_mod, score_mod
from torch import Tensor

from attngen.runtime.bench import contenders
from attngen.runtime.loader import load

Row = tuple[Any, ...]

FORMS: Mapping[str, Callable[[Row, Row], tuple[Row, Row]]] = {
    "as it stands": lambda keys, rows: (keys, rows),
    "two tiles of weights ahead": lambda keys, rows: ((*keys[:3], 2, *keys[4:]), rows),
    "two heads in turn": lambda keys, rows: ((*keys[:4], 2, *keys[5:]), (*rows[:4], 2, *rows[5:])),
}
"""What is changed of the rows of dK/dV and of dQ."""

PORTABLE = "portable"
CHECKS = [
    *((variant, 256, 256, "as it stands") for variant in VARIANTS),
    *(("causal", D, Dv, "as it stands") for D, Dv in ((192, 128), (160, 160), (128, 256))),
    *((variant, 256, 256, form) for variant in ("causal", "full") for form in (*list(FORMS)[1:], PORTABLE)),
]
TOLERANCE = 1e-2
HANGS = 100
"""Seconds after which a process, most of which is compilation, is ended."""


def function_of(kernels: peers.Kernels, variant: str, form: str) -> Callable[..., Tensor]:
    """The generated function in one form; its operators are marked, since each name exists once."""
    number = [*FORMS, PORTABLE].index(form)
    source = kernels.path(variant).read_text(encoding="utf-8").replace('"attngen::', f'"attngen_{number}::')
    module: Any = load(source, f"{variant}_{number}")
    if form == PORTABLE:
        module.HOPPER_APART.clear()
    else:
        for dims, (keys, rows) in list(module.HOPPER_APART.items()):
            module.HOPPER_APART[dims] = FORMS[form](keys, rows)
    return getattr(module, kernels.functions[variant])


# ---------------------------------------------------------------- right or not


def dense(variant: str, params: Mapping[str, Any], q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention in float64, heads of q in groups."""
    change, allowed = score_mod(variant, FULL_SIZE, params), mask_mod(variant, FULL_SIZE, params)
    group = q.shape[1] // k.shape[1]
    score = q @ k.repeat_interleave(group, 1).transpose(2, 3) / math.sqrt(q.shape[3])
    places = [torch.arange(n, device=q.device) for n in score.shape]
    b, h, i, j = (x.view([-1 if axis == n else 1 for n in range(4)]) for axis, x in enumerate(places))
    score = score if change is None else change(score, b, h, i, j)
    score = score if allowed is None else score.masked_fill(~allowed(b, h, i, j), -math.inf)
    return torch.softmax(score, -1) @ v.repeat_interleave(group, 1)


def check(kernels: peers.Kernels, variant: str, D: int, Dv: int, form: str) -> float:
    """The largest relative error of dq, dk and dv; inf where two runs differ, or something is not finite."""
    function = function_of(kernels, variant, form)
    worst = 0.0
    for N in (300, 1090):
        cell = Cell(variant, D, N, tokens=2 * N, width=4 * D)
        params = make_inputs(cell, FULL_SIZE, device="cuda", seed=0).params
        generator = torch.Generator("cuda").manual_seed(N)
        shapes = ((4, D), (2, D), (2, Dv), (4, Dv))
        made = [torch.randn(2, N, heads, d, generator=generator, device="cuda").bfloat16() for heads, d in shapes]
        q, k, v, d_out = (x.transpose(1, 2) for x in made)
        leaves = [x.requires_grad_() for x in (q, k, v)]
        exact = [x.detach().double().requires_grad_() for x in leaves]
        wanted = torch.autograd.grad(dense(variant, params, *exact), exact, d_out.double())
        out = function(*leaves, **params)
        found = [torch.autograd.grad(out, leaves, d_out, retain_graph=True) for _ in range(3)]
        for mine, again, thrice, right in zip(*found, wanted, strict=True):
            same = torch.equal(mine, again) and torch.equal(mine, thrice) and bool(torch.isfinite(mine).all())
            worst = max(worst, float((mine.double() - right).norm() / right.norm()) if same else math.inf)
    return worst


def checked(directory: Path, case: tuple[str, int, int, str]) -> tuple[tuple[str, int, int, str], str]:
    """What a process of its own says of a case."""
    command = [sys.executable, __file__, "--kernels", str(directory), "--one", json.dumps(case)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=HANGS, check=False)
    except subprocess.TimeoutExpired:
        return case, "hangs"
    return case, done.stdout.strip() if done.returncode == 0 else f"fails: {done.stderr.strip()[-1500:]}"


def check_all(directory: Path, at_once: int) -> dict[str, str]:
    """Nothing more where the first case hangs."""
    found: dict[str, str] = {}

    def keep(case: tuple[str, int, int, str], said: str) -> None:
        found[" ".join(map(str, case))] = said
        print("check", *case, said, flush=True)

    keep(*checked(directory, CHECKS[0]))
    if "hangs" not in found.values():
        with ThreadPoolExecutor(at_once) as pool:
            for case, said in pool.map(partial(checked, directory), CHECKS[1:]):
                keep(case, said)
    return found


# ---------------------------------------------------------------- how fast


def works(kernels: peers.Kernels, cell: Cell, forms: list[str]) -> dict[str, Callable[[], object]]:
    """The backward pass of each contender, over a kept graph."""
    inputs = make_inputs(cell, FULL_SIZE, device="cuda", seed=0)
    found: dict[str, Callable[[], object]] = {}
    for form in forms:
        out = function_of(kernels, cell.variant, form)(*inputs.qkv)
        found[form] = partial(torch.autograd.grad, out, inputs.qkv, inputs.grad_out, retain_graph=True)
    cudnn = contenders.scaled("cudnn", causal=cell.variant == "causal", device="cuda")
    with cudnn.scope():
        out = cudnn.attend(*inputs.qkv)
    found["cudnn"] = partial(torch.autograd.grad, out, inputs.qkv, inputs.grad_out, retain_graph=True)
    return found


def milliseconds(found: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    from triton.testing import do_bench

    spent: dict[str, list[float]] = {name: [] for name in found}
    for turn in range(rounds):
        for name in reversed(found) if turn % 2 else found:
            spent[name].append(do_bench(found[name], warmup=10, rep=60, return_mode="median"))
    return {name: statistics.median(times) for name, times in spent.items()}


def by_kernel(work: Callable[[], object]) -> dict[str, float]:
    """Milliseconds of each kernel of ours that one call runs."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(5):
            work()
        torch.cuda.synchronize()
    ours = [e for e in profile.key_averages() if e.key.startswith("_")]
    return {e.key: e.self_device_time_total / e.count / 1e3 for e in ours}


def measure(kernels: peers.Kernels, forms: list[str], rounds: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for variant in ("causal", "full"):
        for N in (16384, 4096):
            faulthandler.dump_traceback_later(120, exit=True)
            cell = Cell(variant, 256, N)
            contending = works(kernels, cell, forms)
            times = milliseconds(contending, rounds)
            flops = cell.backward_flops(fraction(cell, FULL_SIZE))
            tflops = {name: round(flops / ms / 1e9, 1) for name, ms in times.items()}
            print(cell.key, json.dumps(tflops), flush=True)
            parts = {name: by_kernel(contending[name]) for name in contending if name in ("as it stands", PORTABLE)}
            print(cell.key, json.dumps(parts), flush=True)
            found.append({"cell": cell.key, "ms": times, "tflops": tflops, "kernels": parts})
            faulthandler.cancel_dump_traceback_later()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernels", type=Path, default=peers.ROOT / "build" / "kernels", metavar="DIR")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--at-once", type=int, default=8, help="processes that check, and compile, at a time")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("-o", "--output", type=Path, metavar="FILE")
    args = parser.parse_args()
    kernels = peers.Kernels.at(args.kernels)
    if args.one:
        print(f"{check(kernels, *json.loads(args.one)):.1e}")
        return
    said = check_all(args.kernels, args.at_once)
    right = {case for case, text in said.items() if text[0].isdigit() and float(text) <= TOLERANCE}
    forms = [f for f in (*FORMS, PORTABLE) if all(f"{v} 256 256 {f}" in right for v in ("causal", "full"))]
    record = {"machine": torch.cuda.get_device_name(), "checks": said, "timed": measure(kernels, forms, args.rounds)}
    if args.output is not None:
        args.output.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    sys.exit(0 if len(right) == len(said) else 1)


if __name__ == "__main__":
    main()
