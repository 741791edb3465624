"""Kernels of one call, compiled side by side before it: those that are launched, each once."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys

import pytest
from aot.chips import build

from attngen.aot.compile import GROUPED, TARGETS, request

SCRIPT = """
import pickle, sys
from contextlib import nullcontext
import torch
from triton.compiler.compiler import CompiledKernel
from attngen.aot import worker

execute, compiled = worker.execute, []

def executed(*given):
    module = execute(*given)
    compiled.append(module._compiled)
    return module

asked = pickle.load(sys.stdin.buffer)
worker.execute = executed
module = worker.module_for(asked)
(module._compiled,) = compiled  # which the worker goes without
torch.cuda.device = lambda device: nullcontext()
ready, launched = [], []
CompiledKernel._init_handles = lambda kernel: ready.append(kernel.name)

def launch(own, *operands):
    kernels = own.kernel.device_caches[0][0]
    before = len(kernels)
    own.kernel.run(*operands, grid=own.grid, warmup=True, **own.options)
    launched.append((own.kernel.__name__, len(kernels) == before))

module._Launch.launch = launch
worker.call_once(module, asked, learned=False)
sys.stdout.buffer.write(pickle.dumps((ready, launched)))
"""
TOGETHER = {
    "causal": ["_rows_kernel", "_hopper_backward_kernel", "_collect_kernel"],
    "documents": [
        *("_list_key_runs_kernel", "_hopper_forward_kernel"),
        *("_rows_kernel", "_list_walks_kernel", "_hopper_backward_kernel", "_collect_kernel"),
    ],
}
"""Of passes that launch more than one."""


@pytest.mark.parametrize("name", TOGETHER)
def test_what_is_compiled_beforehand_is_what_is_launched(name: str) -> None:
    made = build(name)
    sizes = {**GROUPED, "D": 128, "Dv": 128}
    asked = request(made.source, made.spec, arch="sm_90", dtype="bf16", sizes=sizes, target=TARGETS["sm_90"])
    environment = {**os.environ, "TRITON_INTERPRET": "0", "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    command = [sys.executable, "-c", SCRIPT]
    done = subprocess.run(command, input=pickle.dumps(asked), capture_output=True, env=environment, check=True)
    ready, launched = pickle.loads(done.stdout)
    assert sorted(ready) == sorted(TOGETHER[name])
    assert [kernel for kernel, known in launched if known] == TOGETHER[name]
