"""Small numbers of tiles, for a counterexample to how a TPU's kernel walks them in rounds.

Takes the plan's values, returns numbers at which they go wrong, or None.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product

from attngen.ir.nodes import Expr
from attngen.plan.mask.loops import Rounded
from attngen.plan.mask.tpu_walks import Rounds, Straight

LARGEST = 10
UNROLLS = (1, 2, 4)
Names = dict[str, int]


def wrong_rounds(rounds: Rounds) -> Mapping[str, int | float | bool] | None:
    """A number of steps of which the loop, and what follows it one by one, take not each once."""
    for count, unroll in product(range(-1, LARGEST), UNROLLS):
        if count < 0 and unroll > 1:
            continue
        names = {"count": count, "unroll": unroll}
        n = _rounds(rounds.rounds, names)
        taken = [
            _value(rounds.step, {**names, "rounds": n, "i": i, "j": j}) for i, j in product(range(n), range(unroll))
        ]
        if unroll > 1:
            taken += range(_value(rounds.rest, {**names, "rounds": n}), count)
        if sorted(taken) != list(range(count)):
            return names
    return None


def wrong_tails(straight: Straight) -> Mapping[str, int | float | bool] | None:
    """Numbers of tiles of which the loop, and what is left after it, take not each once, or nothing is left."""
    for n_full, n_partial, unroll in product(range(LARGEST), range(3), UNROLLS):
        names = {"n_full": n_full, "n_partial": n_partial, "unroll": unroll}
        looped = _value(straight.looped, {**names, "rounds": _rounds(straight.rounds, names)})
        counted = {**names, "looped": looped}
        left = _value(straight.left, counted)
        whole = [*range(looped), *(_value(straight.unmasked, {**counted, "i": i}) for i in range(left))]
        masked = [_value(straight.masked, {**counted, "i": i}) for i in range(n_partial)]
        empty = left + n_partial <= 0 < n_full + n_partial
        if sorted(whole) != list(range(n_full)) or sorted(masked) != list(range(n_partial)) or empty:
            return names
    return None


def _rounds(rounded: Rounded, names: Names) -> int:
    bound = _value(rounded.bound, names)
    return -(-bound // names["unroll"]) if rounded.up else bound // names["unroll"]


def _value(e: Expr, names: Names) -> int:
    from attngen.ir.evaluate import evaluate  # with NumPy, which is not loaded for what z3 shows

    return int(evaluate(e, names, {}))
