"""The laws of streaming that hold for every normalizer: states merge as a monoid, and the extra term is one more key.

Takes nothing, returns the steps of each derivation, which sympy has checked (once a process). What a spec or a plan
must satisfy for a lemma to speak of it is checked in `streaming`.
"""

from __future__ import annotations

import itertools
from functools import lru_cache

from attngen.errors import InternalError
from attngen.prove.algebra.sympy_door import Term, same, sp
from attngen.prove.budget.work import Work

_State = tuple[frozenset[int], Term, Term]
"""(which states' maxima the reference is the max of; sum; accumulator). The empty set is the reference -inf."""

_EMPTY: _State = (frozenset(), sp.Integer(0), sp.Integer(0))


def _rescale(old: frozenset[int], new: frozenset[int]) -> Term:
    """rescale(m, n) for references m = max of `old`, n = max of `new`.

    A cocycle with rescale(m, m) = 1 is g(n) / g(m), with g(n) = rescale(0, n). From -inf the kernel's factor is
    exp2(-inf) = 0; so it is from -inf to -inf, where the guard puts 0 for the new reference.
    """
    if not old:
        return sp.Integer(0)
    return _g(new) / _g(old)


def _g(reference: frozenset[int]) -> Term:
    return sp.Symbol("g" + "".join(map(str, sorted(reference))), positive=True)


def _merged(x: _State, y: _State) -> _State:
    reference = x[0] | y[0]
    a, b = _rescale(x[0], reference), _rescale(y[0], reference)
    return reference, x[1] * a + y[1] * b, x[2] * a + y[2] * b


def _equal(x: _State, y: _State) -> bool:
    return x[0] == y[0] and same(x[1], y[1], Work()) and same(x[2], y[2], Work())


@lru_cache(maxsize=1)
def monoid() -> tuple[str, ...]:
    """Merging states (m, sum, acc) is associative and commutative, with (-inf, 0, 0) as identity."""
    full = [(frozenset({i}), sp.Symbol(f"l{i}"), sp.Symbol(f"a{i}")) for i in range(3)]
    for empty in itertools.product((False, True), repeat=3):
        x, y, z = (_EMPTY if none else state for none, state in zip(empty, full, strict=True))
        sound = (
            _equal(_merged(_merged(x, y), z), _merged(x, _merged(y, z)))
            and _equal(_merged(x, y), _merged(y, x))
            and _equal(_merged(_EMPTY, x), x)
        )
        if not sound:
            raise InternalError(f"merging states is no monoid with {empty} of them empty")
    return (
        "a state is (m, l, a); x + y has m = max(m1, m2), l = l1 rescale(m1, m) + l2 rescale(m2, m), and so a",
        "rescale is a cocycle with rescale(m, m) = 1, so rescale(m, n) = g(n) / g(m) with g(n) = rescale(0, n) > 0",
        "from m = -inf: exp2(factor (-inf - n)) = 0 as factor > 0; to n = -inf as well: the guard puts n = 0, again 0",
        "identity: (-inf, 0, 0) + x = (m, 0 * 0 + l g(m) / g(m), ...) = x, and for x = (-inf, 0, 0) too",
        "commutative: max and + are",
        "associative: both ways give l1 g(M) / g(m1) + l2 g(M) / g(m2) + l3 g(M) / g(m3), M the max of all three;",
        "checked in the 8 cases of which of the three states are (-inf, 0, 0)",
    )


@lru_cache(maxsize=1)
def addition() -> tuple[str, ...]:
    """Without a reference point, states (sum, acc) are added."""
    return (
        "a state is (l, a); merging adds them: associative, commutative, identity (0, 0)",
        "there is no reference point, so nothing is rescaled and no state is -inf",
    )


@lru_cache(maxsize=1)
def merged_extra() -> tuple[str, ...]:
    """log E merged as the logit of one more key without a value gives acc / (sum + E), and lse = log(sum + E)."""
    z, a, e = (sp.Symbol(name, positive=True) for name in ("Z", "A", "E"))
    y, top = sp.Symbol("y", real=True), sp.Symbol("M", real=True)
    ln2 = sp.Symbol("ln2", positive=True)

    def exp2(x: Term) -> Term:
        return sp.exp(sp.expand(x * ln2))

    row_sum, acc = z * sp.exp(-y), a * sp.exp(-y)
    total, extra = y / ln2, sp.log(e) / ln2
    moved = exp2(total - top)
    row_sum, acc = row_sum * moved + exp2(extra - top), acc * moved
    if not (same(acc / row_sum, a / (z + e), Work()) and same(exp2(top) * row_sum, z + e, Work())):
        raise InternalError("the extra term does not merge as a key")
    return (
        "with Z = sum weight(s), A = sum weight(s) v and y = kappa m: row_sum = Z exp(-y), acc = A exp(-y)",
        "total = y log2 e, extra = log2 E, M = max(total, extra); factors 2**(total - M) and 2**(extra - M)",
        "row_sum' = (Z + E) 2**-M, acc' = A 2**-M, so acc' / row_sum' = A / (Z + E)",
        "lse = (M + log2 row_sum') ln 2 = log(Z + E)",
        "E = 0: extra = -inf and 2**(-inf - M) = 0; no key met: total = -inf, and 2**(-inf - M) = 0",
    )


@lru_cache(maxsize=4)
def lagging(slack: int, lead: int) -> tuple[str, ...]:
    """A finite reference r that stays while sums of weights are at most 2**slack, and else becomes n = max(r, t - d), t
    the tile's maximum and d f = lead; f > 0."""
    r, n = sp.symbols("r n", real=True)
    f, z, w = sp.symbols("f Z w", positive=True)
    ln2 = sp.Symbol("ln2", positive=True)

    def exp2(e: Term) -> Term:
        return sp.exp(sp.expand(e * ln2))

    moved = z * exp2(-r * f) * exp2((r - n) * f) + w * exp2(-n * f)
    if not same(moved, (z + w) * exp2(-n * f), Work()):
        raise InternalError("a reference that lags does not give the same sums")
    below = f"t - d), d f = {lead}" if lead else "t)"
    return (
        f"weights are tried with the r there is, and made again where a sum of a row is not at most {2**slack}, as "
        "NaN is not: what is tried may be anything",
        f"it stays: no weight is negative and no sum of a row's passes {2**slack}, so none does; nothing is rescaled",
        f"it becomes n = max(r, {below}: rescale's exponent is (r - n) f <= 0, and weights' are (x - n) f <= {lead}, "
        "since x <= t",
        "whatever r is: row_sum = Z 2**(-r f), and so acc; rescaled by 2**((r - n) f) it is Z 2**(-n f), so with n;",
        "the quotient and lse do not depend on it",
        f"when it moves, the key that has the maximum t has weight exp2({lead}) = {2**lead}; rescaling only lessens "
        "what came before",
    )


@lru_cache(maxsize=1)
def backward() -> tuple[str, ...]:
    """The loss's derivative in one weight, in the extra term, and so in what they depend on.

    out . d_out and lse enter a row's loss as L = sum_j c_j w_j / Z + e log Z with Z = sum_j w_j + E, c_j = d_out . v_j
    and e = d_lse. One weight is singled out; the others are C = sum c_j w_j and R = sum w_j.
    """
    w, c, others, rest, extra, e = sp.symbols("w c C R E e", positive=True)
    z = w + rest + extra
    loss = (c * w + others) / z + e * sp.log(z)
    delta = (c * w + others) / z - e
    if not (same(sp.diff(loss, w), (c - delta) / z, Work()) and same(sp.diff(loss, extra), -delta / z, Work())):
        raise InternalError("the gradient of a row's loss is not (dp - delta) / denominator")
    return (
        "L = sum_j c_j w_j / Z + d_lse log Z, Z = sum_j w_j + E, c_j = d_out . v_j",
        "dL/dw_i = (c_i - delta) / Z with delta = sum_j c_j w_j / Z - d_lse = d_out . out - d_lse",
        "dL/dE = -delta / Z, so dL/d log E = -delta E / Z",
        "w = exp(natural): dL/d natural = p (dp - delta), p = w / Z; else dL/ds = (dw/ds / Z) (dp - delta)",
        "without a sum in the denominator Z = 1 and dL/dw_i = c_i",
    )
