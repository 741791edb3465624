"""The table and the plot of `tpu_static.json`: every contender at its best tiles, attngen over the best rival."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tpu_cells import CELLS, VARIANTS, Cell

from attngen.tpu.chips import CHIPS

CONTENDERS = ("attngen", "tokamax", "splash", "flash")


@dataclass(frozen=True, slots=True)
class Best:
    """A contender's best in one cell. `tiles` has one entry a kernel."""

    ms: float
    around_ms: float
    tiles: tuple[str, ...]
    matrix_share: float
    """Useful operations over the chip's peak."""


def best(rows: Iterable[Mapping[str, Any]], cell: Cell, contender: str) -> Best | None:
    """Each kernel at its best tile: a kernel's tile does not bind the others."""
    fitting = [r for r in rows if r["cell"] == cell.key and r["contender"] == contender and "kernels" in r]
    fastest: dict[str, tuple[int, str]] = {}
    for row in fitting:
        for kernel in row["kernels"]:
            own = kernel["name"] == "forward_kernel"
            tile = row.get("forward_tile", row["tile"]) if own else row["tile"]
            found = kernel["cycles"], "x".join(map(str, tile))
            fastest[kernel["name"]] = min(fastest.get(kernel["name"], found), found)
    if not fastest:
        return None
    chip = CHIPS[cell.chip]
    seconds = sum(cycles for cycles, _ in fastest.values()) / chip.clock
    around = min(row["around_ms"] for row in fitting)
    share = 8 * cell.operations / (seconds * chip.peak)
    return Best(1e3 * seconds, around, tuple(tile for _, tile in fastest.values()), share)


def table(results: Mapping[str, Any]) -> str:
    """Markdown: estimated milliseconds of eight heads, the share of the chip's peak, and the ratio."""
    lines = [
        "| chip, D, mask, N | attngen | tokamax | splash | flash | ratio | with XLA's part |",
        "|---|---|---|---|---|---|---|",
    ]
    for cell in CELLS:
        found = {c: best(results["rows"], cell, c) for c in CONTENDERS}
        cells = [*(_shown(found[c]) for c in CONTENDERS), _of_two(ratio(found)), _of_two(ratio(found, around=True))]
        lines.append(f"| {label(cell)} | {' | '.join(cells)} |")
    lines += ["", "| chip, D, variant, N | attngen |", "|---|---|"]
    for cell in VARIANTS:  # their masks differ, so no share of the peak is given
        found = best(results["rows"], cell, "attngen")
        lines.append(f"| {label(cell)} | {'-' if found is None else f'{found.ms:.3f}'} |")
    return "\n".join(lines) + "\n"


def label(cell: Cell) -> str:
    direction = ", fwd + bwd" if cell.backward else ""
    return f"{cell.chip} {cell.head_dim} {cell.variant} {cell.length}{direction}"


def ratio(found: Mapping[str, Best | None], around: bool = False) -> float | None:
    """attngen over the best rival, below 1 is faster; with `around` XLA's own fusions beside the kernels count."""
    own = found["attngen"]
    rivals = [b for c, b in found.items() if c != "attngen" and b is not None]
    if own is None or not rivals:
        return None
    if around:
        return (own.ms + own.around_ms) / min(b.ms + b.around_ms for b in rivals)
    return own.ms / min(b.ms for b in rivals)


def _of_two(number: float | None) -> str:
    return "-" if number is None else f"{number:.2f}"


def _shown(found: Best | None) -> str:
    return "-" if found is None else f"{found.ms:.3f} ({100 * found.matrix_share:.0f} %)"


def write(results: Mapping[str, Any], picture: Path) -> None:
    """Print the table; draw the ratios."""
    print(table(results))
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "attngen"  # the same bytes every time
    from matplotlib import pyplot as plt

    cells = [c for c in CELLS if best(results["rows"], c, "attngen") is not None]
    figure, axes = plt.subplots(figsize=(9, 0.32 * len(cells) + 1.2), layout="constrained")
    for position, cell in enumerate(cells):
        found = {c: best(results["rows"], cell, c) for c in CONTENDERS}
        rivals = {c: b.ms for c, b in found.items() if c != "attngen" and b is not None}
        own = found["attngen"]
        if own is None or not rivals:
            continue
        least = min(rivals.values())
        axes.barh(position, own.ms / least, color="#2b6cb0", height=0.7)
        for contender, marker in (("tokamax", "o"), ("splash", "s"), ("flash", "^")):
            if contender in rivals:
                axes.plot(rivals[contender] / least, position, marker, color="black", markersize=4)
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_yticks(range(len(cells)), [label(c) for c in cells], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlim(0, 2)
    axes.set_xlabel(
        "estimated cycles over the best rival's (bar: attngen; circle tokamax, square splash, triangle flash)"
    )
    figure.savefig(picture, metadata={"Date": None})
