"""Measures attention as models call it: grouped heads, tensors (B, S, H, D) in memory, causal and full.

    python benchmarks/models.py prepare build/models          # where attngen is: compile the two specs
    python benchmarks/models.py run --kernels build/models    # on the GPU: needs torch and triton
    python benchmarks/models.py table | plot                  # afterwards, anywhere

All contenders of a cell run in one process, in turn, each checked first against dense float32. A run continues the
results that its output file already holds, if they are of the same kernels and machine: a whole matrix takes several
calls. README.md says how to read them.
"""

from __future__ import annotations

import argparse
import functools
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

import report
import saved
import sweep
from report import Result
from saved import Files, Spec

if TYPE_CHECKING:
    import grouped

HERE = Path(__file__).resolve().parent
SPECS = {"causal": Spec("attention causal\nmask = causal\n"), "full": Spec("attention full\n")}
PEERS = ("fa4", "fa3", "cudnn", "flex", "flex-flash")


@dataclass(frozen=True, slots=True)
class Cell:
    mask: str
    B: int
    Hq: int
    Hkv: int
    N: int
    D: int
    Dv: int

    @property
    def shape(self) -> grouped.Shape:
        import grouped

        return grouped.Shape(self.B, self.Hq, self.Hkv, self.N, self.N, self.D, self.Dv)

    @property
    def formula(self) -> grouped.Formula:
        import grouped

        return grouped.Formula(allowed=None if self.mask == "full" else lambda b, h, q, k: k <= q)

    @property
    def pairs(self) -> float:
        """That a head allows."""
        return self.N * self.N if self.mask == "full" else self.N * (self.N + 1) / 2

    @property
    def key(self) -> str:
        dims = f"{self.D}" if self.Dv == self.D else f"{self.D}/{self.Dv}"
        return f"{self.mask}:{self.B}x{self.N}:{self.Hq}/{self.Hkv}:{dims}"


HEADS = (
    (32, 8, 128, 128),
    (64, 8, 128, 128),
    (16, 16, 128, 128),
    (28, 4, 128, 128),
    (32, 1, 128, 128),
    (64, 8, 64, 64),
    (8, 4, 256, 256),
    (16, 16, 192, 128),
)


def matrix() -> Iterator[Cell]:
    """16,384 tokens a cell; all heads and dims at the lengths that models run most, then at the others."""
    for N in (8192, 4096, 16384, 2048, 1024, 512):
        for Hq, Hkv, D, Dv in HEADS:
            for mask in ("causal", "full"):
                yield Cell(mask, 16384 // N, Hq, Hkv, N, D, Dv)


# ---- contenders ------------------------------------------------------------------------------------------------------


def builds(cell: Cell, files: Files, peers: Sequence[str], device: str) -> dict[str, grouped.Build]:
    """attngen first, then the peers that are here."""
    import flash
    import grouped

    from attngen.bench import contenders
    from attngen.bench.race import Contender

    causal, shared = cell.mask == "causal", cell.Hq != cell.Hkv
    function = files.dense(cell.mask)
    found: dict[str, grouped.Build] = {
        "attngen": lambda: Contender("attngen", lambda q, k, v: function(q, k, v)),
        "fa4": lambda: contenders.fa4({"causal": causal}),
        "fa3": lambda: flash.dense_fa3(causal=causal),
        "cudnn": lambda: contenders.scaled("cudnn", causal=causal, device=device, grouped=shared),
        **grouped.flexes(cell.shape, cell.formula, device),
    }
    left = {n for n in found if n != "attngen" and (n not in peers or device != "cuda")}
    left |= set() if flash.has_fa3() else {"fa3"}
    return {n: build for n, build in found.items() if n not in left}


# ---- the run ---------------------------------------------------------------------------------------------------------


def prepared(cell: Cell, args: argparse.Namespace, peers: Sequence[str]) -> grouped.Race:
    import grouped
    import torch

    dtype = torch.bfloat16 if args.device == "cuda" else torch.float16  # Triton's interpreter multiplies bf16 wrongly
    inputs = grouped.draw(cell.shape, args.device, dtype, args.seed)
    made = builds(cell, Files.at(args.kernels), peers, args.device)
    return grouped.Race(cell.key, cell.shape, cell.formula, inputs, made, cell.pairs)


def measure(cell: Cell, args: argparse.Namespace) -> Result:
    import grouped

    return {**asdict(cell), "contenders": grouped.run(prepared(cell, args, args.peers), sweep.turns(args))}


def chosen(args: argparse.Namespace) -> list[Cell]:
    """The cells whose key starts with one of `--only`, in which `*` stands for anything."""
    cells = [Cell("causal", 2, 4, 2, 64, 16, 16)] if args.device == "cpu" else list(matrix())
    return [c for c in cells if not args.only or any(fnmatchcase(c.key, only + "*") for only in args.only)]


def run(args: argparse.Namespace) -> int:
    measured = functools.partial(measure, args=args)
    script = Path(__file__).resolve()
    return sweep.run(sweep.Sweep(script=script, cells=chosen(args), measure=measured, line=line, table=table), args)


# ---- what is shown ---------------------------------------------------------------------------------------------------


def best_peer(cell: Result, direction: str) -> tuple[str, float] | None:
    """The fastest peer, and attngen's speed over it."""
    ratios = [(n, r) for n in PEERS if (r := report.ratio(cell, n, direction)) is not None]
    return min(ratios, key=lambda pair: pair[1]) if ratios else None


def line(cell: Result) -> str:
    parts: list[str] = []
    for direction in report.DIRECTIONS:
        ours = report.tflops(cell, "attngen", direction)
        peers = [f"{n} {t:.0f}" for n in PEERS if (t := report.tflops(cell, n, direction)) is not None]
        parts.append(f"{direction} {ours or math.nan:.0f} ({', '.join(peers)})")
    return f"{cell['key']}: " + ", ".join(parts)


def table(result: Result) -> str:
    """A row a cell and direction: TFLOP/s, with attngen's speed over each peer's."""
    rows = [["heads", "D", "N", "mask", "", "attngen", *PEERS]]
    for cell in result["cells"]:
        dims = f"{cell['D']}" if cell["D"] == cell["Dv"] else f"{cell['D']}/{cell['Dv']}"
        for direction in report.DIRECTIONS:
            entries = [report.entry(cell, name, direction) for name in ("attngen", *PEERS)]
            heads = f"{cell['Hq']}/{cell['Hkv']}"
            rows.append([heads, dims, str(cell["N"]), cell["mask"], direction[:3], *entries])
    lines = report.aligned(rows)
    lines.append(f"{result['machine']}, {result['date']}: TFLOP/s, x = attngen / peer")
    for peer in PEERS:
        for direction in report.DIRECTIONS:
            found = [r for cell in result["cells"] if (r := report.ratio(cell, peer, direction)) is not None]
            if found:
                mean = report.geometric_mean(found)
                lines.append(
                    f"attngen / {peer}, {direction}: geometric mean {mean:.2f}, least {min(found):.2f}, "
                    f"most {max(found):.2f} over {len(found)} cells"
                )
    lines += [*summary(result), *report.remarks(result)]
    return "\n".join(lines)


def over(cell: Result, peers: Sequence[str], direction: str) -> float | None:
    """attngen's speed over the fastest of these peers."""
    found = [r for peer in peers if (r := report.ratio(cell, peer, direction)) is not None]
    return min(found) if found else None


def summary(result: Result, least: int = 5) -> list[str]:
    """The claims of the matrix, each as a geometric mean, and the cells that are least by name."""
    grouped_causal = [c for c in result["cells"] if c["mask"] == "causal" and c["Hq"] != c["Hkv"]]
    claims = (
        ("forward over the better of FlashAttention 3 and 4", result["cells"], ("fa3", "fa4"), "forward"),
        ("backward, grouped heads, causal, over FlashAttention 4", grouped_causal, ("fa4",), "backward"),
        ("backward over FlashAttention 4", result["cells"], ("fa4",), "backward"),
    )
    lines: list[str] = []
    for title, cells, peers, direction in claims:
        ratios = {c["key"]: r for c in cells if (r := over(c, peers, direction)) is not None}
        if ratios:
            behind = sum(r < 1.0 for r in ratios.values())
            mean = report.geometric_mean(ratios.values())
            lines.append(f"{title}: geometric mean {mean:.3f}, {behind} of {len(ratios)} cells below 1.00; the least:")
            lines += [f"  {key} x{ratios[key]:.3f}" for key in sorted(ratios, key=ratios.__getitem__)[:least]]
    return lines


def draw(result: Result, path: Path) -> None:
    """attngen's speed over the fastest peer, a point a cell, forward above backward."""
    import matplotlib

    matplotlib.use("agg")
    matplotlib.rcParams["svg.hashsalt"] = "attngen"
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(2, 1, figsize=(10, 7), sharex=True, squeeze=False)
    for axes, direction in zip(panels[:, 0], report.DIRECTIONS, strict=True):
        for mask, marker in (("causal", "o"), ("full", "s")):
            cells = [c for c in result["cells"] if c["mask"] == mask and best_peer(c, direction)]
            labels = [c["key"].split(":", 1)[1] for c in cells]
            ratios = [found[1] for c in cells if (found := best_peer(c, direction))]
            axes.plot(labels, ratios, marker, label=mask)
        axes.axhline(1.0, color="#333333", lw=0.8)
        axes.set_ylabel(direction)
        axes.grid(axis="y", lw=0.4)
    panels[0, 0].legend(frameon=False)
    panels[1, 0].tick_params(axis="x", labelrotation=90, labelsize=7)
    panels[1, 0].set_xlabel("batch x tokens : query heads / key heads : head dim (of q and k / of v)")
    figure.suptitle(f"attngen's speed over the fastest other's, {result['machine']}, {result['date'][:10]}")
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    plt.close(figure)


def parser() -> argparse.ArgumentParser:
    made = sweep.parser(__doc__, "keys that start so; * is anything: causal:*:32/8", HERE / "models.json", 500.0)
    made.run.add_argument("--seed", type=int, default=0)
    made.run.add_argument("--peers", nargs="*", choices=PEERS, default=PEERS)
    p = made.commands.add_parser("plot", help="draw what was measured")
    p.add_argument("file", type=Path, nargs="?", default=HERE / "models.json")
    return made.top


def main(argv: list[str]) -> int:
    args = parser().parse_args(argv)
    if args.command == "plot":
        draw(report.read(args.file), args.file.with_suffix(".svg"))
        return 0
    return sweep.perform(args, lambda args: saved.prepare(args.directory, SPECS), run, table)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
