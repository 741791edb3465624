"""The process in which `aot` compiles: `python -m attngen.aot.worker`, a `Request` on standard input.

Gives a pickled list of `Artifact`s on standard output. Here Triton has a driver that names a chip and has none; a
launch compiles its kernel as it would there and runs nothing, so what the launcher makes of results is meaningless.
"""

from __future__ import annotations

import importlib
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from attngen.aot import listing
from attngen.aot.compile import Artifact, Call, Request
from attngen.errors import InternalError
from attngen.ir.nodes import Storage, Type
from attngen.runtime.loader import execute

# Triton and torch have no types to speak of for what is used here.
triton: Any = importlib.import_module("triton")
torch: Any = importlib.import_module("torch")
jit: Any = importlib.import_module("triton.runtime.jit")
compilers: Any = importlib.import_module("triton.backends.compiler")
nvidia: Any = importlib.import_module("triton.backends.nvidia.compiler")
knobs: Any = triton.knobs


class NamedChip:
    """A Triton driver that says which chip to compile for, and cannot run anything."""

    def __init__(self, target: tuple[str, int | str, int]):
        self.target = compilers.GPUTarget(*target)

    def get_current_target(self) -> Any:
        return self.target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int = 0) -> int:
        return 0

    def get_active_torch_device(self) -> Any:
        return torch.device("cpu")


def recorded_launches(call: Callable[[], object]) -> list[tuple[str, Any]]:
    """(kernel's name, compiled kernel) of every launch that `call` makes, in order; none of them runs."""
    launches: list[tuple[str, Any]] = []
    original = jit.JITFunction.run

    def compile_only(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> None:
        # Nothing is given back, as by the interpreter: the launcher would launch a compiled kernel itself next time.
        launches.append((self.__name__, original(self, *args, grid=grid, warmup=True, **options)))

    jit.JITFunction.run = compile_only
    try:
        call()
    finally:
        jit.JITFunction.run = original
    return launches


# ---------------------------------------------------------------- the call

TORCH_DTYPES = {
    "fp8": torch.float8_e4m3fn,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "fp32": torch.float32,
}
STORAGES = {
    Storage.F32: torch.float32,
    Storage.F16: torch.float16,
    Storage.BF16: torch.bfloat16,
    Storage.INT: torch.int32,
    Storage.U8: torch.uint8,
    Storage.I8: torch.int8,
    Storage.I16: torch.int16,
    Storage.BOOL: torch.bool,
}


def call_once(module: Any, request: Request, call: Call | None = None, *, learned: bool = True) -> None:
    """Forward and backward, with the gradients of q, k, v and, if `learned`, the float params, through out and lse.

    Calls the operator below the public function, which would hand bfloat16 on a CPU to the interpreter as float32.
    """
    out, lse, leaves = forward(module, request, call or request.calls[0], learned=learned)
    if module._attention.operator.backward is not None:  # else the file was made with --forward
        torch.autograd.grad((out, lse), leaves, (torch.zeros_like(out), torch.zeros_like(lse)), allow_unused=True)


def of_sequences(module: Any, request: Request) -> list[tuple[str, Any]]:
    """The launches for sequences, where the file has them: packed ones, too, unless their params have other shapes."""
    if not hasattr(module, "_sequences"):
        return []
    rows = any(getattr(value, "shape", ()) for _, value in request.calls[0].params)
    found: list[tuple[str, Any]] = []
    for packed in (False,) if rows else (False, True):
        for call in (request.calls[0], *((request.grouped,) if request.grouped is not None else ())):
            found += recorded_launches(partial(sequences, module, request, call, packed=packed))
    return found


def sequences(module: Any, request: Request, call: Call, *, packed: bool) -> None:
    """Forward and backward, of sequences that are a part of a batch row or that follow one another."""
    size = call.sizes
    dtype = TORCH_DTYPES[request.dtype]

    def zeros(heads: str, length: str, dim: str) -> Any:
        shape = (size[length], size[heads], size[dim]) if packed else (size["B"], size[heads], size[length], size[dim])
        return torch.zeros(shape, dtype=dtype, requires_grad=True)

    q, k, v = zeros("Hq", "Sq", "D"), zeros("Hkv", "Sk", "D"), zeros("Hkv", "Sk", "Dv")
    params = [_argument(storage, value, learned=False) for storage, value in call.params]
    ends = torch.zeros(size["B"] + 1, dtype=torch.int32)
    bounds = {f"{side}_{end}": x for side in "qk" for end, x in (("start", ends[:-1]), ("stop", ends[1:]))}
    more = _more(request, size)
    out, *_ = called(module._sequences.operator, q, k, v, *params, **more, **bounds, packed=packed)
    if out.requires_grad:
        gradients(out, [q, k, v])


def gradients(out: Any, leaves: list[Any]) -> None:
    """The backward pass of a training step, whose loss reads `out` alone."""
    torch.autograd.grad(out, leaves, torch.zeros_like(out), allow_unused=True)


def forward(module: Any, request: Request, call: Call, *, learned: bool = True) -> tuple[Any, Any, list[Any]]:
    """out, lse, and what asks for a gradient."""
    size = call.sizes
    dtype = TORCH_DTYPES[request.dtype]

    def zeros(heads: str, length: str, dim: str) -> Any:
        return torch.zeros(size["B"], size[heads], size[length], size[dim], dtype=dtype, requires_grad=True)

    q, k, v = zeros("Hq", "Sq", "D"), zeros("Hkv", "Sk", "D"), zeros("Hkv", "Sk", "Dv")
    params = [_argument(storage, value, learned=learned) for storage, value in call.params]
    out, lse, *_ = called(module._attention.operator, q, k, v, *params, **_more(request, size))
    leaves = [x for x in (q, k, v, *params) if isinstance(x, torch.Tensor) and x.requires_grad]
    return out, lse, leaves


def _more(request: Request, size: Mapping[str, int]) -> dict[str, Any]:
    """The operator's inputs after the params."""
    seed = {"seed": torch.zeros((), dtype=torch.int64)} if request.seeded else {}
    return {"scale": size["D"] ** -0.5, **seed}


def called(operator: Any, *given: Any, **named: Any) -> Any:
    """The forward operator. What is not given, of its last inputs, are tensors that are None, and flags."""
    rest = operator.signature.inputs[len(given) :]
    return operator.forward(*given, *(named.get(name, None if kind == "Tensor?" else False) for name, kind in rest))


def _argument(storage: Storage, value: Any, *, learned: bool) -> Any:
    """A param as the operator takes it: tensors, and floats as tensors of no dimension; other scalars as they are."""
    if isinstance(value, bool | int):
        return value
    scalar = isinstance(value, float)
    dtype = torch.float32 if scalar else STORAGES[storage]
    return torch.tensor(value, dtype=dtype, requires_grad=learned and storage.type is Type.FLOAT)


# ---------------------------------------------------------------- what a binary takes


def numbered(launches: Iterable[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """Different binaries alone; the second of a name is `NAME_2`, and so on."""
    seen: set[str] = set()
    count: dict[str, int] = {}
    found: list[tuple[str, Any]] = []
    for name, kernel in launches:
        if kernel.hash in seen:
            continue
        seen.add(kernel.hash)
        name = name.strip("_").removesuffix("_kernel")
        count[name] = count.get(name, 0) + 1
        found.append((name if count[name] == 1 else f"{name}_{count[name]}", kernel))
    return found


def artifact(name: str, kernel: Any, request: Request) -> Artifact:
    if request.target[0] == "hip":
        assembly = kernel.asm["amdgcn"]
        registers, spills = listing.amd_registers(assembly)
        in_loops = listing.amd_loop_spills(assembly) if spills else 0
    else:
        registers, spills, in_loops = _nvidia_usage(kernel, request.target[1])
    columns = getattr(kernel.metadata, "tmem_size", None) or 0
    in_gluon = "ttir" not in kernel.asm
    data = None if in_gluon and request.kind == "ttir" else kernel.asm[request.kind]
    return Artifact(name, data, registers, spills, kernel.metadata.shared, in_loops, columns)


def _nvidia_usage(kernel: Any, capability: int | str) -> tuple[int, int, int]:
    """Registers, spilled registers, spills inside main loops: as NVIDIA's tools read them from the binary.

    Only local memory tells of spills, and local arrays lie there too: where there is some, ptxas is asked again.
    """
    with tempfile.TemporaryDirectory() as folder:
        binary = Path(folder, "kernel.cubin")
        binary.write_bytes(kernel.asm["cubin"])
        usage = _output(knobs.nvidia.cuobjdump.path, "--dump-resource-usage", str(binary))
        registers, stack = listing.nvidia_registers(usage)
        if not stack:
            return registers, 0, 0
        text, again = Path(folder, "kernel.ptx"), Path(folder, "again.cubin")
        text.write_text(kernel.asm["ptx"])
        tool = nvidia.get_ptxas(int(capability))  # which of its two a release takes, it knows itself
        chip = kernel.asm["ptx"].partition("\n.target ")[2].split()[0]
        log = _output(tool.path, "-v", "-lineinfo", f"--gpu-name={chip}", str(text), "-o", str(again))
        spills = listing.nvidia_spills(log)
        if not spills:
            return registers, 0, 0
        lines = _output(knobs.nvidia.nvdisasm.path, "-c", str(binary))
        return registers, spills, listing.nvidia_loop_spills(lines)


def _output(*command: str) -> str:
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    if finished.returncode:
        said = (finished.stdout + finished.stderr)[-2000:]
        raise InternalError(f"{Path(command[0]).name} ended with status {finished.returncode}: {said}")
    return finished.stdout + finished.stderr


# ---------------------------------------------------------------- the process


def _one_at_a_time(launches: tuple[Any, ...], *_: Any) -> tuple[Any, ...]:
    """In place of compiling a call's kernels beforehand: each is recorded when it is launched."""
    return launches


def module_for(request: Request) -> Any:
    """The generated module; what it launches in this process from now on is compiled for the chip that is named."""
    triton.runtime.driver.set_active(NamedChip(request.target))
    module: Any = execute(request.source, request.name)
    module.CHIPS[torch.device("cpu")] = request.arch
    module.compiled_together = _one_at_a_time
    if hasattr(module, "MULTIPROCESSORS"):
        module.MULTIPROCESSORS[torch.device("cpu")] = 132
    return module


def main() -> None:
    request: Request = pickle.load(sys.stdin.buffer)
    answer = os.dup(1)
    os.dup2(2, 1)  # whatever else is printed must not get into the answer
    knobs.compilation.front_end_debugging = True  # else the cause of a failure is left out of its message
    module = module_for(request)
    launches = recorded_launches(lambda: call_once(module, request))
    texts = [getattr(module, name) for name in ("HOPPER", "HOPPER_BACKWARD", "HOPPER_APART") if hasattr(module, name)]
    own = [module.rows_by_dims(text) for text in texts]
    if own:  # params that want a gradient may have taken the portable kernels
        launches += recorded_launches(lambda: call_once(module, request, learned=False))
        if request.grouped is not None:
            launches += recorded_launches(lambda: call_once(module, request, request.grouped, learned=False))
        launches += of_sequences(module, request)
        for table in own:  # what the chip's own kernels stand in for, too
            table.clear()
        module._attention.ready.clear()
        if hasattr(module, "_sequences"):
            module._sequences.ready.clear()
        launches += recorded_launches(lambda: call_once(module, request))
    for call in request.calls[1:]:
        launches += recorded_launches(partial(forward, module, request, call))
    launches += of_sequences(module, request)
    artifacts = [artifact(name, kernel, request) for name, kernel in numbered(launches)]
    with os.fdopen(answer, "wb") as stream:
        pickle.dump(artifacts, stream)


if __name__ == "__main__":
    main()
