"""Targets are values: one more is a row, names are compared nowhere, and a proof speaks of its own kernels alone."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import attngen
from attngen import api, targets
from attngen.cli import main as cli
from attngen.errors import Source

ROOT = Path(attngen.__file__).parent
OWN_ROOMS = ("targets.py", "emit/triton", "emit/torch", "emit/pallas", "emit/jax", "runtime")
"""`runtime` compares the names of packages, some of which are called like a target."""
SPEC = "attention a\nmask = causal\n"


def test_a_toy_target_is_a_row(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    plain = targets.named("torch")
    toy = replace(plain, name="toy", emit=lambda *given: f"# of a toy\n{plain.emit(*given)}")
    monkeypatch.setitem(targets.TARGETS, "toy", toy)
    kernel = attngen.compile(SPEC, target="toy")
    q = torch.randn(1, 2, 9, 16)
    expected = torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True)
    torch.testing.assert_close(kernel(q, q, q), expected)
    assert kernel.source.startswith("# of a toy\n") and kernel.target == "toy"
    (tmp_path / "a.attn").write_text(SPEC)
    assert cli.main(["compile", str(tmp_path / "a.attn"), "--target", "toy"]) == 0
    assert capsys.readouterr().out == kernel.source


def test_no_target_of_that_name() -> None:
    with pytest.raises(attngen.UsageError, match=r"^no target 'cuda'; there are triton, pallas, torch, jax$"):
        attngen.compile(SPEC, target="cuda")


def compared(path: Path) -> list[int]:
    """The lines that compare something with a target's name, or match it."""
    found: list[int] = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        sides = [node.left, *node.comparators] if isinstance(node, ast.Compare) else []
        sides += [node.value] if isinstance(node, ast.MatchValue) else []
        inside = [
            x for side in sides for x in (side.elts if isinstance(side, ast.Tuple | ast.List | ast.Set) else [side])
        ]
        found += [x.lineno for x in inside if isinstance(x, ast.Constant) and x.value in targets.TARGETS]
    return found


def test_no_name_of_a_target_is_compared() -> None:
    paths = [p for p in ROOT.rglob("*.py") if not p.relative_to(ROOT).as_posix().startswith(OWN_ROOMS)]
    assert not {str(p): lines for p in paths if (lines := compared(p))}


@pytest.mark.parametrize("target", targets.TARGETS)
def test_a_proof_speaks_of_the_targets_own_kernels(target: str) -> None:
    proof = api.check(Source(SPEC), target=target)
    sentences = [claim.sentence for shown in proof.shown for claim in shown.claims]
    limits = targets.named(target).limits()
    assert any("TPU" in s for s in sentences) == limits.tpu
    assert any("Hopper" in s for s in sentences) == limits.gpu
    assert any("short queries" in s for s in sentences) == limits.gpu
