"""Rows that `plan.hopper_trials` finds worth a trial, through the real compiler: they compile, and fit as it says."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from aot.chips import EXAMPLES, binaries, refused

from attngen import api, files
from attngen.aot.compile import Artifact
from attngen.emit import TunedGpu
from attngen.plan.hopper import ApartSkeleton, Schedule
from attngen.plan.tiles.hopper_trials import ROOM, SCRATCH, Rows, first_round, fits, rows_of, shared_bytes

NAMES = {"forward": "hopper_forward", "backward": "hopper_backward", "dkdv": "hopper_dkdv", "dq": "hopper_dq"}


def compiled(name: str, dims: tuple[int, int], changes: dict[str, dict[str, Any]]) -> tuple[Rows, dict[str, Artifact]]:
    """The file of an example whose rows are changed, and what the compiler makes of it."""
    source = files.read_source(EXAMPLES / f"{name}.attn")
    spec, plan = api.checked_plan(source)
    rows = rows_of(plan, spec.tile, dims)
    found = {kernel: dataclasses.replace(rows.by_kernel[kernel], **change) for kernel, change in changes.items()}
    assert all(fits(row, dims, rows.terms) for row in found.values())
    changed = dataclasses.replace(
        rows,
        forward=found.get("forward", rows.forward),
        backward=found.get("backward", rows.backward),
        apart=rows.apart and ApartSkeleton(found.get("dkdv", rows.apart.dkdv), found.get("dq", rows.apart.dq)),
    )
    tuned = TunedGpu("sm_90", 2, max(dims), dims=dims, row=changed.forward, backward=changed.backward or changed.apart)
    kernel = api.build(source, api.options(tuned=(tuned,)))
    return changed, binaries(kernel, "sm_90", dims)


def held(rows: Rows, found: dict[str, Artifact]) -> None:
    assert not refused(found, "sm_90")
    for kernel, row in rows.by_kernel.items():
        asked = shared_bytes(row, rows.dims, rows.terms)
        assert asked <= found[NAMES[kernel]].shared <= asked + SCRATCH <= ROOM, (kernel, row)


CHANGES: list[tuple[str, int, dict[str, dict[str, Any]]]] = [
    ("causal", 128, {"forward": {"stages": 3, "out_apart": False, "ordered": False}, "backward": {"early": True}}),
    (
        "causal",
        64,
        {
            "forward": {"queries": 128, "registers": 240, "spare": 24, "stages": 3, "pipelined": True},
            "backward": {"stages": 2},
        },
    ),
    (
        "causal",
        256,
        {"forward": {"schedule": Schedule.QUEUE}, "dkdv": {"ahead": 2}, "dq": {"key_stages": 1, "value_stages": 2}},
    ),
]


@pytest.mark.parametrize(
    ("name", "dim", "changes"),
    [pytest.param(*c, id=f"{c[0]} {c[1]}", marks=[] if c[1] == 128 else [pytest.mark.slow]) for c in CHANGES],
)
def test_rows_compile_and_take_what_is_said(name: str, dim: int, changes: dict[str, dict[str, Any]]) -> None:
    held(*compiled(name, (dim, dim), changes))


@pytest.mark.slow
@pytest.mark.parametrize("dim", [64, 128, 256])
@pytest.mark.parametrize("name", ["causal", "alibi", "softcap", "relative_bias"])
def test_every_row_of_the_first_round_compiles(name: str, dim: int) -> None:
    spec, plan = api.checked_plan(files.read_source(EXAMPLES / f"{name}.attn"))
    for kernel, row in first_round(rows_of(plan, spec.tile, (dim, dim))):
        columns = {f.name: getattr(row, f.name) for f in dataclasses.fields(row)}
        held(*compiled(name, (dim, dim), {kernel: columns}))
