"""The claim that parts merge: proved of the functions that run, and of no edit of them; numbers agree."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from functools import reduce
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from attngen.analyse import analyse
from attngen.errors import Source
from attngen.ir.build import real
from attngen.plan import plan
from attngen.prove.budget.work import Work
from attngen.prove.obligations.merging import merging, merging_two
from attngen.prove.obligations.streaming import streaming
from attngen.prove.verdict import Proved, Refuted
from attngen.runtime import merging as two
from attngen.runtime.exported import merging as exported
from attngen.runtime.exported.merging import PART as Part, Arrays
from attngen.syntax.parser import parse


@pytest.mark.parametrize("sums", [True, False])
def test_what_runs_is_proved(sums: bool) -> None:
    assert isinstance(merging(sums=sums), Proved)


def _weighed(self: Arrays, parts: Any, share: Callable[[Any, Any], Any]) -> Part:
    lse = reduce(self.logaddexp, (own for _, own in parts))
    return sum(out * self.beside(share(own, lse)) for out, own in parts), lse


def _finished(self: Arrays, part: Part, own: Any, share: Callable[[Any, Any], Any]) -> Part:
    whole = self.logaddexp(part[1], own)
    return part[0] * self.beside(share(part[1], whole)), whole


MERGE: dict[str, dict[str, Callable[..., Any]]] = {
    "no guard for empty parts": {"share": lambda self, lse, whole: self.exp(lse - whole)},
    "a share upside down": {"share": lambda self, lse, whole: self.where(lse == -np.inf, 0.0, self.exp(whole - lse))},
    "a part left out": {"merged": lambda self, parts, sums: Arrays.merged(self, parts[:-1] or parts, sums=sums)},
    "a part twice": {"merged": lambda self, parts, sums: Arrays.merged(self, [*parts, parts[0]], sums=sums)},
    "parts not weighed": {"merged": lambda self, parts, sums: _weighed(self, parts, lambda own, lse: own * 0 + 1)},
    "lse of the first": {"merged": lambda self, parts, sums: (Arrays.merged(self, parts, sums=sums)[0], parts[0][1])},
    "shares of the last lse": {
        "merged": lambda self, parts, sums: _weighed(self, parts, lambda own, lse: self.share(own, parts[-1][1]))
    },
    "added in place of merged": {"merged": lambda self, parts, sums: Arrays.merged(self, parts, sums=False)},
    "its own term twice": {
        "finished": lambda self, part, own: Arrays.finished(self, Arrays.finished(self, part, own), own)
    },
    "its own term not at all": {"finished": lambda self, part, own: part},
    "out not scaled": {"finished": lambda self, part, own: (part[0], Arrays.finished(self, part, own)[1])},
    "lse without its own term": {"finished": lambda self, part, own: (Arrays.finished(self, part, own)[0], part[1])},
    "the other share": {
        "finished": lambda self, part, own: _finished(self, part, own, lambda lse, whole: self.share(own, whole))
    },
    "a slope of the other sign": {"own_slope": lambda self, d, whole, own: -Arrays.own_slope(self, d, whole, own)},
    "a slope without that of lse": {
        "own_slope": lambda self, d, whole, own: Arrays.own_slope(self, (d[0], None), whole, own)
    },
    "a slope with the share of the keys": {
        "own_slope": lambda self, d, whole, own: Arrays.own_slope(self, d, whole, whole[1])
    },
}  # fmt: skip


ARRAYS = {
    "sums twice": ("share / total for share", "share / (2.0 * total) for share"),
    "no guard for empty parts": ("total = self.where(total == 0.0, 1.0, total)", "pass"),
    "a share upside down": ("self.exp(lse - whole)", "self.exp(whole - lse)"),
    "no share of empty parts": (
        'self.where(lse == float("-inf"), 0.0, self.exp(lse - whole))',
        "self.exp(lse - whole)",
    ),
    "out not scaled": ("return out * self.beside(share), whole", "return out, whole"),
    "the other share": ("(share, _), whole = self.shares((lse, own))", "(_, share), whole = self.shares((lse, own))"),
    "shares added": ("out * self.beside(share) for (out, _)", "out + self.beside(share) for (out, _)"),
    "a part left out": ("zip(parts, shares, strict=True)", "zip(parts[1:], shares[1:], strict=True)"),
    "lse of the first": ("return reduce(operator.add, rows), lse", "return reduce(operator.add, rows), parts[0][1]"),
    "a slope of the other sign": ("slope = -self.sums(d_out * out)", "slope = self.sums(d_out * out)"),
    "a slope without its share": ("return self.share(own, lse) * (", "return ("),
    "a slope taken off": ("slope + d_lse", "slope - d_lse"),
}
"""Edits of the text that library, files and JAX share."""


@pytest.mark.parametrize("name", ARRAYS)
def test_an_edit_of_the_text_is_refuted(name: str) -> None:
    text = Path(exported.__file__ or "").read_text(encoding="utf-8")
    assert text.count(ARRAYS[name][0]) == 1
    edited = ModuleType("edited_merging")
    sys.modules[edited.__name__] = edited  # where dataclasses look
    exec(text.replace(*ARRAYS[name]), edited.__dict__)
    assert isinstance(merging(edited.Arrays, sums=True), Refuted)


TWO = {
    "sums twice": ("total = share + new_share", "total = 2.0 * (share + new_share)"),
    "shares exchanged": ("return share * scale, new_share * scale", "return new_share * scale, share * scale"),
    "shares not divided": ("return share * scale, new_share * scale", "return share, new_share * scale"),
    "the lesser reference": ("tl.maximum(lse, new_lse)", "tl.minimum(lse, new_lse)"),
    "no reference": ("top = tl.maximum(lse, new_lse)", "top = lse"),
    "no guard for empty parts": ('top = tl.where(top == float("-inf"), 0.0, top)', "top = top"),
    "the other exponent": ("share = tl.exp(lse - top)", "share = tl.exp(top - lse)"),
    "one part alone": ("total = share + new_share", "total = share"),
    "a logarithm without its reference": ("top + tl.log(total)", "tl.log(total)"),
    "a difference": ("total = share + new_share", "total = share - new_share"),
    "no guard of the quotient": ("tl.where(total > 0.0, 1.0 / total, total)", "1.0 / total"),
}


def test_the_kernel_of_two_parts_is_proved() -> None:
    assert isinstance(merging_two(), Proved)


@pytest.mark.parametrize("name", TWO)
def test_an_edit_of_the_kernel_is_refuted(name: str) -> None:
    text = Path(two.__file__ or "").read_text(encoding="utf-8")
    assert text.count(TWO[name][0]) == 1
    assert isinstance(merging_two(text.replace(*TWO[name])), Refuted)


def _edited(changes: dict[str, Callable[..., Any]]) -> type[Arrays]:
    return type("Edited", (Arrays,), {"__slots__": (), **changes})


@pytest.mark.parametrize("name", MERGE)
def test_an_edit_is_refuted(name: str) -> None:
    """Each of them gives other numbers for parts drawn at random, or NaN."""
    assert isinstance(merging(_edited(MERGE[name]), sums=True), Refuted)
    assert not _right(_edited(MERGE[name]))
    assert _right(Arrays)


def test_sums_without_a_denominator() -> None:
    halved = {"merged": lambda self, parts, sums: (sum(out for out, _ in parts) / len(parts), parts[0][1])}
    assert isinstance(merging(_edited(halved), sums=False), Refuted)


def _right(make: type[Arrays]) -> bool:
    """In floats: three parts of 4 keys each, none of which a third row has."""
    rng = np.random.default_rng(1)
    weights, values = rng.uniform(0.1, 2.0, (3, 2, 5, 4)), rng.standard_normal((3, 2, 5, 4, 6))
    weights[:, 0, 2] = 0.0
    weights[1, 1, 0] = 0.0
    term, d_out, d_lse = rng.uniform(0.5, 1.0, (2, 5)), rng.standard_normal((2, 5, 6)), rng.standard_normal((2, 5))
    arrays = make(np.exp, np.where, np.logaddexp, False)
    with np.errstate(all="ignore"):
        z, a = weights.sum(-1), np.einsum("phqk,phqkd->phqd", weights, values)
        parts = [(np.where(z[i, ..., None] > 0, a[i] / z[i, ..., None], 0.0), np.log(z[i])) for i in range(3)]
        whole = arrays.merged([parts[2], arrays.merged(parts[:2], sums=True)], sums=True)
        out, lse = arrays.finished(whole, np.log(term))
        slope = arrays.own_slope((d_out, d_lse), (out, lse), np.log(term))
        total = z.sum(0) + term
        wanted = a.sum(0) / total[..., None]
        wanted_slope = term / total * (d_lse - (d_out * wanted).sum(-1))
        alone = np.where(z.sum(0)[..., None] > 0, a.sum(0) / z.sum(0)[..., None], 0.0)
        found = (whole[0], np.exp(whole[1]), out, np.exp(lse), slope)
        pairs = zip(found, (alone, z.sum(0), wanted, total, wanted_slope), strict=True)
        return all(np.allclose(x, y, atol=1e-12) for x, y in pairs)


def _claim(body: str, **weights: Any) -> Any:
    source = Source(f"attention subject\n{body}\n")
    attention = analyse(parse(source), source, {})
    made = plan(attention)
    made = replace(made, weights=replace(made.weights, **weights))
    return next(c for c in streaming(attention, made, Work()) if c.subject == "merge").verdict


SINK = "param sink: f32[Hq]\nnormalizer = softmax(sink = sink[h])"


@pytest.mark.parametrize("body", ["mask = causal", SINK, "normalizer = softmax1", "normalizer = sigmoid"])
def test_the_claim_of_a_spec(body: str) -> None:
    assert isinstance(_claim(body), Proved)


@pytest.mark.parametrize("log_extra", [None, real(0.0), real(1.0)])
def test_another_term_is_not_proved(log_extra: Any) -> None:
    """The sink, and what `finish` would add in its place."""
    assert not isinstance(_claim(SINK, log_extra=log_extra, extra=None), Proved)
