"""Draws a result file: TFLOP/s of every contender in every cell, forward above backward. Needs matplotlib only.

`headline` draws README's chart of the cells of README's table, for a light page or a dark one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from report import COLUMNS, CONTENDERS, DIRECTIONS, README, Result, ordered, tflops, word

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


_INK = {"light": "#1f2328", "dark": "#e6edf3"}
"""Of text and axes. The page's own colour is behind the chart."""


def headline(result: Result, path: Path, page: str) -> None:
    """README's chart, forward above backward, attngen's TFLOP/s as numbers. `page`: light or dark."""
    import matplotlib

    ink = _INK[page]
    coloured = {f"{part}.color": ink for part in ("text", "xtick", "ytick")}
    settings = {"svg.hashsalt": "attngen", "font.size": 10, "axes.edgecolor": ink, "axes.labelcolor": ink, **coloured}
    found = {cell["key"]: cell for cell in result["cells"]}
    cells = [found[key] for key in README if key in found]
    with matplotlib.rc_context(settings):
        from matplotlib.figure import Figure

        figure: Any = Figure(figsize=(9.6, 6.6), layout="constrained")
        panels = figure.subplots(2, 1, sharex=True)
        for axes, direction in zip(panels, DIRECTIONS, strict=True):
            for place, cell in enumerate(cells):
                _group(axes, place, cell, direction, ink)
            axes.set_ylabel(f"{direction}, TFLOP/s")
            axes.grid(axis="y", lw=0.4, alpha=0.4)
            axes.set_axisbelow(True)
            axes.spines[["top", "right"]].set_visible(False)
            axes.margins(x=0.01, y=0.08)
        panels[1].set_xticks(range(len(cells)), [_place(cell) for cell in cells])
        handles = [matplotlib.patches.Patch(color=COLOURS[name], label=_named(name)) for name in COLUMNS]
        figure.legend(handles=handles, ncols=len(COLUMNS), loc="outside upper center", frameon=False, columnspacing=1.2)
        figure.supxlabel(
            f"one {result['machine']}, {result['date'][:10]}, {result['dtype']}; higher is faster", size=10
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, transparent=True, metadata={"Date": None} if path.suffix == ".svg" else None)


def _group(axes: Any, place: int, cell: Result, direction: str, ink: str) -> None:
    """The bars of one cell, side by side; a word in place of a time that is missing."""
    names = [name for name in COLUMNS if name in cell["contenders"]]
    width = 0.84 / len(names)
    for number, name in enumerate(names):
        x, speed = place + (number - (len(names) - 1) / 2) * width, tflops(cell, name, direction)
        text = word(cell, name, direction) if speed is None else f"{speed:.0f}" if name == "attngen" else ""
        axes.bar(x, speed or 0, width, color=COLOURS[name])
        axes.annotate(text, (x, speed or 0), (0, 2), textcoords="offset points", ha="center", size=9, color=ink)


def _place(cell: Result) -> str:
    """README's name of a cell, the mask first, in lines of a few characters."""
    parts = README[cell["key"]].split(", ")
    return "\n".join(parts[-1:] + parts[:-1] if parts[0].startswith("D = ") else parts)


def _named(name: str) -> str:
    return LABELS[name].replace(", ", " over ")
