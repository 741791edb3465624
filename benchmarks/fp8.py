"""Times the forward pass in 8-bit floats beside bfloat16, and beside FlashAttention 3's.

python benchmarks/fp8.py prepare build/fp8          # where attngen is: the kernels of both dtypes
python benchmarks/fp8.py run --kernels build/fp8    # on the GPU: needs torch and triton
python benchmarks/fp8.py table                      # afterwards, anywhere

Inputs are normal numbers, and normal numbers with outliers: N(0, 1), and with probability 0.001 N(0, 100) added. Errors
are relative, |out - truth| / |truth|, beside bfloat16's kernel on the inputs before they are quantized.
"""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import report
import saved
import sweep
from report import Result
from saved import Files, Spec

HERE = Path(__file__).resolve().parent
TEXTS = {
    "causal": "attention causal\nmask = causal\n",
    "full": "attention full\n",
    "alibi": saved.example("alibi").text,
    "window": "attention window\nmask = 0 <= distance < 4096\n",
    "softcap": "attention capped\nscore = softcap(qk * scale, 50.0)\nmask = causal\n",
    "rollouts": saved.example("rollouts").text,
}
NAMES = ("attngen fp8", "attngen bf16", "fa3 fp8")


@dataclass(frozen=True, slots=True)
class Cell:
    mask: str
    B: int
    Hq: int
    Hkv: int
    N: int
    D: int

    @property
    def key(self) -> str:
        return f"{self.mask}:{self.B}x{self.N}:{self.Hq}/{self.Hkv}:{self.D}"


def matrix() -> Iterator[Cell]:
    for mask in ("causal", "full"):
        for D, heads in ((64, 32), (128, 16), (256, 8)):
            yield Cell(mask, 1, heads, heads, 16384, D)
        yield Cell(mask, 4, 64, 8, 4096, 128)
    for mask in ("alibi", "window", "softcap", "rollouts"):
        yield Cell(mask, 1, 32, 8, 16384, 128)
    yield Cell("softcap", 1, 32, 8, 16384, 64)


def params(cell: Cell, device: str) -> dict[str, Any]:
    import torch

    if cell.mask == "alibi":
        return {"slope": 2.0 ** -torch.linspace(1, 8, cell.Hq, device=device)}
    if cell.mask == "rollouts":  # a prompt of a quarter, and sixteen answers: of 16,384 tokens 4,096, and 768 each
        place = torch.arange(cell.N, device=device)
        prompt = cell.N // 4
        answer = torch.where(place < prompt, 0, 1 + (place - prompt) * 16 // (cell.N - prompt)).to(torch.int32)
        last = torch.where(place < prompt, 17, answer + 1).to(torch.int32)
        return {"first": answer[None], "last": last[None]}
    return {}


def drawn(cell: Cell, device: str, outliers: bool) -> list[Any]:
    import torch

    made = torch.Generator(device).manual_seed(0)

    def draw(heads: int) -> Any:
        shape = cell.B, cell.N, heads, cell.D
        found = torch.randn(shape, generator=made, device=device)
        if outliers:
            rare = torch.rand(shape, generator=made, device=device) < 0.001
            found = found + 10.0 * torch.randn(shape, generator=made, device=device) * rare
        return found.to(torch.bfloat16).transpose(1, 2)

    return [draw(cell.Hq), draw(cell.Hkv), draw(cell.Hkv)]


def calls(cell: Cell, args: argparse.Namespace, outliers: bool = False) -> dict[str, Callable[[], Any]]:
    import flash

    import attngen

    files, given = Files.at(args.kernels), params(cell, args.device)
    q, k, v = drawn(cell, args.device, outliers)
    eight = attngen.quantize(q, heads=cell.Hkv), attngen.quantize(k), attngen.quantize(v)
    values, factors = [x.values for x in eight], [x.descale for x in eight]
    named = dict(zip(("q_descale", "k_descale", "v_descale"), factors, strict=True))
    fast, exact = files.dense(f"{cell.mask}_fp8"), files.dense(cell.mask)
    found: dict[str, Callable[[], Any]] = {
        "attngen fp8": lambda: fast(*values, **named, **given),
        "attngen bf16": lambda: exact(q, k, v, **given),
    }
    if flash.has_fa3() and cell.mask in ("causal", "full"):
        rows = [x.transpose(1, 2) for x in values]
        attend = functools.partial(flash.fa3().flash_attn_func, *rows, causal=cell.mask == "causal", **named)
        found["fa3 fp8"] = lambda: flash.output(attend()).transpose(1, 2)
    return found


def measure(cell: Cell, args: argparse.Namespace) -> Result:
    import torch

    from attngen.bench import clock

    records: dict[str, Any] = {}
    with torch.no_grad():
        for outliers in (False, True):
            made = calls(cell, args, outliers)
            truth = made["attngen bf16"]().double()
            for name, call in made.items():
                wrong = float((call().double() - truth).norm() / truth.norm())
                record = records.setdefault(name, {"right": True, "errors": {}})
                record["errors"]["with outliers" if outliers else "normal"] = wrong
                record["right"] &= wrong < 0.15
            if not outliers:
                samples: dict[str, list[float]] = {name: [] for name in made}
                for _ in range(args.rounds):
                    for name, call in made.items():
                        samples[name] += clock.sample(call, device=args.device, warmup_ms=10.0, rep_ms=args.rep)
                for name, found in samples.items():
                    records[name]["ms"] = clock.summary(found).ms
    pairs = {"full": cell.N**2, "window": sum(min(i + 1, 4096) for i in range(cell.N))}
    return {**asdict(cell), "pairs": pairs.get(cell.mask, cell.N * (cell.N + 1) // 2), "contenders": records}


def tflops(cell: Result, name: str) -> str:
    record = cell["contenders"].get(name)
    if record is None or cell["mask"] == "rollouts":  # whose pairs are not counted
        return "–" if record is None else f"{record['ms']:.3g} ms"
    return f"{4e-9 * cell['B'] * cell['Hq'] * cell['pairs'] * cell['D'] / record['ms']:.0f}"


def line(cell: Result) -> str:
    return f"{cell['key']}: " + ", ".join(f"{name} {tflops(cell, name)}" for name in NAMES)


def table(result: Result) -> str:
    """A row a cell: TFLOP/s, the speed over the others', and errors without and with outliers."""
    rows = [["call", *NAMES, "over bf16", "over fa3", "error", "fa3's"]]
    for cell in result["cells"]:
        found = cell["contenders"]
        own = found["attngen fp8"]["ms"]
        over = [f"{found[n]['ms'] / own:.2f}" if n in found else "–" for n in NAMES[1:]]
        errors = [
            " / ".join(f"{e:.4f}" for e in found[n]["errors"].values()) if n in found else "–"
            for n in ("attngen fp8", "fa3 fp8")
        ]
        rows.append([cell["key"], *(tflops(cell, n) for n in NAMES), *over, *errors])
    said = " ".join(f"{name} {version}" for name, version in result["versions"].items())
    return "\n".join([*report.aligned(rows), f"{result['machine']}, {result['date']}, {said}"])


def run(args: argparse.Namespace) -> int:
    cells = [Cell(mask, 1, 4, 2, 64, 32) for mask in TEXTS] if args.device == "cpu" else matrix()
    measured = functools.partial(measure, args=args)
    script, chosen = Path(__file__).resolve(), sweep.chosen(cells, args)
    return sweep.run(sweep.Sweep(script=script, cells=chosen, measure=measured, line=line, table=table), args)


def prepare(args: argparse.Namespace) -> None:
    specs = {name: Spec(text) for name, text in TEXTS.items()}
    eight = {f"{name}_fp8": Spec(text, dtype="fp8") for name, text in TEXTS.items()}
    saved.prepare(args.directory, {**specs, **eight})


def main(argv: list[str]) -> int:
    args = sweep.parser(__doc__, "keys that start so", HERE / "fp8.json", 200.0).top.parse_args(argv)
    return sweep.perform(args, prepare, run, table)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
