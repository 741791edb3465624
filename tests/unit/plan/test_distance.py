"""What depends on a pair by its distance alone, and what of it kernels compute once for each diagonal of a tile."""

from __future__ import annotations

import pytest
from property.kernels import analysed

from attngen.ir.printing import expression
from attngen.plan import plan

PARAMS = "param slope: f32[Hq] fixed\nparam table: f32[64, Hq] fixed\nparam rows: f32[Sq] fixed\nparam n: int\n"
LOG2E = "1.4426950408889634"


@pytest.mark.parametrize(
    ("score", "shared"),
    [
        ("qk + table[clamp(q - k, 0, 63), h]", [f"table[min(max(q - k, 0), 63), h] * {LOG2E}"]),
        ("qk * scale + table[clamp(k - q + n, 0, 63), h]", None),
        ("qk - slope[h] * log(1 + abs(q - k))", None),
        ("qk * 0.5 ** abs(q - k)", None),
        ("qk - slope[h] * abs(q - k)", []),  # an instruction or two
        ("qk + table[clamp(q + k, 0, 63), h]", []),
        ("qk + table[clamp(q // 2 - k // 2, 0, 63), h]", []),
        ("qk + log(1 + abs(q - 2 * k))", []),
        ("qk + log(1 + abs(rows[q]))", []),
        ("softcap(qk, 20)", []),
        ("qk + table[clamp(int(qk), 0, 63), h]", []),
    ],
)
def test_what_is_one_along_a_diagonal(score: str, shared: list[str] | None) -> None:
    """`None`: one part, whose form is the planner's own."""
    found = plan(analysed(f"attention subject\n{PARAMS}score = {score}\n")).diagonals
    assert len(found) == 1 if shared is None else [expression(e) for e in found] == shared
