"""docs/gallery.md: every example is in it, its calls run, and text and pictures are what `make gallery` writes."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import gallery  # noqa: E402
from gallery import EVERY, PICTURES, Shown  # noqa: E402


def test_every_example_is_in_it() -> None:
    names = [shown.name for shown in EVERY]
    assert names == sorted(path.stem for path in (ROOT / "examples").glob("*.attn"))
    assert [path.stem for path in sorted(PICTURES.iterdir())] == names


def test_the_page_is_what_the_generator_writes() -> None:
    pictures = {shown.name: (PICTURES / f"{shown.name}.svg").read_text(encoding="utf-8") for shown in EVERY}
    assert gallery.page(pictures) == gallery.PAGE.read_text(encoding="utf-8"), "run `make gallery`"


@pytest.mark.parametrize("shown", EVERY, ids=lambda shown: shown.name)
def test_a_call_runs_and_its_picture_is_drawn_so(shown: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    assert f"```python\n{shown.code()}```\n" in gallery.PAGE.read_text(encoding="utf-8")
    code = shown.code("torch")
    assert code.replace(', target="torch"', "") == shown.code()
    found: dict[str, object] = {}
    exec(code, found)
    out, q, v = found["out"], found["q"], found["v"]
    assert out.shape == (*q.shape[:3], v.shape[-1]) and bool(out.isfinite().all())  # type: ignore[attr-defined]
    committed = (PICTURES / f"{shown.name}.svg").read_text(encoding="utf-8")
    assert gallery.picture(shown) == committed, "run `make gallery`"


def test_a_speed_names_machine_file_and_cell() -> None:
    causal = gallery._speed(next(shown for shown in EVERY if shown.name == "causal"))
    assert causal.startswith("Speed (4 x 4,096 tokens, 16 heads, head dim 128; one NVIDIA H200, 20")
    assert "[readme.json](../benchmarks/readme.json) `causal:128:4096`): attngen " in causal
    assert causal.count("FlexAttention") == 2 and causal.count(" / ") == 5
    assert gallery._speed(Shown("none")) == "Speed: not timed."
