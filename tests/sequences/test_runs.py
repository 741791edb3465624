"""Keys and values whose rows are consecutive only in runs, as in pages: the portable kernel finds them by a table."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import attngen
from attngen.ir.evaluate import evaluate
from attngen.plan.sides import NUMBER, POSITION, RUNS, Kind, side

RUN = 4
SIDE = replace(side(Kind.DENSE), run=RUN)
B, HQ, HKV, SQ, SK, D = 2, 4, 2, 21, 38, 16
RUNS_OF_ONE, RUNS_OF_ALL = -(-SK // RUN), 2 * -(-SK // RUN) + 3


@pytest.fixture(scope="module")
def kernel() -> attngen.Kernel:
    return attngen.compile("attention paged\nmask = causal\n", tile=(16, 16))


def guarded(heads: int, generator: torch.Generator) -> Tensor:
    """Rows in runs, (heads, rows, D), between rows of NaN, which no kernel may read: a NaN would reach the result."""
    rows = RUNS_OF_ALL * RUN
    whole = torch.full((heads, rows + 64, D), float("nan"))
    whole[:, 32:-32] = torch.randn(heads, rows, D, generator=generator)
    return whole[:, 32:-32]


def attend(kernel: attngen.Kernel, q: Tensor, k: Tensor, v: Tensor, table: Tensor) -> Tensor:
    """The forward kernel itself: behind the strides of k and v is what it needs to find their rows."""
    assert kernel.function is not None
    module: Any = sys.modules[kernel.function.__module__]
    out, lse = torch.empty_like(q), torch.empty(q.shape[:3])
    keys, values = ((0, *x.stride()[:2], table, table.stride(0), RUNS_OF_ALL, RUN) for x in (k, v))
    grid = (-(-SQ // 16) * B * HQ,)
    module._forward_kernel[grid](
        *(q, k, v, out, lse, D**-0.5, HQ, HKV, SQ, SK, q.stride()[:3], keys, values, out.stride()[:3]),
        D=D,
        Dv=D,
        BQ=16,
        BK=16,
        ALIGN=1,
    )
    return out


def gathered(x: Tensor, table: Tensor) -> Tensor:
    """(B, heads, SK, D): the rows that the plan's side has for each position."""
    positions = np.arange(SK)
    found: list[Tensor] = []
    for own in table.numpy():
        given = {NUMBER.id: own[positions // RUN], POSITION.id: positions, RUNS.id: RUNS_OF_ALL}
        found.append(x[:, torch.from_numpy(evaluate(SIDE.row(POSITION), given, {}))])
    return torch.stack(found)


def test_keys_in_runs_are_found_by_a_table(kernel: attngen.Kernel) -> None:
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(B, HQ, SQ, D, generator=generator)
    k, v = guarded(HKV, generator), guarded(HKV, generator)
    table = torch.randperm(RUNS_OF_ALL, generator=generator)[: B * RUNS_OF_ONE].view(B, -1).int()
    right = torch.from_numpy(kernel.reference(q, gathered(k, table), gathered(v, table)))
    torch.testing.assert_close(attend(kernel, q, k, v, table).double(), right, atol=1e-5, rtol=1e-5)
    other = torch.from_numpy(kernel.reference(q, gathered(k, table.flip(1)), gathered(v, table.flip(1))))
    assert not torch.allclose(other, right, atol=1e-2)


@pytest.mark.parametrize("wrong", [-1, -(2**31), RUNS_OF_ALL, 2**31 - 1])
def test_a_wrong_number_reads_no_row_outside(kernel: attngen.Kernel, wrong: int) -> None:
    generator = torch.Generator().manual_seed(1)
    q = torch.randn(B, HQ, SQ, D, generator=generator)
    k, v = guarded(HKV, generator), guarded(HKV, generator)
    table = torch.full((B, RUNS_OF_ONE), wrong, dtype=torch.int32)
    table[0, 1] = 2
    found = attend(kernel, q, k, v, table)
    assert found.isfinite().all()
    right = torch.from_numpy(kernel.reference(q, gathered(k, table), gathered(v, table)))
    torch.testing.assert_close(found.double(), right, atol=1e-5, rtol=1e-5)
