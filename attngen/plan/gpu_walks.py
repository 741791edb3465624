"""How the portable kernels of GPUs walk their tiles: a value of the plan, which targets print and the prover checks."""

from __future__ import annotations

from dataclasses import dataclass

from attngen.ir.attention import Attention
from attngen.ir.nodes import Expr
from attngen.plan.mask.loops import Loops
from attngen.plan.mask.order import Heads, Order, batch_by_batch, in_turn, one_by_one
from attngen.plan.mask.walks import TwoWalks, two_walks
from attngen.plan.score.weights import Weights
from attngen.plan.split import Split, split


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuWalks:
    """`keys` and `queries`: how kernels number the tiles of the plan's loops. `in_turn` and `one_by_one`: which item is
    which tile, with tiles of some heads in turn, and with heads one after the other. `heads`: which number is which
    head of which batch. `split`: how short queries share the walk over keys."""

    keys: TwoWalks
    queries: TwoWalks
    in_turn: Order
    one_by_one: Order
    heads: Heads
    split: Split | None


def gpu_walks(attention: Attention, form: Weights, keys: Loops, queries: Loops, keeps_key: Expr | None) -> GpuWalks:
    return GpuWalks(
        keys=two_walks(keys),
        queries=two_walks(queries),
        in_turn=in_turn(),
        one_by_one=one_by_one(),
        heads=batch_by_batch(),
        split=split(attention, form, keys, keeps_key),
    )
