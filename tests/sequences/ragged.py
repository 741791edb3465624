"""Sequences of uneven lengths, in packed tensors and in parts of batch rows, and what the definition gives for each.

A `Ragged` has q, k, v and params of every sequence. `packed` and `lengths` put them into tensors whose other rows are
NaN; `truth` computes each sequence by itself, in float64.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from attngen import inputs, reference
from attngen.ir.attention import Attention
from attngen.ir.nodes import Symbol
from attngen.kernel import Kernel

HEADS, KV_HEADS, DIM, VALUE_DIM = 4, 2, 16, 24
SELF = ((5, 5), (0, 0), (37, 37), (1, 1), (70, 70), (16, 16))
"""(queries, keys) of each sequence."""
CROSS = ((5, 9), (0, 4), (37, 20), (3, 0), (70, 130), (1, 64), (40, 40))


@dataclass(frozen=True)
class Ragged:
    spec: Attention
    lengths: tuple[tuple[int, int], ...]
    q: list[np.ndarray]  # (H, S, D) of each sequence
    k: list[np.ndarray]
    v: list[np.ndarray]
    params: dict[str, Any]  # dense, for as many rows as the longest sequence has
    seed: int = 5

    def own(self, name: str, b: int) -> Any:
        """A param as sequence `b` sees it: a batch of one."""
        value = self.params[name]
        for axis, dim in enumerate(self.spec.param(name).shape):
            rows = dict(zip(("Sq", "Sk"), self.lengths[b], strict=True))
            if dim == Symbol("B", dim.type):
                value = value.take([b], axis)
            elif isinstance(dim, Symbol) and dim.id in rows:
                value = value.take(range(rows[dim.id]), axis)
        return value


def ragged(kernel: Kernel, lengths: tuple[tuple[int, int], ...], seed: int = 0) -> Ragged:
    rng = np.random.default_rng(seed)
    longest = [max(1, *(own[i] for own in lengths)) for i in range(2)]
    sizes = {
        "B": len(lengths),
        "Hq": HEADS,
        "Hkv": KV_HEADS,
        "Sq": longest[0],
        "Sk": longest[1],
        "D": DIM,
        "Dv": VALUE_DIM,
    }
    sizes = inputs.settle(kernel.spec, sizes, fixed=set(sizes))
    params = inputs.examples(kernel.spec, sizes, seed=seed)

    def drawn(heads: int, side: int, cols: int) -> list[np.ndarray]:
        return [rng.standard_normal((heads, own[side], cols)).astype(np.float32) for own in lengths]

    q, k, v = drawn(HEADS, 0, DIM), drawn(KV_HEADS, 1, DIM), drawn(KV_HEADS, 1, VALUE_DIM)
    return Ragged(kernel.spec, lengths, q, k, v, params)


@dataclass(frozen=True)
class Call:
    """The tensors of a call, and where sequence `b` is in them: `rows(side, b)` of the batch row `row(b)`."""

    operands: list[torch.Tensor]
    params: dict[str, Any]
    bounds: dict[str, torch.Tensor]
    first: tuple[list[int], list[int]]
    is_packed: bool

    def part(self, x: torch.Tensor, side: int, b: int, size: int) -> torch.Tensor:
        """(H, S, …) of a tensor by rows."""
        rows = slice(self.first[side][b], self.first[side][b] + size)
        return x[rows].transpose(0, 1) if self.is_packed else x[b][:, rows]

    def stat(self, x: torch.Tensor, b: int, size: int) -> torch.Tensor:
        """(H, S) of lse."""
        rows = slice(self.first[0][b], self.first[0][b] + size)
        return x[:, rows] if self.is_packed else x[b][:, rows]


def packed(made: Ragged, dtype: torch.dtype = torch.float32, device: str = "cpu", gap: int = 3) -> Call:
    """`gap` rows behind the last sequence are NaN."""
    ends = [np.cumsum([0, *(own[i] for own in made.lengths)]) for i in range(2)]

    def rows(parts: list[np.ndarray], heads: int, cols: int) -> torch.Tensor:
        rest = np.full((gap, heads, cols), np.nan, np.float32)
        found = np.concatenate([*(x.transpose(1, 0, 2) for x in parts), rest])
        return torch.tensor(found, dtype=dtype, device=device).requires_grad_()

    operands = [rows(made.q, HEADS, DIM), rows(made.k, KV_HEADS, DIM), rows(made.v, KV_HEADS, VALUE_DIM)]
    params: dict[str, Any] = {}
    for p in made.spec.params:
        side = _side(made, p.name)
        if side is None:
            params[p.name] = _tensor(made.params[p.name], device)
            continue
        axis = _axis(made, p.name)
        parts = [np.take(made.own(p.name, b), 0, _batch(made, p.name)) for b in range(len(made.lengths))]
        axis -= axis > _batch(made, p.name)
        last = np.take(parts[0], [0] * gap, axis) if parts[0].shape[axis] else np.zeros((gap,), parts[0].dtype)
        params[p.name] = _tensor(np.concatenate([*parts, last], axis), device)
    offsets = [torch.tensor(e, dtype=torch.int32, device=device) for e in ends]
    bounds = {"cu_seqlens_q": offsets[0], "cu_seqlens_k": offsets[1]}
    return Call(operands, params, bounds, (list(ends[0][:-1]), list(ends[1][:-1])), True)


def lengths(made: Ragged, dtype: torch.dtype = torch.float32, device: str = "cpu", inside: bool = True) -> Call:
    """Rows before and behind a sequence are NaN. `inside`: heads lie inside rows."""
    rng = np.random.default_rng(made.seed)
    first = tuple([int(n) for n in rng.integers(0, 4, len(made.lengths))] for _ in range(2))
    size = [max(f + own[i] for f, own in zip(first[i], made.lengths, strict=True)) + 2 for i in range(2)]

    def rows(parts: list[np.ndarray], side: int) -> torch.Tensor:
        found = np.full((len(parts), parts[0].shape[0], size[side], parts[0].shape[2]), np.nan, np.float32)
        for b, x in enumerate(parts):
            found[b, :, first[side][b] : first[side][b] + x.shape[1]] = x
        x = torch.tensor(found, dtype=dtype, device=device)
        x = x.transpose(1, 2).contiguous().transpose(1, 2) if inside else x
        return x.requires_grad_()

    operands = [rows(made.q, 0), rows(made.k, 1), rows(made.v, 1)]
    params: dict[str, Any] = {}
    for p in made.spec.params:
        side, value = _side(made, p.name), made.params[p.name]
        if side is not None:
            axis, batch = _axis(made, p.name), _batch(made, p.name)
            shape = [size[side] if i == axis else n for i, n in enumerate(value.shape)]
            filled = np.zeros(shape, value.dtype)
            for b in range(len(made.lengths)):
                own = made.own(p.name, b)
                place = [slice(None)] * len(shape)
                place[batch], place[axis] = slice(b, b + 1), slice(first[side][b], first[side][b] + own.shape[axis])
                filled[tuple(place)] = own
            value = filled
        params[p.name] = _tensor(value, device)
    bounds: dict[str, torch.Tensor] = {}
    for i, name in enumerate("qk"):
        start = torch.tensor(first[i], dtype=torch.int32, device=device)
        bounds[f"{name}_start"] = start
        bounds[f"{name}_stop"] = start + torch.tensor(
            [own[i] for own in made.lengths], dtype=torch.int32, device=device
        )
    return Call(operands, params, bounds, first, False)


def _tensor(value: Any, device: str) -> Any:
    if not isinstance(value, np.ndarray):
        return value
    if value.dtype == np.float64:
        value = value.astype(np.float32)
    return torch.tensor(value, device=device)


def _side(made: Ragged, name: str) -> int | None:
    ids = [d.id for d in made.spec.param(name).shape if isinstance(d, Symbol)]
    return 0 if "Sq" in ids else 1 if "Sk" in ids else None


def _axis(made: Ragged, name: str) -> int:
    return next(i for i, d in enumerate(made.spec.param(name).shape) if isinstance(d, Symbol) and d.id in ("Sq", "Sk"))


def _batch(made: Ragged, name: str) -> int:
    return next(i for i, d in enumerate(made.spec.param(name).shape) if isinstance(d, Symbol) and d.id == "B")


def errors(
    kernel: Kernel, made: Ragged, call: Call, *, seed: int | None = None, learn: bool = True
) -> dict[str, float]:
    """The largest difference from the definition, by what differs: out, lse, and the gradients of everything."""
    learned = {n: x for n, x in call.params.items() if learn and isinstance(x, torch.Tensor) and x.is_floating_point()}
    for x in learned.values():
        x.requires_grad_()
    q, k, v = call.operands
    function = kernel.varlen if call.is_packed else kernel
    given = {"dropout_seed": seed} if seed is not None else {}
    out, lse = function(q, k, v, **call.params, **call.bounds, **given, return_lse=True, check=True)
    d_out, d_lse = torch.randn_like(out), torch.randn_like(lse)
    nowhere = torch.ones_like(lse, dtype=torch.bool)
    for b, (size, _) in enumerate(made.lengths):
        call.stat(nowhere, b, size)[...] = False
    assert (lse[nowhere] == float("-inf")).all()
    rows = nowhere.transpose(0, 1) if call.is_packed else nowhere
    assert (out[rows] == 0).all()
    d_out[rows] = float("nan")
    d_lse[nowhere] = float("nan")
    found = torch.autograd.grad((out, lse), (q, k, v, *learned.values()), (d_out, d_lse), allow_unused=True)
    wrong = dict.fromkeys(("out", "lse", "q", "k", "v", *learned), 0.0)
    totals = {n: np.zeros(x.shape) for n, x in learned.items()}
    for x, g, side in zip("qkv", found, (0, 1, 1), strict=False):
        outside = torch.ones(g.shape[:1] if call.is_packed else (g.shape[0], g.shape[2]), dtype=torch.bool)
        for b, own in enumerate(made.lengths):
            place = slice(call.first[side][b], call.first[side][b] + own[side])
            outside[place if call.is_packed else (b, place)] = False
        assert (g.cpu()[outside] if call.is_packed else g.cpu().transpose(1, 2)[outside]).eq(0).all(), x
    for b, (nq, _) in enumerate(made.lengths):
        params = {n: made.own(n, b) for n in made.params}
        if nq == 0:
            continue
        # Dropout is drawn by the sequence's number, so the sequence is computed as the last of a batch.
        times = b + 1 if seed is not None else 1
        own = [x[b][None].astype(np.float64).repeat(times, 0) for x in (made.q, made.k, made.v)]
        right = reference.evaluate(made.spec, *own, params=params, dropout_seed=seed)
        finite = np.isfinite(right.lse[-1])
        wrong["out"] = max(wrong["out"], _most(right.out[-1], call.part(out, 0, b, nq)))
        got = call.stat(lse, b, nq).detach().cpu().numpy()
        assert (np.isfinite(got) == finite).all()
        wrong["lse"] = max(wrong["lse"], _most(right.lse[-1][finite], got[finite]))
        cotangents = [call.part(d_out, 0, b, nq), call.stat(d_lse, b, nq)]
        d = [x.double().cpu().numpy()[None] for x in cotangents]
        d[1] = np.where(finite, d[1], 0.0)
        d = [np.concatenate([np.zeros((times - 1, *x.shape[1:])), x]) for x in d]
        gradients = reference.gradients(made.spec, *own, *d, params=params, dropout_seed=seed)
        for x, g, side in zip("qkv", found, (0, 1, 1), strict=False):
            wrong[x] = max(wrong[x], _most(getattr(gradients, x)[-1], call.part(g, side, b, made.lengths[b][side])))
        for name in totals:
            _place(made, call, name, b, totals[name])[...] += gradients.params[name].reshape(
                _place(made, call, name, b, totals[name]).shape
            )
    for (name, x), g in zip(learned.items(), found[3:], strict=True):
        assert g is None or g.shape == x.shape
        wrong[name] = _most(totals[name], torch.zeros_like(x) if g is None else g)
    return wrong


def _place(made: Ragged, call: Call, name: str, b: int, total: np.ndarray) -> np.ndarray:
    """The cells of a param that belong to a sequence."""
    side = _side(made, name)
    dims = made.spec.param(name).shape
    places: list[Any] = []
    for d in dims:
        if d == Symbol("B", d.type):
            if not (side is not None and call.is_packed):
                places.append(slice(b, b + 1))
        elif isinstance(d, Symbol) and d.id in ("Sq", "Sk"):
            i = 0 if d.id == "Sq" else 1
            places.append(slice(call.first[i][b], call.first[i][b] + made.lengths[b][i]))
        else:
            places.append(slice(None))
    return total[tuple(places)] if places else total.reshape(1)


def _most(right: Any, found: Any) -> float:
    found = found.detach().double().cpu().numpy() if isinstance(found, torch.Tensor) else found
    right = np.asarray(right, dtype=np.float64)
    return float(np.abs(right - found).max() / max(1.0, np.abs(right).max())) if right.size else 0.0
