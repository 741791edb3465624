"""attngen in one page: compile a spec, run it forward and backward, compare it with the same formula, dense.

    python examples/quickstart.py

Runs on the GPU where there is one, else in Triton's interpreter (small sizes, some seconds).
"""

from __future__ import annotations

import torch
from torch import Tensor

import attngen

# 1. A spec is one page of mathematics. Here: ALiBi, causal, and no key further back than 40 positions.
SPEC = """
attention near_alibi

param slope: f32[Hq]                 # one number for each query head; it has a gradient

score = qk * scale + alibi(slope)
mask  = sliding_window(40)
"""

# 2. Compiling it gives a callable. A path works too: attngen.compile("examples/alibi.attn").
attend = attngen.compile(SPEC)


def dense(q: Tensor, k: Tensor, v: Tensor, slope: Tensor) -> Tensor:
    """What the kernel must equal, with every score in memory."""
    length = q.shape[2]
    position = torch.arange(length, device=q.device)
    distance = position[:, None] - position
    scores = q @ k.repeat_interleave(q.shape[1] // k.shape[1], dim=1).mT / q.shape[3] ** 0.5
    scores = scores - slope[:, None, None] * distance
    scores = scores.masked_fill((distance < 0) | (distance >= 40), -torch.inf)
    return scores.softmax(dim=-1) @ v.repeat_interleave(q.shape[1] // v.shape[1], dim=1)


def main() -> None:
    on_gpu = torch.cuda.is_available()
    device, length = ("cuda", 2000) if on_gpu else ("cpu", 100)
    torch.manual_seed(0)

    # 3. q (B, Hq, S, D), k and v (B, Hkv, S, D): here four query heads share two key heads. Any length will do.
    q = torch.randn(1, 4, length, 32, device=device, requires_grad=True)
    k = torch.randn(1, 2, length, 32, device=device, requires_grad=True)
    v = torch.randn(1, 2, length, 32, device=device, requires_grad=True)
    slope = torch.tensor([0.5, 0.25, 0.125, 0.0625], device=device, requires_grad=True)

    # 4. It is a PyTorch function like any other: params by name, differentiable in every float input.
    out = attend(q, k, v, slope=slope)
    direction = torch.randn_like(out)
    gradients = torch.autograd.grad(out, (q, k, v, slope), direction)

    # 5. The same, dense and in float64.
    exact = [x.detach().double().requires_grad_() for x in (q, k, v, slope)]
    want = dense(*exact)
    wanted = torch.autograd.grad(want, exact, direction.double())

    print(f"{attend.name} on {torch.cuda.get_device_name() if on_gpu else 'the CPU (Triton interpreter)'}")
    worst = 0.0
    for name, got, expected in zip(
        ("out", "dq", "dk", "dv", "dslope"), (out, *gradients), (want, *wanted), strict=True
    ):
        error = ((got - expected).abs().max() / expected.abs().max()).item()
        worst = max(worst, error)
        print(f"  {name:7} {tuple(got.shape)!s:18} largest error / largest value = {error:.1e}")

    # 6. The generated file is yours: `attend.source` is standalone, and `attend.save("near_alibi.py")` writes it.
    print(f"  the generated file has {len(attend.source.splitlines())} lines")
    if worst > 2e-5:
        raise SystemExit("the kernel and the formula disagree")


if __name__ == "__main__":
    main()
