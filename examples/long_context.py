"""Trains a small GPT on sequences whose rows lie on several processes, and compares its losses with those of one.

    python examples/long_context.py      # a process for each GPU, or two on the CPU; torchrun works as well

The attention is causal, with a window and learned slopes (`SPEC`). Each process holds some rows of every sequence, as
`attngen.distributed` lays them out; keys and values travel to the queries that may see them, and to no others. FSDP2
shards the weights over the same processes, and adds up gradients, those of the slopes too. With `--batches 2`, half of
the processes have other sequences than the other half (a mesh of 2 dimensions). First the first process trains alone.
The script ends with status 1 if the losses part. Needs torch and triton.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.run import main as torchrun
from torch.nn import functional as F

import attngen
from attngen.distributed import context_parallel

HERE = Path(__file__).resolve().parent
SPEC = """
attention near_alibi
const window = 4096
param slope: f32[Hq]
score = qk * scale - slope[h] * distance
mask = 0 <= distance < window
"""
Attend = Callable[..., Tensor]


class Block(nn.Module):
    def __init__(self, dim: int, heads: int):
        super().__init__()
        self.heads = heads
        self.slope = nn.Parameter(2.0 ** (-8.0 * torch.arange(1, heads + 1) / heads))
        self.before_attention, self.before_mlp = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.project = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x: Tensor, attend: Attend) -> Tensor:
        qkv = self.qkv(self.before_attention(x)).chunk(3, -1)
        q, k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in qkv)
        x = x + self.project(attend(q, k, v, slope=self.slope).transpose(1, 2).flatten(2))
        return x + self.mlp(self.before_mlp(x))


class GPT(nn.Module):
    """Knows positions from ALiBi alone, so it works on any rows of a sequence."""

    def __init__(self, characters: int, dim: int, heads: int, layers: int):
        super().__init__()
        self.embed = nn.Embedding(characters, dim)
        self.blocks = nn.ModuleList(Block(dim, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, characters, bias=False)

    def forward(self, tokens: Tensor, targets: Tensor, attend: Attend) -> Tensor:
        """The sum of the losses of all tokens."""
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x, attend)
        return F.cross_entropy(self.head(self.norm(x)).float().flatten(0, 1), targets.flatten(), reduction="sum")


def sonnets() -> tuple[Tensor, int]:
    """The text as numbers, and how many different characters there are."""
    lines = (HERE / "data" / "sonnets.txt").read_text(encoding="utf-8").splitlines()
    text = "\n".join(line for line in lines if not line.startswith("#")).strip()
    alphabet = {c: i for i, c in enumerate(sorted(set(text)))}
    return torch.tensor([alphabet[c] for c in text]), len(alphabet)


def drawn(text: Tensor, count: int, length: int, step: int) -> tuple[Tensor, Tensor]:
    """Tokens (count, length) and those that follow them: the same for all processes."""
    starts = torch.randint(len(text) - length, (count,), generator=torch.Generator().manual_seed(step)).tolist()
    rows = torch.stack([text[i : i + length + 1] for i in starts])
    return rows[:, :-1], rows[:, 1:]


def train(steps: int, batches: int) -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if device == "cuda" else "gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    mesh = dist.init_device_mesh(device, (batches, world // batches), mesh_dim_names=("batch", "context"))
    text, characters = sonnets()
    length, dim, heads, layers = (75, 32, 2, 2) if device == "cpu" else (16_000, 512, 8, 8)
    rate, tokens_in_all = 3e-3 if device == "cpu" else 3e-4, batches * length

    def fresh() -> GPT:
        torch.manual_seed(0)
        return GPT(characters, dim, heads, layers).to(device)

    kernel = attngen.compile(SPEC, **({"window": 16} if device == "cpu" else {}))

    alone: list[float] = []
    if rank == 0:
        model = fresh()
        optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
        for step in range(steps):
            tokens, targets = (x.to(device) for x in drawn(text, batches, length, step))
            loss = model(tokens, targets, kernel) / tokens_in_all
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            alone.append(loss.item())

    here = context_parallel(kernel, mesh["context"], param_gradients="own").over(length)
    model = fresh()
    everybody = mesh["batch", "context"]._flatten("everybody")
    for block in model.blocks:
        fully_shard(block, mesh=everybody)
    fully_shard(model, mesh=everybody)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    apart = 0.0
    for step in range(steps):
        own = mesh.get_local_rank("batch")
        tokens, targets = (here.shard(x[own : own + 1].to(device), 1) for x in drawn(text, batches, length, step))
        loss = model(tokens, targets, here) / tokens_in_all
        (loss * world).backward()  # FSDP takes the mean over processes, and each has a part of the sum
        optimizer.step()
        optimizer.zero_grad()
        total = loss.detach()
        dist.all_reduce(total)
        if rank == 0:
            apart = max(apart, abs(total.item() - alone[step]))
            print(f"step {step + 1:3} of {steps}   loss {total.item():.4f}   alone {alone[step]:.4f}", flush=True)
    if rank == 0:
        received = here.schedule.received(here.schedule.groups - 1)
        rows = f"{length} rows on {world // batches} processes, of which the last receives {received}"
        print(f"{world} processes; {rows}; losses differ from those of one process by {apart:.1e} at most", flush=True)
    dist.barrier()
    if not apart <= 1e-3:
        raise SystemExit("the losses must be those of one process")
    if device == "cpu":
        os._exit(0)  # at the interpreter's own end, gloo's threads abort the process now and then
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--batches", type=int, default=1, help="groups of processes with other sequences")
    parser.add_argument("--processes", type=int, default=torch.cuda.device_count() or 2)
    a = parser.parse_args()
    if "RANK" in os.environ:  # torchrun has started this process
        train(a.steps, a.batches)
    else:
        options = [f"--steps={a.steps}", f"--batches={a.batches}"]
        torchrun(["--standalone", f"--nproc-per-node={a.processes}", __file__, *options])


if __name__ == "__main__":
    main()
