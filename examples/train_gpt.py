"""Trains one small GPT twice, with dense attention and with a generated kernel, and compares the loss curves.

    python examples/train_gpt.py -o losses.png

Both runs start from the same weights and see the same batches. The model reads characters (examples/data/sonnets.txt),
and knows positions from ALiBi alone (examples/alibi.attn), whose slopes are learned: so the kernel's gradients for q,
k, v and a param all take part. Needs torch, triton, and matplotlib for the plot. Ends with status 1 where the curves
part.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import attngen

HERE = Path(__file__).resolve().parent
Attend = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Size:
    layers: int
    heads: int
    dim: int
    block: int
    batch: int
    rate: float  # of learning


SMALL = Size(layers=2, heads=2, dim=32, block=32, batch=2, rate=3e-3)
"""For the interpreter, which takes milliseconds an operation."""
REAL = Size(layers=6, heads=6, dim=384, block=512, batch=32, rate=2e-4)
"""At 1e-3 it learns the text by heart within 200 steps, and rounding parts the two curves after 130."""


# ---------------------------------------------------------------- the two attentions


def dense(q: Tensor, k: Tensor, v: Tensor, slope: Tensor) -> Tensor:
    """ALiBi, causal, with every score in memory, in float32."""
    length = q.shape[2]
    position = torch.arange(length, device=q.device)
    distance = position[:, None] - position
    with torch.autocast(q.device.type, enabled=False):
        scores = q.float() @ k.float().mT / q.shape[3] ** 0.5 - slope[:, None, None] * distance
        return (scores.masked_fill(distance < 0, -torch.inf).softmax(dim=-1) @ v.float()).to(q.dtype)


def generated() -> Attend:
    # Taking `.function` loads it. Without a GPU that turns Triton's interpreter on, which must come before anything
    # else imports Triton, as torch's optimisers do.
    alibi = attngen.compile(HERE / "alibi.attn").function
    return lambda q, k, v, slope: alibi(q, k, v, slope=slope)


# ---------------------------------------------------------------- the model


class Block(nn.Module):
    def __init__(self, size: Size, attend: Attend):
        super().__init__()
        self.heads, self.attend = size.heads, attend
        self.before_attention, self.before_mlp = nn.LayerNorm(size.dim), nn.LayerNorm(size.dim)
        self.qkv = nn.Linear(size.dim, 3 * size.dim, bias=False)
        self.project = nn.Linear(size.dim, size.dim, bias=False)
        self.slope = nn.Parameter(2.0 ** (-8.0 * torch.arange(1, size.heads + 1) / size.heads))
        self.mlp = nn.Sequential(nn.Linear(size.dim, 4 * size.dim), nn.GELU(), nn.Linear(4 * size.dim, size.dim))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, dim = x.shape
        # (B, S, 3, H, D) seen as three of (B, H, S, D): the kernel takes any strides.
        qkv = self.qkv(self.before_attention(x)).view(batch, length, 3, self.heads, dim // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        x = x + self.project(self.attend(q, k, v, self.slope).transpose(1, 2).reshape(batch, length, dim))
        return x + self.mlp(self.before_mlp(x))


class GPT(nn.Module):
    def __init__(self, size: Size, characters: int, attend: Attend):
        super().__init__()
        self.embed = nn.Embedding(characters, size.dim)
        self.blocks = nn.Sequential(*(Block(size, attend) for _ in range(size.layers)))
        self.norm = nn.LayerNorm(size.dim)
        self.head = nn.Linear(size.dim, characters, bias=False)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        logits = self.head(self.norm(self.blocks(self.embed(tokens))))
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


# ---------------------------------------------------------------- training


def characters() -> tuple[Tensor, int]:
    """The text as numbers, and how many different ones there are."""
    lines = (HERE / "data" / "sonnets.txt").read_text(encoding="utf-8").splitlines(keepends=True)
    text = "".join(line for line in lines if not line.startswith("#")).strip()
    alphabet = {c: i for i, c in enumerate(sorted(set(text)))}
    return torch.tensor([alphabet[c] for c in text]), len(alphabet)


class Trainer:
    """A model, its optimiser and its batches, all from the same seed."""

    def __init__(self, size: Size, attend: Attend, device: str, bf16: bool):
        self.text, count = characters()
        self.size, self.device, self.bf16 = size, device, bf16
        torch.manual_seed(1337)
        self.model = GPT(size, count, attend).to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=size.rate)
        self.generator = torch.Generator().manual_seed(42)

    def step(self) -> float:
        size = self.size
        starts = torch.randint(len(self.text) - size.block, (size.batch,), generator=self.generator)
        batch = torch.stack([self.text[i : i + size.block + 1] for i in starts.tolist()]).to(self.device)
        with torch.autocast(self.device, dtype=torch.bfloat16, enabled=self.bf16):
            loss = self.model(batch[:, :-1], batch[:, 1:])
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()


def train(size: Size, steps: int, device: str, bf16: bool) -> dict[str, list[float]]:
    """The losses of both, step by step, with a line of progress now and then."""
    attentions = {"generated": generated(), "dense": dense}
    trainers = {name: Trainer(size, attend, device, bf16) for name, attend in attentions.items()}
    losses: dict[str, list[float]] = {name: [] for name in trainers}
    begun = time.perf_counter()
    for step in range(steps):
        for name, trainer in trainers.items():
            losses[name].append(trainer.step())
        if step % 10 == 0 or step == steps - 1:
            now = "   ".join(f"{name} {values[-1]:.4f}" for name, values in losses.items())
            print(f"step {step + 1:4} of {steps}   {now}   {time.perf_counter() - begun:.0f} s", file=sys.stderr)
    return losses


def plot(losses: dict[str, list[float]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    axes.plot(losses["dense"], color="#9aa5b1", linewidth=4, label="dense attention (PyTorch)")
    axes.plot(losses["generated"], color="#c2410c", linewidth=1.2, label="generated kernel (attngen)")
    axes.set(xlabel="step", ylabel="loss (nats a character)", title="A small GPT, trained twice from the same weights")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=160)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto")
    parser.add_argument("--size", choices=["auto", "small", "real"], default="auto", help="real wants a GPU")
    parser.add_argument("--bf16", action="store_true", help="autocast to bfloat16 (GPU)")
    parser.add_argument("-o", "--output", type=Path, help="where to plot the two curves (PNG, SVG or PDF)")
    options = parser.parse_args(arguments)
    if options.steps < 1:
        parser.error("--steps must be at least 1")
    device = options.device if options.device != "auto" else "cuda" if torch.cuda.is_available() else "cpu"
    size = REAL if options.size == "real" or (options.size == "auto" and device == "cuda") else SMALL

    losses = train(size, options.steps, device, options.bf16)
    apart = max(abs(a - b) for a, b in zip(losses["dense"], losses["generated"], strict=True))
    # Rounding differs between the two from the first step on, and training amplifies it.
    tolerance = 0.1 if options.bf16 else 0.01 if size is REAL else 1e-3
    print(f"the losses fell from {losses['dense'][0]:.3f} to {losses['dense'][-1]:.3f}; at most {apart:.1e} apart")
    if options.output is not None:
        plot(losses, options.output)
        print(f"wrote {options.output}")
    if not apart <= tolerance:
        raise SystemExit(f"the loss curves part by {apart:.1e}; {tolerance} was allowed")


if __name__ == "__main__":
    main()
