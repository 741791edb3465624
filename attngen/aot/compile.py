"""Binaries without a GPU: every kernel of a generated file, through the real Triton compiler, for a chip by name.

Takes the generated source and the attention that it was made from, returns `Artifact`s. The file's own launcher says
what to compile: a process of its own (`aot.worker`) calls it, forward and backward, on example inputs, and compiles
where a launch would run. So tile sizes, argument types, alignment and options are those of real launches.
"""

from __future__ import annotations

import importlib.util
import os
import pickle
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from attngen import inputs
from attngen.errors import InternalError, UsageError
from attngen.extras import lacking
from attngen.ir.attention import Attention
from attngen.ir.nodes import Storage
from attngen.plan.numerics import beyond_narrow
from attngen.vocabulary import FILE_DTYPES, NARROW

TARGETS = {
    "sm_80": ("cuda", 80, 32),
    "sm_86": ("cuda", 86, 32),
    "sm_90": ("cuda", 90, 32),
    "sm_100": ("cuda", 100, 32),
    "gfx942": ("hip", "gfx942", 64),
}
"""Triton's names: backend, architecture, threads of a warp."""

DTYPES = FILE_DTYPES
KINDS = {"ttir": ("cuda", "hip"), "ttgir": ("cuda", "hip"), "ptx": ("cuda",), "cubin": ("cuda",), "hsaco": ("hip",)}
"""What there is, and for which backends."""

SIZES = {"B": 2, "Hq": 4, "Hkv": 4, "Sq": 256, "Sk": 256}
"""An ordinary call: more than one of everything. Lengths and strides are no part of a binary."""

GROUPED = {**SIZES, "Hkv": 2}
"""A call whose query heads share keys: the backward kernel for Hopper GPUs has a form for it."""

SHORT = {**GROUPED, "Sq": 2, "Sk": 4096}
"""A call of few queries: what a file has for these is compiled too."""


@dataclass(frozen=True, slots=True)
class Artifact:
    """One compiled kernel. `data` is text for ttir, ttgir and ptx, else bytes. Kernels in Gluon start at ttgir: their
    ttir is None.

    `registers` and `spills` count 32-bit registers of one thread (on AMD: vector registers), `shared` the bytes of
    shared memory of one program, `loop_spills` the instructions that spill or reload inside a main loop,
    `tensor_memory` the columns that it takes of the 512 of a Blackwell SM.
    """

    kernel: str
    data: bytes | str | None
    registers: int | None
    spills: int | None
    shared: int
    loop_spills: int = 0
    tensor_memory: int = 0


@dataclass(frozen=True, slots=True)
class Call:
    """What the function is called with: sizes, and each param's storage and value."""

    sizes: dict[str, int]
    params: tuple[tuple[Storage, inputs.Value], ...]


@dataclass(frozen=True, slots=True)
class Request:
    """What the worker is told, pickled: plain values and arrays alone. `calls`: the ordinary one first, then those that
    are made forward alone; `grouped`: one whose query heads share keys."""

    source: str
    name: str
    arch: str
    target: tuple[str, int | str, int]
    kind: str
    dtype: str
    calls: tuple[Call, ...]
    seeded: bool
    grouped: Call | None = None


def require(kind: str, *, arch: str, dtype: str, head_dim: tuple[int, int] | None = None) -> None:
    """Raises `UsageError` where there is no such binary, or no compiler to make it."""
    if arch not in TARGETS:
        raise UsageError(f"no architecture {arch!r}; there are {', '.join(TARGETS)}")
    if dtype not in DTYPES:
        raise UsageError(f"no dtype {dtype!r}; there are {', '.join(DTYPES)}")
    if kind not in KINDS:
        raise UsageError(f"no kind {kind!r}; there are {', '.join(KINDS)}")
    if TARGETS[arch][0] not in KINDS[kind]:
        fitting = [k for k, backends in KINDS.items() if TARGETS[arch][0] in backends]
        raise UsageError(f"{arch} has no {kind}; ask for {', '.join(fitting)}")
    why = beyond_narrow(arch, head_dim) if dtype == NARROW else None
    if why is not None:
        raise UsageError(f"{why}, or leave out `dtype=fp8`")
    for package in ("torch", "triton"):
        if importlib.util.find_spec(package) is None:
            raise UsageError(lacking(f"binaries need {package}", package))


def compile_kernels(
    source: str, attention: Attention, *, arch: str, dtype: str, head_dim: tuple[int, int], kind: str
) -> list[Artifact]:
    """Every kernel that one forward and one backward call of the generated function launches, in that order; then those
    of a call whose query heads share keys, and of a forward call of few queries.

    `head_dim` is (D, Dv); every gradient is asked for. A kernel that is launched in several forms comes several times,
    numbered. Raises UsageError for what does not exist or does not fit the spec's own facts.
    """
    require(kind, arch=arch, dtype=dtype, head_dim=head_dim)
    calls, grouped = [_call(attention, SIZES, head_dim)], None
    if "\ndef _hopper_backward_kernel(" in source:
        with suppress(UsageError):  # its facts may ask for as many heads of keys as of queries
            grouped = _call(attention, GROUPED, head_dim)
    if "\ndef _split_kernel(" in source:
        with suppress(UsageError):  # its facts may leave no room for a short call
            calls.append(_call(attention, SHORT, head_dim))
    seeded = attention.dropout is not None
    return _in_worker(Request(source, attention.name, arch, TARGETS[arch], kind, dtype, tuple(calls), seeded, grouped))


def request(
    source: str,
    attention: Attention,
    *,
    arch: str,
    dtype: str,
    sizes: Mapping[str, int],
    target: tuple[str, int | str, int],
) -> Request:
    """What a worker is told that compiles one call of these sizes. `arch` is the file's name of the chip, `target`
    Triton's."""
    values = inputs.examples(attention, dict(sizes))
    call = Call(dict(sizes), tuple((p.storage, values[p.name]) for p in attention.params))
    seeded = attention.dropout is not None
    return Request(source, attention.name, arch, target, "cubin", dtype, (call,), seeded)


def _call(attention: Attention, wanted: dict[str, int], head_dim: tuple[int, int]) -> Call:
    sizes = inputs.settle(attention, {**wanted, "D": head_dim[0], "Dv": head_dim[1]}, fixed=("D", "Dv"))
    values = inputs.examples(attention, sizes)
    return Call(sizes, tuple((p.storage, values[p.name]) for p in attention.params))


def _in_worker(request: Request) -> list[Artifact]:
    """A process of its own: this one may have Triton's interpreter on, or a GPU whose driver would answer instead."""
    environment = {**os.environ, "TRITON_INTERPRET": "0", "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    finished = subprocess.run(
        [sys.executable, "-m", "attngen.aot.worker"],
        input=pickle.dumps(request),
        capture_output=True,
        env=environment,
        check=False,
    )
    if finished.returncode:
        sizes = request.calls[0].sizes
        heads = f"head dims {sizes['D']}/{sizes['Dv']}"
        log = finished.stderr.decode("utf-8", "replace")
        raise InternalError(
            f"Triton's compiler ended with status {finished.returncode} on {request.name} for {request.arch}, "
            f"{request.dtype}, {heads}",
            log,
        ) from RuntimeError(log)
    return pickle.loads(finished.stdout)
