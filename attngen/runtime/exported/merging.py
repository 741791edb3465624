"""How parts of a result are merged and finished, over the arrays of any library: PyTorch's tensors, JAX's arrays.

A part has `out` and `lse` of the same queries over keys of its own. lse is the logarithm of the part's denominator, so
a part's share of a whole is exp(own lse - whole lse). attngen's prover executes these functions as they stand here.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

PART = tuple[Any, Any]  # out and lse


@dataclass(frozen=True)
class Arrays:
    """A library's functions. `heads_inside`: heads are behind rows in out, (…, S, H, Dv), while lse is (…, H, S)."""

    exp: Callable[[Any], Any]
    where: Callable[[Any, Any, Any], Any]
    logaddexp: Callable[[Any, Any], Any]
    heads_inside: bool

    def beside(self, x: Any) -> Any:
        """Numbers like lse beside rows like out's."""
        return (x.swapaxes(-1, -2) if self.heads_inside else x)[..., None]

    def sums(self, x: Any) -> Any:
        """The sum of each row like out's, like lse."""
        total = x.sum(-1)
        return total.swapaxes(-1, -2) if self.heads_inside else total

    def share(self, lse: Any, whole: Any) -> Any:
        return self.where(lse == float("-inf"), 0.0, self.exp(lse - whole))

    def shares(self, terms: Sequence[Any]) -> tuple[list[Any], Any]:
        """Each term's share of the whole, from logarithms, and the whole's logarithm. Shares are divided by their sum:
        it is 1, but for the rounding of the whole's logarithm, which a peaked row multiplies in its gradients."""
        whole = reduce(self.logaddexp, terms)
        shares = [self.share(term, whole) for term in terms]
        total = reduce(operator.add, shares)
        total = self.where(total == 0.0, 1.0, total)
        return [share / total for share in shares], whole

    def merged(self, parts: Sequence[PART], *, sums: bool) -> PART:
        """Of one part or more. `sums`: whether the normalizer divides; without, results add up."""
        if not sums:
            return reduce(operator.add, [out for out, _ in parts]), parts[0][1]
        shares, lse = self.shares([own for _, own in parts])
        rows = [out * self.beside(share) for (out, _), share in zip(parts, shares, strict=True)]
        return reduce(operator.add, rows), lse

    def finished(self, part: PART, own: Any) -> PART:
        """`own`: the logarithm of the denominator's own term, like lse."""
        out, lse = part
        (share, _), whole = self.shares((lse, own))
        return out * self.beside(share), whole

    def own_slope(self, cotangents: tuple[Any, Any], whole: PART, own: Any) -> Any:
        """The gradient of `own` from those of the finished results; that of lse may be None."""
        d_out, d_lse = cotangents
        out, lse = whole
        slope = -self.sums(d_out * out)
        return self.share(own, lse) * (slope if d_lse is None else slope + d_lse)
