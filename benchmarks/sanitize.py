"""A small sample of kernels for NVIDIA's compute-sanitizer: forward and backward, the portable ones and sm_90's own.

    python benchmarks/sanitize.py prepare build/sanitize     # where attngen is: compiles what will be run
    python benchmarks/sanitize.py --kernels build/sanitize   # on the GPU: fills Triton's cache, checks results
    compute-sanitizer --tool memcheck python benchmarks/sanitize.py --kernels build/sanitize causal:128

One process, float16, one batch row, four heads that share two of K and V, ragged lengths. Two programs take all tiles
of a kernel whose programs stay, so that each takes several. Inputs are drawn, and results compared with dense float32,
on the CPU: on the GPU run the kernels and little else. Exit status 1: a result is wrong; 2: no such case, or file.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

VARIANTS = ("causal", "documents", "windowed_alibi")
PATHS = ("sm_90", "portable")
LENGTHS = {64: 500, 128: 389, 256: 333}
DRY_LENGTHS = {16: 170}
"""Head dim: queries and keys, none of them a multiple of a tile."""
WINDOW, CAP, DOCUMENTS, HEADS, KV_HEADS = 150, 5.0, (0.2, 0.5, 0.3), 4, 2
TOLERANCE = 1e-2
"""Of `||x - dense||` over the scale of x: in float16 right kernels land near 1e-3, and bfloat16 would hide an element.
The scale is `||dense||`, or for a learned param the root of the sum of its rows' squared shares: a sum of shares that
happen to cancel has few digits in any order."""
TABLES = ("HOPPER", "HOPPER_BACKWARD", "HOPPER_APART")
"""The generated file's rows for kernels of sm_90's own; without one the portable kernel runs."""


@dataclass(frozen=True, slots=True)
class Case:
    variant: str
    head_dim: int
    path: str

    @property
    def key(self) -> str:
        return f"{self.variant}:{self.head_dim}:{self.path}"


def cases(samples: str, dims: Sequence[int], paths: Sequence[str]) -> list[Case]:
    """Those that `VARIANT[:HEAD_DIM[:PATH]],…` names, all for an empty text. ValueError: a sample names none."""
    every = [Case(v, d, p) for p in paths for v in VARIANTS for d in dims]
    if not samples:
        return every
    found: list[Case] = []
    for sample in samples.split(","):
        named = [c for c in every if f"{c.key}:".startswith(f"{sample}:")]
        if not named:
            raise ValueError(f"no case {sample!r}; there are {' '.join(c.key for c in every)}")
        found += named
    return list(dict.fromkeys(found))


def prepare(directory: Path) -> None:
    """Compiles each variant's spec to `directory/VARIANT.py`. Needs attngen."""
    import peers

    import attngen

    directory.mkdir(parents=True, exist_ok=True)
    for variant in VARIANTS:
        consts = {"window": WINDOW} if variant == "windowed_alibi" else {}
        attngen.compile(peers.ROOT / "examples" / f"{variant}.attn", consts=consts).save(directory / f"{variant}.py")


# ---- inputs, and what is right ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Inputs:
    """On the CPU. `leaves`: q, k, v, then the params that learn; `given`: every param by name, the same tensors."""

    leaves: tuple[Any, ...]
    given: Mapping[str, Any]
    grad_out: Any


def draw(case: Case, length: int) -> Inputs:
    import torch

    generator = torch.Generator().manual_seed(length)

    def tensor(heads: int) -> Any:
        return torch.randn(1, heads, length, case.head_dim, generator=generator).half()

    given: dict[str, Any] = {}
    if case.variant == "documents":
        lengths = [int(share * length) for share in DOCUMENTS[:-1]]
        lengths.append(length - sum(lengths))
        ids = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
        given["ids"] = ids[None].to(torch.int32)
    if case.variant == "windowed_alibi":
        given |= {"slope": 2.0 ** -torch.arange(1.0, HEADS + 1), "cap": torch.tensor(CAP)}
    learned = tuple(x for x in given.values() if x.is_floating_point())
    return Inputs((tensor(HEADS), tensor(KV_HEADS), tensor(KV_HEADS), *learned), given, tensor(HEADS))


def dense(variant: str, inputs: Inputs) -> tuple[dict[str, Any], dict[str, float]]:
    """out and the gradients of the leaves, all pairs at once, in float32; and the scale of each, for `TOLERANCE`."""
    import torch

    leaves = [x.detach().float().requires_grad_() for x in inputs.leaves]
    q, k, v = leaves[0], *(x.repeat_interleave(HEADS // KV_HEADS, 1) for x in leaves[1:3])
    at = torch.arange(q.shape[2])
    distance = at[:, None] - at[None, :]
    score = q @ k.mT * q.shape[3] ** -0.5
    shares: list[Any] = []
    allowed = distance >= 0
    if variant == "documents":
        ids = inputs.given["ids"][0]
        allowed &= ids[:, None] == ids[None, :]
    if variant == "windowed_alibi":
        slope, cap = shares = [x.reshape(-1, 1, 1).expand(HEADS, len(at), 1) for x in leaves[3:]]
        for x in shares:
            x.retain_grad()
        score = cap * torch.tanh(score / cap) - slope * distance
        allowed &= distance < WINDOW
    out = score.masked_fill(~allowed, -torch.inf).softmax(-1) @ v
    out.backward(inputs.grad_out.float())
    found = named(out, [x.grad for x in leaves], inputs)
    scales = [*[x.norm() for x in list(found.values())[:4]], *[x.grad.norm() for x in shares]]
    return found, dict(zip(found, map(float, scales), strict=True))


def named(out: Any, grads: Sequence[Any], inputs: Inputs) -> dict[str, Any]:
    learned = [name for name, x in inputs.given.items() if x.is_floating_point()]
    return dict(zip(("out", "dq", "dk", "dv", *learned), (out.detach(), *grads), strict=True))


# ---- the run ---------------------------------------------------------------------------------------------------------


@contextmanager
def portable(module: ModuleType) -> Iterator[None]:
    """The file as if it had no kernels of sm_90's own."""
    own: Any = module
    tables: list[dict[Any, Any]] = [own.rows_by_dims(getattr(own, name)) for name in TABLES if hasattr(own, name)]
    kept = [dict(table) for table in tables]
    for table in tables:
        table.clear()
    own._attention.ready.clear()
    try:
        yield
    finally:
        for table, rows in zip(tables, kept, strict=True):
            table.update(rows)
        own._attention.ready.clear()


def own_kernels(module: Any, q: Any, k: Any, v: Any) -> list[str]:
    """The directions for which the file has a kernel of sm_90's own at these head dims."""
    choices = {"forward": ("HOPPER",), "backward": ("HOPPER_BACKWARD", "HOPPER_APART")}
    tables = {way: [getattr(module, name) for name in names if hasattr(module, name)] for way, names in choices.items()}
    return [way for way, found in tables.items() if any(module.hopper_row(t, q, k, v) is not None for t in found)]


def run_case(case: Case, module: ModuleType, length: int, device: str) -> tuple[list[str], dict[str, float]]:
    """The directions that kernels of sm_90's own compute, and relative errors by name; none where those are missing."""
    import torch

    inputs = draw(case, length)
    leaves = [x.to(device).requires_grad_() for x in inputs.leaves]
    q, k, v = leaves[:3]
    learned = iter(leaves[3:])
    given = {n: next(learned) if x.is_floating_point() else x.to(device) for n, x in inputs.given.items()}
    function: Callable[..., Any] = getattr(module, case.variant)
    if hasattr(module, "MULTIPROCESSORS"):
        module.MULTIPROCESSORS[q.device] = 2
    own = own_kernels(module, q, k, v) if case.path == "sm_90" else []
    if case.path == "sm_90" and not own:
        return own, {}
    with portable(module) if case.path == "portable" else nullcontext():
        out = function(q, k, v, **given)
        grads = torch.autograd.grad(out, leaves, inputs.grad_out.to(device))
    found, (expected, scales) = named(out, grads, inputs), dense(case.variant, inputs)
    return own, {name: float((x.cpu().float() - expected[name]).norm()) / scales[name] for name, x in found.items()}


def run(directory: Path, chosen: Sequence[Case], lengths: Mapping[int, int], device: str) -> int:
    import peers  # noqa: F401 - this checkout's attngen, installed or not

    from attngen.runtime.loader import load

    wrong = 0
    for case in chosen:
        start = time.monotonic()
        module = load((directory / f"{case.variant}.py").read_text(encoding="utf-8"), case.variant)
        length = lengths[case.head_dim]
        own, errors = run_case(case, module, length, device)
        said = [f"{case.key} N={length}:"]
        if case.path == "sm_90":
            said.append(f"{' and '.join(own) or 'no'} kernel of its own;")
        if errors:
            right = all(error <= TOLERANCE for error in errors.values())  # so that nan is wrong
            wrong += not right
            said += ["right" if right else "WRONG", *(f"{name} {error:.1e}" for name, error in errors.items())]
        print(*said, f"{time.monotonic() - start:.1f} s", flush=True)
    return 1 if wrong else 0


def main(argv: Sequence[str]) -> int:
    if argv and argv[0] == "prepare":
        parser = argparse.ArgumentParser(prog="sanitize.py prepare")
        parser.add_argument("directory", type=Path)
        prepare(parser.parse_args(argv[1:]).directory)
        return 0
    parser = argparse.ArgumentParser(
        prog="sanitize.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "sample", nargs="?", default="", help="VARIANT[:HEAD_DIM[:PATH]],… (all); PATH: sm_90, portable"
    )
    parser.add_argument("--kernels", type=Path, required=True, metavar="DIR", help="what `prepare` wrote")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: a dry run in the interpreter")
    args = parser.parse_args(argv)
    dry = args.device == "cpu"
    lengths = DRY_LENGTHS if dry else LENGTHS
    try:
        chosen = cases(args.sample, tuple(lengths), PATHS[1:] if dry else PATHS)
    except ValueError as error:
        print(f"sanitize.py: {error}", file=sys.stderr)
        return 2
    missing = sorted({c.variant for c in chosen if not (args.kernels / f"{c.variant}.py").exists()})
    if missing:
        print(f"sanitize.py: {args.kernels} has no {', '.join(missing)}: prepare it there", file=sys.stderr)
        return 2
    # Each tensor an allocation of its own, so that what lies behind it is seen. Before torch is imported.
    os.environ["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"
    return run(args.kernels, chosen, lengths, args.device)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
