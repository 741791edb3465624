"""Proofs for readers: rows of a table, the details of what is not proved, and the messages that refuse a spec.

Takes proofs, returns text. Colours and columns are the terminal's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from attngen.errors import Diagnostic, Source
from attngen.prove.proof import Proof
from attngen.prove.verdict import Claim, Obligation, Proved, Refuted, Shown, Unknown

SENTENCES = {
    Obligation.STREAMING: "sums over tiles equal the definition",
    Obligation.RANGE_SAFETY: "numbers stay finite, as noted below",
    Obligation.EMPTY_ROWS: "queries without keys: 0, no gradient",
    Obligation.LOCALITY: "a pair's score depends on it alone",
    Obligation.GRADIENTS: "derivatives are those of the spec",
    Obligation.TILE_RANGES: "exactly the allowed pairs are counted",
    Obligation.INDEX_BOUNDS: "reads are inside their tensors",
    Obligation.INTEGER_WIDTH: "every int fits its 32 or 64 bits",
}
"""So short that a table of them fits 80 columns."""
_FROM_DATA = "reads are inside; by data, 0 outside"


_PLAIN = {
    "the same expression": "structure",
    "the same expressions": "structure",
    "a point": "numbers",
    "points": "numbers",
    "trial": "numbers",
    "two tiles": "numbers",
    "premises": "structure",
}
"""Methods under the names that readers know them by."""


@dataclass(frozen=True, slots=True)
class Row:
    obligation: str
    verdict: str
    claims: str
    sentence: str


def rows(proof: Proof) -> tuple[Row, ...]:
    return tuple(map(_row, proof.shown))


def _row(s: Shown) -> Row:
    proved = sum(isinstance(c.verdict, Proved) for c in s.claims)
    sentence = _FROM_DATA if any("from data" in c.verdict.by for c in s.claims) else SENTENCES[s.obligation]
    return Row(s.obligation.value, s.status, f"{proved} of {len(s.claims)}", sentence)


def claims(proof: Proof) -> Iterator[str]:
    """Each obligation with its time, and below it each claim with what shows it."""
    for s in proof.shown:
        yield f"{s.obligation.value} ({'from the cache' if proof.cached else f'{s.seconds * 1000:.0f} ms'})"
        for c in s.claims:
            methods = dict.fromkeys(part.strip().split(",")[0] for part in c.verdict.by.split(";"))
            verdict = "" if isinstance(c.verdict, Proved) else f"{type(c.verdict).__name__.lower()}, "
            by = ", ".join(dict.fromkeys(_PLAIN.get(method, method) for method in methods))
            yield f"  {c.subject}: {c.sentence} ({verdict}{by})"


def details(proof: Proof, source: Source) -> tuple[str, ...]:
    """What a reader must know beside the table: what is refuted and unknown, and what was dropped."""
    told = _telling(proof)
    lines = [_diagnostic(o, c, source).render() for o, c in told]
    more = len(proof.refuted or proof.refused) - len(told)
    lines += (
        [f"{more} more {'claim fails' if more == 1 else 'claims fail'} with it (--json lists them)"] if more else []
    )
    for obligation, c in proof.unknown:
        if (obligation, c) not in proof.refused and isinstance(c.verdict, Unknown):
            lines.append(f"unknown: {c.sentence}\n  {c.verdict.reason}")
    lines += [f"given up: {what}" for what in proof.dropped]
    lines += [f"needs {need}: every call checks it" for need in proof.needs]
    lines += [d.line("warning") for d in warnings(proof, source)]
    return tuple(lines)


def notes(proof: Proof) -> tuple[str, ...]:
    """What the claims rest on, or leave open."""
    return tuple(dict.fromkeys(c.note for s in proof.shown for c in s.claims if c.note))


def diagnostics(proof: Proof, source: Source) -> list[Diagnostic]:
    """The messages of the error that refuses this spec: the refuted claims, or else the unknown ones."""
    return [_diagnostic(o, c, source) for o, c in _telling(proof)]


def warnings(proof: Proof, source: Source) -> list[Diagnostic]:
    """What a reader should know of a spec whose kernel is right: a mask that allows no pair."""
    return [
        Diagnostic(
            "empty-mask",
            f"the mask allows no pair, so every result is zero: {'; '.join(c.verdict.example)}",
            c.span,
            c.fix,
            source,
        )
        for c in proof.expected
        if isinstance(c.verdict, Refuted)
    ]


def _telling(proof: Proof) -> list[tuple[Obligation, Claim]]:
    """The claims to tell a user of: a wrong stream line breaks much else, so it is told alone, and a place once."""
    wrong = proof.refuted or proof.refused
    stream = [(o, c) for o, c in wrong if o is Obligation.STREAMING and isinstance(c.verdict, Refuted)]
    first: dict[object, tuple[Obligation, Claim]] = {}
    for obligation, claim in stream[:1] or wrong:
        first.setdefault((obligation, claim.span), (obligation, claim))
    return list(first.values())


def refutations(claims: tuple[Claim, ...], source: Source) -> list[Diagnostic]:
    """The messages for refuted claims on a normalizer that has no plan."""
    return [_diagnostic(Obligation.STREAMING, c, source) for c in claims if isinstance(c.verdict, Refuted)][:1]


def _diagnostic(obligation: Obligation, c: Claim, source: Source) -> Diagnostic:
    match c.verdict:
        case Refuted():
            message, notes, fix = c.fault or f"refuted: {c.sentence}", c.verdict.example, c.fix
        case Unknown():
            message, notes = f"not proved: {c.sentence}", (c.verdict.reason,)
            fix = c.fix or f'`allow_unproved=["{obligation.value}"]` compiles it all the same'
        case Proved():
            message, notes, fix = c.sentence, (), ""
    return Diagnostic(obligation.value, message, c.span, fix, source, notes)


def proof_text(proof: Proof) -> str:
    """Every claim with its verdict and method, one a line, without times: stable text."""
    lines = [f"proof {proof.name}"]
    for s in proof.shown:
        lines += ["", f"{s.obligation.value}: {s.status}"]
        for c in s.claims:
            match c.verdict:
                case Proved():
                    lines.append(f"    proved ({c.verdict.by}): {c.sentence}")
                    lines += [f"        {step}" for step in c.verdict.steps]
                case Refuted():
                    lines.append(f"    REFUTED ({c.verdict.by}): {c.sentence}")
                    lines += [f"        {line}" for line in c.verdict.example]
                case Unknown():
                    lines.append(f"    unknown ({c.verdict.by}): {c.sentence}")
                    lines.append(f"        {c.verdict.reason}")
            lines += [f"        note: {c.note}"] if c.note else []
    for c in proof.expected:
        if isinstance(c.verdict, Refuted):
            lines += [
                "",
                f"expected, and REFUTED ({c.verdict.by}): {c.sentence}",
                *map("    {}".format, c.verdict.example),
            ]
    lines += ["", *(f"given up: {what}" for what in proof.dropped)] if proof.dropped else []
    lines += ["", *(f"needs {need}" for need in proof.needs)] if proof.needs else []
    return "\n".join(lines) + "\n"
