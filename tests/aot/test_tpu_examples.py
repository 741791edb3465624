"""Every example's Pallas kernels, forward and backward, through the TPU's own compiler, for chips that are not here.

And those of every spec of the parity suite, on one chip: what no example has. The whole matrix is
`pytest tests/aot/test_tpu_examples.py -m slow`; the default run takes a sample of it.
"""

from __future__ import annotations

import functools
import importlib.util
import re
from pathlib import Path

import pytest
from aot.chips import EXAMPLES, NAMES
from pallas.unseen import UNSEEN
from parity.extras import EXTRAS

import attngen
from attngen import api, inputs
from attngen.tpu.compile import Compiled, compile_for
from attngen.tpu.estimate import estimate
from attngen.tpu.programs import request_for

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="needs libtpu: pip install -e '.[tpu]'"
)
CHIPS = ("v5e", "v5p", "v6e")
SAMPLE = {("window_global", "v5e", 128), ("rollouts", "v5p", 64), ("sink", "v6e", 256)}
PARTS = ("forward", "dq", "dkdv", "backward")
SIZES = {"B": 1, "Hq": 2, "Hkv": 1, "Sq": 1024, "Sk": 1024}
LONG = {**SIZES, "Sq": 1 << 17, "Sk": 1 << 17}
PAIRS = ("full_bias", "natten_2d")
"""These have a number for each pair of a head: 64 GB at that length."""
BOUNDS = r"iteration_bounds = array<i64: ([^>]*)>"


def matrix() -> list[object]:
    return [
        pytest.param(*case, id="-".join(map(str, case)), marks=[] if case in SAMPLE else [pytest.mark.slow])
        for case in ((name, chip, dim) for name in NAMES for chip in CHIPS for dim in (64, 128, 256))
    ]


@functools.cache
def built(spec: Path | str) -> attngen.Kernel:
    return attngen.compile(spec, target="pallas")


def compiled_kernels(kernel: attngen.Kernel, chip: str, dim: int) -> set[str]:
    """The kernels that libtpu compiled, of those that every file has."""
    sizes = inputs.settle(kernel.spec, {**SIZES, "D": dim, "Dv": dim}, fixed=("D", "Dv"))
    compiled = api.tpu_compile(kernel, chip=chip, dtype="bf16", sizes=sizes, schedule=False, mosaic=True)
    text = " ".join(module for _, module in compiled.mosaic)
    return {part for part in PARTS if f"func.func @_{part}_kernel" in text}


@pytest.mark.parametrize(("name", "chip", "dim"), matrix())
def test_every_kernel_compiles(name: str, chip: str, dim: int) -> None:
    found = compiled_kernels(built(EXAMPLES / f"{name}.attn"), chip, dim)
    assert found in ({"forward", "dq", "dkdv"}, {"forward", "backward"})


@pytest.mark.parametrize(
    ("name", "dim"),
    [
        pytest.param(name, dim, marks=[] if (name, dim) == ("windowed_alibi", 64) else [pytest.mark.slow])
        for name in NAMES
        if name not in ("sigmoid", "dropout")
        for dim in (64, 128)
    ],
)
def test_the_forward_of_wide_matrix_units_compiles(name: str, dim: int) -> None:
    """Keys down and queries across, which is for calls that ask for no gradient and no log-sum-exp."""
    kernel = built(EXAMPLES / f"{name}.attn")
    sizes = inputs.settle(kernel.spec, {**SIZES, "D": dim, "Dv": dim}, fixed=("D", "Dv"))
    compiled = compile_for(
        request_for(
            kernel.source,
            kernel.spec,
            chip="v6e",
            dtype="bf16",
            sizes=sizes,
            backward=False,
            schedule=False,
            mosaic=True,
        )
    )
    assert isinstance(compiled, Compiled), compiled
    (text,) = (module for _, module in compiled.mosaic)
    assert "func.func @_forward_across_kernel" in text


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(v.text, id=v.name, marks=[] if v.name == "votes" else [pytest.mark.slow])
        for v in (*EXTRAS, *UNSEEN)
    ],
)
def test_what_no_example_has_compiles(text: str) -> None:
    assert compiled_kernels(built(text), "v5e", 64) in ({"forward", "dq", "dkdv"}, {"forward", "backward"})


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[] if n == "sliding_window" else [pytest.mark.slow]) for n in NAMES if n not in PAIRS],
)
def test_a_head_that_does_not_fit_is_brought_tile_by_tile(name: str) -> None:
    """Where sequences are long, the grid's fourth dimension walks the tiles, and dQ has a kernel of its own."""
    kernel = built(EXAMPLES / f"{name}.attn")
    sizes = inputs.settle(kernel.spec, {**LONG, "D": 128, "Dv": 128}, fixed=("D", "Dv"))
    compiled = api.tpu_compile(kernel, chip="v5e", dtype="bf16", sizes=sizes, schedule=False, mosaic=True)
    dimensions: dict[str, int] = {}
    for _, module in compiled.mosaic:
        function, bounds = re.search(r"func.func @_(\w+)_kernel", module), re.search(BOUNDS, module)
        if function is not None and bounds is not None:
            dimensions[function[1]] = len(bounds[1].split(","))
    assert dimensions == {"forward": 4, "dq": 4, "dkdv": 4}


def test_bounds_that_depend_on_the_callers_data_are_followed() -> None:
    """Documents: the schedule's loops run as often as the example's ids make them, with no guess."""
    kernel = attngen.compile(EXAMPLES / "documents.attn", target="pallas")
    sizes = inputs.settle(kernel.spec, {**SIZES, "D": 64, "Dv": 64}, fixed=("D", "Dv"))
    result = estimate(api.tpu_compile(kernel, chip="v5e", dtype="bf16", sizes=sizes))
    assert len(result.pallas) >= 2
    assert not [k.doubts for k in result.pallas if k.doubts]
