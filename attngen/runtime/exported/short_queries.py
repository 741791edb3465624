# pyright: strict, reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false, reportPrivateUsage=false
# PyTorch and Triton have few types, and private names.

"""Whether and into how many pieces the walk of short queries over keys is cut, by shapes and GPU alone."""

from __future__ import annotations

from torch import Tensor

from .devices import ceil, chip, multiprocessors, padded
from .tables import shares_by_chip

LEAST_TILES = 4  # keys of fewer tiles stay whole: two pieces of two tiles are the least that is worth a second kernel
FEW_QUERIES = 16  # up to so many, a forward tile is mostly padding: always cut
MANY_QUERIES = 128  # above it the largest forward tile is full: never cut
IDLE = 4  # between the two cut where the forward kernel's programs take one in so many of the GPU's places, or fewer
MOST_PIECES = 128  # each leaves its state in memory, and one program merges all of a row's
TILES_OF_PIECE = 2  # of keys, at least: one alone would have nothing to load ahead
NEARLY = 0.9  # the fewest pieces are taken that keep this share of the GPU busy, of what any number would
TWO_ROUNDS = 0.85  # between exactly two rounds of programs memory idles: what the share is multiplied by


def split_tile(table: str, q: Tensor, k: Tensor, v: Tensor, packed: bool) -> tuple[int, int, int, int]:
    """Rows, keys, warps and stages of a piece's tiles. `packed`: a tile has the rows of all heads that share keys."""
    Hq, Hkv, Sq = q.shape[1], k.shape[1], q.shape[2]
    most_rows, most_keys, area, warps, stages, _ = shares_by_chip(table)[chip(q.device), q.element_size()]
    longest = max(16, area // padded(max(q.shape[3], v.shape[3])))
    rows = Hq // Hkv * Sq if packed else Sq
    return min(padded(rows), most_rows, longest), min(most_keys, longest), warps, stages


def split_pieces(table: str, q: Tensor, k: Tensor, v: Tensor, packed: bool, whole: int) -> int:
    """How many pieces the keys of a tile are cut into, so that bits repeat; 0: no pieces. `whole`: the programs of the
    forward kernel."""
    B, Hq, Sq, _ = q.shape
    Hkv, Sk = k.shape[1:3]
    BQ, BK, _, _ = split_tile(table, q, k, v, packed)
    slots = shares_by_chip(table)[chip(q.device), q.element_size()][-1] * multiprocessors(q.device)
    if Sk < LEAST_TILES * BK or Sq > MANY_QUERIES or (Sq > FEW_QUERIES and IDLE * whole > slots):
        return 0
    programs = B * (ceil(Hq // Hkv * Sq, BQ) * Hkv if packed else ceil(Sq, BQ) * Hq)
    counts = [programs * n for n in range(1, min(MOST_PIECES, ceil(Sk, TILES_OF_PIECE * BK)) + 1)]
    busy = [n / (ceil(n, slots) * slots) * (TWO_ROUNDS if slots < n <= 2 * slots else 1.0) for n in counts]
    return 1 + next(i for i, share in enumerate(busy) if share >= NEARLY * max(busy))
