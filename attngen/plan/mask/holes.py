"""Whether a tile of queries and a tile of keys can hold an allowed pair, for masks whose tiles have holes between them.

Takes a mask, returns a `TileTest`: a bool over the least and greatest values, in each of the two tiles, of the mask's
parts that one of the two decides (`Part`). False only where the mask allows no pair of theirs. A kernel asks it of
every tile, and looks at the pairs of those that are left (`templates/triton/portable/map.py.j2`).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

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

_MOST_APART = 2
"""Of the indices by which an element is found, those that may differ in a tile: four elements are read then."""


@dataclass(frozen=True, slots=True)
class Part:
    """`value`, an int which reads no key or no query, or is an element of a pair.

    `name` begins those of its extremes in a tile, or in the pairs of two.
    """

    name: str
    value: Expr

    @property
    def of_pairs(self) -> bool:
        return level_of(self.value) is Level.PAIR

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
    """`can`: some pair may be allowed; `must`: all are; `mixed`: some are, and others are not, for certain. `lists`:
    which batches and heads may have maps of their own. `as_bits`: what is found of pairs is kept, a bit for each: all
    heads share them, or a param has an element for each pair, which is read once then."""

    parts: tuple[Part, ...]
    can: Expr
    must: Expr
    mixed: Expr
    lists: Lists
    as_bits: bool

    @property
    def conditions(self) -> tuple[Expr, Expr, Expr]:
        return self.can, self.must, self.mixed

    def lists_of(self, *, sequences: bool) -> Lists:
        """Tiles of sequences have slots, which say whose they are: no list is one of a batch."""
        return replace(self.lists, by_batch=False) if sequences else self.lists


@dataclass(frozen=True, slots=True)
class Found:
    """What extremes say of a condition, each a bool: `can`, some pair of the tiles may meet it; `must`, all do; `some`,
    one does for certain; `hole`, one does not for certain."""

    can: Expr
    must: Expr
    some: Expr = FALSE
    hole: Expr = FALSE


_UNKNOWN = Found(TRUE, FALSE)


def tile_test(mask: Expr, facts: Facts, *, of_pairs: bool = False) -> TileTest | None:
    """None where a kernel that looks at the pairs may round otherwise than one that attends: of masks that compute with
    floats; and of those that read head dims, which it does not know. `of_pairs`: elements of pairs are parts, whose
    extremes say all of them, so that nobody looks at pairs."""
    rounded = (n for n in nodes(mask) if isinstance(n, Apply) and n.type is Type.FLOAT)
    if any(rounded) or reads(mask, "D", "Dv"):
        return None
    asked = _Asked(facts, of_pairs)
    found = asked.condition(mask)
    mixed = FALSE if of_pairs else conjunction(found.some, found.hole)
    lists = Lists(reads(mask, "b"), reads(mask, "h", "hkv"), shared=not reads(mask, "h"))
    as_bits = not of_pairs and (not lists.by_head or any(_of_a_pair(e) for e in loads(mask)))
    return TileTest(tuple(asked.parts), found.can, found.must, mixed, lists, as_bits)


def map_of(mask: Expr, keys: TileRanges, facts: Facts, *, of_pairs: bool = False) -> TileTest | None:
    """The test that makes a map of tiles, where the closed form leaves out a condition, or data that are not the same
    but in an order may leave holes. Of floats the closed form knows more."""
    tests = keys.tests
    if any(t.row.type is Type.FLOAT for t in tests) or (keys.solved and all(t.sign == "==" for t in tests)):
        return None
    return tile_test(mask, facts, of_pairs=of_pairs)


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
    of_pairs: bool
    parts: list[Part] = field(default_factory=list[Part])

    def part(self, e: Expr) -> Bounds:
        for known in self.parts:
            if known.value == e:
                return known.bounds
        self.parts.append(Part(f"test{len(self.parts)}", e))
        return self.parts[-1].bounds

    def condition(self, c: Expr) -> Found:
        if isinstance(c, Literal):
            return Found(c, c, c, apply(Op.NOT, c))
        if level_of(c) is not Level.PAIR or (self.of_pairs and isinstance(c, Load)):
            least, most = self.part(apply(Op.TO_INT, c))
            can, must = apply(Op.EQ, most, integer(1)), apply(Op.EQ, least, integer(1))
            return Found(can, must, can, apply(Op.NOT, must))
        if isinstance(c, Load):
            return self.element(c)
        if not isinstance(c, Apply):
            return _UNKNOWN
        match c.op:
            case Op.AND:
                return _all_of([self.condition(a) for a in c.args])
            case Op.OR:
                return _opposite(_all_of([_opposite(self.condition(a)) for a in c.args]))
            case Op.NOT:
                return _opposite(self.condition(c.args[0]))
            case Op.SELECT:
                asked, then, otherwise = (self.condition(a) for a in c.args)
                never = apply(Op.NOT, asked.can)
                return Found(
                    disjunction(
                        conjunction(asked.can, then.can), conjunction(apply(Op.NOT, asked.must), otherwise.can)
                    ),
                    disjunction(conjunction(asked.must, then.must), conjunction(never, otherwise.must)),
                )
            case Op.LE | Op.LT | Op.EQ | Op.NE:
                return self.comparison(c)
            case _:
                return _UNKNOWN

    def element(self, c: Load) -> Found:
        """A bool of a block of pairs, or whether a block's list has an element: known where each tile lies in one block
        or in two."""
        read = c.indices if c.member is None else (*c.indices, c.member)
        if _of_a_pair(c):
            return _UNKNOWN
        found = _all_known((i, i) if level_of(i) is Level.HEAD else self.bounds(i) for i in read)
        apart = [end for end in found or () if end[0] != end[1]]
        if found is None or len(apart) > _MOST_APART:
            return _UNKNOWN
        near = conjunction(*(apply(Op.LE, sub(most, least), integer(1)) for least, most in apart))
        there: list[Expr] = []
        for at in itertools.product(*(dict.fromkeys(end) for end in found)):
            indices, member = (at, None) if c.member is None else (at[:-1], at[-1])
            there.append(Load(c.param, indices, Type.BOOL, member=member))
        every, some = conjunction(*there), disjunction(*there)
        can, must = disjunction(apply(Op.NOT, near), some), conjunction(near, every)
        sides = [level_of(i) for i in read if level_of(i) is not Level.HEAD]
        if sorted(sides) != sorted({Level.ROW, Level.COLUMN} & {*sides}):
            return Found(can, must)  # no pair need have the extremes of two indices that one tile decides
        return Found(can, must, conjunction(near, some), conjunction(near, apply(Op.NOT, every)))

    def comparison(self, c: Apply) -> Found:
        if c.args[0].type is Type.BOOL:
            return _UNKNOWN
        left, right = (self.bounds(a) for a in c.args)
        if left is None or right is None:
            return _UNKNOWN
        (a, b), (low, high) = left, right
        # Where a tile decides each side alone, their extremes meet in some pair.
        alone = Level.PAIR not in map(level_of, c.args)
        if c.op in (Op.LE, Op.LT):
            can, must = apply(c.op, a, high), apply(c.op, b, low)
            return Found(can, must, can, apply(Op.NOT, must)) if alone else Found(can, must)
        touch = conjunction(apply(Op.LE, a, high), apply(Op.LE, low, b))
        same = conjunction(apply(Op.LE, b, low), apply(Op.LE, high, a))  # both are one number
        known = Found(touch, same, same, apply(Op.NOT, same)) if alone else Found(touch, same)
        return known if c.op is Op.EQ else _opposite(known)

    def bounds(self, e: Expr) -> Bounds | None:
        """The least and the greatest value, or less and more than these; None where nothing is known."""
        if isinstance(e, Literal):
            return e, e
        if e.type is not Type.INT or not fits(e, self.facts):
            return None
        if level_of(e) is not Level.PAIR or (self.of_pairs and isinstance(e, Load)):
            return self.part(e)
        if not isinstance(e, Apply):
            return None
        if e.op is Op.TO_INT and e.args[0].type is Type.BOOL:
            found = self.condition(e.args[0])
            return select(found.must, integer(1), integer(0)), select(found.can, integer(1), integer(0))
        if e.op is Op.SELECT:
            asked, then, otherwise = self.condition(e.args[0]), self.bounds(e.args[1]), self.bounds(e.args[2])
            if then is None or otherwise is None:
                return None
            ends = zip(then, otherwise, (minimum, maximum), strict=True)
            least, most = (select(asked.must, a, select(asked.can, either(a, b), b)) for a, b, either in ends)
            return least, most
        parts = _all_known(self.bounds(a) for a in e.args)
        return None if parts is None else _of_bounds(e, parts)


def _of_a_pair(c: Load) -> bool:
    """Whether each pair has an element of its own."""
    return {index("q"), index("k")} <= {*c.indices}


def _all_of(found: list[Found]) -> Found:
    """Of conditions that all are to hold: one of a pair for certain, the others of all."""
    some = [
        conjunction(f.some, *(other.must for other in found if other is not f)) if f.some != FALSE else FALSE
        for f in found
    ]
    return Found(
        conjunction(*(f.can for f in found)),
        conjunction(*(f.must for f in found)),
        disjunction(*some),
        disjunction(*(f.hole for f in found)),
    )


def _opposite(found: Found) -> Found:
    return Found(apply(Op.NOT, found.must), apply(Op.NOT, found.can), found.hole, found.some)


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
