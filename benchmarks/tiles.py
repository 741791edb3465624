"""One choice for several specs and shapes: of each kernel the tile, or the row, that loses least over all of them.

    attngen tune examples/causal.attn --target triton --shape Sq=4096 Sk=4096 -o tried.json     # on the GPU, and again
    attngen tune examples/softcap.attn --target triton --shape Sq=16384 Sk=16384 -o tried.json  # for what else counts
    python benchmarks/tiles.py tried.json -o tiles.json                                         # anywhere

`attngen tune` times, checks and keeps what it tried (`tune.py` for many specs and shapes in one go); this only ranks. A
tile's loss is the geometric mean of its times over the best time of each case; a tile that lacks a time in any case,
since the card refuses it there, isn't ranked. So it is with rows of the kernels that compute capability 9.0 has for
itself, where cases are compared whose specs have the same row now. How many heads take turns is a rule that looks at
the mask: `together=65536, ahead=0` is what the rule says of each spec.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from report import geometric_mean, write

from attngen import files
from attngen.errors import UsageError
from attngen.plan.hopper import BackwardSkeleton, Skeleton
from attngen.plan.tiles.hopper_trials import GAIN, KINDS, Row as HopperRow, rounded
from attngen.plan.tiles.portable import KERNELS, Tile
from attngen.tune.gpu import Setting, Tuning
from attngen.tune.gpu_file import load

Row = tuple[str, int, int]
"""Chip, bytes of an element, head dim rounded up: what a generated file looks its tiles up by."""


@dataclass(frozen=True, slots=True)
class Score:
    """One candidate: milliseconds in each case, and its loss. Without a tile or row: the chip's own forward kernel."""

    setting: Setting
    ms: tuple[float, ...]
    loss: float


def ranking(cases: Sequence[Mapping[Any, float]]) -> list[Score]:
    """Best first, of the milliseconds that each case has by tile, or by row."""
    shared = [setting for setting in cases[0] if all(setting in case for case in cases)]
    times = {setting: tuple(case[setting] for case in cases) for setting in shared}
    best = [min(column) for column in zip(*times.values(), strict=True)]
    scores = (Score(x, ms, geometric_mean(m / b for m, b in zip(ms, best, strict=True))) for x, ms in times.items())
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
    """Everything of one row of tiles: its cases, the ranking of each kernel that was tried, and the tiles that won."""
    found: dict[str, Any] = {"row": row, "card": group[0].key.card}
    found["cases"] = [_case(t) for t in group]
    trials = [t for tuning in group for t in tuning.trials if isinstance(t.setting, Tile | None)]
    found["tried"] = [kernel for kernel in KERNELS if any(t.kernel == kernel for t in trials)]
    for kernel in KERNELS:
        cases = [{t.setting: t.ms for t in x.ranked(kernel) if isinstance(t.setting, Tile | None)} for x in group]
        found[kernel] = [{"tile": s.setting and list(s.setting), "ms": s.ms, "loss": s.loss} for s in ranking(cases)]
    found["won"] = [next((s["tile"] for s in found[kernel] if s["tile"]), None) for kernel in KERNELS]
    return found


def _case(tuning: Tuning) -> str:
    return f"{tuning.key.spec[:8]} {tuning.key.dtype} {tuning.key.shape()}"


def settled(found: Mapping[str, Any]) -> bool:
    """Whether each kernel that has tiles here has one that won."""
    return all(won or kernel not in found["tried"] for kernel, won in zip(KERNELS, found["won"], strict=True))


def shown(found: Mapping[str, Any], top: int = 5) -> str:
    """One row's result: its cases, the best of each kernel, then the line to paste."""
    lines = [f"{found['card']}, ms in", *(f"  {case}" for case in found["cases"])]
    for kernel in found["tried"]:
        lines.append(f"  {kernel}: (queries, keys, warps, stages)")
        for i, score in enumerate(found[kernel][:top]):
            tile = tuple(score["tile"]) if score["tile"] else "the chip's own kernel"
            times = " ".join(f"{m:8.3f}" for m in score["ms"])
            lines.append(f"  {i + 1:3d}. {tile!s:21s} {times}   x{score['loss']:.3f}")
    if not settled(found):
        lines.append("  no tile ran in every case, for some kernel: tune on with attngen tune")
    elif all(found["won"]):
        lines.append(f"  TILES[{found['row']}] = {tuple(tuple(tile) for tile in found['won'])}")
    return "\n".join(lines)


# ---------------------------------------------------------------- rows


RULE = 65536
"""Of heads in turn: stands for what the rule says of each spec."""


def general(row: HopperRow, own: HopperRow) -> HopperRow:
    """A row as it may be compared with other specs': heads as the rule has them for its own spec are `RULE`."""
    changes = {"together": RULE, **({"ahead": 0} if isinstance(row, Skeleton | BackwardSkeleton) else {})}
    same = all(getattr(row, name) == getattr(own, name) for name in changes)
    return replace(row, **changes) if same else row


def hopper_records(tunings: Sequence[Tuning]) -> list[dict[str, Any]]:
    """For each kernel, head dims and row that specs have now: the cases, the ranking, and what should stand there."""
    groups: dict[tuple[str, tuple[int, int], HopperRow, str], list[tuple[Tuning, HopperRow]]] = {}
    for kernel in KINDS:
        for tuning in tunings:
            tried = [t.setting for t in tuning.trials if t.kernel == kernel and isinstance(t.setting, HopperRow)]
            if tried:  # a spec's own row comes first
                sizes, block = dict(tuning.key.sizes), tuning.key.head_block
                dims = rounded((sizes.get("D", block), sizes.get("Dv", block)))
                group = (kernel, dims, general(tried[0], tried[0]), tuning.key.card)
                groups.setdefault(group, []).append((tuning, tried[0]))
    return [_hopper_record(*group, members) for group, members in groups.items()]


def _hopper_record(
    kernel: str, dims: tuple[int, int], now: HopperRow, card: str, members: Sequence[tuple[Tuning, HopperRow]]
) -> dict[str, Any]:
    cases = [{general(row, own): ms for row, ms in tuning.times(kernel).items()} for tuning, own in members]
    scores = ranking(cases)
    loss = {s.setting: s.loss for s in scores}
    best = scores[0].setting if scores else now
    won = best if now not in loss or loss[best] < GAIN * loss[now] else now
    return {
        "kernel": kernel, "dims": dims, "card": card, "cases": [_case(tuning) for tuning, _ in members],
        "ranking": [{"row": repr(s.setting), "ms": s.ms, "loss": s.loss} for s in scores],
        "now": repr(now), "won": repr(won), "loss_now": loss.get(now),
    }  # fmt: skip


def hopper_shown(found: Mapping[str, Any], top: int = 5) -> str:
    lines = [
        f"{found['card']}, ms in",
        *(f"  {case}" for case in found["cases"]),
        f"  {found['kernel']}, {tuple(found['dims'])}:",
    ]
    for i, score in enumerate(found["ranking"][:top]):
        times = " ".join(f"{m:8.3f}" for m in score["ms"])
        lines.append(f"  {i + 1:3d}. {times}   x{score['loss']:.3f}   {score['row']}")
    if not found["ranking"]:
        lines.append("  no row ran in every case")
    elif found["won"] == found["now"]:
        lines.append(f"  plan/tiles/hopper.py keeps its row (x{found['loss_now']:.3f}): {found['now']}")
    else:
        was = f"x{found['loss_now']:.3f}" if found["loss_now"] is not None else "not in every case"
        lines.append(f"  plan/tiles/hopper.py has ({was}): {found['now']}")
        lines.append(f"  and should have: {found['won']}")
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
        own = hopper_records(tunings)
    except UsageError as error:
        print(f"tiles.py: {error}", file=sys.stderr)
        return 2
    print("\n".join([*(shown(row) for row in found if row["tried"]), *map(hopper_shown, own)]))
    if args.output is not None:
        write(args.output, {"rows": found, "own": own})
    return 0 if all(map(settled, found)) and all(row["ranking"] for row in own) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
