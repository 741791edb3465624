"""How wide a kernel's ints are: which operations need more than 32 bits, and how long sequences may be for them to fit.

Takes expressions and facts, returns the sums, differences, products, powers, opposites and quotients that may leave 32
bits, and the length that sequences must stay below. Magnitudes only, from constants upwards: positions and sizes are
below that length (the launcher refuses longer sequences), params and their elements any 32-bit number unless a `where`
says less. That everything fits is a claim for the prover.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from enum import StrEnum

from attngen.ir.build import integer
from attngen.ir.nodes import Apply, Expr, Literal, Load, Op, Scalar, Symbol, Type
from attngen.ir.walk import children, nodes
from attngen.plan.ints.divisions import is_division, may_be_minus_one
from attngen.plan.ints.facts import Facts

MOST_BITS = 27
"""Sequences are shorter than 2**MOST_BITS, whatever the variant."""

_FEWEST_BITS = 10
"""A limit below 2**10 would be no use: then the prover refuses the file."""


LARGEST_TILE = 512
"""Positions of a tile, at most."""

FARTHEST = 2**34
"""A position in 64 bits that gives a number of tiles in 32, the least tile being 16."""


class WideInts(StrEnum):
    """What a target does where an int leaves 32 bits: it has 64, or it stays at the end of the 32."""

    BITS_64 = "64 bits"
    SATURATE = "saturating"


def longest(expressions: Iterable[Expr], facts: Facts, ints: WideInts) -> int:
    """The power of two that sequences stay below, so that whatever is computed of positions and sizes alone fits.

    An index may saturate: no tensor has an element so far out. Where params without bounds take part it is left open.
    """
    saturates = ints is WideInts.SATURATE
    limit = 2.0**31 if saturates else 2.0**63
    roots = tuple(expressions)
    counted = [e for e in _outside_indices(roots) if _widens(e) and _is_bounded(e, facts, saturates)]
    # What becomes a float has to be exact. Elsewhere what saturates may do so by a large param.
    floats = [n.args[0] for root in roots for n in nodes(root) if isinstance(n, Apply) and n.op is Op.TO_FLOAT]
    counted += [e for e in _outside_indices(floats) if _widens(e) and _total(e, facts, 2**_FEWEST_BITS) < limit]
    for bits in range(MOST_BITS, _FEWEST_BITS - 1, -1):
        if all(_total(e, facts, 2**bits) < limit for e in counted):
            return 2**bits
    return 2**MOST_BITS


def wide(expressions: Iterable[Expr], facts: Facts, safe: Facts, below: int) -> tuple[Apply, ...]:
    """The int operations that may leave 32 bits, each once, in a stable order; sequences are shorter than `below`.

    `safe` are the facts that may be relied on inside an index.
    """
    roots = tuple(expressions)
    in_index = {
        id(n)
        for root in roots
        for load in nodes(root)
        if isinstance(load, Load)
        for i in load.indices
        for n in nodes(i)
    }
    found: dict[Apply, None] = {}
    for root in roots:
        for node in nodes(root):
            if not (isinstance(node, Apply) and (_widens(node) or is_division(node))) or _turns_bits_over(node):
                continue
            if _total(node, safe if id(node) in in_index else facts, below) >= 2.0**31:
                found[node] = None
    return tuple(found)


def fits(e: Expr, facts: Facts) -> bool:
    """Whether 64 bits hold all of it, whatever the params and for every length that may be launched."""
    operations = (n for n in nodes(e) if isinstance(n, Apply) and _widens(n))
    return all(_total(n, facts, 2**MOST_BITS) < 2.0**63 for n in operations)


def rounds(e: Expr, facts: Facts, *, below_size: bool) -> bool:
    """Whether an end of a stretch can be rounded to tiles as it is: up to a tile in its own width, then the number of
    tiles in 32 bits. `below_size`: it is no larger than a sequence."""
    largest = _magnitude(e, facts, 2**MOST_BITS)
    in_32_bits = largest <= 2.0**31 - (0 if below_size else LARGEST_TILE)
    return in_32_bits or 2.0**31 < largest <= FARTHEST


def _turns_bits_over(e: Apply) -> bool:
    """-1 - x, which 32 bits hold for every x that they hold."""
    return e.op is Op.SUB and e.args[0] == integer(-1) and isinstance(e.args[1], Scalar | Load)


def _widens(e: Apply) -> bool:
    return e.type is Type.INT and e.op in (Op.ADD, Op.SUB, Op.MUL, Op.NEG, Op.ABS, Op.POW)


def _outside_indices(roots: Iterable[Expr]) -> Iterator[Apply]:
    seen: set[int] = set()
    waiting = list(roots)
    while waiting:
        e = waiting.pop()
        if id(e) not in seen and not isinstance(e, Load):
            seen.add(id(e))
            waiting += children(e)
            if isinstance(e, Apply):
                yield e


def _is_bounded(e: Expr, facts: Facts, saturates: bool) -> bool:
    """Whether the length of sequences alone decides how large `e` gets."""
    params = [n for n in nodes(e) if isinstance(n, Scalar | Load)]
    return not params or not (saturates or any(None in facts.bounds(p) for p in params))


def _total(e: Apply, facts: Facts, below: int) -> float:
    """The largest absolute value that the operation itself can give."""
    known = [_magnitude(a, facts, below) for a in e.args]
    match e.op:
        case Op.MUL:
            for quotient, other in (e.args, e.args[::-1]):
                match quotient:
                    case Apply(op=Op.FLOORDIV, args=(number, divisor)) if divisor == other:
                        return _magnitude(number, facts, below) + _magnitude(divisor, facts, below)
                    case _:
                        pass
            return known[0] * known[1]
        case Op.FLOORDIV | Op.MOD:
            # What the printed form needs: the quotient, and the divisor if it is a constant.
            quotient = known[0] if may_be_minus_one(e.args[1], facts) else 0.0
            return max(quotient, known[1] if isinstance(e.args[1], Literal) else 0.0)
        case Op.POW:
            power = e.args[1]
            if not isinstance(power, Literal):
                high = facts.bounds(power)[1]
                return _power(known[0], 63.0 if high is None else high)
            return _power(known[0], float(power.value))
        case _:
            return sum(known)


def _power(base: float, exponent: float) -> float:
    return 1.0 if base <= 1.0 else 2.0 ** min(64.0, math.log2(base) * exponent)


def _magnitude(e: Expr, facts: Facts, below: int) -> float:
    """The largest absolute value that an int expression can have."""
    match e:
        case Literal():
            return abs(float(e.value))
        case Symbol():
            return float(below)
        case Scalar() | Load():
            low, high = facts.bounds(e)
            return 2.0**31 if low is None or high is None else max(abs(low), abs(high))
        case Apply(op=Op.FLOORDIV, args=(a, Literal(value=c))) if c > 0:
            return math.floor(_magnitude(a, facts, below) / c) + 1.0
        case Apply(op=Op.FLOORDIV, args=(a, _)):
            return _magnitude(a, facts, below)
        case Apply(op=Op.MOD, args=(a, c)):
            plain = facts.is_nonnegative(a) and facts.is_positive(c)
            # Nearer to 0 than the divisor.
            return min(_magnitude(c, facts, below) - 1, _magnitude(a, facts, below) if plain else math.inf)
        case Apply(op=Op.SHIFT_RIGHT, args=(a, _)):
            return _magnitude(a, facts, below)
        case Apply(op=Op.BIT_AND | Op.BIT_OR | Op.BIT_XOR):
            largest = max(_magnitude(a, facts, below) for a in e.args)
            return 2.0 ** math.ceil(math.log2(largest + 1.0))
        case Apply(op=Op.MIN | Op.MAX | Op.SELECT):
            return max(_magnitude(a, facts, below) for a in e.args if a.type is Type.INT)
        case Apply() if _widens(e):
            return min(_total(e, facts, below), 2.0**64)
        case Apply(op=Op.TO_INT) if e.args[0].type is Type.BOOL:
            return 1.0
        case Apply(op=Op.SIGN):
            return 1.0
        case _:
            return 2.0**31
