"""Seconds of an example's first call on a GPU, forward and backward: with empty caches, then from Triton's cache.

    python benchmarks/first_call.py prepare build/first        # where attngen is
    python benchmarks/first_call.py run --kernels build/first  # on the GPU

Each example runs twice, in a new process each time; the second finds what the first compiled. Python's start, torch's
and the GPU's are not counted (torch's first backward pass that is given a gradient imports sympy, 2 to 3 s), nor is the
import of the generated file (`load`). `--together` runs several examples at
once, which a machine with many cores hardly feels; one alone is what a user waits for.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import report
import saved
from report import say
from saved import EXAMPLES, Files, Spec

HERE = Path(__file__).resolve().parent
SIZES = {"B": 2, "Hq": 8, "Hkv": 2, "Sq": 1024, "Sk": 1024, "D": 128, "Dv": 128}
ASKED = {"empty": 4.0, "cached": 1.0}
"""Seconds of the two calls together."""
OTHER_DIMS = {"t5_bias": (32,), "causal": (64, 256)}


def sized(example: str, small: bool) -> tuple[dict[str, int], dict[str, dict[str, Any]], bool]:
    """Sizes that the spec accepts; each param's value, or, of a float tensor, its shape alone; whether it drops."""
    import numpy as np

    import attngen
    from attngen.inputs import examples, settle

    attention = attngen.compile((EXAMPLES / f"{example}.attn").read_text(encoding="utf-8"), target="triton").spec
    wanted = {**SIZES, **({"Sq": 64, "Sk": 64, "D": 16, "Dv": 16, "Hq": 2, "Hkv": 1} if small else {})}
    sizes = settle(attention, wanted)
    params: dict[str, dict[str, Any]] = {}
    for name, value in examples(attention, sizes).items():
        if not isinstance(value, np.ndarray):
            params[name] = {"scalar": value}
        elif value.dtype.kind == "f":
            params[name] = {"shape": list(value.shape)}
        else:
            params[name] = {"values": value.tolist(), "dtype": "bool" if value.dtype.kind == "b" else "int32"}
    return sizes, params, attention.dropout is not None


def prepare(directory: Path, only: Sequence[str], *, dry: bool) -> None:
    specs: dict[str, Spec] = {}
    for path in sorted(EXAMPLES.glob("*.attn")):
        if only and path.stem not in only:
            continue
        sizes, params, drops = sized(path.stem, dry)
        facts = {"sizes": sizes, "params": params, "drops": drops}
        specs[path.stem] = Spec(path.read_text(encoding="utf-8"), facts=facts)
    saved.prepare(directory, specs)


def call(files: Files, name: str, dim: int, device: str) -> dict[str, float]:
    """One process's part."""
    import torch

    facts = files.manifest[name]
    sizes = {**facts["sizes"], "D": dim, "Dv": dim}
    dtype = torch.bfloat16 if device == "cuda" else torch.float16

    def draw(heads: str, length: str, width: str) -> Any:
        shape = (sizes["B"], sizes[heads], sizes[length], sizes[width])
        return torch.randn(shape, device=device).to(dtype).requires_grad_()

    q, k, v = draw("Hq", "Sq", "D"), draw("Hkv", "Sk", "D"), draw("Hkv", "Sk", "Dv")
    d_out = torch.randn_like(draw("Hq", "Sq", "Dv"))
    given: dict[str, Any] = {"dropout_seed": 1} if facts["drops"] else {}
    for param, value in facts["params"].items():
        if "scalar" in value:
            given[param] = value["scalar"]
        elif "shape" in value:
            given[param] = (torch.rand(value["shape"], device=device) / 2 + 0.25).requires_grad_()
        else:
            given[param] = torch.tensor(value["values"], dtype=getattr(torch, value["dtype"]), device=device)
    learned = [x for x in given.values() if isinstance(x, torch.Tensor) and x.requires_grad]

    def seconds(work: Any) -> tuple[Any, float]:
        started = time.perf_counter()
        found = work()
        if device == "cuda":
            torch.cuda.synchronize()
        return found, round(time.perf_counter() - started, 3)

    function, load = seconds(lambda: files.dense(name))
    out, forward = seconds(lambda: function(q, k, v, **given))
    _, backward = seconds(lambda: torch.autograd.grad(out, [q, k, v, *learned], d_out, allow_unused=True))
    return {"load": load, "forward": forward, "backward": backward}


def measure(args: argparse.Namespace, cases: Sequence[tuple[str, int]]) -> list[dict[str, Any]]:
    """Both calls of so many cases at once."""
    with tempfile.TemporaryDirectory(prefix="attngen-first-") as folder:
        records = [{"example": name, "D": dim} for name, dim in cases]
        for which in ASKED:
            running: list[subprocess.Popen[str]] = []
            for name, dim in cases:
                own = {"TRITON_CACHE_DIR": f"{folder}/{name}-{dim}", "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor"}
                command = [sys.executable, str(Path(__file__).resolve()), "child", name, str(dim)]
                command += ["--kernels", str(args.kernels), "--device", args.device]
                environment = {**os.environ, **own}
                running.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True))
            for record, process in zip(records, running, strict=True):
                said, _ = process.communicate()
                record[which] = json.loads(said.splitlines()[-1]) if process.returncode == 0 else {"failure": said}
    return records


def line(record: dict[str, Any]) -> str:
    parts: list[str] = []
    for which, asked in ASKED.items():
        found = record[which]
        if "failure" in found:
            parts.append(f"{which}: failed")
            continue
        both = found["forward"] + found["backward"]
        mark = "" if both < asked else "  <"
        parts.append(f"{which} {found['forward']:.2f} + {found['backward']:.2f} = {both:.2f} s{mark}")
    return f"{record['example']}, D = {record['D']}: " + "; ".join(parts)


def run(args: argparse.Namespace) -> int:
    from gpu import software

    machine, versions = software(args.device)
    files = Files.at(args.kernels)
    cases = [
        (name, dim)
        for name, facts in files.manifest.items()
        for dim in dict.fromkeys([facts["sizes"]["D"], *(OTHER_DIMS.get(name, ()) if args.device == "cuda" else ())])
    ]
    result: dict[str, Any] = {
        "machine": machine, "date": datetime.now(UTC).isoformat(timespec="seconds"), "versions": versions,
        "cores": os.cpu_count(), "together": args.together, "kernels": files.digests(), "cases": [],
    }  # fmt: skip
    started, note = time.monotonic(), ""
    for i in range(0, len(cases), args.together):
        if time.monotonic() - started > args.budget:
            note = f"stopped at the budget of {args.budget:.0f} s before {cases[i][0]}"
            break
        for record in measure(args, cases[i : i + args.together]):
            result["cases"].append(record)
            say(line(record))
        report.write(args.output, result)
    worst = sorted((r for r in result["cases"] if "failure" not in r["empty"]), key=_both)[-3:]
    print("\n".join(["the longest:", *map(line, worst), *([note] if note else [])]))
    return 1 if note or any("failure" in r[which] for r in result["cases"] for which in ASKED) else 0


def _both(record: dict[str, Any]) -> float:
    return record["empty"]["forward"] + record["empty"]["backward"]


def main(argv: list[str]) -> int:
    top = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = top.add_subparsers(dest="command", required=True)
    p = commands.add_parser("prepare", help="compile the examples into a directory (needs attngen)")
    p.add_argument("directory", type=Path)
    p.add_argument("--only", nargs="+", default=[], metavar="EXAMPLE")
    p.add_argument("--dry", action="store_true", help="for a dry run")
    p = commands.add_parser("run", help="measure")
    p.add_argument("--kernels", type=Path, required=True, metavar="DIR", help="what `prepare` wrote")
    p.add_argument("-o", "--output", type=Path, default=HERE / "first_call.json", help="the JSON (%(default)s)")
    p.add_argument("--together", type=int, default=1, help="examples at the same time (%(default)s)")
    p.add_argument("--budget", type=float, default=300.0, metavar="S", help="none starts later (%(default)s)")
    p.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    p = commands.add_parser("child", help="what `run` starts")
    p.add_argument("name")
    p.add_argument("dim", type=int)
    p.add_argument("--kernels", type=Path, required=True)
    p.add_argument("--device", default="cuda")
    args = top.parse_args(argv)
    match args.command:
        case "prepare":
            prepare(args.directory, args.only, dry=args.dry)
        case "run":
            return run(args)
        case _:
            import torch

            if args.device == "cuda":
                x = torch.randn(256, 256, device="cuda", dtype=torch.bfloat16)
                (x @ x).sum().item()  # the GPU's own start
            y = torch.ones(1, requires_grad=True, device=args.device)
            torch.autograd.grad(y * 2, y, torch.ones_like(y))  # torch's own
            print(json.dumps(call(Files.at(args.kernels), args.name, args.dim, args.device)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
