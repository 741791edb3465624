"""Text to syntax tree: the one place that knows lark. `parse` is what the pipeline calls.

Lark builds the LALR(1) tables from `grammar/attn.lark`; scanning, statements and messages are our own (`lexer`,
`lines`, `messages`), for exact positions and several mistakes at once. Statements are parsed one by one, each from a
clean start, and the lines of a normalizer's block are resumed likewise. Names and types mean nothing here.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

from lark import Lark, Token as LarkToken, UnexpectedToken
from lark.lexer import Lexer, PatternStr
from lark.parsers.lalr_interactive_parser import InteractiveParser
from lark.parsers.lalr_parser_state import ParserState

from attngen import cache, resources
from attngen.errors import Diagnostic, Source, Span, SpecError
from attngen.syntax import ast
from attngen.syntax.build import Builder, Refused
from attngen.syntax.lexer import MISTAKE_LIMIT, Comment, Token, Vocabulary, scan
from attngen.syntax.lines import Line, split
from attngen.syntax.messages import Place, explain

_State = ParserState[Any]

RESERVED = ("if", "else", "and", "or", "not", "in", "true", "false")
"""Words that can't be names anywhere. The words that begin statements can: only their place makes them special."""


@dataclass(frozen=True, slots=True)
class Parsed:
    """A file with what the tree leaves out: the tokens of each statement, in order, and the comments.

    A token that is a word of the language in its place has that word's type, not `NAME`.
    """

    module: ast.Module
    lines: tuple[Line, ...]
    comments: tuple[Comment, ...]
    source: Source


def parse(source: Source) -> ast.Module:
    """The syntax tree of a text. Raises `SpecError` with every mistake that was found."""
    return read(source).module


def read(source: Source) -> Parsed:
    """`parse`, with tokens and comments: for the formatter."""
    if source.text.startswith("\ufeff"):
        source = Source(source.text[1:], source.name)
    grammar = _grammar()
    found = scan(source, grammar.vocabulary)
    lines, mistakes = split(found.tokens, source)
    mistakes = [*found.mistakes, *mistakes]
    statements: list[ast.Statement] = []
    typed: list[Line] = []
    broke_off = False
    for line in lines:
        if len(mistakes) >= MISTAKE_LIMIT:
            break
        run = _Statement(grammar, source, line)
        statement, wrong = run.parse()
        if statement is not None:
            statements.append(statement)
            typed.append(Line(tuple(run.typed)))
        if broke_off and wrong and wrong[0].code == "unknown-statement":
            continue  # What follows a statement that broke off at its end may be its rest: one mistake, not two.
        mistakes += wrong
        broke_off = any(_at_end(mistake.span, line.span) for mistake in wrong if mistake.code != "unknown-statement")
    if mistakes:
        mistakes.sort(key=lambda mistake: (mistake.span.line, mistake.span.column))
        raise SpecError(mistakes[:MISTAKE_LIMIT])
    return Parsed(ast.Module(tuple(statements)), tuple(typed), found.comments, source)


def _at_end(span: Span, line: Span) -> bool:
    return (span.end_line, span.end_column) >= (line.end_line, line.end_column)


# ---------------------------------------------------------------- the grammar


@dataclass(frozen=True)
class _Grammar:
    lark: Lark
    builder: Builder
    vocabulary: Vocabulary
    words: dict[str, str]
    """The words that are special in their place only, each with its terminal."""

    def start(self) -> _State:
        """The automaton before a statement."""
        return cast(_State, cast(Any, self.run()).parser_state)

    def run(self) -> InteractiveParser:
        return cast(Any, self.lark).parse_interactive()


class _NoLexer(Lexer):
    """Lark asks for a lexer; the tokens are fed by hand."""

    def __init__(self, lexer_conf: object) -> None: ...

    def lex(self, lexer_state: object, parser_state: object) -> Iterator[LarkToken]:
        return iter(())


@functools.cache
def _grammar() -> _Grammar:
    builder = Builder()
    tables = cache.place("grammar", "attn.tables")
    lark = Lark(
        resources.read("grammar/attn.lark"),
        start="statement",
        parser="lalr",
        lexer=_NoLexer,
        transformer=cast(Any, builder),
        maybe_placeholders=True,
        cache=False if tables is None else str(tables),
    )
    fixed = {t.pattern.value: t.name for t in lark.terminals if isinstance(t.pattern, PatternStr)}
    vocabulary = Vocabulary(
        signs={text: type for text, type in fixed.items() if not text.isalpha()},
        reserved={text: fixed[text] for text in RESERVED},
        number=re.compile(lark.get_terminal("NUMBER").pattern.to_regexp()),
    )
    words = {text: type for text, type in fixed.items() if text.isalpha() and text not in RESERVED}
    return _Grammar(lark, builder, vocabulary, words)


# ---------------------------------------------------------------- one statement


class _Statement:
    """One run of the LALR automaton, fed token by token."""

    def __init__(self, grammar: _Grammar, source: Source, line: Line):
        self.grammar = grammar
        self.source = source
        self.tokens = (*line.tokens, Token("$END", "", line.tokens[-1].span))
        self.typed: list[Token] = []  # those that the grammar took, with their types there
        grammar.builder.source = source

    def parse(self) -> tuple[ast.Statement | None, list[Diagnostic]]:
        """The statement, or the mistakes in it: one, or one a line in a normalizer's block."""
        mistakes: list[Diagnostic] = []
        state = self.grammar.start()
        start, begin = _copy(state), 0  # where the statement, or the line of its block, began
        in_block = skipping = failed = False
        for number, token in enumerate(self.tokens):
            line_ends = in_block and token.type in ("NEWLINE", "RBRACE")
            if skipping and not line_ends:
                continue
            result: Any = None
            wrong = skipping
            if token.type == "BROKEN":
                # Reported where it was found; the rest of its line can't be judged.
                wrong = True
            elif not wrong:
                taken = self._typed(state, token)
                self.typed.append(taken)
                try:
                    result = _feed(state, taken)
                except UnexpectedToken:
                    mistakes.append(explain(self._place(start, begin, number, in_block)))
                    wrong = True
                except Refused as refused:
                    mistakes.append(refused.diagnostic)
                    wrong = True
            failed |= wrong
            skipping = wrong and not line_ends
            if skipping and (not in_block or len(mistakes) >= MISTAKE_LIMIT):
                return None, mistakes
            if wrong and line_ends:
                # The line is dropped; its end is taken as that of an empty one.
                state = _copy(start)
                _feed(state, token)
            if line_ends or (token.type == "LBRACE" and not wrong):
                start, begin = _copy(state), number + 1
                in_block = token.type != "RBRACE"
            if token.type == "$END" and not failed:
                return result, mistakes
        return None, mistakes

    def _typed(self, state: _State, token: Token) -> Token:
        """The token as the grammar takes it here: a word that is special in this place only, or a name."""
        if token.type == "NAME" and token.text in self.grammar.words:
            type = self.grammar.words[token.text]
            if type in cast(Any, state).parse_conf.states[state.position]:
                return Token(type, token.text, token.span)
        return token

    def _place(self, start: _State, begin: int, number: int, in_block: bool) -> Place:
        """The place of the token that was not taken, with all that would have been, seen from before it."""
        parser = self.grammar.run()
        parser.parser_state = _copy(start)
        for token in self.tokens[begin:number]:
            _feed(parser.parser_state, self._typed(parser.parser_state, token))
        after = self.tokens[number + 1] if number + 1 < len(self.tokens) else None
        expected = cast("set[str]", parser.accepts())
        return Place(self.source, self.tokens[number], self.tokens[begin:number], after, frozenset(expected), in_block)


def _feed(state: _State, token: Token) -> Any:
    """Go on by one token; what `$END` gives is the statement. Lark reads nothing of a token but its type."""
    return state.feed_token(cast(LarkToken, token), token.type == "$END")


def _copy(state: _State) -> _State:
    """A state to go on from, apart from the original. The values on its stack are frozen and shared."""
    return state.copy(deepcopy_values=False)
