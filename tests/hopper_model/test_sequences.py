"""Tiles of sequences in the kernels of compute capability 9.0, by their own launcher, on a model of the chip.

Rows beside a sequence hold NaN, and so do their cotangents; results there are compared, too (`verify/sequences.py`).
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

import attngen
from attngen.kernel import Loaded
from attngen.runtime.loader import execute
from attngen.verify import sequences
from attngen.verify.comparison import Case
from hopper_model import machine
from hopper_model.cases import EXAMPLES, Change, text_of
from hopper_model.numbers import FaultError
from hopper_model.schedule import USUAL, Schedule

FORWARD = ["_before_forward_kernel", "_hopper_forward_kernel"]
BACKWARD = ["_rows_kernel", "_before_backward_kernel", "_hopper_backward_kernel", "_collect_kernel"]
_MAPS = {
    walked: ["_sequence_extremes_kernel", f"_sequence_map_{walked}_kernel", f"_list_{walked}_kernel"]
    for walked in ("keys", "queries")
}
MAPPED = [FORWARD[0], *_MAPS["keys"], FORWARD[1], *BACKWARD[:2], *_MAPS["queries"], *BACKWARD[2:]]
"""What is launched where a map names the tiles."""
UNEVEN = ((5, 9), (0, 40), (70, 30), (3, 0), (130, 260), (64, 128))
"""(queries, keys) of each sequence: none on either side, fewer and more, tiles that end with the sequence."""
SQUARE = ((70, 70), (0, 0), (1, 1), (130, 130))
SPECS = {
    "full": "attention full\nmask = true\n",
    "fourth": "attention fourth\nmask = (q - k) % 4 == 0\n",
    "keys": "attention keys\nparam bias: f32[B, Sk]\nparam n: int[B]\n"
    "score = qk * scale + bias[b, k]\nmask = k < n[b]\n",
    **{path.stem: text_of(path.stem) for path in EXAMPLES.glob("*.attn")},
}


def slow(*values: Any) -> Any:
    return pytest.param(*values, marks=pytest.mark.slow)


def errors(
    name: str,
    D: int,
    geometry: str,
    lengths: sequences.Lengths = UNEVEN,
    heads: tuple[int, int] = (4, 2),
    changes: Sequence[Change] = (),
    schedule: Schedule = USUAL,
) -> list[str]:
    """The results that are wrong, of a call and its gradients. Gradients of params take portable kernels."""
    text = re.sub(r"^(param \w+: f32(\[.*\])?)", r"\1 fixed", SPECS[name], flags=re.MULTILINE)
    kernel = attngen.compile(text, consts={"window": 100} if "const window " in SPECS[name] else {})
    source = kernel.with_geometry(geometry)
    for change in changes:
        assert change[0] in source, change[0]
        source = source.replace(*change)
    module = execute(source, kernel.name)
    launched = machine.install(module, schedule)
    function: Callable[..., Any] = getattr(module, f"{kernel.name}{'_varlen' if geometry == 'packed' else '_lengths'}")
    object.__setattr__(kernel, "_geometries", {geometry: Loaded(function)})
    sizes = (("Hq", heads[0]), ("Hkv", heads[1]), ("D", D), ("Dv", D))
    case = sequences.settled(kernel.spec, Case("model", "fp16", sizes, lengths=lengths))
    found = list(sequences.compare(kernel, case, "cpu", geometry=geometry, check=False))
    assert launched == (MAPPED if kernel.plan.map is not None else [*FORWARD, *BACKWARD])
    return [f"{c.result}: {c.error:.3g}" for c in found if not c.passed]


@pytest.mark.parametrize("geometry", ["packed", "lengths"])
@pytest.mark.parametrize(
    ("name", "D"),
    [("causal", 128), ("alibi", 64), ("keys", 128), ("rollouts", 64), ("dilated", 128)]
    + [slow(n, 128) for n in ("full", "sliding_window", "softcap", "softmax1", "chunked")]
    + [slow(n, 64) for n in ("causal", "full", "sink", "keys")],
)
def test_each_sequence_is_what_it_is_by_itself(name: str, D: int, geometry: str) -> None:
    assert not errors(name, D, geometry)


@pytest.mark.parametrize("heads", [(8, 1), slow((1, 1)), slow((12, 3))])
def test_heads_that_share_keys(heads: tuple[int, int]) -> None:
    assert not errors("causal", 128, "packed", SQUARE, heads)


def test_many_sequences_are_listed_in_blocks() -> None:
    lengths = (*((0, 0),) * 129, (1, 1), (170, 170))
    assert not errors("causal", 64, "packed", lengths, (1, 1))


def test_a_row_of_a_map_is_written_to_its_end() -> None:
    """Also where a sequence has fewer tiles than the longest, or a slot none."""
    change = ("mask=own & (at < room)", "mask=own & (at < n_walked)")
    found = ["a fault"]
    with contextlib.suppress(FaultError):
        found = errors("dilated", 64, "lengths", changes=[change])
    assert found


CHANGES = {
    "a copy behind the sequence's end": ("within = tl.maximum(size - start, 0)", "within = size - start + 64"),
    "another sequence's tile": ("item = items_ptr + 8 * (order + 1)", "item = items_ptr + 8 * (order // 2 + 1)"),
    "results beside a sequence stay": (
        "rows.clear(out_ptr, sequence, head, out_strides, behind, stop, Dv, ALIGN)",
        "pass",
    ),
    "a row of the wrong sequence": ("place.total + place.first\n", "place.total\n"),
    "parts of sequences in one place": ("n_slots + slot(", "0 * n_slots + 0 * slot("),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_wrong_edit_is_seen(name: str) -> None:
    try:
        wrong = errors("causal", 128, "packed", SQUARE, (2, 1), (CHANGES[name],))
    except FaultError:
        return
    assert wrong, name


def fault(ends: list[int], change: Change | None = None, rows: int = 70, name: str = "causal") -> str:
    """Of a call and its gradients with these offsets; none where programs only write the same place."""
    kernel = attngen.compile(SPECS[name], geometry=("packed",))
    source = kernel.source if change is None else kernel.source.replace(*change)
    module: Any = execute(source, kernel.name)
    machine.install(module)
    x = torch.ones(rows, 1, 64, dtype=torch.float16, requires_grad=True)
    try:
        out = getattr(module, f"{kernel.name}_varlen")(x, x, x, cu_seqlens_q=torch.tensor(ends, dtype=torch.int32))
        torch.autograd.grad(out, x, torch.ones_like(out))
    except FaultError as error:
        return "" if "a race" in str(error) else str(error)
    return ""


@pytest.mark.parametrize("name", ["causal", "dilated"])
@pytest.mark.parametrize("ends", [[0, 70, 0, 70, 0, 70], [0, 60, 20, 70], [0, -5, 900, 70]], ids=str)
def test_offsets_that_fall_end_without_a_fault(ends: list[int], name: str) -> None:
    """Tiles of sequences that overlap have no room in the list, and their turns no order: nothing may hang."""
    assert not fault(ends, name=name)


def test_sequences_that_share_slots_end_without_a_fault() -> None:
    """Where the first tile of keys may have been noted by a tile of another sequence."""
    assert not fault([0, 512, 0, 512], rows=512, name="fourth")


def test_a_list_of_sequences_that_overlap_would_be_a_fault() -> None:
    assert "place" in fault([0, 700] * 40, ("(overlaps > 0,", "(overlaps < 0,"), rows=700)
    assert not fault([0, 700] * 40, rows=700)


def test_tensors_that_the_copy_engine_cannot_read_take_portable_kernels() -> None:
    """Odd strides between heads; a batch that is no multiple of rows behind the one before it."""
    kernel = attngen.compile(SPECS["causal"], geometry=("packed", "lengths"))
    module: Any = execute(kernel.source, kernel.name)
    machine.install(module)
    x = torch.zeros(2, 40, 2, 64, dtype=torch.float16).transpose(1, 2)
    assert module.batch_rows(x) == 40
    assert module.batch_rows(x, torch.zeros(2, 2, 40, 64, dtype=torch.float16)) is None
    assert module.batch_rows(x[..., :60].contiguous()) is None
    assert module.batch_rows(torch.zeros(2, 2, 40, 64)) is None
