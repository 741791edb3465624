"""What version 3 of the language added: `distance`, `logsigmoid`, `softplus`, `in`."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import attngen
from attngen import api
from attngen.errors import Source

TARGETS = ("triton", "torch", "jax", "pallas")
EXAMPLES = Path("examples")


def ir(body: str, name: str = "a") -> str:
    return api.stage("ir", Source(f"attention {name}\n{body}\n"), api.options("triton"))


def line(body: str, word: str) -> str:
    return next(x for x in ir(body).split("\n") if x.startswith(word))


def call(kernel: attngen.Kernel, q: Tensor, k: Tensor, v: Tensor, **params: Tensor | float) -> Tensor:
    """Of any target, on tensors in the order of Triton's."""
    if kernel.target in ("triton", "torch"):
        return kernel(q, k, v, **params).detach()
    import jax.numpy as jnp

    arrays: list[Any] = [jnp.asarray(x.transpose(1, 2).numpy()) for x in (q, k, v)]
    given = {name: jnp.asarray(p.numpy()) if isinstance(p, Tensor) else p for name, p in params.items()}
    return torch.tensor(np.asarray(kernel(*arrays, **given))).transpose(1, 2)


# ---------------------------------------------------------------- distance


@pytest.mark.parametrize("target", TARGETS)
def test_the_last_query_alone_has_the_last_row_of_the_front_page(target: str) -> None:
    """That of the whole call, and that of a formula in plain torch."""
    kernel = attngen.compile(EXAMPLES / "windowed_alibi.attn", target=target, window=24)
    n, heads = 70, 2
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, heads, n, 16, generator=generator) for _ in range(3))
    slope = torch.tensor([0.5, 0.125])
    whole = call(kernel, q, k, v, slope=slope, cap=5.0)
    last = call(kernel, q[:, :, -1:], k, v, slope=slope, cap=5.0)
    torch.testing.assert_close(last, whole[:, :, -1:], rtol=1e-5, atol=1e-5)
    behind = n - 1 - torch.arange(n)
    score = 5 * torch.tanh(q[:, :, -1:].double() @ k.double().mT / 4 / 5) - slope[:, None, None].double() * behind
    weight = score.masked_fill(behind >= 24, -torch.inf).softmax(-1)
    torch.testing.assert_close(last.double(), weight @ v.double(), rtol=1e-5, atol=1e-5)


def test_the_last_queries_of_sequences_have_the_last_rows() -> None:
    """With lengths, and packed: each sequence's last two queries are at its last two keys."""
    kernel = attngen.compile(EXAMPLES / "windowed_alibi.attn", window=6)
    lengths, heads = [9, 20], 2
    generator = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(2, heads, 20, 16, generator=generator) for _ in range(3))
    given: dict[str, Any] = {"slope": torch.tensor([0.5, 0.125]), "cap": 5.0}
    wanted = [kernel(*(x[b : b + 1, :, :n] for x in (q, k, v)), **given)[0, :, -2:] for b, n in enumerate(lengths)]
    queries = torch.stack([q[b, :, n - 2 : n] for b, n in enumerate(lengths)])
    out = kernel(queries, k, v, k_stop=torch.tensor(lengths, dtype=torch.int32), **given)
    torch.testing.assert_close(out, torch.stack(wanted), rtol=1e-5, atol=1e-5)
    packed_k, packed_v = (torch.cat([x[b, :, :n] for b, n in enumerate(lengths)], 1).transpose(0, 1) for x in (k, v))
    ends = {name: torch.tensor(x, dtype=torch.int32) for name, x in (("q", [0, 2, 4]), ("k", [0, 9, 29]))}
    packed_q = queries.transpose(1, 2).flatten(0, 1)
    out = kernel.varlen(packed_q, packed_k, packed_v, cu_seqlens_q=ends["q"], cu_seqlens_k=ends["k"], **given)
    torch.testing.assert_close(out, torch.cat(wanted, 1).transpose(0, 1), rtol=1e-5, atol=1e-5)


def test_a_file_may_have_the_new_names_of_its_own() -> None:
    """Files of versions 1 and 2 mean what they meant; what else is in the prelude keeps its own meaning."""
    assert line("mask = distance == 3", "mask") == "mask = q + Sk - Sq - k == 3"
    assert line("let distance = q - k\nmask = 0 <= distance", "mask") == "mask = 0 <= q - k"
    own = line("let distance = q - k\nscore = qk - float(distance)\nmask = sliding_window(4)", "mask")
    assert own == line("mask = sliding_window(4)", "mask")
    assert line("let distance(a, b) = abs(a - b)\nmask = distance(q, k) < 3", "mask") == "mask = abs(q - k) < 3"
    assert line("let near(distance) = distance < 3\nmask = near(k)", "mask") == "mask = k < 3"
    assert line("param distance: int\nmask = k < distance", "mask") == "mask = k < distance"
    assert line("const distance = 7\nmask = k < distance", "mask") == "mask = k < 7"
    assert line("param t: f32[distance]\nscore = qk * t[q % distance]", "score") == "score = qk * t[q % distance]"
    assert line("const softplus = 2.0\nscore = qk * softplus", "score") == "score = qk * 2.0"
    assert line("param logsigmoid: f32[Hq]\nscore = qk * logsigmoid[h]", "score") == "score = qk * logsigmoid[h]"
    assert line("let softplus(x) = log(1 + exp(x))\nscore = softplus(min(qk, 9.0))", "score").startswith("score = log(")
    assert line("let logsigmoid(x) = x\nscore = logsigmoid(qk)", "score") == "score = qk"
    for name in ("distance", "softplus", "logsigmoid"):
        assert ir("mask = causal", name).startswith(f"attention {name}\n")


def test_what_the_language_had_before_gives_way_to_nothing() -> None:
    with pytest.raises(attngen.SpecError, match=r"2:5: error\[redefined\]: `causal` is defined by the prelude"):
        attngen.compile("attention a\nlet causal = k <= q\nmask = causal\n")


# ---------------------------------------------------------------- logsigmoid, softplus

X = torch.tensor([0.0, -0.0, 100.0, -100.0, 1e-3, -1e-3, 1.0, -1.0, 15.0, -15.0, 30.0, -30.0, 89.0, -89.0])
GATES = """attention gates
param x: f32[Sk]
param y: f32[Sk]
param base: f32[Sk] fixed
score = qk * scale + (logsigmoid(x[k]) + softplus(y[k]) - base[k])
"""


@pytest.mark.parametrize("target", TARGETS)
def test_they_are_torchs_with_its_gradients(target: str) -> None:
    """`base` brings the logits of all keys near 0, so that each key has a part in the result."""
    kernel = attngen.compile(GATES, target=target)
    generator = torch.Generator().manual_seed(2)
    q, k, v, seed = (torch.randn(1, 1, len(X), 16, generator=generator) for _ in range(4))
    x, y = X, -X.roll(5)
    base = F.logsigmoid(x.double()) + F.softplus(y.double())
    exact = [t.double().requires_grad_() for t in (x, y)]
    score = q.double() @ k.double().mT / 4 + (F.logsigmoid(exact[0]) + F.softplus(exact[1]) - base)
    wanted = score.softmax(-1) @ v.double()
    gradients = torch.autograd.grad((wanted * seed).sum(), exact)
    out = call(kernel, q, k, v, x=x, y=y, base=base.float())
    torch.testing.assert_close(out.double(), wanted.detach(), rtol=1e-5, atol=2e-5)
    if target in ("triton", "torch"):
        leaves = [t.clone().requires_grad_() for t in (x, y)]
        result = kernel(q, k, v, x=leaves[0], y=leaves[1], base=base.float())
        found = torch.autograd.grad((result * seed).sum(), leaves)
    else:
        import jax
        import jax.numpy as jnp

        arrays = [jnp.asarray(t.transpose(1, 2).numpy()) for t in (q, k, v, seed)]

        def loss(x: Any, y: Any) -> Any:
            return (kernel.function(*arrays[:3], x=x, y=y, base=jnp.asarray(base.float().numpy())) * arrays[3]).sum()

        given = [jnp.asarray(t.numpy()) for t in (x, y)]
        found = [torch.tensor(np.asarray(g)) for g in jax.grad(loss, (0, 1))(*given)]
    for own, right, leaf in zip(found, gradients, (x, y), strict=True):
        torch.testing.assert_close(own.double(), right, rtol=1e-4, atol=2e-5)
        assert (right[leaf == 0].abs() > 2e-3).all()  # the derivative at 0, 1/2, counts


@pytest.mark.parametrize(("name", "sign"), [("logsigmoid", -1), ("softplus", 1)])
def test_their_derivatives_are_exact_to_float32_on_their_small_side(name: str, sign: int) -> None:
    """A gate that is almost open, or shut, still learns: the derivative is no difference of numbers near 1."""
    from attngen.ir.evaluate import evaluate
    from attngen.ir.nodes import Symbol, Type
    from attngen.plan.score.derivative import derivative as planned

    spec = api.analyse(Source(f"attention a\nscore = {name}(qk)\n"))
    slope = planned(spec.score, Symbol("qk", Type.FLOAT))
    x = np.array([0.0, 1e-3, -1e-3, 1, -1, 16, -16, 40, -40, 80, -80, 1e4, -1e4], np.float32)
    found = evaluate(slope, {"qk": x}, {}, np.float32)
    wanted = torch.sigmoid(sign * torch.tensor(x, dtype=torch.float64))
    np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-40)


@pytest.mark.parametrize("function", ["logsigmoid", "softplus"])
def test_they_are_proved_for_every_x(function: str) -> None:
    """Whatever q . k or a param is, up to the largest input that any claim speaks of."""
    proof = api.check(
        Source(f"attention a\nparam x: f32[Sk]\nscore = qk * scale + {function}(x[k]) - {function}(qk)\n")
    )
    assert proof.holds and not proof.unknown


# ---------------------------------------------------------------- in

LISTS = """attention lists
param chosen: int[B, Hkv, blocks, most]
param banned: int[B, n]
param near: i8[3]
score = qk * scale + (0.5 if k - 4 in banned[b] else 0.0)
mask = (k // 8 in chosen[b, hkv, q // 8] or k - q in near) and k not in banned[b]
"""


def listed(lists: Tensor, value: Tensor) -> Tensor:
    """Whether each row of lists, by Python's own `in`, has each value that is no less than 0."""
    rows = lists.reshape(math.prod(lists.shape[:-1]), lists.shape[-1]).tolist()
    found = [[x >= 0 and x in row for x in value.tolist()] for row in rows]
    return torch.tensor(found).reshape(*lists.shape[:-1], len(value))


def by_hand(q: Tensor, k: Tensor, v: Tensor, chosen: Tensor, banned: Tensor, near: Tensor) -> Tensor:
    rows, columns = torch.arange(q.shape[2]), torch.arange(k.shape[2])
    shared = q.shape[1] // k.shape[1]
    blocks = torch.cat([chosen, chosen.new_full((*chosen.shape[:2], 9, chosen.shape[3]), -1)], 2)
    allowed = listed(blocks, columns // 8)[:, :, rows // 8].repeat_interleave(shared, 1)
    allowed = allowed | torch.stack([listed(near, columns - row) for row in rows])
    left_out = listed(banned, columns)[:, None, None]
    k, v = (torch.where(left_out.mT, 0, x).repeat_interleave(shared, 1) for x in (k, v))
    score = q @ k.mT / 4 + 0.5 * listed(banned, columns - 4)[:, None, None].to(q.dtype)
    weight = score.masked_fill(~(allowed & ~left_out), -torch.inf).softmax(-1)
    return torch.where(weight.isnan(), 0, weight) @ v


@pytest.mark.parametrize(("most", "n"), [(2, 3), (0, 1), (3, 0)])
@pytest.mark.parametrize("target", TARGETS)
def test_lists_are_those_of_python(target: str, most: int, n: int) -> None:
    """With -1 in them, without elements, and none for the last queries. A key that no query may see holds NaN."""
    g = torch.Generator().manual_seed(3)
    q, k, v, seed = (torch.randn(2, h, s, 16, generator=g) for h, s in ((4, 21), (2, 27), (2, 27), (4, 21)))
    chosen = torch.randint(-1, 5, (2, 2, 2, most), generator=g, dtype=torch.int32)  # 21 queries are three blocks
    banned = torch.randint(-1, 29, (2, n), generator=g, dtype=torch.int32)
    near = torch.tensor([-3, 0, 5], dtype=torch.int8)
    left_out = listed(banned, torch.arange(27))[:, None, :, None]
    k, v = (torch.where(left_out, torch.nan, x) for x in (k, v))
    exact = [x.double().requires_grad_() for x in (q, k, v)]
    wanted = by_hand(*exact, chosen, banned, near)
    gradients = torch.autograd.grad((wanted * seed).sum(), exact)
    kernel = attngen.compile(LISTS, target=target)
    out = call(kernel, q, k, v, chosen=chosen, banned=banned, near=near)
    torch.testing.assert_close(out.double(), wanted.detach(), rtol=1e-5, atol=1e-5)
    if target in ("triton", "torch"):
        leaves = [x.clone().requires_grad_() for x in (q, k, v)]
        result = kernel(*leaves, chosen=chosen, banned=banned, near=near)
        found = torch.autograd.grad((result * seed).sum(), leaves)
    else:
        import jax
        import jax.numpy as jnp

        arrays = [jnp.asarray(x.transpose(1, 2).numpy()) for x in (q, k, v)]
        data = {"chosen": chosen, "banned": banned, "near": near}
        _, pull = jax.vjp(lambda *a: kernel(*a, **{n: jnp.asarray(x.numpy()) for n, x in data.items()}), *arrays)
        turned = pull(jnp.asarray(seed.transpose(1, 2).numpy()))
        found = [torch.tensor(np.asarray(x)).transpose(1, 2) for x in turned]
    for a, b in zip(found, gradients, strict=True):
        torch.testing.assert_close(a.double(), b, rtol=1e-5, atol=1e-5)


def test_lists_without_elements_leave_no_work() -> None:
    """Whatever the size's name is: a normalizer has names m and n of its own."""
    kernel = attngen.compile("attention a\nparam t: int[B, n]\nmask = k // 8 in t[b]\n")
    for most in (0, 2):
        t = torch.zeros(1, most, dtype=torch.int32)
        assert kernel.work((0, 16), (0, 16), Sq=16, Sk=16, t=t) == 16 * 8 * (most > 0)


def test_packed_lists_lose_the_batch() -> None:
    """A list for each query: of all queries of all sequences, one after the other."""
    kernel = attngen.compile("attention by_row\nparam seen: int[B, Sq, n]\nmask = k in seen[b, q]\n")
    g = torch.Generator().manual_seed(4)
    lengths = [9, 0, 14]
    q, k, v = (torch.randn(2, sum(lengths), 16, generator=g) for _ in range(3))
    seen = torch.randint(-1, 14, (sum(lengths), 4), generator=g, dtype=torch.int32)
    ends = torch.tensor([0, 9, 9, 23], dtype=torch.int32)
    out = kernel.varlen(*(x.transpose(0, 1) for x in (q, k, v)), cu_seqlens_q=ends, cu_seqlens_k=ends, seen=seen)
    for start, stop in ((0, 9), (9, 23)):
        rows = (x[None, :, start:stop] for x in (q, k, v))
        alone = kernel(*rows, seen=seen[None, start:stop])[0]
        torch.testing.assert_close(out[start:stop].transpose(0, 1), alone, rtol=1e-5, atol=1e-5)
        assert alone.abs().sum() > 0


@pytest.mark.parametrize("target", TARGETS)
def test_a_value_may_be_of_the_head_or_of_the_call(target: str) -> None:
    """Constants of a kernel among them: a literal, and a head dim."""
    text = "attention a\nparam t: int[Hq, n]\nmask = D in t[h] or 2 in t[h] or h in t[0] and -1 not in t[7]\n"
    kernel = attngen.compile(text, target=target)
    q, k, v = (torch.randn(1, 4, 5, 16, generator=torch.Generator().manual_seed(5)) for _ in range(3))
    t = torch.tensor([[3, -1], [16, 0], [5, 5], [7, 2]], dtype=torch.int32)
    out = call(kernel, q, k, v, t=t)
    seen = torch.tensor([False, True, False, True])
    assert torch.equal(out.abs().sum((0, 2, 3)) > 0, seen | torch.tensor([False, False, False, True]))


def test_in_is_written_and_read_as_python_has_it() -> None:
    dims = "param t: int[B, n]\nparam u: u8[m]\n"
    assert line(dims + "mask = k+1 in t[ b ]", "mask") == "mask = k + 1 in t[b]"
    assert line(dims + "mask = not k in u", "mask") == "mask = k not in u"
    assert line(dims + "mask = not (k not in u)", "mask") == "mask = k in u"
    assert line(dims + "mask = k | 1 in u and q < 3", "mask") == "mask = k | 1 in u and q < 3"
    assert line(dims + "let has(x, l) = x in l[b]\nmask = has(q, t)", "mask") == "mask = q in t[b]"
    assert line(dims + "score = float(k in t[b])", "score") == "score = float(k in t[b])"
    text = "attention a\n\nparam t: int[B, n]\n\nmask = k not in t[b]\n"
    assert api.format_source(Source(text.replace("not in", "not  in"))) == text


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        ("k in t", "2 dimensions, indexed with 0: `in` needs 1\n.*\n.*write k in t.b.: the last axis is the list"),
        ("k + q in t[b, q]", r"indexed with 2: `in` needs 1\n.*\n.*write \(k \+ q\) in t.b."),
        ("k in u[b]", r"1 dimension, indexed with 1: `in` needs none\n.*\n.*write k in u: "),
        ("k * 0.5 in u", "is a float, and `in` looks for an int"),
        ("k in f[b]", r"`f` holds floats, .*\n.*\n.*write `param f: int\[B, n\]`"),
        ("k in c[b]", r"`c` holds bools, .*\n.*\n.*read the bool: c\[b, …\]"),
        ("k not in w", r"`w` is a scalar param, .*\n.*\n.*write k != w"),
        ("k not in q", r"`q` is an index, .*\n.*\n.*write k != q"),
        ("k in none[b]", r"`none` is not defined\n.*\n.*declare it with param none: int\[…\]"),
        ("k in t[0.5]", "an index of `t` must be an int"),
    ],
)
def test_what_is_no_list_is_said_with_a_fix(mask: str, message: str) -> None:
    params = "param t: int[B, n]\nparam u: int[n]\nparam f: f32[B, n]\nparam c: bool[B, n]\nparam w: int\n"
    with pytest.raises(attngen.SpecError, match=message):
        ir(f"{params}mask = {mask}")


def test_a_list_is_read_inside_its_tensor() -> None:
    """Nothing is asked of sizes, and the kernel compares what may lie outside."""
    source = Source("attention a\nparam t: int[n, m]\nmask = k in t[q - 3]\n")
    proof = api.check(source)
    assert not proof.refuted and not proof.unknown and not proof.needs
    claims = [c for s in proof.shown for c in s.claims if c.subject == "k in t[q - 3]"]
    assert any("every list" in c.sentence for c in claims)


# ---------------------------------------------------------------- lists that each query has by itself

LISTED = {
    "blocks": ("k // 16", lambda at: at // 16),
    "moved": ("(k + 5 - Hkv) // 8", lambda at: (at + 3) // 8),
    "below 0": ("(k - 40) // 16", lambda at: (at - 40) // 16),
    "small": ("k // 4", lambda at: at // 4),
    "pairs": ("k - 3 + 0 * q", lambda at: at - 3),
}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", LISTED)
def test_lists_of_each_query(name: str, target: str) -> None:
    """Numbers of blocks are looked for once a list; others for each pair."""
    member, number = LISTED[name]
    text = f"attention a\nparam chosen: int[B, Hkv, Sq, n]\nmask = causal and {member} in chosen[b, hkv, q]\n"
    kernel = attngen.compile(text, target, tile=(16, 32))
    if target == "triton":
        assert ("rows.listed_block(" in kernel.source) == (name in ("blocks", "moved", "below 0"))
    generator = torch.Generator().manual_seed(0)
    chosen = torch.randint(-3, 12, (2, 2, 60, 5), generator=generator)
    q, k, v = (torch.randn(2, h, n, 16, generator=generator) for h, n in ((4, 60), (2, 75), (2, 75)))
    at = torch.arange(75)
    there = (chosen[..., None] == number(at)).any(-2) & (number(at) >= 0) & (at <= 15 + torch.arange(60)[:, None])
    allowed = there.repeat_interleave(2, 1)

    def dense(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        k, v = (x.repeat_interleave(2, 1) for x in (k, v))
        return (q @ k.mT / 4).masked_fill(~allowed, -torch.inf).softmax(-1).nan_to_num() @ v

    torch.testing.assert_close(call(kernel, q, k, v, chosen=chosen), dense(q, k, v), rtol=1e-4, atol=1e-5)
    if target == "triton":
        leaves = [x.clone().requires_grad_() for x in (q, k, v)]
        found = (
            torch.autograd.grad(f(*leaves).square().sum(), leaves)
            for f in (lambda *given: kernel(*given, chosen=chosen), dense)
        )
        for mine, theirs in zip(*found, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-4)
