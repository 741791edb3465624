"""The contenders: attngen's generated files, FlexAttention, SDPA's flash backend and cuDNN, behind one small type.

Takes a cell and its inputs; gives a `Contender`, ready to call. Which cells a contender can compute is said here too.
Checking and timing are left to gpu.py.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.util
import inspect
import json
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from cells import Cell, Inputs, Settings, mask_mod, score_mod
from clock import sample, summary
from torch import Tensor

PEERS = ("flex", "cudnn", "sdpa", "fa4")
ROOT = Path(__file__).resolve().parent.parent
FULL = "# Every query sees every key.\nattention full\n"


def nothing() -> None:
    """The watch of a contender that can't fall back."""


@dataclass(frozen=True, slots=True)
class Contender:
    """`attend(q, k, v)` under `scope()`. `watch` raises where a call so far took another path than the one meant."""

    name: str
    attend: Callable[[Tensor, Tensor, Tensor], Tensor]
    scope: Callable[[], AbstractContextManager[Any]] = nullcontext
    lse: Callable[[Tensor, Tensor, Tensor], Tensor] | None = None
    block_mask_ms: float | None = None
    watch: Callable[[], None] = nothing


# ---- attngen ---------------------------------------------------------------------------------------------------------


def spec_of(variant: str, settings: Settings) -> tuple[str | Path, dict[str, int | float]]:
    """The variant's .attn file, or its text, and the constants that it is compiled with."""
    consts: dict[str, dict[str, int | float]] = {
        "sliding_window": {"window": settings.window},
        "softcap": {"cap": settings.cap},
        "relative_bias": {"radius": settings.radius},
    }
    return FULL if variant == "full" else ROOT / "examples" / f"{variant}.attn", consts.get(variant, {})


def prepare(directory: Path, variants: tuple[str, ...], settings: Settings) -> None:
    """Compiles each variant's spec to `directory/VARIANT.py`, with a manifest of names and constants. Needs attngen."""
    sys.path.insert(0, str(ROOT))  # this checkout's attngen, installed or not
    import attngen

    directory.mkdir(parents=True, exist_ok=True)
    before = Kernels.at(directory) if (directory / "manifest.json").exists() else None
    functions = dict(before.functions) if before is not None and before.settings == settings else {}
    for variant in variants:
        spec, consts = spec_of(variant, settings)
        kernel = attngen.compile(spec, target="triton", consts=consts)
        kernel.save(directory / f"{variant}.py")
        functions[variant] = kernel.name
    manifest = {"settings": asdict(settings), "functions": functions}
    (directory / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")


@dataclass(frozen=True, slots=True)
class Kernels:
    """A directory that `prepare` wrote: standalone files that import torch and triton only."""

    directory: Path
    functions: dict[str, str]
    settings: Settings

    @classmethod
    def at(cls, directory: Path) -> Kernels:
        manifest = json.loads((directory / "manifest.json").read_text(encoding="utf-8"))
        return cls(directory, manifest["functions"], Settings(**manifest["settings"]))

    def path(self, variant: str) -> Path:
        return self.directory / f"{variant}.py"

    def digests(self) -> dict[str, str]:
        """What was measured: the start of each file's sha256."""
        return {v: hashlib.sha256(self.path(v).read_bytes()).hexdigest()[:16] for v in self.functions}

    def module(self, variant: str) -> ModuleType:
        """The generated file, imported once a process (it registers custom operators, which exist only once)."""
        name = f"attngen_benchmark_{variant}"
        if name not in sys.modules:
            spec = importlib.util.spec_from_file_location(name, self.path(variant))
            assert spec is not None and spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            sys.modules[name] = module  # before it runs: triton and dataclasses look modules up by name
            spec.loader.exec_module(module)
        return sys.modules[name]

    def function(self, variant: str) -> Callable[..., Any]:
        if variant not in self.functions:
            raise ValueError(f"no kernel of {variant} in {self.directory.name}: prepare it there")
        return getattr(self.module(variant), self.functions[variant])


def generated(cell: Cell, inputs: Inputs, kernels: Kernels) -> Contender:
    """attngen's function for the cell's variant, params bound."""
    function = kernels.function(cell.variant)
    wanted = [
        p.name
        for p in inspect.signature(function).parameters.values()
        if p.kind is p.KEYWORD_ONLY and p.name not in ("scale", "return_lse", "dropout_seed")
    ]
    missing = [name for name in wanted if name not in inputs.params]
    if missing:
        raise ValueError(
            f"{cell.variant}: the kernel wants {', '.join(missing)}; cells.make_inputs gives no such param"
        )
    params = {name: inputs.params[name] for name in wanted}

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return function(q, k, v, **params)

    def lse(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return function(q, k, v, return_lse=True, **params)[1]

    return Contender("attngen", attend, lse=lse)


# ---- FlexAttention ---------------------------------------------------------------------------------------------------


class Uncompiled(RuntimeError):
    """FlexAttention ran its dense fallback, or compiled again while it was timed."""


def flex(cell: Cell, inputs: Inputs, settings: Settings, *, device: str, mode: str | None = None) -> Contender:
    """`torch.compile(flex_attention, dynamic=False)` with the variant's mods; the block mask is made, and timed, here.

    Dynamo starts afresh, so no cell inherits another's recompilations, and a full recompile cache raises instead of
    running the dense fallback. Two more signs of one are looked for: memory as large as the scores, a second graph.
    """
    import torch._dynamo
    import torch._functorch.config
    from torch._dynamo.utils import counters
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    torch._dynamo.reset()
    counters.clear()
    torch._dynamo.config.fail_on_recompile_limit_hit = True
    torch._dynamo.config.suppress_errors = False
    torch._functorch.config.donated_buffer = False  # or it refuses retain_graph, which timing the backward needs
    change = score_mod(cell.variant, settings, inputs.params)
    allowed = mask_mod(cell.variant, settings, inputs.params)
    block_mask, block_mask_ms = None, None
    if allowed is not None:
        batch = cell.B if cell.variant == "documents" else None

        def build() -> Any:
            return create_block_mask(allowed, batch, None, cell.N, cell.N, device=device)  # pyright: ignore

        block_mask = build()
        block_mask_ms = summary(sample(build, device=device, warmup_ms=5, rep_ms=25)).ms
    compiled = torch.compile(flex_attention, dynamic=False, fullgraph=True, mode=mode)
    dense_bytes = 2 * cell.B * cell.H * cell.N * cell.N
    first: list[int] = []

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if first:
            return compiled(q, k, v, score_mod=change, block_mask=block_mask)
        held = 0
        if device == "cuda":
            torch.cuda.reset_peak_memory_stats()
            held = torch.cuda.memory_allocated()
        out = compiled(q, k, v, score_mod=change, block_mask=block_mask)
        if device == "cuda" and torch.cuda.max_memory_allocated() - held >= dense_bytes:
            raise Uncompiled("FlexAttention's first call held as much memory as the dense scores take")
        first.append(counters["stats"]["unique_graphs"])
        return out

    def watch() -> None:
        graphs = counters["stats"]["unique_graphs"]
        if first != [1] or graphs != 1:
            raise Uncompiled(
                f"FlexAttention compiled {graphs} graphs, {first} of them at its first call, where 1 was due"
            )

    return Contender("flex", attend, block_mask_ms=block_mask_ms, watch=watch)


# ---- scaled_dot_product_attention ------------------------------------------------------------------------------------


def scaled(cell: Cell, name: str, *, device: str) -> Contender:
    """torch's own attention with one backend allowed; on the CPU, where dry runs go, the plain one."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    backend = {"sdpa": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}[name]
    if device != "cuda":
        backend = SDPBackend.MATH
    causal = cell.variant == "causal"

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)

    return Contender(name, attend, scope=lambda: sdpa_kernel(backend))


# ---- FlashAttention 4 ------------------------------------------------------------------------------------------------


@functools.cache
def has_fa4() -> bool:
    """Whether FlashAttention 4 (CuTe) is there: the package flash-attn-4 and what it needs."""
    return importlib.util.find_spec("flash_attn") is not None and (
        importlib.util.find_spec("flash_attn.cute") is not None
    )


def fa4(cell: Cell, settings: Settings) -> Contender:
    """FlashAttention 4 on the same tensors, in its own order of dimensions (views, no copies)."""
    function: Callable[..., Any] = importlib.import_module("flash_attn.cute").flash_attn_func
    options: dict[str, Any] = {"causal": cell.variant != "full"}
    if cell.variant == "softcap":
        options["softcap"] = settings.cap
    if cell.variant == "sliding_window":
        options["window_size"] = (settings.window - 1, 0)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out = function(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), **options)
        return (out[0] if isinstance(out, tuple) else out).transpose(1, 2)

    return Contender("fa4", attend)


# ---- choosing --------------------------------------------------------------------------------------------------------


def applies(name: str, cell: Cell, *, device: str) -> bool:
    """Whether the contender can compute the cell at all; what can't is left out, not failed."""
    match name:
        case "attngen":
            return True
        case "flex":
            return device == "cuda"  # it has no backward pass on the CPU
        case "cudnn":
            return device == "cuda" and cell.variant in ("full", "causal")
        case "sdpa":
            return cell.variant in ("full", "causal")
        case "fa4":
            known = cell.variant in ("full", "causal", "softcap", "sliding_window")
            return device == "cuda" and known and has_fa4()
        case _:
            raise ValueError(f"no peer {name!r}; there are {', '.join(PEERS)}")


def contender(
    name: str,
    cell: Cell,
    inputs: Inputs,
    settings: Settings,
    kernels: Kernels | None,
    *,
    device: str,
    flex_mode: str | None = None,
) -> Contender:
    match name:
        case "attngen":
            if kernels is None:
                raise ValueError("attngen's kernels are missing: name their directory with --kernels")
            return generated(cell, inputs, kernels)
        case "flex":
            return flex(cell, inputs, settings, device=device, mode=flex_mode)
        case "fa4":
            return fa4(cell, settings)
        case _:
            return scaled(cell, name, device=device)
