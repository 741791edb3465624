"""Generated source has no line over 120 characters, and breaking lines changes no program."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import attngen
from attngen.emit.text.long_lines import WIDTH, without_long_lines
from attngen.emit.text.units import cut, printed

ROOT = Path(__file__).resolve().parents[3]
EXAMPLES = sorted(path.stem for path in (ROOT / "examples").glob("*.attn"))
NAMES = [f"a_name_of_some_length_{i}" for i in range(9)]
LONG = {
    "a call": f"x = f({', '.join(NAMES)})",
    "a call in a call": f"x = f(g({', '.join(NAMES[:3])}), h({', '.join(NAMES)}))",
    "a definition": f"def f({', '.join(NAMES)}):\n    return 0",
    "a sum in brackets": f"x = y[({' + '.join(NAMES)}) - 1]",
    "a condition": f"x = ({' and '.join(NAMES)})",
    "a generator": f"x = all(value > 0 and value < {NAMES[0]} for value in {NAMES[1]} if value in {NAMES[2]} or value)",
    "an unpacked tuple": f"{', '.join(NAMES)} = f()",
    "a returned tuple": f"def f():\n    return {', '.join(NAMES)}",
    "a returned tuple of calls": f"def f():\n    return f({', '.join(NAMES[:3])}), f({', '.join(NAMES[3:6])})",
    "a choice": f"x = f({', '.join(NAMES[:3])}) if {NAMES[3]} else f({', '.join(NAMES[3:6])})",
    "a product in brackets": f"x = ({' * '.join(NAMES[:4])} + {' + '.join(NAMES[4:])})",
    "a string": f'x = f("{" ".join(NAMES)}")',
    "a formatted string": f'x = f(f"{{ {NAMES[0]} + 1 }} of {" ".join(NAMES)} {{{{a b}}}} {{{NAMES[1]}}}")',
    "an argument on a line of its own": f"x = f(\n    a={{4: g({', '.join(NAMES)})}},\n    b=({', '.join(NAMES)}),\n)",
    "a negative number": f"x = f({', '.join(NAMES[:5])}, -1, -{NAMES[0]}, *{NAMES[1]}, **{NAMES[2]})",
    "a nested call deep inside": "def f():\n    if a:\n        for b in c:\n            "
    + f"d(e({', '.join(NAMES[:4])}), g, h(i({', '.join(NAMES[:4])})))",
}
PROSE = {
    "a comment": f"# {' '.join(NAMES)}\nx = 1",
    "a comment that goes on": f"# {' '.join(NAMES)}\n# and on.\n#\n# Another.\nx = 1",
    "a docstring": f'def f():\n    """{" ".join(NAMES)}"""\n    return 1',
    "a docstring of lines": f'def f():\n    """First.\n\n    {" ".join(NAMES)}\n    more.\n    """\n    return 1',
}


def short(source: str) -> str:
    return printed(without_long_lines(cut(source)))


class OneSpace(ast.NodeTransformer):
    """Docstrings with one space between words."""

    def visit_Expr(self, node: ast.Expr) -> ast.Expr:
        if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            node.value.value = " ".join(node.value.value.split())
        return node


def program(source: str) -> str:
    return ast.dump(OneSpace().visit(ast.parse(source)))


def longest(source: str) -> int:
    return max(len(line) for line in source.split("\n"))


@pytest.mark.parametrize("what", [*LONG, *PROSE])
def test_a_long_line_becomes_shorter_ones_of_the_same_program(what: str) -> None:
    source = {**LONG, **PROSE}[what]
    found = short(source)
    assert longest(source) > WIDTH >= longest(found)
    assert program(found) == program(source)
    assert short(found) == found


@pytest.mark.parametrize("what", PROSE)
def test_no_word_of_a_text_is_lost(what: str) -> None:
    words = [word for word in PROSE[what].replace('"""', " ").split() if word != "#"]
    assert [word for word in short(PROSE[what]).replace('"""', " ").split() if word != "#"] == words


def test_the_lines_of_the_spec_stay() -> None:
    line = f"#     # {' '.join(NAMES)}"
    assert line in short(f"# The specification:\n#\n{line}\nx = 1\n")


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_have_no_long_line(name: str) -> None:
    source = attngen.compile(ROOT / "examples" / f"{name}.attn").source
    ours = [line for line in source.split("\n") if not line.startswith("#     ")]  # those are the spec's
    assert longest("\n".join(ours)) <= WIDTH


def test_a_piece_has_no_long_line() -> None:
    """It has a scalar for each number that says where it is."""
    piece, kernel = attngen.compile(ROOT / "examples" / "dropout.attn").piece()
    assert len(piece.numbers) == 6
    assert longest(kernel.source) <= WIDTH
