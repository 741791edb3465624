"""The torch target beside the parity suite: names, small choices, and what only plain PyTorch can do."""

from __future__ import annotations

import ast

import pytest
import torch
from emit_names import CLASHES, SPECS, names_beside_params

import attngen
from attngen import UsageError
from attngen.emit.torch.names import reserved
from attngen.verify.comparison import Case, compare

SIZES = {"B": 1, "Hq": 2, "Hkv": 1, "Sq": 20, "Sk": 20, "D": 16, "Dv": 16}


def check(text: str, **sizes: int) -> None:
    kernel = attngen.compile(text, "torch", tile=(16, 16))
    case = Case("small", "fp32", tuple((SIZES | sizes).items()))
    results = list(compare(kernel, case, "cpu"))
    assert len(results) >= 5
    assert [r for r in results if not r.passed] == []


@pytest.mark.parametrize("name", SPECS)
def test_every_name_of_the_templates_is_reserved(name: str) -> None:
    source = attngen.compile(SPECS[name], "torch").source
    missing = names_beside_params(source) - reserved()
    assert not missing, f"names that the templates use and a param could take: {sorted(missing)}"


@pytest.mark.parametrize("what", CLASHES)
def test_names_that_clash(what: str) -> None:
    check(f"attention subject\n{CLASHES[what]}\nmask = causal\n")


@pytest.mark.parametrize("name", ["out", "lse", "q_tile", "Attention"])
def test_the_attention_may_be_named_like_a_local(name: str) -> None:
    check(f"attention {name}\nmask = causal\n")


@pytest.mark.parametrize(
    "body",
    [
        "param n: int\nmask = q // n == k // n",
        "param n: int\nmask = (q - k) % n == 0",
        "param n: int where 0 <= n < 16\nscore = qk * scale * float(2 ** n)",
        "score = qk * scale + log(-1.0 * D) if D < 0 else qk",
        "mask = D > 5 and causal",
        "mask = D > 500 or causal",
        "score = min(qk, 1) + max(k - q, 3) + abs(q - k) * sign(float(q) - float(k)) + int(qk) + floor(qk) + ceil(qk)",
        "param w: f32[Sk, Hq]\nscore = qk * scale + w[k, h]",
        "param w: f32[Sk, Sq]\nscore = qk * scale + w[k, q]",
        "param w: bf16[Sq]\nscore = qk * scale * w[q]",
        "param w: f32[Hkv, Sq, Sk]\nscore = qk * scale + w[hkv, q, k]",
        "param t: f32[3]\nscore = qk * scale + (t[q % 5] if q % 5 < 3 else 0.0)",
        "param flag: bool[B, Sq]\nmask = flag[b, q]",
        # The score's derivative in the param has row terms of its own, beside that of the mask's test.
        "param w: f32[Hq]\nparam x: f32[B, Sq]\nscore = qk + w[h] * floor(x[b, q])\nmask = k <= q + int(x[b, q])",
        "param flag: bool\nmask = causal if flag else k >= q",
        "param at: int[B, Hq, Sk]\nmask = at[b, h, k] <= q",
    ],
)
def test_corners_of_the_language(body: str) -> None:
    check(f"attention a\n{body}\n")


def test_precision_is_left_to_torch() -> None:
    with pytest.raises(UsageError, match=r"torch\.backends says how torch multiplies"):
        attngen.compile("attention a", "torch", precision="tf32")


def test_the_file_imports_torch_alone_and_starts_no_interpreter(recwarn: pytest.WarningsRecorder) -> None:
    kernel = attngen.compile("attention fresh_one\nmask = causal\n", "torch")
    modules = [n.names[0].name for n in ast.parse(kernel.source).body if isinstance(n, ast.Import)]
    assert modules == ["math", "torch"]
    kernel(*(torch.ones(1, 1, 3, 4) for _ in range(3)))
    assert not [w for w in recwarn if "no GPU" in str(w.message)]


def test_memory_grows_with_the_length_alone() -> None:
    """No tensor of the whole score: the largest one that is made holds one pair of tiles."""
    from torch.utils._python_dispatch import TorchDispatchMode

    largest = 0

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            nonlocal largest
            made = func(*args, **(kwargs or {}))
            for x in made if isinstance(made, tuple | list) else (made,):
                if isinstance(x, torch.Tensor):
                    largest = max(largest, x.untyped_storage().nbytes() // x.element_size())
            return made

    kernel = attngen.compile("attention a\nmask = causal\n", "torch", tile=(64, 64))
    q, k, v = (torch.randn(1, 1, 2048, 16, requires_grad=True) for _ in range(3))
    with Watch():
        kernel(q, k, v).sum().backward()
    assert largest == 2048 * 16


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q": torch.ones(2, 3, 4)}, "q must have 4 dimensions"),
        ({"k": torch.ones(1, 2, 5, 3)}, "k must have q's batch and head dim"),
        ({"v": torch.ones(1, 3, 5, 4)}, "k must have q's batch"),
        ({"q": torch.ones(1, 3, 5, 4)}, "q's 3 heads must be a multiple of the 2 heads"),
        ({"q": torch.ones(1, 2, 5, 4, dtype=torch.float64)}, "q must be float16, bfloat16 or float32"),
        ({"slope": torch.ones(3)}, r"slope must have shape \(Hq\) = \(2,\), not \(3,\)"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, torch.Tensor], message: str) -> None:
    kernel = attngen.compile("attention a\nparam slope: f32[Hq]\nscore = qk * slope[h]\n", "torch")
    given = {n: torch.ones(1, 2, 5, 4) for n in "qkv"} | {"slope": torch.ones(2)} | change
    with pytest.raises(ValueError, match=f"a: {message}"):
        kernel(**given)


def test_a_refused_assume_names_sizes_and_params() -> None:
    kernel = attngen.compile(
        "attention a\nparam n: int\nassume n <= Sq\nscore = qk * scale\nmask = k < n\n", target="torch"
    )
    q = torch.zeros(1, 1, 8, 16)
    with pytest.raises(attngen.UsageError, match=r"assumes n <= Sq; here Sq = 8, n = 9$"):
        kernel(q, q, q, n=9)
