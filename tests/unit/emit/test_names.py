"""Identifiers in generated code: none clashes with another, whatever the user's names are."""

from __future__ import annotations

import ast
import builtins
import itertools
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from property.kernels import Sizes, analysed, errors

import attngen
from attngen.emit import Options
from attngen.emit.text.names import Names
from attngen.emit.text.params import derived
from attngen.emit.triton import placement
from attngen.emit.triton.code.names import reserved
from attngen.errors import InternalError
from attngen.plan import Limits, plan
from attngen.targets import emit

ROOT = Path(__file__).resolve().parents[3]
SPECS = {
    "plain": "",
    "causal": "mask = causal",
    "windows": "mask = (causal and q - k < 64) or k < 4 or q < 2\ntile q = 32, k = 32",
    "dropout": "dropout = 0.25\nmask = causal",
    "sigmoid": "normalizer = sigmoid",
    "softmax1": "normalizer = softmax1\nscore = tanh(qk) * sign(qk) + (0.1 * qk) ** 3 + 2.0 ** -(h + 1)",
    "floored": "mask = (q - k) // 7 == 0 and (k - q) % 3 != 1",
    "summed": "normalizer r {\n weight(s) = max(s, 0)\n denominator = sum + 1\n shift = none\n}\nnormalizer = r",
    "shifted": "normalizer r {\n weight(s) = s ** 2 * exp(s)\n denominator = sum\n shift = max\n"
    " weight(s, m) = s ** 2 * exp(s - m)\n rescale(m, n) = exp(m - n)\n}\nnormalizer = r",
}


def generated(text: str) -> str:
    return emit(plan(analysed(text), Limits(reserved=reserved(), gpu=True)), text, Options())


def names_beside_params(source: str) -> set[str]:
    """What the functions that a param reaches bind or read, but for builtins, the param's own names, private functions
    of the module, and what `Names` hands out itself."""
    found: set[str] = set()
    for function in ast.parse(source).body:
        if isinstance(function, ast.FunctionDef):
            own = {n.id for n in ast.walk(function) if isinstance(n, ast.Name)}
            own |= {n.arg for n in ast.walk(function) if isinstance(n, ast.arg)}
            if any("marker" in n for n in own):
                found |= own
    ours = {"head_term", "row_term", "col_term", "term", "logit_scale", "least_allowed", "n_allowed"}
    return {
        n
        for n in found
        if not (
            n.startswith("_") or n in dir(builtins) or "marker" in n or "MARKER" in n or n.rstrip("0123456789_") in ours
        )
    }


@pytest.mark.parametrize("name", SPECS)
def test_every_name_of_the_templates_is_reserved(name: str) -> None:
    score = "score = " if "score" in SPECS[name] else "score = qk * scale + "
    marked = SPECS[name].replace("score = ", "") if "score" not in SPECS[name] else SPECS[name]
    text = f"attention subject\nparam marker: f32[Hq]\n{marked}\n"
    text = (
        text.replace("score = ", f"{score}marker[h] * k + ") if "score = " in text else f"{text}{score}marker[h] * k\n"
    )
    missing = names_beside_params(generated(text)) - reserved()
    assert not missing, f"names that the templates use and a param could take: {sorted(missing)}"


LISTED = (
    "param marker: int\nparam ids: int[B, Sk]\nscore = qk * scale * float(marker)\n"
    "mask = causal and same_document(ids)\nassume Sq == Sk\n"
)


WINDOW = "param marker: int\nscore = qk * scale * float(marker)\nmask = causal and q - k < 7\n"


@pytest.mark.parametrize(
    "body",
    ["param marker: int\nmask = causal and q - k < marker\n", WINDOW, LISTED],
    ids=["", "window", "listed"],
)
def test_every_name_of_the_backward_kernel_of_one_chip_is_reserved(body: str) -> None:
    source = generated(f"attention subject\n{body}")
    assert "_hopper_backward_kernel" in source
    missing = names_beside_params(source) - reserved() - {"ids", *derived("ids", 2)}
    assert not missing, f"names that the templates use and a param could take: {sorted(missing)}"


def test_names_are_handed_out_once() -> None:
    names = Names(reserved())
    drawn = [
        names.fresh(n)
        for n in ("acc", "acc", "acc_2", "lambda", "match", "_x_", "x_", "slope", "slope_2", "slope", "__")
    ]
    assert len(set(drawn)) == len(drawn)
    assert not set(drawn) & reserved()
    assert all(n.isidentifier() for n in drawn)


def test_names_derived_from_a_name_are_kept_free() -> None:
    names = Names(frozenset())
    assert names.fresh("s", lambda n: (f"{n}_ptr",)) == "s"
    assert names.fresh("s_ptr", lambda n: (f"{n}_ptr",)) == "s_ptr_2"
    other = Names(frozenset())
    assert other.fresh("s_ptr") == "s_ptr"
    assert other.fresh("s", lambda n: (f"{n}_ptr",)) == "s_2"


@pytest.mark.parametrize("hint", ["a b", "a-b", "", "x\n", "é", "1;import os"])
def test_what_is_no_identifier_is_refused(hint: str) -> None:
    with pytest.raises(InternalError):
        Names(reserved()).fresh(hint)


CLASHES = {
    "locals of the kernels": "param acc: f32[Hq]\nparam head: f32[Hq]\nparam row: f32[Hq]\n"
    "let row_max = qk * scale * acc[h] + head[h]\nscore = tanh(row_max) + row_max - 0.1 * row[h] * k",
    "keywords, nearly": "param lambda_: f32\nconst True_ = 2\nparam None_: f32[Hq]\nparam match: f32\n"
    "param type: int\nscore = qk * scale * lambda_ + True_ * None_[h] * match * 0.1 * k + type",
    "modules and builtins": "param tl: f32\nparam torch: f32[Hq]\nparam print: f32\nparam Tensor: f32\n"
    "param triton: f32\nscore = qk * scale * tl + torch[h] * print * 0.1 * k + Tensor * triton * 0.1 * q",
    "derived names": "param s: f32[Hq]\nparam s_ptr: f32[Hq]\nparam s_stride_0: f32\nparam GRAD_S: f32\n"
    "param sum_s: f32\nparam total_s: f32\nlet sum_s_ptr = 0.1 * k\n"
    "score = qk * scale * s[h] + (s_ptr[h] - s_stride_0 + GRAD_S) * sum_s_ptr - sum_s * total_s * sum_s_ptr",
    "locals of the host": "param warps: f32\nparam stages: f32[Hq]\nparam inputs: f32\nparam output: f32\n"
    "param name: f32\n"
    "param dq_BQ: f32\nparam BLOCK: f32\nparam n_sums: f32\n"
    "score = qk * scale * warps + 0.1 * k * (stages[h] + inputs - output * name + dq_BQ - BLOCK * n_sums)",
    "case": "param a: f32\nparam A: f32\nscore = a * qk * scale + 0.1 * A * k",
    "lets that are written alike": "param acc: f32\nlet acc_ = qk * scale * acc\nlet acc__ = acc_ + 0.1 * k\n"
    "score = tanh(acc__) + acc__ * acc_",
}


@pytest.mark.parametrize("what", CLASHES)
def test_names_that_clash_give_working_kernels(what: str) -> None:
    text = f"attention subject\n{CLASHES[what]}\nmask = causal\n"
    found = errors(text, Sizes(1, 2, 1, 20, 20, 16, 16))
    assert all(e <= 2e-5 for e in found.values()), found


def test_names_of_dims_clash_with_nothing() -> None:
    text = "attention subject\nparam table: f32[n, m]\nparam acc: f32[step, width]\n"
    text += "score = qk * scale + 0.1 * n * table[0, 1] * k + acc[0, 0] * m * 0.1 * k\n"
    found = errors(text, Sizes(1, 2, 1, 20, 20, 16, 16), length=5, forward_only=True)
    assert all(e <= 2e-5 for e in found.values()), found


@pytest.mark.parametrize("pair", list(itertools.combinations(["subject", "q_ptr", "out"], 2)))
def test_the_attention_may_be_named_like_a_local(pair: tuple[str, str]) -> None:
    name, param = pair
    found = errors(f"attention {name}\nparam {param}: f32\nscore = qk * scale * {param}\n", Sizes(1, 1, 1, 5, 5, 8, 8))
    assert all(e <= 2e-5 for e in found.values()), found


def test_names_of_bounds_and_data_tests_are_reserved() -> None:
    text = (
        "attention subject\nparam marker: f32[Hq]\nparam t: f32[B, Sk]\nparam ids: int[B, Sk]\n"
        "score = qk * scale * marker[h]\n"
        "mask = (ids[b, q] == ids[b, k] and t[b, q] <= t[b, k] + 1.0 and q - k < 64) or k < 4 or q < 2\n"
    )
    missing = {
        n
        for n in names_beside_params(generated(text)) - reserved()
        if not n.startswith(("t_", "ids_", "total_", "sum_"))
    }
    assert missing <= {"t", "ids"}, missing


VALUES = {
    "listed": f"attention subject\n{LISTED}",
    "summed": "attention subject\nparam marker: f32[Hq]\nscore = qk * scale - marker[h] * (q - k)\ndropout = 0.1\n",
    "over pairs": "attention subject\nparam marker: f32[Hq, 9]\nscore = qk * scale + relative_bias(marker, 4)\n",
    "scattered": "attention subject\nparam marker: f32[Hq, 9]\nscore = qk * scale + marker[h, (q + 2 * k) % 9]\n",
    "short queries": "attention subject\nparam marker: int\nmask = q - k <= marker\nnormalizer = softmax1\n",
}


@pytest.mark.parametrize("name", VALUES)
def test_every_value_that_a_kernel_may_take_is_reserved(name: str) -> None:
    """A call's values are found by the names of kernels' parameters."""
    tree = ast.parse(generated(VALUES[name]))
    calls = [n for n in ast.walk(tree) if isinstance(n, ast.Call) and ast.unparse(n.func) in ("dict", "values.update")]
    given = {k.arg for call in calls for k in call.keywords if k.arg is not None}
    kernels = [f for f in tree.body if isinstance(f, ast.FunctionDef) and f.name.endswith("_kernel")]
    taken = {a.arg.removesuffix("_ptr").removesuffix("_desc") for f in kernels for a in f.args.args}
    assert {"q", "delta"} <= given | taken
    own = {n for n in given | taken if "marker" in n.lower() or n in ("ids", *derived("ids", 2))}
    assert given | taken <= reserved() | own


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"geometry": ("dense", "packed", "lengths", "pieces")},
        {"target": "torch"},
        {"target": "jax"},
        {"target": "pallas"},
    ],
    ids=str,
)
@pytest.mark.parametrize("name", ["causal", "dropout", "sink", "t5_bias"])
def test_no_attention_has_a_name_of_its_modules(name: str, options: dict[str, Any]) -> None:
    try:
        source = attngen.compile(ROOT / "examples" / f"{name}.attn", **options).source
    except attngen.UsageError:
        assert name == "t5_bias" and "geometry" in options  # a table's gradient is summed over pairs
        return
    own = source.partition("# ================")[0]  # names of the runtime give way
    tree = ast.parse(own)
    imported = [a for n in ast.walk(tree) if isinstance(n, ast.Import | ast.ImportFrom) for a in n.names]
    found = {(a.asname or a.name).split(".")[0] for a in imported}
    assigned = [n for n in tree.body if isinstance(n, ast.Assign | ast.AnnAssign)]
    found |= {t.id for n in assigned for t in (n.targets if isinstance(n, ast.Assign) else [n.target])
              if isinstance(t, ast.Name)}  # fmt: skip
    public = {re.sub("_(each|piece)$", "", n) for n in found if not n.startswith("_")}
    assert {"torch", "jax"} & public
    for word in sorted(public):
        with pytest.raises(attngen.SpecError, match=rf"`{word}`"):
            attngen.compile(f"attention {word}\nmask = causal\n")


@pytest.mark.parametrize("name", ["ceil", "scaled", "layout_of", "opaque", "load", "Launch", "padded"])
def test_an_attention_may_have_a_name_of_the_runtime(name: str) -> None:
    assert name in placement.flat()
    kernel = attngen.compile(f"attention {name}\nmask = causal\n")
    q, k, v = (torch.randn(1, 2, 20, 16) for _ in "qkv")
    out = kernel(q, k, v)
    torch.testing.assert_close(out.double(), torch.from_numpy(kernel.reference(q, k, v)), atol=1e-5, rtol=1e-5)
