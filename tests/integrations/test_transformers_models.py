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
