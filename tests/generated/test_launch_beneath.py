"""Launches beneath Triton's Python hand the driver what Triton hands it, for every call of a layout."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import attngen

ROOT = Path(__file__).resolve().parents[2]

SCRIPT = r"""
import ctypes, os, re, sys, tempfile
from pathlib import Path

sys.path.insert(0, sys.argv[1])
import host
import torch
import triton

RECORD = '''
unsigned char record[65536]; int sizes[256], known, used, launched;
static void keep(const void *x, int n) { memcpy(record + used, x, n); used += n; }
CUresult cuLaunchKernelEx(const CUlaunchConfig *c, CUfunction f, void **p, void **e) {
    unsigned how[] = {c->gridDimX, c->gridDimY, c->gridDimZ, c->blockDimX, c->sharedMemBytes, c->numAttrs};
    used = 0; launched++;
    keep(how, sizeof how); keep(&c->hStream, sizeof c->hStream); keep(&f, sizeof f);
    for (int i = 0; i < known; i++) keep(p[i], sizes[i]);
    return 0;
}
CUresult cuTensorMapEncodeTiled(CUtensorMap *m, CUtensorMapDataType t, cuuint32_t rank, void *address,
    const cuuint64_t *d, const cuuint64_t *s, const cuuint32_t *box, const cuuint32_t *steps, CUtensorMapInterleave i,
    CUtensorMapSwizzle w, CUtensorMapL2promotion l, CUtensorMapFloatOOBfill o) {
    char *at = memset(m, 0, sizeof *m); int kinds[] = {t, rank, i, w, l, o};
    memcpy(at, &address, 8); memcpy(at + 8, d, 8 * rank); memcpy(at + 48, s, 8 * (rank - 1));
    memcpy(at + 80, box, 4 * rank); memcpy(at + 100, kinds, 24);
    return 0;
}
'''
source = re.sub(r"CUresult (cuLaunchKernelEx|cuTensorMapEncodeTiled)\(.*?\n?.*?\{.*?\}\n", "", host.NOTHING, flags=re.S)
assert "cuTensorMapEncode" not in source and "cuOccupancy" in source, source
host.NOTHING = source + RECORD
directory = Path(tempfile.mkdtemp())
host.install(directory)
driver = ctypes.CDLL(str(directory / "libcuda.so.1"))
module = host.loaded(Path(sys.argv[2]), sys.argv[3])


def number(name):
    return ctypes.c_int.in_dll(driver, name)


def recorded(kernel, launch):
    "What the driver was handed: the numbers of a launch, and the bytes of every parameter of the compiled kernel."
    entry = re.search(r"\.entry .*?\((.*?)\n\)", kernel.asm["ptx"], re.S).group(1)
    found = re.findall(r"\.param (?:\.align \d+ )?\.([a-z]+)(\d+) .*?(?:\[(\d+)\])?,?$", entry, re.M)
    sizes = [int(bits) // 8 * int(count or 1) for _, bits, count in found]
    assert len(sizes) > 5, entry
    (ctypes.c_int * 256).in_dll(driver, "sizes")[: len(sizes)] = sizes
    number("known").value, before = len(sizes), number("launched").value
    launch()
    assert number("launched").value == before + 1
    return bytes((ctypes.c_ubyte * 65536).in_dll(driver, "record")[: number("used").value])


direct, compared = module.direct, []


def launcher(compiled, own, operands, same):
    run = direct(compiled, own, operands, same)
    assert run.__closure__ and "begin" in run.__code__.co_freevars, "not beneath Triton"

    def both(values):
        again = own.operands(values)
        beneath = recorded(compiled, lambda: run(values))
        for i, name in own.places.items():
            again[i] = own.descriptor(name, again[i])
        by_triton = recorded(compiled, lambda: compiled[own.grid](*again, *own.constants))
        assert beneath == by_triton, compiled.name
        compared.append((own.kernel.__name__, len(own.places)))

    return both


module.direct = launcher
function = getattr(module, sys.argv[3])
kept = []
for turn in range(4):
    torch.manual_seed(turn % 3)
    kept.append([torch.randn(1, 2, 128, 64).half().requires_grad_() for _ in range(3)])
    q, k, v = kept[-1]
    if sys.argv[4] == "packed":
        cu = torch.tensor([0, 40, 128], dtype=torch.int32)
        rows = [x[0].transpose(0, 1) for x in (q, k, v)]
        out = module.causal_varlen(*rows, cu_seqlens_q=cu, max_seqlen_q=88, scale=0.1 + turn)
    else:
        params = {"ids": torch.zeros(1, 128, dtype=torch.int32)} if sys.argv[3] == "documents" else {}
        out = function(q, k, v, scale=0.1 + turn, **params)
    torch.autograd.grad(out.sum(), kept[-1], retain_graph=True)
assert compared
for name, tiles in sorted(set(compared)):
    print(name, tiles, compared.count((name, tiles)))
watched = []
triton.knobs.runtime.launch_enter_hook.add(watched.append)
compared.clear()
number("known").value = 0
out.sum().backward()
assert watched and not compared, "a profiler is not told"
"""


@pytest.mark.parametrize(("name", "way"), [("causal", "dense"), ("documents", "dense"), ("causal", "packed")])
def test_the_driver_is_handed_the_same(name: str, way: str, tmp_path: Path) -> None:
    path = tmp_path / f"{name}.py"
    compiled = attngen.compile(ROOT / "examples" / f"{name}.attn", head_dim=64, geometry=[way])
    path.write_text(compiled.source, encoding="utf-8")
    environment = {n: x for n, x in os.environ.items() if n != "TRITON_INTERPRET"}
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SCRIPT, str(ROOT / "benchmarks"), str(path), name, way],
        env={**environment, "TRITON_CACHE_DIR": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    found = dict(line.rsplit(" ", 1) for line in ran.stdout.splitlines())
    assert {"_hopper_forward_kernel 4", "_hopper_backward_kernel 7", "_rows_kernel 0"} <= set(found), found
    assert all(count == "3" for count in found.values()), found  # all launches but the first, which compiles
