"""What the prover knows of heads that share keys: their number is a multiple, and which they are may be written out."""

from __future__ import annotations

import pytest

import attngen
from attngen.errors import Refuted

TEXT = "attention groups\n\nparam t: f32[{size}]\n\nscore = qk * scale + t[{index}]\nmask = causal\n"


@pytest.mark.parametrize("target", ["triton", "jax"])
@pytest.mark.parametrize(
    ("size", "index"),
    [("Hkv", "h // (Hq // Hkv)"), ("1", "Hq % Hkv"), ("Hq", "h - h // (Hq // Hkv)"), ("Hq", "h - hkv")],
)
def test_groups_are_equal(size: str, index: str, target: str) -> None:
    attngen.compile(TEXT.format(size=size, index=index), target=target)


def test_other_quotients_are_not_heads_of_keys() -> None:
    with pytest.raises(Refuted, match="outside `t`"):
        attngen.compile(TEXT.format(size="Hkv", index="h // (Hkv // Hkv)"))
