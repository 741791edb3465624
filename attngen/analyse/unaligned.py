"""Where a spec relates queries to keys without aligning them: with a cache, its last query is at q = 0.

Takes an attention, returns a note for each place. Among the keys, query q is at the position `q + Sk - Sq`. What reads
q through that alone keeps its value if q and Sq grow by the same number; it is called aligned here. A place is
reported if a comparison or a difference has q and k on its two sides, or if one param is read at q and at k, and q is
not aligned there. `q < 4` relates nothing, nor does `bias[h, q, k]` of a `bias: f32[Hq, Sq, Sk]`: the call passes the
rows of its own queries.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from attngen.errors import NOWHERE, Diagnostic, Source, Span
from attngen.ir import printing, walk
from attngen.ir.attention import Attention
from attngen.ir.build import add, index, integer, sub
from attngen.ir.nodes import COMPARISONS, SIZES, Apply, Expr, Literal, Load, Op, Symbol, Type

_Q, _K, _SQ, _SK = (index(name) for name in ("q", "k", "Sq", "Sk"))
_POSITION = sub(add(_Q, _SK), _SQ)
_LONGEST_QUOTE = 80


def unaligned(attention: Attention, source: Source | None = None) -> tuple[Diagnostic, ...]:
    """What the mask and the score relate without `+ Sk - Sq`, in the order of the text, each with a fix.

    Empty if the spec says `assume Sq == Sk`.
    """
    if any(_says_equal(fact) for fact in attention.assumes):
        return ()
    search = _Search(attention, source)
    for e in (attention.mask, attention.score):
        search.visit(e, e.span)
    return tuple(note for _, note in sorted(search.notes.items()))


# ---------------------------------------------------------------- sums


@dataclass(frozen=True, slots=True)
class _Term:
    """What a sum adds up: an expression, and what it is multiplied with or divided by, constants apart."""

    e: Expr
    factors: tuple[tuple[Op, Expr], ...] = ()


_Sum: TypeAlias = Mapping[_Term, float]
"""How often a sum counts each of its terms."""

_ONE = integer(1)


def _terms(e: Expr) -> _Sum:
    """The sum that `e` is; of a comparison, its left side less its right. What is no sum is its own only term."""
    sums: dict[_Term, float] = {}
    compared = _compared(e)
    for side, sign in zip(compared or (e,), (1, -1), strict=False):
        for term, count in _parts(side, sign):
            sums[term] = sums.get(term, 0) + count
    return {term: count for term, count in sums.items() if count != 0}


def _parts(e: Expr, count: float, factors: tuple[tuple[Op, Expr], ...] = ()) -> Iterator[tuple[_Term, float]]:
    """Floats that were ints are the same sum as the ints."""
    match e:
        case Literal(value=value, type=Type.INT | Type.FLOAT):
            yield _Term(_ONE, factors), count * value
        case Apply(op=Op.ADD | Op.SUB, args=(a, b)):
            yield from _parts(a, count, factors)
            yield from _parts(b, count if e.op is Op.ADD else -count, factors)
        case Apply(op=Op.NEG, args=(a,)):
            yield from _parts(a, -count, factors)
        case Apply(op=Op.TO_FLOAT, args=(a,)) if a.type is Type.INT:
            yield from _parts(a, count, factors)
        case Apply(op=Op.MUL, args=(Literal(value=value), a)) | Apply(op=Op.MUL, args=(a, Literal(value=value))):
            yield from _parts(a, count * value, factors)
        case Apply(op=Op.MUL, args=(a, b)) if not walk.reads(a, "q", "k"):
            yield from _parts(b, count, (*factors, (Op.MUL, a)))
        case Apply(op=Op.MUL | Op.DIV, args=(a, b)) if not walk.reads(b, "q", "k"):
            yield from _parts(a, count, (*factors, (e.op, b)))
        case _:
            yield _Term(e, factors), count


def _compared(e: Expr) -> tuple[Expr, ...]:
    """The two sides of a comparison; nothing for other expressions."""
    return e.args if isinstance(e, Apply) and e.op in COMPARISONS else ()


def _is_sum(e: Expr, terms: _Sum) -> bool:
    return list(terms) != [_Term(e)]


def _says_equal(fact: Expr) -> bool:
    if isinstance(fact, Apply) and fact.op is Op.AND:
        return any(_says_equal(part) for part in fact.args)
    if not (isinstance(fact, Apply) and fact.op is Op.EQ):
        return False
    terms = _terms(fact)
    return set(terms) == {_Term(_SQ), _Term(_SK)} and sum(terms.values()) == 0


# ---------------------------------------------------------------- the search


class _Search:
    """The notes so far, by line and column. Shared subtrees are looked at once."""

    def __init__(self, attention: Attention, source: Source | None) -> None:
        self.notes: dict[tuple[int, int], Diagnostic] = {}
        self._source = source
        self._visited: dict[int, bool] = {}
        self._known_aligned: dict[int, bool] = {}
        self._dims = {p.name: p.shape for p in attention.params}
        loads = [x for e in (attention.mask, attention.score) for x in walk.loads(e)]
        self._dims_of_keys = {dim for x in loads for dim, i in self._axes(x) if _reads_only(i, "k")}
        at_k = {x.param for x in loads if any(_reads_only(i, "k") for i in x.indices)}
        self._at_both = {
            x for x in loads if x.param in at_k and any(_reads_only(i, "q") for i in x.indices) and not self._aligned(x)
        }

    def visit(self, e: Expr, span: Span) -> bool:
        """Whether something in `e` is reported. `span` is that of the expression around it."""
        if id(e) not in self._visited:
            self._visited[id(e)] = self._visit(e, e.span if e.span != NOWHERE else span)
        return self._visited[id(e)]

    def _visit(self, e: Expr, span: Span) -> bool:
        if isinstance(e, Load) and e in self._at_both:
            self._report(e, span)
            return True
        terms = _terms(e)
        parts = [term.e for term in terms] if _is_sum(e, terms) else walk.children(e)
        told = {part for part in parts if self.visit(part, span)}
        if not told and self._relates(e, terms):
            self._report(*self._least(e, span))
            return True
        return bool(told)

    def _relates(self, e: Expr, terms: _Sum) -> bool:
        """Whether a comparison or a difference has q, not aligned, and k on its two sides."""
        compares = bool(_compared(e))
        queries = [(t, n) for t, n in terms.items() if walk.reads(t.e, "q") and not self._is_aligned_term(t, terms)]
        keys = [(t, n) for t, n in terms.items() if walk.reads(t.e, "k")]
        return any(
            t != u and (compares or (n * m < 0 and _is_number_of(t.e, "q") and _is_number_of(u.e, "k")))
            for t, n in queries
            for u, m in keys
        )

    def _least(self, e: Expr, span: Span) -> tuple[Expr, Span]:
        """The least part of a comparison or a sum that has the two sides."""
        parts = e.args if isinstance(e, Apply) and e.op in COMPARISONS | _SUMS else ()
        for part in parts:
            if self._relates(part, _terms(part)):
                return self._least(part, part.span if part.span != NOWHERE else span)
        return e, span

    # ------------------------------------------------------------ alignment

    def _aligned(self, e: Expr) -> bool:
        """Whether `e` keeps its value if q and Sq grow by the same number, judging by its sums."""
        if id(e) not in self._known_aligned:
            self._known_aligned[id(e)] = not walk.reads(e, "q", "Sq") or self._keeps_its_value(e)
        return self._known_aligned[id(e)]

    def _keeps_its_value(self, e: Expr) -> bool:
        terms = _terms(e)
        if _is_sum(e, terms):
            return all(self._is_aligned_term(t, terms) for t in terms)
        match e:
            case Load():
                placed = all(self._is_for_queries(dim) or self._aligned(i) for dim, i in self._axes(e))
                return placed and (e.member is None or self._aligned(e.member))
            case Apply():
                return all(self._aligned(a) for a in e.args)
            case _:
                return False

    def _is_aligned_term(self, t: _Term, terms: _Sum) -> bool:
        if not all(self._aligned(factor) for _, factor in t.factors):
            return False
        if t.e in (_Q, _SQ):
            return terms.get(_Term(_Q, t.factors), 0) + terms.get(_Term(_SQ, t.factors), 0) == 0
        return self._aligned(t.e)

    def _axes(self, load: Load) -> Iterator[tuple[Expr, Expr]]:
        """The dims of a tensor, each with the index along it."""
        return zip(self._dims[load.param][: len(load.indices)], load.indices, strict=True)

    def _is_for_queries(self, dim: Expr) -> bool:
        """Whether the call passes the rows of its own queries along this dim."""
        is_fresh = isinstance(dim, Symbol) and dim.id not in SIZES
        return walk.reads(dim, "Sq") or (is_fresh and dim not in self._dims_of_keys)

    # ------------------------------------------------------------ notes

    def _report(self, e: Expr, span: Span) -> None:
        text = printing.expression(e)
        quoted = f"`{text}`" if len(text) <= _LONGEST_QUOTE else "this relation of q and k"
        subject = f"`{e.param}` is read at q and at k" if isinstance(e, Load) else quoted
        message = f"{subject}: with a cache the last query is at q = 0"
        note = Diagnostic("unaligned", message, span, f"{_fix(e)}, or `assume Sq == Sk`", self._source)
        self.notes.setdefault((span.line, span.column), note)


_SUMS = frozenset({Op.ADD, Op.SUB, Op.NEG, Op.TO_FLOAT, Op.MUL, Op.DIV})


def _fix(e: Expr) -> str:
    match e:
        case Load():
            return f"write {printing.expression(walk.substitute(e, {_Q: _POSITION}))}"
        case Apply(op=Op.LE, args=args) if args == (_K, _Q):
            return "write causal"
        case Apply(op=Op.SUB, args=args, name="distance") if args == (_Q, _K):
            return "delete this line, for the prelude has a distance that is q + Sk - Sq - k"
        case Apply(op=Op.SUB, args=args) if args == (_Q, _K):
            return "write distance, which is q + Sk - Sq - k"
        case Apply(op=Op.SUB, args=args) if args == (_K, _Q):
            return "write -distance, which is k - (q + Sk - Sq)"
        case _:
            return "write q + Sk - Sq for q"


def _reads_only(e: Expr, name: str) -> bool:
    """Whether it reads q, or k, and not the other."""
    return walk.reads(e, name) and not walk.reads(e, "k" if name == "q" else "q")


def _is_number_of(e: Expr, name: str) -> bool:
    """Whether a position is a number in `e`, and not only what a condition or a param is read with."""
    match e:
        case Symbol():
            return e.id == name
        case Apply(op=Op.SELECT, args=(_, a, b)):
            return _is_number_of(a, name) or _is_number_of(b, name)
        case Apply() if e.type is not Type.BOOL:
            return any(_is_number_of(a, name) for a in e.args)
        case _:
            return False
