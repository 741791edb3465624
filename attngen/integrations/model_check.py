"""Refuses models of transformers that compute their attention themselves, where attngen would never be called.

transformers accepts every registered name for every model, and such a model then runs its own attention without a word.
`watch(ours)` makes it ask here first, whenever it builds a model for an implementation that `ours` recognizes.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from functools import wraps
from typing import Any, cast

from torch import nn
from transformers import PreTrainedModel

from attngen.errors import UsageError

_INTERFACE = "ALL_ATTENTION_FUNCTIONS"
"""The name by which the attention classes of transformers reach the registered implementations."""


def watch(ours: Callable[[str], bool]) -> None:
    """From now on a model that has no attention interface cannot be made with an implementation of `ours`."""
    inner: Any = PreTrainedModel.get_correct_attn_implementation
    if hasattr(inner, "asked_by_attngen"):
        return

    @wraps(inner)
    def get_correct_attn_implementation(self: Any, requested_attention: str | None, *rest: Any, **named: Any) -> str:
        if requested_attention is not None and ours(requested_attention):
            check(cast(type[nn.Module], type(self)), requested_attention)
        return inner(self, requested_attention, *rest, **named)

    cast(Any, get_correct_attn_implementation).asked_by_attngen = True
    cast(Any, PreTrainedModel).get_correct_attn_implementation = get_correct_attn_implementation


def check(model: type[nn.Module], name: str) -> None:
    """Raises `UsageError` if the attention classes beside `model` do not use transformers' attention interface."""
    module = sys.modules[model.__module__]
    attentions = [
        kind
        for kind in vars(module).values()
        if inspect.isclass(kind)
        and issubclass(kind, nn.Module)
        and kind.__module__ == module.__name__
        and "Attention" in kind.__name__
    ]
    sources = {base.__module__ for kind in (model, *attentions) for base in kind.__mro__} - {PreTrainedModel.__module__}
    if attentions and not any(hasattr(sys.modules[source], _INTERFACE) for source in sources):
        raise UsageError(
            f"{model.__name__} has no attention interface: its {attentions[0].__name__} computes attention itself and "
            f"would never call {name}. Leave attn_implementation={name!r} out for this model; if it is a part of "
            "another model, name the implementation of each part, such as "
            f"attn_implementation={ {'text_config': name, 'vision_config': 'eager'} }"
        )
