"""Two parts of a result merged in one pass over memory, by a Triton kernel: `Arrays.merged` of two.

Takes out (B, H, S, D), its last dimension contiguous, and lse (B, H, S) of the same queries over other keys. Several
ranks merge a part in each round, where PyTorch's operators would read and write the sums five times.
"""

# pyright: basic, reportArgumentType=false
# Triton's language has no types.

from __future__ import annotations

import threading
from contextlib import nullcontext
from typing import Any

import torch
import triton
import triton.language as tl

_ROWS = 16


@triton.jit
def shares_of_two(lse, new_lse):
    """(share, new share, lse of both) of two parts, from the logarithms of their sums; a part without a key has -inf.
    attngen's prover executes this function as it stands here."""
    top = tl.maximum(lse, new_lse)
    top = tl.where(top == float("-inf"), 0.0, top)
    share = tl.exp(lse - top)
    new_share = tl.exp(new_lse - top)
    total = share + new_share
    scale = tl.where(total > 0.0, 1.0 / total, total)
    return share * scale, new_share * scale, top + tl.log(total)


@triton.jit
def _merge_kernel(
    into_ptr, kept_ptr, new_ptr, lse_ptr, new_lse_ptr, rows, dim,
    into_strides, kept_strides, new_strides, lse_strides, new_lse_strides,
    SUMS: tl.constexpr, NEW: tl.constexpr, ROWS: tl.constexpr, DIM: tl.constexpr,
):  # fmt: skip
    s = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    h, b = tl.program_id(1).to(tl.int64), tl.program_id(2).to(tl.int64)
    d = tl.arange(0, DIM)
    here = s < rows
    cells = here[:, None] & (d < dim)[None, :]
    at = b * kept_strides[0] + h * kept_strides[1] + s[:, None] * kept_strides[2] + d[None, :]
    out = tl.load(kept_ptr + at, mask=cells, other=0.0).to(tl.float32)
    if NEW:
        at = b * new_strides[0] + h * new_strides[1] + s[:, None] * new_strides[2] + d[None, :]
        new = tl.load(new_ptr + at, mask=cells, other=0.0).to(tl.float32)
    if SUMS:
        lse_at = lse_ptr + b * lse_strides[0] + h * lse_strides[1] + s * lse_strides[2]
        lse = tl.load(lse_at, mask=here, other=0.0)
        at = b * new_lse_strides[0] + h * new_lse_strides[1] + s * new_lse_strides[2]
        new_lse = tl.load(new_lse_ptr + at, mask=here, other=0.0)
        share, new_share, both = shares_of_two(lse, new_lse)  # pyright: ignore[reportGeneralTypeIssues]
        out = out * share[:, None]
        if NEW:
            out += new * new_share[:, None]
        tl.debug_barrier()  # other warps of the program read these rows' lse, too
        tl.store(lse_at, both, mask=here)
    else:
        if NEW:
            out += new
    at = b * into_strides[0] + h * into_strides[1] + s[:, None] * into_strides[2] + d[None, :]
    tl.store(into_ptr + at, out.to(into_ptr.dtype.element_ty), mask=cells)


_TURN: Any = nullcontext()
if not isinstance(
    _merge_kernel, triton.JITFunction
):  # in Triton's interpreter kernels take turns, as in generated files
    _TURN = vars(triton).setdefault("_interpreter_turn", threading.RLock())


def merge_into(into: Any, kept: Any, lse: Any, new: Any, new_lse: Any, *, sums: bool) -> None:
    """Writes what `kept` and `new` are together to `into`, and its lse to `lse`, in place; `into` may be `kept`.

    `new` may be None: a part that adds to the denominator alone. `sums`: whether the normalizer divides; without,
    results add up, and lse is left alone.
    """
    batches, heads, rows, dim = into.shape
    if not into.numel():
        return
    new_out = kept if new is None else new
    with torch.cuda.device_of(into), _TURN:
        _merge_kernel[(triton.cdiv(rows, _ROWS), heads, batches)](
            into, kept, new_out, lse, new_lse, rows, dim,
            *(x.stride()[:3] for x in (into, kept, new_out, lse, new_lse)),
            SUMS=sums, NEW=new is not None, ROWS=_ROWS, DIM=triton.next_power_of_2(dim),
        )  # fmt: skip


def add_into(into: Any, kept: Any, new: Any) -> None:
    """Writes the sum of `kept` and `new`, computed in float32, to `into`, which may be either; each in any dtype."""
    merge_into(into, kept, kept, new, new, sums=False)
