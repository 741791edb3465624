"""What a solver is asked in, and what it answers: a conclusion follows, fails at values that it names, or is open."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from attngen.ir import printing
from attngen.ir.nodes import Load

Term = Any
"""A solver's expression of any sort."""


@dataclass(frozen=True, slots=True)
class Holds:
    """The conclusion follows."""


@dataclass(frozen=True, slots=True)
class Fails:
    """The solver's values under which the premises hold and the conclusion does not, by name."""

    values: Mapping[str, int | float | bool]

    def text(self) -> str:
        return ", ".join(f"{name} = {value}" for name, value in self.values.items())


def element_name(e: Load) -> str:
    """The name under which `Fails` has an element's value, in a context without zeros."""
    return printing.expression(e)


@dataclass(frozen=True, slots=True)
class Open:
    """The solver gave up."""

    reason: str


Answer = Holds | Fails | Open
