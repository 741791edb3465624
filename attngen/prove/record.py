"""A proof as JSON and back: what `attngen check --json` prints, and what is kept between runs.

Takes proofs, gives plain values. The key of a proof is made of all that it depends on: the attention, the plan, the
budget, and the source of the prover and of what it asks.
"""

from __future__ import annotations

import hashlib
import math
from functools import cache
from importlib import resources
from typing import Any

from attngen.errors import Span
from attngen.ir.attention import Attention
from attngen.plan.kernel import KernelPlan
from attngen.prove.proof import Proof
from attngen.prove.verdict import Claim, Obligation, Proved, Refuted, Shown, Unknown, Verdict

ROOMS = ("prove", "ir", "plan")
MODULES = ("errors.py", "inputs.py")
"""What a proof is made with. `ladder/` shows nothing."""


def key(attention: Attention, plan: KernelPlan, budget: float) -> str:
    return hashlib.sha256(f"{attention!r}\n{plan!r}\n{budget}\n{_own_source()}".encode()).hexdigest()


@cache
def _own_source() -> str:
    """The digest of the modules of this room and of those that it asks: the IR's, the plan's, `inputs`."""
    found = hashlib.sha256()
    package = resources.files("attngen")
    files = [file for room in ROOMS for file in package.joinpath(room).iterdir()]
    for file in sorted([*files, *map(package.joinpath, MODULES)], key=str):
        if file.name.endswith(".py"):
            found.update(file.read_bytes())
    return found.hexdigest()


def to_json(proof: Proof) -> dict[str, Any]:
    return {
        "name": proof.name,
        "holds": proof.holds,
        "dropped": list(proof.dropped),
        "allowed": [o.value for o in proof.allowed],
        "seconds": round(proof.seconds, 4),
        "obligations": [
            {
                "obligation": s.obligation.value,
                "verdict": s.status,
                "seconds": round(s.seconds, 4),
                "claims": [_claim(c) for c in s.claims],
            }
            for s in proof.shown
        ],
    }


def _claim(c: Claim) -> dict[str, Any]:
    found: dict[str, Any] = {"subject": c.subject, "sentence": c.sentence, **_verdict(c.verdict)}
    found |= {"fix": c.fix} if c.fix else {}
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


def from_json(found: dict[str, Any]) -> Proof:
    """The reverse of `to_json`. Raises KeyError or ValueError for what it did not write."""
    shown = tuple(
        Shown(Obligation(s["obligation"]), tuple(_read_claim(c) for c in s["claims"]), s["seconds"])
        for s in found["obligations"]
    )
    return Proof(found["name"], shown, tuple(found["dropped"]), tuple(map(Obligation, found["allowed"])), cached=True)


def _read_claim(c: dict[str, Any]) -> Claim:
    verdict: Verdict
    match c["verdict"]:
        case "proved":
            verdict = Proved(c["by"], tuple(c["steps"]))
        case "refuted":
            verdict = Refuted(c["by"], tuple(c["example"]), tuple(c["values"].items()))
        case "unknown":
            verdict = Unknown(c["by"], c["reason"])
        case other:
            raise ValueError(f"no verdict {other!r}")
    span = Span(*c["span"]) if "span" in c else Span(0, 0, 0, 0)
    return Claim(c["subject"], c["sentence"], verdict, span=span, fix=c.get("fix", ""), note=c.get("note", ""))
