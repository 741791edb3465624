"""Every name that a generated file reads is bound, whatever number of stretches a mask walks."""

from __future__ import annotations

import builtins
import symtable
from collections.abc import Iterator

import pytest

from attngen import api
from attngen.emit import Options
from attngen.errors import Source

MASKS = {
    "one stretch": "mask = causal",
    "one stretch, two runs without a mask": "mask = k < 300 or abs(q - k) < 300",
    "several stretches": "mask = k < 8 or abs(q - k) < 4",
    "more stretches than are kept apart": (
        "mask = k < 8 or q < 8 or abs(q - k) < 4 or abs(q - k - 300) < 4 or abs(q - k - 600) < 4"
    ),
    "more stretches, with tests of data": (
        "param rand: int[N, 2]\nassume Sq == Sk\nlet qb = q // 32\nlet kb = k // 32\n"
        "mask = qb == 0 or kb == 0 or abs(qb - kb) <= 1 or rand[qb, 0] == kb or rand[qb, 1] == kb"
    ),
}


def unbound(source: str) -> set[str]:
    """Names that some function reads as global ones, and that neither the module nor Python has."""
    module = symtable.symtable(source, "generated.py", "exec")
    bound = {s.get_name() for s in module.get_symbols() if s.is_assigned() or s.is_imported() or s.is_namespace()}

    def read(table: symtable.SymbolTable) -> Iterator[str]:
        yield from (s.get_name() for s in table.get_symbols() if s.is_global() and s.is_referenced())
        for child in table.get_children():
            yield from read(child)

    found = {name for child in module.get_children() for name in read(child)}
    return found - bound - set(dir(builtins)) - {"__file__", "__name__"}


@pytest.mark.parametrize("lines", MASKS.values(), ids=MASKS)
def test_every_name_is_bound(lines: str) -> None:
    kernel = api.build(Source(f"attention subject\n{lines}\n"), Options(), {})
    assert unbound(kernel.source) == set()
