"""The GPU that is here: whether there is one, what it is called, and a spec's params as tensors on it."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from attngen.errors import UsageError
from attngen.extras import lacking

_STORAGE = {
    "f32": "float32",
    "f16": "float16",
    "bf16": "bfloat16",
    "int": "int32",
    "bool": "bool",
    "u8": "uint8",
    "i8": "int8",
    "i16": "int16",
}


def require_gpu(command: str, instead: str) -> Any:
    """torch, where it has a GPU. `instead`: what a machine without one can do."""
    try:
        torch: Any = importlib.import_module("torch")
    except ImportError as error:
        raise UsageError(lacking(f"{command} needs PyTorch and a GPU", "torch", "triton")) from error
    if not torch.cuda.is_available():
        raise UsageError(f"{command} measures on a GPU, and PyTorch sees none here; {instead}")
    return torch


def target_here() -> tuple[str, int | str, int]:
    """What Triton calls the GPU that is here: backend, architecture, threads of a warp."""
    driver: Any = importlib.import_module("triton").runtime.driver
    target = driver.active.get_current_target()
    return target.backend, target.arch, target.warp_size


def tensors(
    torch: Any, spec: Any, sizes: Mapping[str, int], given: Mapping[str, bool | int | float], device: str
) -> dict[str, Any]:
    """A value for every param: tensors on the device, scalars as numbers."""
    from attngen import inputs

    values = inputs.examples(spec, sizes, given)
    return {
        p.name: values[p.name]
        if p.is_scalar
        else torch.tensor(values[p.name]).to(getattr(torch, _STORAGE[p.storage.value])).to(device)
        for p in spec.params
    }
