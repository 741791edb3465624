"""What a generated file says of calls that it was not made for.

Takes the options, returns the `ScopeView` that `templates/triton/host/` reads.
"""

from __future__ import annotations

from dataclasses import dataclass

from attngen.emit.options import Options

_TORCH = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ScopeView:
    """Lines of `_check`, in the loop over q, k and v (`dtype_checks`) and after it; `dtypes` is for the docstring."""

    dtypes: str
    dtype_checks: tuple[str, ...]
    head_dim_checks: tuple[str, ...]
    chip_checks: tuple[str, ...]


def scope_view(options: Options) -> ScopeView:
    return ScopeView(
        dtypes="all float16, bfloat16 or float32" if options.dtype is None else f"all {_TORCH[options.dtype]}",
        dtype_checks=_dtype_checks(options.dtype),
        head_dim_checks=_head_dim_checks(options.head_dim),
        chip_checks=() if options.chip is None else _chip_checks(options.chip),
    )


def _dtype_checks(dtype: str | None) -> tuple[str, ...]:
    if dtype is None:
        return (
            "if x.dtype not in (torch.float16, torch.bfloat16, torch.float32):",
            '    _refuse(f"{name} must be float16, bfloat16 or float32, not {x.dtype}")',
        )
    name = _TORCH[dtype]
    # In the interpreter the function calls itself with float32 in the place of bfloat16.
    interpreted = " and not (x.dtype is torch.float32 and x.is_cpu)" if dtype == "bf16" else ""
    message = f"this file was made with dtype={dtype}: {{name}} must be {name}, not {{x.dtype}}"
    return f"if x.dtype is not torch.{name}{interpreted}:", f'    _refuse(f"{message}")'


def _head_dim_checks(head_dim: tuple[int, int] | None) -> tuple[str, ...]:
    if head_dim is None:
        return (
            "if not (0 < D <= 256 and 0 < Dv <= 256):",
            '    _refuse(f"head dims must be from 1 to 256, not {D} and {Dv}")',
        )
    qk, v = head_dim
    asked = f"{qk}" if qk == v else f"{qk}/{v}"
    message = f"this file was made with head_dim={asked}: head dims must be {qk} and {v}, not {{D}} and {{Dv}}"
    return f"if (D, Dv) != ({qk}, {v}):", f'    _refuse(f"{message}")'


def _chip_checks(chip: str) -> tuple[str, ...]:
    message = f"this file was made with arch={chip}, and {{q.device}} is {{_chip(q.device)}}"
    return f'if q.device.type == "cuda" and _chip(q.device) != "{chip}":', f'    _refuse(f"{message}")'
