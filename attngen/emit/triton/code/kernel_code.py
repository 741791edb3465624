"""The lines of one kernel: a plan's expressions scheduled, named and printed for the loop that they stand in.

Takes the plan, the results that the kernel needs, and which axis it holds, returns a `KernelCode` for the templates.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from attngen.emit.text.names import Names
from attngen.emit.text.params import ParamView, derived
from attngen.emit.triton.code.expressions import Printer
from attngen.emit.triton.code.names import reserved
from attngen.ir.build import TRUE, apply, conjunction
from attngen.ir.nodes import Expr, Op, Symbol, Type
from attngen.ir.walk import loads, nodes, reads
from attngen.plan.kernel import KernelPlan
from attngen.plan.levels import Binding, Level, schedule
from attngen.plan.mask.pair_bound import Bounded, bounded


@dataclass(frozen=True, slots=True)
class Diagonals:
    """What is one along each diagonal of a tile: `lines` bind what the `values`, by name, are made of, for the pairs
    at which the diagonals begin."""

    lines: tuple[str, ...] = ()
    values: tuple[tuple[str, str], ...] = ()

    def spread(self, edges: str, along: str, *, keys_down: bool) -> tuple[str, ...]:
        """Lines of a function of a tile that bind the names for all pairs, by these functions."""
        if not self.values:
            return ()
        bound = (f"{name} = {along}({value}, qk, {keys_down})" for name, value in self.values)
        return (f"{_EDGES} = {edges}(q0, k0, qk, {keys_down})", *self.lines, *bound)


_EDGES = "edge_q, edge_k"
_IN_TRITON = ("rows.tile_edges", "rows.along_diagonals")
_IN_GLUON = ("sm90.warpgroup_edges", "sm90.along_warpgroup")


@dataclass(frozen=True, slots=True)
class KernelCode:
    """`head_lines` run once a head, `held_lines` once for the tile that is held; the others once for each walked tile.

    `results` gives the text of each result by name, `allowed` that of the mask inside the tensor's edge, which may be a
    bare comparison. `arguments` are the kernel's names that the tile function reads beside those that the template
    passes itself.
    """

    head_lines: tuple[str, ...]
    held_lines: tuple[str, ...]
    diagonals: Diagonals
    score_lines: tuple[str, ...]
    weight_lines: tuple[str, ...]  # read x, the score of the pair
    mask_lines: tuple[str, ...]
    results: Mapping[str, str]
    allowed: str
    test_lines: tuple[str, ...]
    arguments: tuple[str, ...]
    range_arguments: tuple[str, ...]

    def reads(self, name: str) -> bool:
        """Whether any of its lines reads `name`."""
        lines = (
            self.head_lines,
            self.held_lines,
            self.score_lines,
            self.weight_lines,
            self.mask_lines,
            self.test_lines,
        )
        texts = (*(line for found in lines for line in found), *self.results.values(), self.allowed, *self.along())
        return name in free_names(text for text in texts if name in text)

    def along(self, *, keys_down: bool = False) -> tuple[str, ...]:
        """The lines that bind what is one along a diagonal, in Triton's functions of a tile."""
        return self.diagonals.spread(*_IN_TRITON, keys_down=keys_down)

    def along_in_gluon(self, *, keys_down: bool = False) -> tuple[str, ...]:
        """The same in Gluon's."""
        return self.diagonals.spread(*_IN_GLUON, keys_down=keys_down)


@dataclass(frozen=True, slots=True)
class HeldTest:
    """A data test as a kernel answers it: the held side's expression, and where the walked tiles' extremes are."""

    name: str
    pointer: str
    offset: str
    held: Expr
    tiles: str
    block: str
    test: int

    def lines(self, text: str, inside: str) -> tuple[str, ...]:
        limit = 2**63 - 1
        wide = text if self.held.type is Type.FLOAT else f"tl.cast({text}, tl.int64)"
        low, high = ('float("-inf")', 'float("inf")') if self.held.type is Type.FLOAT else (f"-{limit}", str(limit))
        bounds = ", ".join(f"{self.name}_{which}" for which in ("any_lo", "any_hi", "all_lo", "all_hi"))
        extremes = ", ".join(f"{self.pointer}_{end}_ptr + {self.name}_tile" for end in ("least", "most"))
        walked = f"{self.tiles}, {self.block}, {self.test}"
        # Test and mask round floats differently: the test is a little wider, and never skips what the mask allows.
        wider = (
            (
                f"{self.name}_least *= tl.where({self.name}_least > 0.0, 0.999999, 1.000001)",
                f"{self.name}_most *= tl.where({self.name}_most > 0.0, 1.000001, 0.999999)",
            )
            if self.held.type is Type.FLOAT
            else ()
        )
        return (
            f"{self.name}_least = tl.min(tl.where({inside}, {wide}, {high}))",
            f"{self.name}_most = tl.max(tl.where({inside}, {wide}, {low}))",
            *wider,
            f"{self.name}_tile = {self.offset}",
            f"{bounds} = rows.matching_tiles({extremes}, {self.name}_least, {self.name}_most, {walked})",
        )


def free_names(lines: Iterable[str]) -> frozenset[str]:
    """The names that Python code reads."""
    tree = ast.parse("\n".join(lines))
    return frozenset(n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load))


class KernelWriter:
    """Writes one kernel. `held` is ROW where a tile of queries is held, COLUMN where a tile of keys is."""

    def __init__(self, plan: KernelPlan, params: tuple[ParamView, ...], held: Level):
        self.plan = plan
        self.params = params
        self.held = held
        self.names = Names(reserved())
        for p in params:
            self.names.take(p.name, *derived(p.name, p.rank))
        by_keyword = {p.keyword: p.name for p in params}
        self.printer = Printer(plan.choices, {p.name: p for p in plan.attention.params}, by_keyword)

    def write(
        self,
        results: Mapping[str, Expr],
        mask: Expr,
        *,
        known: Iterable[str],
        used_by_template: Iterable[str] = (),
        outside: Mapping[str, Expr] | None = None,
        range_arguments: tuple[str, ...] = (),
        tests: tuple[HeldTest, ...] = (),
        diagonals: tuple[Expr, ...] = (),
    ) -> KernelCode:
        """`known` are the names that the kernel has bound before these lines; `results` are read in the tile function,
        those `outside` in the kernel itself; `used_by_template` is further code of the tile function; `diagonals` are
        parts of results that are computed once for each diagonal of a tile."""
        bounds = bounded(mask, "k" if self.held is Level.ROW else "q")
        outside = outside or {}
        outside = {**outside, **{t.name: t.held for t in tests}}
        read_pairs = {n for e in results.values() for n in nodes(e)}
        spread = {self.names.fresh("by_distance"): e for e in diagonals if e in read_pairs}
        for name, e in spread.items():
            self.printer.bind(e, name)
        read = {**results, **_tested(bounds), **outside}
        plan = schedule({**read, **self._guarded(read.values(), spread.values())}, tuple(spread.values()))
        ours: set[Expr] = set()
        for e in results.values():
            ours.update(nodes(e))
        head: list[str] = []
        held: list[str] = []
        score: list[str] = []
        weight: list[str] = []
        masked: list[str] = []
        for level in (Level.HEAD, self.held):
            for b in plan.at(level):
                (head if level is Level.HEAD else held).append(self._line(b))
        for b in plan.bindings:
            if b.level not in (Level.HEAD, self.held):
                own = weight if reads(b.expr, "x", "ref") else score
                (own if b.expr in ours else masked).append(self._line(b))
        edges = self._edges(spread, head)
        texts = {name: self.printer.text(e) for name, e in results.items()}
        outer = {name: self.printer.text(e) for name, e in outside.items()}
        allowed = self._allowed(bounds)
        position, last = ("q_idx", "q1") if self.held is Level.ROW else ("k_idx", "k1")
        tested = [line for t in tests for line in t.lines(outer.pop(t.name), f"{position} <= {last}")]
        # Positions kept inside the ragged last tile, and float scalars, are bound where they are read.
        self._safe_positions(held, score, masked, [*weight, *texts.values(), allowed], tested)
        at_edges = edges.spread(*_IN_TRITON, keys_down=False)
        body = [*at_edges, *score, *weight, *masked, *texts.values(), allowed, *used_by_template]
        everything = [*head, *held, *tested, *body, *outer.values(), *range_arguments]
        read = free_names(everything)
        scalars = [line for p in self.params if p.name in read for line in p.load_lines]
        head = scalars + head
        bound = _bound_names([*head, *held])
        available = dict.fromkeys([*known, *bound, *(a for p in self.params for a in p.kernel_arguments)])
        # What the tile function has of itself.
        own = {"D", "Dv", "batch"} | ({"Sk", "k_idx", "kv_head"} if self.held is Level.ROW else {"Sq", "q_idx", "head"})
        inner = free_names(body) - own - _bound_names([*at_edges, *score, *weight, *masked]).keys()
        return KernelCode(
            tuple(head),
            tuple(held),
            edges,
            tuple(score),
            tuple(weight),
            tuple(masked),
            {**texts, **outer},
            allowed,
            tuple(tested),
            tuple(n for n in available if n in inner),
            range_arguments,
        )

    def _guarded(self, expressions: Iterable[Expr], other: Iterable[Expr] = ()) -> dict[str, Expr]:
        """The indices that are compared before an element is read, but for those of `other`, for the schedule: their
        text stands several times."""
        found = dict.fromkeys(e for root in expressions for e in loads(root))
        for e in (e for root in other for e in loads(root)):
            found.pop(e, None)
        pairs = [(i, a) for e in found for i, a in zip(e.indices, self.plan.choices.access(e).axes, strict=True)]
        return {f"index {n}": i for n, (i, a) in enumerate(pairs) if a.low or a.high}

    def _edges(self, spread: Mapping[str, Expr], head: list[str]) -> Diagonals:
        """What `spread` names, for the pairs at which diagonals begin; what a head decides of it is added to `head`."""
        found = {e: name for e, name in self.printer.names.items() if not reads(e, "q", "k", "qk")}
        here = {Symbol("q", Type.INT): "edge_q", Symbol("k", Type.INT): "edge_k"}
        lone = replace(self.printer.choices, corners=())  # each thread has one or two elements
        own = replace(self.printer, choices=lone, names={**found, **here})
        lines: list[str] = []
        for b in schedule({**spread, **self._guarded(spread.values())}).bindings:
            if b.expr in own.names:
                continue
            name = self.names.fresh(b.name)
            line = f"{name} = {own.definition(b.expr)[0]}"
            (head if b.level is Level.HEAD else lines).append(line)
            own.bind(b.expr, name)
            if b.level is Level.HEAD:
                self.printer.bind(b.expr, name)
        return Diagonals(tuple(lines), tuple((name, own.text(e)) for name, e in spread.items()))

    def _allowed(self, bounds: Bounded) -> str:
        """The text of the mask inside the tensor's edge."""
        if bounds.least is None or bounds.most is None:
            inside = "" if bounds.most is not None else "(k_idx < Sk)" if self.held is Level.ROW else "(q_idx < Sq)"
            mask = bounds.mask
        else:
            texts = (self.printer.text(e) for e in (bounds.walked, bounds.least, bounds.count))
            inside = f"rows.among({', '.join(texts)})"
            mask = bounds.rest
        if mask == TRUE:
            return inside
        bound = mask in self.printer.names
        text, strength = (self.printer.text(mask), 9) if bound else self.printer.definition(mask)
        return f"{inside} & {text if strength >= 4 else f'({text})'}" if inside else text

    def _line(self, b: Binding) -> str:
        text = self.printer.definition(b.expr)[0]
        name = self.names.fresh(b.name)
        self.printer.bind(b.expr, name)
        return f"{name} = {text}"

    def _safe_positions(
        self, held: list[str], score: list[str], masked: list[str], texts: list[str], tested: list[str]
    ) -> None:
        for axis, size in (("q", "Sq"), ("k", "Sk")):
            line = f"{axis}_safe = tl.minimum({axis}_idx, {size} - 1)"
            name = f"{axis}_safe"
            own_held = (axis == "q") == (self.held is Level.ROW)
            if own_held:
                if name in free_names([*held, *score, *masked, *texts, *tested]):
                    held.insert(0, line)
            elif name in free_names([*score, *texts]):
                score.insert(0, line)
            elif name in free_names(masked):
                masked.insert(0, line)


def _tested(bounds: Bounded) -> dict[str, Expr]:
    """What the mask's text will read, for the schedule."""
    if bounds.least is None or bounds.most is None:
        return {"allowed": bounds.mask} if bounds.mask != TRUE else {}
    # Not printed: its parts are, and are bound where they are known.
    between = conjunction(apply(Op.LE, bounds.least, bounds.walked), apply(Op.LT, bounds.walked, bounds.count))
    return {"between": between, **({"allowed": bounds.rest} if bounds.rest != TRUE else {})}


def _bound_names(lines: Iterable[str]) -> dict[str, None]:
    tree = ast.parse("\n".join(lines))
    names = [n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
    return dict.fromkeys(names)
