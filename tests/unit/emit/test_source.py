"""The generated file as text: it parses, the spec in its header stays text, and the bytes are always the same."""

from __future__ import annotations

import ast
import builtins
import os
import re
import subprocess
import symtable
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from property import grammar
from property.kernels import analysed

from attngen import api
from attngen.emit import Options
from attngen.errors import InternalError, Source, UsageError
from attngen.plan import plan
from attngen.plan.tiles.hopper import hopper_plan
from attngen.targets import emit

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
HOSTILE = {
    "quotes": '# it\'s "quoted", \'\'\'thrice\'\'\' and """thrice"""',
    "a quote at the end": '# ends with a quote "',
    "a backslash at the end": "# ends with \\",
    "escapes": r"# \x41 \u0041 \N{BULLET} \" \\",
    "jinja": "# {{ a.name }} {% raw %} {# gone? #} {%",
    "unicode": "# Σ exp(qk) — ≤ √D, 注意, \U0001f600",
    "escape from the docstring": '# """\nimport os\n# """',
    "percent": "# %s %(x)d {0} ${x}",
}


@pytest.mark.parametrize("what", [w for w in HOSTILE if w != "escape from the docstring"])
def test_the_specification_stays_text(what: str) -> None:
    text = f"{HOSTILE[what]}\nattention subject {HOSTILE[what]}\nmask = causal\n"
    source = emit(plan(analysed(text)), text, Options())
    plain = "attention subject\nmask = causal\n"
    assert shape_of(source) == shape_of(emit(plan(analysed(plain)), plain, Options()))
    assert f"#     {HOSTILE[what]}" in source.split("\n")


def test_the_header_cannot_be_left() -> None:
    # Not a spec that the parser takes: the emitter alone must be safe.
    text = "attention subject\n"
    source = emit(plan(analysed(text)), f"{text}{HOSTILE['escape from the docstring']}\n", Options())
    assert shape_of(source) == shape_of(emit(plan(analysed(text)), text, Options()))


def shape_of(source: str) -> list[str]:
    """The module's statements, but for its docstring, without what the digest of the text gives its name to."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("attngen::"):
            node.value = re.sub(r"_[0-9a-f]{12}", "", node.value)
    return [
        ast.dump(node) if not isinstance(node, ast.FunctionDef) else node.name
        for node in tree.body[1:]
        if not isinstance(node, ast.Expr)
    ]


def conditions_compared(source: str) -> list[str]:
    """Comparisons with a condition: `a < b | (c < d)` is `a < (b | (c < d))`, which nobody means."""
    return [
        ast.unparse(node)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Compare)
        for side in (node.left, *node.comparators)
        if isinstance(side, ast.BinOp) and isinstance(side.op, ast.BitAnd | ast.BitOr)
        if any(isinstance(part, ast.Compare | ast.BoolOp) for part in ast.walk(side))
    ]


def unbound(source: str) -> set[str]:
    """Names that functions read and nobody binds."""
    module = symtable.symtable(source, "generated", "exec")
    bound = (s for s in module.get_symbols() if s.is_assigned() or s.is_imported() or s.is_namespace())
    known = {s.get_name() for s in bound} | set(dir(builtins))
    found: set[str] = set()
    tables = module.get_children()
    while tables:
        table = tables.pop()
        tables += table.get_children()
        found |= {s.get_name() for s in table.get_symbols() if s.is_global() and s.is_referenced()} - known
    return found


ONE_BOUND = [
    "true",
    "k >= q",
    "k <= q",
    "k < q + Sk - Sq",
    "q + k < Sk",
    "k < 70",
    "q < 77",
    "q >= 5",
    "k == q",
    "not causal",
]


def test_a_name_that_nobody_binds_is_seen() -> None:
    assert unbound("import torch\ndef f(x):\n    def g():\n        return x + y\n    return torch.z + len(g)\n") == {
        "y"
    }


def test_a_comparison_of_a_condition_is_seen() -> None:
    assert conditions_compared("masked = at >= stop | (k0 + 64 > Sk)\n") == ["at >= stop | (k0 + 64 > Sk)"]
    assert not conditions_compared("masked = (at >= stop) | (k0 + 64 > Sk)\nflag = a & 1 == b | 2\n")


@pytest.mark.parametrize("mask", ONE_BOUND)
def test_conditions_are_joined_and_not_compared(mask: str) -> None:
    for score in ("qk * scale", "tanh(qk * scale) + k"):
        text = f"attention subject\nscore = {score}\nmask = {mask}\n"
        assert not conditions_compared(emit(plan(analysed(text)), text, Options()))


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(grammar.masks, grammar.scores)
@example("k <= q and not (q + k < Sk)", "qk * scale")  # listed for the backward pass, and not by data
def test_drawn_conditions_are_joined_and_names_are_bound(mask: str, score: str) -> None:
    text = grammar.spec(f"score = {score}", f"mask = {mask}")
    source = emit(plan(analysed(text)), text, Options())
    assert not conditions_compared(source) and not unbound(source)


def test_names_are_bound_where_batches_have_a_name_of_their_own() -> None:
    """A list kernel counts tiles of all batches, though no param's shape says B."""
    text = "attention own\nparam ids: int[N, Sk]\nmask = ids[b, q] == ids[b, k]\nassume Sq == Sk\nassume N == B\n"
    assert not unbound(emit(plan(analysed(text)), text, Options()))


SPEC = """attention stable
param slope: f32[Hq]
param ids: int[B, Sk]
param cap: f32 where cap > 0
param valid: bool[B, Sk]
score = softcap(qk * scale, cap) - slope[h] * abs(q - k)
mask = (ids[b, q] == ids[b, k] and valid[b, k] and q - k < 128) or k < 4 or q < 2
dropout = 0.1
normalizer = softmax(sink = slope[h])
"""

PROGRAM = """
import sys
from attngen.analyse import analyse
from attngen import api
from attngen.emit import Options
from attngen.targets import emit
from attngen.errors import Source
from attngen.plan import plan
from attngen.plan.tiles.hopper import hopper_plan
from attngen.syntax.parser import parse
source = Source(sys.stdin.read(), "spec.attn")
sys.stdout.write(emit(plan(analyse(parse(source), source, {})), source.text, Options()))
"""


def test_the_bytes_do_not_depend_on_the_process() -> None:
    found = {
        subprocess.run(
            [sys.executable, "-c", PROGRAM],
            input=SPEC.encode(),
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("0", "1", "4711")
    }
    assert len(found) == 1
    text = found.pop().decode()
    assert "\r" not in text and not [line for line in text.splitlines() if line != line.rstrip()]


def test_options_change_the_operator() -> None:
    text = "attention subject\n"
    headers = {
        api.build(Source(text), o).source.split("attngen::subject_")[1][:12]
        for o in (Options(), Options(precision="tf32"), Options(tile=(32, 32)))
    }
    assert len(headers) == 3


def test_what_is_proved_is_what_a_tile_of_ones_own_emits() -> None:
    chosen = api.build(Source("attention subject\nmask = causal\n"), Options(tile=(128, 64)))
    assert chosen.plan.attention.tile == (128, 64) and chosen.plan.hopper is not None
    assert chosen.plan.hopper == hopper_plan(chosen.plan, (128, 64))
    with pytest.raises(InternalError, match="made for the tile None"):
        emit(plan(analysed("attention subject\n")), "", Options(tile=(128, 64)))


def test_an_unknown_target_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="cuda"):
        emit(plan(analysed("attention subject\n")), "", Options(target="cuda"))


@pytest.mark.parametrize("name", ["causal", "documents", "alibi", "natten_2d", "t5_bias"])
def test_functions_of_portable_kernels_are_short_and_take_few_arguments(name: str) -> None:
    """Entries aside, whose operands cannot be tuples: Triton would compile anew for each of their values."""
    text = (EXAMPLES / f"{name}.attn").read_text()
    source = emit(plan(analysed(text)), text, Options(arch="portable"))
    functions = [node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)]
    found = {f.name: f for f in functions if any("triton.jit" in ast.unparse(d) for d in f.decorator_list)}
    assert {"_attend_tile", "_dq_tile", "_dkdv_tile", "_forward_kernel"} <= found.keys()
    assert not [n for n, f in found.items() if not n.endswith("_kernel") and len(f.args.args) > 12]
    assert not [n for n, f in found.items() if (f.end_lineno or 0) - f.lineno >= 80]
    assert name != "causal" or len(found["_forward_kernel"].args.args) <= 27
