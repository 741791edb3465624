"""Brute force for numbers: the plan's recurrence, executed in float64, beside the definition.

Takes a spec and a plan (either may be mutated), folds tiles of keys as the templates do, merges the extra term, and
computes every gradient from the plan's own derivatives; compares with `attngen.reference`, which reads the definition
alone. The mask is applied everywhere, so ranges and loops play no part here. Gives the first difference in words.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from attngen import reference
from attngen.errors import UsageError
from attngen.ir.attention import Attention
from attngen.ir.evaluate import Tape, evaluate
from attngen.ir.nodes import Expr, Literal, Symbol, Type
from attngen.ir.walk import nodes, substitute
from attngen.plan.kernel import Gather, KernelPlan
from attngen.plan.score.weights import Form
from mutation.draws import Drawn, draws

LOG2E = 1.0 / math.log(2.0)
LARGEST = {"fp32": 3.4028e38, "fp16": 65504.0}
HIGH = (0.5, 130.0)
"""How large the scores' q . k are: ordinary ones, and such that a kernel must bear in every dtype."""


class Wrong(Exception):
    """The computation gives something that no right one gives."""


@dataclass
class Inputs:
    drawn: Drawn
    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    d_out: np.ndarray
    d_lse: np.ndarray
    scale: float


def wrong_numbers(attention: Attention, plan: KernelPlan, *, count: int = 5, seed: int = 0) -> str:
    """What the plan computes wrongly, in words; empty if no trial shows anything."""
    for number, drawn in enumerate(draws(attention, count, longest=9, seed=seed)):
        inputs = _inputs(drawn, seed + number)
        try:
            problem = _compare(attention, plan, inputs, tile=(3, 1, 4)[number % 3])
        except (Wrong, UsageError) as wrong:  # a usage error: a symbol that has no value where the kernel reads it
            problem = str(wrong)
        if problem:
            return f"{problem}; {dict(drawn.sizes)}, params {drawn.params}"
    return overflow(attention, plan, seed)


def _inputs(drawn: Drawn, seed: int) -> Inputs:
    r = np.random.default_rng(seed)
    B, Hq, Hkv, Sq, Sk, D, Dv = (drawn.sizes[n] for n in ("B", "Hq", "Hkv", "Sq", "Sk", "D", "Dv"))
    q, k, v = r.normal(size=(B, Hq, Sq, D)), r.normal(size=(B, Hkv, Sk, D)), r.normal(size=(B, Hkv, Sk, Dv))
    return Inputs(drawn, q, k, v, r.normal(size=(B, Hq, Sq, Dv)), r.normal(size=(B, Hq, Sq)), 0.75)


def _compare(attention: Attention, plan: KernelPlan, x: Inputs, tile: int) -> str:
    floats = {p.name for p in attention.params if p.type is Type.FLOAT}
    want = reference.evaluate(attention, x.q, x.k, x.v, params=x.drawn.params, scale=x.scale)
    got, saved = forward(plan, x, tile)
    for name, a, b in (("out", got.out, want.out), ("lse", got.lse, want.lse)):
        if not _close(a, b):
            return _difference(name, a, b)
    finite = np.where(np.isfinite(want.lse), x.d_lse, 0.0)
    wanted = reference.gradients(
        attention, x.q, x.k, x.v, x.d_out, finite, params=x.drawn.params, scale=x.scale
    )  # fmt: skip
    q, k, v, params = backward(plan, x, got, saved, finite)
    for name, a, b in (("d_q", q, wanted.q), ("d_k", k, wanted.k), ("d_v", v, wanted.v)):
        if not _close(a, b):
            return _difference(name, a, b)
    for name in sorted(floats):
        if not _close(params[name], wanted.params[name]):
            return _difference(f"d_{name}", params[name], wanted.params[name])
    return ""


def _close(a: np.ndarray, b: np.ndarray) -> bool:
    return bool(np.allclose(a, b, rtol=1e-6, atol=1e-8, equal_nan=True))


def _difference(name: str, a: np.ndarray, b: np.ndarray) -> str:
    at = tuple(int(i) for i in np.argwhere(~np.isclose(a, b, rtol=1e-6, atol=1e-8, equal_nan=True))[0])
    return f"{name}{list(at)} is {float(a[at]):.6g} and not {float(b[at]):.6g}"


# ---------------------------------------------------------------- forward


@dataclass
class Pairs:
    """One head: what the plan evaluates for every pair."""

    env: dict[str, Any]
    allowed: np.ndarray
    unit: np.ndarray


@dataclass
class Saved:
    pairs: dict[tuple[int, int], Pairs]
    den: np.ndarray


def _pairs(plan: KernelPlan, x: Inputs, b: int, h: int) -> Pairs:
    group = x.drawn.sizes["Hq"] // x.drawn.sizes["Hkv"]
    sq, sk = x.drawn.sizes["Sq"], x.drawn.sizes["Sk"]
    qk = x.q[b, h] @ x.k[b, h // group].T
    at = {"q": np.arange(sq)[:, None], "k": np.arange(sk)[None, :]}
    env = x.drawn.env(b, h, **at, qk=qk, scale=x.scale)
    along = {e: Symbol(f"along{i}", Type.FLOAT) for i, e in enumerate(plan.diagonals)}
    env |= {s.id: _along(np.broadcast_to(evaluate(e, env, x.drawn.params), (sq, sk))) for e, s in along.items()}
    allowed = np.broadcast_to(evaluate(plan.attention.mask, env, x.drawn.params), (sq, sk))
    unit = np.broadcast_to(evaluate(substitute(plan.weights.unit, along), env, x.drawn.params), (sq, sk))
    if not np.isfinite(unit[allowed]).all() and not _writes_infinity(plan.weights.unit):
        raise Wrong("a logit is not finite")
    return Pairs(env, allowed, unit)


def _along(pairs: np.ndarray) -> np.ndarray:
    """What every pair has that takes its value from where its diagonal begins."""
    q, k = np.indices(pairs.shape)
    first = np.minimum(q, k)
    return pairs[q - first, k - first]


def _writes_infinity(e: Expr) -> bool:
    return any(isinstance(n, Literal) and math.isinf(n.value) for n in nodes(e))


def _of_head(plan: KernelPlan, e: Expr, p: Pairs, x: Inputs) -> float:
    found = evaluate(e, p.env, x.drawn.params)
    if found.size != 1:
        raise Wrong("what is computed once a head differs inside it")
    return float(found.reshape(()))


def forward(plan: KernelPlan, x: Inputs, tile: int) -> tuple[reference.Result, Saved]:
    B, Hq, Sq = x.d_lse.shape
    out, lse, den = np.zeros(x.d_out.shape), np.zeros((B, Hq, Sq)), np.ones((B, Hq, Sq))
    pairs: dict[tuple[int, int], Pairs] = {}
    with np.errstate(all="ignore"):
        for b, h in x.drawn.heads:
            p = pairs[b, h] = _pairs(plan, x, b, h)
            v = x.v[b, h // (Hq // x.v.shape[1])]
            fold = _shifted if plan.weights.form is not Form.DIRECT else _direct
            out[b, h], lse[b, h], den[b, h] = fold(plan, x, p, v, tile)
    return reference.Result(out, lse), Saved(pairs, den)


def _tiles(p: Pairs, tile: int) -> list[slice]:
    return [slice(start, start + tile) for start in range(0, p.unit.shape[1], tile)]


def _shifted(plan: KernelPlan, x: Inputs, p: Pairs, v: np.ndarray, tile: int) -> tuple[Any, Any, Any]:
    """Exponential and shifted forms."""
    w, rows = plan.weights, p.unit.shape[0]
    factor = _of_head(plan, w.factor, p, x)
    if not w.sums:
        raise Wrong("no sum is kept, and the result is divided by it")
    if w.form is Form.EXPONENTIAL:
        natural = np.broadcast_to(evaluate(w.natural, p.env, x.drawn.params), p.unit.shape)
        if not _close(natural[p.allowed] * LOG2E, p.unit[p.allowed] * factor):
            raise Wrong("the logit is not the natural one times log2 e")
        score = np.broadcast_to(evaluate(plan.attention.score, p.env, x.drawn.params), p.unit.shape)
        if not _close(natural[p.allowed], score[p.allowed] * _of_head(plan, w.kappa, p, x)):
            raise Wrong("the natural logit is not kappa times the score")
    row_max, row_sum, acc = np.full(rows, -np.inf), np.zeros(rows), np.zeros((rows, v.shape[1]))
    for part in _tiles(p, tile):
        allowed = p.allowed[:, part]
        score = np.where(allowed, p.unit[:, part], -np.inf)
        new_max = np.maximum(row_max, score.max(1))
        shift = np.where(new_max == -np.inf, 0.0, new_max)
        rescale = np.exp2((row_max - shift) * factor)
        if w.form is Form.EXPONENTIAL:
            weight = np.exp2(score * factor - (shift * factor)[:, None])
        else:
            env = {**p.env, "s": score, "m": shift[:, None], "k": np.asarray(p.env["k"])[:, part]}
            weight = np.where(allowed, evaluate(w.stream, env, x.drawn.params), 0.0)
        row_sum = row_sum * rescale + weight.sum(1)
        acc = acc * rescale[:, None] + weight @ v[part]
        row_max = new_max
    empty = row_max == -np.inf
    total = row_max * factor
    if w.log_extra is not None:
        extra = _of_head(plan, w.log_extra, p, x) * LOG2E
        merged = np.maximum(total, extra)
        shift = np.where(merged == -np.inf, 0.0, merged)
        rescale = np.exp2(total - shift)
        row_sum = row_sum * rescale + np.exp2(extra - shift)
        acc, total, empty = acc * rescale[:, None], merged, merged == -np.inf
    elif w.form is Form.SHIFTED:
        empty = empty | (row_sum == 0)
    row_sum = np.where(empty, 1.0, row_sum)
    return acc / row_sum[:, None], np.where(empty, -np.inf, (total + np.log2(row_sum)) / LOG2E), row_sum


def _direct(plan: KernelPlan, x: Inputs, p: Pairs, v: np.ndarray, tile: int) -> tuple[Any, Any, Any]:
    w, rows = plan.weights, p.unit.shape[0]
    row_sum, acc = np.zeros(rows), np.zeros((rows, v.shape[1]))
    for part in _tiles(p, tile):
        env = {**p.env, "s": p.unit[:, part], "k": np.asarray(p.env["k"])[:, part]}
        weight = np.where(p.allowed[:, part], evaluate(w.stream, env, x.drawn.params), 0.0)
        row_sum, acc = row_sum + weight.sum(1), acc + weight @ v[part]
    if not w.sums:
        return acc, np.zeros(rows), np.ones(rows)
    if w.extra is not None:
        row_sum = row_sum + _of_head(plan, w.extra, p, x)
    empty = row_sum == 0
    den = np.where(empty, np.inf, row_sum)
    return np.where(empty[:, None], 0.0, acc / den[:, None]), np.where(empty, -np.inf, np.log(row_sum)), den


# ---------------------------------------------------------------- backward


def backward(
    plan: KernelPlan, x: Inputs, result: reference.Result, saved: Saved, d_lse: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, dict[str, np.ndarray]]:
    w = plan.weights
    dq, dk, dv = np.zeros(x.q.shape), np.zeros(x.k.shape), np.zeros(x.v.shape)
    params = {p.name: np.zeros(np.shape(x.drawn.params[p.name])) for p in plan.attention.params}
    group = x.q.shape[1] // x.k.shape[1]
    with np.errstate(all="ignore"):
        for (b, h), p in saved.pairs.items():
            hkv = h // group
            lse = result.lse[b, h][:, None]
            delta = ((x.d_out[b, h] * result.out[b, h]).sum(1) - d_lse[b, h])[:, None]
            dp = x.d_out[b, h] @ x.v[b, hkv].T
            env: dict[str, Any] = {**p.env, "s": p.unit}
            norm: Any = 1.0
            match w.form:
                case Form.EXPONENTIAL:
                    weight = np.exp2(p.unit * _of_head(plan, w.factor, p, x) - lse * LOG2E)
                    dp = dp - delta
                    g = np.where(p.allowed, weight, 0.0) * dp
                case Form.SHIFTED:
                    env["m"] = lse / _of_head(plan, w.kappa, p, x)
                    weight, slope = (_value(plan, e, env, x, p) for e in (w.stream, w.slope))
                    dp = dp - delta
                    g = np.where(p.allowed, slope * dp, 0.0)
                case Form.DIRECT:
                    norm = 1.0 / saved.den[b, h][:, None] if w.sums else 1.0
                    weight, slope = (_value(plan, e, env, x, p) * norm for e in (w.stream, w.slope))
                    dp = dp - delta if w.sums else dp
                    g = np.where(p.allowed, slope * dp, 0.0)
            weight = np.where(p.allowed, weight, 0.0)
            dv[b, hkv] += weight.T @ x.d_out[b, h]
            d_factor = _of_head(plan, plan.d_factor, p, x)
            ds = np.where(p.allowed, g * _value(plan, plan.d_pair, env, x, p) * d_factor, 0.0)
            dq[b, h] += ds @ x.k[b, hkv]
            dk[b, hkv] += ds.T @ x.q[b, h]
            for leaf in plan.gradients:
                added = np.zeros(p.unit.shape)
                if leaf.pair is not None:
                    added = added + g * _value(plan, leaf.pair, env, x, p)
                if leaf.weight is not None:
                    added = added + dp * norm * _value(plan, leaf.weight, env, x, p)
                added = np.where(p.allowed, added, 0.0)
                rows = np.zeros((p.unit.shape[0], 1))
                if leaf.extra is not None:
                    share: Any = norm
                    if w.form is not Form.DIRECT:
                        share = np.exp(_of_head(plan, w.log_extra, p, x) - lse) if w.log_extra is not None else 0.0
                    alive = np.isfinite(lse)
                    rows = np.where(alive, -delta * share * _value(plan, leaf.extra, env, x, p)[:, :1], 0.0)
                _gather(params[leaf.param], leaf.leaf, leaf.gather, added, rows, p.env, x.drawn.params)
    return dq, dk, dv, params


def _value(plan: KernelPlan, e: Expr | None, env: Mapping[str, Any], x: Inputs, p: Pairs) -> np.ndarray:
    assert e is not None
    return np.broadcast_to(evaluate(e, env, x.drawn.params), p.unit.shape)


def _gather(
    total: np.ndarray, leaf: Expr, gather: Gather, pairs: np.ndarray, rows: np.ndarray, env: Mapping[str, Any],
    params: Mapping[str, Any],
) -> None:  # fmt: skip
    """Adds to the leaf's cells what the kernel of that gather sums; the index is read where that sum has it."""
    from attngen.ir.nodes import Load

    if not isinstance(leaf, Load):
        if gather is not Gather.HEAD:
            raise Wrong(f"a scalar gathered by {gather.value}")
        total += pairs.sum() + rows.sum()
        return
    if gather is Gather.HEAD:
        pairs, at = np.array([[pairs.sum() + rows.sum()]]), {"q": np.zeros((1, 1), int), "k": np.zeros((1, 1), int)}
    elif gather is Gather.ROW:
        pairs, at = pairs.sum(1, keepdims=True) + rows, {"k": np.zeros((1, 1), int)}
    elif gather is Gather.COLUMN:
        pairs, at = pairs.sum(0, keepdims=True), {"q": np.zeros((1, 1), int)}
    else:
        at = {}
    values = [evaluate(i, {**env, **at}, params) for i in leaf.indices]
    if gather is Gather.DENSE:
        names = [getattr(i, "id", None) for i in leaf.indices]
        if None in names or len(set(names)) != len(names) or not {"q", "k"} <= set(names):
            raise Wrong("a dense gather whose index is not q and k themselves")
    if gather is Gather.DIAGONAL:
        moved = {**env, "q": np.asarray(env["q"]) + 1, "k": np.asarray(env["k"]) + 1}
        if any(not np.array_equal(a, evaluate(i, moved, params)) for a, i in zip(values, leaf.indices, strict=True)):
            raise Wrong("a diagonal gather whose index is no function of q - k")
    cells = np.broadcast_arrays(*values, pairs)
    inside = np.ones(cells[-1].shape, bool)
    for value, size in zip(cells[:-1], total.shape, strict=True):
        inside &= (value >= 0) & (value < size)
    np.add.at(total, tuple(c[inside] for c in cells[:-1]), cells[-1][inside])


# ---------------------------------------------------------------- overflow


def overflow(attention: Attention, plan: KernelPlan, seed: int = 0) -> str:
    """Whether a weight, as the kernel evaluates it, leaves fp32 or fp16 at a score of 128 that the spec can reach."""
    w = plan.weights
    if w.form is Form.EXPONENTIAL:
        return ""
    for drawn in draws(attention, 3, longest=6, seed=seed):
        sq, sk = drawn.sizes["Sq"], drawn.sizes["Sk"]
        qk = np.broadcast_to(np.linspace(-4000.0, 4000.0, 2001)[:, None, None], (2001, sq, sk))
        for b, h in drawn.heads[:2]:
            env = drawn.env(b, h, q=np.arange(sq)[:, None], k=np.arange(sk)[None, :], qk=qk, scale=0.5)
            allowed = np.broadcast_to(evaluate(attention.mask, env, drawn.params), qk.shape)
            unit = np.broadcast_to(evaluate(w.unit, env, drawn.params), qk.shape)
            s = unit[allowed & (np.abs(unit) <= 128)]
            if not s.size:
                continue
            tape = Tape((w.stream,), {**drawn.env(b, h), "s": s, "m": s}, drawn.params)
            weight = tape.value(w.stream)
            for name, largest in LARGEST.items():
                if (np.abs(weight) > largest).any() or np.isnan(weight).any():
                    worst = float(s[np.argmax(np.abs(weight)) % len(s)])
                    return f"weight of score {worst:g} leaves {name}"
            for node in nodes(w.stream):
                if node.type is Type.FLOAT and (np.abs(tape.value(node)) > LARGEST["fp32"]).any():
                    return f"a part of the weight leaves fp32 at |score| <= 128: {type(node).__name__}"
    return ""


# ---------------------------------------------------------------- the file's own stream lines


def wrong_stream(attention: Attention, seed: int = 0) -> str:
    """The file's weight(s, m) and rescale(m, n), folded over tiles of a key, beside its definition. Outputs only."""
    n = attention.normalizer
    if n.stream_weight is None or n.rescale is None:
        return ""
    for number, drawn in enumerate(draws(attention, 4, longest=7, seed=seed)):
        x = _inputs(drawn, seed + number)
        with np.errstate(all="ignore"):
            want = reference.evaluate(attention, x.q, x.k, x.v, params=drawn.params, scale=x.scale).out
            got = np.zeros(want.shape)
            for b, h in drawn.heads:
                got[b, h] = _folded(attention, x, b, h)
        if not _close(got, want):
            return _difference("out, as streamed by the file's lines,", got, want)
    return ""


def _folded(attention: Attention, x: Inputs, b: int, h: int) -> np.ndarray:
    n, group = attention.normalizer, x.q.shape[1] // x.k.shape[1]
    assert n.stream_weight is not None and n.rescale is not None
    rows, columns = x.q.shape[2], x.k.shape[2]
    at = {"q": np.arange(rows)[:, None], "k": np.arange(columns)[None, :]}
    env = x.drawn.env(b, h, **at, qk=x.q[b, h] @ x.k[b, h // group].T, scale=x.scale)
    params = x.drawn.params
    allowed = np.broadcast_to(evaluate(attention.mask, env, params), (rows, columns))
    scores = np.broadcast_to(evaluate(attention.score, env, params), (rows, columns))
    head = x.drawn.env(b, h, scale=x.scale)

    def at_points(e: Expr, like: np.ndarray, **points: np.ndarray) -> np.ndarray:
        return np.broadcast_to(evaluate(e, {**head, **points}, params), like.shape)

    m, total, acc = np.zeros(rows), np.zeros(rows), np.zeros((rows, x.v.shape[3]))
    begun = np.zeros(rows, bool)
    for k in range(columns):  # a key at a time, of all rows for which it counts
        live = allowed[:, k] & (scores[:, k] != -np.inf)
        s = scores[live, k]
        old = np.where(begun[live], m[live], s)
        new = np.where(s > old, s, old)
        moved, weight = at_points(n.rescale, s, m=old, n=new), at_points(n.stream_weight, s, s=s, m=new)
        total[live] = total[live] * moved + weight
        acc[live] = acc[live] * moved[:, None] + weight[:, None] * x.v[b, h // group, k]
        m[live], begun[live] = new, True
    if not n.sums:
        total = at_points(n.stream_weight, m, s=m, m=m) / at_points(n.weight, m, s=m)
    elif n.extra is not None:
        share = at_points(n.stream_weight, m, s=m, m=m) / at_points(n.weight, m, s=m)
        total = total + at_points(n.extra, m) * share
    return np.where((begun & (total != 0))[:, None], acc / total[:, None], 0.0)


def not_finite(attention: Attention, seed: int = 0) -> str:
    """A score that the mask allows and that is NaN or +inf, for inputs that the facts allow; -inf only as written."""
    minus = _writes_infinity(attention.score)
    for drawn in draws(attention, 12, longest=9, seed=seed):
        random = np.random.default_rng(seed)
        at = {"q": np.arange(drawn.sizes["Sq"])[:, None], "k": np.arange(drawn.sizes["Sk"])[None, :]}
        for b, h in drawn.heads[:2]:
            qk = random.choice([0.0, 1.0, -1.0, 0.25, 3.5, -7.0], (drawn.sizes["Sq"], drawn.sizes["Sk"]))
            env = drawn.env(b, h, **at, qk=qk, scale=0.5)
            allowed = np.broadcast_to(evaluate(attention.mask, env, drawn.params), qk.shape)
            score = np.broadcast_to(evaluate(attention.score, env, drawn.params), qk.shape)[allowed]
            wrong = np.isnan(score) | (score == np.inf) | ((score == -np.inf) & (not minus))
            if wrong.any():
                return f"a score is {score[wrong][0]}, params {drawn.params}"
    return ""
