"""How the portable kernels of GPUs walk their tiles: a value of the plan, which targets print and the prover checks."""

from __future__ import annotations

from dataclasses import dataclass

from attngen.ir.attention import Attention
from attngen.ir.nodes import Expr
from attngen.plan.index import Index, items
from attngen.plan.mask.loops import Loops
from attngen.plan.mask.walks import TwoWalks, two_walks
from attngen.plan.score.weights import Weights
from attngen.plan.split import Split, split


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuWalks:
    """`keys` and `queries`: how kernels number the tiles of the plan's loops. `index`: the functions that say which
    item is which tile of which head, and what it sums. `split`: how short queries share the walk over keys."""

    keys: TwoWalks
    queries: TwoWalks
    index: Index
    split: Split | None


def gpu_walks(attention: Attention, form: Weights, keys: Loops, queries: Loops, keeps_key: Expr | None) -> GpuWalks:
    return GpuWalks(
        keys=two_walks(keys),
        queries=two_walks(queries),
        index=items(),
        split=split(attention, form, keys, keeps_key),
    )
