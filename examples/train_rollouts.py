"""Trains a Llama of transformers by GRPO, with each prompt and its rollouts packed so that the prompt is computed once.

    python examples/train_rollouts.py

All groups of a step, each a prompt and the rollouts behind it, follow one another in one row without padding. The
attention is `examples/rollouts.attn`: a rollout sees its prompt and itself. Before it trains, the script checks that
the loss and every gradient are those of the unpacked batch, a row for each rollout by the model's own attention, and
ends with status 1 if they are not. The model is tiny and its weights are random; the reward is the share of some
characters. Needs torch, triton and transformers.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers
from torch import Tensor, nn
from train_gpt import characters

from attngen.integrations.transformers import register

HERE = Path(__file__).resolve().parent


class Group(NamedTuple):
    """A prompt (P,), its rollouts (R, L), and the advantage of each (R,)."""

    prompt: Tensor
    rollouts: Tensor
    advantages: Tensor


class Packed(NamedTuple):
    """All groups in one row of T tokens."""

    tokens: Tensor
    """(1, T)"""
    positions: Tensor
    """(1, T): in a rollout they go on behind the prompt."""
    first: Tensor
    """(T,): the number of a token's branch; the prompt is branch 0."""
    last: Tensor
    """(T,): one more than the last number of the branches that continue it."""
    ends: Tensor
    """(groups + 1,): where each group begins."""
    before: Tensor
    """(N,): the token that predicts each token of a rollout: the one before it, or the prompt's last."""
    targets: Tensor
    """(N,)"""
    advantages: Tensor
    """(N,)"""


def packed(groups: Sequence[Group]) -> Packed:
    parts: list[list[Tensor]] = []
    ends = [0]
    for prompt, rollouts, advantages in groups:
        P, (R, L) = len(prompt), rollouts.shape
        branch = torch.arange(1, R + 1).repeat_interleave(L)
        own = ends[-1] + P + torch.arange(R * L).view(R, L)
        predicts = torch.cat([torch.full((R, 1), ends[-1] + P - 1), own[:, :-1]], 1)
        parts.append([
            torch.cat([prompt, rollouts.flatten()]),
            torch.cat([torch.arange(P), P + torch.arange(L).repeat(R)]),
            torch.cat([torch.zeros(P, dtype=torch.int64), branch]),
            torch.cat([torch.full((P,), R + 1), branch + 1]),
            predicts.flatten(),
            rollouts.flatten(),
            advantages.repeat_interleave(L),
        ])  # fmt: skip
        ends.append(ends[-1] + P + R * L)
    tokens, positions, first, last, before, targets, advantages = (torch.cat(x) for x in zip(*parts, strict=True))
    offsets = torch.tensor(ends, dtype=torch.int32)
    return Packed(tokens[None], positions[None], first.int(), last.int(), offsets, before, targets, advantages)


def branches(attention: nn.Module, call: Mapping[str, Any]) -> dict[str, Any]:
    """The params of the spec: the model hands its layers the keywords that it does not know."""
    return {"first": call["first"], "last": call["last"]}


def loss_of(model: nn.Module, batch: Packed) -> Tensor:
    logits = model(
        batch.tokens,
        position_ids=batch.positions,
        attention_mask=torch.ones_like(batch.tokens),  # or positions that begin again would end a sequence
        first=batch.first,
        last=batch.last,
        cu_seq_lens_q=batch.ends,
        cu_seq_lens_k=batch.ends,
    ).logits[0, batch.before]
    return policy_loss(logits, batch.targets, batch.advantages)


def unpacked_loss(model: nn.Module, groups: Sequence[Group]) -> Tensor:
    """The same with a row for each rollout, which repeats the prompt."""
    parts: list[tuple[Tensor, ...]] = []
    for prompt, rollouts, advantages in groups:
        rows = torch.cat([prompt.expand(len(rollouts), -1), rollouts], 1)
        logits = model(rows).logits[:, len(prompt) - 1 : -1]
        parts.append((logits.flatten(0, 1), rollouts.flatten(), advantages.repeat_interleave(rollouts.shape[1])))
    return policy_loss(*(torch.cat(x) for x in zip(*parts, strict=True)))


def policy_loss(logits: Tensor, targets: Tensor, advantages: Tensor) -> Tensor:
    """logits (N, V), targets and advantages (N,). GRPO's, whose first step on new rollouts has a ratio of 1."""
    chosen = torch.log_softmax(logits.float(), -1).gather(1, targets[:, None])[:, 0]
    return -(advantages * (chosen - chosen.detach()).exp()).mean()


@torch.no_grad()
def sampled(model: nn.Module, prompt: Tensor, count: int, length: int, liked: Tensor) -> tuple[Group, float]:
    """Rollouts of the policy, and their mean reward: the share of the characters `liked`."""
    rows = prompt.expand(count, -1)
    for _ in range(length):
        weights = torch.softmax(model(rows).logits[:, -1].float(), -1)
        rows = torch.cat([rows, torch.multinomial(weights, 1)], 1)
    rollouts = rows[:, len(prompt) :]
    rewards = torch.isin(rollouts, liked).float().mean(1)
    advantages = (rewards - rewards.mean()) / (rewards.std() + 1e-4)
    return Group(prompt, rollouts, advantages), rewards.mean().item()


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--rollouts", type=int, default=6)
    parser.add_argument("--length", type=int, default=12, help="tokens of a rollout (default: %(default)s)")
    options = parser.parse_args(arguments)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_default_device(device)

    register("rollouts", HERE / "rollouts.attn", branches)  # before anything else imports Triton

    text, count = characters()
    liked = torch.arange(0, count, 5)
    prompts = [text[i : i + n].to(device) for i, n in ((0, 40), (100, 25), (200, 33))]
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=count, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    own = config._attn_implementation

    for step in range(1, options.steps + 1):
        model.set_attn_implementation(own)
        made = [sampled(model, prompt, options.rollouts, options.length, liked) for prompt in prompts]
        groups = [group for group, _ in made]
        batch = packed(groups)
        if step == 1:
            check(model, groups, batch, own)
        model.set_attn_implementation("rollouts")
        loss_of(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {step:3}   reward {sum(reward for _, reward in made) / len(made):.3f}")


def check(model: nn.Module, groups: Sequence[Group], batch: Packed, own: str) -> None:
    """That a step of the packed batch is one of the unpacked batch."""
    names, weights = zip(*model.named_parameters(), strict=True)
    found: list[tuple[Tensor, ...]] = []
    for name, loss in ((own, lambda: unpacked_loss(model, groups)), ("rollouts", lambda: loss_of(model, batch))):
        model.set_attn_implementation(name)
        value = loss()
        found.append((value.detach(), *torch.autograd.grad(value, weights)))
    wanted, mine = found
    for name, a, b in zip(("the loss", *names), mine, wanted, strict=True):
        if not torch.allclose(a, b, rtol=1e-3, atol=1e-5 * max(1.0, b.abs().max().item())):
            raise SystemExit(f"{name} differs from that of the unpacked batch by {(a - b).abs().max().item():.2g}")
    tokens = sum(len(g.rollouts) * (len(g.prompt) + g.rollouts.shape[1]) for g in groups)
    print(f"{batch.tokens.shape[1]} tokens packed, {tokens} unpacked; the same loss and gradients")


if __name__ == "__main__":
    main()
