"""The sample for compute-sanitizer, on the CPU: cases, the choice of kernels, and whether wrong results are seen."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

import sanitize
from sanitize import LENGTHS, PATHS, VARIANTS, Case, cases


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTORCH_NO_CUDA_MEMORY_CACHING", "")  # and what it was comes back


def test_a_sample_names_cases() -> None:
    every = cases("", tuple(LENGTHS), PATHS)
    assert len(every) == len(VARIANTS) * len(LENGTHS) * 2 and len(set(every)) == len(every)
    assert cases("causal:64", tuple(LENGTHS), PATHS) == [Case("causal", 64, "sm_90"), Case("causal", 64, "portable")]
    one = cases("documents:256:sm_90,documents:256:sm_90,causal:128:portable", tuple(LENGTHS), PATHS)
    assert [c.key for c in one] == ["documents:256:sm_90", "causal:128:portable"]
    for wrong in ("causa", "causal:6", "causal:64:sm", "causal,"):
        with pytest.raises(ValueError, match="no case"):
            cases(wrong, tuple(LENGTHS), PATHS)


def test_the_portable_path_has_no_rows_of_the_chip() -> None:
    module: Any = ModuleType("generated")
    module.HOPPER, module.HOPPER_APART, module._attention = "own", "apart", SimpleNamespace(ready={"call": 1})
    tables: dict[str, dict[Any, Any]] = {"own": {(64, 64): (1,)}, "apart": {(256, 256): (2,)}}
    module.rows_by_dims = tables.__getitem__
    module.hopper_row = lambda table, q, k, v: tables[table].get((64, 64))
    assert sanitize.own_kernels(module, None, None, None) == ["forward"]
    with sanitize.portable(module):
        assert tables["own"] == tables["apart"] == module._attention.ready == {}
        assert sanitize.own_kernels(module, None, None, None) == []
        module._attention.ready["call"] = 2
    assert tables == {"own": {(64, 64): (1,)}, "apart": {(256, 256): (2,)}} and module._attention.ready == {}


def test_documents_and_lengths_are_ragged() -> None:
    for head_dim, length in LENGTHS.items():
        inputs = sanitize.draw(Case("documents", head_dim, "portable"), length)
        assert length % 64 and len(inputs.given["ids"].unique()) == 3 and inputs.given["ids"].shape == (1, length)


def test_a_dry_run_checks_results(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert sanitize.main(["prepare", str(tmp_path)]) == 0
    words = ["--kernels", str(tmp_path), "--device", "cpu"]
    assert sanitize.main([*words, "causal,windowed_alibi"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == ["causal", "windowed_alibi"]
    assert all(": right out " in line for line in lines) and "slope" in lines[1] and "cap" in lines[1]
    generated = tmp_path / "causal.py"
    source = generated.read_text()
    assert "(k_idx <= row_term)" in source
    generated.write_text(source.replace("(k_idx <= row_term)", "(k_idx < row_term)"))
    assert sanitize.main([*words, "causal"]) == 1
    assert ": WRONG out " in capsys.readouterr().out
    generated.unlink()
    assert sanitize.main([*words, "causal"]) == 2
    assert "has no causal: prepare it there" in capsys.readouterr().err
    assert sanitize.main([*words, "causal:64"]) == 2  # the dry run's head dim is 16
    assert "no case 'causal:64'" in capsys.readouterr().err
