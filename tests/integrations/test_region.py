"""Models inside a region of context parallelism equal themselves in one process, each rank with its own rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from integrations.models import assert_close, gradients, tiny, tokens
from processes import in_processes
from torch.nn import functional as F

from attngen.distributed import context_parallel_region
from attngen.errors import UsageError
from attngen.integrations.torchtitan import VarlenAttention
from attngen.integrations.transformers import register

register("attngen_region")
LENGTH = 37
CU = (0, 5, 5, 23, 37)
ALIBI = "attention tilted\nparam slope: f32[Hq]\nscore = qk * scale - slope[h] * float(q - k)\nmask = 0 <= q - k < 9\n"


def loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum") / targets.shape[0] / LENGTH


def of_model(model: Any, x: torch.Tensor, right: dict[str, torch.Tensor], checkpoints: bool) -> None:
    model.set_attn_implementation("attngen_region")
    if checkpoints:
        model.train().gradient_checkpointing_enable({"use_reentrant": False})
    with context_parallel_region(Sq=LENGTH, param_gradients="own") as region:
        own, targets = region.shard(x, 1), region.shard(x.roll(-1, 1), 1)
        positions = region.positions()[None].expand_as(own)
        with torch.no_grad():  # the first call of a kernel lays its rows out, outside of the graph
            compiled = torch.compile(model, backend="aot_eager")(own, position_ids=positions, use_cache=False).logits
            eager = model(own, position_ids=positions, use_cache=False).logits
        torch.testing.assert_close(compiled, eager, rtol=0, atol=2e-5)
        with pytest.raises(UsageError, match=r"position_ids count this rank's rows from 0: pass position_ids=region"):
            model(own, use_cache=False)
        with (  # where the first rank's rows are counted from 0, it refuses what the others do
            context_parallel_region(Sq=LENGTH, layout="contiguous") as inner,
            pytest.raises(UsageError, match="count this rank's rows from 0"),
        ):
            model(inner.shard(x, 1), use_cache=False)
        found = gradients(model, lambda m: loss(m(own, position_ids=positions, use_cache=False).logits, targets))
        with pytest.raises(UsageError, match="attention_mask in context_parallel_region"):
            model(own, attention_mask=torch.ones_like(own).tril(), position_ids=positions, use_cache=False)
    for g in found.values():
        dist.all_reduce(g)
    assert_close(found, right)


@pytest.mark.parametrize(("kind", "checkpoints"), [("gpt_oss", False), ("llama", True)])
def test_a_model_of_transformers(kind: str, checkpoints: bool, tmp_path: Path) -> None:
    model, x = tiny(kind), tokens(2, LENGTH)
    right = gradients(model, lambda m: loss(m(x).logits, x.roll(-1, 1)))
    in_processes(tmp_path, 2, of_model, model, x, right, checkpoints)


def of_dropout(model: Any, x: torch.Tensor) -> None:
    model.set_attn_implementation("attngen_region")
    with context_parallel_region(Sq=LENGTH) as region, torch.no_grad():
        own, positions = region.shard(x, 1), region.positions()[None].expand(x.shape[0], -1)

        def logits(seed: int) -> torch.Tensor:
            torch.manual_seed(seed if dist.get_rank() == 0 else 0)  # the first rank draws
            return model(own, position_ids=positions, use_cache=False).logits

        plain = model.eval() and logits(1)
        first, again, other = model.train() and [logits(seed) for seed in (1, 1, 2)]
    assert torch.equal(first, again)
    assert (first - plain).abs().max() > 1e-4 and (first - other).abs().max() > 1e-4


def test_a_model_with_dropout(tmp_path: Path) -> None:
    model = tiny("llama")
    for layer in model.model.layers:
        layer.self_attn.attention_dropout = 0.3
    in_processes(tmp_path, 2, of_dropout, model, tokens(2, LENGTH))


def of_module(module: VarlenAttention, x: list[torch.Tensor], right: dict[str, torch.Tensor]) -> None:
    with context_parallel_region(cu_seqlens=CU, exchange="gather") as region:
        out = module(*(region.shard(y, 0) for y in x))
        slope = torch.autograd.grad(out.square().sum(), module.slope)[0]
        assert_close({"out": region.unshard(out, 0), "slope": slope}, right)
        both = module(*(region.shard(y, 0) for y in x), out_transform=lambda out, lse: out * lse[..., None])
    assert both.shape == out.shape


def test_the_module_for_torchtitan(tmp_path: Path) -> None:
    module = VarlenAttention(ALIBI, {"slope": torch.nn.Parameter(torch.rand(4))})
    x = [torch.randn(LENGTH, heads, 16, generator=torch.Generator().manual_seed(heads)) for heads in (4, 2, 2)]
    out = module.kernel.varlen(*x, slope=module.slope, cu_seqlens_q=torch.tensor(CU, dtype=torch.int32))
    slope = torch.autograd.grad(out.square().sum(), module.slope)[0]
    in_processes(tmp_path, 2, of_module, module, x, {"out": out.detach(), "slope": slope})
