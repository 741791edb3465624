"""The results: written to JSON as they come, merged, and printed as one compact table of ratios.

Takes and gives plain dictionaries, the JSON's own form (README.md says what each field is). Needs no torch.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import saved  # noqa: F401  (puts this checkout's attngen on the path)

from attngen.bench import verdict
from attngen.bench.picture import LABELS
from attngen.files import json_rows

Result = dict[str, Any]
CONTENDERS = ("attngen", "flex", "flex-flash", "cudnn", "sdpa", "fa4")
DIRECTIONS = ("forward", "backward")
STARTED = time.monotonic()


def say(text: str) -> None:
    """A line of progress, with the seconds since the start."""
    print(f"[{time.monotonic() - STARTED:5.0f} s] {text}", flush=True)


def write(path: Path, result: Result) -> None:
    """In one step: a run that is killed leaves the last whole file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(path.name + ".part")
    draft.write_text(json_rows(_strict(result)), encoding="utf-8")
    os.replace(draft, path)


def _strict(value: Any) -> Any:
    """JSON has no inf and no nan: such an error is written as text."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {k: _strict(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(v) for v in value]
    return value


def read(path: Path) -> Result:
    return json.loads(path.read_text(encoding="utf-8"))


def merge(results: Sequence[Result]) -> Result:
    """One result of several, a later cell in place of an earlier one. Only runs of one machine and software merge."""
    first, last = results[0], results[-1]
    for other in results[1:]:
        for field in ("machine", "versions", "dry_run"):
            if other[field] != first[field]:
                raise ValueError(f"these results differ in {field}: {first[field]} and {other[field]}")
    cells: dict[str, Any] = {}
    for result in results:
        for cell in result["cells"]:
            cells[cell["key"]] = {**cell, "date": cell.get("date", result["date"])}
    return {**last, "cells": list(cells.values())}


def tflops(cell: Result, name: str, direction: str) -> float | None:
    """TFLOP/s, or None where it wasn't measured."""
    timing = cell["contenders"].get(name, {}).get(direction)
    return None if timing is None else timing["tflops"]


def ratio(cell: Result, peer: str, direction: str) -> float | None:
    """attngen's speed over the peer's, or None where either is missing."""
    ours, theirs = tflops(cell, "attngen", direction), tflops(cell, peer, direction)
    return None if ours is None or theirs is None else ours / theirs


def graph_ms(cell: Result, name: str, direction: str) -> float | None:
    """Milliseconds of a CUDA graph's replay, or None where there is none."""
    timing = cell["contenders"].get(name, {}).get(direction)
    return None if timing is None else timing.get("graph_ms")


def graph_ratio(cell: Result, peer: str, direction: str) -> float | None:
    """The peer's replay's time over attngen's: how many times as fast ours is."""
    ours, theirs = graph_ms(cell, "attngen", direction), graph_ms(cell, peer, direction)
    return None if ours is None or theirs is None else theirs / ours


def short_of_target(cell: Result, direction: str) -> bool:
    """Whether attngen is slower than `target` times FlexAttention here."""
    found = ratio(cell, "flex", direction)
    return found is not None and found < cell["target"]


def geometric_mean(values: Iterable[float]) -> float:
    logs = [math.log(v) for v in values]
    return math.exp(sum(logs) / len(logs))


def word(cell: Result, name: str, direction: str) -> str:
    """What stands in place of a time that is missing: `verdict.word`; empty, too, for who took no part."""
    record = cell["contenders"].get(name)
    return "" if record is None else verdict.word(record, direction)


def entry(cell: Result, name: str, direction: str) -> str:
    """`366 x1.24`: the peer's TFLOP/s, and how many times as fast attngen is; a word where it has no time."""
    speed = tflops(cell, name, direction)
    if speed is None:
        return word(cell, name, direction)
    times = ratio(cell, name, direction)
    return f"{speed:.0f}" if name == "attngen" or times is None else f"{speed:.0f} x{times:.2f}"


def _replay(cell: Result, name: str, direction: str) -> str:
    """`0.221 x1.21`: the milliseconds of a CUDA graph's replay, and how many times as fast attngen's is."""
    if tflops(cell, name, direction) is None:
        return ""
    ms = graph_ms(cell, name, direction)
    if ms is None:
        return "-"
    times = graph_ratio(cell, name, direction)
    return f"{ms:.3f}" if name == "attngen" or times is None else f"{ms:.3f} x{times:.2f}"


def _spread(cell: Result, direction: str) -> str:
    timing = cell["contenders"].get("attngen", {}).get(direction)
    return "" if timing is None else f"{50 * (timing['q80'] - timing['q20']) / timing['ms']:.1f}"


def table(result: Result) -> str:
    """TFLOP/s per cell, each peer's with the ratio attngen / peer; then milliseconds of a graph's replay, likewise.

    `<` marks what is below its target against flex, by the TFLOP/s.
    """
    names = [n for n in CONTENDERS if any(n in cell["contenders"] for cell in result["cells"])]
    header = ["D", "N", "variant", "", *names, "±%", "mask ms", *(f"{n} replay" for n in names), ""]
    rows: list[list[str]] = []
    for cell in ordered(result):
        for direction in DIRECTIONS:
            if all(entry(cell, n, direction) in ("", "n/a") for n in names):
                continue
            mask_ms = cell["contenders"].get("flex", {}).get("block_mask_ms")
            rows.append(
                [
                    str(cell["D"]),
                    str(cell["N"]),
                    cell["variant"],
                    {"forward": "fwd", "backward": "bwd"}[direction],
                    *(entry(cell, n, direction) for n in names),
                    _spread(cell, direction),
                    f"{mask_ms:.1f}" if mask_ms is not None and direction == "forward" else "",
                    *(_replay(cell, n, direction) for n in names),
                    "<" if short_of_target(cell, direction) else "",
                ]
            )
    lines = aligned([header, *rows])
    dry = " (dry run: these times mean nothing)" if result["dry_run"] else ""
    versions = " ".join(f"{k} {v}" for k, v in result["versions"].items())
    legend = "TFLOP/s, x = attngen / peer; replay of a CUDA graph: ms, x likewise"
    lines.append(f"{result['machine']}, {result['date']}, {versions}{dry}; {legend}")
    for peer in names:
        for direction in DIRECTIONS:
            for what, over in (("", ratio), (", by replays", graph_ratio)):
                ratios = [r for cell in result["cells"] if (r := over(cell, peer, direction)) is not None]
                if ratios and peer != "attngen":
                    lines.append(
                        f"attngen / {peer}, {direction}{what}: geometric mean {geometric_mean(ratios):.2f},"
                        f" least {min(ratios):.2f}, most {max(ratios):.2f} over {len(ratios)} cells"
                    )
    short = sum(short_of_target(cell, direction) for cell in result["cells"] for direction in DIRECTIONS)
    compared = sum(ratio(cell, "flex", d) is not None for cell in result["cells"] for d in DIRECTIONS)
    lines.append(f"below target against FlexAttention: {short} of {compared} (1.5 at D = 256 and softcap, else 1)")
    lines += remarks(result)
    return "\n".join(lines)


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows of a table as lines, each column as wide as its widest entry."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return ["  ".join(text.ljust(w) for text, w in zip(row, widths, strict=True)).rstrip() for row in rows]


README = {
    "causal:64:16384": "D = 64, N = 16384, causal",
    "causal:128:4096": "D = 128, N = 4096, causal",
    "full:128:16384": "D = 128, N = 16384, full",
    "causal:256:16384": "D = 256, N = 16384, causal",
    "sliding_window:128:16384": "sliding window 1024, N = 16384",
    "documents:128:16384": "8 documents, causal, N = 16384",
    "softcap:128:16384": "soft cap 50, causal, N = 16384",
    "alibi:128:16384": "ALiBi, causal, N = 16384",
}
"""The rows of README's table, by the cells' keys."""
COLUMNS = ("attngen", "fa4", "cudnn", "flex", "flex-flash")


def readme(result: Result) -> str:
    """README's table in Markdown: TFLOP/s forward / backward, a word in place of a time that is missing; then why."""
    lines = ["| | " + " | ".join(LABELS[name] for name in COLUMNS) + " |", "|---" * (1 + len(COLUMNS)) + "|"]
    cells = {cell["key"]: cell for cell in result["cells"]}
    shown = {key: cells[key] for key in README if key in cells}
    for key, cell in shown.items():
        lines.append(f"| {README[key]} | " + " | ".join(speeds(cell, name) for name in COLUMNS) + " |")
    told = remarks({**result, "cells": list(shown.values())})
    return "\n".join([*lines, f"{result['machine']}, {result['date']}, {result['versions']}", *told])


def speeds(cell: Result, name: str) -> str:
    """`564 / 550`, `369 / NaN`, `n/a`; empty for who took no part."""
    speeds = {d: tflops(cell, name, d) for d in DIRECTIONS}
    texts = [f"{x:.0f}" if x is not None else word(cell, name, d) for d, x in speeds.items()]
    return texts[0] if len(set(texts)) == 1 and speeds["forward"] is None else " / ".join(t or "–" for t in texts)


def ordered(result: Result) -> list[Result]:
    """The cells as they are shown: the plain masks by shape, then the variants by name."""

    def place(cell: Result) -> tuple[int | str, ...]:
        if cell["variant"] in ("causal", "full"):
            return (0, "", cell["D"], cell["N"], cell["variant"])
        return (1, cell["variant"], cell["D"], cell["N"], "")

    return sorted(result["cells"], key=place)


def line(cell: Result) -> str:
    """One cell, as the progress shows it."""
    parts = []
    for name in CONTENDERS:
        if name in cell["contenders"]:
            parts.append(f"{name} " + " / ".join(entry(cell, name, d) or "-" for d in DIRECTIONS))
    return f"{cell['key']}: " + ", ".join(parts)


def troubles(result: Result) -> list[tuple[str, str, str]]:
    """What failed or was wrong: (cell, contender, a line)."""
    return [(key, name, why) for key, name, why, trouble in _reasons(result) if trouble]


def remarks(result: Result) -> list[str]:
    """A footnote for each time that is missing. What a contender can't compute, for one reason, is told once."""
    lines: list[str] = []
    known: set[tuple[str, str]] = set()
    for key, name, why, trouble in _reasons(result):
        if trouble or (name, why) not in known:
            lines.append(f"  {key} {name}: {why}")
        known.add((name, why))
    return lines


def _reasons(result: Result) -> Iterable[tuple[str, str, str, bool]]:
    for cell in result["cells"]:
        for name, record in cell["contenders"].items():
            if why := verdict.reason(record)[:240]:
                yield cell["key"], name, why, verdict.troubled(record)
