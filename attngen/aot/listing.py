"""Reads what compilers print of a binary: registers, spilled registers, and spills inside the main loops.

Takes text (ptxas's log, cuobjdump's resource usage, nvdisasm's listing, LLVM's AMD assembly), returns counts. A main
loop is an innermost loop with a matrix product in it; what is spilled outside of those is paid once a tile or a
program.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from attngen.errors import InternalError

_NVIDIA_LABEL = re.compile(r"^(\.L_x_\d+):")
_NVIDIA_BRANCH = re.compile(r"\bBRA(?:\.\S+)?\s.*`\((\.L_x_\d+)\)")
_NVIDIA_PRODUCT = re.compile(r"\b(?:HMMA|HGMMA|UTCHMMA|UTCQMMA)\b")
_NVIDIA_SPILL = re.compile(r"\b(?:STL|LDL)\b")
_AMD_LABEL = re.compile(r"^(\.LBB\d+_\d+):")
_AMD_BRANCH = re.compile(r"\bs_c?branch\S*\s+(\.LBB\d+_\d+)")
_AMD_PRODUCT = re.compile(r"\bv_mfma_")
_AMD_SPILL = re.compile(r";.*Folded (?:Spill|Reload)")


def nvidia_registers(usage: str) -> tuple[int, int]:
    """Registers and bytes of local memory of a thread, from `cuobjdump --dump-resource-usage`."""
    return _number(r"REG:(\d+)", usage), _number(r"STACK:(\d+)", usage)


def nvidia_spills(log: str) -> int:
    """Spilled registers of a thread, from `ptxas -v`."""
    return _number(r"(\d+) bytes spill stores", log) // 4


def nvidia_loop_spills(listing: str) -> int:
    """Instructions of `nvdisasm -c` that spill or reload in a main loop. Without tensor cores, products are FFMAs."""
    lines = listing.splitlines()
    product = _NVIDIA_PRODUCT if _NVIDIA_PRODUCT.search(listing) else re.compile(r"\bFFMA\b")
    return _spills_in_main_loops(lines, _NVIDIA_LABEL, _NVIDIA_BRANCH, product, _NVIDIA_SPILL)


def amd_registers(assembly: str) -> tuple[int, int]:
    """Vector registers of a thread, accumulators included, and how many are spilled."""
    return _number(r"\.vgpr_count:\s+(\d+)", assembly), _number(r"\.vgpr_spill_count:\s+(\d+)", assembly)


def amd_loop_spills(assembly: str) -> int:
    """Instructions that spill or reload inside a main loop."""
    return _spills_in_main_loops(assembly.splitlines(), _AMD_LABEL, _AMD_BRANCH, _AMD_PRODUCT, _AMD_SPILL)


def _spills_in_main_loops(
    lines: Sequence[str],
    label: re.Pattern[str],
    branch: re.Pattern[str],
    product: re.Pattern[str],
    spill: re.Pattern[str],
) -> int:
    starts: dict[str, int] = {}
    loops: list[tuple[int, int]] = []
    products: list[int] = []
    spills: list[int] = []
    for number, line in enumerate(lines):
        named = label.match(line)
        if named is not None:
            starts[named[1]] = number
        target = branch.search(line)
        if target is not None and target[1] in starts:  # backwards
            loops.append((starts[target[1]], number))
        if product.search(line):
            products.append(number)
        if spill.search(line):
            spills.append(number)
    main = [loop for loop in loops if any(loop[0] <= p <= loop[1] for p in products)]
    innermost = [a for a in main if not any(a != b and a[0] <= b[0] and b[1] <= a[1] for b in main)]
    return sum(any(start <= s <= stop for start, stop in innermost) for s in spills)


def _number(pattern: str, text: str) -> int:
    match = re.search(pattern, text)
    if match is None:
        raise InternalError(f"no {pattern} in what the compiler says")
    return int(match[1])
