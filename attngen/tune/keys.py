"""Tiles that are tuned: for what they are chosen, how a TPU's are tried, and which of a file are for a spec.

Takes a spec, its attention and sizes, returns keys, trials, and rows for the tables of a generated file. Trying,
ranking and the files themselves are the business of `tune.gpu` and `tune.tpu`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from attngen.errors import Source, UsageError
from attngen.ir.attention import Attention

if TYPE_CHECKING:
    from attngen.emit import Tuned, TunedGpu
    from attngen.tpu.compile import Outcome
    from attngen.tune.gpu import Choice, Key as GpuKey
    from attngen.tune.tpu import Key, Trial, Tuning

# ---------------------------------------------------------------- TPUs


def tune(source: str, spec: Attention, tuning: Tuning) -> Iterator[Trial | None]:
    """Compiles a spec's Pallas `source` at every candidate tile that `tuning` lacks: see `attngen.tune.tpu`."""
    from attngen.tpu.compile import compile_for, require
    from attngen.tpu.programs import Tiles, request_for
    from attngen.tune.tpu import trials

    require()
    key = tuning.key

    def compile_at(backward: bool, tiles: Tiles) -> Outcome:
        request = request_for(
            source,
            spec,
            chip=key.chip,
            dtype=key.dtype,
            sizes=dict(key.sizes),
            backward=backward,
            tiles=tiles,
        )
        return compile_for(request)

    return trials(tuning, compile_at)


def tpu_key(source: Source, spec: Attention, chip: str, dtype: str, sizes: Mapping[str, int]) -> Key:
    """What tiles are tuned for: a spec's text with its constants, a chip, a dtype and a shape."""
    from attngen.tune.tpu import Key

    return Key(_variant(source, spec), chip, dtype, tuple(sizes.items()))


def tpu_tiles(source: Source, spec: Attention, file: Source, sizes: Mapping[str, int]) -> tuple[Tuned, ...]:
    """The tiles in a `file` that `attngen tune` wrote, for this spec and the sizes that are given."""
    from attngen.emit import Tuned
    from attngen.tune.tpu import load

    found: dict[tuple[str, int], Tuned] = {}
    shapes: dict[tuple[str, int], str] = {}
    for tuning in load(file):
        key, best = tuning.key, tuning.best()
        if key.spec != _variant(source, spec) or best is None:
            continue
        if any(dict(key.sizes).get(size, value) != value for size, value in sizes.items()):
            continue
        row = key.chip, 4 if key.dtype == "fp32" else 2
        if row in found:
            raise UsageError(
                f"{file.name} has tiles of {key.chip} for several shapes: {shapes[row]}, and {key.shape()}; "
                "say which with `shape=`"
            )
        found[row], shapes[row] = Tuned(*row, *best), key.shape()
    if not found:
        raise UsageError(f"{file.name} has no tiles for this spec and shape; tune it first, with attngen tune")
    return tuple(found.values())


# ---------------------------------------------------------------- GPUs


def gpu_key(
    source: Source, spec: Attention, card: str, row: tuple[str, int, int], dtype: str, sizes: Mapping[str, int]
) -> GpuKey:
    """What tiles are timed for: a spec's text with its constants, a card and the row of tiles it takes, a shape."""
    from attngen.tune.gpu import Key as GpuKey

    return GpuKey(_variant(source, spec), card, row[0], dtype, row[2], tuple(sizes.items()))


def gpu_tiles(source: Source, spec: Attention, file: Source, sizes: Mapping[str, int]) -> tuple[TunedGpu, ...]:
    """The tiles and rows in a `file` that `attngen tune --target triton` wrote, for this spec and the sizes given."""
    from attngen.tune.gpu_file import load

    found: dict[tuple[str, int, int], TunedGpu] = {}
    said: dict[tuple[str, int, int], str] = {}
    for tuning in load(file):
        key, best = tuning.key, tuning.best()
        if key.spec != _variant(source, spec) or best is None:
            continue
        if any(dict(key.sizes).get(size, value) != value for size, value in sizes.items()):
            continue
        row = key.chip, 4 if key.dtype == "fp32" else 2, key.head_block
        if row in found:
            raise UsageError(
                f"{file.name} has tiles of {row[0]} for {said[row]}, and for {key.card}, {key.dtype}, {key.shape()}; "
                "say which with `shape=`, or keep a file for each card"
            )
        found[row] = _tuned_gpu(file, row, dict(key.sizes), best)
        said[row] = f"{key.card}, {key.dtype}, {key.shape()}"
    if not found:
        raise UsageError(f"{file.name} has no tiles for this spec and shape; tune it first, with attngen tune")
    return tuple(found.values())


def _tuned_gpu(file: Source, row: tuple[str, int, int], sizes: Mapping[str, int], best: Choice) -> TunedGpu:
    """Raises `UsageError` for a row that does not fit the chip: the file may be another version's."""
    from attngen.emit import TunedGpu
    from attngen.plan.hopper import ApartSkeleton, BackwardSkeleton, Skeleton
    from attngen.plan.tiles.hopper_trials import Row, fits, rounded
    from attngen.plan.tiles.portable import Tile

    def four(tile: object) -> tuple[int, int, int, int] | None:
        return (tile.queries, tile.keys, tile.warps, tile.stages) if isinstance(tile, Tile) else None

    tiles = four(best.forward), four(best.dkdv), four(best.dq)
    forward = best.forward if isinstance(best.forward, Skeleton) else None
    rows: list[Row] = [forward] if forward is not None else []
    match best.backward:
        case BackwardSkeleton():
            rows.append(best.backward)
        case ApartSkeleton(dkdv, dq):
            rows += [dkdv, dq]
        case None:
            if not rows and not best.portable:
                return TunedGpu(*row, *tiles)
    try:
        dims = rounded((sizes["D"], sizes["Dv"]))
    except KeyError:
        raise UsageError(f"{file.name} has rows for head dims that it does not name") from None
    for chosen in rows:
        if not fits(chosen, dims):
            raise UsageError(f"{file.name} has a row that does not fit {row[0]}: {chosen.row}; tune anew")
    return TunedGpu(*row, *tiles, dims, forward, best.backward, best.portable)


def _variant(source: Source, spec: Attention) -> str:
    from attngen.cache import digest

    return digest(f"{source.text}\n{spec.consts}")
