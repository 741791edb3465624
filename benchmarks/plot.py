"""Draws a result file: TFLOP/s of every contender in every cell, forward above backward. Needs matplotlib only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from report import CONTENDERS, DIRECTIONS, Result, ordered, tflops

from attngen.bench.picture import COLOURS, LABELS


def draw(result: Result, path: Path) -> None:
    """Bars with their spread (quantiles 0.2 and 0.8), grouped by cell. The suffix of `path` chooses the format."""
    import matplotlib

    matplotlib.use("agg")
    matplotlib.rcParams["svg.hashsalt"] = "attngen"  # the same ids in every run: a plot differs by its data only
    import matplotlib.pyplot as plt

    cells = ordered(result)
    figure, panels = plt.subplots(2, 1, figsize=(max(6.0, 2 + 0.52 * len(cells)), 8), sharex=True, squeeze=False)
    for axes, direction in zip(panels[:, 0], DIRECTIONS, strict=True):
        _panel(axes, cells, direction)
    panels[0, 0].legend(ncols=len(CONTENDERS), loc="lower left", bbox_to_anchor=(0, 1), frameon=False)
    labels = [f"{c['variant'].replace('_', ' ')}\nD {c['D']}, N {c['N']}" for c in cells]
    panels[1, 0].set_xticks(range(len(cells)), labels, rotation=60, ha="right", rotation_mode="anchor", fontsize=8)
    dry = "   (dry run: these times mean nothing)" if result["dry_run"] else ""
    figure.suptitle(
        f"{result['machine']}, {result['date'][:10]}, torch {result['versions']['torch']}{dry}", x=0.99, ha="right"
    )
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130, metadata={"Date": None} if path.suffix == ".svg" else None)
    plt.close(figure)


def _panel(axes: Any, cells: list[Result], direction: str) -> None:
    for i, cell in enumerate(cells):
        present = [n for n in CONTENDERS if tflops(cell, n, direction) is not None]
        width = 0.8 / max(2, len(present))
        for j, name in enumerate(present):
            timing = cell["contenders"][name][direction]
            speed = timing["tflops"]
            spread = [[speed - speed * timing["ms"] / timing["q80"]], [speed * timing["ms"] / timing["q20"] - speed]]
            spread = [[max(0.0, s[0])] for s in spread]
            axes.bar(
                i + (j - (len(present) - 1) / 2) * width,
                speed,
                width,
                color=COLOURS[name],
                label=LABELS[name] if name not in _labelled(axes) else None,
                yerr=spread,
                error_kw={"lw": 0.7, "ecolor": "#333333"},
            )
    axes.set_ylabel(f"{direction}, TFLOP/s")
    axes.grid(axis="y", lw=0.4, alpha=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.margins(x=0.01)


def _labelled(axes: Any) -> set[str]:
    """The contenders that have a bar in the legend already."""
    shown = set(axes.get_legend_handles_labels()[1])
    return {name for name, label in LABELS.items() if label in shown}
