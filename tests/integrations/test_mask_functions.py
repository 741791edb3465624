"""The mask functions that transformers builds are read for what they compute; any other one is refused."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import masking_utils as hf
from transformers.models.gemma3 import modeling_gemma3
from transformers.models.moonshine_streaming import modeling_moonshine_streaming
from transformers.models.t5gemma2 import modeling_t5gemma2

from attngen.errors import UsageError
from attngen.integrations.mask_functions import Pattern, read
from attngen.integrations.masks import make

IDS = torch.tensor([[0, 0, 0, 1, 1]])
POSITION = torch.tensor([[0, 1, 2, 0, 1]])
START = torch.tensor([2])
SPANS = torch.tensor([[0, 0, -1, 1, 1]])
KEEP = torch.tensor([[False, True, True, True, True]])


def packed(mask_function: Callable[..., Any], *, first: bool = False) -> Any:
    """As transformers makes it, up to 5.23 and, with positions `first`, from 5.24 on."""
    parts = [hf.packed_sequence_mask_function(IDS), hf.remap_positions_for_packed_sequence(mask_function, POSITION)]
    return hf.and_masks(*(reversed(parts) if first else parts))


def bidirectional(sliding_window: int | None) -> Any:
    """The mask functions of Gemma 3 with `use_bidirectional_attention`, as EmbeddingGemma has it."""
    if sliding_window is None:
        return hf.or_masks(hf.causal_mask_function, lambda *_: torch.tensor(True, dtype=torch.bool))
    overlay = modeling_gemma3._bidirectional_window_overlay(sliding_window)
    return hf.or_masks(hf.sliding_window_causal_mask_function(sliding_window), overlay)


KNOWN: dict[str, tuple[Callable[[], Any], Pattern]] = {
    "causal": (lambda: hf.causal_mask_function, Pattern(after=0)),
    "full": (lambda: hf.bidirectional_mask_function, Pattern()),
    "window": (lambda: hf.sliding_window_causal_mask_function(5), Pattern(before=4, after=0)),
    "distance": (lambda: hf.sliding_window_bidirectional_mask_function(5), Pattern(before=5, after=5)),
    "chunks": (
        lambda: hf.chunked_causal_mask_function(4, START),
        Pattern(after=0, chunk=4, chunk_start=START),
    ),
    "packed": (
        lambda: packed(hf.causal_mask_function),
        Pattern(after=0, ids=IDS, position=POSITION),
    ),
    "packed, positions first": (
        lambda: packed(hf.causal_mask_function, first=True),
        Pattern(after=0, ids=IDS, position=POSITION),
    ),
    "packed window": (
        lambda: packed(hf.sliding_window_causal_mask_function(5)),
        Pattern(before=4, after=0, ids=IDS, position=POSITION),
    ),
    "packed chunks": (
        lambda: packed(hf.chunked_causal_mask_function(4, START)),
        Pattern(after=0, chunk=4, chunk_start=START, ids=IDS, position=POSITION),
    ),
    "padding": (
        lambda: hf.and_masks(hf.causal_mask_function, hf.padding_mask_function(KEEP)),
        Pattern(after=0, padding=KEEP),
    ),
    "bidirectional": (lambda: bidirectional(None), Pattern()),
    "packed, bidirectional": (lambda: packed(bidirectional(None)), Pattern(ids=IDS)),
    "exclusive distance": (lambda: bidirectional(5), Pattern(before=4, after=4)),
    "packed exclusive distance": (
        lambda: packed(bidirectional(5)),
        Pattern(before=4, after=4, ids=IDS, position=POSITION),
    ),
    "spans": (
        lambda: hf.or_masks(hf.causal_mask_function, hf.blockwise_overlay(IDS)),
        Pattern(after=0, spans=IDS),
    ),
    "spans and a window": (
        lambda: hf.or_masks(hf.sliding_window_causal_mask_function(5), hf.blockwise_overlay(IDS)),
        Pattern(before=4, after=0, spans=IDS),
    ),
    "spans in a window": (
        lambda: hf.and_masks(
            hf.or_masks(hf.causal_mask_function, hf.blockwise_overlay(IDS)), hf.sliding_window_overlay(5)
        ),
        Pattern(after=0, spans=IDS, reach=4),
    ),
    "packed spans": (
        lambda: hf.and_masks(
            hf.or_masks(
                hf.remap_positions_for_packed_sequence(hf.causal_mask_function, POSITION), hf.blockwise_overlay(SPANS)
            ),
            hf.packed_sequence_mask_function(IDS),
        ),
        Pattern(after=0, ids=IDS, position=POSITION, spans=SPANS),
    ),
    "everything, and spans": (
        lambda: hf.or_masks(hf.bidirectional_mask_function, hf.blockwise_overlay(IDS)),
        Pattern(),
    ),
    "T5Gemma 2": (
        lambda: hf.and_masks(
            hf.bidirectional_mask_function, modeling_t5gemma2.sliding_window_mask_function(4, is_causal=False)
        ),
        Pattern(before=1, after=2),
    ),
    "neighbours": (
        lambda: modeling_moonshine_streaming.sliding_window_mask_function((16, 4)),
        Pattern(before=15, after=3),
    ),
    "a window without its causal half": (lambda: hf.sliding_window_overlay(5), Pattern(before=4)),
    "causal by distance": (
        lambda: hf.and_masks(hf.sliding_window_bidirectional_overlay(5), hf.causal_mask_function),
        Pattern(before=5, after=0),
    ),
    "two windows": (
        lambda: hf.and_masks(hf.sliding_window_causal_mask_function(5), hf.sliding_window_causal_mask_function(4)),
        Pattern(before=3, after=0),
    ),
}


def assert_same(found: Pattern, expected: Pattern) -> None:
    for name in Pattern.__dataclass_fields__:
        a, b = getattr(found, name), getattr(expected, name)
        assert torch.equal(a, b) if isinstance(b, torch.Tensor) else a == b, name


@pytest.mark.parametrize("name", KNOWN)
def test_known(name: str) -> None:
    make, expected = KNOWN[name]
    assert_same(read(make()), expected)


@pytest.mark.parametrize("name", KNOWN)
def test_known_while_torch_compile_traces(name: str) -> None:
    make, expected = KNOWN[name]
    torch._dynamo.reset()
    assert_same(torch.compile(lambda: read(make()), fullgraph=True, backend="eager")(), expected)


UNKNOWN: dict[str, tuple[Callable[..., Any], str]] = {
    "spans of two kinds": (
        hf.or_masks(hf.causal_mask_function, hf.blockwise_overlay(IDS), hf.blockwise_overlay(SPANS)),
        r"`\(\(\(k <= q\) \| .* >= 0\)\)\) \| ",
    ),
    "spans in chunks": (
        hf.and_masks(hf.or_masks(hf.causal_mask_function, hf.blockwise_overlay(IDS)), hf.chunked_overlay(4, START)),
        r"// 4",
    ),
    "spans from another number on": (
        lambda b, h, q, k: (k <= q) | ((IDS[b, q] == IDS[b, k]) & (IDS[b, q] >= 1)),
        r">= 1",
    ),
    "strictly causal": (lambda b, h, q, k: k < q, r"`\(k < q\)`"),
    "windows with a gap": (lambda b, h, q, k: (q - k >= 2) | (k - q >= 2), r"\(q - k\) >= 2"),
    "a window of one kind and one of another": (
        hf.or_masks(packed(hf.causal_mask_function), hf.sliding_window_overlay(5)),
        r"k > \(q - 5\)",
    ),
    "a sum": (lambda b, h, q, k: k <= q + q, r"k <= \(q \+ q\)"),
    "keys alone": (lambda b, h, q, k: k <= 3, r"\(k <= 3\)"),
    "a group": (lambda b, h, q, k: IDS[b, q] >= 0, r"tensor\[1, 5\]\[b, q\] >= 0"),
    "positions of no sequence": (
        hf.remap_positions_for_packed_sequence(hf.causal_mask_function, POSITION),
        r"tensor\[1, 5\]\[b, k\] <= tensor\[1, 5\]\[b, q\]",
    ),
    "two kinds of position": (
        hf.and_masks(packed(hf.causal_mask_function), hf.sliding_window_overlay(5)),
        r"k > \(q - 5\)",
    ),
    "heads": (lambda b, h, q, k: (k <= q) & (h == 0), r"h == 0"),
    "keys at other queries": (lambda b, h, q, k: IDS[b, k] == IDS[b, q], r"tensor\[1, 5\]\[b, k\] == "),
    "a call of PyTorch's": (lambda b, h, q, k: torch.ones_like(q), "calls ones_like"),
    "a method": (lambda b, h, q, k: q.float() >= k, r"calls `\.float`"),
    "a branch": (lambda b, h, q, k: k if q else q, "branches on an index"),
    "a constant": (lambda b, h, q, k: True, "`True`"),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_unknown(name: str) -> None:
    function, shown = UNKNOWN[name]
    with pytest.raises(UsageError, match=shown):
        read(function)


def test_a_message_says_what_else_the_model_can_do() -> None:
    config = types.SimpleNamespace(layer_types=["sliding_attention", "full_attention", "full_attention"])
    with pytest.raises(UsageError) as refused:
        make(1, 4, 4, mask_function=lambda b, h, q, k: k < q, config=config)
    assert str(refused.value).endswith(
        "which attngen does not know; use another attn_implementation for this model, or a spec of your own that "
        "computes the mask: pass attention_mask={'full_attention': None, 'sliding_attention': None}, so that the model "
        "makes none, and what the spec reads as another keyword, which params= finds in its call"
    )
