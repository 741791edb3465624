"""A piece of a longer sequence as an attention of its own.

Queries and keys are stretches of a sequence of `Sq` and `Sk` positions. Takes an attention; returns one over the
stretches' own positions: where it says `q`, the piece says `q + q_offset`, and where it says `Sq`, the param that holds
the whole sequence's length. So planning, proof and every kernel are those of any other spec. The denominator's own term
is left out: it belongs to the whole (`finish`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import chain, count

from attngen.ir.attention import Attention, Origin, Param
from attngen.ir.axes import BATCHES, HEADS, cut_params
from attngen.ir.build import add, apply, conjunction, index, integer
from attngen.ir.nodes import Expr, Load, Op, Scalar, Storage, Symbol, Type
from attngen.ir.walk import params, substitute, symbols

_PLACE = ("q_offset", "k_offset", "q_size", "k_size")
_COUNTED = ("h_offset", "b_offset")
LONGEST = 2**28
"""Positions of a whole sequence are below this: sums of a few fit 32 bits, which is all that a TPU has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """`own` is the piece's attention. `numbers` are names of its params: where the piece begins on each side, and how
    long the sequence is; with dropout also how many heads and sequences of the whole come before the piece's. `each`:
    they are tensors (B,), a number for each sequence."""

    own: Attention
    numbers: tuple[str, ...]
    each: bool


def piece_of(attention: Attention, *, each: bool, clipped: bool = False) -> Piece:
    """`each`: see `Piece`. Where sequences differ, no param has an element for each row of the whole.

    `clipped`: the piece may have rows before the sequence and behind it, which it leaves out.
    """
    taken = {p.name for p in attention.params} | {name for name, _ in attention.consts} | set(attention.sizes)
    kinds = (*_PLACE, *(_COUNTED if attention.dropout is not None else ()))
    names = [_fresh(name, taken) for name in kinds]
    rows = {"Sq": _fresh("q_rows", taken), "Sk": _fresh("k_rows", taken)}
    batch = (index("b"),) if each else ()
    given = [Load(n, batch, Type.INT) if each else Scalar(n, Type.INT) for n in names]
    q, k, q_size, k_size, *counted = given
    moved: dict[Expr, Expr] = {
        index("q"): add(index("q"), q),
        index("k"): add(index("k"), k),
        index("Sq"): q_size,
        index("Sk"): k_size,
    }

    def whole(e: Expr) -> Expr:
        return substitute(e, moved)

    score, mask = whole(attention.score), whole(attention.mask)
    if clipped:
        sides = (add(index("q"), q), q_size), (add(index("k"), k), k_size)
        inside = (apply(op, a, b) for at, size in sides for op, a, b in ((Op.LE, integer(0), at), (Op.LT, at, size)))
        mask = conjunction(*inside, mask)
    n = replace(attention.normalizer, extra=None)
    kept = (score, mask, attention.dropout, n.weight, n.stream_weight, n.rescale)
    read = {name for e in kept if e is not None for name in params(e)}
    dims: dict[Expr, Expr] = {index(size): index(name) for size, name in rows.items()}
    own_params = [
        replace(p, shape=tuple(substitute(d, dims) for d in p.shape)) for p in attention.params if p.name in read
    ]
    bound = [name for name in rows.values() if any(name in symbols(d) for p in own_params for d in p.shape)]
    least = (_least(kind, each, clipped) for kind in kinds)
    offsets = [_param(name, each, own) for name, own in zip(names, least, strict=True)]
    assumes = [whole(fact) for fact in attention.assumes if set(params(fact)) <= read]
    if not each:
        for offset, rows_here, size in () if clipped else ((q, index("Sq"), q_size), (k, index("Sk"), k_size)):
            assumes.append(apply(Op.LE, add(offset, rows_here), size))
        whole_rows = zip(rows.values(), (q_size, k_size), strict=True)
        assumes += [apply(Op.EQ, index(name), size) for name, size in whole_rows if name in bound]
    sizes = tuple(s for s in attention.sizes if any(s in symbols(d) for p in own_params for d in p.shape))
    own = replace(
        attention,
        params=(*own_params, *offsets),
        sizes=(*sizes, *bound),
        score=score,
        mask=mask,
        normalizer=n,
        assumes=tuple(assumes),
        origin=Origin(k, q, *counted) if counted else attention.origin,
    )
    return Piece(own=own, numbers=tuple(names), each=each)


def uncounted(attention: Attention) -> dict[str, str]:
    """Why a piece must have all heads, or all sequences, of the whole, by the argument's name. A kernel counts its own
    heads and sequences from 0."""
    axes = {"h_offset": (HEADS, "`h` or `hkv`", "head"), "b_offset": (BATCHES, "`b`", "sequence")}
    return {
        name: f"{name} must be 0: the spec reads {index} otherwise than to find a param's own element, so each piece "
        f"needs the {noun}s of the whole"
        for name, (axis, index, noun) in axes.items()
        if cut_params(attention, axis) is None
    }


def row_axes(attention: Attention) -> dict[str, tuple[str, ...]]:
    """The params with an element for each row of a sequence; by axis "Sq", "Sk", or "" for what counts no rows."""
    axes = {
        p.name: tuple(d.id if isinstance(d, Symbol) and d.id in ("Sq", "Sk") else "" for d in p.shape)
        for p in attention.params
    }
    return {name: own for name, own in axes.items() if any(own)}


def _least(kind: str, each: bool, clipped: bool) -> int:
    """Sizes of sequences are at least 1: where a pair is, there is a row. It says nothing of empty sequences. The
    sequences of a call may be any of the whole's, so one of them may have a lower number there."""
    if kind == "b_offset":
        return -LONGEST if each else 0
    if kind in ("q_offset", "k_offset"):
        return -LONGEST if clipped else 0
    return int(each and kind in ("q_size", "k_size"))


def _param(name: str, each: bool, least: int) -> Param:
    value = Scalar(name, Type.INT)
    fact = conjunction(apply(Op.LE, integer(least), value), apply(Op.LT, value, integer(LONGEST)))
    return Param(name, Storage.INT, (Symbol("B", Type.INT),) if each else (), fact)


def _fresh(name: str, taken: set[str]) -> str:
    """`name`, or `name_2` and so on where the file has it already."""
    found = next(n for n in chain((name,), (f"{name}_{i}" for i in count(2))) if n not in taken)
    taken.add(found)
    return found
