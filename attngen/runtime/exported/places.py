"""Where a piece of a longer sequence is, and its params with an element for each row of the whole sequence."""

from __future__ import annotations

import numbers
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn


class PiecePlace(NamedTuple):
    """Where a piece is. `numbers`: q_offset, k_offset, Sq, Sk, h_offset, b_offset; each is an int, or a tensor with a
    number for each sequence."""

    numbers: tuple[Any, ...]
    cu_seqlens_q: Any = None
    cu_seqlens_k: Any = None
    dropout_seed: Any = None

    @property
    def packed(self) -> bool:
        return self.cu_seqlens_q is not None

    @property
    def each(self) -> bool:
        """Whether sequences may have different numbers."""
        return self.packed or any([bool(getattr(x, "ndim", 0)) for x in self.numbers])


def over_rows(
    params: Mapping[str, Any],
    rows: Mapping[str, tuple[str, ...]],
    lengths: Mapping[str, Any],
    refuse: Callable[[str], NoReturn],
    repeat: Callable[[Any, Sequence[int]], Any],
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The params, of which one element for all rows of a sequence is repeated, and the lengths of sequences.

    `rows`: of params with an element for each row, "Sq" or "Sk" by axis, and "" for other axes. To such a param, a
    sequence without rows has one row, of which its pieces have none. `repeat` gives an array another shape; if it has
    no elements, zeros of that shape.
    """
    found, known = dict(params), dict(lengths)
    for name, axes in rows.items():
        shape = tuple(getattr(params.get(name), "shape", ()))
        if len(shape) != len(axes):
            continue  # the piece refuses it
        wanted: list[int] = list(shape)
        for i, axis in enumerate(axes):
            if axis and shape[i] <= 1:
                length = lengths[axis]
                if not isinstance(length, numbers.Integral):
                    if shape[i] == 1:
                        refuse(f"{name} has one element for all of {axis}: give {axis} as an int, or {name} whole")
                elif shape[i] == 1 or length == 0:
                    wanted[i] = max(1, int(length))
        if tuple(wanted) != shape:
            found[name] = repeat(params[name], wanted)
    for axes in rows.values():
        for axis in axes:
            if axis and isinstance(known[axis], numbers.Integral) and known[axis] == 0:
                known[axis] = 1
    return found, known
