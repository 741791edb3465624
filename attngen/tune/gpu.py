"""Tile sizes by timing on the GPU that is here: every kernel of a generated file at every candidate, the fastest kept.

A candidate is a tile of a portable kernel, or a row of the tables of compute capability 9.0. Takes a way to time one
kernel at one candidate; returns a `Trial` for each, and a `Tuning` of what is known, which `tune.gpu_file` writes and
reads, one entry for each card, dtype and shape. What was tried is not tried again, so a tuning that was stopped goes on
where it stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from attngen.plan.chips import SHARED_MEMORY
from attngen.plan.hopper import ApartSkeleton, BackwardSkeleton, DkdvSkeleton, DqSkeleton, Skeleton
from attngen.plan.tiles.hopper_trials import Row, Rows, first_round, second_round
from attngen.plan.tiles.portable import KERNELS, Tile, shared_bytes

GRID = tuple(
    Tile(queries, keys, warps, stages)
    for queries in (64, 128)
    for keys in (32, 64, 128)
    for warps in (4, 8)
    for stages in (1, 2, 3)
)


LOST = "the device was lost"
"""How the note of a trial begins that took the device along."""

Setting = Tile | Row | None
Candidate = tuple[str, Setting]
"""A kernel, and how it is launched. `forward`, `dkdv` and `dq` have tiles, where the portable ones run, or rows;
`backward` has rows alone. Without a setting: `portable` is the portable kernels of the backward pass at the file's own
tiles, where the chip has kernels of its own for it; `forward`, in files of before, such a kernel at the file's own row.
"""
WHOLE = ("forward", "portable")
"""What may come without a setting."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One candidate: its milliseconds, or why it has none."""

    kernel: str
    setting: Setting
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
    """The fastest of each kernel. What is None stays as the file has it. With a tile, `forward` is the portable kernel,
    which then takes the place of the chip's own; `portable`: those of the backward pass do.
    """

    forward: Tile | Skeleton | None = None
    dkdv: Tile | None = None
    dq: Tile | None = None
    backward: BackwardSkeleton | ApartSkeleton | None = None
    portable: bool = False


@dataclass(frozen=True, slots=True)
class Tuning:
    """All that is known for one key, in the order in which it was tried."""

    key: Key
    trials: tuple[Trial, ...] = ()

    def tried(self, kernel: str, setting: Setting) -> bool:
        return any((t.kernel, t.setting) == (kernel, setting) for t in self.trials)

    def ranked(self, kernel: str) -> list[Trial]:
        """Those that ran, the fastest first."""
        return sorted((t for t in self.trials if t.kernel == kernel and t.ms is not None), key=lambda t: t.ms or 0.0)

    def times(self, kernel: str) -> dict[Row, float]:
        """Milliseconds of the rows that ran, the fastest first."""
        rows = ((t.setting, t.ms) for t in self.ranked(kernel))
        return {row: ms for row, ms in rows if isinstance(row, Row) and ms is not None}

    def tiles(self, kernel: str) -> list[Tile]:
        """Those that ran, the fastest first."""
        return [t.setting for t in self.ranked(kernel) if isinstance(t.setting, Tile)]

    def best(self) -> Choice | None:
        """None before some candidate of each pass has run."""
        forward = self.ranked("forward")[:1]
        backward = self._backward()
        if not forward or backward is None:
            return None
        setting = forward[0].setting
        return replace(backward, forward=setting if isinstance(setting, Tile | Skeleton) else None)

    def _backward(self) -> Choice | None:
        rows = {kernel: self.times(kernel) for kernel in ("backward", "dkdv", "dq")}
        fused = [r for r in rows["backward"] if isinstance(r, BackwardSkeleton)]
        by_keys = [r for r in rows["dkdv"] if isinstance(r, DkdvSkeleton)]
        by_rows = [r for r in rows["dq"] if isinstance(r, DqSkeleton)]
        if fused or (by_keys and by_rows):
            least = min(ms for times in rows.values() for ms in times.values())
            portable = self.ranked("portable")
            if portable and (portable[0].ms or 0.0) < least:
                return Choice(portable=True)
            return Choice(backward=fused[0] if fused else ApartSkeleton(by_keys[0], by_rows[0]))
        dkdv, dq = self.tiles("dkdv"), self.tiles("dq")
        return Choice(dkdv=dkdv[0], dq=dq[0]) if dkdv and dq else None

    def with_trial(self, trial: Trial) -> Tuning:
        return Tuning(self.key, (*self.trials, trial))


class LostError(RuntimeError):
    """The device is gone with the kernel that was tried, or waits for it for good: nothing more can be timed here."""


Timer = Callable[[str, Setting], float]
"""Milliseconds of a candidate, of the whole backward pass for all but `forward`. Raises the two errors here."""


class RefusedError(Exception):
    """The compiler or the card refuses this candidate, or its results are wrong; the message says which."""


Round = Callable[["Tuning"], list[Candidate]]
"""What is to be tried, in view of what was."""


def rounds(own: Mapping[str, Tile], key: Key, rows: Rows, *, tiles: bool = True) -> tuple[tuple[str, Round], ...]:
    """What is tried in turn, each with a word for it: rows, rows put together by their times, then tiles.

    `own` has the file's own tiles, `rows` the rows that it launches for these head dims. Where the chip has kernels of
    its own for the backward pass, calls take no tiles there, and none are tried; without `tiles`, nor are they forward.
    """
    portable: list[Candidate] = [("portable", None)] if rows.own_backward else []
    forward, backward = tiles or rows.forward is None, not rows.own_backward
    return (
        ("rows", lambda tuning: [*first_round(rows), *portable]),
        ("rows put together", lambda tuning: [*second_round(rows, tuning.times)]),
        ("tiles", lambda tuning: [*candidates(own, key, forward=forward, backward=backward)]),
    )


def candidates(
    own: Mapping[str, Tile], key: Key, *, forward: bool = True, backward: bool = True
) -> list[tuple[str, Tile]]:
    """(kernel, tile) of the portable kernels of either pass: the file's own tiles first, then what fits the chip and
    does not surely spill."""
    found: list[tuple[str, Tile]] = []
    itemsize = 4 if key.dtype == "fp32" else 2
    room = SHARED_MEMORY[key.chip] * 1024
    for kernel in KERNELS:
        if not (forward if kernel == "forward" else backward):
            continue
        fitting = (
            tile
            for tile in GRID
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


def trials(tuning: Tuning, waiting: Sequence[Candidate], timer: Timer) -> Iterator[Trial | None]:
    """One for each candidate, in order: None where it was tried before. Ends with a kernel that takes the device along,
    which is noted, so that the next run passes it by."""
    for kernel, setting in waiting:
        if tuning.tried(kernel, setting):
            yield None
            continue
        try:
            yield Trial(kernel, setting, ms=timer(kernel, setting))
        except RefusedError as reason:
            yield Trial(kernel, setting, refused=str(reason))
        except LostError as reason:
            yield Trial(kernel, setting, refused=f"{LOST}: {reason}")
            return
