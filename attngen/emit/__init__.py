"""From a plan to source text: views, expression printers, and the one Jinja environment.

`triton`, `torch`, `pallas` and `jax` lay a plan out for `templates/<target>/`; `attngen.targets` chooses among them.
`flex` is no target: `attngen bench` uses it.
"""

from __future__ import annotations

from attngen.emit.options import Options, Tuned, TunedGpu

__all__ = ["Options", "Tuned", "TunedGpu"]
