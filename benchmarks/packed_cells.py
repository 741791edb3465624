"""Packed sequences: cells, specs, inputs, dense truth by sequence, and the contenders. packed.py measures them."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import saved
from saved import Files, Spec, example

if TYPE_CHECKING:
    from torch import Tensor

    from attngen.bench.race import Contender

PEERS = ("fa4", "fa3")
VARIANTS = ("causal", "alibi", "softcap", "sliding_window", "sink")
TOLERANCE = 2e-2
WINDOW, CAP = 1024, 50.0
DRY_WINDOW = 24


@dataclass(frozen=True, slots=True)
class Cell:
    variant: str
    tokens: int
    sequences: int
    Hq: int
    Hkv: int
    D: int

    @property
    def key(self) -> str:
        return f"{self.variant}:{self.tokens}/{self.sequences}:{self.Hq}/{self.Hkv}:{self.D}"


SHAPES = ((16384, 8, 16, 16, 128), (32768, 64, 32, 8, 128), (65536, 16, 32, 8, 128), (32768, 32, 32, 8, 64))
DRY_SHAPE = (112, 4, 4, 2, 16)


def matrix() -> Iterator[Cell]:
    for variant in VARIANTS:
        for shape in SHAPES:
            yield Cell(variant, *shape)


def lengths(cell: Cell, seed: int) -> list[int]:
    """Uneven: each sequence's share of the tokens is drawn from 0.25 to 1.75 of the mean."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    share = torch.rand(cell.sequences, generator=generator, dtype=torch.float64) * 1.5 + 0.25
    ends = (share.cumsum(0) / share.sum() * cell.tokens).round().int().tolist()
    return [stop - start for start, stop in zip([0, *ends[:-1]], ends, strict=True)]


def pairs(variant: str, length: int, window: int) -> float:
    """That a causal sequence allows."""
    w = min(window, length) if variant == "sliding_window" else length
    return w * (w + 1) / 2 + (length - w) * w


# ---- specs -----------------------------------------------------------------------------------------------------------


def by_documents(spec: Spec) -> Spec:
    """The same over packed tokens in one batch row: no token sees another sequence."""
    lines = spec.text.rstrip().split("\n")
    (at,) = (i for i, line in enumerate(lines) if line.startswith("mask"))
    lines[at] = f"mask = ({lines[at].split('=', 1)[1].strip()}) and same_document(ids)"
    header = next(i for i, line in enumerate(lines) if line.startswith("attention"))
    lines.insert(header + 1, "param ids: int[B, Sk]")
    return Spec("\n".join([*lines, "assume Sq == Sk", ""]), spec.consts)


def specs(window: int) -> dict[str, Spec]:
    consts: dict[str, dict[str, int | float]] = {"sliding_window": {"window": window}, "softcap": {"cap": CAP}}
    plain = {variant: example(variant, **consts.get(variant, {})) for variant in VARIANTS}
    found = {v: replace(spec, geometry=("packed", "lengths")) for v, spec in plain.items()}
    return {**found, **{f"{v}_documents": by_documents(spec) for v, spec in plain.items()}}


def prepare(directory: Path, *, dry: bool) -> None:
    """`NAME.py` with the packed and lengths geometry where the compiler has them, and `NAME_documents.py`."""
    saved.prepare(directory, specs(DRY_WINDOW if dry else WINDOW))


# ---- inputs and truth ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Inputs:
    """q, k, v, d_out (T, H, D); `cu` the offsets, int32."""

    cell: Cell
    qkv: tuple[Tensor, Tensor, Tensor]
    d_out: Tensor
    cu: Tensor
    lengths: tuple[int, ...]
    params: dict[str, Tensor]
    window: int


def inputs_of(cell: Cell, device: str, seed: int, window: int) -> Inputs:
    import torch

    generator = torch.Generator(device=device).manual_seed(seed)
    dtype = torch.bfloat16 if device == "cuda" else torch.float16  # Triton's interpreter multiplies bf16 wrongly

    def draw(heads: int) -> Tensor:
        return torch.randn(cell.tokens, heads, cell.D, generator=generator, device=device).to(dtype)

    q, k, v, d_out = draw(cell.Hq), draw(cell.Hkv), draw(cell.Hkv), draw(cell.Hq)
    found = lengths(cell, seed)
    cu = torch.tensor([0, *found], device=device).cumsum(0).to(torch.int32)
    params: dict[str, Tensor] = {}
    if cell.variant == "alibi":
        params["slope"] = 2.0 ** (-8.0 * torch.arange(1, cell.Hq + 1, device=device) / cell.Hq)
    if cell.variant == "sink":
        params["sink"] = torch.randn(cell.Hq, generator=generator, device=device)
    return Inputs(
        cell, (q.requires_grad_(), k.requires_grad_(), v.requires_grad_()), d_out, cu, tuple(found), params, window
    )


Truth = dict[int, dict[str, "Tensor"]]


def truth(inputs: Inputs) -> Truth:
    """Dense float32 of the last group of heads, of the first sequence, the shortest and the longest, by number."""
    import torch

    cell, group = inputs.cell, inputs.cell.Hq // inputs.cell.Hkv
    heads = torch.arange(cell.Hq - group, cell.Hq, device=inputs.d_out.device)[:, None, None]
    numbers = range(cell.sequences)
    ends = {0, min(numbers, key=inputs.lengths.__getitem__), max(numbers, key=inputs.lengths.__getitem__)}
    found: Truth = {}
    for number in sorted(ends):
        rows = slice(int(inputs.cu[number]), int(inputs.cu[number + 1]))
        q, k, v = (x.detach()[rows].transpose(0, 1).float() for x in inputs.qkv)
        q, k, v = (x.requires_grad_() for x in (q[-group:].clone(), k[-1].clone(), v[-1].clone()))
        at = torch.arange(rows.stop - rows.start, device=q.device)
        distance = at[:, None] - at
        score = q @ k.T / math.sqrt(cell.D)
        if cell.variant == "alibi":
            score = score - inputs.params["slope"][heads] * distance
        if cell.variant == "softcap":
            score = CAP * torch.tanh(score / CAP)
        seen = distance >= 0
        if cell.variant == "sliding_window":
            seen = seen & (distance < inputs.window)
        score = score.masked_fill(~seen, -math.inf)
        if cell.variant == "sink":
            logit = inputs.params["sink"][heads].expand(group, score.shape[1], 1)
            weights = torch.softmax(torch.cat([score, logit], -1), -1)[..., :-1]
        else:
            weights = torch.softmax(score, -1)
        out = weights @ v
        out.backward(inputs.d_out[rows].transpose(0, 1)[-group:].float())
        assert q.grad is not None and k.grad is not None and v.grad is not None
        found[number] = {"out": out.detach(), "dq": q.grad, "dk": k.grad, "dv": v.grad}
    return found


def errors(inputs: Inputs, expected: Truth, made: Contender, *, backward: bool) -> dict[str, float]:
    """The worst relative error over the checked sequences, by name; inf if an element anywhere is not finite."""
    import torch

    group = inputs.cell.Hq // inputs.cell.Hkv
    out = made.attend(*inputs.qkv)
    found = {"out": out}
    if backward:
        found |= dict(zip(("dq", "dk", "dv"), torch.autograd.grad(out, inputs.qkv, inputs.d_out), strict=True))
    worst: dict[str, float] = {}
    for name, x in found.items():
        if not bool(torch.isfinite(x).all()):
            worst[name] = math.inf
            continue
        gaps: list[float] = []
        for number, right in expected.items():
            rows = slice(int(inputs.cu[number]), int(inputs.cu[number + 1]))
            of = x[rows].detach().transpose(0, 1).float()
            part = of[-group:] if name in ("out", "dq") else of[-1]
            gaps.append(float((part - right[name]).norm() / right[name].norm()))
        worst[name] = max(gaps)
    return worst


# ---- contenders ------------------------------------------------------------------------------------------------------


def attngen(inputs: Inputs, files: Files) -> Contender:
    """`NAME_varlen`, or documents in one batch row; `scope` is not needed by either."""
    import torch

    from attngen.bench.race import Contender

    name = inputs.cell.variant
    varlen, longest = files.function(name, "_varlen"), max(inputs.lengths)
    if varlen is not None:
        given: dict[str, Any] = {"cu_seqlens_q": inputs.cu, "max_seqlen_q": longest, **inputs.params}
        return Contender("varlen", lambda q, k, v: varlen(q, k, v, **given))
    function = files.dense(f"{name}_documents")
    numbers = torch.arange(inputs.cell.sequences, device=inputs.cu.device, dtype=torch.int32)
    ids = numbers.repeat_interleave(torch.tensor(inputs.lengths, device=inputs.cu.device))[None]

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        found = function(*(x.transpose(0, 1)[None] for x in (q, k, v)), ids=ids, **inputs.params)
        return found[0].transpose(0, 1)

    return Contender("documents", attend)


def fa4(inputs: Inputs) -> Contender | None:
    """None for ALiBi, which it lacks as an option."""
    import flash

    from attngen.bench.race import Contender

    if inputs.cell.variant == "alibi":
        return None
    options: dict[str, Any] = {"causal": True}
    match inputs.cell.variant:
        case "softcap":
            options["softcap"] = CAP
        case "sliding_window":
            options["window_size"] = (inputs.window - 1, 0)
        case "sink":
            options["learnable_sink"] = inputs.params["sink"]
        case _:
            pass
    function, cu, longest = flash.fa4().flash_attn_varlen_func, inputs.cu, max(inputs.lengths)
    options |= {"cu_seqlens_q": cu, "cu_seqlens_k": cu, "max_seqlen_q": longest, "max_seqlen_k": longest}
    return Contender("fa4", lambda q, k, v: flash.output(function(q, k, v, **options)))


def fa3(inputs: Inputs) -> Contender | None:
    """Forward alone; its package has neither windows nor sinks nor ALiBi."""
    import flash

    from attngen.bench.race import Contender

    if inputs.cell.variant not in ("causal", "softcap"):
        return None
    function, cu, longest = flash.fa3().flash_attn_varlen_func, inputs.cu, max(inputs.lengths)
    options = {"causal": True, "softcap": CAP if inputs.cell.variant == "softcap" else 0.0}

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        plain = (x.detach() for x in (q, k, v))
        return flash.output(function(*plain, cu, cu, longest, longest, **options))

    return Contender("fa3", attend, backward=False)


def builds(inputs: Inputs, files: Files, peers: Sequence[str], device: str) -> dict[str, Callable[[], Any]]:
    import flash

    found: dict[str, Callable[[], Any]] = {"attngen": functools.partial(attngen, inputs, files)}
    if device == "cuda" and "fa4" in peers and flash.has_fa4():
        found["fa4"] = functools.partial(fa4, inputs)
    if device == "cuda" and "fa3" in peers and flash.has_fa3():
        found["fa3"] = functools.partial(fa3, inputs)
    return found
