"""Tries tile sizes, warps and stages for the generated kernels, each of the three apart, and prints the best.

    python benchmarks/tune.py --kernels build/kernels --cases causal:128:16384,full:128:4096 -o "$OUT/tune.json"

A generated file has `TILES[chip, itemsize, head_block] = (forward, dkdv, dq)`, each (BQ, BK, num_warps, num_stages); an
assignment holds from the next call on. Candidates are compiled, and run once, in many processes (pool.py): what doesn't
fit, crashes or hangs is out. The rest are timed in one process with nothing beside it, and the first six once more. For
dK/dV and dQ the whole backward is timed, the other kernel left as it was. Cases with the same D are tuned together: the
best candidate loses least, as a geometric mean over the cases. Winners are checked against dense float32.
"""

from __future__ import annotations

import argparse
import itertools
import os
import re
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from cells import VARIANTS, Cell
from check import right
from pool import Pool, Reply
from report import STARTED, geometric_mean, say, write
from tune_worker import Bench, Setup, Task, Tile, Tiles

PARTS = ("forward", "dkdv", "dq")


class Mapper(Protocol):
    """What the sweep asks of a pool."""

    def map(self, tasks: Sequence[Any], *, deadline: float = ..., count: int | None = None) -> Sequence[Reply]: ...


@dataclass(frozen=True, slots=True)
class Grid:
    """The values that candidates are drawn from."""

    bq: tuple[int, ...]
    bk: tuple[int, ...]
    warps: tuple[int, ...]
    stages: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Score:
    """One candidate: milliseconds in each case, and the geometric mean of its times over the best time of each case."""

    tile: Tile
    ms: tuple[float, ...]
    loss: float


def accumulators(part: str, tile: Tile, D: int) -> float:
    """float32 values that a thread holds at once, at the least: a thread has 255 registers."""
    bq, bk, warps, _ = tile
    held = {"forward": bq * D + bq * bk, "dkdv": 2 * bk * D + bq * bk, "dq": bq * D + bq * bk}[part]
    return held / (32 * warps)


def candidates(part: str, D: int, grid: Grid) -> list[Tile]:
    """The grid without what is sure to spill (a quarter is allowed on top: the compiler reuses some early)."""
    every = itertools.product(grid.bq, grid.bk, grid.warps, grid.stages)
    return [tile for tile in every if accumulators(part, tile, D) <= 320]


def replaced(tiles: Tiles, part: str, tile: Tile) -> Tiles:
    i = PARTS.index(part)
    return (*tiles[:i], tile, *tiles[i + 1 :])  # pyright: ignore


def ranking(times: dict[Tile, list[float | None]]) -> list[Score]:
    """Best first. A candidate that lacks a time in any case isn't ranked."""
    whole = {tile: [m for m in ms if m is not None] for tile, ms in times.items() if None not in ms}
    if not whole:
        return []
    best = [min(column) for column in zip(*whole.values(), strict=True)]
    scores = [
        Score(tile, tuple(ms), geometric_mean(m / b for m, b in zip(ms, best, strict=True)))
        for tile, ms in whole.items()
    ]
    return sorted(scores, key=lambda s: (s.loss, s.tile))


def sweep(
    pool: Mapper, part: str, cells: Sequence[Cell], own: Sequence[Tiles], grid: Grid, *, deadline: float, rep_ms: float
) -> tuple[list[Score], dict[str, int]]:
    """The ranking of one kernel's candidates over the cells, and how many candidates fell out, by reason.

    `own` holds each cell's tiles as its file has them. Three quarters of the time at most go to the first tries.
    """
    D = cells[0].D
    direction = "forward" if part == "forward" else "backward"
    owned = [tiles[PARTS.index(part)] for tiles in own]
    every = list(dict.fromkeys([*owned, *candidates(part, D, grid)]))
    fallen: dict[str, int] = {}

    def drop(why: str) -> None:
        fallen[why] = fallen.get(why, 0) + 1

    # Each variant's shortest case is enough to compile: a length change compiles nothing.
    by_length = sorted(zip(cells, own, strict=True), key=lambda pair: -pair[0].N)
    compiled = {cell.variant: (cell, tiles) for cell, tiles in by_length}
    tries = [
        (tile, Task("run", cell, replaced(tiles, part, tile), direction))
        for tile in every
        for cell, tiles in compiled.values()
    ]
    now = time.monotonic()
    replies = pool.map([task for _, task in tries], deadline=now + 0.75 * (deadline - now))
    alive = dict.fromkeys(every)
    for (tile, _), reply in zip(tries, replies, strict=True):
        if reply.status != "ok" and tile in alive:
            del alive[tile]
            drop(re.split(r"[\d,(]", str(reply.value))[0][:70] if reply.status == "failed" else reply.status)

    def timed(running: list[Tile], rep_ms: float) -> list[Score]:
        times: dict[Tile, list[float | None]] = {tile: [None] * len(cells) for tile in running}
        for i, (cell, tiles) in enumerate(zip(cells, own, strict=True)):
            best = float("inf")
            for tile in running:
                task = Task("time", cell, replaced(tiles, part, tile), direction, rep_ms, cutoff_ms=2 * best)
                (reply,) = pool.map([task], deadline=deadline, count=1)
                if reply.status == "ok":
                    times[tile][i] = reply.value.ms
                    best = min(best, reply.value.ms)
                else:
                    drop(reply.status)
            # Far behind in one case is out for all, but for the files' own tiles, which the table compares with.
            running = [t for t in running if t in owned or ((ms := times[t][i]) is not None and ms <= 1.5 * best)]
        return ranking(times)

    first = timed(list(alive), rep_ms)
    again = timed([score.tile for score in first[:6]], 3 * rep_ms)
    looked = {score.tile for score in again}
    return again + [score for score in first if score.tile not in looked], fallen


def final(pool: Mapper, cells: Sequence[Cell], own: Sequence[Tiles], won: Tiles, rep_ms: float) -> list[dict[str, Any]]:
    """The file's own tiles against the winners, turn about, with the winners' errors and their kernels' times."""
    found: list[dict[str, Any]] = []
    for cell, tiles in zip(cells, own, strict=True):
        record: dict[str, Any] = {"key": cell.key}
        for direction in ("forward", "backward"):
            tasks = [Task("time", cell, t, direction, rep_ms) for t in (tiles, won, tiles, won)]
            replies = pool.map(tasks, count=1)
            ms = [r.value.ms if r.status == "ok" else float("nan") for r in replies]
            record[direction] = {"own_ms": min(ms[0::2]), "won_ms": min(ms[1::2])}
        check, fwd, bwd = pool.map(
            [
                Task("check", cell, won),
                Task("breakdown", cell, won, "forward"),
                Task("breakdown", cell, won, "backward"),
            ],
            count=1,
        )
        record["errors"] = check.value
        record["right"] = check.status == "ok" and right(check.value)
        record["kernels_ms"] = {d: r.value for d, r in (("forward", fwd), ("backward", bwd)) if r.status == "ok"}
        found.append(record)
    return found


def tune_group(
    pool: Mapper, cells: Sequence[Cell], args: argparse.Namespace, share: Callable[[], float]
) -> dict[str, Any]:
    """Everything for the cells of one D. `share()` gives each sweep its deadline."""
    replies = pool.map([Task("tiles", cell) for cell in cells], count=1)
    for reply in replies:
        if reply.status != "ok":
            raise SystemExit(f"tune.py: {reply.value}")
    key = replies[0].value[0]
    own: list[Tiles] = [reply.value[1] for reply in replies]
    record: dict[str, Any] = {"D": cells[0].D, "cells": [c.key for c in cells], "key": list(key), "own": own[0]}
    won = own[0]
    for part in args.parts:
        grid = Grid(args.bq, args.bk, args.warps, args.stages)
        scores, fallen = sweep(pool, part, cells, own, grid, deadline=share(), rep_ms=args.rep)
        say(f"D {cells[0].D} {part}: {len(scores)} ranked, dropped {fallen}")
        record[part] = {"scores": [[s.tile, s.ms, s.loss] for s in scores], "dropped": fallen}
        if scores:
            won = replaced(won, part, scores[0].tile)
    record["won"] = won
    record["final"] = final(pool, cells, own, won, 2 * args.rep)
    return record


def shown(record: dict[str, Any], top: int = 5) -> str:
    """One group's result: the best of each kernel, then the line to paste."""
    lines = [f"D {record['D']}, ms in {', '.join(record['cells'])}"]
    for part in PARTS:
        if part not in record:
            continue
        lines.append(f"  {part}: (BQ, BK, warps, stages)")
        own = tuple(record["own"][PARTS.index(part)])
        for i, (tile, ms, loss) in enumerate(record[part]["scores"]):
            mark = "  the file's own" if tuple(tile) == own else ""
            if i < top or mark:
                times = " ".join(f"{m:8.3f}" for m in ms)
                lines.append(f"  {i + 1:3d}. {tuple(tile)!s:20s} {times}   x{loss:.3f}{mark}")
        for why, count in record[part]["dropped"].items():
            lines.append(f"       {count} {why}")
    for cell in record["final"]:
        gains = ", ".join(f"{d} {cell[d]['own_ms']:.3f} -> {cell[d]['won_ms']:.3f} ms" for d in ("forward", "backward"))
        lines.append(f"  {cell['key']}: {gains}; {'right' if cell['right'] else 'WRONG: ' + str(cell['errors'])}")
        for direction, kernels in cell["kernels_ms"].items():
            if kernels:
                lines.append(f"    {direction}: " + ", ".join(f"{name} {ms:.3f}" for name, ms in kernels.items()))
    won = tuple(tuple(tile) for tile in record["won"])
    lines.append(f"  TILES[{tuple(record['key'])}] = {won}")
    return "\n".join(lines)


def cases(text: str) -> list[Cell]:
    """`causal:128:16384,full:64:4096` as cells."""
    found: list[Cell] = []
    for part in filter(None, text.split(",")):
        variant, _, shape = part.partition(":")
        D, _, N = shape.partition(":")
        if variant not in VARIANTS or not (D.isdigit() and N.isdigit()):
            raise argparse.ArgumentTypeError(f"{part!r} isn't VARIANT:D:N; variants: {', '.join(VARIANTS)}")
        found.append(Cell(variant, int(D), int(N)))
    return found


def numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(",") if part)


def parts(text: str) -> tuple[str, ...]:
    found = tuple(part for part in PARTS if part in text.split(","))
    if set(text.split(",")) - set(PARTS):
        raise argparse.ArgumentTypeError(f"{text!r} isn't a list of {', '.join(PARTS)}")
    return found


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(
        prog="tune.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("--kernels", type=Path, required=True, metavar="DIR", help="what `gpu.py prepare` wrote")
    p.add_argument("--cases", type=cases, default=cases("causal:128:4096,causal:128:16384,full:128:16384"))
    p.add_argument("--parts", type=parts, default=PARTS, help="forward,dkdv,dq")
    p.add_argument("--bq", type=numbers, default=(32, 64, 128))
    p.add_argument("--bk", type=numbers, default=(32, 64, 128))
    p.add_argument("--warps", type=numbers, default=(4, 8))
    p.add_argument("--stages", type=numbers, default=(1, 2, 3))
    p.add_argument("--budget", type=float, default=500.0, metavar="S", help="of the whole run (%(default)s)")
    p.add_argument("--limit", type=float, default=90.0, metavar="S", help="a task that takes longer is a hang")
    p.add_argument("--workers", type=int, default=max(1, min(12, (os.cpu_count() or 2) - 2)))
    p.add_argument("--rep", type=float, default=25.0, metavar="MS", help="milliseconds a timing (%(default)s)")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    p.add_argument("-o", "--output", type=Path, help="everything as JSON")
    return p


def run(args: argparse.Namespace, pool: Mapper) -> int:
    groups: dict[int, list[Cell]] = {}
    for cell in args.cases:
        if args.device == "cpu":  # a dry run: what the plain loops of a test bear
            cell = replace(cell, tokens=2 * cell.N, width=2 * cell.D)
        groups.setdefault(cell.D, []).append(cell)
    sweeps = len(groups) * len(args.parts)
    left = iter(range(sweeps, 0, -1))
    end = STARTED + 0.9 * args.budget  # the rest is for the winners' check

    def share() -> float:
        now = time.monotonic()
        return now + max(0.0, end - now) / next(left)

    records: list[dict[str, Any]] = []
    for group in groups.values():
        records.append(tune_group(pool, group, args, share))
        if args.output is not None:
            write(args.output, {"groups": records})
    print("\n".join(shown(record) for record in records))
    return 0 if all(cell["right"] for record in records for cell in record["final"]) else 1


def main(argv: Sequence[str]) -> int:
    args = parser().parse_args(argv)
    pool = Pool(Bench, Setup(args.kernels, args.device, args.seed), count=args.workers, limit=args.limit)
    try:
        return run(args, pool)
    finally:
        pool.close()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
