"""Along which axes an attention may be cut: batches and heads of which each part is an attention of its own.

Takes an attention, returns the dimension in which each param is cut with an axis. Tensors that are spread over devices
(`integrations.dtensor`), heads that are (`distributed`), and batches of which a call has some rely on it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from attngen.ir.attention import Attention
from attngen.ir.nodes import Apply, Expr, Load, Symbol
from attngen.ir.walk import symbols


@dataclass(frozen=True, slots=True)
class Axis:
    """A dimension of q, k, v and of the results: what indexes it, by the size of what is indexed."""

    dimension: int
    indices: tuple[tuple[str, str], ...]


BATCHES = Axis(0, (("B", "b"),))
HEADS = Axis(1, (("Hq", "h"), ("Hkv", "hkv")))
AXES = BATCHES, HEADS


def cut_params(spec: Attention, axis: Axis) -> dict[str, int] | None:
    """Which dimension of each param is cut with the axis; None where the axis may not be cut.

    Dropout counts batches and heads: a part's begin with those before it (`attention.Origin`).
    """
    index_of = dict(axis.indices)
    cut: dict[str, int] = {}
    for param in spec.params:
        sized = [i for i, dim in enumerate(param.shape) if symbols(dim) & index_of.keys()]
        if len(sized) > 1 or any(not isinstance(param.shape[i], Symbol) for i in sized):
            return None
        cut.update((param.name, i) for i in sized)
    return cut if all(_is_local(e, spec, index_of) for e in expressions(spec)) else None


def reads_rows(spec: Attention) -> list[str]:
    """Params with an element for each row."""
    return [p.name for p in spec.params if any(symbols(d) & {"Sq", "Sk"} for d in p.shape)]


def has_one_batch(spec: Attention) -> bool:
    """Whether nothing depends on the batch's number but elements of params."""
    extra = spec.normalizer.extra
    return cut_params(spec, BATCHES) is not None and (extra is None or "b" not in symbols(extra))


def _is_local(e: Expr, spec: Attention, index_of: dict[str, str]) -> bool:
    """Whether it reads the axis only where an index finds the param's own cell."""
    match e:
        case Symbol():
            return e.id not in {*index_of, *index_of.values()}
        case Load():
            axes = ((i, dim.id if isinstance(dim, Symbol) else "") for i, dim in spec.param(e.param).axes(e))
            return (e.member is None or _is_local(e.member, spec, index_of)) and all(
                (isinstance(i, Symbol) and i.id == index_of[size]) if size in index_of else _is_local(i, spec, index_of)
                for i, size in axes
            )
        case Apply():
            return all(_is_local(a, spec, index_of) for a in e.args)
        case _:
            return True


def expressions(spec: Attention) -> Iterator[Expr]:
    """All that a call evaluates."""
    n = spec.normalizer
    found = (spec.score, spec.mask, n.weight, n.extra, n.stream_weight, n.rescale)
    yield from (e for e in found if e is not None)
    yield from spec.assumes
