"""The rungs about tiles: a tile is one element of the merge, and which tiles the kernels visit.

Takes a `Setting` and the plan's ranges, returns `Step`s. The forward kernel and dQ walk keys, dK/dV walks queries.
"""

from __future__ import annotations

from collections.abc import Iterator

from attngen.explain import notation as n
from attngen.explain.bounds import in_order, stretch
from attngen.explain.formulas import SYMBOLS, Writer
from attngen.explain.notation import Code, Equation, Formula, Math, prose
from attngen.explain.steps import KEY, MINUS_INFINITY, QUERY, S_IJ, V_J, ZERO, Line, Setting, Step, formula
from attngen.ir import build
from attngen.plan.mask.data_tests import DataTest
from attngen.plan.mask.ranges import TileRanges
from attngen.plan.mask.segments import Segment
from attngen.plan.score.weights import Form
from attngen.prove.verdict import Obligation

_TILE, _A, _B, _MERGED = n.atom("T"), n.atom("A"), n.atom("B"), n.atom(r"A \oplus B", "A⊕B")
_MAX, _SUM, _ACC = n.atom("m"), n.atom(r"\ell", "ℓ"), n.atom("a")


READABLE = 500
"""Characters of terminal text beyond which nobody reads a bound, and MathJax's buffer refuses a union of them."""

_TOO_LONG = n.words("a stretch with longer bounds")
_NO_KEY_YET = " A row that has met no key yet takes 0 for its reference point, so that {nothing} never occurs."


def _of(part: Math, tile: Math) -> Math:
    """A part of the state of a tile."""
    under = tile.text if len(tile.text) == 1 else f"{{{tile.text}}}"
    return n.atom(f"{part.tex}_{{{tile.tex}}}", f"{part.text}_{under}")


def tiles(at: Setting) -> Step:
    shifted = at.form is not Form.DIRECT
    inside = n.compared(KEY, ("in", n.atom(r"T \cap J_i", "T ∩ J_i")))
    weight = at.moved(m=_of(_MAX, _TILE)) if shifted else at.weight()
    own: list[Line] = []
    merged: list[Line] = []
    if shifted:
        own.append((_of(_MAX, _TILE), n.extreme("max", inside, S_IJ)))
        merged.append((_of(_MAX, _MERGED), n.call(r"\max", "max", _of(_MAX, _A), _of(_MAX, _B))))
    summed = [(_SUM, weight)] if at.sums else []
    for part, body in [*summed, (_ACC, at.dropped(weight, V_J))]:
        own.append((_of(part, _TILE), n.big_sum(inside, body)))
        merged.append((_of(part, _MERGED), n.plus(*(_brought(at, part, side) for side in (_A, _B)))))
    empty = n.listed(*([MINUS_INFINITY] if shifted else []), *([ZERO] if at.sums else []), ZERO)
    rest = "; two tiles without a key merge to it again, without a NaN" if shifted else ": it is addition"
    return Step(
        "Tiles",
        prose(
            "A tile of keys {tile} is one element: its state comes from two matrix products, and states are merged. "
            "However the keys are cut into tiles, and whatever the tiles' sizes, the result is the same."
            + (_NO_KEY_YET if shifted else ""),
            tile=_TILE,
            nothing=n.minus(MINUS_INFINITY, Math(rf"({MINUS_INFINITY.tex})", f"({MINUS_INFINITY.text})")),
        ),
        (formula(*own), formula(*merged)),
        prose(
            f"the merge is associative and commutative, and {{empty}}, the state of no key, is its unit{rest}",
            empty=empty,
        ),
        (Obligation.STREAMING, Obligation.EMPTY_ROWS),
    )


def _brought(at: Setting, part: Math, side: Math) -> Math:
    """A part of one side's state, at the reference point of both."""
    own = _of(part, side)
    return own if at.form is Form.DIRECT else n.product(own, at.rescale(_of(_MAX, side), _of(_MAX, _MERGED)))


# ---------------------------------------------------------------- which tiles


def visited(at: Setting, ranges: TileRanges) -> Step:
    """Which tiles of one axis are visited, and which of them without a mask."""
    keys = ranges.axis == "k"
    letter = "J" if keys else "I"
    some = n.atom(rf"{letter}_{{\mathrm{{any}}}}", f"{letter}_any")
    every = n.atom(rf"{letter}_{{\mathrm{{all}}}}", f"{letter}_all")
    walked, tiled, one = ("keys", "queries", "key") if keys else ("queries", "keys", "query")
    everything = Segment(build.integer(0), build.index("Sk" if keys else "Sq"))
    says = (
        f"Which {walked} the tile of {tiled} {{held}} can meet is known in closed form, for every size. {{some}} "
        f"covers each {one} that some of the tile's {tiled} pair with; in {{every}} every pair is allowed. "
    )
    if ranges.any == (everything,):
        says += f"Here no tile of {walked} can be ruled out in advance. "
    else:
        says += "Tiles outside {some} are not visited: nothing of them is loaded. "
    if everything in ranges.all:
        says += "No tile needs a mask, but for the ragged end."
    elif not ranges.all:
        says += "No tile is known to be allowed whole: each that is visited applies the mask pair by pair."
    else:
        says += "Tiles inside {every} are run without a mask; what is left of {some} applies it pair by pair."
    if ranges.tests:
        says += " What depends on the data comes from the least and the greatest value of each tile, found once a call."
    writer = at.write.at(**_answers(ranges))
    lines = (*_union(writer, some, ranges.any, ranges.axis), *_union(writer, every, ranges.all, ranges.axis))
    if any(e.right == _TOO_LONG for e in lines):
        says += " Bounds that are too long to read here are printed by {emit}."
    masked = "state is the unit of the merge" if keys else "weight is 0 in every sum"
    identity = f"outside {{some}} every pair is masked, and a masked pair's {masked}; inside {{every}} the mask is true"
    loads = (Obligation.INDEX_BOUNDS, Obligation.INTEGER_WIDTH) if keys else ()
    return Step(
        "Which tiles are visited" if keys else "The same, seen from the keys",
        prose(says, held=_held(ranges), some=some, every=every, emit=Code("attngen compile --emit plan")),
        (Formula(lines), *(f for test in ranges.tests for f in _test(at, test, ranges))),
        prose(identity, some=some, every=every),
        (Obligation.TILE_RANGES, *loads),
    )


def _held(ranges: TileRanges) -> Math:
    """The positions of the tile that is held while the axis is walked."""
    if ranges.axis == "k":
        return n.compared(SYMBOLS["q0"], ("<=", QUERY), ("<=", SYMBOLS["q1"]))
    return n.compared(SYMBOLS["k0"], ("<=", KEY), ("<=", SYMBOLS["k1"]))


def _union(writer: Writer, name: Math, segments: tuple[Segment, ...], axis: str) -> Iterator[Equation]:
    """A union of stretches, one a line."""
    if not segments:
        yield Equation(name, n.atom(r"\varnothing", "∅"))
    size = build.index("Sk" if axis == "k" else "Sq")
    found = [stretch(writer, s, size) for s in segments]
    for place, part in enumerate(dict.fromkeys(_TOO_LONG if len(x.text) > READABLE else x for x in found)):
        yield Equation(name, part) if place == 0 else Equation(None, part, "or in")


# ---------------------------------------------------------------- what the data decide


def _answers(ranges: TileRanges) -> dict[str, Math]:
    """The run-time answers of the data tests, by the names that the plan's bounds use."""
    found: dict[str, Math] = {}
    for place, test in enumerate(ranges.tests):
        number = str(place + 1) if len(ranges.tests) > 1 else ""
        for end in ("lo", "hi"):
            for which in ("any", "all"):
                written = Math(rf"\mathrm{{{end}_{{{which}{number}}}}}", f"{end}_{which}{number}")
                found[test.bound(f"{which}_{end}").id] = written
    return found


def _test(at: Setting, test: DataTest, ranges: TileRanges) -> Iterator[Formula]:
    """What the run-time bounds of one data test mean: the hull of some tiles, and a run of tiles."""
    symbols = _answers(ranges)
    row, col = at.write(in_order(test.row)), at.write(in_order(test.col))
    walked = n.compared(KEY if ranges.axis == "k" else QUERY, ("in", _TILE))
    held = _held(ranges)
    rows, cols = (held, walked) if ranges.axis == "k" else (walked, held)
    least_row, most_row = n.extreme("min", rows, row), n.extreme("max", rows, row)
    least_col, most_col = n.extreme("min", cols, col), n.extreme("max", cols, col)
    if test.sign == "==":
        some = [(least_row, ("<=", most_col)), (least_col, ("<=", most_row))]
        every = [(least_row, ("=", most_row)), (most_row, ("=", least_col)), (least_col, ("=", most_col))]
    else:
        some, every = [(least_row, (test.sign, most_col))], [(most_row, (test.sign, least_col))]
    for which, words, conditions in (
        ("any", "the hull of the tiles T with", some),
        ("all", "a run of tiles T, perhaps empty, all with", every),
    ):
        low, high = symbols[test.bound(f"{which}_lo").id], symbols[test.bound(f"{which}_hi").id]
        yield Formula(
            (
                Equation(n.interval(low, high), n.words(words), ":"),
                *(Equation(None, n.compared(left, right), "") for left, right in conditions),
            )
        )
