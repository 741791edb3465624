"""Where kernels run on this machine: the devices of PyTorch and of JAX, and the interpreters of Triton and of Pallas.

Takes what a caller asked for, "auto", "cpu" or "cuda"; returns the device's name for the framework. Raises `UsageError`
where it is not here. Frameworks are imported when they are asked for.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from attngen.errors import UsageError
from attngen.extras import lacking


def pytorch() -> Any:
    try:
        import torch
    except ImportError as error:
        raise UsageError(lacking("running a kernel needs PyTorch", "torch", "triton")) from error
    return torch


def the_jax() -> Any:
    try:
        import jax
    except ImportError as error:
        raise UsageError(lacking("running a Pallas kernel needs JAX", "jax")) from error
    return jax


def of_torch(wanted: str) -> str:
    available = pytorch().cuda.is_available()
    if wanted == "cuda" and not available:
        raise UsageError("no CUDA or ROCm device is here; use --device cpu")
    return "cuda" if wanted != "cpu" and available else "cpu"


def of_triton(wanted: str) -> str:
    """On the CPU Triton is told to interpret, which must come before its import."""
    device = of_torch(wanted)
    if device == "cpu" and "triton" not in sys.modules:
        os.environ["TRITON_INTERPRET"] = "1"
    return device


def of_jax(wanted: str) -> str:
    backend = the_jax().default_backend()
    if wanted == "cuda" and backend != "gpu":
        raise UsageError("JAX has no CUDA or ROCm device here; use --device cpu")
    return "cpu" if wanted == "cpu" or backend == "cpu" else backend


def of_pallas(wanted: str) -> str:
    if wanted == "cuda":
        raise UsageError("the Pallas target runs on TPUs, or on the CPU in Pallas' interpreter; use --device cpu")
    return "tpu" if wanted == "auto" and the_jax().default_backend() == "tpu" else "cpu"


def torch_name() -> str:
    """The card's name."""
    return pytorch().cuda.get_device_name()


def jax_name() -> str:
    return str(the_jax().devices()[0].device_kind)
