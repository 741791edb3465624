"""A piece of a longer sequence as an attention of its own.

Queries and keys are stretches of a sequence of `Sq` and `Sk` positions. Takes an attention; returns one over the
stretches' own positions: where it says `q`, the piece says `q + q_offset`, and where it says `Sq`, the param that holds
the whole sequence's length. So planning, proof and every kernel are those of any other spec. The denominator's own term
is left out: it belongs to the whole (`finish`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import chain, count

from attngen.ir.attention import Attention, Param
from attngen.ir.build import add, apply, conjunction, index, integer
from attngen.ir.nodes import Expr, Load, Op, Scalar, Storage, Symbol, Type
from attngen.ir.walk import params, substitute, symbols

LONGEST = 2**30
"""Positions of a whole sequence are below this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """`own` is the piece's attention; the others are names of its params: where the piece begins on each side, and how
    long the sequence is. `each`: they are tensors (B,), a number for each sequence."""

    own: Attention
    q_offset: str
    k_offset: str
    q_size: str
    k_size: str
    each: bool


def piece_of(attention: Attention, *, each: bool) -> Piece:
    """`each`: see `Piece`. Where sequences differ, no param has an element for each row of the whole."""
    taken = {p.name for p in attention.params} | {name for name, _ in attention.consts} | set(attention.sizes)
    names = [_fresh(name, taken) for name in ("q_offset", "k_offset", "q_size", "k_size")]
    rows = {"Sq": _fresh("q_rows", taken), "Sk": _fresh("k_rows", taken)}
    batch = (index("b"),) if each else ()
    given = [Load(n, batch, Type.INT) if each else Scalar(n, Type.INT) for n in names]
    q, k, q_size, k_size = given
    moved: dict[Expr, Expr] = {
        index("q"): add(index("q"), q),
        index("k"): add(index("k"), k),
        index("Sq"): q_size,
        index("Sk"): k_size,
    }

    def whole(e: Expr) -> Expr:
        return substitute(e, moved)

    score, mask = whole(attention.score), whole(attention.mask)
    n = replace(attention.normalizer, extra=None)
    read = {name for e in (score, mask, n.weight, n.stream_weight, n.rescale) if e is not None for name in params(e)}
    dims: dict[Expr, Expr] = {index(size): index(name) for size, name in rows.items()}
    kept = [replace(p, shape=tuple(substitute(d, dims) for d in p.shape)) for p in attention.params if p.name in read]
    bound = [name for name in rows.values() if any(name in symbols(d) for p in kept for d in p.shape)]
    offsets = [_param(name, each, least=int(each and i > 1)) for i, name in enumerate(names)]
    assumes = [whole(fact) for fact in attention.assumes if set(params(fact)) <= read]
    if not each:
        for offset, rows_here, size in ((q, index("Sq"), q_size), (k, index("Sk"), k_size)):
            assumes.append(apply(Op.LE, add(offset, rows_here), size))
        whole_rows = zip(rows.values(), given[2:], strict=True)
        assumes += [apply(Op.EQ, index(name), size) for name, size in whole_rows if name in bound]
    sizes = tuple(s for s in attention.sizes if any(s in symbols(d) for p in kept for d in p.shape))
    own = replace(
        attention,
        params=(*kept, *offsets),
        sizes=(*sizes, *bound),
        score=score,
        mask=mask,
        normalizer=n,
        assumes=tuple(assumes),
    )
    return Piece(own=own, q_offset=names[0], k_offset=names[1], q_size=names[2], k_size=names[3], each=each)


def _param(name: str, each: bool, least: int) -> Param:
    """`least` is 1 for the sizes of sequences: where a pair is, there is a row. It says nothing of empty sequences."""
    value = Scalar(name, Type.INT)
    fact = conjunction(apply(Op.LE, integer(least), value), apply(Op.LT, value, integer(LONGEST)))
    return Param(name, Storage.INT, (Symbol("B", Type.INT),) if each else (), fact)


def _fresh(name: str, taken: set[str]) -> str:
    """`name`, or `name_2` and so on where the file has it already."""
    found = next(n for n in chain((name,), (f"{name}_{i}" for i in count(2))) if n not in taken)
    taken.add(found)
    return found
