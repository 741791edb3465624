"""Every attention that an adapter may choose compiles, which proves it, and equals its formula."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from attngen.integrations.specs import Choice, compiled

CHOICES = [
    Choice(before=before, after=after, chunk=chunk, softcap=softcap, sinks=sinks, documents=documents)
    for (before, after), chunk, softcap, sinks, documents in product(
        ((None, 0), (4, 0), (None, None), (5, 5)), (None, 4), (None, 2.0), (False, True), (False, True)
    )
    if chunk is None or after == 0
]
CHOICES += [Choice(before=before, after=after) for before, after in ((3, None), (None, 2), (0, 2), (3, 1))]
CHOICES += [
    Choice(bias=True),
    Choice(before=4, bias=True, kept=True, sinks=True),
    Choice(after=None, bias=True),
    Choice(block=4, kept=True),
]


def formula(
    choice: Choice, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, params: dict[str, torch.Tensor]
) -> torch.Tensor:
    queries, keys = q.shape[2], k.shape[2]
    query = torch.arange(queries)[:, None] + keys - queries
    key = torch.arange(keys)
    allowed = torch.ones(1, queries, keys, dtype=torch.bool)
    if choice.before is not None:
        allowed = allowed & (key >= query - choice.before)
    if choice.after is not None:
        allowed = allowed & (key <= query + choice.after)
    if choice.chunk is not None:
        place = params["position"] if choice.documents else key + params["first"][:, None]
        chunk = place // choice.chunk
        allowed = allowed & (chunk[:, -queries:, None] == chunk[:, None])
    if choice.documents:
        allowed = allowed & (params["ids"][:, :, None] == params["ids"][:, None])
    scores = q.double() @ k.double().mT / q.shape[3] ** 0.5
    if choice.bias:
        scores = scores + params["bias"]
    if choice.kept:
        allowed = allowed & params["kept"][:, None]
    if choice.block is not None:
        block = key // choice.block
        allowed = allowed[:, None] & (params["chosen"][..., None] == block).any(-2)
    if choice.softcap is not None:
        scores = choice.softcap * (scores / choice.softcap).tanh()
    scores = scores.masked_fill(~(allowed if allowed.ndim == 4 else allowed[:, None]), -torch.inf)
    if choice.sinks:
        sink = params["sink"].double()[None, :, None, None].expand(*scores.shape[:3], 1)
        return torch.cat([scores, sink], -1).softmax(-1)[..., :-1] @ v.double()
    return scores.softmax(-1) @ v.double()


@pytest.mark.parametrize("choice", CHOICES, ids=lambda c: f"{c.name()}_{c.before}_{c.after}_{c.chunk}")
def test_choice(choice: Choice) -> None:
    torch.manual_seed(0)
    keys, queries = 13, 13 if choice.documents else 9
    q, k, v = (torch.randn(2, 2, length, 16) for length in (queries, keys, keys))
    params: dict[str, torch.Tensor] = {}
    if choice.sinks:
        params["sink"] = torch.randn(2)
    if choice.chunk is not None and choice.documents:
        params["position"] = torch.tensor([[*range(6), *range(7)], [*range(13)]], dtype=torch.int32)
    elif choice.chunk is not None:
        params["first"] = torch.tensor([0, 3], dtype=torch.int32)
    if choice.documents:
        params["ids"] = torch.tensor([[0] * 6 + [1] * 7, [0] * 13], dtype=torch.int32)
    if choice.bias:
        params["bias"] = torch.randn(1, 2, queries, keys)
    if choice.block is not None:
        params["chosen"] = torch.randint(-1, 4, (2, 2, queries, 2), dtype=torch.int32)
    if choice.kept:
        params["kept"] = torch.rand(2, keys) < 0.5
    expected = formula(choice, q, k, v, params).nan_to_num()
    found = compiled(choice, "torch")(q, k, v, **params)
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)


def test_a_choice_is_compiled_once() -> None:
    assert compiled(Choice(before=3), "torch") is compiled(Choice(before=3), "torch")


@pytest.mark.parametrize("choice", [Choice(before=5, after=3), Choice(chunk=4, before=4, sinks=True)])
def test_choice_in_triton(choice: Choice) -> None:
    q, k, v = (torch.randn(2, 2, 20, 16) for _ in range(3))
    params = {"sink": torch.randn(2), "first": torch.tensor([0, 3], dtype=torch.int32)} if choice.sinks else {}
    found = compiled(choice, "triton")(q, k, v, **params)
    torch.testing.assert_close(found.double(), formula(choice, q, k, v, params), rtol=1e-5, atol=1e-5)
