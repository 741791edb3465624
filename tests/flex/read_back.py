"""What a spec that was read computes of each pair, by the reference's evaluation, and what the functions themselves
compute of tensors of indices."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from attngen import api
from attngen.errors import Source
from attngen.flex.spec import Read
from attngen.ir.evaluate import evaluate

SIZES = {"B": 2, "Hq": 4, "Hkv": 4, "Sq": 64, "Sk": 64, "D": 16, "Dv": 16}
Shape = Mapping[str, int]
_ONE_BY_ONE = ("vision_cross_attention_mask_mod",)
"""Functions that take indices without a dimension alone; these read neither b nor h."""


def indices(sizes: Shape) -> tuple[torch.Tensor, ...]:
    b, h, q, k = (torch.arange(sizes[name]) for name in ("B", "Hq", "Sq", "Sk"))
    return b[:, None, None, None], h[:, None, None], q[:, None], k


def spec_computes(
    read: Read, sizes: Shape, qk: torch.Tensor, real: Any = np.float64
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """The score and the mask, (B, Hq, Sq, Sk); with the scale 1. Floats are rounded to `real`."""
    spec = api.analyse(Source(read.text))
    at = dict(zip(("b", "h", "q", "k"), (x.numpy() for x in indices(sizes)), strict=True))
    env = {**sizes, **at, "hkv": at["h"], "scale": 1.0, "qk": qk.double().numpy()}
    given = {name: x.detach() for name, x in read.params.items()}
    shape = tuple(sizes[name] for name in ("B", "Hq", "Sq", "Sk"))
    found = (np.broadcast_to(evaluate(e, env, given, real), shape) for e in (spec.score, spec.mask))
    return tuple(found)  # type: ignore[return-value]


def functions_compute(
    score_mod: Callable[..., Any] | None, mask_mod: Callable[..., Any] | None, sizes: Shape, qk: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    at = indices(sizes)
    score = qk if score_mod is None else score_mod(qk, *at)
    if mask_mod is not None and getattr(mask_mod, "__name__", "") in _ONE_BY_ONE:
        b = h = torch.tensor(0)
        pairs = [[mask_mod(b, h, q, k) for k in torch.arange(sizes["Sk"])] for q in torch.arange(sizes["Sq"])]
        return score.expand_as(qk), torch.tensor(pairs).expand_as(qk)
    mask = torch.tensor(True) if mask_mod is None else torch.as_tensor(mask_mod(*at))
    return score.expand_as(qk), mask.expand_as(qk)
