"""Programs for the register machine: products, softmax and attention, with few registers and with more.

Each gives a program and needs the number of registers that its name or docstring says. Cells are `a[i][j]`, `x[i]`, …
"""

from __future__ import annotations

from collections.abc import Iterator

from unit.cost.register_machine import Compute, Instruction, MultiplyAdd, Read, Write


def product_by_dots(rows: int, inner: int, columns: int) -> list[Instruction]:
    """`c = a b`, one dot product at a time, in 3 registers: two operands and the running sum.

    The cells of c are walked in a snake, and each dot product starts at the end where the one before stopped: its
    neighbour shares a row or a column, so one operand of its first product is still there.
    """
    program: list[Instruction] = []
    here: dict[int, str] = {}

    def fetch(cell: str, register: int) -> None:
        if here.get(register) != cell:
            program.append(Read(cell, register))
            here[register] = cell

    ks = list(range(inner))
    for i in range(rows):
        for j in range(columns) if i % 2 == 0 else reversed(range(columns)):
            for number, k in enumerate(ks):
                fetch(f"a[{i}][{k}]", 0)
                fetch(f"b[{k}][{j}]", 1)
                program.append(MultiplyAdd(0, 1, 2 if number else None, 2))
            program.append(Write(2, f"c[{i}][{j}]"))
            ks.reverse()
    return program


def product_by_sums(rows: int, inner: int, columns: int) -> list[Instruction]:
    """`c = a b`, one outer product at a time, in rows * columns + 2 registers: every cell of c has its running sum.

    Within an outer product the cells are walked in a snake, so each step changes one operand only.
    """
    program: list[Instruction] = []
    here: dict[int, str] = {}

    def fetch(cell: str, register: int) -> None:
        if here.get(register) != cell:
            program.append(Read(cell, register))
            here[register] = cell

    for k in range(inner):
        for i in range(rows):
            for j in range(columns) if i % 2 == 0 else reversed(range(columns)):
                fetch(f"a[{i}][{k}]", 0)
                fetch(f"b[{k}][{j}]", 1)
                total = 2 + i * columns + j
                program.append(MultiplyAdd(0, 1, total if k else None, total))
    for i in range(rows):
        for j in range(columns):
            program.append(Write(2 + i * columns + j, f"c[{i}][{j}]"))
    return program


def softmax_in_three_passes(n: int) -> list[Instruction]:
    """`y = softmax(x)` in 3 registers (a number, the maximum, the sum): x is read for each of the three."""
    program: list[Instruction] = [Read("x[0]", 1)]
    for i in range(1, n):
        program += [Read(f"x[{i}]", 0), Compute("max", 1, 0, 1)]
    for i in range(n):
        program += [Read(f"x[{i}]", 0), Compute("exp_sub", 0, 1, 0)]
        program.append(Compute("add", 2, 0, 2) if i else Compute("move", 0, 0, 2))
    return [*program, *_normalised(n)]


def softmax_in_two_passes(n: int) -> list[Instruction]:
    """`y = softmax(x)` in 4 registers: with one for the new maximum, the sum is rescaled as the maximum moves."""
    return [*_running_maximum(n), *_normalised(n)]


def _running_maximum(n: int) -> Iterator[Instruction]:
    """Registers: 0 a number, 1 the maximum m, 2 the sum l, 3 the new maximum."""
    yield Read("x[0]", 1)
    yield Compute("exp_sub", 1, 1, 2)  # l = 1
    for i in range(1, n):
        yield Read(f"x[{i}]", 0)
        yield Compute("max", 1, 0, 3)
        yield Compute("exp_sub", 1, 3, 1)
        yield Compute("mul", 2, 1, 2)
        yield Compute("exp_sub", 0, 3, 0)
        yield Compute("add", 2, 0, 2)
        yield Compute("move", 3, 3, 1)


def _normalised(n: int) -> Iterator[Instruction]:
    for i in range(n):
        yield Read(f"x[{i}]", 0)
        yield Compute("exp_sub", 0, 1, 0)
        yield Compute("div", 0, 2, 0)
        yield Write(0, f"y[{i}]")


def attention_in_one_pass(n: int) -> list[Instruction]:
    """`o[0] = softmax(x) v` in 6 registers: each x and each v is read once.

    Two passes are not needed, since the division by the sum is one factor of the whole product with v. Registers as
    in `softmax_in_two_passes`, and 4 for v, 5 for the weighted sum.
    """
    program: list[Instruction] = [Read("x[0]", 1), Compute("exp_sub", 1, 1, 2), Read("v[0]", 5)]
    for i in range(1, n):
        program += [
            Read(f"x[{i}]", 0),
            Read(f"v[{i}]", 4),
            Compute("max", 1, 0, 3),
            Compute("exp_sub", 1, 3, 1),
            Compute("mul", 2, 1, 2),
            Compute("mul", 5, 1, 5),
            Compute("exp_sub", 0, 3, 0),
            Compute("add", 2, 0, 2),
            MultiplyAdd(0, 4, 5, 5),
            Compute("move", 3, 3, 1),
        ]
    return [*program, Compute("div", 5, 2, 5), Write(5, "o[0]")]
