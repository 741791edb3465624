"""What a notebook shows of a kernel: well-formed HTML with call, formula, mask and proof. Nothing runs."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import xml.etree.ElementTree as ET

import pytest

import attngen
from attngen import targets
from attngen.explain.notebook import html
from attngen.kernel import Kernel
from attngen.show.svg import svg
from attngen.show.usual import usual

WINDOW = """attention windowed
param slope: f32[Hq]
score = qk * scale - slope[h] * distance
mask = 0 <= distance < 40
"""
BY_DATA = "attention lengthy\nparam lengths: int[B] where lengths >= 0\nmask = k < lengths[b]\n"


def shown(kernel: Kernel) -> ET.Element:
    """The page, which an XML parser accepts only if all that the spec says is escaped."""
    return ET.fromstring(kernel._repr_html_())


def said(page: ET.Element) -> str:
    return "".join(page.itertext())


def test_it_has_the_call_the_formula_the_mask_and_the_proof() -> None:
    kernel = attngen.compile(WINDOW)
    page = shown(kernel)
    call, formula = (part.text or "" for part in page.findall("pre"))
    assert call.startswith("windowed(q: Tensor, k: Tensor, v: Tensor, *, slope: Tensor, scale: float | Tensor | None")
    assert call.endswith("# target triton")
    assert "s_ij = scale · q_i·k_j − slope[h] · (i + S_k − S_q − j)\n" in formula
    assert "0 ≤ i + S_k − S_q − j < 40 }" in formula
    assert svg(usual(kernel.spec, kernel.plan)) in kernel._repr_html_()
    rows = [[cell.text for cell in row] for row in page.iter("tr")]
    assert len(rows) == 1 + 8 and all(row[1] == "proved" for row in rows[1:])
    assert rows[4][:2] == ["locality", "proved"]
    assert "note: range-safety is claimed for" in said(page)


@pytest.mark.parametrize("target", targets.TARGETS)
def test_every_target_has_one(target: str) -> None:
    page = shown(attngen.compile(BY_DATA, target))
    assert page.find("{http://www.w3.org/2000/svg}svg") is not None
    assert "J_i  = { j : 0 ≤ j < S_k and j < lengths[b] }" in said(page)
    assert "with invented values of lengths" in said(page)


def test_nothing_is_loaded_and_no_library_is_needed() -> None:
    code = (
        "import sys, attngen\n"
        f"kernel = attngen.compile({WINDOW!r})\n"
        "assert '</svg>' in kernel._repr_html_()\n"
        "assert kernel._geometries is None\n"
        "print([m for m in ('matplotlib', 'torch', 'triton', 'jax') if m in sys.modules])\n"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_without_example_values_it_says_how_to_get_the_picture() -> None:
    kernel = attngen.compile("attention far\nparam n: int where n == 123456789\nmask = k < n\n")
    page = shown(kernel)
    assert page.find("{http://www.w3.org/2000/svg}svg") is None
    told = said(page)
    assert "found no example value for param `n`" in told and "attngen show takes yours, and sizes" in told


def test_what_comes_from_the_spec_is_escaped() -> None:
    """No spec can have such names; a comparison in the formula and the call can."""
    kernel = attngen.compile(WINDOW)
    named = dataclasses.replace(kernel.plan, attention=dataclasses.replace(kernel.plan.attention, name="<b>&"))
    page = ET.fromstring(html(dataclasses.replace(kernel.spec, name="<i>&"), named, kernel.proof, "f(x: '<u>&')"))
    assert page.findall("b")[0].text == "<i>&" and page.findall("pre")[0].text == "f(x: '<u>&')"
    assert "<b>&: 96 queries (down)" in said(page)


def test_a_kernel_without_a_proof_says_so() -> None:
    assert "Nothing is said to be proved" in said(shown(dataclasses.replace(attngen.compile(WINDOW), proof=None)))
