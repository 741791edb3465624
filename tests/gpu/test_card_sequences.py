"""Sequences on the card: parity in bf16, NaN beside them, CUDA graphs, checkpointing."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import attngen
from attngen.verify import sequences
from attngen.verify.comparison import Case

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]

LENGTHS = ((5, 9), (0, 4), (37, 20), (3, 0), (300, 700), (1, 64), (256, 256))
"""(queries, keys) of each sequence."""
SPEC = "attention a\nparam slope: f32[Hq]\nscore = qk * scale + alibi(slope)\nmask = causal\n"
GEOMETRIES = pytest.mark.parametrize("geometry", ["packed", "lengths"])
DIMS = pytest.mark.parametrize("D", [64, 128])


def drawn(kernel: attngen.Kernel, D: int, dtype: str = "bf16") -> Case:
    sizes = (("Hq", 4), ("Hkv", 2), ("D", D), ("Dv", D))
    return sequences.settled(kernel.spec, Case("card", dtype, sizes, lengths=LENGTHS))


def function(kernel: attngen.Kernel, call: sequences.Call) -> Callable[..., torch.Tensor]:
    attend = kernel.varlen if call.packed else kernel
    return lambda q, k, v: attend(q, k, v, **call.params, **call.bounds)


def call_of(kernel: attngen.Kernel, D: int, geometry: str) -> sequences.Call:
    return sequences.CALLS[geometry](sequences.draw(kernel.spec, drawn(kernel, D)), "cuda")


def cotangent(call: sequences.Call, out: torch.Tensor, beside: float = 0.0) -> torch.Tensor:
    """`beside` in rows that no sequence has."""
    torch.manual_seed(0)
    found, random = torch.full_like(out, beside), torch.randn_like(out)
    for b in range(len(LENGTHS)):
        call.part(found, 0, b)[...] = call.part(random, 0, b)
    return found


@GEOMETRIES
@DIMS
@pytest.mark.parametrize(
    "spec", [SPEC, "attention c\nmask = sliding_window(50)\n", "attention s\nnormalizer = sigmoid\n"]
)
def test_parity(spec: str, D: int, geometry: str) -> None:
    kernel = attngen.compile(spec)
    found = list(sequences.compare(kernel, drawn(kernel, D), "cuda", geometry=geometry, check=True))
    assert all(c.passed for c in found), found


MAPPED = {
    "tree": "attention tree\nparam first: int[B, Sk]\nparam last: int[B, Sk]\n"
    "mask = causal and first[b, k] <= first[b, q] < last[b, k]\nassume Sq == Sk\n",
    "fourth": "attention fourth\nmask = causal and distance % 4 == 0\n",
    "heads": "attention heads\nparam skip: int[Hkv] where skip >= 1\nmask = causal and distance % skip[hkv] == 0\n",
}
"""Masks with holes between tiles."""


@GEOMETRIES
@DIMS
@pytest.mark.parametrize("arch", ["auto", "portable"])
@pytest.mark.parametrize("name", MAPPED)
def test_masks_with_holes(name: str, arch: str, D: int, geometry: str) -> None:
    kernel = attngen.compile(MAPPED[name], arch=arch)
    assert kernel.plan.map is not None
    found = list(sequences.compare(kernel, drawn(kernel, D), "cuda", geometry=geometry, check=True))
    assert all(c.passed for c in found), found


def test_offsets_that_fall_read_and_write_nothing_outside() -> None:
    """compute-sanitizer sees what this does: `benchmarks/sanitize.py`."""
    kernel = attngen.compile(MAPPED["fourth"])
    x = torch.ones(300, 2, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    for ends in ([0, 300, 0, 300, 0, 300], [0, 260, 20, 300], [0, -5, 900, 300]):
        out = kernel.varlen(x, x, x, cu_seqlens_q=torch.tensor(ends, dtype=torch.int32, device="cuda"))
        torch.autograd.grad(out, x, torch.ones_like(out))
    torch.cuda.synchronize()


@GEOMETRIES
@DIMS
@pytest.mark.parametrize("spec", [SPEC, MAPPED["fourth"]], ids=["bands", "holes"])
def test_neighbours_change_no_bit(spec: str, D: int, geometry: str) -> None:
    """NaN, zeros and large numbers beside the sequences."""
    kernel = attngen.compile(spec)
    results: list[tuple[torch.Tensor, ...]] = []
    for beside in (float("nan"), 0.0, 3e38):
        call = call_of(kernel, D, geometry)
        leaves = [x.detach().nan_to_num(nan=beside).requires_grad_() for x in call.operands.values()]
        out = function(kernel, call)(*leaves)
        results.append((out.detach(), *torch.autograd.grad(out, leaves, cotangent(call, out, beside))))
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


@GEOMETRIES
@DIMS
def test_cuda_graph_of_a_training_step(D: int, geometry: str) -> None:
    """New values, and new offsets, in the tensors that the graph was captured with."""
    kernel = attngen.compile(SPEC)
    call = call_of(kernel, D, geometry)
    attend, leaves = function(kernel, call), list(call.operands.values())
    d_out = cotangent(call, attend(*leaves))

    def step() -> tuple[torch.Tensor, ...]:
        out = attend(*leaves)
        return (out, *torch.autograd.grad(out, leaves, d_out))

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    with torch.no_grad():
        leaves[0].mul_(0.5)
        stop = call.bounds["seqused_k" if call.packed else "k_stop"]
        stop[4] -= 100  # the longest sequence sees fewer keys
    graph.replay()
    for a, b in zip(captured, step(), strict=True):
        assert torch.equal(a, b)


@GEOMETRIES
@DIMS
def test_checkpoint(D: int, geometry: str) -> None:
    kernel = attngen.compile(SPEC)
    call = call_of(kernel, D, geometry)
    attend, leaves = function(kernel, call), list(call.operands.values())
    plain = attend(*leaves)
    d_out = cotangent(call, plain)
    again = checkpoint(attend, *leaves, use_reentrant=False)
    assert torch.equal(plain, again)
    expected = torch.autograd.grad(plain, leaves, d_out)
    for a, b in zip(expected, torch.autograd.grad(again, leaves, d_out), strict=True):
        assert torch.equal(a, b)
