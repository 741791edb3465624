"""Data tests in Triton: the small kernels that find each tile's extremes, and what other kernels ask of them.

Takes a `DataTest` and the module's frame, returns its `TestView` and its `HeldTest`.
"""

from __future__ import annotations

import re

from attngen.emit.triton.code.kernel_code import HeldTest, free_names
from attngen.emit.triton.code.test_views import TestView
from attngen.emit.triton.portable.frame import Frame
from attngen.ir import printing
from attngen.ir.nodes import Expr, Type
from attngen.ir.walk import reads
from attngen.plan.mask.data_tests import DataTest
from attngen.plan.mask.loops import Loops

_EXTREMES = {
    "float32": ('float("-inf")', 'float("inf")'),
    "int64": ("-9223372036854775807", "9223372036854775807"),
}
"""What is no value of a side: less than all, and greater."""


def held_tests(frame: Frame, found: Loops) -> tuple[HeldTest, ...]:
    """What a kernel asks of each of its loops' tests."""
    axis_name, size, block = ("key", "Sk", "BK") if found.axis == "k" else ("query", "Sq", "BQ")
    tests: list[HeldTest] = []
    for t in found.tests:
        held, walked = (t.row, t.col) if found.axis == "k" else (t.col, t.row)
        leading = lists_of(walked, every_batch=frame.place.prefix != "")
        tiles = f"tl.cdiv({size}, {block})"
        offset = f"{leading} * tl.cdiv({frame.place.rows[found.axis]}, {block})"
        tests.append(HeldTest(t.name, f"{axis_name}_{t.name}", offset, held, tiles, block, t.code(found.axis)))
    return tuple(tests)


def lists_of(walked: Expr, *, every_batch: bool = False) -> str:
    """The number of a batch and head among those that may differ in a side's extremes."""
    batch, head = every_batch or reads(walked, "b"), reads(walked, "h", "hkv")
    return {
        (True, True): "(batch * Hq + head)", (True, False): "batch", (False, True): "head",
        (False, False): "0",
    }[batch, head]  # fmt: skip


def test_view(frame: Frame, t: DataTest, axis: str) -> TestView:
    """The small kernel for the tiles of `axis`."""
    walked = t.col if axis == "k" else t.row
    test = f"{'key' if axis == 'k' else 'query'}_{t.name}"
    printer = frame.printer()
    text = printer.text(walked)
    read = free_names([text])
    lines = (
        *(line for p in frame.params if p.name in read for line in p.load_lines),
        *(f"{at}_safe = tl.minimum({at}_idx, S{at} - 1)" for at in "qk" if f"{at}_safe" in read),
    )
    wide = "float32" if walked.type is Type.FLOAT else "int64"
    lowest, highest = _EXTREMES[wide]
    return TestView(
        name=test,
        axis=axis,
        text=printing.expression(walked),
        pointers=(f"{test}_least_ptr", f"{test}_most_ptr"),
        lines=lines,
        value=f"tl.full([TILE], {text}, tl.{wide})" if _is_number(text) else f"tl.cast({text}, tl.{wide})",
        lowest=lowest,
        highest=highest,
        dtype=f"torch.{wide}",
        per_batch=reads(walked, "b"),
        per_head=reads(walked, "h", "hkv"),
    )


def _is_number(text: str) -> bool:
    return re.fullmatch(r"-?[0-9][0-9a-z.+-]*", text) is not None
