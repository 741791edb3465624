"""How a rank's calls are summed, in half precision: rows of one call, of several, of some that overlap, and of none."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import attngen
from attngen.distributed import Layout, Sequences, schedule
from attngen.distributed.plan.program import Call, steps
from attngen.distributed.torch.messages import Link
from attngen.distributed.torch.run import Run, _Total  # pyright: ignore[reportPrivateUsage]


@pytest.fixture(autouse=True)
def new_memory_is_nan() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)  # fills what is allocated with NaN
    yield
    torch.use_deterministic_algorithms(False)


CUT = (0, 9, 9, 40, 64)
LAYOUT = Layout((((0, 5), (20, 33), (50, 64)), ((5, 20),), ((33, 50),)))
MASKS = ["mask = causal", "mask = 4 <= q - k < 20", "mask = k <= q - 6 or k < 2"]
HEADS, DIM = 2, 8


def drawn(call: Call, generator: torch.Generator, *, packed: bool) -> tuple[Any, Any]:
    """A part of the call's rows, as a kernel would give it: some rows see none of its keys."""
    rows = sum(stop - start for start, stop in call.q)
    out = torch.randn((HEADS, rows, DIM), generator=generator).half()
    lse = 3 * torch.randn((HEADS, rows), generator=generator)
    none = torch.rand(rows, generator=generator) < 0.2
    out[:, none], lse[:, none] = 0.0, float("-inf")
    return (out.transpose(0, 1), lse) if packed else (out[None], lse[None])


@pytest.mark.parametrize("exchange", ["ring", "gather"])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("mask", MASKS)
def test_totals_are_those_of_all_parts_of_a_row(mask: str, packed: bool, exchange: Any) -> None:
    kernel = attngen.compile(f"attention t\n{mask}\n")
    sequences = Sequences.of_offsets(CUT) if packed else Sequences.dense(CUT[-1])
    made = schedule(kernel, LAYOUT, sequences, exchange)
    generator = torch.Generator().manual_seed(0)
    for group in range(LAYOUT.ranks):
        rows = LAYOUT.rows(group)
        own = steps(made, group, together=packed)
        run = Run(kernel, own, sequences, Link(None, group, 0 if packed else 2))
        q = torch.empty((rows, HEADS, DIM) if packed else (1, HEADS, rows, DIM), dtype=torch.float16)
        total = _Total(run, q, q, torch.float16)
        parts: list[list[tuple[Any, Any]]] = [[] for _ in range(rows)]
        for call in (c for step in own for c in (*step.early, *step.calls)):
            out, lse = drawn(call, generator, packed=packed)
            total.absorb(out.clone(), lse.clone())
            for at, row in enumerate(r for start, stop in call.q for r in range(start, stop)):
                parts[row].append((out[at], lse[:, at]) if packed else (out[0, :, at], lse[0, :, at]))
        out, lse = total.finished({})
        assert out.dtype == torch.float16
        for row, of_row in enumerate(parts):
            mine = (out[row], lse[:, row]) if packed else (out[0, :, row], lse[0, :, row])
            whole = torch.full((HEADS,), float("-inf"))
            for _, one in of_row:
                whole = torch.logaddexp(whole, one)
            shares = [torch.where(one == float("-inf"), 0.0, (one - whole).exp()) for _, one in of_row]
            expected = sum((x.float() * s[:, None] for (x, _), s in zip(of_row, shares, strict=True)), torch.zeros(()))
            torch.testing.assert_close(mine[0].float(), expected.expand(HEADS, DIM), rtol=1e-3, atol=1e-3)
            torch.testing.assert_close(mine[1], whole)
