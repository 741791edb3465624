"""The functions of ints by which kernels of GPUs find their items, heads and tiles: the runtime's text, read as values.

Takes that text; returns an `Index`. Kernels call these functions, and the prover executes them: what it claims is of
the text that a file carries.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path

from attngen.errors import InternalError
from attngen.ir.function import Function
from attngen.plan.index.lifted import constants, lifted

_RUNTIME = Path(__file__).resolve().parents[2] / "runtime" / "exported"


@dataclass(frozen=True, slots=True)
class Index:
    """`functions`: each for all values of its flags."""

    text: str
    functions: tuple[Function, ...]

    def of(self, name: str, **flags: int) -> Function:
        """The function of that name, for these flags."""
        found = [f for f in self.functions if f.name == name and dict(f.flags) == flags]
        if len(found) != 1:
            raise InternalError(f"the index has {len(found)} functions {name} with {flags}")
        return found[0]


def read(text: str) -> Index:
    """The functions of a module of the runtime."""
    found: list[Function] = []
    for name, flags in constants(text).items():
        for values in product((False, True), repeat=len(flags)):
            found.append(lifted(text, name, tuple(zip(flags, values, strict=True))))
    return Index(text, tuple(found))


@cache
def items() -> Index:
    """Those of `runtime/exported/items.py`."""
    return read(_text("items"))


@cache
def tests() -> Index:
    """Those of `runtime/exported/rows.py` that answer tests of data."""
    return read_tests(_text("rows"))


@cache
def rows_of_sequences() -> Index:
    """The ints of `runtime/exported/ragged.py`."""
    text = _text("ragged")
    names = [(name, ()) for name in ("begin", "first", "size", "before", "paired", "within")]
    flagged = [
        (name, ((flag, packed),))
        for name, flag in (("slot", "PACKED"), ("slots", "packed"))
        for packed in (False, True)
    ]
    return Index(text, tuple(lifted(text, name, flags) for name, flags in (*names, *flagged)))


@cache
def rows_in_runs() -> Index:
    """Where a table says where rows are: the ints of `runtime/exported/rows.py`."""
    text = _text("rows")
    return Index(text, (lifted(text, "row_in_run", ()),))


def read_tests(text: str) -> Index:
    names = [(name, (("TEST", test),)) for name in ("can_hold", "must_hold") for test in range(5)]
    return Index(text, tuple(lifted(text, name, flags) for name, flags in names))


def _text(module: str) -> str:
    return (_RUNTIME / f"{module}.py").read_text(encoding="utf-8")
