"""Drawn masks that divide, with constants, params and elements at the ends of int32: is what is proved of them right?

`fault(seed)` draws one and says what is wrong, or nothing. Of a mask whose ints are proved to fit, the printed Triton
text runs on registers that nothing may leave, for positions up to the longest, beside the definition in whole numbers;
the printed loop bounds run on them too, and their tiles are compared with all pairs of a short sequence. Likewise the
printed JAX text, on arrays of int32.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from attngen import targets
from attngen.emit.jax_shared.expressions import Printer as JaxPrinter, division_helpers as jax_helpers
from attngen.emit.text.render import render
from attngen.emit.triton.code.expressions import Printer, division_helpers
from attngen.emit.triton.code.tile_loops import plain_lines
from attngen.ir.evaluate import evaluate
from attngen.ir.nodes import Apply, Expr, Load, Scalar, Symbol
from attngen.ir.walk import nodes, substitute
from attngen.plan import KernelPlan, plan
from attngen.plan.mask.loops import ZERO, Loops
from attngen.prove.budget.work import Work
from attngen.prove.obligations.integer_width import integer_width
from attngen.prove.verdict import Proved
from property.kernels import analysed
from property.registers import NAMESPACE, Left, Register

LEAST, MOST = -(2**31), 2**31 - 1
CONSTANTS = (1, 2, 3, 7, 16, 64, 1000, 46341, 2**30, 2**30 + 1, MOST - 1, MOST, 2**31, 2**31 + 1)
VALUES = (LEAST, LEAST + 1, LEAST + 2, -(2**30), -46341, -7, -1, 0, 1, 3, 16, 1000, 2**30, MOST - 1, MOST)
PARAMS = {"n": "int where n != 0", "c": "int where c > 0", "w": "int", "t": "int[Sk]"}
LENGTH, TILE = 40, 16
JAX_TOO = 10
"""One draw in so many: what saturates takes the prover ten times as long."""


def mask(draw: random.Random) -> str:
    def constant() -> str:
        return str(draw.choice((1, 1, 1, -1)) * draw.choice(CONSTANTS))

    def number(depth: int) -> str:
        if depth == 0 or draw.random() < 0.2:
            return draw.choice(("q", "k", "(q - k)", "(k - q)", f"(k - {constant()})", "w", "t[k]", "n"))
        a = number(depth - 1)
        match draw.randrange(7):
            case 0 | 1:
                return f"{a} // {draw.choice(('n', 'c', constant()))}"
            case 2 | 3:
                return f"{a} % {draw.choice(('n', 'c', constant()))}"
            case 4:
                return f"({a} {draw.choice('+-')} {draw.choice(('q', 'k', 'w', constant()))})"
            case 5:
                return f"{draw.choice(('min', 'max'))}({a}, {number(depth - 1)})"
            case _:
                return f"({a} // c * c)" if draw.random() < 0.5 else f"abs({a})"

    def atom() -> str:
        compare = draw.choice(("<=", "<", "==", ">", ">=", "!="))
        return f"{number(2)} {compare} {draw.choice((number(1), '0', '-1', '20', constant()))}"

    return f" {draw.choice(('and', 'or'))} ".join(atom() for _ in range(draw.choice((1, 1, 2))))


@dataclass(frozen=True)
class Drawn:
    text: str
    scalars: Mapping[str, int]
    elements: np.ndarray


def drawn(seed: int) -> Drawn:
    draw = random.Random(seed)
    condition = mask(draw)
    declared = [f"param {name}: {type}" for name, type in PARAMS.items() if name in _names(condition)]
    scalars = {"n": draw.choice([-1, -1, *(v for v in VALUES if v)]), "c": draw.choice([v for v in VALUES if v > 0])}
    scalars["w"] = draw.choice((LEAST, LEAST, LEAST, *VALUES))
    elements = np.array([draw.choice((LEAST, *VALUES)) for _ in range(LENGTH)], np.int64)
    return Drawn("\n".join(("attention drawn", *declared, f"mask = {condition}", "")), scalars, elements)


def _names(condition: str) -> set[str]:
    return set("".join(c if c.isalnum() else " " for c in condition).split())


def fault(seed: int) -> str:
    """What is wrong with the draw, or nothing."""
    case = drawn(seed)
    attention = analysed(case.text)
    at = f" in draw {seed}:\n{case.text}params {dict(case.scalars)}"
    checks = (("triton", _triton), ("jax", _jax)) if seed % JAX_TOO == 0 else (("triton", _triton),)
    for target, check in checks:
        planned = plan(attention, targets.named(target).limits())
        claims = integer_width(planned, Work())
        if all(isinstance(c.verdict, Proved) for c in claims):  # else the file is refused, or the range is not used
            found = check(planned, case)
            if found:
                return f"{target}: {found}{at}"
    return ""


def refused(seed: int) -> bool:
    planned = plan(analysed(drawn(seed).text), targets.named("triton").limits())
    return not all(isinstance(c.verdict, Proved) for c in integer_width(planned, Work()))


# ---------------------------------------------------------------- pairs


def _pairs(planned: KernelPlan, case: Drawn) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Positions, and an element for each; `LENGTH` pairs, near and far."""
    draw = np.random.default_rng(len(case.text))
    far = planned.choices.longest - 1
    ends = np.array([0, 1, 2, 15, 37, 1000, far // 2, far - 1, far])
    return {"q": draw.choice(ends, LENGTH), "k": draw.choice(ends, LENGTH)}, case.elements


def _exact(planned: KernelPlan, case: Drawn, e: Expr, at: Mapping[str, np.ndarray], elements: np.ndarray) -> np.ndarray:
    """`e` in whole numbers. Element i belongs to pair i."""
    own = {load: Symbol("element", load.type) for load in nodes(e) if isinstance(load, Load)}
    env = {**_sizes(planned), **at, "element": elements}
    return np.broadcast_to(evaluate(substitute(e, own), env, dict(case.scalars)), at["q"].shape)


def _sizes(planned: KernelPlan) -> dict[str, int]:
    longest = planned.choices.longest
    return {
        "B": 1,
        "Hq": 1,
        "Hkv": 1,
        "Sq": longest - 1,
        "Sk": longest - 1,
        "D": 16,
        "Dv": 16,
        "b": 0,
        "h": 0,
        "hkv": 0,
    }


# ---------------------------------------------------------------- Triton


def _triton(planned: KernelPlan, case: Drawn) -> str:
    return _printed_mask(planned, case) or "".join(
        _printed_bounds(planned, case, loops) for loops in (planned.key_loops, planned.query_loops)
    )


def _printer(planned: KernelPlan) -> Printer:
    params = {p.name: p for p in planned.attention.params}
    printer = Printer(planned.choices, params, {name: name for name in params})
    for load in (e for e in nodes(planned.attention.mask) if isinstance(e, Load)):
        printer.bind(load, "element")
    return printer


def _scope(planned: KernelPlan) -> dict[str, Any]:
    scope = dict(NAMESPACE)
    for d in division_helpers(planned.choices):
        body = f"    quotient = number // divisor\n    remainder = {d.remainder}\n    return {d.value}\n"
        exec(f"def {d.name}(number, divisor):\n{body}", scope)
    return scope


def _printed_mask(planned: KernelPlan, case: Drawn) -> str:
    """The mask and every int in it."""
    at, elements = _pairs(planned, case)
    scalars = {name: Register(value) for name, value in (*case.scalars.items(), *_sizes(planned).items())}
    scope = _scope(planned) | scalars
    printer = _printer(planned)
    for e in (x for x in nodes(planned.attention.mask) if isinstance(x, Apply)):
        text = printer.text(e)
        printed = compile(text, "mask", "eval")
        exact = _exact(planned, case, e, at, elements).tolist()
        for q, k, element, wanted in zip(at["q"], at["k"], elements, exact, strict=True):
            own = {"q_idx": Register(int(q)), "k_idx": Register(int(k)), "element": Register(int(element))}
            where = f"at q = {q}, k = {k}, t[k] = {element}"
            try:
                if eval(printed, scope | own) != wanted:
                    return f"`{text}` is not {wanted} {where}"
            except Left as left:
                return f"`{text}` has an int that leaves its register, {left}, {where}"
    return ""


def _printed_bounds(planned: KernelPlan, case: Drawn, loops: Loops) -> str:
    """Tiles that the printed steps walk, beside the pairs of a short sequence."""
    if loops.tests:
        return ""
    grid = {"q": np.repeat(np.arange(LENGTH), LENGTH), "k": np.tile(np.arange(LENGTH), LENGTH)}
    pairs = _exact(planned, case, planned.attention.mask, grid, np.tile(case.elements, LENGTH)).reshape(LENGTH, LENGTH)
    pairs = pairs if loops.axis == "k" else pairs.T
    block, held = ("BK", "q") if loops.axis == "k" else ("BQ", "k")
    steps = plain_lines(loops.steps, _printer(planned), block, f"S{loops.axis}")
    lines = compile("\n".join(steps), "bounds", "exec")
    sizes = {"Sq": Register(LENGTH), "Sk": Register(LENGTH), block: TILE}
    for first in range(0, LENGTH, TILE):
        last = min(first + TILE, LENGTH) - 1
        # As the generated function has it: positions and scalars in 64 bits.
        own = {f"{held}0": Register(first, 64), f"{held}1": Register(last, 64)}
        scope = {**_scope(planned), **{n: Register(x, 64) for n, x in case.scalars.items()}, **sizes, **own}
        try:
            exec(lines, scope)
        except Left as left:
            return f"a bound of the loops over {loops.axis} leaves its register, {left}, at {held} = {first} … {last}"
        walked = {
            kind: [t for run in runs for t in range(_tile(run.start, scope), _tile(run.stop, scope))]
            for kind, runs in (("full", loops.full), ("partial", loops.partial))
        }
        for tile in range(-(-LENGTH // TILE)):
            part = pairs[first : last + 1, tile * TILE : (tile + 1) * TILE]
            if part.any() and walked["full"].count(tile) + walked["partial"].count(tile) != 1:
                return f"tile {tile} of {loops.axis} is not walked once at {held} = {first} … {last}"
            if tile in walked["full"] and not (part.all() and part.shape[1] == TILE):
                return f"tile {tile} of {loops.axis} goes without the mask at {held} = {first} … {last}"
    return ""


def _tile(name: str, scope: Mapping[str, Any]) -> int:
    value = 0 if name == ZERO else scope[name]
    return value.value if isinstance(value, Register) else int(value)


# ---------------------------------------------------------------- JAX


def _jax(planned: KernelPlan, case: Drawn) -> str:
    def leaf(e: Expr) -> str:
        match e:
            case Symbol():
                return {"q": "q_idx", "k": "k_idx"}.get(e.id, e.id)
            case Scalar():
                return e.param
            case _:
                return "element"

    at, elements = _pairs(planned, case)
    text = JaxPrinter(planned.choices, leaf).text(planned.attention.mask)
    own = {"q_idx": at["q"], "k_idx": at["k"], "element": elements}
    scope = {**_jax_module(), **{n: jnp.asarray(x, jnp.int32) for n, x in (*case.scalars.items(), *own.items())}}
    printed = np.broadcast_to(np.asarray(eval(text, scope | _sizes(planned))), LENGTH)
    wanted = _exact(planned, case, planned.attention.mask, at, elements)
    if np.array_equal(printed, wanted):
        return ""
    i = int(np.argmax(printed != wanted))
    return f"`{text}` is not {wanted[i]} at q = {at['q'][i]}, k = {at['k'][i]}, t[k] = {elements[i]}"


@functools.cache
def _jax_module() -> dict[str, Any]:
    empty = plan(analysed("attention empty\n"), targets.named("jax").limits())
    views = SimpleNamespace(form=None)
    context = {"divisions": jax_helpers(empty.choices), "w": views, "dropout": False, "operands": ()}
    scope: dict[str, Any] = {"jnp": jnp, "lax": lax, "LOG2E": 1.4426950408889634}
    exec(render("jax_shared/arithmetic.py.j2", context), scope)
    return scope
