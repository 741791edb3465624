"""Parity of the Pallas target in the TPU's interpreter with its memory checks on (`memory.py`): every spec of the
parity suite, in every form of its kernels, in float32 and bfloat16, on two cores, ragged lengths, all gradients.

    pytest tests/pallas/test_memory.py              a sample
    pytest tests/pallas/test_memory.py -m slow      the rest

That the checks see what they are for is tested on files with one line changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import pytest
import torch
from jax.experimental.pallas import tpu as pltpu
from pallas.memory import RACE, Form, checked, fuses
from parity import variants
from parity.compare import disagreements
from parity.extras import EXTRAS
from parity.jax_side import by_pallas
from parity.test_parity import FLOOR, TOLERANCE, by_formula, kernel
from parity.variants import EXAMPLE_VARIANTS, Case, Variant

import attngen

EVERY = EXAMPLE_VARIANTS + EXTRAS
CASES = (
    Case("ragged", heads=2, kv_heads=1, rows=35, columns=35),
    Case("more_keys", batch=2, heads=1, kv_heads=1, rows=19, columns=45),
    Case("more_queries", heads=2, kv_heads=2, rows=40, columns=21, dim=24, value_dim=20),
)
SAMPLE = {
    "causal-resident-float32",
    "documents-streamed-bfloat16",
    "relative_bias-resident-float32",
    "full_bias-streamed-float32",
    "dropout-apart-bfloat16",
}


@dataclass(frozen=True)
class Run:
    variant: Variant
    case: Case
    form: Form
    dtype: torch.dtype

    def __str__(self) -> str:
        return f"{self.variant.name}-{self.form}-{str(self.dtype).removeprefix('torch.')}"


def runs() -> list[object]:
    """Every spec in every form and dtype; shapes take turns, so that each form and dtype meets all of them."""
    found: list[object] = []
    for i, variant in enumerate(EVERY):
        for j, form in enumerate(Form):
            for m, dtype in enumerate((torch.float32, torch.bfloat16)):
                run = Run(variant, CASES[(i + j + m) % len(CASES)], form, dtype)
                marks = [] if str(run) in SAMPLE else [pytest.mark.slow]
                found.append(pytest.param(run, id=str(run), marks=marks))
    return found


@pytest.fixture(autouse=True)
def interpreter() -> Iterator[None]:
    """A kernel that raises leaves its memory behind."""
    yield
    pltpu.reset_tpu_interpret_mode_state()


@pytest.mark.parametrize("run", runs())
def test_kernels_read_what_was_written_and_nothing_else(run: Run, capfd: pytest.CaptureFixture[str]) -> None:
    compiled = kernel(run.variant.name, False, "pallas")
    if run.form is Form.APART and not fuses(compiled.source):
        pytest.skip("dQ has a kernel of its own in any case")
    given = variants.inputs(run.variant, run.variant.suited(run.case), run.dtype, "cpu")
    got = by_pallas(checked(compiled.source, compiled.name, run.form), given, True)
    want = by_formula(run.variant, given, False, True)
    halves = frozenset(f"d_{n}" for n in given.floats() if given.params[n].dtype != torch.float32)  # type: ignore[union-attr]
    off = disagreements(got, want, TOLERANCE[run.dtype], FLOOR[run.dtype], halves)
    assert not off, "; ".join(off)
    assert RACE not in capfd.readouterr().out


# ---------------------------------------------------------------- that the checks check


def call(change: tuple[str, str], form: Form = Form.RESIDENT) -> dict[str, jax.Array]:
    """The results of a causal function one line of which is changed, for one head of two tiles and a half."""
    source = attngen.compile("attention wrong\nmask = causal\n", "pallas", tile=(16, 16)).source
    assert source.count(change[0]) >= 1
    attend = checked(source.replace(*change), "wrong", form)
    q, k, v = (jax.random.normal(jax.random.key(i), (1, 40, 1, 16)) for i in range(3))
    out, pullback = jax.vjp(attend, q, k, v)
    return {"out": out, **dict(zip(("dq", "dk", "dv"), pullback(jnp.ones_like(out)), strict=True))}


UNCHANGED = ("acc_s", "acc_s")


def test_the_file_as_it_is_passes_them(capfd: pytest.CaptureFixture[str]) -> None:
    assert all(jnp.isfinite(x).all() for x in call(UNCHANGED).values())
    assert RACE not in capfd.readouterr().out


def test_memory_that_nobody_wrote_is_seen() -> None:
    assert jnp.isnan(call(("acc_s[...] = jnp.zeros_like(acc_s)", "pass"))["out"]).any()
    assert jnp.isnan(call(("dq_ref[...] = jnp.zeros_like(dq_ref)", "pass"))["dq"]).any()


@pytest.mark.parametrize(
    ("form", "change"),
    [
        (Form.RESIDENT, ("k = _chunk(k_ref, walked, BK)", "k = _chunk(k_ref, walked + 1, BK)")),
        (Form.STREAMED, ("lambda held, at: (at(), 0))", "lambda held, at: (at() + 1, 0))")),
    ],
    ids=["resident", "streamed"],
)
def test_reads_outside_are_seen(form: Form, change: tuple[str, str]) -> None:
    """One tile too far: past a head that is resident, and past the array that the grid brings tiles of."""
    with pytest.raises(jax.errors.JaxRuntimeError, match="Out-of-bounds"):
        call(change, form)


def test_tiles_that_add_to_one_result_at_a_time_are_seen(capfd: pytest.CaptureFixture[str]) -> None:
    call(('"arbitrary" if ordered else "parallel"', '"parallel"'))
    assert RACE in capfd.readouterr().out
