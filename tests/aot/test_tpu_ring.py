"""libtpu's schedule of a ring of TPUs: keys and values move while kernels compute, forward and backward."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from attngen.tpu.compile import environment

needs_libtpu = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="needs libtpu: pip install -e '.[tpu]'"
)
CAUSAL = "attention c\nmask = causal\n"
WINDOW = "attention w\nmask = sliding_window(2048)\n"


CALLED = re.compile(r"(?:body|calls|to_apply)=%([\w.\-]+)")


@dataclass(frozen=True)
class Move:
    kernels: int
    """Programs of kernels that run between its start and its end."""
    homeward: bool
    """Gradients are float32."""


def moves(program: str) -> list[Move]:
    """The permutes of a scheduled program, in the order of their starts."""
    assert "is_scheduled=true" in program
    bodies = re.split(r"\n(?=%|ENTRY )", program)
    named = {match[1]: body for body in bodies if (match := re.match(r"%(\S+) ", body))}
    kernels: set[str] = set()
    before = -1
    while len(kernels) > before:  # a loop in a loop
        before = len(kernels)
        kernels |= {n for n, body in named.items() if "tpu_custom_call" in body or kernels & {*CALLED.findall(body)}}
    (entry,) = (body for body in bodies if body.startswith("ENTRY "))
    started: dict[str, int] = {}
    found: dict[str, Move] = {}
    ran = 0
    for line in entry.splitlines():
        loop = re.search(r" while\(.*body=%([\w.\-]+)", line)
        ran += ("tpu_custom_call" in line) or (loop is not None and loop[1] in kernels)
        start = re.match(r" *%(\S+) = \((\w+)\[.* collective-permute-start\(", line)
        if start is not None:
            started[start[1]] = ran
            found[start[1]] = Move(0, start[2] == "f32")
        done = re.search(r" collective-permute-done\(%([\w.\-]+)\)", line)
        if done is not None:
            found[done[1]] = Move(ran - started[done[1]], found[done[1]].homeward)
    return list(found.values())


@needs_libtpu
@pytest.mark.parametrize(
    ("chip", "topology", "spec", "layout", "turns"),
    [
        ("v5e", "v5e:2x2", CAUSAL, "headtail", 3),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                ("v5p", "v5p:2x2x1", CAUSAL, "headtail", 3),
                ("v5p", "v5p:2x2x1", WINDOW, "contiguous", 1),
                ("v6e", "v6e:2x2", CAUSAL, "headtail", 3),
            )
        ),
    ],
)
def test_keys_move_while_kernels_compute(chip: str, topology: str, spec: str, layout: str, turns: int) -> None:
    script = Path(__file__).with_name("tpu_ring.py")
    ran = subprocess.run(
        [sys.executable, str(script), chip, topology, spec, layout, "65536"],
        capture_output=True, text=True, env={**environment(None), "XLA_FLAGS": ""}, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    found = moves(ran.stdout)
    out, home = ([m for m in found if m.homeward is homeward] for homeward in (False, True))
    assert len(out) == 4 * turns, "K and V, forward and backward"
    assert all(move.kernels for move in out), found
    assert len(home) == 2 * turns
    assert sum(move.kernels > 0 for move in home) >= len(home) - 1, found  # libtpu decides about the last one
