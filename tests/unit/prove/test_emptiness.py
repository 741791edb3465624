"""A mask that allows no pair: every comparison with the reference would hold, and say nothing."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import pytest

import attngen
from attngen import api
from attngen.cli.main import main
from attngen.errors import Refuted, Source, SpecWarning
from attngen.prove import verdict
from attngen.prove.budget.work import Work
from attngen.prove.search.emptiness import some_pair

EXAMPLES = sorted((Path(__file__).parents[3] / "examples").glob("*.attn"))
NEVER = "attention nothing\nconst window = 0\nmask = 0 <= q - k < window\n"
FAR = "attention far\nmask = q - k > 4000\n"


def found(text: str) -> object:
    return some_pair(*api.checked_plan(Source(text)), Work()).verdict


@pytest.mark.parametrize(
    "body",
    [
        "mask = k > q and k < q",
        "const window = 0\nmask = 0 <= q - k < window",
        "mask = 0 <= q - k < -4",
        "mask = false",
        "mask = k < 0 or q >= Sq",
        "param n: int where n > 0\nmask = k + n < 0",
        "param ids: int[B, Sk]\nassume Sq == Sk\nmask = ids[b, q] < ids[b, k] and ids[b, k] < ids[b, q]",
        "mask = (q - k) % 4 == 5",
    ],
)
def test_no_size_and_no_param_lets_a_pair_through(body: str) -> None:
    assert isinstance(found(f"attention subject\n{body}\n"), verdict.Refuted)


@pytest.mark.parametrize(
    "body",
    [
        "mask = q - k > 100000",
        "param n: int\nmask = k < n",
        "param n: int where n <= 0\nmask = k < n + 1",
        "param n: int where n > 0\nmask = (q - k) // n == 7",
    ],
)
def test_one_pair_is_enough(body: str) -> None:
    assert isinstance(found(f"attention subject\n{body}\n"), verdict.Proved)


def test_what_a_function_gives_is_left_open() -> None:
    assert isinstance(found("attention subject\nmask = exp(float(q - k)) < 0.0\n"), verdict.Unknown)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_no_example_is_warned_of(path: Path) -> None:
    assert isinstance(found(path.read_text(encoding="utf-8")), verdict.Proved)


# ---------------------------------------------------------------- what a user is told


def written(tmp_path: Path, text: str) -> str:
    path = tmp_path / "spec.attn"
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_compile_warns_in_one_line_and_writes_the_file_as_ever(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec, output = written(tmp_path, NEVER), tmp_path / "out.py"
    for _ in range(2):  # the second time from the proof that is kept
        assert main(["compile", spec, "--target", "torch", "-o", str(output)]) == 0
        line, wrote = capsys.readouterr().err.splitlines()
        assert wrote.startswith(f"wrote {output} in ")
        assert re.match(
            re.escape(f"{spec}:3:8: warning[empty-mask]: the mask allows no pair, so every result is zero: ")
            + r"it is false for every q and k, whatever the sizes and params, where window = 0; write a mask .*$",
            line,
        )
    assert "warning" not in output.read_text(encoding="utf-8")


def test_the_value_of_a_const_may_be_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = written(tmp_path, NEVER)
    order = ["compile", spec, "--target", "torch", "-o", str(tmp_path / "out.py"), "-D"]
    assert main([*order, "window=-4"]) == 0
    assert "window = -4" in capsys.readouterr().err
    assert main([*order, "window=4"]) == 0
    assert "warning" not in capsys.readouterr().err


def test_strict_refuses_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec, output = written(tmp_path, NEVER), tmp_path / "out.py"
    assert main(["compile", spec, "--strict", "-o", str(output)]) == 1
    assert f"{spec}:3:8: error[empty-mask]" in capsys.readouterr().err
    assert not output.exists()
    assert main(["compile", spec, "--strict", "-D", "window=4", "-o", str(output)]) == 0
    assert main(["compile", spec, "--strict", "--emit", "plan"]) == 2


def test_check_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = written(tmp_path, NEVER)
    assert main(["check", spec]) == 0
    assert f"{spec}:3:8: warning[empty-mask]" in capsys.readouterr().out
    assert main(["check", spec, "--json"]) == 0
    assert '"subject": "mask, some pair"' in capsys.readouterr().out


def test_in_python_it_is_a_warning_or_an_error() -> None:
    with pytest.warns(SpecWarning, match=r"<string>:3:8: warning\[empty-mask\]") as told:
        attngen.compile(NEVER, "torch")
    assert told[0].filename == __file__
    with pytest.raises(Refuted, match="empty-mask"):
        attngen.compile(NEVER, "torch", strict=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        attngen.compile(NEVER, "torch", window=4, strict=True)


@pytest.mark.parametrize("text", [NEVER, FAR], ids=["never", "far"])
def test_zeros_alone_verify_nothing(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", written(tmp_path, text), "--target", "torch", "--device", "cpu"]) == 1
    said = capsys.readouterr().out
    assert "NOT verified: the mask admits no pair in the shapes tried: all 6 cases compare zeros" in said


def test_a_case_of_zeros_among_others_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = written(tmp_path, "attention late\nmask = q - k > 30\n")
    assert main(["verify", spec, "--target", "torch", "--device", "cpu"]) == 0
    said = capsys.readouterr()
    assert "verified: 30 results" in said.out
    assert "the mask admits no pair at B=2 H=2/1 Sq=1 Sk=33 D=16" in said.err
