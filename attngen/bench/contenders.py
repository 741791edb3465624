"""The peers: both forms of FlexAttention, torch's own attention by FlashAttention 2 or cuDNN, and FlashAttention 4.

Takes what each is to compute, returns a `Contender`, ready to call, or a reason why there is none.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import importlib.util
from collections.abc import Callable, Collection
from typing import Any

from attngen.bench.clock import sample, summary
from attngen.bench.race import Contender

torch: Any = importlib.import_module("torch")

BACKENDS: dict[str, dict[str, str]] = {"flex": {}, "flex-flash": {"BACKEND": "FLASH"}}
"""The two forms of FlexAttention, by their kernel options: kernels by Triton, and those of FlashAttention 4."""
NO_FA4 = "the package flash-attn-4 is not here"


class Uncompiled(RuntimeError):
    """FlexAttention ran its dense fallback, or compiled again while it was timed."""


def afresh(names: Collection[str]) -> None:
    """Before a cell's contenders are built: Dynamo forgets what it compiled, so that no cell inherits another's
    recompilations, and a full recompile cache raises instead of running the dense fallback."""
    if BACKENDS.keys().isdisjoint(names):
        return
    dynamo: Any = importlib.import_module("torch._dynamo")
    functorch: Any = importlib.import_module("torch._functorch.config")
    dynamo.reset()
    dynamo.config.fail_on_recompile_limit_hit = True
    dynamo.config.suppress_errors = False
    functorch.donated_buffer = False  # or it refuses retain_graph, which timing the backward needs


def flex(
    change: Callable[..., Any] | None,
    allowed: Callable[..., Any] | None,
    shape: tuple[int, int, int, int],
    *,
    batches: int | None,
    heads: int | None,
    device: str,
    name: str = "flex",
    mode: str | None = None,
    scale: float | None = None,
    grouped: bool = False,
) -> Contender:
    """`torch.compile(flex_attention, dynamic=False)` with a score's and a mask's modifier, over the backend of `name`;
    the block mask is made by a compiled `create_block_mask`, and timed, here. `shape` is (B, Hq, Sq, Sk); `batches` and
    `heads` are those that the mask differs by.

    Two signs of the dense fallback are looked for: memory as large as the scores, a second graph.
    """
    counters: Any = importlib.import_module("torch._dynamo.utils").counters
    attention: Any = importlib.import_module("torch.nn.attention.flex_attention")
    exceptions: Any = importlib.import_module("torch._inductor.exc")

    B, Hq, Sq, Sk = shape
    block_mask, block_mask_ms = None, None
    if allowed is not None:
        create: Any = torch.compile(attention.create_block_mask, dynamic=False)

        def build() -> Any:
            return create(allowed, batches, heads, Sq, Sk, device=device)

        block_mask = build()
        block_mask_ms = summary(sample(build, device=device, warmup_ms=5, rep_ms=25)).ms
    compiled: Any = torch.compile(attention.flex_attention, dynamic=False, fullgraph=True, mode=mode)
    given: dict[str, Any] = {"score_mod": change, "block_mask": block_mask}
    given |= {"kernel_options": BACKENDS[name]} if BACKENDS[name] else {}
    given |= {"scale": scale} if scale is not None else {}
    given |= {"enable_gqa": True} if grouped else {}
    dense_bytes = 2 * B * Hq * Sq * Sk
    graphs: list[int] = []

    def attend(q: Any, k: Any, v: Any) -> Any:
        known, held = counters["stats"]["unique_graphs"], 0
        if not graphs and device == "cuda":
            torch.cuda.reset_peak_memory_stats()
            held = torch.cuda.memory_allocated()
        out = compiled(q, k, v, **given)
        if not graphs and device == "cuda" and torch.cuda.max_memory_allocated() - held >= dense_bytes + 2 * out.nbytes:
            raise Uncompiled("FlexAttention's first call held as much memory as the dense scores take")
        made = counters["stats"]["unique_graphs"] - known
        if made or not graphs:
            graphs.append(made)
        return out

    def watch() -> None:
        if graphs != [1]:
            raise Uncompiled(f"FlexAttention compiled {graphs} graphs in its calls, where one was due at the first")

    # torch wraps its own refusals, of the forward pass and of the backward pass; flash_attn.cute raises the others.
    refusals = (exceptions.InductorError, exceptions.LoweringException, NotImplementedError, ValueError, AssertionError)
    return Contender(
        name, attend, block_mask_ms=block_mask_ms, watch=watch, refusals=refusals if BACKENDS[name] else ()
    )


def scaled(name: str, *, causal: bool, device: str, scale: float | None = None, grouped: bool = False) -> Contender:
    """torch's own attention with one backend allowed; on the CPU, where dry runs go, the plain one."""
    attention: Any = importlib.import_module("torch.nn.attention")
    backends = attention.SDPBackend
    backend = {"sdpa": backends.FLASH_ATTENTION, "cudnn": backends.CUDNN_ATTENTION}[name]
    if device != "cuda":
        backend = backends.MATH
    given: dict[str, Any] = {"is_causal": causal, "scale": scale} | ({"enable_gqa": True} if grouped else {})

    def attend(q: Any, k: Any, v: Any) -> Any:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, **given)

    return Contender(name, attend, scope=lambda: attention.sdpa_kernel(backend))


@functools.cache
def has_fa4() -> bool:
    """Whether FlashAttention 4 (CuTe) is there: the package flash-attn-4 and what it needs."""
    return importlib.util.find_spec("flash_attn") is not None and (
        importlib.util.find_spec("flash_attn.cute") is not None
    )


def packages() -> dict[str, str]:
    """The versions of the peers' packages that are here, by name; `unknown` where one came without its metadata."""
    if not has_fa4():
        return {}
    try:
        return {"flash-attn-4": importlib.metadata.version("flash-attn-4")}
    except importlib.metadata.PackageNotFoundError:
        return {"flash-attn-4": "unknown"}


def fa4(options: dict[str, Any]) -> Contender:
    """FlashAttention 4 on the same tensors, in its own order of dimensions (views, no copies)."""
    function: Callable[..., Any] = importlib.import_module("flash_attn.cute").flash_attn_func

    def attend(q: Any, k: Any, v: Any) -> Any:
        found: Any = function(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), **options)
        out: Any = found if hasattr(found, "transpose") else found[0]  # its log-sum-exp stands beside it
        return out.transpose(1, 2)

    return Contender("fa4", attend)
