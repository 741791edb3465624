"""A proof as JSON and back: what `attngen check --json` prints, and what is kept between runs.

Takes proofs, returns plain values. The key of a proof is made of all that it depends on: the attention, the plan, the
effort, and the source of the prover and of what it asks. The clock is not in it: what it ends is Unknown, and not kept.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Any

from attngen.errors import Span
from attngen.ir.attention import Attention
from attngen.plan.kernel import KernelPlan
from attngen.prove.proof import Proof
from attngen.prove.verdict import Claim, Obligation, Proved, Refuted, Shown, Unknown, Verdict

ROOMS = ("prove", "ir", "plan")
MODULES = ("errors.py", "inputs.py", "runtime/merging.py", "runtime/exported/merging.py")
"""What a proof is made with. `ladder/` shows nothing."""


def key(attention: Attention, plan: KernelPlan, effort: float) -> str:
    return hashlib.sha256(f"{attention!r}\n{plan!r}\n{effort}\n{_own_source()}".encode()).hexdigest()


@cache
def _own_source() -> str:
    """The digest of the modules of this room and of those that it asks: the IR's, the plan's, `inputs`."""
    found = hashlib.sha256()
    package = resources.files("attngen")
    files = [file for room in ROOMS for file in _modules(package.joinpath(room))]
    for file in sorted([*files, *map(package.joinpath, MODULES)], key=str):
        found.update(file.read_bytes())
    return found.hexdigest()


def _modules(folder: Traversable) -> Iterator[Traversable]:
    """The Python files of a folder and of the folders in it."""
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _modules(entry)
        elif entry.name.endswith(".py"):
            yield entry


def to_json(proof: Proof) -> dict[str, Any]:
    return {
        "name": proof.name,
        "holds": proof.holds,
        "dropped": list(proof.dropped),
        "needs": list(proof.needs),
        "allowed": [o.value for o in proof.allowed],
        "expected": [_claim(c) for c in proof.expected],
        "seconds": round(proof.seconds, 4),
        "obligations": [
            {
                "obligation": s.obligation.value,
                "verdict": s.status,
                "seconds": round(s.seconds, 4),
                "work": s.work,
                "claims": [_claim(c) for c in s.claims],
            }
            for s in proof.shown
        ],
    }


def _claim(c: Claim) -> dict[str, Any]:
    found: dict[str, Any] = {"subject": c.subject, "sentence": c.sentence, **_verdict(c.verdict)}
    found |= {"fix": c.fix} if c.fix else {}
    found |= {"fault": c.fault} if c.fault else {}
    found |= {"note": c.note} if c.note else {}
    s = c.span
    found |= {"span": [s.line, s.column, s.end_line, s.end_column]} if s.line else {}
    return found


def _verdict(v: Verdict) -> dict[str, Any]:
    match v:
        case Proved():
            return {"verdict": "proved", "by": v.by, "steps": list(v.steps)}
        case Refuted():
            return {
                "verdict": "refuted",
                "by": v.by,
                "example": list(v.example),
                "values": {name: _plain(x) for name, x in v.values},
            }
        case Unknown():
            return {"verdict": "unknown", "by": v.by, "reason": v.reason}


def _plain(x: int | float | bool | str) -> int | float | bool | str:
    """JSON has no infinities."""
    return x if not isinstance(x, float) or math.isfinite(x) else str(x)


class Damaged(ValueError):
    """What should be a proof is none."""


def read(text: str) -> Proof:
    """A proof from the JSON that `to_json` gave. Raises `Damaged` for anything else."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Damaged(f"no JSON: {error}") from None
    return from_json(found)


def from_json(found: Any) -> Proof:
    """The reverse of `to_json`. Raises `Damaged` for what it did not write."""
    shown = tuple(map(_read_shown, _part(found, "obligations", list)))
    if tuple(s.obligation for s in shown) != tuple(Obligation):
        raise Damaged("not every obligation is there, once and in order")
    allowed = tuple(map(_obligation, _part(found, "allowed", list)))
    dropped, needs = _strings(found, "dropped"), _strings(found, "needs")
    expected = tuple(map(_read_claim, _part(found, "expected", list)))
    proof = Proof(_part(found, "name", str), shown, dropped, allowed, needs, expected, cached=True)
    if {**to_json(proof), "seconds": 0} != {**found, "seconds": 0}:
        raise Damaged("its verdicts contradict each other, or it holds what no proof has")
    return proof


def _read_shown(found: Any) -> Shown:
    claims = tuple(map(_read_claim, _part(found, "claims", list)))
    if not claims:
        raise Damaged("an obligation has no claims")
    seconds, work = _part(found, "seconds", int | float), _part(found, "work", int)
    return Shown(_obligation(_part(found, "obligation", str)), claims, seconds, work)


def _read_claim(c: Any) -> Claim:
    by = _part(c, "by", str)
    verdict: Verdict
    match c.get("verdict"):
        case "proved":
            verdict = Proved(by, _strings(c, "steps"))
        case "refuted":
            verdict = Refuted(by, _strings(c, "example"), tuple(_part(c, "values", dict).items()))
        case "unknown":
            verdict = Unknown(by, _part(c, "reason", str))
        case other:
            raise Damaged(f"no verdict {other!r}")
    place = [_of(int, x) for x in _part(c, "span", list)] if "span" in c else [0, 0, 0, 0]
    if len(place) != 4:
        raise Damaged("a span has four numbers")
    said = {name: _part(c, name, str) if name in c else "" for name in ("fix", "fault", "note")}
    return Claim(_part(c, "subject", str), _part(c, "sentence", str), verdict, span=Span(*place), **said)


def _obligation(name: Any) -> Obligation:
    try:
        return Obligation(name)
    except ValueError:
        raise Damaged(f"no obligation {name!r}") from None


def _strings(table: Any, name: str) -> tuple[str, ...]:
    return tuple(_of(str, x) for x in _part(table, name, list))


def _part(table: Any, name: str, kind: Any) -> Any:
    if not isinstance(table, dict) or name not in table:
        raise Damaged(f"{name!r} is missing")
    return _of(kind, table[name])


def _of(kind: Any, x: Any) -> Any:
    if not isinstance(x, kind):
        raise Damaged(f"{x!r} has the wrong type")
    return x
