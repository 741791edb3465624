"""Prints IR expressions as JAX code: the one place where an operation is spelt for this target.

Takes an expression and how its leaves are called, returns text, for two places. On the host every value is an array of
four axes, (batch, head, query, key), of size 1 where it does not vary. In a kernel values have the shape of what they
depend on: a number a head; a vector of the held axis, the same in every lane; one row of the walked axis; a tile.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import assert_never

from attngen.emit.text.divisions import HelperView, by_shift, helper_views
from attngen.emit.text.precedence import Text, atom, infix, shifted_right
from attngen.errors import InternalError
from attngen.ir.nodes import Apply, Expr, Literal, Load, Op, Scalar, Symbol, Type
from attngen.plan.ints.choices import Choices
from attngen.plan.ints.divisions import EXPANSIONS, shift
from attngen.plan.levels import Level, level_of

Leaf = Symbol | Scalar | Load

_INFIX = {
    Op.ADD: ("+", 5), Op.SUB: ("-", 5), Op.MUL: ("*", 6), Op.DIV: ("/", 6),
    Op.BIT_AND: ("&", 4), Op.BIT_XOR: ("^", 3), Op.BIT_OR: ("|", 2),
    Op.LT: ("<", 1), Op.LE: ("<=", 1), Op.EQ: ("==", 1), Op.NE: ("!=", 1),
}  # fmt: skip
_CALLS = {
    Op.SELECT: "jnp.where", Op.EXP: "jnp.exp", Op.EXP2: "jnp.exp2", Op.LOG: "jnp.log", Op.LOG2: "_log2",
    Op.SQRT: "jnp.sqrt", Op.RSQRT: "lax.rsqrt", Op.TANH: "jnp.tanh", Op.SIN: "jnp.sin", Op.COS: "jnp.cos",
    Op.ERF: "lax.erf", Op.SIGMOID: "jax.nn.sigmoid", Op.SIGN: "_sign", Op.ABS: "jnp.abs", Op.MIN: "_min",
    Op.MAX: "_max",
}  # fmt: skip
_SATURATING = {Op.ADD: "_add", Op.SUB: "_sub", Op.MUL: "_mul"}


@dataclass
class Printer:
    """`leaf` names symbols, scalars and loads; `held` is the axis that a kernel holds, None on the host.

    `names` maps bound expressions to identifiers.
    """

    choices: Choices
    leaf: Callable[[Leaf], str]
    held: Level | None = None
    names: dict[Expr, str] = field(default_factory=dict[Expr, str])

    def text(self, e: Expr) -> str:
        return self._print(e)[0]

    def bind(self, e: Expr, name: str) -> None:
        self.names[e] = name

    def _print(self, e: Expr) -> Text:
        bound = self.names.get(e)
        return self.definition(e) if bound is None else atom(bound)

    def definition(self, e: Expr) -> Text:
        """The text of `e` itself, its parts by name where they are bound."""
        match e:
            case Literal():
                return _literal(e)
            case Symbol() | Scalar() | Load():
                return atom(self.leaf(e))
            case Apply():
                return self._apply(e)
            case _:
                assert_never(e)

    def _argument(self, a: Expr, level: Level) -> Text:
        """An argument of an operation on a whole tile: what every lane of a row shares is spread over the tile."""
        text = self._print(a)
        if self.held is not None and level is Level.PAIR and level_of(a) is self.held:
            return atom(f"_across({text[0]}, width)")
        return text

    def _apply(self, e: Apply) -> Text:
        level = level_of(e)
        args = [self._argument(a, level) for a in e.args]
        texts = [a[0] for a in args]
        saturates = e.type is Type.INT and e in self.choices.wide
        if saturates and e.op is Op.NEG:
            return atom(f"_sub(0, {texts[0]})")
        if saturates and e.op is Op.ABS:
            return atom(f"_max({texts[0]}, _sub(0, {texts[0]}))")
        if e.op in _INFIX:
            if saturates:
                return atom(f"{_SATURATING[e.op]}({texts[0]}, {texts[1]})")
            sign, strength = _INFIX[e.op]
            return infix(sign, strength, args[0], args[1], chain=strength == 1)
        if e.op is Op.SELECT and e.type is Type.BOOL:
            return atom(f"_choose({', '.join(texts)})")
        if e.op in _CALLS:
            return atom(f"{_CALLS[e.op]}({', '.join(texts)})")
        match e.op:
            case Op.SHIFT_RIGHT:
                return shifted_right(args[0], args[1])
            case Op.FLOORDIV | Op.MOD:
                return self._division(e, args)
            case Op.POW:
                kind = "_saturating_power" if saturates else "_int_power" if e.type is Type.INT else "_power"
                return atom(f"{kind}({texts[0]}, {texts[1]})")
            case Op.NEG:
                return (f"-{texts[0]}" if args[0][1] >= 7 else f"-({texts[0]})"), 7
            case Op.NOT:
                return atom(f"jnp.logical_not({texts[0]})")
            case Op.AND | Op.OR:
                sign, strength = ("&", 4) if e.op is Op.AND else ("|", 2)
                return f" {sign} ".join(t if s > 4 else f"({t})" for t, s in args), strength
            case Op.TO_FLOAT:
                return atom(f"_float({texts[0]})")
            case Op.TO_INT:
                return atom(f"_int({texts[0]})")
            case Op.FLOOR | Op.CEIL:
                return atom(f"_int(jnp.{e.op.value}({texts[0]}))")
            case _:
                raise InternalError(f"{e.op} is not printed for JAX")

    def _division(self, e: Apply, args: list[Text]) -> Text:
        """Floors. A division that may leave 32 bits does so by the divisor -1, which is taken apart."""
        exponent = shift(e)
        if exponent is not None:
            return by_shift(e, args[0], exponent)
        helper = EXPANSIONS[e.op].helper
        helper = f"_saturating{helper}" if e in self.choices.wide else helper
        return atom(f"{helper}({args[0][0]}, {args[1][0]})")


def _literal(e: Literal) -> Text:
    if e.type is Type.BOOL:
        return atom("True" if e.value else "False")
    if e.type is Type.FLOAT and not math.isfinite(e.value):
        return ("jnp.inf", 9) if e.value > 0 else ("-jnp.inf", 7)
    if e.type is Type.INT:  # 32 bits are what a TPU has
        value = max(-(2**31), min(2**31 - 1, int(e.value)))
        return repr(value), (9 if value >= 0 else 7)
    return repr(e.value), (9 if e.value >= 0 else 7)


def division_helpers(choices: Choices) -> tuple[HelperView, ...]:
    def own(leaf: Leaf) -> str:
        if not isinstance(leaf, Symbol):
            raise InternalError("a param in a helper")
        return leaf.id

    return helper_views(Printer(replace(choices, wide=()), own).text)
