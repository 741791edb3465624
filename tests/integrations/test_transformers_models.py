"""Models of transformers whose masks are unlike a decoder's, those whose masks attngen cannot make, and those that have
no attention interface."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers as hf
from integrations.models import SHAPE, WINDOW, assert_close, both, gradients, sharp, tiny, tokens
from torch import Tensor
from transformers.masking_utils import sliding_window_bidirectional_mask_function

from attngen.errors import UsageError
from attngen.integrations.masks import make
from attngen.integrations.transformers import register

register("attngen_models")
OTHER = "use another attn_implementation for this model"


def outputs_and_gradients(model: Any, run: Any) -> dict[str, Tensor]:
    kept: dict[str, Tensor] = {}

    def loss(model: Any) -> Tensor:
        kept["output"] = run(model)
        return kept["output"].square().mean()

    return {**gradients(model, loss), "output": kept["output"].detach()}


# ---------------------------------------------------------------- masks of encoders


def moonshine(implementation: str = "eager") -> Any:
    heads = {f"{part}_num_{kind}_heads": 4 for part in ("encoder", "decoder") for kind in ("attention", "key_value")}
    config = hf.MoonshineConfig(
        vocab_size=50,
        hidden_size=64,
        intermediate_size=32,
        encoder_num_hidden_layers=1,
        decoder_num_hidden_layers=1,
        pad_token_id=0,
        **heads,
    )
    torch.manual_seed(0)
    return sharp(hf.MoonshineForConditionalGeneration._from_config(config, attn_implementation=implementation))


def test_moonshine_passes_is_causal_false_beside_a_causal_mask() -> None:
    audio = torch.randn(2, 4000)

    def run(model: Any) -> Tensor:
        return model(input_values=audio, decoder_input_ids=tokens(2, 9), use_cache=False).logits

    assert_close(*both(moonshine(), lambda m: outputs_and_gradients(m, run), "attngen_models"))


def t5() -> Any:
    sizes = {"d_model": 64, "d_kv": 16, "d_ff": 32, "num_layers": 2, "num_heads": 4, "dropout_rate": 0.0}
    config = hf.T5Config(vocab_size=50, relative_attention_num_buckets=8, decoder_start_token_id=0, **sizes)
    torch.manual_seed(0)
    model = sharp(hf.T5ForConditionalGeneration._from_config(config, attn_implementation="eager"))
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith(("q.weight", "k.weight")):
                weight *= 0.25  # T5 does not scale its scores
    return model


def trained(model: Any, loss: Any, learned: str) -> None:
    """Three steps of a model with attngen's attention end where three steps with its own do; `learned` moves."""

    def steps(model: Any) -> dict[str, Tensor]:
        model.load_state_dict(weights)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        losses: list[Tensor] = []
        for _ in range(3):
            optimizer.zero_grad()
            losses.append(loss(model))
            losses[-1].backward()
            optimizer.step()
        return {"losses": torch.stack(losses).detach(), **{k: v.clone() for k, v in model.state_dict().items()}}

    weights = {name: value.clone() for name, value in model.state_dict().items()}
    ours, theirs = both(model, steps, "attngen_models")
    assert_close(ours, theirs)
    moved = [(theirs[name] - weights[name]).abs().max() for name in weights if learned in name]
    assert len(moved) == 2
    assert min(moved) > 1e-4


@pytest.mark.parametrize("padded", [False, True])
def test_t5_trains_with_its_position_bias(padded: bool) -> None:
    """A learned bias, which all layers share, with padding after the text and before it."""
    real, labels = torch.ones(2, 14, dtype=torch.long), tokens(2, 9)
    if padded:
        real[0, 10:] = real[1, :3] = 0
        labels[0, 6:] = -100
    trained(t5(), lambda m: m(tokens(2, 14), attention_mask=real, labels=labels).loss, "relative_attention_bias")


def test_gpt_oss_trains_with_its_sinks() -> None:
    model = tiny("gpt_oss")
    trained(model, lambda m: m(tokens(), labels=tokens()).loss, "sinks")


def test_t5_generates() -> None:
    real = torch.ones(2, 14, dtype=torch.long)
    real[1, 9:] = 0

    def run(model: Any) -> Tensor:
        return model.generate(tokens(2, 14), attention_mask=real, max_new_tokens=8, do_sample=False)

    model = t5()
    ours, theirs = both(model, run, "attngen_models")
    assert torch.equal(ours, theirs)
    model.set_attn_implementation("attngen_models")
    with pytest.raises(UsageError, match=r"position_bias=a tensor .* with a static cache: not in attngen yet"):
        model.generate(tokens(2, 14), max_new_tokens=8, do_sample=False, cache_implementation="static")


@pytest.mark.parametrize("padded", [False, True])
def test_gemma_3_with_bidirectional_attention(padded: bool) -> None:
    """EmbeddingGemma: `or_masks` of the causal masks with all pairs, and with a window on both sides."""
    config = hf.Gemma3TextConfig(
        **SHAPE,
        sliding_window=WINDOW,
        use_bidirectional_attention=True,
        layer_types=["sliding_attention", "full_attention"],
        query_pre_attn_scalar=16,
    )
    torch.manual_seed(0)
    model = sharp(hf.Gemma3TextModel._from_config(config, attn_implementation="eager"))
    real = torch.ones(2, 20, dtype=torch.long)
    if padded:
        real[1, 13:] = 0

    def run(model: Any) -> Tensor:
        return model(tokens(), attention_mask=real if padded else None).last_hidden_state * real[..., None]

    assert_close(*both(model, lambda m: outputs_and_gradients(m, run), "attngen_models"))


def test_a_window_on_both_sides_needs_the_last_query_at_the_last_key() -> None:
    """Keys past the last query would be left out."""
    with pytest.raises(UsageError, match="on both sides needs the last query at the last of 9 keys"):
        make(2, 6, 9, mask_function=sliding_window_bidirectional_mask_function(4))


def minimax_m3() -> Any:
    """Layers with and without an indexer, which chooses 2 blocks of 4 keys for each query and group of heads."""
    shape = {**SHAPE, "rotary_dim": 8, "dense_intermediate_size": 32, "shared_intermediate_size": 32}
    index = {"index_n_heads": 2, "index_head_dim": 8, "index_block_size": 4, "index_topk_blocks": 2}
    kinds = {"layer_types": ["minimax_m3_sparse", "full_attention"], "mlp_layer_types": ["dense", "dense"]}
    torch.manual_seed(0)
    text = hf.MiniMaxM3VLTextConfig(**shape, **index, **kinds)
    return sharp(hf.models.minimax_m3_vl.MiniMaxM3VLTextModel._from_config(text, attn_implementation="eager"))


@pytest.mark.parametrize("padded", [False, True])
def test_blocks_chosen_for_each_query(padded: bool) -> None:
    real = torch.ones(2, 20, dtype=torch.long)
    if padded:
        real[0, 17:] = real[1, :3] = 0

    def run(model: Any) -> Tensor:
        return model(tokens(), attention_mask=real).last_hidden_state * real[..., None]

    model = minimax_m3()
    ours, theirs = both(model, lambda m: outputs_and_gradients(m, run), "attngen_models")
    assert_close(ours, theirs)
    for layer in model.layers:
        layer.self_attn.indexer = None
    assert (run(model) - theirs["output"]).abs().max() > 0.1

    def steps(model: Any) -> Tensor:
        """A prompt, and one step for each other token."""
        cache = hf.DynamicCache(config=model.config)
        pieces, stop = [], 0
        for ids in tokens().split([17, 1, 1, 1], dim=1):
            stop += ids.shape[1]
            pieces.append(model(ids, attention_mask=real[:, :stop], past_key_values=cache).last_hidden_state)
        return torch.cat(pieces, dim=1) * real[..., None]

    with torch.no_grad():
        assert_close(*both(minimax_m3(), steps, "attngen_models"))


@pytest.mark.parametrize("kind", ["t5", "minimax_m3"])
def test_tables_of_rows_under_torch_compile(kind: str) -> None:
    """One graph. `position_ids` might pack sequences, which tracing cannot see, so the ids of tokens are compared."""
    ids, labels = tokens(2, 14), tokens(2, 9)
    model = t5() if kind == "t5" else minimax_m3()
    given = {"labels": labels} if kind == "t5" else {}

    def loss(model: Any) -> Tensor:
        found = model(ids, use_cache=False, **given)
        return found.loss if given else found.last_hidden_state.square().mean()

    expected = gradients(model, loss)
    model.set_attn_implementation("attngen_models")
    torch._dynamo.reset()
    run = torch.compile(lambda: loss(model), fullgraph=True, backend="aot_eager")
    assert_close(gradients(model, lambda _: run()), expected)


# ---------------------------------------------------------------- masks that attngen does not make


def test_pairs_of_ones_own_by_another_keyword() -> None:
    """A 4-D mask is refused; what the message says works."""
    text = "attention own_pairs\nparam pairs: bool[B, Sq, Sk]\nmask = pairs[b, q, k]\n"
    register("own_pairs", text, params=lambda module, call: {"pairs": call["pairs"]}, target="torch")
    model = tiny("llama")
    pairs = torch.rand(2, 20, 20, generator=torch.Generator().manual_seed(2)) < 0.5
    pairs |= torch.eye(20, dtype=torch.bool)
    additive = torch.where(pairs[:, None], 0.0, -torch.inf)
    expected = outputs_and_gradients(model, lambda m: m(tokens(), attention_mask=additive).logits)
    for name in ("own_pairs", "attngen_models"):
        model.set_attn_implementation(name)
        with pytest.raises(UsageError) as refused:
            model(tokens(), attention_mask=additive)
        assert str(refused.value) == (
            "attention_mask is a tensor [2, 1, 20, 20]; attngen takes 2-D padding masks, (batch, positions), which the "
            "model turns into what its layers need. For another mask register a spec that reads it from a param, and "
            "pass it to the model as another keyword, model(…, pairs=mask), from which "
            'params=lambda module, call: {"pairs": call["pairs"]} takes it'
        )
    model.set_attn_implementation("own_pairs")
    assert_close(outputs_and_gradients(model, lambda m: m(tokens(), pairs=pairs).logits), expected)


IMAGES = """attention own_images
param image: int[B, Sk]  # which image a token belongs to, -1 for text
param window: int
mask = (causal or image[b, q] == image[b, k] and image[b, q] >= 0) and k > q + Sk - Sq - window
assume Sq == Sk
"""


def test_images_of_gemma_3() -> None:
    """Tokens of an image attend to each other, by the adapter's own kernels, and by a spec of one's own where the model
    makes no mask."""
    text = {**SHAPE, "sliding_window": WINDOW, "query_pre_attn_scalar": 16}
    text["layer_types"] = ["sliding_attention", "full_attention"]
    vision = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = hf.Gemma3Config(
        text_config=text,
        vision_config={**vision, "image_size": 16, "patch_size": 8},
        mm_tokens_per_image=4,
        image_token_index=49,
    )
    torch.manual_seed(0)
    model = sharp(hf.Gemma3ForConditionalGeneration._from_config(config, attn_implementation="eager"))
    ids, kind, image = tokens(2, 12) % 49, torch.zeros(2, 12, dtype=torch.long), torch.full((2, 12), -1)
    for row, start in enumerate((2, 5)):
        ids[row, start : start + 4], kind[row, start : start + 4], image[row, start : start + 4] = 49, 1, 0
    inputs = {"input_ids": ids, "pixel_values": torch.randn(2, 3, 16, 16), "token_type_ids": kind}

    def run(model: Any, **more: Any) -> Tensor:
        return model(**inputs, **more).logits

    expected = outputs_and_gradients(model, run)
    register("attngen_images")
    model.set_attn_implementation({"text_config": "attngen_images"})
    assert_close(outputs_and_gradients(model, run), expected)
    padded = {**inputs, "attention_mask": torch.ones_like(ids)}
    padded["attention_mask"][1, :3] = 0
    written: list[Tensor] = []
    for name in ("eager", "attngen_images"):
        model.set_attn_implementation({"text_config": name})
        written.append(model.generate(**padded, max_new_tokens=4, do_sample=False))
    assert torch.equal(*written)
    register(
        "own_images",
        IMAGES,
        params=lambda module, call: {"image": call["image"], "window": call["sliding_window"] or 100},
        target="torch",
    )
    model.set_attn_implementation({"text_config": "own_images"})
    nothing = {"full_attention": None, "sliding_attention": None}
    assert_close(outputs_and_gradients(model, lambda m: run(m, attention_mask=nothing, image=image)), expected)


# ---------------------------------------------------------------- models without an attention interface

ALONE: dict[str, tuple[Any, Any, dict[str, Any], str]] = {
    "Bloom": (hf.BloomConfig, hf.BloomForCausalLM, {"n_layer": 1}, "BloomAttention"),
    "MPT": (hf.MptConfig, hf.MptForCausalLM, {"n_layers": 1}, "MptAttention"),
    "GPT-Neo": (
        hf.GPTNeoConfig,
        hf.GPTNeoForCausalLM,
        {"num_layers": 1, "attention_types": [[["global"], 1]]},
        "GPTNeoSelfAttention",
    ),
    "WavLM": (hf.WavLMConfig, hf.WavLMModel, {"num_hidden_layers": 1}, "WavLMAttention"),
    "RemBERT": (hf.RemBertConfig, hf.RemBertModel, {"num_hidden_layers": 1}, "RemBertSelfAttention"),
}


@pytest.mark.parametrize("name", ALONE)
def test_a_model_that_would_never_call_attngen_is_refused(name: str) -> None:
    config, model, sizes, attention = ALONE[name]
    with torch.device("meta"), pytest.raises(UsageError) as refused:
        model._from_config(config(**sizes), attn_implementation="attngen_models")
    assert str(refused.value) == (
        f"{model.__name__} has no attention interface: its {attention} computes attention itself and would never call "
        "attngen_models. Leave attn_implementation='attngen_models' out for this model; if it is a part of another "
        "model, name the implementation of each part, such as "
        "attn_implementation={'text_config': 'attngen_models', 'vision_config': 'eager'}"
    )
    with torch.device("meta"):
        model._from_config(config(**sizes))


def test_a_model_that_computes_with_the_mask_is_told() -> None:
    mask, scores = make(1, 2, 2), torch.zeros(1, 1, 2, 2)
    for compute, operation in (
        (lambda: scores + mask, "add"),
        (lambda: 1.0 - mask, None),
        (lambda: scores.masked_fill(mask, 0.0), "masked_fill"),
        (lambda: torch.where(mask, scores, 0.0), "where"),
        (lambda: mask[:, :, :, :2], None),
    ):
        with pytest.raises(UsageError) as refused:
            compute()
        computes = "computes" if operation is None else f"computes `{operation}`"
        assert str(refused.value) == (
            f"this model {computes} with the attention mask, which attngen does not make: {OTHER}"
        )
    with pytest.raises(UsageError, match="this model reads `dtype` of the attention mask, which attngen does not make"):
        _ = mask.dtype
    assert not hasattr(mask, "__array__")
