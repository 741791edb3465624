"""Wrong arguments of `attngen.compile`, and params whose names are those of arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import torch

import attngen
from attngen.errors import UsageError

CAUSAL = "attention a\nmask = causal\n"
WRONG: dict[str, tuple[Any, dict[str, Any], str]] = {
    "a number": (3, {}, "a spec is a path or its text, not int"),
    "bytes": (b"attention a", {}, "a spec is a path or its text, not bytes"),
    "nothing": ("", {}, "the spec is empty: give a path, or its text"),
    "one size": (CAUSAL, {"tile": 16}, "tile 16 must be two powers of two"),
    "a letter's geometry": (CAUSAL, {"geometry": "packed"}, "geometry 'packed' must be a list or a tuple of names"),
    "a geometry's number": (CAUSAL, {"geometry": 3}, "geometry 3 must be a list or a tuple of names"),
    "a letter's obligation": (CAUSAL, {"allow_unproved": "streaming"}, "allow_unproved 'streaming' must be a list"),
    "listed consts": (CAUSAL, {"consts": [1]}, "consts must be a dict of numbers by name, not list"),
    "numbered tiles": (CAUSAL, {"tiles": 3}, "tiles must be the path of a file"),
    "a number's const": (CAUSAL, {"consts": {1: 2}}, "consts must be a dict of numbers by name, and 1 is no name"),
    "half a head dim": (CAUSAL, {"head_dim": 64.0}, "head_dim 64.0 must be an int from 1 to 256"),
    "an answer to forward": (CAUSAL, {"forward": "no"}, "forward must be True or False, not 'no'"),
    "an answer to strict": (CAUSAL, {"strict": "a"}, "strict must be True or False, not 'a'"),
    "an answer to effort": (CAUSAL, {"effort": True}, "effort True must be a positive number"),
    "a shape of no tiles": (CAUSAL, {"shape": {"Sq": 4}}, "shape is a dict of sizes that says which shape of `tiles`"),
    "another target": (CAUSAL, {"target": "x"}, "no target 'x'; there are triton, pallas, torch, jax"),
}


def test_a_wrong_argument_of_a_kernel_is_named() -> None:
    kernel = attngen.compile("attention a\nparam n: int\nmask = k < n\n")
    q = torch.zeros(1, 1, 4, 16)
    calls: list[tuple[Callable[[], object], str]] = [
        (lambda: kernel.save(5), "path must be the path of a file to write, not 5"),  # type: ignore[arg-type]
        (lambda: kernel.with_geometry("zzz"), "no geometry 'zzz'; there are dense, lengths, packed, pieces"),
        (lambda: kernel.reference(q, q, q, n="x"), "param `n` must be an int, not 'x'"),
    ]
    for call, message in calls:
        with pytest.raises(UsageError) as raised:
            call()
        assert str(raised.value) == message


@pytest.mark.parametrize("target", ["triton", "torch", "jax", "pallas"])
def test_a_number_counts_as_float32_has_it(target: str) -> None:
    """Kernels compute with float32: 1 - 1e-8 is 1 there, so a dropout of that keeps nothing."""
    kernel = attngen.compile("attention a\nparam p: f32 where 0 <= p < 1\ndropout = p\n", target=target)
    q = np.ones((1, 4, 4, 16), np.float32)
    q = torch.from_numpy(q) if target in ("triton", "torch") else jnp.asarray(q)
    for p, said in (1 - 1e-8, "p must satisfy .* not 1.0"), (-1e39, r"p must fit in float32, not -1e\+39"):
        with pytest.raises(UsageError, match=said):
            kernel(q, q, q, p=p, dropout_seed=0)
    assert kernel(q, q, q, p=1 - 1e-7, dropout_seed=0).shape == q.shape


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_argument_is_named(name: str) -> None:
    spec, arguments, message = WRONG[name]
    with pytest.raises(UsageError) as raised:
        attngen.compile(spec, **arguments)
    assert str(raised.value).startswith(message)


@pytest.mark.parametrize(
    ("declared", "mask", "value"),
    [("self: int", "k < self", 3), ("q_start: int[B]", "k < q_start[b]", torch.tensor([3]))],
)
def test_a_param_may_have_the_name_of_an_argument(declared: str, mask: str, value: object) -> None:
    kernel = attngen.compile(f"attention a\nparam {declared}\nmask = {mask}\n")
    q, k, v = torch.randn(3, 1, 1, 8, 16, generator=torch.Generator().manual_seed(0)).unbind()
    out = kernel(q, k, v, **{declared.partition(":")[0]: value})
    right = torch.nn.functional.scaled_dot_product_attention(q, k[:, :, :3], v[:, :, :3])
    torch.testing.assert_close(out, right)
