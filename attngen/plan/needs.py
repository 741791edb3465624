"""What a call's sizes must be for a read to be inside its tensor: `Need`, and the comparisons worth trying for it.

Takes an index and the dim that it must stay below, returns comparisons of sizes, the simplest first. They come from the
index with each position replaced by its first or last value; `obligations.reads` shows which of them suffices.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from attngen.ir import build
from attngen.ir.build import add, integer, sub
from attngen.ir.nodes import INDICES, SIZES, Apply, Expr, Literal, Op, Symbol, Type
from attngen.ir.printing import expression
from attngen.ir.walk import nodes, reads, substitute, symbols
from attngen.plan.ints.linear import from_linear, linear

LENGTHS = {"q": "Sq", "k": "Sk", "b": "B", "h": "Hq", "hkv": "Hkv"}
"""An index of the language runs from 0 to below this size."""

_SQ, _SK = build.index("Sq"), build.index("Sk")
_ALIGNED = (build.apply(Op.LE, _SQ, _SK), build.apply(Op.LE, _SK, _SQ))


@dataclass(frozen=True, slots=True)
class Need:
    """A comparison of sizes that every call checks: with it a read is inside its tensor for each allowed pair.

    `own` has the file's names of sizes, `condition` the plan's; `sizes` holds both, the file's first.
    """

    own: Expr
    condition: Expr
    sizes: tuple[tuple[str, str], ...]

    @property
    def text(self) -> str:
        return expression(self.own)


def need(own: Expr, renamed: Mapping[str, str]) -> Need:
    """`own` is over the file's sizes; `renamed` has the plan's names for those that it calls otherwise."""
    planned: dict[Expr, Expr] = {build.index(a): build.index(b) for a, b in renamed.items()}
    sizes = tuple((name, renamed.get(name, name)) for name in sorted(symbols(own), key=_in_order))
    return Need(own, substitute(own, planned), sizes)


def _in_order(size: str) -> tuple[int, str]:
    return (SIZES.index(size) if size in SIZES else len(SIZES), size)


def candidates(index: Expr, dim: Expr) -> tuple[Expr, ...]:
    """Comparisons of sizes, each of which may make `0 <= index < dim` true for every allowed pair.

    A comparison of two sizes comes before one of a size with a number: where `Sq <= Sk` keeps an index inside because
    of the mask, a limit on the length would be true as well, and no use.
    """
    high = extreme(index, largest=True)
    low = extreme(index, largest=False)
    found: list[Expr] = []
    if high is not None:
        found += not_negative(sub(sub(dim, integer(1)), high))
    if low is not None:
        # Where no size makes an index larger, only ever shorter sequences would keep it from being negative.
        found += [c for c in not_negative(low) if symbols(c.args[1])]
    exact = [c for c in found if len(symbols(c)) > 1 and not _has_extremes(c)]
    return tuple(dict.fromkeys([*exact, *_ALIGNED, *sorted(found, key=_has_extremes)]))


def not_negative(e: Expr) -> Iterator[Apply]:
    """`0 <= e` as a comparison with its sizes apart; nothing where it is no question of sizes."""
    terms, constant = linear(e)
    if not terms:
        return
    left = from_linear([(t, -c) for t, c in terms if c < 0], max(-constant, 0))
    right = from_linear([(t, c) for t, c in terms if c > 0], max(constant, 0))
    if constant == -1 and any(c < 0 for _, c in terms):
        yield Apply(Op.LT, (from_linear([(t, -c) for t, c in terms if c < 0], 0), right), Type.BOOL)
    else:
        yield Apply(Op.LE, (left, right), Type.BOOL)


def extreme(e: Expr, *, largest: bool) -> Expr | None:
    """A value over sizes that `e` never goes beyond; None where params take part, or the form says nothing.

    Of the arguments of a `min` the largest value is that of the ones without positions, if there are any: they were
    written to bound the others. Likewise the least value of a `max`.
    """
    terms, constant = linear(e)
    if terms != [(e, 1)]:
        total: Expr = integer(0)
        for term, factor in terms:
            own = extreme(term, largest=largest == (factor > 0))
            if own is None:
                return None
            total = add(total, build.mul(integer(factor), own))
        return add(total, integer(constant))
    match e:
        case Symbol() if e.id in LENGTHS:
            return sub(build.index(LENGTHS[e.id]), integer(1)) if largest else integer(0)
        case Symbol():
            return e
        case Apply(op=Op.MUL, args=(a, b)) if any(isinstance(x, Symbol) and x.id not in LENGTHS for x in (a, b)):
            number, size = (b, a) if isinstance(a, Symbol) and a.id not in LENGTHS else (a, b)
            own = extreme(number, largest=largest)
            return None if own is None else build.mul(own, size)
        case Apply(op=Op.FLOORDIV, args=(a, Literal() as c)) if c.value > 0:
            own = extreme(a, largest=largest)
            return None if own is None else build.floordiv(own, c)
        case Apply(op=Op.MOD, args=(_, c)) if not reads(c, *INDICES) and not _reads_params(c):
            return sub(c, integer(1)) if largest else integer(0)
        case Apply(op=Op.MIN | Op.MAX):
            outermost = (e.op is Op.MAX) == largest
            bounding = e.args if outermost else tuple(a for a in e.args if not reads(a, *INDICES)) or e.args
            return _outermost(e.op, [extreme(a, largest=largest) for a in bounding])
        case Apply(op=Op.SELECT, args=(_, yes, no)):
            return _outermost(Op.MAX if largest else Op.MIN, [extreme(a, largest=largest) for a in (yes, no)])
        case Apply(op=Op.ABS, args=(a,)):
            if not largest:
                return integer(0)
            least = extreme(a, largest=False)
            return _outermost(Op.MAX, [extreme(a, largest=True), None if least is None else build.neg(least)])
        case Apply(op=Op.TO_INT, args=(a,)) if a.type is Type.BOOL:
            return integer(int(largest))
        case _:
            return None


def _outermost(op: Op, values: list[Expr | None]) -> Expr | None:
    known = [v for v in values if v is not None]
    if len(known) < len(values):
        return None
    found = known[0]
    for value in known[1:]:
        found = build.apply(op, found, value)
    return found


def _has_extremes(e: Expr) -> bool:
    return any(isinstance(n, Apply) and n.op in (Op.MIN, Op.MAX) for n in nodes(e))


def _reads_params(e: Expr) -> bool:
    return any(not isinstance(n, Literal | Symbol | Apply) for n in nodes(e))


def joined(needs: list[Expr]) -> tuple[Expr, ...]:
    """Each once; `a <= b` and `b <= a` as `a == b`."""
    found: list[Expr] = []
    for need in dict.fromkeys(needs):
        a, b = need.args if isinstance(need, Apply) else (need, need)
        other = Apply(Op.LE, (b, a), Type.BOOL)
        if isinstance(need, Apply) and need.op is Op.LE and other in found:
            pair = (_SQ, _SK) if {a, b} == {_SQ, _SK} else (b, a)
            found[found.index(other)] = Apply(Op.EQ, pair, Type.BOOL)
        else:
            found.append(need)
    return tuple(found)
