"""The functions by which kernels find their items: edits of their text, and brute force, the text run as Python.

`edited_texts` takes the text of a module of the runtime, returns it with one edit each. `wrong_functions` takes a text
(edited or not), returns the first mistake in words, or nothing. It executes the text itself on small sizes, so it
shares no code with the prover, nor with what reads the text for it.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from functools import cache
from itertools import product
from types import SimpleNamespace
from typing import Any

from attngen.plan.mask.lists import Lists
from mutation.lists import LISTED, wrong_lists
from mutation.parts import wrong_parts
from mutation.summed import SUMMED, wrong_summed
from mutation.turns import wrong_turns

_SWAPPED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.FloorDiv: ast.Mod, ast.Mod: ast.FloorDiv,
}  # fmt: skip
_CALLS = {"minimum": "maximum", "maximum": "minimum"}


def edited_texts(text: str, which: frozenset[str] | None = None) -> Iterator[tuple[str, str]]:
    """Each text once, of these functions; None: of those that most plans call. An int is one more or less, an
    operation another one, one side is left out, sides or branches are exchanged, a name is the one before it among
    those of the function, a flag is the other.
    """
    tree = ast.parse(text)
    seen = {ast.unparse(tree)}
    for function in (n for n in tree.body if isinstance(n, ast.FunctionDef) and _is_edited(n.name, which)):
        for statement in ast.walk(function):
            value = statement.value if isinstance(statement, ast.Assign | ast.Return) else None
            for at in _parts(value) if value is not None else ():
                for what, other in _edits(at, function):
                    memo: dict[int, Any] = {id(at): other}
                    edited = ast.unparse(copy.deepcopy(tree, memo))
                    if edited not in seen:
                        seen.add(edited)
                        yield f"{function.name}: {what} for {ast.unparse(at)}", edited


def _is_edited(name: str, which: frozenset[str] | None) -> bool:
    return name not in LISTED | SUMMED if which is None else name in which


def _parts(value: ast.AST) -> Iterator[ast.AST]:
    """The expression and those in it, but for which axis of its grid a program asks."""
    yield value
    if not (isinstance(value, ast.Call) and ast.unparse(value.func) in ("tl.program_id", "tl.num_programs")):
        for child in ast.iter_child_nodes(value):
            yield from _parts(child)


def _edits(at: ast.AST, function: ast.FunctionDef) -> Iterator[tuple[str, ast.expr]]:
    if isinstance(at, ast.Call) and isinstance(at.func, ast.Attribute) and at.func.attr in _CALLS:
        other = ast.Attribute(at.func.value, _CALLS[at.func.attr], ast.Load())
        yield f"{other.attr}", ast.Call(other, at.args, [])
        yield from ((f"{ast.unparse(a)} alone", a) for a in at.args)
    if isinstance(at, ast.Call) and isinstance(at.func, ast.Attribute) and at.func.attr == "where":
        yield "branches exchanged", ast.Call(at.func, [at.args[0], at.args[2], at.args[1]], [])
        yield from ((f"{ast.unparse(a)} alone", a) for a in at.args[1:])
    if isinstance(at, ast.BinOp) and type(at.op) in _SWAPPED:
        op = _SWAPPED[type(at.op)]()
        yield f"another operation ({type(op).__name__})", ast.BinOp(at.left, op, at.right)
        yield from ((f"{ast.unparse(side)} alone", side) for side in (at.left, at.right))
        if not isinstance(at.op, ast.Add | ast.Mult):
            yield "sides exchanged", ast.BinOp(at.right, at.op, at.left)
    if isinstance(at, ast.BinOp) and isinstance(at.op, ast.BitAnd):
        yield from ((f"{ast.unparse(side)} alone", side) for side in (at.left, at.right))
    if isinstance(at, ast.Compare):
        yield "less or equal", ast.Compare(at.left, [ast.LtE()], at.comparators)
        yield "sides exchanged", ast.Compare(at.comparators[0], at.ops, [at.left])
    if isinstance(at, ast.IfExp):
        yield "branches exchanged", ast.IfExp(at.test, at.orelse, at.body)
    if isinstance(at, ast.Constant) and isinstance(at.value, bool):
        yield "the other flag", ast.Constant(not at.value)
    elif isinstance(at, ast.Constant) and isinstance(at.value, int):
        yield from ((f"{n}", ast.Constant(n)) for n in (at.value + 1, at.value - 1))
    if isinstance(at, ast.Name) and at.id in (names := _ints(function)):
        yield from ((f"{names[i]}", ast.Name(names[i], ast.Load())) for i in (names.index(at.id) - 1,))
        for op in (ast.Add(), ast.Sub()):
            yield f"one off ({type(op).__name__})", ast.BinOp(at, op, ast.Constant(1))


@cache
def _ints(function: ast.FunctionDef) -> list[str]:
    """Its params that are ints."""
    return [a.arg for a in function.args.args if a.annotation is None and a.arg not in ("back", "one")]


def run_as_python(text: str, program: SimpleNamespace) -> dict[str, Any]:
    """The functions of the text by name, as Python runs them; `program` has the `id` and the `count` of programs."""
    tl = SimpleNamespace(
        minimum=min, maximum=max, constexpr=int, int32=None, int64=None,
        where=lambda condition, a, b: a if condition else b, cast=lambda x, _: x,
        program_id=lambda _: program.id, num_programs=lambda _: program.count,
    )  # fmt: skip
    names: dict[str, Any] = {"tl": tl, "triton": SimpleNamespace(jit=lambda own: own)}
    body = [n for n in ast.parse(text).body if isinstance(n, ast.FunctionDef)]
    exec(ast.unparse(ast.Module(body, [])), names)
    return {n.name: names[n.name] for n in body}


def wrong_functions(text: str, *, inside: bool = True, lists: Lists | None = None, share: bool | None = None) -> str:
    """`inside`: whether kernels also take all batches of a head side by side. `lists`: whose lists there are. `share`:
    see `wrong_parts`.
    """
    program = SimpleNamespace(id=0, count=0)
    f = run_as_python(text, program)
    try:
        found = _wrong_items(f, program, inside) or _wrong_readers(f) or _wrong_queue(f) or _wrong_sums(f)
        found = found or wrong_parts(f, share=share) or wrong_summed(f)
        return found or (wrong_turns(f) if lists is None else wrong_lists(f, lists))
    except (TypeError, ZeroDivisionError) as error:  # as on a number that is not given
        return repr(error)


def _wrong_items(f: dict[str, Any], program: SimpleNamespace, inside: bool) -> str:
    for n_tiles, batches, heads, together in product((1, 2, 3), (1, 2, 3), (1, 2, 5), (1, 2, 4)):
        program.count = count = n_tiles * batches * heads
        sized = n_tiles, heads, together
        calls = [
            *(("tile_of_item", (count, *sized, *flags)) for flags in product((False, True), {False, inside})),
            *(("tile_of_program", (count, *sized, late)) for late in (False, True)),
            *(("busy_tiles_first", (n_tiles, heads, late)) for late in (False, True)),
            ("head_after_head", (n_tiles, heads)),
        ]
        for name, args in calls:
            seen: list[Any] = []
            for program.id in range(count):
                own = (program.id,) if name.startswith("tile_of") else ()
                seen.append(f[name](*own, *args))
            if sorted(seen) != list(product(range(n_tiles), range(batches), range(heads))):
                return f"{name}{args}, {batches} batches: {seen}"
    return ""


def _wrong_readers(f: dict[str, Any]) -> str:
    for group, n_kv in product((1, 2, 3, 5), repeat=2):
        for head in range(group * n_kv):
            if f["kv_head_of"](head, group * n_kv, n_kv) != head // group:
                return f"head {head} of {group} x {n_kv} reads another head of keys"
            if f["query_head"](head // group, head % group, group) != head:
                return f"head {head} of {group} x {n_kv} is another member"
    return ""


def _wrong_queue(f: dict[str, Any]) -> str:
    """One program takes all items. A head has one tile of dQ, to which all of its tiles of keys add, in order."""
    for n_tiles, heads, together, way in product((1, 2, 3, 5), (1, 2, 3, 7, 9), (1, 2, 3), (False, True)):
        added, last = [0] * heads, [-1] * heads
        seen: set[tuple[int, int]] = set()
        where = f"{n_tiles} tiles of {heads} heads, {together} together, {way}"
        for item in range(n_tiles * heads):
            tile, order, back, head = f["tile_of_keys"](item, n_tiles * heads, n_tiles, together, way)
            if not (0 <= head < heads and 0 <= tile < n_tiles) or (head, tile) in seen:
                return f"item {item} is tile {tile} of head {head}: {where}"
            seen.add((head, tile))
            before = f["tile_before"](tile, n_tiles, back, way)
            if added[head] != order or not 0 <= before < n_tiles or (order and before != last[head]):
                return f"tile {tile} of head {head} comes {order}, after tile {last[head]}, not {before}: {where}"
            added[head], last[head] = order + 1, tile
    for first, stop, back in product((0, 2), (2, 5), (False, True)):
        tiles = [f["tile_of_step"](step, first, stop, back, True) for step in range(stop - first)]
        onwards = list(range(first, stop))
        alone = [f["tile_of_step"](step, first, stop, False, False) for step in range(stop - first)]
        if (tiles, alone) != (onwards if back else onwards[::-1], onwards[::-1]):
            return f"steps of {first} to {stop}, {back}: {tiles}"
    return ""


def _wrong_sums(f: dict[str, Any]) -> str:
    """All items leave their sums, and then those of each tile are added. Each query head adds a power of two of its
    own, so a sum tells who is in it."""
    for group, span, n_kv, batches, n_tiles in product((1, 2, 3, 7), (1, 2, 3, 8), (1, 2), (1, 2), (1, 3)):
        count, heads = f["share_count"](group, span), batches * n_kv
        if count < 1:
            return f"groups of {group} by {span} have {count} shares"
        where = f"groups of {group} by {span}, {batches} x {n_kv} heads of keys, {n_tiles} tiles"
        for shares in {1, count}:
            parts: dict[int, int] = {}
            for head, tile in product(range(heads * shares), range(n_tiles)):
                own = f["members"](head, group * n_kv, n_kv, span if shares > 1 else None, shares > 1)
                batch, kv_head, start, end = own
                if not (0 <= batch < batches and 0 <= kv_head < n_kv and 0 <= start < end <= group):
                    return f"head {head} visits {own}: {where}"
                part = f["part_of"](head, tile, n_tiles)
                if part in parts or not 0 <= part < heads * shares * n_tiles:
                    return f"tile {tile} of head {head} has place {part}: {where}"
                whole = batch * n_kv + kv_head
                parts[part] = sum(1 << (whole * group + m) for m in range(start, end)) << (tile * heads * group)
            for kv_head, tile in product(range(heads), range(n_tiles)):
                own_heads = [f["head_of_share"](kv_head, share, shares) for share in range(shares)]
                total = sum(parts.get(f["part_of"](head, tile, n_tiles), 0) for head in own_heads)
                if total != (1 << group) - 1 << (kv_head * group + tile * heads * group):
                    return f"tile {tile} of head {kv_head} of keys sums {total:b}: {where}"
    return ""
