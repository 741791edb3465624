"""The automaton's tables are those of the grammar, and the automaton says what it would take."""

from __future__ import annotations

import pytest

from attngen import resources
from attngen.errors import NOWHERE
from attngen.syntax.automaton import TABLES, State, Unexpected, tables
from attngen.syntax.build import Builder
from attngen.syntax.lexer import Token


def test_tables_are_those_of_the_grammar() -> None:
    from attngen.syntax.tables import tables as made

    assert resources.read(TABLES) == made(), "the grammar has changed: run `python -m attngen.syntax.tables`"


def after(*types: str) -> State:
    state = State(Builder())
    for type in types:
        state.feed(Token(type, "int", NOWHERE))  # what the builder takes for a type, too
    return state


def test_what_is_expected_is_what_is_taken() -> None:
    types = {type for state in tables().states for type in state if type.isupper()}
    for read in ((), ("SCORE", "EQUALS"), ("SCORE", "EQUALS", "NAME"), ("PARAM", "NAME", "COLON", "NAME")):
        taken: set[str] = set()
        for type in types:
            try:
                after(*read).feed(Token(type, "int", NOWHERE))
                taken.add(type)
            except Unexpected:
                pass
        assert after(*read).expected() == taken


def test_a_copy_goes_its_own_way() -> None:
    state = after("SCORE", "EQUALS")
    other = state.copy()
    other.feed(Token("NAME", "x", NOWHERE))
    assert other.knows("LSQB") and not state.knows("LSQB")
    with pytest.raises(Unexpected):
        state.feed(Token("LSQB", "[", NOWHERE))
