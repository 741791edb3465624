"""Bools of named pairs by the kernels of compute capability 9.0, on the model of the chip: tiles that hold none are
skipped, and whole ones go without the mask."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from hopper_model.cases import Change
from hopper_model.test_backward import gradients
from hopper_model.test_forward import forward

Bools = npt.NDArray[np.bool_]

BEGIN = "attention pairs\n\n"
SPECS = {
    "everyone's": "param anc: bool[Sq, Sk]\nmask = anc[q, k]\n",
    "a head's own": "param anc: bool[Hq, Sq, Sk]\nmask = not anc[h, q, k]\n",
    "a batch's and a group's": "param anc: bool[B, Hkv, Sk, Sq]\nmask = anc[b, hkv, k, q] and k <= q\n",
    "or the first keys": "param anc: bool[B, Sq, Sk]\nmask = anc[b, q, k] or k < 20\n",
}
SPECS = {whose: BEGIN + body for whose, body in SPECS.items()}


def tree(rows: int, columns: int) -> Bools:
    """Drafts in four branches, one after the other, behind a common prompt."""
    q, k = np.arange(rows)[:, None], np.arange(columns)[None, :]
    branch = np.random.default_rng(3).integers(0, 4, max(rows, columns))
    half = columns // 2
    return (k <= q) & ((k < half) | (branch[:rows, None] == branch[None, :columns]))


def blocks(rows: int, columns: int) -> Bools:
    """Whole blocks off the grid of tiles, with gaps between; rows and columns that meet nothing."""
    drawn = np.random.default_rng(4).random((rows // 50 + 1, columns // 70 + 1)) < 0.4
    found = np.repeat(np.repeat(drawn, 50, 0), 70, 1)[:rows, :columns]
    found[rows // 3 : rows // 2] = False
    found[:, columns // 4 : columns // 2] = False
    return found


def rare(rows: int, columns: int) -> Bools:
    return np.random.default_rng(5).random((rows, columns)) < 2 / columns


PATTERNS = {"tree": tree, "blocks": blocks, "rare": rare}


def drawn(whose: str, pattern: str, sizes: tuple[int, int, int, int, int]) -> Bools:
    """Elements of the spec's param, others for each batch and head."""
    B, Hq, Hkv, Sq, Sk = sizes
    leading = {"everyone's": (), "a head's own": (Hq,), "a batch's and a group's": (B, Hkv)}.get(whose, (B,))
    found = PATTERNS[pattern](Sq, Sk)
    each = np.stack([np.roll(found, 40 * n, 0) for n in range(int(np.prod(leading)))])
    if whose == "a head's own":
        each = ~each
    if whose == "a batch's and a group's":
        each = each.swapaxes(1, 2)
    return each.reshape(*leading, *each.shape[1:])


ALWAYS = {
    ("everyone's", "tree", 64),
    ("everyone's", "blocks", 128),
    ("a head's own", "blocks", 64),
    ("a batch's and a group's", "blocks", 128),
    ("or the first keys", "blocks", 64),
    ("everyone's", "rare", 256),
}


def cases() -> list[Any]:
    patterns = [("everyone's", p) for p in PATTERNS] + [(w, "blocks") for w in SPECS if w != "everyone's"]
    every = [(*case, dim) for case in patterns for dim in (64, 128, 256)]
    return [pytest.param(*c, marks=() if c in ALWAYS else pytest.mark.slow) for c in every]


@pytest.mark.parametrize(("whose", "pattern", "dim"), cases())
def test_results(whose: str, pattern: str, dim: int) -> None:
    """Ragged: parts of the last tiles lie beyond the tensor; rows that meet no key."""
    sizes = (2, 4, 2, 300, 420)
    error, lse_error = forward(SPECS[whose], (dim, dim), sizes, anc=drawn(whose, pattern, sizes))
    assert error <= 1e-3 and lse_error <= 1e-4


@pytest.mark.parametrize(("whose", "pattern", "dim"), cases())
def test_gradients(whose: str, pattern: str, dim: int) -> None:
    sizes = (2, 4, 2, 300, 420)
    errors, launched = gradients(SPECS[whose], (dim, dim), sizes, anc=drawn(whose, pattern, sizes))
    lists = {"_list_queries_kernel", *(("_list_keys_kernel",) if dim == 256 else ())}
    assert lists <= set(launched)
    assert all(e <= 8e-3 for e in errors.values()), errors


TWO = BEGIN + "param near: bool[Hq, Sk, Sq]\nparam anc: bool[B, Sq, Sk]\nmask = near[h, k, q] or not anc[b, q, k]\n"
TWO_TESTS = TWO.replace("mask = near[h, k, q] or not", "mask = near[h, k, q] and k < Sk - 9 and not")


@pytest.mark.parametrize("dim", [64, pytest.param(256, marks=pytest.mark.slow)])
@pytest.mark.parametrize("text", [TWO, TWO_TESTS], ids=["one test", "two tests"])
def test_two_params(text: str, dim: int) -> None:
    """By heads and by batches; with words of their own where another condition stands between."""
    sizes = (2, 4, 2, 300, 420)
    near = drawn("a head's own", "blocks", sizes).swapaxes(1, 2)
    given = {"near": ~near, "anc": ~drawn("or the first keys", "tree", sizes)}
    error, lse_error = forward(text, (dim, dim), sizes, **given)
    assert error <= 1e-3 and lse_error <= 1e-4
    errors, _ = gradients(text, (dim, dim), sizes, **given)
    assert all(e <= 8e-3 for e in errors.values()), errors


WRONG_BITS: dict[str, tuple[str, Change]] = {
    "another row": ("both", ("cell + rows[:, None] * (COLS", "cell + (rows[:, None] ^ 63) * (COLS")),
    "a word further": ("both", ("(COLS // 32) + cols[None, :]", "(COLS // 32) + (cols[None, :] ^ 1)")),
    "a bit further": ("both", ("(bit & 6)) & (1", "(bit & 6)) & (2")),
    "the first tile's": ("both", ("work.bits_ptr + first_entry *", "work.bits_ptr + 0 * first_entry *")),
    "another warpgroup's queries": ("forward", ("bits += PART * (64", "bits += (2 - PART) * (64")),
    "another warpgroup's keys": ("backward", ("bits += PART * (HALF", "bits += (1 - PART) * (HALF")),
    "another step's, forward": ("forward", ("bits + (entry >> 1) * (BK", "bits + (entry >> 1 ^ 1) * (BK")),
    "another step's, backward": ("backward", ("no_pairs, bits + at * (", "no_pairs, bits + (at ^ 1) * (")),
    "stored for other queries": ("forward", ("cell + first * (KEYS // 32)", "cell + (first ^ 32) * (KEYS // 32)")),
    "stored in another word": ("backward", ("(queries // 32) + first // 32", "(queries // 32) + (first // 32 ^ 1)")),
    "stored for another tile": ("both", ("8 * 32 + own) * (BQ", "8 * 32 + (own ^ 1)) * (BQ")),
}


@pytest.mark.parametrize("what", WRONG_BITS)
def test_wrong_bits_are_seen(what: str) -> None:
    sizes, whose = (1, 2, 2, 256, 256), "a head's own"
    anc = drawn(whose, "blocks", sizes)
    passes, change = WRONG_BITS[what]
    if passes != "backward":
        error, _ = forward(SPECS[whose], (64, 64), sizes, [change], anc=anc)
        assert error > 0.02
    if passes != "forward":
        errors, _ = gradients(SPECS[whose], (64, 64), sizes, changes=[change], anc=anc)
        assert max(errors.values()) > 0.05


WRONG_ANSWERS: dict[str, Change] = {
    "the last queries' alone": ("some |= bits", "some = bits"),
    "whole where some are": (
        "2 * tl.min(tl.where(hole != 0, 0, 1), 0)",
        "2 * tl.max(tl.where(some != 0, 1, 0), 0)",
    ),
    "a share of the tiles": ("for own in range(share, 32, 8)", "for own in range(share, 24, 8)"),
    "of a list without a tile, what was there": (
        "tl.store(bits_ptr + tl.cast(row, tl.int64) * n_walked * WORDS + first + tl.arange(0, 32), 0)",
        "tl.store(bits_ptr + tl.cast(row, tl.int64) * n_walked * WORDS + first + tl.arange(0, 32), -1)",
    ),
}


@pytest.mark.parametrize("what", WRONG_ANSWERS)
def test_wrong_answers_are_seen(what: str) -> None:
    """Of three tiles of queries the second meets no key."""
    sizes = (1, 2, 2, 576, 3100)
    anc = blocks(576, 3100)
    anc[192:384] = False
    error, _ = forward(SPECS["everyone's"], (64, 64), sizes, [WRONG_ANSWERS[what]], anc=anc)
    assert error > 0.02
