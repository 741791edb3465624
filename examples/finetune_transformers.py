"""Fine-tunes a Llama of transformers with an attention of one's own: a window with learned ALiBi slopes.

    python examples/finetune_transformers.py

The model is tiny and its weights are random, so that nothing is downloaded; any causal language model of transformers
takes its place. The slopes start at 0, and the window holds every key of these texts, so the first loss must be that of
the model's own attention: else the script ends with status 1. Needs torch, triton and transformers.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

import torch
import transformers
from torch import nn
from train_gpt import characters

from attngen.integrations.transformers import register

SPEC = """
attention near_alibi

param slope: f32[Hq]

score = qk * scale + alibi(slope)
mask = sliding_window(256)
"""


def params(attention: nn.Module, call: Mapping[str, Any]) -> dict[str, Any]:
    """The params of the spec, for one call of one layer's attention."""
    return {"slope": attention.slope}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--steps", type=int, default=8)
    steps = parser.parse_args(arguments).steps
    device = "cuda" if torch.cuda.is_available() else "cpu"

    # Registering compiles the spec. Without a GPU that turns Triton's interpreter on, which must come before anything
    # else imports Triton, as torch's optimisers do.
    register("near_alibi", SPEC, params)

    text, count = characters()
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=count, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2
    )
    model = transformers.LlamaForCausalLM(config).to(device)
    batches = [text[i : i + 96].view(2, 48).to(device) for i in range(0, 96 * steps, 96)]
    before = model(batches[0], labels=batches[0]).loss.item()

    model.set_attn_implementation("near_alibi")
    for layer in model.model.layers:
        layer.self_attn.slope = nn.Parameter(torch.zeros(config.num_attention_heads, device=device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses: list[float] = []
    for batch in batches:
        loss = model(batch, labels=batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        print(f"step {len(losses):3}   loss {losses[-1]:.4f}")
    for index, layer in enumerate(model.model.layers):
        print(f"slopes of layer {index}: {', '.join(f'{slope:+.4f}' for slope in layer.self_attn.slope.tolist())}")
    if abs(losses[0] - before) > 1e-3:
        raise SystemExit(f"the first loss is {losses[0]:.4f}, and {before:.4f} with the model's own attention")


if __name__ == "__main__":
    main()
