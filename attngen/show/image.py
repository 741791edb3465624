"""A survey as a picture: takes a `Survey` and a format, gives the bytes of a file. The only matplotlib import."""

from __future__ import annotations

import io
from typing import Any

from attngen.errors import UsageError
from attngen.extras import lacking
from attngen.show.survey import Pair, Survey
from attngen.show.text import COLOURS, LABELS, title

FORMATS = ("png", "svg")
_CELLS = 1024  # more than a screen shows


def image(survey: Survey, format: str) -> bytes:
    """The mask, its tiles outlined, with a legend and the figures. Same survey, same bytes (for one matplotlib)."""
    try:
        import matplotlib as untyped
        from matplotlib.colors import ListedColormap
        from matplotlib.figure import Figure
        from matplotlib.patches import Patch
    except ImportError as error:
        raise UsageError(lacking("pictures need matplotlib", "show")) from error
    matplotlib: Any = untyped
    with matplotlib.rc_context({"svg.hashsalt": "attngen", "font.size": 9}):
        figure: Any = Figure(figsize=(7, 7.6), layout="constrained")
        axes = figure.add_subplot()
        extent = (0, survey.keys, survey.queries, 0)
        colours = ListedColormap([COLOURS[pair] for pair in Pair])
        scale = -(-max(survey.queries, survey.keys) // _CELLS)
        grid = survey.reduced(scale, scale)
        axes.imshow(grid, cmap=colours, vmin=-0.5, vmax=len(Pair) - 0.5, extent=extent, interpolation="nearest")
        for axis, borders in zip((axes.yaxis, axes.xaxis), survey.borders, strict=True):
            axis.set_ticks(borders, minor=True)
            axis.remove_overlapping_locs = False  # else a border where a major tick is has no line
        axes.grid(which="minor", color="white", linewidth=0.4, alpha=0.5)
        axes.tick_params(which="minor", length=0)
        axes.set_xlabel("key")
        axes.set_ylabel("query")
        axes.set_title(title(survey))
        patches = [Patch(color=COLOURS[pair], label=LABELS[pair]) for pair in Pair]
        legend = figure.legend(
            handles=patches, loc="outside lower center", ncols=2, title=survey.summary(), frameon=False
        )
        legend.get_title().set_multialignment("center")
        buffer = io.BytesIO()
        figure.savefig(buffer, format=format, dpi=160, metadata={"Date": None} if format == "svg" else None)
    return buffer.getvalue()
