"""A schedule as text and as JSON: who holds, computes and sends what, what it costs, and what is proved of it.

Takes a `Report`; returns what the command line prints.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from attngen.distributed.plan.estimate import Estimate, Machine
from attngen.distributed.plan.layout import Ranges
from attngen.distributed.plan.schedule import Schedule
from attngen.prove.verdict import Claim, Proved, Refuted

if TYPE_CHECKING:
    from rich.console import RenderableType

_MOST_ROWS = 16
"""Ranks and rounds that are printed one by one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    name: str
    layout: str
    exchange: str
    sizes: Mapping[str, int]
    machine: Machine
    schedule: Schedule
    claims: tuple[Claim, ...]
    estimate: Estimate

    @property
    def proved(self) -> bool:
        return all(isinstance(c.verdict, Proved) for c in self.claims)

    def title(self) -> str:
        s, ends = self.schedule, self.schedule.sequences
        rows = f"{ends.q[-1]:,} queries" + (f" and {ends.k[-1]:,} keys" if ends.q != ends.k else "")
        packed = f" in {ends.count:,} sequences" if ends.packed else ""
        ranks = f"{s.ranks} ranks" + (f" in groups of {s.heads}" if s.heads > 1 else "")
        return f"{self.name}: {rows}{packed} over {ranks}, layout {self.layout}, exchange {self.exchange}"

    def efficiency(self, direction: int) -> float:
        longest = float(self.estimate.seconds[direction].max())
        return self.estimate.alone[direction] / longest if longest else 1.0


def render(report: Report) -> Iterator[RenderableType]:
    yield report.title()
    yield _ranks(report)
    yield _rounds(report)
    yield from _summary(report)
    yield from _proof(report.claims)


def _table(*columns: str) -> Any:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name in columns:
        table.add_column(name, justify="left" if name == "holds" else "right", no_wrap=name != "holds")
    return table


def _ranks(report: Report) -> Any:
    from attngen.cost.table import amount, size, time

    e, s = report.estimate, report.schedule
    table = _table("rank", "holds", "pairs", "receives", "sends", "forward", "backward")
    shown = range(s.ranks)
    if s.ranks > _MOST_ROWS:
        order = np.argsort(-(e.seconds[0] + e.seconds[1]), kind="stable")
        shown = [int(r) for r in (*order[: _MOST_ROWS // 2], *order[-_MOST_ROWS // 2 :])]
    for rank in shown:
        table.add_row(
            str(rank),
            spans(s.q_layout.stretches[rank]),
            amount(float(e.pairs[rank]), ""),
            size(int(e.received[0][rank])),
            size(int(e.sent[0][rank])),
            *(time(float(seconds[rank])) for seconds in e.seconds),
        )
    return table


def spans(ranges: Ranges, most: int = 2) -> str:
    """`0-8191, 122880-131071`, and how many more there are."""
    shown = ", ".join(f"{a}-{b - 1}" for a, b in ranges[:most]) or "nothing"
    return shown if len(ranges) <= most else f"{shown}, {len(ranges) - most} more"


def _rounds(report: Report) -> Any:
    from attngen.cost.table import amount

    s = report.schedule
    table = _table("round", "pieces", "transfers", "rows sent", "most to one", "ranks at work")
    for turn, r in enumerate(s.rounds[:_MOST_ROWS]):
        sent: dict[int, int] = {}
        for t in r.transfers:
            sent[t.target] = sent.get(t.target, 0) + sum(b - a for a, b in t.rows)
        table.add_row(
            str(turn),
            str(sum(map(len, r.pieces))),
            str(len(r.transfers)),
            amount(sum(sent.values()), ""),
            amount(max(sent.values(), default=0), ""),
            str(sum(s.heads for own in r.pieces if own)),
        )
    return table


def _summary(report: Report) -> Iterator[str]:
    from attngen.cost.table import amount, size, time

    e, s = report.estimate, report.schedule
    if s.ranks > _MOST_ROWS:
        half = _MOST_ROWS // 2
        yield f"the {half} ranks that take longest, and the {half} that take shortest, of {s.ranks}"
    if len(s.rounds) > _MOST_ROWS:
        yield f"the first {_MOST_ROWS} of {len(s.rounds)} rounds"
    mean = float(e.pairs.mean())
    most = float(e.pairs.max()) / mean if mean else 1.0
    yield f"work: {amount(mean, '')} pairs a rank; the busiest has {most:.3f} of the mean"
    received = float(e.received[0].mean())
    share = f", {received / e.gathered:.1%} of fetching all keys of other ranks" if e.gathered and s.heads == 1 else ""
    yield f"bytes: {size(int(received))} received a rank forward{share}; {size(int(e.received[1].mean()))} backward"
    most_of = (f"rank {int(x.argmax())} {does} most, {size(int(x.max()))}" for does, x in
               (("receives", e.received[0]), ("sends", e.sent[0])))  # fmt: skip
    yield f"forward, {' and '.join(most_of)}"
    m = report.machine
    rate = f"{m.chip.title}, {m.dtype}, {amount(m.link, 'B/s')} each way"
    times = (f"{d} {time(float(x.max()))}" for d, x in zip(("forward", "backward"), e.seconds, strict=True))
    yield f"time at least, on {rate}: {', '.join(times)}"
    shares = " and ".join(f"{report.efficiency(i):.1%}" for i in (0, 1))
    yield f"that is {shares} of {s.ranks} such chips that never wait and share the work equally"


def _proof(claims: Sequence[Claim]) -> Iterator[str]:
    proved = [c.subject for c in claims if isinstance(c.verdict, Proved)]
    if proved:
        yield f"proved: {', '.join(proved)}"
    for c in claims:
        match c.verdict:
            case Proved():
                continue
            case Refuted():
                yield f"refuted: {c.subject}: {c.sentence}"
                yield from (f"  {line}" for line in c.verdict.example)
            case _:
                yield f"unknown: {c.subject}: {c.sentence}: {c.verdict.reason}"


# ---------------------------------------------------------------- JSON


def data(report: Report) -> dict[str, Any]:
    """Everything: bytes, seconds and counts by rank, every piece and every transfer."""
    e, s = report.estimate, report.schedule
    return {
        "attention": report.name,
        "ranks": s.ranks,
        "heads": s.heads,
        "layout": report.layout,
        "exchange": report.exchange,
        "sizes": dict(report.sizes),
        "sequences": {"q": s.sequences.q, "k": s.sequences.k, "packed": s.sequences.packed},
        "machine": {
            "chip": report.machine.chip.name,
            "dtype": report.machine.dtype,
            "link": report.machine.link,
            "source": report.machine.chip.link.source if report.machine.chip.link else None,
        },
        "proof": {c.subject: _verdict(c) for c in report.claims},
        "of_ideal": {d: report.efficiency(i) for i, d in enumerate(("forward", "backward"))},
        "by_rank": [
            {
                "holds": s.q_layout.stretches[rank],
                "keys": s.k_layout.stretches[rank],
                "pairs": float(e.pairs[rank]),
                "received": [float(x[rank]) for x in e.received],
                "sent": [float(x[rank]) for x in e.sent],
                "seconds": [float(x[rank]) for x in e.seconds],
            }
            for rank in range(s.ranks)
        ],
        "rounds": [
            {
                "transfers": [{"source": t.source, "target": t.target, "rows": t.rows} for t in r.transfers],
                "pieces": [[{"sequence": p.sequence, "q": p.q, "k": p.k} for p in own] for own in r.pieces],
            }
            for r in s.rounds
        ],
    }


def _verdict(claim: Claim) -> dict[str, Any]:
    v = claim.verdict
    found: dict[str, Any] = {"verdict": type(v).__name__.lower(), "claim": claim.sentence}
    return found | ({"example": v.example, "values": dict(v.values)} if isinstance(v, Refuted) else {})
