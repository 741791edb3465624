"""Data tests in Triton: the small kernels that find each tile's extremes, and what other kernels ask of them.

Takes a `DataTest` and the module's frame, gives its `TestView` and its `HeldTest`.
"""

from __future__ import annotations

import re

from attngen.emit.triton.frame import Frame
from attngen.emit.triton.kernel_code import HeldTest, free_names
from attngen.emit.triton.views import TestView
from attngen.ir import printing
from attngen.ir.nodes import Type
from attngen.ir.walk import reads
from attngen.plan.mask.data_tests import DataTest
from attngen.plan.mask.loops import Loops


def held_tests(frame: Frame, found: Loops) -> tuple[HeldTest, ...]:
    """What a kernel asks of each of its loops' tests."""
    axis_name, size, block = ("key", "Sk", "BK") if found.axis == "k" else ("query", "Sq", "BQ")
    tests: list[HeldTest] = []
    for t in found.tests:
        held, walked = (t.row, t.col) if found.axis == "k" else (t.col, t.row)
        batch, head = reads(walked, "b"), reads(walked, "h", "hkv")
        batch = batch or frame.place.prefix != ""
        leading = {
            (True, True): "(batch * Hq + head)", (True, False): "batch", (False, True): "head",
            (False, False): "0",
        }[batch, head]  # fmt: skip
        code = 0 if t.equal else 1 if found.axis == "k" else 2
        tiles = f"tl.cdiv({size}, {block})"
        offset = f"{leading} * tl.cdiv({frame.place.rows[found.axis]}, {block})"
        tests.append(HeldTest(t.name, f"{axis_name}_{t.name}", offset, held, tiles, block, code))
    return tuple(tests)


def test_view(frame: Frame, t: DataTest, axis: str) -> TestView:
    """The small kernel for the tiles of `axis`."""
    walked = t.col if axis == "k" else t.row
    position, size, what = ("k_idx", "Sk", "keys") if axis == "k" else ("q_idx", "Sq", "queries")
    test = f"{'key' if axis == 'k' else 'query'}_{t.name}"
    printer = frame.printer()
    text = printer.text(walked)
    read = free_names([text])
    lines = (
        *(line for p in frame.params if p.name in read for line in p.load_lines),
        *((f"{position[0]}_safe = tl.minimum({position}, {size} - 1)",) if f"{position[0]}_safe" in read else ()),
    )
    is_float = walked.type is Type.FLOAT
    wide = "float32" if is_float else "int64"
    return TestView(
        test, axis, printing.expression(walked), what, (f"{test}_least_ptr", f"{test}_most_ptr"), position, size,
        lines,
        f"tl.full([TILE], {text}, tl.{wide})" if _is_number(text) else f"tl.cast({text}, tl.{wide})",
        'float("-inf")' if is_float else "-9223372036854775807",
        'float("inf")' if is_float else "9223372036854775807",
        f"torch.{wide}", reads(walked, "b"), reads(walked, "h", "hkv"),
    )  # fmt: skip


def _is_number(text: str) -> bool:
    return re.fullmatch(r"-?[0-9][0-9a-z.+-]*", text) is not None
