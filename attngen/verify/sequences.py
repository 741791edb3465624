"""Runs a compiled kernel over sequences of uneven lengths, and compares each with the float64 reference of it alone.

Takes a `Kernel`, a `Case` with lengths, and a geometry, packed or lengths; returns one `Comparison` for each result, as
`comparison` does for dense tensors. Rows that no sequence has are NaN in q, k, v, in float params and in cotangents.
They must be 0 in out and in gradients, and -inf in lse.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np

from attngen import inputs, reference
from attngen.emit.torch_shared.leaves import unsummed
from attngen.errors import UsageError
from attngen.inputs import Ints
from attngen.ir import walk
from attngen.ir.attention import Attention, Param
from attngen.ir.evaluate import Array
from attngen.ir.nodes import Symbol, Type
from attngen.kernel import Kernel
from attngen.runtime.devices import pytorch
from attngen.verify.comparison import ANY, DTYPES, SEED, Case, Comparison, Use, as_param, differentiates, judge

Lengths: TypeAlias = tuple[tuple[int, int], ...]
"""(queries, keys) of each sequence."""

_SQUARE = ((5, 5), (0, 0), (37, 37), (1, 1), (70, 70), (16, 16))
_UNEVEN = ((5, 9), (0, 4), (37, 20), (3, 0), (70, 120), (1, 64), (40, 40))
_LONG = ((300, 300), (0, 0), (129, 129), (1, 1), (512, 512), (64, 64))
_FAR = ((5, 900), (0, 40), (257, 120), (3, 0), (129, 517), (1, 777), (400, 400))
# Note, dtype, Hq Hkv D Dv, lengths. The interpreter takes milliseconds for a tile.
_TINY = (
    ("as many queries as keys", "fp32", (4, 2, 16, 16), _SQUARE),
    ("fewer and more, Dv ≠ D", "fp32", (2, 1, 16, 24), _UNEVEN),
    ("half precision", "fp16", (2, 1, 16, 16), ((20, 20), (0, 3), (1, 33))),
)
_REAL = (
    ("as many queries as keys", "fp32", (4, 2, 64, 64), _LONG),
    ("fewer and more, Dv ≠ D", "fp32", (2, 1, 64, 128), _FAR),
    ("as many queries as keys", "bf16", (4, 4, 128, 128), _LONG),
    ("fewer and more", "bf16", (4, 1, 64, 64), _FAR),
    ("MLA head dims", "bf16", (2, 2, 192, 128), _FAR),
    ("large heads", "fp16", (2, 1, 256, 256), _LONG),
)


def cases(attention: Attention, device: str, use: Use = ANY) -> tuple[Case, ...]:
    """The sequences to run on `device`, moved to the nearest that the spec's `assume`s allow; the first comes again
    with int params at the ends of 32 bits. Raises `UsageError` where no lengths near these are allowed."""
    chosen: dict[tuple[str, tuple[tuple[str, int], ...], Lengths], Case] = {}
    for note, dtype, dims, wanted in _TINY if device == "cpu" else _REAL:
        sizes = dict(zip(("Hq", "Hkv", "D", "Dv"), dims, strict=True))
        lengths = tuple((use.length(queries, device), use.length(keys, device)) for queries, keys in wanted)
        case = settled(attention, use.narrowed(Case(note, dtype, tuple(sizes.items()), lengths=lengths)))
        chosen.setdefault((case.dtype, case.sizes, case.lengths), case)
    found = tuple(chosen.values())
    if not inputs.far_ints(attention):
        return found
    far = (replace(found[0], note=f"{ints} ints", ints=ints) for ints in (Ints.LEAST, Ints.GREATEST))
    return (*found, *(_fulfilling(attention, case) for case in far))


def settled(attention: Attention, case: Case) -> Case:
    """`case` with every size, and with lengths each of which fulfils the facts by itself."""
    longest = max(case.lengths, key=sum)
    wanted = case.size | {"B": len(case.lengths), "Sq": longest[0], "Sk": longest[1]}
    sizes = inputs.settle(attention, wanted)
    fixed = set(sizes) - {"Sq", "Sk"}
    repeated = _repeated(case.lengths, sizes["B"])
    found: list[tuple[int, int]] = []
    for queries, keys in repeated:
        own = inputs.settle(attention, sizes | {"Sq": queries, "Sk": keys}, fixed, empty=True)
        found.append((own["Sq"], own["Sk"]))
    if len(set(found)) == 1 and len(found) > 1:
        own = inputs.settle(attention, sizes | {"Sq": 2 * found[0][0], "Sk": 2 * found[0][1]}, fixed)
        found[-1] = (own["Sq"], own["Sk"])
    moved = found != repeated or any(sizes[name] != value for name, value in wanted.items())
    note = case.note + (", moved by `assume`" if moved else "")
    return _fulfilling(attention, replace(case, note=note, sizes=tuple(sizes.items()), lengths=tuple(found)))


def _repeated(lengths: Sequence[tuple[int, int]], count: int) -> list[tuple[int, int]]:
    return [lengths[i % len(lengths)] for i in range(count)]


def _fulfilling(attention: Attention, case: Case) -> Case:
    """`case`, without lengths that the scalars of the longest sequence do not fit: all sequences have the same."""
    scalars = {p.name for p in attention.params if p.is_scalar}
    longest = dict(zip(("Sq", "Sk"), max(case.lengths, key=sum), strict=True))
    numbers: dict[str, Any] = dict(inputs.examples(attention, case.size | longest, only=scalars, ints=case.ints))

    def fits(queries: int, keys: int) -> bool:
        try:
            inputs.examples(attention, case.size | {"Sq": queries, "Sk": keys}, numbers, only=scalars)
        except UsageError:
            return False
        return True

    lengths = tuple(_repeated([own for own in case.lengths if fits(*own)], len(case.lengths)))
    sizes = case.size | {name: max(own[i] for own in lengths) for i, name in enumerate(("Sq", "Sk"))}
    note = case.note if lengths == case.lengths else f"{case.note}, longer"
    return replace(case, note=note, sizes=tuple(sizes.items()), lengths=lengths)


# ---------------------------------------------------------------- sequences


@dataclass(frozen=True, slots=True)
class Ragged:
    """Sequences: q, k, v (H, S, …) of each, as the dtype holds them, and the params as each sees them, as a batch of
    one. `first`: in batch rows, where each begins, on either side; `rows`: how many a batch row has."""

    spec: Attention
    case: Case
    q: tuple[Array, ...]
    k: tuple[Array, ...]
    v: tuple[Array, ...]
    params: tuple[Mapping[str, Any], ...]
    shared: Mapping[str, Any]
    first: tuple[tuple[int, ...], tuple[int, ...]]
    rows: tuple[int, int]


def draw(spec: Attention, case: Case, seed: int = 0) -> Ragged:
    """Sequences of the case's lengths, and params that fulfil every fact for each of them."""
    torch = pytorch()
    rng = np.random.default_rng(seed)
    s, count = case.size, len(case.lengths)
    first = tuple([int(n) for n in rng.integers(0, 4, count)] for _ in range(2))
    rows = [max(f + own[i] for f, own in zip(first[i], case.lengths, strict=True)) + 2 for i in range(2)]

    def drawn(heads: int, side: int, cols: int) -> tuple[Array, ...]:
        found = (torch.from_numpy(rng.standard_normal((heads, own[side], cols))) for own in case.lengths)
        return tuple(x.to(getattr(torch, DTYPES[case.dtype])).double().numpy() for x in found)

    q, k, v = drawn(s["Hq"], 0, s["D"]), drawn(s["Hkv"], 1, s["D"]), drawn(s["Hkv"], 1, s["Dv"])
    longest = dict(zip(("Sq", "Sk"), max(case.lengths, key=sum), strict=True))
    shared = inputs.examples(spec, s | longest, seed=seed, ints=case.ints)
    common = {p.name: shared[p.name] for p in spec.params if _axis(p, "B") is None and _rows(p) is None}
    numbers: dict[str, Any] = {p.name: common[p.name] for p in spec.params if p.is_scalar}
    tensors: dict[str, Any] = {name: x for name, x in common.items() if name not in numbers}
    params: list[dict[str, Any]] = []
    for b, (queries, keys) in enumerate(case.lengths):
        own = inputs.examples(
            spec, s | {"Sq": queries, "Sk": keys}, numbers, data=tensors, seed=seed + b, ints=case.ints
        )
        params.append({p.name: _own(p, shared[p.name], own[p.name], b, case, first) for p in spec.params})
    return Ragged(spec, case, q, k, v, tuple(params), shared, (tuple(first[0]), tuple(first[1])), (rows[0], rows[1]))


def _own(p: Param, shared: Any, own: Any, b: int, case: Case, first: tuple[list[int], ...]) -> Any:
    """A param as sequence `b` sees it."""
    batch, place = _axis(p, "B"), _rows(p)
    if batch is not None:
        return own.take([b], batch)
    if place is None:
        return shared
    side, axis = place  # rows that every sequence reads from its own first one on
    stretch = np.arange(first[side][b], first[side][b] + case.lengths[b][side])
    return shared.take(stretch % shared.shape[axis], axis)


def _axis(p: Param, name: str) -> int | None:
    return next((i for i, d in enumerate(p.shape) if isinstance(d, Symbol) and d.id == name), None)


def _rows(p: Param) -> tuple[int, int] | None:
    """Side and axis of a param that has an element for each query or for each key."""
    axes = (_axis(p, "Sq"), _axis(p, "Sk"))
    return next(((side, axis) for side, axis in enumerate(axes) if axis is not None), None)


# ---------------------------------------------------------------- calls


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """The tensors of one call, and where sequence `b` begins in them, by side."""

    operands: Mapping[str, Any]
    params: Mapping[str, Any]
    bounds: Mapping[str, Any]
    first: tuple[tuple[int, ...], tuple[int, ...]]
    packed: bool
    made: Ragged = field(repr=False)

    def own_rows(self, side: int, b: int) -> slice:
        return slice(self.first[side][b], self.first[side][b] + self.made.case.lengths[b][side])

    def part(self, x: Any, side: int, b: int) -> Any:
        """(H, S, …) of a tensor like q, k or v; a view."""
        rows = self.own_rows(side, b)
        return x[rows].swapaxes(0, 1) if self.packed else x[b][:, rows]

    def stat(self, x: Any, b: int) -> Any:
        """(H, S) of one like lse; a view."""
        return x[:, self.own_rows(0, b)] if self.packed else x[b][:, self.own_rows(0, b)]

    def cells(self, p: Param, b: int) -> tuple[Any, ...]:
        """The place of what sequence `b` sees of a param; the batch's axis is kept where the tensor has one."""
        place, found = _rows(p), list[Any]()
        for axis, dim in enumerate(p.shape):
            if isinstance(dim, Symbol) and dim.id == "B":
                if not (self.packed and place is not None):
                    found.append(slice(b, b + 1))
            elif place is not None and place[1] == axis:
                found.append(self.own_rows(place[0], b))
            else:
                found.append(slice(None))
        return tuple(found)


def packed(made: Ragged, device: str, gap: int = 3) -> Call:
    """`gap` rows behind the last sequence are no sequence's. Where a sequence has as many queries as keys, one list of
    offsets serves both; else `gap` rows lie behind the keys of each, which `seqused_k` leaves out."""
    torch, lengths = pytorch(), made.case.lengths
    square = all(queries == keys for queries, keys in lengths)
    ends = [np.cumsum([0, *(own[i] + (gap if i and not square else 0) for own in lengths)]) for i in range(2)]
    offsets = [torch.tensor(e, dtype=torch.int32, device=device) for e in ends]
    bounds = {"cu_seqlens_q": offsets[0]}
    if not square:
        used = torch.tensor([keys for _, keys in lengths], dtype=torch.int32, device=device)
        bounds |= {"cu_seqlens_k": offsets[1], "seqused_k": used}
    totals = [int(e[-1]) + gap for e in ends]
    first = (tuple(map(int, ends[0][:-1])), tuple(map(int, ends[1][:-1])))
    return _filled(made, device, bounds, first, totals, packed=True)


def lengths(made: Ragged, device: str) -> Call:
    """Rows lie before and behind each sequence. Heads lie inside rows, as models have them."""
    torch, bounds = pytorch(), dict[str, Any]()
    for side, name in enumerate("qk"):
        start = torch.tensor(made.first[side], dtype=torch.int32, device=device)
        own = torch.tensor([n[side] for n in made.case.lengths], dtype=torch.int32, device=device)
        bounds |= {f"{name}_start": start, f"{name}_stop": start + own}
    return _filled(made, device, bounds, made.first, list(made.rows), packed=False)


CALLS = {"packed": packed, "lengths": lengths}


def _filled(
    made: Ragged,
    device: str,
    bounds: Mapping[str, Any],
    first: tuple[tuple[int, ...], tuple[int, ...]],
    totals: list[int],
    *,
    packed: bool,
) -> Call:
    torch, count = pytorch(), len(made.case.lengths)
    call = Call(operands={}, params={}, bounds=bounds, first=first, packed=packed, made=made)
    operands: dict[str, Any] = {}
    for name, parts, side in (("q", made.q, 0), ("k", made.k, 1), ("v", made.v, 1)):
        heads, _, cols = parts[0].shape
        shape = (totals[side], heads, cols) if packed else (count, totals[side], heads, cols)
        x = torch.full(shape, float("nan"), dtype=getattr(torch, DTYPES[made.case.dtype]), device=device)
        x = x if packed else x.transpose(1, 2)
        for b, own in enumerate(parts):
            call.part(x, side, b)[...] = torch.from_numpy(own).to(x)
        operands[name] = x.requires_grad_()
    params = {p.name: as_param(p, _whole(call, p, count, totals), made.case, device) for p in made.spec.params}
    return replace(call, operands=operands, params=params)


_ELSEWHERE = {Type.FLOAT: float("nan"), Type.INT: -7, Type.BOOL: True}
"""Elements of a param in rows that no sequence has."""


def _whole(call: Call, p: Param, count: int, totals: list[int]) -> Any:
    """A param's tensor: what each sequence sees, in its place."""
    shared, batch, place = call.made.shared[p.name], _axis(p, "B"), _rows(p)
    if batch is None and place is None:
        return shared
    shape = [count if i == batch else n for i, n in enumerate(shared.shape)]
    if place is not None:
        shape[place[1]] = totals[place[0]]
    if call.packed and place is not None and batch is not None:
        del shape[batch]
    # An element of a param with facts must be one that they allow: `check=True` looks at each.
    beside = _ELSEWHERE[p.type] if p.where is None else shared.flat[0]
    found = np.full(shape, beside, shared.dtype)
    for b, own in enumerate(call.made.params):
        cells = call.cells(p, b)
        found[cells] = own[p.name].reshape(found[cells].shape)
    return found


# ---------------------------------------------------------------- comparison


def compare(
    kernel: Kernel,
    case: Case,
    device: str,
    *,
    coarse: bool = False,
    seed: int = 0,
    geometry: str,
    check: bool = False,
) -> Iterator[Comparison]:
    """Run one case, forward and backward, and compare every result. `coarse`: its fp32 products are rounded. `check`:
    let the call look at what it is given."""
    call = CALLS[geometry](draw(kernel.spec, case, seed), device)
    dropout_seed = SEED if kernel.spec.dropout is not None else None
    learned = [p.name for p in kernel.spec.params if p.learns and p.name not in unsummed(kernel.plan)]
    measured, cotangents = _run(kernel, call, learned, dropout_seed, seed, check)
    expected = _expect(call, cotangents, learned, dropout_seed)
    wanted = expected if differentiates(kernel) else {name: expected[name] for name in ("out", "lse")}
    yield from judge(kernel.spec, case, measured, wanted, coarse=coarse)


def _run(
    kernel: Kernel, call: Call, learned: Collection[str], dropout_seed: int | None, seed: int, check: bool
) -> tuple[dict[str, Array], tuple[Array, Array]]:
    """The results, and the cotangents of out and lse: NaN in rows that no sequence has."""
    torch = pytorch()
    leaves = dict(call.operands) | {name: call.params[name] for name in learned}
    for leaf in leaves.values():
        leaf.requires_grad_()
    function = kernel.varlen if call.packed else kernel
    extra = {} if dropout_seed is None else {"dropout_seed": dropout_seed}
    q, k, v = call.operands.values()
    backward = differentiates(kernel)
    # Triton's interpreter computes with the rows beside a sequence, too.
    with np.errstate(invalid="ignore"), torch.set_grad_enabled(backward):
        out, lse = function(q, k, v, **call.params, **call.bounds, **extra, return_lse=True, check=check)
    rng = np.random.default_rng(seed)
    d_out, d_lse = (torch.full_like(x, float("nan")) for x in (out, lse))
    for b in range(len(call.made.case.lengths)):
        for place in (call.part(d_out, 0, b), call.stat(d_lse, b)):
            place[...] = torch.from_numpy(rng.standard_normal(place.shape)).to(place)
    gradients: dict[str, Any] = {}
    if backward:
        with np.errstate(invalid="ignore"):
            found = torch.autograd.grad((out, lse), tuple(leaves.values()), (d_out, d_lse), allow_unused=True)
        pairs = zip(leaves.items(), found, strict=True)
        gradients = {f"d {name}": torch.zeros_like(x) if g is None else g for (name, x), g in pairs}
    results = {name: _array(x) for name, x in ({"out": out, "lse": lse} | gradients).items()}
    return results, (_array(d_out), _array(d_lse))


def _array(x: Any) -> Array:
    return x.detach().double().cpu().numpy()


def _expect(
    call: Call, cotangents: tuple[Array, Array], learned: Collection[str], dropout_seed: int | None
) -> dict[str, Array]:
    """What the definition gives for each sequence by itself, put in its place."""
    made, spec = call.made, call.made.spec
    out, lse = np.zeros(cotangents[0].shape), np.full(cotangents[1].shape, -np.inf)
    totals = {name: np.zeros(tuple(x.shape)) for name, x in call.operands.items()}
    d_params = {name: np.zeros(tuple(call.params[name].shape)) for name in learned}
    for b, (queries, _) in enumerate(made.case.lengths):
        if not queries:
            continue
        alone = _Alone(call, b, dropout_seed)
        forward, backward = alone.evaluate(*cotangents)
        call.part(out, 0, b)[...] = forward.out[alone.number]
        call.stat(lse, b)[...] = forward.lse[alone.number]
        for name, side in (("q", 0), ("k", 1), ("v", 1)):
            call.part(totals[name], side, b)[...] = getattr(backward, name)[alone.number]
        for name, total in d_params.items():
            p, own, cells = spec.param(name), backward.params[name], call.cells(spec.param(name), b)
            batch = _axis(p, "B")
            own = own if batch is None else own.take([alone.number], batch)
            total[cells] += own.reshape(total[cells].shape)
    gradients = {f"d {name}": total for name, total in (totals | d_params).items()}
    return {"out": out, "lse": lse, **gradients}


class _Alone:
    """One sequence for the reference: a batch of one, or, where the spec reads its number, one of as many as there
    are."""

    def __init__(self, call: Call, b: int, dropout_seed: int | None):
        self.call, self.b, self.seed = call, b, dropout_seed
        spec = call.made.spec
        roots = (spec.score, spec.mask, spec.normalizer.weight, spec.normalizer.extra)
        numbered = spec.dropout is not None or any(walk.reads(e, "b", "B") for e in roots if e is not None)
        self.times, self.number = (len(call.made.case.lengths), b) if numbered else (1, 0)

    def evaluate(self, d_out: Array, d_lse: Array) -> tuple[reference.Result, reference.Gradients]:
        made, call = self.call.made, self.call
        operands = [x[self.b][None].repeat(self.times, 0) for x in (made.q, made.k, made.v)]
        params: dict[str, Any] = {}
        for p in made.spec.params:
            batch, own = _axis(p, "B"), made.params[self.b][p.name]
            params[p.name] = own if batch is None else own.repeat(self.times, batch)
        d = [call.part(d_out, 0, self.b), call.stat(d_lse, self.b)]
        cotangents = [np.zeros((self.times, *x.shape)) for x in d]
        for whole, own in zip(cotangents, d, strict=True):
            whole[self.number] = own
        arguments: dict[str, Any] = {"params": params, "dropout_seed": self.seed}
        return (
            reference.evaluate(made.spec, *operands, **arguments),
            reference.gradients(made.spec, *operands, *cotangents, **arguments),
        )
