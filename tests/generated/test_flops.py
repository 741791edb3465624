"""`FlopCounterMode` counts generated operators as it counts PyTorch's own attention."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

import attngen
from attngen.runtime import loader

B, HQ, HKV, SQ, SK, D, DV = 2, 4, 2, 20, 33, 16, 32
FORWARD = 2 * B * HQ * SQ * SK * (D + DV)
BACKWARD = 2 * B * HQ * SQ * SK * (3 * D + 2 * DV)
SPEC = "attention counted\nparam slope: f32[Hq]\nscore = qk * scale + alibi(slope)\nmask = sliding_window(8)\n"


def tensors(**options: Any) -> Any:
    shapes = (B, HQ, SQ, D), (B, HKV, SK, D), (B, HKV, SK, DV)
    return [torch.randn(shape, requires_grad=True, **options) for shape in shapes]


def counted(call: Any, *, backward: bool = True) -> tuple[int, int]:
    """Of the forward pass, and of the backward pass."""
    with FlopCounterMode(display=False) as forward:
        out = call()
    if not backward:
        return forward.get_total_flops(), 0
    with FlopCounterMode(display=False) as behind:
        out.sum().backward()
    return forward.get_total_flops(), behind.get_total_flops()


@pytest.fixture(scope="module")
def kernel() -> attngen.Kernel:
    return attngen.compile(SPEC, geometry=("packed", "lengths"), tile=(16, 16))


def test_the_figures_are_those_of_pytorch() -> None:
    """Its helpers, of heads without groups."""
    q, k, v = (B, HQ, SQ, D), (B, HQ, SK, D), (B, HQ, SK, DV)
    assert sdpa_flop_count(q, k, v) == FORWARD
    assert sdpa_backward_flop_count((B, HQ, SQ, DV), q, k, v) == BACKWARD


def test_a_dense_call_is_counted_whatever_its_mask(kernel: attngen.Kernel) -> None:
    q, k, v = tensors()
    slope = torch.full((HQ,), 0.1, requires_grad=True)
    assert counted(lambda: kernel(q, k, v, slope=slope)) == (FORWARD, BACKWARD)


def test_a_standalone_file_counts_also_where_it_is_loaded_twice(tmp_path: Path) -> None:
    source = attngen.compile(SPEC, forward=True, tile=(16, 16)).source
    assert "attngen" not in {line.split()[1] for line in source.splitlines() if line.startswith(("import ", "from "))}
    loader.prepare_interpreter()
    q, k, v = (x.detach() for x in tensors())
    for _ in range(2):
        module = loader.execute(source, "counted_twice")
        call = lambda m=module: m.counted(q, k, v, slope=torch.zeros(HQ))  # noqa: E731
        assert counted(call, backward=False) == (FORWARD, 0)


@pytest.mark.parametrize("geometry", ["dense", "packed", "lengths"])
def test_fake_tensors_are_counted(geometry: str, kernel: attngen.Kernel) -> None:
    """Of sequences whose lengths nobody knows, the upper bound."""
    with FakeTensorMode():
        slope = torch.zeros(HQ)
        q, k, v = tensors()
        ends = torch.tensor([0, 7, SQ], dtype=torch.int32)
        if geometry == "dense":
            assert counted(lambda: kernel(q, k, v, slope=slope)) == (FORWARD, BACKWARD)
        elif geometry == "lengths":
            stop = torch.tensor([7, 9], dtype=torch.int32)
            assert counted(lambda: kernel(q, k, v, slope=slope, k_stop=stop)) == (FORWARD, BACKWARD)
        else:
            q, k, v = (x.detach()[0].transpose(0, 1).requires_grad_() for x in (q, k, v))
            call = lambda: kernel.varlen(q, k, v, slope=slope, cu_seqlens_q=ends, cu_seqlens_k=ends)  # noqa: E731
            assert counted(call) == (FORWARD // B, BACKWARD // B)


def test_packed_sequences_are_counted_by_their_lengths(kernel: attngen.Kernel) -> None:
    of_q, of_k = torch.tensor([0, 7, 7, SQ], dtype=torch.int32), torch.tensor([0, 20, 25, SK], dtype=torch.int32)
    q, k, v = (x.detach()[0].transpose(0, 1).contiguous().requires_grad_() for x in tensors())
    slope = torch.zeros(HQ)
    pairs = 7 * 20 + 0 * 5 + 13 * 8
    assert counted(lambda: kernel.varlen(q, k, v, slope=slope, cu_seqlens_q=of_q, cu_seqlens_k=of_k)) == (
        2 * HQ * pairs * (D + DV),
        2 * HQ * pairs * (3 * D + 2 * DV),
    )


def test_parts_of_batch_rows_are_counted_by_their_lengths(kernel: attngen.Kernel) -> None:
    q, k, v = tensors()
    start, stop = torch.tensor([3, 0], dtype=torch.int32), torch.tensor([33, 10], dtype=torch.int32)
    slope = torch.zeros(HQ)
    for given, pairs in (
        ({"q_start": start}, (SQ - 3) * SK + SQ * SK),
        ({"k_stop": stop}, SQ * 33 + SQ * 10),
        ({"q_start": start, "k_stop": stop}, (SQ - 3) * 33 + SQ * 10),
    ):
        assert counted(lambda given=given: kernel(q, k, v, slope=slope, **given)) == (
            2 * HQ * pairs * (D + DV),
            2 * HQ * pairs * (3 * D + 2 * DV),
        )
