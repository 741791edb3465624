"""A module's source is cut into its statements without a loss, and each knows what it binds and reads."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import attngen
from attngen.emit.text.units import Unit, cut, printed
from attngen.emit.triton.placement import sources
from attngen.errors import InternalError

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
SOURCE = '''\
"""A module.

x = 1 is no statement here.
"""

# A comment that stands apart.

from a import b

# About the table.
TABLE = {
    "x": [1, 2],
}
"""What it is for."""


# ---------------------------------------------------------------- a section


# About the function.
@wraps(
"x")
def f(x, y=TABLE):
    """Not

at the margin.
"""

    # Inside.
    return lambda z: x + y + z + b


try:
    import c
except ImportError:
    c = None
'''


def test_statements_are_found_with_what_stands_above() -> None:
    found = cut(SOURCE)
    assert printed(found) == SOURCE
    assert [type(unit.node) for unit in found] == [
        ast.Expr, ast.ImportFrom, ast.Assign, ast.Expr, ast.FunctionDef, ast.Try,
    ]  # fmt: skip
    assert found[1].above == ("", "# A comment that stands apart.", "")
    assert found[2].text.startswith("# About the table.\nTABLE")
    assert found[4].above == ("", "", "# " + "-" * 64 + " a section", "", "")
    assert [unit.says for unit in found] == [True, False, False, True, False, False]


def test_a_function_reads_what_is_not_its_own() -> None:
    by_name = {name: unit for unit in cut(SOURCE) for name in unit.names}
    assert by_name["f"].read == {"wraps", "TABLE", "b"}
    assert by_name["f"].reads["x"] == 1 and by_name["f"].defines
    assert by_name["c"].read == {"ImportError"} and by_name["b"].imports


@pytest.mark.parametrize("name", ["causal", "documents", "dropout"])
@pytest.mark.parametrize("target", ["triton", "torch", "jax", "pallas"])
def test_no_generated_file_loses_a_line(name: str, target: str) -> None:
    source = attngen.compile(EXAMPLES / f"{name}.attn", target=target).source
    assert printed(cut(source)) == source
    assert [ast.dump(unit.node) for unit in cut(source)] == [ast.dump(node) for node in ast.parse(source).body]


@pytest.mark.parametrize("module", sorted(sources()))
def test_no_module_of_the_runtime_loses_a_line(module: str) -> None:
    source = sources()[module]
    assert printed(cut(source)) == source
    assert [ast.dump(unit.node) for unit in cut(source)] == [ast.dump(node) for node in ast.parse(source).body]


def test_what_is_no_statement_is_refused() -> None:
    with pytest.raises(InternalError, match="2 statements in one"):
        print(Unit((), "a = 1\nb = 2").node)
