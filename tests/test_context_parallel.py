"""Attention over sequences whose rows lie on several processes (gloo): forward and all gradients equal to one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import attngen

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
TILE = (16, 16)


@dataclass(frozen=True)
class Case:
    spec: str
    rows: int = 61
    cu: tuple[int, ...] | None = None
    exchange: str = "ring"
    layout: str = "auto"
    mesh: tuple[int, int] | None = None
    heads: tuple[int, int] = (4, 2)
    over: tuple[str, ...] = ()
    """Params that every rank knows on the host."""


OWN = {
    "sink by head": "attention s\nparam sink: f32[Hq]\nmask = causal\nnormalizer = softmax(sink = sink[h])\n",
    "biased by row": (
        "attention r\nparam column: f32[B, Sk]\nparam row: f32[Sq]\n"
        "score = qk * scale + column[b, k] * row[q]\nmask = causal\n"
    ),
    "by everything": (
        "attention e\nparam slope: f32[Hq]\nparam key: f32[B, Hq, Sk]\nparam shift: f32[B]\n"
        "score = qk * scale - slope[h] * float(q - k) + key[b, h, k] * shift[b]\nmask = 0 <= q - k < 30\n"
    ),
    "by kv head": "attention g\nparam slope: f32[Hkv]\nscore = qk * scale - slope[hkv] * float(q - k)\nmask = causal\n",
    "by sequence": (
        "attention y\nparam slope: f32[Hq]\nparam shift: f32[B]\n"
        "score = qk * scale - slope[h] * float(q - k) * shift[b]\nmask = causal\n"
    ),
}
CU = (0, 9, 9, 38, 40, 61)


def cases(ranks: int) -> Iterator[Case]:
    yield Case("causal")
    yield Case("alibi", exchange="gather", layout="headtail")
    yield Case("sink by head", cu=CU)
    yield Case("by everything", cu=CU, layout="headtail", exchange="gather")
    yield Case("by everything", exchange="heads", layout="headtail")
    yield Case("by kv head", exchange="heads")
    yield Case("sigmoid", exchange="heads", cu=CU)
    if ranks == 4:
        yield Case("by everything", mesh=(2, 2), cu=CU)
        yield Case("alibi", mesh=(2, 2), exchange="gather")
        yield Case("by sequence", cu=CU, layout="contiguous")
        yield Case("sliding_window", cu=CU, layout="headtail")
        yield Case("documents", over=("ids",))
        yield Case("prefix_lm", over=("prefix",), heads=(2, 1))
        yield Case("biased by row", layout="headtail")


@cache
def compiled(spec: str) -> attngen.Kernel:
    text = OWN.get(spec) or (EXAMPLES / f"{spec}.attn").read_text().replace("window = 1024", "window = 11")
    return attngen.compile(text, tile=TILE)


def made(case: Case) -> dict[str, Any]:
    """The whole tensors, and what one process makes of them."""
    kernel = compiled(case.spec)
    Hq, Hkv = case.heads
    generator = torch.Generator().manual_seed(1)
    shapes = {"q": (2, Hq, case.rows, 16), "k": (2, Hkv, case.rows, 16), "v": (2, Hkv, case.rows, 12)}
    x = {n: torch.randn(shape, generator=generator) for n, shape in shapes.items()}
    sizes = {"B": 2 if case.cu is None else len(case.cu) - 1, "Hq": Hq, "Hkv": Hkv, "Sq": case.rows, "Sk": case.rows}
    params: dict[str, Any] = {}
    for p in kernel.spec.params:
        names = [getattr(d, "id", "") for d in p.shape]
        if case.cu is not None and {"Sq", "Sk"} & {*names}:
            names.remove("B")
        shape = [sizes[n] for n in names]
        if p.name == "ids":
            params[p.name] = (torch.arange(case.rows) // 17).int().expand(2, -1).contiguous()
        elif not shape:
            params[p.name] = 13 if p.name in ("prefix", "window") else 0.7
        else:
            params[p.name] = torch.rand(shape, generator=generator).requires_grad_()
    if case.cu is not None:
        x = {n: y[0].transpose(0, 1).contiguous() for n, y in x.items()}
    leaves = {n: y.requires_grad_() for n, y in x.items()}
    if case.cu is None:
        out, lse = kernel(**leaves, **params, return_lse=True)
    else:
        cu = torch.tensor(case.cu, dtype=torch.int32)
        out, lse = kernel.varlen(**leaves, **params, cu_seqlens_q=cu, return_lse=True)
    d_out, d_lse = (torch.randn(y.shape, generator=generator) for y in (out, lse))
    learned = {n: p for n, p in params.items() if isinstance(p, torch.Tensor) and p.requires_grad}
    loss = (out * d_out).sum() + (lse * d_lse).masked_fill(lse == float("-inf"), 0.0).sum()
    slopes = torch.autograd.grad(loss, [*leaves.values(), *learned.values()])
    found = dict(zip([*leaves, *learned], slopes, strict=True))
    return {
        "case": case, "x": {n: y.detach() for n, y in leaves.items()}, "params": params, "d_out": d_out, "d_lse": d_lse,
        "out": out.detach(), "lse": lse.detach(), "slopes": found,
    }  # fmt: skip


def check(right: dict[str, Any]) -> None:
    from attngen.distributed.context import context_parallel

    case: Case = right["case"]
    kernel = compiled(case.spec)
    mesh = dist.init_device_mesh("cpu", case.mesh) if case.mesh else None
    attend = context_parallel(kernel, mesh, case.layout, case.exchange)  # type: ignore[arg-type]
    params = {n: p.clone().detach().requires_grad_(p.requires_grad) if isinstance(p, torch.Tensor) else p
              for n, p in right["params"].items()}  # fmt: skip
    host = {n: params.pop(n) for n in case.over}
    where = {"cu_seqlens": case.cu} if case.cu is not None else {"Sq": case.rows}
    here = attend.over(**where, **host)  # type: ignore[arg-type]
    dim = 2 if case.cu is None else 0
    rows_of_lse = 2 if case.cu is None else 1
    local = {n: here.shard(x, dim).requires_grad_() for n, x in right["x"].items()}
    out, lse = here(**local, **params, return_lse=True)
    torch.testing.assert_close(out, here.shard(right["out"], dim), rtol=2e-5, atol=2e-5)
    torch.testing.assert_close(lse, here.shard(right["lse"], rows_of_lse), rtol=2e-5, atol=2e-5)
    torch.testing.assert_close(here.unshard(out, dim), right["out"], rtol=2e-5, atol=2e-5)
    d_out, d_lse = here.shard(right["d_out"], dim), here.shard(right["d_lse"], rows_of_lse)
    loss = (out * d_out).sum() + (lse * d_lse).masked_fill(lse == float("-inf"), 0.0).sum()
    learned = {n: p for n, p in params.items() if isinstance(p, torch.Tensor) and p.requires_grad}
    found = torch.autograd.grad(loss, [*local.values(), *learned.values()])
    for name, g in zip([*local, *learned], found, strict=True):
        wanted = right["slopes"][name]
        wanted = here.shard(wanted, dim) if name in local else wanted
        most = max(1.0, float(wanted.abs().max())) if wanted.numel() else 1.0
        torch.testing.assert_close(g / most, wanted / most, rtol=2e-5, atol=2e-5, msg=lambda m, n=name: f"{n}: {m}")


def worker(rank: int, ranks: int, folder: str, cases: list[dict[str, Any]]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=ranks)
    for right in cases:
        try:
            check(right)
        except BaseException as error:
            raise AssertionError(f"rank {rank}: {right['case']}") from error
    Path(folder, f"done {rank}").touch()
    dist.barrier()
    os._exit(0)


def run(folder: Path, ranks: int, chosen: list[Case]) -> None:
    """Processes are forked, with all kernels compiled."""
    cases = [made(case) for case in chosen]
    for case in chosen:
        for each in {False, case.cu is not None}:
            _ = compiled(case.spec).piece(each=each)[1].function
    mp.start_processes(worker, (ranks, str(folder), cases), nprocs=ranks, start_method="fork")
    assert len([*folder.glob("done *")]) == ranks


@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_add_up_to_one_process(ranks: int, tmp_path: Path) -> None:
    run(tmp_path, ranks, [*cases(ranks)])
