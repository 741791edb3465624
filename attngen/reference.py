"""The oracle: an attention evaluated dense, in float64, from its definition alone, with gradients.

Takes the IR and arrays in the layout of the Triton target; returns out, lse and the gradients of q, k, v and every
float param. Reads the normalizer's definition (`weight(s)`, `denominator`), never its streamed form, nor anything that
the planner claims. Checks shapes and names only: `where` facts are left to the generated function.

**Overflow.** A definition such as `weight(s) = exp(s)` overflows where the ratio weight / denominator is harmless. So
the weight and the denominator's extra term are split symbolically (`attngen.ir.scaled`) into factor * exp(exponent),
which is exact for any definition, and a row is evaluated relative to its largest term: with
R = max_k (exponent_k + log|factor_k|),

    w_k = factor_k exp(exponent_k - R),   Z = sum_k w_k + factor_e exp(exponent_e - R),
    P_k = w_k / Z,                        lse = R + log Z.

P and lse do not depend on R, so the gradients treat it as a constant, without error. Wider floats would only move the
overflow, and are not wider everywhere.

**Which pairs count.** A pair counts where the mask holds and its score is not -inf. What does not count adds exactly
nothing to any result, whatever its score or derivative is. So a key that the mask forbids to every query of a head is
a zero row of k and v there: it may hold anything, NaN included; q, and k and v elsewhere, must be finite. A row in
which no pair counts has a zero row, and passes nothing on to q, k and v; its denominator is the extra term alone, whose
logarithm is lse: -inf where that is 0, or there is none. A row whose denominator is 0 passes nothing on at all.

**Dropout** applies when the spec has it and a seed is given; its probability is a constant to the gradients.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from attngen.errors import UsageError
from attngen.ir.attention import Attention, Param
from attngen.ir.evaluate import Array, Tape, as_array, evaluate as evaluate_expression
from attngen.ir.nodes import Expr, Symbol, Type
from attngen.ir.scaled import split

_NO_PARAMS: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True)
class Result:
    """`out` (B, Hq, Sq, Dv) and the natural log of the denominator, `lse` (B, Hq, Sq), in float64."""

    out: Array
    lse: Array


@dataclass(frozen=True)
class Gradients:
    """In float64, each with the shape of what it belongs to; `params` has every float param, scalars as 0-d arrays."""

    q: Array
    k: Array
    v: Array
    params: dict[str, Array]


def evaluate(
    attention: Attention,
    q: Any,
    k: Any,
    v: Any,
    *,
    params: Mapping[str, Any] = _NO_PARAMS,
    scale: float | None = None,
    dropout_seed: int | None = None,
) -> Result:
    """out and lse for q (B, Hq, Sq, D), k (B, Hkv, Sk, D), v (B, Hkv, Sk, Dv): NumPy arrays or torch tensors.

    `scale` is 1 / sqrt(D) when not given. UsageError where a shape does not fit or a param is missing or unknown.
    """
    return _Pass(attention, q, k, v, params, scale, dropout_seed).result()


def gradients(
    attention: Attention,
    q: Any,
    k: Any,
    v: Any,
    d_out: Any,
    d_lse: Any = None,
    *,
    params: Mapping[str, Any] = _NO_PARAMS,
    scale: float | None = None,
    dropout_seed: int | None = None,
) -> Gradients:
    """The gradients of sum(out * d_out) + sum(lse * d_lse), for cotangents shaped like out and lse."""
    forward = _Pass(attention, q, k, v, params, scale, dropout_seed)
    return forward.gradients(
        _cotangent("d_out", d_out, forward.out.shape), _cotangent("d_lse", d_lse, forward.lse.shape)
    )


class _Pass:
    """One forward evaluation and what its reverse needs. Arrays are [B, Hq, Sq, Sk], or 1 where they do not vary."""

    def __init__(
        self,
        attention: Attention,
        q: Any,
        k: Any,
        v: Any,
        params: Mapping[str, Any],
        scale: float | None,
        dropout_seed: int | None,
    ):
        self.attention = attention
        self.q, self.k, self.v = (as_array(x, Type.FLOAT) for x in (q, k, v))
        env: dict[str, Any] = dict(_sizes(self.q, self.k, self.v))
        self.group = env["Hq"] // env["Hkv"]
        self.params = _bind(attention, params, env)
        self.shapes = {name: np.shape(x) for name, x in params.items()}
        env["scale"] = 1.0 / math.sqrt(env["D"]) if scale is None else float(as_array(scale, Type.FLOAT))
        env |= _indices(env, self.group)
        full = tuple(env[size] for size in ("B", "Hq", "Sq", "Sk"))
        allowed = np.broadcast_to(evaluate_expression(attention.mask, env, self.params), full)
        unread: Array = np.logical_not(allowed.any(axis=2, keepdims=True))
        forbidden = self._grouped(unread.swapaxes(-1, -2))
        self.keys, self.values = (np.where(forbidden, 0.0, x[:, :, None]) for x in (self.k, self.v))
        env["qk"] = self._merge(self._grouped(self.q) @ self.keys.swapaxes(-1, -2))

        self.pairs = Tape((attention.score,), env, self.params)
        score = np.broadcast_to(self.pairs.value(attention.score), full)
        self.counts = allowed & (score != -np.inf)

        normalizer = attention.normalizer
        self.weight = split(normalizer.weight)
        self.extra = split(normalizer.extra) if normalizer.extra is not None else None
        env["s"] = score
        self.terms = Tape((*self.weight, *(self.extra or ())), env, self.params)
        with np.errstate(all="ignore"):
            self._normalize()
        self.keep = self._keep(env, dropout_seed)
        self.dropped = self.share * self.keep
        self.out = self._merge(self._grouped(self.dropped) @ self.values)
        if attention.value_scale is not None:
            self.out = self.out * evaluate_expression(attention.value_scale, env, self.params)

    def _normalize(self) -> None:
        """Sets `unit_*` = exp(exponent - R), `weights`, `total` (Z), `share` (P), `divides`, `alive` rows, `lse`."""
        factor, exponent = (self.terms.value(e) for e in self.weight)
        sums = self.attention.normalizer.sums
        reference: Array = np.zeros((*self.counts.shape[:3], 1))
        if sums:
            size = np.where(self.counts, exponent + np.log(np.abs(factor)), -np.inf)
            reference = size.max(axis=-1, keepdims=True, initial=-np.inf)
            if self.extra is not None:
                extra_factor, extra_exponent = (self.terms.value(e) for e in self.extra)
                reference = np.maximum(reference, extra_exponent + np.log(np.abs(extra_factor)))
            reference = np.where(np.isfinite(reference), reference, 0.0)
        self.unit = np.where(self.counts, np.exp(exponent - reference), 0.0)
        # A factor of 0 does not hold R down, so its unit may overflow.
        self.weights = np.where(self.counts & (factor != 0), factor * self.unit, 0.0)
        self.total: Array = np.ones_like(reference)
        if sums:
            self.total = self.weights.sum(axis=-1, keepdims=True)
        if self.extra is not None:
            extra_factor, extra_exponent = (self.terms.value(e) for e in self.extra)
            self.extra_unit = np.exp(extra_exponent - reference)
            self.extra_weight = np.where(extra_factor == 0, 0.0, extra_factor * self.extra_unit)
            self.total = self.total + self.extra_weight
        self.divides = self.total != 0
        self.alive = self.counts.any(axis=-1, keepdims=True) & self.divides
        self.share = np.where(self.alive, self.weights / self.total, 0.0)
        self.lse = np.where(self.divides, reference + np.log(self.total), -np.inf)[..., 0]

    def _keep(self, env: Mapping[str, Any], seed: int | None) -> Array | float:
        """What dropout multiplies the normalised weights by: 0 or 1 / (1 - p)."""
        if self.attention.dropout is None or seed is None:
            return 1.0
        p = np.float32(evaluate_expression(self.attention.dropout, env, self.params))
        threshold = int(float(p) * 2.0**32)
        counter = [evaluate_expression(e, env, self.params) for e in self.attention.counter.values()]
        draws = philox(counter, seed)[0]
        return np.where(draws >= threshold, 1.0 / (1.0 - float(p)), 0.0)

    def result(self) -> Result:
        return Result(self.out, self.lse)

    def gradients(self, d_out: Array, d_lse: Array) -> Gradients:
        with np.errstate(all="ignore"):
            d_out = np.where(self.alive, d_out, 0.0)
            d_lse = d_lse[..., None]
            d_v = (self._grouped(self.dropped).swapaxes(-1, -2) @ self._grouped(d_out)).sum(axis=2)
            d_share = self._merge(self._grouped(d_out) @ self.values.swapaxes(-1, -2)) * self.keep
            # P = w / Z and lse = R + log Z, with Z the sum of every w and the extra term (or the constant 1).
            d_total = (d_lse - (d_share * self.share).sum(axis=-1, keepdims=True)) / self.total
            d_total = np.where(self.divides, d_total, 0.0) if self.attention.normalizer.sums else np.zeros_like(d_lse)
            d_weight = np.where(self.alive, d_share / self.total + d_total, 0.0)
            cotangents: list[tuple[Expr, Array]] = [
                (self.weight[0], d_weight * self.unit),
                (self.weight[1], d_weight * self.weights),
            ]
            if self.extra is not None:
                cotangents.append((self.extra[0], np.where(d_total == 0, 0.0, d_total * self.extra_unit)))
                cotangents.append((self.extra[1], d_total * self.extra_weight))
        symbols, from_terms = self.terms.pullback(cotangents)
        d_score = symbols.get("s", np.zeros_like(self.share))
        symbols, from_score = self.pairs.pullback([(self.attention.score, d_score)])
        d_qk = self._grouped(symbols.get("qk", np.zeros_like(d_score)))
        d_params = {p.name: np.zeros(self.params[p.name].shape) for p in self.attention.params if p.learns}
        for part in (from_terms, from_score):
            for name, gradient in part.items():
                if name in d_params:  # a fixed param has no gradient
                    d_params[name] = d_params[name] + gradient
        d_k = (d_qk.swapaxes(-1, -2) @ self._grouped(self.q)).sum(axis=2)
        own = {name: _gathered(x, self.shapes[name]) for name, x in d_params.items()}
        return Gradients(self._merge(d_qk @ self.keys), d_k, d_v, own)

    def _grouped(self, x: Array) -> Array:
        """(B, Hq, …) as (B, Hkv, Hq // Hkv, …)."""
        return x.reshape(x.shape[0], self.k.shape[1], self.group, *x.shape[2:])

    def _merge(self, x: Array) -> Array:
        """The inverse of `_grouped`."""
        return x.reshape(x.shape[0], self.q.shape[1], *x.shape[3:])


def philox(counter: Sequence[Any], seed: int, rounds: int = 10) -> tuple[Array, Array, Array, Array]:
    """Philox4x32 (Salmon et al., 2011): four words for each counter, as uint32 values in uint64 arrays.

    The counters' words are ints or arrays that broadcast; the key is the seed's low word, then its high word.
    """
    low = np.uint64(0xFFFFFFFF)
    half = np.uint64(32)
    c0, c1, c2, c3 = (np.asarray(c).astype(np.uint64) & low for c in counter)
    k0, k1 = seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF
    for _ in range(rounds):
        left, right = np.uint64(0xD2511F53) * c0, np.uint64(0xCD9E8D57) * c2
        c0, c1, c2, c3 = (
            (right >> half) ^ c1 ^ np.uint64(k0),
            right & low,
            (left >> half) ^ c3 ^ np.uint64(k1),
            left & low,
        )
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return c0, c1, c2, c3


def _cotangent(name: str, value: Any, shape: tuple[int, ...]) -> Array:
    if value is None:
        return np.zeros(shape)
    array = as_array(value, Type.FLOAT)
    if array.shape != shape:
        raise UsageError(f"{name} has shape {array.shape}; expected {shape}")
    return array


def _sizes(q: Array, k: Array, v: Array) -> Mapping[str, int]:
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.ndim != 4:
            raise UsageError(f"{name} has {x.ndim} dimensions; expected 4: (batch, heads, length, head dim)")
    batch, heads, rows, dim = q.shape
    kv_heads, columns = k.shape[1:3]
    if k.shape != (batch, kv_heads, columns, dim):
        raise UsageError(f"k has shape {k.shape}; its batch and head dim must be those of q {q.shape}")
    if v.shape[:3] != k.shape[:3]:
        raise UsageError(f"v has shape {v.shape}; all but its last dimension must be those of k {k.shape}")
    if kv_heads == 0 or heads % kv_heads:
        raise UsageError(f"q has {heads} heads, which is not a multiple of the {kv_heads} heads of k")
    return {"B": batch, "Hq": heads, "Hkv": kv_heads, "Sq": rows, "Sk": columns, "D": dim, "Dv": v.shape[3]}


def _indices(sizes: Mapping[str, int], group: int) -> Mapping[str, Array]:
    """The index symbols, each along its own axis of [B, Hq, Sq, Sk]."""
    heads = np.arange(sizes["Hq"])[:, None, None]
    return {
        "b": np.arange(sizes["B"])[:, None, None, None],
        "h": heads[None],
        "hkv": heads[None] // group,
        "q": np.arange(sizes["Sq"])[None, None, :, None],
        "k": np.arange(sizes["Sk"])[None, None, None, :],
    }


def _bind(attention: Attention, given: Mapping[str, Any], env: dict[str, Any]) -> dict[str, Array]:
    """The params as arrays, their shapes checked; sizes that the params bring along are added to `env`."""
    unknown = [name for name in given if name not in {p.name for p in attention.params}]
    if unknown:
        raise UsageError(f"{attention.name} has no param {', '.join(f'`{name}`' for name in unknown)}")
    missing = [p.name for p in attention.params if p.name not in given]
    if missing:
        raise UsageError(f"{attention.name} needs param {', '.join(f'`{name}`' for name in missing)}")
    bound = {p.name: _param(p, given[p.name]) for p in attention.params}
    for p in attention.params:
        if bound[p.name].ndim != len(p.shape):
            raise UsageError(f"param `{p.name}` has {bound[p.name].ndim} dimensions; expected {len(p.shape)}")
        for dim, size in zip(p.shape, bound[p.name].shape, strict=True):
            if isinstance(dim, Symbol) and dim.id in attention.sizes:
                env.setdefault(dim.id, size)
    return {p.name: _spread(p, bound[p.name], env) for p in attention.params}


def _param(p: Param, value: Any) -> Array:
    try:
        return as_array(value, p.type)
    except (TypeError, ValueError) as error:
        kind = "of numbers" if p.shape else "an int" if p.type is Type.INT else f"a {p.type.value}"
        raise UsageError(f"param `{p.name}` must be {kind}, not {value!r}") from error


def _gathered(x: Array, shape: tuple[int, ...]) -> Array:
    """The gradient of a param of this shape, from that with its dims of size 1 repeated."""
    repeated = tuple(i for i, (have, want) in enumerate(zip(x.shape, shape, strict=True)) if want == 1 != have)
    return x.sum(repeated, keepdims=True)


def _spread(p: Param, x: Array, env: Mapping[str, Any]) -> Array:
    """A param with its dims of size 1 repeated."""
    expected = tuple(int(evaluate_expression(dim, env, {})) for dim in p.shape)
    if any(have not in (1, want) for have, want in zip(x.shape, expected, strict=True)):
        raise UsageError(f"param `{p.name}` has shape {x.shape}; expected {expected}")
    return np.broadcast_to(x, expected)
