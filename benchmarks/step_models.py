"""Models of transformers on random weights: their sizes, attngen's kernels in them, one training step, and its check.

steps.py measures them.
"""

from __future__ import annotations

import contextlib
import copy
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from saved import Files, Spec, example

if TYPE_CHECKING:
    from torch import Tensor

WAYS = ("eager", "inductor")


@dataclass(frozen=True, slots=True)
class Model:
    """`config` is the transformers class and its arguments; `peers` are the implementations beside attngen, the model's
    own first; `checked` is the length that is compared with float32."""

    family: str
    config: Mapping[str, Any]
    B: int
    S: int
    peers: tuple[str, ...]
    checked: int
    window: int | None = None

    @property
    def key(self) -> str:
        return f"{self.family}:{self.B}x{self.S}"


LLAMA = {
    "num_hidden_layers": 8, "hidden_size": 2048, "intermediate_size": 8192, "vocab_size": 32000,
    "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 65536,
}  # fmt: skip
GEMMA2 = {
    "num_hidden_layers": 6, "hidden_size": 2304, "intermediate_size": 9216, "vocab_size": 32000,
    "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "query_pre_attn_scalar": 256,
    "sliding_window": 4096, "attn_logit_softcapping": 50.0,
}  # fmt: skip
GPT_OSS = {
    "num_hidden_layers": 6, "hidden_size": 2880, "intermediate_size": 2880, "vocab_size": 32000,
    "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64, "num_local_experts": 32,
    "num_experts_per_tok": 4, "sliding_window": 128,
}  # fmt: skip
MODELS = (
    Model("llama", LLAMA, 1, 32768, ("sdpa", "flex_attention"), 1024),
    Model("gemma2", GEMMA2, 1, 8192, ("eager", "flex_attention"), 5120, window=4096),
    Model("gpt_oss", GPT_OSS, 1, 16384, ("flex_attention",), 1024, window=128),
    Model("llama", LLAMA, 2, 8192, ("sdpa", "flex_attention"), 1024),
)
SMALL = {
    "num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 64, "vocab_size": 64, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16,
}  # fmt: skip
DRY_WINDOW = 16


def dry(model: Model) -> Model:
    """A tiny one for the CPU, where FlexAttention has no backward pass."""
    small = {**model.config, **SMALL}
    if model.window is not None:
        small["sliding_window"] = DRY_WINDOW
    if "num_local_experts" in small:
        small |= {"num_local_experts": 4, "num_experts_per_tok": 2}
    if "query_pre_attn_scalar" in small:
        small["query_pre_attn_scalar"] = 16
    peers = tuple(p for p in model.peers if p != "flex_attention") or ("eager",)
    return replace(model, config=small, B=1, S=40, peers=peers, checked=40, window=model.window and DRY_WINDOW)


# ---- attngen's side --------------------------------------------------------------------------------------------------


def windowed(spec: Spec, name: str) -> Spec:
    """The same with a sliding window in place of the causal mask."""
    (mask,) = (line for line in spec.text.split("\n") if line.startswith("mask"))
    return Spec(spec.text.replace(mask, "mask = sliding_window(window)").rstrip() + f"\nconst window = {name}\n")


def specs(*, small: bool) -> dict[str, Spec]:
    """One for each layer type of each model, named FAMILY and FAMILY_window."""
    windows = {m.family: DRY_WINDOW if small else m.window for m in MODELS if m.window is not None}
    gemma2, gpt_oss = example("softcap", cap=50.0), example("sink")
    return {
        "llama": example("causal"),
        "gemma2": gemma2,
        "gemma2_window": replace(windowed(gemma2, str(windows["gemma2"])), consts={"cap": 50.0}),
        "gpt_oss": gpt_oss,
        "gpt_oss_window": windowed(gpt_oss, str(windows["gpt_oss"])),
    }


def register(model: Model, kernels: Path) -> None:
    """Registers `attngen` as an attention of transformers, by the generated files of this model's layers.

    transformers makes no mask for a name that its masks do not know, so the masks are those of the specs; a mask that
    comes nevertheless is refused.
    """
    from transformers import AttentionInterface

    files = Files.at(kernels)
    plain = files.dense(model.family)
    windowed_function = files.dense(f"{model.family}_window") if model.window is not None else None

    def attend(
        module: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        scaling: float | None = None,
        dropout: float = 0.0,
        sliding_window: int | None = None,
        softcap: float | None = None,
        s_aux: Tensor | None = None,
        **_: Any,
    ) -> tuple[Tensor, None]:
        wanted = (model.family == "gemma2", model.family == "gpt_oss")
        if attention_mask is not None or dropout or (softcap is not None, s_aux is not None) != wanted:
            raise ValueError(f"the kernels of {model.family} have no such mask, dropout, soft cap or sink")
        function = plain
        if sliding_window is not None:
            if windowed_function is None or sliding_window != model.window:
                raise ValueError(f"no kernel of {model.family} has a window of {sliding_window}")
            function = windowed_function
        params = {} if s_aux is None else {"sink": s_aux.float()}
        return function(query, key, value, scale=scaling, **params).transpose(1, 2), None

    AttentionInterface.register("attngen", attend)


# ---- one step --------------------------------------------------------------------------------------------------------


def built(model: Model, device: str) -> Any:
    """The model in training mode, on random weights that are the same in every process."""
    import torch
    import transformers

    made = {
        "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
        "gemma2": (transformers.Gemma2Config, transformers.Gemma2ForCausalLM),
        "gpt_oss": (transformers.GptOssConfig, transformers.GptOssForCausalLM),
    }[model.family]
    config = made[0](**model.config, use_cache=False, attention_dropout=0.0, pad_token_id=0)
    config._attn_implementation = "eager"
    torch.manual_seed(0)
    with torch.device(device):
        network = made[1](config)
    network = network.to(device=device, dtype=torch.bfloat16 if device == "cuda" else torch.float32)
    if model.family == "gpt_oss":
        with torch.no_grad():  # they begin at whatever the memory held, or at one value: draw them
            for layer in network.model.layers:
                layer.self_attn.sinks.normal_()
    return network.train()


def tokens(model: Model, length: int, device: str) -> Tensor:
    import torch

    generator = torch.Generator(device=device).manual_seed(1)
    return torch.randint(1, model.config["vocab_size"], (model.B, length), generator=generator, device=device)


def switch(network: Any, implementation: str) -> None:
    network.set_attn_implementation(implementation)
    assert network.config._attn_implementation == implementation


def step(call: Callable[..., Any], network: Any, ids: Tensor, between: Callable[[], None] = lambda: None) -> Tensor:
    """Forward, `between`, backward; gradients are fresh. Returns the loss."""
    network.zero_grad(set_to_none=True)
    loss = call(input_ids=ids, labels=ids).loss
    between()
    loss.backward()
    return loss.detach()


def gradients(network: Any) -> dict[str, Tensor]:
    return {name: p.grad.detach() for name, p in network.named_parameters() if p.grad is not None}


def distance(found: Mapping[str, Tensor], right: Mapping[str, Tensor]) -> float:
    """`||found - right|| / ||right||` over all parameters together; inf where one lacks a gradient."""
    import torch

    if found.keys() != right.keys():
        return math.inf
    gap = sum(float((found[n].float() - x.float()).square().sum(dtype=torch.float64)) for n, x in right.items())
    return math.sqrt(gap / sum(float(x.float().square().sum(dtype=torch.float64)) for x in right.values()))


def shallow(model: Model) -> Model:
    """Two layers (one of each type) and few experts, so that its copy in float32 is small."""
    config = {**model.config, "num_hidden_layers": 2}
    return replace(model, config={**config, "num_local_experts": 8} if "num_local_experts" in config else config)


def check(model: Model, implementation: str, way: str, device: str) -> dict[str, float]:
    """Relative errors of loss and gradients on the shorter sequence, against float32 by eager attention."""
    network = built(shallow(model), device)
    ids = tokens(model, model.checked, device)
    switch(network, implementation)
    loss = step(compiled(network, way), network, ids)
    found = gradients(network)
    network.zero_grad(set_to_none=True)
    exact = copy.deepcopy(network).float()
    switch(exact, "eager")
    if hasattr(exact, "set_experts_implementation"):
        with contextlib.suppress(ValueError):  # of models without experts
            exact.set_experts_implementation("eager")
    right_loss = step(exact, exact, ids)
    return {
        "loss": abs(float(loss) - float(right_loss)) / float(right_loss),
        "gradients": distance(found, gradients(exact)),
    }


def compiled(network: Any, way: str) -> Callable[..., Any]:
    import torch

    if way == "eager":
        return network
    found: Any = torch.compile(network, dynamic=False)
    return found


def wait(device: str) -> None:
    import torch

    if device == "cuda":
        torch.cuda.synchronize()


def first(model: Model, implementation: str, way: str, kernels: Path, device: str) -> dict[str, Any]:
    """The first step's seconds, and the errors of two layers."""
    register(model, kernels)
    network = built(model, device)
    ids = tokens(model, model.S, device)
    switch(network, implementation)
    (network.lm_head.weight @ network.lm_head.weight.T[:, :8]).sum().item()  # the libraries' own start is not counted
    wait(device)
    started = time.perf_counter()
    step(compiled(network, way), network, ids)
    wait(device)
    found: dict[str, Any] = {"first_s": round(time.perf_counter() - started, 2)}
    del network
    found["errors"] = check(model, implementation, way, device)
    return found
