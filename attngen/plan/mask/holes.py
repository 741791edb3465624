"""Whether a tile of queries and a tile of keys can hold an allowed pair, for masks whose tiles have holes between them.

Takes a mask, returns a `TileTest`: a bool over the least and greatest values, in each of the two tiles, of the mask's
parts that one of the two decides (`Part`). False only where the mask allows no pair of theirs. A kernel asks it of
every tile, and looks at the pairs of those that are left (`templates/triton/portable/map.py.j2`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from attngen.ir.build import (
    FALSE,
    TRUE,
    add,
    apply,
    conjunction,
    disjunction,
    index,
    integer,
    maximum,
    minimum,
    neg,
    select,
    sub,
)
from attngen.ir.nodes import Apply, Expr, Literal, Load, Op, Symbol, Type
from attngen.ir.walk import loads, nodes, reads
from attngen.plan.ints.facts import Facts
from attngen.plan.ints.width import fits
from attngen.plan.levels import Level, level_of
from attngen.plan.mask.lists import Lists
from attngen.plan.mask.loops import ZERO, Loops, Run
from attngen.plan.mask.ranges import TileRanges

Bounds = tuple[Expr, Expr]


@dataclass(frozen=True, slots=True)
class Part:
    """`value`, an int which reads no key or no query; `name` begins those of its extremes in a tile."""

    name: str
    value: Expr

    @property
    def of_keys(self) -> bool:
        return reads(self.value, "k")

    @property
    def bounds(self) -> Bounds:
        return Symbol(f"{self.name}_least", self.value.type), Symbol(f"{self.name}_most", self.value.type)

    @property
    def flag(self) -> Expr | None:
        """The bool that the value is the number of, if it is."""
        value = self.value
        of_bool = isinstance(value, Apply) and value.op is Op.TO_INT and value.args[0].type is Type.BOOL
        return value.args[0] if isinstance(value, Apply) and of_bool else None


@dataclass(frozen=True, slots=True)
class TileTest:
    """`can`: some pair may be allowed; `must`: all are. `lists`: which batches and heads may have maps of their own."""

    parts: tuple[Part, ...]
    can: Expr
    must: Expr
    lists: Lists


def tile_test(mask: Expr, facts: Facts) -> TileTest | None:
    """None where a kernel that looks at the pairs may round otherwise than one that attends: of masks that compute with
    floats; and of those that read head dims, which it does not know."""
    rounded = (n for n in nodes(mask) if isinstance(n, Apply) and n.type is Type.FLOAT)
    if any(rounded) or reads(mask, "D", "Dv"):
        return None
    asked = _Asked(facts)
    can, must = asked.condition(mask)
    lists = Lists(reads(mask, "b"), reads(mask, "h", "hkv"), shared=not reads(mask, "h"))
    return TileTest(tuple(asked.parts), can, must, lists)


def map_of(mask: Expr, keys: TileRanges, facts: Facts) -> TileTest | None:
    """The test that makes a map of tiles, where the closed form leaves out a condition, or data that are not the same
    but in an order may leave holes. Where each pair has an element of its own, to look at pairs would be to read them
    all once more; of floats the closed form knows more."""
    if any({index("q"), index("k")} <= {*e.indices} for e in loads(mask)):
        return None
    tests = keys.tests
    if any(t.of_pairs or t.row.type is Type.FLOAT for t in tests) or (keys.solved and all(t.equal for t in tests)):
        return None
    return tile_test(mask, facts)


def named(axis: str) -> Loops:
    """The tiles of `axis` that a map names for one tile: entries of a list, which say whether they need a mask."""
    stop = "any_hi"
    return Loops(axis, (), (), (Run(ZERO, stop),), (), (stop,), (index(stop),))


def sorted_apart(axis: str, lists: Lists) -> Loops:
    """The same, from lists that name first the tiles which need no mask."""
    whole, every = names = ("n_whole", "n_listed")
    return Loops(axis, (), (Run(ZERO, whole),), (Run(whole, every),), (), names, tuple(map(index, names)), lists)


@dataclass
class _Asked:
    facts: Facts
    parts: list[Part] = field(default_factory=list[Part])

    def part(self, e: Expr) -> Bounds:
        for known in self.parts:
            if known.value == e:
                return known.bounds
        self.parts.append(Part(f"test{len(self.parts)}", e))
        return self.parts[-1].bounds

    def condition(self, c: Expr) -> Bounds:
        """(can, must): implied by `c` at some pair of the two tiles, and implying `c` at all of them."""
        if isinstance(c, Literal):
            return c, c
        if level_of(c) is not Level.PAIR:
            least, most = self.part(apply(Op.TO_INT, c))
            return apply(Op.EQ, most, integer(1)), apply(Op.EQ, least, integer(1))
        if isinstance(c, Load):
            return self.element(c)
        if not isinstance(c, Apply):
            return TRUE, FALSE
        match c.op:
            case Op.AND | Op.OR:
                join = conjunction if c.op is Op.AND else disjunction
                found = [self.condition(a) for a in c.args]
                return join(*(can for can, _ in found)), join(*(must for _, must in found))
            case Op.NOT:
                can, must = self.condition(c.args[0])
                return apply(Op.NOT, must), apply(Op.NOT, can)
            case Op.SELECT:
                (can, must), then, otherwise = (self.condition(a) for a in c.args)
                never = apply(Op.NOT, can)
                return (
                    disjunction(conjunction(can, then[0]), conjunction(apply(Op.NOT, must), otherwise[0])),
                    disjunction(conjunction(must, then[1]), conjunction(never, otherwise[1])),
                )
            case Op.LE | Op.LT | Op.EQ | Op.NE:
                return self.comparison(c)
            case _:
                return TRUE, FALSE

    def element(self, c: Load) -> Bounds:
        """A bool of a block of pairs, or whether a block's list has an element: known where both tiles lie in one."""
        read = c.indices if c.member is None else (*c.indices, c.member)
        found = _all_known((i, i) if level_of(i) is Level.HEAD else self.bounds(i) for i in read)
        if found is None:
            return TRUE, FALSE
        alone = conjunction(*(apply(Op.EQ, *end) for end in found if end[0] != end[1]))
        one = tuple(least if least == most else select(alone, least, integer(0)) for least, most in found)
        there = Load(c.param, one[: len(c.indices)], Type.BOOL, member=None if c.member is None else one[-1])
        return disjunction(apply(Op.NOT, alone), there), conjunction(alone, there)

    def comparison(self, c: Apply) -> Bounds:
        if c.args[0].type is Type.BOOL:
            return TRUE, FALSE
        left, right = (self.bounds(a) for a in c.args)
        if left is None or right is None:
            return TRUE, FALSE
        (a, b), (low, high) = left, right
        match c.op:
            case Op.LE | Op.LT:
                return apply(c.op, a, high), apply(c.op, b, low)
            case _:
                touch = conjunction(apply(Op.LE, a, high), apply(Op.LE, low, b))
                same = conjunction(apply(Op.LE, b, low), apply(Op.LE, high, a))  # both are one number
                return (touch, same) if c.op is Op.EQ else (apply(Op.NOT, same), apply(Op.NOT, touch))

    def bounds(self, e: Expr) -> Bounds | None:
        """The least and the greatest value, or less and more than these; None where nothing is known."""
        if isinstance(e, Literal):
            return e, e
        if e.type is not Type.INT or not fits(e, self.facts):
            return None
        if level_of(e) is not Level.PAIR:
            return self.part(e)
        if not isinstance(e, Apply):
            return None
        if e.op is Op.TO_INT and e.args[0].type is Type.BOOL:
            can, must = self.condition(e.args[0])
            return select(must, integer(1), integer(0)), select(can, integer(1), integer(0))
        if e.op is Op.SELECT:
            (can, must), then, otherwise = self.condition(e.args[0]), self.bounds(e.args[1]), self.bounds(e.args[2])
            if then is None or otherwise is None:
                return None
            ends = zip(then, otherwise, (minimum, maximum), strict=True)
            least, most = (select(must, a, select(can, either(a, b), b)) for a, b, either in ends)
            return least, most
        found = _all_known(self.bounds(a) for a in e.args)
        return None if found is None else _of_bounds(e, found)


def _all_known(found: Iterable[Bounds | None]) -> list[Bounds] | None:
    """None where one is."""
    known: list[Bounds] = []
    for bounds in found:
        if bounds is None:
            return None
        known.append(bounds)
    return known


def _of_bounds(e: Apply, found: list[Bounds]) -> Bounds | None:
    a = found[0]
    number = e.args[-1].value if isinstance(e.args[-1], Literal) else None
    match e.op:
        case Op.ADD:
            return add(a[0], found[1][0]), add(a[1], found[1][1])
        case Op.SUB:
            return sub(a[0], found[1][1]), sub(a[1], found[1][0])
        case Op.NEG:
            return neg(a[1]), neg(a[0])
        case Op.ABS:
            return maximum(integer(0), maximum(a[0], neg(a[1]))), maximum(neg(a[0]), a[1])
        case Op.MIN | Op.MAX:
            return apply(e.op, a[0], found[1][0]), apply(e.op, a[1], found[1][1])
        case Op.MUL if number is not None:
            ends = [apply(Op.MUL, end, e.args[-1]) for end in a]
            return (ends[0], ends[1]) if number >= 0 else (ends[1], ends[0])
        case Op.FLOORDIV if number is not None and number > 0:
            return apply(Op.FLOORDIV, a[0], e.args[1]), apply(Op.FLOORDIV, a[1], e.args[1])
        case Op.MOD if number is not None and number > 0:
            one = apply(Op.EQ, *(apply(Op.FLOORDIV, end, e.args[1]) for end in a))  # in one period
            within = [apply(Op.MOD, end, e.args[1]) for end in a]
            return select(one, within[0], integer(0)), select(one, within[1], integer(int(number) - 1))
        case _:
            return None
