"""DTensors in calls: tensors whose batches or heads are cut along other dimensions of a mesh (tensor parallelism).

Each part is an attention of its own where the spec says so (`ir.axes`): the rank's own parts are attended to, and the
results are DTensors that are cut alike. Rows are no matter of DTensor's here: local tensors have those of this rank.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

from attngen.distributed.torch.run import head_dims
from attngen.errors import UsageError
from attngen.ir.axes import BATCHES, cut_params
from attngen.kernel import Kernel

Function = Callable[[Tensor, Tensor, Tensor, Mapping[str, Any], tuple[int, int]], tuple[Tensor, Tensor]]
"""Of q, k, v, params, and how many batches and heads of the whole come before those of q."""


def on_own_parts(
    kernel: Kernel, function: Function, operands: tuple[Tensor, Tensor, Tensor], params: Mapping[str, Any]
) -> tuple[Tensor, Tensor]:
    """`function` of the rank's own parts of q, k, v and params; out and lse as they are cut, if anything is."""
    q = operands[0]
    if not any(isinstance(x, DTensor) for x in (*operands, *params.values())):
        return function(*operands, params, (0, 0))
    if not isinstance(q, DTensor):
        raise UsageError("a param is a DTensor, and q is none: make q, k and v DTensors, or hand over param.to_local()")
    for name, x in zip("kv", operands[1:], strict=True):
        if not isinstance(x, DTensor) or (x.device_mesh, x.placements) != (q.device_mesh, q.placements):
            raise UsageError(f"{name} must be a DTensor that is cut as q is: {q.placements}")
    cuts = [_cut_of(kernel, place, q.ndim) for place in q.placements]
    own = {name: _own(name, x, q, cuts) for name, x in params.items()}
    before = (0 if q.ndim == 3 else _before(q, 0)), _before(q, 1)
    out, lse = function(*_local(operands), own, before)
    packed = q.ndim == 3
    of_lse = [Shard(0) if packed and isinstance(p, Shard) else p for p in q.placements]
    return (
        _whole(out, q, (*q.shape[:-1], out.shape[-1]), q.placements),
        _whole(lse, q, (q.shape[1], q.shape[0]) if packed else q.shape[:3], of_lse),
    )


def _whole(part: Tensor, q: DTensor, shape: tuple[int, ...], places: Sequence[Any]) -> Tensor:
    """The DTensor of this shape that has the part here, and lies as it does. Parts may differ in size."""
    inner, strides = 1, [0] * part.ndim
    for d in sorted(range(part.ndim), key=lambda d: (part.stride(d), -d)):
        strides[d], inner = inner, inner * shape[d]
    return cast(Any, DTensor).from_local(part, q.device_mesh, places, shape=torch.Size(shape), stride=tuple(strides))


def _local(operands: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = (cast(Any, x).to_local() for x in operands)
    return q, k, v


def _before(x: DTensor, dim: int) -> int:
    """How many entries of a dimension other ranks have before those of this one. Parts are those of `torch.chunk`."""
    first, size = 0, x.shape[dim]
    for i, place in enumerate(x.placements):
        if isinstance(place, Shard) and cast(Any, place).dim == dim:
            part = -(-size // x.device_mesh.size(i))
            start = min(part * x.device_mesh.get_local_rank(i), size)
            first, size = first + start, min(part, size - start)
    return first


def _cut_of(kernel: Kernel, place: Any, ndim: int) -> dict[str, int] | None:
    """In which dimension each param is cut where q is; None where q is whole."""
    if isinstance(place, Replicate):
        return None
    dim: int = getattr(place, "dim", -1)
    cut = head_dims(kernel, packed=ndim == 3) if dim == 1 else None
    cut = cut_params(kernel.spec, BATCHES) if (ndim, dim) == (4, 0) else cut
    if cut is None:
        raise UsageError(f"{kernel.name}: q is a DTensor with {place}: batches or heads that the spec tells apart by "
                         "params alone can be cut, and nothing else")  # fmt: skip
    return cut


def _own(name: str, x: Any, q: DTensor, cuts: list[dict[str, int] | None]) -> Any:
    if not isinstance(x, Tensor) or not x.ndim:
        return x
    if not isinstance(x, DTensor):
        raise UsageError(f"{name} must be a DTensor, as q is")
    places = [Replicate() if cut is None or name not in cut else Shard(cut[name]) for cut in cuts]
    # A param that parts share gets a part of its gradient from each.
    sums = [Partial() if cut is not None and name not in cut else p for cut, p in zip(cuts, places, strict=True)]
    return x.redistribute(q.device_mesh, places).to_local(grad_placements=sums)
