"""Runs a compiled kernel piece by piece, merges and differentiates, and compares with the float64 reference.

Takes a `Kernel` and a `Case` of dense tensors or arrays; returns one `Comparison` for each result, as `comparison`
does. Queries and keys are cut at uneven places, one stretch of keys is empty; parts are merged in two steps and out of
order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

import numpy as np

from attngen.kernel import Kernel
from attngen.runtime.devices import pytorch, the_jax
from attngen.verify.comparison import (
    SEED,
    Case,
    Comparison,
    Results,
    differentiates,
    draw_arrays,
    drawn,
    expected,
    judge,
    takes_arrays,
)

Range = tuple[int, int]


def cuts(rows: int, *, empty: bool) -> tuple[Range, ...]:
    """Stretches of `rows` positions, none of them a multiple of a tile. `empty`: one has no position."""
    first, second = rows // 6, min(rows // 6 + (0 if empty else 1), rows)
    return tuple(pairwise((0, first, second, max(second, rows * 2 // 3), rows)))


def compare(kernel: Kernel, case: Case, device: str, *, coarse: bool = False, seed: int = 0) -> Iterator[Comparison]:
    """Run one case in pieces, forward and, if the kernel can, backward, and compare every result."""
    if takes_arrays(kernel):
        operands, params, cotangents = draw_arrays(kernel.spec, case, seed)
    else:
        operands, params, cotangents = drawn(kernel.spec, case, device, seed)
    dropout_seed = None if kernel.spec.dropout is None else SEED
    measured = _run(kernel, operands, params, cotangents, dropout_seed)
    right = expected(kernel.spec, operands, params, cotangents, dropout_seed, backward=differentiates(kernel))
    yield from judge(kernel.spec, case, measured, right, coarse=coarse)


def _run(
    kernel: Kernel,
    operands: Mapping[str, Any],
    params: Mapping[str, Any],
    cotangents: tuple[Any, Any],
    dropout_seed: int | None,
) -> Results:
    arrays = takes_arrays(kernel)
    numeric = the_jax().numpy if arrays else pytorch()
    axis = 1 if arrays else 2  # of an operand's positions

    def turned(x: Any) -> Any:
        """(batch, heads, length, head dim) as the kernel has it, and back."""
        return x.swapaxes(1, 2) if arrays else x

    def alone(x: Any) -> Any:
        return x.detach() if hasattr(x, "detach") else x

    operands = {n: turned(alone(x)) for n, x in operands.items()}
    sums = {n: numeric.zeros_like(x, dtype=numeric.float32) for n, x in operands.items()}
    cotangents = turned(cotangents[0]), cotangents[1]
    q, k, v = (operands[name] for name in "qkv")
    plain = {n: alone(x) for n, x in params.items()}
    learned = {p.name: numeric.zeros_like(plain[p.name], dtype=numeric.float32) for p in kernel.spec.params if p.learns}
    sizes = {"Sq": q.shape[axis], "Sk": k.shape[axis]}
    whole = {**sizes, "dropout_seed": dropout_seed}
    found: list[tuple[Any, Any]] = []

    def of(rows: Range, axis: int = axis) -> tuple[slice, ...]:
        return (*[slice(None)] * axis, slice(*rows))

    def add(gradients: Mapping[str, Any]) -> None:
        for name, g in gradients.items():
            learned[name] = learned[name] + g

    for queries in cuts(sizes["Sq"], empty=False):
        own_q = of(queries)
        places = [
            (of(keys), {"q_offset": queries[0], "k_offset": keys[0], **whole}) for keys in cuts(sizes["Sk"], empty=True)
        ]
        parts = [kernel.partial(q[own_q], k[own_k], v[own_k], **at, **plain) for own_k, at in places]
        some = kernel.merge([parts[3], parts[0]])
        out, lse = kernel.finish(*kernel.merge([parts[1], some, parts[2]]), **plain)
        found.append((out, lse))
        if not differentiates(kernel):
            continue
        d_out, d_lse = cotangents[0][own_q], cotangents[1][of(queries, 2)]
        for own_k, at in places:
            stretches = {"q": own_q, "k": own_k, "v": own_k}
            into = tuple(sums[n][own] for n, own in stretches.items())
            *totals, gradients = kernel.partial_backward(
                q[own_q], k[own_k], v[own_k], d_out, out, lse, **at, **params, d_lse=d_lse, accumulate=into
            )
            if arrays:  # which are not added to in place
                for (n, own), total in zip(stretches.items(), totals, strict=True):
                    sums[n] = sums[n].at[own].set(total)
            add(gradients)
        add(kernel.finish_backward(d_out, out, lse, d_lse=d_lse, **params))
    out, lse = (numeric.concatenate(x, at) for x, at in zip(zip(*found, strict=True), (axis, 2), strict=True))
    gradients = {n: turned(x) for n, x in sums.items()} | learned
    results = {"out": turned(out), "lse": lse, **{f"d {n}": x for n, x in gradients.items()}}
    return {n: np.asarray(x if arrays else alone(x).double().cpu(), np.float64) for n, x in results.items()}
