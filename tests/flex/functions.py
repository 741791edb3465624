"""FlexAttention's functions that people have: those of attention-gym, and those of this repository's benchmarks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from attn_gym import masks, mods
from attn_gym.masks import batchify, document_mask, jetspec, shared_prefix, sta, svg, vsa
from torch.nn.attention.flex_attention import and_masks, or_masks

Functions = tuple[Callable[..., Any] | None, Callable[..., Any] | None]
HEADS, LENGTH = 4, 64


def drawn() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def _graph() -> torch.Tensor:
    edges = torch.rand(2, LENGTH, LENGTH, generator=drawn()) < 0.1
    return edges | edges.mT


def _documents() -> torch.Tensor:
    return torch.tensor([0, 20, 45, LENGTH], dtype=torch.int32)


def _masks() -> dict[str, Callable[..., Any]]:
    parents = [-1, *(i // 2 for i in range(LENGTH - 1))]
    tiles = torch.stack([torch.randperm(8, generator=drawn())[:3] for _ in range(2 * HEADS * 8)])
    return {
        "causal": masks.causal_mask,
        "sliding": masks.generate_sliding_window(16),
        "prefix": masks.generate_prefix_lm_mask(20),
        "documents": masks.generate_doc_mask_mod(masks.causal_mask, _documents()),
        "packed documents": document_mask.generate_packed_causal_doc_mask_mod(_documents()),
        "shared prefix": shared_prefix.generate_shared_prefix_mask_mod(_documents(), torch.zeros(3, dtype=torch.int32)),
        "dilated": masks.generate_dilated_sliding_window(16, 4),
        "global": masks.generate_global_sliding_window(8, torch.rand(LENGTH, generator=drawn()) < 0.1),
        "natten": masks.generate_natten(8, 8, 3, 3),
        "natten in tiles": masks.generate_tiled_natten(8, 8, 3, 3, 4, 4),
        "natten by morton": masks.generate_morton_natten(8, 8, 3, 3),
        "sta 2d": sta.generate_sta_mask_mod_2d((8, 8), (4, 4), (2, 2)),
        "sta 3d": sta.generate_sta_mask_mod_3d((4, 4, 4), (2, 2, 2), (2, 2, 2)),
        "block diffusion": masks.generate_block_diffusion_mask(LENGTH // 2, 8),
        "tree": jetspec.generate_jetspec_tree_causal_mask_mod(0, jetspec.build_tree_ancestor_matrix(parents, "cpu")),
        "jetspec": jetspec.generate_jetspec_training_mask_mod(0, 8),
        "batchified": batchify.batchify_mask_mod(masks.causal_mask, 16),
        "flamingo": masks.generate_vision_cross_attention_mask_mod(
            torch.tensor([[0, 20], [20, 50], [40, 64], [0, 64]]), 16
        ),
        "svg spatial": svg.generate_spatial_head_mask_mod(8, 4, 14, 1),
        "svg temporal": svg.generate_temporal_head_mask_mod(8, 4, 14, 1),
        "vsa": vsa.generate_vsa_mask_mod(tiles.view(2, HEADS, 8, 3), 8),
        "vsa edges": vsa.generate_vsa_mask_mod(tiles.view(2, HEADS, 8, 3), 8, torch.tensor([8] * 7 + [5])),
        "vsa padding": vsa.generate_vsa_padding_mask_mod(torch.tensor([8] * 7 + [5]), 8),
        "and": and_masks(masks.causal_mask, lambda b, h, q, k: k % 3 != 1),
        "or": or_masks(masks.causal_mask, lambda b, h, q, k: k % 3 != 1),
    }


def _scores() -> dict[str, Callable[..., Any]]:
    distances = mods.shortest_path_distances(_graph(), 5)
    types = torch.randint(0, 3, (2, LENGTH, LENGTH), generator=drawn())
    path_types, path_lengths = mods.shortest_path_edge_types(_graph(), types, 3)
    table = torch.randn(HEADS, 7, generator=drawn()).requires_grad_()
    edges = torch.randn(HEADS, 3, 3, generator=drawn()).requires_grad_()
    return {
        "alibi": mods.generate_alibi_bias(HEADS),
        "softcap": mods.generate_tanh_softcap(30),
        "softcap approximately": mods.generate_tanh_softcap(30, approx=True),
        "gelu": mods.generate_activation_score_mod(F.gelu),
        "relu": mods.generate_activation_score_mod(F.relu),
        "sigmoid": mods.generate_activation_score_mod(torch.sigmoid),
        "sandwich": mods.generate_sandwich_bias(HEADS, LENGTH),
        "graphormer": mods.generate_graphormer_spatial_bias(table, distances),
        "graphormer edges": mods.generate_graphormer_edge_bias(edges, path_types, path_lengths),
    }


def gym() -> dict[str, Functions]:
    return {**{n: (None, f) for n, f in _masks().items()}, **{n: (f, None) for n, f in _scores().items()}}


MLA = mods.generate_mla_rope_score_mod(torch.zeros(2, HEADS, LENGTH, 16), torch.zeros(2, 1, LENGTH, 16), HEADS)
"""The one that the language has no counterpart of: a product of rows of captured tensors."""
