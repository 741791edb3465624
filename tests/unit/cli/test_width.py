"""Tables fit a terminal of 80 columns with every number whole. A pipe is 240 wide here: what takes 80 of these is as
wide as it wants to be, so a terminal of 80 columns cuts nothing. `tests/unit/cost` has the tables of `cost`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from attngen import resources
from attngen.cli import main as cli, tune, verify
from attngen.errors import Source
from attngen.tune import tpu as tpu_tuning
from attngen.tune.gpu_file import load
from attngen.verify.comparison import Case, Comparison

ROOT = Path(__file__).parents[3]
TUNED = load(Source((ROOT / "benchmarks" / "tuned.json").read_text(), "tuned.json"))
WIDE = {"B": 2, "Hq": 32, "Hkv": 16, "Sq": 131072, "Sk": 131072, "D": 192, "Dv": 128}


def narrow(text: str) -> list[str]:
    lines = text.splitlines()
    assert [line for line in lines if len(line) > 80] == []
    return lines


@pytest.mark.parametrize("count", [0, 1, 7])
def test_verify_has_each_error_whole_however_many_params_there_are(
    count: int, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ["out", "lse", "d q", "d k", "d v", *(f"d relative_bias_{i}" for i in range(count))]
    lengths = ((1, 131072), (131072, 1))
    case = Case("ragged, grouped heads, moved by `assume`", "bf16", tuple(WIDE.items()), lengths=lengths)
    errors = [1.25e-7 * 3**i for i in range(len(names))]
    row = tuple(Comparison(case, n, e, 2e-5 if n != "lse" else 1e-9) for n, e in zip(names, errors, strict=True))
    assert verify._report("a spec on a card", [row, row]) == 1  # pyright: ignore[reportPrivateUsage]
    lines = narrow(capsys.readouterr().out)
    text = "\n".join(lines)
    for comparison in row:
        mark = "" if comparison.passed else "!"
        assert text.count(f"{comparison.result} {comparison.error:.1e}{mark}") == 2
    assert " ".join(lines).count(case.shape()) == 2 and "tolerance 2e-05" in text


def test_check_says_eight_lines(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["check", str(ROOT / "examples" / "causal.attn")]) == 0
    table = capsys.readouterr().out.partition("\nnote: ")[0]
    assert len([line for line in narrow(table) if " proved " in line]) == 8


@pytest.mark.parametrize(
    "command",
    [
        "examples",
        "env",
        "check examples/softcap.attn",
        "show examples/causal.attn --size Sq=40 Sk=60",
        "cost examples/causal.attn --chip h200",
        "plan-parallel examples/causal.attn --ranks 2 --shape Sq=256",
    ],
)
def test_no_line_ends_in_blanks(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    assert cli.main(command.split()) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) > 5 and [line for line in lines if line != line.rstrip()] == []


def test_the_list_of_examples_fits_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "80")
    assert cli.main(["examples"]) == 0
    lines = narrow(capsys.readouterr().out)
    assert [line for line in lines if line != line.rstrip()] == []
    assert [line.split()[0] for line in lines if line[0] != " "] == [*resources.names("examples", ".attn")]


@pytest.mark.parametrize("tuning", TUNED, ids=lambda t: f"{t.key.spec[:4]} {t.key.shape()}")
def test_tune_has_a_line_for_each_of_the_fastest(tuning, capsys: pytest.CaptureFixture[str]) -> None:
    tune._print_gpu_tuning("windowed_alibi", tuning)  # pyright: ignore[reportPrivateUsage]
    lines = narrow(capsys.readouterr().out)
    for kernel in {t.kernel for t in tuning.trials}:
        for trial in tuning.ranked(kernel)[:3]:
            setting = tune._setting(trial)  # pyright: ignore[reportPrivateUsage]
            assert any(f" {setting} " in line and f" {trial.ms:.3f} " in f"{line} " for line in lines)


def test_tune_for_a_tpu_has_all_cycles(capsys: pytest.CaptureFixture[str]) -> None:
    key = tpu_tuning.Key("0" * 64, "v5e", "bf16", tuple(WIDE.items()))
    tiles = [(1024, 1024, 2), (512, 2048, 4), (2048, 1024, 1), (128, 128, 1)]
    forward, *backward = tpu_tuning.KERNELS
    trials = [
        tpu_tuning.Trial(bool(back), tile, tuple((kernel, 123_456_789_012 + n) for kernel in back or [forward]))
        for n, tile in enumerate(tiles)
        for back in ([], backward)
    ]
    tune._print_tpu_tuning("windowed_alibi", tpu_tuning.Tuning(key, tuple(trials)))  # pyright: ignore[reportPrivateUsage]
    lines = narrow(capsys.readouterr().out)
    assert sum("123,456,789,01" in line for line in lines) == 3 * len(tpu_tuning.KERNELS)
    assert any(" 512 x 2048, 4 at a time " in line and " 123,456,789,013 " in line for line in lines)
