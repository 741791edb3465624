"""Prints IR expressions as PyTorch code: the one place where an operation is spelt for this target.

Takes an expression and how its leaves are called, returns text. Values are tensors that broadcast to (batch, head,
query, key), or Python numbers where only sizes and int params enter; the helpers of the generated module take both.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import assert_never

from attngen.emit.text.precedence import Text, atom, infix, shifted_right
from attngen.errors import InternalError
from attngen.ir.nodes import FLOAT_FUNCTIONS, Apply, Expr, Literal, Load, Op, Scalar, Symbol, Type
from attngen.ir.walk import loads
from attngen.plan.ints.facts import Facts
from attngen.plan.levels import Level, level_of

Leaf = Symbol | Scalar | Load

_INFIX = {
    Op.ADD: ("+", 5), Op.SUB: ("-", 5), Op.MUL: ("*", 6), Op.DIV: ("/", 6), Op.FLOORDIV: ("//", 6), Op.MOD: ("%", 6),
    Op.BIT_AND: ("&", 4), Op.BIT_XOR: ("^", 3), Op.BIT_OR: ("|", 2),
    Op.LT: ("<", 1), Op.LE: ("<=", 1), Op.EQ: ("==", 1), Op.NE: ("!=", 1),
}  # fmt: skip
_CALLS = {
    Op.EXP: "torch.exp", Op.EXP2: "torch.exp2", Op.LOG: "torch.log", Op.LOG2: "torch.log2", Op.SQRT: "torch.sqrt",
    Op.RSQRT: "torch.rsqrt", Op.TANH: "torch.tanh", Op.SIN: "torch.sin", Op.COS: "torch.cos", Op.ERF: "torch.erf",
    Op.SIGMOID: "torch.sigmoid", Op.SIGN: "_sign", Op.ABS: "abs", Op.MIN: "_min", Op.MAX: "_max", Op.SELECT: "_where",
    Op.NOT: "_not", Op.TO_FLOAT: "_float", Op.TO_INT: "_int", Op.FLOOR: "_floor", Op.CEIL: "_ceil",
}  # fmt: skip


@dataclass
class Printer:
    """`leaf` names symbols, scalars and loads; `names` maps bound expressions to identifiers."""

    facts: Facts
    leaf: Callable[[Leaf], str]
    names: dict[Expr, str] = field(default_factory=dict[Expr, str])

    def text(self, e: Expr) -> str:
        return self._print(e)[0]

    def bind(self, e: Expr, name: str) -> None:
        self.names[e] = name

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

    def _print(self, e: Expr) -> Text:
        bound = self.names.get(e)
        return self.definition(e) if bound is None else atom(bound)

    def _apply(self, e: Apply) -> Text:
        args = [self._print(a) for a in e.args]
        texts = [a[0] for a in args]
        if e.op in FLOAT_FUNCTIONS and level_of(e) is Level.HEAD and not loads(e):  # of numbers, such as the scale
            texts = [f"torch.as_tensor({texts[0]})"]
        if e.op in (Op.FLOORDIV, Op.MOD) and not self.facts.is_positive(e.args[1]):
            return atom(f"{'_floor_div' if e.op is Op.FLOORDIV else '_floor_mod'}({texts[0]}, {texts[1]})")
        if e.op in _INFIX:
            sign, strength = _INFIX[e.op]
            return infix(sign, strength, args[0], args[1], chain=strength == 1)
        if e.op in _CALLS:
            return atom(f"{_CALLS[e.op]}({', '.join(texts)})")
        match e.op:
            case Op.SHIFT_RIGHT:
                return shifted_right(args[0], args[1])
            case Op.POW:
                return atom(f"{'_int_power' if e.type is Type.INT else '_power'}({texts[0]}, {texts[1]})")
            case Op.NEG:
                return (f"-{texts[0]}" if args[0][1] >= 7 else f"-({texts[0]})"), 7
            case Op.AND | Op.OR:
                sign, strength = ("&", 4) if e.op is Op.AND else ("|", 2)
                return f" {sign} ".join(t if s > 4 else f"({t})" for t, s in args), strength
            case _:
                raise InternalError(f"{e.op} is not printed for torch")


def _literal(e: Literal) -> Text:
    if isinstance(e.value, float) and not math.isfinite(e.value):
        return ("math.inf", 9) if e.value > 0 else ("-math.inf", 7)
    return repr(e.value), (9 if e.value >= 0 else 7)
