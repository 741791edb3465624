"""Machine code of two states of the repository, compared: what is identical needs no timing.

    python benchmarks/ptx.py write build/ptx_before
    python benchmarks/ptx.py write build/ptx_after        # after a change
    python benchmarks/ptx.py compare build/ptx_before build/ptx_after

`write` compiles every kernel of some files, without a GPU and without line information, and writes their PTX (Triton's
GPU IR for AMD). `compare` names the kernels that differ: those with the same instructions in another order, and those
with others. It exits with 1 if there are any. `--only WORD …` takes the cases whose names have one of the words.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


@dataclass(frozen=True, kw_only=True)
class Case:
    """One file, compiled for one chip. `sequences`: with the kernels of lengths and of packed tensors."""

    example: str
    arch: str
    dims: tuple[int, int] = (64, 64)
    dtype: str = "bf16"
    sequences: bool = False

    @property
    def name(self) -> str:
        dims = "_".join(map(str, dict.fromkeys(self.dims)))
        return f"{self.example}-{self.arch}-{dims}-{self.dtype}{'-sequences' if self.sequences else ''}"


def cases() -> Iterator[Case]:
    """Each kind of kernel, and each way in which a mask, a score or a param changes one."""
    for dims in ((64, 64), (128, 128), (192, 128), (256, 256)):
        yield Case(example="causal", arch="sm_90", dims=dims)
    yield Case(example="causal", arch="sm_90", dims=(128, 128), sequences=True)
    yield Case(example="causal", arch="sm_90", dtype="fp32")
    for arch in ("sm_80", "sm_100", "gfx942"):
        yield Case(example="causal", arch=arch, sequences=arch == "sm_80")
    for example in ("alibi", "sliding_window", "softcap", "window_global", "prefix_lm", "t5_bias", "sink", "dropout"):
        yield Case(example=example, arch="sm_90")
    for example in ("documents", "natten_2d", "full_bias", "chunked", "block_sparse"):
        yield Case(example=example, arch="sm_90")
        yield Case(example=example, arch="sm_80")
    yield Case(example="documents", arch="sm_90", dims=(256, 256))
    yield Case(example="documents", arch="sm_90", dims=(128, 128), sequences=True)
    yield Case(example="sigmoid", arch="sm_90", sequences=True)


def write(folder: Path, only: list[str]) -> None:
    os.environ["TRITON_DISABLE_LINE_INFO"] = "1"
    import attngen
    from attngen.aot.compile import compile_kernels

    for case in cases():
        if only and not any(word in case.name for word in only):
            continue
        geometry = ("dense", "lengths", "packed") if case.sequences else ("dense",)
        kernel = attngen.compile(EXAMPLES / f"{case.example}.attn", geometry=geometry)
        kind = "ttgir" if case.arch == "gfx942" else "ptx"
        found = compile_kernels(
            kernel.source, kernel.spec, arch=case.arch, dtype=case.dtype, head_dim=case.dims, kind=kind
        )
        own = folder / case.name
        own.mkdir(parents=True, exist_ok=True)
        for artifact in found:
            assert isinstance(artifact.data, str)
            (own / f"{artifact.kernel}.txt").write_text(artifact.data, encoding="utf-8")
        print(f"{case.name}: {len(found)} kernels", flush=True)


def instructions(text: str) -> Counter[str]:
    """How often each line occurs, whatever its registers, values and labels are numbered."""
    return Counter(re.sub(r"(%|\$L__\w+?)\w*\d+", r"\1", line).strip() for line in text.splitlines())


def compare(before: Path, after: Path) -> int:
    names = sorted({str(p.relative_to(folder)) for folder in (before, after) for p in folder.rglob("*.txt")})
    same = 0
    differing = 0
    for name in names:
        texts = [(folder / name).read_text() if (folder / name).exists() else None for folder in (before, after)]
        if texts[0] == texts[1]:
            same += 1
            continue
        differing += 1
        if texts[0] is None or texts[1] is None:
            print(f"{name}: only {'after' if texts[0] is None else 'before'}")
            continue
        old, new = map(instructions, texts)
        fewer, more = (old - new).total(), (new - old).total()
        print(f"{name}: {'in another order' if not fewer + more else f'{fewer} lines went, {more} came'}")
    print(f"{same} kernels are identical, {differing} are not")
    return 1 if differing else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    writes = commands.add_parser("write")
    writes.add_argument("folder", type=Path)
    writes.add_argument("--only", nargs="*", default=[])
    compares = commands.add_parser("compare")
    compares.add_argument("before", type=Path)
    compares.add_argument("after", type=Path)
    given = parser.parse_args()
    if given.command == "compare":
        return compare(given.before, given.after)
    write(given.folder, given.only)
    return 0


if __name__ == "__main__":
    sys.exit(main())
