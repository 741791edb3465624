"""What to say where the grammar can't go on: takes the tokens around the place, gives a `Diagnostic`.

`explain` is handed the token found, those before it in its statement, and the terminals that would have been taken;
it speaks in words of the language, never in names of terminals.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence, Set as AbstractSet
from dataclasses import dataclass

from attngen.errors import Diagnostic, Source, Span
from attngen.syntax.lexer import Token
from attngen.syntax.lines import BINARY

_FORM = {
    "attention": "`attention NAME`",
    "const": "`const NAME = VALUE`",
    "param": "`param NAME: TYPE`",
    "let": "`let NAME = VALUE` or `let NAME(ARGUMENT) = VALUE`",
    "score": "`score = VALUE`",
    "mask": "`mask = CONDITION`",
    "normalizer": "`normalizer = NAME` or `normalizer NAME { … }`",
    "dropout": "`dropout = PROBABILITY`",
    "tile": "`tile q = 128, k = 64` or `tile auto`",
    "assume": "`assume CONDITION`",
}
STATEMENTS = tuple(_FORM)
_FEW_VALUES = "write `k == 1 or k == 2` for a few values, or pass them as `param t: int[n]`"
_OPERANDS = frozenset({"NAME", "NUMBER", "TRUE", "FALSE"})
_SIGN = {"EQUALS": "=", "COLON": ":", "COMMA": ",", "LPAR": "(", "RPAR": ")", "RSQB": "]", "LBRACE": "{", "RBRACE": "}"}


@dataclass(frozen=True, slots=True)
class Place:
    """Where the parser stopped: `before` are the statement's tokens up to `found`, `after` the next one, if any."""

    source: Source
    found: Token
    before: Sequence[Token]
    after: Token | None
    expected: AbstractSet[str]
    in_block: bool
    """Whether the tokens are those of one line in a normalizer's block."""

    @property
    def last(self) -> Token | None:
        return self.before[-1] if self.before else None

    @property
    def at_end(self) -> bool:
        """Whether the line ends where something is missing."""
        return self.found.type in ("$END", "NEWLINE")

    @property
    def wants_value(self) -> bool:
        return {"NAME", "NUMBER", "LPAR"} <= self.expected

    @property
    def wants_operator(self) -> bool:
        return {"PLUS", "AND"} & self.expected != set()

    def error(self, code: str, message: str, fix: str, span: Span | None = None) -> Diagnostic:
        return Diagnostic(code, message, span or self.span, fix, self.source)

    @property
    def span(self) -> Span:
        """What is found; at the end of a line, the place behind its last token."""
        if self.at_end and self.last is not None:
            end = self.last.span
            return Span(end.end_line, end.end_column, end.end_line, end.end_column + 1)
        return self.found.span


def explain(place: Place) -> Diagnostic:
    """The mistake at a place, and its fix where one can be told."""
    if place.expected == {"$END"}:
        behind = _describe(place.last) if place.last else "`}`"
        message = f"the statement should end behind {behind}: {_describe(place.found)} comes"
        swapped = place.found.text == "where" and place.last is not None and place.last.text == "fixed"
        fix = "write `where …` before `fixed`" if swapped else "start the next statement on a line of its own"
        return place.error("syntax", message, fix)
    if not place.before:
        return _no_statement(place)
    if place.found.type == "IN" and "NAME" in place.expected:
        fix = "choose another, such as `in_`"
        fix = f"put a value in front of it; for a name, {fix}" if place.wants_value else fix
        code = "missing-value" if place.wants_value else "missing-name"
        return place.error(code, "`in` is an operator, and can't be a name", fix)
    if place.expected == {"IN"} and place.last is not None:
        message = f"{_describe(place.last)} follows {_describe(place.before[-2])} without an operator"
        fix = "write `and not` or `!=`, or `not in` with a list behind it"
        return place.error("missing-operator", message, fix, place.last.span)
    if place.wants_value:
        return _value_missing(place)
    if place.wants_operator:
        return _operator_missing(place)
    return _form_missing(place)


def _no_statement(place: Place) -> Diagnostic:
    found, after = place.found, place.after
    if place.in_block:
        message = f"a line of a normalizer can't begin with {_describe(found)}"
        return place.error("syntax", message, "its lines define weight, denominator, shift and rescale")
    if found.type in ("NAME", "IF", "ELSE", "NOT", "AND", "OR", "IN", "TRUE", "FALSE"):
        close = difflib.get_close_matches(found.text[:40].lower(), STATEMENTS, 1, 0.75)
        if close:
            fix = f"write `{close[0]}`"
        elif found.type == "NAME" and after is not None and after.type in ("EQUALS", "LPAR"):
            fix = f"write `let {found.text} …` to define it"
        elif found.type == "NAME" and after is not None and after.type == "COLON":
            fix = f"write `param {found.text}: …` to declare it"
        elif found.type in ("AND", "OR", "IN"):
            fix = f"end the line above with `{found.text}`, or put the whole value in brackets, for it to go on here"
        elif found.type in ("IF", "ELSE", "NOT"):
            fix = "put the whole value in brackets, for it to go on here"
        else:
            fix = f"statements begin with {', '.join(STATEMENTS)}"
        return place.error("unknown-statement", f"no statement begins with `{found.text}`", fix)
    message = f"a statement can't begin with {_describe(found)}"
    if found.type == "LBRACE":
        fix = "put it at the end of the line above, behind the normalizer's name"
    else:
        fix = "end the line above with an operator, or put the whole value in brackets, for it to go on here"
    return place.error("unknown-statement", message, fix)


def _value_missing(place: Place) -> Diagnostic:
    """An expression, or an operand in one, was to come."""
    found, last = place.found, place.last
    assert last is not None
    if place.at_end or found.type in ("RPAR", "RSQB", "RBRACE", "COMMA"):
        what = "the line ends" if place.at_end else f"{_describe(found)} comes"
        at = last.span if place.at_end else None
        if last.type == "NAME" and last.text in ("assume", "where"):
            return place.error("missing-value", f"`{last.text}` has no condition behind it: {what}", "add one", at)
        fix = "add a value on this line" if place.at_end and last.type == "EQUALS" else "add a value"
        return place.error("missing-value", f"{_describe(last)} has no value behind it: {what}", fix, at)
    if found.type == "EQUALS":
        if last.type in ("LT", "GT", "EQUALS"):
            fix = "write `==` to compare" if last.type == "EQUALS" else f"write `{last.text}=`, without a blank"
        else:
            fix = "leave it out"
        return place.error("missing-value", f"{_describe(last)} has no value behind it: `=` comes", fix)
    if found.type == "NOT":
        message = f"`not` binds less than {_describe(last)} in front of it"
        return place.error("syntax", message, "put brackets around it: (not …)")
    if last.type == "IN" and found.type in ("LSQB", "LBRACE"):
        return place.error("list", f"`in` looks in a tensor param, and `{found.text}` comes", _FEW_VALUES)
    if found.type == "PLUS":
        return place.error("missing-value", f"{_describe(last)} has no value behind it: `+` comes", "leave out the `+`")
    if found.type == "IF":
        message = f"{_describe(last)} has no value behind it: `if` comes"
        return place.error("missing-value", message, "write `A if CONDITION else B`")
    if found.type in BINARY or found.type == "ELSE":
        message = f"{_describe(last)} has no value behind it: `{found.text}` comes"
        return place.error("missing-value", message, "add a value between them, or leave one out")
    return place.error("syntax", f"a value is expected behind {_describe(last)}, not {_describe(found)}", _form(place))


def _operator_missing(place: Place) -> Diagnostic:
    """A value is complete; an operator, a closing bracket or the end was to come."""
    found, last = place.found, place.last
    assert last is not None
    open_if = "ELSE" in place.expected
    if place.at_end:
        if open_if:
            message = "this `if` has no `else`"
            return place.error("syntax", message, "add `else` and the value otherwise", _last(place, "IF"))
        return place.error(
            "syntax", f"{_wanted(place)} is expected behind {_describe(last)}, not the end", _form(place)
        )
    if found.type == "EQUALS":
        message = "`=` defines and can't stand inside an expression"
        return place.error("assignment", message, "write `==` to compare")
    if found.type in _OPERANDS:
        words = {"is": "write `==`", "xor": "write `!=`", "mod": "write `%`", "then": "write `A if CONDITION else B`"}
        if found.type == "NAME" and found.text == "where":
            fix = "only a param has a `where`; write `assume` for a fact, `A if CONDITION else B` for a choice"
        elif found.type == "NAME" and found.text in words:
            fix = words[found.text]
        elif last.type in ("NUMBER", "RPAR", "RSQB") and found.type in ("NAME", "NUMBER"):
            fix = "write `*` between them for a product"
        else:
            fix = "put an operator between them, or start the next statement on a line of its own"
        message = f"{_describe(found)} follows {_describe(last)} without an operator"
        return place.error("missing-operator", message, fix)
    if found.type in ("LPAR", "LSQB"):
        if found.type == "LSQB" and last.type == "RSQB":
            fix = "write all indices in one pair of brackets: t[i, j]"
        elif found.type == "LSQB":
            fix = "only a param's name can be indexed"
        else:
            fix = "write `*` for a product; only a name can be called"
        message = f"`{found.text}` follows {_describe(last)} without an operator"
        return place.error("missing-operator", message, fix)
    if found.type == "COMMA" and "COMMA" not in place.expected and _last(place, "IN") is not None:
        return place.error("list", "`in` looks in a tensor param, and these are several values", _FEW_VALUES)
    if found.type == "COMMA" and "COMMA" not in place.expected:
        message = "a `,` only separates arguments, indices and tile sizes"
        return place.error("syntax", message, "write `and` to demand both, or leave it out")
    if found.type == "IF":
        return place.error(
            "syntax", "a second `if` before the `else` of the first", "put brackets around the inner one"
        )
    if found.type == "ELSE":
        return place.error("syntax", "this `else` has no `if`", "write `A if CONDITION else B`")
    if found.type == "COLON":
        return place.error("syntax", "a `:` only stands between a param and its type", "leave it out")
    return place.error(
        "syntax", f"{_wanted(place)} is expected behind {_describe(last)}, not {_describe(found)}", _form(place)
    )


def _form_missing(place: Place) -> Diagnostic:
    """A statement's own words and signs are not as they should be."""
    found, last, expected = place.found, place.last, place.expected
    assert last is not None
    word = place.before[0].text
    what = "the line ends" if place.at_end else f"{_describe(found)} comes"
    if place.in_block:
        message = f"{_wanted(place)} is expected behind {_describe(last)}: {what}"
        return place.error("syntax", message, _form(place))
    if last is place.before[0]:
        if expected == {"NAME"}:
            reserved = found.type in ("IF", "ELSE", "AND", "OR", "NOT", "TRUE", "FALSE")
            fix = f"`{found.text}` is reserved: choose another" if reserved else f"write {_FORM[word]}"
            return place.error("missing-name", f"`{word}` needs a name: {what}", fix)
        if expected == {"EQUALS"} and found.type == "EQ":
            return place.error("assignment", f"`==` compares; `{word}` is defined with one `=`", "write `=`")
        return place.error("syntax", f"`{word}` can't go on like this: {what}", f"write {_FORM[word]}")
    if word == "param":
        if "COLON" in expected:
            return place.error(
                "missing-type", f"the param `{last.text}` needs a type: {what}", f"write `{last.text}: f32`"
            )
        if last.type == "COLON":
            return place.error("missing-type", f"the param needs a type behind `:`: {what}", "write f32, int or bool")
        if found.type == "EQUALS":
            fix = "write `const` for a fixed value; a param gets its value at the call"
            return place.error("syntax", "a param has no default value", fix)
        if last.type in ("LSQB", "COMMA"):
            fix = "a dimension is a size, a const, a whole number or a new name"
            return place.error("dimension", f"a dimension is missing: {what}", fix)
        if "COMMA" in expected:
            fix = "a dimension is a size, a const, a whole number or a new name; give a computed one a const"
            return place.error("dimension", f"`,` or `]` is expected in the dimensions: {what}", fix)
    if found.type == "EQ" and "EQUALS" in expected:
        return place.error("assignment", "`==` compares; a definition has one `=`", "write `=`")
    if found.type == "COLON" and word in ("const", "let"):
        return place.error("syntax", f"a `{word}` has no type", "leave it out: types follow from the value")
    if word == "normalizer" and last.type == "EQUALS":
        fix = "write softmax, softmax1, sigmoid or a name defined above"
        return place.error("missing-value", f"a normalizer's name is expected behind `=`: {what}", fix)
    if word == "normalizer" and place.before[1].type == "EQUALS" and last.type in ("LPAR", "COMMA", "NAME"):
        fix = "arguments go by name: write `softmax(sink = VALUE)`"
        return place.error("syntax", f"{_wanted(place)} is expected behind {_describe(last)}: {what}", fix)
    if found.type == "RPAR" and last.type == "LPAR":
        return place.error("syntax", "empty brackets", "leave the brackets out, or name an argument")
    if "EQUALS" in expected and len(place.before) == 2:
        form = f"normalizer = {last.text}" if word == "normalizer" else f"{word} {last.text} = …"
        return place.error("missing-value", f"`{last.text}` needs a value: {what}", f"write `{form}`")
    return place.error("syntax", f"{_wanted(place)} is expected behind {_describe(last)}: {what}", _form(place))


def _last(place: Place, type: str) -> Span | None:
    return next((token.span for token in reversed(place.before) if token.type == type), None)


def _form(place: Place) -> str:
    if place.in_block:
        return "the form is `TARGET = VALUE` or `TARGET(ARGUMENTS) = VALUE`"
    return f"the form is {_FORM[place.before[0].text]}"


def _wanted(place: Place) -> str:
    """What could come, in words."""
    expected = place.expected
    words: list[str] = []
    if place.wants_operator:
        words.append("an operator")
    if "NAME" in expected:
        words.append("a name")
    if "NUMBER" in expected:
        words.append("a number")
    words += [f"`{sign}`" for type, sign in _SIGN.items() if type in expected]
    if "NEWLINE" in expected or "$END" in expected:
        words.append("the end of the line")
    if not words:
        words.append("something else")
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def _describe(token: Token) -> str:
    if token.type in ("$END", "NEWLINE"):
        return "the end of the line"
    text = token.text if len(token.text) <= 40 else token.text[:37] + "…"
    return f"`{text}`"
