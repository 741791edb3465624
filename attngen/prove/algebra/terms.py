"""Expressions read as sympy terms, in one case of their kinks.

Takes expressions and `Assumptions`, returns terms. Loads, scalars and what has no algebra of its own (`//`, `%`,
floor, an int made of a float) become opaque symbols, the same one wherever the same thing stands. sigmoid(x) is (1 +
tanh(x / 2)) / 2, exp2 and log2 are exp and log. abs, min, max, sign, comparisons and selects stay opaque, or are
decided by the case that a `Reading` is for (below, at or above each kink), or become polynomials in indicators, which
cover all cases.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import assert_never

from attngen.ir.nodes import COMPARISONS, Apply, Expr, Literal, Load, Op, Scalar, Symbol, Type
from attngen.ir.walk import children, nodes
from attngen.prove.algebra.assumptions import Assumptions
from attngen.prove.algebra.sympy_door import ABOVE, AT, LN2, Term, constant, expanded, sp
from attngen.prove.algebra.term_size import price
from attngen.prove.budget.work import Work

_NODE = 100
"""Units for a node of an expression that is read."""


class Split(Exception):
    """The sign of `key` decides between cases; `choices` are the signs that it may have."""

    def __init__(self, key: Term, choices: tuple[int, ...]):
        self.key = key
        self.choices = choices
        super().__init__(str(key))


class Reading:
    """Expressions read as terms. `decisions` gives signs of kinks' arguments; None leaves kinks opaque.

    With `indicators` a kink is a polynomial in two symbols that are 0 or 1, "its argument is positive" and "is zero":
    |x| is (2 p + z - 1) x. `same` knows that p p = p, z z = z and p z = 0, so one comparison covers every case.
    `leaves` confine the splitting to kinks whose arguments read one of them. `ties` says whether the case "at the kink"
    is one of its own; abs, min and max are continuous, so that values need no such case, and derivatives do. What is
    read is paid for with `work`: raises `OutOfWork`.
    """

    def __init__(
        self,
        assumptions: Assumptions,
        work: Work,
        decisions: Mapping[Term, int] | None = None,
        *,
        leaves: frozenset[Expr] | None = None,
        ties: bool = True,
        indicators: bool = False,
    ):
        self._world = assumptions
        self._work = work
        self._indicators = indicators
        self._decisions = decisions
        self._leaves = leaves
        self._ties = ties
        self._memo: dict[int, Term] = {}
        self._alive: list[Expr] = []  # what the memo's ids belong to
        self._plain: Reading | None = None

    def term(self, e: Expr) -> Term:
        found = self._memo.get(id(e))
        if found is None:
            self._work.spend(_NODE)
            found = self._memo[id(e)] = self._term(e)
            self._alive.append(e)
        return found

    def _expanded(self, x: Term) -> Term:
        return expanded(x, self._work)

    def _term(self, e: Expr) -> Term:
        match e:
            case Literal():
                if e.type is Type.FLOAT:
                    return constant(float(e.value))
                return sp.Integer(int(e.value))
            case Symbol():
                return self._symbol(e)
            case Scalar():
                return sp.Symbol(f"param {e.param}", **self._world.signs[e.param])
            case Load():
                plain = self._without_cases()
                parts = tuple(self._expanded(plain.term(i)) for i in children(e))
                if e.member is not None:
                    return self._atom(f"list {e.param}", parts, {"integer": True, "nonnegative": True})
                return self._atom(f"param {e.param}", parts, self._world.signs[e.param])
            case Apply():
                return self._apply(e)
            case _:
                assert_never(e)

    def _without_cases(self) -> Reading:
        """Reads what stands in an index, where a kink is opaque whatever the case."""
        if self._decisions is None and not self._indicators:
            return self
        if self._plain is None:
            self._plain = Reading(self._world, self._work)
        return self._plain

    def _symbol(self, e: Symbol) -> Term:
        if e.type is Type.FLOAT:
            if e.id in ("gap", "gap2") or (e.id == "scale" and self._world.positive_scale):
                return sp.Symbol(e.id, positive=True)
            return sp.Symbol(e.id, real=True)
        if e.id in ("b", "h", "hkv", "q", "k"):
            return sp.Symbol(f"index {e.id}", integer=True, nonnegative=True)
        return sp.Symbol(f"size {e.id}", integer=True, positive=True)

    def _atom(self, what: str, parts: tuple[Term, ...], signs: Mapping[str, bool]) -> Term:
        """The symbol that stands for `what(parts)`."""
        key = (what, parts)
        atoms = self._world.atoms
        if key not in atoms:
            atoms[key] = sp.Symbol(f"{what} {len(atoms)}", **signs)
        return atoms[key]

    def _splits(self, e: Expr) -> bool:
        if self._decisions is None:
            return False
        return self._leaves is None or any(n in self._leaves for n in nodes(e))

    def _apply(self, e: Apply) -> Term:
        if e.op is Op.SELECT:
            return self._select(e)
        if e.type is Type.BOOL:
            return self._condition(e)
        if e.op in (Op.TO_INT, Op.TO_FLOAT) and e.args[0].type is Type.BOOL:
            if self._indicators:
                return self._indicated(e.args[0])
            if self._splits(e):
                return sp.Integer(int(self.truth(e.args[0])))
            return self._atom("bit", (self.term(e.args[0]),), {"integer": True, "nonnegative": True})
        args = tuple(self.term(a) for a in e.args)
        a = args[0]
        b = args[-1]
        match e.op:
            case Op.ADD:
                return a + b
            case Op.SUB:
                return a - b
            case Op.MUL:
                return a * b
            case Op.DIV:
                return a / b
            case Op.NEG:
                return -a
            case Op.POW:
                if b.is_Integer:  # sympy multiplies a power of numbers out at once
                    self._work.spend(abs(int(b)))
                if b.is_Add and b.as_coeff_Add()[0].is_Integer:  # as sympy's derivatives have it
                    whole, rest = b.as_coeff_Add()
                    return a**rest * a**whole
                return a**b
            case Op.EXP:
                return sp.exp(a)
            case Op.EXP2:
                return sp.exp(a * LN2)
            case Op.LOG:
                return sp.log(a)
            case Op.LOG2:
                return sp.log(a) / LN2
            case Op.SQRT:
                return sp.sqrt(a)
            case Op.RSQRT:
                return 1 / sp.sqrt(a)
            case Op.TANH:
                return sp.tanh(a)
            case Op.SIGMOID:
                return (1 + sp.tanh(a / 2)) / 2
            case Op.SIN:
                return sp.sin(a)
            case Op.COS:
                return sp.cos(a)
            case Op.ERF:
                return sp.erf(a)
            case Op.TO_FLOAT:
                return a
            case Op.ABS | Op.SIGN | Op.MIN | Op.MAX:
                return self._kink(e, a, b)
            case Op.FLOORDIV | Op.MOD | Op.SHIFT_RIGHT | Op.BIT_AND | Op.BIT_OR | Op.BIT_XOR:
                return self._atom(e.op.value, (self._expanded(a), self._expanded(b)), {"integer": True})
            case Op.TO_INT | Op.FLOOR | Op.CEIL:
                # A float made an int is flat between its steps: an opaque symbol has no derivative.
                return a if a.is_integer else self._atom(e.op.value, (self._expanded(a),), {"integer": True})
            case _:
                raise AssertionError(e.op)

    # ------------------------------------------------------------ kinks

    def _kink(self, e: Apply, a: Term, b: Term) -> Term:
        argument = self._expanded(a if e.op in (Op.ABS, Op.SIGN) else a - b)
        sign = _known_sign(argument)
        if sign is None and self._indicators:
            above, at = self._indicator(argument)
            match e.op:
                case Op.ABS:
                    return (2 * above + at - 1) * a
                case Op.SIGN:
                    return 2 * above + at - 1
                case Op.MAX:
                    return (above + at) * a + (1 - above - at) * b
                case _:
                    return (1 - above) * a + above * b
        if sign is None and self._decisions is not None:
            try:
                sign = self._sign(argument, self._ties)
            except Split:
                if self._splits(e):
                    raise
        match e.op:
            case Op.ABS:
                if sign is not None:
                    return sign * a
                small = -argument if argument.could_extract_minus_sign() else argument
                return self._atom("abs", (small,), {"nonnegative": True})
            case Op.SIGN:
                if sign is not None:
                    return sp.Integer(sign)
                flip = argument.could_extract_minus_sign()
                found = self._atom("sign", (-argument if flip else argument,), {"integer": True})
                return -found if flip else found
            case _:
                if sign is not None:  # on a tie, the first
                    return a if (sign <= 0) == (e.op is Op.MIN) or sign == 0 else b
                ends = tuple(sorted((self._expanded(a), self._expanded(b)), key=sp.default_sort_key))
                return self._atom(e.op.value, ends, {"real": True})

    def _indicator(self, argument: Term) -> tuple[Term, Term]:
        """The symbols for "argument > 0" and for "argument = 0"."""
        key, flip = _kink_key(argument, self._work)
        kinks = self._world.kinks
        number = kinks.setdefault(key, len(kinks))
        above, at = (sp.Symbol(f"{name} {number}", integer=True, nonnegative=True) for name in (ABOVE, AT))
        return (1 - above - at if flip else above), at

    def _indicated(self, e: Expr) -> Term:
        """A condition as a polynomial of indicators, whose value is 0 or 1."""
        match e:
            case Literal():
                return sp.Integer(int(e.value))
            case Apply(op=Op.NOT):
                return 1 - self._indicated(e.args[0])
            case Apply(op=Op.AND):
                return sp.Mul(*(self._indicated(a) for a in e.args))
            case Apply(op=Op.OR):
                return 1 - sp.Mul(*(1 - self._indicated(a) for a in e.args))
            case Apply() if e.op in COMPARISONS and e.args[0].type is not Type.BOOL:
                argument = self._expanded(self.term(e.args[0]) - self.term(e.args[1]))
                sign = _known_sign(argument)
                above, at = self._indicator(argument) if sign is None else (int(sign > 0), int(sign == 0))
                return {Op.LT: 1 - above - at, Op.LE: 1 - above, Op.EQ: at, Op.NE: 1 - at}[e.op]
            case Apply() if e.op in COMPARISONS:
                a, b = (self._indicated(x) for x in e.args)
                both = a * b + (1 - a) * (1 - b)
                return both if e.op is Op.EQ else 1 - both
            case _:  # a bool param
                return self._indicator(self.term(e))[0]

    def _sign(self, argument: Term, ties: bool) -> int:
        """The sign that this case gives an argument. Raises `Split` where it gives none."""
        key, flip = _kink_key(argument, self._work)
        assert self._decisions is not None
        if key not in self._decisions:
            choices = (1, 0, -1) if ties else (1, -1)
            if key.is_nonnegative:
                choices = choices[:-1]
            elif key.is_nonpositive:
                choices = choices[1:]
            raise Split(key, choices)
        return -self._decisions[key] if flip else self._decisions[key]

    def truth(self, e: Expr) -> bool:
        """A condition in this case. Raises `Split` where the case does not tell."""
        match e:
            case Literal():
                return bool(e.value)
            case Apply(op=Op.NOT):
                return not self.truth(e.args[0])
            case Apply(op=Op.AND):
                return all(self.truth(a) for a in e.args)
            case Apply(op=Op.OR):
                return any(self.truth(a) for a in e.args)
            case Apply() if e.op in COMPARISONS and e.args[0].type is not Type.BOOL:
                argument = self._expanded(self.term(e.args[0]) - self.term(e.args[1]))
                sign = _known_sign(argument)
                sign = self._sign(argument, True) if sign is None else sign
                return {Op.LT: sign < 0, Op.LE: sign <= 0, Op.EQ: sign == 0, Op.NE: sign != 0}[e.op]
            case Apply() if e.op in COMPARISONS:
                return (self.truth(e.args[0]) == self.truth(e.args[1])) == (e.op is Op.EQ)
            case _:  # a bool param: its symbol, as a number that is 1 or -1
                return self._sign(self.term(e), False) > 0

    def _condition(self, e: Apply) -> Term:
        """A condition that is left opaque."""
        parts = tuple(self.term(a) for a in e.args)
        if e.op in COMPARISONS and e.args[0].type is not Type.BOOL:
            parts = (self._expanded(parts[0] - parts[1]),)
        return self._atom(e.op.value, parts, {"integer": True})

    def _select(self, e: Apply) -> Term:
        if self._decisions is not None:
            try:
                return self.term(e.args[1] if self.truth(e.args[0]) else e.args[2])
            except Split:
                if self._splits(e):
                    raise
        if self._indicators:
            condition = self._indicated(e.args[0])
            then, otherwise = (self.term(a) for a in e.args[1:])
            if then.is_infinite or otherwise.is_infinite:
                raise Split(condition, ())  # 0 times infinity: the cases have to be told apart
            return condition * then + (1 - condition) * otherwise
        condition, then, otherwise = (self.term(a) for a in e.args)
        if then == otherwise:
            return then
        return self._atom("select", (condition, then, otherwise), {"real": True})


def _kink_key(argument: Term, work: Work) -> tuple[Term, bool]:
    """What a kink's argument is up to a positive factor and the sign, and whether the sign was turned."""
    work.spend(price(argument))
    key = sp.factor_terms(sp.together(argument))
    key = sp.Mul(*(f for f in sp.Mul.make_args(key) if not f.is_positive)).primitive()[1]
    flip = bool(key.could_extract_minus_sign())
    return (-key if flip else key), flip


def _known_sign(x: Term) -> int | None:
    if x.is_positive:
        return 1
    if x.is_negative:
        return -1
    return 0 if x.is_zero else None


def has_comparison(*expressions: Expr) -> bool:
    ops = COMPARISONS | {Op.SIGN}
    return any(isinstance(n, Apply) and n.op in ops for e in expressions for n in nodes(e))
