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
from empty_calls import SINK, Call, calls, prepared, text

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
    for name, x in found.items():
        if name == "lse":
            wanted = SINK if call.spec == "sink" and call.geometry != "pieces" else -math.inf
            assert (x == wanted).all(), name
        else:
            assert not x.any() and not x.isnan().any(), name
