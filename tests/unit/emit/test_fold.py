"""Branches that known constants decide do not reach a file for one head dim."""

from __future__ import annotations

import ast
from pathlib import Path
from textwrap import dedent

import pytest

import attngen
from attngen.emit.text.fold import without_dead_branches
from attngen.emit.text.units import cut, printed

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


def without(source: str, everywhere: dict[str, bool | int | str], by_kernel: dict[str, dict[str, int]]) -> str:
    return printed(without_dead_branches(cut(source), everywhere, by_kernel))


def folded(body: str, **known: bool | int | str) -> str:
    """What is left of a kernel's body."""
    head = f"@triton.jit\ndef _kernel(x, {', '.join(known)}):\n"
    lines = dedent(body).strip("\n").split("\n")
    source = head + "\n".join(f"    {line}" for line in lines) + "\n\n\nlaunch = _kernel\n"
    return dedent(without(source, known, {}).removeprefix(head).partition("\n\n\n")[0]) + "\n"


CHOICE = """
# Before.
if EARLY:  # the first
    # About one.
    one(x)
    one(x)
elif WIDE:
    two(x)
else:  # the last
    three(x)
"""


@pytest.mark.parametrize(
    ("known", "left"),
    [
        ({"EARLY": True}, "# Before.\n# the first\n# About one.\none(x)\none(x)\n"),
        ({"EARLY": False}, "# Before.\nif WIDE:\n    two(x)\nelse:  # the last\n    three(x)\n"),
        ({"EARLY": False, "WIDE": True}, "# Before.\ntwo(x)\n"),
        ({"EARLY": False, "WIDE": False}, "# Before.\n# the last\nthree(x)\n"),
        ({"WIDE": False}, CHOICE.removeprefix("\n").replace("elif WIDE:\n    two(x)\n", "")),
        (
            {"WIDE": True},
            CHOICE.removeprefix("\n").replace("elif WIDE:", "else:").replace("else:  # the last\n    three(x)\n", ""),
        ),
    ],
)
def test_the_branch_that_is_taken_stays_with_its_comments(known: dict[str, bool], left: str) -> None:
    assert folded(CHOICE, **known) == left


def test_what_was_said_of_a_branch_that_is_gone_is_gone() -> None:
    assert folded("one(x)\n# Only then.\nif EARLY:\n    two(x)\nthree(x)", EARLY=False) == "one(x)\nthree(x)\n"
    assert folded("while x:\n    if EARLY:\n        two(x)", EARLY=False) == "while x:\n    pass\n"


def test_conditions_and_choices_lose_what_is_decided() -> None:
    assert folded("if EARLY and x == 0:\n    one(x)", EARLY=True) == "if x == 0:\n    one(x)\n"
    assert folded("if EARLY or x == 0 or x == 2:\n    one(x)", EARLY=False) == "if x == 0 or x == 2:\n    one(x)\n"
    assert folded("if x == 0 and (EARLY or x):\n    one(x)", EARLY=True) == "if x == 0:\n    one(x)\n"
    assert folded("y = one(x + (BK if EARLY else 0))", EARLY=True) == "y = one(x + BK)\n"
    assert folded("y = one(x if BK // 64 == 2 else 0)", BK=128) == "y = one(x)\n"


@pytest.mark.parametrize(
    "body",
    [
        "BK = x\nif BK == 64:\n    one(x)",  # bound again
        "y = 1\nfor y in range(x):\n    pass\nif y == 1:\n    one(x)",
        "y = 1\nif (y - 2) // 2 < 0:\n    one(x)",  # chips divide negative numbers in another way
        "if BK == 'wide':\n    one(x)",
        "if x:\n    one(x)",
    ],
)
def test_what_is_not_known_stays(body: str) -> None:
    assert folded(body, BK=64) == body + "\n"


CALLS = """\
_Config = namedtuple("_Config", "BK EARLY")


@gluon.jit
def _part(x, config, PART):
    if config.EARLY:
        x = _same(x, config.BK)
    if PART == 0:
        x = -x
    return x


@triton.jit
def _same(x, ROWS):
    if ROWS == 64:
        x += 1
    return x


@triton.jit
def _combined(a, b):
    return a if b else b


@gluon.jit
def _kernel(x, BK, EARLY):
    config = _Config(BK, EARLY)
    gl.warp_specialize([(_part, (x, config, 0)), (_part, (x, config, 1))])
    tl.reduce(x, 0, _combined)


def call(x):
    _kernel[(1,)](x, BK=64, EARLY=True)
"""


def test_values_are_followed_through_calls() -> None:
    left = without(CALLS, {}, {"_kernel": {"BK": 64, "EARLY": True}})
    assert "    x = _same(x, config.BK)\n    if PART == 0:\n" in left  # its two calls differ
    assert "def _same(x, ROWS):\n    x += 1\n" in left
    assert "return a if b else b" in left


def test_calls_that_differ_leave_a_branch() -> None:
    more = CALLS.replace("tl.reduce(", "_same(x, 32)\n    tl.reduce(")
    left = without(more, {}, {"_kernel": {"BK": 64, "EARLY": True}})
    assert "    if ROWS == 64:\n" in left
    assert without(CALLS, {}, {}) == CALLS


@pytest.mark.parametrize("name", ["causal", "alibi", "documents"])
@pytest.mark.parametrize("dim", [64, 128, 256])
def test_a_file_for_one_head_dim_has_no_branch_of_its_table(name: str, dim: int) -> None:
    constants = {"SCHEDULE", "ORDERED", "OUT_APART", "PIPELINED", "EARLY", "BACKWARDS"}
    source = attngen.compile(EXAMPLES / f"{name}.attn", arch="sm_90", head_dim=dim).source
    own = source.partition("# ================")[0]  # the runtime is the same for every head dim
    functions = [f for f in ast.parse(own).body if isinstance(f, ast.FunctionDef)]
    kernels = [f for f in functions if any("jit" in ast.unparse(d) for d in f.decorator_list)]
    tests = [n.test for f in kernels for n in ast.walk(f) if isinstance(n, ast.If | ast.IfExp)]
    read = {n.attr for t in tests for n in ast.walk(t) if isinstance(n, ast.Attribute)}
    read |= {n.id for t in tests for n in ast.walk(t) if isinstance(n, ast.Name)}
    assert not read & constants
