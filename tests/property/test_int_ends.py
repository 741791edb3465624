"""Divisions at the ends of int32: what is proved of drawn masks is what their printed text computes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from property import int_ends
from property.kernels import Sizes, errors

BLOCK = 10


@pytest.mark.parametrize("block", range(20))
def test_printed_divisions_and_bounds_are_exact(block: int) -> None:
    faults = [int_ends.fault(seed) for seed in range(block * BLOCK, (block + 1) * BLOCK)]
    assert [f for f in faults if f] == []


@pytest.mark.slow
@pytest.mark.parametrize("block", range(20, 200))
def test_printed_divisions_and_bounds_are_exact_at_length(block: int) -> None:
    faults = [int_ends.fault(seed) for seed in range(block * BLOCK, (block + 1) * BLOCK)]
    assert [f for f in faults if f] == []


def test_few_draws_are_refused() -> None:
    """What is refused is not looked at."""
    assert sum(int_ends.refused(seed) for seed in range(40)) <= 4


@pytest.mark.parametrize("seed", range(4))
def test_drawn_divisions_run_in_the_interpreter(seed: int) -> None:
    case = int_ends.drawn(seed)
    named = {line.split()[1].rstrip(":") for line in case.text.splitlines() if line.startswith("param")}
    params = {name: value for name, value in case.scalars.items() if name in named}
    if "t" in named:
        params["t"] = torch.from_numpy(case.elements.astype(np.int32))
    sizes = Sizes(1, 1, 1, int_ends.LENGTH, int_ends.LENGTH, 16, 16)
    found = errors(case.text, sizes, params=params, forward_only=True)
    assert max(found.values()) < 1e-4, case.text
