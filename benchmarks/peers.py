"""The contenders: attngen's generated files, FlexAttention's two forms, SDPA's flash backend, cuDNN, FlashAttention 4.

Takes a cell and its inputs; gives a `Contender`, ready to call. Which cells a contender can compute is said here too.
Checking and timing are left to gpu.py.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from cells import VARIANTS, Cell, Inputs, Settings, mask_mod, score_mod
from torch import Tensor

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # this checkout's attngen, installed or not

from attngen.bench import contenders  # noqa: E402
from attngen.bench.contenders import has_fa4  # noqa: E402
from attngen.bench.race import Contender  # noqa: E402

PEERS = ("flex", "flex-flash", "cudnn", "sdpa", "fa4")
FULL = "# Every query sees every key.\nattention full\n"


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
        if p.kind is p.KEYWORD_ONLY and p.name not in ("scale", "return_lse", "dropout_seed", "check")
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


def flex(
    name: str, cell: Cell, inputs: Inputs, settings: Settings, *, device: str, mode: str | None = None
) -> Contender:
    """A form of FlexAttention with the variant's modifiers, as its users write them."""
    return contenders.flex(
        score_mod(cell.variant, settings, inputs.params),
        mask_mod(cell.variant, settings, inputs.params),
        (cell.B, cell.H, cell.N, cell.N),
        batches=cell.B if cell.variant == "documents" else None,
        heads=None,
        device=device,
        name=name,
        mode=mode,
    )


# ---- FlashAttention 4 ------------------------------------------------------------------------------------------------


def fa4(cell: Cell, settings: Settings) -> Contender:
    options: dict[str, Any] = {"causal": cell.variant != "full"}
    if cell.variant == "softcap":
        options["softcap"] = settings.cap
    if cell.variant == "sliding_window":
        options["window_size"] = (settings.window - 1, 0)
    return contenders.fa4(options)


# ---- choosing --------------------------------------------------------------------------------------------------------


KNOWN = {
    "cudnn": ("full", "causal"),
    "sdpa": ("full", "causal"),
    "fa4": ("full", "causal", "softcap", "sliding_window"),
}
"""The variants that a library has; FlexAttention has them all."""


def applies(name: str, cell: Cell) -> bool:
    """Whether the contender has the cell's variant at all; what hasn't is left out."""
    if name not in PEERS:
        raise ValueError(f"no peer {name!r}; there are {', '.join(PEERS)}")
    return cell.variant in KNOWN.get(name, VARIANTS)


def unable(name: str, cell: Cell, *, device: str) -> str:
    """Why a contender that has the variant can't be measured here; empty where it can."""
    if name in ("fa4", "flex-flash") and not has_fa4():
        return contenders.NO_FA4
    return "runs on a GPU alone" if device != "cuda" and name != "sdpa" else ""


def contender(
    name: str,
    cell: Cell,
    inputs: Inputs,
    settings: Settings,
    kernels: Kernels,
    *,
    device: str,
    flex_mode: str | None = None,
) -> Contender:
    match name:
        case "attngen":
            return generated(cell, inputs, kernels)
        case "flex" | "flex-flash":
            return flex(name, cell, inputs, settings, device=device, mode=flex_mode)
        case "fa4":
            return fa4(cell, settings)
        case _:
            return contenders.scaled(name, causal=cell.variant == "causal", device=device)
