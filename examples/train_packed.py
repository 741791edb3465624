"""Trains a small GPT on packed documents, with its weights sharded over processes by FSDP2.

    python examples/train_packed.py      # a process for each GPU, or two on the CPU; torchrun works as well

Each step of each process packs whole sonnets (examples/data/sonnets.txt), cut to uneven lengths, into one row of tokens
without padding. The attention is `examples/alibi.attn` with learned slopes, by its packed form: a document never sees
another one. Before it trains, the script checks that each document's loss is what it is alone, and ends with status 1
if it is not. Needs torch and triton.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.run import main as torchrun
from torch.nn import functional as F

from attngen.integrations.torchtitan import VarlenAttention

HERE = Path(__file__).resolve().parent


class Documents(NamedTuple):
    """Where packed documents begin, as torchtitan has it."""

    cu_seq_q: Tensor
    cu_seq_k: Tensor
    max_q: int
    max_k: int


class Block(nn.Module):
    def __init__(self, dim: int, heads: int):
        super().__init__()
        self.heads = heads
        slopes = 2.0 ** (-8.0 * torch.arange(1, heads + 1) / heads)
        self.attention = VarlenAttention(HERE / "alibi.attn", {"slope": nn.Parameter(slopes)})
        self.before_attention, self.before_mlp = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.project = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x: Tensor, documents: Documents) -> Tensor:
        q, k, v = self.qkv(self.before_attention(x)).unflatten(-1, (3, self.heads, -1)).unbind(1)
        x = x + self.project(self.attention(q, k, v, attention_metadata=documents).flatten(1))
        return x + self.mlp(self.before_mlp(x))


class GPT(nn.Module):
    def __init__(self, characters: int, dim: int, heads: int, layers: int):
        super().__init__()
        self.embed = nn.Embedding(characters, dim)
        self.blocks = nn.ModuleList(Block(dim, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, characters, bias=False)

    def forward(self, tokens: Tensor, targets: Tensor, documents: Documents) -> Tensor:
        """The loss of each token (T,)."""
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x, documents)
        return F.cross_entropy(self.head(self.norm(x)).float(), targets, reduction="none")


def sonnets() -> tuple[list[Tensor], int]:
    """Each sonnet as numbers, and how many different characters there are."""
    lines = (HERE / "data" / "sonnets.txt").read_text(encoding="utf-8").splitlines()
    text = "\n".join(line for line in lines if not line.startswith("#")).strip()
    alphabet = {c: i for i, c in enumerate(sorted(set(text)))}
    return [torch.tensor([alphabet[c] for c in sonnet]) for sonnet in text.split("\n\n")], len(alphabet)


def packed(pieces: list[Tensor], device: str) -> tuple[Tensor, Tensor, Documents]:
    """Tokens, the tokens that follow them, and where each document begins, all on the host until the last line."""
    lengths = [len(piece) - 1 for piece in pieces]
    offsets = torch.tensor([0, *lengths]).cumsum(0).int().to(device)
    tokens, targets = torch.cat([p[:-1] for p in pieces]), torch.cat([p[1:] for p in pieces])
    return tokens.to(device), targets.to(device), Documents(offsets, offsets, max(lengths), max(lengths))


def batches(documents: list[Tensor], longest: int, count: int, seed: int) -> Iterator[list[Tensor]]:
    """Without end: `count` documents, each cut to a length of its own."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        chosen = torch.randint(len(documents), (count,), generator=generator).tolist()
        lengths = torch.randint(2, longest + 1, (count,), generator=generator).tolist()
        yield [documents[i][:length] for i, length in zip(chosen, lengths, strict=True)]


def train(steps: int) -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if device == "cuda" else "gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    mesh = dist.init_device_mesh(device, (world,))
    documents, characters = sonnets()
    longest, count, dim, layers = (40, 4, 32, 2) if device == "cpu" else (600, 64, 512, 8)
    torch.manual_seed(0)
    model = GPT(characters, dim, heads=2 if device == "cpu" else 8, layers=layers).to(device)
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    source = batches(documents, longest, count, seed=rank)

    pieces = next(source)
    with torch.no_grad():
        together = model(*packed(pieces, device))
        alone = torch.cat([model(*packed([piece], device)) for piece in pieces])
    apart = (together - alone).abs().max().item()

    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3 if device == "cpu" else 3e-4)
    for step in range(steps):
        loss = model(*packed(next(source), device)).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        mean = loss.detach() / world
        dist.all_reduce(mean)
        if rank == 0:
            print(f"step {step + 1:3} of {steps}   loss {mean.item():.4f}", flush=True)
    if rank == 0:
        print(f"{world} processes; losses of packed documents and of documents alone differ by {apart:.1e} at most")
    dist.destroy_process_group()
    if not apart <= 1e-3:
        raise SystemExit("a document must not see the others")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--steps", type=int, default=6)
    steps = parser.parse_args().steps
    if "RANK" in os.environ:  # torchrun has started this process
        train(steps)
    else:
        processes = torch.cuda.device_count() or 2
        torchrun(["--standalone", f"--nproc-per-node={processes}", __file__, f"--steps={steps}"])


if __name__ == "__main__":
    main()
