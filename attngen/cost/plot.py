"""Roofline times over sequence lengths, as a picture. Takes costs, returns the bytes of a PNG or SVG file."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

from attngen.cost.chips import ITEMSIZE, longest_dense
from attngen.cost.model import Cost
from attngen.errors import UsageError
from attngen.extras import lacking

FORMATS = ("png", "svg")
_COLOURS = {"attngen": "#2a9d8f", "queries outside": "#457b9d", "keys outside": "#e76f51", "dense": "#8d99ae"}


def series(costs: Sequence[Cost], direction: str) -> dict[str, list[float]]:
    """Milliseconds by form, one for each cost: attngen's kernels together, the single loop orders, and dense."""
    found: dict[str, list[float]] = {"attngen": [1e3 * c.total(direction) for c in costs]}
    for order in ("queries outside", "keys outside", "dense"):
        times = [
            [1e3 * line.seconds for line in c.lines if (line.direction, line.order) == (direction, order)
             and (not line.planned or direction == "forward")]
            for c in costs
        ]  # fmt: skip
        found[order] = [own[0] for own in times]
    if direction == "forward":  # attngen's forward pass is the one with queries outside
        del found["queries outside"]
    return found


def image(costs: Sequence[Cost], format: str) -> bytes:
    """One panel a direction, over the length of the keys. Same costs, same bytes (for one matplotlib)."""
    try:
        import matplotlib as untyped
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UsageError(lacking("pictures need matplotlib", "show")) from error
    matplotlib: Any = untyped
    lengths = [c.sizes["Sk"] for c in costs]
    first = costs[0]
    with matplotlib.rc_context({"svg.hashsalt": "attngen", "svg.fonttype": "none", "font.size": 9}):
        figure: Any = Figure(figsize=(9, 4.2), layout="constrained")
        for number, direction in enumerate(("forward", "backward")):
            axes = figure.add_subplot(1, 2, number + 1)
            for name, times in series(costs, direction).items():
                style = "-" if name == "attngen" else "--"
                axes.plot(lengths, times, style, marker="o", markersize=3, color=_COLOURS[name], label=name)
            scratch = first.chip.scratch
            limit = longest_dense(scratch, ITEMSIZE[first.dtype])
            if lengths[0] <= limit <= lengths[-1]:
                label = f"dense score outgrows {scratch.name}"
                axes.axvline(limit, color="#999999", linewidth=1, linestyle=":", label=label)
            axes.set_xscale("log", base=2)
            axes.set_yscale("log")
            axes.set_xlabel("sequence length")
            axes.set_ylabel("roofline, ms")
            axes.set_title(direction)
            axes.grid(alpha=0.3)
            axes.legend(frameon=False)
        s = first.sizes
        figure.suptitle(
            f"{first.name} on {first.chip.title}, {first.dtype}, B = {s['B']}, Hq = {s['Hq']}, Hkv = {s['Hkv']}, "
            f"D = {s['D']}, Dv = {s['Dv']}"
        )
        buffer = io.BytesIO()
        figure.savefig(buffer, format=format, dpi=160, metadata={"Date": None} if format == "svg" else None)
    return buffer.getvalue()
