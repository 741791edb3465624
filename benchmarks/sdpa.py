"""Times scaled_dot_product_attention as PyTorch computes it by flash attention, and with attngen in its place.

python benchmarks/sdpa.py prepare build/sdpa          # the two kernels, which tell what was measured
python benchmarks/sdpa.py run --kernels build/sdpa    # on a GPU, where attngen can compile
python benchmarks/sdpa.py table                       # afterwards, anywhere
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import report
import saved
import sweep
from report import Result
from saved import Spec

if TYPE_CHECKING:
    import grouped

HERE = Path(__file__).resolve().parent
NAMES = ("sdpa", "attngen")


@dataclass(frozen=True, slots=True)
class Cell:
    causal: bool
    B: int
    Hq: int
    Hkv: int
    N: int
    D: int

    @property
    def key(self) -> str:
        return f"{'causal' if self.causal else 'full'}:{self.B}x{self.N}:{self.Hq}/{self.Hkv}:{self.D}"

    @property
    def shape(self) -> grouped.Shape:
        import grouped

        return grouped.Shape(self.B, self.Hq, self.Hkv, self.N, self.N, self.D, self.D)


def matrix() -> Iterator[Cell]:
    for causal in (True, False):
        yield Cell(causal, 8, 16, 16, 1024, 64)
        yield Cell(causal, 4, 16, 16, 4096, 64)
        yield Cell(causal, 4, 16, 16, 4096, 128)
        yield Cell(causal, 2, 32, 8, 8192, 128)


@contextlib.contextmanager
def _by_attngen(scope: Any) -> Iterator[None]:
    from attngen.integrations import torch_provider

    handle = torch_provider.activate()
    try:
        with scope():
            yield
    finally:
        handle.remove()


def measure(cell: Cell, args: argparse.Namespace) -> Result:
    import dataclasses

    import grouped
    import torch

    from attngen.bench import contenders

    own = contenders.scaled("sdpa", causal=cell.causal, device=args.device, grouped=cell.Hq != cell.Hkv)
    ours = dataclasses.replace(own, name="attngen", scope=functools.partial(_by_attngen, own.scope))
    made = grouped.Formula(allowed=(lambda b, h, q, k: k <= q) if cell.causal else None)
    inputs = grouped.draw(cell.shape, args.device, torch.bfloat16, 0)
    builds: dict[str, grouped.Build] = {"sdpa": lambda: own, "attngen": lambda: ours}
    pairs = grouped.pairs(cell.shape, made, args.device)
    race = grouped.Race(cell.key, cell.shape, made, inputs, builds, pairs)
    return {**asdict(cell), "pairs": pairs, "contenders": grouped.run(race, sweep.turns(args))}


def line(cell: Result) -> str:
    return f"{cell['key']}: " + ", ".join(f"{name} {_times(cell, name)} ms" for name in NAMES)


def _times(cell: Result, name: str) -> str:
    record = cell["contenders"].get(name, {})
    return " / ".join(f"{record[d]['ms']:.3g}" if d in record else "–" for d in report.DIRECTIONS)


def table(result: Result) -> str:
    """A row a cell: milliseconds forward / backward, and how many times as fast attngen is."""
    rows = [["call", *NAMES, "attngen's speed"]]
    for cell in result["cells"]:
        ratios = (report.ratio(cell, "sdpa", d) for d in report.DIRECTIONS)
        speed = " / ".join("–" if r is None else f"{r:.2f}" for r in ratios)
        rows.append([cell["key"], *(_times(cell, name) for name in NAMES), speed])
    said = " ".join(f"{name} {version}" for name, version in result["versions"].items())
    return "\n".join([*report.aligned(rows), f"{result['machine']}, {result['date']}, {said}", *report.remarks(result)])


def run(args: argparse.Namespace) -> int:
    measured = functools.partial(measure, args=args)
    script, chosen = Path(__file__).resolve(), sweep.chosen(matrix(), args)
    return sweep.run(sweep.Sweep(script=script, cells=chosen, measure=measured, line=line, table=table), args)


def prepare(args: argparse.Namespace) -> None:
    from attngen.integrations.specs import Choice

    choices = {"causal": Choice(), "full": Choice(after=None)}
    saved.prepare(args.directory, {name: Spec(choice.text()) for name, choice in choices.items()})


def main(argv: list[str]) -> int:
    args = sweep.parser(__doc__, "keys that start so", HERE / "sdpa.json", 200.0).top.parse_args(argv)
    return sweep.perform(args, prepare, run, table)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
