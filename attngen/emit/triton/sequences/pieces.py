"""The host's functions for pieces of longer sequences, in a file that has kernels of pieces.

Takes the plan and the spec of the whole, and its pieces; returns the source of a module that is joined to theirs
(`text.joined`). The functions are those of `attngen.pieces` and `attngen.visits`, with what those look up written out.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from attngen.emit.text.names import Names
from attngen.emit.text.params import ParamView, views
from attngen.emit.text.render import render
from attngen.emit.torch_shared import expressions as host_expressions
from attngen.emit.torch_shared.calls import RUNTIME
from attngen.emit.torch_shared.own_term import own_lines, readable_term, size_text
from attngen.emit.triton.code.names import reserved
from attngen.errors import UsageError
from attngen.ir.attention import Attention, Param
from attngen.ir.build import index
from attngen.ir.nodes import Expr, Load, Symbol, Type
from attngen.ir.pieces import Piece, row_axes, uncounted
from attngen.ir.rounded import varies
from attngen.ir.walk import params as read_params, symbols, transform
from attngen.plan.kernel import KernelPlan
from attngen.plan.mask.segments import Segment

Lines = tuple[str, ...]

_PLACE = (
    *(f"{name}: int | Tensor" for name in ("q_offset", "k_offset", "Sq", "Sk")),
    *(f"{name}: Tensor | None = None" for name in ("cu_seqlens_q", "cu_seqlens_k")),
)
_PLACED = ("q_offset", "k_offset", "Sq", "Sk", "h_offset", "b_offset")
_OPTIONS = (
    *(f"{name}: int | Tensor = 0" for name in ("h_offset", "b_offset")),
    "scale: float | Tensor | None = None",
    "dropout_seed: int | Tensor | None = None",
)
_ARGUMENTS = frozenset(
    {*_PLACED, "cu_seqlens_q", "cu_seqlens_k", "out", "lse", "d_out", "d_lse", "accumulate", "q_range", "k_range"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PieceFileView:
    """Names and lines of the file's functions of pieces. `given`: all params by name, as a dict. `stretches`: where the
    plan's are, `any` and `all`, if they are known. `knows`: arguments of the runtime's `Pieces`; `looks`: of `Visits`.
    """

    name: str
    forward: bool
    # signatures
    place: Lines
    placed: str
    keywords: Lines
    options: Lines
    given: str
    own_options: str
    host_keywords: str
    packed_doc: str
    # what the runtime calls
    own_lines: Lines
    mask_lines: Lines
    size_lines: Lines
    mask: str
    stretches: Lines
    # what is registered
    knows: Lines
    looks: Lines


def pieces_module(spec: Attention, plan: KernelPlan, pieces: dict[str, Piece], *, forward: bool) -> str:
    """`pieces`: by the ending of their modules, `_piece` and perhaps `_each`."""
    view = _view(spec, plan, pieces, forward=forward)
    return render("pieces/module.py.j2", {"pieces": view})


def endings(pieces: Iterable[str], *, forward: bool) -> Lines:
    """Of the public functions' names."""
    later = () if forward else ("_partial_backward", "_finish_backward")
    return ("_partial", "_merge", "_finish", *later, "_visits", "_work")


def _view(spec: Attention, plan: KernelPlan, pieces: dict[str, Piece], *, forward: bool) -> PieceFileView:
    clash = next((p.name for p in spec.params if p.name in _ARGUMENTS), None)
    if clash is not None:
        raise UsageError(f"the param `{clash}` has the name of an argument of the geometry pieces: rename it")
    params = views(spec, Names(reserved() | set(spec.sizes)))
    piece = pieces["_piece"]
    read = tuple(p.name for p in piece.own.params if p.name not in piece.numbers)
    term = readable_term(spec.name, plan.weights)
    in_term = () if term is None else read_params(term)
    finish = _keywords(params, in_term)
    at_visits = _keywords(params, ())
    known = not _unknown(spec)
    solved = known and not _reads_rows(spec, plan)
    return PieceFileView(
        name=spec.name,
        forward=forward,
        place=_PLACE,
        placed=f"({', '.join(_PLACED)})",
        keywords=_keywords(params, read),
        options=_OPTIONS,
        given="{" + ", ".join(f'"{p.keyword}": {p.keyword}' for p in params) + "}",
        own_options="".join(f", {x}" for x in finish),
        host_keywords="".join(f", {x}" for x in ("*", *at_visits)) if at_visits else "",
        packed_doc=_PACKED_DOC if "_each" in pieces else "The four numbers are the same for all sequences.",
        own_lines=() if term is None else own_lines(spec, term, refuse="_attention.refuse", calls=RUNTIME),
        mask_lines=_mask_lines(spec),
        size_lines=_size_lines(spec),
        mask=host_expressions.torch(spec.mask, _names(spec, plan, "queries", "keys")) if known else "",
        stretches=(_ends(spec, plan, plan.keys.any), _ends(spec, plan, plan.keys.all)) if solved else (),
        knows=_knows(spec, piece, read, each="_each" in pieces, term=term is not None),
        looks=(*(("_setting", "_allowed") if known else ()), *(("_stretches",) if solved else ())),
    )


_PACKED_DOC = (
    "Tensors are (B, H, S, D), or packed with cu_seqlens_q. The numbers may be int32 tensors, one for each sequence."
)


def _keywords(params: tuple[ParamView, ...], required: Iterable[str]) -> Lines:
    needed = {*required}
    return tuple(f"{p.keyword}: {p.public_annotation}{'' if p.keyword in needed else ' | None = None'}" for p in params)


def _knows(spec: Attention, piece: Piece, read: Lines, *, each: bool, term: bool) -> Lines:
    """Arguments of the runtime's `Pieces`, after those that say how it refuses a call."""
    rows = [f"    {name!r}: {axes!r}," for name, axes in row_axes(spec).items() if name in read]
    whole: list[str] = []
    for name, why in uncounted(spec).items():
        first, *more = map(repr, textwrap.wrap(why, 100, drop_whitespace=False))
        whole += [f"    {_PLACED.index(name)}: {first}", *(f"    {x}" for x in more)]
        whole[-1] += ","
    found = (
        f"piece=_{spec.name}_piece",
        f"numbers={piece.numbers!r}",
        *((f"each=_{spec.name}_each", f"packed=_{spec.name}_varlen_each") if each else ()),
        *(() if spec.normalizer.sums else ("sums=False",)),
        *(("draws=True",) if spec.dropout is not None else ()),
        *(("own_term=_own_term",) if term else ()),
    )
    return (
        *(f"{x}," for x in found),
        *(("read=(", *(f"    {x!r}," for x in read), "),") if read else ()),
        *(("rows={", *rows, "},") if rows else ()),
        *(("whole={", *whole, "},") if whole else ()),
    )


# ---------------------------------------------------------------- which pairs matter


_OF_INDEX = {"b": "B", "h": "Hq", "hkv": "Hkv"}
_AS = {Type.INT: "long", Type.FLOAT: "float"}


def _mask_lines(spec: Attention) -> Lines:
    read = read_params(spec.mask)
    if not read:
        return ()
    return (
        f"params = {{n: None if params[n] is None else torch.as_tensor(params[n]) for n in {read!r}}}",
        'if any(x is None or x.device.type != "cpu" for x in params.values()):',
        "    return None",
        *(f'params["{n}"] = params["{n}"].{_AS[t]}()' for n in read if (t := spec.param(n).type) in _AS),
    )


def _mask_sizes(spec: Attention) -> list[tuple[str, str, int]]:
    """(size, param, dimension) of what the mask reads, but for Sq and Sk."""
    read = read_params(spec.mask)
    return [
        (d.id, p.name, i)
        for p in spec.params
        if p.name in read
        for i, d in enumerate(p.shape)
        if isinstance(d, Symbol) and d.id not in ("Sq", "Sk")
    ]


def _unknown(spec: Attention) -> bool:
    """Whether the mask reads a size that no param of it has, or floats that a kernel may round otherwise."""
    if varies(spec.mask):
        return True
    wanted = {_OF_INDEX.get(name, name) for name in symbols(spec.mask)} & {"B", "Hq", "Hkv", "D", "Dv"}
    return bool(wanted - {size for size, _, _ in _mask_sizes(spec)})


def _size_lines(spec: Attention) -> Lines:
    found = _mask_sizes(spec)
    sizes = dict.fromkeys(size for size, _, _ in found)
    lengths = {
        own: ", ".join(f'params["{param}"].shape[{i}]' for size, param, i in found if size == own) for own in sizes
    }
    lines = [f'size["{size}"] = {f"max({text})" if ", " in text else text}' for size, text in lengths.items()]
    for p in spec.params:
        if p.name in read_params(spec.mask) and p.shape:  # dims of size 1 are repeated
            names = {d.id: f'int(size["{d.id}"])' for d in p.shape if isinstance(d, Symbol)}
            lines.append(f'params["{p.name}"] = params["{p.name}"].expand({_dims(p, names)})')
    apart = [f'size["{size}"]' for size in sizes if size in _told_apart(spec.mask, spec)]
    if apart:
        lines += [f"if 1 in ({', '.join(apart)},):  # perhaps one element for all of them", "    return None"]
    return tuple(lines)


def _told_apart(mask: Expr, spec: Attention) -> frozenset[str]:
    """The sizes whose number matters to the mask, even where params have one element for all of an axis."""

    def of_cell(e: Expr) -> Expr | None:
        if not isinstance(e, Load):
            return None
        own = spec.param(e.param).axes(e)
        kept = [i for i, d in own if not (isinstance(i, Symbol) and d == index(_OF_INDEX.get(i.id, "")))]
        member = e.member and transform(e.member, of_cell)
        return replace(e, indices=tuple(transform(i, of_cell) for i in kept), member=member)

    return frozenset(_OF_INDEX.get(name, name) for name in symbols(transform(mask, of_cell)))


def _dims(param: Param, names: Mapping[str, str]) -> str:
    """The dims that its dims of size 1 are expanded to; `names` has the sizes that are known."""
    return ", ".join(size_text(d, names) for d in param.shape)


def _reads_rows(spec: Attention, plan: KernelPlan) -> bool:
    """Whether the mask reads data of rows, which the plan's stretches do not know."""
    read = read_params(spec.mask)
    return bool(plan.keys.tests) or any(
        symbols(d) & {"Sq", "Sk"} for p in spec.params if p.name in read for d in p.shape
    )


def _names(spec: Attention, plan: KernelPlan, queries: str, keys: str) -> dict[str, str]:
    sizes = {*spec.sizes, *plan.attention.sizes, "B", "Hq", "Hkv", "Sq", "Sk", "D", "Dv", "b", "h", "hkv"}
    renamed = dict(zip(plan.attention.sizes, spec.sizes, strict=True))
    found = {name: f'size["{renamed.get(name, name)}"]' for name in sizes}
    found |= {p.name: f'params["{p.name}"]' for p in spec.params}
    return {
        **found,
        "q": queries,
        "q0": queries,
        "q1": queries,
        "k": keys,
        "device": '"cpu"',
        "element": "host.element_at",
        "listed": "host.list_holds",
    }


def _ends(spec: Attention, plan: KernelPlan, stretches: Iterable[Segment]) -> str:
    names = _names(spec, plan, "queries", "keys")
    texts = [f"({host_expressions.torch(s.lo, names)}, {host_expressions.torch(s.hi, names)})" for s in stretches]
    return f"({', '.join(texts)}{',' if len(texts) == 1 else ''})"
