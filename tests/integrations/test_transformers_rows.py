"""Models of transformers with attngen's attention equal the same models with their own: padding, static caches, packed
batches, chunks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from integrations.models import KINDS, SHAPE, WINDOW, assert_close, both, gradients, tiny, tokens
from torch import Tensor
from transformers import masking_utils as hf

from attngen.errors import UsageError
from attngen.integrations.masks import make
from attngen.integrations.transformers import register

TARGET = "triton"
register("attngen_rows", target=TARGET)


def padding(side: str, lengths: tuple[int, int]) -> Tensor:
    place = torch.arange(max(lengths))
    rows = [place >= max(lengths) - n if side == "left" else place < n for n in lengths]
    return torch.stack(rows).long()


def generate(model: Any, **arguments: Any) -> Any:
    """Five tokens behind a prompt of five: on the way, the caches of sliding layers become full, and a chunk begins."""
    ids = tokens(2, 5)
    found = model.generate(
        ids, max_new_tokens=5, do_sample=False, return_dict_in_generate=True, output_logits=True, **arguments
    )
    return {"tokens": found.sequences.float(), "logits": torch.stack(found.logits)}


# ---------------------------------------------------------------- padding


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("kind", KINDS)
def test_padding(kind: str, side: str) -> None:
    mask = padding(side, (14, 9))
    ids, position = tokens(2, 14), (mask.cumsum(-1) - 1).clamp(min=0)
    labels = ids.masked_fill((mask == 0) | (position == 0), -100)  # the first token is predicted by padding

    def run(model: Any) -> Any:
        kept: dict[str, Tensor] = {}

        def loss(model: Any) -> Tensor:
            found = model(ids, attention_mask=mask, position_ids=position, labels=labels)
            kept["logits"] = found.logits.detach() * mask[:, :, None]
            return found.loss

        return {**gradients(model, loss), **kept}

    assert_close(*both(tiny(kind), run, "attngen_rows"))


@pytest.mark.parametrize(("cache", "padded"), [("dynamic", True), ("static", True), ("static", False)])
@pytest.mark.parametrize("kind", KINDS)
def test_generate(kind: str, cache: str, padded: bool) -> None:
    """Static caches hold more rows than there are tokens; those of sliding layers roll over at the window."""
    arguments: dict[str, Any] = {"cache_implementation": cache}
    if padded:
        arguments["attention_mask"] = padding("left", (5, 3))
    layers = 1 if kind in ("llama", "mistral", "qwen3") else 2  # these are all alike
    model = tiny(kind, num_hidden_layers=layers)
    assert_close(*both(model, lambda m: generate(m, **arguments), "attngen_rows"))


def test_generate_with_beams_and_a_prompt_in_pieces() -> None:
    arguments = {"attention_mask": padding("left", (5, 3))}
    for more in ({"num_beams": 2}, {"prefill_chunk_size": 2}):
        found = both(tiny("mistral"), lambda m, more=more: generate(m, **arguments, **more)["tokens"], "attngen_rows")
        assert_close(*found)


def test_padding_inside_a_sequence_is_refused() -> None:
    mask = torch.ones(2, 6, dtype=torch.bool)
    mask[1, 3] = False
    with pytest.raises(
        UsageError, match="row 1 of attention_mask: attngen wants the tokens of a sequence side by side"
    ):
        make(2, 6, 6, attention_mask=mask)


def test_padding_of_another_rank_is_refused() -> None:
    with pytest.raises(UsageError, match=r"attention_mask \[2, 1, 6\] must be 2-D"):
        make(2, 6, 6, attention_mask=torch.ones(2, 1, 6, dtype=torch.bool))


def test_a_row_of_padding_alone_has_no_rows() -> None:
    mask = torch.tensor([[True] * 6, [False] * 6])
    found = make(2, 6, 6, attention_mask=mask)
    assert [x.tolist() for x in found.lengths.values()] == [[0, 0], [6, 0], [0, 0], [6, 0]]


# ---------------------------------------------------------------- packed sequences

PIECES = (5, 9, 6)
READ_POSITIONS = [kind for kind in KINDS if kind != "gpt_oss"]
"""Models that make their masks from `position_ids`."""


def packed_arguments(how: str) -> dict[str, Any]:
    position = torch.cat([torch.arange(n) for n in PIECES])[None]
    if how == "position_ids":
        return {"position_ids": position}
    offsets = torch.tensor([0, *torch.tensor(PIECES).cumsum(0).tolist()], dtype=torch.int32)
    longest = max(PIECES)
    return {
        "position_ids": position,
        "cu_seq_lens_q": offsets,
        "cu_seq_lens_k": offsets,
        "max_length_q": longest,
        "max_length_k": longest,
    }


@pytest.mark.parametrize(
    ("kind", "how"), [*((kind, "cu_seq_lens") for kind in KINDS), *((kind, "position_ids") for kind in READ_POSITIONS)]
)
def test_packed(kind: str, how: str) -> None:
    """Each sequence as if it were alone."""
    model = tiny(kind)
    expected = logits_and_gradients(model, apart)
    model.set_attn_implementation("attngen_rows")
    found = logits_and_gradients(model, lambda m: m(tokens(1), use_cache=False, **packed_arguments(how)).logits)
    assert_close(found, expected)


def apart(model: Any) -> Tensor:
    """The logits of each sequence alone."""
    return torch.cat([model(piece).logits for piece in tokens(1).split(PIECES, dim=1)], dim=1)


def logits_and_gradients(model: Any, run: Callable[[Any], Tensor]) -> dict[str, Tensor]:
    kept: dict[str, Tensor] = {}

    def loss(model: Any) -> Tensor:
        logits = run(model)
        kept["logits"] = logits.detach()
        return logits.square().mean()

    return {**gradients(model, loss), **kept}


def test_position_ids_alone_do_not_pack_gpt_oss() -> None:
    """Its own attention does not see them either."""
    arguments = packed_arguments("position_ids")
    run = lambda m: m(tokens(1), use_cache=False, **arguments).logits  # noqa: E731
    assert_close(*both(tiny("gpt_oss"), run, "attngen_rows"))


def test_packed_rows_of_a_batch() -> None:
    """Both batch rows hold sequences."""
    position = torch.stack([torch.cat([torch.arange(n) for n in pieces]) for pieces in ((5, 9, 6), (20,))])
    model = tiny("qwen3")
    assert_close(*both(model, lambda m: m(tokens(), position_ids=position, use_cache=False).logits, "attngen_rows"))


def test_packed_with_padding_is_refused() -> None:
    model = tiny("llama")
    model.set_attn_implementation("attngen_rows")
    with pytest.raises(UsageError, match="leave the attention_mask out"):
        model(tokens(), attention_mask=padding("right", (20, 13)), **packed_arguments("cu_seq_lens"), use_cache=False)


# ---------------------------------------------------------------- torch.compile


def compiled(model: Any) -> Any:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    return torch.compile(model, fullgraph=True, backend="aot_eager")


def test_torch_compile_with_offsets() -> None:
    model = tiny("gpt_oss")
    expected = logits_and_gradients(model, apart)
    model.set_attn_implementation("attngen_rows")
    run = compiled(model)
    arguments = packed_arguments("cu_seq_lens")
    assert_close(logits_and_gradients(model, lambda _: run(tokens(1), use_cache=False, **arguments).logits), expected)


def test_torch_compile_sees_packed_sequences_for_a_spec_of_ones_own() -> None:
    """How many there are it does not see: as many as tokens, the last ones empty."""
    register("own_rows", "attention own_rows\nmask = causal\n", target=TARGET)
    model = tiny("llama", num_hidden_layers=1)
    expected = logits_and_gradients(model, apart)
    model.set_attn_implementation("own_rows")
    run = compiled(model)
    arguments = packed_arguments("position_ids")
    assert_close(logits_and_gradients(model, lambda _: run(tokens(1), use_cache=False, **arguments).logits), expected)


def test_torch_compile_with_padding() -> None:
    model = tiny("mistral", num_hidden_layers=1)
    mask = padding("left", (14, 9))

    def run(model: Any) -> Tensor:
        return model(tokens(2, 14), attention_mask=mask, use_cache=False).logits * mask[:, :, None]

    expected = logits_and_gradients(model, run)
    model.set_attn_implementation("attngen_rows")
    together = compiled(model)
    assert_close(logits_and_gradients(model, lambda _: run(together)), expected)
    with pytest.raises(RuntimeError, match="side by side"):
        together(tokens(2, 14), attention_mask=mask.flip(0).roll(3, 1), use_cache=False)


def test_torch_compile_with_a_static_cache() -> None:
    """One graph for every step of generation: a step's mask is made inside, from a length that lies on the device."""
    model = tiny("llama", num_hidden_layers=1)
    made = {}
    for name in ("eager", "attngen_rows"):
        model.set_attn_implementation(name)
        run = model if name == "eager" else compiled(model)
        cache = transformers.StaticCache(config=model.config, max_cache_len=16)
        with torch.no_grad():
            model(tokens(2, 5), past_key_values=cache)
            made[name] = torch.stack([run(tokens(2, 1) + i, past_key_values=cache).logits for i in range(3)])
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    assert_close(made["attngen_rows"], made["eager"])


# ---------------------------------------------------------------- chunks


@pytest.mark.parametrize("how", ["dense", "padded", "packed"])
def test_chunks(how: str) -> None:
    """Llama 4's local layers: chunks begin where the sequence begins."""
    position = torch.cat([torch.arange(n) for n in (5, 9, 6)]).expand(2, -1)
    mask = padding("left", (20, 13)).bool() if how == "padded" else None
    config = transformers.LlamaConfig(**SHAPE, attention_chunk_size=4)
    embedded = torch.zeros(2, 20, 64)
    made = {}
    for name in ("attngen_rows", "eager"):
        config._attn_implementation = name
        made[name] = hf.create_chunked_causal_mask(config, embedded, mask, None, position if how == "packed" else None)
    q, k, v = (torch.randn(2, 2, 20, 16) for _ in range(3))
    ours = transformers.AttentionInterface()["attngen_rows"](torch.nn.Module(), q, k, v, made["attngen_rows"])[0]
    weights = (q @ k.mT / 4 + made["eager"]).softmax(-1)
    real = torch.ones(2, 20, 1, 1) if mask is None else mask[:, :, None, None]
    assert_close(ours * real, (weights @ v).transpose(1, 2) * real)


def test_chunks_with_a_cache_that_has_dropped_keys() -> None:
    """Keys 10 … 22 of a sequence that is padded by 3 positions in its second row, queries 20 … 22."""
    start = torch.tensor([0, 3])
    function = hf.chunked_causal_mask_function(4, start)
    keep = torch.arange(23) >= start[:, None]
    found = make(2, 3, 13, 20, 10, function, keep)
    assert not found.lengths
    assert found.params["first"].tolist() == [10, 7]


# ---------------------------------------------------------------- encoders


@pytest.mark.parametrize("window", [None, WINDOW])
def test_encoders(window: int | None) -> None:
    """Masks that are not causal: padded keys are left out."""
    config = transformers.LlamaConfig(**SHAPE, sliding_window=window)
    create = hf.create_bidirectional_mask if window is None else hf.create_bidirectional_sliding_window_mask
    q, k, v = (torch.randn(2, 2, 20, 16) for _ in range(3))
    made = {}
    for name in ("attngen_rows", "eager"):
        config._attn_implementation = name
        made[name] = create(config, torch.zeros(2, 20, 64), padding("right", (20, 13)).bool())
    ours = transformers.AttentionInterface()["attngen_rows"](torch.nn.Module(), q, k, v, made["attngen_rows"])[0]
    real = padding("right", (20, 13))[:, :, None, None]
    assert_close(ours * real, ((q @ k.mT / 4 + made["eager"]).softmax(-1) @ v).transpose(1, 2) * real)
