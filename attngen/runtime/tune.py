"""Tile sizes by timing on the GPU that is here: every kernel of a generated file at every candidate, the fastest kept.

Takes a way to time one kernel at one tile; gives a `Trial` for each, and a `Tuning` of what is known, which is written
to and read from a JSON file, one entry for each card, dtype and shape. What was tried is not tried again, so a tuning
that was stopped goes on where it stopped.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from attngen.errors import Source, UsageError
from attngen.plan.tiles import HEAD_BLOCKS, KERNELS, SHARED_MEMORY, Tile, shared_bytes

GRID = tuple(
    Tile(queries, keys, warps, stages)
    for queries in (64, 128)
    for keys in (32, 64, 128)
    for warps in (4, 8)
    for stages in (1, 2, 3)
)


@dataclass(frozen=True, slots=True)
class Trial:
    """One kernel at one tile; without one, the forward kernel that the chip has for itself, as it is."""

    kernel: str
    tile: Tile | None
    ms: float | None = None
    refused: str = ""


@dataclass(frozen=True, slots=True)
class Key:
    """What a choice of tiles is for. `chip` and `head_block` are what a generated file looks its tiles up by."""

    spec: str
    """sha256 of the spec's text and constants."""
    card: str
    chip: str
    dtype: str
    head_block: int
    sizes: tuple[tuple[str, int], ...]

    def shape(self) -> str:
        return " ".join(f"{name}={size}" for name, size in self.sizes)


@dataclass(frozen=True, slots=True)
class Choice:
    """The fastest tile of each kernel; no `forward` where the chip's own forward kernel is faster than any."""

    forward: Tile | None
    dkdv: Tile
    dq: Tile


@dataclass(frozen=True, slots=True)
class Tuning:
    """All that is known for one key, in the order in which it was tried."""

    key: Key
    trials: tuple[Trial, ...] = ()

    def tried(self, kernel: str, tile: Tile | None) -> bool:
        return any((t.kernel, t.tile) == (kernel, tile) for t in self.trials)

    def ranked(self, kernel: str) -> list[Trial]:
        """Those that ran, the fastest first."""
        return sorted((t for t in self.trials if t.kernel == kernel and t.ms is not None), key=lambda t: t.ms or 0.0)

    def best(self) -> Choice | None:
        """None before every kernel has run at some tile."""
        forward, dkdv, dq = (self.ranked(kernel)[:1] for kernel in KERNELS)
        if not (forward and dkdv and dq) or dkdv[0].tile is None or dq[0].tile is None:
            return None
        return Choice(forward[0].tile, dkdv[0].tile, dq[0].tile)

    def with_trial(self, trial: Trial) -> Tuning:
        return Tuning(self.key, (*self.trials, trial))


class LostError(RuntimeError):
    """The device is gone with the kernel that was tried: nothing more can be timed in this process."""


Timer = Callable[[str, Tile | None], float]
"""Milliseconds of a kernel at a tile (for dK/dV and dQ of the whole backward pass). Raises the two errors here."""


class RefusedError(Exception):
    """The compiler or the card refuses this tile, or its results are wrong; the message says which."""


def candidates(
    own: Mapping[str, Tile], key: Key, *, own_forward: bool, own_backward: bool = False
) -> list[tuple[str, Tile | None]]:
    """(kernel, tile) of everything worth a trial: the file's own tiles first, then what fits the chip and does not
    surely spill. `own_forward`, `own_backward`: the chip has a kernel of its own for these dims; where that is the
    backward pass, dK/dV and dQ keep the file's tiles, which calls do not take."""
    found: list[tuple[str, Tile | None]] = [("forward", None)] if own_forward else []
    itemsize = 4 if key.dtype == "fp32" else 2
    for kernel in KERNELS:
        room = SHARED_MEMORY[key.chip] * 1024
        fitting = (
            tile
            for tile in (GRID if kernel == "forward" or not own_backward else ())
            if accumulators(kernel, tile, key.head_block) <= 320
            and shared_bytes(kernel, tile, key.chip, itemsize, key.head_block) <= room
        )
        found += [(kernel, tile) for tile in dict.fromkeys([own[kernel], *fitting])]
    return found


def accumulators(kernel: str, tile: Tile, head_block: int) -> float:
    """float32 values that a thread holds at once, at the least; it has 255 registers, some of which serve twice."""
    queries, keys, warps, _ = tile
    held = 2 * keys * head_block if kernel == "dkdv" else queries * head_block
    return (held + queries * keys) / (32 * warps)


def trials(tuning: Tuning, waiting: Sequence[tuple[str, Tile | None]], timer: Timer) -> Iterator[Trial | None]:
    """One for each candidate, in order: None where it was tried before. Ends with a kernel that takes the device along,
    which is noted, so that the next run passes it by."""
    for kernel, tile in waiting:
        if tuning.tried(kernel, tile):
            yield None
            continue
        try:
            yield Trial(kernel, tile, ms=timer(kernel, tile))
        except RefusedError as reason:
            yield Trial(kernel, tile, refused=str(reason))
        except LostError as reason:
            yield Trial(kernel, tile, refused=f"the device was lost: {reason}")
            return


# ---------------------------------------------------------------- the file


def dump(tunings: Sequence[Tuning]) -> str:
    """JSON: one entry a key, with what it chose and what was tried."""
    return json.dumps({"target": "triton", "tunings": [_entry(t) for t in tunings]}, indent=1) + "\n"


def _entry(tuning: Tuning) -> dict[str, Any]:
    key, best = tuning.key, tuning.best()
    chosen = {} if best is None else {"tiles": {name: _listed(getattr(best, name)) for name in KERNELS}}
    return {
        "spec": key.spec,
        "card": key.card,
        "chip": key.chip,
        "dtype": key.dtype,
        "head_block": key.head_block,
        "sizes": dict(key.sizes),
        **chosen,
        "trials": [
            {
                "kernel": t.kernel,
                "tile": _listed(t.tile),
                **({"ms": t.ms} if t.ms is not None else {"refused": t.refused}),
            }
            for t in tuning.trials
        ],
    }


def _listed(tile: Tile | None) -> list[int] | None:
    return None if tile is None else list(tile)


def load(file: Source) -> tuple[Tuning, ...]:
    """What `dump` wrote. Raises `UsageError`, naming the file, for anything else."""
    try:
        read: dict[str, Any] = json.loads(file.text)
        if read["target"] != "triton":
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
    tile = None if entry["tile"] is None else Tile(*(int(n) for n in entry["tile"]))
    if kernel not in KERNELS or (tile is None and kernel != "forward"):
        raise ValueError(f"no kernel {kernel!r} without a tile")
    if tile is not None and not _usable(tile):
        raise ValueError(f"no tile {list(tile)}")
    return Trial(kernel, tile, None if ms is None else float(ms), str(entry.get("refused", "")))


def _usable(tile: Tile) -> bool:
    sizes = all(16 <= n <= 512 and n & (n - 1) == 0 for n in (tile.queries, tile.keys))
    return sizes and tile.warps in (1, 2, 4, 8, 16) and 1 <= tile.stages <= 8
