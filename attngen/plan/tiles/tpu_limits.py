"""What a TPU cannot do, in one table, and the limits that generated files check at each call.

Gives `TPU`, one row for each limit. A row says who refuses a spec or a call that exceeds it: the prover, at the line
and column of the spec, or the generated file, at the call. `docs/kernels-tpu.md` holds the table, and a test ties each
row to what is refused. What the TPU's compiler lacks but can be written in another way has no row.
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
        "a sum or product that leaves 32 bits saturates; it is refused if that would change an answer",
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
        "positions, and ints computed from them, have 32 bits (a spec that multiplies positions has a lower limit)",
        "shorter sequences",
        Refuses.CALL,
    ),
)


def table() -> tuple[str, ...]:
    """The rows as Markdown."""
    head = ("| | a TPU has no | because | instead | who refuses |", "|---|---|---|---|---|")
    return (*head, *(f"| `{r.name}` | {r.what} | {r.reason} | {r.fix} | {r.refuses.value} |" for r in TPU))
