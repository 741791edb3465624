"""libtpu ahead of time: a JAX function and its shapes through the TPU's own compiler, on a machine without a TPU.

Takes a `Request`, returns what the compiler wrote (`Compiled`) or why it would not (`Refused`). It runs in a process of
its own (`worker`): libtpu reads its options from the environment once, and it may abort. Several may run at a time.
Reads no schedule: `bundles` does.
"""

from __future__ import annotations

import importlib.util
import os
import pickle
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from attngen.errors import InternalError, UsageError
from attngen.extras import lacking
from attngen.tpu.chips import Chip

_DUMPS = "packed-bundles-post-ra|hlo-static"
_IN_HBM = "--xla_msa_enable=false"
"""Arguments stay in HBM: XLA would move small ones to VMEM, and a kernel's copies would cost nothing."""


@dataclass(frozen=True, slots=True)
class Request:
    """What to compile. `entry` is `module:function`; called with `arguments`, it gives a `worker.Program`."""

    entry: str
    arguments: tuple[tuple[str, Any], ...]
    chip: Chip
    schedule: bool = True
    """Whether the schedule is wanted; writing it takes the compiler longer."""
    mosaic: bool = False
    """Whether the kernels' Mosaic text is wanted."""


@dataclass(frozen=True, slots=True)
class Table:
    """An operand whose value does not depend on the call's data: integers, row by row, as they lie in memory."""

    bits: int
    """Of one element."""
    shape: tuple[int, ...]
    values: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Signature:
    """One `pallas_call` of the traced function, and what is known of its operands."""

    function: str
    """The kernel's Python function."""
    shapes: tuple[tuple[str, tuple[int, ...]], ...]
    """(dtype, shape) of every operand, then of every result."""
    known: tuple[Table | None, ...]


@dataclass(frozen=True, slots=True)
class Lowered:
    """What the worker answers."""

    hlo: str
    mosaic: tuple[tuple[str, str], ...]
    signatures: tuple[Signature, ...]
    temporary_bytes: int


@dataclass(frozen=True, slots=True)
class Scheduled:
    """One compiled kernel or fusion, as text."""

    name: str
    """As the compiled program has it."""
    function: str
    """The Python function of a Pallas kernel, "" for what XLA made."""
    bundles: str
    utilization: str
    vmem: int | None
    """Bytes of VMEM that it takes, where the compiler says so."""
    operands: tuple[Table | None, ...]

    @property
    def is_pallas(self) -> bool:
        return bool(self.function)


@dataclass(frozen=True, slots=True)
class Compiled:
    """What libtpu made of a request. `mosaic` holds (kernel, text) of every Pallas kernel."""

    chip: Chip
    hlo: str
    mosaic: tuple[tuple[str, str], ...]
    kernels: tuple[Scheduled, ...]
    temporary_bytes: int


@dataclass(frozen=True, slots=True)
class Refused:
    """The compiler's own words, and the stage that said no: `trace`, `lower` or `compile`, or `crash`."""

    stage: str
    message: str

    def reason(self) -> str:
        """The part that says why, in one line."""
        for pattern in (
            r"Scoped allocation with size[^\n]*?limit [\d.]+\w",
            r"Ran out of memory in memory space \w+",
            r"Mosaic failed to compile[^\n]*",
            r"Check failed[^\n]*",
        ):
            found = re.search(pattern, self.message)
            if found is not None:
                return found[0].strip()
        lines = [line.strip() for line in self.message.splitlines() if line.strip()]
        return lines[0] if lines else f"no reason given in stage {self.stage}"


Outcome: TypeAlias = Compiled | Refused


def require() -> None:
    """Raises `UsageError` where jax or libtpu is missing."""
    if importlib.util.find_spec("jax") is None or importlib.util.find_spec("libtpu") is None:
        raise UsageError(lacking("compiling for a TPU needs jax and libtpu", "tpu"))


def compile_for(request: Request) -> Outcome:
    """Compile, or say why not. Raises `UsageError` where jax or libtpu is missing."""
    require()
    with tempfile.TemporaryDirectory(prefix="attngen-libtpu-") as folder:
        dumps = Path(folder, "llo")
        dumps.mkdir()
        finished = subprocess.run(
            [sys.executable, "-m", "attngen.tpu.worker"],
            input=pickle.dumps(request),
            capture_output=True,
            env=environment(dumps if request.schedule else None),
            check=False,
        )
        if finished.returncode < 0:  # libtpu aborts where a check of its own fails
            said = finished.stderr.decode("utf-8", "replace")
            name = signal.Signals(-finished.returncode).name
            return Refused("crash", _last_words(said) or f"libtpu ended with {name}")
        if finished.returncode:
            log = finished.stderr.decode("utf-8", "replace")
            what = f"the process that compiles for {request.chip.name} ended with status {finished.returncode}"
            raise InternalError(what, log) from RuntimeError(log)
        answer: Lowered | Refused = pickle.loads(finished.stdout)
        if isinstance(answer, Refused):
            return answer
        kernels = _schedules(dumps, answer) if request.schedule else ()
    return Compiled(request.chip, answer.hlo, answer.mosaic, kernels, answer.temporary_bytes)


def _last_words(said: str) -> str:
    fatal = [line for line in said.splitlines() if re.match(r"F\d{4} ", line)]
    return (fatal or said.strip().splitlines() or [""])[-1]


def environment(dumps: Path | None) -> Mapping[str, str]:
    flags = [_IN_HBM]
    if dumps is not None:
        flags += [
            f"--xla_jf_dump_to={dumps}",
            "--xla_jf_dump_hlo_text=true",
            "--xla_jf_dump_llo_text=true",
            f"--xla_jf_dump_llo_pass_label_regex={_DUMPS}",
        ]
    return {
        **os.environ,
        "LIBTPU_INIT_ARGS": " ".join(flags),
        "JAX_PLATFORMS": "cpu",
        "TPU_SKIP_MDS_QUERY": "1",  # else it looks for a cloud machine's own TPU
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # no TPU is opened, so nobody is in the way of anybody
        "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
    }


# ---------------------------------------------------------------- what libtpu wrote

_SCHEDULE = re.compile(r"\d+-(?P<name>.+)-(?P<number>\d+)-packed-bundles-post-ra\.txt")
_INTERNAL = ("TLP", "<late-initialization>", "<late-finalization>")
"""The program around the kernels, and what runs before and after it."""


def _schedules(dumps: Path, lowered: Lowered) -> tuple[Scheduled, ...]:
    """Every kernel and fusion, in the order in which the compiler took them."""
    waiting = list(lowered.signatures)
    texts = instructions(lowered.hlo)
    files = sorted(dumps.iterdir())
    found: list[Scheduled] = []
    for path in files:
        match = _SCHEDULE.fullmatch(path.name)
        if match is None or match["name"] in _INTERNAL:
            continue
        name = match["name"]
        stem = path.name[: match.start("number")]
        used = [p for p in files if p.name.startswith(stem) and "-pre-delay_hlo-static" in p.name[len(stem) - 1 :]]
        line = texts.get(name, "")
        signature = _taken(line, waiting) if 'custom_call_target="tpu_custom_call"' in line else None
        found.append(
            Scheduled(
                name=name,
                function=signature.function if signature else "",
                bundles=path.read_text(encoding="utf-8"),
                utilization=used[0].read_text(encoding="utf-8") if used else "",
                vmem=_vmem(line),
                operands=signature.known if signature else (),
            )
        )
    return tuple(found)


def instructions(hlo: str) -> Mapping[str, str]:
    """The text of every instruction of an HLO module, by name; one may run over several lines."""
    starts = list(re.finditer(r"^ +(?:ROOT )?%(\S+) = ", hlo, re.M))
    ends = [*(s.start() for s in starts[1:]), len(hlo)]
    return {start[1]: hlo[start.start() : end] for start, end in zip(starts, ends, strict=True)}


def _vmem(line: str) -> int | None:
    match = re.search(r'used_scoped_memory_configs":\[\{"memory_space":"1","offset":"0","size":"(\d+)"', line)
    return int(match[1]) if match else None


_HLO_DTYPES = {"s": "int", "u": "uint", "f": "float", "bf": "bfloat", "pred": "bool"}


def _taken(line: str, waiting: list[Signature]) -> Signature:
    """The first call not yet taken that has a compiled kernel's operands and results. libtpu keeps their order."""
    operands = _balanced(line.partition("operand_layout_constraints={")[2])
    results = line.partition(" = ")[2].partition(" custom-call(")[0]
    shapes = tuple(
        (_dtype(dtype), tuple(int(d) for d in dims.split(",") if d))
        for dtype, dims in re.findall(r"\b([a-z]+\d*)\[([\d,]*)\]", f"{operands} {results}")
    )
    for signature in waiting:
        if signature.shapes == shapes:
            waiting.remove(signature)
            return signature
    raise InternalError(f"a compiled kernel that was not traced, with {shapes}")


def _balanced(text: str) -> str:
    """What stands before the brace that closes one opened before `text`."""
    depth = 1
    for position, character in enumerate(text):
        depth += (character == "{") - (character == "}")
        if depth == 0:
            return text[:position]
    return text


def _dtype(hlo: str) -> str:
    letters, digits = re.fullmatch(r"([a-z]+)(\d*)", hlo).groups()  # pyright: ignore[reportOptionalMemberAccess]
    return _HLO_DTYPES.get(letters, letters) + digits
