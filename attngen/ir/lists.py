"""Sizes of lists, which `in` looks in, and which may have no elements.

Takes an attention, returns the names of such sizes. What plans and proofs say of sizes, that each is 1 at least, then
holds of all others.
"""

from __future__ import annotations

from itertools import chain

from attngen.ir.attention import Attention
from attngen.ir.axes import expressions
from attngen.ir.nodes import Load, Symbol, Type
from attngen.ir.walk import nodes, symbols


def empty_sizes(attention: Attention) -> frozenset[str]:
    """The sizes bound at the call that may be 0: no more than the lengths of lists."""
    facts = (p.where for p in attention.params if p.where is not None)
    roots = [*expressions(attention), *facts, *(e for e in [attention.dropout] if e is not None)]
    kinds = {(n.param, n.member is None) for e in roots for n in nodes(e) if isinstance(n, Load)}
    of_lists = {name for name, of_element in kinds if not of_element and (name, True) not in kinds}
    read = {n.id for e in roots for n in nodes(e) if isinstance(n, Symbol) and n.type is Type.INT}
    others = (p.shape[:-1] if p.name in of_lists else p.shape for p in attention.params)
    read |= {name for dim in chain.from_iterable(others) for name in symbols(dim)}
    return frozenset(attention.sizes) - read
