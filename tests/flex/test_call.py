"""`from_flex` gives kernels to keep, and `flex_attention` stands in for PyTorch's."""

from __future__ import annotations

import copy
import functools
import importlib
import math
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.attention.flex_attention import AuxRequest, BlockMask, create_block_mask

import attngen
from attngen import Refuted, UsageError
from attngen.cli.main import main
from attngen.flex import call
from attngen.flex.blocks import mask_of
from attngen.flex.enclosed import enclosed

slopes = torch.linspace(0.5, 0.1, 4).requires_grad_()


def alibi(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return score - slopes[h] * (q_idx - kv_idx).abs()


def causal(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return q_idx >= kv_idx


def drawn(heads: int = 4, rows: int = 48, columns: int = 48) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    sizes = ((4, rows), (heads, columns), (heads, columns))
    return tuple(torch.randn(2, h, n, 16, generator=generator).requires_grad_() for h, n in sizes)


def dense(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
    """Of `alibi` and `causal`, whose queries and keys both count from 0."""
    k, v = (x.repeat_interleave(4 // x.shape[1], 1) for x in (k, v))
    at, key = torch.arange(q.shape[2])[:, None], torch.arange(k.shape[2])
    score = q @ k.mT / 4 - own[:, None, None] * (at - key).abs()
    return torch.softmax(score.masked_fill(at < key, float("-inf")), -1) @ v


@pytest.mark.parametrize("heads", [4, 2])
def test_a_kernel_has_what_the_functions_captured_and_takes_others(heads: int) -> None:
    kernel = attngen.from_flex(alibi, causal, name="steep")
    q, k, v = drawn(heads)
    found, wanted = kernel(q, k, v), dense(q, k, v, slopes)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    own = torch.autograd.grad(found.square().sum(), [q, k, v, slopes])
    for one, other in zip(own, torch.autograd.grad(wanted.square().sum(), [q, k, v, slopes]), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)
    flat = torch.zeros(4)
    torch.testing.assert_close(kernel(q, k, v, slopes=flat), dense(q, k, v, flat), rtol=1e-4, atol=1e-5)


def test_its_text_is_a_file_to_keep(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "steep.attn"
    path.write_text(attngen.from_flex(alibi, causal, name="steep").text)
    assert main(["check", str(path)]) == 0 and main(["fmt", "--check", str(path)]) == 0
    assert "steep: proved" in capsys.readouterr().out


def test_fewer_queries_than_keys_begin_at_the_first_key() -> None:
    q, k, v = drawn(rows=16)
    found = attngen.flex_attention(q, k, v, alibi, create_block_mask(causal, None, None, 16, 48, "cpu", 16))
    torch.testing.assert_close(found, dense(q, k, v, slopes), rtol=1e-4, atol=1e-5)


def test_heads_share_keys_where_that_is_said() -> None:
    q, k, v = drawn(heads=2)
    with pytest.raises(UsageError, match=r"query has 4 heads and key 2: `enable_gqa=True`"):
        attngen.flex_attention(q, k, v, alibi)
    out, lse = attngen.flex_attention(q, k, v, alibi, enable_gqa=True, return_lse=True)
    again, aux = attngen.flex_attention(q, k, v, alibi, enable_gqa=True, return_aux=AuxRequest(lse=True))
    assert out.equal(again) and lse.equal(aux.lse) and lse.shape == (2, 4, 48)
    with pytest.raises(UsageError, match="ask for lse alone"):
        attngen.flex_attention(q, k, v, alibi, enable_gqa=True, return_aux=AuxRequest(max_scores=True))


def test_a_block_mask_of_blocks_alone_allows_their_pairs() -> None:
    counts = torch.tensor([[[1, 2, 1]]], dtype=torch.int32)
    columns = torch.tensor([[[[2, 0, 1], [0, 1, 2], [1, 0, 2]]]], dtype=torch.int32)
    q, k, v = drawn()
    found = attngen.flex_attention(q, k, v, None, BlockMask.from_kv_blocks(counts, columns, BLOCK_SIZE=16))
    allowed = of_blocks(torch.tensor([[0, 0, 1], [1, 1, 0], [0, 1, 0]], dtype=torch.bool))
    wanted = torch.softmax((q @ k.mT / 4).masked_fill(~allowed, float("-inf")), -1) @ v
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


def of_blocks(blocks: torch.Tensor) -> torch.Tensor:
    return blocks.repeat_interleave(16, 0).repeat_interleave(16, 1)


@pytest.mark.parametrize("full", [False, True])
def test_blocks_that_leave_out_more_than_the_function_count(full: bool) -> None:
    counts = torch.tensor([[[1, 2, 1]]], dtype=torch.int32)
    columns = torch.tensor([[[[2, 0, 1], [0, 1, 2], [1, 0, 2]]]], dtype=torch.int32)
    others = (torch.tensor([[[1, 0, 1]]], dtype=torch.int32), torch.tensor([[[[0, 1, 2], [0, 1, 2], [2, 0, 1]]]]))
    every = BlockMask.from_kv_blocks(
        counts, columns, *((others[0], others[1].int()) if full else ()), BLOCK_SIZE=16, mask_mod=odd
    )
    q, k, v = drawn()
    found = attngen.flex_attention(q, k, v, None, every)
    allowed = of_blocks(torch.tensor([[0, 0, 1], [1, 1, 0], [0, 1, 0]], dtype=torch.bool))
    allowed &= odd(0, 0, torch.arange(48)[:, None], torch.arange(48))
    if full:
        allowed |= of_blocks(torch.tensor([[1, 0, 0], [0, 0, 0], [0, 0, 1]], dtype=torch.bool))
    wanted = torch.softmax((q @ k.mT / 4).masked_fill(~allowed, float("-inf")), -1) @ v
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


def test_pairs_of_full_blocks_are_allowed_whatever_the_function_says() -> None:
    """Every block is visited, the first of them without a question."""
    counts, columns = torch.tensor([[[2, 3, 3]]]), torch.tensor([[[[1, 2, 0], [0, 1, 2], [0, 1, 2]]]])
    full = torch.tensor([[[1, 0, 0]]]), torch.tensor([[[[0, 1, 2], [0, 1, 2], [0, 1, 2]]]])
    ints = [x.int() for x in (counts, columns, *full)]
    q, k, v = drawn()
    found = attngen.flex_attention(q, k, v, None, BlockMask.from_kv_blocks(*ints, BLOCK_SIZE=16, mask_mod=odd))
    allowed = odd(0, 0, torch.arange(48)[:, None], torch.arange(48))
    allowed[:16, :16] = True
    wanted = torch.softmax((q @ k.mT / 4).masked_fill(~allowed, float("-inf")), -1) @ v
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


def odd(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return (q_idx + kv_idx) % 3 != 1


def test_a_block_mask_that_was_made_of_its_function_is_that_function() -> None:
    for lengths in ((48, 48), (40, 56)):
        made = create_block_mask(odd, 2, 4, *lengths, "cpu", 16)
        assert mask_of(made) is odd
    q, k, v = drawn()
    both = {"block_mask": create_block_mask(odd, None, None, 48, 48, "cpu", 16), "mask_mod": odd}
    with pytest.raises(UsageError, match="a block_mask or a mask_mod, not both"):
        attngen.flex_attention(q, k, v, **both)
    alone = [attngen.flex_attention(q, k, v, **{name: mask}) for name, mask in both.items()]
    assert alone[0].equal(alone[1])


class Settings:
    reach = 4


def test_what_is_kept_follows_what_a_function_reads() -> None:
    """Attributes of objects and of their classes, globals, and values of tensors that Python asks for."""
    settings, most = Settings(), torch.tensor([7])

    def mask_mod(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return (q_idx - kv_idx < settings.reach) & (kv_idx < int(most)) | (q_idx == kv_idx)

    def computed() -> torch.Tensor:
        at = torch.arange(48)
        allowed = (at[:, None] - at < settings.reach) & (at < int(most)) | (at[:, None] == at)
        return torch.softmax((q @ k.mT / 4).masked_fill(~allowed, float("-inf")), -1) @ v

    q, k, v = drawn()
    torch.testing.assert_close(attngen.flex_attention(q, k, v, mask_mod=mask_mod), computed(), rtol=1e-4, atol=1e-5)
    try:
        Settings.reach = 9
        torch.testing.assert_close(attngen.flex_attention(q, k, v, mask_mod=mask_mod), computed(), rtol=1e-4, atol=1e-5)
    finally:
        Settings.reach = 4
    most.fill_(30)
    torch.testing.assert_close(attngen.flex_attention(q, k, v, mask_mod=mask_mod), computed(), rtol=1e-4, atol=1e-5)


def test_functions_are_read_once_for_what_they_enclose(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = drawn()
    reads: list[str] = []
    before = call.read

    def counted(*given: Any) -> Any:
        found = before(*given)
        reads.append(found.text)
        return found

    def made(own: torch.Tensor, reach: int) -> Any:
        def mod(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
            return torch.where(q_idx - kv_idx < reach, score + own[h], score)

        return mod

    monkeypatch.setattr(call, "read", counted)
    biases = [torch.full((4,), x) for x in (0.0, 5.0)]
    results = [attngen.flex_attention(q, k, v, made(x, 8)) for x in (*biases, *biases)]
    assert len(reads) == 1
    assert results[0].equal(results[2]) and results[1].equal(results[3]) and not results[0].equal(results[1])
    attngen.flex_attention(q, k, v, made(biases[0], 9))
    attngen.flex_attention(q, k, v, made(torch.zeros(4, dtype=torch.float64), 9))
    assert len(reads) == 3 and len({*reads}) == 2


@dataclass
class Config:
    reach: Any
    table: dict[str, Any] = field(default_factory=dict[str, Any])

    def near(self, q: Any) -> Any:
        return q < self.reach


def one(q: Any) -> Any:
    return q * 2


def two(q: Any) -> Any:
    return q + 5


APART: dict[str, tuple[Any, Any]] = {
    "lists": ([[1], [2]], [[1, [2]]]),
    "functions by name": ({"a": one, "b": two}, {"b": one, "a": two}),
    "types": (int, float),
    "modules": (math, torch),
    "functions of C": (torch.sigmoid, torch.relu),
    "functions of C in modules": (torch.nn.functional.gelu, torch.nn.functional.softplus),
    "partials": (functools.partial(one, 3), functools.partial(two, 3)),
    "methods": (Config(3).near, Config(4).near),
    "empty lists by name": ({"a": []}, {"b": []}),
    "keys": ({2: 8.0}, {3: 8.0}),
    "zeros": (0.0, -0.0),
    "numbers": (1, 1.0),
    "objects": (Config(3), Config(4)),
    "objects of objects": (Config(3, {"x": Config(1)}), Config(3, {"x": Config(2)})),
}


@pytest.mark.parametrize("what", APART)
def test_what_functions_enclose_tells_them_apart(what: str) -> None:
    def of(x: Any) -> Any:
        return enclosed([lambda b, h, q_idx, kv_idx: x is None]).key

    first, second = APART[what]
    assert (
        of(first) is not None
        and of(first) != of(second)
        and of(first) == of(first if what == "modules" else copy.deepcopy(first))
    )


def test_what_cannot_be_looked_into_is_never_kept() -> None:
    class Slots:
        __slots__ = ("reach",)

    marked = torch.zeros(2)
    vars(marked)["reach"] = 3
    for x in (Slots(), marked, defaultdict(int), [1].__getitem__, np.zeros(2), importlib.import_module("json")):
        assert enclosed([lambda b, h, q_idx, kv_idx, x=x: x is None]).key is None


def test_values_that_python_sees_are_seen_anew() -> None:
    lengths = torch.tensor([3, 9, 0])

    def mask_mod(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        started = torch.zeros((), dtype=torch.int64)
        started += lengths[0]
        return (kv_idx >= started) & (kv_idx < 20 + len(torch.nonzero(lengths))) | (q_idx == kv_idx)

    q, k, v = drawn()
    at = torch.arange(48)
    for _ in range(2):
        allowed = (at >= lengths[0]) & (at < 20 + len(torch.nonzero(lengths))) | (at[:, None] == at)
        wanted = torch.softmax((q @ k.mT / 4).masked_fill(~allowed, float("-inf")), -1) @ v
        found = attngen.flex_attention(q, k, v, mask_mod=mask_mod)
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
        lengths += 2


def test_what_a_function_computes_of_captured_tensors_learns() -> None:
    logarithms = slopes.detach().log().requires_grad_()

    def steep(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return score - logarithms.exp()[h] * (q_idx - kv_idx).abs()

    q, k, v = drawn()
    for _ in range(2):
        out = attngen.flex_attention(q, k, v, steep, create_block_mask(causal, None, None, 48, 48, "cpu", 16))
        found = torch.autograd.grad(out.square().sum(), logarithms)
        wanted = torch.autograd.grad(dense(q, k, v, logarithms.exp()).square().sum(), logarithms)
        torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-4)
        with torch.no_grad():
            logarithms += 0.5


def test_a_table_for_some_lengths_serves_calls_of_those_lengths() -> None:
    table = torch.randn(104, generator=torch.Generator().manual_seed(0))

    def relative(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return score + table[q_idx - kv_idx + 47]

    q, k, v = drawn()
    at = torch.arange(48)
    wanted = torch.softmax(q @ k.mT / 4 + table[at[:, None] - at + 47], -1) @ v
    torch.testing.assert_close(attngen.flex_attention(q, k, v, relative), wanted, rtol=1e-4, atol=1e-5)
    with pytest.raises(Refuted, match="outside `table`"):
        attngen.from_flex(relative)
    kernel = attngen.from_flex(relative, assume="Sq <= 48 and Sk <= 48")
    torch.testing.assert_close(kernel(q, k, v), wanted, rtol=1e-4, atol=1e-5)


def test_a_compiled_model_calls_it() -> None:
    q, k, v = (x.detach() for x in drawn())
    compiled = torch.compile(lambda q: attngen.flex_attention(q * 2, k, v, alibi) + 1, backend="eager")
    torch.testing.assert_close(compiled(q), attngen.flex_attention(q * 2, k, v, alibi) + 1)
