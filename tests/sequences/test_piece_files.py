"""The functions of a file that was made with `--geometry pieces`, beside those of a `Kernel`: the same bits."""

from __future__ import annotations

import ast
import functools
import re
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

import attngen
from attngen import inputs
from attngen.cli.main import main
from attngen.emit.text.joined import joined
from attngen.errors import UsageError
from attngen.runtime.loader import load

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SPECS = {
    "causal": EXAMPLES / "causal.attn",
    "documents": EXAMPLES / "documents.attn",
    "dropout": EXAMPLES / "dropout.attn",
    "sigmoid": EXAMPLES / "sigmoid.attn",
    "sink by head": (
        "attention s\nparam slope: f32[Hq]\nparam sink: f32[Hq]\nparam p: f32 where 0 <= p < 1\n"
        "score = qk * scale - slope[h] * (q - k)\nmask = abs(q - k) < 40\n"
        "normalizer = softmax(sink = sink[h])\ndropout = p\n"
    ),
    "direct": (
        "attention d\nparam slope: f32[Hq]\nnormalizer relu {\n    weight(s) = max(s, 0)\n    denominator = sum + 1\n"
        "    shift = none\n}\nscore = qk * scale - slope[h]\nmask = causal\nnormalizer = relu\n"
    ),
    "window by head": "attention w\nparam reach: int[Hq] where reach >= 0\nmask = 0 <= q - k <= reach[h]\n",
    "prefix": (
        "attention p\nparam n: int[B]\nparam bias: f32[B, Sk]\nscore = qk * scale + bias[b, k]\n"
        "mask = causal or k < n[b]\n"
    ),
    "strided": "attention t\nparam step: int where step > 0\nmask = causal and (q - k) % step == 0\n",
    "by number of heads": "attention n\nmask = q - k < 4 * (h + 1)\n",
}
SIZES = {"B": 2, "Hq": 4, "Hkv": 2, "Sq": 40, "Sk": 40, "D": 16, "Dv": 24}
SEED = 2**40 + 7


@cache
def made(spec: str, *geometry: str) -> tuple[attngen.Kernel, dict[str, Any]]:
    """A kernel, and its file's own functions by the ends of their names."""
    kernel = attngen.compile(SPECS[spec], tile=(16, 16), arch="portable", geometry=geometry)
    names = vars(load(kernel.source, kernel.name))
    ends = ("partial", "merge", "finish", "partial_backward", "finish_backward", "visits", "work")
    assert names["__all__"][-7:] == [f"{kernel.name}_{end}" for end in ends]
    return kernel, {n.removeprefix(f"{kernel.name}_"): names[n] for n in names["__all__"]}


def drawn(kernel: attngen.Kernel, dtype: torch.dtype = torch.float32) -> tuple[list[torch.Tensor], dict[str, Any]]:
    sizes = inputs.settle(kernel.spec, SIZES, fixed=set(SIZES))
    generator = torch.Generator().manual_seed(1)
    shapes = (
        (sizes["Hq"], sizes["D"]),
        (sizes["Hkv"], sizes["D"]),
        (sizes["Hkv"], sizes["Dv"]),
        (sizes["Hq"], sizes["Dv"]),
    )
    tensors = [torch.randn(2, h, 40, d, generator=generator).to(dtype) for h, d in shapes]
    params = inputs.examples(kernel.spec, sizes, seed=0)
    params = {n: torch.as_tensor(x) if hasattr(x, "shape") and x.shape else x for n, x in params.items()}
    return tensors, {n: x.float() if torch.is_tensor(x) and x.is_floating_point() else x for n, x in params.items()}


def same(a: Any, b: Any) -> None:
    for x, y in zip(a, b, strict=True):
        if isinstance(x, dict):
            assert x.keys() == y.keys()
            same([*x.values()], [*y.values()])
        else:
            assert x.dtype == y.dtype
            assert torch.equal(x, y)


@pytest.mark.parametrize("spec", SPECS)
def test_functions_are_those_of_the_kernel(spec: str) -> None:
    kernel, file = made(spec, "pieces")
    (q, k, v, d_out), params = drawn(kernel)
    d_lse = torch.randn(2, 4, 25, generator=torch.Generator().manual_seed(2))
    learned = {
        n: x.clone().requires_grad_() if torch.is_tensor(x) and x.is_floating_point() else x for n, x in params.items()
    }
    seed = {} if kernel.spec.dropout is None else {"dropout_seed": SEED}
    q, d_out = q[:, :, 15:], d_out[:, :, 15:]
    cuts = [({"k_offset": at, "q_offset": 15, "Sq": 40, "Sk": 40, **seed}, k[:, :, at:end], v[:, :, at:end])
            for at, end in ((0, 17), (17, 40))]  # fmt: skip
    right = [kernel.partial(q, x, y, **place, **params) for place, x, y in cuts]
    found = [file["partial"](q, x, y, **place, **params) for place, x, y in cuts]
    same(right[0] + right[1], found[0] + found[1])
    out, lse = kernel.merge(right)
    same((out, lse), file["merge"](found))
    finished = kernel.finish(out, lse, **params)
    same(finished, file["finish"](out, lse, **params))
    for more in ({}, {"d_lse": d_lse}):
        for place, x, y in cuts:
            given = (q, x, y, d_out, *finished)
            same(
                kernel.partial_backward(*given, **place, **more, **learned),
                file["partial_backward"](*given, **place, **more, **learned),
            )
        same(
            [kernel.finish_backward(d_out, *finished, **more, **learned)],
            [file["finish_backward"](d_out, *finished, **more, **learned)],
        )
    sums = [torch.ones_like(x) for x in (q, cuts[0][1], cuts[0][2])]
    alone = file["partial_backward"](q, *cuts[0][1:], d_out, *finished, **cuts[0][0], **learned)
    added = file["partial_backward"](q, *cuts[0][1:], d_out, *finished, **cuts[0][0], **learned, accumulate=tuple(sums))
    same([x + 1.0 for x in alone[:3]], sums)
    assert all(x is y for x, y in zip(added[:3], sums, strict=True))


@pytest.mark.parametrize("spec", SPECS)
def test_visits_and_work_are_those_of_the_kernel(spec: str) -> None:
    kernel, file = made(spec, "pieces")
    _, params = drawn(kernel)
    for q_range in ((0, 40), (0, 3), (10, 17), (39, 40), (5, 5)):
        for k_range in ((0, 40), (0, 2), (9, 10), (12, 25), (38, 40), (7, 7)):
            at = (q_range, k_range, 40, 40)
            assert file["visits"](*at, **params) == kernel.visits(*at, **params), at
            assert file["work"](*at, **params) == kernel.work(*at, **params), at
    assert file["visits"]((0, 9), (0, 9), 40, 40) == kernel.visits((0, 9), (0, 9), 40, 40)
    assert file["work"]((0, 9), (0, 9), 40, 40) == kernel.work((0, 9), (0, 9), 40, 40)
    far = (0, 2**14), (0, 2**13), 2**14, 2**14
    if spec in ("causal", "dropout", "sink by head", "window by head"):
        assert file["work"](*far, **params) == kernel.work(*far, **params)


def test_packed_pieces_of_a_file() -> None:
    kernel, file = made("sink by head", "packed", "pieces")
    (q, k, v, d_out), params = drawn(kernel)
    q, k, v, d_out = (torch.cat([x[b].transpose(0, 1) for b in range(2)]) for x in (q, k, v, d_out))
    ends, numbers = torch.tensor([0, 40, 80], dtype=torch.int32), torch.tensor([3, -1], dtype=torch.int32)
    place: dict[str, Any] = {
        "q_offset": 0, "k_offset": torch.tensor([0, 4], dtype=torch.int32), "Sq": 44, "Sk": 44, "cu_seqlens_q": ends,
        "cu_seqlens_k": ends, "b_offset": numbers, "dropout_seed": SEED,
    }  # fmt: skip
    right = kernel.partial(q, k, v, **place, **params)
    same(right, file["partial"](q, k, v, **place, **params))
    finished = kernel.finish(*right, **params)
    same(finished, file["finish"](*right, **params))
    learned = {n: x.clone().requires_grad_() if torch.is_tensor(x) else x for n, x in params.items()}
    same(
        kernel.partial_backward(q, k, v, d_out, *finished, **place, **learned),
        file["partial_backward"](q, k, v, d_out, *finished, **place, **learned),
    )
    same([kernel.finish_backward(d_out, *finished, **learned)], [file["finish_backward"](d_out, *finished, **learned)])
    assert {"varlen", "partial"} <= file.keys() and "lengths" not in file


def test_half_precision_keeps_what_rounding_takes() -> None:
    kernel, file = made("sink by head", "pieces")
    (q, k, v, d_out), params = drawn(kernel, torch.float16)
    place = {"q_offset": 0, "k_offset": 0, "Sq": 40, "Sk": 40, "dropout_seed": SEED}
    learned = {n: x.clone().requires_grad_() if torch.is_tensor(x) else x for n, x in params.items()}
    finished = kernel.finish(*kernel.partial(q, k, v, **place, **params), **params)
    same(
        kernel.partial_backward(q, k, v, d_out, *finished, **place, **learned),
        file["partial_backward"](q, k, v, d_out, *finished, **place, **learned),
    )


def test_what_a_file_refuses() -> None:
    _, file = made("dropout", "pieces")
    x, place = torch.randn(1, 2, 8, 16), {"q_offset": 0, "k_offset": 0, "Sq": 8, "Sk": 8, "p": 0.1}
    for error, call in {
        "dropout_seed is missing": lambda: file["partial"](x, x, x, **place),
        "partial is not differentiable": lambda: file["partial"](x.clone().requires_grad_(), x, x, **place),
        "packed pieces, and numbers for each": lambda: file["partial"](
            x[0], x[0], x[0], **place, cu_seqlens_q=torch.tensor([0, 2]), dropout_seed=1
        ),
        r"assumes .*k_offset": lambda: file["partial"](x, x, x, **{**place, "k_offset": 4}, dropout_seed=1),
        "merge needs at least one part": lambda: file["merge"]([]),
    }.items():
        with pytest.raises(ValueError, match=error):
            call()
    out, lse = file["partial"](x, x, x, **place, dropout_seed=1)
    back = functools.partial(file["partial_backward"], x, x, x, **place, dropout_seed=1)
    for error, call in {
        "parts must be a list of pairs": lambda: file["merge"]((out, lse)),
        "lse of parts[0] must be a tensor of floats (1, 2, 8), out of parts[0] without": (
            lambda: file["merge"]([(out, lse[:, :1])])
        ),
        "out of parts[1] must be a tensor of floats (1, 2, 8, 16), as in parts[0], not (1, 1, 8, 16)": (
            lambda: file["merge"]([(out, lse), (out[:, :1], lse[:, :1])])
        ),
        "lse must be a tensor of floats (1, 2, 8)": lambda: file["finish"](out, None),
        "lse must be a tensor of floats (1, 2, 8), out without": lambda: back(x, out, lse[..., :4]),
        "out must be a tensor of floats (1, 2, 8, 16), like q": lambda: back(x, out[:, :1], lse),
        "d_out must be a tensor of floats (1, 2, 8, 16), like out, not (1, 2, 8, 1)": lambda: back(
            x[..., :1], out, lse
        ),
        "d_lse must be a tensor of floats": lambda: back(x, out, lse, d_lse=1.0),
        "accumulate[0] must be float32": lambda: back(x, out, lse, accumulate=(x.half(), x, x)),
        "d_out must be a tensor of floats": lambda: file["finish_backward"](None, out, lse),
    }.items():
        with pytest.raises(ValueError, match=re.escape(error)):
            call()
    kernel, file = made("sink by head", "pieces")
    sink = {"slope": torch.ones(2), "p": 0.0}
    with pytest.raises(ValueError, match=re.escape("sink must have shape (Hq) = (2,), not (3,)")):
        file["finish"](out, lse, sink=torch.ones(3), **sink)
    one = torch.full((1,), 0.5)
    same(file["finish"](out, lse, sink=one, **sink), kernel.finish(out, lse, sink=one.repeat(2), **sink))
    with pytest.raises(UsageError, match="the param `d_out` has the name of an argument of the geometry pieces"):
        attngen.compile("attention a\nparam d_out: f32[Hq]\nscore = qk + d_out[h]\n", geometry=("pieces",))


def test_dense_functions_stay_and_the_file_stands_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain = attngen.compile(SPECS["causal"]).source
    path = tmp_path / "causal.py"
    for more in ((), ("--forward",)):
        assert main(["compile", str(SPECS["causal"]), "--geometry", "pieces", "-o", str(path), *more]) == 0
        source = path.read_text()
        imported = {
            a.name.partition(".")[0] for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Import) for a in n.names
        }
        assert imported - {"torch", "triton"} <= sys.stdlib_module_names
        assert max(map(len, source.split("\n"))) <= 120
        assert ("def causal_partial_backward(" in source) == (not more)
        assert "def causal_visits(" in source
    found = attngen.compile(SPECS["causal"], geometry=("pieces",)).source
    assert found == attngen.compile(SPECS["causal"], geometry=("dense", "pieces")).source
    plain, found = (text.partition("# ====")[0] for text in (plain, found))
    lines = {*found.split("\n")}
    assert [x for x in plain.split("\n") if x.startswith(("def ", "    ")) and x not in lines] == []
    capsys.readouterr()


def test_definitions_that_differ_get_an_ending() -> None:
    first = "import torch\n\nTILE = 16\n\n\ndef _same(x):\n    return x\n\n\ndef f(x):\n    return _same(x)\n"
    second = (
        "import math\nimport torch\n\nTILE = 16\n\n\ndef _same(x):\n    return x\n\n\ndef _caller(x):\n"
        '    """See `_other`."""\n    return f"{_other(x)} {TILE}"\n\n\n'
        "def _other(x):\n    return _same(x) * TILE * math.pi\n\n\n"
        "def f(x):\n    return _caller(x)\n"
    )
    found = joined(first, second, "_b", "the second")
    assert found.count("def _same(") == found.count("TILE =") == found.count("import torch") == 1
    names: dict[str, Any] = {}
    exec(found, names)
    assert {"f", "_f_b", "_caller_b", "_other_b"} <= names.keys() and "_other" not in names
    assert names["_f_b"](1).startswith("50.26") and names["f"](1) == 1
    assert "See `_other_b`" in found
