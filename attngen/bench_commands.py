"""What `bench` does: measures a spec's kernel on the GPU that is here, beside other implementations.

Takes parsed arguments; gives 0, or 1 where somebody failed or was wrong. Without a GPU: `UsageError`.
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

from attngen import api, commands, files, terminal
from attngen.errors import UsageError

USUAL = {"B": 1, "Hq": 8, "Hkv": 8, "Sq": 4096, "Sk": 4096, "D": 128, "Dv": 128}
_STORAGE = {"f32": "float32", "f16": "float16", "bf16": "bfloat16", "int": "int32", "bool": "bool"}


def run_bench(args: Namespace) -> int:
    outputs = _outputs(args)
    source = files.read_source(args.spec)
    spec = api.analyse(source, dict(args.define))
    shapes = _shapes(args, spec)
    torch = require_gpu("bench")
    from attngen.runtime.bench import run
    from attngen.runtime.bench.race import Turns
    from attngen.show import bench as show

    with terminal.working(f"compiling {spec.name}"):
        subject = api.bench_subject(source, dict(args.define))
    seed = secrets.randbelow(2**31) if args.seed is None else args.seed
    how = run.How(Turns("cuda", 3, 10.0, args.rep), args.dtype, not args.forward_only, seed)
    record: dict[str, Any] = {**described(torch), "name": spec.name, "dtype": args.dtype, "seed": seed, "points": []}
    record["ceiling_tflops"] = run.ceiling_tflops(args.dtype)
    for sizes in shapes:
        with terminal.working(f"measuring {spec.name}, {show.shape(sizes)}"):
            params = tensors(torch, spec, sizes, dict(args.param), "cuda")
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


def require_gpu(command: str) -> Any:
    """torch, where it has a GPU."""
    try:
        torch: Any = importlib.import_module("torch")
    except ImportError as error:
        raise UsageError(f"{command} needs PyTorch and a GPU: pip install 'attngen[torch,triton]'") from error
    if not torch.cuda.is_available():
        raise UsageError(
            f"{command} measures on a GPU, and PyTorch sees none here; "
            "attngen cost counts operations and bytes for a chip that needn't be there"
        )
    return torch


def described(torch: Any) -> dict[str, Any]:
    """The machine, the day, and the versions that the figures hold for."""
    import datetime
    import platform

    triton: Any = importlib.import_module("triton")
    versions = {"torch": str(torch.__version__), "triton": triton.__version__, "python": platform.python_version()}
    versions |= {"cuda": str(torch.version.cuda), "cudnn": str(torch.backends.cudnn.version())}
    return {
        "machine": torch.cuda.get_device_name(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "versions": versions,
    }


def tensors(
    torch: Any, spec: Any, sizes: Mapping[str, int], given: Mapping[str, bool | int | float], device: str
) -> dict[str, Any]:
    """A value for every param: tensors on the device, scalars as numbers."""
    from attngen import inputs

    values = inputs.examples(spec, sizes, given)
    return {
        p.name: values[p.name]
        if p.is_scalar
        else torch.tensor(values[p.name]).to(getattr(torch, _STORAGE[p.storage.value])).to(device)
        for p in spec.params
    }


def _shapes(args: Namespace, spec: Any) -> list[dict[str, int]]:
    """The shape asked for, or one for each of `--lengths`."""
    from attngen import inputs

    asked = dict(args.shape)
    wanted = commands.sizes_wanted(spec, USUAL, asked)
    commands.check_heads(wanted)
    if not args.lengths:
        return [inputs.settle(spec, wanted, fixed=set(asked))]
    fixed = (set(asked) - {"Sq", "Sk"}) | {"Sk"}
    return [inputs.settle(spec, commands.of_length(wanted, n), fixed=fixed) for n in args.lengths]


def _outputs(args: Namespace) -> list[str]:
    for path in args.output:
        if Path(path).suffix.lower() not in (".json", ".svg", ".png"):
            raise UsageError(f"-o {path}: results end in .json, pictures in .svg or .png")
    commands.refuse_overwriting(args.spec, args.output)
    return list(args.output)


def _write(outputs: Sequence[str], record: Mapping[str, Any]) -> None:
    from attngen.show import bench as show

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
