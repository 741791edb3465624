"""`attngen bench`: a spec and shapes in, the speed of its kernel beside other implementations out.

The exit status is 1 where an implementation gave a wrong result. Without a GPU it raises `UsageError`.
"""

from __future__ import annotations

import importlib
import json
import secrets
import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attngen import api, files, terminal, vocabulary
from attngen.cli import arguments, gpu, output, shapes
from attngen.cli.parser import Commands
from attngen.errors import UsageError


def add(table: Commands) -> None:
    p = table.add_parser(
        "bench",
        usage="attngen bench [-h] SPEC [--against PEER,…] [--shape NAME=INT …] [--lengths N,…] [--dtype DTYPE]\n"
        "                     [-D NAME=VALUE] [--param NAME=VALUE] [--forward-only] [--seed N] [--rep MS]\n"
        "                     [-o FILE.json|FILE.svg|FILE.png]",
        help="measure a spec's kernel on the GPU that is here, beside others",
        description="Measures a spec's kernel, forward and backward, beside FlexAttention (flex: over Triton,\n"
        "flex-flash: over FlashAttention 4), torch's own attention (FlashAttention 2; cuDNN) and FlashAttention 4,\n"
        "in one process, on the same inputs, turn about. Each is checked against attention in float32 first; what is\n"
        "wrong has no figures, and the exit status is 1.",
        example="attngen bench examples/causal.attn --against flex,cudnn --shape B=4 Hq=16 Sq=4096 D=128 -o a.json",
    )
    arguments.spec(p)
    p.add_argument(
        "--against",
        type=arguments.peers,
        default=("flex", "flex-flash", "sdpa", "cudnn"),
        metavar="PEER,…",
        help=f"{', '.join(vocabulary.PEERS)} (default: all but fa4); what cannot compute the spec is named",
    )
    arguments.shape(p)
    p.add_argument(
        "--lengths", type=arguments.lengths, default=(), metavar="N,…", help="measure at each of these lengths"
    )
    p.add_argument("--dtype", choices=("bf16", "fp16"), default="bf16", help="dtype of q, k, v (default: bf16)")
    arguments.define(p)
    arguments.param(p)
    p.add_argument("--forward-only", action="store_true", help="leave the backward pass out")
    p.add_argument(
        "--seed", type=arguments.index, metavar="N", help="of the inputs (default: a fresh one; the JSON has it)"
    )
    p.add_argument(
        "--rep",
        type=arguments.seconds,
        default=90.0,
        metavar="MS",
        help="milliseconds for each measurement (default: 90)",
    )
    p.add_argument(
        "-o",
        "--output",
        action="append",
        default=[],
        metavar="FILE",
        help="write results (.json) or draw speed and memory over length (.svg, .png); repeatable",
    )
    p.set_defaults(run=run)


def run(args: Namespace) -> int:
    outputs = _outputs(args)
    source = files.read_source(args.spec)
    spec = api.analyse(source, dict(args.define))
    shapes = _shapes(args, spec)
    torch = gpu.require_gpu("bench", "attngen cost counts operations and bytes for a chip that needn't be there")
    from attngen.bench import picture as show, run
    from attngen.bench.race import Turns

    with terminal.working(f"compiling {spec.name}"):
        subject = api.bench_subject(source, dict(args.define))
    seed = secrets.randbelow(2**31) if args.seed is None else args.seed
    how = run.How(Turns("cuda", 3, 10.0, args.rep), args.dtype, not args.forward_only, seed)
    record: dict[str, Any] = {**_described(torch), "name": spec.name, "dtype": args.dtype, "seed": seed, "points": []}
    record["ceiling_tflops"] = run.ceiling_tflops(args.dtype)
    for sizes in shapes:
        with terminal.working(f"measuring {spec.name}, {show.shape(sizes)}"):
            params = gpu.tensors(torch, spec, sizes, dict(args.param), "cuda")
            record["points"].append(run.measure(subject, sizes, params, args.against, how))
        _write(outputs, record)  # after each, so that a run that is cut off leaves what it has
    out = terminal.console(sys.stdout)
    out.print(f"{spec.name} on {record['machine']}, {args.dtype}; checked before it was timed")
    out.print(show.table(record))
    for line in show.remarks(record):
        out.print(line, markup=False)
    for path in outputs:
        terminal.note(f"wrote {path}")
    return 1 if show.wrong(record) else 0


def _described(torch: Any) -> dict[str, Any]:
    """The machine, the day, and the versions that the figures hold for."""
    import datetime
    import platform

    from attngen.bench import contenders

    triton: Any = importlib.import_module("triton")
    versions = {"torch": str(torch.__version__), "triton": triton.__version__, "python": platform.python_version()}
    versions |= {"cuda": str(torch.version.cuda), "cudnn": str(torch.backends.cudnn.version())}
    versions |= contenders.packages()
    return {
        "machine": torch.cuda.get_device_name(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "versions": versions,
    }


def _shapes(args: Namespace, spec: Any) -> list[dict[str, int]]:
    """The shape asked for, or one for each of `--lengths`."""
    from attngen import inputs

    asked = dict(args.shape)
    wanted = shapes.wanted(spec, shapes.USUAL, asked)
    shapes.check_heads(wanted)
    spec = api.callable_spec(spec, api.plan(spec))
    if not args.lengths:
        return [inputs.settle(spec, wanted, fixed=set(asked))]
    fixed = (set(asked) - {"Sq", "Sk"}) | {"Sk"}
    return [inputs.settle(spec, shapes.of_length(wanted, n), fixed=fixed) for n in args.lengths]


def _outputs(args: Namespace) -> list[str]:
    for path in args.output:
        if Path(path).suffix.lower() not in (".json", ".svg", ".png"):
            raise UsageError(f"-o {path}: results end in .json, pictures in .svg or .png")
    output.refuse_overwriting(args.spec, args.output)
    return list(args.output)


def _write(outputs: Sequence[str], record: Mapping[str, Any]) -> None:
    from attngen.bench import picture as show

    for path in outputs:
        suffix = Path(path).suffix.lower().lstrip(".")
        files.write(path, as_json(record) if suffix == "json" else show.image(record, suffix))


def as_json(record: Mapping[str, Any]) -> str:
    """JSON has no inf and no nan: such an error is written as text."""
    return json.dumps(_strict(record), indent=1, allow_nan=False) + "\n"


def _strict(value: Any) -> Any:
    match value:
        case float() if value != value or value in (float("inf"), float("-inf")):
            return str(value)
        case dict():
            return {key: _strict(v) for key, v in value.items()}  # pyright: ignore[reportUnknownVariableType]
        case list() | tuple():
            return [_strict(v) for v in value]  # pyright: ignore[reportUnknownVariableType]
        case _:
            return value
