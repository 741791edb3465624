"""What a proof is made of: claims, each with one of three verdicts, gathered under the obligations of docs/proofs.md.

Takes nothing from the solvers: the obligations return these values, `proof` gathers them, the command line prints
them. Unknown never counts as proved.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from attngen.errors import NOWHERE, Span


class Obligation(StrEnum):
    """The rows of the table, in its order. The value is the name that the command line and `--allow-unproved` use."""

    STREAMING = "streaming"
    RANGE_SAFETY = "range-safety"
    EMPTY_ROWS = "empty-rows"
    LOCALITY = "locality"
    GRADIENTS = "gradients"
    TILE_RANGES = "tile-ranges"
    INDEX_BOUNDS = "index-bounds"
    INTEGER_WIDTH = "integer-width"


def proved_line(names: Iterable[str]) -> str:
    """What a generated file's header says of the obligations that are proved."""
    return f"Proved: {', '.join(names) or 'nothing'}."


_ALLOWED = "NOT PROVED, allowed by the user (--allow-unproved): "


def allowed_line(names: Iterable[str]) -> str:
    """And what it says of those that are not, and that the user allows."""
    return f"{_ALLOWED}{', '.join(names)}."


def allowed_in(header: str) -> tuple[str, ...]:
    """The names in such a line, if a header has one."""
    _, there, names = header.partition(_ALLOWED)
    return tuple(names.partition(".")[0].split(", ")) if there else ()


ALL_PROVED = (proved_line(Obligation),)
"""The header's lines about a proof that lacks nothing."""


@dataclass(frozen=True, slots=True)
class Proved:
    """`by` names the method in a few words ("sympy", "z3, 2 queries", "intervals"); `steps` are its derivation."""

    by: str
    steps: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Refuted:
    """False, and `example` shows it in lines that a reader can check by hand; `values` holds its numbers by name."""

    by: str
    example: tuple[str, ...]
    values: tuple[tuple[str, int | float | bool | str], ...] = ()


@dataclass(frozen=True, slots=True)
class Unknown:
    """Neither: `reason` says what stopped the proof (the budget, a function without rules, …)."""

    by: str
    reason: str


Verdict = Proved | Refuted | Unknown


def flag(holds: bool, otherwise: str) -> Verdict:
    """What is seen from the form alone; `otherwise` says what is wrong where it does not hold."""
    return Proved("structure") if holds else Refuted("structure", (otherwise,))


@dataclass(frozen=True, slots=True)
class Claim:
    """One sentence that must hold, the verdict on it, and the place in the spec that it is about.

    `subject` tells claims of one obligation apart ("keys, any", "d score / d slope[h]"); `fix` says how to mend a
    refuted one, and `fault` what is wrong then, where that says more than the sentence; `note` is what a reader should
    know though nothing is wrong (the side that a kink takes).
    """

    subject: str
    sentence: str
    verdict: Verdict
    span: Span = field(default=NOWHERE, compare=False, kw_only=True)
    fix: str = field(default="", kw_only=True)
    fault: str = field(default="", kw_only=True)
    note: str = field(default="", kw_only=True)


@dataclass(frozen=True, slots=True)
class Shown:
    """An obligation with all its claims, the seconds that they took, and the units of work, the same on any machine."""

    obligation: Obligation
    claims: tuple[Claim, ...]
    seconds: float = field(default=0.0, compare=False)
    work: int = 0

    @property
    def refuted(self) -> tuple[Claim, ...]:
        return tuple(c for c in self.claims if isinstance(c.verdict, Refuted))

    @property
    def unknown(self) -> tuple[Claim, ...]:
        return tuple(c for c in self.claims if isinstance(c.verdict, Unknown))

    @property
    def status(self) -> str:
        """`refuted` if any claim is, else `unknown` if any is, else `proved`."""
        return "refuted" if self.refuted else "unknown" if self.unknown else "proved"


DIAGONALS = "diagonals"
TURNS = "queries, turns"
"""Who waits for whom may be listed instead."""
MAP = "keys, map"
"""Stretches may be walked instead."""


def can_do_without(claim: Claim) -> bool:
    """Whether a plan can give up what a claim of `tile-ranges` or `integer-width` is about: a range, or a value that
    pairs share, but not the mask, the facts, or what the mask computes."""
    return claim.subject == DIAGONALS or claim.subject.startswith(("keys, ", "queries, "))
