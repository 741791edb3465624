"""Verification: it passes what is right, and fails what is wrong, wherever the mistake is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import attngen
from attngen import Kernel, api
from attngen.cli import main as cli
from attngen.errors import Source
from attngen.inputs import Ints
from attngen.verify import comparison, pieces
from attngen.verify.comparison import Case, compare, error

EXAMPLES = Path(__file__).parents[3] / "examples"
CASE = Case("small", "fp32", tuple({"B": 1, "Hq": 2, "Hkv": 1, "Sq": 20, "Sk": 20, "D": 16, "Dv": 16}.items()))


def kernel(body: str) -> Kernel:
    return attngen.compile(f"attention a\n{body}\n", tile=(16, 16))


# ---------------------------------------------------------------- errors


def test_error_is_absolute_below_one_and_relative_above() -> None:
    assert error(np.array([0.5, 0.25]), np.array([0.5, 0.0])) == 0.25
    assert error(np.array([101.0, 0.0]), np.array([100.0, 0.0])) == pytest.approx(0.01)
    assert error(np.zeros((2, 0)), np.zeros((2, 0))) == 0.0


@pytest.mark.parametrize(
    ("measured", "expected"),
    [
        ([np.nan, 1.0], [1.0, 1.0]),
        ([np.inf, 1.0], [1.0, 1.0]),
        ([1.0, 1.0], [-np.inf, 1.0]),
        ([np.inf, 1.0], [-np.inf, 1.0]),
        ([1.0], [1.0, 1.0]),
    ],
)
def test_what_is_no_number_or_no_match_is_an_infinite_error(measured: list[float], expected: list[float]) -> None:
    assert error(np.array(measured), np.array(expected)) == np.inf


def test_infinities_that_agree_are_no_error() -> None:
    assert error(np.array([-np.inf, 1.0]), np.array([-np.inf, 1.0])) == 0.0


# ---------------------------------------------------------------- cases


def test_cases_meet_the_assumes() -> None:
    spec = api.analyse(Source("attention a\nassume Sq == Sk\nassume Hq == Hkv\n"))
    for device in ("cpu", "cuda"):
        chosen = comparison.cases(spec, device)
        assert len(chosen) > 3 and len({(c.dtype, c.sizes) for c in chosen}) == len(chosen)
        assert all(c.size["Sq"] == c.size["Sk"] and c.size["Hq"] == c.size["Hkv"] for c in chosen)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_cases_are_what_breaks_kernels(device: str) -> None:
    chosen = comparison.cases(api.analyse(Source("attention a\n")), device)
    sizes = [c.size for c in chosen]
    assert any(s["Hq"] > s["Hkv"] for s in sizes)
    assert any(s["Sq"] < s["Sk"] for s in sizes) and any(s["Sq"] > s["Sk"] for s in sizes)
    assert any(s["Sq"] == 1 for s in sizes)
    assert any(s["D"] != s["Dv"] for s in sizes)
    assert any(s["Sk"] % 16 for s in sizes)
    assert len({c.dtype for c in chosen}) >= 2


def test_consts_that_no_case_reaches_are_named() -> None:
    spec = api.analyse(Source("attention a\nconst wide = 4000\nconst near = 9\nconst on = true\nconst x = 5000.0\n"))
    assert comparison.beyond(spec, comparison.cases(spec, "cpu")) == (("wide", 4000),)


# ---------------------------------------------------------------- right and wrong kernels

PARAMS = "param slope: f32[Hq]\nparam cap: f32 where cap > 0\n"
RIGHT = (
    PARAMS + "score = softcap(qk * scale, cap) - slope[h] * (q - k)\nmask = k <= q\nnormalizer = softmax(sink = cap)"
)


def test_right_kernel_passes_in_every_result() -> None:
    found = list(compare(kernel(RIGHT), CASE, "cpu"))
    assert [c.result for c in found] == ["out", "lse", "d q", "d k", "d v", "d slope", "d cap"]
    assert all(c.passed for c in found), found
    assert all(0 < c.error < 2e-5 for c in found)


@pytest.mark.parametrize(
    ("wrong", "seen_in"),
    [
        (RIGHT.replace("k <= q", "k < q"), {"out", "lse", "d q", "d k", "d v", "d slope"}),
        (RIGHT.replace("- slope", "+ slope"), {"out", "d slope"}),
        (RIGHT.replace("(sink = cap)", ""), {"out", "lse", "d cap"}),
        (RIGHT.replace("qk * scale", "qk * scale * 1.001"), {"out", "d q"}),
    ],
)
def test_wrong_kernel_fails(wrong: str, seen_in: set[str]) -> None:
    """The file of one spec under the name of another."""
    right, other = kernel(RIGHT), kernel(wrong)
    mixed = Kernel(spec=right.spec, plan=right.plan, source=other.source)
    failed = {c.result for c in compare(mixed, CASE, "cpu") if not c.passed}
    assert seen_in <= failed


DIVIDES = "param n: int where n > 0\nmask = q - k < n and (k - q) // n <= 0"


def test_int_params_come_at_the_ends_of_int32_too() -> None:
    """A window that is taken modulo 2**31 - 1 differs from the file's at the last int alone."""
    right, other = kernel(DIVIDES), kernel(DIVIDES.replace("k < n", "k < n % 2147483647"))
    mixed = Kernel(spec=right.spec, plan=right.plan, source=other.source)
    chosen = comparison.cases(right.spec, "cpu")
    assert [c.ints for c in chosen[-2:]] == [Ints.LEAST, Ints.GREATEST]
    assert [c.passed for c in compare(mixed, chosen[-2], "cpu")] == [True] * 5
    assert not all(c.passed for c in compare(mixed, chosen[-1], "cpu"))
    assert all(c.passed for c in compare(right, chosen[-1], "cpu"))


def test_dropout_and_empty_rows_are_compared_too() -> None:
    dropped = kernel("param p: f32 where 0 <= p < 1\nmask = k < q - 3\ndropout = p")
    found = {c.result: c for c in compare(dropped, CASE, "cpu")}
    assert all(c.passed for c in found.values()), found


def test_tolerance_is_that_of_the_coarsest_rounding() -> None:
    mixed = kernel("param slope: bf16[Hq]\nscore = qk * scale - slope[h] * abs(q - k)")
    found = {c.result: c.tolerance for c in compare(mixed, CASE, "cpu")}
    assert found.pop("d slope") == 2e-2 and set(found.values()) == {2e-5}
    assert {c.tolerance for c in compare(mixed, CASE, "cpu", coarse=True)} == {2e-2}


def test_dropout_is_on() -> None:
    right, other = kernel("dropout = 0.5"), kernel("dropout = 0.25")
    mixed = Kernel(spec=right.spec, plan=right.plan, source=other.source)
    assert not next(c for c in compare(mixed, CASE, "cpu") if c.result == "out").passed


# ---------------------------------------------------------------- the command


def test_command_says_verified(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["verify", str(EXAMPLES / "alibi.attn"), "--device", "cpu"]) == 0
    said = capsys.readouterr().out
    assert said.splitlines()[0].startswith("alibi on the CPU, in Triton's interpreter")
    for heading in ("plain: fp32, B=1", "out", "lse", "d q", "d k", "d v", "d slope", "tolerance"):
        assert heading in said
    assert "verified: 36 results of 6 cases within tolerance" in said
    assert "\x1b" not in said


def test_command_fails_with_status_1(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(comparison.TOLERANCE, "fp32", 1e-12)
    assert cli.main(["verify", str(EXAMPLES / "causal.attn"), "--device", "cpu"]) == 1
    assert "NOT verified: " in capsys.readouterr().out


def test_command_without_a_device(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert cli.main(["verify", str(EXAMPLES / "causal.attn"), "--device", "cuda"]) == 2
    assert "no CUDA or ROCm device is here; use --device cpu" in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore:.*no TPU found:UserWarning")
def test_pallas_kernels_are_compared_too() -> None:
    right = attngen.compile("attention a\nparam s: f32\nscore = s * qk\nmask = causal\n", "pallas", tile=(16, 16))
    found = list(compare(right, CASE, "cpu"))
    assert {c.result for c in found} == {"out", "lse", "d q", "d k", "d v", "d s"} and all(c.passed for c in found)
    other = attngen.compile("attention a\nparam s: f32\nscore = s * qk\n", "pallas", tile=(16, 16))
    wrong = Kernel(other.spec, other.plan, right.source, "pallas")
    assert not all(c.passed for c in compare(wrong, CASE, "cpu"))


# ---------------------------------------------------------------- beyond the tensor


@pytest.mark.filterwarnings("ignore:.*no TPU found:UserWarning")
def test_pieces_of_arrays_are_compared_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """JAX's arrays have another order of axes than PyTorch's tensors, and are not added to in place."""
    text = "attention learned\nparam w: f32[Hq]\nscore = qk * scale * w[h]\nmask = causal\n"
    kernel = attngen.compile(text, "jax")
    case = Case("small", "fp32", (("B", 1), ("Hq", 2), ("Hkv", 1), ("Sq", 13), ("Sk", 17), ("D", 16), ("Dv", 8)))
    found = {c.result: c for c in pieces.compare(kernel, case, "cpu")}
    assert found.keys() == {"out", "lse", "d q", "d k", "d v", "d w"} and all(c.passed for c in found.values())
    monkeypatch.setattr(pieces, "cuts", lambda rows, *, empty: ((0, 3), (3, 5), (5, 5), (5, rows - 1)))
    assert not all(c.passed for c in pieces.compare(kernel, case, "cpu") if c.result == "d k")


@pytest.mark.parametrize("target", ["torch", "jax", "pallas"])
def test_sums_over_queries_take_nothing_from_beyond_the_tensor(target: str) -> None:
    """There the score has no value. Triton: `property/test_kernels.py`."""
    params = "param a: f32[Hq]\nparam t: f32[Hq, 40]"
    body = f"{params}\nscore = qk * scale + (a[h] + t[h, q - k]) * log(float(Sq - q))\nmask = causal"
    compiled = attngen.compile(f"attention a\n{body}\n", target, tile=(16, 16))
    found = list(compare(compiled, CASE, "cpu"))
    assert len(found) == 7 and all(c.passed for c in found)
