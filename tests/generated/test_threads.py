"""Calls from several threads: Triton's interpreter changes `triton.language` for all of them while a kernel runs."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest
import torch
import triton

import attngen
from attngen.runtime import loader

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="for the interpreter")
THREADS = 6
SPECS = ("attention a\nmask = causal\n", "attention b\nmask = sliding_window(5)\n")


def expected(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, window: int) -> torch.Tensor:
    distance = torch.arange(q.shape[2])[:, None] - torch.arange(k.shape[2])[None, :]
    score = (q @ k.mT * q.shape[3] ** -0.5).masked_fill((distance < 0) | (distance >= window), -torch.inf)
    return score.softmax(-1) @ v


def test_first_calls_from_threads_are_right() -> None:
    """Of two files, forward and backward, where no kernel has run before."""
    loader.prepare_interpreter()
    sources = [attngen.compile(spec, tile=(16, 16)).source for spec in SPECS]
    files = [loader.execute(source, f"threads_{i}") for i, source in enumerate(sources)]
    attend = [vars(module)[name] for module, name in zip(files, "ab", strict=True)]
    together = Barrier(THREADS)

    def one(number: int) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        torch.manual_seed(number)
        inputs = [torch.randn(1, 2, 40 + number, 16, requires_grad=True) for _ in range(3)]
        truth = expected(*inputs, 64 if number % 2 == 0 else 5)
        grad = torch.randn_like(truth)
        wanted = [truth, *torch.autograd.grad(truth, inputs, grad)]
        together.wait()
        out = attend[number % 2](*inputs)
        return [out, *torch.autograd.grad(out, inputs, grad)], wanted

    with ThreadPoolExecutor(THREADS) as pool:
        for found, wanted in pool.map(one, range(THREADS)):
            for x, truth in zip(found, wanted, strict=True):
                torch.testing.assert_close(x, truth, atol=2e-5, rtol=0)


def test_merging_takes_turns_with_generated_files() -> None:
    from attngen.runtime import merging

    module: Any = loader.execute(attngen.compile(SPECS[0]).source, "threads_turn")
    turn = vars(triton)["_interpreter_turn"]
    assert module.ONE_AT_A_TIME is turn and merging._TURN is turn
