"""Tile sizes by the compiler's own schedule: every kernel of a generated file at every candidate, the fastest kept.

Takes a way to compile the file at given tiles; returns a `Trial` for each, and a `Tuning` of what is known, which is
written to and read from a JSON file, one entry for each chip, dtype and shape. What was tried is not tried again.
Cycles are estimates (`estimate.CAVEATS`): they choose between tiles of one kernel, and are no TPU's times.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from attngen.errors import Source, UsageError
from attngen.files import json_rows
from attngen.tpu.compile import Compiled, Refused
from attngen.tpu.estimate import estimate

Tile: TypeAlias = tuple[int, int, int]
"""(queries, keys, full tiles at a time)."""
KERNELS = ("forward", "dkdv", "dq")
"""In the order in which a generated file lists their tiles."""
_FUNCTIONS = {
    "_forward_kernel": "forward",
    "_forward_across_kernel": "forward",
    "_dkdv_kernel": "dkdv",
    "_dq_kernel": "dq",
    "_backward_kernel": "dkdv",  # dQ as well, in one kernel that takes the tiles of dK/dV
}

FORWARD: tuple[Tile, ...] = (
    *((512, 512, unroll) for unroll in (1, 2, 4)),
    *((1024, 512, unroll) for unroll in (1, 2, 4)),
    *((512, 1024, unroll) for unroll in (1, 2, 4)),
    *((1024, 1024, unroll) for unroll in (1, 2, 4)),
    *((256, 512, unroll) for unroll in (2, 4)),
)
BACKWARD: tuple[Tile, ...] = (
    (512, 512, 1),
    (512, 512, 2),
    (512, 1024, 1),
    (1024, 512, 1),
    (1024, 1024, 1),
    (256, 512, 1),
    (512, 256, 1),
)


@dataclass(frozen=True, slots=True)
class Trial:
    """One compilation: forward alone, or forward at the first candidate and the backward kernels at `tile`."""

    backward: bool
    tile: Tile
    cycles: tuple[tuple[str, int], ...] = ()
    refused: str = ""


@dataclass(frozen=True, slots=True)
class Key:
    """What a choice of tiles is for."""

    spec: str
    """sha256 of the spec's text and constants."""
    chip: str
    dtype: str
    sizes: tuple[tuple[str, int], ...]

    def shape(self) -> str:
        return " ".join(f"{name}={size}" for name, size in self.sizes)


@dataclass(frozen=True, slots=True)
class Tuning:
    """All that is known for one key, in the order in which it was tried."""

    key: Key
    trials: tuple[Trial, ...] = field(default=())

    def tried(self, backward: bool, tile: Tile) -> bool:
        return any(t.backward == backward and t.tile == tile for t in self.trials)

    def ranked(self, kernel: str) -> list[tuple[int, Tile]]:
        """(cycles, tile) of every trial of this kernel, the fastest first."""
        wanted = kernel != "forward"
        found = [(c, t.tile) for t in self.trials if t.backward == wanted for k, c in t.cycles if k == kernel]
        return sorted(found)

    def best(self) -> tuple[Tile, Tile, Tile] | None:
        """The fastest tile of each of `KERNELS`, or None before they have one; dK/dV's for a dQ kernel that isn't."""
        forward, dkdv, dq = (self.ranked(kernel)[:1] for kernel in KERNELS)
        if not (forward and dkdv):
            return None
        return forward[0][1], dkdv[0][1], (dq or dkdv)[0][1]

    def with_trial(self, trial: Trial) -> Tuning:
        return Tuning(self.key, (*self.trials, trial))


def candidates(sizes: Mapping[str, int]) -> list[tuple[bool, Tile]]:
    """(backward, tile) of everything worth a trial: tiles longer than the sequences need are left out."""
    rows, columns = _needed(sizes["Sq"]), _needed(sizes["Sk"])
    found = [(backward, tile) for backward, tiles in ((False, FORWARD), (True, BACKWARD)) for tile in tiles]
    clipped = [(b, (min(q, rows), min(k, columns), unroll)) for b, (q, k, unroll) in found]
    return list(dict.fromkeys(clipped))


def _needed(length: int) -> int:
    return max(128, 1 << max(length - 1, 0).bit_length())


def trials(
    tuning: Tuning, compile_at: Callable[[bool, tuple[Tile, Tile, Tile]], Compiled | Refused]
) -> Iterator[Trial | None]:
    """One for each candidate, in order: None where it was tried before."""
    waiting = candidates(dict(tuning.key.sizes))
    first = next(tile for backward, tile in waiting if not backward)
    for backward, tile in waiting:
        if tuning.tried(backward, tile):
            yield None
            continue
        outcome = compile_at(backward, (first if backward else tile, tile, tile))
        if isinstance(outcome, Refused):
            yield Trial(backward, tile, refused=outcome.reason())
            continue
        kernels = estimate(outcome).pallas
        cycles = tuple((_FUNCTIONS[k.function], round(k.cycles)) for k in kernels if k.function in _FUNCTIONS)
        yield Trial(backward, tile, cycles)


# ---------------------------------------------------------------- the file


def dump(tunings: Sequence[Tuning]) -> str:
    """JSON: one entry a key, with what it chose and what was tried."""
    return json_rows({"tunings": [_entry(t) for t in tunings]})


def _entry(tuning: Tuning) -> dict[str, Any]:
    key, best = tuning.key, tuning.best()
    chosen = {} if best is None else {"tiles": dict(zip(KERNELS, best, strict=True))}
    return {
        "spec": key.spec,
        "chip": key.chip,
        "dtype": key.dtype,
        "sizes": dict(key.sizes),
        **chosen,
        "trials": [
            {"backward": t.backward, "tile": t.tile, **dict(t.cycles), **({"refused": t.refused} if t.refused else {})}
            for t in tuning.trials
        ],
    }


def load(file: Source) -> tuple[Tuning, ...]:
    """What `dump` wrote. Raises `UsageError`, naming the file, for anything else."""
    try:
        entries: list[dict[str, Any]] = json.loads(file.text)["tunings"]
        return tuple(_tuning(entry) for entry in entries)
    except (ValueError, TypeError, KeyError) as error:
        raise UsageError(f"{file.name} is no file that `attngen tune` wrote: {error}") from error


def _tuning(entry: Mapping[str, Any]) -> Tuning:
    sizes = tuple((str(name), int(size)) for name, size in entry["sizes"].items())
    key = Key(str(entry["spec"]), str(entry["chip"]), str(entry["dtype"]), sizes)
    return Tuning(key, tuple(_trial(trial) for trial in entry["trials"]))


def _trial(entry: Mapping[str, Any]) -> Trial:
    queries, keys, unroll = (int(n) for n in entry["tile"])
    cycles = tuple((kernel, int(entry[kernel])) for kernel in KERNELS if kernel in entry)
    return Trial(bool(entry["backward"]), (queries, keys, unroll), cycles, str(entry.get("refused", "")))
