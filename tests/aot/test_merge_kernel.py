"""The kernel that merges parts, compiled for sm_90: no warp stores a row's lse before all have read it."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

# In a process of its own: here, kernels run in Triton's interpreter.
PROGRAM = """
import sys, triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from attngen.runtime.merging import _merge_kernel as kernel

strides = [n for n in kernel.arg_names if n.endswith("_strides")]
types = {"into_ptr": "*bf16", "kept_ptr": "*fp32", "new_ptr": "*bf16", "lse_ptr": "*fp32", "new_lse_ptr": "*fp32"}
types |= {"rows": "i32", "dim": "i32", **{n: ("i32",) * 3 for n in strides}}
constants = {"SUMS": True, "NEW": True, "ROWS": 16, "DIM": int(sys.argv[1])}
aligned = [(kernel.arg_names.index(n),) for n in types if n not in strides]
aligned += [(kernel.arg_names.index(n), i) for n in strides for i in range(2 if "lse" in n else 3)]
types |= dict.fromkeys(constants, "constexpr")
attrs = {at: [["tt.divisibility", 16]] for at in aligned}
source = ASTSource(kernel, {n: types[n] for n in kernel.arg_names}, constexprs=constants, attrs=attrs)
print(triton.compile(source, target=GPUTarget("cuda", 90, 32)).asm[sys.argv[2]])
"""


def compiled(dim: int, form: str) -> str:
    environment = {n: x for n, x in os.environ.items() if n != "TRITON_INTERPRET"}
    command = [sys.executable, "-c", PROGRAM, str(dim), form]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("dim", [64, 128])
def test_a_barrier_stands_between_reading_and_storing_lse(dim: int) -> None:
    found = re.findall(r"(ld\.global|st\.global|bar\.sync)", compiled(dim, "ptx"))
    assert found.count("bar.sync") >= 1
    barrier = len(found) - 1 - found[::-1].index("bar.sync")
    assert "ld.global" not in found[barrier:]
    assert "st.global" not in found[:barrier]


def test_places_of_heads_have_64_bits() -> None:
    products = re.findall(r"arith\.muli %\w+, %(\w+) .*: i32", compiled(64, "ttir"))
    assert [name for name in products if "strides" in name] == []
