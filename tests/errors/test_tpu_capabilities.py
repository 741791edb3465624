"""What a TPU cannot do: each row of the table by a spec or a call that is refused, and what comes close and works."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from errors.test_analyse_errors import unmark

import attngen
from attngen.cli import main as cli
from attngen.plan.tiles.tpu_limits import TPU, Refuses, table
from attngen.runtime.loader import execute

pytestmark = pytest.mark.filterwarnings("ignore:.*no TPU found:UserWarning")
DOCS = Path(__file__).parents[2] / "docs" / "kernels-tpu.md"
HEAD = "attention a\n"
END = 2**31 - 1

REFUSED: tuple[tuple[str, str], ...] = (
    ("integer-width", "param ids: int[B, Sk]\nmask = ⟪(ids[b, k] * 31 + q) % 7 != 0⟫\n"),
    ("integer-width", "param n: int\nscore = qk * scale - 0.1 * ⟪abs(q + n - k)⟫\n"),
)
ACCEPTED: tuple[str, ...] = (
    "mask = k < 3000000000\n",
    "mask = (q - k) ** 2 < 100\n",
    "param n: int\nmask = q + n - k >= 3\n",
    "param ids: int[B, Sk] where 0 <= ids < 1000000\nmask = (ids[b, k] * 31 + q) % 7 != 0\n",
    "param n: int where -1000000 <= n <= 1000000\nscore = qk * scale - 0.1 * abs(q + n - k)\n",
    "param t: int[B, Sk]\nassume Sq == Sk\nmask = abs(t[b, q] - t[b, k]) <= 5\n",
    "param n: int\nparam table: f32[size]\nscore = qk * scale + table[clamp(q + n - k, 0, size - 1)]\n",
    "param t: int[B, Sk]\nassume Sq == Sk\nscore = qk * scale + 0.1 * clamp(t[b, q] - t[b, k], -8, 8)\n",
)


def test_every_row_is_in_the_docs() -> None:
    text = DOCS.read_text(encoding="utf-8")
    assert "\n".join(table()) in text
    assert len({row.name for row in TPU}) == len(TPU)


def test_every_row_is_tested() -> None:
    assert {name for name, _ in REFUSED} == {row.name for row in TPU if row.refuses is Refuses.PROVER}
    assert set(CALLS) == {row.name for row in TPU if row.refuses is Refuses.CALL}


@pytest.mark.parametrize(("name", "body"), REFUSED)
def test_a_spec_that_asks_for_it_is_refused_where_it_does(
    name: str, body: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Status 1, as for all that the prover refuses; where ints are wider it compiles."""
    text, ((line, column, _, end),) = unmark(HEAD + body)
    spec = tmp_path / "a.attn"
    spec.write_text(text)
    assert cli.main(["compile", str(spec), "--target", "pallas"]) == 1
    out, err = capsys.readouterr()
    row = next(row for row in TPU if row.name == name)
    assert out == "" and err.count("error[") == 1
    assert f"a.attn:{line}:{column}: error[{name}]: refuted: " in err
    assert f"{'^' * (end - column)} {row.fix}" in err
    attngen.compile(text, "triton")


@pytest.mark.parametrize("body", ACCEPTED)
def test_what_comes_close_is_not(body: str) -> None:
    attngen.compile(HEAD + body, "pallas")


# ---------------------------------------------------------------- what only a call asks for


def array(length: int = 8, dim: int = 16, dtype: Any = jnp.float32) -> Any:
    """Looks like an array of one head, and takes no memory."""
    return SimpleNamespace(shape=(1, length, 1, dim), dtype=jnp.dtype(dtype))


CALLS: dict[str, tuple[Any, str]] = {
    "dtype": (array(dtype=jnp.float16), "q must be bfloat16 or float32, which TPUs multiply, not float16"),
    "head-dim": (array(dim=264), "head dims must be from 1 to 256, not 264 and 264"),
    "length": (array(length=2**27), f"sequences must be shorter than 2**27 = {2**27}, not {2**27}"),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_call_that_asks_for_it_is_refused(name: str) -> None:
    x, message = CALLS[name]
    kernel = attngen.compile(HEAD + "mask = causal\n", "pallas")
    module: Any = execute(kernel.source, "a")
    with pytest.raises(ValueError) as caught:
        module.a(x, x, x)
    assert str(caught.value) == f"a: {message}"


def test_a_dtype_that_is_asked_for_by_name_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = tmp_path / "a.attn"
    spec.write_text(HEAD)
    assert cli.main(["compile", str(spec), "--target", "pallas", "--emit", "hlo", "--dtype", "fp16"]) == 2
    assert "no dtype 'fp16' on a TPU; there are bf16, fp32" in capsys.readouterr().err


# ---------------------------------------------------------------- ints at their end


@pytest.mark.parametrize(
    ("limit", "body"),
    [
        (END, "assume Sq == Sk\nmask = abs(t[b, q] - t[b, k]) <= 5\n"),
        (END, "mask = -t[b, k] < 7 + q\n"),
        (END, "mask = k - 3 * t[b, k] > q\n"),
        (END, "assume Sq == Sk\nscore = qk * scale + 0.1 * clamp(t[b, q] - t[b, k], -8, 8)\n"),
        (2_000_000, "mask = t[b, k] ** 3 <= 1000\n"),
    ],
)
def test_sums_beyond_32_bits_compare_as_they_should(limit: int, body: str) -> None:
    fact = "" if limit == END else f" where {-limit} <= t <= {limit}"
    kernel = attngen.compile(f"{HEAD}param t: int[B, Sk]{fact}\n{body}", "pallas", tile=(16, 16))
    values = np.array([0, 3, -2, 2_000_000_000, -2_000_000_000, END, -END, 1300, -1300, 9]).clip(-limit, limit)
    t = np.tile(values.astype(np.int32), 2)[None]
    q, k, v = (np.random.default_rng(i).standard_normal((1, 20, 1, 8)).astype(np.float32) for i in range(3))
    got = kernel(*map(jnp.asarray, (q, k, v)), t=jnp.asarray(t))
    np.testing.assert_allclose(got, kernel.reference(q, k, v, t=t), rtol=2e-5, atol=2e-5)
