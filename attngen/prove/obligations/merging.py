"""Parts of a row's keys merge to the whole: the functions that do it, run over sympy's terms.

Takes those functions, `Arrays` of `runtime/exported/merging.py` and the text of `shares_of_two` in
`runtime/merging.py`, returns a verdict. A part with the sums (Z, A) of its weights and of weight times value has out =
A / Z and lse = log Z, which `streaming` claims of what a kernel writes; a part without a key has 0 and -inf. Shown for
three parts, any of them empty, at once and in two steps, with and without a term of the denominator's own. More parts
follow, since a merged part is a part again.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import product
from math import exp, inf, isclose, log, log1p
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from attngen.prove.algebra.sympy_door import Term, sp
from attngen.prove.verdict import Proved, Refuted, Verdict
from attngen.runtime.exported.merging import PART as Part, Arrays

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


OF_TWO = (
    "the kernel's shares of two parts: exp(log Z_i - log T) over their sum is Z_i / (Z_0 + Z_1), for any T",
    "log T is the greater logarithm, so that no exponential passes 1: checked for logarithms of -1e4 to 1e4",
)


@lru_cache(maxsize=32)
def merging_two(text: str | None = None) -> Verdict:
    """`text`: of the module that has `shares_of_two`."""
    text = text or (Path(__file__).resolve().parents[2] / "runtime" / "merging.py").read_text(encoding="utf-8")
    found = [n for n in ast.parse(text).body if isinstance(n, ast.FunctionDef) and n.name == "shares_of_two"]
    source = ast.unparse(ast.Module([_plain(n) for n in found], []))
    for empty in product((False, True), repeat=2):
        sums = [sp.Integer(0) if none else sp.Symbol(f"Z{i}", positive=True) for i, none in enumerate(empty)]
        try:
            share, new_share, both = _run(source, [_log(z) for z in sums], _TERMS)
        except TypeError as error:  # a comparison of terms that has no value
            return Refuted("sympy", (f"two parts, {sums[0]} and {sums[1]}: {error}",))
        whole = sums[0] + sums[1]
        wanted = [z / whole if whole != 0 else whole for z in sums]
        right = both == -sp.oo if whole == 0 else both != -sp.oo and _same(sp.exp(both), whole)
        if not (right and all(_same(s, w) for s, w in zip((share, new_share), wanted, strict=True))):
            return Refuted(
                "sympy", (f"two parts, {sums[0]} and {sums[1]}: shares {share} and {new_share}, log {both}",)
            )
    for x, y in product((-1e4, -100.0, 0.0, 100.0, 1e4), repeat=2):
        numbers = _run(source, [_Number(x), _Number(y)], _NUMBERS)
        least = exp(-abs(x - y))
        greater, less = 1 / (1 + least), least / (1 + least)
        right_ones = (greater, less) if x >= y else (less, greater)
        pairs = zip(numbers, (*right_ones, max(x, y) + log1p(least)), strict=True)
        if not all(isclose(a, b, rel_tol=1e-9, abs_tol=1e-30) for a, b in pairs):
            return Refuted("numbers", (f"logarithms {x} and {y} of two parts: shares and their logarithm {numbers}",))
    return Proved("sympy", OF_TWO)


def _plain(function: ast.FunctionDef) -> ast.FunctionDef:
    """The function without Triton's decorator."""
    return ast.FunctionDef(
        function.name, function.args, function.body, [], lineno=function.lineno, col_offset=function.col_offset
    )


def _run(source: str, given: list[Any], language: dict[str, Any]) -> Any:
    """What `shares_of_two` returns, with this in place of Triton's language."""
    names: dict[str, Any] = {"tl": SimpleNamespace(**language)}
    exec(source, names)
    return names["shares_of_two"](*given)


def _greatest(x: Term, y: Term) -> Term:
    """Any number, if there is one: the shares do not depend on it."""
    return -sp.oo if x == -sp.oo and y == -sp.oo else sp.log(sp.Symbol("T", positive=True))


def _log(z: Term) -> Term:
    return -sp.oo if z == 0 else sp.log(z)


def _same(a: Term, b: Term) -> bool:
    return _equal(sp.nsimplify(a), b)


class _Number(float):
    """In a kernel's float32: exponentials above its range, and quotients by 0, are infinite."""

    def __sub__(self, other: float) -> _Number:
        return _Number(float(self) - other)

    def __add__(self, other: float) -> _Number:
        return _Number(float(self) + other)

    def __rtruediv__(self, other: float) -> _Number:
        return _Number(other / float(self) if self else inf)


def _choice(condition: Any, one: Any, other: Any) -> Any:
    return one if condition else other


def _exp32(x: float) -> _Number:
    return _Number(inf if x > 88.72 else exp(x))


def _log32(x: float) -> _Number:
    return _Number(-inf if x <= 0 else log(x) if x < inf else inf)


_TERMS: dict[str, Any] = {
    "maximum": _greatest, "minimum": _greatest, "where": _choice, "exp": sp.exp, "log": _log,
}  # fmt: skip
_NUMBERS: dict[str, Any] = {"maximum": max, "minimum": min, "where": _choice, "exp": _exp32, "log": _log32}


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
        divisor = _term(other)
        return _Cell(sp.nan if divisor == 0 else self.term / divisor)

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
