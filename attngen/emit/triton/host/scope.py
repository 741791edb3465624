"""What a generated file says of calls that it was not made for.

Takes the options, returns the `ScopeView` that `templates/triton/host/` reads.
"""

from __future__ import annotations

from dataclasses import dataclass

from attngen.emit.options import Options

_TORCH = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32", "fp8": "float8_e4m3fn"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ScopeView:
    """`dtypes` is for docstrings, `only` what the runtime is told, as keywords."""

    dtypes: str
    only: tuple[str, ...]


def scope_view(options: Options) -> ScopeView:
    return ScopeView(
        dtypes="all float16, bfloat16 or float32" if options.dtype is None else f"all {_TORCH[options.dtype]}",
        only=(
            *(() if options.dtype is None else (f'dtype="{options.dtype}"',)),
            *(() if options.head_dim is None else (f"head_dim={options.head_dim}",)),
            *(() if options.chip is None else (f'arch="{options.chip}"',)),
        ),
    )
