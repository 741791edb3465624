"""An int param that a tensor holds: every kernel reads it where it is, the chip's own ones, too."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys

import pytest

import attngen
from attngen.aot.compile import TARGETS, request

SPEC = "attention windowed\nparam window: int\nmask = 0 <= q - k < window\n"
CODE = """
import pickle, sys, torch
from functools import partial
from attngen.aot import worker

found = pickle.load(sys.stdin.buffer)
module = worker.module_for(found)
given = worker.called
for dtype in (torch.int32, torch.int64):
    worker.called = partial(given, window_at=torch.zeros((), dtype=dtype))
    launched = worker.recorded_launches(lambda: worker.call_once(module, found))
    print(*(f"{name}:{kernel.metadata.shared > 0}" for name, kernel in launched))
"""


@pytest.mark.parametrize(("chip", "own"), [("sm_90", True), pytest.param("sm_80", False, marks=pytest.mark.slow)])
def test_kernels_read_it(chip: str, own: bool) -> None:
    kernel = attngen.compile(SPEC)
    sizes = {"B": 1, "Hq": 2, "Hkv": 2, "Sq": 512, "Sk": 512, "D": 128, "Dv": 128}
    asked = request(kernel.source, kernel.spec, arch=chip, dtype="bf16", sizes=sizes, target=TARGETS[chip])
    environment = {**os.environ, "TRITON_INTERPRET": "0"}
    run = [sys.executable, "-c", CODE]
    found = subprocess.run(run, input=pickle.dumps(asked), env=environment, capture_output=True, check=True)
    lines = found.stdout.decode().splitlines()
    assert len(lines) == 2 and all(("_hopper_forward_kernel:True" in line) == own for line in lines)
    assert all(("_hopper_backward_kernel:True" in line) == own for line in lines)
    assert own or all("_dq_kernel:True" in line and "_dkdv_kernel:True" in line for line in lines)
