"""Two processes: DTensors cut along batches and heads, and a module of FSDP2."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
import torch.multiprocessing as mp

import attngen
from attngen import api
from attngen.errors import Source, UsageError
from attngen.ir.axes import AXES, cut_params

TILTED = (
    "attention tilted\nparam slope: f32[Hq]\nparam shift: f32[B]\nparam bias: f32[Sk]\n"
    "param tilt: f32[B, Hq]\nlet of_key = shift[b] * float(k) + bias[k] + tilt[b, h] * float(k)\n"
    "score = qk * scale - slope[h] * float(q - k) + of_key\nmask = causal\n"
)


def begin(rank: int, folder: str) -> None:
    os.environ["TRITON_INTERPRET"] = "1"
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)


def end() -> None:
    """Without the interpreter's end, in which gloo's threads abort the process now and then."""
    torch.distributed.barrier()
    os._exit(0)


def done(folder: str, part: str) -> None:
    Path(folder, f"done {part}").touch()


def cut_calls(rank: int, folder: str) -> None:
    from attngen.integrations import dtensor

    begin(rank, folder)
    kernel = attngen.compile(TILTED, tile=(16, 16))
    dtensor.register(kernel)
    for axis in ("batches", "heads"):
        cut_call(kernel, axis)
        done(folder, f"{axis} {rank}")
    end()


def cut_call(kernel: attngen.Kernel, axis: str) -> None:
    from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor, init_device_mesh

    generator = torch.Generator().manual_seed(3)
    shapes = {"q": (2, 4, 20, 16), **dict.fromkeys("kv", (2, 2, 20, 16)), "slope": (4,), "shift": (2,), "bias": (20,)}
    shapes["tilt"] = (1, 4)
    plain = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    mesh = init_device_mesh("cpu", (2,))
    rows = Shard(0 if axis == "batches" else 1)
    where = {**dict.fromkeys(shapes, Replicate()), **dict.fromkeys("qkv", rows)}
    where["shift" if axis == "batches" else "slope"] = Shard(0)
    where["tilt"] = Replicate() if axis == "batches" else Shard(1)  # its batch of size 1 is that of all
    spread = {n: distribute_tensor(x, mesh, [where[n]]).requires_grad_() for n, x in plain.items()}
    out = kernel(**spread)
    assert out.placements == (rows,)
    out.square().sum().backward()
    assert spread["q"].grad.placements == (rows,) and spread["q"].to_local().shape != plain["q"].shape
    assert spread["bias"].grad.placements in ((Partial(),), (Replicate(),))
    for sequences in (kernel, kernel.varlen):
        with pytest.raises(UsageError, match=r"DTensors are taken by dense calls alone: .* x\.to_local\(\)"):
            sequences(**spread, k_stop=torch.tensor([20, 20]))
    found = [out, *(x.grad for x in spread.values())]
    leaves = {n: x.requires_grad_() for n, x in plain.items()}
    alone = kernel(**leaves)
    wanted = [alone, *torch.autograd.grad(alone.square().sum(), [*leaves.values()])]
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a.full_tensor(), b, rtol=1e-4, atol=1e-4)


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = torch.nn.Linear(32, 96), torch.nn.Linear(32, 32)
        self.slope = torch.nn.Parameter(torch.tensor([0.1, 0.2]))
        text = "attention sloped\nparam slope: f32[Hq]\nscore = qk * scale - slope[h] * float(q - k)\nmask = causal\n"
        self.attend = attngen.compile(text, tile=(16, 16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (y.unflatten(-1, (2, 16)).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))
        return self.out(self.attend(q, k, v, slope=self.slope).transpose(1, 2).flatten(2))


def fsdp_step(rank: int, folder: str) -> None:
    from torch.distributed.fsdp import fully_shard

    begin(rank, folder)
    x = torch.randn(2, 20, 32, generator=torch.Generator().manual_seed(5))
    gradients = []
    for cut in (False, True):
        torch.manual_seed(1)
        module = Block()
        if cut:
            fully_shard(module, mesh=torch.distributed.init_device_mesh("cpu", (2,)))
        own = x[rank : rank + 1] if cut else x
        for _ in range(2):
            module.zero_grad()
            module(own).square().mean().backward()
        found = [p.grad for p in module.parameters()]
        gradients.append([g.full_tensor() if cut else g for g in found])
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)
    done(folder, f"{rank}")
    end()


def test_dtensors_are_cut_along_batches_and_heads(tmp_path: Path) -> None:
    mp.spawn(cut_calls, (str(tmp_path),), nprocs=2)
    assert len([*tmp_path.glob("done *")]) == 4


def test_a_module_of_fsdp2_has_its_gradients(tmp_path: Path) -> None:
    mp.spawn(fsdp_step, (str(tmp_path),), nprocs=2)
    assert len([*tmp_path.glob("done *")]) == 2


@pytest.mark.parametrize(
    ("lines", "batches", "heads"),
    [
        ("param t: f32[Hq]\nscore = qk + t[h]", {}, {"t": 0}),
        ("param t: f32[Hkv, B]\nscore = qk + t[hkv, b]", {"t": 1}, {"t": 0}),
        ("param t: f32[Hq]\nscore = qk + t[h // 2]", {}, None),
        ("param t: f32[N]\nscore = qk + t[h % N]", {}, None),
        ("mask = b == 0 or k <= q", None, {}),
        ("mask = h < Hq // 2 or k <= q", {}, None),
        ("param t: f32[Hq]\nscore = qk + t[0]\nassume Hq >= 1", {}, None),
        ("dropout = 0.5", {}, {}),
    ],
)
def test_what_may_be_cut(lines: str, batches: dict[str, int] | None, heads: dict[str, int] | None) -> None:
    spec = api.analyse(Source(f"attention a\n{lines}\n"))
    assert [cut_params(spec, axis) for axis in AXES] == [batches, heads]


def test_other_targets_take_no_dtensors() -> None:
    from attngen.integrations import dtensor

    with pytest.raises(UsageError, match="kernels for target triton, not for torch"):
        dtensor.register(attngen.compile("attention a\n", "torch"))
