"""Draws cells at random and times them beside FlexAttention: variant, constants, heads, lengths, dims, dtype.

    python benchmarks/drawn.py prepare build/drawn             # where attngen is: draws 40 cells
    python benchmarks/drawn.py run --kernels build/drawn       # on the GPU
    python benchmarks/drawn.py table                           # afterwards, anywhere

Beside those drawn are the listed cells, in which attngen was weak: they are the same in every run. Everything is
checked against dense float32 first. The seed is fresh at each `prepare`, printed, and kept with the cells; `--seed`
repeats one.
"""

from __future__ import annotations

import argparse
import json
import random
import secrets
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import report
import saved
import sweep
from report import Result, say
from saved import Files

HERE = Path(__file__).resolve().parent
ASKED = 1.2
"""What a drawn cell owes, at least, over FlexAttention."""
HEADS = ((16, 16), (32, 8), (32, 8), (64, 8), (16, 8), (28, 4), (32, 1), (12, 12), (8, 2))
LENGTHS = (512, 777, 1024, 1500, 2048, 2048, 3072, 4096, 4096, 5000, 8192)
DIMS = ((64, 64), (64, 64), (128, 128), (128, 128), (128, 128), (256, 256), (192, 128), (32, 32), (96, 96))


@dataclass(frozen=True, slots=True)
class Cell:
    """`asked` is what it owes over FlexAttention forward and backward, where it is a listed one."""

    variant: str
    consts: Mapping[str, int | float]
    B: int
    Hq: int
    Hkv: int
    Sq: int
    Sk: int
    D: int
    Dv: int
    dtype: str
    asked: tuple[float, float] | None = None

    @property
    def file(self) -> str:
        return "_".join([self.variant, *(f"{x:g}".replace(".", "p") for x in self.consts.values())])

    @property
    def key(self) -> str:
        length = f"{self.Sk}" if self.Sq == self.Sk else f"{self.Sq}-{self.Sk}"
        dims = f"{self.D}" if self.Dv == self.D else f"{self.D}/{self.Dv}"
        return f"{self.file}:{self.B}x{length}:{self.Hq}/{self.Hkv}:{dims}:{self.dtype}"


def listed() -> Iterator[Cell]:
    """Cells in which attngen was weak beside FlexAttention, each with what it is to reach."""
    wide, small = (2, 32, 8, 8192, 8192, 128, 128), (8, 32, 8, 2048, 2048, 64, 64)
    yield Cell("lengths", {}, *wide, "bf16", (1.4, 1.4))
    yield Cell("window_landmarks", {"window": 1024}, *wide, "bf16", (1.4, 1.4))
    yield Cell("window_global", {"radius": 256, "globals": 16}, *wide, "bf16", (1.4, 1.4))
    yield Cell("pairs", {}, *small, "bf16", (1.3, 1.3))
    yield Cell("log_distance", {}, *wide, "bf16", (1.4, 1.4))
    yield Cell("window_both", {"radius": 256}, *small, "bf16", (1.3, 1.0))
    yield Cell("prefix_batch", {}, *small, "bf16", (1.3, 1.0))
    yield Cell("window_head", {}, *small, "bf16", (1.3, 1.0))


def drawn(seed: int, count: int) -> Iterator[Cell]:
    """At most 16,384 tokens in a cell, so that it takes milliseconds."""
    from variants import VARIANTS

    rng = random.Random(seed)
    seen: set[str] = set()
    while len(seen) < count:
        name = rng.choice(sorted(VARIANTS))
        variant = VARIANTS[name]
        consts = {c: rng.choice(values) for c, values in variant.choices.items()}
        (Hq, Hkv), (D, Dv), Sk = rng.choice(HEADS), rng.choice(DIMS), rng.choice(LENGTHS)
        Sq = Sk if variant.square or rng.random() < 0.75 else Sk // rng.choice((2, 4))
        dtype, B = rng.choice(("bf16", "fp16")), rng.choice((1, 2, 4, 8))
        B = max(1, min(B, 16384 // Sk))
        if name == "full_bias" and Hq * Sq * Sk > 2**30:
            continue  # its float32 bias alone would take 4 GiB
        cell = Cell(name, consts, B, Hq, Hkv, Sq, Sk, D, Dv, dtype)
        if cell.key not in seen:
            seen.add(cell.key)
            yield cell


def prepare(directory: Path, seed: int, count: int, *, dry: bool) -> None:
    from variants import VARIANTS

    cells = [*listed(), *drawn(seed, count)]
    if dry:
        cells = [Cell(c.variant, c.consts, 2, 4, 2, 48, 48, 16, 16, "fp16") for c in cells]
    specs = {c.file: VARIANTS[c.variant].spec(c.consts) for c in cells}
    saved.prepare(directory, specs)
    kept = {"seed": seed, "cells": [asdict(c) for c in cells]}
    (directory / "cells.json").write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    print(f"seed {seed}: {len(cells)} cells of {len(specs)} specs in {directory}")


def read(directory: Path) -> tuple[int, list[Cell]]:
    kept = json.loads((directory / "cells.json").read_text(encoding="utf-8"))
    cells = [Cell(**{**c, "asked": tuple(c["asked"]) if c["asked"] else None}) for c in kept["cells"]]
    return kept["seed"], list({c.key: c for c in cells}.values())


# ---- the run ---------------------------------------------------------------------------------------------------------


def prepared(cell: Cell, args: argparse.Namespace, seed: int) -> Any:
    """The cell as a race: inputs and params drawn, contenders ready to be built."""
    import grouped
    import torch
    from variants import VARIANTS

    from attngen.bench.race import Contender

    shape = grouped.Shape(cell.B, cell.Hq, cell.Hkv, cell.Sq, cell.Sk, cell.D, cell.Dv)
    variant = VARIANTS[cell.variant]
    generator = torch.Generator(device=args.device).manual_seed(seed)
    params = variant.params(cell.consts, shape, generator)
    formula = variant.formula(cell.consts, params, shape)
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}[cell.dtype]
    inputs = grouped.draw(shape, args.device, dtype, seed)
    function = Files.at(args.kernels).dense(cell.file)
    builds: dict[str, grouped.Build] = {
        "attngen": lambda: Contender("attngen", lambda q, k, v: function(q, k, v, **params)),
    }
    builds |= grouped.flexes(shape, formula, args.device)
    return grouped.Race(cell.key, shape, formula, inputs, builds, grouped.pairs(shape, formula, args.device))


def chosen(args: argparse.Namespace) -> tuple[int, list[Cell]]:
    seed, cells = read(args.kernels)
    return seed, [c for c in cells if not args.only or any(o in c.key for o in args.only)]


def run(args: argparse.Namespace) -> int:
    import grouped

    seed, cells = chosen(args)
    say(f"seed {seed}")

    def measure(cell: Cell) -> Result:
        return {**asdict(cell), "contenders": grouped.run(prepared(cell, args, seed), sweep.turns(args))}

    script, facts = Path(__file__).resolve(), {"seed": seed}
    return sweep.run(
        sweep.Sweep(script=script, cells=cells, measure=measure, line=line, table=table, facts=facts), args
    )


# ---- what is shown ---------------------------------------------------------------------------------------------------


def line(cell: Result) -> str:
    parts: list[str] = []
    for direction in report.DIRECTIONS:
        found = [
            f"{n} {cell['contenders'][n][direction]['ms']:.3f}"
            for n in ("attngen", "flex", "flex-flash")
            if direction in cell["contenders"].get(n, {})
        ]
        ratio = report.ratio(cell, "flex", direction)
        parts.append(f"{direction} {', '.join(found)} ms" + (f" x{ratio:.2f}" if ratio is not None else ""))
    return f"{cell['key']}: " + "; ".join(parts)


def worst(cells: Sequence[Result], direction: str, least: int) -> list[tuple[str, float]]:
    found = [(c["key"], r) for c in cells if (r := report.ratio(c, "flex", direction)) is not None]
    return sorted(found, key=lambda pair: pair[1])[:least]


def table(result: Result) -> str:
    """The listed cells with what is asked of each; of the drawn ones the mean, and the worst five."""
    lines = [line(c) for c in result["cells"]]
    lines.append(f"{result['machine']}, {result['date']}, seed {result['seed']}; x = attngen / FlexAttention")
    for cell in (c for c in result["cells"] if c["asked"]):
        for direction, asked in zip(report.DIRECTIONS, cell["asked"], strict=True):
            ratio = report.ratio(cell, "flex", direction)
            if ratio is not None:
                mark = "" if ratio >= asked else "  <"
                lines.append(f"listed: {cell['key']} {direction} x{ratio:.2f}, asked {asked:.1f}{mark}")
    random_cells = [c for c in result["cells"] if not c["asked"]]
    for direction in report.DIRECTIONS:
        ratios = [r for c in random_cells if (r := report.ratio(c, "flex", direction)) is not None]
        if ratios:
            below = sum(r < ASKED for r in ratios)
            mean = report.geometric_mean(ratios)
            lines.append(f"drawn, {direction}: mean {mean:.2f}, {below} of {len(ratios)} below {ASKED}; the worst:")
            lines += [f"  {key} x{ratio:.2f}" for key, ratio in worst(random_cells, direction, 5)]
    return "\n".join([*lines, *report.remarks(result)])


def main(argv: list[str]) -> int:
    p = sweep.parser(__doc__, "cells whose key holds one of these", HERE / "drawn.json", 300.0)
    p.prepare.add_argument("--seed", type=int, help="a fresh one if it is missing")
    p.prepare.add_argument("--cells", type=int, default=40, metavar="N")
    p.prepare.add_argument("--dry", action="store_true", help="at a tiny size")
    return sweep.perform(p.top.parse_args(argv), draw_and_prepare, run, table)


def draw_and_prepare(args: argparse.Namespace) -> None:
    seed = secrets.randbelow(2**31) if args.seed is None else args.seed
    prepare(args.directory, seed, args.cells, dry=args.dry)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
