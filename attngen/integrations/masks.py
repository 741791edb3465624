"""The mask of one forward pass of a transformers model, without its pairs: which attention, and where the rows lie.

`make` is what `AttentionMaskInterface` calls, once for each forward pass and kind of layer. The model hands its result
to the attention of every layer untouched. Causality, windows and chunks choose a spec; padding and static caches become
lengths; packed sequences become offsets.

`torch.compile` cannot read the values of tensors. Where it traces, padding is always passed as lengths, and packed
sequences as the ids of their tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NoReturn, cast

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers.masking_utils import causal_mask_function
from transformers.utils import import_utils

from attngen.distributed.torch.current import OpenRegion, current_region
from attngen.errors import UsageError
from attngen.integrations.mask_functions import FIX, MaskFunction, Pattern, read
from attngen.integrations.specs import Choice


@dataclass(frozen=True, kw_only=True, eq=False)
class Mask:
    """What the attention of a layer needs to know of the mask."""

    choice: Choice
    """Which pairs, where every batch row (or packed sequence) is a sequence of its own."""
    shape: tuple[int, int, int, int]
    """Batch, 1, queries, keys: the shape of the mask that this stands for."""
    dropped: bool
    """Whether the first stored key is not the sequence's first: the cache of a sliding layer drops keys."""
    cached: bool
    """Whether stored keys may stand before the first query."""
    ended: bool
    """Whether the last query is known to be at the last stored key, as with a growing cache, or no pair asks for it."""
    lengths: dict[str, Tensor]
    """`q_start`, `q_stop`, `k_start`, `k_stop`, (batch,) int32 each; empty where each batch row is a whole sequence."""
    cu_seqlens: Tensor | None
    """(sequences + 1,) int32: where the packed sequences begin among all tokens of the batch."""
    params: dict[str, Tensor]
    """What the spec of `choice` reads of the mask."""

    # What models ask of a mask on its way to the layers.
    ndim = 4

    # A model that computes with the mask itself cannot be served by what stands for it.

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise UsageError(f"this model reads `{name}` of the attention mask, {_NO_PAIRS}")

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> NoReturn:
        raise UsageError(f"this model computes `{func.__name__}` with the attention mask, {_NO_PAIRS}")

    def _computed(self, *_: Any) -> NoReturn:
        raise UsageError(f"this model computes with the attention mask, {_NO_PAIRS}")

    __getitem__ = __invert__ = __neg__ = __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _computed
    __and__ = __rand__ = __or__ = __ror__ = __lt__ = __le__ = __gt__ = __ge__ = _computed

    def contiguous(self) -> Mask:
        return self

    def to(self, device: Any, **_: Any) -> Mask:
        """The same on another device, as models that are spread over several need it."""
        return Mask(
            choice=self.choice,
            shape=self.shape,
            dropped=self.dropped,
            cached=self.cached,
            ended=self.ended,
            lengths={name: tensor.to(device) for name, tensor in self.lengths.items()},
            cu_seqlens=None if self.cu_seqlens is None else self.cu_seqlens.to(device),
            params={name: tensor.to(device) for name, tensor in self.params.items()},
        )


def make(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor = 0,
    kv_offset: int = 0,
    mask_function: MaskFunction = causal_mask_function,
    attention_mask: Tensor | Mask | None = None,
    device: Any = "cpu",
    allow_is_causal_skip: bool = True,
    config: Any = None,
    **_: Any,
) -> Mask:
    """The mask of a forward pass. Query i stands at position `q_offset + i`, key j at `kv_offset + j`; `attention_mask`
    (batch, positions) is false for padding. `allow_is_causal_skip` is false where a static cache is decoded from: the
    next step must find the same kind of mask, or compiled code is compiled again. `config`, the model's, is for
    messages. The other arguments are for masks that hold pairs.

    In a region of context parallelism the rows are those of one rank, and where sequences begin is the region's matter.

    Raises `UsageError` for a `mask_function` that `mask_functions.read` does not know, and for padding inside a
    sequence.
    """
    if isinstance(attention_mask, Mask):  # `generate` made it already, with a static cache
        return attention_mask
    pattern = read(mask_function, _way_out(config))
    padding = attention_mask
    if pattern.padding is not None:
        padding = pattern.padding if padding is None else padding & pattern.padding
    if padding is not None and padding.ndim != 2:
        raise UsageError(f"attention_mask {list(padding.shape)} must be 2-D, (batch, positions), for attngen")
    region = current_region()
    if region is not None:
        return _in_region(region, (batch_size, q_length, kv_length), pattern, padding, device)
    steady = pattern.after == 0 and q_length == 1 and not allow_is_causal_skip
    rows = _Rows(batch_size, q_length, kv_length, q_offset, kv_offset, device, steady)
    if pattern.ids is None:
        return rows.padded(pattern, padding)
    if padding is not None:
        raise UsageError("attention_mask and packed sequences in one call: leave the attention_mask out")
    return rows.packed(pattern, pattern.ids)


def _way_out(config: Any) -> str:
    """What to do where attngen does not know a model's mask."""
    kinds = sorted(set(getattr(config, "layer_types", None) or ()))
    if not kinds:
        return FIX
    return (
        f"{FIX}, or a spec of your own that computes the mask: pass attention_mask="
        f"{dict.fromkeys(kinds)}, so that the model makes none, and what the spec reads as another keyword, which "
        "params= finds in its call"
    )


def _in_region(
    region: OpenRegion, sizes: tuple[int, int, int], pattern: Pattern, padding: Tensor | None, device: Any
) -> Mask:
    if padding is not None:
        raise UsageError(
            "attention_mask in context_parallel_region: leave it out, and pack sequences of different lengths"
        )
    if pattern.spans is not None:
        raise UsageError("a mask with spans (images in text) in context_parallel_region: train them without a region")
    count = region.sequences.count if region.sequences.packed else sizes[0]
    params: dict[str, Tensor] = {}
    if pattern.chunk is not None:
        params["first"] = torch.zeros(count, dtype=torch.int32, device=device)
    choice = Choice(before=pattern.before, after=pattern.after, chunk=pattern.chunk)
    shape = sizes[0], 1, *sizes[1:]
    return Mask(
        choice=choice, shape=shape, dropped=False, cached=False, ended=True, lengths={}, cu_seqlens=None, params=params
    )


@dataclass(frozen=True, slots=True)
class _Rows:
    """The sizes of a forward pass."""

    batch: int
    q_length: int
    kv_length: int
    q_offset: int | Tensor
    kv_offset: int
    device: Any
    steady: bool
    """Padding always becomes lengths, and no value is read on the host."""

    def padded(self, pattern: Pattern, padding: Tensor | None) -> Mask:
        aligned = pattern.banded
        seen = self.q_offset - self.kv_offset  # stored keys before the first query
        lengths: dict[str, Tensor] = {}
        whole = not aligned or (isinstance(seen, int) and seen + self.q_length == self.kv_length)
        if not whole and pattern.after != 0:
            raise UsageError(
                f"a window of keys on both sides needs the last query at the last of {self.kv_length} keys: generate "
                "with a growing cache, or use another attn_implementation for this model"
            )
        ended, whole = whole, whole and not self.steady
        start, stop, full = self._stretch(padding)
        if not (whole and full):
            k_start = (start - self.kv_offset).clamp(0, self.kv_length)
            k_stop = (stop - self.kv_offset).clamp(0, self.kv_length)
            if aligned:
                k_stop = k_stop.clamp(max=seen + self.q_length)
                k_start = torch.minimum(k_start, k_stop)
                q_start, q_stop = ((x - seen).clamp(0, self.q_length) for x in (k_start, k_stop))
            else:
                q_start, q_stop = torch.zeros_like(k_start), torch.full_like(k_stop, self.q_length)
            found = {"q_start": q_start, "q_stop": q_stop, "k_start": k_start, "k_stop": k_stop}
            lengths = {name: tensor.int() for name, tensor in found.items()}
        params: dict[str, Tensor] = {}
        if pattern.chunk is not None:
            origin = self._zeros() if pattern.chunk_start is None else pattern.chunk_start
            params["first"] = (self.kv_offset + lengths.get("k_start", self._zeros()) - origin).int()
        if pattern.spans is not None:
            own = pattern.spans[:, self.kv_offset : self.kv_offset + self.kv_length]
            params["span"] = own.expand(self.batch, -1).int()
        return self._mask(pattern, lengths=lengths, params=params, ended=ended)

    def _stretch(self, padding: Tensor | None) -> tuple[Tensor, Tensor, bool]:
        """The first position of each batch row that is not padding, one past the last, and whether all are none."""
        end = self.kv_offset + self.kv_length
        if padding is None:
            return self._zeros(), torch.full((self.batch,), end, device=self.device), True
        start = padding.int().argmax(-1)
        stop = start + padding.sum(-1)
        position = torch.arange(padding.shape[1], device=padding.device)
        adjacent = (padding == ((position >= start[:, None]) & (position < stop[:, None]))).all(-1)
        if self.steady or _is_tracing(padding):
            _assert(adjacent.all(), _HOLE)
            return start, stop, False
        facts = torch.cat([padding[:, self.kv_offset : end].all()[None], adjacent])
        every, *fine = cast(list[bool], facts.tolist())  # pyright: ignore[reportUnknownMemberType]
        if not all(fine):
            raise UsageError(f"row {fine.index(False)} of attention_mask: {_HOLE}")
        return start, stop, every and padding.shape[1] >= end

    def packed(self, pattern: Pattern, ids: Tensor) -> Mask:
        tokens = self.batch * self.q_length
        flat = torch.arange(tokens, device=ids.device)
        begins = F.pad(ids[:, 1:] != ids[:, :-1], (1, 0), value=True).flatten()
        ordered = (ids[:, 1:] >= ids[:, :-1]).all()
        documents = _is_tracing(ids)
        if documents:  # as many sequences as there are tokens, the last ones empty: no sizes that depend on data
            _assert(ordered, _UNORDERED)
            starts = torch.where(begins, flat, tokens).sort().values
        else:
            starts = flat[begins]
            if not ordered:
                raise UsageError(_UNORDERED)
        params: dict[str, Tensor] = {}
        if pattern.chunk is not None:
            position = flat.view(ids.shape) % self.q_length if pattern.position is None else pattern.position
            position = position if pattern.chunk_start is None else position - pattern.chunk_start[:, None]
            position = position.expand_as(ids).int()
            params = {"position": position} if documents else {"first": position.flatten()[starts]}
        if pattern.spans is not None:
            own = pattern.spans.expand_as(ids).int()
            params["span"] = own if documents else own.flatten()
        if documents:
            params["ids"] = ids.int()
        cu_seqlens = F.pad(starts, (0, 1), value=tokens).int()
        return self._mask(pattern, documents=documents, cu_seqlens=cu_seqlens, params=params)

    def _mask(
        self,
        pattern: Pattern,
        *,
        params: dict[str, Tensor],
        lengths: dict[str, Tensor] | None = None,
        cu_seqlens: Tensor | None = None,
        documents: bool = False,
        ended: bool = True,
    ) -> Mask:
        return Mask(
            choice=Choice(
                before=pattern.before,
                after=pattern.after,
                chunk=pattern.chunk,
                spans=pattern.spans is not None,
                reach=pattern.reach,
                documents=documents,
            ),
            shape=(self.batch, 1, self.q_length, self.kv_length),
            dropped=self.kv_offset > 0,
            cached=isinstance(self.q_offset, Tensor) or self.q_offset > 0,
            ended=ended,
            lengths=lengths or {},
            cu_seqlens=cu_seqlens,
            params=params,
        )

    def _zeros(self) -> Tensor:
        return torch.zeros(self.batch, dtype=torch.int64, device=self.device)


def _is_tracing(tensor: Tensor) -> bool:
    """Whether values of tensors cannot be read: `torch.compile`, `torch.export`, CUDA graphs."""
    return cast(Any, import_utils).is_tracing(tensor)


def _assert(condition: Tensor, message: str) -> None:
    """Fails on the device, where the condition is evaluated."""
    cast(Any, torch)._assert_async(condition, message)


_NO_PAIRS = f"which attngen does not make: {FIX}"
_HOLE = "attngen wants the tokens of a sequence side by side, and padding before or after them only"
_UNORDERED = "attngen wants the tokens of a packed sequence side by side: their ids may not fall along a row"
