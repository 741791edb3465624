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
    compiled.append(module.compiled_together)
    return module

asked = pickle.load(sys.stdin.buffer)
worker.execute = executed
module = worker.module_for(asked)
(module.compiled_together,) = compiled  # which the worker goes without
torch.cuda.device, torch.cuda.is_current_stream_capturing = lambda device: nullcontext(), lambda: False
ready, launched, first = [], [], []
CompiledKernel._init_handles = lambda kernel: ready.append(kernel.name)

warm = module.Launch.launch

def launch(own, *operands):
    if module.WARMED.get() is not None:
        warm(own, *operands)
        return
    kernels = own.kernel.device_caches[0][0]
    before = len(kernels)
    own.kernel.run(*operands, grid=own.grid, warmup=True, **own.options)
    launched.append((own.kernel.__name__, len(kernels) == before))

module.Launch.launch = launch
if sys.argv[1] == "learning call":
    attention = module._attention
    known = lambda inputs: attention.layout(inputs, ())
    attention.operator.forward = lambda *inputs: attention.operator.direct(*inputs, known(inputs))
forward = module._attention.operator.forward

def counted(*inputs):
    results = forward(*inputs)
    first.append(len(ready))
    return results

module._attention.operator.forward = counted
out, _, leaves = worker.forward(module, asked, asked.calls[0], learned=False)
worker.gradients(out, leaves)
sys.stdout.buffer.write(pickle.dumps((ready, launched, *first)))
"""
FORWARD = {"causal": ["_hopper_forward_kernel"], "documents": ["_list_key_runs_kernel", "_hopper_forward_kernel"]}
BACKWARD = {
    "causal": ["_rows_kernel", "_hopper_backward_kernel", "_collect_kernel"],
    "documents": ["_rows_kernel", "_list_walks_kernel", "_hopper_backward_kernel", "_collect_kernel"],
}


def kernels(name: str, way: str) -> tuple[list[str], list[tuple[str, bool]], int]:
    """Kernels compiled beforehand; those launched, and whether each was ready; how many the forward pass compiled."""
    made = build(name)
    sizes = {**GROUPED, "D": 128, "Dv": 128}
    asked = request(made.source, made.spec, arch="sm_90", dtype="bf16", sizes=sizes, target=TARGETS["sm_90"])
    environment = {**os.environ, "TRITON_INTERPRET": "0", "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    command = [sys.executable, "-c", SCRIPT, way]
    done = subprocess.run(command, input=pickle.dumps(asked), stdout=subprocess.PIPE, env=environment, check=True)
    return pickle.loads(done.stdout)


@pytest.mark.parametrize("name", FORWARD)
def test_what_is_compiled_beforehand_is_what_is_launched(name: str) -> None:
    ready, launched, first = kernels(name, "operator")
    assert sorted(ready[:first]) == sorted(FORWARD[name])
    assert sorted(ready[first:]) == sorted(BACKWARD[name])
    assert launched == [(kernel, True) for kernel in FORWARD[name] + BACKWARD[name]]


@pytest.mark.parametrize("name", FORWARD)
def test_a_call_that_learns_compiles_its_backward_pass_with_the_forward_pass(name: str) -> None:
    ready, launched, first = kernels(name, "learning call")
    assert sorted(ready[:first]) == sorted(FORWARD[name] + BACKWARD[name])
    assert ready[first:] == []
    assert launched == [(kernel, True) for kernel in FORWARD[name] + BACKWARD[name]]
