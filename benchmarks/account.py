"""Where the time of the Hopper kernels goes: what a tile asks of each unit of the chip, read off the machine code.

    python benchmarks/account.py                 # needs torch and triton, and no GPU: compiles for sm_90

For causal and full masks, D = 64 and 128, forward and backward, the main loop's instructions for a full tile are
counted by the unit that executes them, and each count is brought to cycles of a multiprocessor by the unit's rate
(CUDA programming guide, "Arithmetic Instructions", compute capability 9.0). What counts is the ratio to the matrix
units' own cycles: at 100 % a unit needs as long as they do, and neither clock nor card stands in it. Beside it is what
was measured (`h200.json`), as a share of what a large product reaches on such a card.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

from attngen import api  # noqa: E402
from attngen.aot import compile as aot  # noqa: E402
from attngen.errors import Source  # noqa: E402

RESULTS = ROOT / "benchmarks" / "h200.json"
CEILING = 790.0
"""TFLOP/s of a large bfloat16 product on an H200, measured once; `attngen bench` measures it with each run."""

UNITS = ("matrix", "shared memory", "issue", "special functions", "arithmetic", "logic")

_INSTRUCTION = re.compile(r"^\s*/\*([0-9a-f]{4,})\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.a-z]*)(.*)")
_LABEL = re.compile(r"^(\.L_x_\d+):")
_TARGET = re.compile(r"`\((\.L_x_\d+)\)")
_PRODUCT = re.compile(r"HGMMA\.(\d+)x(\d+)x(\d+)\.")

_ARITHMETIC = frozenset({"FADD", "FMUL", "FFMA", "IMAD"})
_LOGIC = frozenset({
    "FMNMX", "FSEL", "FSETP", "SEL", "ISETP", "LOP3", "PRMT", "SHF", "IADD3", "VIADD", "LEA", "F2FP", "PLOP3", "IMNMX",
})  # fmt: skip
_SHARED = frozenset({"LDS", "STS", "LDSM", "STSM"})


@dataclass(frozen=True, slots=True)
class Line:
    """An instruction, or a label before one. `text` is all that follows the operation's name."""

    operation: str
    text: str

    @property
    def name(self) -> str:
        return self.operation.partition(".")[0]


_FEW = 8
"""Special functions that a branch may pass over: a new reference takes one a row."""


def lines_of(listing: str) -> list[Line]:
    """What `nvdisasm -c` lists, labels among it, as operations `label`."""
    found: list[Line] = []
    for line in listing.splitlines():
        named = _LABEL.match(line)
        if named is not None:
            found.append(Line("label", named[1]))
        instruction = _INSTRUCTION.match(line)
        if instruction is not None:
            found.append(Line(instruction[2], instruction[3]))
    return found


def loops(lines: Sequence[Line]) -> list[tuple[int, int]]:
    """First and last line of the main loops, one a warpgroup: the innermost ones with many products in them. The
    warpgroup of dQ has nearly half as many as the others. The ends of outer loops have products too, of the last tile;
    they are fewer.
    """
    starts = {line.text: i for i, line in enumerate(lines) if line.operation == "label"}
    found: list[tuple[int, int]] = []
    for i, line in enumerate(lines):
        target = _TARGET.search(line.text) if line.name == "BRA" else None
        start = i if target is None else starts[target[1]]
        if start < i and any(x.name == "HGMMA" for x in lines[start:i]):
            found.append((start, i))
    found = [(a, b) for a, b in found if not any(c < a <= d < b for c, d in found)]  # jumps back from a wait elsewhere
    inner = [(a, b) for a, b in found if not any((a, b) != (c, d) and a <= c and d <= b for c, d in found)]
    work = {loop: demand(lines[loop[0] : loop[1] + 1])["matrix"] for loop in inner}
    return [loop for loop in inner if 2.5 * work[loop] >= max(work.values())]


def of_a_full_tile(lines: Sequence[Line]) -> Iterator[Line]:
    """A loop's instructions but for what a branch may pass over, if that is neither products nor the weights: a partial
    tile's mask, a new reference, the wait for a barrier.
    """
    places = {line.text: i for i, line in enumerate(lines) if line.operation == "label"}
    i = 0
    while i < len(lines):
        line = lines[i]
        target = _TARGET.search(line.text) if line.name == "BRA" else None
        over = places.get(target[1], i) if target is not None else i
        passed = [x for x in lines[i + 1 : over] if x.operation != "label"]
        if line.operation != "label":
            yield line
        needed = any(x.name == "HGMMA" for x in passed) or sum(x.name == "MUFU" for x in passed) > _FEW
        i = over if passed and not needed else i + 1


def demand(lines: Iterable[Line]) -> dict[str, float]:
    """Cycles of each unit of a multiprocessor for one warpgroup: a warp on each of the four sub-partitions."""
    cycles = dict.fromkeys(UNITS, 0.0)
    for line in lines:
        cycles["issue"] += 1
        product = _PRODUCT.match(line.operation)
        if product is not None:
            rows, columns, depth = map(int, product.groups())
            from_shared = columns * depth + (0 if re.match(r"\s*R\d+, R\d+", line.text) else rows * depth)
            cycles["matrix"] += rows * columns * depth / 2048
            cycles["shared memory"] += 2 * from_shared / 128
        elif line.name == "MUFU":
            cycles["special functions"] += 8  # 16 a cycle
        elif line.name in _ARITHMETIC:
            cycles["arithmetic"] += 1  # 128 a cycle
        elif line.name in _LOGIC:
            cycles["logic"] += 2  # 64 a cycle
        elif line.name in _SHARED:
            cycles["shared memory"] += 4 * _words(line.operation)  # 128 bytes a cycle, for four warps
    return cycles


def _words(operation: str) -> int:
    """32-bit words that each lane moves."""
    wide = re.search(r"\.(64|128)\b", operation) or re.search(r"\.M88\.([24])", operation)
    if wide is None:
        return 1
    return {"64": 2, "128": 4, "2": 2, "4": 4}[wide[1]]


# ---------------------------------------------------------------- the kernels


def listings(text: str, head_dim: int) -> dict[str, str]:
    """The machine code of the two kernels of compute capability 9.0."""
    from triton import knobs

    kernel = api.build(Source(text), api.options("triton"), {})
    found = aot.compile_kernels(
        kernel.source, kernel.spec, arch="sm_90", dtype="bf16", head_dim=(head_dim, head_dim), kind="cubin"
    )
    listed: dict[str, str] = {}
    for artifact in found:
        if artifact.kernel in ("hopper_forward", "hopper_backward") and isinstance(artifact.data, bytes):
            with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
                file.write(artifact.data)
                file.flush()
                command = [knobs.nvidia.nvdisasm.path, "-c", file.name]
                listed[artifact.kernel] = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return listed


def measured(variant: str, head_dim: int, direction: str) -> float:
    """TFLOP/s at N = 16384."""
    cells = json.loads(RESULTS.read_text(encoding="utf-8"))["cells"]
    cell = next(c for c in cells if c["key"] == f"{variant}:{head_dim}:16384")
    return cell["contenders"]["attngen"][direction]["tflops"]


def rows() -> Iterator[tuple[str, ...]]:
    for head_dim in (64, 128):
        for variant in ("causal", "full"):
            text = f"attention {variant}\n" + ("\nmask = causal\n" if variant == "causal" else "")
            for kernel, listing in listings(text, head_dim).items():
                lines = lines_of(listing)
                spans = loops(lines)
                each = [list(of_a_full_tile(lines[a : b + 1])) for a, b in spans]
                wanted = [demand(found) for found in each]
                total = {unit: sum(w[unit] for w in wanted) for unit in UNITS}
                direction = kernel.removeprefix("hopper_")
                speed = measured(variant, head_dim, direction)
                yield (
                    f"{direction}, D = {head_dim}, {variant}",
                    " + ".join(_together(each, wanted)),
                    f"{total['matrix']:.0f}",
                    *(f"{total[unit] / total['matrix']:.0%}" for unit in UNITS[1:]),
                    f"{speed:.0f}",
                    f"{speed / CEILING:.0%}",
                )


def _together(each: Sequence[Sequence[Line]], wanted: Sequence[Mapping[str, float]]) -> Iterator[str]:
    """How many warpgroups do the same work, and the instructions of one, on average; those with most products first."""
    for products in sorted({w["matrix"] for w in wanted}, reverse=True):
        alike = [len(found) for found, w in zip(each, wanted, strict=True) if w["matrix"] == products]
        yield f"{len(alike)} x {sum(alike) // len(alike)}"


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    heads = ("kernel", "warpgroups x instructions", "matrix units, cycles", *UNITS[1:], "TFLOP/s", "of the ceiling")
    for cells in (heads, ("---",) * len(heads), *rows()):
        print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
