"""The host's functions for pieces of longer sequences, in a file that has kernels of pieces.

Takes the plan and the spec of the whole, and its pieces; returns the source of a module that is joined to theirs
(`text.joined`). The functions are those of `attngen.pieces` and `attngen.visits`, with what those look up written out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from attngen.emit.text.names import Names
from attngen.emit.text.params import ParamView, views
from attngen.emit.text.prune import without_unused
from attngen.emit.text.render import render
from attngen.emit.torch_shared import expressions as host_expressions
from attngen.emit.torch_shared.own_term import own_lines, size_text
from attngen.emit.triton.code.names import reserved
from attngen.errors import UsageError
from attngen.ir.attention import Attention, Param
from attngen.ir.nodes import Expr, Load, Symbol, Type
from attngen.ir.pieces import Piece
from attngen.ir.rounded import varies
from attngen.ir.walk import params as read_params
from attngen.ir.walk import symbols, transform
from attngen.part_sums import readable_term, uncounted
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
_MERGED = (
    "def _merged(parts):",
    "    shares, lse = _shares([own for _, own in parts])",
    "    return functools.reduce(torch.add, (out * _beside(x) for (out, _), x in zip(parts, shares))), lse",
)
_ADDED = ("def _merged(parts):", "    return functools.reduce(torch.add, (out for out, _ in parts)), parts[0][1]")


@dataclass(frozen=True, slots=True, kw_only=True)
class PieceFileView:
    """Names and lines of the host's functions. `read`: params that a piece reads. `given`: all params by name, as a
    dict. `function`: that of pieces with one number for all sequences; `each_lines`: others. `stretches`: where the
    plan's are, `any` and `all`."""

    name: str
    numbers: Lines
    read: Lines
    # signatures
    place: Lines
    placed: str
    keywords: Lines
    options: Lines
    given: str
    own_options: str
    host_keywords: str
    # lines
    packed_doc: str
    merge_lines: Lines
    own_lines: Lines
    offset_lines: Lines
    seed_lines: Lines
    row_lines: Lines
    function: str
    each_lines: Lines
    templates: Lines
    # the backward pass
    outputs: str
    # which pairs matter
    mask_lines: Lines
    size_lines: Lines
    mask: str
    stretches: tuple[str, str]
    count_lines: Lines


def pieces_module(spec: Attention, plan: KernelPlan, pieces: dict[str, Piece], *, forward: bool) -> str:
    """`pieces`: by the ending of their modules, `_piece` and perhaps `_each`."""
    view = _view(spec, plan, pieces, forward=forward)
    return without_unused(render("pieces/module.py.j2", {"pieces": view}))


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
    sums = spec.normalizer.sums
    solved = not _reads_rows(spec, plan)
    return PieceFileView(
        name=spec.name,
        numbers=piece.numbers,
        read=read,
        place=_PLACE,
        placed=f"({', '.join(_PLACED)})",
        keywords=_keywords(params, read),
        options=_OPTIONS,
        given="{" + ", ".join(f'"{p.keyword}": {p.keyword}' for p in params) + "}",
        own_options="".join(f", {x}" for x in finish),
        host_keywords="".join(f", {x}" for x in ("*", *at_visits)) if at_visits else "",
        packed_doc=_PACKED_DOC if "_each" in pieces else "The four numbers are the same for all sequences.",
        merge_lines=_MERGED if sums else _ADDED,
        own_lines=own_lines(spec, term, "host.element_at"),
        offset_lines=_offset_lines(spec),
        seed_lines=_seed_lines(spec),
        row_lines=_row_lines(spec, piece, read),
        function=f"_{spec.name}_piece",
        each_lines=_each_lines(spec.name) if "_each" in pieces else (_NOT_EACH,),
        templates=tuple(
            f"pieces/{name}.py.j2" for name in ("backward", "visits") if not (forward and name == "backward")
        ),
        outputs=_outputs(sums=sums),
        mask_lines=_mask_lines(spec),
        size_lines=_size_lines(spec),
        mask=host_expressions.torch(spec.mask, _names(spec, plan, "queries", "keys")),
        stretches=(_ends(spec, plan, plan.keys.any), _ends(spec, plan, plan.keys.all)) if solved else ("()", "()"),
        count_lines=("return None",) if _unknown(spec) else (*_KNOWN, *(_SOLVED if solved else _LOOKED_AT)),
    )


_PACKED_DOC = (
    "Tensors are (B, H, S, D), or packed with cu_seqlens_q. The numbers may be int32 tensors, one for each sequence."
)
_NOT_EACH = (
    '_refuse("packed pieces, and numbers for each sequence, need a file with the geometries packed and pieces, of a '
    'spec without params that have an element for each row")'
)


def _keywords(params: tuple[ParamView, ...], required: Iterable[str]) -> Lines:
    needed = {*required}
    return tuple(f"{p.keyword}: {p.public_annotation}{'' if p.keyword in needed else ' | None = None'}" for p in params)


def _row_lines(spec: Attention, piece: Piece, read: Lines) -> Lines:
    """To params with an element for each row, a sequence without rows has one row, of which the piece has none."""
    lengths = {"Sq": "place.numbers[2]", "Sk": "place.numbers[3]"}
    lines: list[str] = []
    found: set[str] = set()
    for p in spec.params:
        sizes = [d.id if isinstance(d, Symbol) and d.id in lengths else "" for d in p.shape]
        if p.name in read and any(sizes):
            found |= {*sizes} - {""}
            dims = ", ".join(lengths.get(size, "None") for size in sizes)
            lines.append(f'given["{p.name}"] = _over_rows(given["{p.name}"], {dims})')
    for size, name in zip(("Sq", "Sk"), piece.numbers[2:4], strict=True):
        if size in found:
            lines.append(f'numbers["{name}"] = numbers["{name}"] or 1')
    return tuple(lines)


def _seed_lines(spec: Attention) -> Lines:
    if spec.dropout is None:
        return ()
    return (
        "if place.dropout_seed is None:",
        '    _refuse("dropout_seed is missing: all pieces of a call draw from the same one")',
    )


def _each_lines(name: str) -> Lines:
    return (
        "ends = place.cu_seqlens_q",
        "count = operands[0].shape[0] if ends is None else ends.numel() - 1",
        "for n, x in numbers.items():",
        "    if not (isinstance(x, Tensor) and x.dim()):",
        "        numbers[n] = torch.full((count,), x, dtype=torch.int32, device=operands[0].device)",
        "if ends is None:",
        f"    return _{name}_each(*operands, **given, **numbers, **more)",
        f"return _{name}_varlen_each(*operands, **given, **numbers, **more, cu_seqlens_q=ends, "
        "cu_seqlens_k=place.cu_seqlens_k)",
    )


def _outputs(*, sums: bool) -> str:
    out = "own[:1], (d_out.to(own[0].dtype),)"
    return f"({out}) if d_lse is None else (own, (d_out.to(own[0].dtype), d_lse))" if sums else out


# ---------------------------------------------------------------- the denominator's own term


def _offset_lines(spec: Attention) -> Lines:
    """Heads and sequences that the spec counts are those of the whole."""
    found: list[str] = []
    for name, why in uncounted(spec).items():
        number = f"place.numbers[{_PLACED.index(name)}]"
        found += [f"if isinstance({number}, Tensor) or {number} != 0:", f'    _refuse("{why}")']
    return tuple(found)


# ---------------------------------------------------------------- which pairs matter


_OF_INDEX = {"b": "B", "h": "Hq", "hkv": "Hkv"}
_KNOWN = (
    "found = _setting(Sq, Sk, params)",
    "if found is None:",
    "    return None",
    "queries = torch.arange(*q_range).reshape(1, 1, -1, 1)",
    "area = queries.numel() * (k_range[1] - k_range[0])",
)
_SOLVED = (
    "size, own = found",
    "some, every = _stretches(queries, size, own)",
    "least, most = _covered(every, k_range), _covered(some, k_range)",
    "if area > _MOST_PAIRS or bool((least == most).all()):",
    "    return least, most",
    "exact = _by_pairs(queries, k_range, size, own)",
    "return exact, exact",
)
_LOOKED_AT = (
    "if area > _MOST_PAIRS:",
    "    return None",
    "exact = _by_pairs(queries, k_range, *found)",
    "return exact, exact",
)


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
        own = zip(e.indices, spec.param(e.param).dim_names, strict=True)
        kept = [i for i, d in own if not (isinstance(i, Symbol) and _OF_INDEX.get(i.id, "") == d)]
        return replace(e, indices=tuple(transform(i, of_cell) for i in kept))

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
    }


def _ends(spec: Attention, plan: KernelPlan, stretches: Iterable[Segment]) -> str:
    names = _names(spec, plan, "queries", "keys")
    texts = [f"({host_expressions.torch(s.lo, names)}, {host_expressions.torch(s.hi, names)})" for s in stretches]
    return f"({', '.join(texts)}{',' if len(texts) == 1 else ''})"
