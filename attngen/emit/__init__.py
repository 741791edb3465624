"""From a plan to source text: views, expression printers, and the one Jinja environment.

`triton` lays a plan out for `templates/triton/`, `torch` for `templates/torch/`, `pallas` for `templates/pallas/`;
`emit` chooses the target.
"""

from __future__ import annotations

from attngen.emit.options import Options, Tuned
from attngen.errors import UsageError
from attngen.plan import KernelPlan


def emit(plan: KernelPlan, text: str, options: Options) -> str:
    """The generated module's source. `text` is the spec as the user wrote it. Raises UsageError for no such target."""
    if options.target == "triton":
        from attngen.emit.triton import emit_triton

        return emit_triton(plan, text, options)
    if options.target == "torch":
        from attngen.emit.torch import emit_torch

        return emit_torch(plan, text, options)
    if options.target == "pallas":
        from attngen.emit.pallas import emit_pallas

        return emit_pallas(plan, text, options)
    if options.target == "jax":
        from attngen.emit.jax import emit_jax

        return emit_jax(plan, text, options)
    raise UsageError(f"no target {options.target!r}; there are triton, pallas, torch and jax")


__all__ = ["Options", "Tuned", "emit"]
