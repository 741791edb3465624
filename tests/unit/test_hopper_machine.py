"""dK/dV and dQ above head dim 128, through their own launcher, on a model of the chip: right, and without a race."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import hopper_machine
import numpy as np
import pytest
import torch

import attngen
from attngen import inputs, reference
from attngen.runtime.loader import execute

EXAMPLES = Path(__file__).parents[2] / "examples"
NAMES = sorted(path.stem for path in EXAMPLES.glob("*.attn"))
ELSEWHERE = {"dropout", "sigmoid", "windowed_alibi"}  # the last has a tile of its own
SQUARE = {"documents", "natten_2d", "window_global"}
TILT = "attention tilted\n\nparam tilt: f32[Sk]\nscore = qk * scale + tilt[k]\nmask = causal\n"


def gradients(
    text: str,
    dims: tuple[int, int],
    sizes: tuple[int, int, int, int, int],
    dtype: torch.dtype = torch.bfloat16,
    learned: bool = False,
    change: tuple[str, str] | None = None,
) -> tuple[dict[str, float], list[str]]:
    """Relative errors by name against the definition, and the kernels that ran. `change`: of the source, all over."""
    shorter = {"window": 100, "chunk": 96, "radius": 40}
    kernel = attngen.compile(text, consts={n: value for n, value in shorter.items() if f"const {n} " in text})
    source = kernel.source
    if change is not None:
        assert change[0] in source
        source = source.replace(*change)
    module: Any = execute(source, kernel.name)
    launched = hopper_machine.install(module)
    wanted = dict(zip(("B", "Hq", "Hkv", "Sq", "Sk"), sizes, strict=True), D=dims[0], Dv=dims[1])
    settled = inputs.settle(kernel.spec, wanted, fixed=("D", "Dv"))
    B, Hq, Hkv, Sq, Sk = (settled[n] for n in ("B", "Hq", "Hkv", "Sq", "Sk"))
    params = inputs.examples(kernel.spec, settled)
    if "ids" in params:
        params = {**params, "ids": np.sort(np.asarray(params["ids"]), axis=-1)}
    generator = torch.Generator().manual_seed(Sk)

    def draw(heads: int, length: int, dim: int) -> torch.Tensor:
        return torch.randn(B, length, heads, dim, generator=generator).to(dtype).transpose(1, 2)  # not contiguous

    q, k, v, d_out = draw(Hq, Sq, dims[0]), draw(Hkv, Sk, dims[0]), draw(Hkv, Sk, dims[1]), draw(Hq, Sq, dims[1])
    exact = [x.double().numpy() for x in (q, k, v)]
    forward = reference.evaluate(kernel.spec, *exact, params=params)
    lse = torch.from_numpy(forward.lse).float()
    d_lse = torch.where(torch.isfinite(lse), torch.randn(lse.shape, generator=generator), 0.0)
    out = torch.from_numpy(forward.out).to(dtype)
    kept = (lse,)
    if kernel.plan.weights.sums and kernel.plan.gradients:
        rest = (torch.from_numpy(forward.out) - out.double()).to(dtype) if learned else out.new_empty(0)
        kept = (lse, rest)
    given = [x if isinstance(x, bool | int) else torch.as_tensor(np.asarray(x)) for x in params.values()]
    given = [x.float() if isinstance(x, torch.Tensor) and x.is_floating_point() else x for x in given]
    names = list(dict.fromkeys(g.param for g in kernel.plan.gradients))
    needed = ([learned] * len(names),) if names else ()
    found = module._gradients(d_out, d_lse, q, k, v, *given, out, *kept, settled["D"] ** -0.5, *needed)
    right = reference.gradients(kernel.spec, *exact, d_out.double().numpy(), d_lse.double().numpy(), params=params)
    expected = {"q": right.q, "k": right.k, "v": right.v, **({n: right.params[n] for n in names} if learned else {})}
    errors = {
        name: float(np.linalg.norm(mine.double().numpy() - theirs) / max(np.linalg.norm(theirs), 1e-12))
        for (name, theirs), mine in zip(expected.items(), found, strict=False)
    }
    return errors, launched


def text_of(name: str) -> str:
    return (EXAMPLES / f"{name}.attn").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] * (n == "natten_2d")) for n in NAMES if n not in ELSEWHERE]
)
def test_every_example(name: str) -> None:
    sizes = (1, 4, 2, 200, 333) if name not in SQUARE else (1, 4, 2, 260, 260)
    errors, launched = gradients(text_of(name), (256, 256), sizes)
    assert {"_hopper_dkdv_kernel", "_hopper_dq_kernel"} <= set(launched)
    assert all(e <= 8e-3 for e in errors.values()), errors


@pytest.mark.parametrize("dims", [(256, 256), (192, 128), (136, 72), (128, 256)], ids=str)
@pytest.mark.parametrize(
    "sizes", [(2, 4, 2, 130, 70), (1, 2, 2, 5, 300), (1, 3, 1, 300, 64), (1, 1, 1, 1, 1), (1, 2, 1, 129, 193)], ids=str
)
def test_shapes(dims: tuple[int, int], sizes: tuple[int, int, int, int, int]) -> None:
    """Ragged, in groups, with rows that meet no key, shorter than a tile."""
    errors, _ = gradients(text_of("causal"), dims, sizes, torch.float16)
    assert all(e <= 1e-3 for e in errors.values()), errors


@pytest.mark.parametrize("name", ["alibi", "sink", "custom_normalizer"])
def test_gradients_of_params_that_dq_sums(name: str) -> None:
    errors, launched = gradients(text_of(name), (256, 256), (2, 4, 2, 200, 230), learned=True)
    assert {"_hopper_dkdv_kernel", "_hopper_dq_kernel"} <= set(launched)
    assert len(errors) > 3 and all(e <= 8e-3 for e in errors.values()), errors


def test_a_sum_of_columns_that_nobody_wants_is_no_hindrance() -> None:
    errors, launched = gradients(TILT, (256, 256), (1, 2, 1, 100, 100))
    assert launched[1:] == ["_hopper_dkdv_kernel", "_hopper_dq_kernel"]
    assert all(e <= 8e-3 for e in errors.values()), errors


ROWS = {
    "one tile of weights ahead": ("(64, 64, 2, 2, 1, 24)", "(64, 64, 2, 1, 1, 24)"),
    "two heads in turn": ("True, 1, 24)", "True, 2, 24)"),
    "dQ: one place of values": ("(128, 64, 3, 0, True", "(128, 64, 2, 1, True"),
    "dQ: one product after the other": ("(128, 64, 3, 0, True", "(128, 64, 2, 1, False"),
}


@pytest.mark.parametrize("what", ROWS)
def test_other_rows_of_the_table(what: str) -> None:
    errors, _ = gradients(text_of("softcap"), (256, 256), (1, 4, 2, 300, 260), change=ROWS[what])
    assert all(e <= 8e-3 for e in errors.values()), errors


FAULTS = {
    "the copy engine reads before a fence": ("    fence_async_shared()\n    gl.thread_barrier()", "    pass"),
    "keys are given back before dQ's product": (
        "dq, slopes = warpgroup_mma_wait(2, deps=(dq_token, slopes))",
        "mbarrier.arrive(k_free.index(here), count=1)",
    ),
    "dO is read before it is there": (
        "            mbarrier.wait(d_out_ready.index(stage), phase)\n            dv_token",
        "            dv_token",
    ),
    "scores are read before they are waited for": (
        "dv, p = warpgroup_mma_wait(1, deps=(dv_token, p))",
        "qk, dv, p = warpgroup_mma_wait(1, deps=(qk_token, dv_token, p))",
    ),
    "nobody gives a tile of queries back": ("mbarrier.arrive(q_free.index(here), count=1)", "pass"),
}


@pytest.mark.parametrize("what", FAULTS)
def test_the_model_sees_faults(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hopper_machine, "PATIENCE", 1.0)
    with pytest.raises(hopper_machine.FaultError):
        gradients(text_of("causal"), (256, 256), (1, 2, 1, 400, 400), change=FAULTS[what])
