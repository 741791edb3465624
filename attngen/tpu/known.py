"""Values of operands that do not depend on a call's data: the tables that a kernel's loop bounds are read from.

Takes a traced function and those of its arguments whose values are given; evaluates on the CPU what follows from them
and from constants, and returns every `pallas_call` with what is known of its operands. Runs in the worker.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.extend import core

from attngen.tpu.compile import Signature, Table

_LARGEST_TABLE = 1 << 20
_LARGEST_VALUE = 1 << 24
_INLINED = ("jaxpr", "call_jaxpr", "fun_jaxpr", "call")
_OPAQUE = ("scan", "while", "cond")
"""Loops whose kernels run an unknown number of times: their operands stay unknown."""


def pallas_calls(closed: Any, values: Sequence[Any]) -> tuple[Signature, ...]:
    """Every `pallas_call` of a closed jaxpr, in order. `values` are its arguments: an array, or None where unknown."""
    found: list[Signature] = []
    _evaluate(closed.jaxpr, closed.consts, values, found)
    return tuple(found)


def _evaluate(jaxpr: Any, consts: Sequence[Any], arguments: Sequence[Any], found: list[Signature]) -> list[Any]:
    values: dict[Any, Any] = dict(zip(jaxpr.constvars, consts, strict=True))
    values.update((v, a) for v, a in zip(jaxpr.invars, arguments, strict=True) if a is not None)

    def read(variable: Any) -> Any:
        return variable.val if isinstance(variable, core.Literal) else values.get(variable)

    for equation in jaxpr.eqns:
        inputs = [read(v) for v in equation.invars]
        for variable, result in zip(equation.outvars, _results(equation, inputs, found), strict=True):
            if result is not None:
                values[variable] = result
    return [read(v) for v in jaxpr.outvars]


def _results(equation: Any, inputs: list[Any], found: list[Signature]) -> Sequence[Any]:
    unknown = [None] * len(equation.outvars)
    if equation.primitive.name == "pallas_call":
        found.append(_signature(equation, inputs))
        return unknown
    inner = next((equation.params[key] for key in _INLINED if key in equation.params), None)
    if inner is not None and equation.primitive.name not in _OPAQUE:
        jaxpr = getattr(inner, "jaxpr", inner)
        return _evaluate(jaxpr, getattr(inner, "consts", ()), inputs, found)
    large = any(np.prod(v.aval.shape, dtype=np.int64) > _LARGEST_VALUE for v in equation.outvars)
    if large or any(value is None for value in inputs):
        return unknown
    results: Any = equation.primitive.bind(*inputs, **equation.params)
    return results if equation.primitive.multiple_results else [results]


def _signature(equation: Any, inputs: list[Any]) -> Signature:
    variables = (*equation.invars, *equation.outvars)
    dtypes = ("int32" if v.aval.dtype == bool else str(v.aval.dtype) for v in variables)  # kernels take bools as ints
    shapes = tuple((dtype, tuple(v.aval.shape)) for dtype, v in zip(dtypes, variables, strict=True))
    function = equation.params["jaxpr"].debug_info.func_name
    return Signature(function, shapes, tuple(_table(value) for value in inputs))


def _table(value: Any) -> Table | None:
    if value is None or np.size(value) > _LARGEST_TABLE:
        return None
    array: Any = np.asarray(jax.device_get(value))
    if array.dtype == np.float32:
        array = array.view(np.int32)
    if array.dtype.kind not in "iub":
        return None
    return Table(8 * array.dtype.itemsize, array.shape, tuple(array.astype(np.int64).ravel().tolist()))
