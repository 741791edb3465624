"""What a call costs the host, on a machine without a GPU: generated files turn about, by Triton's own launcher.

    python benchmarks/host.py build/before build/after       # what `gpu.py prepare` wrote, at two commits say

Beneath the launcher lies a CUDA driver that does nothing, made here by the C compiler, so that all is as on a card of
compute capability 9.0 but the driver's own time and what torch does for tensors that lie there: allocating takes
longer, a stream and a device are asked for, gradients are another thread's. Microseconds of the process's own time a
call, as the median and the least of the rounds; `launch` is `kernel[grid](…)` with the arguments that the call makes.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from cells import FULL_SIZE, Cell, make_inputs
from overhead import launches

NOTHING = r"""
#include "cuda.h"
#include <string.h>
CUresult cuDriverGetVersion(int *version) { *version = 13000; return 0; }
CUresult cuCtxGetCurrent(CUcontext *c) { *c = (CUcontext)1; return 0; }
CUresult cuCtxGetDevice(CUdevice *d) { *d = 0; return 0; }
CUresult cuCtxSetCurrent(CUcontext c) { return 0; }
CUresult cuDeviceGet(CUdevice *d, int i) { *d = i; return 0; }
CUresult cuDevicePrimaryCtxRetain(CUcontext *c, CUdevice d) { *c = (CUcontext)1; return 0; }
CUresult cuGetErrorString(CUresult r, const char **s) { *s = "none"; return 0; }
CUresult cuPointerGetAttribute(void *p, CUpointer_attribute a, CUdeviceptr x) { *(CUdeviceptr *)p = x; return 0; }
CUresult cuDeviceGetAttribute(int *x, CUdevice_attribute a, CUdevice d) { *x = 232448; return 0; }
CUresult cuModuleLoadData(CUmodule *m, const void *image) { *m = (CUmodule)1; return 0; }
CUresult cuModuleUnload(CUmodule m) { return 0; }
CUresult cuStreamIsCapturing(CUstream s, CUstreamCaptureStatus *is) { *is = 0; return 0; }
CUresult cuModuleGetFunction(CUfunction *f, CUmodule m, const char *name) { *f = (CUfunction)1; return 0; }
CUresult cuFuncGetAttribute(int *x, CUfunction_attribute a, CUfunction f) { *x = 1024; return 0; }
CUresult cuFuncSetAttribute(CUfunction f, CUfunction_attribute a, int x) { return 0; }
CUresult cuFuncSetCacheConfig(CUfunction f, CUfunc_cache c) { return 0; }
CUresult cuCtxGetLimit(size_t *x, CUlimit l) { *x = 0; return 0; }
CUresult cuCtxSetLimit(CUlimit l, size_t x) { return 0; }
CUresult cuOccupancyMaxActiveClusters(int *n, CUfunction f, const CUlaunchConfig *c) { *n = 1; return 0; }
CUresult cuLaunchKernelEx(const CUlaunchConfig *c, CUfunction f, void **p, void **e) { return 0; }
CUresult cuTensorMapEncodeTiled(CUtensorMap *m, CUtensorMapDataType t, cuuint32_t rank, void *address,
    const cuuint64_t *d, const cuuint64_t *s, const cuuint32_t *box, const cuuint32_t *steps, CUtensorMapInterleave i,
    CUtensorMapSwizzle w, CUtensorMapL2promotion l, CUtensorMapFloatOOBfill o) { memset(m, 0, sizeof *m); return 0; }
"""
CASES = ("causal:64", "causal:128", "alibi:64", "documents:128")


def install(directory: Path) -> None:
    """The driver that does nothing, under Triton; and torch's answers to what is asked of a card."""
    import triton
    from triton.backends.nvidia import driver

    library = directory / "libcuda.so.1"
    source = directory / "nothing.c"
    source.write_text(NOTHING, encoding="utf-8")
    compiler = os.environ.get("CC", "cc")
    flags = ["-w", "-O2", "-shared", "-fPIC", f"-I{driver.include_dirs[0]}", "-Wl,-soname,libcuda.so.1"]
    subprocess.run([compiler, *flags, "-o", str(library), str(source)], check=True)
    ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
    os.environ["TRITON_LIBCUDA_PATH"] = str(directory)

    class Driver(driver.CudaDriver):
        def __init__(self) -> None:
            super().__init__()
            self.get_current_stream = lambda _: 0
            self.get_current_device = lambda: 0
            self.get_device_capability = lambda _=None: (9, 0)

    triton.runtime.driver.set_active(Driver())
    torch.cuda.is_current_stream_capturing = lambda: False
    torch.cuda.device = lambda _: nullcontext()
    torch.cuda.current_stream = lambda _=None: SimpleNamespace(cuda_stream=0)  # which older files ask for


def loaded(path: Path, name: str) -> Any:
    import importlib.util

    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    names = vars(module)
    for before in ("", "_"):  # which older files have
        if f"{before}CHIPS" in names:
            names[f"{before}CHIPS"][torch.device("cpu")] = "sm_90"
            names[f"{before}MULTIPROCESSORS"][torch.device("cpu")] = 132
    module.stream_of = module._stream = lambda _: 0
    return module


def works(module: Any, variant: str, head_dim: int) -> dict[str, Callable[[], object]]:
    """A launch, a call, one with gradients, a backward pass: of 2 heads of 128 queries, so that memory costs little."""
    cell = Cell(variant, head_dim, 128, tokens=128, width=2 * head_dim)
    inputs = make_inputs(cell, FULL_SIZE, device="cpu", seed=0)
    params = dict(inputs.params)
    function = getattr(module, variant)
    learned = [x for x in params.values() if isinstance(x, torch.Tensor) and x.requires_grad]
    leaves = [x.detach().half().requires_grad_() for x in inputs.qkv]
    plain = [x.detach() for x in leaves]
    fixed = {n: x.detach() if isinstance(x, torch.Tensor) else x for n, x in params.items()}
    function(*plain, **fixed)
    launch = launches(module, lambda: function(*plain, **fixed))[-1]
    out = function(*leaves, **params)
    grad_out = torch.randn_like(out)
    return {
        "launch": launch,
        "call": lambda: function(*plain, **fixed),
        "call with gradients": lambda: function(*leaves, **params),
        "backward": lambda: torch.autograd.grad(out, [*leaves, *learned], grad_out, retain_graph=True),
    }


def race(contenders: Mapping[str, Callable[[], object]], *, rounds: int, calls: int) -> dict[str, list[float]]:
    """Microseconds of each, round by round."""
    spent: dict[str, list[float]] = {name: [] for name in contenders}
    gc.collect()
    gc.disable()
    for _ in range(rounds):
        for name, work in contenders.items():
            for _ in range(10):
                work()
            start = time.process_time()
            for _ in range(calls):
                work()
            spent[name].append((time.process_time() - start) / calls * 1e6)
    gc.enable()
    return spent


def main() -> int:
    p = argparse.ArgumentParser(
        prog="host.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("directories", type=Path, nargs="+", metavar="DIR", help="of generated files")
    p.add_argument("--only", nargs="+", default=CASES, metavar="VARIANT:D", help=f"instead of {' '.join(CASES)}")
    p.add_argument("--rounds", type=int, default=15)
    p.add_argument("--calls", type=int, default=200, help="in a round: few, where other work slows some rounds down")
    args = p.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as directory:
        install(Path(directory))
        for case in args.only:
            variant, head_dim = case.split(":")
            modules = [loaded(d / f"{variant}.py", f"{variant}_{i}") for i, d in enumerate(args.directories)]
            found = [works(module, variant, int(head_dim)) for module in modules]
            for what in found[0]:
                spent = race({str(i): of[what] for i, of in enumerate(found)}, rounds=args.rounds, calls=args.calls)
                said = ", ".join(f"{statistics.median(x):.1f} (least {min(x):.1f})" for x in spent.values())
                print(f"{case} {what}: {said} us", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
