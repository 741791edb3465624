"""The Pallas emitter: names that a spec cannot take, and what stands in the generated file."""

from __future__ import annotations

import ast

import pytest
from emit_names import SPECS, names_beside_params
from property.kernels import analysed

from attngen.emit import Options
from attngen.emit.pallas.names import reserved
from attngen.plan import plan
from attngen.targets import emit

HINTS = {"head_term", "row_term", "col_term", "term", "logit_scale", "d_factor", "extra_term"}


def generated(text: str) -> str:
    return emit(plan(analysed(text)), text, Options(target="pallas"))


@pytest.mark.parametrize("name", SPECS)
def test_every_name_of_the_templates_is_reserved(name: str) -> None:
    used = names_beside_params(generated(SPECS[name])) - reserved()
    missing = {n for n in used if n.removesuffix("_ref").rstrip("0123456789_") not in HINTS}
    assert not missing, f"names that the templates use and a param could take: {sorted(missing)}"


def test_sizes_and_params_get_names_of_their_own() -> None:
    text = """attention a
param tile: f32[Hq, size]
param jnp: f32
score = qk * scale * jnp + tile[h, clamp(q - k, 0, size - 1)]
"""
    source = generated(text)
    ast.parse(source)
    assert "tile: jax.Array" in source and "jnp: float | jax.Array" in source
    assert "import jax.numpy as jnp" in source and "size_2: int" in source


def functions(source: str) -> set[str]:
    return {n.name for n in ast.walk(ast.parse(source)) if isinstance(n, ast.FunctionDef)}


def test_only_the_helpers_that_a_variant_needs() -> None:
    plain = functions(generated("attention a\nmask = causal\n"))
    assert not plain & {"_diagonals", "_draw", "_matching_tiles", "_held_pairs", "_launch_pairs", "_element"}
    bias = functions(generated("attention a\nparam t: f32[Hq, 9]\nscore = qk + t[h, clamp(q - k, -4, 4) + 4]\n"))
    assert {"_diagonals", "_add_diagonals", "_element"} <= bias and "_launch_pairs" not in bias
    dense = functions(generated("attention a\nparam t: f32[Hq, Sq, Sk]\nscore = qk + t[h, q, k]\n"))
    assert {"_launch_pairs", "_by_rows", "_by_columns"} <= dense and "_element" not in dense


def test_a_factor_of_every_product_goes_into_q() -> None:
    assert "q_s[...] = " in generated("attention a\nscore = 30 * tanh(qk * scale / 30)\n")
    assert "q_s" not in generated("attention a\nscore = qk * scale + qk\n").split("def _forward(")[0].split("acc_s")[0]


def test_full_tiles_go_without_the_mask() -> None:
    lines = generated("attention a\nmask = causal\n").split("\n")
    found = [i for i, line in enumerate(lines) if "x = jnp.where(allowed" in line]
    assert len(found) == 2  # queries down, and queries across
    for where in found:
        outside = [line for line in lines[:where] if not line.startswith(" " * 12)]
        assert outside[-1] == "        if masked:"


def test_a_bool_is_chosen_without_a_select() -> None:
    """A TPU's compiler has no select of bools."""
    text = "attention a\nparam valid: bool[B, Sk]\nmask = (valid[b, k] if q > k else k == q)\n"
    source = generated(text)
    assert "allowed = " in source and "_choose(" in source.split("def _forward_kernel(")[1].split("def _forward(")[0]
    assert "_choose" in functions(source) and "_choose" not in functions(generated("attention a\nmask = causal\n"))
