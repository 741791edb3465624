"""Runs a compiled kernel piece by piece, merges and differentiates, and compares with the float64 reference.

Takes a `Kernel` and a `Case` of dense tensors; gives one `Comparison` for each result, as `comparison` does. Queries
and keys are cut at uneven places, one stretch of keys is empty, and parts are merged in two steps and out of order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

from attngen.cli.comparison import SEED, Case, Comparison, Results, drawn, expected, judge, pytorch
from attngen.kernel import Kernel

Range = tuple[int, int]


def cuts(rows: int, *, empty: bool) -> tuple[Range, ...]:
    """Stretches of `rows` positions, none of them a multiple of a tile. `empty`: one has no position."""
    first, second = rows // 6, min(rows // 6 + (0 if empty else 1), rows)
    return tuple(pairwise((0, first, second, max(second, rows * 2 // 3), rows)))


def compare(kernel: Kernel, case: Case, device: str, *, coarse: bool = False, seed: int = 0) -> Iterator[Comparison]:
    """Run one case in pieces, forward and backward, and compare every result."""
    operands, params, cotangents = drawn(kernel.spec, case, device, seed)
    dropout_seed = None if kernel.spec.dropout is None else SEED
    measured = _run(kernel, operands, params, cotangents, dropout_seed)
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
    q, k, v = (operands[name].detach() for name in "qkv")
    plain = {n: x.detach() if isinstance(x, torch.Tensor) else x for n, x in params.items()}
    sums = {f"d {n}": torch.zeros_like(x, dtype=torch.float32) for n, x in zip("qkv", (q, k, v), strict=True)}
    sums |= {
        f"d {p.name}": torch.zeros_like(plain[p.name], dtype=torch.float32) for p in kernel.spec.params if p.learns
    }
    sizes = {"Sq": q.shape[2], "Sk": k.shape[2]}
    whole = {**sizes, "dropout_seed": dropout_seed}
    found: list[tuple[Any, Any]] = []
    for queries in cuts(sizes["Sq"], empty=False):
        of_q = slice(*queries)
        places = [
            (slice(*keys), {"q_offset": queries[0], "k_offset": keys[0], **whole})
            for keys in cuts(sizes["Sk"], empty=True)
        ]
        parts = [kernel.partial(q[:, :, of_q], k[:, :, of_k], v[:, :, of_k], **at, **plain) for of_k, at in places]
        some = kernel.merge([parts[3], parts[0]])
        out, lse = kernel.finish(*kernel.merge([parts[1], some, parts[2]]), **plain)
        found.append((out, lse))
        d_out, d_lse = (x[:, :, of_q] for x in cotangents)
        for of_k, at in places:
            own = (sums["d q"][:, :, of_q], sums["d k"][:, :, of_k], sums["d v"][:, :, of_k])
            *_, gradients = kernel.partial_backward(
                q[:, :, of_q], k[:, :, of_k], v[:, :, of_k], d_out, out, lse,
                **at, **params, d_lse=d_lse, accumulate=own,
            )  # fmt: skip
            _add(sums, gradients)
        _add(sums, kernel.finish_backward(d_out, out, lse, d_lse=d_lse, **params))
    out, lse = (torch.cat(x, 2) for x in zip(*found, strict=True))
    return {n: x.double().cpu().numpy() for n, x in {"out": out, "lse": lse, **sums}.items()}


def _add(sums: Mapping[str, Any], gradients: Mapping[str, Any]) -> None:
    for name, g in gradients.items():
        sums[f"d {name}"].add_(g)
