"""attngen: attention variants, one page of mathematics each, compiled into differentiable fused kernels.

`attngen.compile("alibi.attn")` gives a `Kernel`. Names are loaded on first use, so that `import attngen` costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    __version__: str
    from attngen.api import Kernel, compile
    from attngen.errors import AttnError, Diagnostic, Refuted, SpecError, SpecWarning, Unproved, UsageError
    from attngen.flex.call import flex_attention, from_flex
    from attngen.quantized import Quantized, quantize

__all__ = [
    "AttnError",
    "Diagnostic",
    "Kernel",
    "Quantized",
    "Refuted",
    "SpecError",
    "SpecWarning",
    "Unproved",
    "UsageError",
    "compile",
    "flex_attention",
    "from_flex",
    "quantize",
]


def __getattr__(name: str) -> object:
    if name == "__version__":
        return _version()
    if name in ("Kernel", "compile"):
        import attngen.api as home
    elif name in ("flex_attention", "from_flex"):
        import attngen.flex.call as home
    elif name in ("Quantized", "quantize"):
        import attngen.quantized as home
    elif name in __all__:
        import attngen.errors as home
    else:
        raise AttributeError(f"module 'attngen' has no attribute {name!r}")
    value = globals()[name] = getattr(home, name)
    return value


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("attngen")
    except PackageNotFoundError:
        return "0+checkout"  # not installed


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
