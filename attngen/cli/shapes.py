"""The sizes of a call, from those that the user asks for with `--shape` or `--size`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from attngen import terminal
from attngen.errors import UsageError

if TYPE_CHECKING:
    from attngen.ir.attention import Attention

USUAL = {"B": 1, "Hq": 8, "Hkv": 8, "Sq": 4096, "Sk": 4096, "D": 128, "Dv": 128}


def wanted(spec: Attention, usual: Mapping[str, int], asked: Mapping[str, int]) -> dict[str, int]:
    """`usual` sizes with those that the user asked for: one length or one number of heads alone means both."""
    unknown = [name for name in asked if name not in usual and name not in spec.sizes]
    if unknown:
        raise UsageError(f"{spec.name} has no size {unknown[0]!r}; there are {', '.join([*usual, *spec.sizes])}")
    chosen = {**usual, **asked}
    for one, other in (("Hq", "Hkv"), ("Sq", "Sk"), ("D", "Dv")):
        if (one in asked) != (other in asked):
            chosen[one] = chosen[other] = asked[one if one in asked else other]
    return chosen


def check_heads(sizes: Mapping[str, int]) -> None:
    if sizes["Hq"] % sizes["Hkv"]:
        raise UsageError(f"Hq = {sizes['Hq']} is no multiple of Hkv = {sizes['Hkv']}")


def settled(spec: Attention, asked: Mapping[str, int]) -> dict[str, int]:
    """The usual sizes with those that the user asked for, moved to the nearest that the spec's `assume`s allow."""
    from attngen import inputs

    chosen = wanted(spec, USUAL, asked)
    check_heads(chosen)
    return inputs.settle(spec, chosen, fixed=set(asked))


def of_length(sizes: Mapping[str, int], keys: int) -> dict[str, int]:
    """`sizes` with so many keys, and queries in proportion."""
    return {**sizes, "Sq": max(1, sizes["Sq"] * keys // sizes["Sk"]), "Sk": keys}


def say_invented(spec: Attention, names: Collection[str]) -> None:
    """What is shown is of values that nobody gave: how to give one's own."""
    tensors = [name for name in names if not spec.param(name).is_scalar]
    scalars = [name for name in names if spec.param(name).is_scalar]
    ways = [f"--data {name}=FILE.npy" for name in tensors] + [f"--param {name}=VALUE" for name in scalars]
    if ways:
        terminal.note(f"values of {', '.join((*tensors, *scalars))} are invented: give yours with {' '.join(ways)}")
