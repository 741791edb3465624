"""The forward and the backward pass of one rank, as its steps say: a kernel's pieces, merged, and messages meanwhile.

Takes steps (`distributed/plan/program.py`), a link, and tensors with the rows of the own group; returns out and lse, or
gradients. Knows nothing of autograd, heads of other members, or how the steps came about. K and V of the next step are
on their way while a step is computed. The backward pass goes through the steps from the last to the first, begins with
what was kept of the last one, and computes the own keys at the end, while gradients of K and V go home in float32.
Whoever holds the rows adds them in the order of steps and groups, so that the bits repeat.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeAlias

import torch
from torch import Tensor

from attngen import torch_pieces
from attngen.distributed.plan.layout import length
from attngen.distributed.plan.program import Call, Part, Step, Turn, turns
from attngen.distributed.plan.schedule import Sequences
from attngen.distributed.torch.messages import Link, Message, Pending, add_picked, picked, post, taken
from attngen.distributed.torch.sums import Adds, Stretch, Sum, adds_of, placed, plus
from attngen.errors import UsageError
from attngen.ir.axes import HEADS, cut_params
from attngen.kernel import Kernel
from attngen.pieces import Place

Held: TypeAlias = dict[int, list[Tensor]]
"""K and V of groups, by their number."""


@dataclass(frozen=True)
class Run:
    """What stays the same from call to call of one placement."""

    kernel: Kernel
    steps: tuple[Step, ...]
    sequences: Sequences
    link: Link
    numbers: dict[tuple[int, torch.device], dict[str, Any]] = field(default_factory=dict[Any, Any])
    """Offsets of the calls with several sequences, on the device."""
    kept: dict[tuple[int, int], Addends] = field(default_factory=dict[Any, Any])

    def addends(self, queries: int, keys: int) -> Addends:
        """What the sums over calls get, in their order; the group has so many rows."""
        if (queries, keys) not in self.kept:
            self.kept[queries, keys] = _addends(self, queries, keys)
        return self.kept[queries, keys]

    @cached_property
    def turns(self) -> tuple[Turn, ...]:
        return turns(self.steps)


@dataclass(frozen=True)
class Addends:
    """Of the own queries, in each pass, of the own keys, and, by the steps of the backward pass, of the keys that come
    from a group."""

    forward: Adds
    queries: Adds
    keys: Adds
    away: tuple[dict[int, Adds], ...]


def _addends(run: Run, queries: int, keys: int) -> Addends:
    """As `forward` goes through the steps, and `backward` through the turns."""
    rank = run.link.rank
    ahead = [placed(c.q) for s in run.steps for c in (*s.early, *s.calls)]
    of_q = [placed(c.q) for turn in run.turns for c in turn.calls]
    of_k, wide, away = list[list[Stretch]](), list[bool](), list[dict[int, Adds]]()
    for turn in run.turns:
        computed = [rows for c in turn.calls if (rows := _rows_of(c.k, rank))]
        home = [placed(rows) for step in turn.home for _, rows in step.send]
        of_k += [*computed, *home]
        wide += [False] * len(computed) + [True] * len(home)
        sources = turn.step.receive if turn.step is not None else ()
        of_others = {n: [p for c in turn.calls if (p := _rows_of(c.k, n))] for n, _ in sources}
        away.append({n: adds_of(rows, of_others[n]) for n, rows in sources})
    return Addends(adds_of(queries, ahead), adds_of(queries, of_q), adds_of(keys, of_k, wide), tuple(away))


def _rows_of(parts: tuple[Part, ...], source: int) -> list[Stretch]:
    """Where the rows of a group are among a call's keys."""
    whole = placed((p.start, p.stop) for p in parts)
    return [stretch for p, stretch in zip(parts, whole, strict=True) if p.source == source]


@dataclass(frozen=True, slots=True)
class Drawn:
    """What dropout draws from: its seed, and how many heads and sequences of the whole come before the tensors' own."""

    seed: Any = None
    heads: int = 0
    sequences: int = 0


def head_dims(kernel: Kernel, *, packed: bool) -> dict[str, int] | None:
    """Which dimension of each param is cut with heads; None where heads may not be cut. Packed sequences' params with
    an element for each row have no dimension B."""
    cut = cut_params(kernel.spec, HEADS)
    if cut is None or not packed:
        return cut
    dims = {name: sized(kernel, name) for name in cut}
    return {n: d - ("B" in dims[n][:d] and bool({"Sq", "Sk"} & {*dims[n]})) for n, d in cut.items()}


# ---------------------------------------------------------------- passes


def forward(
    run: Run,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float | None,
    params: Mapping[str, Any],
    drawn: Drawn,
    *,
    exact: bool,
) -> tuple[Tensor, Tensor, Held]:
    """out and lse of the group's queries, finished; out in the dtype of q, or where it must be `exact` in float32. And
    the keys and values of others that `backward` wants to have kept."""
    kernel, link = run.kernel, run.link
    total = _Total(run, q, v, torch.float32 if exact or kernel.plan.weights.own_term is not None else q.dtype)
    messages, kept = _fetch(run, run.steps, 0, (k, v)), Held()

    def compute(calls: Sequence[Call], held: Held) -> None:
        for call in calls:
            keys, values = (_keys(link, held, call.k, n) for n in (0, 1))
            used = _Params(run, call, params, drawn)
            operands, place = used.operands(link.taken(q, call.q), keys, values)
            total.absorb(*used.back(*torch_pieces.part(kernel, operands, place, scale, used.given)))

    sent = 1
    try:
        for i, step in enumerate(run.steps):
            compute(step.early, {link.rank: [k, v]})
            arrived, messages, sent = messages.wait(), _fetch(run, run.steps, i + 1, (k, v)), i + 2
            compute(step.calls, {link.rank: [k, v], **arrived})
            kept = arrived if step.kept else kept
        messages.wait()
    except UsageError:  # of this rank, perhaps: the others wait for its rows, and its next call is not to get theirs
        messages.wait()
        for i in range(sent, len(run.steps)):
            _fetch(run, run.steps, i, (k, v)).wait()
        raise
    out, lse = total.finished(params)
    return (out if exact else out.to(q.dtype)), lse, kept


class _Total:
    """What the calls so far give: out, and the lse of its rows. What needs no merging is stored as it comes."""

    def __init__(self, run: Run, q: Tensor, v: Tensor, dtype: torch.dtype) -> None:
        self.run, self.packed = run, run.sequences.packed
        self.lse_rows = 1 if self.packed else 2
        self.divides = run.kernel.spec.normalizer.sums
        rows = run.link.rows
        self.adds = run.addends(q.shape[rows], v.shape[rows]).forward
        self.sum = Sum(self.adds, rows, lambda dtype: _like(q, v.shape[-1], dtype), dtype)
        self.new_lse = lambda: q.new_empty(_lse_shape(q), dtype=torch.float32)
        self.lse: Tensor | None = None

    def absorb(self, out: Tensor, lse: Tensor) -> None:
        """The next call's."""
        merged: list[Stretch] = []

        def joined(into: Tensor, kept: Tensor, new: Tensor, of: Stretch) -> None:
            self.merge(into, kept, self._lse(of), new, lse.narrow(self.lse_rows, of.at, of.stop - of.start))
            merged.append(of)

        firsts = self.sum.add(out, joined)
        if self.sum.result() is out:
            for of in merged:
                lse.narrow(self.lse_rows, of.at, of.stop - of.start).copy_(self._lse(of))
            self.lse = lse
        else:
            for of in firsts:
                self._lse(of).copy_(lse.narrow(self.lse_rows, of.at, of.stop - of.start))

    def _lse(self, of: Stretch) -> Tensor:
        return self._begun().narrow(self.lse_rows, of.start, of.stop - of.start)

    def _begun(self) -> Tensor:
        if self.lse is None:
            self.lse = self.new_lse()
            for start, stop in self.adds.none:
                self.lse.narrow(self.lse_rows, start, stop - start).fill_(float("-inf") if self.divides else 0.0)
        return self.lse

    def finished(self, params: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
        """out and lse, with the logarithm of the denominator's own term, where it has one."""
        out, lse = self.sum.result(), self._begun()
        own = torch_pieces.own_part(self.run.kernel, lse, params)
        if own is not None:
            self.merge(out, out, lse, None, own)
        return out, lse

    def merge(self, into: Tensor, kept: Tensor, lse: Tensor, new: Tensor | None, new_lse: Tensor) -> None:
        if into.device.type == "cpu":
            new = torch.zeros_like(kept) if new is None else new
            out, whole = torch_pieces.merge(self.run.kernel, [(kept, lse), (new, new_lse)])
            into.copy_(out)
            lse.copy_(whole)
            return
        from attngen.runtime.merging import merge_into

        if self.packed:
            lse, new_lse = lse.unsqueeze(0), new_lse.unsqueeze(0)
        new = None if new is None else _batched(new)
        merge_into(_batched(into), _batched(kept), lse, new, new_lse, sums=self.divides)


def backward(
    run: Run,
    operands: tuple[Tensor, Tensor, Tensor],
    cotangents: tuple[Tensor, Tensor | None],
    results: tuple[Tensor, Tensor],
    kept: Held,
    scale: float | None,
    params: Mapping[str, Any],
    drawn: Drawn,
    *,
    exact: bool,
) -> tuple[Tensor, Tensor, Tensor, dict[str, Tensor]]:
    """Gradients of the group's q, k and v, those of k and v in float32 where they must be `exact`, and what this group
    adds to those of learned params. `kept`: by `forward`."""
    link, (q, k, v) = run.link, operands
    d_out, d_lse = cotangents
    out, lse = results
    addends = run.addends(q.shape[link.rows], k.shape[link.rows])
    dq = _gradient(link, addends.queries, q, q.dtype)
    own = [_gradient(link, addends.keys, x, torch.float32 if exact else x.dtype) for x in (k, v)]
    learned = {n: x for n, x in params.items() if isinstance(x, Tensor) and x.requires_grad}
    totals = {n: torch.zeros_like(x, dtype=torch.float32) for n, x in learned.items()}
    back = [replace(s, send=s.again, receive=() if s.kept else s.receive) for s in reversed(run.steps)]
    messages, homeward = _fetch(run, back, 0, (k, v)), list[Pending]()

    def compute(calls: Sequence[Call], held: Held, slopes: Mapping[int, Sequence[Sum]]) -> None:
        for call in calls:
            used = _Params(run, call, params, drawn)
            rows = [link.taken(x, call.q) for x in (q, d_out, out)]
            row_lse, row_d_lse = (None if x is None else taken(x, call.q, -1) for x in (lse, d_lse))
            keys, values = (_keys(link, held, call.k, n) for n in (0, 1))
            given, place = used.operands(rows[0], keys, values)
            d_rows, o_rows = used.rows(rows[1]), used.rows(rows[2])
            slopes_of_lse, whole = used.lse(row_d_lse), (o_rows, used.lse(row_lse))
            found, g_params = torch_pieces.slopes(
                run.kernel, given, (d_rows, slopes_of_lse), whole, place, scale, used.given
            )
            g_q, *g_keys = (
                used.rows_back(_like(x, x.shape[-1], x.dtype).zero_() if g is None else g)
                for g, x in zip(found, given, strict=True)
            )
            dq.add(g_q, _plus)
            for source in dict.fromkeys(p.source for p in call.k):
                for total, g in zip(slopes[source], g_keys, strict=True):
                    total.add(g, _plus)
            for name, g in g_params.items():
                used.add(totals[name], name, g)

    fetched = 0
    for i, turn in enumerate(run.turns):
        arrived = Held()
        if turn.step is not None:
            fetched += 1
            arrived, messages = messages.wait(), _fetch(run, back, fetched, (k, v))
            arrived = kept if turn.step.kept else arrived
        away = {n: Message.empty([x.shape for x in xs], xs[0], torch.float32) for n, xs in arrived.items()}
        sums = {n: [_gradient(link, addends.away[i][n], x, x.dtype, x) for x in m.tensors] for n, m in away.items()}
        compute(turn.calls, {link.rank: [k, v], **arrived}, {link.rank: own, **sums})
        for step in turn.home:
            come = homeward.pop(0).wait()
            for target, _ in step.send:
                for total, g in zip(own, come[target], strict=True):
                    total.add(g, _plus)
        if turn.step is not None:
            going = {target: length(rows) for target, rows in turn.step.send}
            homeward.append(post(link, away, going, (k, v), torch.float32))
    if learned:
        for name, g in run.kernel.finish_backward(d_out, out, lse, d_lse=d_lse, **params).items():
            totals[name] += g
    return dq.result(), own[0].result(), own[1].result(), totals


def _plus(into: Tensor, kept: Tensor, new: Tensor, of: Stretch) -> None:
    if into.device.type == "cpu":
        plus(into, kept, new, of)
        return
    from attngen.runtime.merging import add_into

    add_into(*map(_batched, (into, kept, new)))


def _gradient(link: Link, adds: Adds, x: Tensor, dtype: torch.dtype, out: Tensor | None = None) -> Sum:
    return Sum(adds, link.rows, lambda dtype: _like(x, x.shape[-1], dtype), dtype, out)


def _fetch(run: Run, steps: Sequence[Step], i: int, own: tuple[Tensor, Tensor]) -> Pending:
    """Begins what a step needs: K and V to whoever needs the own rows, and those of others."""
    if i >= len(steps):
        return Pending()
    send = {target: Message.of(run.link, own, rows) for target, rows in steps[i].send}
    return post(run.link, send, dict(steps[i].receive), own, own[0].dtype)


# ---------------------------------------------------------------- rows


def _like(x: Tensor, cols: int, dtype: torch.dtype) -> Tensor:
    """A new tensor that lies in memory as `x` does: heads inside rows, or rows inside heads; columns always inside."""
    if x.ndim == 4 and x.stride(1) < x.stride(2):
        B, H, S, _ = x.shape
        return x.new_empty((B, S, H, cols), dtype=dtype).transpose(1, 2)
    return x.new_empty((*x.shape[:-1], cols), dtype=dtype)


def _batched(x: Tensor) -> Tensor:
    """(T, H, D) as (1, H, T, D)."""
    return x.transpose(0, 1).unsqueeze(0) if x.ndim == 3 else x


def _lse_shape(q: Tensor) -> tuple[int, ...]:
    return (q.shape[1], q.shape[0]) if q.ndim == 3 else tuple(q.shape[:3])


def _keys(link: Link, held: Held, parts: tuple[Part, ...], n: int) -> Tensor:
    found = [held[p.source][n].narrow(link.rows, p.start, p.stop - p.start) for p in parts]
    return found[0] if len(found) == 1 else torch.cat(found, link.rows)


# ---------------------------------------------------------------- params


class _Params:
    """A call's arguments: of which sequences it has the params, and where its pieces lie.

    A call with one piece of a packed tensor is a dense one with B = 1.
    """

    def __init__(self, run: Run, call: Call, params: Mapping[str, Any], drawn: Drawn) -> None:
        self.run, self.call, self.drawn = run, call, drawn
        self.packed = run.sequences.packed
        self.single = self.packed and len(call.pieces) == 1
        self.given = {n: self._own(n, x) for n, x in params.items()}

    def operands(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[tuple[Tensor, Tensor, Tensor], Place]:
        call, ends = self.call, self.run.sequences
        if not self.packed or self.single:
            (piece,) = call.pieces
            Sq, Sk = ends.sizes(piece.sequence)
            first = piece.sequence if self.single else self.drawn.sequences
            place = Place(q_offset=piece.q[0], k_offset=piece.k[0], Sq=Sq, Sk=Sk, **self._counted(first))
            return (self.rows(q), self.rows(k), self.rows(v)), place
        key = id(call), q.device
        if key not in self.run.numbers:
            sizes = [ends.sizes(p.sequence) for p in call.pieces]
            numbers = {
                "q_offset": [p.q[0] for p in call.pieces], "k_offset": [p.k[0] for p in call.pieces],
                "Sq": [n for n, _ in sizes], "Sk": [n for _, n in sizes],
                "cu_seqlens_q": call.q_offsets, "cu_seqlens_k": call.k_offsets,
                "b_offset": [p.sequence - i for i, p in enumerate(call.pieces)],
            }  # fmt: skip
            self.run.numbers[key] = {n: torch.tensor(x, dtype=torch.int32, device=q.device) for n, x in numbers.items()}
        found = self.run.numbers[key]
        return (q, k, v), Place(**{**found, **self._counted(found["b_offset"])})

    def _counted(self, sequences: Any) -> dict[str, Any]:
        return {"dropout_seed": self.drawn.seed, "h_offset": self.drawn.heads, "b_offset": sequences}

    def rows(self, x: Tensor) -> Tensor:
        """(T, H, D) as (1, H, T, D) where the call is dense."""
        return x.transpose(0, 1).unsqueeze(0) if self.single else x

    def rows_back(self, x: Tensor) -> Tensor:
        return x.squeeze(0).transpose(0, 1) if self.single else x

    def lse(self, x: Any) -> Any:
        return x.unsqueeze(0) if self.single and x is not None else x

    def back(self, out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
        return self.rows_back(out), lse.squeeze(0) if self.single else lse

    def add(self, total: Tensor, name: str, g: Tensor) -> None:
        """Adds the gradient of a call's own part of a param."""
        if not self.packed or not g.ndim:
            total.add_(g)
            return
        dims = sized(self.run.kernel, name)
        if self._by_rows(dims):
            self._narrowed(total, dims).add_(g)
        elif "B" in dims:
            add_picked(total, dims.index("B"), [p.sequence for p in self.call.pieces], g)
        else:
            total.add_(g)

    def _own(self, name: str, x: Any) -> Any:
        if not self.packed or not isinstance(x, Tensor) or not x.ndim:
            return x
        dims = sized(self.run.kernel, name)
        if self._by_rows(dims):
            own = self._narrowed(x, dims)
        elif "B" in dims:
            own = picked(x, dims.index("B"), [p.sequence for p in self.call.pieces])
        else:
            return x
        return own.detach().requires_grad_(x.requires_grad) if x.is_floating_point() else own

    @staticmethod
    def _by_rows(dims: list[str]) -> bool:
        return bool({"Sq", "Sk"} & {*dims})

    def _narrowed(self, x: Tensor, dims: list[str]) -> Tensor:
        """A sequence's rows of a param of all sequences, with a dimension for the batch: a view."""
        ends, b = self.run.sequences, self.call.pieces[0].sequence
        x = x.unsqueeze(dims.index("B"))
        for d, name in enumerate(dims):
            if name in ("Sq", "Sk"):
                of = ends.q if name == "Sq" else ends.k
                x = x.narrow(d, of[b], of[b + 1] - of[b])
        return x


def sized(kernel: Kernel, name: str) -> list[str]:
    """A param's dimensions by their sizes' names."""
    return kernel.spec.param(name).dim_names
