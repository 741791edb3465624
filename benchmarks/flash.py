"""FlashAttention 3 and 4 as contenders, where their packages can be imported: dense, packed, and split-KV decode.

FlashAttention 3 is the package fa3-fwd: bf16 and fp8, forward only, no window. FlashAttention 4 is flash-attn-4.
Neither is a dependency: README.md says how both are carried to the card.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
from collections.abc import Callable
from typing import Any

import saved  # noqa: F401  (puts this checkout's attngen on the path)
from torch import Tensor

from attngen.bench.contenders import has_fa4
from attngen.bench.race import Contender

__all__ = ["dense_fa3", "fa3", "fa4", "has_fa3", "has_fa4", "output"]


def has_fa3() -> bool:
    return importlib.util.find_spec("fa3_fwd_interface") is not None


@functools.cache
def fa3() -> Any:
    """FlashAttention 3's module, which looks for its configuration under another name."""
    sys.modules["flash_attn_config"] = importlib.import_module("fa3_fwd_config")
    return importlib.import_module("fa3_fwd_interface")


@functools.cache
def fa4() -> Any:
    return importlib.import_module("flash_attn.cute")


def output(found: Any) -> Any:
    """The output, of a function that may return the log-sum-exp beside it."""
    return found[0] if isinstance(found, tuple) else found


def dense_fa3(*, causal: bool) -> Contender:
    """Of tensors (B, H, S, D); the forward pass alone, so it takes no leaves."""
    function: Callable[..., Any] = fa3().flash_attn_func

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        found = function(*(x.detach().transpose(1, 2) for x in (q, k, v)), causal=causal)
        return output(found).transpose(1, 2)

    return Contender("fa3", attend, backward=False)
