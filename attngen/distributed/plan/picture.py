"""A schedule as a picture: which rank computes which pairs, and what each rank computes, receives and takes."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import numpy.typing as npt

from attngen.distributed.plan.coverage import Pieces
from attngen.distributed.plan.report import Report
from attngen.distributed.plan.schedule import Schedule
from attngen.errors import UsageError
from attngen.extras import lacking

_CELLS = 512
_COLOUR = "#2a9d8f"


def grid(s: Schedule, cells: int = _CELLS) -> npt.NDArray[np.int64]:
    """(queries, keys), by cell: the group that computes the pair in its middle, or -1."""
    work = Pieces.of(s)
    at = [(np.arange(min(cells, n)) + 0.5) * n / min(cells, n) for n in (s.sequences.q[-1], s.sequences.k[-1])]
    found = np.full([len(x) for x in at], -1, np.int64)
    ends = [(np.searchsorted(at[0], work.q0), np.searchsorted(at[0], work.q1))]
    ends += [tuple(np.searchsorted(at[1], k + work.first_key) for k in (work.k0, work.k1))]
    for i in np.flatnonzero((ends[0][0] < ends[0][1]) & (ends[1][0] < ends[1][1])):
        found[ends[0][0][i] : ends[0][1][i], ends[1][0][i] : ends[1][1][i]] = work.group[i]
    return found


def image(report: Report, format: str) -> bytes:
    """Same report, same bytes (for one matplotlib)."""
    try:
        import matplotlib as untyped
        from matplotlib.figure import Figure
        from matplotlib.ticker import MaxNLocator
    except ImportError as error:
        raise UsageError(lacking("pictures need matplotlib", "show")) from error
    matplotlib: Any = untyped
    s, e = report.schedule, report.estimate
    with matplotlib.rc_context({"svg.hashsalt": "attngen", "font.size": 9}):
        # Places by hand: what matplotlib's layouts find differs in the last bits from run to run.
        figure: Any = Figure(figsize=(11, 6.4))
        axes, beside = (figure.add_axes(at) for at in ((0.07, 0.09, 0.47, 0.81), (0.56, 0.25, 0.013, 0.5)))
        cells = grid(s)
        extent = (0, s.sequences.k[-1], s.sequences.q[-1], 0)
        colours = matplotlib.colormaps["turbo"].resampled(max(2, s.groups)).with_extremes(under="white")
        drawn = axes.imshow(
            cells, cmap=colours, vmin=-0.5, vmax=s.groups - 0.5, extent=extent, interpolation="nearest", aspect="auto"
        )
        axes.set_xlabel("key")
        axes.set_ylabel("query")
        axes.set_title("who computes which pieces")
        label = "rank" if s.heads == 1 else f"group of {s.heads} ranks"
        figure.colorbar(drawn, cax=beside, label=label, ticks=MaxNLocator(integer=True))
        ranks = np.arange(s.ranks)
        panels = [figure.add_axes((0.68, 0.09 + 0.29 * (2 - i), 0.3, 0.23)) for i in range(3)]
        rows = (
            ("pairs", [(e.pairs, _COLOUR)]),
            ("MiB received\n(light: backward)", [(e.received[1] / 2**20, "#a8dadc"), (e.received[0] / 2**20, _COLOUR)]),
            ("ms at least\n(light: backward)", [(e.seconds[1] * 1e3, "#a8dadc"), (e.seconds[0] * 1e3, _COLOUR)]),
        )
        for panel, (name, bars) in zip(panels, rows, strict=True):
            for heights, colour in bars:
                panel.bar(ranks, heights, width=1.0 if s.ranks > 64 else 0.8, color=colour)
            panel.set_ylabel(name)
            panel.xaxis.set_major_locator(MaxNLocator(integer=True))
        panels[-1].set_xlabel("rank")
        figure.suptitle(report.title())
        buffer = io.BytesIO()
        figure.savefig(buffer, format=format, dpi=160, metadata={"Date": None} if format == "svg" else None)
    return buffer.getvalue()
