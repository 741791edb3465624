"""What a forbidden row of K or V holds reaches nothing: NaN and infinities there change no bit of any result.

A cache's rows that were never written hold anything. For each spec of `forbidden`, on each target that runs here and in
the reference: out, lse and every gradient are those of the same call with zeros in those rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from parity import forbidden, variants
from parity.compare import Numbers, disagreements
from parity.forbidden import EVERY, Forbidding, case_of, fouled, unread
from parity.jax_side import by_pallas
from parity.test_parity import FLOOR, TILE, TOLERANCE, by_kernel, by_reference
from parity.test_parity_split import cut
from parity.variants import Case, Inputs
from property.kernels import analysed

import attngen

pytestmark = [
    pytest.mark.filterwarnings("ignore:Conversion of an array with ndim > 0:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning:triton.runtime.interpreter"),
    pytest.mark.filterwarnings("ignore:invalid value encountered in matmul:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:no GPU found:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*no TPU found:UserWarning"),
]

Run = Callable[[Inputs], Numbers]


def drawn(spec: Forbidding, case: Case = forbidden.CASE) -> Inputs:
    return variants.inputs(spec, case_of(spec, case), torch.float32, "cpu")  # type: ignore[arg-type]


def check(run: Run, given: Inputs, rows: torch.Tensor) -> Numbers:
    """The results with zeros in `rows` of K and V, after what else they may hold has been found to change no bit."""
    assert rows.any() and not rows.all()
    clean = replace(given, k=given.k.masked_fill(rows[..., None], 0), v=given.v.masked_fill(rows[..., None], 0))
    want = run(clean)
    assert all(torch.isfinite(x).all() for n, x in want.values.items() if n != "lse")
    assert not want.values["d_k"][rows].any() and not want.values["d_v"][rows].any()
    got = run(replace(clean, k=fouled(clean.k, rows), v=fouled(clean.v, rows)))
    changed = [n for n, x in want.values.items() if not torch.equal(got.values[n], x)]
    assert not changed, f"forbidden rows reach {', '.join(changed)}"
    return want


SAMPLE = {("lengths", "triton"), ("either_stretch", "torch"), ("gate", "jax"), ("first_keys", "pallas")}


def matrix() -> list[object]:
    """Every spec on every target; in each run one of each target."""
    return [
        pytest.param(s, t, id=f"{s.name}-{t}", marks=[] if (s.name, t) in SAMPLE else [pytest.mark.slow])
        for s in EVERY
        for t in ("triton", "torch", "jax", "pallas")
    ]


def one_of(specs: Iterable[Forbidding], name: str) -> list[object]:
    """All of them, slow but for the one of that name."""
    return [pytest.param(s, id=s.name, marks=[] if s.name == name else [pytest.mark.slow]) for s in specs]


@pytest.mark.parametrize(("spec", "target"), matrix())
def test_a_forbidden_row_reaches_nothing(spec: Forbidding, target: str) -> None:
    given = drawn(spec)
    kernel = attngen.compile(spec.text, target, tile=TILE)
    by = by_pallas if target in ("jax", "pallas") else by_kernel
    found = check(lambda x: by(kernel, x, True), given, unread(spec, given))
    clean = torch.where(unread(spec, given)[..., None], 0, given.k)
    off = disagreements(found, by_reference(kernel, replace(given, k=clean), True), TOLERANCE[torch.float32],
                        FLOOR[torch.float32], frozenset())  # fmt: skip
    assert not off, "; ".join(off)


@pytest.mark.parametrize("spec", EVERY, ids=lambda spec: spec.name)
def test_nor_does_it_in_the_reference(spec: Forbidding) -> None:
    given = drawn(spec)
    kernel: Any = SimpleNamespace(spec=analysed(spec.text))
    check(lambda x: by_reference(kernel, x, True), given, unread(spec, given))


@pytest.mark.parametrize("spec", one_of((s for s in EVERY if not s.square), "padding_by_head"))
def test_nor_where_short_queries_are_split(spec: Forbidding) -> None:
    given = drawn(spec, replace(forbidden.CASE, name="split", rows=3))
    kernel = attngen.compile(spec.text, tile=TILE)
    kernel(given.q, given.k, given.v, **given.params)  # imports the module
    with cut(kernel, 3) as launched:
        check(lambda x: by_kernel(kernel, x, True), given, unread(spec, given))
    assert "_split_kernel" in launched


@pytest.mark.parametrize("rows", [3, pytest.param(19, marks=pytest.mark.slow)])
@pytest.mark.parametrize("target", [pytest.param("triton", marks=pytest.mark.slow), "reference"])
def test_a_head_is_not_reached_by_what_only_its_neighbour_keeps(target: str, rows: int) -> None:
    """Heads share keys and values: a row that one keeps and another forbids reaches that one alone."""
    spec = next(s for s in EVERY if s.name == "padding_by_head")
    given = drawn(spec, replace(forbidden.CASE, name="neighbours", rows=rows))
    keep = given.params["keep"]
    assert isinstance(keep, torch.Tensor)
    other = (keep[1] & ~keep[0])[None, None].expand(2, 1, -1)
    assert other.any()
    kernel = attngen.compile(spec.text, tile=TILE)
    by = by_reference if target == "reference" else by_kernel
    run: Run = lambda x: by(kernel, x, True)  # noqa: E731
    want = run(given)
    got = run(replace(given, k=fouled(given.k, other), v=fouled(given.v, other)))
    assert torch.isnan(got.values["out"][:, 1]).any()
    for name in ("out", "lse", "d_q"):
        assert torch.equal(got.values[name][:, 0], want.values[name][:, 0]), name
