"""`attngen verify --geometry`: it passes what is right, and fails what is wrong; sequences fulfil the facts."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import attngen
from attngen import Kernel, api
from attngen.cli import main as cli
from attngen.errors import Source
from attngen.verify import sequences
from attngen.verify.comparison import Case

EXAMPLES = Path(__file__).parents[2] / "examples"
SIZES = (("Hq", 2), ("Hkv", 1), ("D", 16), ("Dv", 16))


def kernel(body: str) -> Kernel:
    return attngen.compile(f"attention a\n{body}\n", tile=(16, 16))


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_cases_are_what_breaks_kernels(device: str) -> None:
    chosen = sequences.cases(api.analyse(Source("attention a\n")), device)
    own = [n for case in chosen for n in case.lengths]
    assert {0, 1} <= {queries for queries, _ in own} and {0, 1} <= {keys for _, keys in own}
    assert any(queries > keys > 0 for queries, keys in own) and any(0 < queries < keys for queries, keys in own)
    assert len({case.dtype for case in chosen}) >= 2
    assert all(case.size["Sq"] == max(n for n, _ in case.lengths) for case in chosen)


def test_lengths_meet_the_assumes_and_the_facts() -> None:
    body = "param w: int where 0 < w and w <= Sk\nmask = k < w\nassume Sq == Sk\nassume Sk % 4 == 0\n"
    for case in sequences.cases(api.analyse(Source(f"attention a\n{body}")), "cpu"):
        assert len(case.lengths) == case.size["B"]
        assert all(queries == keys > 0 and keys % 4 == 0 for queries, keys in case.lengths)


RIGHT = "param slope: f32[Hq]\nparam c: f32[B, Sk]\nscore = qk * scale - slope[h] * (q - k) + c[b, k]\nmask = causal"


@pytest.mark.parametrize("geometry", ["packed", "lengths"])
@pytest.mark.parametrize(
    ("wrong", "seen_in"),
    [
        (RIGHT, set()),
        (RIGHT.replace("causal", "k <= q"), {"out", "lse", "d q", "d k", "d v", "d slope", "d c"}),
        (RIGHT.replace("- slope", "+ slope"), {"out", "d slope"}),
        (RIGHT.replace("c[b, k]", "c[b, max(k - 1, 0)]"), {"out", "d q"}),
    ],
)
def test_what_is_wrong_fails(wrong: str, seen_in: set[str], geometry: str) -> None:
    """The file of one spec under the name of another."""
    right, other = kernel(RIGHT), kernel(wrong)
    mixed = Kernel(right.spec, other.plan, other.source, made=other.made)
    case = sequences.settled(right.spec, Case("few", "fp32", SIZES, lengths=((5, 19), (0, 3), (20, 20), (3, 1))))
    failed = {c.result for c in sequences.compare(mixed, case, "cpu", geometry=geometry) if not c.passed}
    assert seen_in <= failed and bool(failed) == bool(seen_in)


@pytest.mark.parametrize("result", ["out", "lse"])
def test_rows_that_no_sequence_has_are_compared(result: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right = kernel("mask = causal")
    case = sequences.settled(right.spec, Case("few", "fp32", SIZES, lengths=((5, 5), (3, 3))))
    whole = Kernel.varlen

    def stained(self: Kernel, *operands: torch.Tensor, **arguments: object) -> tuple[torch.Tensor, torch.Tensor]:
        out, lse = whole(self, *operands, **arguments)
        last = torch.arange(len(out)) == len(out) - 1
        return (out + last[:, None, None], lse) if result == "out" else (out, torch.where(last, 0.0, lse))

    monkeypatch.setattr(Kernel, "varlen", stained)
    found = {c.result: c.passed for c in sequences.compare(right, case, "cpu", geometry="packed")}
    assert [name for name, passed in found.items() if not passed] == [result]


def test_command_with_what_a_geometry_refuses(capsys: pytest.CaptureFixture[str]) -> None:
    path = str(EXAMPLES / "full_bias.attn")
    assert cli.main(["verify", path, "--device", "cpu", "--geometry", "packed"]) == 2
    assert "`bias` has an element for each pair" in capsys.readouterr().err


def test_command_says_verified(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A param with rows and no batch: packed tensors refuse it, batch rows do not; a table's gradient is left out."""
    spec = tmp_path / "a.attn"
    text = "param c: f32[Sk]\nparam t: f32[Hq, 9]\nscore = qk * scale + c[k] + t[h, clamp(q - k, 0, 8)]\n"
    spec.write_text(f"attention a\n{text}")
    assert cli.main(["verify", str(spec), "--device", "cpu", "--geometry", "lengths,packed"]) == 0
    said = capsys.readouterr()
    assert said.out.startswith("a, lengths on the CPU, in Triton's interpreter: errors against")
    assert "verified: 18 results of 3 cases within tolerance" in said.out
    assert "lengths: the gradient of `t` is summed over pairs" in said.err
    assert "packed: a: c (Sk) has an element for each row of every sequence alike" in said.err


def test_command_for_another_target(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["verify", str(EXAMPLES / "causal.attn"), "--target", "torch", "--geometry", "packed"]) == 2
    assert "files of target triton have the others" in capsys.readouterr().err
