"""Prints IR expressions as Triton code: the one place where an operation is spelt for this target.

Takes an expression and the names of what is bound, gives text. Positions are `q_idx` and `k_idx`, shaped to broadcast
over the tile, so that the text does not depend on the tile's orientation.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import assert_never

from attngen.emit.binding import atom, infix
from attngen.ir.attention import Param
from attngen.ir.build import integer, sub
from attngen.ir.nodes import Apply, Expr, Literal, Load, Op, Scalar, Symbol, Type
from attngen.ir.walk import reads, substitute
from attngen.plan.facts import Facts
from attngen.plan.linear import from_linear, linear
from attngen.plan.schedule import Level, level_of

_MATCHING = {("q", "Sq"), ("k", "Sk"), ("b", "B"), ("h", "Hq"), ("hkv", "Hkv")}
"""Indices that stay inside a dim of that size."""

SYMBOLS = {"q": "q_idx", "k": "k_idx", "b": "batch", "h": "head", "hkv": "kv_head"}

_INFIX = {
    Op.ADD: ("+", 5),
    Op.SUB: ("-", 5),
    Op.MUL: ("*", 6),
    Op.DIV: ("/", 6),
    Op.LT: ("<", 1),
    Op.LE: ("<=", 1),
    Op.EQ: ("==", 1),
    Op.NE: ("!=", 1),
}
_CALLS = {
    Op.MIN: "tl.minimum",
    Op.MAX: "tl.maximum",
    Op.SELECT: "tl.where",
    Op.EXP: "tl.exp",
    Op.EXP2: "tl.exp2",
    Op.LOG: "tl.log",
    Op.LOG2: "tl.log2",
    Op.SQRT: "tl.sqrt",
    Op.RSQRT: "tl.rsqrt",
    Op.SIN: "tl.sin",
    Op.COS: "tl.cos",
    Op.ERF: "tl.erf",
    Op.SIGMOID: "tl.sigmoid",
    Op.SIGN: "_sign",
    Op.ABS: "tl.abs",
}


@dataclass
class Printer:
    """`names` maps bound expressions to identifiers; `params` to the identifiers of each param (see `emit.params`)."""

    facts: Facts
    params: Mapping[str, Param]
    param_names: Mapping[str, str]
    names: dict[Expr, str] = field(default_factory=dict[Expr, str])

    def text(self, e: Expr) -> str:
        return self._print(e)[0]

    def bind(self, e: Expr, name: str) -> None:
        self.names[e] = name

    def _print(self, e: Expr) -> tuple[str, int]:
        bound = self.names.get(e)
        if bound is not None:
            return atom(bound)
        return self.definition(e)

    def definition(self, e: Expr) -> tuple[str, int]:
        """The text of `e` itself, its parts by name where they are bound."""
        match e:
            case Literal():
                return _literal(e)
            case Symbol():
                return atom(SYMBOLS.get(e.id, e.id))
            case Scalar():
                name = self.param_names[e.param]
                return atom(f"({name} != 0)" if e.type is Type.BOOL else name)  # bools are passed as 0 or 1
            case Load():
                return self._load(e)
            case Apply():
                return self._apply(e)
            case _:
                assert_never(e)

    def _apply(self, e: Apply) -> tuple[str, int]:
        args = [self._print(a) for a in e.args]
        texts = [a[0] for a in args]
        if e.op in _INFIX:
            sign, strength = _INFIX[e.op]
            if e.type is Type.INT and e.op in (Op.ADD, Op.SUB, Op.MUL) and self._may_leave_32_bits(e):
                args[0] = atom(f"tl.cast({texts[0]}, tl.int64)")
            return infix(sign, strength, args[0], args[1], chain=strength == 1)
        if e.op is Op.TANH:
            # FAST is the kernel's own constant; what is not computed for every pair can be exact always.
            return atom(f"_tanh({texts[0]}, {'FAST' if level_of(e) is Level.PAIR else 'False'})")
        if e.op is Op.SIGN and e.type is Type.INT:
            return atom(f"_int_sign({texts[0]})")
        if e.op in _CALLS:
            return atom(f"{_CALLS[e.op]}({', '.join(texts)})")
        match e.op:
            case Op.FLOORDIV | Op.MOD:
                if self.facts.is_nonnegative(e.args[0]) and self.facts.is_positive(e.args[1]):
                    return infix(e.op.value, 6, args[0], args[1])
                return atom(f"{'_floor_div' if e.op is Op.FLOORDIV else '_floor_mod'}({texts[0]}, {texts[1]})")
            case Op.POW:
                exponent = e.args[1]
                if isinstance(exponent, Literal):
                    n = int(exponent.value)
                    base = f"tl.cast({texts[0]}, tl.int64)" if e.type is Type.INT else texts[0]
                    return atom(f"{'_int_power' if n >= 0 else '_power'}({base}, {n})")
                kind = "_int_power_of" if e.type is Type.INT else "_power_of"
                return atom(f"{kind}({texts[0]}, {texts[1]})")
            case Op.NEG:
                return (f"-{texts[0]}" if args[0][1] >= 7 else f"-({texts[0]})"), 7
            case Op.NOT:
                return atom(f"({texts[0] if args[0][1] > 1 else f'({texts[0]})'} == 0)")
            case Op.AND | Op.OR:
                sign, strength = ("&", 4) if e.op is Op.AND else ("|", 2)
                return f" {sign} ".join(t if s > 4 else f"({t})" for t, s in args), strength
            case Op.TO_FLOAT:
                if e.args[0].type is Type.BOOL:
                    return atom(f"tl.where({texts[0]}, 1.0, 0.0)")
                return atom(f"tl.cast({texts[0]}, tl.float32)")
            case Op.TO_INT:
                if e.args[0].type is Type.BOOL:
                    return atom(f"tl.where({texts[0]}, 1, 0)")
                return atom(f"tl.cast({texts[0]}, tl.int32)")
            case Op.FLOOR | Op.CEIL:
                return atom(f"tl.cast(tl.{e.op.value}({texts[0]}), tl.int32)")
            case _:
                raise AssertionError(e.op)

    def _may_leave_32_bits(self, e: Apply) -> bool:
        """Whether a sum or product needs 64 bits. Positions and sizes are below 2**27; params any 32-bit int."""
        known = [self._magnitude(a) for a in e.args]
        total = known[0] * known[1] if e.op is Op.MUL else known[0] + known[1]
        return total >= 2.0**31

    def _magnitude(self, e: Expr) -> float:
        """The largest absolute value that an int expression of 32 bits can have."""
        match e:
            case Literal():
                return abs(float(e.value))
            case Symbol():
                return 2.0**27
            case Scalar() | Load():
                low, high = self.facts.bounds(e)
                return 2.0**31 if low is None or high is None else max(abs(low), abs(high))
            case Apply(op=Op.MOD | Op.MIN | Op.MAX | Op.SELECT | Op.FLOORDIV | Op.NEG | Op.ABS):
                return max(self._magnitude(a) for a in e.args if a.type is Type.INT)
            case Apply(op=Op.ADD | Op.SUB):
                return min(sum(self._magnitude(a) for a in e.args), 2.0**63)
            case Apply(op=Op.MUL):
                return min(self._magnitude(e.args[0]) * self._magnitude(e.args[1]), 2.0**63)
            case Apply(op=Op.TO_INT) if e.args[0].type is Type.BOOL:
                return 1.0
            case Apply(op=Op.SIGN):
                return 1.0
            case _:
                return 2.0**31

    # ------------------------------------------------------------ loads

    def offset(self, e: Load) -> str:
        """The element's offset from the param's pointer. Head, row and column parts are 64 bits wide."""
        parts: list[str] = []
        for axis, i in enumerate(e.indices):
            stride = f"{self.param_names[e.param]}_stride_{axis}"
            if isinstance(i, Literal):
                if i.value:
                    parts.append(f"{i.value} * {stride}")
                continue
            text = self._index(e, axis)
            if level_of(i) is not Level.PAIR:
                text = f"tl.cast({text}, tl.int64)"
            elif not text.isidentifier():
                text = f"({text})"
            parts.append(f"{text} * {stride}")
        return " + ".join(parts) or "0"

    def _index(self, e: Load, axis: int) -> str:
        i, size = e.indices[axis], self.params[e.param].shape[axis]
        if isinstance(i, Symbol) and isinstance(size, Symbol) and (i.id, size.id) in {("q", "Sq"), ("k", "Sk")}:
            return f"{i.id}_safe"  # the position, kept inside the ragged last tile
        return self.text(i)

    def guards(self, e: Load) -> list[str]:
        """The conditions under which the element exists, but for those that hold for certain."""
        found: list[str] = []
        for axis, i in enumerate(e.indices):
            size = self.params[e.param].shape[axis]
            if isinstance(i, Symbol) and isinstance(size, Symbol) and (i.id, size.id) in _MATCHING:
                continue
            text, strength = self._print(i)
            text = text if strength > 1 else f"({text})"
            if not self.facts.is_nonnegative(i):
                found.append(f"({text} >= 0)")
            room = from_linear(*linear(sub(sub(size, integer(1)), i)))
            if not self.facts.is_nonnegative(room):
                found.append(f"({text} < {self.text(size)})")
        return found

    def _extremes(self, e: Load) -> tuple[int, Expr, Expr] | None:
        """(axis, its least, its greatest index in the tile) where one index rises or falls with the pair's position.

        Where both corners read the same element, so does every pair between them: a bias far from the diagonal.
        """
        pairs = [axis for axis, i in enumerate(e.indices) if level_of(i) is Level.PAIR]
        others = [i for i in e.indices if level_of(i) not in (Level.PAIR, Level.HEAD)]
        if len(pairs) != 1 or others:
            return None
        index = e.indices[pairs[0]]
        rises = {s: slope(index, s) for s in ("q", "k")}
        if None in rises.values():
            return None

        def corner(highest: bool) -> Expr:
            ends = {s: f"{s}{int((rises[s] == 1) == highest)}" for s in ("q", "k")}
            return substitute(index, {Symbol(s, Type.INT): Symbol(end, Type.INT) for s, end in ends.items()})

        return pairs[0], corner(highest=False), corner(highest=True)

    def _load(self, e: Load) -> tuple[str, int]:
        pointer = f"{self.param_names[e.param]}_ptr"
        guards = self.guards(e)
        extremes = None if guards else self._extremes(e)
        mask = f", mask={' & '.join(guards)}, other=0" if guards else ""
        text = f"tl.load({pointer} + {self.offset(e)}{mask})"
        if extremes is not None:
            axis, *ends = extremes
            zeros = (integer(0),) * len(e.indices)
            base = self.offset(replace(e, indices=(*e.indices[:axis], integer(0), *e.indices[axis + 1 :])))
            along = (replace(e, indices=(*zeros[:axis], i, *zeros[axis + 1 :])) for i in (*ends, e.indices[axis]))
            text = f"_load_pairs({pointer} + {base}, {', '.join(map(self.offset, along))}, FAST)"
        match e.type:
            case Type.FLOAT:
                return atom(f"tl.cast({text}, tl.float32)")
            case Type.INT:
                return atom(text)  # as stored: 32 or 64 bits
            case Type.BOOL:
                return atom(f"({text} != 0)")


def slope(e: Expr, symbol: str) -> int | None:
    """1 where `e` never falls as the int symbol grows, -1 where it never rises, 0 without it, None where unknown."""
    if not reads(e, symbol):
        return 0
    if isinstance(e, Symbol):
        return 1
    if not isinstance(e, Apply):
        return None
    slopes = [slope(a, symbol) for a in e.args]
    match e.op:
        case Op.ADD | Op.MIN | Op.MAX:
            pass
        case Op.SUB:
            slopes[1] = None if slopes[1] is None else -slopes[1]
        case Op.NEG:
            slopes = [None if slopes[0] is None else -slopes[0]]
        case Op.FLOORDIV if isinstance(e.args[1], Literal) and e.args[1].value > 0:
            pass
        case _:
            return None
    if None in slopes or {1, -1} <= set(slopes):
        return None
    return 1 if 1 in slopes else -1


def _literal(e: Literal) -> tuple[str, int]:
    if e.type is Type.BOOL:
        return atom("True" if e.value else "False")
    if e.type is Type.FLOAT and not math.isfinite(e.value):
        return atom(f'float("{e.value}")')
    if e.type is Type.INT and abs(e.value) >= 2**31:
        return atom(f"tl.full([], {e.value}, tl.int64)")
    return repr(e.value), (9 if e.value >= 0 else 7)
