"""The page for those who come from FlexAttention: each spec there is what is read of the function above it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import attngen
from attngen.flex.spec import read

PAGE = Path(__file__).resolve().parents[2] / "docs" / "coming-from-flexattention.md"
VARIANTS = re.findall(r"^### (.*?)\n\n```python\n(.*?)```\n\n```attn\n(.*?)```", PAGE.read_text(), re.M | re.S)


@pytest.mark.parametrize(("code", "text"), [pytest.param(*rest, id=title) for title, *rest in VARIANTS])
def test_a_spec_is_read_of_the_function_above(code: str, text: str, tmp_path: Path) -> None:
    path = tmp_path / "functions.py"  # in a file, where names of variables are found
    path.write_text(code)
    named: dict[str, Any] = {}
    exec(compile("import math\nimport torch\n", "imports", "exec"), named)
    exec(compile(code, str(path), "exec"), named)
    name = text.split()[1]
    assert read(named.get("score_mod"), named.get("mask_mod"), name, {}).text == text
    assert attngen.compile(text).spec.name == name


def test_there_are_twelve() -> None:
    assert len(VARIANTS) == 12
