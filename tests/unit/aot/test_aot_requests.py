"""What cannot be compiled ahead of time says so before any compiler starts."""

from __future__ import annotations

import importlib.util
import io
import re
from typing import Any

import pytest
from rich.console import Console

from attngen import api, inputs
from attngen.aot import compile as aot
from attngen.aot.compile import Artifact
from attngen.cli.compile import binaries_table
from attngen.errors import UsageError
from attngen.ir.attention import Attention


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> api.Kernel:
    def started(request: aot.Request) -> list[aot.Artifact]:
        raise AssertionError("the compiler was started")

    monkeypatch.setattr(aot, "_in_worker", started)
    return api.compile("attention a\nassume D <= 64\nassume Sk % 96 == 0\n")


def ask(kernel: api.Kernel, **changes: Any) -> list[aot.Artifact]:
    options: dict[str, Any] = {"arch": "sm_90", "dtype": "bf16", "head_dim": (64, 64), "kind": "cubin", **changes}
    return aot.compile_kernels(kernel.source, kernel.spec, **options)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"arch": "sm_75"}, "no architecture 'sm_75'; there are sm_80, "),
        ({"dtype": "fp4"}, "no dtype 'fp4'; there are fp16, bf16, fp32, fp8"),
        ({"kind": "sass"}, "no kind 'sass'; there are ttir, ttgir, ptx, cubin, hsaco"),
        ({"kind": "hsaco"}, "sm_90 has no hsaco; ask for ttir, ttgir, ptx, cubin"),
        ({"arch": "gfx942"}, "gfx942 has no cubin; ask for ttir, ttgir, hsaco"),
        ({"arch": "gfx942", "kind": "ptx"}, "gfx942 has no ptx; ask for ttir, ttgir, hsaco"),
        ({"head_dim": (128, 64)}, "`assume D <= 64`"),
    ],
)
def test_refusals(kernel: api.Kernel, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        ask(kernel, **changes)
    assert message in str(caught.value)


def test_missing_packages_are_named(kernel: api.Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name == "triton" else real(name, *a))
    with pytest.raises(UsageError, match=r"binaries need triton: pip install 'triton>=3.6,<3.10'"):
        ask(kernel)


def test_the_example_call_fulfils_the_specs_assumptions(kernel: api.Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    requests: list[aot.Request] = []
    monkeypatch.setattr(aot, "_in_worker", lambda request: requests.append(request) or [])
    assert ask(kernel, head_dim=(48, 256), arch="gfx942", kind="hsaco", dtype="fp32") == []
    (request,) = requests
    assert request.target == ("hip", "gfx942", 64) and request.kind == "hsaco" and request.dtype == "fp32"
    ordinary, short = (call.sizes for call in request.calls)
    for sizes in (ordinary, short):
        assert (sizes["D"], sizes["Dv"]) == (48, 256) and sizes["Sk"] % 96 == 0
    assert short["Sq"] < 16 and short["Sk"] > ordinary["Sk"]
    assert not request.seeded and all(call.params == () for call in request.calls)


def test_a_spec_without_short_calls_is_compiled_all_the_same(
    kernel: api.Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests: list[aot.Request] = []
    settle = inputs.settle

    def settled(attention: Attention, wanted: dict[str, int], fixed: tuple[str, ...]) -> dict[str, int]:
        if wanted["Sq"] == aot.SHORT["Sq"]:
            raise UsageError("no sizes near fulfil it")
        return settle(attention, wanted, fixed)

    monkeypatch.setattr(aot, "_in_worker", lambda request: requests.append(request) or [])
    monkeypatch.setattr(inputs, "settle", settled)
    ask(kernel)
    assert len(requests[0].calls) == 1
    monkeypatch.undo()
    monkeypatch.setattr(aot, "_in_worker", lambda request: requests.append(request) or [])
    ask(api.compile("attention a\nassume Sq == Sk\n"))
    assert len(requests[1].calls) == 1


def test_the_table_counts_spills_in_main_loops_apart() -> None:
    """A spill outside a loop is paid once, one inside it for each tile: the table tells them apart."""

    def rows(*artifacts: Artifact) -> str:
        text = io.StringIO()
        Console(width=120, file=text).print(binaries_table(artifacts))
        return text.getvalue()

    clean = Artifact("_forward_kernel", b"", 168, 0, 1024)
    spilling = Artifact("_dkdv_kernel", b"", 255, 36, 1024, loop_spills=7)
    assert "in main loops" not in rows(clean)
    shown = rows(clean, spilling)
    assert "in main loops" in shown and re.search(r"_dkdv_kernel +255 +36 +7 ", shown)
