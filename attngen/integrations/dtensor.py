"""Tensors that are spread over several devices: batches and heads of a kernel's call stay where they are.

`register(kernel)` tells PyTorch's DTensor how the kernel's operators may be cut, forward and backward. An axis is cut
where a device needs no other's part: the spec reads its index only to find a param's own cell. The gradient of a param
that all devices have is then a sum over them, which DTensor takes when it is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from attngen import targets
from attngen.errors import UsageError
from attngen.ir.attention import Attention
from attngen.ir.axes import AXES, Axis, cut_params

if TYPE_CHECKING:
    from attngen.kernel import Kernel

Strategy: TypeAlias = "list[tuple[list[Any], list[Any]]]"
Way: TypeAlias = "Callable[[Kernel, Any, Sequence[Any]], Strategy]"


def register(kernel: Kernel) -> None:
    """Dense calls of `kernel` take DTensors from now on. For target triton; needs torch 2.6 or newer.

    q, k and v, and the params, are DTensors of one mesh (numbers stay numbers). What is cut along another dimension
    than batches or heads, or may not be cut, is gathered first. `varlen` and lengths take local tensors. Raises
    `UsageError` for another target.
    """
    from torch.distributed.tensor.experimental import register_sharding

    if not targets.named(kernel.target).operators:
        raise UsageError(f"{kernel.name}: DTensors are taken by kernels for target triton, not for {kernel.target}")
    own = kernel.loaded("dense").attention.operator
    for made, way in ((own.forward, _forward_strategy), (own.backward, _backward_strategy)):
        if made is not None:  # a file for inference has no backward pass
            operator = made._opoverload
            register_sharding(operator)(partial(_strategy, way, kernel, operator))


# ---------------------------------------------------------------- placements


def _strategy(way: Way, kernel: Kernel, operator: Any, *given: Any) -> Strategy:
    return way(kernel, operator, given)


def _cut(spec: Attention, axis: Axis) -> dict[str, int] | None:
    """Where params are cut with an axis; None where it is not, nor with dropout, which counts batches and heads."""
    return None if spec.dropout is not None else cut_params(spec, axis)


def _named(operator: Any, given: Sequence[Any], spec: Attention) -> dict[str, Any]:
    """The arguments by name; params, which stand behind v, by their users' names."""
    names = [a.name for a in operator._schema.arguments]
    behind = names.index("v") + 1
    names[behind : behind + len(spec.params)] = [p.name for p in spec.params]
    return dict(zip(names, given, strict=False))


def _placed(given: dict[str, Any], cut: dict[str, int] | None, dimension: int) -> list[Any]:
    """Where each argument lies: tensors by rows and heads are cut, params where `cut` says so, the rest is whole."""
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor._dtensor_spec import DTensorSpec

    def place(name: str, x: Any) -> Any:
        if not isinstance(x, DTensorSpec):
            return None
        if cut is None or x.ndim == 0:
            return Replicate()
        if name in _BY_HEADS and x.ndim > 1:
            return Shard(dimension)
        return Shard(cut[name]) if _is_cut(cut, name, x) else Replicate()

    return [place(name, x) for name, x in given.items()]


def _is_cut(cut: dict[str, int], name: str, x: Any) -> bool:
    """Whether a device has its own part of a param: a size of 1 is for all of them."""
    return name in cut and x.shape[cut[name]] != 1


_BY_HEADS = ("q", "k", "v", "out", "lse", "den", "rest", "d_out", "d_lse")


def _forward_strategy(kernel: Kernel, operator: Any, given: Sequence[Any]) -> Strategy:
    from torch.distributed.tensor import Replicate, Shard

    named = _named(operator, given, kernel.spec)
    results = len(operator._schema.returns)
    whole: list[Any] = [Replicate()] * results
    found: Strategy = [(whole, _placed(named, None, 0))]
    for axis in AXES:
        cut = _cut(kernel.spec, axis)
        if cut is not None:
            outputs: list[Any] = [Shard(axis.dimension)] * results
            if "precise" in (a.name for a in operator._schema.arguments) and not named.get("precise", False):
                outputs[-1] = Replicate()  # nothing is in it
            found.append((outputs, _placed(named, cut, axis.dimension)))
    return found


def _backward_strategy(kernel: Kernel, operator: Any, given: Sequence[Any]) -> Strategy:
    from torch.distributed.tensor import Partial, Replicate, Shard

    named = _named(operator, given, kernel.spec)
    learned = [p.name for p in kernel.spec.params if any(g.param == p.name for g in kernel.plan.gradients)]
    whole: list[Any] = [Replicate()] * (3 + len(learned))
    found: Strategy = [(whole, _placed(named, None, 0))]
    for axis in AXES:
        cut = _cut(kernel.spec, axis)
        if cut is not None:
            outputs: list[Any] = [Shard(axis.dimension)] * 3
            for name, asked in zip(learned, named.get("needed", ()), strict=True):
                own = Shard(cut[name]) if _is_cut(cut, name, named[name]) else Partial()
                outputs.append(own if asked else Replicate())  # what is not asked for is empty
            found.append((outputs, _placed(named, cut, axis.dimension)))
    return found
