"""Measures one spec at one shape beside its peers: everything checked first, then timed turn about.

Takes a `Subject` (the functions of one spec, loaded), sizes, param values, and how long to measure; returns a record of
plain values for the JSON. The truth is attngen's own plain PyTorch target in float32, on the same device. Peak memory
is that of one forward and backward pass, beside dense attention by the same score and mask.
"""

from __future__ import annotations

import functools
import importlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from attngen.bench import cell, clock, contenders, verdict
from attngen.bench.cell import Record
from attngen.bench.race import Contender, Turns, failure, graph

torch: Any = importlib.import_module("torch")

DIRECTIONS = ("forward", "backward")
DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}


@dataclass(frozen=True, slots=True)
class Subject:
    """What is measured. `modifiers(scale, sizes, params)` gives (score_mod, mask_mod); `scaled` says whether the score
    comes multiplied by the scale. `flex_limit` says why FlexAttention cannot compute the spec, if it can't; `plain` is
    the mask that the libraries have, "causal" or "full", if the spec is nothing but that.
    """

    name: str
    attend: Callable[..., Any]
    truth: Callable[..., Any]
    modifiers: Callable[[float, dict[str, int], Mapping[str, Any]], tuple[Any, Any]]
    scaled: bool
    mask_reads: tuple[bool, bool]  # whether the mask differs by batch, by head
    flex_limit: str
    plain: str
    dropout: bool


@dataclass(frozen=True, slots=True)
class How:
    turns: Turns
    dtype: str
    backward: bool
    seed: int


@dataclass(frozen=True, slots=True)
class Inputs:
    q: Any
    k: Any
    v: Any
    grad_out: Any
    params: Mapping[str, Any]

    @property
    def qkv(self) -> tuple[Any, Any, Any]:
        return (self.q, self.k, self.v)


def draw(sizes: Mapping[str, int], params: Mapping[str, Any], how: How) -> Inputs:
    """Fresh random tensors; zeros would hide mistakes, and run faster than data does."""
    device = how.turns.device
    generator = torch.Generator(device=device).manual_seed(how.seed)
    dtype = getattr(torch, DTYPES[how.dtype])

    def tensor(heads: str, length: str, dim: str) -> Any:
        shape = (sizes["B"], sizes[heads], sizes[length], sizes[dim])
        return torch.randn(shape, generator=generator, device=device, dtype=torch.float32).to(dtype)

    q, k, v = tensor("Hq", "Sq", "D"), tensor("Hkv", "Sk", "D"), tensor("Hkv", "Sk", "Dv")
    grad = tensor("Hq", "Sq", "Dv")
    return Inputs(q.requires_grad_(), k.requires_grad_(), v.requires_grad_(), grad, params)


# ---------------------------------------------------------------- who can compute it


def unable(name: str, subject: Subject, sizes: Mapping[str, int], device: str) -> str:
    """Why a peer has no figures here; empty where it has."""
    if name == "attngen":
        return ""
    if name in ("fa4", "flex-flash") and not contenders.has_fa4():
        return contenders.NO_FA4
    if device != "cuda" and name in ("flex", "flex-flash", "cudnn", "fa4"):
        return "runs on a GPU alone"
    if name in contenders.BACKENDS:
        return subject.flex_limit
    if not subject.plain:
        return "has causal and full masks alone, and no score of one's own"
    if subject.plain == "causal" and sizes["Sq"] != sizes["Sk"] and name in ("sdpa", "cudnn"):
        return "aligns the first query with the first key where lengths differ"
    return ""


def contender(
    name: str, subject: Subject, sizes: Mapping[str, int], inputs: Inputs, how: How, mods: tuple[Any, Any]
) -> Contender:
    grouped = sizes["Hq"] != sizes["Hkv"]
    device, causal = how.turns.device, subject.plain == "causal"
    match name:
        case "attngen":
            return attngen(subject, inputs)
        case "flex" | "flex-flash":
            batch, head = subject.mask_reads
            return contenders.flex(
                *mods,
                (sizes["B"], sizes["Hq"], sizes["Sq"], sizes["Sk"]),
                batches=sizes["B"] if batch else None,
                heads=sizes["Hq"] if head else None,
                device=device,
                name=name,
                scale=None if subject.scaled else 1.0,
                grouped=grouped,
            )
        case "fa4":
            return contenders.fa4({"causal": causal})
        case _:
            return contenders.scaled(name, causal=causal, device=device, grouped=grouped)


def attngen(subject: Subject, inputs: Inputs) -> Contender:
    extra = {"dropout_seed": 1} if subject.dropout else {}

    def attend(q: Any, k: Any, v: Any) -> Any:
        return subject.attend(q, k, v, **inputs.params, **extra)

    return Contender("attngen", attend)


def dense(subject: Subject, sizes: Mapping[str, int], mods: tuple[Any, Any]) -> Contender:
    """All pairs at once, as one writes it in plain PyTorch: what it holds in memory is what counts."""
    change, allowed = mods
    scale = sizes["D"] ** -0.5

    def attend(q: Any, k: Any, v: Any) -> Any:
        group = sizes["Hq"] // sizes["Hkv"]
        score = q @ k.repeat_interleave(group, 1).mT * (scale if subject.scaled else 1.0)
        at = positions(sizes, q.device)
        if change is not None:
            score = change(score, *at)
        if allowed is not None:
            score = torch.where(allowed(*at), score, -math.inf)
        return torch.softmax(score, dim=-1).to(v.dtype) @ v.repeat_interleave(group, 1)

    return Contender("dense", attend)


def positions(
    sizes: Mapping[str, int], device: Any, first: int = 0, rows: int | None = None
) -> tuple[Any, Any, Any, Any]:
    """b, h, q and k of every pair, to broadcast to (B, Hq, rows, Sk)."""
    last = sizes["Sq"] if rows is None else min(sizes["Sq"], first + rows)
    b, h, k = (torch.arange(sizes[name], device=device) for name in ("B", "Hq", "Sk"))
    q = torch.arange(first, last, device=device)
    return b[:, None, None, None], h[:, None, None], q[:, None], k


def fraction(subject: Subject, sizes: Mapping[str, int], allowed: Any, device: str) -> float:
    """The share of the pairs that the mask allows, counted."""
    if allowed is None:
        return 1.0
    batch, head = subject.mask_reads
    told = {**sizes, "B": sizes["B"] if batch else 1, "Hq": sizes["Hq"] if head else 1}
    rows = max(1, 2**26 // (told["B"] * told["Hq"] * sizes["Sk"]))
    count = 0
    for first in range(0, sizes["Sq"], rows):
        at = positions(told, device, first, rows)
        seen = allowed(*at)
        count += int(seen.expand(told["B"], told["Hq"], at[2].shape[0], sizes["Sk"]).sum())
    return count / (told["B"] * told["Hq"] * sizes["Sq"] * sizes["Sk"])


def flops(sizes: Mapping[str, int], share: float, direction: str) -> float:
    """Of the products for the pairs that the mask allows: two forward, five backward, whatever a kernel computes."""
    pairs = 2.0 * sizes["B"] * sizes["Hq"] * sizes["Sq"] * sizes["Sk"] * share
    D, Dv = sizes["D"], sizes["Dv"]
    return pairs * (D + Dv if direction == "forward" else 3 * D + 2 * Dv)


# ---------------------------------------------------------------- right?


def truth(subject: Subject, inputs: Inputs, *, backward: bool) -> dict[str, Any]:
    leaves = tuple(x.detach().float().requires_grad_() for x in inputs.qkv)
    out = subject.truth(*leaves, **inputs.params, **({"dropout_seed": 1} if subject.dropout else {}))
    found = {"out": out.detach()}
    if backward:
        grads = torch.autograd.grad(out, leaves, inputs.grad_out.float())
        found |= dict(zip(("dq", "dk", "dv"), grads, strict=True))
    return found


def errors(made: Contender, inputs: Inputs, expected: Mapping[str, Any]) -> dict[str, float]:
    """`verdict.error` of each result. Outputs are poisoned first."""
    poison = [torch.full_like(inputs.q, math.nan, requires_grad=False) for _ in range(6)]
    del poison
    out = made.attend(*inputs.qkv)
    found = {"out": out.detach()}
    if "dq" in expected:
        grads = torch.autograd.grad(out, inputs.qkv, inputs.grad_out)
        found |= dict(zip(("dq", "dk", "dv"), grads, strict=True))
    return {name: verdict.error(x, [(x, expected[name])]) for name, x in found.items()}


def peak_bytes(made: Contender, inputs: Inputs, *, backward: bool) -> int:
    """What a forward (and backward) pass holds at most, beside its inputs."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    held = torch.cuda.memory_allocated()
    with made.scope():
        out = made.attend(*inputs.qkv)
        if backward:
            torch.autograd.grad(out, inputs.qkv, inputs.grad_out)
    torch.cuda.synchronize()
    return int(torch.cuda.max_memory_allocated() - held)


def ceiling_tflops(dtype: str) -> float:
    """What a large matrix product reaches on this card, on random data."""
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=getattr(torch, DTYPES[dtype])) for _ in range(2))
    ms = clock.summary(clock.sample(lambda: a @ b, device="cuda", warmup_ms=10, rep_ms=60)).ms
    return 2 * 8192**3 / (ms * 1e-3) / 1e12


# ---------------------------------------------------------------- the whole


def checked(name: str, made: Contender, *, inputs: Inputs, expected: Mapping[str, Any], device: str) -> Record:
    """The seconds of its first call, and its errors."""
    seconds = clock.once(lambda: made.attend(*inputs.qkv), device)
    return {"errors": errors(made, inputs, expected), "first_result_s": round(seconds, 6)}


def measure(
    subject: Subject,
    sizes: dict[str, int],
    params: Mapping[str, Any],
    peers: Sequence[str],
    how: How,
    *,
    build: Callable[..., Contender] = contender,
) -> Record:
    """The record of one shape. `build` makes a contender; a test passes its own."""
    device = how.turns.device
    inputs = draw(sizes, params, how)
    mods = subject.modifiers(sizes["D"] ** -0.5, sizes, params)
    share = fraction(subject, sizes, mods[1], device)
    reasons = {name: unable(name, subject, sizes, device) for name in ("attngen", *peers)}
    ready, found = cell.settle(
        {n: functools.partial(build, n, subject, sizes, inputs, how, mods) for n, why in reasons.items() if not why},
        functools.partial(
            checked, inputs=inputs, expected=truth(subject, inputs, backward=how.backward), device=device
        ),
        lambda name, error: failure(name, error, device),
    )
    records: dict[str, Record] = {name: {"unable": why} if why else found[name] for name, why in reasons.items()}
    cell.timed(
        ready,
        records,
        lambda direction, made: graph(made, inputs.qkv, inputs.grad_out, direction),
        lambda direction: flops(sizes, share, direction),
        DIRECTIONS[: 2 if how.backward else 1],
        how.turns,
        lambda name, error: failure(name, error, device),
    )
    record: Record = {"sizes": sizes, "fraction": share, "contenders": records}
    if device == "cuda":
        for name, made in ready.items():
            records[name]["peak_bytes"] = peak_bytes(made, inputs, backward=how.backward)
        record["dense_peak_bytes"] = _dense_peak(subject, sizes, inputs, mods, backward=how.backward)
    return record


def _dense_peak(
    subject: Subject, sizes: Mapping[str, int], inputs: Inputs, mods: tuple[Any, Any], *, backward: bool
) -> int | None:
    """None where the scores would not fit: dense attention holds some eight copies of them, in up to 32 bits."""
    scores = 4 * sizes["B"] * sizes["Hq"] * sizes["Sq"] * sizes["Sk"]
    if 8 * scores > torch.cuda.mem_get_info()[0]:
        return None
    found = peak_bytes(dense(subject, sizes, mods), inputs, backward=backward)
    torch.cuda.empty_cache()
    return found
