"""Parts of a row's keys merge to the whole: the functions that do it (`part_sums.Arrays`), run over sympy's terms.

Takes those functions, returns a verdict. A part with the sums (Z, A) of its weights and of weight times value has out =
A / Z and lse = log Z, which `streaming` claims of what a kernel writes; a part without a key has 0 and -inf. Shown for
three parts, any of them empty, at once and in two steps, with and without a term of the denominator's own. More parts
follow, since a merged part is a part again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import product
from typing import Any

from attngen.part_sums import Arrays, Part
from attngen.prove.algebra.sympy_door import Term, sp
from attngen.prove.verdict import Proved, Refuted, Verdict

STEPS = (
    "a part is (A / Z, log Z), and (0, -inf) where no key is allowed; merging takes the log of the sum of exp(lse)",
    "merged: sum of (A_i / Z_i) exp(log Z_i - log Z) = (sum of A_i) / Z, with Z the sum of Z_i; a share of -inf is 0",
    "shares are divided by their sum, which is 1 but for rounding",
    "checked for three parts in the 8 cases of which are empty: at once, as (0, 1), 2 and as 2, (1, 0)",
    "a term E of the denominator's own: out Z / (Z + E) and log(Z + E), once; without a key 0 and log E",
    "its gradient: share E / (Z + E) times d_lse - d_out . out, as the lemma of the backward pass has it",
)
ADDED = (
    "without a denominator a part is the sum A of weight times value, and merging adds: checked as above",
    "there is no term of the denominator's own",
)


@lru_cache(maxsize=8)
def merging(make: Callable[..., Arrays] = Arrays, *, sums: bool) -> Verdict:
    """`make`: the functions' class. `sums`: whether the normalizer divides by the sum of weights."""
    arrays = make(_each(sp.exp), _where, _logaddexp, False)
    for empty in product((False, True), repeat=3):
        parts = [_part(i, none, sums) for i, none in enumerate(empty)]
        wrong = _wrong(arrays, parts, [i for i in range(3) if not empty[i]], sums)
        if wrong is not None:
            named = ", ".join(f"{i}" for i in range(3) if empty[i]) or "none"
            return Refuted("sympy", (f"{wrong}; parts without a key: {named}",))
    return Proved("sympy", STEPS if sums else ADDED)


def _wrong(arrays: Arrays, parts: list[Part], full: list[int], sums: bool) -> str | None:
    """What differs from the whole."""
    z, a = (sum((sp.Symbol(f"{name}{i}", positive=True) for i in full), sp.Integer(0)) for name in "ZA")
    out = (a / z if full else sp.Integer(0)) if sums else a
    lse = (sp.log(z) if full else -sp.oo) if sums else sp.Integer(0)
    for how, whole in _ways(arrays, parts, sums):
        if not _is(whole, out, lse):
            return f"merged {how}, the parts give {_shown(whole)}, not {out} and {lse}"
    if not sums:
        return None
    e, slope, d_lse = sp.Symbol("E", positive=True), sp.Symbol("dO"), sp.Symbol("dL")
    whole = arrays.merged(parts, sums=True)
    finished = arrays.finished(whole, _lse(sp.log(e)))
    if not _is(finished, a / (z + e), sp.log(z + e)):
        return f"finished with log E, the whole is {_shown(finished)}, not {a / (z + e)} and log of {z + e}"
    if not _is(arrays.finished(whole, _lse(-sp.oo)), out, lse):
        return "finished with E = 0, the whole is another"
    found = arrays.own_slope((_row(slope), _lse(d_lse)), finished, _lse(sp.log(e))).item()
    wanted = e / (z + e) * (d_lse - slope * a / (z + e))
    if not _equal(found, wanted):
        return f"the gradient of log E is {found}, not {wanted}"
    found = arrays.own_slope((_row(slope), None), finished, _lse(sp.log(e))).item()
    return None if _equal(found, wanted.subs(d_lse, 0)) else f"the gradient of log E is {found} without d_lse"


def _ways(arrays: Arrays, parts: list[Part], sums: bool) -> Iterator[tuple[str, Part]]:
    def merged(*own: Part) -> Part:
        return arrays.merged(own, sums=sums)

    x, y, z = parts
    yield "at once", merged(x, y, z)
    yield "as (0, 1), 2", merged(merged(x, y), z)
    yield "as 2, (1, 0)", merged(z, merged(y, x))


# ---------------------------------------------------------------- arrays of terms


def _part(i: int, empty: bool, sums: bool) -> Part:
    z, a = sp.Symbol(f"Z{i}", positive=True), sp.Symbol(f"A{i}", positive=True)
    if not sums:
        return _row(sp.Integer(0) if empty else a), _lse(sp.Integer(0))
    return (_row(sp.Integer(0)), _lse(-sp.oo)) if empty else (_row(a / z), _lse(sp.log(z)))


class _Cell:
    """One term as an array, of one row and one column, whichever its axes are."""

    def __init__(self, term: Any):
        self.term = term

    def item(self) -> Any:
        return self.term

    def __getitem__(self, _: object) -> _Cell:
        return self

    def swapaxes(self, *_: int) -> _Cell:
        return self

    def sum(self, *_: int) -> _Cell:
        return self

    def __eq__(self, other: object) -> Any:
        return self.term == _term(other)

    __hash__ = None  # pyright: ignore[reportAssignmentType]

    def __neg__(self) -> _Cell:
        return _Cell(-self.term)

    def __add__(self, other: Any) -> _Cell:
        return _Cell(self.term + _term(other))

    def __sub__(self, other: Any) -> _Cell:
        return _Cell(self.term - _term(other))

    def __mul__(self, other: Any) -> _Cell:
        return _Cell(self.term * _term(other))

    def __truediv__(self, other: Any) -> _Cell:
        return _Cell(self.term / _term(other))

    __radd__, __rmul__ = __add__, __mul__


def _term(x: Any) -> Any:
    return x.term if isinstance(x, _Cell) else x


_lse = _row = _Cell


def _each(function: Callable[[Term], Term]) -> Callable[[Any], Any]:
    return lambda x: _Cell(function(_term(x)))


def _where(condition: Any, one: Any, other: Any) -> Any:
    chosen = _term(one if condition else other)
    is_sum = isinstance(chosen, sp.Add)  # of shares, which is 1: quotients by it stay short
    return _Cell(sp.cancel(chosen) if is_sum else chosen)


def _logaddexp(x: Any, y: Any) -> Any:
    total = sp.exp(_term(x)) + sp.exp(_term(y))
    return _Cell(-sp.oo if total == 0 else sp.log(total))


def _is(part: Part, out: Term, lse: Term) -> bool:
    own_out, own_lse = (x.item() for x in part)
    if lse == -sp.oo or own_lse == -sp.oo:
        return bool(own_out == out and own_lse == lse)
    return _equal(own_out, out) and _equal(sp.exp(own_lse), sp.exp(lse))


def _equal(a: Term, b: Term) -> bool:
    """Whether two rational functions are the same."""
    return bool(a == b or sp.cancel(a - b) == 0)


def _shown(part: Part) -> str:
    return " and ".join(str(x.item()) for x in part)
