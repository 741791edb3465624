"""Typed expressions. Five closed node types; an operation is one `Apply` with an `Op`.

Equality is structural; `name` (a hint from the `let` that gave the expression) and spans stand outside it.
Build nodes through `attngen.ir.build`, which folds constants and simplifies; the raw constructors check nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from attngen.errors import NOWHERE, Span


class Type(StrEnum):
    """The type of an expression. Storage types of tensors are `Storage`."""

    BOOL = "bool"
    INT = "int"
    FLOAT = "float"


class Storage(StrEnum):
    """How a run-time parameter is stored; it is read as `Type`."""

    F32 = "f32"
    F16 = "f16"
    BF16 = "bf16"
    INT = "int"
    U8 = "u8"
    I8 = "i8"
    I16 = "i16"
    BOOL = "bool"

    @property
    def type(self) -> Type:
        match self:
            case Storage.F32 | Storage.F16 | Storage.BF16:
                return Type.FLOAT
            case Storage.INT | Storage.U8 | Storage.I8 | Storage.I16:
                return Type.INT
            case Storage.BOOL:
                return Type.BOOL

    @property
    def ends(self) -> tuple[int, int] | None:
        """The least and the greatest element of ints; those of `int` in a register of 32 bits."""
        bits = {Storage.INT: 32, Storage.U8: 8, Storage.I8: 8, Storage.I16: 16}.get(self)
        if bits is None:
            return None
        return (0, 2**bits - 1) if self is Storage.U8 else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


class Op(StrEnum):
    """Every operation. Argument and result types stand behind each."""

    # arithmetic: ints to int, floats to float (never mixed: an int is wrapped in TO_FLOAT first)
    ADD = "+"
    SUB = "-"
    MUL = "*"
    DIV = "/"  # floats only
    FLOORDIV = "//"  # ints only, floors
    MOD = "%"  # ints only, sign of the divisor, as in Python
    POW = "**"  # base int or float, exponent int; the result has the base's type
    SHIFT_RIGHT = ">>"  # ints, by 0 to 31; floors, as `a // 2**n`
    BIT_AND = "&"  # ints in two's complement, as in Python
    BIT_OR = "|"
    BIT_XOR = "^"
    NEG = "neg"
    ABS = "abs"
    SIGN = "sign"  # -1, 0 or 1, in the argument's type
    MIN = "min"  # two arguments
    MAX = "max"  # two arguments
    # comparisons of two ints, two floats or (EQ, NE) two bools, to bool. `>` and `>=` are swapped away.
    LT = "<"
    LE = "<="
    EQ = "=="
    NE = "!="
    # logic
    NOT = "not"
    AND = "and"  # two or more arguments
    OR = "or"  # two or more arguments
    SELECT = "select"  # (condition, then, otherwise): both branches have the result's type
    # float to float
    EXP = "exp"
    EXP2 = "exp2"
    LOG = "log"
    LOG2 = "log2"
    SQRT = "sqrt"
    RSQRT = "rsqrt"
    TANH = "tanh"
    SIGMOID = "sigmoid"
    SIN = "sin"
    COS = "cos"
    ERF = "erf"
    # conversions
    TO_FLOAT = "float"  # int or bool to float
    TO_INT = "int"  # float truncates, bool gives 0 or 1
    FLOOR = "floor"  # float to int
    CEIL = "ceil"  # float to int


@dataclass(frozen=True, slots=True)
class Literal:
    """A constant. `value` is a bool, an int, or a float (infinite ones included) as `type` says."""

    value: bool | int | float
    type: Type
    span: Span = field(default=NOWHERE, compare=False, kw_only=True)
    name: str | None = field(default=None, compare=False, kw_only=True)

    def __eq__(self, other: object) -> bool:
        # repr tells -0.0 from 0.0; `type` tells 1 from True and from 1.0.
        return isinstance(other, Literal) and self.type == other.type and repr(self.value) == repr(other.value)

    def __hash__(self) -> int:
        return hash((self.type, repr(self.value)))


@dataclass(frozen=True, slots=True)
class Symbol:
    """A name that the language defines.

    Indices `b h hkv q k` and sizes `B Hq Hkv Sq Sk D Dv`, and sizes bound at the call (all int); `qk`, `scale` (float).
    In a normalizer's lines: `s` (a score), `m`, `n` (reference points). The planner adds its own, such as `q0`, `q1`.
    """

    id: str
    type: Type
    span: Span = field(default=NOWHERE, compare=False, kw_only=True)
    name: str | None = field(default=None, compare=False, kw_only=True)


@dataclass(frozen=True, slots=True)
class Scalar:
    """The value of a scalar run-time parameter."""

    param: str
    type: Type
    span: Span = field(default=NOWHERE, compare=False, kw_only=True)
    name: str | None = field(default=None, compare=False, kw_only=True)


@dataclass(frozen=True, slots=True)
class Load:
    """One element of a tensor run-time parameter. Outside the tensor's bounds the value is 0 (or false).

    With a `member`, an int, it is no element but a bool: whether one of the elements along the last axis, which then
    has no index, equals it. An element below 0 equals nothing, and outside the tensor's bounds there are none.
    """

    param: str
    indices: tuple[Expr, ...]
    type: Type
    member: Expr | None = field(default=None, kw_only=True)
    span: Span = field(default=NOWHERE, compare=False, kw_only=True)
    name: str | None = field(default=None, compare=False, kw_only=True)


@dataclass(frozen=True, slots=True)
class Apply:
    op: Op
    args: tuple[Expr, ...]
    type: Type
    span: Span = field(default=NOWHERE, compare=False, kw_only=True)
    name: str | None = field(default=None, compare=False, kw_only=True)


Expr = Literal | Symbol | Scalar | Load | Apply

MOST_SHIFTED = 31
"""What a shift to the right may be by: the last bit of the narrowest int."""

INDICES = ("b", "h", "hkv", "q", "k")
SIZES = ("B", "Hq", "Hkv", "Sq", "Sk", "D", "Dv")
COMPARISONS = frozenset({Op.LT, Op.LE, Op.EQ, Op.NE})
FLOAT_FUNCTIONS = frozenset(
    {Op.EXP, Op.EXP2, Op.LOG, Op.LOG2, Op.SQRT, Op.RSQRT, Op.TANH, Op.SIGMOID, Op.SIN, Op.COS, Op.ERF}
)
