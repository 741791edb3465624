"""Clock and power of the card while one kernel runs on, and what that leaves of its speed.

    python benchmarks/power.py --kernels build/kernels -o "$OUT/power.json"       # on a GPU; --peers fa4,cudnn

bfloat16, 16,384 tokens, N = 16384, causal and full, D = 64 and 128. Each contender rests the card for 0.4 s, then runs
for 1.2 s, while nvidia-smi reads clock and power every 20 ms. `first` is of the first 0.1 s, when the card still has
its highest clock (its power is a mean over a longer time, so that of `first` says little); `steady` of the last 0.7 s.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import peers
import torch
from cells import FULL_SIZE, Cell, make_inputs

from attngen.bench.race import graph
from attngen.files import json_rows

DIMS = (64, 128)
VARIANTS = ("causal", "full")
REST, RUN = 0.4, 1.2
SPANS = {"first": (0.0, 0.1), "steady": (0.5, RUN)}
QUERY = ("nvidia-smi", "--query-gpu=clocks.sm,power.draw", "--format=csv,noheader,nounits", "-lms", "20")


@dataclass(frozen=True, slots=True)
class Reading:
    """At `seconds` of the host's clock: the multiprocessors' clock in MHz, the card's power in watts."""

    seconds: float
    mhz: float
    watts: float


def reading(line: str, seconds: float) -> Reading:
    """A line of nvidia-smi's. Raises ValueError where a card does not tell its clock or its power."""
    mhz, watts = line.split(",")
    return Reading(seconds, float(mhz), float(watts))


def averaged(
    calls: Sequence[tuple[float, float]], readings: Sequence[Reading], flops: float, start: float
) -> dict[str, dict[str, int]]:
    """By span: TFLOP/s of the calls, (seconds since the start, milliseconds of one), clock and power. Spans without
    calls or readings are left out."""
    found: dict[str, dict[str, int]] = {}
    for name, (since, until) in SPANS.items():
        ms = [m for t, m in calls if since <= t < until]
        read = [r for r in readings if start + since <= r.seconds < start + until]
        if ms and read:
            found[name] = {
                "tflops": round(flops * len(ms) / sum(ms) / 1e9),
                "mhz": round(sum(r.mhz for r in read) / len(read)),
                "watts": round(sum(r.watts for r in read) / len(read)),
            }
    return found


def kept_busy(work: Callable[[], object], at_a_time: int = 8) -> tuple[float, list[tuple[float, float]]]:
    """When it began, and milliseconds of a call with the second at which they were known."""
    work()
    torch.cuda.synchronize()
    time.sleep(REST)
    calls: list[tuple[float, float]] = []
    start = time.monotonic()
    before = torch.cuda.Event(enable_timing=True)
    before.record()
    while time.monotonic() - start < RUN:
        for _ in range(at_a_time):
            work()
        after = torch.cuda.Event(enable_timing=True)
        after.record()
        after.synchronize()
        calls.append((time.monotonic() - start, before.elapsed_time(after) / at_a_time))
        before = after
    return start, calls


def measure(cell: Cell, names: Sequence[str], kernels: peers.Kernels, readings: list[Reading]) -> list[dict[str, Any]]:
    inputs = make_inputs(cell, FULL_SIZE, device="cuda", seed=0)
    share = 0.5 if cell.variant == "causal" else 1.0
    found: list[dict[str, Any]] = []
    for name in names:
        if name != "attngen" and (not peers.applies(name, cell) or peers.unable(name, cell, device="cuda")):
            continue
        made = peers.contender(name, cell, inputs, FULL_SIZE, kernels, device="cuda")
        for direction in ("forward", "backward"):
            flops = cell.forward_flops(share) if direction == "forward" else cell.backward_flops(share)
            with made.scope():
                start, calls = kept_busy(graph(made, inputs.qkv, inputs.grad_out, direction))
            spans = averaged(calls, readings, flops, start)
            found.append({"cell": cell.key, "direction": direction, "contender": name, **spans})
            said = ", ".join(f"{s} {x['tflops']} TFLOP/s {x['mhz']} MHz {x['watts']} W" for s, x in spans.items())
            print(f"{cell.key} {direction} {name}: {said}", flush=True)
    return found


def main() -> int:
    p = argparse.ArgumentParser(prog="power.py", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("--kernels", type=Path, required=True, metavar="DIR", help="what `gpu.py prepare` wrote")
    p.add_argument("--peers", default="fa4,cudnn", metavar="PEER,…", help="beside attngen (%(default)s)")
    p.add_argument("-o", "--output", type=Path, help="the JSON")
    args = p.parse_args()
    kernels = peers.Kernels.at(args.kernels)
    readings: list[Reading] = []
    with subprocess.Popen(QUERY, stdout=subprocess.PIPE, text=True) as smi:
        lines = smi.stdout
        assert lines is not None

        def listen() -> None:
            for line in lines:
                readings.append(reading(line, time.monotonic()))

        threading.Thread(target=listen, daemon=True).start()
        try:
            names = ("attngen", *args.peers.split(","))
            every = [Cell(v, D, 16384) for D in DIMS for v in VARIANTS]
            found = [r for cell in every for r in measure(cell, names, kernels, readings)]
        finally:
            smi.terminate()
    if args.output:
        date = datetime.now(UTC).date().isoformat()
        result = {"machine": torch.cuda.get_device_name(), "date": date, "torch": torch.__version__, "power": found}
        args.output.write_text(json_rows(result), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
