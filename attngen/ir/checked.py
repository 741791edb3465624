"""What every call checks of a spec's facts, which is all that memory safety may rest on.

Takes an attention, returns it with fewer facts. The generated function compares sizes and int and bool scalars with
their facts at each call. It does not look at the elements of a tensor, nor at a float, which may be a tensor on the
device: that would stop the host until the device is done. `check=True` does it.
"""

from __future__ import annotations

from dataclasses import replace

from attngen.ir.attention import Attention, Param
from attngen.ir.nodes import Expr, Load, Scalar, Type
from attngen.ir.walk import nodes


def checked(attention: Attention) -> Attention:
    """The attention with those `where`s and `assume`s alone that every call checks."""
    params = tuple(p if _is_checked_param(p) else replace(p, where=None) for p in attention.params)
    return replace(attention, params=params, assumes=tuple(filter(_is_checked, attention.assumes)))


def without_facts(attention: Attention) -> Attention:
    """The attention with none of its facts: where JAX traces a scalar, no call checks it."""
    return replace(attention, params=tuple(replace(p, where=None) for p in attention.params), assumes=())


def _is_checked_param(param: Param) -> bool:
    return param.where is None or (param.is_scalar and _is_checked(param.where))


def _is_checked(fact: Expr) -> bool:
    return not any(isinstance(n, Load) or (isinstance(n, Scalar) and n.type is Type.FLOAT) for n in nodes(fact))
