"""`from_flex` and `flex_attention`: kernels from FlexAttention's functions, and a call in place of PyTorch's.

Takes a score_mod, a mask_mod or a BlockMask, as `torch.nn.attention.flex_attention` takes them; gives a `Kernel`, or
its results. Kernels are kept by the text of their specs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import AuxOutput, BlockMask

from attngen import api
from attngen.errors import Refuted, Unproved, UsageError
from attngen.flex.blocks import mask_of
from attngen.flex.enclosed import Modification, enclosed
from attngen.flex.spec import Read, read
from attngen.kernel import Kernel

_Found = TypeVar("_Found")


def _unseen(f: Callable[..., _Found]) -> Callable[..., _Found]:
    """`torch.compile` calls it, and does not look into it."""
    disable: Any = torch.compiler.disable  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    return disable(f)


def from_flex(
    score_mod: Modification | None = None,
    mask_mod: Modification | None = None,
    *,
    name: str = "flex",
    names: Mapping[str, Any] | None = None,
    assume: str = "",
    **options: Any,
) -> Kernel:
    """A kernel of FlexAttention's functions: `score_mod(score, b, h, q_idx, kv_idx)`, `mask_mod(b, h, q_idx, kv_idx)`.

    They are called once, with tensors without a dimension, and what they do to them becomes a spec: `kernel.made[0]` is
    its text, to be kept as a file. Tensors that they captured are its params: a call takes them by name, and those
    captured where it gives none. A float param has a gradient if it is a leaf that requires one, or comes of such. An
    axis that is indexed with b, h, q_idx or kv_idx has as many elements as there are batches, heads, queries or keys;
    others are as long as they are. Captured numbers are constants. `names` gives captured tensors and numbers other
    names than the functions' own; `assume` is a fact about sizes, such as "Sq <= 4096 and Sk <= 4096", for tables
    that are as long. q_idx and kv_idx count from 0, as in FlexAttention: with fewer queries than keys the
    first query is at key 0. `options`: those of `attngen.compile`.

    Raises `UsageError`, with the file and the line of the function, for what the language has no counterpart of.
    """
    if score_mod is None and mask_mod is None:
        raise UsageError("from_flex takes a score_mod, a mask_mod, or both")
    found = read(score_mod, mask_mod, name, names or {})
    text = f"{found.text}\nassume {assume}\n" if assume else found.text
    return replace(api.compile(text, **options), captured=found.params)


def flex_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_mod: Modification | None = None,
    block_mask: BlockMask | None = None,
    scale: float | None = None,
    enable_gqa: bool = False,
    return_lse: bool = False,
    kernel_options: Mapping[str, Any] | None = None,
    *,
    return_aux: Any = None,
    mask_mod: Modification | None = None,
) -> Any:
    """In place of `torch.nn.attention.flex_attention.flex_attention`: the same arguments, and the same results.

    query (B, Hq, Sq, D), key (B, Hkv, Sk, D), value (B, Hkv, Sk, Dv), of one dtype: float16, bfloat16 or float32; gives
    out (B, Hq, Sq, Dv), with `return_lse` also lse (B, Hq, Sq), float32, the natural logarithm. Differentiable in all
    three and in what score_mod captured. Of `block_mask` its mask_mod counts, and its blocks where they leave out more,
    which is found by looking at all its pairs once; `mask_mod` alone needs none of that. A query without a key has a
    row of zeros, and -inf in lse. `kernel_options` are for FlexAttention's own kernels, and not read.

    Raises `UsageError` for what the language has no counterpart of, and for `return_aux` with the maximum of scores.
    """
    if not enable_gqa and query.shape[1] != key.shape[1]:
        said = "`enable_gqa=True` lets heads of queries share heads of keys"
        raise UsageError(f"query has {query.shape[1]} heads and key {key.shape[1]}: {said}")
    if return_aux is not None and getattr(return_aux, "max_scores", False):
        raise UsageError("return_aux asks for the maximum of scores, which kernels do not keep: ask for lse alone")
    sizes = {"B": query.shape[0], "Hq": query.shape[1], "Sq": query.shape[2], "Sk": key.shape[2]}
    if mask_mod is not None and block_mask is not None:
        raise UsageError("flex_attention takes a block_mask or a mask_mod, not both: of a block mask its own counts")
    found = _read(score_mod, mask_mod if block_mask is None else block_mask, sizes)
    with_lse = return_lse or (return_aux is not None and return_aux.lse)
    result = _compiled(found.text, sizes["Sq"], sizes["Sk"])(
        query, key, value, scale=scale, return_lse=with_lse, **found.params
    )
    if return_aux is None:
        return result
    out, lse = result if with_lse else (result, None)
    return out, AuxOutput(lse=lse)


_MOST_KEPT = 256
_kept: dict[Hashable, tuple[str, tuple[tuple[str, int], ...]]] = {}
"""Texts by what functions enclose and by sizes, and for each param which of the tensors that they enclose it is."""


@_unseen
def _read(score_mod: Modification | None, mask: Modification | BlockMask | None, sizes: dict[str, int]) -> Read:
    """`read`, which is not repeated for functions of the same code that enclose the same numbers and like tensors."""
    mask_mod = mask_of(mask) if isinstance(mask, BlockMask) else mask
    own = enclosed([score_mod, mask_mod])
    key = None if own.key is None else (own.key, *sizes.values())
    if key is not None and key in _kept:
        text, params = _kept[key]
        return Read(text, {name: own.tensors[place][1] for name, place in params})
    found = read(score_mod, mask_mod, "flex", {}, sizes)
    places = {id(x): place for place, (_, x) in enumerate(own.tensors)}
    lasting = key is not None and found.lasting and all(id(x) in places for x in found.params.values())
    if lasting:  # else the function computes with captured tensors, or asks for their values, at each call
        while len(_kept) >= _MOST_KEPT:
            del _kept[next(iter(_kept))]
        _kept[key] = found.text, tuple((name, places[id(x)]) for name, x in found.params.items())
    return found


@functools.lru_cache(maxsize=256)
def _compiled(text: str, rows: int, columns: int) -> Kernel:
    """The same for all sizes, unless a read is inside its tensor for sizes like these alone."""
    found = _for_all_sizes(text)
    if isinstance(found, Kernel):
        return found
    longest = f"\nassume Sq <= {rows} and Sk <= {columns}\n"
    try:
        return api.compile(text + longest)
    except (Refuted, Unproved):
        raise found from None


@functools.lru_cache(maxsize=128)
def _for_all_sizes(text: str) -> Kernel | Refuted | Unproved:
    try:
        return api.compile(text)
    except (Refuted, Unproved) as why:
        return why
