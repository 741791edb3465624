"""What comes out: every kind, of the chip and the dtype that were asked for, by the library and by the command."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from aot.chips import EXAMPLES, binaries, build

import attngen
from attngen.aot.compile import compile_kernels
from attngen.errors import InternalError

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def causal() -> attngen.Kernel:
    return build("causal")


def text(kernel: attngen.Kernel, chip: str, kind: str, dtype: str = "bf16") -> str:
    data = binaries(kernel, chip, (64, 64), dtype, kind)["forward"].data
    assert isinstance(data, str)
    return data


def test_hopper(causal: attngen.Kernel) -> None:
    """Tensor cores on the dtype that was asked for, and tiles by the copy engine."""
    ptx = text(causal, "sm_90", "ptx")
    assert ".target sm_90a\n" in ptx and "cp.async.bulk.tensor" in ptx
    assert "wgmma.mma_async" in ptx and ".f32.bf16.bf16" in ptx and ".f32.f16.f16" not in ptx


def test_amd(causal: attngen.Kernel) -> None:
    lowered = text(causal, "gfx942", "ttgir", "fp16")
    assert 'ttg.target = "hip:gfx942"' in lowered and "f16" in lowered and "bf16" not in lowered


def test_only_the_loop_over_ragged_tiles_is_masked(causal: attngen.Kernel) -> None:
    """The promise of the plan, in the compiled form: a loop over full tiles compares no positions."""
    loops = text(causal, "sm_80", "ttgir").split("scf.for")[1:]
    bodies = [body for body in (loop.split("scf.yield")[0] for loop in loops) if "tt.dot" in body]
    compared = [bool(re.search(r"arith\.cmpi \w+, .*tensor<\d+x\d+xi(32|64)", body)) for body in bodies]
    assert compared == [False, True]


@pytest.mark.slow
@pytest.mark.parametrize("chip", ["sm_80", "sm_90", "sm_100"])
@pytest.mark.parametrize(("dtype", "operands"), [("fp16", "f16.f16"), ("bf16", "bf16.bf16"), ("fp32", "fma.rn.f32")])
def test_products_of_every_dtype(causal: attngen.Kernel, chip: str, dtype: str, operands: str) -> None:
    ptx = text(causal, chip, "ptx", dtype)
    products = "tcgen05.mma" if chip == "sm_100" else operands  # which names its operands in a descriptor
    assert (operands if dtype == "fp32" else products) in ptx
    assert ("bf16" in ptx) == (dtype == "bf16")


def test_a_compiler_that_fails_is_an_internal_error_with_its_log(causal: attngen.Kernel) -> None:
    broken = causal.source.replace("tl.exp2(", "tl.no_such_function(")
    with pytest.raises(InternalError, match="causal for sm_80, fp16, head dims 64/32") as caught:
        compile_kernels(broken, causal.spec, arch="sm_80", dtype="fp16", head_dim=(64, 32), kind="ptx")
    assert "no_such_function" in str(caught.value.__cause__)
    assert "no_such_function" in str(caught.value)


def test_command_line_writes_binaries(tmp_path: Path) -> None:
    spec = str(EXAMPLES / "causal.attn")
    printed = attngen_command("compile", spec, "--emit", "cubin", "--arch", "sm_80", "-o", str(tmp_path / "x.cubin"))
    written = {path.name.split(".")[1] for path in tmp_path.iterdir()}
    assert {"forward", "dkdv", "dq"} <= written
    assert all(path.read_bytes()[:4] == b"\x7fELF" for path in tmp_path.iterdir())
    assert "registers" in printed and "spills" in printed and "shared memory" in printed
    assert all(name in printed for name in written)


def test_command_line_prints_texts() -> None:
    spec = str(EXAMPLES / "causal.attn")
    printed = attngen_command("compile", spec, "--emit", "ttir", "--arch", "sm_80")
    assert printed.startswith("// ---- forward\n") and printed.count("tt.func public @_") >= 3


def test_command_line_names_kernels_that_lack_a_text() -> None:
    """Kernels in Gluon have no ttir; the chip that has them is the default."""
    done = run("compile", str(EXAMPLES / "causal.attn"), "--emit", "ttir")
    assert re.findall("^// ---- (forward|dkdv|dq|hopper.*)$", done.stdout, re.MULTILINE) == ["forward", "dkdv", "dq"]
    assert "no ttir of hopper_forward, hopper_backward, hopper_backward_2: written in Gluon" in done.stderr


def attngen_command(*arguments: str) -> str:
    return run(*arguments).stdout


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "attngen", *arguments]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
