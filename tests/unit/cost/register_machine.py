"""A register machine small enough to count by hand: one memory, a few registers, one instruction a cycle.

Takes a program and a memory, gives the memory afterwards and the count of cycles, loads and stores. It shows what a
register is worth: each operand that stays in one is a load that is not made.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, assert_never

from attngen.errors import InternalError


@dataclass(frozen=True, slots=True)
class Read:
    """A cell of the memory into a register."""

    cell: str
    to: int


@dataclass(frozen=True, slots=True)
class Write:
    """A register into a cell of the memory."""

    register: int
    cell: str


@dataclass(frozen=True, slots=True)
class MultiplyAdd:
    """`to = a * b + c`; without `c`, `to = a * b`."""

    a: int
    b: int
    c: int | None
    to: int


@dataclass(frozen=True, slots=True)
class Compute:
    """`to = a OP b`: sum, product, quotient, max, `exp(a - b)`, or `a` itself (move)."""

    op: Literal["add", "mul", "div", "max", "exp_sub", "move"]
    a: int
    b: int
    to: int


Instruction = Read | Write | MultiplyAdd | Compute
Program = Sequence[Instruction]


@dataclass(frozen=True)
class Run:
    memory: Mapping[str, float]
    cycles: int
    loads: int
    stores: int


def run(program: Program, memory: Mapping[str, float], registers: int) -> Run:
    """Execute `program`. A register that the machine does not have, or that holds nothing yet, is an InternalError."""
    cells = dict(memory)
    held: list[float | None] = [None] * registers

    def value(register: int) -> float:
        found = held[register] if 0 <= register < registers else None
        if found is None:
            raise InternalError(f"register {register} of {registers} holds nothing")
        return found

    def keep(register: int, number: float) -> None:
        if not 0 <= register < registers:
            raise InternalError(f"there is no register {register} among {registers}")
        held[register] = number

    loads = stores = 0
    for step in program:
        match step:
            case Read():
                keep(step.to, cells[step.cell])
                loads += 1
            case Write():
                cells[step.cell] = value(step.register)
                stores += 1
            case MultiplyAdd():
                keep(step.to, value(step.a) * value(step.b) + (0.0 if step.c is None else value(step.c)))
            case Compute():
                keep(step.to, _computed(step, value(step.a), value(step.b)))
            case _:
                assert_never(step)
    return Run(cells, len(program), loads, stores)


def _computed(step: Compute, a: float, b: float) -> float:
    match step.op:
        case "add":
            return a + b
        case "mul":
            return a * b
        case "div":
            return a / b
        case "max":
            return max(a, b)
        case "exp_sub":
            return math.exp(a - b)
        case "move":
            return a
        case _:
            assert_never(step.op)
