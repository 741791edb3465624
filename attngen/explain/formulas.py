"""Expressions of the IR as a mathematician writes them.

Takes IR expressions, returns `Math`. The query's position is i, the key's j; a tile of queries is i0 … i1, of keys
j0 … j1. Names of the spec stand upright. Products and sums are flattened, equal factors above and below a bar cancel,
constants of the planner's arithmetic are named (1.4426950408889634 is log2 e): equal over the reals, which is what a
derivation is about. Leaves the sentences to `forward` and `backward`, and checks nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import assert_never

from attngen.explain import notation as n
from attngen.explain.notation import Math
from attngen.ir import build
from attngen.ir.nodes import Apply, Expr, Literal, Load, Op, Scalar, Symbol, Type
from attngen.ir.walk import children, nodes, reads

SYMBOLS: Mapping[str, Math] = {
    "b": n.atom("b"),
    "h": n.atom("h"),
    "hkv": n.atom(r"h_{\mathrm{kv}}", "h_kv"),
    "q": n.atom("i"),
    "k": n.atom("j"),
    "B": n.atom("B"),
    "Hq": n.atom(r"H_{\mathrm{q}}", "H_q"),
    "Hkv": n.atom(r"H_{\mathrm{kv}}", "H_kv"),
    "Sq": n.atom(r"S_{\mathrm{q}}", "S_q"),
    "Sk": n.atom(r"S_{\mathrm{k}}", "S_k"),
    "D": n.atom("D"),
    "Dv": n.atom(r"D_{\mathrm{v}}", "D_v"),
    "qk": Math(r"q_i \cdot k_j", "q_i·k_j", n.TERM, n.TERM),
    "scale": n.roman("scale"),
    "s": n.atom("s"),
    "m": n.atom("m"),
    "n": n.atom("m'", "m′"),
    "q0": n.atom("i_0", "i₀"),
    "q1": n.atom("i_1", "i₁"),
    "k0": n.atom("j_0", "j₀"),
    "k1": n.atom("j_1", "j₁"),
}

_OWN_LETTERS = frozenset("ijslmoavwzZPGJIVLE")
"""Letters that the derivation uses itself: a param of this name is quoted on the terminal, which has one font."""

LONG = 64
"""Characters of terminal text from which on the `let`s of a spec are set apart as definitions."""

_FUNCTIONS = {
    Op.TANH: (r"\tanh", "tanh"),
    Op.SIGMOID: (r"\sigma", "σ"),
    Op.SIN: (r"\sin", "sin"),
    Op.COS: (r"\cos", "cos"),
    Op.ERF: (r"\operatorname{erf}", "erf"),
    Op.LOG: (r"\ln", "ln"),
    Op.LOG2: (r"\log_2", "log₂"),
    Op.SIGN: (r"\operatorname{sign}", "sign"),
}
_COMPARED = {Op.LT: "<", Op.LE: "<=", Op.EQ: "=", Op.NE: "!="}
_FLIPPED = {"<": ">", "<=": ">=", "=": "=", "!=": "!="}
_CONSTANTS = (
    (math.pi, n.atom(r"\pi", "π")),
    (1.0 / math.log(2.0), Math(r"\log_2 e", "log₂ e", n.BIG, n.BIG)),
    (math.log(2.0), Math(r"\ln 2", "ln 2", n.BIG, n.BIG)),
    (2.0 / math.sqrt(math.pi), n.quotient(n.atom("2"), n.root(n.atom(r"\pi", "π")))),
)


@dataclass(frozen=True, slots=True)
class Writer:
    """Prints expressions; `symbols` says what a symbol stands for, `names` which subexpressions have a name."""

    symbols: Mapping[str, Math] = field(default_factory=lambda: dict(SYMBOLS))
    names: Mapping[Expr, Math] = field(default_factory=dict[Expr, Math])

    def at(self, **symbols: Math) -> Writer:
        """The same with other symbols: `writer.at(s=s_ij, m=m_i)` writes a normalizer's line for a pair."""
        return replace(self, symbols={**self.symbols, **symbols})

    def __call__(self, e: Expr) -> Math:
        if e in self.names:
            return self.names[e]
        match e:
            case Literal():
                return _number(e)
            case Symbol():
                return self.symbols.get(e.id) or n.roman(e.id)
            case Scalar():
                return self._param(e.param)
            case Load():
                return self._load(e)
            case Apply():
                return self._apply(e)
            case _:
                assert_never(e)

    def _param(self, name: str) -> Math:
        found = n.roman(name)
        return replace(found, text=f"‘{name}’") if name in _OWN_LETTERS else found

    def _load(self, e: Load) -> Math:
        return self._element(e) if e.member is None else self._member(e.member, "in", e)

    def _member(self, member: Expr, sign: str, lists: Load) -> Math:
        """`k ∈ t[i]`."""
        return n.compared(self(member), (sign, self._element(lists) if lists.indices else self._param(lists.param)))

    def _element(self, e: Load) -> Math:
        indices = [self(i) for i in e.indices]
        under = n.indexed(n.roman(e.param), indices)
        if all(isinstance(i, Symbol | Literal) and i not in self.names for i in e.indices):
            # One font serves the terminal: there, brackets tell a tensor's element from a name with an index.
            subscript = n.roman(e.param, (", " if len(indices) > 2 else "").join(i.tex for i in indices))
            return replace(under, tex=subscript.tex)
        return under

    def _apply(self, e: Apply) -> Math:
        args = e.args
        match e.op:
            case Op.ADD | Op.SUB:
                return self._sum(e)
            case Op.MUL | Op.DIV | Op.NEG:
                return self._product(e)
            case Op.FLOORDIV:
                return n.floored(n.quotient(self(args[0]), self(args[1])))
            case Op.MOD:
                a, b = self(args[0]), self(args[1])
                tex = rf"{a.tex_at(n.POWER)} \bmod {b.tex_at(n.POWER)}"
                return Math(tex, f"{a.text_at(n.POWER)} mod {b.text_at(n.POWER)}", n.MOD, n.MOD)
            case Op.SHIFT_RIGHT | Op.BIT_AND | Op.BIT_OR | Op.BIT_XOR:
                name = {Op.SHIFT_RIGHT: "shift", Op.BIT_AND: "bitand", Op.BIT_OR: "bitor", Op.BIT_XOR: "bitxor"}[e.op]
                return n.operator(name, self(args[0]), self(args[1]))
            case Op.POW:
                return n.power(self(args[0]), self(args[1]))
            case Op.ABS:
                return n.absolute(self(args[0]))
            case Op.MIN | Op.MAX:
                return self._extreme(e)
            case Op.LT | Op.LE | Op.EQ | Op.NE:
                return self._comparison(e)
            case Op.NOT:
                if isinstance(args[0], Load) and args[0].member is not None:
                    return self._member(args[0].member, "not in", args[0])
                return n.negated(self(args[0]))
            case Op.AND:
                return n.conjoined(self.conjuncts(args), "and")
            case Op.OR:
                return n.conjoined([self(c) for c in args], "or")
            case Op.SELECT:
                return n.cases(self(args[1]), self(args[0]), self(args[2]))
            case Op.EXP:
                return n.exponential(self(args[0]))
            case Op.EXP2:
                return n.exponential(self(args[0]), "2")
            case Op.SQRT:
                return n.root(self(args[0]))
            case Op.RSQRT:
                return n.quotient(n.atom("1"), n.root(self(args[0])))
            case Op.TANH | Op.SIGMOID | Op.SIN | Op.COS | Op.ERF | Op.LOG | Op.LOG2 | Op.SIGN:
                return n.call(*_FUNCTIONS[e.op], self(args[0]))
            case Op.TO_FLOAT | Op.TO_INT if args[0].type is Type.BOOL:
                return n.bracketed(self(args[0]))
            case Op.TO_FLOAT:
                return self(args[0])
            case Op.TO_INT:
                return n.operator("trunc", self(args[0]))
            case Op.FLOOR:
                return n.floored(self(args[0]))
            case Op.CEIL:
                return n.ceiled(self(args[0]))
            case _:
                assert_never(e.op)

    # ------------------------------------------------------------ sums and products

    def _sum(self, e: Apply) -> Math:
        terms: list[tuple[bool, Math]] = []

        def walk(part: Expr, minus: bool) -> None:
            if isinstance(part, Apply) and part not in self.names:
                match part.op:
                    case Op.ADD | Op.SUB:
                        walk(part.args[0], minus)
                        walk(part.args[1], minus != (part.op is Op.SUB))
                        return
                    case Op.MUL | Op.DIV | Op.NEG:
                        negative, written = self.signed(part)
                        terms.append((minus != negative, written))
                        return
                    case Op.TO_FLOAT if part.args[0].type is Type.INT:
                        walk(part.args[0], minus)
                        return
                    case _:
                        pass
            if isinstance(part, Literal) and part.value < 0:
                terms.append((not minus, self(build.literal(-part.value))))
            elif not build.is_literal(part, 0):
                terms.append((minus, self(part)))

        for place, part in enumerate(e.args):
            walk(part, place == 1 and e.op is Op.SUB)
        return n.total(terms) if terms else n.atom("0")

    def _product(self, e: Apply) -> Math:
        negative, written = self.signed(e)
        return n.total([(True, written)]) if negative else written

    def signed(self, e: Apply) -> tuple[bool, Math]:
        """Whether a product is negative, and what it is without that sign."""
        above: list[Expr] = []
        below: list[Expr] = []
        negative = self._factors(e, above, below)
        for factor in list(below):
            if factor in above:
                above.remove(factor)
                below.remove(factor)
        (top, tops), (bottom, bottoms) = _coefficient(above), _coefficient(below)
        if bottom != 1 and (top / bottom).is_integer():
            top, bottom = top / bottom, 1.0
        numerator = self._written(top, tops, [f for f in above if not isinstance(f, Literal)])
        if bottom == 1 and not bottoms and all(isinstance(f, Literal) for f in below):
            return negative, numerator
        denominator = self._written(bottom, bottoms, [f for f in below if not isinstance(f, Literal)])
        return negative, n.quotient(numerator, denominator)

    def _factors(self, e: Expr, above: list[Expr], below: list[Expr]) -> bool:
        """Takes a product apart into what stands above and below the bar; returns whether its sign is negative."""
        if isinstance(e, Apply) and e not in self.names:
            match e.op:
                case Op.MUL:
                    first = self._factors(e.args[0], above, below)
                    return first != self._factors(e.args[1], above, below)
                case Op.DIV:
                    first = self._factors(e.args[0], above, below)
                    return first != self._factors(e.args[1], below, above)
                case Op.NEG:
                    return not self._factors(e.args[0], above, below)
                case Op.TO_FLOAT if e.args[0].type is Type.INT:
                    return self._factors(e.args[0], above, below)
                case _:
                    pass
        if isinstance(e, Literal) and e.value < 0:
            above.append(build.literal(-e.value))
            return True
        above.append(e)
        return False

    def _written(self, coefficient: float, constants: Sequence[Math], factors: Sequence[Expr]) -> Math:
        parts: list[Math] = []
        if coefficient != 1 or not (factors or constants):
            parts.append(_decimal(coefficient))
        parts += constants
        counts: dict[Expr, int] = {}
        for factor in sorted(factors, key=_rank):
            counts[factor] = counts.get(factor, 0) + 1
        return n.product(*parts, *(self._repeated(f, count) for f, count in counts.items()))

    def _repeated(self, e: Expr, count: int) -> Math:
        if count == 1:
            return self(e)
        if isinstance(e, Apply) and e.op in _FUNCTIONS and e not in self.names:
            tex, text = _FUNCTIONS[e.op]
            raised = n.power(n.atom(tex, text), n.atom(str(count)))
            return n.call(raised.tex, raised.text, self(e.args[0]))
        return n.power(self(e), n.atom(str(count)))

    # ------------------------------------------------------------ orders

    def _extreme(self, e: Apply) -> Math:
        inner, outer = (Op.MAX, Op.MIN) if e.op is Op.MIN else (Op.MIN, Op.MAX)
        for one, other in (e.args, e.args[::-1]):
            # A clamp: the inner bound and the outer one are both fixed numbers.
            if isinstance(one, Apply) and one.op is inner and one not in self.names and isinstance(other, Literal):
                x, bound = one.args
                if isinstance(bound, Literal) and not isinstance(x, Literal):
                    low, high = (bound, other) if outer is Op.MIN else (other, bound)
                    if low.value <= high.value:
                        return n.operator("clip", self(x), self(low), self(high))
        found: dict[Expr, None] = {}

        def walk(part: Expr) -> None:
            if isinstance(part, Apply) and part.op is e.op and part not in self.names:
                for a in part.args:
                    walk(a)
            else:
                found.setdefault(part)

        walk(e)
        return n.call(rf"\{e.op.value}", e.op.value, *(self(part) for part in found))

    def _comparison(self, e: Apply) -> Math:
        sign = _COMPARED[e.op]
        a, b = e.args
        if isinstance(a, Literal) and not isinstance(b, Literal):
            a, b, sign = b, a, _FLIPPED[sign]
        return n.compared(self(a), (sign, self(b)))

    def conjuncts(self, conditions: Iterable[Expr]) -> list[Math]:
        """Conditions, with `a <= x` and `x < c` that stand side by side put together: a <= x < c."""
        found: list[Math] = []
        waiting: Apply | None = None
        for c in conditions:
            fits = isinstance(c, Apply) and c.op in (Op.LT, Op.LE) and c not in self.names
            if waiting is not None and isinstance(c, Apply) and fits and c.args[0] == waiting.args[1]:
                first, second = _COMPARED[waiting.op], _COMPARED[c.op]
                found.append(n.compared(self(waiting.args[0]), (first, self(c.args[0])), (second, self(c.args[1]))))
                waiting = None
                continue
            if waiting is not None:
                found.append(self(waiting))
            waiting = c if isinstance(c, Apply) and fits else None
            if waiting is None:
                found.append(self(c))
        return found if waiting is None else [*found, self(waiting)]


# ---------------------------------------------------------------- numbers


def _number(e: Literal) -> Math:
    if e.type is Type.BOOL:
        return n.words("true" if e.value else "false")
    if isinstance(e.value, float):
        coefficient, constant = _named(abs(e.value))
        parts = [_decimal(coefficient)] if coefficient != 1 or constant is None else []
        written = n.product(*parts, *([] if constant is None else [constant]))
    else:
        written = n.atom(str(abs(e.value)))
    return n.total([(True, written)]) if e.value < 0 else written


def _named(value: float) -> tuple[float, Math | None]:
    """`value` as a short decimal times a constant that has a name; the constant is None where it isn't one."""
    if len(repr(value)) > 12 and math.isfinite(value):
        for constant, written in _CONSTANTS:
            short = round(value / constant, 6)
            if short != 0 and math.isclose(short * constant, value, rel_tol=4e-16):
                return short, written
    return value, None


def _decimal(value: float) -> Math:
    if math.isinf(value):
        return n.atom(r"\infty", "∞")
    if value.is_integer() and abs(value) < 1e15:
        return n.atom(str(int(value)))
    digits, _, exponent = repr(value).partition("e")
    if not exponent:
        return n.atom(digits)
    ten = n.power(n.atom("10"), n.atom(str(int(exponent))))
    return ten if digits == "1" else n.product(n.atom(digits), ten)


def _coefficient(factors: Sequence[Expr]) -> tuple[float, list[Math]]:
    """The product of the numbers among factors, and the named constants among them."""
    product, constants = 1.0, list[Math]()
    for factor in factors:
        if isinstance(factor, Literal):
            short, written = _named(float(factor.value))
            product *= short
            if written is not None:
                constants.append(written)
    return product, constants


def _rank(e: Expr) -> int:
    """The place of a factor: what a head shares first, the dot product last."""
    if isinstance(e, Symbol) and e.id == "qk":
        return 3
    if reads(e, "q", "k", "qk", "s", "m", "n"):
        return 2
    return 0 if isinstance(e, Symbol | Scalar | Load) else 1


# ---------------------------------------------------------------- definitions


def definitions(e: Expr) -> dict[str, Expr]:
    """The `let`s below `e` that are worth a line of their own, by name, those that others need first.

    A name that stands for several expressions (a `let` with arguments) is left out.
    """
    found: dict[str, dict[Expr, None]] = {}
    for node in nodes(e):
        if node is not e and isinstance(node, Apply) and node.name is not None and node.type is not Type.BOOL:
            found.setdefault(node.name, {}).setdefault(node)
    single = {name: next(iter(es)) for name, es in found.items() if len(es) == 1}
    order: list[str] = []

    def visit(node: Expr) -> None:
        for c in children(node):
            visit(c)
        if isinstance(node, Apply) and node.name in single and node == single[node.name] and node.name not in order:
            order.append(node.name)

    visit(e)
    return {name: single[name] for name in order if single[name] != e}


def named_pair(name: str, e: Expr) -> Math:
    """The name of a definition, with the indices that it depends on."""
    index = ("i" if reads(e, "q", "qk") else "") + ("j" if reads(e, "k", "qk") else "")
    return n.roman(name, index)
