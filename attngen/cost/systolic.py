"""Cycles of attention on one weight-stationary systolic array with a vector unit beside it.

Takes tile shapes and how many tiles are visited, returns `Cycles`. The array multiplies (M, K) by (K, N) in M + K + N -
2 cycles: the first partial sum has crossed the array after K + N - 2, and one row leaves it each cycle. Nothing
overlaps: the vector unit works while the array waits, as in a loop that is not pipelined.

The vector unit passes 128 numbers a cycle. A pass is one operation over a block, and a block that ends inside a vector
costs the whole vector. What it does, in passes:

    over a tile's scores      scale 1, mask 1, row maximum 1, minus the maximum 1, exponential 2, row sum 1     = 7
    over a tile's sums        rescale 1, add 1                                                                 = 2
    over a tile's row values  new maximum 1, m - m' 1, exponential 2, l times it 1, plus the row sum 1         = 6
    after a row of tiles      over the sums: times 1 / l 1; over row values: 1 / l 2, log l 2
    once, all rows packed     log-sum-exp = m + log l, on its way out 1
    unfused, over all scores  the 7 above, and the division 2                                                  = 9

Exponential, logarithm, reciprocal and division take two passes, the others one. The unfused form works on whole rows
and keeps no row values. The array's rule is given; these counts are an assignment found by us. For n = 512, d = 64,
causal, a published run of this model takes 24,556 cycles at tile 64, 16,936 at tile 128 and 20,604 unfused. Its array's
share (13,680, 6,360, 2,172) follows from the rule, and the rest is what these passes add up to, in all three cases.
"""

from __future__ import annotations

from dataclasses import dataclass

PLAIN, DEAR = 1, 2
"""Passes of an operation, and of an exponential, a logarithm, a reciprocal or a division."""

SCORE_PASSES = 5 * PLAIN + DEAR
SUM_PASSES = 2 * PLAIN
ROW_PASSES = 4 * PLAIN + DEAR
LAST_SUM_PASSES = PLAIN
LAST_ROW_PASSES = 2 * DEAR
PACKED_ROW_PASSES = PLAIN
DENSE_PASSES = SCORE_PASSES + DEAR


@dataclass(frozen=True, slots=True)
class Unit:
    """An array of `rows` x `columns` cells, and a vector unit of `lanes`.

    `whole`: a product is taken whole, however large, as in the published run (its unfused products outgrow the array,
    which flatters them). Without, the second factor goes through in pieces that fit the array, one after the other.
    """

    rows: int = 128
    columns: int = 128
    lanes: int = 128
    whole: bool = False

    def product(self, m: int, k: int, n: int) -> int:
        """Cycles of an (m, k) by (k, n) product."""
        if self.whole:
            return m + k + n - 2
        return sum(m + depth + width - 2 for depth in _pieces(k, self.rows) for width in _pieces(n, self.columns))

    def passes(self, count: int, numbers: int) -> int:
        """Cycles of `count` operations over a block of `numbers`."""
        return count * -(-numbers // self.lanes)


def _pieces(size: int, most: int) -> list[int]:
    return [min(most, size - start) for start in range(0, size, most)]


@dataclass(frozen=True, slots=True)
class Cycles:
    matrix: int
    vector: int
    utilisation: float
    """The share of the array's cells that multiply while it runs."""

    @property
    def total(self) -> int:
        return self.matrix + self.vector


def fused(
    unit: Unit, *, tile: tuple[int, int], visited: int, query_tiles: int, queries: int, head_dim: tuple[int, int]
) -> Cycles:
    """The tiled forward pass of one head: `visited` tiles of `tile` = (queries, keys) in `query_tiles` rows of tiles.

    `head_dim` is (D, Dv); `queries` is how many rows have a log-sum-exp to write.
    """
    rows, columns = tile
    d, dv = head_dim
    matrix = visited * (unit.product(rows, d, columns) + unit.product(rows, columns, dv))
    over_scores, over_sums = unit.passes(SCORE_PASSES, rows * columns), unit.passes(SUM_PASSES, rows * dv)
    a_tile = over_scores + over_sums + unit.passes(ROW_PASSES, rows)
    a_row = unit.passes(LAST_SUM_PASSES, rows * dv) + unit.passes(LAST_ROW_PASSES, rows)
    vector = visited * a_tile + query_tiles * a_row + unit.passes(PACKED_ROW_PASSES, queries)
    return Cycles(matrix, vector, _utilisation(unit, visited * rows * columns * (d + dv), matrix))


def unfused(unit: Unit, *, queries: int, keys: int, head_dim: tuple[int, int]) -> Cycles:
    """Scores as a whole, softmax over them, then the product with V. Nothing is skipped."""
    d, dv = head_dim
    matrix = unit.product(queries, d, keys) + unit.product(queries, keys, dv)
    vector = unit.passes(DENSE_PASSES, queries * keys)
    return Cycles(matrix, vector, _utilisation(unit, queries * keys * (d + dv), matrix))


def _utilisation(unit: Unit, products: int, cycles: int) -> float:
    return products / (cycles * unit.rows * unit.columns) if cycles else 0.0
