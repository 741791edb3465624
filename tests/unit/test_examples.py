"""Every example: read, formatted, analysed; its reference equal to a formula written by hand, in float64."""

from __future__ import annotations

import re

import pytest
import torch
from attngen.syntax.formatter import format_text
from parity import variants
from parity.compare import Numbers, cotangents, disagreements, numbers
from parity.extras import EXTRAS
from parity.variants import EXAMPLE_VARIANTS, EXAMPLES, SMALL, Case, Variant

from attngen import reference
from attngen.analyse import analyse
from attngen.errors import Source
from attngen.ir.attention import Attention
from attngen.syntax.parser import parse

EVERY = EXAMPLE_VARIANTS + EXTRAS
FILES = sorted(EXAMPLES.glob("*.attn"))


def spec(variant: Variant) -> Attention:
    source = Source(variant.text, f"{variant.name}.attn")
    return analyse(parse(source), source, variant.consts)


def three_cases(index: int) -> list[Case]:
    """Three shapes, others for each variant, so that all together meet all."""
    return [SMALL[(index * 5 + step * 4) % len(SMALL)] for step in range(3)]


def test_every_example_file_has_a_formula() -> None:
    assert [path.stem for path in FILES] == sorted(v.name for v in EXAMPLE_VARIANTS)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_example_is_formatted_and_documented(path) -> None:  # type: ignore[no-untyped-def]
    text = path.read_text(encoding="utf-8")
    once = format_text(Source(text, path.name))
    assert once == text, "run `attngen fmt` on it"
    assert format_text(Source(once, path.name)) == once
    head = text.split("attention ")[0]
    assert re.search(r"https://|Nature", head), "the comment on top names the paper"
    assert re.search(r"^#   ", head, re.MULTILINE), "the comment on top has the formula"
    assert parse(Source(text)).statements[0].name == path.stem  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("variant", "case"),
    [(v, c) for i, v in enumerate(EVERY) for c in three_cases(i)],
    ids=lambda x: x.name,
)
def test_reference_is_the_formula(variant: Variant, case: Case) -> None:
    case = variant.suited(case)
    given = variants.in_float64(variants.inputs(variant, case, torch.float64, "cpu"))
    leaves = {"q": given.q, "k": given.k, "v": given.v, **{n: given.params[n] for n in given.floats()}}
    out, lse = variants.by_formula(variant, given, variant.consts)
    want = numbers(out, lse, leaves, with_lse=True)  # type: ignore[arg-type]

    attention = spec(variant)
    arrays = [x.detach().numpy() for x in (given.q, given.k, given.v)]
    params = {n: p.detach().numpy() if isinstance(p, torch.Tensor) else p for n, p in given.params.items()}
    options = {"params": params, "scale": given.scale, "dropout_seed": given.dropout_seed}
    result = reference.evaluate(attention, *arrays, **options)
    d_out, d_lse = cotangents(out, lse, with_lse=True)
    gradients = reference.gradients(attention, *arrays, d_out.numpy(), d_lse.numpy(), **options)
    found = {"out": result.out, "lse": result.lse, "d_q": gradients.q, "d_k": gradients.k, "d_v": gradients.v}
    found |= {f"d_{n}": gradients.params[n] for n in given.floats()}
    got = Numbers({n: torch.from_numpy(x.copy()) for n, x in found.items()})
    assert disagreements(got, want, tolerance=1e-9, floor=1e-3, coarse=frozenset()) == []
