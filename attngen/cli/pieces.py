"""Runs a compiled kernel piece by piece, merges and differentiates, and compares with the float64 reference.

Takes a `Kernel` and a `Case` of dense tensors or arrays; gives one `Comparison` for each result, as `comparison` does.
Queries and keys are cut at uneven places, one stretch of keys is empty; parts are merged in two steps and out of order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import Any

import numpy as np

from attngen.cli.comparison import (
    SEED,
    Case,
    Comparison,
    Results,
    draw_arrays,
    drawn,
    expected,
    judge,
    pytorch,
    takes_arrays,
    the_jax,
)
from attngen.kernel import Kernel

Range = tuple[int, int]


def cuts(rows: int, *, empty: bool) -> tuple[Range, ...]:
    """Stretches of `rows` positions, none of them a multiple of a tile. `empty`: one has no position."""
    first, second = rows // 6, min(rows // 6 + (0 if empty else 1), rows)
    return tuple(pairwise((0, first, second, max(second, rows * 2 // 3), rows)))


def compare(kernel: Kernel, case: Case, device: str, *, coarse: bool = False, seed: int = 0) -> Iterator[Comparison]:
    """Run one case in pieces, forward and backward, and compare every result."""
    arrays = takes_arrays(kernel)
    operands, params, cotangents = (
        draw_arrays(kernel.spec, case, seed) if arrays else drawn(kernel.spec, case, device, seed)
    )
    dropout_seed = None if kernel.spec.dropout is None else SEED
    measured = (_run_arrays if arrays else _run)(kernel, operands, params, cotangents, dropout_seed)
    right = expected(kernel.spec, operands, params, cotangents, dropout_seed)
    yield from judge(kernel.spec, case, measured, right, coarse=coarse)


def _run(
    kernel: Kernel,
    operands: Mapping[str, Any],
    params: Mapping[str, Any],
    cotangents: tuple[Any, Any],
    dropout_seed: int | None,
) -> Results:
    torch = pytorch()
    operands = {n: x.detach() for n, x in operands.items()}
    sums = {n: torch.zeros_like(x, dtype=torch.float32) for n, x in operands.items()}
    found = _in_pieces(kernel, operands, params, cotangents, sums, dropout_seed, torch.cat, axis=2)
    return {n: x.detach().double().cpu().numpy() for n, x in found.items()}


def _run_arrays(
    kernel: Kernel,
    operands: Mapping[str, Any],
    params: Mapping[str, Any],
    cotangents: tuple[Any, Any],
    dropout_seed: int | None,
) -> Results:
    jnp = the_jax().numpy
    operands = {n: x.swapaxes(1, 2) for n, x in operands.items()}
    sums = {n: jnp.zeros_like(x, dtype=jnp.float32) for n, x in operands.items()}
    d_out, d_lse = cotangents
    cotangents = d_out.swapaxes(1, 2), d_lse
    found = _in_pieces(kernel, operands, params, cotangents, sums, dropout_seed, jnp.concatenate, axis=1)
    rows = ("out", *(f"d {n}" for n in operands))
    return {n: np.asarray(x.swapaxes(1, 2) if n in rows else x, np.float64) for n, x in found.items()}


def _in_pieces(
    kernel: Kernel,
    operands: Mapping[str, Any],
    params: Mapping[str, Any],
    cotangents: tuple[Any, Any],
    sums: dict[str, Any],
    dropout_seed: int | None,
    joined: Callable[..., Any],
    *,
    axis: int,
) -> dict[str, Any]:
    """`sums`: zeros like the operands, in float32; `joined` makes one array of several along an axis; `axis`: that of
    positions in an operand."""
    q, k, v = (operands[name] for name in "qkv")
    plain = {n: x.detach() if hasattr(x, "detach") else x for n, x in params.items()}
    learned = {p.name: plain[p.name] * 0.0 for p in kernel.spec.params if p.learns}
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
        d_out, d_lse = cotangents[0][own_q], cotangents[1][of(queries, 2)]
        for own_k, at in places:
            stretches = {"q": own_q, "k": own_k, "v": own_k}
            into = tuple(sums[n][own] for n, own in stretches.items())
            *totals, gradients = kernel.partial_backward(
                q[own_q], k[own_k], v[own_k], d_out, out, lse, **at, **params, d_lse=d_lse, accumulate=into
            )
            if axis == 1:  # JAX's arrays are not added to in place
                for (n, own), total in zip(stretches.items(), totals, strict=True):
                    sums[n] = sums[n].at[own].set(total)
            add(gradients)
        add(kernel.finish_backward(d_out, out, lse, d_lse=d_lse, **params))
    out, lse = (joined(x, at) for x, at in zip(zip(*found, strict=True), (axis, 2), strict=True))
    return {"out": out, "lse": lse, **{f"d {n}": x for n, x in {**sums, **learned}.items()}}
