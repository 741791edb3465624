"""Parameters and fields that nothing reads leave a generated file, with what calls give them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from attngen import api
from attngen.emit.text.prune import without_unread
from attngen.emit.text.units import cut, printed
from attngen.emit.triton.placement import fields_of_the_runtime
from attngen.errors import Source

EXAMPLES_FOLDER = Path(__file__).resolve().parents[3] / "examples"
EXAMPLES = ("causal", "alibi", "documents", "full_bias", "t5_bias", "sigmoid")
SOURCE = """
_Config = namedtuple("_Config", "A B C")
_Call = namedtuple("_Call", "x y")


@gluon.jit
def _inner(p, q, config):
    return p + config.B


@gluon.jit
def _outer(p, q, r, config):
    return _inner(_inner(p, q + r, config), r, config)


@gluon.jit
def _unpacks(call):
    x, _y = call
    return x


@gluon.jit(do_not_specialize=["q"])
def _some_kernel(p_ptr, q, D: gl.constexpr, E: gl.constexpr):
    config: gl.constexpr = _Config(1, E, 3)
    call = _Call(p_ptr, 0)
    gl.warp_specialize([(_unpacks, (call,)), (_outer, (p_ptr, E, (q, 1), config))], [4], [24])
"""


ELSEWHERE = frozenset({("config", "C")})


def without(source: str) -> str:
    """With a host that launches the kernels: what nothing calls goes as a whole."""
    host = f"\n\n\nlaunch({', '.join(launched(source))})\n"
    return printed(without_unread(cut(f"{source.strip()}{host}"), ELSEWHERE)).removesuffix(host) + "\n"


def launched(source: str) -> list[str]:
    return [n.name for n in ast.parse(source).body if isinstance(n, ast.FunctionDef) and n.name.endswith("_kernel")]


def test_they_go_with_their_arguments() -> None:
    found = without(SOURCE)
    assert "def _inner(p, config):" in found  # q is never read
    assert "def _outer(p, config):" in found  # its q, and its r, which only q took
    assert "return _inner(_inner(p, config), config)" in found
    assert "(_outer, (p_ptr, config))" in found
    assert '_Config = namedtuple("_Config", "B C")' in found  # the runtime reads C
    assert "_Config(E, 3)" in found
    assert "(_unpacks, (call,))" in found and '"x y"' in found  # a whole namedtuple is unpacked
    assert without(found) == found


def test_of_a_kernel_only_constants_go() -> None:
    """The host launches it by the names of its parameters; its machine code has the others."""
    assert "def _some_kernel(p_ptr, q, E: gl.constexpr):" in without(SOURCE)


@pytest.mark.parametrize(
    "why",
    [
        "\n\n@gluon.jit\ndef _whole_kernel(x):\n    return gl.reduce(x, 0, _inner)\n",
        "\n\n@gluon.jit\ndef _named_kernel(x):\n    return _inner(x, q=1, config=x)\n",
        "\n\n@gluon.jit\ndef _starred_kernel(x):\n    return _inner(*x)\n",
        "\n\nTABLE = {1: _inner}\n",
    ],
    ids=["a value", "a keyword", "starred", "the host"],
)
def test_a_function_that_is_used_otherwise_stays(why: str) -> None:
    assert "def _inner(p, q, config):" in without(SOURCE + why)


def test_a_default_stays() -> None:
    source = SOURCE.replace("def _inner(p, q, config):", "def _inner(p, q, config, z=1):")
    assert "def _inner(p, q, config, z=1):" in without(source)


def test_parameters_are_wrapped_values_first() -> None:
    names = [f"a_long_name_{i}_ptr" for i in range(8)]
    constants = [f"CONSTANT_{i}: gl.constexpr" for i in range(5)]
    body = " + ".join([*names, *(c.partition(":")[0] for c in constants)])
    parameters = "".join(f"    {x},\n" for x in (*names, *constants))
    text = f"@gluon.jit\ndef _a_kernel(\n{parameters}):\n    return {body}\n"
    found = without(text)
    lines = found.split("\n")
    assert ast.dump(ast.parse(found)) == ast.dump(ast.parse(text)) and max(map(len, lines[:6])) <= 120
    assert lines[2].startswith("    a_long_name_0_ptr") and lines[4].startswith("    CONSTANT_0")


def unread(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """By function, parameters that nothing in it reads: not of kernels, which the host calls by name."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    given = {n.id for call in calls for n in call.args if isinstance(n, ast.Name)}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and any("jit" in ast.unparse(d) for d in node.decorator_list):
            read = {n.id for s in node.body for n in ast.walk(s) if isinstance(n, ast.Name)}
            kernel = node.name.endswith("_kernel")
            for parameter in node.args.args:
                constant = parameter.annotation is not None
                if parameter.arg not in read and (constant if kernel else node.name not in given):
                    yield node.name, parameter.arg


@pytest.mark.parametrize("name", EXAMPLES)
def test_no_example_has_one(name: str) -> None:
    source = api.package(Source((EXAMPLES_FOLDER / f"{name}.attn").read_text()), api.options())[f"{name}.py"]
    assert not list(unread(ast.parse(source)))
    assert printed(without_unread(cut(source), fields_of_the_runtime())) == source
