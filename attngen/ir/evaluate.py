"""Evaluates IR expressions in NumPy, vectorised: ints are int64, floats float64 (or float32 on demand), bools bool.

Takes expressions, a value or an array for each symbol, and the params; returns arrays that broadcast over those.
`Tape` also keeps every node's value and pulls cotangents back to the float symbols and params (reverse mode).
Knows nothing of attention: the oracle is `attngen.reference`, and the planner's simulator reads masks through this.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, assert_never

import numpy as np
import numpy.typing as npt

from attngen.errors import UsageError
from attngen.ir import walk
from attngen.ir.nodes import Apply, Expr, Literal, Load, Op, Scalar, Symbol, Type

Array: TypeAlias = npt.NDArray[Any]

DTYPES: Mapping[Type, Any] = {Type.BOOL: np.bool_, Type.INT: np.int64, Type.FLOAT: np.float64}


def as_array(value: Any, type: Type) -> Array:
    """A number, a NumPy array, or a torch or JAX tensor (recognised by its methods), as an array of `type`."""
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        if type is Type.FLOAT:  # NumPy has no bfloat16
            value = value.double()
        value = value.numpy()
    return np.asarray(value, dtype=DTYPES[type])


def evaluate(e: Expr, env: Mapping[str, Any], params: Mapping[str, Any], real: Any = np.float64) -> Array:
    """The value of `e`, with the shape to which the symbols and loads that it reads broadcast.

    `env` gives each symbol that `e` reads, by id; `params` gives scalars and tensors by name; every float operation is
    rounded to `real`. What has no value in the language gives no warning: int division by zero and an int to a negative
    power give 0, floats follow IEEE.
    """
    return Tape((e,), env, params, real).value(e)


class Tape:
    """The values of `roots` and of every node below them; `pullback` goes the other way.

    A node is evaluated once, however often the graph shares it.
    """

    def __init__(
        self, roots: Sequence[Expr], env: Mapping[str, Any], params: Mapping[str, Any], real: Any = np.float64
    ):
        self._dtypes = {**DTYPES, Type.FLOAT: real}
        self._order = _children_first(roots)  # also keeps the nodes alive, so that ids stay theirs
        self._values: dict[int, Array] = {}
        with np.errstate(all="ignore"):
            for node in self._order:
                self._values[id(node)] = self._evaluate(node, env, params)
        self._params = params

    def value(self, e: Expr) -> Array:
        return self._values[id(e)]

    def _evaluate(self, e: Expr, env: Mapping[str, Any], params: Mapping[str, Any]) -> Array:
        match e:
            case Literal():
                return np.asarray(e.value, dtype=self._dtypes[e.type])
            case Symbol():
                if e.id not in env:
                    raise UsageError(f"no value is given for `{e.id}`")
                return np.asarray(as_array(env[e.id], e.type), self._dtypes[e.type])
            case Scalar():
                return np.asarray(as_array(_param(params, e.param), e.type), self._dtypes[e.type])
            case Load():
                if e.member is not None:
                    return self._listed(e, self.value(e.member), params)
                tensor = np.asarray(as_array(_param(params, e.param), e.type), self._dtypes[e.type])
                where, inside = _place(tensor.shape, [self.value(i) for i in e.indices], e.param)
                if tensor.size == 0:
                    return np.zeros(np.shape(inside), tensor.dtype)
                return np.where(inside, tensor.reshape(-1)[where], np.zeros((), tensor.dtype))
            case Apply():
                return np.asarray(_forward(e.op, tuple(self.value(a) for a in e.args)), dtype=self._dtypes[e.type])
            case _:
                assert_never(e)

    def _listed(self, e: Load, member: Array, params: Mapping[str, Any]) -> Array:
        """Whether a list holds the member."""
        lists = as_array(_param(params, e.param), Type.INT)
        where, inside = _place(lists.shape[:-1], [self.value(i) for i in e.indices], e.param)
        found: Array = np.zeros(np.broadcast_shapes(inside.shape, member.shape), np.bool_)
        if lists.size:
            for elements in lists.reshape(-1, lists.shape[-1]).T:
                found = found | (elements[where] == member)
        return np.asarray(found & inside & (member >= 0))

    def pullback(self, cotangents: Sequence[tuple[Expr, Array]]) -> tuple[dict[str, Array], dict[str, Array]]:
        """Cotangents of the roots, pulled back to the float symbols and the float params that they read.

        Each result has the shape of the symbol's value or of the param. Zero times anything is zero here: a pair
        that is masked out, or the branch not taken, passes nothing on, even where the other factor is not finite.
        At kinks: `abs` 0; `min` and `max` to the first argument on a tie; `floor`, `sign` and comparisons nothing.
        """
        adjoints: dict[int, Array] = {}
        symbols: dict[str, Array] = {}
        params: dict[str, Array] = {}

        def add(node: Expr, cotangent: Array) -> None:
            part = _reduce(cotangent, self.value(node).shape)
            adjoints[id(node)] = adjoints[id(node)] + part if id(node) in adjoints else part

        with np.errstate(all="ignore"):
            for root, cotangent in cotangents:
                add(root, cotangent)
            for node in reversed(self._order):
                adjoint = adjoints.pop(id(node), None)
                if adjoint is None or node.type is not Type.FLOAT:
                    continue
                match node:
                    case Literal():
                        pass
                    case Symbol():
                        symbols[node.id] = symbols.get(node.id, 0.0) + adjoint
                    case Scalar():
                        params[node.param] = params.get(node.param, 0.0) + adjoint
                    case Load():
                        params[node.param] = params.get(node.param, 0.0) + self._scatter(node, adjoint)
                    case Apply():
                        args = tuple(self.value(a) for a in node.args)
                        derivatives = _derivatives(node.op, args, self.value(node))
                        for arg, derivative in zip(node.args, derivatives, strict=True):
                            if derivative is not None and arg.type is Type.FLOAT:
                                nothing = (adjoint == 0) | (derivative == 0)
                                add(arg, np.where(nothing, 0.0, adjoint * derivative))
                    case _:
                        assert_never(node)
        return symbols, params

    def _scatter(self, load: Load, adjoint: Array) -> Array:
        """The gradient of the whole tensor from that of the elements that `load` read."""
        shape = as_array(_param(self._params, load.param), load.type).shape
        where, inside = _place(shape, [self.value(i) for i in load.indices], load.param)
        size = math.prod(shape)
        if size == 0:
            return np.zeros(shape)
        weights = np.where(inside, adjoint, 0.0)
        return np.bincount(where.reshape(-1), weights=weights.reshape(-1), minlength=size).reshape(shape)


def _children_first(roots: Sequence[Expr]) -> list[Expr]:
    """Every distinct node (by identity) after its children. No recursion: specs may nest deeply."""
    order: list[Expr] = []
    seen: set[int] = set()
    stack: list[tuple[Expr, bool]] = [(root, False) for root in reversed(roots)]
    while stack:
        node, expanded = stack.pop()
        if expanded:
            order.append(node)
        elif id(node) not in seen:
            seen.add(id(node))
            stack.append((node, True))
            stack.extend((child, False) for child in reversed(walk.children(node)))
    return order


def _param(params: Mapping[str, Any], name: str) -> Any:
    if name not in params:
        raise UsageError(f"param `{name}` is missing")
    return params[name]


def _place(shape: tuple[int, ...], indices: Sequence[Array], name: str) -> tuple[Array, Array]:
    """The flat position of an element, clamped into the tensor, and whether the indices lie inside it."""
    if len(shape) != len(indices):
        raise UsageError(f"param `{name}` has {len(shape)} dimensions where the spec indexes {len(indices)}")
    where: Array = np.zeros((), np.int64)
    inside: Array = np.ones((), np.bool_)
    for size, index in zip(shape, indices, strict=True):
        where = where * size + np.clip(index, 0, max(size - 1, 0))
        inside = inside & (index >= 0) & (index < size)
    return where, inside


def _reduce(cotangent: Array, shape: tuple[int, ...]) -> Array:
    """The sum over the axes along which a value of `shape` was broadcast (or the broadcast, where it was not)."""
    if cotangent.shape == shape:
        return cotangent
    cotangent = np.broadcast_to(cotangent, np.broadcast_shapes(cotangent.shape, shape))
    lead = cotangent.ndim - len(shape)
    axes = tuple(i for i in range(cotangent.ndim) if i < lead or (shape[i - lead] == 1 and cotangent.shape[i] != 1))
    return cotangent.sum(axis=axes).reshape(shape)


def _forward(op: Op, args: tuple[Array, ...]) -> Any:
    """`op` on arrays that broadcast together."""
    a = args[0]
    match op:
        case Op.ADD:
            return a + args[1]
        case Op.SUB:
            return a - args[1]
        case Op.MUL:
            return a * args[1]
        case Op.DIV:
            return a / args[1]
        case Op.FLOORDIV:
            return a // args[1]
        case Op.MOD:
            return a % args[1]
        case Op.SHIFT_RIGHT:
            return np.right_shift(a, np.clip(args[1], 0, 63))
        case Op.BIT_AND:
            return a & args[1]
        case Op.BIT_OR:
            return a | args[1]
        case Op.BIT_XOR:
            return a ^ args[1]
        case Op.POW:
            n = args[1]
            if a.dtype == np.int64:  # NumPy refuses a negative exponent even where it is masked out
                return np.where(n < 0, 0, np.power(a, np.maximum(n, 0)))
            return np.power(a, n)
        case Op.NEG:
            return -a
        case Op.ABS:
            return np.abs(a)
        case Op.SIGN:
            return np.sign(a)
        case Op.MIN:
            return np.minimum(a, args[1])
        case Op.MAX:
            return np.maximum(a, args[1])
        case Op.LT:
            return a < args[1]
        case Op.LE:
            return a <= args[1]
        case Op.EQ:
            return a == args[1]
        case Op.NE:
            return a != args[1]
        case Op.NOT:
            return ~a
        case Op.AND:
            return functools.reduce(np.logical_and, args)
        case Op.OR:
            return functools.reduce(np.logical_or, args)
        case Op.SELECT:
            return np.where(a, args[1], args[2])
        case Op.EXP:
            return np.exp(a)
        case Op.EXP2:
            return np.exp2(a)
        case Op.LOG:
            return np.log(a)
        case Op.LOG2:
            return np.log2(a)
        case Op.SQRT:
            return np.sqrt(a)
        case Op.RSQRT:
            return 1.0 / np.sqrt(a)
        case Op.TANH:
            return np.tanh(a)
        case Op.SIGMOID:
            return 1.0 / (1.0 + np.exp(-a))
        case Op.SIN:
            return np.sin(a)
        case Op.COS:
            return np.cos(a)
        case Op.ERF:
            return np.vectorize(math.erf, otypes=[np.float64])(a)
        case Op.TO_FLOAT:
            return a.astype(np.float64)
        case Op.TO_INT:
            return a.astype(np.int64)
        case Op.FLOOR:
            return np.floor(a).astype(np.int64)
        case Op.CEIL:
            return np.ceil(a).astype(np.int64)
        case _:
            assert_never(op)


def _derivatives(op: Op, args: tuple[Array, ...], value: Array) -> tuple[Any, ...]:
    """d op / d arg for each argument, or None where nothing flows."""
    match op:
        case Op.ADD:
            return 1.0, 1.0
        case Op.SUB:
            return 1.0, -1.0
        case Op.MUL:
            return args[1], args[0]
        case Op.DIV:
            return 1.0 / args[1], -value / args[1]
        case Op.POW:
            base, exponent = args
            return np.where(exponent == 0, 0.0, exponent * np.power(base, exponent - 1)), None
        case Op.NEG:
            return (-1.0,)
        case Op.ABS:
            return (np.sign(args[0]),)
        case Op.MIN:
            return args[0] <= args[1], args[0] > args[1]
        case Op.MAX:
            return args[0] >= args[1], args[0] < args[1]
        case Op.SELECT:
            return None, args[0], ~args[0]
        case Op.EXP:
            return (value,)
        case Op.EXP2:
            return (value * math.log(2),)
        case Op.LOG:
            return (1.0 / args[0],)
        case Op.LOG2:
            return (1.0 / (args[0] * math.log(2)),)
        case Op.SQRT:
            return (0.5 / value,)
        case Op.RSQRT:
            return (-0.5 * value / args[0],)
        case Op.TANH:
            return (1.0 - value * value,)
        case Op.SIGMOID:
            return (value * (1.0 - value),)
        case Op.SIN:
            return (np.cos(args[0]),)
        case Op.COS:
            return (-np.sin(args[0]),)
        case Op.ERF:
            return (2.0 / math.sqrt(math.pi) * np.exp(-args[0] * args[0]),)
        case Op.SIGN | Op.TO_FLOAT:
            return (None,)
        case Op.AND | Op.OR | Op.LT | Op.LE | Op.EQ | Op.NE | Op.NOT:
            return (None,) * len(args)
        case (
            Op.FLOORDIV | Op.MOD | Op.SHIFT_RIGHT | Op.BIT_AND | Op.BIT_OR | Op.BIT_XOR | Op.TO_INT | Op.FLOOR | Op.CEIL
        ):
            return (None,) * len(args)
        case _:
            assert_never(op)
