"""attngen's kernels as an attention implementation of transformers 5.

    from attngen.integrations import transformers as attngen_transformers

    attngen_transformers.register()
    model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="attngen")

One kernel is compiled for each attention that the model's layers ask for (causal or not, its window, soft cap, chunks,
sinks, dropout), at the first call. What a call asks for and attngen does not have raises `UsageError`.

Inside `attngen.distributed.context_parallel_region` the model gets the rows of one rank, and attends over all ranks.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface

from attngen import targets
from attngen.analyse.unaligned import unaligned
from attngen.api import Kernel, compile as compile_spec
from attngen.distributed.torch.current import OpenRegion, current_region
from attngen.errors import Diagnostic, UsageError
from attngen.integrations.masks import Mask, make
from attngen.integrations.model_check import watch
from attngen.integrations.specs import Choice, compiled

Call = Mapping[str, Any]
Params = Callable[[torch.nn.Module, Call], Mapping[str, Any]]

TABLES = ("position_bias", "block_indices")
"""Keywords of a call that have something for each query of a batch row."""

CARRIED = ("sliding_window", "softcap", "s_aux", *TABLES)
"""Keywords of a call that change its result, and that a spec of one's own gets through `params` alone."""

READ = frozenset(
    {*CARRIED, "dropout", "scaling", "is_causal", "cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k"}
)

HARMLESS = frozenset(
    {
        # The mask function has read these.
        "position_ids",
        "cache_position",
        "token_type_ids",
        "mm_token_type_ids",
        # For what a model does beside its attention.
        "position_embeddings",
        "num_items_in_batch",
        "use_cache",
        "output_hidden_states",
        "output_router_logits",
        "logits_to_keep",
        "return_dict",
        "deterministic",
    }
)
"""Keywords that transformers hands to every attention, and that do not change what it computes."""


def register(
    name: str = "attngen",
    spec: str | os.PathLike[str] | Kernel | None = None,
    params: Params | None = None,
    *,
    target: str = "triton",
) -> None:
    """Register attngen under `name`, for `attn_implementation=name` and `model.set_attn_implementation(name)`.

    `spec` is an attention of your own, for every layer: a path, a text, or a compiled `Kernel`. Its positions are those
    of one sequence: padding, packing and caches are taken care of. `params(module, call)` returns its params for one
    call, from the attention module and the keywords of the call (`scaling`, `sliding_window`, `softcap`, `s_aux`, …);
    what it returns replaces nothing else. Without `params`, a call that has a window, a soft cap, sinks or dropout is
    refused, since nothing would hand them to the spec. `target` is triton, or torch, for tensors without padding,
    packing or a cache.
    """
    if not isinstance(cast(Any, name), str) or not re.fullmatch(r"[A-Za-z_][\w|/]*", name):
        raise UsageError(f"name {name!r} must be letters, digits and underscores, such as 'attngen'")
    if any(part in name for part in ("|", "/", "flash", "sdpa", "flex", "eager")):
        raise UsageError(f"name {name!r} means something else to transformers: choose another, such as 'attngen'")
    if params is not None and not callable(cast(Any, params)):
        raise UsageError(f"params must be a function of (module, call) that returns a dict, not {params!r}")
    if spec is None and params is not None:
        raise UsageError("params= are those of a spec of your own: pass spec= too")
    chosen = spec.target if isinstance(spec, Kernel) else target
    if targets.named(chosen).takes_jax:
        able = targets.listed([x for x in targets.TARGETS.values() if not x.takes_jax])
        raise UsageError(f"transformers' models are PyTorch's: target must be {able}, not {chosen}")
    own = spec if spec is None or isinstance(spec, Kernel) else compile_spec(spec, target)
    if own is not None:
        _ = own.function  # loaded here: without a GPU that turns Triton's interpreter on
    watch(_is_ours)
    attention = _Attention(own, params, target, () if own is None else unaligned(own.spec))
    for registry, entry in ((AttentionInterface, attention), (AttentionMaskInterface, make)):
        cast(Any, registry).register(name, entry)


@dataclass(frozen=True)
class _Attention:
    """What the registry holds: one call per layer and forward pass."""

    own: Kernel | None
    params: Params | None
    target: str
    unaligned: tuple[Diagnostic, ...]
    """Where the spec of one's own would take the last query of a cached step to be the first."""

    def __call__(
        self,
        module: torch.nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Any = None,
        **call: Any,
    ) -> tuple[Tensor, None]:
        """query (B, Hq, Sq, D), key (B, Hkv, Sk, D), value (B, Hkv, Sk, Dv) -> (B, Sq, Hq, Dv), and no weights."""
        self._refuse_unknown(call)
        sizes = (query.shape[0], 1, query.shape[2], key.shape[2])
        mask = _without_mask(module, call, sizes) if attention_mask is None else attention_mask
        if not isinstance(mask, Mask):
            raise UsageError(
                f"attention_mask is {_described(mask)}; attngen takes 2-D padding masks, (batch, positions), which the "
                "model turns into what its layers need. For another mask register a spec that reads it from a param, "
                "and pass it to the model as another keyword, model(…, pairs=mask), from which "
                'params=lambda module, call: {"pairs": call["pairs"]} takes it'
            )
        if mask.shape != sizes:
            raise UsageError(f"the mask is for (batch, 1, queries, keys) {mask.shape}, the call has {sizes}")
        region = current_region()
        if region is None:
            mask = _packed_by_call(mask, call, query.device)
        if self.own is None:
            mask = _by_rows(
                mask, module, call, (sizes[0], query.shape[1], key.shape[1], *sizes[2:]), region is not None
            )
        kernel, params = self._kernel(module, query, mask, call)
        if "lengths" not in targets.named(kernel.target).geometries and (mask.lengths or mask.cu_seqlens is not None):
            raise UsageError(
                f"{kernel.name}: a batch with padding, packed sequences or a cache needs target triton: "
                'pass target="triton" to register, or a Kernel of that target as spec='
            )
        arguments = {"scale": call.get("scaling"), **params}
        if region is not None:
            region.check_positions(call.get("position_ids"))
            return _in_region(region, kernel, (query, key, value), arguments), None
        if mask.cu_seqlens is not None and not (self.own is None and mask.choice.documents):
            return _packed(kernel, query, key, value, mask.cu_seqlens, call, arguments), None
        return kernel(query, key, value, **arguments, **mask.lengths).transpose(1, 2).contiguous(), None

    def _refuse_unknown(self, call: Call) -> None:
        """Raises for what the adapter does not know, and for what would get lost on the way to a spec of one's own."""
        for name, given in call.items():
            if given is None or given is False or name in HARMLESS:
                continue
            if name in ("cache", "block_table"):
                raise UsageError(f"{name}: attngen has no continuous batching yet; generate in batches")
            if name not in READ and self.params is None:
                raise UsageError(
                    f"the model passes {name}={_described(given)} to its attention, unknown to attngen: register a "
                    "spec that takes it, with spec= and params=, or use another attn_implementation"
                )
            if name in CARRIED and self.own is not None and self.params is None:
                raise UsageError(_lost(f"{name}={_described(given)}"))

    def _kernel(self, module: torch.nn.Module, query: Tensor, mask: Mask, call: Call) -> tuple[Kernel, dict[str, Any]]:
        dropout = call.get("dropout") or 0.0
        if self.own is not None:
            if self.params is None and mask.choice.window is not None:
                raise UsageError(_lost(f"a mask with a window of {_window(mask.choice)}"))
            if self.params is None and mask.choice.chunk is not None:
                raise UsageError(_lost(f"a mask with chunks of {mask.choice.chunk} keys"))
            if self.params is None and mask.choice.spans:
                raise UsageError(_lost("a mask with spans, such as images"))
            if self.params is None and dropout:
                raise UsageError(_lost(f"dropout={dropout}"))
            if mask.dropped:
                raise UsageError(
                    "the cache of a sliding layer has dropped its first keys, and a spec of your own counts positions "
                    "from the first: pass past_key_values=DynamicCache(), which keeps every key"
                )
            if mask.cached and mask.shape[2] < mask.shape[3] and self.unaligned:
                note = self.unaligned[0]
                fix = note.fix.removesuffix(", or `assume Sq == Sk`")  # it would refuse this call
                raise UsageError(f"{self.own.name}: {note.message}, not at the last of the keys; {fix}")
            return self.own, {} if self.params is None else _checked(self.own, self.params(module, call))
        sinks = call.get("s_aux")
        softcap = call.get("softcap") or None  # 0 is none, as for FlashAttention
        choice = replace(mask.choice, softcap=softcap, sinks=sinks is not None, dropout=dropout > 0)
        params: dict[str, Any] = dict(mask.params)
        if sinks is not None:
            params["sink"] = sinks.float()
        if dropout > 0:
            params["p"] = dropout
        return compiled(choice, self.target), params


def _is_ours(name: str) -> bool:
    return isinstance(cast(Any, AttentionInterface)._global_mapping.get(name), _Attention)


def _checked(kernel: Kernel, given: Any) -> dict[str, Any]:
    """What `params` returned: params of the spec, and nothing that a call takes beside them."""
    if not isinstance(given, Mapping):
        raise UsageError(f"params must return a dict of {kernel.name}'s params, not {_described(given)}")
    params = dict(cast(Mapping[str, Any], given))
    declared = [p.name for p in kernel.spec.params]
    other = next((name for name in params if name not in declared), None)
    if other is not None:
        raise UsageError(f"params returned {other!r}; {kernel.name} has the params {', '.join(declared) or 'none'}")
    return params


def _without_mask(module: torch.nn.Module, call: Call, sizes: tuple[int, int, int, int]) -> Mask:
    """The mask of a model that makes none: causal or not, as the call or the module says, with the call's window."""
    given = call.get("is_causal")
    causal = bool(getattr(module, "is_causal", True) if given is None else given)
    queries, keys = sizes[2:]
    if causal and queries not in (1, keys) and call.get("cu_seq_lens_q") is None:
        raise UsageError(
            f"causal attention of {queries} queries and {keys} keys needs a mask, or nothing says which keys they see: "
            "pass attention_mask or cu_seq_lens_q"
        )
    window = call.get("sliding_window")
    if window is not None and not causal:
        raise UsageError(
            f"sliding_window={window} without causality needs a mask, or nothing says which keys a query sees: pass "
            "attention_mask"
        )
    choice = Choice(before=None if window is None else window - 1, after=0 if causal else None)
    cached = causal and queries < keys
    return Mask(
        choice=choice, shape=sizes, dropped=False, cached=cached, ended=True, lengths={}, cu_seqlens=None, params={}
    )


def _packed_by_call(mask: Mask, call: Call, device: torch.device) -> Mask:
    """The mask, checked against the window of the call, and with the offsets that the call has.

    `is_causal` counts only where a model makes no mask: Moonshine passes False beside one that is causal.
    """
    choice, window = mask.choice, call.get("sliding_window")
    before = choice.before if choice.reach is None else choice.reach
    windowed = choice.window is not None or choice.reach is not None
    if window is not None and (not windowed or (choice.causal and before != window - 1)):
        raise UsageError(f"the call has sliding_window={window}, and the model's mask has {_window(choice)}")
    offsets = call.get("cu_seq_lens_q")
    if offsets is None:
        if call.get("cu_seq_lens_k") is not None:
            raise UsageError("cu_seq_lens_k without cu_seq_lens_q: both say where sequences begin")
        return mask
    if mask.lengths:
        raise UsageError("cu_seq_lens_q and padding in one call: leave the attention_mask out")
    if mask.choice.chunk is not None and mask.cu_seqlens is not None:
        return mask  # says the same, and knows where the chunks of each sequence begin
    cu_seqlens = torch.as_tensor(offsets, dtype=torch.int32, device=device)
    params = {} if mask.choice.chunk is None else {"first": torch.zeros_like(cu_seqlens[1:])}
    return replace(mask, choice=replace(mask.choice, documents=False), cu_seqlens=cu_seqlens, params=params)


def _by_rows(
    mask: Mask, module: torch.nn.Module, call: Call, sizes: tuple[int, int, int, int, int], in_region: bool
) -> Mask:
    """The mask with the tables of a call that has some, which dense calls read by rows: padding becomes bools.

    `sizes` are the batch, the query and key heads, the queries and the keys.
    """
    tables = {name: call[name] for name in TABLES if call.get(name) is not None}
    if not tables:
        return mask
    batch, heads, kv_heads, queries, keys = sizes
    what = ", ".join(f"{name}={_described(table)}" for name, table in tables.items())
    choice, params = mask.choice, dict(mask.params)
    others = {
        "a region of context parallelism": in_region,
        "packed sequences": mask.cu_seqlens is not None and not choice.documents,
        "chunks": choice.chunk is not None,
        "spans, such as images": choice.spans,
        "a soft cap": bool(call.get("softcap")),
        "a static cache": not mask.ended,
    }
    other = next((name for name, found in others.items() if found), None)
    if other is not None:
        raise UsageError(f"{what} with {other}: not in attngen yet; use another attn_implementation")
    bias, chosen = tables.get("position_bias"), tables.get("block_indices")
    if bias is not None:
        if not isinstance(bias, Tensor) or tuple(bias.shape) not in {(n, heads, queries, keys) for n in (1, batch)}:
            raise UsageError(f"{what}: attngen takes a tensor {[batch, heads, queries, keys]}, or one of batch 1")
        params["bias"] = bias
        choice = replace(choice, bias=True)
    if chosen is not None:
        size = getattr(getattr(module, "indexer", None), "block_size", None)
        if not isinstance(chosen, Tensor) or chosen.ndim != 4 or chosen.shape[::2] != (batch, queries):
            raise UsageError(f"{what}: attngen takes a tensor {[batch, kv_heads, queries, 'numbers of blocks']}")
        if kv_heads % chosen.shape[1] or not isinstance(size, int):
            raise UsageError(
                f"{what}: attngen takes lists of groups of the {kv_heads} key heads, and the keys of a block from "
                "module.indexer.block_size"
            )
        params["chosen"] = chosen.repeat_interleave(kv_heads // chosen.shape[1], 1).int()
        choice = replace(choice, block=size)
    if mask.lengths:
        key = torch.arange(keys, device=mask.lengths["k_start"].device)
        params["kept"] = (key >= mask.lengths["k_start"][:, None]) & (key < mask.lengths["k_stop"][:, None])
        choice = replace(choice, kept=True)
    return replace(mask, choice=choice, lengths={}, params=params)


def _in_region(region: OpenRegion, kernel: Kernel, operands: tuple[Tensor, Tensor, Tensor], arguments: Call) -> Tensor:
    """Rows of one rank: (B, H, S, D) -> (B, S, Hq, Dv)."""
    if not region.sequences.packed:
        return region(kernel, *operands, **arguments).transpose(1, 2).contiguous()
    if operands[0].shape[0] != 1:
        raise UsageError(f"packed sequences are one batch row in a region, not {operands[0].shape[0]}")
    q, k, v = (x[0].transpose(0, 1) for x in operands)
    return region(kernel, q, k, v, **arguments)[None]


def _packed(
    kernel: Kernel, query: Tensor, key: Tensor, value: Tensor, cu_seqlens: Tensor, call: Call, arguments: Call
) -> Tensor:
    """The sequences of all batch rows, one after the other: (B, H, S, D) -> (B, Sq, Hq, Dv)."""
    batch, _, queries, _ = query.shape
    q, k, v = (x.transpose(1, 2).flatten(0, 1) for x in (query, key, value))
    keys = call.get("cu_seq_lens_k")
    longest = {f"max_seqlen_{side}": call.get(f"max_length_{side}") for side in "qk"}
    out: Tensor = kernel.varlen(
        q,
        k,
        v,
        cu_seqlens_q=cu_seqlens,
        cu_seqlens_k=None if keys is None else torch.as_tensor(keys, dtype=torch.int32, device=query.device),
        **{name: hint for name, hint in longest.items() if isinstance(hint, int)},
        **arguments,
    )
    return out.reshape(batch, queries, *out.shape[1:])


def _window(choice: Choice) -> str:
    if choice.causal:
        return "no window" if choice.before is None else f"{choice.before + 1} keys"
    sides = ((choice.before, "before"), (choice.after, "after"))
    return " and ".join(f"{'all' if count is None else count} keys {side} its own" for count, side in sides)


def _lost(what: str) -> str:
    return (
        f"the model asks for {what}, and nothing hands it to your spec: pass params=, a function of (module, call) "
        "that returns the params of the spec"
    )


def _described(given: Any) -> str:
    if isinstance(given, Tensor):
        return f"a tensor {list(given.shape)}"
    text = repr(given)
    return text if len(text) <= 60 else f"a {type(given).__name__}"
