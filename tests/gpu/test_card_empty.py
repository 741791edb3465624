"""Tensors without elements on the card: their pointers are null, and no kernel may read them, nor may a graph.

compute-sanitizer sees what a plain run may not:
`compute-sanitizer --tool memcheck pytest -n 0 tests/gpu/test_card_empty.py`.
"""

from __future__ import annotations

import math
import sys
from functools import cache
from typing import Any

import pytest
import torch
from empty_calls import ALL, KV_HEADS, SINK, Call, calls, operands, prepared, text

import attngen

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]


@cache
def module_of(spec: str, geometry: str) -> Any:
    return sys.modules[attngen.compile(text(spec), geometry=("dense", geometry)).function.__module__]


@pytest.mark.parametrize("call", calls(), ids=str)
def test_a_call_without_elements(call: Call) -> None:
    run = prepared(module_of(call.spec, call.geometry), call, "cuda")
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):  # a graph is captured on a stream of its own, and so is what it needs made before
        found = run()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    expect(call, found)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = run()
    graph.replay()
    torch.cuda.synchronize()
    expect(call, captured)


def expect(call: Call, found: dict[str, torch.Tensor]) -> None:
    if call.rows == ALL:
        return expect_causal(call, found)
    for name, x in found.items():
        if name == "lse":
            wanted = SINK if call.spec == "sink" and call.geometry != "pieces" else -math.inf
            assert (x == wanted).all(), name
        else:
            assert not x.any() and not x.isnan().any(), name
    return None


def expect_causal(call: Call, found: dict[str, torch.Tensor]) -> None:
    """By PyTorch, in float32."""
    q, k, v = (x.detach().float() for x in operands(call, "cuda").values())
    share = q.shape[1] // KV_HEADS
    k, v = (x.repeat_interleave(share, 1) for x in (k, v))
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    torch.testing.assert_close(found["out"].float(), out, rtol=2e-3, atol=2e-3)
    assert found["table"].shape == (0,)
