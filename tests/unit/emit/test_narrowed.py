"""Files for one chip, head dim or dtype, or without a backward pass: what they hold and what they refuse."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import attngen
from attngen import inputs
from attngen.errors import UsageError
from attngen.ir.attention import Param
from attngen.ir.nodes import Type
from attngen.runtime.loader import load

ROOT = Path(__file__).resolve().parents[3]
EXAMPLES = sorted(path.stem for path in (ROOT / "examples").glob("*.attn"))
NARROW = {"arch": "sm_90", "head_dim": 128, "dtype": "bf16", "forward": True}

pytestmark = [
    pytest.mark.filterwarnings("ignore::RuntimeWarning:triton.runtime.interpreter"),
    pytest.mark.filterwarnings("ignore:no GPU found:UserWarning"),
]


@cache
def compiled(name: str, **options: Any) -> attngen.Kernel:
    return attngen.compile(ROOT / "examples" / f"{name}.attn", **options)


def tensors(d: int, dv: int, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, ...]:
    draw = torch.Generator().manual_seed(7)
    shapes = ((1, 2, 24, d), (1, 2, 24, d), (1, 2, 24, dv))
    return tuple(torch.randn(shape, generator=draw).to(dtype) for shape in shapes)


def given(param: Param, value: Any) -> Any:
    """A drawn value as a call takes it."""
    if isinstance(value, bool | int | float):
        return value
    tensor = torch.from_numpy(value)
    return tensor.float() if param.storage.type is Type.FLOAT else tensor


def functions(source: str) -> set[str]:
    return {node.name for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)}


def tiles(module: Any) -> dict[Any, Any]:
    return module.tiles_by_chip(module.TILES)


def rows(module: Any, table: str) -> dict[Any, Any]:
    return module.rows_by_dims(getattr(module, table))


def test_a_chip_has_its_own_rows_and_those_of_the_interpreter() -> None:
    for arch in ("sm_80", "sm_90", "gfx942"):
        module = load(compiled("causal", arch=arch).source, "causal")
        shares = module.shares_by_chip(module.SPLIT)
        assert {chip for chip, _, _ in tiles(module)} == {chip for chip, _ in shares} == {arch, "cpu"}
    assert "\nHOPPER" not in compiled("causal", arch="sm_80").source
    assert "\nHOPPER" not in compiled("causal", arch="portable").source
    every = load(compiled("causal", arch="portable").source, "causal")
    assert {chip for chip, _, _ in tiles(every)} == {"sm_80", "sm_86", "sm_90", "sm_100", "gfx942", "cpu"}


def test_rows_are_those_of_the_file_for_everything() -> None:
    whole = load(compiled("causal").source, "causal")
    narrow = load(compiled("causal", arch="sm_90", head_dim=(128, 100), dtype="fp16").source, "causal")
    own = {key: row for key, row in tiles(narrow).items() if key[0] != "cpu"}
    assert own == {("sm_90", 2, 128): tiles(whole)["sm_90", 2, 128]}
    square = load(compiled("causal", head_dim=128).source, "causal")
    for table in ("HOPPER", "HOPPER_BACKWARD"):
        assert rows(square, table) == {(128, 128): rows(whole, table)[128, 128]}


@pytest.mark.parametrize(
    ("head_dim", "held"),
    [
        (128, {"_hopper_forward_kernel", "_hopper_backward_kernel"}),
        (256, {"_hopper_forward_kernel", "_hopper_dkdv_kernel", "_hopper_dq_kernel"}),
        ((192, 128), {"_hopper_forward_kernel", "_hopper_dkdv_kernel", "_hopper_dq_kernel"}),
        ((100, 128), {"_hopper_forward_kernel"}),  # rows of dQ are no multiple of 16 bytes
        ((128, 100), set()),
        (32, {"_hopper_backward_kernel"}),
    ],
)
def test_a_head_dim_has_the_kernels_that_take_it(head_dim: Any, held: set[str]) -> None:
    found = functions(compiled("causal", head_dim=head_dim).source)
    assert {name for name in found if name.startswith("_hopper") and name.endswith("_kernel")} == held


def test_float32_has_no_kernels_for_hopper_cards() -> None:
    assert "gluon" not in compiled("causal", dtype="fp32").source


@pytest.mark.parametrize("name", EXAMPLES)
def test_without_a_backward_pass_the_result_is_the_same(name: str) -> None:
    whole, kernel = compiled(name), compiled(name, forward=True)
    assert not {"_gradients", "_dq_kernel", "_dkdv_kernel"} & functions(kernel.source)
    sizes = inputs.settle(kernel.spec, {"B": 1, "Hq": 2, "Hkv": 1, "Sq": 40, "Sk": 40, "D": 16, "Dv": 16})
    drawn = inputs.examples(kernel.spec, sizes)
    draw = torch.Generator().manual_seed(3)
    q, k, v = (
        torch.randn(sizes["B"], sizes[h], sizes[n], sizes[d], generator=draw)
        for h, n, d in (("Hq", "Sq", "D"), ("Hkv", "Sk", "D"), ("Hkv", "Sk", "Dv"))
    )
    params = {p.name: given(p, drawn[p.name]) for p in kernel.spec.params}
    seed = {"dropout_seed": 5}
    wanted, lse = whole(q, k, v, **params, **seed, return_lse=True)
    got, its = kernel(q, k, v, **params, **seed, return_lse=True)
    assert torch.equal(wanted, got) and torch.equal(lse, its)


def test_a_narrow_file_computes_what_the_whole_one_does() -> None:
    q, k, v = tensors(128, 128, torch.bfloat16)
    assert torch.equal(compiled("causal", **NARROW)(q, k, v), compiled("causal")(q, k, v))


def test_without_a_backward_pass_a_gradient_is_refused() -> None:
    kernel = compiled("causal", forward=True)
    q, k, v = tensors(16, 16)
    q.requires_grad_()
    with pytest.raises(UsageError, match=r"made with the option forward and has no gradients: call it under torch"):
        kernel(q, k, v)
    with torch.no_grad():
        assert kernel(q, k, v).shape == v.shape
    compiled_call = torch.compile(kernel.function, fullgraph=True, backend="eager")
    with torch.no_grad():
        assert torch.equal(compiled_call(q, k, v), kernel(q, k, v))


def test_calls_that_a_file_was_not_made_for_are_refused() -> None:
    q, k, v = tensors(64, 64)
    with pytest.raises(UsageError, match="made with head_dim=128: head dims must be 128 and 128, not 64 and 64"):
        compiled("causal", head_dim=128)(q, k, v)
    with pytest.raises(UsageError, match="made with head_dim=64/32: head dims must be 64 and 32, not 64 and 64"):
        compiled("causal", head_dim=(64, 32))(q, k, v)
    with pytest.raises(UsageError, match=r"made with dtype=fp16: q must be float16, not torch\.float32"):
        compiled("causal", dtype="fp16")(q, k, v)
    with pytest.raises(UsageError, match=r"made with dtype=bf16: q must be bfloat16, not torch\.float16"):
        compiled("causal", dtype="bf16")(q.half(), k.half(), v.half())


def test_a_chip_that_a_file_was_not_made_for_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    module = load(compiled("causal", arch="sm_90").source, "causal")
    with FakeTensorMode():
        q, k, v = (torch.empty(1, 2, 24, 64, device="cuda", dtype=torch.float16) for _ in "qkv")
        monkeypatch.setattr(module, "chip", lambda device: "sm_80")
        with pytest.raises(ValueError, match="made with arch=sm_90, and cuda:0 is sm_80"):
            module._attention.check((q, k, v), 1.0)
        monkeypatch.setattr(module, "chip", lambda device: "sm_90")
        module._attention.check((q, k, v), 1.0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"head_dim": 0}, "must be an int from 1 to 256"),
        ({"head_dim": (64, 257)}, "must be an int from 1 to 256"),
        ({"head_dim": True}, "must be an int from 1 to 256"),
        ({"dtype": "fp4"}, "no dtype 'fp4'; there are fp16, bf16, fp32, fp8"),
        ({"target": "pallas", "forward": True}, "can be chosen for target triton only, not for pallas"),
        ({"target": "torch", "arch": "sm_90"}, "can be chosen for target triton only, not for torch"),
        ({"target": "jax", "head_dim": 64}, "can be chosen for target triton only, not for jax"),
    ],
)
def test_options_that_do_not_exist_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        attngen.compile("attention subject\nmask = causal\n", **options)
