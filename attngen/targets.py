"""The targets: one frozen value for each, which says what its files can do and who makes, loads and runs them.

Doors, planner, prover and loader ask this value; a target's name is compared nowhere. A function imports the target's
room when it is called.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from attngen.errors import InternalError, UsageError
from attngen.runtime import devices, loader
from attngen.vocabulary import BINARIES, DTYPES, GEOMETRIES, PRECISIONS, TPU_STAGES, TPUS

if TYPE_CHECKING:
    from types import ModuleType

    from attngen.emit.options import Options, Tuned, TunedGpu
    from attngen.errors import Source
    from attngen.ir.attention import Attention
    from attngen.plan import KernelPlan
    from attngen.plan.limits import Limits

    Tiles: TypeAlias = tuple[Tuned, ...] | tuple[TunedGpu, ...]

DEFAULT = "triton"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    name: str
    limits: Callable[[], Limits]
    """What the planner has to know."""
    emit: Callable[[KernelPlan, str, Options, tuple[str, ...]], str]
    """The file: of a plan, the spec's text, options, and what its header says is proved."""
    device: Callable[[str], str]
    """Where its files run here, for "auto", "cpu" or "cuda"."""
    device_name: Callable[[], str]
    """That of the accelerator."""
    prepare: Callable[[], None] = lambda: None
    """What must be done before a file is loaded."""
    interpreter: str = ""
    """What runs its kernels on a CPU."""
    takes_jax: bool = False
    """Its functions take JAX's arrays, heads behind lengths; else PyTorch's tensors, heads before lengths."""
    precisions: tuple[str, ...] = PRECISIONS
    """Of its float32 products."""
    dtypes: tuple[str, ...] = DTYPES
    """In which its kernels multiply."""
    geometries: tuple[str, ...] = ("dense",)
    """That its files may have."""
    pieces: bool = False
    """Whether there are kernels of pieces of a longer sequence."""
    operators: bool = False
    """Whether its files register PyTorch operators, which DTensors and ranks call."""
    for_chips: bool = False
    """Whether a file may be for some chips, head dims or dtypes, or for the forward pass alone."""
    tpus: tuple[str, ...] = ()
    """For which its kernels are tuned without having one; none: they are timed on the card that is here."""
    runtime: Callable[[], Mapping[str, str]] | None = None
    """The package that its files may stand beside, and share: texts by name, in a folder of the name `_attngen`."""
    own_lines: Callable[[str], loader.OwnLines | None] = lambda source: None
    """Which lines of a file that was made here are executed; None: all."""
    stages: tuple[str, ...] = ()
    """What its compiler makes of a file."""
    tile: Callable[[], tuple[int, int] | None] = lambda: None
    """That of a file whose spec has none, if it is one for all."""
    tuned: Callable[[], type[Tuned] | type[TunedGpu]] | None = None
    """The kind of tiles that `tune` finds for it."""
    tiles: Callable[[Source, Attention, Source, Mapping[str, int]], Tiles] | None = None
    """Those of a file that `tune` wrote: of a spec's text, its attention, the file, and the sizes that are meant."""

    def load(self, source: str, name: str) -> ModuleType:
        """The module of a file of this target that was made here; `name`: its attention. Such files share a runtime."""
        return loader.load(source, name, self.prepare, own=self.own_lines(source))

    def load_file(self, source: str, name: str, place: str | None) -> ModuleType:
        """The module of somebody's file, with the runtime that it carries. `place`: its path, if it has one."""
        return loader.load(source, name, self.prepare, place)


# ---------------------------------------------------------------- the rows


def _triton_limits() -> Limits:
    from attngen.emit.triton.code.names import reserved
    from attngen.plan.limits import Limits

    return Limits(reserved=reserved(), approximates=True, gpu=True, maps=True)


def _torch_limits() -> Limits:
    from attngen.emit.torch.names import reserved
    from attngen.plan.limits import Limits

    return Limits(reserved=reserved())


def _jax_limits() -> Limits:
    """JAX has no 64-bit ints unless a process-wide switch turns them on."""
    from attngen.plan.ints.width import WideInts
    from attngen.plan.limits import Limits

    return Limits(ints=WideInts.SATURATE, maps=True)


def _pallas_limits() -> Limits:
    """A TPU has no 64-bit ints at all."""
    from attngen.plan.ints.width import WideInts
    from attngen.plan.limits import Limits

    return Limits(ints=WideInts.SATURATE, tpu=True, maps=True)


def _portable_tile() -> tuple[int, int]:
    from attngen.plan.tiles.portable import PORTABLE

    return PORTABLE


def _emit_triton(plan: KernelPlan, text: str, options: Options, proof: tuple[str, ...]) -> str:
    from attngen.emit.triton.module import emit_triton

    return emit_triton(plan, text, options, proof)


def _triton_runtime() -> Mapping[str, str]:
    from attngen.emit.triton.placement import beside

    return beside()


def _own_lines(source: str) -> loader.OwnLines | None:
    from attngen.emit.triton.placement import own_lines

    return own_lines(source)


def _emit_torch(plan: KernelPlan, text: str, options: Options, proof: tuple[str, ...]) -> str:
    from attngen.emit.torch.module import emit_torch

    return emit_torch(plan, text, options, proof)


def _emit_pallas(plan: KernelPlan, text: str, options: Options, proof: tuple[str, ...]) -> str:
    from attngen.emit.pallas.module import emit_pallas

    return emit_pallas(plan, text, options, proof)


def _emit_jax(plan: KernelPlan, text: str, options: Options, proof: tuple[str, ...]) -> str:
    from attngen.emit.jax.module import emit_jax

    return emit_jax(plan, text, options, proof)


def _tuned_gpu() -> type[TunedGpu]:
    from attngen.emit.options import TunedGpu

    return TunedGpu


def _tuned_tpu() -> type[Tuned]:
    from attngen.emit.options import Tuned

    return Tuned


def _gpu_tiles(source: Source, spec: Attention, file: Source, sizes: Mapping[str, int]) -> Tiles:
    from attngen.tune.keys import gpu_tiles

    return gpu_tiles(source, spec, file, sizes)


def _tpu_tiles(source: Source, spec: Attention, file: Source, sizes: Mapping[str, int]) -> Tiles:
    from attngen.tune.keys import tpu_tiles

    return tpu_tiles(source, spec, file, sizes)


TARGETS: dict[str, Target] = {
    target.name: target
    for target in (
        Target(
            name="triton",
            limits=_triton_limits,
            emit=_emit_triton,
            device=devices.of_triton,
            device_name=devices.torch_name,
            prepare=loader.prepare_interpreter,
            runtime=_triton_runtime,
            own_lines=_own_lines,
            interpreter="Triton's interpreter",
            geometries=GEOMETRIES,
            pieces=True,
            operators=True,
            for_chips=True,
            stages=BINARIES,
            tuned=_tuned_gpu,
            tiles=_gpu_tiles,
        ),
        Target(
            name="pallas",
            limits=_pallas_limits,
            emit=_emit_pallas,
            device=devices.of_pallas,
            device_name=devices.jax_name,
            interpreter="Pallas' interpreter",
            takes_jax=True,
            dtypes=("bf16", "fp32"),
            pieces=True,
            tpus=TPUS,
            stages=TPU_STAGES,
            tuned=_tuned_tpu,
            tiles=_tpu_tiles,
        ),
        Target(
            name="torch",
            limits=_torch_limits,
            emit=_emit_torch,
            precisions=("ieee",),
            tile=_portable_tile,
            device=devices.of_torch,
            device_name=devices.torch_name,
        ),
        Target(
            name="jax",
            limits=_jax_limits,
            emit=_emit_jax,
            device=devices.of_jax,
            device_name=devices.jax_name,
            takes_jax=True,
            tile=_portable_tile,
            pieces=True,
        ),
    )
}


def named(name: str) -> Target:
    """The target of this name. Raises `UsageError` where there is none."""
    if name not in TARGETS:
        raise UsageError(f"no target {name!r}; there are {', '.join(TARGETS)}")
    return TARGETS[name]


def emit(plan: KernelPlan, text: str, options: Options, proof: tuple[str, ...] = ()) -> str:
    """The generated module's source. `text` is the spec as the user wrote it, `proof` what its header says is proved.

    Raises `UsageError` for no such target.
    """
    if options.tile not in (None, plan.attention.tile):
        raise InternalError(f"the plan was made for the tile {plan.attention.tile}, not for {options.tile}")
    return named(options.target).emit(plan, text, options, said_of(plan, proof))


def said_of(plan: KernelPlan, proof: tuple[str, ...]) -> tuple[str, ...]:
    """What a file's head says of its plan: what is proved, and what it needs."""
    return (*proof, *(f"needs {need.text}" for need in plan.needs))


def listed(targets: Collection[Target], joint: str = "or") -> str:
    """Their names in a sentence: "triton, pallas or jax"."""
    *first, last = (target.name for target in targets)
    return f"{', '.join(first)} {joint} {last}" if first else last
