# pyright: strict, reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false, reportPrivateUsage=false
# PyTorch and Triton have few types, and private names.

"""How kernels of compute capability 9.0 are chosen and launched."""

from __future__ import annotations

import functools
import warnings
from typing import Any

import torch
import triton
from torch import Tensor

from .devices import chip, copyable, has_tma, padded, strided
from .gluon import GLUON_KNOWN, HopperDescriptor, gl
from .launch import Launch
from .releases import RELEASES
from .tables import rows_by_dims


@functools.cache
def knows_gluon() -> bool:
    """Whether the kernels support this release of Triton. If not, warns once."""
    if not GLUON_KNOWN:
        first, last = (f"{major}.{minor}" for major, minor in RELEASES)
        warnings.warn(
            f"attngen's kernels for Hopper GPUs support Triton {first} to {last}, not {triton.__version__}; the "
            "portable kernels run",
            stacklevel=2,
        )
    return GLUON_KNOWN


def hopper_columns(D: int, Dv: int) -> tuple[int, int]:
    """Head dims rounded up to the keys of the tables."""
    dims = max(64, padded(D)), max(64, padded(Dv))
    return (32, 32) if max(D, Dv) <= 32 else (192, 128) if D <= 192 and dims == (256, 128) else dims


def hopper_row(table: str, q: Tensor, k: Tensor, v: Tensor, *others: Tensor) -> Any:
    """The row of a table, or None where its kernel cannot run."""
    if chip(q.device) != "sm_90" or not has_tma(q, k, v, *others) or not knows_gluon():
        return None
    return rows_by_dims(table).get(hopper_columns(q.shape[3], v.shape[3]))


def batch_rows(*tensors: Tensor) -> int | None:
    """How many rows lie between the batches of these tensors; None if that differs, or if the copy engine cannot read
    them."""
    found: set[int] = set()
    for x in tensors:
        batch, head, row, _ = x.stride()
        if x.element_size() != 2 or not copyable(x, (head, row)) or batch % row:
            return None
        found.add(batch // row)
        if batch // row * (x.shape[0] - 1) + x.shape[2] >= 2**30:
            return None
    return found.pop() if len(found) == 1 else None


def listed_row(table: str, queries: tuple[Tensor, ...], keys: tuple[Tensor, ...]) -> tuple[Any, int, int] | None:
    """The row of a table if its kernel can take tiles of sequences, and `batch_rows` of both sides. A row for
    "sequences" comes before that of dense calls."""
    q, v = queries[0], keys[1]
    rows, columns = rows_by_dims(table), hopper_columns(q.shape[3], v.shape[3])
    row = rows.get((*columns, "sequences"), rows.get(columns))
    if row is None or chip(q.device) != "sm_90" or not knows_gluon():
        return None
    of_q, of_k = batch_rows(*queries), batch_rows(*keys)
    return None if of_q is None or of_k is None else (row, of_q, of_k)


def fetched_bytes(x: Tensor) -> int:
    """The bytes of an element of a param of pairs if the copy engine can fetch tiles of it, else 0."""
    floats = x.dtype in (torch.float16, torch.bfloat16, torch.float32)
    return x.element_size() if floats and x.stride(-1) == 1 and copyable(x, x.stride()[:-1]) else 0


def fetches_pairs(row: Any, wide: dict[str, Any], size: int) -> bool:
    """Whether tiles of pairs, elements of `size` bytes, are fetched with those of keys: shared memory must hold them
    beside the other tiles."""
    D, Dv = wide["BLOCK_D"], wide["BLOCK_DV"]
    tiles = 2 * (row.BQ * (D + Dv * row.OUT_APART) + row.STAGES * row.BK * (D + Dv))
    return size > 0 and tiles + size * row.STAGES * row.BQ * row.BK <= 208 * 1024


def equal_share(group: int, heads: int, wanted: int) -> int:
    """How many query heads of a group an item visits: the whole group, or, if there are fewer KV `heads` than `wanted`,
    an equal share of it, so that there are enough items.
    """
    most = max(1, min(group, group * heads // wanted))
    return next(n for n in range(most, 0, -1) if group % n == 0)


ELEMENTS: dict[torch.dtype, Any] = {torch.float16: gl.float16, torch.bfloat16: gl.bfloat16}


class HopperLaunch(Launch):
    """A kernel of compute capability 9.0. `ragged`: its descriptors are of sequences."""

    def __init__(self, kernel: Any, grid: Any, options: dict[str, Any], *, ragged: bool = False, **others: Any) -> None:
        super().__init__(kernel, grid, options, **others)
        self.ragged = ragged

    def block(self, name: str, x: Tensor) -> list[int]:
        """Rows and columns of a tile."""
        columns = 16 if name == "terms" else max(64, padded(x.shape[3]))
        # Tile sizes are powers of two, so 192 columns of keys come in three parts.
        return [self.tiles[name], 64 if name == "k" and self.options["BLOCK_D"] == 192 else columns]

    def descriptor(self, name: str, x: Tensor) -> Any:
        if name == "pairs":
            block = [1] * (x.dim() - 2) + [self.tiles[name], self.options["BK"]]
            element = ELEMENTS.get(x.dtype, gl.float32)
            sizes = list(x.shape), list(x.stride())
            own: Any = gl.NVMMASharedLayout.get_default_for(block, element)
            return HopperDescriptor(x, *sizes, block, own)
        x = strided(x, 1, x.dim() == 3)
        block = [1, 1, *self.block(name, x)]
        sizes = list(x.shape), list(x.stride())
        if self.ragged:  # a sequence's rows from any row on; the copy engine clips what follows
            far, (head, row) = 2**30, x.stride()[1:3]
            sizes = [2 * far - 2**16, 2 * far - 2**16, x.shape[1], far, x.shape[3]], [2**34 - row, row, head, row, 1]
            block = [1, *block]
        own: Any = gl.NVMMASharedLayout.get_default_for(block, ELEMENTS.get(x.dtype, gl.float8e4nv))
        return HopperDescriptor(x, *sizes, block, own)
