"""Specs that are read of functions have the functions' names, and what the language lacks is refused by its line."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from flex.read_back import SIZES, functions_compute, spec_computes

import attngen
from attngen import UsageError
from attngen.flex.spec import read

WINDOW = 128
slopes = torch.linspace(0.5, 0.1, 4)
lists = torch.randint(-1, 8, (2, 64, 3), dtype=torch.int32, generator=torch.Generator().manual_seed(0))
table = torch.randn(4, 33, generator=torch.Generator().manual_seed(0)).requires_grad_()
offset = torch.tensor(3)
cap = torch.tensor(2.0, requires_grad=True)
small = torch.arange(64, dtype=torch.int8)


def with_slopes(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    distance = (q_idx - kv_idx).abs()
    return score - slopes[h] * distance + torch.where(distance > 8, 0.1, -0.5)


def in_window(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return (q_idx >= kv_idx) & (q_idx - kv_idx < WINDOW)


def test_names_of_the_functions_are_those_of_the_spec() -> None:
    assert read(with_slopes, in_window, "one", {}).text == (
        "attention one\n\nconst WINDOW = 128\n\nparam slopes: f32[Hq] fixed\n\n"
        "let distance = abs(q - k)\n\n"
        "score = qk * scale - slopes[h] * distance + (0.1 if distance > 8 else -0.5)\n"
        "mask = q >= k and q - k < WINDOW\n"
    )


def test_names_may_be_asked_for() -> None:
    text = read(with_slopes, in_window, "one", {"steep": slopes, "reach": WINDOW}).text
    assert "param steep: f32[Hq] fixed" in text and "const reach = 128" in text and "q - k < reach" in text


def test_names_that_the_language_has_are_avoided() -> None:
    def taken(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return distance[kv_idx] <= alibi[q_idx]

    distance, alibi = torch.arange(64), torch.arange(64)
    found = read(None, taken, "one", {})
    assert set(found.params) == {"distance", "alibi_2"}
    assert attngen.compile(found.text).spec.name == "one"


Case = tuple[Callable[..., Any] | None, Callable[..., Any] | None]
CASES: dict[str, Case] = {
    "a scalar": (None, lambda b, h, q, k: q + offset >= k),
    "the last": (lambda s, b, h, q, k: s + table[h, -1], None),
    "casts": (lambda s, b, h, q, k: s + (q > k).float() * 0.5 + (s.int() % 3).to(torch.float32), None),
    "quotients": (lambda s, b, h, q, k: s + (q / 3).floor() + torch.div(k, 3, rounding_mode="floor") + s % 2.0, None),
    "powers": (lambda s, b, h, q, k: s**2 + 2.0 ** (-(h + 1).float()) + (q + 1.0) ** -1 + (k + 1.0).sqrt(), None),
    "in place": (lambda s, b, h, q, k: s.clone().mul_(2).add_(1), None),
    "activations": (lambda s, b, h, q, k: torch.nn.functional.silu(s) + torch.nn.functional.elu(s), None),
    "softplus": (lambda s, b, h, q, k: torch.nn.functional.softplus(s) + torch.nn.functional.logsigmoid(s), None),
    "reversed": (lambda s, b, h, q, k: 1 - s + torch.rsub(q, k, alpha=3) + torch.add(q, k, alpha=2), None),
    "bits": (None, lambda b, h, q, k: ((q ^ k) & 3 == 0) | ((q >> 2) == (k << 1)) | ~(q > k)),
    "a sum": (lambda s, b, h, q, k: torch.zeros_like(s).add_(table[h, 0]).add_(s), None),
    "soft cap": (lambda s, b, h, q, k: cap * torch.tanh(s / cap) + torch.exp(-cap * (q - k).abs()), None),
    "a score above": (lambda s, b, h, q, k: torch.where(s > 1, s * 0.5, s), None),
    "a mask as a score": (lambda s, b, h, q, k: torch.where(q >= k, s * 2, -math.inf), None),
    "a mask to be filled": (lambda s, b, h, q, k: (s * 2).masked_fill(q < k, -math.inf), None),
    "bools": (None, lambda b, h, q, k: (q < 9) == (k < 9)),
    "a partial": (None, functools.partial(lambda b, h, q, k, reach: q - k < reach, reach=7)),
}
FORMULAS: dict[str, tuple[Case, Case]] = {
    "a list": ((None, lambda b, h, q, k: (lists[b, q] == k // 8).any()),
               (None, lambda b, h, q, k: (lists[b, q] == (k // 8)[..., None]).any(-1))),
    "isin": ((None, lambda b, h, q, k: torch.isin(k // 8, lists[0, 0]) | (q == k)),
             (None, lambda b, h, q, k: (lists[0, 0] == (k // 8)[..., None]).any(-1) | (q == k))),
    "no list": ((None, lambda b, h, q, k: torch.isin(k, lists[0, 0], invert=True) & ~(lists[0, 1] == q).any()),
                (None, lambda b, h, q, k: ~((lists[0, 0] == k[..., None]) | (lists[0, 1] == q[..., None])).any(-1))),
    "two steps": ((lambda s, b, h, q, k: s + table[h][(q - k).clamp(-16, 16) + 16], None),
                  (lambda s, b, h, q, k: s + table[h, (q - k).clamp(-16, 16) + 16], None)),
    "an ellipsis": ((lambda s, b, h, q, k: s + table[h, ...][0], None),
                    (lambda s, b, h, q, k: s + table[h, 0], None)),
}  # fmt: skip
"""Functions that take indices without a dimension alone, and the same for tensors of them."""


@pytest.mark.parametrize("case", [*CASES, *FORMULAS])
def test_a_spec_computes_what_the_function_computes(case: str) -> None:
    own, formula = FORMULAS[case] if case in FORMULAS else (CASES[case], CASES[case])
    qk = torch.randn(2, 4, 64, 64, generator=torch.Generator().manual_seed(1)) * 3
    score, mask = spec_computes(read(*own, "one", {}), SIZES, qk)
    wanted, allowed = functions_compute(*formula, SIZES, qk)
    allowed = allowed & ~wanted.isinf()
    assert (torch.tensor(mask) == allowed).all()
    close = torch.tensor(score)[allowed], wanted.detach().double()[allowed]
    torch.testing.assert_close(*close, rtol=1e-5, atol=1e-5)


def test_a_score_of_minus_infinity_is_a_mask_and_a_list_is_searched() -> None:
    assert "mask = q >= k" in read(CASES["a mask as a score"][0], None, "one", {}).text
    assert "k // 8 in lists[b, q]" in read(*FORMULAS["a list"][0], "one", {}).text
    assert "param offset: int\n" in read(None, CASES["a scalar"][1], "one", {}).text


def _if(b: Any, h: Any, q: Any, k: Any) -> Any:
    return True if q > k else q == k


def _unknown(b: Any, h: Any, q: Any, k: Any) -> Any:
    return torch.erfinv(q / 64) > 0.5


def _writes(b: Any, h: Any, q: Any, k: Any) -> Any:
    slopes.mul_(q)
    return q > k


def _without_gradients(b: Any, h: Any, q: Any, k: Any) -> Any:
    with torch.no_grad():
        return q * 2 > k


def _through_a_view(b: Any, h: Any, q: Any, k: Any) -> Any:
    q.clone().view(()).add_(k)
    return q > k


REFUSED: dict[str, tuple[Callable[..., Any], str]] = {
    "a branch": (_if, "write torch.where, &, | and ~"),
    "an unknown function": (_unknown, "erfinv: the language has no counterpart"),
    "an assignment": (_writes, "it writes into a captured tensor"),
    "numbers": (lambda b, h, q, k: q - k, "mask_mod gives numbers, not bools"),
    "a whole tensor": (lambda b, h, q, k: slopes > 0, "a captured tensor is read as a whole"),
    "a whole row": (lambda b, h, q, k: lists[b, q] > 0, "a row of a captured tensor is read as a whole"),
    "a float as an index": (lambda b, h, q, k: slopes[q / 2] > 0, "an index is an int"),
    "a slice": (lambda b, h, q, k: slopes[1:][h] > table[h, 1:][q], "an axis has an index"),
    "too many indices": (lambda b, h, q, k: slopes[h, q] > 0, "1 axes is given 2 indices"),
    "a rounded score": (lambda b, h, q, k: (q / 3).bfloat16() > 0, "kernels compute in float32"),
    "random numbers": (lambda b, h, q, k: torch.rand(()) * q > k, "it draws random numbers"),
    "a narrow int": (lambda b, h, q, k: q.to(torch.int8) > k, "leave the cast away"),
    "no gradients": (_without_gradients, "gradients are switched off"),
    "a view": (_through_a_view, "shares its elements with another"),
    "ends of int8": (lambda b, h, q, k: small[q] + small[k] < 0, "write .int() first"),
    "an int to an int": (lambda b, h, q, k: 5 ** (k % 3) > q, "write 1 << n"),
    "a threshold": (lambda b, h, q, k: torch.nn.functional.softplus(q / 1.0, threshold=1) > k, "another function"),
    "an index in a new tensor": (lambda b, h, q, k: torch.tensor([q, k])[0] > k, "write torch.where"),
    "a list of values": (lambda b, h, q, k: q.tolist() > k, "write torch.where"),
    "no number": (lambda b, h, q, k: torch.where(q > k, 1.0, math.nan) > 0, "the language has no NaN"),
    "an index as a list": (lambda b, h, q, k: torch.isin(q, k), "a list is a row"),
    "an axis of its own": (lambda b, h, q, k: (lists[b, q] == k).any(-1, keepdim=True)[0], "gives no axis"),
    "an output": (lambda b, h, q, k: torch.add(q, k, out=torch.tensor(0)) > k, "has no counterpart"),
    "nothing": (lambda b, h, q, k: None, "mask_mod gives a NoneType"),
}


@pytest.mark.parametrize("why", REFUSED)
def test_what_the_language_lacks_is_refused_by_its_line(why: str) -> None:
    function, said = REFUSED[why]
    before = slopes.clone()
    lines, first = inspect.getsourcelines(function)
    with pytest.raises(UsageError) as refused:
        attngen.from_flex(mask_mod=function)
    message = str(refused.value)
    assert said in message
    line = int(message.partition("test_reading.py:")[2].partition(":")[0])
    assert first <= line < first + len(lines)
    assert slopes.equal(before)


def test_a_function_with_other_arguments_is_refused() -> None:
    with pytest.raises(UsageError, match=r"test_reading.py:\d+: mask_mod is called with 4 .*give it as `score_mod=`"):
        attngen.from_flex(mask_mod=with_slopes)
    assert "slopes" in attngen.from_flex(score_mod=with_slopes).text


class Model(torch.nn.Module):
    """Its methods hold numbers that the function below does not read."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Parameter(torch.zeros(4, 65))
        self.span = 32

    def forward(self, q: torch.Tensor, most: int = 128) -> torch.Tensor:
        return attngen.flex_attention(q, q, q, of_model)


model = Model()


def of_model(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return score + model.table[h, (q_idx - kv_idx).clamp(-model.span, model.span) + model.span]


def test_numbers_of_methods_give_no_names() -> None:
    text = attngen.from_flex(of_model, lambda b, h, q, k: q - k < 128).text
    assert "const span = 32" in text and "q - k < 128" in text


def test_nothing_is_no_kernel() -> None:
    with pytest.raises(UsageError, match="takes a score_mod, a mask_mod, or both"):
        attngen.from_flex()
