"""What a TPU cannot do: the one table of it, with the figures that generated files check their calls by.

Gives `TPU`, one row for each limit, with who refuses what asks for it: the prover, at the line and the column of the
spec, or the generated file, at the call. `docs/tpu.md` holds the table; a test ties each row to what is refused.
What the TPU's compiler lacks and can be had otherwise is no row: the printers and the templates write it otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from attngen.plan.ints.width import MOST_BITS

DTYPES = ("bfloat16", "float32")
"""Of q, k and v."""
HEAD_DIM = 256
"""The largest."""


class Refuses(StrEnum):
    PROVER = "the prover, in the spec"
    CALL = "the generated file, at the call"


@dataclass(frozen=True, slots=True)
class Limit:
    """One row: a TPU has no `what`, because `reason`; `fix` is what to do instead."""

    name: str
    what: str
    reason: str
    fix: str
    refuses: Refuses


TPU: tuple[Limit, ...] = (
    Limit(
        "integer-width",
        "ints of more than 32 bits",
        "a sum or product that leaves them stays at their end; where that would change an answer, it is refused",
        "bound the int params by a `where`",
        Refuses.PROVER,
    ),
    Limit(
        "dtype",
        "float16 for q, k and v",
        "its matrix units multiply bfloat16 and float32",
        f"{' or '.join(DTYPES)}; params may be float16",
        Refuses.CALL,
    ),
    Limit(
        "head-dim",
        f"head dims above {HEAD_DIM}",
        "the tiles and the sums of a head must fit vector memory",
        "more heads",
        Refuses.CALL,
    ),
    Limit(
        "length",
        f"sequences of 2**{MOST_BITS} and more",
        "positions have 32 bits, and so has what is computed of them (a spec that multiplies them has a lower limit)",
        "shorter sequences",
        Refuses.CALL,
    ),
)


def table() -> tuple[str, ...]:
    """The rows as Markdown."""
    head = ("| | a TPU has no | because | instead | who refuses |", "|---|---|---|---|---|")
    return (*head, *(f"| `{r.name}` | {r.what} | {r.reason} | {r.fix} | {r.refuses.value} |" for r in TPU))
