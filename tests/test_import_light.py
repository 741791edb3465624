"""`import attngen` and the command line's help cost nothing: no framework, no solver, and few modules of any kind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = ("torch", "transformers", "triton", "jax", "sympy", "z3", "numpy", "lark", "jinja2", "rich", "matplotlib")


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout


@pytest.mark.parametrize("module", ["attngen", "attngen.cli.main"])
def test_import_loads_nothing_heavy(module: str) -> None:
    code = f"import sys, {module}; print([m for m in {HEAVY!r} if m in sys.modules])"
    assert run(code).strip() == "[]"


def test_layouts_and_schedules_load_no_framework() -> None:
    code = f"import sys, attngen.distributed; print([m for m in {HEAVY!r} if m in sys.modules])"
    assert run(code).strip() == "['numpy']"


def test_import_loads_little_at_all() -> None:
    """The package itself and what of the standard library it reads: each module more is paid by every program."""
    code = "import sys; before = set(sys.modules); import attngen; print(len(set(sys.modules) - before))"
    assert int(run(code)) < 45


def test_compiling_loads_no_framework(tmp_path) -> None:  # type: ignore[no-untyped-def]
    code = (
        "import sys, attngen; k = attngen.compile('attention a\\nmask = causal\\n'); print(k, "
        "[m for m in ('torch', 'triton', 'jax', 'matplotlib') if m in sys.modules])"
    )
    assert run(code).strip() == "<attngen.Kernel a(q, k, v) for triton> []"


def test_a_proof_without_doubts_loads_no_numpy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTNGEN_CACHE", str(tmp_path))
    spec = "attention a\nparam w: int where w >= 0\nmask = sliding_window(w)\n"
    assert run(f"import sys, attngen; attngen.compile({spec!r}); print('numpy' in sys.modules)").strip() == "False"


def test_names_are_there_before_they_are_loaded() -> None:
    code = "import attngen; print(sorted(set(attngen.__all__) - set(dir(attngen))), attngen.UsageError.__module__)"
    assert run(code).strip() == "[] attngen.errors"


def test_unknown_name_is_an_attribute_error() -> None:
    import attngen

    with pytest.raises(AttributeError, match="module 'attngen' has no attribute 'kompile'"):
        _ = attngen.kompile  # type: ignore[attr-defined]
