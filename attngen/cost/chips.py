"""Chips, as their makers' public data sheets have them: one typed table, and the source of each figure.

Takes a name, returns a `Chip`. Rates are of the whole chip, dense (without sparsity). A figure that nobody publishes is
None, and the roofline leaves it out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from attngen.errors import UsageError

KIB, MIB, GIB = 1024, 1024**2, 1024**3

_A100 = "https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center/a100/pdf/nvidia-a100-datasheet-nvidia-us-2188504-web.pdf"
_AMPERE = "https://images.nvidia.com/aem-dam/en-zz/Solutions/data-center/nvidia-ampere-architecture-whitepaper.pdf"
_H100 = "https://resources.nvidia.com/en-us-tensor-core/nvidia-tensor-core-gpu-datasheet"
_HOPPER = "https://resources.nvidia.com/en-us-tensor-core (H100 Tensor Core GPU Architecture)"
_H200 = "https://resources.nvidia.com/en-us-data-center-overview-mc/en-us-data-center-overview/hpc-datasheet-sc23-h200"
_B200 = "https://resources.nvidia.com/en-us-blackwell-architecture/datasheet (B200, one GPU of a DGX B200)"
_CUDA = "https://docs.nvidia.com/cuda/cuda-c-programming-guide (arithmetic instructions; technical specifications)"
_MI300X = (
    "https://www.amd.com/content/dam/amd/en/documents/instinct-tech-docs/data-sheets/amd-instinct-mi300x-data-sheet.pdf"
)
_CDNA3 = "https://www.amd.com/content/dam/amd/en/documents/instinct-tech-docs/white-papers/amd-cdna-3-white-paper.pdf"
_TPU = "https://docs.cloud.google.com/tpu/docs"
_JAX = "https://docs.jax.dev/en/latest/pallas/tpu/hardware.html (jax/_src/pallas/mosaic/tpu_info.py)"
_SCALING = (
    "https://jax-ml.github.io/scaling-book/tpus (8 x 128 lanes, 4 ALUs each), at the clock that the matrix peak implies"
)
_SCALING_REGISTERS = "https://jax-ml.github.io/scaling-book/tpus (64 vector registers of 8 x 128 numbers)"
_PASSES = "https://docs.jax.dev/en/latest/jax.lax.html#jax.lax.Precision (HIGHEST: six bfloat16 passes)"


@dataclass(frozen=True, slots=True)
class Figure:
    value: float
    source: str


@dataclass(frozen=True, slots=True)
class Memory:
    """`size` in bytes of one of them, `count` on the chip; `rate` in bytes a second, of all together."""

    name: str
    size: Figure
    count: int
    rate: Figure | None


@dataclass(frozen=True, slots=True)
class Array:
    """One systolic array of the chip, rows by columns of cells, and how many there are."""

    rows: int
    columns: int
    count: int


@dataclass(frozen=True, slots=True)
class Chip:
    """`scratch` is a core's own memory, `cache` is shared by all cores (None: there is none), `main` holds the tensors;
    `registers` is the size of a core's register file in bytes.

    Rates a second: `matrix` of bf16 and fp16 products (a multiply-add is two operations), `matrix_fp32` of float32
    products at float32's accuracy, `vector` of single operations (a multiply-add instruction is one), `special` of
    exponentials and the like. `link`: bytes a second that leave the chip for other chips, and as many arrive; half of a
    sheet's figure for both directions. `arch` is a GPU's row of the plan's table of tile sizes, `tpu` a TPU's.
    """

    name: str
    title: str
    cores: int
    matrix: Figure
    matrix_fp32: Figure
    vector: Figure | None
    special: Figure | None
    registers: Figure
    scratch: Memory
    cache: Memory | None
    main: Memory
    arch: str | None = None
    tpu: str | None = None
    array: Array | None = None
    link: Figure | None = None

    def matrix_rate(self, dtype: str) -> Figure:
        return self.matrix_fp32 if dtype == "fp32" else self.matrix


def _nvidia(
    name: str,
    title: str,
    arch: str,
    *,
    cores: int,
    lanes: int,
    shared_kib: int,
    matrix: float,
    fp32: float,
    l2: float,
    l2_source: str,
    memory: float,
    bandwidth: float,
    nvlink: float,
    sheet: str,
) -> Chip:
    """`lanes` of fp32 a multiprocessor; 16 special functions a clock and multiprocessor on all of these."""
    clock = fp32 / (2 * lanes * cores)
    return Chip(
        name,
        title,
        cores,
        Figure(matrix, sheet),
        Figure(fp32, f"{sheet}: products of float32 run on the vector lanes"),
        Figure(fp32 / 2, sheet),
        Figure(16 * cores * clock, f"{_CUDA}, at the clock that the fp32 peak implies"),
        Figure(256 * KIB, _CUDA),
        Memory("shared memory", Figure(shared_kib * KIB, _CUDA), cores, None),
        Memory("L2", Figure(l2, l2_source), 1, None),
        Memory("HBM", Figure(memory, sheet), 1, Figure(bandwidth, sheet)),
        arch,
        link=Figure(nvlink / 2, f"{sheet}: NVLink, both directions together twice as much"),
    )


def _tpu(
    name: str,
    title: str,
    *,
    page: str | None = None,
    cores: int,
    mxus: int,
    side: int,
    vmem_mib: int,
    matrix: float,
    memory: float,
    bandwidth: float,
    clock: float,
    ici: float | None = None,
) -> Chip:
    """`page` is the sheet's name where it is not the chip's; `mxus` and `vmem_mib` of one core; `clock` in Hz: the
    peak over the cells, each of which makes one product a cycle in arrays of 128 x 128 and two in those of 256 x 256
    (at one, v6e would run at 3.5 GHz).
    """
    sheet = f"{_TPU}/{page or name}"
    return Chip(
        name,
        title,
        cores,
        Figure(matrix, sheet),
        Figure(matrix / 6, _PASSES),
        Figure(8 * 128 * 4 * cores * clock, _SCALING),
        None,
        Figure(256 * KIB, _SCALING_REGISTERS),
        Memory("VMEM", Figure(vmem_mib * MIB, _JAX), cores, None),
        None,
        Memory("HBM", Figure(memory, sheet), 1, Figure(bandwidth, sheet)),
        None,
        name,
        Array(side, side, cores * mxus),
        None if ici is None else Figure(ici / 2, f"{sheet}: bidirectional inter-chip interconnect, twice as much"),
    )


CHIPS: tuple[Chip, ...] = (
    _nvidia(
        "a100", "NVIDIA A100 80 GB SXM", "sm_80",
        cores=108, lanes=64, shared_kib=163, matrix=312e12, fp32=19.5e12,
        l2=40 * MIB, l2_source=_AMPERE, memory=80e9, bandwidth=2.039e12, nvlink=600e9, sheet=_A100,
    ),
    _nvidia(
        "h100", "NVIDIA H100 SXM", "sm_90",
        cores=132, lanes=128, shared_kib=227, matrix=989.4e12, fp32=66.9e12,
        l2=50 * MIB, l2_source=_HOPPER, memory=80e9, bandwidth=3.35e12, nvlink=900e9, sheet=_H100,
    ),
    _nvidia(
        "h200", "NVIDIA H200 SXM", "sm_90",
        cores=132, lanes=128, shared_kib=227, matrix=989.4e12, fp32=66.9e12,
        l2=50 * MIB, l2_source=_HOPPER, memory=141e9, bandwidth=4.8e12, nvlink=900e9, sheet=_H200,
    ),
    _nvidia(
        "b200", "NVIDIA B200", "sm_100",
        cores=148, lanes=128, shared_kib=227, matrix=2.25e15, fp32=75e12,
        l2=126 * MIB, l2_source=_CUDA, memory=180e9, bandwidth=8e12, nvlink=1.8e12, sheet=_B200,
    ),
    Chip(
        "mi300x", "AMD Instinct MI300X", 304,
        Figure(1307.4e12, _MI300X), Figure(163.4e12, _MI300X), Figure(163.4e12 / 2, _MI300X), None,
        Figure(512 * KIB, _CDNA3),
        Memory("LDS", Figure(64 * KIB, _CDNA3), 304, None),
        Memory("Infinity Cache", Figure(256 * MIB, _MI300X), 1, Figure(17.2e12, _CDNA3)),
        Memory("HBM", Figure(192e9, _MI300X), 1, Figure(5.3e12, _MI300X)),
        "gfx942",
    ),
    _tpu(
        "v4", "Google TPU v4", cores=2, mxus=4, side=128, vmem_mib=16,
        matrix=275e12, memory=32 * GIB, bandwidth=1.228e12, clock=1.05e9,
    ),
    _tpu(
        "v5e", "Google TPU v5e", cores=1, mxus=4, side=128, vmem_mib=128,
        matrix=197e12, memory=16 * GIB, bandwidth=819e9, clock=1.5e9, ici=400e9,
    ),
    _tpu(
        "v5p", "Google TPU v5p", cores=2, mxus=4, side=128, vmem_mib=64,
        matrix=459e12, memory=95 * GIB, bandwidth=2.765e12, clock=1.75e9, ici=1.2e12,
    ),
    _tpu(
        "v6e", "Google TPU v6e", cores=1, mxus=2, side=256, vmem_mib=128,
        matrix=918e12, memory=32 * GIB, bandwidth=1.6e12, clock=1.75e9, ici=800e9,
    ),
    _tpu(
        "7x", "Google TPU7x (Ironwood)", page="tpu7x", cores=2, mxus=2, side=256, vmem_mib=64,
        matrix=2.307e15, memory=192 * GIB, bandwidth=7.37e12, clock=2.2e9,
    ),
)  # fmt: skip
NAMES = tuple(chip.name for chip in CHIPS)
ITEMSIZE = {"bf16": 2, "fp16": 2, "fp32": 4}
Dtype = Literal["bf16", "fp16", "fp32"]


def chip(name: str) -> Chip:
    for found in CHIPS:
        if found.name == name:
            return found
    raise UsageError(f"no chip {name!r}; there are {', '.join(NAMES)}")


def longest_dense(memory: Memory, itemsize: int) -> int:
    """The longest sequence n whose dense n x n score, of one head, one such memory holds."""
    return int((int(memory.size.value) // itemsize) ** 0.5)
