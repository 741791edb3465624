"""One row of tile sizes for several specs and shapes: of each kernel the tile that loses least over all of them.

    attngen tune examples/causal.attn --target triton --shape Sq=4096 Sk=4096 -o tried.json     # on the GPU, and again
    attngen tune examples/softcap.attn --target triton --shape Sq=16384 Sk=16384 -o tried.json  # for what else counts
    python benchmarks/tiles.py tried.json -o tiles.json                                         # anywhere

`attngen tune` times, checks and keeps what it tried; this only ranks. A tile's loss is the geometric mean of its times
over the best time of each case; a tile that lacks a time in any case, since the card refuses it there, isn't ranked.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from report import geometric_mean, write

from attngen import files
from attngen.errors import UsageError
from attngen.plan.tiles import KERNELS, Tile
from attngen.runtime.tune import Tuning, load

Row = tuple[str, int, int]
"""Chip, bytes of an element, head dim rounded up: what a generated file looks its tiles up by."""


@dataclass(frozen=True, slots=True)
class Score:
    """One candidate: milliseconds in each case, and its loss. No tile: the chip's own forward kernel."""

    tile: Tile | None
    ms: tuple[float, ...]
    loss: float


def ranking(cases: Sequence[Mapping[Tile | None, float]]) -> list[Score]:
    """Best first, of the milliseconds that each case has by tile."""
    shared = [tile for tile in cases[0] if all(tile in case for case in cases)]
    times = {tile: tuple(case[tile] for case in cases) for tile in shared}
    best = [min(column) for column in zip(*times.values(), strict=True)]
    scores = (Score(t, ms, geometric_mean(m / b for m, b in zip(ms, best, strict=True))) for t, ms in times.items())
    return sorted(scores, key=lambda s: s.loss)


def rows(tunings: Sequence[Tuning]) -> dict[Row, list[Tuning]]:
    """The cases that share a row of tiles. Raises `UsageError` where cards differ: their times don't compare."""
    found: dict[Row, list[Tuning]] = {}
    for tuning in tunings:
        key = tuning.key
        group = found.setdefault((key.chip, 4 if key.dtype == "fp32" else 2, key.head_block), [])
        if group and group[0].key.card != key.card:
            raise UsageError(f"times of {group[0].key.card} and of {key.card} don't compare: rank them apart")
        group.append(tuning)
    return found


def record(row: Row, group: Sequence[Tuning]) -> dict[str, Any]:
    """Everything of one row: its cases, the ranking of each kernel, and the tiles that won."""
    found: dict[str, Any] = {"row": row, "card": group[0].key.card}
    found["cases"] = [f"{t.key.spec[:8]} {t.key.dtype} {t.key.shape()}" for t in group]
    for kernel in KERNELS:
        scores = ranking([{t.tile: t.ms for t in tuning.ranked(kernel) if t.ms is not None} for tuning in group])
        found[kernel] = [{"tile": s.tile and list(s.tile), "ms": s.ms, "loss": s.loss} for s in scores]
    found["won"] = [next((s["tile"] for s in found[kernel] if s["tile"]), None) for kernel in KERNELS]
    return found


def shown(found: Mapping[str, Any], top: int = 5) -> str:
    """One row's result: its cases, the best of each kernel, then the line to paste."""
    lines = [f"{found['card']}, ms in", *(f"  {case}" for case in found["cases"])]
    for kernel in KERNELS:
        lines.append(f"  {kernel}: (queries, keys, warps, stages)")
        for i, score in enumerate(found[kernel][:top]):
            tile = tuple(score["tile"]) if score["tile"] else "the chip's own kernel"
            times = " ".join(f"{m:8.3f}" for m in score["ms"])
            lines.append(f"  {i + 1:3d}. {tile!s:21s} {times}   x{score['loss']:.3f}")
    if all(found["won"]):
        lines.append(f"  TILES[{found['row']}] = {tuple(tuple(tile) for tile in found['won'])}")
    else:
        lines.append("  no tile ran in every case, for some kernel: tune on with attngen tune")
    return "\n".join(lines)


def main(argv: Sequence[str]) -> int:
    p = argparse.ArgumentParser(
        prog="tiles.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("files", nargs="+", metavar="FILE", help="what `attngen tune --target triton` wrote")
    p.add_argument("-o", "--output", type=Path, help="everything as JSON")
    args = p.parse_args(argv)
    try:
        tunings = [tuning for name in args.files for tuning in load(files.read_source(name))]
        found = [record(row, group) for row, group in rows(tunings).items()]
    except UsageError as error:
        print(f"tiles.py: {error}", file=sys.stderr)
        return 2
    print("\n".join(map(shown, found)))
    if args.output is not None:
        write(args.output, {"rows": found})
    return 0 if all(all(row["won"]) for row in found) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
