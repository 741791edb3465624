"""The lines of one Pallas kernel: a plan's expressions scheduled, named and printed for the loop that they stand in.

Takes the plan, the results that a kernel needs, and which axis it holds, returns a `PallasCode` for the templates. What
a line reads is recorded while it is printed, so that a kernel takes the operands that it reads and no others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from attngen.emit.jax_shared.expressions import Leaf, Printer
from attngen.emit.jax_shared.operands import Leaves, OperandView, cell
from attngen.emit.text.names import Names
from attngen.ir.attention import Origin
from attngen.ir.build import TRUE, is_literal
from attngen.ir.nodes import Expr, Load, Scalar, Symbol, Type
from attngen.ir.walk import nodes, reads
from attngen.plan.kernel import KernelPlan
from attngen.plan.levels import Binding, Level, level_of, schedule
from attngen.plan.operands import Extent, outside_of_indices

_VECTOR = {Extent.ROW: Level.ROW, Extent.COLUMN: Level.COLUMN}


@dataclass(frozen=True, slots=True)
class Number:
    """One number a head (or fewer), which kernels read from scalar memory: an operand, or a term of the host's.

    `text` is the host's array of four axes; `at` the program's cell in its flat array.
    """

    name: str
    text: str
    at: str

    @property
    def ref(self) -> str:
        return f"{self.name}_ref"


@dataclass(frozen=True, slots=True)
class Vector:
    """An operand that varies with positions. `blocks` names the helper that cuts it, `array` the host's preparation."""

    name: str
    array: str
    block: str

    @property
    def ref(self) -> str:
        return f"{self.name}_ref"


@dataclass(frozen=True, slots=True)
class PallasCode:
    """`number_lines` and `held_lines` run once a program; the others once for each walked tile.

    `terms` are the host's lines for those of `numbers` that are computed. `results` gives the text of each result.
    """

    numbers: tuple[Number, ...]
    vectors: tuple[Vector, ...]
    term_lines: tuple[str, ...]
    number_lines: tuple[str, ...]
    held_lines: tuple[str, ...]
    score_lines: tuple[str, ...]
    weight_lines: tuple[str, ...]  # read x, the score of the pair
    mask_lines: tuple[str, ...]
    results: Mapping[str, str]
    mask: str  # empty where it is always true

    def with_results(self, *names: str) -> PallasCode:
        """With empty texts for results that this variant does not have, so that templates may ask for them."""
        return replace(self, results={**dict.fromkeys(names, ""), **self.results})

    def with_dropout(self, o: Origin) -> PallasCode:
        """With what the comparison with random bits needs of the probability, where there is one, and what a tile is
        counted from."""
        drop = self.results.get("drop")
        if drop is None:
            return self
        lines = (
            f"threshold = _threshold({drop})",
            f"inv_keep = 1.0 / (1.0 - {drop})",
        )
        places = (("batch", "b", o.b), ("head", "h", o.h), ("q0", "q", o.q), ("k0", "k", o.k))
        counted = (at if is_literal(e, 0) else f"{at} + {self.results[f'first_{i}']}" for at, i, e in places)
        results = {**self.results, "counted": ", ".join(counted)}
        return replace(self, number_lines=(*self.number_lines, *lines), results=results)

    @property
    def number_refs(self) -> list[str]:
        return [n.ref for n in self.numbers]

    @property
    def vector_refs(self) -> list[str]:
        return [v.ref for v in self.vectors]


class KernelWriter:
    """Writes one kernel. `held` is ROW where a tile of queries is held, COLUMN where a tile of keys is; the held axis
    runs down a tile. `across`: queries are held, and yet run across, so that keys run down; a tile is computed in
    pieces, and what they share is computed for each.
    """

    def __init__(
        self,
        plan: KernelPlan,
        views: tuple[OperandView, ...],
        leaves: Leaves,
        names: Names,
        held: Level,
        *,
        across: bool = False,
    ):
        self.plan = plan
        self.views = {v.operand.expr: v for v in views}
        self.leaves = leaves
        self.names = names.copy()
        self.held = held
        self.across = across
        self.down = Level.COLUMN if across else held
        self.numbers: dict[str, Number] = {}
        self.vectors: dict[str, Vector] = {}
        self.terms: list[str] = []
        self.printer = Printer(plan.choices, self._leaf, self.down)
        self.host = leaves.printer()

    # ------------------------------------------------------------ leaves

    def _leaf(self, e: Leaf) -> str:
        match e:
            case Symbol():
                if e.id == "scale":
                    self.numbers.setdefault("scale", Number("scale", "scale", "0"))
                    return "scale"
                return {"q": "q_idx", "k": "k_idx", "b": "batch", "h": "head"}.get(e.id) or (
                    "_share(head, Hq, Hkv)" if e.id == "hkv" else self.leaves.size(e.id)
                )
            case Scalar() | Load():
                return self._operand(self.views[e])

    def _operand(self, view: OperandView) -> str:
        if view.extent is Extent.HEAD:
            self.numbers.setdefault(view.name, Number(view.name, view.name, view.number))
            return f"({view.name} != 0)" if view.operand.expr.type is Type.BOOL else view.name
        name, extent = view.name, view.extent
        text = self._piece(name, extent) if self.across else self._tile(name, extent)
        return f"({text} != 0)" if view.operand.expr.type is Type.BOOL else text

    def _piece(self, name: str, extent: Extent) -> str:
        """What a piece of a tile reads: keys are `rows` of the tile and `chunk` of the block, queries `columns`."""
        if extent is Extent.DISTANCE:
            self.vectors[name] = Vector(name, f"_towards_queries({name}, size, tile)", "whole")
            return f"_diagonals({name}_ref, top_query - top_key - height + n_keys, height, width)"
        if extent is Extent.PAIR:
            self.vectors[name] = Vector(name, f"_pairs({name}, size, tile)", "pairs_by_rows")
            return f"{name}_ref[columns, chunk].T"
        if extent is Extent.ROW:
            self.vectors[name] = Vector(name, f"_vectors({name}, 2, BQ)", "held_vector")
            return f"{name}_ref[:, columns]"
        self.vectors[name] = Vector(name, f"_vectors({name}, 3, BK)", "walked_vector")
        return f"_held({name}_ref[walked, :, rows])"

    def _tile(self, name: str, extent: Extent) -> str:
        by_rows = self.held is Level.ROW
        if extent is Extent.DISTANCE:
            length = "towards_keys" if by_rows else "towards_queries"
            array = f"_{length}({name}, size, tile)"
            self.vectors[name] = Vector(name, array, "whole")
            first = "k0 - q0 - BQ + n_queries" if by_rows else "q0 - k0 - BK + n_keys"
            text = f"_diagonals({name}_ref, {first}, {'BQ, BK' if by_rows else 'BK, BQ'})"
        elif extent is Extent.PAIR:
            self.vectors[name] = Vector(
                name, f"_pairs({name}, size, tile)", "pairs_by_rows" if by_rows else "pairs_by_columns"
            )
            text = f"_by_rows({name}_ref, walked, BK)" if by_rows else f"_by_columns({name}_ref, walked, BQ)"
        else:
            held = _VECTOR[extent] is self.held
            axis, block = ("2", "BQ") if extent is Extent.ROW else ("3", "BK")
            self.vectors[name] = Vector(
                name, f"_vectors({name}, {axis}, {block})", "held_vector" if held else "walked_vector"
            )
            text = f"_held({name}_ref[...])" if held else f"{name}_ref[walked]"
        return text

    # ------------------------------------------------------------ the kernel

    def write(self, results: Mapping[str, Expr], mask: Expr, outside: Mapping[str, Expr]) -> PallasCode:
        """`results` are read for each walked tile, those `outside` once a program. All of `outside` are a head's."""
        found = schedule({**results, **({"allowed": mask} if mask != TRUE else {}), **outside})
        ours: set[Expr] = set()
        for e in results.values():
            ours.update(nodes(e))
        number_lines: list[str] = []
        held: list[str] = []
        score: list[str] = []
        weight: list[str] = []
        masked: list[str] = []
        here = outside_of_indices((*results.values(), mask, *outside.values()))
        bindings = [b for b in found.bindings if b.expr in here]
        for b in bindings:
            if b.level is Level.HEAD:
                number_lines += self._head(b)
        once = (Level.HEAD,) if self.across else (Level.HEAD, self.held)
        for b in bindings:
            if b.level in once and b.level is not Level.HEAD:
                held.append(self._line(b))
        for b in bindings:
            if b.level not in once:
                own = weight if reads(b.expr, "x", "ref") else score
                (own if b.expr in ours else masked).append(self._line(b))
        texts = {name: self._whole(e) for name, e in results.items()}
        texts.update({name: self.printer.text(e) for name, e in outside.items()})
        allowed = "" if mask == TRUE else self._whole(mask)
        lines = [f"{n.name} = {n.ref}[{n.at}]" for n in self.numbers.values()]
        return PallasCode(
            tuple(self.numbers.values()),
            tuple(self.vectors.values()),
            tuple(self.terms),
            (*lines, *number_lines),
            tuple(held),
            tuple(score),
            tuple(weight),
            tuple(masked),
            texts,
            allowed,
        )

    def _head(self, b: Binding) -> list[str]:
        """Floats of a head are computed on the host, as one array; ints stay in the kernel."""
        if isinstance(b.expr, Load):
            return []
        name = self.names.fresh(b.name)
        if b.expr.type is Type.FLOAT:
            self.terms.append(f"{name} = {self.host.text(b.expr)}")
            self.host.bind(b.expr, name)
            self.numbers[name] = Number(name, name, cell(reads(b.expr, "b"), reads(b.expr, "h", "hkv")))
            self.printer.bind(b.expr, name)
            return []
        line = f"{name} = {self.printer.definition(b.expr)[0]}"
        self.printer.bind(b.expr, name)
        return [line]

    def _line(self, b: Binding) -> str:
        text = self.printer.definition(b.expr)[0]
        name = self.names.fresh(b.name)
        self.printer.bind(b.expr, name)
        return f"{name} = {text}"

    def _whole(self, e: Expr) -> str:
        """A result for each pair, in the tile's shape even where it depends on less."""
        text = self.printer.text(e)
        level = level_of(e)
        if level is Level.PAIR:
            return text
        if level is self.down:
            return f"_across({text}, width)"
        return f"jnp.broadcast_to({text}, (height, width))"
