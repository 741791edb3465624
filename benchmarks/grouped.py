"""Attention with grouped heads at one shape: inputs, dense float32 truth, errors, and the race of all contenders.

Takes a `Shape`, the variant's `Formula` (its score and mask, elementwise) and functions that make contenders; returns
their records for the JSON. What is measured is left to models.py and drawn.py.
"""

from __future__ import annotations

import functools
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import saved  # noqa: F401  (puts this checkout's attngen on the path)
import torch
from report import say
from torch import Tensor

from attngen.bench import cell as calling, contenders, verdict
from attngen.bench.cell import Build
from attngen.bench.race import Contender, Turns, failure, graph

DIRECTIONS = ("forward", "backward")
Modifier = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Shape:
    B: int
    Hq: int
    Hkv: int
    Sq: int
    Sk: int
    D: int
    Dv: int

    def flops(self, direction: str, pairs: float) -> float:
        """Of the products, where a head allows so many pairs: forward one with D and one with Dv, backward three and
        two, whatever a kernel computes."""
        width = self.D + self.Dv if direction == "forward" else 3 * self.D + 2 * self.Dv
        return 2.0 * self.B * self.Hq * pairs * width


@dataclass(frozen=True, slots=True)
class Formula:
    """What a variant does to a scaled score, and which pairs it allows, as FlexAttention's users write it.

    `score(s, b, h, q, k)` and `allowed(b, h, q, k)`, None for nothing and for all. `batches` and `heads` say what the
    mask differs by.
    """

    score: Modifier | None = None
    allowed: Modifier | None = None
    batches: bool = False
    heads: bool = False


@dataclass(frozen=True, slots=True)
class Inputs:
    """q, k, v and d_out as models hold them: views (B, H, S, D) of tensors that are (B, S, H, D) in memory."""

    qkv: tuple[Tensor, Tensor, Tensor]
    d_out: Tensor


def draw(shape: Shape, device: str, dtype: torch.dtype, seed: int) -> Inputs:
    generator = torch.Generator(device=device).manual_seed(seed)

    def tensor(length: int, heads: int, dim: int) -> Tensor:
        drawn = torch.randn((shape.B, length, heads, dim), generator=generator, device=device)
        return drawn.to(dtype).transpose(1, 2)

    q, d_out = tensor(shape.Sq, shape.Hq, shape.D), tensor(shape.Sq, shape.Hq, shape.Dv)
    k, v = tensor(shape.Sk, shape.Hkv, shape.D), tensor(shape.Sk, shape.Hkv, shape.Dv)
    return Inputs((q.requires_grad_(), k.requires_grad_(), v.requires_grad_()), d_out)


def pairs(shape: Shape, formula: Formula, device: str, rows: int = 1024) -> float:
    """How many pairs a head allows, the mean over those batches and heads that differ."""
    if formula.allowed is None:
        return float(shape.Sq * shape.Sk)
    batches, heads = shape.B if formula.batches else 1, shape.Hq if formula.heads else 1
    keys, count = torch.arange(shape.Sk, device=device), 0
    for b in range(batches):
        for h in range(heads):
            for first in range(0, shape.Sq, rows):
                q = torch.arange(first, min(shape.Sq, first + rows), device=device)[:, None]
                seen = formula.allowed(torch.tensor(b, device=device), torch.tensor(h, device=device), q, keys)
                count += int(seen.expand(q.shape[0], shape.Sk).sum())
    return count / (batches * heads)


def truth(shape: Shape, formula: Formula, inputs: Inputs, rows: int = 1024) -> dict[str, Tensor]:
    """Dense float32 of the last batch's last group of heads: out and dq (group, Sq, ·), dk and dv (Sk, ·)."""
    group = shape.Hq // shape.Hkv
    q, k, v = (x.detach()[-1].float() for x in inputs.qkv)
    q, k, v = (x.requires_grad_() for x in (q[-group:].clone(), k[-1].clone(), v[-1].clone()))
    d_out = inputs.d_out[-1, -group:].float()
    keys = torch.arange(shape.Sk, device=q.device)
    b = torch.tensor(shape.B - 1, device=q.device)
    h = torch.arange(shape.Hq - group, shape.Hq, device=q.device)[:, None, None]
    found: list[Tensor] = []
    for start in range(0, shape.Sq, rows):
        at = torch.arange(start, min(shape.Sq, start + rows), device=q.device)[:, None]
        score = q[:, start : start + rows] @ k.T / math.sqrt(shape.D)
        if formula.score is not None:
            score = formula.score(score, b, h, at, keys)
        empty = None
        if formula.allowed is not None:
            seen = formula.allowed(b, h, at, keys)
            empty = ~seen.any(-1, keepdim=True)
            score = score.masked_fill(~(seen | empty), -math.inf)
        weights = torch.softmax(score, -1)
        out = (weights if empty is None else weights.masked_fill(empty, 0.0)) @ v
        out.backward(d_out[:, start : start + rows])
        found.append(out.detach())
    assert q.grad is not None and k.grad is not None and v.grad is not None
    return {"out": torch.cat(found, 1), "dq": q.grad, "dk": k.grad, "dv": v.grad}


def errors(
    shape: Shape, inputs: Inputs, expected: Mapping[str, Tensor], attend: Any, *, backward: bool
) -> dict[str, float]:
    """Relative errors by name; nan or inf if an element of a whole tensor is not finite."""
    group = shape.Hq // shape.Hkv
    poison = [torch.full_like(inputs.d_out, math.nan) for _ in range(4)]  # what no kernel writes is then seen
    del poison
    out = attend(*inputs.qkv)
    found = {"out": out}
    if backward:
        found |= dict(zip(("dq", "dk", "dv"), torch.autograd.grad(out, inputs.qkv, inputs.d_out), strict=True))
    return {
        name: verdict.error(x, [(x[-1, -group:] if name in ("out", "dq") else x[-1, -1], expected[name])])
        for name, x in found.items()
    }


def flexes(
    shape: Shape, formula: Formula, device: str, names: Collection[str] = tuple(contenders.BACKENDS)
) -> dict[str, Build]:
    """Both forms of FlexAttention, or those named, on a GPU; on the CPU they have no backward pass."""

    def build(name: str) -> Contender:
        return contenders.flex(
            formula.score,
            formula.allowed,
            (shape.B, shape.Hq, shape.Sq, shape.Sk),
            batches=shape.B if formula.batches else None,
            heads=shape.Hq if formula.heads else None,
            device=device,
            name=name,
            grouped=shape.Hq != shape.Hkv,
        )

    return {n: functools.partial(build, n) for n in contenders.BACKENDS if n in names and device == "cuda"}


@dataclass(frozen=True, slots=True)
class Race:
    """One cell: who takes part, why others don't, and how many pairs a head allows."""

    key: str
    shape: Shape
    formula: Formula
    inputs: Inputs
    builds: Mapping[str, Build]
    pairs: float

    @property
    def unable(self) -> dict[str, str]:
        """Who can't take part here, and why."""
        missing = [n for n in ("flex-flash", "fa4") if n in self.builds and not contenders.has_fa4()]
        return dict.fromkeys(missing, contenders.NO_FA4)

    @property
    def taking(self) -> dict[str, Build]:
        return {name: build for name, build in self.builds.items() if name not in self.unable}


def failed(key: str, device: str, name: str, error: Exception) -> str:
    """The message alone. Raises DeviceLostError if the device went with it."""
    text = str(error).strip().split("\n")[0][:300]
    say(f"{key} {name} FAILED: {type(error).__name__}: {text}")
    failure(f"{key}, {name}", error, device)
    return f"{type(error).__name__}: {text}"


def checked(cell: Race, expected: Mapping[str, Tensor], name: str, made: Contender) -> dict[str, Any]:
    """Its errors, and the seconds that its first calls and the check take."""
    started = time.perf_counter()
    worst = errors(cell.shape, cell.inputs, expected, made.attend, backward=made.backward)
    if not verdict.right(worst):
        say(f"{cell.key} {name} WRONG: {worst}")
    return {"first_call_s": round(time.perf_counter() - started, 3), "errors": worst}


def run(cell: Race, turns: Turns) -> dict[str, dict[str, Any]]:
    """The records of all contenders: everything checked first, then everything timed in turns."""
    told = functools.partial(failed, cell.key, turns.device)
    check = functools.partial(checked, cell, truth(cell.shape, cell.formula, cell.inputs))
    ready, records = calling.settle(cell.taking, check, told)
    del check
    records |= {name: {"unable": why} for name, why in cell.unable.items()}
    calling.timed(
        ready,
        records,
        lambda direction, made: work(cell.inputs, direction, made),
        lambda direction: cell.shape.flops(direction, cell.pairs),
        DIRECTIONS,
        turns,
        told,
    )
    return records


def work(inputs: Inputs, direction: str, made: Contender) -> Callable[[], object]:
    return graph(made, inputs.qkv, inputs.d_out, direction)


# ---- compiled beforehand ---------------------------------------------------------------------------------------------


def keep_caches() -> None:
    """FlashAttention 4 has a cache on disk that must be asked for, before it is imported."""
    os.environ.setdefault("FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED", "1")


def warm(script: Path, argv: Sequence[str], workers: int, limit: float) -> float:
    """Runs `script warm --slice i/n` in so many processes at once; returns the seconds it took."""
    if workers < 1:
        return 0.0
    started = time.monotonic()
    command = [sys.executable, str(script), "warm", *argv]
    environment = {**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": "1"}  # or each starts a pool of its own
    slices = [f"{i}/{workers}" for i in range(workers)]
    running = [subprocess.Popen([*command, "--slice", own], env=environment) for own in slices]
    for process in running:
        try:
            process.wait(timeout=max(1.0, limit - (time.monotonic() - started)))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    return time.monotonic() - started


def sliced(text: str) -> tuple[int, int]:
    """`3/16` as (3, 16)."""
    index, count = text.split("/")
    return int(index), int(count)
