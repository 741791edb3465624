"""A cost as a table for people and as JSON for programs. Takes a `Cost`, returns rich renderables or plain data."""

from __future__ import annotations

from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from attngen.cost.chips import Figure, Memory
from attngen.cost.model import Cost, Line


def render(cost: Cost) -> RenderableType:
    """The time of each kernel, its operations and bytes, what each memory holds; the cycles of systolic arrays."""
    s = cost.sizes
    title = f"{cost.name} on {cost.chip.title}, {cost.dtype}"
    shape = ", ".join(f"{name} = {s[name]}" for name in ("B", "Hq", "Hkv", "Sq", "Sk", "D", "Dv"))
    said = f"{cost.skipped:.1%} of the pairs are skipped; {cost.masked:.1%} of those visited run with the mask"
    parts: list[RenderableType] = [Text(title, style="bold"), Text(shape, style="bold"), Text(said), _times(cost)]
    if cost.elsewhere:
        names = ", ".join(f"`{name}`" for name in cost.elsewhere)
        parts.append(Text(f"a call that wants the gradient of {names} runs portable kernels backward"))
    parts += [_counts(cost), _memories(cost)]
    if cost.cycles:
        parts.append(_cycles(cost))
    return Group(*parts)


def _times(cost: Cost) -> Table:
    """A row for each kernel in each loop order. The numbers in the first column recur in `_counts`."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("", justify="right")
    for heading in ("", "kernel", "outside", "tile"):
        table.add_column(heading)
    table.add_column("time", justify="right")
    table.add_column("bound by")
    before = ""
    for number, line in enumerate(cost.lines, 1):
        if line.direction != before and before:
            _total(table, cost, before)
        tile = "" if line.tile is None else f"{line.tile[0]} x {line.tile[1]}"
        outside = line.order.removesuffix(" outside")
        row = (str(number), line.direction, line.kernel, outside, tile, time(line.seconds), line.bound)
        table.add_row(*row, style=None if line.planned else "dim")
        before = line.direction
    _total(table, cost, before)
    return table


def _total(table: Table, cost: Cost, direction: str) -> None:
    row = ("", direction, "attngen", "", "", time(cost.total(direction)), "")
    table.add_row(*row, style="bold", end_section=True)


def _counts(cost: Cost) -> Table:
    """Operations and bytes of the same kernels."""
    cache, main = cost.chip.cache, cost.chip.main.name
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    headings = ["products", "vector", "special", f"from\n{main}", f"to\n{main}"]
    headings += [f"from\n{cache.name}"] if cache else []
    for heading in ("", *headings, "op / byte"):
        table.add_column(heading, justify="right", vertical="bottom")
    for number, line in enumerate(cost.lines, 1):
        near = [] if line.near is None else [size(line.near.read)]
        table.add_row(
            str(number),
            amount(line.matrix, ""),
            amount(line.count.vector, ""),
            amount(line.count.special, ""),
            size(line.main.read),
            size(line.main.written),
            *near,
            f"{line.intensity:.0f}",
            style=None if line.planned else "dim",
        )
    return table


def _memories(cost: Cost) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for heading in ("memory", "of", "holds"):
        table.add_column(heading)
    for memory, what, holds in holdings(cost):
        table.add_row(memory, what, holds)
    for memory, longest in cost.dense_limits().items():
        table.add_row(memory, "dense score", f"of one head, to n = {longest}")
    return table


def holdings(cost: Cost) -> list[tuple[str, str, str]]:
    """Which memory holds what: (memory, whose, what)."""
    chip = cost.chip
    rows: list[tuple[str, str, str]] = []
    for line in cost.lines:
        if line.planned and line.held is not None and line.tile is not None:
            kernel = f"{line.kernel}"
            spilt = line.held.registers > chip.registers.value
            registers = chip.scratch.name if spilt else "registers"
            rows.append((registers, kernel, f"score tile and sums, {size(line.held.registers)} a program"))
            fits = "" if line.held.scratch <= chip.scratch.size.value else ", which is more than it has"
            rows.append((chip.scratch.name, kernel, f"tiles of operands, {size(line.held.scratch)} a program{fits}"))
            rows.append((line.stays, kernel, f"what the loop walks over, {size(line.walked)}"))
    rows.append((cost.dense_home(), "dense score", f"of one head, {size(cost.dense_score)}"))
    return rows


def _cycles(cost: Cost) -> Table:
    array = cost.chip.array
    assert array is not None
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), title_justify="left", title_style="")
    table.title = f"One head, forward, on one {array.rows} x {array.columns} systolic array"
    table.add_column("form")
    for heading in ("cycles", "array", "vector unit", "utilisation"):
        table.add_column(heading, justify="right")
    for name, c in cost.cycles:
        table.add_row(name, f"{c.total:,}", f"{c.matrix:,}", f"{c.vector:,}", f"{c.utilisation:.1%}")
    return table


# ---------------------------------------------------------------- numbers


def amount(number: float, unit: str) -> str:
    """`1.23 T`: three digits and a power of a thousand."""
    for factor, letter in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= factor:
            return f"{number / factor:.3g} {letter}{unit}"
    return f"{number:.3g} {unit}".rstrip()


def size(number: int) -> str:
    for factor, name in ((1024**4, "TiB"), (1024**3, "GiB"), (1024**2, "MiB"), (1024, "KiB")):
        if number >= factor:
            return f"{number / factor:.4g} {name}"
    return f"{number} B"


def time(seconds: float) -> str:
    for factor, name in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if seconds >= factor:
            return f"{seconds / factor:.3g} {name}"
    return f"{seconds / 1e-9:.3g} ns"


# ---------------------------------------------------------------- JSON


def data(cost: Cost) -> dict[str, Any]:
    """Everything, bytes and seconds and plain counts, with the chip's figures and their sources."""
    chip = cost.chip
    memories = [m for m in (chip.scratch, chip.cache, chip.main) if m is not None]
    figures: dict[str, Figure | None] = {
        "matrix": chip.matrix_rate(cost.dtype),
        "vector": chip.vector,
        "special": chip.special,
        "registers": chip.registers,
        "link": chip.link,
    }
    return {
        "attention": cost.name,
        "chip": {
            "name": chip.name,
            "title": chip.title,
            "cores": chip.cores,
            **{name: _figure(f) for name, f in figures.items()},
            "memories": [_memory(m) for m in memories],
        },
        "dtype": cost.dtype,
        "sizes": dict(cost.sizes),
        "skipped": cost.skipped,
        "masked": cost.masked,
        "kernels": [_line(line) for line in cost.lines],
        "seconds": {direction: cost.total(direction) for direction in ("forward", "backward")},
        "holds": [dict(zip(("memory", "of", "what"), row, strict=True)) for row in holdings(cost)],
        "dense_score": {"bytes": cost.dense_score, "home": cost.dense_home(), "longest": cost.dense_limits()},
        "systolic": [
            {"form": name, "cycles": c.total, "array": c.matrix, "vector": c.vector, "utilisation": c.utilisation}
            for name, c in cost.cycles
        ],
    }


def _figure(figure: Figure | None) -> dict[str, Any] | None:
    return None if figure is None else {"value": figure.value, "source": figure.source}


def _memory(memory: Memory) -> dict[str, Any]:
    return {
        "name": memory.name,
        "count": memory.count,
        "size": _figure(memory.size),
        "rate": _figure(memory.rate),
    }


def _line(line: Line) -> dict[str, Any]:
    return {
        "direction": line.direction,
        "kernel": line.kernel,
        "order": str(line.order),
        "attngen": line.planned,
        "tile": line.tile,
        "operations": {"matrix": line.matrix, "vector": line.count.vector, "special": line.count.special},
        "main": {"read": line.main.read, "written": line.main.written},
        "near": None if line.near is None else {"read": line.near.read, "written": line.near.written},
        "held": None
        if line.held is None
        else {"registers": line.held.registers, "scratch": line.held.scratch, "walked": line.walked},
        "stays": line.stays,
        "intensity": line.intensity,
        "seconds": line.seconds,
        "bound": line.bound,
    }
