"""Context parallelism on the GPUs of one host: TFLOP/s a card as a share of one card's own on half the work.

    python benchmarks/context.py prepare DIR              # where attngen is: compiles and pickles what is measured
    python benchmarks/context.py run --kernels DIR -o context.json        # where the GPUs are

Each cell runs attngen's ring and gather, and beside them ring-flash-attn's zigzag over FlashAttention 4 (causal; where
both are on PYTHONPATH) and torch's own context parallelism over FlexAttention, forward and backward, with NCCL. "One
card" is the plain kernel over the same sequence with half the heads, on every card at once. Results are compared with
it first. The GPUs' machine needs torch and triton. Times are the slowest rank's; bytes are those of K and V that the
schedule sends in a forward pass.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import pickle
import statistics
import sys
import time
import types
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # this checkout's attngen, installed or not

WINDOW, PREFIX, MEAN = 4096, 8192, 6000
SPECS = {
    "causal": "attention causal_cp\nmask = causal\n",
    "window": f"attention window_cp\nmask = 0 <= distance < {WINDOW}\n",
    "prefix": f"attention prefix_cp\nmask = causal or k < {PREFIX}\n",
}
KERNEL_OF = {"causal": "causal", "window": "window", "documents": "causal", "prefix": "prefix"}


@dataclass(frozen=True)
class Cell:
    mask: str
    tokens: int
    heads: tuple[int, int]

    @property
    def key(self) -> str:
        return f"{self.mask}-{self.tokens}-{self.heads[0]}/{self.heads[1]}"

    def offsets(self) -> list[int]:
        """Where documents begin: lengths of a log-normal distribution, the mean 6,000 tokens."""
        import numpy as np

        lengths = np.random.default_rng(0).lognormal(0.0, 1.2, 4 * self.tokens // MEAN + 8)
        lengths = np.maximum(1, lengths / lengths.mean() * MEAN).astype(int)
        ends = [0, *(int(n) for n in np.cumsum(lengths) if n < self.tokens), self.tokens]
        return ends

    def pairs(self) -> int:
        """Allowed pairs of a head."""
        n = self.tokens
        match self.mask:
            case "window":
                return WINDOW * n - WINDOW * (WINDOW - 1) // 2
            case "prefix":
                return n * (n + 1) // 2 + PREFIX * (PREFIX - 1) // 2
            case "documents":
                ends = self.offsets()
                return sum((b - a) * (b - a + 1) // 2 for a, b in pairwise(ends))
            case _:
                return n * (n + 1) // 2


CELLS = [Cell(m, n, h) for h in ((32, 8), (64, 8)) for n in (32768, 131072) for m in KERNEL_OF]
CELLS += [Cell(m, 262144, (32, 8)) for m in KERNEL_OF]
D = 128


def small(ranks: int) -> list[Cell]:
    """What warms caches, all masks side by side: one card alone takes a share of the heads."""
    return [Cell(m, 131072, (4 * ranks, ranks)) for m in KERNEL_OF]


# ---------------------------------------------------------------- kernels


def prepare(directory: Path) -> None:
    import attngen

    directory.mkdir(parents=True, exist_ok=True)
    for name, text in SPECS.items():
        kernel = attngen.compile(text, target="triton", geometry=("dense", "packed"))
        for each in (False, True):
            kernel.piece(each=each)
        pieces = {of: (piece, replace(own, proof=None)) for of, (piece, own) in kernel.__dict__["_pieces"].items()}
        with open(directory / f"{name}.pickle", "wb") as file:
            pickle.dump((replace(kernel, proof=None), pieces), file)  # the GPU's machine may have no z3


@cache
def loaded(directory: Path, name: str) -> Any:
    with open(directory / f"{name}.pickle", "rb") as file:
        kernel, pieces = pickle.load(file)
    kernel.__dict__["_pieces"] = pieces
    return kernel


# ---------------------------------------------------------------- contenders


@dataclass(frozen=True)
class Way:
    """How to compute a cell's attention: `attend` on local q, k, v (they require gradients), cut out of whole tensors
    by `cut`; `order` says which rows of the whole the local ones are."""

    attend: Callable[[Any, Any, Any], Any]
    cut: Callable[[Any], Any]
    tensors: tuple[Any, Any, Any]
    sent: int = 0
    """Bytes that this rank receives in a forward pass."""
    least: int = 0


def of_attngen(cell: Cell, whole: tuple[Any, Any, Any], kernel: Any, exchange: Any) -> Way:
    import torch

    from attngen.distributed import context_parallel

    attend = context_parallel(kernel, None, exchange=exchange)
    packed = cell.mask == "documents"
    here = attend.over(cu_seqlens=cell.offsets()) if packed else attend.over(cell.tokens)

    def cut(x: Any) -> Any:
        return here.shard(x[0].transpose(0, 1), 0).contiguous() if packed else rows_outside(here.shard(x, 2))

    rank = torch.distributed.get_rank()
    a_row = cell.heads[1] * 2 * D * 2
    return Way(
        here,
        cut,
        tuple(cut(x) for x in whole),
        sent=here.schedule.received(rank) * a_row,
        least=least_rows(kernel, here.schedule, rank) * a_row,
    )


def rows_outside(x: Any) -> Any:
    """(B, H, S, D), in memory (B, S, H, D), as models have it."""
    return x.transpose(1, 2).contiguous().transpose(1, 2)


def least_rows(kernel: Any, schedule: Any, rank: int) -> int:
    """Rows of keys that some query of the rank may see and that it does not hold."""
    import numpy as np

    from attngen.visits import Case, stretches

    ends = schedule.sequences
    seen = np.zeros(ends.k[-1] + 1, np.int64)
    for start, stop in schedule.q_layout.stretches[rank]:
        for b in range(ends.count):
            low, high = max(start, ends.q[b]), min(stop, ends.q[b + 1])
            if low < high:
                found = stretches(
                    kernel, np.arange(low - ends.q[b], high - ends.q[b]), Case(sizes=ends.sizes(b), params={})
                )
                lows, highs = (x.reshape(-1) + ends.k[b] for x in found)
                np.add.at(seen, lows, 1)
                np.add.at(seen, highs, -1)
    needed = np.cumsum(seen)[:-1] > 0
    for start, stop in schedule.k_layout.stretches[rank]:
        needed[start:stop] = False
    return int(needed.sum())


def headtail(x: Any, dim: int) -> Any:
    """This rank's rows of the zigzag layout."""
    import torch
    import torch.distributed as dist

    parts = x.chunk(2 * dist.get_world_size(), dim)
    rank = dist.get_rank()
    return torch.cat([parts[rank], parts[len(parts) - 1 - rank]], dim).contiguous()


def of_zigzag(cell: Cell, whole: tuple[Any, Any, Any]) -> Way:
    """ring-flash-attn's zigzag, whose calls of FlashAttention 2 go to FlashAttention 4."""
    shim()
    package: Any = types.ModuleType("ring_flash_attn")  # its own imports more than is needed
    package.__path__ = [str(Path(p) / "ring_flash_attn") for p in sys.path]
    sys.modules.setdefault("ring_flash_attn", package)
    from ring_flash_attn.zigzag_ring_flash_attn import zigzag_ring_flash_attn_func

    def cut(x: Any) -> Any:
        return headtail(x.transpose(1, 2), 1)

    def attend(q: Any, k: Any, v: Any) -> Any:
        return zigzag_ring_flash_attn_func(q, k, v, causal=True)

    return Way(attend, cut, tuple(cut(x) for x in whole))


def shim() -> None:
    """The two functions of flash-attn 2 that ring-flash-attn calls, by FlashAttention 4."""
    if "flash_attn.flash_attn_interface" in sys.modules:
        return
    from flash_attn.cute.interface import _flash_attn_bwd, _flash_attn_fwd

    def forward(
        q: Any, k: Any, v: Any, dropout_p: float = 0.0, softmax_scale: Any = None, causal: bool = False,
        window_size_left: int = -1, window_size_right: int = -1, softcap: float = 0.0, alibi_slopes: Any = None,
        return_softmax: bool = False,
    ) -> Any:  # fmt: skip
        out, lse, *_ = _flash_attn_fwd(q, k, v, softmax_scale=softmax_scale, causal=causal, return_lse=True)
        return out, lse, None, None

    def backward(
        dout: Any, q: Any, k: Any, v: Any, out: Any, softmax_lse: Any, dq: Any, dk: Any, dv: Any,
        dropout_p: float = 0.0, softmax_scale: Any = None, causal: bool = False, window_size_left: int = -1,
        window_size_right: int = -1, softcap: float = 0.0, alibi_slopes: Any = None, deterministic: bool = False,
        rng_state: Any = None,
    ) -> None:  # fmt: skip
        found = _flash_attn_bwd(
            q, k, v, out, dout, softmax_lse, softmax_scale=softmax_scale, causal=causal, dq=dq, dk=dk, dv=dv
        )
        for own, g in zip((dq, dk, dv), found, strict=False):
            if own.data_ptr() != g.data_ptr():
                own.copy_(g)

    made: Any = types.ModuleType("flash_attn.flash_attn_interface")
    made._flash_attn_forward, made._flash_attn_backward = forward, backward
    made._flash_attn_varlen_forward, made._flash_attn_varlen_backward = forward, backward
    sys.modules["flash_attn.flash_attn_interface"] = made


def of_torch(cell: Cell, whole: tuple[Any, Any, Any]) -> Way:
    """torch's context parallelism as its module wrapper does it: K and V gathered, FlexAttention with a mask of rows
    that its head-tail balancer has rearranged."""
    import torch
    import torch.distributed as dist
    from torch.distributed.tensor.experimental._context_parallel._cp_custom_ops import flex_cp_allgather
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    n, own = cell.tokens, cell.tokens // dist.get_world_size()
    ids = torch.zeros(n, dtype=torch.int32, device="cuda")
    ids[torch.tensor(cell.offsets()[1:-1], device="cuda")] = 1
    ids = ids.cumsum(0)
    masks = {
        "causal": lambda q, k: q >= k,
        "window": lambda q, k: (q >= k) & (q - k < WINDOW),
        "prefix": lambda q, k: (q >= k) | (k < PREFIX),
        "documents": lambda q, k: (q >= k) & (ids[q] == ids[k]),
    }
    parts, ranks = torch.arange(n, device="cuda").chunk(2 * dist.get_world_size()), dist.get_world_size()
    order = torch.cat([x for r in range(ranks) for x in (parts[r], parts[-1 - r])])
    first = dist.get_rank() * own

    def allowed(b: Any, h: Any, q: Any, k: Any) -> Any:
        return masks[cell.mask](order[q + first], order[k])

    torch._dynamo.reset()  # else it stops compiling after eight shapes
    torch._functorch.config.donated_buffer = False  # a backward pass is timed over a kept graph
    mask = torch.compile(create_block_mask)(allowed, 1, 1, own, n)
    flex = torch.compile(flex_attention, dynamic=False)
    group = dist.distributed_c10d._get_process_group_name(dist.group.WORLD)

    def attend(q: Any, k: Any, v: Any) -> Any:
        k, v = flex_cp_allgather(k, v, 2, group)
        return flex(q, k, v, block_mask=mask, enable_gqa=True)

    def cut(x: Any) -> Any:
        return headtail(x, 2)

    return Way(attend, cut, tuple(cut(x) for x in whole))


def of_one_card(cell: Cell, whole: tuple[Any, Any, Any], kernel: Any) -> Way:
    """Half the heads of the whole sequence."""
    import torch

    world = torch.distributed.get_world_size()
    packed = cell.mask == "documents"

    def cut(x: Any) -> Any:
        x = x[:, : x.shape[1] // world]
        return x[0].transpose(0, 1).contiguous() if packed else rows_outside(x)

    if not packed:
        return Way(kernel, cut, tuple(cut(x) for x in whole))
    ends = torch.tensor(cell.offsets(), dtype=torch.int32, device="cuda")

    def attend(q: Any, k: Any, v: Any) -> Any:
        return kernel.varlen(q, k, v, cu_seqlens_q=ends)

    return Way(attend, cut, tuple(cut(x) for x in whole))


# ---------------------------------------------------------------- measuring


def measure(cell: Cell, directory: Path, names: list[str], reps: float) -> dict[str, Any]:
    import torch
    import torch.distributed as dist

    torch.manual_seed(0)
    sizes = [(1, h, cell.tokens, D) for h in (cell.heads[0], cell.heads[1], cell.heads[1], cell.heads[0])]
    *whole, d_out = (torch.randn(s, device="cuda", dtype=torch.bfloat16) for s in sizes)
    kernel = loaded(directory, KERNEL_OF[cell.mask])
    makers: dict[str, Callable[[], Way]] = {
        "one card": lambda: of_one_card(cell, tuple(whole), kernel),
        "ring": lambda: of_attngen(cell, tuple(whole), kernel, "ring"),
        "gather": lambda: of_attngen(cell, tuple(whole), kernel, "gather"),
        "zigzag": lambda: of_zigzag(cell, tuple(whole)),
        "torch": lambda: of_torch(cell, tuple(whole)),
    }
    found: dict[str, Any] = {}
    flops = 4 * cell.pairs() * cell.heads[0] * D / dist.get_world_size()
    sums: dict[str, Any] = {}
    for name in names:
        if name == "zigzag" and cell.mask != "causal":
            continue
        try:
            way = makers[name]()
            found[name] = timed(way, way.cut(d_out), flops, reps)
        except MISTAKES as error:
            found[name] = {"failure": f"{type(error).__name__}: {error}"[:400]}
            if dist.get_rank() == 0:
                print(f"{cell.key} {name}: {found[name]['failure']}", flush=True)
        if name != "one card" and "failure" not in found[name]:
            sums[name] = total_of(way, way.cut(d_out))
            if name in ("ring", "gather"):
                found[name] |= {"bytes": slowest(way.sent), "least": slowest(way.least)}
            del way
        gc.collect()
        torch.cuda.empty_cache()
    rows = cell.tokens * (dist.get_world_size() - 1) // dist.get_world_size()
    found["gather all"] = {"bytes": rows * cell.heads[1] * 2 * D * 2}
    if len(sums) > 1:
        found["agree"] = agreement(sums)
    return found


MISTAKES = (RuntimeError, ValueError, TypeError, AssertionError, ImportError, AttributeError, NotImplementedError)


def total_of(way: Way, d_out: Any) -> list[float]:
    """What all ways must agree in: sums of squares of out, dq, dk, dv over all ranks."""
    import torch
    import torch.distributed as dist

    tensors = [x.detach().requires_grad_() for x in way.tensors]
    out = way.attend(*tensors)
    slopes = torch.autograd.grad(out, tensors, d_out)
    sums = torch.stack([x.float().square().sum(dtype=torch.float64) for x in (out, *slopes)])
    dist.all_reduce(sums)
    return sums.tolist()


def agreement(sums: dict[str, list[float]]) -> float:
    """The greatest relative difference of these sums."""
    columns = list(zip(*sums.values(), strict=True))
    return max((max(c) / min(c) - 1 for c in columns), default=0.0)


def timed(way: Way, d_out: Any, flops: float, reps: float) -> dict[str, Any]:
    import torch

    tensors = [x.detach().requires_grad_() for x in way.tensors]

    def forward() -> Any:
        return way.attend(*tensors)

    out = forward()

    def backward() -> Any:
        torch.autograd.grad(out, tensors, d_out, retain_graph=True)

    f_ms = seconds(forward, reps) * 1e3
    b_ms = seconds(backward, reps) * 1e3
    return {
        "forward_ms": round(f_ms, 4), "backward_ms": round(b_ms, 4),
        "forward_tflops": round(flops / f_ms / 1e9, 1), "backward_tflops": round(2.5 * flops / b_ms / 1e9, 1),
        "memory_gb": round(slowest(torch.cuda.max_memory_allocated()) / 1e9, 2),
    }  # fmt: skip


def seconds(call: Callable[[], Any], reps: float) -> float:
    """Of one call, the slowest rank's: the median of several rows of calls, as a model's layers make them, ranks
    starting together."""
    import torch
    import torch.distributed as dist

    for _ in range(2):
        call()
    torch.cuda.synchronize()
    begin = time.perf_counter()
    call()
    torch.cuda.synchronize()
    once = slowest(time.perf_counter() - begin)
    calls = 4 if once < 0.05 else 1
    times = []
    for _ in range(max(3, min(30, int(reps / once / calls)))):
        dist.barrier()
        torch.cuda.synchronize()
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(2_000_000)  # about a millisecond: the first call is queued before it begins
        start.record()
        for _ in range(calls):
            call()
        stop.record()
        torch.cuda.synchronize()
        times.append(slowest(start.elapsed_time(stop) / calls / 1e3))
    return statistics.median(times)


def slowest(x: float) -> float:
    import torch
    import torch.distributed as dist

    found = torch.tensor([x], dtype=torch.float64, device="cuda")
    dist.all_reduce(found, dist.ReduceOp.MAX)
    return float(found.item())


# ---------------------------------------------------------------- ranks


def on_ranks(rank: int, ranks: int, port: int, cells: list[Cell], args: Any, share: bool) -> None:
    import torch
    import torch.distributed as dist

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=ranks, device_id=torch.device("cuda", rank))
    results = {}
    begin = time.perf_counter()
    for cell in cells:
        if not share and slowest(time.perf_counter() - begin) > args.budget:
            break
        results[cell.key] = measure(cell, Path(args.kernels), args.ways.split(","), 0.0 if share else args.rep)
        if rank == 0 and not share:
            print(cell.key, json.dumps(results[cell.key]), flush=True)
            write(args.output, results)
    dist.barrier()
    dist.destroy_process_group()


def write(path: str, results: dict[str, Any]) -> None:
    import torch

    from attngen.files import json_rows

    before = json.loads(Path(path).read_text(encoding="utf-8"))["cells"] if Path(path).exists() else {}
    results = {**before, **{key: {**before.get(key, {}), **found} for key, found in results.items()}}
    machine = f"{torch.cuda.device_count()} x {torch.cuda.get_device_name()}, torch {torch.__version__}"
    report = {"machine": machine, "command": "python benchmarks/context.py run", "cells": results}
    Path(path).write_text(json_rows(report), encoding="utf-8")


def run(args: Any) -> None:
    import torch

    begin = time.perf_counter()
    if not args.cold:
        made = [
            torch.multiprocessing.spawn(
                on_ranks, (args.ranks, 29600 + i, [cell], args, True), nprocs=args.ranks, join=False
            )
            for i, cell in enumerate(small(args.ranks))
        ]
        for context in made:
            while not context.join():
                pass
        print(f"caches are warm after {time.perf_counter() - begin:.0f} s", flush=True)
    cells = [c for c in CELLS if not args.only or any(word in c.key for word in args.only.split(","))]
    torch.multiprocessing.spawn(on_ranks, (args.ranks, 29700, cells, args, False), nprocs=args.ranks)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    own = commands.add_parser("prepare")
    own.add_argument("directory", type=Path)
    own = commands.add_parser("run")
    own.add_argument("--kernels", required=True)
    own.add_argument("--ranks", type=int, default=2)
    own.add_argument("--ways", default="one card,ring,gather,zigzag,torch")
    own.add_argument("--only", default="", help="words of which a cell's key must contain one")
    own.add_argument("--rep", type=float, default=0.4, help="seconds for each measurement")
    own.add_argument("--budget", type=float, default=1e9, help="seconds after which no cell is begun")
    own.add_argument("--cold", action="store_true", help="warm no caches first")
    own.add_argument("-o", "--output", default="context.json")
    args = parser.parse_args()
    prepare(args.directory) if args.command == "prepare" else run(args)


if __name__ == "__main__":
    main()
