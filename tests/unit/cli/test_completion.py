"""Completion knows what the command line's own parser knows; the bash script is run in a real bash."""

from __future__ import annotations

import functools
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

FLAGS = {
    "compile": {
        "--check",
        "--target",
        "--emit",
        "--arch",
        "--dtype",
        "--head-dim",
        "--output",
        "--tile",
        "--precision",
    },
    "examples": {"--output"},
    "fmt": {"--check", "--write"},
    "new": {"--output"},
    "env": {"--json"},
    "show": {"--size", "--tile", "--param", "--batch", "--head", "--output"},
    "verify": {"--target", "--device", "--tile", "--precision"},
    "cost": {"--chip", "--shape", "--dtype", "--tile", "--param", "--json", "--output"},
    "completion": {"--help"},
}


@functools.cache
def script(shell: str) -> str:
    command = [sys.executable, "-m", "attngen", "completion", shell]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def bash(*words: str) -> list[str]:
    """What bash offers for the last of `words`."""
    typed = " ".join(f"'{word}'" for word in words)
    code = (
        f"{script('bash')}\nCOMP_WORDS=({typed}); COMP_CWORD={len(words) - 1}; _attngen;"
        ' printf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run(["bash", "-u", "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (
            ["attngen", ""],
            [
                "new",
                "compile",
                "examples",
                "fmt",
                "show",
                "check",
                "verify",
                "cost",
                "plan-parallel",
                "tune",
                "bench",
                "env",
                "completion",
                "--help",
                "--version",
            ],
        ),
        (["attngen", "co"], ["compile", "cost", "completion"]),
        (["attngen", "compile", "--emit", "c"], ["cubin"]),
        (["attngen", "compile", "a.attn", "--arch", "sm_"], ["sm_80", "sm_86", "sm_90", "sm_100"]),
        (["attngen", "verify", "--dev"], ["--device"]),
        (["attngen", "verify", "--device", ""], ["auto", "cpu", "cuda"]),
        (["attngen", "completion", ""], ["bash", "zsh", "fish"]),
        (["attngen", "compile", ""], []),  # files, by bash's default
        (["attngen", "compile", "-o", ""], []),
    ],
    ids=lambda x: " ".join(x),
)
def test_bash_offers(words: list[str], offered: list[str]) -> None:
    assert bash(*words) == offered


@pytest.mark.parametrize(("command", "flags"), FLAGS.items())
def test_bash_offers_every_flag(command: str, flags: set[str]) -> None:
    assert flags <= set(bash("attngen", command, "-"))


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_know_every_flag_and_choice(shell: str, tmp_path: Path) -> None:
    text = script(shell)
    for command, flags in FLAGS.items():
        assert command in text
        for flag in flags:
            assert (f"-l {flag[2:]} " if shell == "fish" else f"{flag}[") in text
    assert "ttir ttgir ptx cubin hsaco" in text
    if shutil.which(shell):
        path = tmp_path / "script"
        path.write_text(text)
        subprocess.run([shell, "-n", str(path)], check=True)
