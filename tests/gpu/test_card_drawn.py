"""Drawn masks and scores on the card, forward and backward, by the chip's own kernels and by the portable ones.

Examples have the masks that people write; a kernel can be right for all of them and wrong for one with a single bound.
"""

from __future__ import annotations

import random
import sys
from typing import Any

import numpy as np
import pytest
import torch
from card_tables import NO_ROWS
from property.drawn import ATOMS, SCORES, mask_values, spec

import attngen
from attngen import inputs, reference

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]

OWN = {"HOPPER": "forward", "HOPPER_BACKWARD": "backward", "HOPPER_APART": "apart"}
"""The rows of the chip's own kernels: tables of a generated module, and the parts of the plan that have them."""


def mask_of(r: random.Random) -> str:
    """One to three atoms, some denied."""
    text = ""
    for _ in range(r.choice([1, 2, 2, 3])):
        atom = r.choice(ATOMS)
        atom = f"not ({atom})" if r.random() < 0.25 else atom
        text = f"({text} {r.choice(['and', 'or'])} {atom})" if text else atom
    return text


@pytest.mark.parametrize("seed", range(64))
def test_gradients(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against the definition in float64; and the same bits twice."""
    r = random.Random(seed)
    text = spec(f"score = {r.choice(SCORES)}", f"mask = {mask_of(r)}")
    Hq, Hkv = r.choice([(1, 1), (2, 1), (2, 2), (4, 2)])
    D, Dv = r.choice([(64, 64), (128, 128), (128, 128), (256, 256), (192, 128)])
    wanted = {"B": r.choice([1, 2]), "Hq": Hq, "Hkv": Hkv, "D": D, "Dv": Dv}
    wanted |= {"Sq": r.choice([5, 33, 64, 130, 200, 260, 500]), "Sk": r.choice([1, 33, 64, 128, 150, 256, 300, 700])}
    kernel = attngen.compile(text)
    assert kernel.function is not None
    module: Any = sys.modules[kernel.function.__module__]
    own = [name for name, part in OWN.items() if getattr(kernel.plan.hopper, part) is not None]
    assert own == [name for name in OWN if hasattr(module, name)], text
    sizes = inputs.settle(kernel.spec, wanted, fixed=("D", "Dv"))
    named = {p.name for p in kernel.spec.params}
    values = {n: x for n, x in mask_values(sizes, seed).items() if n in named}
    given = {n: torch.as_tensor(x, device="cuda") if isinstance(x, np.ndarray) else x for n, x in values.items()}
    given |= {"col": given["col"].bfloat16()} if "col" in given else {}
    generator = torch.Generator("cuda").manual_seed(seed)
    dtype = r.choice([torch.bfloat16, torch.float16])
    leaves = [
        torch.randn(sizes["B"], sizes[length], sizes[heads], sizes[dim], generator=generator, device="cuda")
        .to(dtype)
        .transpose(1, 2)
        .requires_grad_()
        for heads, length, dim in (("Hq", "Sq", "D"), ("Hkv", "Sk", "D"), ("Hkv", "Sk", "Dv"))
    ]
    d_out = torch.randn(sizes["B"], Hq, sizes["Sq"], Dv, generator=generator, device="cuda").to(dtype)
    d_lse = torch.randn(d_out.shape[:3], generator=generator, device="cuda")
    exact = [x.detach().double().cpu().numpy() for x in leaves]
    right = reference.evaluate(kernel.spec, *exact, params=values)
    met = np.isfinite(right.lse)
    d_lse[torch.from_numpy(~met).to("cuda")] = 0.0
    slopes = [x.double().cpu().numpy() for x in (d_out, d_lse)]
    gradients = reference.gradients(kernel.spec, *exact, *slopes, params=values)
    wanted_here = (right.out, gradients.q, gradients.k, gradients.v)
    before: list[torch.Tensor] = []
    for portable in (False, False, True):
        if portable:
            for name in own:
                monkeypatch.setattr(module, name, NO_ROWS)
            module._attention.ready.clear()
        poison = [torch.full_like(x, float("nan")) for x in (*leaves, *leaves, d_out)]
        del poison
        out, lse = kernel(*leaves, return_lse=True, **given)
        found = [out.detach(), *torch.autograd.grad((out, lse), leaves, (d_out, d_lse))]
        log_sums = lse.detach().double().cpu().numpy()
        assert np.array_equal(log_sums[~met], right.lse[~met]) and np.allclose(
            log_sums[met], right.lse[met], 1e-3, 2e-2
        )
        for mine, theirs in zip(found, wanted_here, strict=True):
            gap = np.linalg.norm(mine.double().cpu().numpy() - theirs)
            assert gap <= 1.5e-2 * np.linalg.norm(theirs) + 1e-6, (text, sizes, dtype, portable)
        if not portable:
            assert all(map(torch.equal, before or found, found)), (text, sizes, dtype)
            before = found
