"""What is computed once a head, a row or a column, and what for every pair."""

from __future__ import annotations

import pytest
from property.kernels import analysed

from attngen.ir.walk import nodes
from attngen.plan.levels import Level, level_of, schedule

PARAMS = "param s: f32[Hq]\nparam r: f32[B, Sq]\nparam c: f32[B, Sk]\nparam t: f32[n]\nparam cap: f32"


def scored(body: str):
    return analysed(f"attention subject\n{PARAMS}\nscore = {body}\n").score


@pytest.mark.parametrize(
    ("body", "level"),
    [
        ("cap * s[h]", Level.HEAD),
        ("scale + float(Sq) + float(b)", Level.HEAD),
        ("r[b, q]", Level.ROW),
        ("float(q) * s[h]", Level.ROW),
        ("c[b, k]", Level.COLUMN),
        ("tanh(float(k) + cap)", Level.COLUMN),
        ("r[b, q] + c[b, k]", Level.PAIR),
        ("t[q - k]", Level.PAIR),
        ("qk", Level.PAIR),
        ("qk * r[b, q]", Level.PAIR),
    ],
)
def test_levels(body: str, level: Level) -> None:
    assert level_of(scored(body)) is level


def test_parts_are_bound_at_their_own_level() -> None:
    e = scored("qk * tanh(cap + s[h]) + exp(r[b, q]) - sin(c[b, k])")
    found = schedule({"x": e})
    levels = {type(b.expr).__name__ + getattr(b.expr, "op", ""): b.level for b in found.bindings}
    assert levels["Applytanh"] is Level.HEAD
    assert levels["Applyexp"] is Level.ROW
    assert levels["Applysin"] is Level.COLUMN
    assert not found.at(Level.PAIR)  # nothing of the pair is used twice


def test_what_is_used_twice_is_bound_once() -> None:
    found = schedule({"x": scored("tanh(qk) * tanh(qk) + tanh(qk)")})
    assert [b.level for b in found.bindings].count(Level.PAIR) == 1


def test_bindings_stand_before_their_use_and_above_their_users() -> None:
    e = scored("tanh(exp(r[b, q]) + qk) * exp(r[b, q]) + sin(c[b, k] + s[h] * cap) * tanh(exp(r[b, q]) + qk)")
    found = schedule({"x": e, "y": scored("qk * exp(r[b, q])")})
    bound = [b.expr for b in found.bindings]
    assert len(set(bound)) == len(bound)
    for i, b in enumerate(found.bindings):
        inner = {n for n in nodes(b.expr) if n is not b.expr}
        for later in found.bindings[i:]:
            assert later.expr not in inner
        for earlier in found.bindings[:i]:
            if earlier.expr in inner:
                assert earlier.level in (Level.HEAD, b.level) or b.level is Level.PAIR


def test_lets_give_their_names() -> None:
    e = analysed("attention subject\nlet distance = q - k\nscore = qk - 0.1 * (distance * distance)\n").score
    assert "distance" in [b.name for b in schedule({"x": e}).bindings]
