"""The runtime of generated files: its device functions mean the same where a file has all modules in one namespace."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator

import pytest

from attngen.emit.triton.placement import sources

DEVICE = ("gluon", "ptx", "rows", "sm90")


def defined(name: str) -> set[str]:
    """The names of a module's functions, classes and constants."""
    found: set[str] = set()
    for node in ast.parse(sources()[name]).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {n.id for target in targets for n in ast.walk(target) if isinstance(n, ast.Name)}
    return found


def functions(name: str) -> Iterator[ast.FunctionDef]:
    return (n for n in ast.parse(sources()[name]).body if isinstance(n, ast.FunctionDef))


def test_names_are_defined_once() -> None:
    names = [name for module in sources() for name in defined(module)]
    assert len(names) > 100 and len(names) == len({*names})


@pytest.mark.parametrize("name", DEVICE)
def test_names_of_device_functions_are_plain(name: str) -> None:
    """Kernels call them by module: `rows.load`."""
    assert not {n for n in defined(name) if n.startswith("_") or hasattr(builtins, n)}


@pytest.mark.parametrize("name", DEVICE)
def test_no_local_hides_what_its_function_calls(name: str) -> None:
    """Triton would take the local, or the function, by where they stand."""
    known = {n for module in sources() for n in defined(module)}
    for function in functions(name):
        local = {n.id for n in ast.walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        local |= {a.arg for a in function.args.args}
        called = {n.func.id for n in ast.walk(function) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)}
        assert not local & called & known, function.name


@pytest.mark.parametrize("name", DEVICE)
def test_functions_say_what_they_do(name: str) -> None:
    assert all(ast.get_docstring(function) for function in functions(name))
