"""Whether the functions of pieces can take what they were called with: partial results, their gradients, and params.

Takes arguments, and for arrays what their library calls them; raises `UsageError` with the name of the argument that
does not fit. Only shapes and dtypes are looked at: nothing waits for a device.
"""

from __future__ import annotations

import numbers
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from attngen.errors import UsageError
from attngen.foreign import answer
from attngen.ir import printing
from attngen.ir.attention import Attention, Param
from attngen.ir.build import index, integer
from attngen.ir.lists import empty_sizes
from attngen.ir.nodes import SIZES, Expr, Literal, Symbol, Type
from attngen.ir.pieces import LONGEST
from attngen.ir.walk import substitute, symbols


@dataclass(frozen=True, slots=True, kw_only=True)
class Checks:
    """Of one kernel, over a library's arrays. `noun`: what messages call them. `is_float`, `is_float32`: of a dtype.
    `packed`: whether rows of sequences may follow one another, without a batch. `heads_inside`: (B, S, H, D), not
    (B, H, S, D). `traced`: whether torch.compile traces this call: it cannot trace a look at the spec."""

    name: str
    kinds: tuple[type[Any], ...]
    noun: str
    is_float: Callable[[Any], bool]
    is_float32: Callable[[Any], bool]
    packed: bool
    heads_inside: bool
    traced: bool = False

    def refuse(self, message: str) -> UsageError:
        return UsageError(f"{self.name}: {message}")

    def check_array(self, name: str, x: Any) -> None:
        if not isinstance(x, self.kinds):
            raise self.refuse(f"{name} must be {self.noun}, not {_kind(x)}")

    def check_float(self, name: str, x: Any) -> None:
        self.check_array(name, x)
        if not self.is_float(x.dtype):
            raise self.refuse(f"{name} must hold floats, not {x.dtype}")

    def check_like(self, name: str, x: Any, shape: Sequence[int], why: str) -> None:
        """`why`: what says that this is the shape."""
        self.check_float(name, x)
        if tuple(x.shape) != tuple(shape):
            raise self.refuse(f"{name} must have shape {tuple(shape)}, {why}, not {tuple(x.shape)}")

    def _check_operands(self, q: Any, k: Any, v: Any) -> None:
        for name, x in (("q", q), ("k", k), ("v", v)):
            self.check_array(name, x)
            if len(x.shape) != 4 and not (self.packed and len(x.shape) == 3):
                raise self.refuse(f"{name} must have {self._dims('head dim')}, not shape {tuple(x.shape)}")

    def check_part(self, out: Any, lse: Any, place: str = "") -> None:
        """A partial or finished result. `place` is put behind the names in messages."""
        self.check_float(f"out{place}", out)
        if len(out.shape) != 4 and not (self.packed and len(out.shape) == 3):
            raise self.refuse(f"out{place} must have {self._dims('head dim of v')}, not shape {tuple(out.shape)}")
        self._check_lse(f"lse{place}", lse, self._lse_shape(out.shape), f"that of out{place} without its head dim")

    def check_parts(self, parts: Any) -> None:
        """What is merged: pairs (out, lse) of the same shapes."""
        if not isinstance(parts, tuple | list):
            raise self.refuse(f"parts must be a list of pairs (out, lse), not {_kind(parts)}")
        found = _values(parts)
        if not found:
            raise self.refuse("merge needs at least one part (out, lse)")
        for i, part in enumerate(found):
            if len(_values(part)) != 2:
                raise self.refuse(f"parts[{i}] must be a pair (out, lse), not {_kind(part)}: parts is a list of pairs")
            out, lse = part
            self.check_part(out, lse, f" of parts[{i}]")
            if tuple(out.shape) != tuple(found[0][0].shape):
                shapes = f"{tuple(found[0][0].shape)}, that of parts[0], not {tuple(out.shape)}"
                raise self.refuse(f"out of parts[{i}] must have shape {shapes}: parts are of the same queries")

    def check_gradient(self, d_out: Any, d_lse: Any, out: Any, lse: Any) -> None:
        self.check_like("d_out", d_out, out.shape, "that of out")
        if d_lse is not None:
            self.check_like("d_lse", d_lse, lse.shape, "that of lse")

    def check_results(self, operands: Sequence[Any], out: Any, lse: Any) -> None:
        """The finished results of a piece's queries."""
        q, _, v = operands
        self.check_like("out", out, (*q.shape[:-1], v.shape[-1]), "q's with the head dim of v")
        self._check_lse("lse", lse, self._lse_shape(q.shape), "q's without its head dim")

    def sizes(self, operands: Sequence[Any]) -> dict[str, int]:
        """Sizes of dense operands, but for their lengths."""
        (B, *q), (_, *v) = operands[0].shape, operands[2].shape
        heads = 1 if self.heads_inside else 0
        return {"B": B, "Hq": q[heads], "Hkv": v[heads], "D": q[-1], "Dv": v[-1]}

    def check_facts(self, spec: Attention, sizes: Mapping[str, int], params: Mapping[str, Any]) -> None:
        """The shapes of params, which are those of the whole sequence, and what the spec assumes of sizes."""
        check_params(spec, {n: x for n, x in params.items() if x is not None}, sizes)
        for fact in spec.assumes:
            here = substitute(fact, {index(n): integer(size) for n, size in sizes.items()})
            if isinstance(here, Literal) and not here.value:
                values = ", ".join(f"{n} = {sizes[n]}" for n in sorted(symbols(fact)))
                raise self.refuse(f"the specification assumes {printing.expression(fact)}; here {values}")

    def check_ends(self, lse: Any, cu_seqlens_q: Any) -> None:
        """Where the sequences of finished packed rows are; None if each row belongs to one."""
        if cu_seqlens_q is None:
            return
        self.check_array("cu_seqlens_q", cu_seqlens_q)
        if len(lse.shape) != 2:
            raise self.refuse("cu_seqlens_q goes with packed rows: out (Tq, Hq, Dv) and lse (Hq, Tq)")
        if len(cu_seqlens_q.shape) != 1 or not cu_seqlens_q.shape[0] or "int" not in str(cu_seqlens_q.dtype):
            raise self.refuse(
                f"cu_seqlens_q must hold ints, shape (B + 1,), not {tuple(cu_seqlens_q.shape)}, {cu_seqlens_q.dtype}"
            )

    def check_sums(self, accumulate: Any, operands: Sequence[Any]) -> None:
        """Where gradients are added to, in place."""
        if len(_values(accumulate)) != 3:
            raise self.refuse(
                f"accumulate must be three float32 {self._plural}, for dq, dk and dv, not {_kind(accumulate)}"
            )
        for i, (name, total, x) in enumerate(zip("qkv", accumulate, operands, strict=True)):
            self.check_like(f"accumulate[{i}]", total, x.shape, f"that of {name}")
            if not self.is_float32(total.dtype):
                raise self.refuse(f"accumulate[{i}] must be float32, not {total.dtype}")
            if getattr(total, "requires_grad", False):
                raise self.refuse(f"accumulate[{i}] must not require a gradient: it is added to in place")
            strides = total.stride() if hasattr(total, "stride") else total.shape
            if any(n > 1 and stride == 0 for n, stride in zip(total.shape, strides, strict=True)):
                raise self.refuse(f"accumulate[{i}] must have memory for each element: clone what was expanded")
        if len({id(total) for total in accumulate}) < 3:
            raise self.refuse(f"accumulate must be three different {self._plural}, for dq, dk and dv")

    def check_piece(self, operands: Sequence[Any], place: Mapping[str, Any], ends: Mapping[str, Any]) -> None:
        """q, k, v and where they are. `place`: q_offset, k_offset, Sq, Sk and more, by name; `ends`: cu_seqlens_q and
        cu_seqlens_k."""
        ends_q, ends_k = ends["cu_seqlens_q"], ends["cu_seqlens_k"]
        if not self.packed and ends_q is not None:
            raise self.refuse("packed pieces are for kernels that were compiled for target triton")
        for name, x in ends.items():
            if x is not None:
                self.check_array(name, x)
        if ends_q is None and ends_k is not None:
            raise self.refuse("cu_seqlens_k goes with cu_seqlens_q: give both, or neither")
        self._check_operands(*operands)
        count = operands[0].shape[0] if ends_q is None else ends_q.shape[0] - 1 if len(ends_q.shape) else 0
        for name, x in place.items():
            self._check_number(name, x, count)
        if ends_q is not None:
            return
        for side, x in zip("qk", operands, strict=False):
            first, rows, size = place[f"{side}_offset"], x.shape[1 if self.heads_inside else 2], place[f"S{side}"]
            if _is_known(first) and _is_known(size) and isinstance(rows, int) and first + rows > size:
                said = f"{rows} rows from {side}_offset = {first} on pass the end of the sequence, S{side} = {size}"
                raise self.refuse(f"{side} does not fit: its {said}")

    def _check_number(self, name: str, x: Any, count: int) -> None:
        """An int, or with dimensions one for each sequence."""
        if getattr(x, "ndim", 0) and isinstance(x, self.kinds):
            if tuple(x.shape) != (count,):
                raise self.refuse(f"{name} must have one int for each sequence, shape ({count},), not {tuple(x.shape)}")
            if "int" not in str(x.dtype):
                raise self.refuse(f"{name} must hold ints, not {x.dtype}")
        elif not is_int(x):
            raise self.refuse(f"{name} must be an int, or {self.noun} with an int for each sequence, not {_number(x)}")
        elif _is_known(x) and not 0 <= x < LONGEST:
            raise self.refuse(f"{name} must be from 0 to {LONGEST - 1}, not {x}")

    def _check_lse(self, name: str, lse: Any, shape: Sequence[int], why: str) -> None:
        self.check_like(name, lse, shape, why)
        if not self.is_float32(lse.dtype):
            raise self.refuse(f"{name} must be float32, not {lse.dtype}")

    def _lse_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Of results by rows of this shape."""
        if len(shape) == 3:
            return (shape[1], shape[0])
        return (shape[0], shape[2], shape[1]) if self.heads_inside else tuple(shape[:3])

    def _dims(self, last: str) -> str:
        order = "length, heads" if self.heads_inside else "heads, length"
        packed = f", or 3 if rows are packed (rows, heads, {last})" if self.packed else ""
        return f"4 dimensions (batch, {order}, {last}){packed}"

    @property
    def _plural(self) -> str:
        return f"{self.noun.split()[-1]}s"


def is_int(x: Any) -> bool:
    """Whether it is an int, of NumPy's or PyTorch's compiler perhaps, or an array without dimensions that holds one."""
    if hasattr(x, "dtype"):
        return getattr(x, "ndim", 0) == 0 and "int" in str(x.dtype)
    return (type(x) is not bool and isinstance(x, numbers.Integral)) or type(x).__name__ == "SymInt"


def _is_known(x: Any) -> bool:
    """Whether it is an int that the host has."""
    return isinstance(x, numbers.Integral)


def check_known(name: str, params: Sequence[Param], given: Iterable[str]) -> None:
    """Whether there are params of these names."""
    known = {p.name for p in params}
    unknown = next((n for n in given if n not in known), None)
    if unknown is not None:
        there = ", ".join(sorted(known)) or "none"
        raise UsageError(f"{name}: no param {unknown!r}; there are {there}{answer(unknown)}")


def check_params(
    spec: Attention, given: Mapping[str, Any], sizes: Mapping[str, int], *, scalars_only: bool = False
) -> dict[str, tuple[int, ...]]:
    """The shapes of the params that are given, whose dims of size 1 are repeated; `sizes` are those that are known."""
    name, known, empty = spec.name, dict(sizes), empty_sizes(spec)
    shapes: dict[str, tuple[int, ...]] = {}
    for p in spec.params:
        if p.name not in given or (scalars_only and p.shape):
            continue
        x, dims = given[p.name], ", ".join(map(printing.expression, p.shape))
        own = tuple(getattr(x, "shape", ()))
        if p.is_scalar:
            if p.type is Type.INT and not (is_int(x) or own):
                raise UsageError(f"{name}: {p.name} must be an int, not {_number(x)}")
            if own or not (hasattr(x, "dtype") or isinstance(x, numbers.Real) or is_int(x)):
                raise UsageError(f"{name}: {p.name} must be one {p.type.value}, not {_shape(x)}")
        elif len(own) != len(p.shape):
            raise UsageError(f"{name}: {p.name} must have {_count(len(p.shape))} ({dims}), not {_shape(x)}")
        else:
            wanted = tuple(_size(d, n, known) for d, n in zip(p.shape, own, strict=True))
            if any(have not in (1, want) for have, want in zip(own, wanted, strict=True)):
                raise UsageError(f"{name}: {p.name} must have shape ({dims}) = {wanted}, not {own}")
            for dim, n in zip(p.shape, own, strict=True):
                if n < 1 and isinstance(dim, Symbol) and dim.id not in {*SIZES, *empty}:
                    raise UsageError(f"{name}: {p.name} must have an element at least along {dim.id}, not shape {own}")
            shapes[p.name] = wanted
    return shapes


def _size(dim: Expr, own: int, known: dict[str, int]) -> int:
    """A dimension's size; where nothing has said it before, the array's own."""
    match dim:
        case Symbol(id=name):
            return known.setdefault(name, own)
        case Literal(value=int(size)):
            return size
        case _:
            return own


def check_stretch(name: str, argument: str, stretch: Any, length: str, size: Any) -> None:
    """A pair start, stop, of a sequence whose length is the argument `length`."""
    if not is_int(size) or size < 0:
        raise UsageError(f"{name}: {length} must be an int from 0 up, not {size!r}")
    pair = _values(stretch)
    if len(pair) != 2 or not all(map(is_int, pair)):
        raise UsageError(f"{name}: {argument} must be a pair of ints (start, stop), not {stretch!r}")
    if min(pair) < 0 or max(pair) > size:
        raise UsageError(f"{name}: {argument} must lie between 0 and {length} = {size}, not be {stretch!r}")


def _count(dims: int) -> str:
    return f"{dims} dimension{'' if dims == 1 else 's'}"


def _number(x: Any) -> str:
    return str(x.dtype) if hasattr(x, "dtype") else repr(x)


def _shape(x: Any) -> str:
    return f"shape {tuple(x.shape)}" if hasattr(x, "shape") else _kind(x)


def _kind(x: Any) -> str:
    name = type(cast(object, x)).__name__
    return f"a {name} of {len(_values(x))}" if isinstance(x, tuple | list) else name


def _values(x: Any) -> Sequence[Any]:
    """Those of a tuple or a list; none of anything else."""
    return cast(Sequence[Any], x) if isinstance(x, tuple | list) else ()
