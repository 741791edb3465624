"""Numbers to try an expression at: values that satisfy a spec's facts, and evaluation with 40 digits.

Takes an attention, returns `Point`s: values of the symbols, sizes and params (an element of a tensor has a value of
its own for each index) under which every `where` and `assume` holds. What differs clearly at a point is different;
agreement at points shows nothing, so a point only ever refutes. The values are round: a reader can check them by hand.
"""

from __future__ import annotations

import importlib
import itertools
import math
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, assert_never

from attngen.ir.attention import Attention, Param
from attngen.ir.nodes import MOST_SHIFTED, Apply, Expr, Literal, Load, Op, Scalar, Symbol, Type
from attngen.ir.walk import nodes

mp: Any = importlib.import_module("mpmath").mp.clone()
"""The context of every number here, with 40 digits; mpmath has no types."""
mp.dps = 40

Number = Any  # an mpf, an int or a bool

_REALS = (1.5, -0.5, 0.75, -1.25, 0.25, 2.0, -1.75, 1.0, 3.0, 0.5, -2.5, 1.25)
_POSITIVE = (0.5, 1.0, 0.25, 2.0, 1.5, 0.75)
_FLOATS = (0.75, -0.5, 1.5, 2.0, 0.25, -1.25, 1.25, 3.0, 10.0, 60.0, 0.0, 0.125)
_INTS = (2, 3, 1, 5, 8, 0, 16, -1, 64, 256)
_LENGTHS = (8, 6, 16, 12, 64, 128, 256, 448, 1024)


class Undefined(Exception):
    """The expression has no finite real value at the point, or reads what has no value there."""


@dataclass(frozen=True)
class Point:
    """Values by symbol and by scalar; `element` gives those of tensors. `seed` tells points apart."""

    symbols: Mapping[str, Number]
    scalars: Mapping[str, Number]
    params: Mapping[str, Param]
    seed: int
    fixed: Mapping[Expr, Number] = field(default_factory=dict[Expr, Any])  # leaves with a value of their own

    def element(self, name: str, index: tuple[int, ...]) -> Number:
        """An element of a tensor: round, and within the param's `where`."""
        start = zlib.crc32(f"{name} {index} {self.seed}".encode())
        for value in _allowed(self.params[name], start, self.symbols, self.scalars):
            return value
        raise Undefined

    def holds(self, name: str, index: tuple[int, ...], member: int) -> bool:
        """Whether a list has a member: none has one below 0."""
        return member >= 0 and zlib.crc32(f"{member} in {name} {index} {self.seed}".encode()) % 2 == 1

    def reads(self, leaf: Expr) -> tuple[int, ...]:
        """The index of the element that a load reads. Raises `Undefined` where it has none."""
        return tuple(int(self.value(i)) for i in leaf.indices) if isinstance(leaf, Load) else ()

    def moved(self, leaves: tuple[Expr, ...], to: Number) -> Point:
        """The same point with one leaf, which may be written in several ways, at another value."""
        return Point(self.symbols, self.scalars, self.params, self.seed, dict.fromkeys(leaves, to))

    def value(self, e: Expr) -> Number:
        """The value of `e`. Raises `Undefined` where it has no finite one."""
        found = _Evaluation(self).value(e)
        if e.type is Type.FLOAT and not mp.isfinite(found):
            raise Undefined
        return found

    def described(self, *expressions: Expr | None) -> tuple[tuple[str, int | float | bool | str], ...]:
        """The names that these expressions read, and their values, in order of first use."""
        found: dict[str, int | float | bool | str] = {}
        for e in expressions:
            for node in nodes(e) if e is not None else ():
                match node:
                    case Symbol():
                        if node.id in self.symbols:
                            found.setdefault(node.id, _plain(_Evaluation(self).value(node)))
                    case Scalar():
                        found.setdefault(node.param, _plain(_Evaluation(self).value(node)))
                    case Load():
                        index = tuple(int(_Evaluation(self).value(i)) for i in node.indices)
                        name = f"{node.param}[{', '.join(map(str, index))}]"
                        if node.member is not None:
                            name = f"{int(_Evaluation(self).value(node.member))} in {name if index else node.param}"
                        found.setdefault(name, _plain(_Evaluation(self).value(node)))
                    case Literal() | Apply():
                        pass
                    case _:
                        assert_never(node)
        return tuple(found.items())


def _plain(value: Number) -> int | float | bool:
    return value if isinstance(value, bool | int) else float(value)


def points(attention: Attention, *, positive_scale: bool, count: int) -> Iterator[Point]:
    """Up to `count` points at which the spec's facts hold; scores and reference points come in order, s' < s < m < n.

    No name of a spec is spelt s'.
    """
    params = {p.name: p for p in attention.params}
    lengths = _lengths(attention)
    found = 0
    for seed in range(60 * count):
        point = _point(attention, params, seed, positive_scale, lengths)
        if point is None or not _holds(attention, point):
            continue
        yield point
        found += 1
        if found == count:
            return


def _lengths(attention: Attention) -> tuple[int, ...]:
    """Lengths to try: those that suit most specs, or multiples of what the `assume`s compare with."""
    named = {int(n.value) for e in attention.assumes for n in nodes(e) if isinstance(n, Literal) and n.type is Type.INT}
    return tuple(c * m for c in sorted(named) if c > 1 for m in (1, 2, 3, 4, 6) if c * m < 2**20) or _LENGTHS


def _point(
    attention: Attention, params: Mapping[str, Param], seed: int, positive_scale: bool, lengths: tuple[int, ...]
) -> Point | None:
    def pick(values: tuple[Any, ...], salt: int) -> Any:
        return values[zlib.crc32(f"{seed} {salt}".encode()) % len(values)]

    keys = pick(lengths, 0)
    queries = keys if seed % 3 != 2 else pick(lengths, 1)
    groups, heads = (seed % 2) + 1, (seed // 2 % 3) + 1
    sizes = {"B": 2, "Hq": groups * heads, "Hkv": heads, "Sq": queries, "Sk": keys, "D": 16, "Dv": 16}
    sizes.update({name: pick(lengths, i + 3) for i, name in enumerate(attention.sizes)})
    head = seed % sizes["Hq"]
    symbols: dict[str, Number] = {**sizes, "b": seed % 2, "h": head, "hkv": head // groups}
    symbols["q"], symbols["k"] = (seed * 5 + 2) % queries, (seed * 3 + 1) % keys
    symbols["k0"] = symbols["k"] // 4 * 4
    symbols["qk"] = mp.mpf(pick(_REALS, 1))
    symbols["scale"] = mp.mpf(pick(_POSITIVE if positive_scale else _REALS, 2))
    first = mp.mpf(pick(_REALS, 3))
    symbols["s"] = first
    symbols["m"] = first + mp.mpf(pick(_POSITIVE, 1))
    symbols["n"] = symbols["m"] + mp.mpf(pick(_POSITIVE, 3))
    symbols["s'"] = first - mp.mpf(pick(_POSITIVE, 4))
    symbols.update(gap=symbols["m"] - first, gap2=symbols["n"] - symbols["m"], lse=mp.mpf(pick(_REALS, 5)))
    scalars: dict[str, Number] = {}
    for i, p in enumerate(attention.params):
        if p.is_scalar:
            value = next(iter(_allowed(p, seed * (2 * i + 1) + i, symbols, scalars)), None)
            if value is None:
                return None
            scalars[p.name] = value
    return Point(symbols, scalars, params, seed)


def _allowed(p: Param, start: int, symbols: Mapping[str, Number], scalars: Mapping[str, Number]) -> Iterator[Number]:
    """Values of (an element of) `p` with which its `where` holds, from the one that `start` points to."""
    values: tuple[Any, ...] = {Type.FLOAT: _FLOATS, Type.INT: _INTS, Type.BOOL: (True, False)}[p.type]
    for i in range(len(values)):
        raw = values[(start + i) % len(values)]
        value = mp.mpf(raw) if p.type is Type.FLOAT else raw
        if p.where is None:
            yield value
            continue
        try:
            if Point(symbols, {**scalars, p.name: value}, {}, 0).value(p.where):
                yield value
        except Undefined:  # it reads a param that has no value yet: `_holds` looks at it again
            if p.is_scalar:
                yield value


def _holds(attention: Attention, point: Point) -> bool:
    facts = [p.where for p in attention.params if p.where is not None and p.is_scalar]
    try:
        return all(point.value(f) for f in itertools.chain(facts, attention.assumes))
    except Undefined:
        return False


# ---------------------------------------------------------------- evaluation


def _divide(a: Number, b: Number) -> Number:
    if b == 0:
        raise Undefined
    return a / b


def _positive(f: Callable[[Number], Number]) -> Callable[[Number], Number]:
    def checked(x: Number) -> Number:
        if x <= 0:
            raise Undefined
        return f(x)

    return checked


def _root(x: Number) -> Number:
    if x < 0:
        raise Undefined
    return mp.sqrt(x)


def _truncated(x: Number) -> int:
    if not mp.isfinite(x):
        raise Undefined
    return int(x)


_ONE: Mapping[Op, Callable[[Number], Number]] = {
    Op.NEG: lambda x: -x,
    Op.ABS: abs,
    Op.SIGN: lambda x: (x > 0) - (x < 0),
    Op.NOT: lambda x: not x,
    Op.EXP: mp.exp,
    Op.EXP2: lambda x: mp.power(2, x),
    Op.LOG: _positive(mp.log),
    Op.LOG2: _positive(lambda x: mp.log(x, 2)),
    Op.SQRT: _root,
    Op.RSQRT: _positive(lambda x: 1 / mp.sqrt(x)),
    Op.TANH: mp.tanh,
    Op.SIGMOID: lambda x: 1 / (1 + mp.exp(-x)),
    Op.SIN: mp.sin,
    Op.COS: mp.cos,
    Op.ERF: mp.erf,
    Op.TO_FLOAT: mp.mpf,
    Op.TO_INT: _truncated,
    Op.FLOOR: lambda x: int(mp.floor(x)),
    Op.CEIL: lambda x: int(mp.ceil(x)),
}


def _power(a: Number, b: Number) -> Number:
    if a == 0 and b < 0:
        raise Undefined
    if isinstance(a, int) and b < 0:
        raise Undefined
    return a**b


def _floored(f: Callable[[Number, Number], Number]) -> Callable[[Number, Number], Number]:
    def checked(a: Number, b: Number) -> Number:
        if b == 0:
            raise Undefined
        return f(a, b)

    return checked


def _shifted(a: Number, b: Number) -> Number:
    if not 0 <= b <= MOST_SHIFTED:
        raise Undefined
    return a >> b


_TWO: Mapping[Op, Callable[[Number, Number], Number]] = {
    Op.ADD: lambda a, b: a + b,
    Op.SUB: lambda a, b: a - b,
    Op.MUL: lambda a, b: a * b,
    Op.DIV: _divide,
    Op.FLOORDIV: _floored(lambda a, b: a // b),
    Op.MOD: _floored(lambda a, b: a % b),
    Op.SHIFT_RIGHT: _shifted,
    Op.BIT_AND: lambda a, b: a & b,
    Op.BIT_OR: lambda a, b: a | b,
    Op.BIT_XOR: lambda a, b: a ^ b,
    Op.POW: _power,
    Op.MIN: min,
    Op.MAX: max,
    Op.LT: lambda a, b: bool(a < b),
    Op.LE: lambda a, b: bool(a <= b),
    Op.EQ: lambda a, b: bool(a == b),
    Op.NE: lambda a, b: bool(a != b),
}


class _Evaluation:
    """One evaluation: shared nodes are evaluated once; of a select only the branch that is taken."""

    def __init__(self, point: Point):
        self._point = point
        self._memo: dict[int, Number] = {}

    def value(self, e: Expr) -> Number:
        if id(e) not in self._memo:
            self._memo[id(e)] = self._value(e)
        return self._memo[id(e)]

    def _value(self, e: Expr) -> Number:
        at = self._point
        if at.fixed and e in at.fixed:
            return at.fixed[e]
        match e:
            case Literal():
                return mp.mpf(e.value) if e.type is Type.FLOAT else e.value
            case Symbol() | Scalar():
                known, name = (at.symbols, e.id) if isinstance(e, Symbol) else (at.scalars, e.param)
                if name not in known:
                    raise Undefined
                return known[name]
            case Load():
                if e.param not in at.params:
                    raise Undefined
                index = tuple(int(self.value(i)) for i in e.indices)
                if e.member is not None:
                    return at.holds(e.param, index, int(self.value(e.member)))
                return at.element(e.param, index)
            case Apply(op=Op.AND):
                return all(self.value(a) for a in e.args)
            case Apply(op=Op.OR):
                return any(self.value(a) for a in e.args)
            case Apply(op=Op.SELECT):
                return self.value(e.args[1] if self.value(e.args[0]) else e.args[2])
            case Apply() if len(e.args) == 1:
                found = _ONE[e.op](self.value(e.args[0]))
            case Apply():
                found = _TWO[e.op](self.value(e.args[0]), self.value(e.args[1]))
            case _:
                assert_never(e)
        if e.type is Type.FLOAT:
            if mp.isnan(found):
                raise Undefined
            return mp.mpf(found)
        return found


def clearly_different(a: Number, b: Number) -> bool:
    """Whether two numbers differ by more than rounded constants, such as log2 e as a double, could explain."""
    return bool(abs(a - b) > 1e-11 * max(abs(a), abs(b), mp.mpf("0.1")))


def number(value: Number) -> str:
    """For a reader: six digits."""
    plain = float(value)
    return f"{plain:.6g}" if math.isfinite(plain) else str(plain)


def numbers(a: Number, b: Number) -> tuple[str, str]:
    """Both for a reader, with as many digits as it takes to tell them apart."""
    digits = 6
    while digits < 15 and f"{float(a):.{digits}g}" == f"{float(b):.{digits}g}":
        digits += 3
    return f"{float(a):.{digits}g}", f"{float(b):.{digits}g}"
