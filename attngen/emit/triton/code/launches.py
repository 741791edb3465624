"""Launches of kernels as values: what the host code of a Triton module is made of.

A kernel's parameters are found by name among the values of a call, so a launch says only what it brings itself. Texts
are Python expressions of the host; `templates/triton/host/` lays them out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from attngen.emit.triton.code.test_views import TestView


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """`constants` are those of the kernel and of Triton, as keywords. `tiles`: the rows of the tiles in which a
    descriptor reads a tensor, where `tiled` holds (always, if empty). `scalars`: values by name. `buffers`: shapes and
    dtypes of tensors that are allocated first. `counters`: names and numbers of ints that the kernel clears for later
    ones; `zeroed`: it does not, and gets zeros. `names`: what a parameter takes that has another name. `own`: it is one
    of compute capability 9.0; `ragged`: its descriptors are of sequences' rows; `narrow`: it reads 8-bit floats.
    """

    kernel: str
    grid: str
    constants: tuple[str, ...]
    tiles: tuple[str, ...] = ()
    tiled: str = ""
    scalars: tuple[str, ...] = ()
    buffers: tuple[str, ...] = ()
    counters: str = ""
    zeros: tuple[str, ...] = ()
    zeroed: bool = False
    names: tuple[str, ...] = ()
    own: bool = False
    ragged: bool = False
    narrow: bool = False

    @property
    def text(self) -> str:
        groups = (
            ("scalars", self.scalars),
            ("buffers", self.buffers),
            ("zeros", self.zeros),
            ("names", self.names),
        )
        tiles = f"tiles=dict({', '.join(self.tiles)})" + (f" if {self.tiled} else {{}}" if self.tiled else "")
        found = [tiles] if self.tiles else []
        found += [f"{name}=dict({', '.join(entries)})" for name, entries in groups if entries]
        found += [f"counters={self.counters}"] if self.counters else []
        found += ["clears=False"] if self.counters and self.zeroed else []
        found += ["ragged=True"] if self.ragged else []
        constants = f"dict({', '.join(self.constants)})"
        kind = "host.NarrowLaunch" if self.narrow else "host.HopperLaunch" if self.own else "host.Launch"
        return f"{kind}({', '.join((self.kernel, self.grid, constants, *found))})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One way to compute a result, taken where `when` holds: the launches `launches`, which read what the lines `bind`
    bind, between the other steps `before` and `after`."""

    launches: tuple[Launch, ...]
    bind: tuple[str, ...] = ()
    when: str = ""
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()

    @property
    def steps(self) -> tuple[str, ...]:
        return (*self.before, *(launch.text for launch in self.launches), *self.after)


def tests_apart(tests: tuple[TestView, ...], prefix: str = "") -> tuple[Launch, ...]:
    """Kernels of their own that find the extremes of data in each tile. `prefix`: see `PlaceView`."""
    return tuple(
        Launch(
            kernel=f"_{prefix}{t.name}_kernel",
            grid=_grid(t),
            constants=(f"TILE={_tile(t)}",),
            buffers=tuple(f"{t.name}_{end}=({_grid(t)}, {t.dtype})" for end in ("least", "most")),
        )
        for t in tests
    )


def tests_within(tests: tuple[TestView, ...]) -> tuple[str, ...]:
    """The buffers of a kernel that finds them itself."""
    return tuple(f"{t.name}=((2, *{_grid(t)}), {t.dtype})" for t in tests)


def tests_count(tests: tuple[TestView, ...]) -> str:
    """How many programs more such a kernel has, as a term."""
    tiles = (" * ".join((_tiles(t), *_leading(t))) for t in tests)
    return "".join(f" + {count}" for count in tiles)


def _leading(t: TestView) -> tuple[str, ...]:
    return tuple(n for n in (t.batches, t.heads) if n != "1")


def _tile(t: TestView) -> str:
    return "BK" if t.axis == "k" else "BQ"


def _tiles(t: TestView) -> str:
    return f"host.ceil({t.size}, {_tile(t)})"


def _grid(t: TestView) -> str:
    return f"({_tiles(t)}, {t.batches}, {t.heads})"
