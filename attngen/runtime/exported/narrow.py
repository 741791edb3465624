# pyright: strict, reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false, reportPrivateUsage=false
# PyTorch and Triton have few types, and private names.

"""An attention of 8-bit floats (float8_e4m3fn): its calls, and the values as its fast kernel reads them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from .arguments import is_number
from .attention import Attention, Param
from .calls import wants_gradient
from .devices import ceil, chip, number_tensor, padded
from .hopper import HopperLaunch
from .launch import Launch
from .quads import turn_values_kernel
from .watched import any_autocast, unwatched

NARROW = torch.float8_e4m3fn
CHIPS_OF_NARROW = ("sm_90", "sm_100", "cpu")


class NarrowAttention(Attention):
    """q, k and v stand for numbers that are a factor times as large: the last params, one for each batch and KV head,
    are these factors. A number counts for all. One input more than the params says whether results are in float16.
    """

    def __init__(self, name: str, key: str, *, params: tuple[Param, ...], **others: Any) -> None:
        for check, ends in (("check_params", 2), ("check_facts", 1), ("check_sizes", 0)):
            if others.get(check) is not None:
                others[check] = without_input(others[check], ends, returned=check == "check_params")
        super().__init__(name, key, params=(*params, Param("half", kind="bool")), **others)

    def __call__(
        self,
        operands: tuple[Any, ...],
        scale: Any = None,
        return_lse: bool = False,
        dropout_seed: Any = None,
        check: bool = False,
        out_dtype: Any = torch.bfloat16,
    ) -> Any:
        if out_dtype not in (torch.bfloat16, torch.float16):
            self.refuse(f"out_dtype must be torch.bfloat16 or torch.float16, not {out_dtype}")
        q = operands[0]
        if isinstance(q, Tensor):
            own = unwatched(q)
            factors = zip(self.params[-4:-1], operands[-3:], strict=True)
            operands = (*operands[:-3], *[self.factor(p.name, x, q.device, own) for p, x in factors])
        operands = (*operands, out_dtype is torch.float16)
        return super().__call__(operands, scale, return_lse, dropout_seed, check)

    def factor(self, name: str, x: Any, device: torch.device, own: bool) -> Any:
        """A number as a tensor of one element."""
        if not is_number(x):
            return x
        if not 0.0 < x <= torch.finfo(torch.float32).max:
            self.refuse(f"{name} must be above 0 and finite in float32")
        return number_tensor(float(x), device, own).reshape(1, 1)

    def call(
        self, operands: tuple[Any, ...], scale: Any, seed: Any, bounds: tuple[Any, ...] = (), rows: Any = None
    ) -> tuple[Any, ...]:
        q = operands[0]
        narrow = all(isinstance(x, Tensor) and x.dtype is NARROW for x in operands[:3])
        with torch.autocast(q.device.type, enabled=False) if narrow and any_autocast() else nullcontext():
            if not (narrow and not q.is_meta and chip(q.device) == "cpu"):
                return super().call(operands, scale, seed, bounds, rows)
            # Triton's interpreter rounds wrongly to 8 bits: it computes in float32.
            wide = (*(x.float() for x in operands[:3]), *operands[3:])
            out, *rest = super().call(wide, scale, seed, bounds, rows)
            return out.to(torch.float16 if operands[-1] else torch.bfloat16), *rest

    def run(self, inputs: tuple[Any, ...], known: Any) -> Any:
        if wants_gradient(inputs, (0, 1, 2, *self.at_pointers)):
            self.refuse(
                "8-bit floats have no gradients: call it under torch.no_grad(). Those of attngen.quantize have some, "
                "in kernels that are compiled without dtype=fp8"
            )
        return super().run(inputs, known)

    def check_dtype(self, name: str, x: Tensor) -> None:
        if x.dtype is not NARROW and not (x.dtype is torch.float32 and x.is_cpu):
            self.refuse(f"this file was made with dtype=fp8: {name} must be float8_e4m3fn, not {x.dtype}")

    def check_scope(self, q: Tensor, D: int, Dv: int) -> None:
        super().check_scope(q, D, Dv)
        if q.device.type != "meta" and chip(q.device) not in CHIPS_OF_NARROW:
            self.refuse(
                f"8-bit floats need a GPU of compute capability 9.0 or later, not {chip(q.device)}: compile without "
                "dtype=fp8, and call with bfloat16"
            )
        if min(D, Dv) < 32 or D % 16 or Dv % 16:
            self.refuse(f"head dims of 8-bit floats must be multiples of 16, from 32 on, not {D} and {Dv}")

    def signed(self, q: Tensor, sign: float) -> Tensor:
        if q.dtype is not NARROW:
            return super().signed(q, sign)
        bits = q.view(torch.uint8)
        found = bits ^ 128 if sign < 0.0 else torch.where(bits & 127 == 127, bits, 0)  # 127: not a number
        return found.view(NARROW)

    def result_dtype(self, inputs: tuple[Any, ...]) -> torch.dtype:
        if inputs[0].dtype is not NARROW:
            return inputs[0].dtype
        return torch.float16 if inputs[self.at_scale - 1] else torch.bfloat16

    def deciding(self, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        return (inputs[self.at_scale - 1], *super().deciding(inputs))


class NarrowLaunch(HopperLaunch):
    """The forward kernel of compute capability 9.0 for 8-bit floats, whose values are turned."""

    def block(self, name: str, x: Tensor) -> list[int]:
        return [max(64, padded(x.shape[2])), self.tiles[name]] if name == "v" else super().block(name, x)


def turn_values(B: int, Hkv: int, Sk: int, Dv: int, align: int) -> Launch:
    """The launch of the kernel that turns values, into a buffer `turned` of (B, Hkv, Dv, Sk rounded up to 16)."""
    columns, keys = ceil(Sk, 16) * 16, 64 if Dv <= 128 else 32
    return Launch(
        turn_values_kernel,
        ceil(columns, keys) * B * Hkv,
        {"Dv": Dv, "KEYS": keys, "ALIGN": align, "num_warps": 4},
        scalars={"Sk_turned": columns},
        buffers={"turned": ((B, Hkv, Dv, columns), NARROW)},
    )


def without_input(check: Callable[..., Any], ends: int, *, returned: bool) -> Callable[..., Any]:
    """A check of params that leaves out the last one, which `ends` arguments follow. It is put back if `returned`."""

    def checked(*given: Any) -> Any:
        at = len(given) - ends - 1
        found = check(*given[:at], *given[at + 1 :])
        return (*found, given[at]) if returned else found

    return checked
