"""Tunings as a JSON file, one entry a key: what was chosen and what was tried.

Takes `tune.gpu.Tuning`s, gives text; and the other way round. Rows stand by their columns' names, so that a file
outlives a new column that has a default.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, fields
from typing import Any, get_type_hints

from attngen.errors import Source, UsageError
from attngen.files import json_rows
from attngen.plan.chips import SHARED_MEMORY
from attngen.plan.hopper import ApartSkeleton, BackwardSkeleton, Schedule, Skeleton
from attngen.plan.tiles.hopper_trials import KINDS, Row
from attngen.plan.tiles.portable import HEAD_BLOCKS, KERNELS, Tile
from attngen.tune.gpu import WHOLE, Choice, Key, Setting, Trial, Tuning

LARGEST = 4096
"""Of the numbers of a row."""


TARGET = "triton"
"""Whose tiles such a file holds: its first entry says so."""


def dump(tunings: Sequence[Tuning]) -> str:
    return json_rows({"target": TARGET, "tunings": [_entry(t) for t in tunings]})


def _entry(tuning: Tuning) -> dict[str, Any]:
    key, best = tuning.key, tuning.best()
    return {
        "spec": key.spec,
        "card": key.card,
        "chip": key.chip,
        "dtype": key.dtype,
        "head_block": key.head_block,
        "sizes": dict(key.sizes),
        **({} if best is None else _chosen(best)),
        "trials": [
            {"kernel": t.kernel, **listed(t.setting), **({"ms": t.ms} if t.ms is not None else {"refused": t.refused})}
            for t in tuning.trials
        ],
    }


def _chosen(best: Choice) -> dict[str, Any]:
    """For who reads the file; `load` takes the trials."""
    tiles = {name: tile for name in KERNELS if isinstance(tile := getattr(best, name), Tile)}
    rows: dict[str, Any] = {"forward": best.forward.row} if isinstance(best.forward, Skeleton) else {}
    match best.backward:
        case BackwardSkeleton():
            rows["backward"] = best.backward.row
        case ApartSkeleton(dkdv, dq):
            rows |= {"dkdv": dkdv.row, "dq": dq.row}
        case None if best.portable:
            rows["backward"] = "portable"
        case None:
            pass
    return {"tiles": {name: list(tile) for name, tile in tiles.items()}, **({"rows": rows} if rows else {})}


def listed(setting: Setting) -> dict[str, Any]:
    """A trial's tile, or its row."""
    if setting is None or isinstance(setting, Tile):
        return {"tile": setting and list(setting)}
    return {"row": asdict(setting)}


def load(file: Source) -> tuple[Tuning, ...]:
    """What `dump` wrote. Raises `UsageError`, naming the file, for anything else."""
    try:
        read: dict[str, Any] = json.loads(file.text)
        if read["target"] != TARGET:
            raise ValueError("its tiles are not for GPUs")
        return tuple(_tuning(entry) for entry in read["tunings"])
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise UsageError(
            f"{file.name} is no file that `attngen tune --target triton` wrote: {type(error).__name__} {error}"
        ) from error


def _tuning(entry: Mapping[str, Any]) -> Tuning:
    chip, head_block = str(entry["chip"]), int(entry["head_block"])
    if chip not in SHARED_MEMORY or head_block not in HEAD_BLOCKS:
        raise ValueError(f"no tiles for {chip!r}, head dims up to {head_block}")
    sizes = tuple((str(name), int(size)) for name, size in entry["sizes"].items())
    key = Key(str(entry["spec"]), str(entry["card"]), chip, str(entry["dtype"]), head_block, sizes)
    return Tuning(key, tuple(_trial(trial) for trial in entry["trials"]))


def _trial(entry: Mapping[str, Any]) -> Trial:
    kernel, ms = str(entry["kernel"]), entry.get("ms")
    if "row" in entry:
        setting = _row(kernel, entry["row"])
    else:
        setting = None if entry["tile"] is None else Tile(*(int(n) for n in entry["tile"]))
        if kernel not in (WHOLE if setting is None else KERNELS):
            raise ValueError(f"no kernel {kernel!r} {'without' if setting is None else 'with'} a tile")
        if setting is not None and not setting.usable:
            raise ValueError(f"no tile {list(setting)}")
    return Trial(kernel, setting, None if ms is None else float(ms), str(entry.get("refused", "")))


def _row(kernel: str, entry: Mapping[str, Any]) -> Row:
    if kernel not in KINDS:
        raise ValueError(f"no kernel {kernel!r} with a row")
    kind = KINDS[kernel]
    columns = {f.name for f in fields(kind)}
    needed = {f.name for f in fields(kind) if f.default is MISSING}
    if not needed <= entry.keys() <= columns:
        raise ValueError(f"no row of {kernel} with {', '.join(sorted(entry))}")
    types = get_type_hints(kind)
    return kind(**{name: _cell(types[name], name, value) for name, value in entry.items()})


def _cell(kind: type, name: str, value: Any) -> Any:
    """Of the type that the column has."""
    if kind is Schedule:
        return Schedule(value)
    if type(value) is not kind or not 0 <= value <= LARGEST:
        raise ValueError(f"{name} is no {value!r}")
    return value
