"""The operations of PyTorch that have a counterpart in the language, by their names in `torch.ops.aten`.

Each takes nodes and numbers as the operation takes them, and gives the node of its result. What is not here is refused.
"""

# pyright: reportUnknownLambdaType=false, reportUnknownVariableType=false

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from attngen.flex.nodes import Kind, Node, number, numeric, truth


class NoCounterpart(Exception):
    """An operation, or one of its arguments, that the language lacks: why, and what would do."""


Operation: TypeAlias = Callable[..., Node]


def as_node(x: Any) -> Node:
    if isinstance(x, Node) and not (x.is_number and x.kind == "float" and math.isnan(x.value)):
        return x
    if isinstance(x, Node):
        raise NoCounterpart("the language has no NaN")
    if isinstance(x, bool | int | float):
        if isinstance(x, float) and math.isnan(x):
            raise NoCounterpart("the language has no NaN")
        return number(x)
    raise NoCounterpart(f"it is given a {type(x).__name__}")


def _joint(*nodes: Node) -> Kind:
    kinds = {n.kind for n in nodes}
    return "float" if "float" in kinds else "int"


def _infix(word: str) -> Operation:
    def of_two(a: Any, b: Any, *, alpha: Any = 1) -> Node:
        left, right = as_node(a), as_node(b)
        kind = _joint(left, right)
        left, right = numeric(left, kind), numeric(right, kind)
        if word in "+-" and right.is_number and right.value == 0 and left.kind == kind:
            return left
        if word == "+" and left.is_number and left.value == 0 and right.kind == kind:
            return right
        return Node(word, kind, (left, right if alpha == 1 else _times(right, as_node(alpha))))

    return of_two


def _times(a: Node, b: Node) -> Node:
    kind = _joint(a, b)
    for one, other in ((a, b), (b, a)):
        if one.is_number and one.value == 1 and other.kind == kind:
            return other
    return Node("*", kind, (numeric(a, kind), numeric(b, kind)))


def _less(a: Node, b: Node) -> Node:
    kind = _joint(a, b)
    return Node("-", kind, (numeric(a, kind), numeric(b, kind)))


def _plus(a: Node, b: Node) -> Node:
    kind = _joint(a, b)
    return Node("+", kind, (numeric(a, kind), numeric(b, kind)))


def _over(a: Any, b: Any) -> Node:
    return Node("/", "float", (_float(as_node(a)), _float(as_node(b))))


def _float(x: Node) -> Node:
    """Where the language makes a float of an int by itself."""
    return numeric(x, "float")


def _compared(word: str) -> Operation:
    def of_two(a: Any, b: Any) -> Node:
        left, right = as_node(a), as_node(b)
        if {left.kind, right.kind} != {"bool"}:
            left, right = (numeric(x, _joint(left, right)) for x in (left, right))
        elif word not in ("==", "!="):
            left, right = numeric(left), numeric(right)
        return Node(word, "bool", (left, right))

    return of_two


def _bits(word: str, of_bools: str) -> Operation:
    def of_two(a: Any, b: Any) -> Node:
        left, right = as_node(a), as_node(b)
        if left.kind == right.kind == "bool":
            return _joined(of_bools, left, right)
        return Node(word, "int", (numeric(left), numeric(right)))

    return of_two


def _logical(word: str) -> Operation:
    def of_two(a: Any, b: Any) -> Node:
        return _joined(word, truth(as_node(a)), truth(as_node(b)))

    return of_two


def _joined(word: str, left: Node, right: Node) -> Node:
    """`and`, `or` and `!=` of bools: `and_masks` begins with true, `or_masks` with false."""
    for one, other in ((left, right), (right, left)):
        if one.is_number and word != "!=":
            return other if bool(one.value) == (word == "and") else one
    return Node(word, "bool", (left, right))


def _function(name: str, kind: Kind | None = "float") -> Operation:
    def of_one(x: Any) -> Node:
        given = numeric(as_node(x), kind or "int")
        return Node(name, kind or given.kind, (given,))

    return of_one


def _negative(x: Any) -> Node:
    given = numeric(as_node(x))
    return Node("-", given.kind, (given,))


def _inverted(x: Any) -> Node:
    given = as_node(x)
    return Node("not", "bool", (given,)) if given.kind == "bool" else Node("~", "int", (given,))


def _not(x: Any) -> Node:
    given = as_node(x)
    return Node("not", "bool", (given,)) if given.kind == "bool" else Node("==", "bool", (given, number(0)))


def _extreme(name: str) -> Operation:
    def of_two(a: Any, b: Any) -> Node:
        left, right = as_node(a), as_node(b)
        kind = _joint(left, right)
        return Node(name, kind, (numeric(left, kind), numeric(right, kind)))

    return of_two


def _clamp(x: Any, low: Any = None, high: Any = None, **named: Any) -> Node:
    low, high = named.get("min", low), named.get("max", high)
    if low is not None and high is not None:
        given = (as_node(x), as_node(low), as_node(high))
        kind = _joint(*given)
        return Node("clamp", kind, tuple(numeric(g, kind) for g in given))
    return _extreme("max")(x, low) if low is not None else _extreme("min")(x, high)


def _divided(a: Any, b: Any, *, rounding_mode: str | None = None) -> Node:
    if rounding_mode is None:
        return _over(a, b)
    left, right = as_node(a), as_node(b)
    if rounding_mode == "floor":
        return _floor_divided(left, right)
    if _joint(left, right) == "float":
        return Node("float", "float", (Node("int", "int", (_over(left, right),)),))
    raise NoCounterpart("ints are divided with their quotient rounded down: write // ")


def _floor_divided(a: Any, b: Any) -> Node:
    left, right = as_node(a), as_node(b)
    if _joint(left, right) == "float":
        return Node("float", "float", (Node("floor", "int", (_over(left, right),)),))
    return Node("//", "int", (numeric(left), numeric(right)))


def _remainder(a: Any, b: Any) -> Node:
    left, right = as_node(a), as_node(b)
    if _joint(left, right) == "float":
        return _less(left, _times(right, Node("floor", "int", (_over(left, right),))))
    return Node("%", "int", (numeric(left), numeric(right)))


def _power(base: Any, exponent: Any) -> Node:
    x, n = as_node(base), as_node(exponent)
    if n.is_number and float(n.value).is_integer() and n.value >= 0:
        kind = _joint(x, n)
        given = numeric(x, kind)
        raised = given if n.value == 1 else Node("**", given.kind, (given, number(int(n.value))))
        return raised if raised.kind == kind else Node("float", "float", (raised,))
    if n.is_number and n.value == 0:
        return number(1.0 if _joint(x, n) == "float" else 1)
    if not n.is_number and _joint(x, n) == "int":
        raise NoCounterpart("an int is raised to an int that an index decides: write 1 << n for 2**n, or a float base")
    if n.is_number and n.value in (0.5, -0.5):
        return Node("sqrt" if n.value > 0 else "rsqrt", "float", (_float(x),))
    if n.is_number and float(n.value).is_integer():
        return _over(1, _power(base, -int(n.value)))
    if x.is_number and x.value > 0:
        return Node("exp2", "float", (_times(_float(n), number(math.log2(x.value))),))
    raise NoCounterpart("a power has an integer exponent, 0.5 or -0.5, or a base above 0 that is a number")


def _choice(condition: Any, yes: Any, no: Any) -> Node:
    a, b = as_node(yes), as_node(no)
    if a.kind != b.kind:
        kind = _joint(a, b)
        a, b = numeric(a, kind), numeric(b, kind)
        if a.kind != b.kind:
            a, b = (x if x.kind == "float" else Node("float", "float", (x,)) for x in (a, b))
    return Node("choice", a.kind, (truth(as_node(condition)), a, b))


def _whole(name: str) -> Operation:
    def of_one(x: Any) -> Node:
        given = numeric(as_node(x))
        return given if given.kind == "int" else Node("float", "float", (Node(name, "int", (given,)),))

    return of_one


def _gelu(x: Any, *, approximate: str = "none") -> Node:
    given = as_node(x)
    if approximate == "tanh":
        cubed = _times(Node("**", "float", (given, number(3))), number(0.044715))
        inner = Node("tanh", "float", (_times(_plus(given, cubed), number(math.sqrt(2 / math.pi))),))
    else:
        inner = Node("erf", "float", (_times(given, number(math.sqrt(0.5))),))
    return _times(_times(given, number(0.5)), _plus(number(1), inner))


def _softplus(x: Any, beta: Any = 1, threshold: Any = 20) -> Node:
    if threshold * beta < 15:
        raise NoCounterpart("its threshold is so low that it is another function")
    scaled = as_node(x) if beta == 1 else _times(as_node(x), as_node(beta))
    found = Node("softplus", "float", (scaled,))
    return found if beta == 1 else _over(found, beta)


def _one_less_exponential(x: Any) -> Node:
    return _less(Node("exp", "float", (_float(as_node(x)),)), number(1))


def _elu(x: Any, alpha: Any = 1, scale: Any = 1, input_scale: Any = 1) -> Node:
    given = as_node(x)
    low = _times(_one_less_exponential(_times(given, as_node(input_scale))), as_node(alpha))
    return _times(_choice(_compared(">")(given, 0), given, low), as_node(scale))


def _same(x: Any, *_: Any, **__: Any) -> Node:
    return as_node(x)


SAME = ("alias", "view", "_unsafe_view", "squeeze", "unsqueeze", "expand")
"""Operations that give the same elements."""
OPERATIONS: Mapping[str, Operation] = {
    "add": _infix("+"), "sub": _infix("-"), "mul": _infix("*"),
    "rsub": lambda a, b, alpha=1: _infix("-")(b, a, alpha=alpha),
    "div": _divided, "true_divide": _over, "floor_divide": _floor_divided, "remainder": _remainder, "pow": _power,
    "neg": _negative, "reciprocal": lambda x: _over(1, x), "square": lambda x: _power(x, 2),
    "abs": _function("abs", None), "sign": _function("sign", None), "sgn": _function("sign", None),
    **{name: _function(name) for name in ("exp", "exp2", "log", "log2", "sqrt", "rsqrt", "tanh", "sigmoid")},
    **{name: _function(name) for name in ("sin", "cos", "tan", "erf")},
    "log1p": lambda x: Node("log", "float", (_plus(number(1), as_node(x)),)),
    "expm1": _one_less_exponential,
    "floor": _whole("floor"), "ceil": _whole("ceil"), "trunc": _whole("int"),
    "eq": _compared("=="), "ne": _compared("!="), "lt": _compared("<"), "le": _compared("<="),
    "gt": _compared(">"), "ge": _compared(">="),
    "bitwise_and": _bits("&", "and"), "bitwise_or": _bits("|", "or"), "bitwise_xor": _bits("^", "!="),
    "__and__": _bits("&", "and"), "__or__": _bits("|", "or"), "__xor__": _bits("^", "!="),
    "bitwise_not": _inverted, "logical_not": _not,
    "logical_and": _logical("and"), "logical_or": _logical("or"), "logical_xor": _logical("!="),
    "bitwise_left_shift": _bits("<<", ""), "bitwise_right_shift": _bits(">>", ""),
    "__lshift__": _bits("<<", ""), "__rshift__": _bits(">>", ""),
    "where": _choice, "masked_fill": lambda x, mask, value: _choice(mask, value, x),
    "maximum": _extreme("max"), "minimum": _extreme("min"), "fmax": _extreme("max"), "fmin": _extreme("min"),
    "clamp": _clamp, "clamp_min": _extreme("max"), "clamp_max": _extreme("min"),
    "hardtanh": lambda x, low=-1, high=1: _clamp(x, low, high),
    "relu": lambda x: _extreme("max")(x, 0),
    "silu": lambda x: _times(as_node(x), Node("sigmoid", "float", (as_node(x),))),
    "gelu": _gelu, "softplus": _softplus, "elu": _elu,
    "leaky_relu": lambda x, slope=0.01: _choice(_compared(">")(x, 0), x, _times(as_node(x), as_node(slope))),
    "log_sigmoid_forward": _function("logsigmoid"),
    **dict.fromkeys(("clone", *SAME), _same),
}  # fmt: skip
"""In-place forms have a `_` behind the name."""
ELSEWHERE: Mapping[tuple[str, str], Operation] = {("approx", "tanh"): _function("tanh")}
"""Operations of other namespaces: what is approximate there is exact here."""


def converted(x: Any, kind: Kind) -> Node:
    """As a tensor is converted to a dtype of this kind."""
    given = as_node(x)
    if given.kind == kind:
        return given
    return truth(given) if kind == "bool" else Node(kind, kind, (given,))
