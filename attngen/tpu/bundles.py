"""Reads the schedule of one kernel: libtpu's `packed-bundles-post-ra` text, and the units that each bundle uses.

A bundle is one cycle; where an operation's latency leaves a gap, the text has an empty one. Takes text, returns
`Bundle`s: scalar operations with their operands, which `simulate` executes, and vector ones by name, which are counted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from attngen.errors import InternalError


@dataclass(frozen=True, slots=True)
class Guard:
    """A predicate register under which an operation takes effect. `otherwise` is the result where it doesn't."""

    predicate: str
    negated: bool
    otherwise: str | None = None


@dataclass(frozen=True, slots=True)
class Operation:
    """One scalar operation, copy, wait or branch. Operands are as the text has them."""

    target: str | None
    """The register that it sets, without the per cent sign."""
    name: str
    operands: tuple[str, ...]
    guard: Guard | None = None


@dataclass(frozen=True, slots=True)
class Bundle:
    """What is issued in one cycle."""

    scalar: tuple[Operation, ...] = ()
    vector: tuple[str, ...] = ()
    """The names of the vector operations."""


_KEY_END = "= control target key end"
_HEAD = re.compile(r"^ *(0x[0-9a-f]+|0) +(?:(?:LH|LB|LE|PB|PF|CT) *)?:(?: *>)* ?", re.M)
_COMMENT = re.compile(r"/\*.*?\*/", re.S)
_OPERATION = re.compile(r"(?:%(?P<target>[a-z]*\d+(?:_[a-z]+\d+)?) = )?(?P<name>[a-z][\w.\[\]]*)(?P<rest>.*)", re.S)
_THREAD = re.compile(r"^\[thread:\$\d+\]\s*")
_GUARD = re.compile(r"^\((?P<sign>!?)%(?P<predicate>\w+)(?:, *%?(?P<otherwise>[\w.$-]+))?\)(?:, *|\s+|$)")
_BRANCH = re.compile(r"target bundleno = (\d+)")
_SCALAR_TARGET = re.compile(r"[sp]\d")
_CONTROL = ("dma.", "vsync", "sbr.", "sst")
"""Operations without a scalar result that the simulation needs."""


def parse(text: str) -> tuple[Bundle, ...]:
    """Every bundle of a kernel, in order. Raises `InternalError` where the text is not what libtpu writes."""
    start = text.find(_KEY_END)
    if start < 0:
        raise InternalError("a schedule without the head that libtpu writes")
    text = text[start + len(_KEY_END) :]
    heads = list(_HEAD.finditer(text))
    bundles: list[Bundle] = []
    for index, head in enumerate(heads):
        if int(head[1], 16) != index:
            raise InternalError(f"bundle {index} of a schedule is numbered {head[1]}")
        end = heads[index + 1].start() if index + 1 < len(heads) else len(text)
        bundles.append(_bundle(text[head.end() : end]))
    return tuple(bundles)


def _bundle(text: str) -> Bundle:
    body = _COMMENT.sub("", text)
    opening, closing = body.find("{"), body.rfind("}")
    inside = body[opening + 1 : closing].strip()
    if not inside:
        return _EMPTY
    scalar: list[Operation] = []
    vector: list[str] = []
    for part in inside.split(";;"):
        match = _OPERATION.match(part.strip())
        if match is None:
            continue
        target, name = match["target"], match["name"]
        if (target is not None and _SCALAR_TARGET.match(target)) or name.startswith(_CONTROL):
            scalar.append(_operation(target, name, match["rest"].strip()))
        else:
            vector.append(name)
    return Bundle(tuple(scalar), tuple(vector))


_EMPTY = Bundle()


def _operation(target: str | None, name: str, rest: str) -> Operation:
    rest = _THREAD.sub("", rest)
    found = _GUARD.match(rest)
    guard = None
    if found is not None:
        guard = Guard(found["predicate"], found["sign"] == "!", _register(rest, found))
        rest = rest[found.end() :]
    if name.startswith("sbr."):
        branch = _BRANCH.search(rest)
        if branch is None:
            raise InternalError(f"a branch without a target: {rest[:80]}")
        return Operation(None, name, (branch[1],), guard)
    if name.startswith("inlined_call_operand"):
        return Operation(target, name, (_shape(rest),), guard)
    return Operation(target, name, tuple(_operands(rest)), guard)


def _register(rest: str, found: re.Match[str]) -> str | None:
    """The second word of a guard with its per cent sign, if it has one."""
    if found["otherwise"] is None:
        return None
    start = found.start("otherwise")
    return f"%{found['otherwise']}" if rest[start - 1] == "%" else found["otherwise"]


def _shape(rest: str) -> str:
    """`INDEX KIND` of a kernel's own operand."""
    match = re.search(r"index: (\d+), kind: (\w+)", rest)
    if match is None:
        raise InternalError(f"an operand without index and kind: {rest[:80]}")
    return f"{match[1]} {match[2]}"


def _operands(rest: str) -> Iterator[str]:
    """The words between commas that stand in no bracket. `sst` has two words side by side: `[address] value`."""
    depth, start = 0, 0
    for position, character in enumerate(rest):
        if character in "([{":
            depth += 1
        elif character in ")]}":
            depth -= 1
        elif depth == 0 and (
            character == "," or (character == " " and rest[start:position].strip().startswith("[smem:"))
        ):
            yield rest[start:position].strip()
            start = position + 1
    if rest[start:].strip():
        yield rest[start:].strip()


# ---------------------------------------------------------------- units


@dataclass(frozen=True, slots=True)
class Usage:
    """How many of each unit's slots every bundle takes, and how many there are. Columns are libtpu's, by name."""

    units: tuple[str, ...]
    capacity: tuple[int, ...]
    rows: tuple[tuple[int, ...], ...]


def parse_usage(text: str) -> Usage:
    """libtpu's `hlo-static-per-bundle-utilization`. A kernel without it gives a `Usage` without rows."""
    lines = text.splitlines()
    head = next((i for i, line in enumerate(lines) if line.startswith("MXU,")), None)
    if head is None:
        return Usage((), (), ())
    units = tuple(unit.strip() for unit in lines[head].split(","))
    numbers = [tuple(map(int, line.split())) for line in lines[head + 1 :] if re.fullmatch(r"[\d\s]+", line)]
    numbers = [row for row in numbers if len(row) == len(units)]
    return Usage(units, numbers[0], tuple(numbers[1:]))
