# pyright: strict, reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false, reportPrivateUsage=false
# PyTorch and Triton have few types, and private names.

"""What a device and the layout of tensors mean to kernels, and small tensors that calls on one stream share."""

from __future__ import annotations

import math
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from triton.runtime import driver

from .tables import tiles_by_chip

# Kept between calls. The CPU stands for Triton's interpreter, which counts as a chip of 8 multiprocessors.
CHIPS: dict[torch.device, str] = {torch.device("cpu"): "cpu"}
MULTIPROCESSORS: dict[torch.device, int] = {torch.device("cpu"): 8}
ZEROS: dict[tuple[int, int], list[Tensor]] = {}  # by device and stream
FILLED: dict[tuple[Any, ...], Tensor] = {}
NOTHING = nullcontext()


def ceil(n: int, d: int) -> int:
    """n / d rounded up, ten times as fast as `triton.cdiv`."""
    return -(-n // d)


def padded(n: int) -> int:
    """The least power of two that is at least n and 16."""
    return max(16, 1 << (n - 1).bit_length())


def chip(device: torch.device) -> str:
    """The chip whose table rows a device uses."""
    if device not in CHIPS and torch.version.hip:
        CHIPS[device] = "gfx942"
    elif device not in CHIPS:
        properties = torch.cuda.get_device_properties(device)
        kib = properties.shared_memory_per_block_optin // 1024
        newest = "sm_90" if properties.major == 9 else "sm_100"
        CHIPS[device] = newest if kib >= 227 else "sm_80" if kib >= 163 else "sm_86"
    return CHIPS[device]


def multiprocessors(device: torch.device) -> int:
    if device not in MULTIPROCESSORS:
        MULTIPROCESSORS[device] = torch.cuda.get_device_properties(device).multi_processor_count
    return MULTIPROCESSORS[device]


def near(x: Tensor) -> Tensor:
    """`x` if its rows are contiguous and less than 2**23 elements apart, else a copy."""
    strides = x.stride()
    return x if strides[-1] == 1 and strides[0 if len(strides) == 3 else 2] < 2**23 else x.contiguous()


def like(x: Tensor, cols: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shape (B, H, S, cols) of a result, and strides in the order of those of `x`: (B, S, H, D) or (B, H, S, D). Of
    packed rows both are those of (T, H, cols)."""
    if x.dim() == 3:
        rows, heads, _ = x.shape
        return (rows, heads, cols), (heads * cols, cols, 1)
    B, H, S, _ = x.shape
    inside = x.stride(1) < x.stride(2)
    return (B, H, S, cols), (H * S * cols, cols, H * cols, 1) if inside else (H * S * cols, S * cols, cols, 1)


def lse_like(x: Tensor) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shape and strides of log-sum-exps: (B, H, S), or (H, T) of packed rows."""
    if x.dim() == 3:
        rows, heads, _ = x.shape
        return (heads, rows), (rows, 1)
    B, H, S, _ = x.shape
    return (B, H, S), (H * S, S, 1)


def strided(x: Tensor, count: int, packed: bool) -> Tensor:
    """(count, H, S, D): packed rows (T, H, D) belong to every sequence, so the batch's stride is 0."""
    return x.transpose(0, 1).expand(count, -1, -1, -1) if packed else x


def strides_of(**tensors: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    """The strides of tensors' batches, heads and rows, by the names of the kernels' parameters."""
    return {f"{name}_strides": found[:3] for name, found in tensors.items()}


def alignment(strides: dict[str, tuple[int, ...]], most: int = 16) -> int:
    """The largest power of two, up to `most`, that divides all strides."""
    return math.gcd(most, *(n for found in strides.values() for n in found))


def copyable(x: Tensor, strides: Iterable[int]) -> bool:
    """Whether the copy engine (TMA) can read `x`: it has elements, whole multiples of 16 bytes apart."""
    size = x.element_size()
    return x.numel() > 0 and x.data_ptr() % 16 == 0 and all(n > 0 and n * size % 16 == 0 for n in strides)


def has_tma(*tensors: Tensor) -> bool:
    """Whether the chip has a copy engine that can read these tensors. Kernels load float32 by pointers."""
    if chip(tensors[0].device) not in ("sm_90", "sm_100"):
        return False
    return all(x.element_size() <= 2 and copyable(x, x.stride()[:3]) for x in tensors)


def tiles(table: str, q: Tensor, v: Tensor) -> tuple[tuple[int, ...], ...]:
    """The tiles of the forward, dK/dV and dQ kernels: queries, keys, warps, stages."""
    return tiles_by_chip(table)[chip(q.device), q.element_size(), padded(max(q.shape[3], v.shape[3]))]


def register_limit(limits: dict[tuple[int, ...], int], q: Tensor, *tile: int) -> dict[str, int]:
    """The option that limits registers, for tiles of which several programs should fit on a multiprocessor."""
    half = q.element_size() == 2 and chip(q.device) in ("sm_90", "sm_100")
    limit = limits.get((padded(q.shape[3]), *tile)) if half else None
    return {} if limit is None else {"maxnreg": limit}


def layout_of(*tensors: Tensor) -> tuple[Any, ...]:
    """What launches depend on: everything about the tensors but their values, with addresses modulo 16."""
    return tuple([(x.dtype, x.device, x.shape, x.stride(), x.data_ptr() % 16) for x in tensors])


def current(x: Tensor) -> AbstractContextManager[object]:
    """In this block, the device of `x` is the current one. That it is already is found at a third of the time."""
    if x.is_cuda:
        active: Any = driver.active
        if x.device.index != active.get_current_device():
            return torch.cuda.device_of(x)
    return NOTHING


def stream_of(device: torch.device) -> int | None:
    """The stream whose calls may share tensors. None but on a GPU, on a device that is not current, and while a CUDA
    graph is captured, since each replay must fill its own.
    """
    if device.type != "cuda" or device.index != torch.cuda.current_device() or torch.cuda.is_current_stream_capturing():
        return None
    active: Any = driver.active
    return active.get_current_stream(device.index)


def add_queue(values: dict[str, Any]) -> None:
    """Adds a queue of four zeros to `values`, for an `own` call from a stock that one fill makes for 1,024 calls."""
    device = values["q"].device
    stream = stream_of(device) if values["own"] else None
    if stream is None:
        values["queue"] = torch.zeros(4, dtype=torch.int32, device=device)
        return
    try:
        values["queue"] = ZEROS[device.index, stream].pop()
    except (KeyError, IndexError):
        zeros = torch.zeros((1024, 4), dtype=torch.int32, device=device)
        values["queue"], *ZEROS[device.index, stream] = zeros.unbind()


def number_tensor(x: float, device: torch.device, own: bool) -> Tensor:
    """A 0-dim tensor for a number. `own`: it is kept for later calls with the same number."""
    stream = stream_of(device) if own else None
    if stream is None:
        return torch.full((), x, dtype=torch.float32, device=device)
    x = float(x)
    key = x.hex(), device.index, stream, torch.is_inference_mode_enabled()
    if key not in FILLED:
        if len(FILLED) >= 1024:
            FILLED.clear()
        FILLED[key] = torch.full((), x, dtype=torch.float32, device=device)
    return FILLED[key]
