"""Makes the automaton's tables of the grammar: `python -m attngen.syntax.tables` writes `grammar/attn.tables.json`.

The one place that knows lark, which builds LALR(1) tables; nothing imports this module but a test, which compares. The
tables stand in the repository since making them takes longer than parsing any spec. `automaton` says how to read them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, cast

from lark import Lark
from lark import Token as LarkToken
from lark.grammar import Rule
from lark.lexer import Lexer, PatternStr
from lark.parsers.lalr_analysis import Shift

from attngen import resources
from attngen.syntax.automaton import TABLES


class _NoLexer(Lexer):
    """Lark asks for a lexer; `attngen.syntax.lexer` is ours."""

    def __init__(self, lexer_conf: object) -> None: ...

    def lex(self, lexer_state: object, parser_state: object) -> Iterator[LarkToken]:
        return iter(())


def tables() -> str:
    """The tables as JSON, a rule and a state a line."""
    lark = Lark(
        resources.read("grammar/attn.lark"), start="statement", parser="lalr", lexer=_NoLexer, maybe_placeholders=True
    )
    table: Any = cast(Any, lark.parser).parser._parse_table
    numbers = _numbered(table.states, table.start_states["statement"])
    rules = {rule: number for number, rule in enumerate(lark.rules)}

    def coded(kind: object, where: Any) -> int:
        return numbers[where] if kind is Shift else ~rules[where]

    states = [
        {symbol: coded(*table.states[state][symbol]) for symbol in sorted(table.states[state])} for state in numbers
    ]
    parts = {
        "fixed": [{t.name: t.pattern.value for t in lark.terminals if isinstance(t.pattern, PatternStr)}],
        "number": [lark.get_terminal("NUMBER").pattern.to_regexp()],
        "end": [numbers[table.end_states["statement"]]],
        "rules": [_rule(rule) for rule in lark.rules],
        "states": states,
    }
    lines = (f'"{name}": [\n' + ",\n".join(map(json.dumps, entries)) + "\n]" for name, entries in parts.items())
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _numbered(states: dict[Any, dict[str, tuple[object, Any]]], start: Any) -> dict[Any, int]:
    """Lark's states in the order in which they are met from the start: its own numbers differ from run to run."""
    found = {start: 0}
    for state in (waiting := [start]):
        for _, (kind, where) in sorted(states[state].items()):
            if kind is Shift and where not in found:
                found[where] = len(found)
                waiting.append(where)
    return found


def _rule(rule: Rule) -> list[Any]:
    name: str = rule.origin.name
    omitted: tuple[bool, ...] = rule.options.empty_indices or (False,) * (len(rule.expansion) + 1)
    children: list[int | None] = []
    at = 0
    for left_out in omitted:
        if left_out:
            children.append(None)
        elif at < len(rule.expansion):
            children.append(at)
            at += 1
    spliced = [i for i, symbol in enumerate(rule.expansion) if symbol.name.startswith("_")]
    method = None if name.startswith("_") else rule.alias or name
    return [name, method, len(rule.expansion), children, spliced, rule.options.expand1 and not rule.alias]


if __name__ == "__main__":
    (resources.root() / TABLES).write_text(tables(), encoding="utf-8", newline="\n")
