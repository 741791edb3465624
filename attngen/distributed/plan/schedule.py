"""What each rank computes and receives, round by round.

Takes a kernel's visits, a layout, sequences and an exchange; returns a `Schedule`. Every rank makes the same one from
the same arguments, so no rank asks another. Plain Python and NumPy: `distributed/torch` and `distributed/jax` run it,
`plan-parallel` prints it, and `coverage` proves it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from numbers import Integral
from typing import Any, Literal, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from attngen.distributed.plan.layout import TILE, Layout, Range, Ranges, balanced, contiguous, headtail, joined, length
from attngen.errors import UsageError
from attngen.ir.attention import Attention, Param
from attngen.ir.axes import has_one_batch, reads_rows
from attngen.ir.evaluate import as_array
from attngen.ir.nodes import Type
from attngen.piece_arguments import check_known, check_params, is_int
from attngen.visits import Case, Planned, needed, row_work as _row_work, seeing

Exchange = Literal["ring", "gather", "heads"]
EXCHANGES: tuple[Exchange, ...] = ("ring", "gather", "heads")


@dataclass(frozen=True, slots=True)
class Sequences:
    """Where sequences begin and end among the rows of queries and of keys: sequence b has the queries
    q[b] … q[b + 1] - 1. Dense tensors have one for the whole batch, packed tensors (`packed`) one after the other."""

    q: tuple[int, ...]
    k: tuple[int, ...]
    packed: bool

    def __post_init__(self) -> None:
        for name, ends in (("queries", self.q), ("keys", self.k)):
            if not ends or ends[0] or any(a > b for a, b in pairwise(ends)):
                raise UsageError(f"offsets of {name} must begin with 0 and never fall: {_shown(ends)}")
        if len(self.q) != len(self.k):
            raise UsageError(f"{len(self.q) - 1} sequences of queries and {len(self.k) - 1} of keys")

    @classmethod
    def dense(cls, Sq: int, Sk: int | None = None) -> Sequences:
        for name, n in (("Sq", Sq), ("Sk", Sq if Sk is None else Sk)):
            if not is_int(n) or n < 0:
                raise UsageError(f"{name} must be an int from 0 up, not {n!r}")
        return cls((0, int(Sq)), (0, int(Sq if Sk is None else Sk)), packed=False)

    @classmethod
    def of_offsets(cls, q: Sequence[int], k: Sequence[int] | None = None) -> Sequences:
        """Packed: `cu_seqlens_q` and `cu_seqlens_k`, on the host."""
        for name, x in (("cu_seqlens", q), ("cu_seqlens_k", k or ())):
            if not isinstance(cast(object, x), Iterable):
                raise UsageError(f"{name} must be a sequence of ints, not {x!r}")
            wrong = next((n for n in x if not isinstance(n, Integral)), None)
            if wrong is not None:
                raise UsageError(f"{name} must be ints, not {wrong}")
        return cls(tuple(map(int, q)), tuple(map(int, q if k is None else k)), packed=True)

    @property
    def count(self) -> int:
        return len(self.q) - 1

    def sizes(self, b: int) -> tuple[int, int]:
        """Sq and Sk of a sequence."""
        return self.q[b + 1] - self.q[b], self.k[b + 1] - self.k[b]


class Piece(NamedTuple):
    """Queries and keys of one sequence, in its positions, that a group computes with one kernel."""

    sequence: int
    q: Range
    k: Range


class Transfer(NamedTuple):
    """Rows of K and V that one group sends to another; in the backward pass their gradients go back."""

    source: int
    target: int
    rows: Ranges


@dataclass(frozen=True, slots=True)
class Round:
    """In a round a group has the keys that it holds, and those of the round's transfers to it: it needs them for the
    round's pieces, and no others."""

    transfers: tuple[Transfer, ...]
    pieces: tuple[tuple[Piece, ...], ...]
    """By group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A group is `heads` ranks that follow one another: rank r is member r % heads of group r // heads. The members
    exchange rows for heads (all to all), so that each has all rows of its group, for its own share of the heads. Then
    groups exchange keys in rounds. With heads = 1 each rank is a group, and no heads are exchanged."""

    q_layout: Layout
    """Who holds which queries, by rank."""
    k_layout: Layout
    sequences: Sequences
    heads: int
    rounds: tuple[Round, ...]

    @property
    def ranks(self) -> int:
        return self.q_layout.ranks

    @property
    def groups(self) -> int:
        return self.ranks // self.heads

    def kept(self) -> tuple[int | None, ...]:
        """By group, the round whose keys and values it keeps for the backward pass, which begins with them: the last in
        which it receives any, if these are no more rows than a group may hold. (On torch.distributed.)"""
        arrived = np.zeros((len(self.rounds), self.groups), np.int64)
        for i, r in enumerate(self.rounds):
            for t in r.transfers:
                arrived[i, t.target] += length(t.rows)
        layout = self.k_layout.grouped(self.heads)
        most = max(layout.rows(g) for g in range(self.groups))
        last = (np.flatnonzero(of_group).max(initial=-1) for of_group in arrived.T)
        return tuple(int(i) if i >= 0 and arrived[i, g] <= most else None for g, i in enumerate(last))

    def received(self, group: int) -> int:
        """Rows of K and V that a group receives in all rounds."""
        own = (t for r in self.rounds for t in r.transfers if t.target == group)
        return sum(stop - start for t in own for start, stop in t.rows)


def same_as_said(spec: Attention, said: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """Raises `UsageError` where a call gives other values than `over` was given, by which rows are sent. Both are on
    the host. Floats are compared as float32, which kernels compute with; dims of size 1 are repeated."""
    for name in said.keys() & given.keys():
        type = spec.param(name).type
        a, b = (as_array(x, type) for x in (said[name], given[name]))
        a, b = (x.astype(np.float32) if type is Type.FLOAT else x for x in (a, b))
        fits = a.ndim == b.ndim and all(1 in n or n[0] == n[1] for n in zip(a.shape, b.shape, strict=True))
        if not fits or not np.array_equal(*np.broadcast_arrays(a, b), equal_nan=type is Type.FLOAT):
            if not a.ndim and not b.ndim:
                raise UsageError(f"{name} is {b} here, and over(…) was given {a}: both must be the same")
            raise UsageError(f"{name} has other elements here than over(…) was given: both must be the same")


def check_dim(x: Any, dim: Any, kind: str) -> None:
    """Raises `UsageError` for a dimension that `x` does not have."""
    if not hasattr(x, "ndim"):
        raise UsageError(f"x must have dimensions, as {kind}s do: it is {type(x).__name__}")
    if type(dim) is not int or not -x.ndim <= dim < x.ndim:
        raise UsageError(f"dim must be one of the {kind}'s {x.ndim} dimensions, not {dim!r}")


def check_operands(q: Any, k: Any, v: Any, heads: int) -> None:
    """Raises `UsageError` for tensors that do not go together, as `check_given` does; `heads` is their dimension."""
    for name, x in (("k", k), ("v", v)):
        if x.dtype != q.dtype:
            raise UsageError(f"{name} must have q's dtype {q.dtype}, not {x.dtype}")
        if x.ndim == 4 and x.shape[0] not in (1, q.shape[0]):
            raise UsageError(f"{name} must have q's batch {q.shape[0]}, not {x.shape[0]}")
    if k.shape[-1] != q.shape[-1]:
        raise UsageError(f"k must have q's head dim {q.shape[-1]}, not {k.shape[-1]}")
    if v.shape[heads] != k.shape[heads]:
        raise UsageError(f"v must have the {k.shape[heads]} heads of k, not {v.shape[heads]}")
    if q.shape[heads] % k.shape[heads] if k.shape[heads] else q.shape[heads]:
        raise UsageError(f"q's {q.shape[heads]} heads must be a multiple of the {k.shape[heads]} heads of k and v")


def check_given(spec: Attention, sequences: Sequences, params: Mapping[str, Any]) -> None:
    """Raises `UsageError` for a param that does not fit, before anything is sent: a rank that refuses one in the midst
    of its messages leaves the others waiting. Packed rows: see `check_packed_params`."""
    check_known(spec.name, spec.params, params)
    sizes = {} if sequences.packed else {"Sq": sequences.q[-1], "Sk": sequences.k[-1]}
    check_params(spec, params, sizes, scalars_only=sequences.packed)
    if sequences.packed:
        check_packed_params(spec, sequences, params)


@dataclass(frozen=True, kw_only=True)
class Masked:
    """What a mask reads beside positions, on the host: see `attngen.visits.Case`. What is missing costs transfers and
    balance, never a result."""

    params: Mapping[str, Any] = field(default_factory=dict[str, Any])
    extents: Mapping[str, int] = field(default_factory=dict[str, int])

    def case(self, spec: Attention, sequences: Sequences, b: int) -> Case:
        """What is asked of sequence `b`. One of several that are packed is a batch by itself."""
        if not sequences.packed:
            return Case(sizes=sequences.sizes(b), params=self.params, extents=self.extents)
        params = {n: _of_sequence(spec.param(n), x, sequences, b) for n, x in self.params.items()}
        extents = {name: n for name, n in self.extents.items() if name != "B"}
        return Case(sizes=sequences.sizes(b), params=params, extents=extents)


def _of_sequence(p: Param, x: Any, sequences: Sequences, b: int) -> Any:
    """A param's part for one of packed sequences, with a batch of one."""
    dims = p.dim_names
    if "B" not in dims:
        return x
    at = dims.index("B")
    x = as_array(x, p.type)
    if {"Sq", "Sk"}.isdisjoint(dims):
        return x[(slice(None),) * at + (slice(b, b + 1),)]
    x = np.expand_dims(x, at)
    for i, name in enumerate(dims):
        ends = {"Sq": sequences.q, "Sk": sequences.k}.get(name)
        if ends is not None:
            x = x[(slice(None),) * i + (slice(ends[b], ends[b + 1]),)]
    return x


def check_packed(spec: Attention) -> None:
    """Raises `UsageError` for what packed sequences cannot have where a call knows some of them alone."""
    if not has_one_batch(spec):
        raise UsageError(f"{spec.name}: the spec reads the batch's number: packed sequences are not told apart")
    for name in reads_rows(spec):
        dims = spec.param(name).dim_names
        if "B" not in dims or {"Sq", "Sk"} <= {*dims}:
            raise UsageError(f"{spec.name}: {name} has rows of one sequence: packed sequences do not share them")


def check_packed_params(spec: Attention, sequences: Sequences, params: Mapping[str, Any]) -> None:
    """Raises `UsageError` for a param that does not fit packed sequences: rows of all of them, without a batch, or an
    element for each."""
    for p in spec.params:
        shape, dims = getattr(params.get(p.name), "shape", None), p.dim_names
        if shape is None or "B" not in dims:
            continue
        lengths = {"B": sequences.count, "Sq": sequences.q[-1], "Sk": sequences.k[-1]}
        if not {"Sq", "Sk"}.isdisjoint(dims):
            dims.remove("B")
        wanted = [str(lengths.get(name, name or "number")) for name in dims]
        fits = len(shape) == len(dims) and all(lengths.get(d, n) == n for d, n in zip(dims, shape, strict=True))
        if not fits:
            raise UsageError(
                f"{spec.name}: {p.name} must have shape ({', '.join(wanted)}), not {tuple(shape)}: sequences are "
                "packed, and sizes of 1 are not repeated for them: expand them before"
            )


def row_work(kernel: Planned, sequences: Sequences, masked: Masked = Masked()) -> npt.NDArray[np.float64]:
    """Keys that each row of queries may attend to: the work that `layout.balanced` balances."""
    found = [np.empty(0)]
    known: dict[tuple[int, int], npt.NDArray[np.float64]] = {}
    for b in range(sequences.count):
        sizes = sequences.sizes(b)
        if sizes not in known:
            work = _row_work(kernel, masked.case(kernel.spec, sequences, b))
            if _same_for_all(kernel):
                known[sizes] = work
            found.append(work)
        else:
            found.append(known[sizes])
    return np.concatenate(found)


LayoutName = Literal["auto", "contiguous", "headtail"]
LAYOUTS: tuple[LayoutName, ...] = ("auto", "contiguous", "headtail")


def named_layout(
    name: LayoutName, sequences: Sequences, ranks: int, work: Callable[[], npt.NDArray[Any]], *, heads: int = 1
) -> Layout:
    """Who holds which queries; "auto" balances the `work` of each row over groups of `heads` ranks."""
    total = sequences.q[-1]
    if ranks < 1 or heads < 1 or ranks % heads:
        raise UsageError(f"{ranks} ranks are not whole groups of {heads}")
    groups = ranks // heads
    match name:
        case "contiguous":
            return contiguous(total, ranks)
        case "headtail":
            return headtail(total, groups).divided(heads)
        case "auto":
            if groups == 1:
                return contiguous(total, ranks)
            return balanced(work(), groups, sequences.q).divided(heads)
        case _:
            raise UsageError(f"layout {name!r} is not known; there are {', '.join(LAYOUTS)}")


def _same_for_all(kernel: Planned) -> bool:
    """Whether sequences of the same sizes have the same mask."""
    from attngen.ir.walk import reads

    return not reads(kernel.spec.mask, "b")


def schedule(
    kernel: Planned,
    q_layout: Layout,
    sequences: Sequences,
    exchange: Exchange = "ring",
    *,
    k_layout: Layout | None = None,
    heads: int = 1,
    masked: Masked = Masked(),
) -> Schedule:
    """`k_layout`: where keys lie, if not where queries do. `heads`: how many ranks share a group's heads; with the
    exchange "heads" all ranks do."""
    k_layout = q_layout if k_layout is None else k_layout
    heads = q_layout.ranks if exchange == "heads" else heads
    _check(q_layout, k_layout, sequences, exchange, heads)
    q_groups, k_groups = q_layout.grouped(heads), k_layout.grouped(heads)
    holders = k_groups.holders()
    rounds: dict[int, list[list[Piece]]] = defaultdict(lambda: [[] for _ in range(q_groups.ranks)])
    rows: dict[int, dict[tuple[int, int], list[Range]]] = defaultdict(lambda: defaultdict(list))
    asked: dict[int, list[tuple[int, Range]]] = defaultdict(list)
    for group, own in enumerate(q_groups.stretches):
        for b, q in _cut(own, sequences.q):
            asked[b].append((group, q))
    for b, of_groups in sorted(asked.items()):
        first = sequences.k[b]
        case = masked.case(kernel.spec, sequences, b)
        keys = needed(kernel, [q for _, q in of_groups], case)
        for (group, q), stretches in zip(of_groups, keys, strict=True):
            narrowed = seeing(kernel, q, case) if exchange == "ring" else None
            for start, stop in _aligned(stretches, q[0], first, holders):
                for low, high, source in _held(holders, (first + start, first + stop)):
                    k = (low - first, high - first)
                    own = q if narrowed is None else narrowed(k)
                    if own[0] == own[1]:  # a gap that `needed` bridges
                        continue
                    turn = (group - source) % q_groups.ranks if exchange == "ring" else 0
                    if source != group:
                        rows[turn][source, group].append((low, high))
                    if exchange == "ring":
                        _add(rounds[turn][group], Piece(b, own, k))
                if exchange != "ring":
                    rounds[0][group].append(Piece(b, q, (start, stop)))
    made = [
        Round(
            transfers=tuple(Transfer(*pair, joined(r)) for pair, r in sorted(rows[turn].items())),
            pieces=tuple(map(tuple, rounds[turn])),
        )
        for turn in sorted(rounds)
    ]
    return Schedule(q_layout=q_layout, k_layout=k_layout, sequences=sequences, heads=heads, rounds=tuple(made))


def _check(q_layout: Layout, k_layout: Layout, sequences: Sequences, exchange: Exchange, heads: int) -> None:
    if exchange not in EXCHANGES:
        raise UsageError(f"no exchange {exchange!r}; there are {', '.join(EXCHANGES)}")
    if q_layout.ranks != k_layout.ranks:
        raise UsageError(f"queries lie on {q_layout.ranks} ranks and keys on {k_layout.ranks}")
    for name, layout, ends in (("queries", q_layout, sequences.q), ("keys", k_layout, sequences.k)):
        if layout.total != ends[-1]:
            raise UsageError(f"the layout of {name} has {layout.total} rows, and the sequences have {ends[-1]}")
    if heads < 1:
        raise UsageError(f"heads must be at least 1, not {heads}")


def _add(pieces: list[Piece], piece: Piece) -> None:
    """The last piece goes on where the same queries need the keys that follow."""
    last = pieces[-1] if pieces else None
    if last is not None and last[:2] == piece[:2] and last.k[1] == piece.k[0]:
        pieces[-1] = last._replace(k=(last.k[0], piece.k[1]))
    else:
        pieces.append(piece)


def _aligned(
    stretches: Sequence[Range], q: int, first: int, holders: Sequence[tuple[int, int, int]]
) -> Iterator[Range]:
    """Stretches of keys that begin whole tiles from the query `q`, if that is at most an eighth more of the same
    holder's keys. `first`: the row of the sequence's first key."""
    reach = 0
    for start, stop in stretches:
        low, high, _ = holders[bisect_right(holders, (first + start, 2**62, 0)) - 1]
        before = (start - q) % TILE
        fits = before <= min((min(stop, high - first) - start) // 8, start - max(reach, low - first))
        yield (start - before if fits else start), stop
        reach = stop


def _cut(own: Ranges, ends: Sequence[int]) -> Iterator[tuple[int, Range]]:
    """Stretches of rows cut where sequences begin: (sequence, positions)."""
    for start, stop in own:
        b = bisect_right(ends, start) - 1
        while b < len(ends) - 1 and ends[b] < stop:
            low, high = max(start, ends[b]), min(stop, ends[b + 1])
            if low < high:
                yield b, (low - ends[b], high - ends[b])
            b += 1


def _held(holders: Sequence[tuple[int, int, int]], rows: Range) -> Iterator[tuple[int, int, int]]:
    """Rows by the stretches that hold them: (start, stop, who)."""
    at = bisect_right(holders, (rows[0], 2**62, 0)) - 1
    while at < len(holders) and holders[at][0] < rows[1]:
        start, stop, who = holders[at]
        if max(start, rows[0]) < min(stop, rows[1]):
            yield max(start, rows[0]), min(stop, rows[1]), who
        at += 1


def _shown(ends: Sequence[int]) -> str:
    return ", ".join(map(str, ends[:8])) + (", …" if len(ends) > 8 else "")
