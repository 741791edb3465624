"""The kernel that merges parts in one pass, in Triton's interpreter, beside `Arrays.merged`."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import torch

from attngen.runtime.exported.merging import Arrays
from attngen.runtime.merging import add_into, merge_into

ARRAYS = Arrays(torch.exp, torch.where, torch.logaddexp, heads_inside=False)


def parts(dim: int, *, heads_inside: bool) -> list[tuple[Any, Any]]:
    """Two parts of (2, 3, 21, dim); some rows have no keys in the first, in the second, or in both."""
    generator = torch.Generator().manual_seed(0)
    found: list[tuple[Any, Any]] = []
    for empty in (slice(0, 5), slice(3, 9)):
        out = torch.randn((2, 21, 3, dim), generator=generator).transpose(1, 2)
        out = out if heads_inside else out.contiguous()
        lse = 4 * torch.randn((2, 3, 21), generator=generator)
        out[:, :, empty], lse[:, :, empty] = 0.0, float("-inf")
        found.append((out, lse))
    return found


@pytest.mark.parametrize("sums", [True, False])
@pytest.mark.parametrize(("dim", "heads_inside"), [(16, False), (24, True)])
def test_two_parts_are_merged_as_by_the_formula(dim: int, heads_inside: bool, sums: bool) -> None:
    first, second = parts(dim, heads_inside=heads_inside)
    expected = ARRAYS.merged([first, second], sums=sums)
    (kept, lse), (new, new_lse) = first, second
    into = torch.full_like(kept, torch.nan)
    merge_into(into, kept, lse, new, new_lse, sums=sums)
    torch.testing.assert_close(into, expected[0], rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(lse, expected[1], rtol=1e-6, atol=1e-6)
    assert not sums or torch.equal(lse == float("-inf"), expected[1] == float("-inf"))


def test_a_part_may_add_to_the_denominator_alone_and_in_place() -> None:
    (out, lse), (_, own) = parts(8, heads_inside=False)
    expected = ARRAYS.finished((out, lse), own)
    merge_into(out, out, lse, None, own, sums=True)
    torch.testing.assert_close(out, expected[0], rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(lse, expected[1], rtol=1e-6, atol=1e-6)


def test_the_sum_is_stored_in_another_dtype() -> None:
    first, second = parts(32, heads_inside=False)
    expected = ARRAYS.merged([first, second], sums=True)[0]
    into = torch.empty_like(first[0], dtype=torch.bfloat16)
    merge_into(into, *first, second[0].bfloat16(), second[1], sums=True)
    torch.testing.assert_close(into.float(), expected, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("heads_inside", [False, True])
def test_sums_are_computed_in_float32_whatever_the_dtypes(heads_inside: bool) -> None:
    (first, _), (second, _) = parts(24, heads_inside=heads_inside)
    new = second.half()
    for kept in (first.half(), first):
        for dtype in (torch.float32, torch.float16):
            into = torch.full_like(kept, torch.nan, dtype=dtype)
            add_into(into, kept, new)
            assert torch.equal(into, (kept.float() + new.float()).to(dtype))
    add_into(new, first, new)
    assert torch.equal(new, (first + second.half().float()).half())


@pytest.mark.parametrize("how", ["tensors", "arrays", "kernel", "its own term"])
def test_shares_add_up_to_one_where_logarithms_are_coarse(how: str) -> None:
    """float32 rounds a log-sum-exp near 3,000 by up to 1.2e-4, and each share, exp(own - whole), with it."""
    first, second = 3000 + torch.randn((2, 2, 4, 64), generator=torch.Generator().manual_seed(0))
    ones = torch.ones(2, 4, 64, 16)
    if how == "tensors":
        out = ARRAYS.merged([(ones, first), (ones, second)], sums=True)[0]
    elif how == "arrays":
        arrays = Arrays(jnp.exp, jnp.where, jnp.logaddexp, heads_inside=False)
        parts = [(jnp.asarray(ones.numpy()), jnp.asarray(lse.numpy())) for lse in (first, second)]
        out = torch.from_numpy(np.array(arrays.merged(parts, sums=True)[0]))
    elif how == "its own term":
        out = ARRAYS.finished((ones, first), second)[0] + ARRAYS.finished((ones, second), first)[0]
    else:
        out = torch.empty_like(ones)
        merge_into(out, ones, first, ones, second, sums=True)
    torch.testing.assert_close(out, ones, rtol=0, atol=5e-7)
