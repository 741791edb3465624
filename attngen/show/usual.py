"""What a picture shows where nobody says it: sizes at which the mask shows, tiles that can be seen, invented params.

Takes a spec and its plan; returns a `Survey`, or the sizes and the tile for one. Refuses what would take minutes.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

from attngen import inputs
from attngen.errors import UsageError
from attngen.ir import printing, walk
from attngen.ir.attention import Attention
from attngen.ir.evaluate import evaluate
from attngen.plan import KernelPlan
from attngen.show.survey import MOST_PAIRS, Survey, survey

_MOST_TILES = 2**28
_MOST_LOOKED_AT = 2**18
"""Where data decide, each pair of tiles is looked at."""
_MOST_ELEMENTS = 2**26


def usual(spec: Attention, plan: KernelPlan) -> Survey:
    """A survey of a callable spec. Raises `UsageError` where no sizes or values for it are found."""
    sizes = inputs.settle(spec, usual_sizes(spec))
    needed, tile = walk.params(spec.mask), usual_tile(spec, sizes)
    check_sizes(spec, plan, sizes, needed, tile)
    return survey(plan, sizes, inputs.examples(spec, sizes, only=needed), tile=tile)


def usual_sizes(spec: Attention) -> dict[str, int]:
    length = inputs.telling_length(spec)
    return {"B": 1, "Hq": 1, "Hkv": 1, "Sq": length, "Sk": length, "D": 64, "Dv": 64}


def usual_tile(spec: Attention, sizes: Mapping[str, int]) -> tuple[int, int]:
    """The spec's tile, or a usual one, unless the picture would be of a few tiles only."""
    tile = spec.tile or (128, 64)
    return tile if max(sizes["Sq"], sizes["Sk"]) >= 8 * max(tile) else (16, 16)


def check_sizes(
    spec: Attention, planned: KernelPlan, sizes: Mapping[str, int], invented: Collection[str], tile: tuple[int, int]
) -> None:
    """Raises `UsageError` for sizes whose picture would take minutes, or more memory than there is."""
    most = _MOST_LOOKED_AT if planned.keys.tests else _MOST_TILES
    if planned.map is not None:
        most = MOST_PAIRS // (tile[0] * tile[1])
    queries, keys = (-(-sizes[size] // step) for size, step in zip(("Sq", "Sk"), tile, strict=True))
    if queries * keys > most:
        works = 2 ** int(math.log2(most * tile[0] * tile[1]) / 2)
        raise UsageError(
            f"Sq = {sizes['Sq']} and Sk = {sizes['Sk']} have {queries * keys:,} tiles of {tile[0]} x {tile[1]}, and a "
            f"picture of this mask at most {most:,}: --size Sq={works} Sk={works} works"
        )
    for param in spec.params:
        elements = math.prod(int(evaluate(dim, sizes, {})) for dim in param.shape)
        if param.name in invented and elements > _MOST_ELEMENTS:
            dims = ", ".join(map(printing.expression, param.shape))
            raise UsageError(
                f"param `{param.name}` ({dims}) would have {elements:,} elements, and a picture is drawn with at most "
                f"{_MOST_ELEMENTS:,} for each param: take smaller sizes with --size"
            )
