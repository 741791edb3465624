"""The number formats of a kernel's products, as a value of the plan.

Takes an attention and the form of its weights; returns the `Numerics` of its kernels, by which tables of tiles are
keyed.
"""

from __future__ import annotations

from dataclasses import dataclass

from attngen.errors import Diagnostic, Span, SpecError
from attngen.ir.attention import Attention
from attngen.plan.ints.facts import Facts
from attngen.plan.score.weights import Form, Weights


@dataclass(frozen=True, slots=True, kw_only=True)
class Numerics:
    """`itemsizes`: bytes of an element of q, k and v. `raised`: weights enter their product times 2**raised, so that
    small ones are normal numbers of its format; results are divided by it. In the kernels of compute capability 9.0,
    whose weights may grow to 2**slack, they begin at 2**raised divided by the keys that a thread sums.
    """

    itemsizes: tuple[int, ...]
    raised: int = 0
    chips: frozenset[str] = frozenset()
    """Those that multiply such numbers; none: all."""

    def on(self, chip: str) -> tuple[int, ...]:
        """Bytes of an element that kernels have on this chip. Triton's interpreter computes 8 bits in float32."""
        if not self.chips:
            return self.itemsizes
        return (4,) if chip == "cpu" else self.itemsizes if chip in self.chips else ()


WIDE = Numerics(itemsizes=(2, 4))
"""fp16, bf16 or fp32, as a call's tensors are."""
E4M3 = Numerics(itemsizes=(1,), raised=8, chips=frozenset({"sm_90", "sm_100"}))
"""8-bit floats with 4 bits of exponent: up to 448, with 4 binary digits from 2**-6 on, and steps of 2**-9 below."""


def least_keys(itemsize: int) -> int:
    """Of a tile, with elements of so many bytes: a product sums over its keys, and one of 8 bits over 32 at least."""
    return 32 if itemsize == 1 else 16


def beyond_narrow(arch: str, head_dim: tuple[int, int] | None, tile: tuple[int, int] | None = None) -> str | None:
    """Why kernels of 8-bit floats are for no such chip ("auto", "portable": any), head dims or tile, with the fix."""
    if arch not in ("auto", "portable", *E4M3.chips):
        able = " or ".join(f"`arch={chip}`" for chip in sorted(E4M3.chips, reverse=True))
        return f"8-bit floats need a chip that multiplies them, not {arch}: write {able}"
    if head_dim is not None and any(d < 32 or d % 16 for d in head_dim):
        said = f"head dims of 8-bit floats must be multiples of 16, from 32 on, not {head_dim[0]} and {head_dim[1]}"
        return f"{said}: choose another `head_dim=`"
    least = least_keys(min(E4M3.itemsizes))
    if tile is not None and tile[1] < least:
        return f"a tile of 8-bit floats has at least {least} keys, not {tile[1]}: write `tile={tile[0]},{least}`"
    return None


def numerics(attention: Attention, weights: Weights, facts: Facts) -> Numerics:
    """Raises `SpecError` where weights of 8 bits might not hold those of the spec, or its tile has too few keys."""
    if attention.value_scale is None:
        return WIDE
    keys = least_keys(min(E4M3.itemsizes))
    if attention.tile is not None and attention.tile[1] < keys:
        said = f"a tile of 8-bit floats has at least {keys} keys, not {attention.tile[1]}"
        raise SpecError([Diagnostic("tile", said, attention.tile_span, f"write k = {keys}, or compute in bf16")])
    if attention.dropout is not None:
        span = attention.dropout.span
        raise _refused("dropout divides weights by what it keeps", span, "leave `dropout` out: it is for training")
    least, most = (0.0, 1.0) if weights.form is Form.EXPONENTIAL else facts.bounds(weights.stream)
    small, large = least is None or least < -1.0, most is None or most > 1.0
    if small or large:
        known = "from -1 to 1" if small and large else "at least -1" if small else "at most 1"
        bound = "max(min(…, 1.0), -1.0)" if small and large else "max(…, -1.0)" if small else "min(…, 1.0)"
        said = f"the weights of normalizer `{attention.normalizer.name}` are not known to be {known}"
        raise _refused(said, attention.normalizer.weight.span, f"bound them, as in {bound}, or compute in bf16")
    return E4M3


def _refused(reason: str, span: Span, fix: str) -> SpecError:
    return SpecError([Diagnostic("narrow-weights", f"{reason}, and 8-bit floats end at 448", span, fix)])
