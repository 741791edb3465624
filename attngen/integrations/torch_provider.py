"""attngen in the place of PyTorch's flash attention, for `scaled_dot_product_attention` and `varlen_attn`.

    from attngen.integrations import torch_provider

    torch_provider.register()
    torch.nn.attention.activate_flash_attention_impl("ATTNGEN")

Every call that PyTorch computes by flash attention then runs attngen's plain kernels, forward and backward, until
`torch.nn.attention.restore_flash_attention_impl()`. A call that these do not have (dropout, ALiBi's slopes, pages of
keys, another dtype) runs what was there before. Before PyTorch 2.13, which has no such registry, `activate()` does the
same and returns a handle.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Generator
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from attngen.api import Kernel
from attngen.errors import UsageError
from attngen.integrations.specs import Choice, compiled

NAME = "ATTNGEN"
_LONGEST_HEAD = 256
Attend = Callable[..., Any]


def register(name: str = NAME) -> None:
    """Makes attngen known to `torch.nn.attention.activate_flash_attention_impl(name)`. Needs PyTorch 2.13."""
    register_impl: Any = getattr(importlib.import_module("torch.nn.attention"), "register_flash_attention_impl", None)
    if register_impl is None:
        raise UsageError(f"PyTorch {torch.__version__} has no registry of flash attention: call activate() instead")
    register_impl(name, register_fn=activate)


class Handle:
    """What was activated, until `remove()`."""

    def __init__(self, library: torch.library.Library) -> None:
        self._library: Any = library

    def remove(self) -> None:
        """PyTorch's own kernels again."""
        library, self._library = self._library, None
        if library is not None:
            library._destroy()


def activate(device: str = "CUDA") -> Handle:
    """Puts attngen in the place of PyTorch's kernels for this kind of device, until `remove()` of the handle."""
    library: Any = torch.library.Library("aten", "IMPL")
    for name, function in _FUNCTIONS.items():
        if not hasattr(torch.ops.aten, name):  # results in a place of one's own, before PyTorch 2.12
            continue
        library.impl(name, _operator(name, device, function), device, with_keyset=True, allow_override=True)
    return Handle(library)


def _operator(name: str, device: str, function: Callable[[SimpleNamespace], Any]) -> Callable[..., Any]:
    """`function` of a call's arguments, by PyTorch's names for them; where it does not have them, what was there."""
    schema: Any = getattr(torch.ops.aten, name).default._schema
    names = [x.name for x in schema.arguments]
    defaults = {x.name: x.default_value for x in schema.arguments if x.has_default_value()}
    former = _former(name, device)

    def own(keys: Any, *given: Any, **named: Any) -> Any:
        call = SimpleNamespace(**{**_OPTIONAL, **defaults, **dict(zip(names, given, strict=False)), **named})
        return function(call) if _able(call) else former(keys, *given, **named)

    return own


def _former(name: str, device: str) -> Callable[..., Any]:
    """What computes the operator now."""
    library: Any = torch.library
    try:
        return library.get_kernel(f"aten::{name}", device).call_boxed
    except (RuntimeError, AttributeError):  # none for this device, or a PyTorch that does not tell

        def refuse(*_: Any, **__: Any) -> Any:
            said = f"aten::{name} asks for what attngen's kernels do not have, and PyTorch {torch.__version__} has none"
            raise UsageError(f"{said} for {device}")

        return refuse


# ---------------------------------------------------------------- what a call asks for


_OPTIONAL = dict.fromkeys(
    (
        "return_debug_mask",
        "alibi_slopes",
        "block_table",
        "cum_seq_q",
        "seqused_k",
        "window_size_left",
        "window_size_right",
    )
)
"""Arguments that some operators do not have."""


def _able(call: SimpleNamespace) -> bool:
    """Whether attngen's kernels compute it: of a backward pass the same as of its forward pass."""
    tensors = (call.query, call.key, call.value)
    absent = (call.alibi_slopes, call.block_table, call.seqused_k if call.cum_seq_q is None else None)
    return (
        call.dropout_p == 0.0
        and not call.return_debug_mask
        and all(x is None for x in absent)
        and call.query.dtype in (torch.float16, torch.bfloat16)
        and all(x.dtype is call.query.dtype and x.shape[-1] <= _LONGEST_HEAD for x in tensors)
    )


def _kernel(call: SimpleNamespace) -> Kernel:
    """The last query is aligned with the last key, as in flash attention. A side of a window is open if below 0."""
    sides = (call.window_size_left, call.window_size_right)
    before, after = (None if side is None or side < 0 else side for side in sides)
    return compiled(Choice(before=before, after=0 if call.is_causal else after), "triton")


def _results(call: SimpleNamespace, attend: Attend) -> tuple[Tensor, Tensor]:
    """out, with the strides that PyTorch's own operators promise, those of the queries; and the log-sum-exp."""
    with torch.no_grad():
        out, lse = attend(call.query, call.key, call.value, return_lse=True)
    promised = torch.empty_like(call.query)
    return out if out.stride() == promised.stride() else promised.copy_(out), lse


def _gradients(call: SimpleNamespace, kernel: Kernel, attend: Attend, out: Tensor) -> tuple[Tensor, ...]:
    """Of a call whose results are known: `out` as the kernel has it."""
    with _differentiable(), kernel.with_results(out, call.logsumexp):
        leaves = [x.detach().requires_grad_() for x in (call.query, call.key, call.value)]
        return torch.autograd.grad(attend(*leaves), leaves, call.grad_out)


@contextlib.contextmanager
def _differentiable() -> Generator[None]:
    """Below autograd, where the dispatcher leaves its keys out."""
    c: Any = importlib.import_module("torch._C")
    left_out = c._dispatch_tls_local_exclude_set()
    for name in ("AutogradCUDA", "AutogradCPU", "AutogradOther", "ADInplaceOrView"):
        left_out = left_out.remove(getattr(c.DispatchKey, name))
    with c._ForceDispatchKeyGuard(c._dispatch_tls_local_include_set(), left_out), torch.enable_grad():
        yield


def _beside(q: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The state of a generator that drew nothing, and a mask that nobody asked for."""
    seed = torch.zeros(2, dtype=torch.uint64, device=q.device)
    return seed, torch.zeros((), dtype=torch.uint64, device=q.device), q.new_empty(0)


# ---------------------------------------------------------------- tensors (B, H, S, D)


def _by_heads(call: SimpleNamespace, kernel: Kernel) -> Attend:
    def attend(q: Tensor, k: Tensor, v: Tensor, return_lse: bool = False) -> Any:
        return kernel(q, k, v, scale=call.scale, return_lse=return_lse)

    return attend


def _sdpa(call: SimpleNamespace) -> tuple[Any, ...]:
    results = _results(call, _by_heads(call, _kernel(call)))
    return *results, None, None, call.query.shape[2], call.key.shape[2], *_beside(call.query)


def _sdpa_backward(call: SimpleNamespace) -> tuple[Tensor, ...]:
    kernel = _kernel(call)
    return _gradients(call, kernel, _by_heads(call, kernel), call.out)


# ---------------------------------------------------------------- tensors (B, S, H, D), or packed rows (T, H, D)


def _by_rows(call: SimpleNamespace, kernel: Kernel) -> Attend:
    def dense(q: Tensor, k: Tensor, v: Tensor, return_lse: bool = False) -> Any:
        out, lse = kernel(*(x.transpose(1, 2) for x in (q, k, v)), scale=call.scale, return_lse=True)
        return (out.transpose(1, 2), lse) if return_lse else out.transpose(1, 2)

    def packed(q: Tensor, k: Tensor, v: Tensor, return_lse: bool = False) -> Any:
        of_keys = None if call.cum_seq_k is None else call.cum_seq_k.int()
        ends = {"cu_seqlens_q": call.cum_seq_q.int(), "cu_seqlens_k": of_keys, "seqused_k": call.seqused_k}
        return kernel.varlen(q, k, v, **ends, scale=call.scale, return_lse=return_lse)

    return dense if call.cum_seq_q is None else packed


def _flash(call: SimpleNamespace) -> tuple[Any, ...]:
    return *_results(call, _by_rows(call, _kernel(call))), *_beside(call.query)


def _flash_into(call: SimpleNamespace) -> Tensor:
    out, lse = _results(call, _by_rows(call, _kernel(call)))
    call.out.copy_(out)
    return lse


def _flash_backward(call: SimpleNamespace) -> tuple[Tensor, ...]:
    kernel = _kernel(call)
    out = call.out.transpose(1, 2) if call.cum_seq_q is None else call.out
    return _gradients(call, kernel, _by_rows(call, kernel), out)


_FUNCTIONS: dict[str, Callable[[SimpleNamespace], Any]] = {
    "_scaled_dot_product_flash_attention": _sdpa,
    "_scaled_dot_product_flash_attention_backward": _sdpa_backward,
    "_flash_attention_forward": _flash,
    "_flash_attention_forward_no_dropout_inplace": _flash_into,
    "_flash_attention_backward": _flash_backward,
}
