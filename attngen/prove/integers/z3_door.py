"""The one door to z3: IR expressions as formulas over the integers and the reals, and questions in three values.

Takes expressions, returns z3 terms inside one `SolverContext`, which knows what holds of sizes, indices and params
(the `where`s and `assume`s). Floor division and modulo by a divisor that is not a constant are described by the laws
that follow from `a = c * quotient + remainder`, so that most questions stay linear; where that leaves a doubt, by the
product itself.

Ints are unbounded here: that the kernel's own fit is the obligation `integer-width`. Floats are reals, and functions
such as exp are uninterpreted: what z3 shows holds whatever they are.
"""

# z3 carries no types; this module is where they end.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingTypeStubs=false, reportMissingTypeArgument=false

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, assert_never

import z3

from attngen.errors import InternalError
from attngen.ir.attention import Attention, Param
from attngen.ir.axes import expressions
from attngen.ir.nodes import Apply, Expr, Literal, Load, Op, Scalar, Storage, Symbol, Type
from attngen.ir.walk import children, symbols
from attngen.prove.budget.watchdog import OutOfTime
from attngen.prove.budget.work import Work, out_of_work
from attngen.prove.integers.answers import Answer, Fails, Holds, Open, Term, element_name
from attngen.prove.integers.quotient_laws import Quotient, laws, products

_LINEAR_STEPS = 60
"""Steps of the older solver of linear arithmetic in the time of one step of the others."""
_SECOND_LOOK = 50_000
"""Units at least, at effort 1, for a question that is asked again with the products themselves."""
_LEAST = 1_000
"""Steps that every question may take: most are settled in fewer."""
_MOST = 2**32 - 2
"""z3 takes no greater number; one more means no limit."""


_WIDTHS = (8, 16, 24, 31)
"""Of ints in two's complement, without the sign."""


class SolverContext:
    """Everything that questions about one attention share."""

    def __init__(self, attention: Attention | None = None, *, zeros: bool = True):
        """Without an attention nothing is known but what is said. `zeros`: an element outside its tensor reads 0, or
        false; without, it may be anything."""
        self._zeros = zeros
        self.params: dict[str, Param] = {p.name: p for p in attention.params} if attention else {}
        self._sizes = attention.sizes if attention else ()
        self._context = z3.Context()
        self._terms: dict[tuple[Expr, tuple[tuple[str, int], ...]], Term] = {}
        self._names: dict[str, Term] = {}
        self._quotients: list[Quotient] = []
        self._facts: list[Term] = []
        self.queries = 0
        self._reads_groups = attention is not None and any("Hkv" in symbols(e) for e in expressions(attention))
        for fact in attention.assumes if attention else ():
            self._facts.append(self.term(fact))
        for param in self.params.values():
            if param.is_scalar and param.where is not None:
                self._facts.append(self.term(param.where))

    # ------------------------------------------------------------ terms

    def integer(self, name: str) -> Term:
        """The int of that name; sizes and indices come with what the language says of them."""
        found = self._names.get(name)
        if found is None:
            found = self._names[name] = z3.Int(name, self._context)
            self._tell(name, found)
        return found

    def _tell(self, name: str, term: Term) -> None:
        match name:
            case "b" | "h" | "hkv" | "q" | "k":
                size = {"b": "B", "h": "Hq", "hkv": "Hkv", "q": "Sq", "k": "Sk"}[name]
                self._facts += [term >= 0, term < self.integer(size)]
                if name == "hkv":
                    self._tell_group(term)
            case "Hq":
                shared = self.integer("Hkv")  # heads come in equal groups
                self._facts += [term >= 1, term >= shared]
                if self._reads_groups:  # a remainder by a variable is dear
                    self._facts.append(term % shared == 0)
            case _ if name in ("B", "Hkv", "Sq", "Sk", "D", "Dv") or name in self._sizes:
                self._facts.append(term >= 1)
            case _:
                pass

    def _tell_group(self, shared: Term) -> None:
        """What `hkv` is to `h`: with the size of a group, whose products are dear, only where the spec reads `Hkv`."""
        head = self.integer("h")
        self._facts.append(shared <= head)
        if self._reads_groups:
            size = self.integer("Hq") / self.integer("Hkv")
            self._facts += [size >= 1, shared * size <= head, head < (shared + 1) * size]

    def term(self, e: Expr, at: Mapping[str, Term] | None = None) -> Term:
        """`e` as a z3 term; `at` gives terms for symbols by name."""
        at = at or {}
        key = (e, tuple(sorted((name, t.get_id()) for name, t in at.items() if name in symbols(e))))
        found = self._terms.get(key)
        if found is None:
            found = self._terms[key] = self._term(e, at)
        return found

    def _term(self, e: Expr, at: Mapping[str, Term]) -> Term:
        match e:
            case Literal():
                return self._literal(e)
            case Symbol():
                if e.id in at:
                    return at[e.id]
                if e.type is Type.INT:
                    return self.integer(e.id)
                return self._constant(e.id, e.type)
            case Scalar():
                return self._constant(f"param {e.param}", e.type)
            case Load():
                return self._load(e, at)
            case Apply():
                return self._apply(e, [self.term(a, at) for a in e.args])
            case _:
                assert_never(e)

    def _literal(self, e: Literal) -> Term:
        match e.type:
            case Type.BOOL:
                return z3.BoolVal(bool(e.value), self._context)
            case Type.INT:
                return z3.IntVal(int(e.value), self._context)
            case Type.FLOAT:
                if e.value in (float("inf"), float("-inf")):
                    return self._constant(f"{e.value}", Type.FLOAT)  # any real: more than is so, hence sound
                return z3.RealVal(repr(e.value), self._context)

    def _constant(self, name: str, type: Type) -> Term:
        found = self._names.get(name)
        if found is None:
            make = {Type.BOOL: z3.Bool, Type.INT: z3.Int, Type.FLOAT: z3.Real}[type]
            found = self._names[name] = make(name, self._context)
        return found

    def _load(self, e: Load, at: Mapping[str, Term]) -> Term:
        param = self.params[e.param]
        parts = [self.term(i, at) for i in children(e)]
        kind = "param" if e.member is None else "list"
        element = self._function(f"{kind} {e.param}", [self._sort(Type.INT)] * len(parts), e.type)(*parts)
        if e.member is not None:  # true or false: nothing is known of what a list holds
            if not (self._zeros or at):
                self._names[element_name(e)] = element
            return element
        inside = [z3.And(i >= 0, i < self.term(d)) for i, d in zip(parts, param.shape, strict=True)]
        if param.storage is not Storage.INT and param.storage.ends is not None:
            low, high = param.storage.ends
            self._facts.append(z3.And(element >= low, element <= high))
        if param.where is not None:
            fact = self._where(param, element)
            self._facts.append(z3.Implies(z3.And(inside), fact))
        if not self._zeros:
            if not at:
                self._names[element_name(e)] = element
            return element
        nothing = {Type.BOOL: False, Type.INT: 0, Type.FLOAT: 0}[e.type]
        return z3.If(z3.And(inside), element, self._sort(e.type).cast(nothing))

    def show(self, e: Load) -> None:
        """Has answers give this element's value, too."""
        self._names[element_name(e)] = self.term(e)

    def _where(self, param: Param, element: Term) -> Term:
        assert param.where is not None
        name = f"param {param.name}"
        kept = self._names.get(name)
        self._names[name] = element
        fact = self._term_afresh(param.where)
        if kept is None:
            del self._names[name]
        else:
            self._names[name] = kept
        return fact

    def _term_afresh(self, e: Expr) -> Term:
        kept, self._terms = self._terms, {}
        try:
            return self.term(e)
        finally:
            self._terms = kept

    def _sort(self, type: Type) -> Any:
        return {Type.BOOL: z3.BoolSort, Type.INT: z3.IntSort, Type.FLOAT: z3.RealSort}[type](self._context)

    def _function(self, name: str, sorts: list[Any], type: Type) -> Any:
        return z3.Function(name, *sorts, self._sort(type))

    def _apply(self, e: Apply, args: list[Term]) -> Term:
        a = args[0]
        b = args[1] if len(args) > 1 else a
        match e.op:
            case Op.ADD:
                return a + b
            case Op.SUB:
                return a - b
            case Op.MUL:
                return self._product(a, b)
            case Op.DIV:
                return a / b
            case Op.FLOORDIV:
                return self.floor_divided(a, b)
            case Op.MOD:
                if z3.is_int_value(b) and b.as_long() > 0:
                    return a % b
                quotient = self._quotient(a, b)
                return a - quotient.multiple
            case Op.POW:
                exponent = e.args[1]
                if isinstance(exponent, Literal) and 0 <= exponent.value <= 8:
                    product = self._sort(e.type).cast(1)
                    for _ in range(int(exponent.value)):
                        product = product * a
                    return product
                return self._opaque(e, args)
            case Op.NEG:
                return -a
            case Op.ABS:
                return z3.If(a >= 0, a, -a)
            case Op.SIGN:
                return z3.If(a > 0, self._sort(e.type).cast(1), z3.If(a < 0, self._sort(e.type).cast(-1), a - a))
            case Op.MIN:
                return z3.If(a <= b, a, b)
            case Op.MAX:
                return z3.If(a >= b, a, b)
            case Op.LT:
                return a < b
            case Op.LE:
                return a <= b
            case Op.EQ:
                return a == b
            case Op.NE:
                return a != b
            case Op.NOT:
                return z3.Not(a)
            case Op.AND:
                return z3.And(*args)
            case Op.OR:
                return z3.Or(*args)
            case Op.SELECT:
                return z3.If(a, b, args[2])
            case Op.TO_FLOAT:
                one, zero = z3.RealVal(1, self._context), z3.RealVal(0, self._context)
                return z3.If(a, one, zero) if e.args[0].type is Type.BOOL else z3.ToReal(a)
            case Op.TO_INT:
                if e.args[0].type is Type.BOOL:
                    return z3.If(a, z3.IntVal(1, self._context), z3.IntVal(0, self._context))
                return z3.If(a >= 0, z3.ToInt(a), -z3.ToInt(-a))
            case Op.FLOOR:
                return z3.ToInt(a)
            case Op.CEIL:
                return -z3.ToInt(-a)
            case (
                Op.EXP
                | Op.EXP2
                | Op.LOG
                | Op.LOG2
                | Op.SQRT
                | Op.RSQRT
                | Op.TANH
                | Op.SIGMOID
                | Op.SIN
                | Op.COS
                | Op.ERF
            ):
                return self._opaque(e, args)
            case Op.SHIFT_RIGHT | Op.BIT_AND | Op.BIT_OR | Op.BIT_XOR:
                return self._bits(e, a, b)
            case _:
                assert_never(e.op)

    def _opaque(self, e: Apply, args: list[Term]) -> Term:
        return self._function(f"op {e.op.value}", [t.sort() for t in args], e.type)(*args)

    def _bits(self, e: Apply, a: Term, b: Term) -> Term:
        """An operation on bits, of which its sign and its size are known alone."""
        bits = self._opaque(e, [a, b])
        neither = z3.And(a >= 0, b >= 0)
        match e.op:
            case Op.SHIFT_RIGHT:
                toward_zero = z3.If(a >= 0, z3.And(bits >= 0, bits <= a), z3.And(bits < 0, bits >= a))
                self._facts.append(z3.Implies(b >= 0, toward_zero))
            case Op.BIT_AND:
                self._facts += [z3.Implies(x >= 0, z3.And(bits >= 0, bits <= x)) for x in (a, b)]
            case _:
                self._facts.append(z3.Implies(neither, z3.And(bits >= 0, bits <= a + b)))
        if e.op is not Op.SHIFT_RIGHT:
            given = {int(x.value).bit_length() for x in e.args if isinstance(x, Literal)}
            for width in sorted({*_WIDTHS, *given}):  # what both hold in so many bits, the result does
                short = [z3.And(x >= -(2**width), x < 2**width) for x in (a, b, bits)]
                self._facts.append(z3.Implies(z3.And(*short[:2]), short[2]))
        return bits

    # ------------------------------------------------------------ floor division

    def floor_divided(self, a: Term, c: Term) -> Term:
        """floor(a / c)."""
        if z3.is_int_value(c) and c.as_long() != 0:
            return a / c if c.as_long() > 0 else (-a) / (-c)  # z3's own `div` floors where the divisor is positive
        return self._quotient(a, c).value

    def _product(self, a: Term, b: Term) -> Term:
        for x, y in ((a, b), (b, a)):
            for quotient in self._quotients:
                if quotient.value.eq(x) and quotient.divisor.eq(y):
                    return quotient.multiple
        return a * b

    def _quotient(self, a: Term, c: Term) -> Quotient:
        for found in self._quotients:
            if found.number.eq(a) and found.divisor.eq(c):
                return found
        number = len(self._quotients)
        made = Quotient(a, c, z3.Int(f"quotient {number}", self._context), z3.Int(f"multiple {number}", self._context))
        self._quotients.append(made)
        return made

    # ------------------------------------------------------------ logic, for those who state claims

    def all_of(self, terms: Iterable[Term]) -> Term:
        return z3.And(*terms, self._true())

    def any_of(self, terms: Iterable[Term]) -> Term:
        return z3.Or(*terms, z3.Not(self._true()))

    def every(self, *terms: Term) -> Term:
        return z3.And(*terms)

    def implies(self, a: Term, b: Term) -> Term:
        return z3.Implies(a, b)

    def choose(self, condition: Term, then: Term, otherwise: Term) -> Term:
        return z3.If(condition, then, otherwise)

    def number(self, value: int) -> Term:
        return z3.IntVal(value, self._context)

    def count(self, terms: Iterable[Term]) -> Term:
        """How many hold."""
        one, zero = self.number(1), self.number(0)
        return z3.Sum([z3.If(t, one, zero) for t in terms] or [zero])

    def free(self, name: str) -> Term:
        """The int of that name, of which the language says nothing; to be asked for before `integer` is."""
        return self.unknown(name, Type.INT)

    def unknown(self, name: str, type: Type) -> Term:
        """A value of that name, of which nothing is known."""
        return self._constant(name, type)

    def _true(self) -> Term:
        return z3.BoolVal(True, self._context)

    # ------------------------------------------------------------ questions

    def ask(self, premises: Iterable[Term], conclusion: Term, work: Work) -> Answer:
        """Whether the conclusion follows from the premises and the facts of this context, with so much work."""
        self.queries += 1
        given = list(premises)
        doubted = [*given, z3.Not(conclusion), *self._facts, *laws(self._quotients, self)]
        linear = self._check(doubted, work)
        if not self._quotients or isinstance(linear, Holds):
            return linear
        return self._check([*doubted, *products(self._quotients, self)], work, int(_SECOND_LOOK * work.effort))

    def possible(self, work: Work) -> Answer:
        """`Fails`, with values, if all facts can hold together, an element of each tensor having its own `where`;
        `Holds` if they exclude each other."""
        tensors = [p for p in self.params.values() if not p.is_scalar and p.where is not None]
        elements = [self._where(p, self._constant(f"an element of {p.name}", p.type)) for p in tensors]
        return self.ask(elements, z3.Not(self._true()), work)

    def ask_linear(self, premises: Iterable[Term], conclusion: Term, work: Work) -> Answer:
        """`ask` for formulas of linear arithmetic over ints, by the solver that is fastest on these.

        The premises are all that it is told: the facts of this context may speak of floats.
        """
        self.queries += 1
        solver = z3.SolverFor("QF_LIA", ctx=self._context)
        solver.set("smt.arith.solver", 2)
        return self._checked(solver, [*premises, z3.Not(conclusion)], work, steps=_LINEAR_STEPS)

    def ask_core(self, premises: Iterable[Term], conclusion: Term, work: Work) -> Answer:
        """`ask`, by z3's core alone first: it shows some products of unknowns in a third of the time of the tactics."""
        given = list(premises)
        doubted = [*given, z3.Not(conclusion), *self._facts]
        answer = self._checked(z3.SimpleSolver(ctx=self._context), doubted, work.part(_SECOND_LOOK))
        return answer if isinstance(answer, Holds) else self.ask(given, conclusion, work)

    def _check(self, formulas: list[Term], work: Work, least: int = 0) -> Answer:
        return self._checked(z3.Solver(ctx=self._context), formulas, work, least)

    def _checked(self, solver: Any, formulas: list[Term], work: Work, least: int = 0, *, steps: int = 1) -> Answer:
        """`steps` are those of this solver in one unit. z3 counts them for each check alone, though it reports the sum
        over all checks of a context."""
        limit = max(_LEAST, work.left * steps, least * steps)
        solver.set("rlimit", min(limit, _MOST))
        solver.set("timeout", min(max(1, int(work.clock.left * 1000)), _MOST))
        solver.set("random_seed", 1)
        solver.add(*formulas)
        before = _steps_of(solver)
        result = solver.check()
        taken = _steps_of(solver) - before
        work.charge(-(-taken // steps))
        if result == z3.unsat:
            return Holds()
        if result == z3.sat:
            return Fails(self._values(solver.model()))
        if taken >= limit:
            return Open(out_of_work(work.effort))
        return Open(str(solver.reason_unknown()) if work.clock.left else OutOfTime.reason)

    def _values(self, model: Any) -> dict[str, int | float | bool]:
        found: dict[str, int | float | bool] = {}
        for name, term in self._names.items():
            value = model.eval(term, model_completion=True)
            found[name.removeprefix("param ")] = _plain(value)
        return found


def _steps_of(solver: Any) -> int:
    """The steps that the solver's context has taken so far."""
    return next((int(value) for name, value in solver.statistics() if name == "rlimit count"), 0)


def _plain(value: Any) -> int | float | bool:
    if z3.is_int_value(value):
        return int(value.as_long())
    if z3.is_rational_value(value):
        return float(value.as_fraction())
    if z3.is_algebraic_value(value):
        return float(value.approx(10).as_fraction())
    if z3.is_true(value) or z3.is_false(value):
        return bool(z3.is_true(value))
    raise InternalError(f"z3 gave the value {value}")
