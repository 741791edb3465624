"""Specs whose names may clash with those of generated code, for the tests of every target."""

from __future__ import annotations

from unit.emit.test_names import CLASHES, SPECS as BODIES, names_beside_params


def marked(body: str) -> str:
    """A spec with a param `marker` in its score, so that it reaches the functions whose names are looked at."""
    text = f"attention subject\nparam marker: f32[Hq]\n{body}\n"
    if "score = " in body:
        return text.replace("score = ", "score = marker[h] * k + ")
    return f"{text}score = qk * scale + marker[h] * k\n"


SPECS = {name: marked(body) for name, body in BODIES.items()}

__all__ = ["CLASHES", "SPECS", "names_beside_params"]
