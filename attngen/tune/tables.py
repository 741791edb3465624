"""A loaded module's tables with a candidate in them, and as they were: what times candidates and what compiles them.

Takes a generated module, the row of its tiles and its rows for some head dims. Calls read the tables while they stand
so; what a call has prepared is forgotten with each change.
"""

from __future__ import annotations

import importlib
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from types import ModuleType
from typing import Any, assert_never

from attngen.errors import InternalError
from attngen.plan.hopper import ApartSkeleton, BackwardSkeleton, DkdvSkeleton, DqSkeleton, Skeleton
from attngen.plan.tiles.hopper_trials import Rows
from attngen.plan.tiles.portable import KERNELS, Tile
from attngen.runtime.loader import SHARED
from attngen.tune.gpu import Setting

TABLES = ("TILES", "HOPPER", "HOPPER_BACKWARD", "HOPPER_APART")


def runtime_of(module: ModuleType, name: str) -> Any:
    """Where the functions of a module of the runtime are: a whole file has its own, others share one."""
    return module if hasattr(module, "tiles_by_chip") else importlib.import_module(f"{SHARED}.{name}")


def own_tiles(module: ModuleType, row: tuple[str, int, int]) -> dict[str, Tile]:
    tiles = tables_of(module)["TILES"][row]
    return {name: Tile(*tile) for name, tile in zip(KERNELS, tiles, strict=True)}


def tables_of(module: Any) -> dict[str, Any]:
    """By name, as calls read them."""
    own = runtime_of(module, "tables")
    texts = {name: getattr(module, name) for name in TABLES if hasattr(module, name)}
    return {name: (own.tiles_by_chip if name == "TILES" else own.rows_by_dims)(x) for name, x in texts.items()}


@contextmanager
def holding(
    module: ModuleType, row: tuple[str, int, int], rows: Rows, kernel: str, setting: Setting
) -> Generator[None]:
    """`row` is that of `TILES`: chip, bytes of an element, head dim rounded up."""
    known: Any = module
    tables = tables_of(module)
    before = {name: dict(table) for name, table in tables.items()}
    try:
        known._attention.ready.clear()
        for name, changed in _changed(own_tiles(module, row), row, rows, kernel, setting).items():
            if name in tables:
                cells = {key: x if name == "TILES" else tables[name].row(*x) for key, x in changed.items()}
                tables[name].clear()
                tables[name].update({**before[name], **cells} if changed else {})
        yield
    finally:
        for name, table in tables.items():
            table.clear()
            table.update(before[name])
        known._attention.ready.clear()


def _changed(
    own: Mapping[str, Tile], row: tuple[str, int, int], rows: Rows, kernel: str, setting: Setting
) -> dict[str, dict[Any, Any]]:
    """Entries by table; a table that is to be empty has none."""
    match setting:
        case None:
            return {"HOPPER_BACKWARD": {}, "HOPPER_APART": {}} if kernel == "portable" else {}
        case Tile():
            tiles = {**own, kernel: setting}
            portable: dict[str, dict[Any, Any]] = {"HOPPER": {}} if kernel == "forward" else {}
            return {"TILES": {row: tuple(tuple(tiles[name]) for name in KERNELS)}, **portable}
        case Skeleton():
            return {"HOPPER": {rows.dims: (setting.row,)}}
        case BackwardSkeleton():
            return {"HOPPER_BACKWARD": {rows.dims: (setting.row,)}}
        case DkdvSkeleton():
            return {"HOPPER_APART": {rows.dims: replace(_apart(rows), dkdv=setting).row}}
        case DqSkeleton():
            return {"HOPPER_APART": {rows.dims: replace(_apart(rows), dq=setting).row}}
        case _:
            assert_never(setting)


def _apart(rows: Rows) -> ApartSkeleton:
    if rows.apart is None:
        raise InternalError("rows of dK/dV and dQ are tried where there are some")
    return rows.apart
