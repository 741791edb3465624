"""Ints at the ends of their storage, and ints that the score's and the mask's operations make: bounds, powers, bits."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import attngen
from attngen.errors import UsageError
from attngen.inputs import Ints, examples

S = 40
FAR = (-(2**40) + 32, 2**40, 16 * 200_000 - 2**40, 2**31, -(2**31), 2**62 - 1, -(2**62), 2**36 + 16, 3)
MASKS = {
    "k <= q + n": lambda q, k, n: k <= q + n,
    "k >= q - n": lambda q, k, n: k >= q - n,
    "k == q + n": lambda q, k, n: k == q + n,
    "k < n": lambda q, k, n: k < n + 0 * q,
    "k == q + n or (k >= q - n and k < n)": lambda q, k, n: (k == q + n) | ((k >= q - n) & (k < n)),
}


def attended(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, allowed: torch.Tensor) -> torch.Tensor:
    """The definition, in float64."""
    logits = (q.double() @ k.double().mT * q.shape[-1] ** -0.5).masked_fill(~allowed, -torch.inf)
    return torch.softmax(logits, -1).nan_to_num() @ v.double()


def within(rows: int, beyond: float) -> torch.Tensor:
    """Rows that begin a larger tensor, which goes on with other numbers."""
    x = torch.full((1, 1, rows + 64, 8), beyond)
    x[:, :, :rows] = torch.randn(1, 1, rows, 8, generator=torch.Generator().manual_seed(3))
    return x[:, :, :rows]


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("tensor", [False, True])
def test_ints_far_outside_32_bits_lead_to_no_tile_outside(mask: str, tensor: bool) -> None:
    named = mask.replace("n", "n[b]").replace("an[b]d", "and") if tensor else mask
    kernel = attngen.compile(f"attention a\nparam n: int{'[B]' if tensor else ''}\nmask = {named}\n", tile=(16, 16))
    q, k, v = (within(S, beyond).requires_grad_() for beyond in (1.0, 7.0, torch.nan))
    positions = torch.arange(S, dtype=torch.float64)
    for n in FAR:
        given = torch.tensor([n]) if tensor else n
        allowed = MASKS[mask](positions[:, None], positions, float(n))
        results = [
            (out, *torch.autograd.grad(out.sum(), (q, k, v)))
            for out in (kernel(q, k, v, n=given), attended(q, k, v, allowed))
        ]
        for found, right in zip(*results, strict=True):
            torch.testing.assert_close(found.double(), right.double(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("n", [2**63, 2**70, -(2**63) - 1])
def test_an_int_of_more_than_64_bits_is_refused(n: int) -> None:
    x = torch.zeros(1, 1, 8, 8)
    with pytest.raises(UsageError, match="n must be an int of 64 bits, not"):
        attngen.compile("attention a\nparam n: int\nscore = qk * scale + (1.0 if n == 3 else 2.0)\n")(x, x, x, n=n)


@pytest.mark.parametrize("target", ["torch", "triton"])
@pytest.mark.parametrize(
    ("mask", "n", "low", "high"),
    [
        ("k <= n", 2**63 - 1, 62, 62),
        ("k < n", -(2**63), 62, 63),
        ("k - q < n", 2**63 - 1, 62, 62),
        ("q - k < n", -(2**63), 62, 62),
        ("k // 2 < n", 2**63 - 1, 31, 31),
    ],
)
def test_an_int_that_takes_a_loop_beyond_64_bits_is_refused(
    target: str, mask: str, n: int, low: int, high: int
) -> None:
    """The mask's own operations hold these ints; its loop bounds do not."""
    x = torch.zeros(1, 1, 8, 8)
    kernel = attngen.compile(f"attention a\nparam n: int\nmask = {mask}\n", target=target)
    with pytest.raises(UsageError, match=rf"n must be between -2\*\*{low} and 2\*\*{high} - 1, since the kernel"):
        kernel(x, x, x, n=n)


@pytest.mark.parametrize("target", ["jax", "pallas"])
@pytest.mark.parametrize(
    ("mask", "keys"),
    [("k < 2 ** s", 8), ("k < 1 << s", 8), ("k << s < 40", 5), ("k < 2 ** p[b]", 4), ("k < 1 << p[b]", 4)],
)
def test_a_number_may_be_raised_and_shifted_at_run_time(target: str, mask: str, keys: int) -> None:
    head = "attention a\nparam s: int where 0 <= s < 6\nparam p: int[B] where 0 <= p < 6\n"
    x = np.random.default_rng(0).standard_normal((1, 20, 1, 8), np.float32)
    out = attngen.compile(f"{head}mask = {mask}\n", target=target)(x, x, x, s=3, p=np.array([2], np.int32))
    y = torch.tensor(x).transpose(1, 2)
    right = attended(y, y, y, torch.arange(20) < keys).transpose(1, 2)
    np.testing.assert_allclose(np.asarray(out), right.numpy(), atol=1e-5)


@pytest.mark.parametrize(
    "mask", ["(k & 6) % 4 == 0", "(k | q) % 4 == 0", "(k ^ q) // 4 < 3", "(q >> (k & 3)) % 2 == 0", "(k >> n) % 2 == 0"]
)
def test_divisions_of_what_bits_make_are_proved(mask: str) -> None:
    attngen.compile(f"attention a\nparam n: int where 0 <= n < 8\nmask = {mask}\n")


@pytest.mark.parametrize("target", ["torch", "triton", "jax", "pallas"])
@pytest.mark.parametrize("mask", ["a[b, k] < c[b, q]", "a[b, q] < c[b, k]"])
def test_strict_comparisons_at_the_ends_of_32_bits(mask: str, target: str) -> None:
    """Tiles are told apart by a strict test, which is proved, beside a float, without which there would be a map."""
    data = "param a: int[B, Sk]\nparam c: int[B, Sk]\nparam x: f32[B, Sk]"
    kernel = attngen.compile(f"attention a\n{data}\nmask = {mask} and x[b, k] <= x[b, q]\nassume Sq == Sk\n", target)
    assert [t.sign for t in kernel.plan.keys.tests] == ["<", "<="]
    g = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(1, 1, 300, 16, generator=g) for _ in "qkv")
    x = torch.rand(1, 300, generator=g).sort(-1).values
    for end, there in ((2**31 - 1, lambda i: i > 4), (-(2**31), lambda i: i < 4)):
        a, c = (torch.randint(0, 9, (1, 300), generator=g, dtype=torch.int32).sort(-1).values for _ in "ac")
        a, c = (torch.where(there(i), end, i) for i in (a, c))
        here, other = (a[:, None], c[:, :, None]) if mask.startswith("a[b, k]") else (a[:, :, None], c[:, None])
        allowed = ((here < other) & (x[:, None] <= x[:, :, None]))[:, None]
        given = {"a": a, "c": c, "x": x}
        if target in ("torch", "triton"):
            out = kernel(q, k, v, **given)
        else:
            arrays = [i.transpose(1, 2).numpy() for i in (q, k, v)]
            found = kernel(*arrays, **{n: i.numpy() for n, i in given.items()})
            out = torch.tensor(np.asarray(found)).transpose(1, 2)
        torch.testing.assert_close(out.double(), attended(q, k, v, allowed), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("storage", "mask"), [("i16", "x[b, k] + 1 <= x[b, q]"), ("u8", "x[b, k] * 2 <= x[b, q]")])
def test_small_ints_do_not_leave_32_bits(storage: str, mask: str) -> None:
    attngen.compile(f"attention a\nassume Sq == Sk\nparam x: {storage}[B, Sk]\nmask = {mask}\n", target="jax")


@pytest.mark.parametrize(
    ("storage", "least", "greatest"), [("u8", 0, 255), ("i8", -128, 127), ("i16", -(2**15), 2**15 - 1)]
)
def test_examples_of_small_ints_reach_the_ends_of_their_storage(storage: str, least: int, greatest: int) -> None:
    spec = attngen.compile(
        f"attention a\nparam x: {storage}[B, Sk]\nparam n: {storage}[Hq]\nmask = x[b, k] > n[h]\n"
    ).spec
    sizes = {"B": 2, "Hq": 2, "Hkv": 1, "Sq": 700, "Sk": 700, "D": 16, "Dv": 16}
    for ints, end in ((Ints.LEAST, least), (Ints.GREATEST, greatest)):
        x = examples(spec, sizes, ints=ints)["x"]
        assert isinstance(x, np.ndarray) and end in x and least <= x.min() and x.max() <= greatest
    n = examples(spec, sizes)["n"]
    assert isinstance(n, np.ndarray) and least <= n.min() and n.max() <= greatest


WIDE = "param tab: f32[Hq, 10]\nscore = qk * scale + tab[h, {}]\n"
TABLES = {
    "param x: int[Sk]\n" + WIDE.format("(x[k] * 100003) % 10"): (torch.int32, 30_000, 100_000),
    "param x: u8[Sk]\n" + WIDE.format("(x[k] * 3) % 10"): (torch.uint8, 0, 255),
    "param x: i16[Sk]\n" + WIDE.format("(x[k] * 3) % 10"): (torch.int16, -32_000, 32_000),
    "param x: i8[Sk]\nparam tab: f32[Hq, 300]\nscore = qk * scale + tab[h, x[k]]\n": (torch.int8, 0, 120),
    "param x: u8[Sk]\nparam tab: f32[10]\nscore = qk * scale + tab[x[k]]\n": (torch.uint8, 0, 10),
    "param x: u8[Sk]\nparam y: int[P]\nparam tab: f32[10]\nscore = qk * scale + tab[y[x[k]]]\n": (torch.uint8, 0, 40),
}


@pytest.mark.parametrize("target", ["torch", "triton"])
@pytest.mark.parametrize("text", TABLES)
def test_stored_ints_are_widened_before_they_choose_whose_gradient_it_is(text: str, target: str) -> None:
    """In their own storage products would wrap, and PyTorch takes a tensor of uint8 as a mask."""
    dtype, least, most = TABLES[text]
    r = torch.Generator().manual_seed(0)
    q, k, v, d_out = (torch.randn(1, h, S, 8, generator=r) for h in (2, 1, 1, 2))
    x = torch.randint(least, most, (S,), generator=r, dtype=dtype)
    more = {"y": torch.randint(0, 10, (S,), generator=r)} if "param y" in text else {}
    shape = (2, 300) if "300" in text else (2, 10) if "Hq" in text else (10,)
    found: list[torch.Tensor] = []
    for words in (text, text.replace(": u8", ": int").replace(": i16", ": int").replace(": i8", ": int")):
        tab = torch.linspace(-1, 1, 2 * 300)[: int(np.prod(shape))].reshape(shape).requires_grad_()
        own = x if words is text else x.long()
        attngen.compile(f"attention a\n{words}", target=target)(q, k, v, tab=tab, x=own, **more).backward(d_out)
        assert tab.grad is not None
        found.append(tab.grad)
    assert found[1].abs().max() > 0.1 and torch.equal(*found)
