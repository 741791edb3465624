"""Prints IR expressions as Triton code: the one place where an operation is spelt for this target.

Takes an expression and the names of what is bound, returns text. Positions are `q_idx` and `k_idx`, shaped to broadcast
over the tile, so that the text does not depend on the tile's orientation.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import assert_never

from attngen.emit.text.divisions import HelperView, by_shift, helper_views
from attngen.emit.text.params import SMALL_INTS
from attngen.emit.text.precedence import atom, infix, shifted_right
from attngen.ir.attention import Param
from attngen.ir.nodes import Apply, Expr, Literal, Load, Op, Scalar, Symbol, Type
from attngen.ir.walk import reads
from attngen.plan.ints.choices import Choices
from attngen.plan.ints.divisions import EXPANSIONS, shift
from attngen.plan.levels import Level, level_of

SYMBOLS = {"q": "q_idx", "k": "k_idx", "b": "batch", "h": "head", "hkv": "kv_head"}

_INFIX = {
    Op.ADD: ("+", 5),
    Op.SUB: ("-", 5),
    Op.MUL: ("*", 6),
    Op.DIV: ("/", 6),
    Op.BIT_AND: ("&", 4),
    Op.BIT_XOR: ("^", 3),
    Op.BIT_OR: ("|", 2),
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
    Op.SQRT: "tl.sqrt_rn",
    Op.RSQRT: "tl.rsqrt",
    Op.SIN: "tl.sin",
    Op.COS: "tl.cos",
    Op.ERF: "tl.erf",
    Op.SIGMOID: "tl.sigmoid",
    Op.SIGN: "rows.sign",
    Op.ABS: "tl.abs",
}


@dataclass
class Printer:
    """`names` maps bound expressions to identifiers; `params` to the identifiers of each param (see `text.params`).
    `fetched`: the load whose tile is there as `pairs`, where the kernel's constant FETCHES holds."""

    choices: Choices
    params: Mapping[str, Param]
    param_names: Mapping[str, str]
    names: dict[Expr, str] = field(default_factory=dict[Expr, str])
    fetched: Load | None = None

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
        if e.type is Type.INT and e in self.choices.wide:
            args[0] = atom(f"tl.cast({args[0][0]}, tl.int64)")
        texts = [a[0] for a in args]
        if e in self.choices.clipped:
            return atom(f"rows.moved({texts[0]}, {'-' if e.op is Op.SUB else ''}{texts[1]})")
        if e.op in _INFIX:
            sign, strength = _INFIX[e.op]
            if e.type is Type.BOOL and e.args[0].type is Type.FLOAT and level_of(e) is Level.HEAD:
                # Triton's interpreter keeps the result of such a comparison as a float, which `&` does not take.
                return f"tl.where({infix(sign, strength, args[0], args[1], chain=False)[0]}, 1, 0) != 0", 1
            return infix(sign, strength, args[0], args[1], chain=strength == 1)
        if e in self.choices.approximate:
            return atom(f"rows.{e.op.value}({texts[0]}, FAST)")  # FAST is the kernel's own constant
        if e.op is Op.TANH:
            return atom(f"rows.tanh({texts[0]}, False)")
        if e.op is Op.SIGN and e.type is Type.INT:
            return atom(f"rows.int_sign({texts[0]})")
        if e.op in _CALLS:
            return atom(f"{_CALLS[e.op]}({', '.join(texts)})")
        match e.op:
            case Op.SHIFT_RIGHT:
                return shifted_right(args[0], args[1])
            case Op.FLOORDIV | Op.MOD:
                exponent = shift(e)
                if e in self.choices.plain_divisions:
                    return infix(e.op.value, 6, args[0], args[1])
                if exponent is not None:
                    return by_shift(e, args[0], exponent)
                return atom(f"{EXPANSIONS[e.op].helper}({texts[0]}, {texts[1]})")
            case Op.POW:
                exponent = e.args[1]
                if isinstance(exponent, Literal):
                    n = int(exponent.value)
                    base = f"tl.cast({texts[0]}, tl.int64)" if e.type is Type.INT else texts[0]
                    return atom(f"rows.{'int_power' if n >= 0 else 'power'}({base}, {n})")
                kind = "int_power_of" if e.type is Type.INT else "power_of"
                return atom(f"rows.{kind}({texts[0]}, {texts[1]})")
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

    # ------------------------------------------------------------ loads

    def offset(self, e: Load, without: int | None = None) -> str:
        """The element's offset from the param's pointer, one axis left out perhaps."""
        axes = [axis for axis in range(len(e.indices)) if axis != without]
        parts = [self._along(e, axis, self._index(e, axis), level_of(e.indices[axis])) for axis in axes]
        return " + ".join(p for p in parts if p) or "0"

    def _along(self, e: Load, axis: int, text: str, level: Level) -> str:
        """What one index adds to the offset. Head, row and column parts are 64 bits wide."""
        stride = f"{self.param_names[e.param]}_stride_{axis}"
        index = e.indices[axis]
        if isinstance(index, Literal):
            return f"{text} * {stride}" if index.value else ""
        if level is not Level.PAIR:
            text = f"tl.cast({text}, tl.int64)"
        elif not text.isidentifier():
            text = f"({text})"
        return f"{text} * {stride}"

    def _index(self, e: Load, axis: int) -> str:
        i = e.indices[axis]
        if isinstance(i, Symbol) and self.choices.access(e).axes[axis].clamped:
            return f"{i.id}_safe"  # the position, kept inside the ragged last tile
        return self.text(i)

    def guards(self, e: Load) -> list[str]:
        """The conditions under which the element, or the list, exists, but for those that hold for certain."""
        found: list[str] = []
        axes = self.params[e.param].axes(e)
        for (i, size), tested in zip(axes, self.choices.access(e).axes, strict=True):
            if not tested.low and not tested.high:
                continue
            text, strength = self._print(i)
            text = text if strength > 1 else f"({text})"
            if tested.low:
                found.append(f"({text} >= 0)")
            if tested.high:
                found.append(f"({text} < {self.text(size)})")
        return found

    def _corners(self, e: Load) -> tuple[int, str, str] | None:
        """(axis, its least, its greatest index in the tile) where the plan knows which corners they are at.

        Where both corners read the same element, so does every pair between them: a bias far from the diagonal.
        """
        found = self.choices.corner(e)
        if found is None:
            return None

        def corner(highest: bool) -> str:
            q, k = (f"{s}{int(rises == highest)}" for s, rises in (("q", found.rises_in_q), ("k", found.rises_in_k)))
            return self._at(k, e.indices[found.axis], q)

        return found.axis, corner(highest=False), corner(highest=True)

    def _at(self, k: str, e: Expr, q: str = "") -> str:
        """The text of an int at one key, and one query."""
        names = {bound: name for bound, name in self.names.items() if not reads(bound, "q", "k", "qk")}
        return replace(self, names={**names, Symbol("q", Type.INT): q, Symbol("k", Type.INT): k}).text(e)

    def _load(self, e: Load) -> tuple[str, int]:
        pointer = f"{self.param_names[e.param]}_ptr"
        guards = self.guards(e)
        if e.member is not None:
            size = self.text(self.params[e.param].shape[-1])
            stride = f"{self.param_names[e.param]}_stride_{len(e.indices)}"
            exists = " & ".join(guards) or "True"
            member = self.text(e.member)
            if level_of(e.member) is Level.HEAD:  # perhaps a constant of the kernel, which has no dtype
                member = f"tl.cast({member}, tl.int64)"
            lists = f"{pointer} + {self.offset(e)}, {exists}, {size}, {stride}"
            block = _block(e)
            if block is not None:
                return atom(f"rows.listed_block({member}, {self._at('k0', e.member)}, {lists}, {block})")
            return atom(f"rows.listed({member}, {lists})")
        corners = None if guards else self._corners(e)
        mask = f", mask={' & '.join(guards)}, other=0" if guards else ""
        text = f"tl.load({pointer} + {self.offset(e)}{mask})"
        if corners is not None:
            axis, least, most = corners
            ends = [self._along(e, axis, text, Level.HEAD) for text in (least, most)]
            own = self._along(e, axis, self._index(e, axis), Level.PAIR)
            text = f"rows.load_pairs({pointer} + {self.offset(e, without=axis)}, {', '.join(ends)}, {own}, FAST)"
        if e == self.fetched:
            text = f"pairs if config.FETCHES else {text}"
        match e.type:
            case Type.FLOAT:
                return atom(f"tl.cast({text}, tl.float32)")
            case Type.INT:
                if self.params[e.param].storage in SMALL_INTS:
                    return atom(f"tl.cast({text}, tl.int32)")
                return atom(text)  # as stored: 32 or 64 bits
            case Type.BOOL:
                return atom(f"({text} != 0)")


_LEAST_BLOCK = 8
"""Keys of a block, for which its number is looked for once: a tile has fewer of such numbers than of keys."""


def _block(e: Load) -> int | None:
    """How many keys have one number, where it is whether a query's list holds the number of a key's block."""
    m = e.member
    if not (isinstance(m, Apply) and m.op is Op.FLOORDIV and isinstance(m.args[1], Literal)):
        return None
    keys = int(m.args[1].value)
    own = max(level_of(i) for i in e.indices) is Level.ROW
    return keys if own and keys >= _LEAST_BLOCK and _counts_keys(m.args[0]) else None


def _counts_keys(e: Expr) -> bool:
    """Whether it is the key, moved by what a head decides."""
    if e == Symbol("k", Type.INT):
        return True
    if not (isinstance(e, Apply) and e.op in (Op.ADD, Op.SUB)):
        return False
    a, b = e.args
    sides = ((a, b), (b, a)) if e.op is Op.ADD else ((a, b),)
    return any(_counts_keys(one) and level_of(other) is Level.HEAD for one, other in sides)


def _literal(e: Literal) -> tuple[str, int]:
    if e.type is Type.BOOL:
        return atom("True" if e.value else "False")
    if e.type is Type.FLOAT and not math.isfinite(e.value):
        return atom(f'float("{e.value}")')
    if e.type is Type.INT and abs(e.value) >= 2**31:
        return atom(f"tl.cast({e.value}, tl.int64)")
    return repr(e.value), (9 if e.value >= 0 else 7)


def division_helpers(choices: Choices) -> tuple[HelperView, ...]:
    return helper_views(Printer(replace(choices, wide=()), {}, {}).text)
