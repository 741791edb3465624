"""Texts that no printer makes from a plan: data tests, merges, key/value heads. Each is run over small cases beside the
plan's value, and each edit of it is seen. The proof is of the plan's values, so it would not see one."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cache
from itertools import product
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from property.kernels import analysed

import attngen
from attngen import targets
from attngen.emit.jax.views import KINDS
from attngen.ir.evaluate import evaluate
from attngen.ir.nodes import Symbol, Type
from attngen.plan import plan
from attngen.plan.index import items, read_tests, tests
from attngen.plan.mask import data_tests
from attngen.plan.mask.data_tests import DataTest
from attngen.prove.budget.work import Work
from attngen.prove.obligations.tile_ranges import tile_ranges
from attngen.prove.verdict import Proved, Refuted
from attngen.runtime import merging
from attngen.runtime.exported.merging import Arrays
from attngen.runtime.loader import load
from mutation.functions import run_as_python

ROOT = Path(__file__).parents[2]
DOCUMENTS = "attention handwritten\nparam ids: int[B, Sk]\nmask = ids[b, q] == ids[b, k]\nassume Sq == Sk\n"
SINK = "attention handwritten\nparam sink: f32[Hq]\nmask = causal\nnormalizer = softmax(sink = sink[h])\n"
Edits = tuple[tuple[str, str], ...]


@cache
def _source(spec: str, target: str, *geometry: str) -> str:
    return attngen.compile(spec, target, geometry=("dense", *geometry)).source


def _edited(text: str, edits: Edits) -> str:
    for old, new in edits:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


# ---------------------------------------------------------------- data tests

EXTREMES = [(low, high) for low, high in product(range(3), repeat=2) if low <= high]
WALKED = np.array([(one, other, one) for one, other in zip(EXTREMES, [*EXTREMES[1:], EXTREMES[0]], strict=True)])
"""(rows, 3 tiles, least and most); the first tile and the last are alike, so that answers have gaps."""
HERE = np.array(EXTREMES)
FORMS = ("equal", "here <= there", "there <= here", "here < there", "there < here")
SIGNS = {form: next((s for s in ("<=", "<") if f" {s} " in form), "==") for form in FORMS}


def _by_plan(form: str) -> np.ndarray:
    """(rows, held tiles, 4): any_lo, any_hi, all_lo, all_hi in tiles, from `DataTest.can` and `must`."""
    row, col = (Symbol(name, Type.INT) for name in ("row", "col"))
    test = DataTest(name="test", sign=SIGNS[form], row=row, col=col)
    axis = "q" if form.startswith("there") else "k"
    names = ("here_least", "here_most", "there_least", "there_most")
    values = (*HERE.T[:, None, :, None], *np.moveaxis(WALKED, -1, 0)[:, :, None, :])
    environment = dict(zip(names, values, strict=True))
    can, must = (evaluate(e(axis), environment, {}) for e in (test.can, test.must))
    return np.array(
        [[[*_ends(c), *_run(m)] for c, m in zip(cs, ms, strict=True)] for cs, ms in zip(can, must, strict=True)]
    )


def _ends(answers: np.ndarray) -> tuple[int, int]:
    at = np.flatnonzero(answers)
    return (int(at[0]), int(at[-1]) + 1) if len(at) else (0, 0)


def _run(answers: np.ndarray) -> tuple[int, int]:
    first, last = _ends(answers)
    return (first, last) if answers[first:last].all() else (0, 0)


PROBE = """

@triton.jit
def _probe(least_ptr, most_ptr, here_ptr, out_ptr, n_tiles, n_here, TEST: tl.constexpr):
    case = tl.program_id(0)
    row = case // n_here
    here = here_ptr + case % n_here * 2
    any_lo, any_hi, all_lo, all_hi = rows.matching_tiles(
        least_ptr + row * n_tiles, most_ptr + row * n_tiles, tl.load(here), tl.load(here + 1), n_tiles, 1, TEST
    )
    tl.store(out_ptr + case * 4, any_lo)
    tl.store(out_ptr + case * 4 + 1, any_hi)
    tl.store(out_ptr + case * 4 + 2, all_lo)
    tl.store(out_ptr + case * 4 + 3, all_hi)
"""


def _by_triton(text: str, form: str) -> np.ndarray:
    module: Any = load(text + PROBE, "handwritten")
    least, most = (torch.tensor(WALKED[..., i], dtype=torch.int32).contiguous() for i in range(2))
    out = torch.zeros((len(WALKED), len(HERE), 4), dtype=torch.int32)
    here = torch.tensor(HERE, dtype=torch.int32)
    module._probe[(len(WALKED) * len(HERE),)](least, most, here, out, 3, len(HERE), TEST=FORMS.index(form))
    return out.numpy()


def _by_torch(text: str, form: str) -> np.ndarray:
    module: Any = targets.named("torch").load(text, "handwritten")
    module.TILE_K = 1
    walked = torch.tensor(WALKED)[:, None, None]
    return np.array(
        [
            [module._matching_tiles(torch.tensor(here), row[..., 0], row[..., 1], SIGNS[form]) for here in HERE]
            for row in walked
        ]
    )


def _by_jax(text: str, form: str) -> np.ndarray:
    """A tile is its least and its greatest value."""
    module: Any = targets.named("jax").load(text, "handwritten")
    kind = KINDS[FORMS.index(form)]
    held = jnp.asarray(HERE.reshape(1, 1, -1, 1))
    rows = (jnp.asarray(row.reshape(1, 1, 1, -1)) for row in WALKED)
    found = [module._matching_tiles(held, row, held.size, row.size, 2, 2, kind) // 2 for row in rows]
    return np.array(found)


RUN: dict[str, Callable[[str, str], np.ndarray]] = {"triton": _by_triton, "torch": _by_torch, "jax": _by_jax}
TORCH_FORMS = tuple(form for form in FORMS if not form.startswith("there"))  # held are queries, always


def _same_tests(target: str, edits: Edits = ()) -> bool:
    text = _edited(_source(DOCUMENTS, target), edits)
    for form in TORCH_FORMS if target == "torch" else FORMS:
        found, expected = RUN[target](text, form), _by_plan(form)
        for ends in (slice(0, 2), slice(2, 4)):  # an empty run may stand anywhere
            (lo, hi), (first, last) = (np.moveaxis(x[..., ends], -1, 0) for x in (found, expected))
            if not np.where(first < last, (lo == first) & (hi == last), lo >= hi).all():
                return False
    return True


@pytest.mark.parametrize("target", RUN)
def test_data_tests_are_the_plans(target: str) -> None:
    assert _same_tests(target)


TESTS_EDITED: dict[str, tuple[str, str, str]] = {
    "must be least alone": (
        "triton",
        "must = there & (low == high) & (low == least) & (low == most)",
        "must = there & (low == least)",
    ),
    "can touch one end": ("triton", "can = there & (low <= most) & (least <= high)", "can = there & (low <= most)"),
    "at most, by the wrong ends": ("triton", "can = there & (least <= high)\n", "can = there & (most <= low)\n"),
    "must, by the wrong ends": ("triton", "must = there & (most <= low)", "must = there & (least <= high)"),
    "at least, by the wrong ends": ("triton", "must = there & (high <= least)", "must = there & (low <= most)"),
    "a run over a gap": (
        "triton",
        "all_hi = tl.where(count == all_hi - all_lo, all_hi, all_lo)",
        "all_hi = tl.maximum(all_lo, all_hi)",
    ),
    "torch: must be least alone": ("torch", "(low == high) & (low == least) & (low == most)", "(low == least)"),
    "torch: at most, by the wrong ends": ("torch", "least <= high, most <= low", "least <= high, least <= low"),
    "jax: must be least alone": ("jax", "(least == most) & (least == low) & (least == high)", "(least == low)"),
    "jax: at most, by the wrong ends": ("jax", "low <= most, high <= least", "low <= most, low <= least"),
    "jax: at least, by the wrong ends": ("jax", "least <= high, most <= low", "most <= low, most <= low"),
}


@pytest.mark.parametrize("name", TESTS_EDITED)
def test_an_edited_data_test_is_seen(name: str) -> None:
    target, old, new = TESTS_EDITED[name]
    assert not _same_tests(target, ((old, new),))


PROVED_OF = "attention a\nparam x: int[B, Sq]\nparam y: int[B, Sk]\nmask = x[b, q] {} y[b, k]\n"
REFUTED = [name for name, (_, old, _) in TESTS_EDITED.items() if "there &" in old and name != "can touch one end"]
"""Where a test can hold in more tiles than it does, kernels are slower, and right."""


@pytest.mark.parametrize("name", REFUTED)
def test_the_prover_refutes_an_edited_data_test(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It executes the text that kernels of GPUs call, and from which other targets print theirs."""
    _, old, new = TESTS_EDITED[name]
    found = [plan(analysed(PROVED_OF.format(sign))) for sign in ("==", "<=")]
    asked = [lambda p=p: tile_ranges(p.attention, p, Work()) for p in found]
    assert all(isinstance(c.verdict, Proved) for ask in asked for c in ask())
    wrong = read_tests(_edited(tests().text, ((old.strip("\n"), new.strip("\n")),)))
    monkeypatch.setattr(data_tests, "tests", lambda: wrong)
    assert any(isinstance(c.verdict, Refuted) for ask in asked for c in ask())


# ---------------------------------------------------------------- merges

ARRAYS = Arrays(np.exp, np.where, np.logaddexp, heads_inside=False)


def _parts() -> tuple[list[tuple[Any, Any]], Any]:
    """Three parts of (1, 2, 8, 4), empty in each of the 8 ways, and the logarithm of a term for each head."""
    rng = np.random.default_rng(0)
    parts = []
    for i in range(3):
        empty = np.arange(8) >> i & 1 == 1
        out, lse = rng.standard_normal((1, 2, 8, 4)), rng.standard_normal((1, 2, 8))
        parts.append((np.where(empty[:, None], 0.0, out), np.where(empty, -np.inf, lse)))
    return parts, rng.standard_normal(2)


def _close(found: Any, expected: Any) -> bool:
    return all(np.allclose(x.numpy(), y, rtol=1e-5, atol=1e-5) for x, y in zip(found, expected, strict=True))


def _tensors(part: Any) -> tuple[torch.Tensor, torch.Tensor]:
    out, lse = (torch.tensor(x, dtype=torch.float32) for x in part)
    return out, lse


def _same_pieces(edits: Edits = ()) -> bool:
    """`NAME_merge` and `NAME_finish` of a file, beside the functions that `merging` is proved of."""
    module: Any = load(_edited(_source(SINK, "triton", "pieces"), edits), "handwritten")
    parts, sink = _parts()
    with np.errstate(all="ignore"):
        merged = ARRAYS.merged(parts, sums=True)
        finished = ARRAYS.finished(merged, np.broadcast_to(sink[:, None], (1, 2, 8)))
    found = module.handwritten_merge([_tensors(part) for part in parts])
    own = torch.tensor(sink, dtype=torch.float32)
    return _close(found, merged) and _close(module.handwritten_finish(*_tensors(merged), sink=own), finished)


def _same_kernel(edits: Edits = ()) -> bool:
    """The kernel that merges two parts in one pass."""
    assert merging.__file__ is not None
    module: ModuleType = load(_edited(Path(merging.__file__).read_text(), edits), "merging")
    parts, _ = _parts()
    for sums in (True, False):
        with np.errstate(all="ignore"):
            expected = ARRAYS.merged(parts[:2], sums=sums)
        (kept, lse), (new, new_lse) = (_tensors(part) for part in parts[:2])
        into = torch.empty_like(kept)
        module.merge_into(into, kept, lse, new, new_lse, sums=sums)
        if not _close((into, lse), expected):
            return False
    return True


def test_merges_are_those_that_are_proved() -> None:
    assert _same_pieces()
    assert _same_kernel()


MERGES_EDITED: dict[str, tuple[Callable[[Edits], bool], str, str]] = {
    "pieces: a sum twice": (_same_pieces, "[share / total for", "[share / (2.0 * total) for"),
    "pieces: no guard for empty rows": (_same_pieces, "total = self.where(total == 0.0, 1.0, total)", "pass"),
    "pieces: a share upside down": (_same_pieces, "self.exp(lse - whole))", "self.exp(whole - lse))"),
    "pieces: finished without the share": (
        _same_pieces,
        "return out * self.beside(share), whole",
        "return out, whole",
    ),
    "kernel: a sum twice": (_same_kernel, "1.0 / total, total", "1.0 / (2.0 * total), total"),
    "kernel: lse of a sum twice": (_same_kernel, "tl.log(total)", "tl.log(2.0 * total)"),
    "kernel: one share for both": (_same_kernel, "new * new_share[:, None]", "new * share[:, None]"),
    "kernel: no guard for empty rows": (_same_kernel, 'top = tl.where(top == float("-inf"), 0.0, top)', "pass"),
    "kernel: sums that are not added": (
        _same_kernel,
        "            out += new\n    at",
        "            out = new\n    at",
    ),
}


@pytest.mark.parametrize("name", MERGES_EDITED)
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_an_edited_merge_is_seen(name: str) -> None:
    same, old, new = MERGES_EDITED[name]
    assert not same(((old, new),))


# ---------------------------------------------------------------- key/value heads

ITEMS = SimpleNamespace(**run_as_python(items().text, SimpleNamespace()))
HEADS = [(group * kv_heads, kv_heads) for group, kv_heads in product(range(1, 5), repeat=2)]
_HEAD_LINE = re.compile(
    r"(?<![\w.])(?<!, )(?:(?:kv_head|group) = [^{}\n]*\b(?:Hq|Hkv|group)\b[^{}\n]*"
    r"|head = (?:kv_head|items.query_head)[^{}\n]*)$",
    re.MULTILINE,
)


def _texts() -> Iterator[tuple[str, str]]:
    for path in sorted((ROOT / "templates").rglob("*.j2")):
        yield str(path.relative_to(ROOT)), path.read_text()


def _wrong_head(line: str) -> bool:
    """Whether a line gives another head than the language's `hkv`, `h // (Hq // Hkv)`, or another group of heads."""
    expression = line.split("=", 1)[1].replace("call.", "").strip()
    for heads, kv_heads in HEADS:
        group = heads // kv_heads
        for head in range(heads):
            names = {"Hq": heads, "Hkv": kv_heads, "group": group, "head": head}
            names.update(kv_head=head // group, member=head % group)
            expected = {"kv_head": head // group, "group": group, "head": head}[line.split("=", 1)[0].strip()]
            if eval(expression, {"__builtins__": {}, "max": max, "items": ITEMS}, names) != expected:
                return True
    return False


def _head_lines(text: str) -> list[str]:
    return [match.group(0) for match in _HEAD_LINE.finditer(text)]


def test_templates_find_the_key_value_head_of_the_language() -> None:
    lines = [(name, line) for name, text in _texts() for line in _head_lines(text)]
    assert [name for name, line in lines if _wrong_head(line)] == []
    assert {"portable", "hopper", "short_queries"} <= {Path(name).parent.name for name, _ in lines}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("kv_head = items.kv_head_of(head, Hq, Hkv)", "kv_head = items.kv_head_of(head, Hq, 1)"),
        ("kv_head = items.kv_head_of(head, Hq, Hkv)", "kv_head = head % Hkv"),
        ("kv_head = head // group", "kv_head = head % group"),
        ("group = Hq // Hkv", "group = Hkv"),
        ("group = call.Hq // call.Hkv", "group = call.Hq"),
        ("head = items.query_head(kv_head, member, group)", "head = items.query_head(member, kv_head, group)"),
    ],
)
def test_another_key_value_head_is_seen(old: str, new: str) -> None:
    edited = [text.replace(old, new) for _, text in _texts() if old in text]
    assert edited
    assert all(any(_wrong_head(line) for line in _head_lines(text)) for text in edited)
