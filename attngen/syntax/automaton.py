"""The LALR(1) automaton of the language: it takes tokens one at a time and calls a builder's method for each rule.

Its tables stand ready in `grammar/attn.tables.json`, made of `grammar/attn.lark` by `tables`. A state maps symbols to
numbers: from 0 on the state to go to, below 0 the rule `~number` to reduce by.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from attngen import resources
from attngen.syntax.lexer import Token

TABLES = "grammar/attn.tables.json"
END = "$END"


class Unexpected(Exception):
    """The grammar has no place for the token."""


@dataclass(frozen=True, slots=True)
class Rule:
    """`children` are places among the `size` symbols on the right, None for one that the file leaves out; those of the
    symbols in `spliced` take its place. A lone child stands for a rule that is `transparent`."""

    name: str
    method: str | None
    """The builder's; None for a helper, whose value is `Repeated`."""
    size: int
    children: tuple[int | None, ...]
    spliced: frozenset[int]
    transparent: bool

    def value(self, right: list[Any], builder: object) -> Any:
        found: list[Any] = []
        before: Repeated | None = None
        for place in self.children:
            if place is None:
                found.append(None)
            elif place not in self.spliced:
                found.append(right[place])
            elif self.method is None and place == 0:
                before = right[0]
            else:
                found += right[place].all()
        if self.transparent and len(found) == 1:
            return found[0]
        return Repeated(before, found) if self.method is None else getattr(builder, self.method)(found)


@dataclass(frozen=True, slots=True)
class Repeated:
    """The children of a helper: those so far, and more. They are put together once, at the end of the repetition."""

    before: Repeated | None
    more: list[Any]

    def all(self) -> list[Any]:
        parts: list[list[Any]] = []
        at: Repeated | None = self
        while at is not None:
            parts.append(at.more)
            at = at.before
        return [child for part in reversed(parts) for child in part]


@dataclass(frozen=True, slots=True)
class Tables:
    fixed: Mapping[str, str]
    """The words and signs of the language, by token type."""
    number: str
    """What a number looks like, as a regular expression."""
    rules: tuple[Rule, ...]
    states: tuple[Mapping[str, int], ...]
    end: int
    """The state after a whole statement."""


@functools.cache
def tables() -> Tables:
    found = json.loads(resources.read(TABLES))
    rules = tuple(
        Rule(name, method, size, tuple(children), frozenset(spliced), transparent)
        for name, method, size, children, spliced, transparent in found["rules"]
    )
    return Tables(found["fixed"][0], found["number"][0], rules, tuple(found["states"]), found["end"][0])


class State:
    """A statement read so far: the automaton's states, and the values of what they stand for."""

    def __init__(self, builder: object):
        self._tables = tables()
        self._builder = builder
        self._states = [0]
        self._values: list[Any] = []

    def copy(self) -> State:
        """A state to go on from, apart from this one. The values are frozen and shared."""
        other = State(self._builder)
        other._states, other._values = [*self._states], [*self._values]
        return other

    def knows(self, type: str) -> bool:
        """Whether a token of this type means something in this place."""
        return type in self._tables.states[self._states[-1]]

    def feed(self, token: Token) -> Any:
        """Go on by one token; what `END` gives is the statement. Raises `Unexpected`, or what the builder raises."""
        states, rules = self._tables.states, self._tables.rules
        while True:
            action = states[self._states[-1]].get(token.type)
            if action is None:
                raise Unexpected
            if action >= 0:
                self._states.append(action)
                self._values.append(token)
                return None
            rule = rules[~action]
            first = len(self._values) - rule.size
            value = rule.value(self._values[first:], self._builder)
            del self._values[first:], self._states[first + 1 :]
            self._values.append(value)
            self._states.append(states[self._states[-1]][rule.name])
            if token.type == END and self._states[-1] == self._tables.end:
                return value

    def expected(self) -> frozenset[str]:
        """The types of the tokens that would be taken here."""
        here = self._tables.states[self._states[-1]]
        return frozenset(type for type in here if type.isupper() and self._takes(type))

    def _takes(self, type: str) -> bool:
        """Whether `feed` would take such a token: lookaheads of merged states promise more than they hold."""
        at = [*self._states]
        while True:
            action = self._tables.states[at[-1]].get(type)
            if action is None or action >= 0:
                return action is not None
            rule = self._tables.rules[~action]
            del at[len(at) - rule.size :]
            at.append(self._tables.states[at[-1]][rule.name])
            if type == END and at[-1] == self._tables.end:
                return True
