"""The host's part of calls whose tensors have no elements: no descriptor of the copy engine is over a null pointer.

Kernels are only noted here, by a host that takes this machine for an H100; the card runs them in
`tests/gpu/test_card_empty.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from types import ModuleType
from typing import Any

import pytest
import torch
from empty_calls import ALL, Call, calls, prepared, text

import attngen
from attngen.runtime.loader import execute


class Noted:
    """A kernel that notes its launch and does nothing."""

    def __init__(self, name: str, arg_names: list[str], launched: list[str]) -> None:
        self.name, self.arg_names, self.launched = name, arg_names, launched

    def __getitem__(self, grid: object) -> Callable[..., None]:
        return lambda *operands, **options: self.launched.append(self.name)


@cache
def source(spec: str, geometry: str) -> str:
    return attngen.compile(text(spec), geometry=("dense", geometry)).source


def launched(call: Call) -> list[str]:
    """The kernels that a call and its gradients launch on an H100."""
    module: ModuleType = execute(source(call.spec, call.geometry), "a")
    found: list[str] = []
    for name, x in list(vars(module).items()):
        if "_kernel" in name and hasattr(x, "arg_names"):
            setattr(module, name, Noted(name, list(x.arg_names), found))

    def descriptor(base: torch.Tensor, *_: object) -> None:
        assert base.numel() and base.data_ptr(), f"a descriptor over {tuple(base.shape)}"

    changed: Any = module
    changed.HopperDescriptor = changed.TensorDescriptor = descriptor
    changed.CHIPS[torch.device("cpu")] = "sm_90"
    prepared(module, call, "cpu")()
    return found


@pytest.mark.parametrize("call", calls(), ids=str)
def test_no_descriptor_over_a_null_pointer(call: Call) -> None:
    assert not any("hopper" in kernel for kernel in launched(call))


@pytest.mark.parametrize("geometry", ["dense", "lengths", "packed", "pieces"])
def test_tensors_with_rows_take_descriptors(geometry: str) -> None:
    """So that the test above sees what a call would do with them."""
    call = replace(calls()[0], geometry=geometry, rows=ALL, D=128)
    assert any("hopper" in kernel for kernel in launched(call))
