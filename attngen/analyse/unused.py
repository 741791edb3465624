"""Params that a spec declares and never reads. Takes an attention, returns a warning for each."""

from __future__ import annotations

from attngen.errors import Diagnostic, Source
from attngen.ir import walk
from attngen.ir.attention import Attention


def unused_params(attention: Attention, source: Source) -> list[Diagnostic]:
    """A param that only its own `where` reads counts as unused."""
    normalizer = attention.normalizer
    forms = (normalizer.weight, normalizer.extra, normalizer.stream_weight, normalizer.rescale)
    read = {
        name
        for e in (attention.score, attention.mask, attention.dropout, attention.value_scale, *forms, *attention.assumes)
        if e is not None
        for name in walk.params(e)
    }
    read |= {name for p in attention.params if p.where is not None for name in walk.params(p.where) if name != p.name}
    return [
        Diagnostic(
            "unused-param",
            f"no score, mask, normalizer or dropout reads the param `{p.name}`, so its value has no effect",
            p.span,
            "delete it, or read it",
            source,
        )
        for p in attention.params
        if p.name not in read
    ]
