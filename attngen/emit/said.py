"""What a generated file was made with, in the words of its head: `words` writes them, and `read` reads them back.

Takes options, consts and a tile, gives the words behind `# options:`; and the other way round. A word is NAME=VALUE, or
a name alone. A const may be called as an option is: its value is a number or a bool, which no option's is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace

from attngen.emit.options import Options, Tuned, TunedGpu
from attngen.plan.chips import SHARED_MEMORY
from attngen.plan.hopper import ApartSkeleton, BackwardSkeleton, DkdvSkeleton, DqSkeleton, Skeleton
from attngen.plan.tiles.hopper_trials import KINDS, Row, fits
from attngen.plan.tiles.portable import HEAD_BLOCKS, Tile
from attngen.vocabulary import TPUS, Const

Pair = tuple[int, int]
_OWN, _PORTABLE = "own", "portable"
_CONST = re.compile(r"True|False|-?(inf|\d+(\.\d+)?(e[+-]\d+)?)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """`options` has the file's tile, whether the spec, the target or a caller chose it; `consts` are all of the
    spec's."""

    options: Options
    consts: tuple[tuple[str, Const], ...] = ()


# ---------------------------------------------------------------- written


def words(
    options: Options, consts: Iterable[tuple[str, Const]], tile: Pair | None, *, precision: bool = True
) -> list[str]:
    """`tile`: the file's. `precision`: whether the target has a choice of it."""
    found = [f"target={options.target}"]
    found += [f"precision={options.precision}"] if precision else []
    found += [f"{name}={value}" for name, value in consts]
    found += [f"tile={_crossed(tile)}"] if tile else []
    found += [f"arch={options.arch}"] if options.arch != "auto" else []
    found += [f"head_dim={options.head_dim[0]}/{options.head_dim[1]}"] if options.head_dim else []
    found += [f"dtype={options.dtype}"] if options.dtype else []
    found += ["forward"] if options.forward else []
    found += [f"geometry={','.join(options.geometry)}"] if options.geometry != ("dense",) else []
    found += [f"tuned={_gpu(t)}" for t in options.tuned_gpu]
    found += [f"tuned={_tpu(t)}" for t in options.tuned]
    return found


def _crossed(numbers: Iterable[int | bool | str]) -> str:
    return "x".join(str(int(n)) if isinstance(n, bool) else str(n) for n in numbers)


def _tpu(tuned: Tuned) -> str:
    tiles = "/".join(_crossed(tile) for tile in (tuned.forward, tuned.dkdv, tuned.dq))
    return f"{tuned.chip}/{8 * tuned.itemsize}:{tiles}"


def _gpu(tuned: TunedGpu) -> str:
    tiles = "/".join(_crossed(tile) if tile else _OWN for tile in (tuned.forward, tuned.dkdv, tuned.dq))
    return f"{tuned.chip}/{8 * tuned.itemsize}/{tuned.head_block}:{tiles}{_rows(tuned)}"


def _rows(tuned: TunedGpu) -> str:
    """What was chosen of a chip's own kernels."""
    found: list[str] = []
    if tuned.row is not None:
        found.append(f"forward:{_crossed(tuned.row.row)}")
    match tuned.backward:
        case BackwardSkeleton():
            found.append(f"backward:{_crossed(tuned.backward.row)}")
        case ApartSkeleton(dkdv, dq):
            found += [f"dkdv:{_crossed(dkdv.row)}", f"dq:{_crossed(dq.row)}"]
        case None:
            found += [f"backward:{_PORTABLE}"] if tuned.portable else []
    return f"/{_crossed(tuned.dims)}/{'/'.join(found)}" if found else ""


# ---------------------------------------------------------------- read


def read(text: str) -> Said:
    """What `words` says, joined by blanks. Raises ValueError, with the word, where it says nothing."""
    consts: list[tuple[str, Const]] = []
    found: dict[str, str] = {}
    tuned: list[Tuned | TunedGpu] = []
    for word in text.split():
        name, equals, value = word.partition("=")
        if equals and name.isidentifier() and _CONST.fullmatch(value):
            if any(name == known for known, _ in consts):
                raise ValueError(f"the const {name} is there twice")
            consts.append((name, _const(value)))
        elif name == "tuned" and equals:
            tuned.append(_tuned(word, value))
        elif name in found:
            raise ValueError(f"{name} is there twice")
        elif (name == "forward") != bool(equals) and name in _OPTIONS:
            found[name] = value
        else:
            raise ValueError(f"{word!r} is no option")
    if "target" not in found:
        raise ValueError("target=… is missing")
    options = Options(
        target=found["target"],
        precision=found.get("precision", "ieee"),
        tile=_pair("tile", found.get("tile"), "x"),
        arch=found.get("arch", "auto"),
        head_dim=_pair("head_dim", found.get("head_dim"), "/"),
        dtype=found.get("dtype"),
        forward="forward" in found,
        geometry=tuple(found.get("geometry", "dense").split(",")),
        tuned=tuple(t for t in tuned if isinstance(t, Tuned)),
        tuned_gpu=tuple(t for t in tuned if isinstance(t, TunedGpu)),
    )
    return Said(options=options, consts=tuple(consts))


_OPTIONS = {f.name for f in fields(Options)} - {"tuned", "tuned_gpu"}


def _const(value: str) -> Const:
    if value in ("True", "False"):
        return value == "True"
    return int(value) if re.fullmatch(r"-?\d+", value) else float(value)


def _pair(name: str, value: str | None, between: str) -> Pair | None:
    if value is None:
        return None
    found = re.fullmatch(rf"(\d{{1,4}}){between}(\d{{1,4}})", value)
    if found is None:
        raise ValueError(f"'{name}={value}' has no two numbers")
    return int(found[1]), int(found[2])


def _numbers(text: str) -> tuple[int, ...]:
    if not re.fullmatch(r"\d{1,5}(x\d{1,5})*", text):
        raise ValueError(f"{text} has no numbers")
    return tuple(map(int, text.split("x")))


def _tuned(word: str, value: str) -> Tuned | TunedGpu:
    where, _, what = value.partition(":")
    try:
        match where.split("/"):
            case [chip, "16" | "32" as bits] if chip in TPUS:
                return _tuned_tpu(chip, int(bits) // 8, what.split("/"))
            case [chip, "16" | "32" as bits, block] if chip in SHARED_MEMORY and block in map(str, HEAD_BLOCKS):
                return _tuned_gpu(TunedGpu(chip, int(bits) // 8, int(block)), what.split("/"))
            case _:
                raise ValueError(f"there are no tiles of {where}")
    except ValueError as error:
        raise ValueError(f"{word!r} are no tiles: {error}") from error


def _tuned_tpu(chip: str, itemsize: int, parts: list[str]) -> Tuned:
    tiles = [_numbers(part) for part in parts if part]
    match tiles:
        case [(a, b, c), (d, e, f), (g, h, i)] if all(n > 0 for tile in tiles for n in tile):
            return Tuned(chip, itemsize, (a, b, c), (d, e, f), (g, h, i))
        case _:
            raise ValueError("a TPU has three, of three numbers")


def _tuned_gpu(tuned: TunedGpu, parts: list[str]) -> TunedGpu:
    if len(parts) not in (3, 5, 6, 7):
        raise ValueError("a GPU has three, and perhaps head dims and rows")
    forward, dkdv, dq = (None if part == _OWN else _four(part) for part in parts[:3])
    tuned = replace(tuned, forward=forward, dkdv=dkdv, dq=dq)
    if len(parts) == 3:
        return tuned
    dims = _numbers(parts[3])
    if len(dims) != 2:
        raise ValueError(f"{parts[3]} are no two head dims")
    given = dict(part.split(":", 1) for part in parts[4:] if ":" in part)
    portable = given.get("backward") == _PORTABLE
    rows = {kernel: _row(kernel, cells, dims) for kernel, cells in given.items() if cells != _PORTABLE}
    tuned = replace(tuned, dims=dims, portable=portable)
    match rows.get("forward"), rows.get("backward"), rows.get("dkdv"), rows.get("dq"):
        case Skeleton() | None as row, BackwardSkeleton() | None as both, None, None:
            found = replace(tuned, row=row, backward=both)
        case Skeleton() | None as row, None, DkdvSkeleton() as own_dkdv, DqSkeleton() as own_dq:
            found = replace(tuned, row=row, backward=ApartSkeleton(own_dkdv, own_dq))
        case _:
            raise ValueError("dkdv and dq go together, without backward")
    if _rows(found) != f"/{'/'.join(parts[3:])}":
        raise ValueError(f"{'/'.join(parts[4:])} are no rows")
    return found


def _four(part: str) -> tuple[int, int, int, int]:
    match _numbers(part):
        case (queries, keys, warps, stages) if Tile(queries, keys, warps, stages).usable:
            return queries, keys, warps, stages
        case _:
            raise ValueError(f"{part} is no tile")


def _row(kernel: str, cells: str, dims: Pair) -> Row:
    if kernel not in KINDS:
        raise ValueError(f"no kernel {kernel} has rows")
    row = KINDS[kernel].read(cells.split("x"))
    if not fits(row, dims):
        raise ValueError(f"the chip has no room for the row of {kernel}")
    return row
