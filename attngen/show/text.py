"""A survey in a terminal: half-blocks in colour, or plain characters. Takes a `Survey`, returns text."""

from __future__ import annotations

from rich.console import Group
from rich.style import Style
from rich.text import Text

from attngen.show.survey import Pair, Survey

COLOURS = {Pair.SKIPPED: "#30343f", Pair.MASKED: "#7a5c1e", Pair.ALLOWED: "#f2b84b", Pair.FULL: "#2a9d8f"}
LABELS = {
    Pair.SKIPPED: "skipped tile",
    Pair.MASKED: "partial tile, masked away",
    Pair.ALLOWED: "partial tile, attends",
    Pair.FULL: "full tile, no mask",
}
_CHARACTERS = {Pair.SKIPPED: ".", Pair.MASKED: "-", Pair.ALLOWED: "+", Pair.FULL: "#"}


def title(survey: Survey) -> str:
    where = f"batch {survey.batch}, head {survey.head}"
    return f"{survey.name}: {survey.queries} queries (down) x {survey.keys} keys (across), {where}"


def _scale(survey: Survey, width: int) -> int:
    """How many positions a cell stands for, so that the longer side fits into `width` cells."""
    return -(-max(survey.queries, survey.keys) // max(width, 1))


def plain(survey: Survey, width: int = 96) -> str:
    """One character for each cell; a character stands for twice as many queries as keys, as it is twice as high."""
    scale = _scale(survey, width)
    grid = survey.reduced(2 * scale, scale)
    rows = ["".join(_CHARACTERS[Pair(pair)] for pair in row) for row in grid]
    legend = "   ".join(f"{_CHARACTERS[pair]} {LABELS[pair]}" for pair in Pair)
    return "\n".join([title(survey), *rows, legend, survey.summary()]) + "\n"


def coloured(survey: Survey, width: int = 96) -> Group:
    """Two cells for each character, the upper one as a half-block before the lower one."""
    scale = _scale(survey, width)
    grid = survey.reduced(scale, scale)
    rows: list[Text] = []
    for top in range(0, len(grid), 2):
        line = Text()
        for column in range(grid.shape[1]):
            below = COLOURS[Pair(grid[top + 1, column])] if top + 1 < len(grid) else None
            line.append("▀", Style(color=COLOURS[Pair(grid[top, column])], bgcolor=below))
        rows.append(line)
    legend = Text()
    for pair in Pair:
        legend.append("██ ", Style(color=COLOURS[pair])).append(LABELS[pair] + "   ")
    return Group(Text(title(survey), style="bold"), *rows, legend, Text(survey.summary()))
