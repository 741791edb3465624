"""The head of a generated file says with what it was made, and is read back; what it cannot mean is named."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

import attngen
from attngen import api
from attngen.emit import Options, Tuned, TunedGpu
from attngen.emit.said import Said, read, words
from attngen.emit.text.header import read_head
from attngen.errors import Source, UsageError
from attngen.plan.hopper import ApartSkeleton
from attngen.plan.tiles.hopper_trials import Rows, rows_of
from attngen.vocabulary import DTYPES, GEOMETRIES, PRECISIONS, SOURCE_ARCHITECTURES, Const

CAUSAL = "attention causal\nmask = causal\n"


def rows(dims: tuple[int, int]) -> Rows:
    spec, plan = api.checked_plan(Source(CAUSAL))
    return rows_of(plan, spec.tile, dims)


NARROW, WIDE = rows((128, 128)), rows((256, 256))
GPU = TunedGpu("sm_90", 2, 128, (64, 64, 8, 2), None, (64, 32, 4, 3))
TUNED = (
    GPU,
    TunedGpu("gfx942", 4, 16),
    dataclasses.replace(GPU, dims=(128, 128), row=NARROW.forward, backward=NARROW.backward),
    dataclasses.replace(GPU, dims=(256, 256), row=WIDE.forward, backward=WIDE.apart),
    dataclasses.replace(GPU, dims=(256, 256), backward=WIDE.apart),
    dataclasses.replace(GPU, dims=(128, 128), row=NARROW.forward, portable=True),
    dataclasses.replace(GPU, forward=None, dims=(64, 64), portable=True),
)
TPU = Tuned("v6e", 2, (1024, 512, 4), (256, 512, 1), (256, 256, 2))
OPTIONS: tuple[dict[str, Any], ...] = (
    *({"arch": arch} for arch in SOURCE_ARCHITECTURES),
    *({"precision": precision} for precision in PRECISIONS),
    *({"dtype": dtype} for dtype in DTYPES),
    *({"tile": tile} for tile in ((16, 16), (128, 64))),
    *({"head_dim": dims} for dims in ((64, 64), (192, 128))),
    *({"geometry": GEOMETRIES[:n]} for n in (1, 2, 4)),
    *({"target": target} for target in ("triton", "torch", "jax", "pallas")),
    *({"tuned_gpu": (tuned,)} for tuned in TUNED),
    {"tuned_gpu": TUNED},
    {"target": "pallas", "tuned": (TPU, dataclasses.replace(TPU, chip="v5e", itemsize=4))},
    {"forward": True},
    {"forward": True, "arch": "sm_90", "head_dim": (192, 128), "dtype": "bf16", "geometry": ("dense", "packed")},
)
CONSTS: tuple[tuple[str, Const], ...] = (
    *(("on", True), ("off", False), ("n", -7), ("far", 1 << 62), ("x", 0.1), ("y", -1e-300), ("z", 1e22)),
    *(("endless", float("inf")), ("tile", 5), ("target", 1), ("precision", 0.5), ("tuned", 3), ("forward", True)),
)


@pytest.mark.parametrize("chosen", OPTIONS, ids=str)
def test_every_option_is_read_back(chosen: dict[str, Any]) -> None:
    options = Options(**chosen)
    said = " ".join(words(options, CONSTS, options.tile))
    found = read(said)
    assert found == Said(options=options, consts=CONSTS)
    assert [type(value) for _, value in found.consts] == [type(value) for _, value in CONSTS]
    assert " ".join(words(found.options, found.consts, found.options.tile)) == said


def test_every_field_is_said() -> None:
    """A field of the options that the head did not say would be lost."""
    fields = {f.name for f in dataclasses.fields(Options)}
    plain = words(Options(), (), None)
    for name in fields:
        changed = [chosen for chosen in OPTIONS if name in chosen and Options(**chosen) != Options()]
        assert any(words(options := Options(**c), (), options.tile) != plain for c in changed), name


@pytest.mark.parametrize("tuned", TUNED, ids=str)
def test_every_field_of_what_was_tuned_is_said(tuned: TunedGpu) -> None:
    for row in (tuned.row, tuned.backward):
        for part in (row.dkdv, row.dq) if isinstance(row, ApartSkeleton) else () if row is None else (row,):
            assert {f.name for f in dataclasses.fields(part)} == set(part.COLUMNS)


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("", "target=… is missing"),
        ("precision=ieee", "target=… is missing"),
        ("target=triton tile", "'tile' is no option"),
        ("target=triton forward=yes", "'forward=yes' is no option"),
        ("target=triton head-dim=64/64", "'head-dim=64/64' is no option"),
        ("target=triton target=torch", "target is there twice"),
        ("target=triton w=1 w=2", "the const w is there twice"),
        ("target=triton tile=16/16", "'tile=16/16' has no two numbers"),
        ("target=triton head_dim=64x64", "'head_dim=64x64' has no two numbers"),
        ("target=triton tuned=sm_1/16/128:own/own/own", "there are no tiles of sm_1/16/128"),
        ("target=triton tuned=sm_90/16/100:own/own/own", "there are no tiles of sm_90/16/100"),
        ("target=triton tuned=sm_90/16/128:own/own", "a GPU has three"),
        ("target=triton tuned=sm_90/16/128:own/own/64x63x4x1", "64x63x4x1 is no tile"),
        ("target=triton tuned=sm_90/16/128:own/own/__import__", "__import__ has no numbers"),
        ("target=triton tuned=sm_90/16/128:own/own/own/128x128", "are no tiles"),
        ("target=triton tuned=sm_90/16/128:own/own/own/128x128/forward:128x128", "2 columns, and a row of Skeleton"),
        ("target=triton tuned=sm_90/16/128:own/own/own/128x128/wide:1x2", "no kernel wide has rows"),
        ("target=triton tuned=sm_90/16/128:own/own/own/128x128/dkdv:64x64x2x1x1x24", "dkdv and dq go together"),
        ("target=triton tuned=sm_90/16/128:own/own/own/128x128/backward:128x128x9x1x2x256x24x0", "has no room"),
        ("target=pallas tuned=v6e/16", "a TPU has three, of three numbers"),
        ("target=pallas tuned=v6e/16:1x2x3/1x2x3/1x2", "a TPU has three, of three numbers"),
    ],
)
def test_what_no_head_says_is_refused(said: str, why: str) -> None:
    with pytest.raises(ValueError) as caught:
        read(said)
    assert why in str(caught.value)


# ---------------------------------------------------------------- heads of files


@pytest.mark.parametrize("target", ["triton", "torch", "jax", "pallas"])
def test_heads_of_every_target_are_read(target: str) -> None:
    text = "# A window.\n\nattention  near\n\nconst tile = 24\nmask = sliding_window(tile)\n"
    kernel = attngen.compile(text, target, tile=(32, 32), consts={"tile": 12})
    head = read_head(Source(kernel.source, "near.py"))
    assert (head.name, head.text, head.fits) == ("near", text, True)
    assert head.proof.startswith("Proved: streaming, ")
    said = read(head.options)
    assert said.consts == (("tile", 12),) and (said.options.target, said.options.tile) == (target, (32, 32))


@pytest.mark.parametrize(
    "text",
    [
        "\n\n  attention near  \r\n\r\n# no end\t\r\nmask = causal",
        "  attention near\n  mask = causal\n",
        "attention near\n# sha256 of its text: none\n# The specification:\nmask = causal\n\n\n",
    ],
)
def test_the_spec_in_a_head_is_the_one_that_was_compiled(text: str) -> None:
    kernel = attngen.compile(text, "torch")
    head = read_head(Source(kernel.source))
    assert head.fits and head.name == "near"
    assert head.text.split() == text.split()
    assert read_head(Source(kernel.source.replace("\n", "\r\n"))) == head
    assert not read_head(Source(kernel.source.replace("mask = causal", "mask = true", 1))).fits
    again = attngen.compile(head.text, "torch").source
    assert again == kernel.source


def test_options_that_are_too_long_for_a_line_stay_together() -> None:
    """A long comment would go on in the next one, which says what is proved."""
    options = api.options(tuned=(TUNED[1], TUNED[3]), geometry=("dense", "lengths"))
    kernel = api.build(Source(CAUSAL), options)
    head = read_head(Source(kernel.source))
    assert max(map(len, kernel.source.split("\n"))) <= 120
    assert read(head.options).options == options
    assert head.proof.startswith("Proved: ")


DOCSTRING = '''# @generated by attngen
# SPDX-License-Identifier: Apache-2.0
"""near: fused attention.

The specification:

    attention near

    mask = causal

sha256 of its text: {}
options: target=torch
    tile=16x16
Proved: nothing.
"""
'''


def test_a_head_may_stand_in_the_docstring() -> None:
    kernel = attngen.compile("attention near\n\nmask = causal\n", "torch")
    made = read_head(Source(kernel.source))
    head = read_head(Source(DOCSTRING.format(made.digest)))
    assert head.fits and head.text == made.text
    assert (head.options, head.proof) == ("target=torch tile=16x16", "Proved: nothing.")


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("# The specification:", "", "attngen did not make near.py: its head has no line `The specification:`"),
        ("# sha256 of its text: ", "# sha: ", "no line `sha256 of its text: …` follows the spec"),
        ("# options: ", "# made with: ", "no line `options: …` follows the spec"),
        ("#     mask", "# mask", "line 11 is neither the spec's nor"),
        ("#     mask", "mask", "line 11 is neither the spec's nor"),
        ("#     attention near", "#     kernel near", "its spec has no line `attention NAME`"),
    ],
)
def test_what_is_no_head_is_said(old: str, new: str, why: str) -> None:
    source = attngen.compile("attention near\n\nmask = causal\n", "torch").source
    assert old in source
    with pytest.raises(UsageError) as caught:
        read_head(Source(source.replace(old, new), "near.py"))
    assert why in str(caught.value)
