"""Pictures: every pair and tile has the colour that brute force gives it, in plain text, in colour, and as a file.

Each border between tiles is drawn.
"""

from __future__ import annotations

import dataclasses
import io
import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from rich.console import Console

from attngen import api
from attngen.errors import InternalError, Source, UsageError
from attngen.show import survey as survey_module
from attngen.show.image import image
from attngen.show.survey import Pair, Survey, survey
from attngen.show.svg import svg
from attngen.show.text import COLOURS, coloured, plain


def look(body: str, rows: int, columns: int, tile: tuple[int, int] = (16, 16), **options: int) -> Survey:
    plan = api.plan(api.analyse(Source(f"attention a\n{body}\n")))
    sizes = {"B": 2, "Hq": 4, "Hkv": 2, "Sq": rows, "Sk": columns, "D": 64, "Dv": 64}
    return survey(plan, sizes, {}, tile=tile, **options)


def test_causal_by_hand() -> None:
    seen = look("mask = causal", 48, 48)
    assert seen.tiles.tolist() == [[1, 0, 0], [2, 1, 0], [2, 2, 1]]
    assert seen.counts == (3, 3, 3)
    assert seen.allowed == pytest.approx((48 * 49 / 2) / 48**2)
    assert seen.pairs[0, 0] == Pair.ALLOWED and seen.pairs[0, 15] == Pair.MASKED
    assert seen.pairs[0, 16] == Pair.SKIPPED and seen.pairs[16, 15] == Pair.FULL


def test_ragged_ends_are_no_full_tiles() -> None:
    seen = look("", 20, 20)
    assert seen.pairs.shape == (20, 20)
    assert seen.tiles[0].tolist() == [2, 1]
    assert seen.allowed == 1.0


def test_the_head_looked_at_counts() -> None:
    body = "mask = k <= q if h < 2 else k >= q"
    assert look(body, 32, 32, head=0).pairs[0, 31] != look(body, 32, 32, head=3).pairs[0, 31]
    assert look("mask = hkv == 1", 32, 32, head=2).allowed == 1.0
    assert look("mask = hkv == 1", 32, 32, head=1).allowed == 0.0


@pytest.mark.parametrize("options", [{"batch": 2}, {"batch": -1}, {"head": 4}])
def test_head_out_of_range(options: dict[str, int]) -> None:
    with pytest.raises(UsageError, match="out of range"):
        look("mask = causal", 32, 32, **options)


@pytest.mark.parametrize("kind", [0, 2])
def test_a_plan_that_is_wrong_is_no_picture(monkeypatch: pytest.MonkeyPatch, kind: int) -> None:
    right = survey_module.visited

    def wrong(*args: object, **options: object) -> np.ndarray:
        grid = right(*args, **options)  # type: ignore[arg-type]
        grid[1, 1] = kind
        return grid

    monkeypatch.setattr(survey_module, "visited", wrong)
    with pytest.raises(InternalError, match=r"treats the pair q = 16, k = 1[67]"):
        look("mask = causal", 48, 48)


def test_plain_picture() -> None:
    drawn = plain(look("mask = k <= q and q - k < 24", 64, 64, tile=(16, 16)), width=16)
    title, *rows, legend, work, pairs, flex = drawn.splitlines()
    assert title == "a: 64 queries (down) x 64 keys (across), batch 0, head 0"
    assert rows == [
        "++--............",
        "++++............",
        "++++++--........",
        "++++++++........",
        "--++++++++--....",
        "----++++++++....",
        "....--++++++++--",
        "....----++++++++",
    ]
    assert legend.startswith(". skipped tile   - partial tile, masked away")
    assert work.startswith(
        "43.8% of the work is skipped: of 16 tiles of 16 x 16, 7 are skipped, 9 are masked, 0 need no mask"
    )
    assert pairs.endswith("of the pairs may attend")
    assert flex == "FlexAttention's block mask of such tiles would visit 9 of them"
    assert drawn.isascii()


def test_long_sequences_are_sampled() -> None:
    seen = look("mask = causal", 10000, 5000, tile=(128, 64))
    assert seen.stride == (5, 3)
    rows = plain(seen, width=80).splitlines()[1:-4]
    assert len(rows) <= 40 and all(len(row) <= 40 for row in rows)
    assert "about " in seen.summary()


def test_coloured_picture_has_every_pair_in_its_colour() -> None:
    seen = look("mask = causal", 48, 40)
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, color_system="truecolor", width=100)
    console.print(coloured(seen, 48))
    blocks = [line for line in stream.getvalue().splitlines() if "▀" in line]
    assert len(blocks) == 24
    assert all(line.count("▀") == 40 for line in blocks)
    for pair in Pair:
        r, g, b = (int(COLOURS[pair][i : i + 2], 16) for i in (1, 3, 5))
        upper = seen.pairs[::2] == pair
        assert sum(line.count(f"[38;2;{r};{g};{b};48") for line in blocks) == upper.sum()


def test_pictures_are_files_and_repeat() -> None:
    seen = look("mask = causal", 48, 48)
    assert image(seen, "png").startswith(b"\x89PNG\r\n")
    svg = image(seen, "svg")
    assert ET.fromstring(svg).tag.endswith("svg")
    assert svg == image(seen, "svg")
    assert b"<dc:date>" not in svg


WHITE = "stroke: #ffffff; stroke-opacity: 0.5"


@pytest.mark.parametrize(("tile", "lines"), [((16, 16), 10), ((32, 16), 2 + 5), ((20, 10), 4 + 9), ((96, 96), 0)])
def test_every_border_between_tiles_is_a_line(tile: tuple[int, int], lines: int) -> None:
    """Also where an axis has a major tick: at 20, 40, 60 and 80."""
    seen = look("mask = causal", 96, 96, tile=tile)
    assert sum(map(len, seen.borders)) == lines
    assert image(seen, "svg").decode().count(WHITE) == lines
    drawn = re.search(r'vector-effect="non-scaling-stroke" d="([^"]*)"', svg(seen))
    assert (drawn[1].count("M") if drawn else 0) == lines


def test_many_tiles_have_no_borders() -> None:
    seen = look("mask = causal", 65 * 16, 64)
    assert seen.borders == (range(0), range(0)) and "stroke" not in svg(seen)
    assert look("mask = causal", 64 * 16, 64).borders == (range(16, 1024, 16), range(16, 64, 16))


@pytest.mark.parametrize(
    ("body", "rows", "columns", "tile"),
    [
        ("mask = causal", 48, 40, (16, 16)),
        ("mask = k <= q and (q - k) % 3 != 1", 50, 77, (16, 32)),
        ("mask = 0 <= distance < 300", 1000, 700, (128, 64)),
        ("mask = causal", 5000, 2100, (128, 64)),
        ("", 20, 20, (32, 32)),
    ],
)
def test_a_small_picture_has_every_pair_in_its_colour(
    body: str, rows: int, columns: int, tile: tuple[int, int]
) -> None:
    seen = look(body, rows, columns, tile=tile)
    assert svg(seen) == svg(seen)
    painted = np.full((rows, columns), -1)
    kinds = {colour: pair for pair, colour in COLOURS.items()}
    for part in ET.fromstring(svg(seen)):
        if part.get("fill") in kinds:
            for x, y, wide, high, back in re.findall(r"M(\d+) (\d+)h(\d+)v(\d+)h-(\d+)z", part.attrib["d"]):
                assert back == wide
                there = (slice(int(y), int(y) + int(high)), slice(int(x), int(x) + int(wide)))
                if part.get("fill") != COLOURS[Pair.SKIPPED]:
                    assert (painted[there] == Pair.SKIPPED).all(), "a cell is painted once"
                painted[there] = kinds[part.attrib["fill"]]
    scale = -(-max(rows, columns) // 192)
    step = [-(-scale // s) * s for s in seen.stride]
    grid = seen.reduced(scale, scale)
    assert (painted == grid.repeat(step[0], axis=0)[:rows].repeat(step[1], axis=1)[:, :columns]).all()


def test_a_small_picture_escapes_what_it_says() -> None:
    seen = dataclasses.replace(look("mask = causal", 32, 32), name="<b>&")
    assert "&lt;b&gt;&amp;: 32 queries" in svg(seen)
    said = ET.fromstring(svg(seen))[0].text
    assert said is not None and said.startswith("<b>&: 32 queries (down) x 32 keys") and "of the pairs may" in said
