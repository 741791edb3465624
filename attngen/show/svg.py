"""A survey as a small picture without words, in SVG, for a page that says the rest. Takes a `Survey`, returns text.

It is drawn with rectangles, so it needs no library, holds no ids that a page's other pictures may have, and its bytes
depend on the survey alone. Nothing lies around the mask: it is read on a light page and on a dark one.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

import numpy as np

from attngen.ir.evaluate import Array
from attngen.show.survey import Pair, Survey
from attngen.show.text import COLOURS, title

_MOST_CELLS = 192
"""Cells along the longer side: more than that is neither seen at this size nor small as a file."""


def svg(survey: Survey, side: int = 240) -> str:
    """The mask with its tiles, the longer side `side` pixels long. Its title has the figures."""
    scale = -(-max(survey.queries, survey.keys) // _MOST_CELLS)
    longest = max(survey.queries, survey.keys)
    width, height = (round(side * length / longest) for length in (survey.keys, survey.queries))
    grid = survey.reduced(scale, scale)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {survey.keys} {survey.queries}" preserveAspectRatio="none" role="img">',
        f"<title>{escape(title(survey))}. {escape(survey.summary()).replace(chr(10), '; ')}</title>",
        f'<path fill="{COLOURS[Pair.SKIPPED]}" d="M0 0h{survey.keys}v{survey.queries}h-{survey.keys}z"/>',
    ]
    steps = _steps(survey, scale, grid.shape)
    for pair in (Pair.MASKED, Pair.ALLOWED, Pair.FULL):
        if (grid == pair).any():
            path = "".join(_rectangles(grid == pair, *steps))
            lines.append(f'<path fill="{COLOURS[pair]}" shape-rendering="crispEdges" d="{path}"/>')
    down, across = survey.borders
    borders = [f"M{k} 0v{survey.queries}" for k in across] + [f"M0 {q}h{survey.keys}" for q in down]
    if borders:
        lines.append(
            '<path fill="none" stroke="#fff" stroke-opacity=".35" stroke-width=".7" vector-effect="non-scaling-stroke" '
            f'd="{"".join(borders)}"/>'
        )
    return "\n".join([*lines, "</svg>"]) + "\n"


def _steps(survey: Survey, scale: int, cells: tuple[int, ...]) -> tuple[list[int], list[int]]:
    """Where the rows and the columns of the reduced grid begin, and the last ends, in positions."""

    def along(axis: int, length: int) -> list[int]:
        step = -(-scale // survey.stride[axis]) * survey.stride[axis]
        return [min(i * step, length) for i in range(cells[axis] + 1)]

    return along(0, survey.queries), along(1, survey.keys)


def _rectangles(cells: Array, rows: list[int], columns: list[int]) -> Iterator[str]:
    """Paths that cover the cells: runs along a row, joined with the same runs of the rows below."""
    open_runs: dict[tuple[int, int], int] = {}
    for row, line in enumerate(np.pad(cells.astype(np.int8), ((0, 1), (1, 1)))):
        edges: list[int] = np.flatnonzero(np.diff(line)).tolist()
        runs = {*zip(edges[::2], edges[1::2], strict=True)}
        for run in [run for run in open_runs if run not in runs]:
            top, (left, right) = rows[open_runs.pop(run)], run
            wide = columns[right] - columns[left]
            yield f"M{columns[left]} {top}h{wide}v{rows[row] - top}h-{wide}z"
        for run in sorted(runs - open_runs.keys()):
            open_runs[run] = row
