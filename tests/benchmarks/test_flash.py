"""FlashAttention's layouts and arguments, with functions in plain torch in place of its kernels. On the CPU."""

from __future__ import annotations

import math
import sys
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import decode  # noqa: E402
import flash  # noqa: E402
import grouped  # noqa: E402
import models  # noqa: E402
import packed_cells as cells  # noqa: E402
import shrink  # noqa: E402

WINDOW = 24


def dense(q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False, **options: Any) -> tuple[Tensor, None]:
    """(B, S, H, D), the last query beside the last key; options as FlashAttention 4 has them."""
    q, k, v = (x.transpose(1, 2).float() for x in (q, k, v))
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    score = q @ k.mT / math.sqrt(q.shape[-1])
    if options.get("softcap"):
        score = options["softcap"] * torch.tanh(score / options["softcap"])
    distance = torch.arange(q.shape[2])[:, None] + k.shape[2] - q.shape[2] - torch.arange(k.shape[2])
    seen = distance >= 0 if causal else torch.ones_like(distance, dtype=torch.bool)
    if options.get("window_size"):
        seen = seen & (distance <= options["window_size"][0])
    score = score.masked_fill(~seen, -torch.inf)
    if options.get("learnable_sink") is not None:
        sink = options["learnable_sink"].float()[None, :, None, None].expand(*score.shape[:3], 1)
        weights = torch.cat([score, sink], -1).softmax(-1)[..., :-1]
    else:
        weights = score.softmax(-1)
    return (weights @ v).transpose(1, 2), None


def varlen(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, *_: int, **options: Any
) -> Tensor:
    assert torch.equal(cu_seqlens_q, cu_seqlens_k) and cu_seqlens_q.dtype == torch.int32
    ends = cu_seqlens_q.tolist()
    for longest in (*_, options.pop("max_seqlen_q", 0), options.pop("max_seqlen_k", 0)):
        assert longest in (0, max(b - a for a, b in pairwise(ends)))
    parts = [dense(*(x[start:stop][None] for x in (q, k, v)), **options)[0][0] for start, stop in pairwise(ends)]
    return torch.cat(parts).to(q.dtype)


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    def cached(q: Tensor, k: Tensor, v: Tensor, *, cache_seqlens: Tensor, causal: bool) -> Tensor:
        assert cache_seqlens.tolist() == [k.shape[1]] * k.shape[0]
        return dense(q, k, v, causal=causal)[0].to(q.dtype)

    module = SimpleNamespace(flash_attn_func=dense, flash_attn_varlen_func=varlen, flash_attn_with_kvcache=cached)
    monkeypatch.setattr(flash, "fa3", lambda: module)
    monkeypatch.setattr(flash, "fa4", lambda: module)


@pytest.mark.parametrize("mask", ["causal", "full"])
@pytest.mark.usefixtures("fakes")
def test_dense_tensors(mask: str) -> None:
    cell = models.Cell(mask, 2, 4, 2, 48, 16, 24)
    inputs = grouped.draw(cell.shape, "cpu", torch.float16, 0)
    made = flash.dense_fa3(causal=mask == "causal")
    expected = grouped.truth(cell.shape, cell.formula, inputs, rows=20)
    worst = grouped.errors(cell.shape, inputs, expected, made.attend, backward=False)
    assert set(worst) == {"out"} and worst["out"] < 2e-3
    other = flash.dense_fa3(causal=mask != "causal")
    assert grouped.errors(cell.shape, inputs, expected, other.attend, backward=False)["out"] > 0.1


@pytest.mark.parametrize("variant", cells.VARIANTS)
@pytest.mark.parametrize("peer", [cells.fa3, cells.fa4])
@pytest.mark.usefixtures("fakes")
def test_packed_tensors(peer: Any, variant: str) -> None:
    inputs = cells.inputs_of(cells.Cell(variant, *cells.DRY_SHAPE), "cpu", 0, WINDOW)
    made = peer(inputs)
    if made is None:  # what its package lacks
        assert variant == "alibi" or (peer is cells.fa3 and variant in ("sliding_window", "sink"))
        return
    backward = peer is cells.fa4
    worst = cells.errors(inputs, cells.truth(inputs), made, backward=backward)
    assert len(worst) == (4 if backward else 1) and max(worst.values()) < 2e-3


@pytest.mark.parametrize("variant", ["full", "causal"])
@pytest.mark.usefixtures("fakes")
def test_a_served_cache(variant: str) -> None:
    shape = decode.Shape(variant, 2, 3, 40, 8, 2)
    assert shape.key == f"{variant}:B2:Sq3:Sk40:8/2" and len({s.key for s in decode.SERVED}) == len(decode.SERVED)
    q, k, v = (torch.randn(2, s, h, decode.D).transpose(1, 2) for s, h in ((3, 8), (40, 2), (40, 2)))
    case = decode.Case(shape, (q, k, v), {}, 1024, 50.0)
    torch.testing.assert_close(decode.split_kv(case)(q, k, v), case.dense())


def test_a_peers_library_loses_the_code_of_another_architecture() -> None:
    def entry(arch: int, code: bytes) -> bytes:
        head = bytearray(64)
        shrink.ENTRY.pack_into(head, 0, 2, 257, 64, len(code))
        head[shrink.ARCH_AT : shrink.ARCH_AT + 4] = arch.to_bytes(4, "little")
        return bytes(head) + code

    both = entry(80, b"old " * 8) + entry(90, b"new " * 8)
    library = b"\x7fELF" + shrink.WRAPPER.pack(shrink.MAGIC, 1, 16, len(both)) + both + b"tail"
    found, count = shrink.without_code(library, 80)
    assert count == 1 and len(found) == len(library)
    assert b"old" not in found and found == library.replace(b"old " * 8, bytes(32))
