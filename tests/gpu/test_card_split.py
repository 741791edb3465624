"""Short queries on the card: the split walk beside a dense result, its bits, graphs, lengths, and who takes it.

Run with `pytest tests/gpu -m gpu`; the parity suite's own cases of it are in `tests/parity/test_parity_split.py`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

import attngen

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]

EXAMPLES = Path(__file__).parents[2] / "examples"


def module_of(kernel: attngen.Kernel) -> ModuleType:
    return sys.modules[kernel.function.__module__]


def qkv(
    rows: int, columns: int, D: int = 128, *, B: int = 2, dtype: torch.dtype = torch.bfloat16
) -> list[torch.Tensor]:
    generator = torch.Generator("cuda").manual_seed(rows + columns)
    sizes = ((8, rows), (2, columns), (2, columns))
    return [torch.randn(B, h, s, D, generator=generator, device="cuda", dtype=dtype) for h, s in sizes]


def dense(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, slope: torch.Tensor | None = None) -> torch.Tensor:
    """Causal, the last query with the last key, in float64."""
    q, k, v = q.double(), *(x.double().repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    i = torch.arange(q.shape[2], device=q.device)[:, None] + k.shape[2] - q.shape[2]
    j = torch.arange(k.shape[2], device=q.device)
    s = q @ k.mT * q.shape[3] ** -0.5
    s = s if slope is None else s - slope.double()[:, None, None] * (i - j).abs()
    return s.masked_fill(j > i, -torch.inf).softmax(-1) @ v


def splits(kernel: attngen.Kernel) -> list[int]:
    ready = [launches for known in module_of(kernel)._attention.ready.values() for launches in known.forward.values()]
    return [max(getattr(step, "scalars", {}).get("pieces", 0) for step in launches) for launches in ready]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("D", [40, 64, 128, 256])
@pytest.mark.parametrize("rows", [1, 7, 16, 50])
def test_short_queries_are_right_and_split(rows: int, D: int, dtype: torch.dtype) -> None:
    kernel = attngen.compile(EXAMPLES / "causal.attn")
    module_of(kernel)._attention.ready.clear()
    q, k, v = qkv(rows, 3001, D, dtype=dtype)
    found = kernel(q, k, v)
    assert splits(kernel)[0] > 1
    want = dense(q, k, v)
    tolerance = 2e-5 if dtype == torch.float32 else 1e-2
    assert ((found.double() - want).norm() / want.norm()).item() < tolerance


def test_copy_engine_and_pointers_give_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = attngen.compile(EXAMPLES / "alibi.attn")
    module = module_of(kernel)
    q, k, v = qkv(4, 5000)
    slope = torch.rand(8, device="cuda")
    one = kernel(q, k, v, slope=slope)
    want = dense(q, k, v, slope)
    assert ((one.double() - want).norm() / want.norm()).item() < 1e-2
    monkeypatch.setattr(module.host, "has_tma", lambda *_: False)
    module._attention.ready.clear()
    assert torch.equal(kernel(q, k, v, slope=slope), one)
    module._attention.ready.clear()


@pytest.mark.parametrize("example", ["causal", "alibi", "sliding_window"])
def test_every_run_gives_the_same_bits(example: str) -> None:
    kernel = attngen.compile(EXAMPLES / f"{example}.attn")
    params = {"slope": torch.rand(8, device="cuda", requires_grad=True)} if example == "alibi" else {}
    q, k, v = (x.requires_grad_() for x in qkv(3, 4099))

    def run() -> tuple[torch.Tensor, ...]:
        out, lse = kernel(q, k, v, **params, return_lse=True)
        return (out, lse, *torch.autograd.grad(out.float().square().sum() + lse.sum(), (q, k, v, *params.values())))

    first = run()
    for _ in range(50):
        for a, b in zip(first, run(), strict=True):
            assert torch.equal(a, b)


def test_a_new_length_compiles_nothing() -> None:
    kernel = attngen.compile(EXAMPLES / "sliding_window.attn")
    module = module_of(kernel)
    counts = []
    for columns in (2048, 2049, 5000, 30000, 1111, 65536):
        q, k, v = qkv(1, columns)
        kernel(q, k, v)
        kernels = [module._split_kernel, module._merge_kernel]
        counts.append(sum(len(cache[0]) for one in kernels for cache in one.device_caches.values()))
    assert counts[0] > 0
    assert len(set(counts)) == 1, counts


def test_cuda_graph() -> None:
    kernel = attngen.compile(EXAMPLES / "causal.attn")
    q, k, v = qkv(2, 8000)
    expected = kernel(q, k, v)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        kernel(q, k, v)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = kernel(q, k, v)
    for _ in range(3):
        out.zero_()
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(out, expected)


def test_compiled_whole() -> None:
    kernel = attngen.compile(EXAMPLES / "causal.attn")
    q, k, v = qkv(1, 4096)
    function = kernel.function
    found = torch.compile(lambda q, k, v: function(q, k, v) * 2, fullgraph=True)(q, k, v)
    assert torch.equal(found, kernel(q, k, v) * 2)


def test_long_queries_are_not_split() -> None:
    kernel = attngen.compile(EXAMPLES / "causal.attn")
    module_of(kernel)._attention.ready.clear()
    kernel(*qkv(2048, 2048))
    kernel(*qkv(1, 100))
    assert splits(kernel) == [0, 0]
