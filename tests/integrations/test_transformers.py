"""Models of transformers with attngen's attention equal the same models with their own: dense batches."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers as hf_models
from integrations.models import KINDS, assert_close, both, gradients, tiny, tokens
from torch.nn import functional as F
from transformers import AttentionInterface, masking_utils as hf
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

import attngen
from attngen.errors import UsageError
from attngen.integrations.masks import make
from attngen.integrations.transformers import register

register(target="torch")
register("attngen_triton")


def logits(model: Any) -> torch.Tensor:
    return model(tokens()).logits


def loss(model: Any) -> torch.Tensor:
    return model(tokens(), labels=tokens()).loss


@pytest.mark.parametrize("kind", KINDS)
def test_forward_and_gradients(kind: str) -> None:
    model = tiny(kind)
    with torch.no_grad():
        assert_close(*both(model, logits))
    assert_close(*both(model, lambda m: gradients(m, loss)))


@pytest.mark.parametrize("kind", ["gemma2", "gpt_oss"])
def test_forward_and_gradients_of_triton(kind: str) -> None:
    model = tiny(kind)
    assert_close(*both(model, lambda m: gradients(m, loss), "attngen_triton"))


@pytest.mark.parametrize("kind", KINDS)
def test_generate_with_a_growing_cache(kind: str) -> None:
    """12 tokens past a prompt that is longer than the window: the caches of sliding layers have dropped keys."""

    def run(model: Any) -> Any:
        found = model.generate(
            tokens(), max_new_tokens=12, do_sample=False, return_dict_in_generate=True, output_logits=True
        )
        return {"tokens": found.sequences.float(), "logits": torch.stack(found.logits)}

    assert_close(*both(tiny(kind), run))


@pytest.mark.parametrize("kind", KINDS)
def test_gradient_checkpointing(kind: str) -> None:
    model = tiny(kind).train()
    for reentrant in (True, False):
        model.activation_checkpointing_enable({"use_reentrant": reentrant})
        assert_close(*both(model, lambda m: gradients(m, loss)))


@pytest.mark.parametrize("kind", KINDS)
def test_bf16(kind: str) -> None:
    """No further from the model in float32 than its own attention in bfloat16, rounding apart."""
    exact = logits(tiny(kind))
    ours, theirs = both(tiny(kind).bfloat16(), logits)
    scale = exact.abs().max()
    error, own_error = ((x.float() - exact).abs().max() / scale for x in (ours, theirs))
    assert ours.dtype == torch.bfloat16
    assert error <= 1.5 * own_error + 0.01


def test_bf16_gradients_of_sinks() -> None:
    """gpt-oss passes its sinks in the model's dtype, and their gradients come back in it."""
    exact = gradients(tiny("gpt_oss"), loss)
    ours, theirs = both(tiny("gpt_oss").bfloat16(), lambda m: gradients(m, loss), "attngen_triton")
    sinks = [name for name in exact if name.endswith("sinks")]
    assert len(sinks) == 2
    for name in sinks:
        assert ours[name].dtype == torch.bfloat16
        error, own_error = ((x[name].float() - exact[name]).abs().max() for x in (ours, theirs))
        assert error <= 1.5 * own_error + 0.02 * exact[name].abs().max()


@pytest.mark.parametrize(
    ("kind", "name", "use_cache"),
    [
        *((kind, "attngen", True) for kind in KINDS if kind != "llama4"),
        *((kind, "attngen_triton", False) for kind in KINDS),
    ],
)
def test_torch_compile(kind: str, name: str, use_cache: bool) -> None:
    """The whole model is one graph, masks and all. Without a cache, `position_ids` might pack sequences, which tracing
    cannot see, so the ids of tokens are passed. (PyTorch as a target cannot be traced where tiles depend on data.)"""
    model = tiny(kind, num_hidden_layers=2 if use_cache else 1)
    expected = gradients(model, loss)
    model.set_attn_implementation(name)
    torch._dynamo.reset()

    @torch.compile(fullgraph=True, backend="aot_eager")
    def run(ids: torch.Tensor) -> torch.Tensor:
        return model(ids, labels=ids, use_cache=use_cache).loss

    assert_close(gradients(model, lambda _: run(tokens())), expected)


@pytest.mark.parametrize("kind", ["gemma2", "llama4"])
def test_torch_compile_sees_packed_sequences(kind: str) -> None:
    position = torch.stack([torch.cat([torch.arange(n) for n in pieces]) for pieces in ((5, 9, 6), (20,))])
    model = tiny(kind)
    with torch.no_grad():
        expected = model(tokens(), position_ids=position, use_cache=False).logits
        model.set_attn_implementation("attngen_triton")
        torch._dynamo.reset()
        run = torch.compile(model, fullgraph=True, backend="aot_eager")
        assert_close(run(tokens(), position_ids=position, use_cache=False).logits, expected)


def test_dropout_is_drawn_in_training_only() -> None:
    model = tiny("llama", attention_dropout=0.5).train()
    model.set_attn_implementation("attngen_triton")
    with torch.no_grad():
        first, second = logits(model), logits(model)
        torch.manual_seed(3)
        third = logits(model)
        torch.manual_seed(3)
        assert_close(logits(model), third, 0)
        assert not torch.allclose(first, second)
        assert_close(*both(model.eval(), logits))


class Layer(torch.nn.Module):
    """An attention module, as far as the adapter looks at it."""

    is_causal = True


def attend(*, queries: int = 6, keys: int = 6, name: str = "attngen", mask: Any = None, **call: Any) -> torch.Tensor:
    q, k, v = (torch.randn(2, 2, length, 16) for length in (queries, keys, keys))
    return ALL_ATTENTION_FUNCTIONS[name](Layer(), q, k, v, mask, **call)[0]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ({"position_bias": torch.zeros(1)}, r"position_bias=a tensor \[1\]: attngen takes a tensor \[2, 2, 6, 6\]"),
        ({"block_indices": torch.zeros(2, 2, 5, 1)}, "takes a tensor \\[2, 2, 6, 'numbers of blocks'\\]"),
        ({"block_indices": torch.zeros(2, 2, 6, 1)}, "the keys of a block from module.indexer.block_size"),
        ({"indices": torch.zeros(2, 6, 4)}, r"indices=a tensor \[2, 6, 4\] .* unknown to attngen"),
        ({"position_bias": torch.zeros(1, 2, 6, 6), "softcap": 3.0}, r"position_bias=.* with a soft cap: not in"),
        ({"position_bias": torch.zeros(2, 2, 6, 6), "mask": make(2, 6, 6, torch.tensor(0))}, "with a static cache"),
        (
            {"position_bias": torch.zeros(2, 2, 6, 6), "cu_seq_lens_q": torch.tensor([0, 12])},
            "with packed sequences",
        ),
        ({"colour": torch.zeros(1)}, r"colour=a tensor \[1\] .* unknown to attngen"),
        ({"output_attentions": True}, "output_attentions=True .* unknown"),
        ({"cache": object()}, "no continuous batching"),
        ({"mask": torch.zeros(2, 1, 6, 6)}, r"attention_mask is a tensor \[2, 1, 6, 6\]; attngen takes 2-D"),
        ({"queries": 3}, "causal attention of 3 queries and 6 keys needs a mask"),
        ({"mask": make(2, 6, 6), "keys": 8}, "the mask is for .* \\(2, 1, 6, 6\\), the call has \\(2, 1, 6, 8\\)"),
        ({"mask": make(2, 6, 6), "sliding_window": 4}, "sliding_window=4, and the model's mask has no window"),
        ({"is_causal": False, "sliding_window": 4}, "sliding_window=4 without causality needs a mask"),
        ({"cu_seq_lens_k": torch.tensor([0, 6])}, "cu_seq_lens_k without cu_seq_lens_q"),
        (
            {"mask": make(2, 6, 6, mask_function=hf.bidirectional_mask_function), "sliding_window": 4},
            "the model's mask has all keys before its own and all keys after its own",
        ),
    ],
)
def test_what_it_does_not_understand_is_refused(call: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        attend(**call)


@pytest.mark.parametrize("name", ["sdpa", "my_flash", "eager", "paged|attngen", "who/attngen"])
def test_names_that_transformers_reads_are_refused(name: str) -> None:
    with pytest.raises(UsageError, match="means something else to transformers"):
        register(name)


def test_without_a_mask_the_module_says_whether_it_is_causal() -> None:
    q, k, v = (torch.randn(2, 2, 6, 16) for _ in range(3))
    run = ALL_ATTENTION_FUNCTIONS["attngen"]
    causal, full = (F.scaled_dot_product_attention(q, k, v, is_causal=flag).transpose(1, 2) for flag in (True, False))
    assert_close(run(Layer(), q, k, v)[0], causal)
    assert_close(run(Layer(), q, k, v, is_causal=False)[0], full)


# ---------------------------------------------------------------- a spec of one's own

ALIBI = "attention own_alibi\nparam slope: f32[Hq]\nscore = qk * scale + alibi(slope)\nmask = causal\n"


def test_a_spec_of_ones_own_gets_its_params_from_the_module() -> None:
    model = tiny("llama")
    for layer in model.model.layers:
        layer.self_attn.slope = torch.nn.Parameter(torch.tensor([0.5, 0.25, 0.1, 0.0]))
    register("own", ALIBI, lambda module, call: {"slope": module.slope}, target="torch")

    def alibi(module: Any, query: Any, key: Any, value: Any, mask: Any, scaling: float, **_: Any) -> Any:
        place = torch.arange(query.shape[2])
        scores = query @ key.repeat_interleave(2, 1).mT * scaling - module.slope[:, None, None] * (
            place[:, None] - place
        )
        weights = scores.masked_fill(place > place[:, None], -torch.inf).softmax(-1)
        return (weights @ value.repeat_interleave(2, 1)).transpose(1, 2), None

    AttentionInterface.register("own_formula", alibi)
    ours, theirs = {}, {}
    for name, found in (("own", ours), ("own_formula", theirs)):
        model.set_attn_implementation(name)
        found.update(gradients(model, loss))
    assert "model.layers.0.self_attn.slope" in theirs
    assert_close(ours, theirs)


@pytest.mark.parametrize("static", [False, True])
def test_cached_steps_of_a_spec_that_aligns_queries(static: bool) -> None:
    """Written with `q - k` it is refused; what the message says works."""
    text = "attention own_near\nmask = 0 <= q - k < 5\n"
    register("own_first", text, target="triton" if static else "torch")
    register("own_near", text.replace("q - k", "distance"), target="triton" if static else "torch")
    model, ids = tiny("llama", num_hidden_layers=1), tokens(2, 8)

    def steps(model: Any) -> torch.Tensor:
        """The logits of a prefill, and of one step for each other token."""
        config = {"config": model.config}
        cache = hf_models.StaticCache(**config, max_cache_len=12) if static else hf_models.DynamicCache(**config)
        pieces = ids.split([5, 1, 1, 1], dim=1)
        return torch.cat([model(piece, past_key_values=cache).logits for piece in pieces], dim=1)

    with torch.no_grad():
        model.set_attn_implementation("own_first")
        whole = model(ids, use_cache=False).logits
        with pytest.raises(UsageError) as refused:
            steps(model)
        assert str(refused.value) == (
            "own_near: `q - k`: with a cache the last query is at q = 0, not at the last of the keys; "
            "write distance, which is q + Sk - Sq - k"
        )
        model.set_attn_implementation("own_near")
        assert_close(steps(model), whole)


def test_target_torch_says_what_padding_needs() -> None:
    model = tiny("llama")
    register("own_dense", "attention own_dense\nmask = causal\n", target="torch")
    model.set_attn_implementation("own_dense")
    ids = torch.ones(2, 5, dtype=torch.long)
    mask = torch.tensor([[0, 1, 1, 1, 1], [1, 1, 1, 1, 1]])
    with pytest.raises(
        UsageError, match=r'own_dense: a batch with padding, .* needs target triton: pass target="triton"'
    ):
        model(ids, attention_mask=mask)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ({"softcap": 3.0}, "softcap=3.0, and nothing hands it to your spec: pass params="),
        ({"s_aux": torch.zeros(2)}, r"s_aux=a tensor \[2\], and nothing"),
        ({"position_bias": torch.zeros(1, 2, 6, 6)}, r"position_bias=a tensor \[1, 2, 6, 6\], and nothing"),
        ({"dropout": 0.1}, "dropout=0.1, and nothing"),
        (
            {"mask": make(2, 6, 6, mask_function=hf.sliding_window_causal_mask_function(4))},
            "a window of 4 keys",
        ),
        ({"mask": make(2, 6, 6, 3, 3)}, "has dropped its first keys"),
    ],
)
def test_nothing_gets_lost_on_the_way_to_a_spec_of_ones_own(call: dict[str, Any], message: str) -> None:
    register("own_causal", "attention own_causal\nmask = causal\n", target="torch")
    with pytest.raises(UsageError, match=message):
        attend(name="own_causal", **call)


def test_params_without_a_spec_are_refused() -> None:
    with pytest.raises(UsageError, match="pass spec= too"):
        register(params=lambda module, call: {})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": 1}, "name 1 must be letters, digits and underscores"),
        ({"name": "a b"}, "name 'a b' must be letters, digits and underscores"),
        ({"name": "own_flash"}, "means something else to transformers"),
        ({"spec": ALIBI, "params": 5}, "params must be a function of"),
        ({"target": "pallas"}, "target must be triton or torch, not pallas"),
        ({"spec": attngen.compile(ALIBI, "jax")}, "target must be triton or torch, not jax"),
    ],
)
def test_what_cannot_be_registered(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        register(**arguments)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"scale": 2.0}, "params returned 'scale'; own_alibi has the params slope"),
        ({"slope": torch.zeros(2), "return_lse": True}, "params returned 'return_lse'"),
        (None, "params must return a dict of own_alibi's params, not None"),
    ],
)
def test_params_return_params_of_the_spec(given: Any, message: str) -> None:
    register("own_params", ALIBI, lambda module, call: given, target="torch")
    with pytest.raises(UsageError, match=message):
        attend(name="own_params")
