"""The lines of one loop over pairs of tiles, for targets whose values are whole arrays (plain PyTorch, plain JAX).

Takes a plan, a printer and the results that the loop needs, returns a `TileCode`: bindings at the level at which they
can be computed, and the texts of the results. Every value broadcasts to (batch, head, query, key).
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from attngen.emit.text.names import Names
from attngen.emit.text.precedence import Text
from attngen.ir.build import TRUE
from attngen.ir.nodes import Expr
from attngen.ir.walk import nodes, reads
from attngen.plan.levels import Binding, Level, schedule
from attngen.plan.operands import outside_of_indices


class Printer(Protocol):
    def text(self, e: Expr) -> str: ...
    def bind(self, e: Expr, name: str) -> None: ...
    def definition(self, e: Expr) -> Text: ...


@dataclass(frozen=True, slots=True)
class TileCode:
    """`head_lines` run once, `held_lines` once for a tile of the outer loop, the others for each pair of tiles.

    `weight_lines` read x, the score; `mask_lines` are wanted under the mask alone; `allowed` is its text, or empty.
    """

    head_lines: tuple[str, ...]
    held_lines: tuple[str, ...]
    score_lines: tuple[str, ...]
    weight_lines: tuple[str, ...]
    mask_lines: tuple[str, ...]
    results: Mapping[str, str]
    allowed: str

    @property
    def masked(self) -> bool:
        return bool(self.allowed)


def tile_code(
    printer: Printer,
    names: Names,
    held: Level,
    results: Mapping[str, Expr],
    mask: Expr,
    outside: Mapping[str, Expr],
    *,
    whole_loads: bool = False,
) -> TileCode:
    """`results` are read for each pair of tiles, those `outside` for each tile of the outer loop, or once.

    `whole_loads`: the printer names loads as they are, so nothing inside an index is computed here.
    """
    plan = schedule({**results, **({"allowed": mask} if mask != TRUE else {}), **outside})
    if whole_loads:
        here = outside_of_indices((*results.values(), mask, *outside.values()))
        plan = replace(plan, bindings=tuple(b for b in plan.bindings if b.expr in here))
    ours: set[Expr] = set()
    for e in results.values():
        ours.update(nodes(e))
    lines: dict[str, list[str]] = {part: [] for part in ("head", "held", "score", "weight", "mask")}

    def line(b: Binding) -> str:
        text = printer.definition(b.expr)[0]
        name = names.fresh(b.name)
        printer.bind(b.expr, name)
        return f"{name} = {text}"

    for level, part in ((Level.HEAD, "head"), (held, "held")):
        for b in plan.at(level):
            lines[part].append(line(b))
    for b in plan.bindings:
        if b.level not in (Level.HEAD, held):
            own = "weight" if reads(b.expr, "x", "ref") else "score"
            lines[own if b.expr in ours else "mask"].append(line(b))
    texts = {name: printer.text(e) for name, e in (*results.items(), *outside.items())}
    allowed = "" if mask == TRUE else printer.text(mask)
    return TileCode(
        *(tuple(lines[part]) for part in ("head", "held", "score", "weight", "mask")), results=texts, allowed=allowed
    )


def free_names(lines: Iterable[str]) -> frozenset[str]:
    """The names that Python code reads."""
    tree = ast.parse("\n".join(lines))
    return frozenset(n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load))
