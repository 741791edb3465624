"""From a plan to source text: views, expression printers, and the one Jinja environment.

`triton`, `torch`, `pallas` and `jax` lay a plan out for `templates/<target>/`; `emit` chooses the target. `flex` is no
target: `attngen bench` uses it.
"""

from __future__ import annotations

from attngen.emit.options import Options, Tuned, TunedGpu
from attngen.errors import InternalError, UsageError
from attngen.plan import KernelPlan, WideInts


def reserved(target: str) -> frozenset[str]:
    """The names that a target's templates bind or read, which sizes of a spec must not have in the plan."""
    match target:
        case "triton":
            from attngen.emit.triton.code.names import reserved as triton

            return triton()
        case "torch":
            from attngen.emit.torch.names import reserved as torch

            return torch()
        case _:
            return frozenset()


def wide_ints(target: str) -> WideInts:
    """JAX has no 64-bit ints unless a process-wide switch turns them on, and a TPU has none at all."""
    return WideInts.SATURATE if target in ("pallas", "jax") else WideInts.BITS_64


def approximates(target: str) -> bool:
    """Whether the target's kernels may use the approximate instructions of NVIDIA's chips, in half precision."""
    return target == "triton"


def emit(plan: KernelPlan, text: str, options: Options, proof: tuple[str, ...] = ()) -> str:
    """The generated module's source. `text` is the spec as the user wrote it, `proof` what its header says is proved.

    Raises UsageError for no such target.
    """
    if options.tile not in (None, plan.attention.tile):
        raise InternalError(f"the plan was made for the tile {plan.attention.tile}, not for {options.tile}")
    proof = (*proof, *(f"needs {need.text}" for need in plan.needs))
    if options.target == "triton":
        from attngen.emit.triton.module import emit_triton

        return emit_triton(plan, text, options, proof)
    if options.target == "torch":
        from attngen.emit.torch.module import emit_torch

        return emit_torch(plan, text, options, proof)
    if options.target == "pallas":
        from attngen.emit.pallas.module import emit_pallas

        return emit_pallas(plan, text, options, proof)
    if options.target == "jax":
        from attngen.emit.jax.module import emit_jax

        return emit_jax(plan, text, options, proof)
    raise UsageError(f"no target {options.target!r}; there are triton, pallas, torch and jax")


__all__ = ["Options", "Tuned", "TunedGpu", "approximates", "emit", "reserved", "wide_ints"]
