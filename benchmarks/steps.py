"""Training steps of transformers' models on random weights, by attngen's kernels and by the models' own attention.

    python benchmarks/steps.py prepare build/steps             # where attngen is
    python benchmarks/steps.py run --kernels build/steps       # on the GPU: torch, triton and transformers suffice
    python benchmarks/steps.py table                           # afterwards, anywhere

A model is measured by eager PyTorch, then by torch.compile (inductor), each beside sdpa (eager attention where sdpa
lacks what the model needs) and flex_attention. First each contender takes a step in a process of its own, with empty
caches: `first_s`. There loss and gradients of two layers on a shorter sequence are compared with float32 by eager
attention. Those that are right are then timed in turns in one process, which finds their kernels in the caches.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import report
import saved
from report import Result, say
from saved import Files
from step_models import (
    MODELS,
    WAYS,
    Model,
    built,
    compiled,
    distance,
    dry,
    first,
    gradients,
    register,
    specs,
    step,
    switch,
    tokens,
)

if TYPE_CHECKING:
    from torch import Tensor

HERE = Path(__file__).resolve().parent
SLACK, LEAST = 1.5, 5e-3
"""A contender is right if its error is at most SLACK times that of the model's own attention, or LEAST."""
UNTIMED = {True: "not timed", False: "wrong", None: "not compared"}
ASKED = {
    "llama:1x32768:eager": ("sdpa", 1.09),
    "gemma2:1x8192:eager": ("flex_attention", 1.6),
    "gpt_oss:1x16384:eager": ("flex_attention", 1.15),
}
"""What a step owes over the implementation named."""


# ---- steps in turns --------------------------------------------------------------------------------------------------


def timed(call: Callable[..., Any], network: Any, ids: Tensor, device: str) -> tuple[float, float]:
    """Milliseconds of the forward and of the backward pass."""
    import torch

    if device != "cuda":
        at = [time.perf_counter()]
        step(call, network, ids, lambda: at.append(time.perf_counter()))
        at.append(time.perf_counter())
        return (at[1] - at[0]) * 1e3, (at[2] - at[1]) * 1e3
    events = [torch.cuda.Event(enable_timing=True) for _ in range(3)]
    events[0].record()
    step(call, network, ids, events[1].record)
    events[2].record()
    torch.cuda.synchronize()
    return events[0].elapsed_time(events[1]), events[1].elapsed_time(events[2])


def race(model: Model, names: Sequence[str], args: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Of implementations: medians, peak memory beside the weights, and the gradients' distance from those of the first
    one, all in one process."""
    import torch

    from attngen.bench.race import mistakes

    register(model, args.kernels)
    network = built(model, args.device)
    ids = tokens(model, model.S, args.device)
    call = compiled(network, args.way)
    records: dict[str, dict[str, Any]] = {}
    reference: dict[str, Tensor] | None = None
    held = torch.cuda.memory_allocated() if args.device == "cuda" else 0
    for name in names:
        switch(network, name)
        try:
            loss = float(step(call, network, ids))
            found = gradients(network)
            reference = found if reference is None else reference
            records[name] = {"loss": loss, "apart": distance(found, reference)}
            del found
            if args.device == "cuda":
                network.zero_grad(set_to_none=True)
                torch.cuda.synchronize()
                torch.cuda.reset_peak_memory_stats()
                step(call, network, ids)
                records[name]["peak_bytes"] = torch.cuda.max_memory_allocated() - held - _bytes(reference)
        except mistakes() as error:
            records[name] = {"failure": f"{type(error).__name__}: {str(error).strip().splitlines()[0][:300]}"}
    reference = None
    ready = [n for n in names if "failure" not in records[n]]
    samples: dict[str, list[tuple[float, float]]] = {name: [] for name in ready}
    for turn in range(args.rounds):
        for name in ready[:: 1 if turn % 2 == 0 else -1]:
            switch(network, name)
            timed(call, network, ids, args.device)
            samples[name] += [timed(call, network, ids, args.device) for _ in range(args.steps)]
    for name, spent in samples.items():
        records[name] |= {
            "forward_ms": statistics.median(f for f, _ in spent),
            "backward_ms": statistics.median(b for _, b in spent),
            "step_ms": statistics.median(f + b for f, b in spent),
            "least_ms": min(f + b for f, b in spent),
            "steps": len(spent),
        }
    return records


def _bytes(reference: Mapping[str, Tensor] | None) -> int:
    return sum(x.nbytes for x in (reference or {}).values())


# ---- the run ---------------------------------------------------------------------------------------------------------


def child(args: argparse.Namespace) -> Any:
    """One process's part: a first step, or the race; the answer as JSON in `--answer`."""
    (model,) = (m for m in models(args.device) if m.key == args.model)
    if args.first:
        found: Any = first(model, args.first, args.way, args.kernels, args.device)
    else:
        found = race(model, args.race, args)
    args.answer.write_text(json.dumps(found), encoding="utf-8")
    return found


def models(device: str) -> list[Model]:
    if device == "cuda":
        return list(MODELS)
    return list({m.key: m for m in map(dry, MODELS)}.values())


def started(args: argparse.Namespace, model: Model, rest: Sequence[str], folder: Path, caches: Path) -> Any:
    """A child, and where its answer will be."""
    answer = folder / "answer.json"
    command = [
        sys.executable, str(Path(__file__).resolve()), "child", "--model", model.key, "--kernels", str(args.kernels),
        "--device", args.device, "--rounds", str(args.rounds), "--steps", str(args.steps), "--answer", str(answer),
        *rest,
    ]  # fmt: skip
    places = {"TORCHINDUCTOR_CACHE_DIR": str(caches / "inductor"), "TRITON_CACHE_DIR": str(caches / "triton")}
    return subprocess.Popen(command, env={**os.environ, **places}), answer


def answered(process: subprocess.Popen[bytes], answer: Path, limit: float) -> Any:
    """What a child answered, or why there is nothing."""
    try:
        process.wait(timeout=limit)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return {"failure": f"took over {limit:.0f} s"}
    return json.loads(answer.read_text()) if answer.exists() else {"failure": f"exit status {process.returncode}"}


def first_steps(args: argparse.Namespace, model: Model, way: str, names: Sequence[str], folder: Path) -> dict[str, Any]:
    """Each implementation's, in processes of their own, `--together` at a time, each with empty caches. The caches are
    merged afterwards into `folder/all`."""
    found: dict[str, Any] = {}
    for i in range(0, len(names), args.together):
        running: dict[str, Any] = {}
        for name in names[i : i + args.together]:
            own = folder / name
            own.mkdir(parents=True)
            running[name] = started(args, model, ["--way", way, "--first", name], own, own / "caches")
        for name, (process, answer) in running.items():
            found[name] = answered(process, answer, args.limit)
            say(f"{model.key} {name} {way}, first step: {found[name]}")
    for name in names:
        if (folder / name / "caches").exists():
            shutil.copytree(folder / name / "caches", folder / "all", dirs_exist_ok=True)
    return found


def right(model: Model, found: Mapping[str, Any], name: str) -> bool | None:
    """Whether its loss and gradients are as near to float32 as those of the model's own attention; None if either
    has no errors to compare."""
    own, base = (found[n].get("errors") for n in (name, model.peers[0]))
    if own is None or base is None:
        return None
    return all(own[x] <= max(SLACK * base[x], LEAST) for x in base)


def measure(model: Model, way: str, args: argparse.Namespace) -> Result:
    names = [*model.peers, "attngen"]
    with tempfile.TemporaryDirectory(prefix="attngen-steps-") as temporary:
        folder = Path(temporary)
        records = first_steps(args, model, way, names, folder)
        for name in names:
            if "failure" not in records[name]:
                records[name]["right"] = right(model, records, name)
        ready = [n for n in names if records[n].get("right")]
        own = folder / "race"
        own.mkdir()
        process, answer = started(args, model, ["--way", way, "--race", *ready], own, folder / "all")
        timings = answered(process, answer, args.limit)
    if "failure" in timings:
        say(f"{model.key} {way}: {timings['failure']}")
        timings = dict.fromkeys(ready, timings)
    for name, found in timings.items():
        records[name] |= found
    return {
        "key": f"{model.key}:{way}", "family": model.family, "config": dict(model.config), "B": model.B, "S": model.S,
        "way": way, "checked": model.checked, "together": args.together, "contenders": records,
    }  # fmt: skip


def run(args: argparse.Namespace) -> int:
    from importlib.metadata import version

    from gpu import software

    began, note = time.monotonic(), ""
    machine, versions = software(args.device)
    versions["transformers"] = version("transformers")
    result: Result = {
        "machine": machine, "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "versions": versions, "kernels": Files.at(args.kernels).digests(), "cells": [],
    }  # fmt: skip
    if args.output.exists():
        kept = report.read(args.output)
        if all(kept[x] == result[x] for x in ("machine", "versions", "kernels")):
            result["cells"] = kept["cells"]
    done = {c["key"] for c in result["cells"]}
    for model, way in ((model, way) for way in args.ways for model in models(args.device)):
        key = f"{model.key}:{way}"
        if key in done or (args.only and not any(key.startswith(o) for o in args.only)):
            continue
        if time.monotonic() - began > args.budget:
            note = f"stopped at the budget of {args.budget:.0f} s before {key}: the same command continues"
            break
        result["cells"].append(measure(model, way, args))
        report.write(args.output, result)
        say(table({**result, "cells": result["cells"][-1:]}))
    print(table(result))
    if note:
        print(note)
    failed = [n for c in result["cells"] for n, r in c["contenders"].items() if "failure" in r or not r.get("right")]
    return 1 if note or failed else 0


# ---- what is shown ---------------------------------------------------------------------------------------------------


def table(result: Result) -> str:
    """A row an implementation: step, forward and backward in milliseconds, peak memory, the first step's seconds."""
    rows = [["model", "attention", "step ms", "forward", "backward", "peak GiB", "first s", "attngen x"]]
    for cell in result["cells"]:
        ours = cell["contenders"]["attngen"].get("step_ms")
        for name, record in cell["contenders"].items():
            first_s = f"{record['first_s']:.1f}" if "first_s" in record else ""
            if "step_ms" not in record:
                why = record.get("failure") or UNTIMED[record.get("right")]
                rows.append([cell["key"], name, why, "", "", "", first_s, ""])
                continue
            peak = record.get("peak_bytes")
            rows.append(
                [
                    cell["key"],
                    name,
                    *(f"{record[x]:.1f}" for x in ("step_ms", "forward_ms", "backward_ms")),
                    "" if peak is None else f"{peak / 2**30:.2f}",
                    first_s,
                    "" if ours is None or name == "attngen" else f"x{record['step_ms'] / ours:.2f}",
                ]
            )
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = ["  ".join(text.ljust(w) for text, w in zip(row, widths, strict=True)).rstrip() for row in rows]
    for cell in result["cells"]:
        if cell["key"] in ASKED:
            peer, asked = ASKED[cell["key"]]
            steps = [cell["contenders"].get(n, {}).get("step_ms") for n in (peer, "attngen")]
            if None not in steps:
                ratio = steps[0] / steps[1]
                mark = "" if ratio >= asked else "  <"
                lines.append(f"{cell['key']} over {peer}: x{ratio:.2f}, asked {asked:.2f}{mark}")
    return "\n".join([*lines, f"{result['machine']}, {result['date']}; x = the peer's step over attngen's"])


def main(argv: list[str]) -> int:
    top = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = top.add_subparsers(dest="command", required=True)
    p = commands.add_parser("prepare", help="compile the specs into a directory (needs attngen)")
    p.add_argument("directory", type=Path)
    p.add_argument("--dry", action="store_true", help="for a dry run")
    for name in ("run", "child"):
        p = commands.add_parser(name, help="measure, or continue a run" if name == "run" else "what `run` starts")
        p.add_argument("--kernels", type=Path, required=True, metavar="DIR", help="what `prepare` wrote")
        p.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: a dry run of tiny models")
        p.add_argument("--rounds", type=int, default=3, help="turns of each contender (%(default)s)")
        p.add_argument("--steps", type=int, default=3, help="steps of a turn (%(default)s)")
        if name == "child":
            p.add_argument("--model", required=True)
            p.add_argument("--way", choices=WAYS, default=WAYS[0])
            p.add_argument("--first")
            p.add_argument("--race", nargs="*", default=[])
            p.add_argument("--answer", type=Path, required=True)
            continue
        p.add_argument("-o", "--output", type=Path, default=HERE / "steps.json", help="the JSON (%(default)s)")
        p.add_argument("--only", nargs="+", default=[], metavar="KEY", help="models whose key starts so: gemma2")
        p.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS)
        p.add_argument("--together", type=int, default=1, help="first steps at the same time (%(default)s)")
        p.add_argument("--limit", type=float, default=240.0, metavar="S", help="of one process (%(default)s)")
        p.add_argument("--budget", type=float, default=450.0, metavar="S", help="no model starts later (%(default)s)")
    p = commands.add_parser("table")
    p.add_argument("file", type=Path, nargs="?", default=HERE / "steps.json")
    args = top.parse_args(argv)
    match args.command:
        case "prepare":
            saved.prepare(args.directory, specs(small=args.dry))
        case "run":
            return run(args)
        case "child":
            child(args)
        case _:
            print(table(report.read(args.file)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
