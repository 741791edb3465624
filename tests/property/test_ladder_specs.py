"""The derivation of files drawn from the grammar: it never fails, and its layout holds for whatever a file says."""

from __future__ import annotations

import re

from hypothesis import given, settings, strategies as st

from attngen import api
from attngen.errors import Source, SpecError
from attngen.explain import ladder, render
from attngen.prove.verdict import Obligation
from property import grammar

files = st.builds(
    lambda score, mask, normalizer: grammar.spec(f"score = {score}", f"mask = {mask}", normalizer),
    grammar.scores,
    st.one_of(st.just("true"), grammar.masks),
    grammar.normalizers,
)


@settings(max_examples=60)
@given(files)
def test_every_file_has_a_derivation_that_lays_out(text: str) -> None:
    try:
        attention = api.analyse(Source(text))
    except SpecError:
        return  # the front end refuses it, and says why
    derivation = ladder(attention, api.plan(attention))
    assert {o for step in derivation.steps for o in step.shown_by} == set(Obligation)
    lines = render(derivation).split("\n")
    assert max(map(len, lines)) <= 100
    markdown = render(derivation, "md")
    for formula in re.findall(r"\$\$\n(.*?)\n\$\$", markdown, re.DOTALL):
        assert not re.search(r"\\[!-/:-@\[-`{-~]|(?<![A-Za-z0-9])_", formula), formula
        assert formula.count("{") == formula.count("}")
        assert formula.count(r"\left") == formula.count(r"\right")
    assert render(derivation, "tex").isascii()
