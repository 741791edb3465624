"""Tiny models of transformers with random weights, and the comparison of their eager attention with attngen's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers as hf
from torch import Tensor

WINDOW = 7
SHAPE = {
    "vocab_size": 50,
    "hidden_size": 64,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
}
KINDS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "llama": (hf.LlamaConfig, hf.LlamaForCausalLM, {}),
    "mistral": (hf.MistralConfig, hf.MistralForCausalLM, {"sliding_window": WINDOW}),
    "gemma2": (hf.Gemma2Config, hf.Gemma2ForCausalLM, {"sliding_window": WINDOW, "attn_logit_softcapping": 2.0}),
    "gpt_oss": (
        hf.GptOssConfig,
        hf.GptOssForCausalLM,
        {
            "sliding_window": WINDOW,
            "num_local_experts": 2,
            "num_experts_per_tok": 1,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        },
    ),
    "qwen3": (hf.Qwen3Config, hf.Qwen3ForCausalLM, {}),
    "llama4": (
        hf.Llama4TextConfig,
        hf.Llama4ForCausalLM,
        {"attention_chunk_size": 8, "num_local_experts": 2, "intermediate_size_mlp": 32},
    ),
}


def tiny(kind: str, **overrides: Any) -> Any:
    """A model with eager attention, in evaluation mode, whose attention is far from uniform."""
    config, model, extra = KINDS[kind]
    torch.manual_seed(0)
    return sharp(model._from_config(config(**{**SHAPE, **extra, **overrides}), attn_implementation="eager"))


def sharp(built: Any) -> Any:
    """The model in evaluation mode, with weights that make its attention far from uniform."""
    with torch.no_grad():
        for name, weight in built.named_parameters():
            if "norm" not in name:
                weight.normal_(0, 0.3)
    return built.eval()


def tokens(batch: int = 2, length: int = 20) -> Tensor:
    return torch.randint(1, 50, (batch, length), generator=torch.Generator().manual_seed(1))


def both(model: Any, run: Callable[[Any], Any], name: str = "attngen") -> tuple[Any, Any]:
    """What `run` gives with attngen's attention, and with the model's own."""
    model.set_attn_implementation(name)
    ours = run(model)
    model.set_attn_implementation("eager")
    return ours, run(model)


def gradients(model: Any, loss: Callable[[Any], Tensor]) -> dict[str, Tensor]:
    """The gradient of every weight."""
    model.zero_grad()
    loss(model).backward()
    return {name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None}


def assert_close(ours: Any, theirs: Any, tolerance: float = 1e-4) -> None:
    """Within `tolerance` of the largest magnitude that is expected."""
    if isinstance(theirs, dict):
        assert ours.keys() == theirs.keys()
        for name in theirs:
            assert_close(ours[name], theirs[name], tolerance)
        return
    torch.testing.assert_close(ours, theirs, rtol=0, atol=tolerance * max(1e-3, theirs.abs().max().item()))
