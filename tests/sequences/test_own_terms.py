"""The own term of the denominator outside of the dense kernel, and which pieces matter: as in the dense kernel."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import jax.numpy as jnp
import pytest
import torch

import attngen
from attngen.errors import UsageError
from attngen.runtime.loader import execute

HEAD = "attention own\n\n{params}\n\nmask = causal\nnormalizer = softmax(sink = {term})\n"
TERMS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "u8": ("param t: u8[Hq]", "float(t[h] - 5) * 0.5", {"t": torch.tensor([3, 9], dtype=torch.uint8)}),
    "i8": ("param t: i8[Hq]", "float(t[h] * t[h]) * 0.01", {"t": torch.tensor([30, -20], dtype=torch.int8)}),
    "one for all": ("param t: f32[Hq]", "t[h]", {"t": torch.tensor([2.0])}),
    "outside": (
        "param t: f32[N]\nparam i: int[Hq]",
        "t[i[h]]",
        {"t": torch.tensor([1.0, 4.0, 2.0]), "i": torch.tensor([7, -1], dtype=torch.int32)},
    ),
    "bool": ("param t: bool[Hq]", "1.5 if t[h] else -inf", {"t": torch.tensor([True, False])}),
    "heads": ("param t: f32[Hq]", "t[h] if h + 1 < Hq else 0.5", {"t": torch.tensor([1.0, 4.0])}),
}


def joined(functions: Any, name: str, operands: list[Any], params: dict[str, Any], axis: int) -> Any:
    """By two parts; `functions` has them by `name` and their own names."""
    q, k, v = operands
    size = k.shape[axis]

    def cut(x: Any, first: int, stop: int) -> Any:
        return x[:, :, first:stop] if axis == 2 else x[:, first:stop]

    parts = []
    for first, stop in ((0, 7), (7, size)):
        own = cut(k, first, stop), cut(v, first, stop)
        place = {"q_offset": 0, "k_offset": first, "Sq": size, "Sk": size}
        parts.append(getattr(functions, f"{name}partial")(q, *own, **place, **params))
    return getattr(functions, f"{name}finish")(*getattr(functions, f"{name}merge")(parts), **params)


def drawn() -> list[torch.Tensor]:
    return list(torch.randn(3, 1, 2, 20, 16, generator=torch.Generator().manual_seed(0)))


@pytest.mark.parametrize("what", TERMS)
@pytest.mark.parametrize("where", ["kernel", "file", "jax"])
def test_own_terms_are_those_of_the_dense_kernel(what: str, where: str) -> None:
    lines, term, params = TERMS[what]
    text, operands, axis = HEAD.format(params=lines, term=term), drawn(), 2
    target = "jax" if where == "jax" else "triton"
    kernel = attngen.compile(text, target=target, geometry=("dense", "pieces") if where == "file" else ("dense",))
    functions: Any = kernel
    if where == "jax":
        operands, axis = [jnp.asarray(x.transpose(1, 2).numpy()) for x in operands], 1
        params = {n: jnp.asarray(x.numpy()) for n, x in params.items()}
    elif where == "file":
        functions = execute(kernel.source, "own")
        assert isinstance(functions, ModuleType)
    out, lse = kernel(*operands, **params, return_lse=True)
    found = joined(functions, "own_" if where == "file" else "", operands, params, axis)
    for whole, own in zip((out, lse), found, strict=True):
        assert float(abs(whole - own).max()) <= 2e-5


@pytest.mark.parametrize(("term", "name"), [("log(Sk)", "Sk"), ("t[h] * scale", "scale"), ("t[hkv]", "hkv")])
def test_a_term_that_parts_cannot_know_is_refused(term: str, name: str) -> None:
    size = "Hkv" if name == "hkv" else "Hq"
    text = HEAD.format(params=f"param t: f32[{size}]", term=f"{term} + 0.0 * t[{'hkv' if name == 'hkv' else 'h'}]")
    message = rf"reads `{name}`, which functions of parts are not told: give it as a param"
    kernel = attngen.compile(text)
    with pytest.raises(UsageError, match=message):
        joined(kernel, "", drawn(), {"t": torch.ones(2)}, 2)
    with pytest.raises(UsageError, match=message):
        attngen.compile(text, geometry=("dense", "pieces"))


def test_packed_rows_do_not_say_whose_they_are() -> None:
    kernel = attngen.compile(HEAD.format(params="param t: f32[B, Hq]", term="t[b, h]"))
    with pytest.raises(UsageError, match="finish each sequence by itself"):
        kernel.finish(torch.zeros(16, 2, 8), torch.zeros(2, 16), t=torch.zeros(2, 2))


@pytest.mark.parametrize("options", [[], ["--forward"], ["--arch", "portable"]])
def test_a_file_of_a_sink_can_be_imported(tmp_path: Path, options: list[str]) -> None:
    from attngen.cli.main import main

    path = tmp_path / "sink.py"
    example = Path(__file__).resolve().parents[2] / "examples" / "sink.attn"
    assert main(["compile", str(example), "--geometry", "pieces", *options, "-o", str(path)]) == 0
    module = execute(path.read_text(encoding="utf-8"), "sink")
    assert callable(module.sink_partial)


VISITS = [
    ("param a: i8[Hq]", "abs(q - k) < a[h] * 2", torch.full((1,), 100, dtype=torch.int8), (0, 20)),
    ("param a: u8[B, Sk]", "a[b, k] - 5 < 0", torch.full((1, 20), 3, dtype=torch.uint8), (0, 20)),
    ("param a: u8[B, Sk]", "a[b, k] < 256", torch.full((1, 20), 3, dtype=torch.uint8), (0, 20)),
    ("param a: bool[B, Sk]", "a[b, k]", torch.tensor([[True]]), (10, 20)),
    ("param a: int[B, Sq]", "q - k < a[b, q]", torch.tensor([[30]], dtype=torch.int32), (10, 20)),
]


@pytest.mark.parametrize(("lines", "mask", "value", "rows"), VISITS)
def test_pieces_that_matter_are_seen(lines: str, mask: str, value: torch.Tensor, rows: tuple[int, int]) -> None:
    """Small ints do not wrap around, and dims of size 1 are repeated: all these pairs are allowed."""
    text = f"attention own\n\n{lines}\n\nmask = {mask}\n"
    kernel = attngen.compile(text, geometry=("dense", "pieces"))
    module: Any = execute(kernel.source, "own")
    area = (rows[1] - rows[0]) * 20
    for visits, work in ((kernel.visits, kernel.work), (module.own_visits, module.own_work)):
        assert (visits(rows, (0, 20), 20, 20, a=value), work(rows, (0, 20), 20, 20, a=value)) == ("all", area)


def test_params_of_rows_are_repeated_in_pieces() -> None:
    kernel = attngen.compile("attention own\n\nparam g: bool[B, Sk]\n\nmask = causal and g[b, k]\n")
    one, every = ({"g": torch.ones(1, n, dtype=torch.bool)} for n in (1, 20))
    for a, b in zip(*(joined(kernel, "", drawn(), params, 2) for params in (one, every)), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("target", ["triton", "jax"])
@pytest.mark.parametrize(
    ("fact", "value", "holds"),
    [("u8[Hq] where t < 256", 3, True), ("u8[Hq] where t - 5 < 10", 3, True), ("i8[Hq] where t * t <= 100", 16, False)],
)
def test_facts_of_small_ints_do_not_wrap_around(target: str, fact: str, value: int, holds: bool) -> None:
    kernel = attngen.compile(f"attention own\n\nparam t: {fact}\n\nmask = q - k < int(t[h])\n", target=target)
    t: Any = torch.full((2,), value, dtype=torch.uint8 if "u8" in fact else torch.int8)
    operands: list[Any] = drawn()
    if target == "jax":
        t, operands = jnp.asarray(t.numpy()), [jnp.asarray(x.transpose(1, 2).numpy()) for x in operands]
    if holds:
        kernel(*operands, t=t, check=True)
    else:
        with pytest.raises(UsageError, match=r"t\[0\] is 16, and must satisfy"):
            kernel(*operands, t=t, check=True)


ONE_FOR_ALL = {
    "batch and heads": ("param t: f32[B, Hq]", "t[b, h]", [(1, 1), (2, 1), (1, 2)]),
    "a number": ("const n = 2\nparam t: f32[n]", "t[h % n]", [(1,)]),
}


@pytest.mark.parametrize("what", ONE_FOR_ALL)
def test_one_number_for_all_is_repeated(what: str) -> None:
    lines, term, shapes = ONE_FOR_ALL[what]
    kernel = attngen.compile(HEAD.format(params=lines, term=term), geometry=("dense", "pieces"))
    module: Any = execute(kernel.source, "own")
    operands = [x.repeat(2, 1, 1, 1) * torch.tensor([1.0, 0.5]).reshape(2, 1, 1, 1) for x in drawn()]
    for shape in shapes:
        params = {"t": torch.linspace(1.0, 3.0, shape[0] * shape[-1] if len(shape) > 1 else 1).reshape(shape)}
        out, _ = kernel(*operands, **params, return_lse=True)
        for functions, name in ((kernel, ""), (module, "own_")):
            assert float((joined(functions, name, operands, params, 2)[0] - out).abs().max()) <= 2e-5
    if what == "batch and heads":
        with pytest.raises(ValueError, match=r"t must have shape \(B, Hq\)"):
            joined(module, "own_", operands, {"t": torch.ones(3, 2)}, 2)


def test_a_param_of_a_number_is_repeated_where_pieces_are_chosen() -> None:
    kernel = attngen.compile(
        "attention own\n\nconst n = 4\nparam on: bool[n]\n\nmask = causal and on[k % n]\n", geometry=("dense", "pieces")
    )
    module: Any = execute(kernel.source, "own")
    one = torch.tensor([True])
    assert module.own_visits((3, 8), (1, 4), 8, 8, on=one) == kernel.visits((3, 8), (1, 4), 8, 8, on=one) == "all"
    assert module.own_work((3, 8), (1, 4), 8, 8, on=one) == kernel.work((3, 8), (1, 4), 8, 8, on=one) == 15


def test_rows_of_one_element_need_a_length() -> None:
    text = "attention own\n\nparam t: f32[Hq, Sq]\n\nscore = qk * scale + t[h, q] * k / 8\nmask = causal\n"
    kernel = attngen.compile(text, geometry=("dense", "pieces"))
    module: Any = execute(kernel.source, "own")
    params = {"t": torch.ones(1, 1)}
    whole, _ = kernel(*drawn(), **params, return_lse=True)
    for functions, name in ((kernel, ""), (module, "own_")):
        assert float((joined(functions, name, drawn(), params, 2)[0] - whole).abs().max()) <= 2e-5
    with pytest.raises(UsageError, match="t has one element for all of Sq: give Sq as an int, or t whole"):
        kernel.partial(*drawn(), q_offset=0, k_offset=0, Sq=torch.tensor([20], dtype=torch.int32), Sk=20, **params)
