"""Reads at the call, on each target: elements that break their facts, sizes that a read needs, and `check=True`."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

import attngen

TARGETS = ("triton", "torch", "jax", "pallas")
CHOSEN = """attention chosen
param i: int[B, Sk] where 0 <= i < n
param t: f32[n]
param cap: f32 where cap > 0
score = qk * scale * cap + t[i[b, k]]
"""
NEEDY = "attention needy\nparam seq: f32[n]\nscore = qk * scale + seq[q]\n"


@cache
def compiled(text: str, target: str) -> attngen.Kernel:
    return attngen.compile(text, target, tile=(16, 16) if target != "pallas" else None)


def inputs(Sq: int = 6, Sk: int = 6, D: int = 8) -> list[Any]:
    draw = np.random.default_rng(0)
    return [draw.standard_normal((1, 1, S, D)).astype(np.float32) for S in (Sq, Sk, Sk)]


def call(text: str, target: str, sizes: tuple[int, int] = (6, 6), /, **arguments: Any) -> Any:
    """One head of one batch, so that axes stand alike in PyTorch's order and in JAX's but for a transposition."""
    arrays = inputs(*sizes)
    kernel = compiled(text, target)
    if target in ("triton", "torch"):
        return kernel(*map(torch.tensor, arrays), **arguments).detach().numpy()
    import jax.numpy as jnp

    given = {n: jnp.asarray(x.numpy()) if isinstance(x, torch.Tensor) else x for n, x in arguments.items()}
    return np.asarray(kernel(*(jnp.asarray(x.swapaxes(1, 2)) for x in arrays), **given)).swapaxes(1, 2)


def picked(i: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    """The elements, 0 outside, whose gradients are dropped."""
    inside = (i >= 0) & (i < len(t))
    return torch.where(inside, t[i.clamp(0, len(t) - 1)], 0.0)


def expected(i: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    q, k, v = map(torch.tensor, inputs())
    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5 + picked(i, t)[:, None, None, :]
    return scores.softmax(-1) @ v


BROKEN = torch.tensor([[3, -1, 0, 7, 4, 2**31 - 1]], dtype=torch.int32)
"""Indices of a tensor of 5: before it, behind it, and far away."""


@pytest.mark.parametrize("target", ["triton", "torch"])
def test_an_element_that_breaks_its_fact_reads_nothing_outside_the_tensor(target: str) -> None:
    memory = torch.full((16,), torch.nan)
    t = memory[5:10].requires_grad_()  # a leaf whose neighbours in memory are NaN
    with torch.no_grad():
        t.copy_(torch.linspace(-1.0, 1.0, 5))
    out = compiled(CHOSEN, target)(*map(torch.tensor, inputs()), i=BROKEN, t=t, cap=1.0)
    truth = expected(BROKEN, t)
    torch.testing.assert_close(out, truth, rtol=1e-5, atol=1e-5)
    weights = torch.linspace(0.5, 1.5, out.numel()).reshape(out.shape)
    (own,) = torch.autograd.grad((out * weights).sum(), t)
    (wanted,) = torch.autograd.grad((truth * weights).sum(), t)
    torch.testing.assert_close(own, wanted, rtol=1e-4, atol=1e-5)
    assert memory[:5].isnan().all()
    assert memory[10:].isnan().all()


@pytest.mark.parametrize("target", ["jax", "pallas"])
def test_an_element_that_breaks_its_fact_is_0_in_jax(target: str) -> None:
    import jax
    import jax.numpy as jnp

    t = torch.linspace(-1.0, 1.0, 5).requires_grad_()
    q, k, v = (jnp.asarray(x.swapaxes(1, 2)) for x in inputs())
    weights = jnp.linspace(0.5, 1.5, q.size).reshape(1, 1, 6, 8).swapaxes(1, 2)

    def loss(own: Any) -> Any:
        out = compiled(CHOSEN, target)(q, k, v, i=jnp.asarray(BROKEN.numpy()), t=own, cap=1.0)
        return (out * weights).sum(), out

    (_, out), own = jax.value_and_grad(loss, has_aux=True)(jnp.asarray(t.detach().numpy()))
    truth = expected(BROKEN, t)
    np.testing.assert_allclose(np.asarray(out).swapaxes(1, 2), truth.detach().numpy(), rtol=1e-5, atol=1e-5)
    scale = torch.tensor(np.asarray(weights)).transpose(1, 2)
    (wanted,) = torch.autograd.grad((truth * scale).sum(), t)
    np.testing.assert_allclose(np.asarray(own), wanted.numpy(), rtol=1e-4, atol=1e-5)


# ---------------------------------------------------------------- sizes


@pytest.mark.parametrize("target", TARGETS)
def test_a_call_is_refused_without_the_sizes_that_a_read_needs(target: str) -> None:
    assert "\n# needs Sq <= n\n" in compiled(NEEDY, target).source
    assert call(NEEDY, target, (6, 4), seq=torch.zeros(6)).shape == (1, 1, 6, 8)
    for _ in range(2):  # what fitted once is not looked at again, what did not is
        with pytest.raises(
            ValueError, match="needy: needs Sq <= n, or a tensor would be read outside; here Sq = 6, n = 5"
        ):
            call(NEEDY, target, (6, 4), seq=torch.zeros(5))


def test_example_inputs_have_the_sizes_that_reads_need() -> None:
    from attngen import inputs

    kernel = compiled("attention d\nparam ids: int[B, Sk]\nmask = same_document(ids)\n", "torch")
    wanted = {"B": 1, "Hq": 2, "Hkv": 2, "Sq": 40, "Sk": 20, "D": 8, "Dv": 8}
    sizes = inputs.settle(kernel.spec, wanted)
    assert sizes["Sq"] <= sizes["Sk"]


# ---------------------------------------------------------------- check=True

GOOD = torch.tensor([[0, 1, 2, 3, 4, 4]], dtype=torch.int32)


@pytest.mark.parametrize("target", TARGETS)
def test_check_names_the_first_element_that_breaks_a_fact(target: str) -> None:
    t = torch.zeros(5)
    call(CHOSEN, target, i=GOOD, t=t, cap=1.0, check=True)
    with pytest.raises(ValueError, match=r"chosen: i\[0, 1\] is -1, and must satisfy 0 <= i and i < n"):
        call(CHOSEN, target, i=BROKEN, t=t, cap=1.0, check=True)
    with pytest.raises(ValueError, match=r"chosen: i\[0, 3\] is 7"):
        call(CHOSEN, target, i=BROKEN.clamp(min=0), t=t, cap=1.0, check=True)


@pytest.mark.parametrize("target", TARGETS)
def test_check_looks_at_numbers_on_the_device(target: str) -> None:
    with pytest.raises(ValueError, match=r"cap must satisfy 0\.0 < cap"):
        call(CHOSEN, target, i=GOOD, t=torch.zeros(5), cap=torch.tensor(-1.0), check=True)


FACTS = """attention facts
param lens: int[B]
param w: f16[Hq, n] where not (w > 2) and abs(w) < max(cap, 1.0)
param flag: bool[B, Sk] where flag or Sk < 3
param cap: f32
param most: int
assume lens[b] <= most
score = qk * scale + w[h, 0] * cap
mask = k < lens[b] and flag[b, k]
"""


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lens": torch.tensor([5])}, r"assumes lens\[b\] <= most; not so at b = 0"),
        ({"w": torch.tensor([[0.5, 2.25]]).half()}, r"w\[0, 1\] is 2.25"),
        ({"w": torch.tensor([[torch.nan, 1.0]]).half()}, r"w\[0, 0\] is nan"),
        ({"cap": 0.5, "w": torch.tensor([[0.5, -1.0]]).half()}, r"w\[0, 1\] is -1"),
        ({"flag": torch.tensor([[True] * 5 + [False]])}, r"flag\[0, 5\] is False"),
    ],
    ids=["an assume", "a limit", "NaN", "a limit by another param", "a bool"],
)
def test_check_takes_every_kind_of_fact(target: str, change: dict[str, Any], message: str) -> None:
    given = {"lens": torch.tensor([4]), "w": torch.tensor([[0.5, -1.0]]).half(), "cap": 3.0, "most": 4}
    given |= {"flag": torch.ones(1, 6, dtype=torch.bool)}
    if target == "torch":
        call(FACTS, target, **given, check=True)
        call(FACTS, target, **{**given, **change})
    with pytest.raises(ValueError, match=message):
        call(FACTS, target, **{**given, **change}, check=True)


@pytest.mark.parametrize("target", ["jax", "pallas"])
def test_check_is_refused_where_values_are_traced(target: str) -> None:
    import jax
    import jax.numpy as jnp

    arrays = [jnp.asarray(x.swapaxes(1, 2)) for x in inputs()]
    i, t = jnp.asarray(GOOD.numpy()), jnp.zeros(5)
    with pytest.raises(ValueError, match="check=True needs concrete values"):
        jax.jit(lambda own: compiled(CHOSEN, target)(*arrays, i=own, t=t, cap=1.0, check=True))(i)
    with pytest.raises(ValueError, match="check=True needs concrete values"):
        jax.jit(lambda own: compiled(CHOSEN, target)(*arrays, i=i, t=t, cap=own, check=True))(1.0)


@pytest.mark.parametrize("target", TARGETS)
def test_a_param_called_check_keeps_its_name(target: str) -> None:
    text = "attention own\nparam check: f32[Sk] where check > 0\nscore = qk * scale + check[k]\n"
    plain = "attention own\nparam other: f32[Sk] where other > 0\nscore = qk * scale + other[k]\n"
    kind = "Tensor" if target in ("triton", "torch") else "jax.Array"
    assert compiled(text, target).source.count(f"check: {kind},") == 1
    assert "check: bool" not in compiled(text, target).source.partition("# =====")[0]
    if target == "torch":
        given = torch.linspace(-1.0, 1.0, 6)
        np.testing.assert_array_equal(call(text, target, check=given), call(plain, target, other=given))


@pytest.mark.parametrize("target", TARGETS)
def test_check_is_an_argument_of_every_other_function(target: str) -> None:
    text = "attention plain\nmask = causal\n"
    assert call(text, target, check=True).shape == (1, 1, 6, 8)
    assert "_check_facts" not in compiled(text, target).source


def test_check_is_refused_while_torch_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    with pytest.raises(ValueError, match="check=True reads elements, which"):
        call(CHOSEN, "torch", i=GOOD, t=torch.zeros(5), cap=1.0, check=True)
