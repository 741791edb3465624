"""Mistakes that the parser finds: their codes, their exact places, their fixes; and hostile files within limits."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from attngen.errors import Diagnostic, Source, SpecError
from attngen.syntax.formatter import format_text
from attngen.syntax.parser import parse


def mistakes(text: str) -> tuple[Diagnostic, ...]:
    with pytest.raises(SpecError) as caught:
        parse(Source(text, "spec.attn"))
    return caught.value.diagnostics


# (line with one mistake, code, the text under the caret, a part of the fix). A caret behind the line's end covers "".
ONE_LINE = [
    # values and operators
    ("score =", "missing-value", "=", "add a value on this line"),
    ("score = qk *", "missing-value", "*", "add a value"),
    ("mask = a and", "missing-value", "and", "add a value"),
    ("mask = not", "missing-value", "not", "add a value"),
    ("score = -", "missing-value", "-", "add a value"),
    ("mask = a or , b", "missing-value", ",", "add a value"),
    ("score = f(a, , b)", "missing-value", ", b", "add a value"),
    ("score = f(a,)", "missing-value", ")", "add a value"),
    ("score = ()", "missing-value", ")", "add a value"),
    ("score = t[]", "missing-value", "]", "add a value"),
    ("score = a + * b", "missing-value", "*", "leave one out"),
    ("score = + a", "missing-value", "+", "leave out the `+`"),
    ("score = 1 if", "missing-value", "if", "add a value"),
    ("mask = if a then b", "missing-value", "if", "write `A if CONDITION else B`"),
    ("param x: f32 where", "missing-value", "where", "add one"),
    ("param x: f32 fixed where x > 0", "syntax", "where", "write `where …` before `fixed`"),
    ("assume", "missing-value", "assume", "add one"),
    ("score = 2 q", "missing-operator", "q", "write `*`"),
    ("score = (a)(b)", "missing-operator", "(b", "write `*` for a product"),
    ("score = t[q][k]", "missing-operator", "[k", "t[i, j]"),
    ("mask = a is b", "missing-operator", "is", "write `==`"),
    ("mask = a if b then c", "missing-operator", "then", "write `A if CONDITION else B`"),
    ("mask = k not q", "missing-operator", "not", "write `and not` or `!=`, or `not in` with a list behind it"),
    ("mask = k in", "missing-value", "in", "add a value"),
    ("mask = k < in", "missing-value", "in", "for a name, choose another, such as `in_`"),
    ("param in: bool", "missing-name", "in", "choose another, such as `in_`"),
    ("param t: f32[in]", "missing-name", "in", "choose another, such as `in_`"),
    ("let f(in) = 1", "missing-name", "in", "choose another, such as `in_`"),
    ("mask = 0 <= k in t", "chain", "0 <= k in t", "put brackets around it, or join two conditions with `and`"),
    ("mask = k in t not in u", "chain", "k in t not in u", "put brackets around it"),
    ("mask = k in (t[b])", "list", "(t[b])", "leave out the brackets around it"),
    ("mask = k not in 3", "list", "3", "write `!=` to compare with one value"),
    ("mask = k in t[b] + 1", "list", "t[b] + 1", "with `param t: int[…]`, whose last axis is the list"),
    ("mask = k in (1, 2)", "list", ",", "write `k == 1 or k == 2` for a few values"),
    ("mask = k in [1, 2]", "list", "[", "or pass them as `param t: int[n]`"),
    ("score = a where b", "missing-operator", "where", "assume"),
    ("mask = k = q", "assignment", "= q", "write `==` to compare"),
    ("score == qk", "assignment", "==", "write `=`"),
    ("const w == 3", "assignment", "==", "write `=`"),
    ("mask = a == not b", "syntax", "not", "(not …)"),
    ("mask = a, b", "syntax", ",", "write `and`"),
    ("score = a if b", "syntax", "if", "add `else`"),
    ("score = a else b", "syntax", "else", "A if CONDITION else B"),
    ("score = a if b if c else d", "syntax", "if c", "brackets around the inner"),
    ("score = a : b", "syntax", ":", "leave it out"),
    ("mask = a < = b", "missing-value", "=", "write `<=`"),
    # signs of other languages
    ("mask = a && b", "foreign-sign", "&&", "write `and`"),
    ("mask = a || b", "foreign-sign", "||", "write `or`"),
    ("mask = !a", "foreign-sign", "!", "write `not`"),
    ("mask = True", "foreign-sign", "True", "write `true`"),
    ("mask = a ≤ b", "foreign-sign", "≤", "write `<=`"),
    ("mask = a <> b", "foreign-sign", "<>", "write `!=`"),
    ("const x := 3", "foreign-sign", ":=", "write `=`"),
    ("score = a × b", "foreign-sign", "×", "write `*`"),
    ("score = a ? b : c", "unexpected-character", "?", "write `A if C else B`"),
    ("score = a; mask = b", "unexpected-character", ";", "on a line of its own"),
    ('score = a if b else -float("inf")', "unexpected-character", '"inf"', "write inf"),
    ("score = a @ b", "unexpected-character", "@", "write `qk` for the product"),
    ("score = math.exp(a)", "unexpected-character", ".", "write `exp`, not math.exp"),
    ("score = torch.where(a, b, c)", "unexpected-character", ".", "write `A if C else B`, not torch.where"),
    ("score = a.", "unexpected-character", ".", "names have no parts"),
    ("score = é", "unexpected-character", "é", "A to Z"),
    ("score = 'a'", "unexpected-character", "'a'", "leave the quotes out"),
    ('attention "a"', "unexpected-character", '"a"', "leave the quotes out"),
    ("score = a\x00", "unexpected-character", "\x00", "delete it"),
    ("score = a # \x1b[31m", "unexpected-character", "\x1b", "delete it"),
    ("score = a # \u202e", "unexpected-character", "\u202e", "delete it"),
    ("score = a \r + b", "unexpected-character", "\r", "\\n"),
    ("score = a + \\", "unexpected-character", "\\", "leave it out"),
    # numbers
    ("score = 1_000", "number", "1_000", "write 1000"),
    ("score = 007", "number", "007", "write 7"),
    ("score = 0x1F", "number", "0x1F", "decimal"),
    ("score = 2q", "number", "2q", "write 2 * q"),
    ("score = 1.2.3", "number", "1.2.3", "0.5"),
    ("score = 9223372036854775808", "number", "9223372036854775808", "as a float"),
    ("score = 1e999", "number", "1e999", "`inf`"),
    ("score = 1e-999", "number", "1e-999", "0.0"),
    # brackets
    ("score = (qk * scale", "unclosed-bracket", "(", "add `)`"),
    ("score = t[h", "unclosed-bracket", "[", "add `]`"),
    ("normalizer n {", "unclosed-bracket", "{", "add `}`"),
    ("score = a)", "unmatched-bracket", ")", "delete it"),
    ("score = (a]", "unmatched-bracket", "]", "write `)`"),
    ("score = f([a)]", "unclosed-bracket", "[a", "add `]`"),
    # statements
    ("attention", "missing-name", "", "write `attention NAME`"),
    ("attention 3d", "number", "3d", "begins with a letter"),
    ("attention 3", "missing-name", "3", "write `attention NAME`"),
    ("attention if", "missing-name", "if", "reserved"),
    ("attention a b", "syntax", "b", "a line of its own"),
    ("maks = a", "unknown-statement", "maks", "write `mask`"),
    ("Score = a", "unknown-statement", "Score", "write `score`"),
    ("gamma = 3", "unknown-statement", "gamma", "write `let gamma …`"),
    ("x: f32", "unknown-statement", "x", "write `param x: …`"),
    ("3 + 4", "unknown-statement", "3", "brackets"),
    ("or a", "unknown-statement", "or", "end the line above with `or`, or put the whole value in brackets"),
    ("else a", "unknown-statement", "else", "put the whole value in brackets"),
    ("param x", "missing-type", "", "write `x: f32`"),
    ("param x f32", "missing-type", "f32", "write `x: f32`"),
    ("param x:", "missing-type", "", "write f32, int or bool"),
    ("param x: f33", "unknown-type", "f33", "one of f32, int, bool"),
    ("param x: float16[Hq]", "unknown-type", "float16", "write f16"),
    ("param x: f64[Hq]", "unknown-type", "f64", "write f32"),
    ("param x: f16", "unknown-type", "f16", "write f32"),
    ("param x: f32 = 1", "syntax", "=", "write `const`"),
    ("param x: f32[]", "dimension", "]", "a size"),
    ("param x: f32[Hq + 1]", "dimension", "+", "const"),
    ("param x: f32[1.5]", "dimension", "1.5", "without a point"),
    ("const x", "missing-value", "", "write `const x = …`"),
    ("const x: int = 3", "syntax", ":", "leave it out"),
    ("const 3 = x", "missing-name", "3", "const NAME = VALUE"),
    ("let f() = 1", "syntax", ")", "leave the brackets out"),
    ("let f(a, a) = 1", "duplicate", "a) =", "its own name"),
    ("let f(a b) = 1", "syntax", "b", "let NAME(ARGUMENT)"),
    ("let if = 1", "missing-name", "if", "reserved"),
    ("mask: a", "syntax", ":", "write `mask = CONDITION`"),
    ("dropout 0.5", "syntax", "0.5", "write `dropout = PROBABILITY`"),
    ("assume = a", "missing-value", "=", "leave it out"),
    ("tile", "syntax", "", "tile auto"),
    ("tile q = 64", "syntax", "", "k = 64"),
    ("tile k = 64, q = 64", "tile", "k", "tile q = 128, k = 64"),
    ("tile q = 64., k = 64", "tile", "64.", "without a point"),
    ("tile q = 64, k = 1e2", "tile", "1e2", "without a point"),
    ("tile q = 64, k = wide", "syntax", "wide", "k = 64"),
    ("normalizer", "syntax", "", "normalizer = NAME"),
    ("normalizer n", "syntax", "", "normalizer NAME { … }"),
    ("normalizer =", "missing-value", "", "softmax1"),
    ("normalizer = softmax(3)", "syntax", "3", "softmax(sink = VALUE)"),
    ("normalizer = softmax(sink)", "syntax", ")", "softmax(sink = VALUE)"),
    ("normalizer n { weight(s) = }", "missing-value", "}", "add a value"),
    ("normalizer n { 3 }", "syntax", "3", "weight"),
    ("normalizer n { shift max }", "syntax", "max", "TARGET = VALUE"),
    ("normalizer n { shift = max } 3", "syntax", "3", "a line of its own"),
    ("{", "unclosed-bracket", "{", "add `}`"),
]


@pytest.mark.parametrize(("line", "code", "at", "fix"), ONE_LINE, ids=[repr(case[0]) for case in ONE_LINE])
def test_one_mistake(line: str, code: str, at: str, fix: str) -> None:
    """On line 3 of a file that is right otherwise: reported once, there, with nothing else."""
    (found, *others) = mistakes(f"attention a\n# comment\n{line}\nlet fine = 1\n")
    assert not others
    column = line.rindex(at) + 1 if at else len(line) + 1
    column = PLACES.get(line, column)
    assert (found.code, found.span.line, found.span.column) == (code, 3, column)
    assert found.span.end_line == 3 and found.span.end_column > found.span.column
    assert fix in found.fix
    assert "\n" not in found.message and (found.message[0].islower() or found.message[0] == "`")
    rendered = found.render()
    assert rendered.startswith(f"spec.attn:3:{column}: error[{code}]: ")
    assert not any(terminal in rendered for terminal in ("LPAR", "RSQB", "NEWLINE", "EQUALS", "$END", "NAME'"))


# Where the text under the caret stands more than once in its line: the column meant.
PLACES = {
    "score = ()": 10,
    "mask = a, b": 9,
    "mask = a < = b": 12,
}


def test_several_mistakes_at_once() -> None:
    text = textwrap.dedent("""\
        attention x
        score = exp(qk * scale
        mask = k <= q and
        tile q = 32, k = 17.
        let y =
           3 + 4
        normalizer bar {
           weight(s) = exp(s
           denominator = sum +
           shift = max max
           fine = 1

           rescale(m, n) = exp(m - n) 3
           weight(s, m = 3
        }
        const z = 1 +
          2 + * 3
        normalizer baz
        {
          shift = max
        }
        mask = a && b || !c
        param p: f33
        """)
    assert [(d.span.line, d.span.column, d.code) for d in mistakes(text)] == [
        (2, 12, "unclosed-bracket"),
        (3, 15, "missing-value"),
        (4, 18, "tile"),
        (5, 7, "missing-value"),
        (8, 19, "unclosed-bracket"),
        (9, 22, "missing-value"),
        (10, 16, "missing-operator"),
        (13, 31, "missing-operator"),
        (14, 10, "unclosed-bracket"),
        (17, 7, "missing-value"),
        (18, 15, "syntax"),
        (22, 10, "foreign-sign"),
        (22, 15, "foreign-sign"),
        (22, 18, "foreign-sign"),
        (23, 10, "unknown-type"),
    ]


def test_an_open_bracket_does_not_swallow_the_file() -> None:
    text = "score = f(a,\n  g(b)\n\nmask = c = d\nnormalizer = n(x = (1\nlet y = 2 3\n"
    assert [(d.span.line, d.span.column, d.code) for d in mistakes(text)] == [
        (1, 10, "unclosed-bracket"),
        (4, 10, "assignment"),
        (5, 20, "unclosed-bracket"),
        (6, 11, "missing-operator"),
    ]


def test_what_is_quoted() -> None:
    with pytest.raises(SpecError) as caught:
        parse(Source("attention a\r\nscore = qk = 3\r\n", "alibi.attn"))
    assert str(caught.value) == (
        "alibi.attn:2:12: error[assignment]: `=` defines and can't stand inside an expression\n"
        "  2 | score = qk = 3\n"
        "    |            ^ write `==` to compare"
    )


def test_places_with_byte_order_mark_tabs_and_wide_characters() -> None:
    (first,) = mistakes("\ufeffattention a b")
    assert (first.span.line, first.span.column) == (1, 13)
    (second,) = mistakes("# éü漢\nscore\t=\ta b")
    assert (second.span.line, second.span.column) == (2, 11)


def test_the_formatter_refuses_what_does_not_parse() -> None:
    with pytest.raises(SpecError) as caught:
        format_text(Source("score = (1"))
    assert caught.value.diagnostics[0].code == "unclosed-bracket"


# ---------------------------------------------------------------- limits

LIMITS = [
    ("score = " + "(" * 101 + "1" + ")" * 101, 1, 109),
    ("score = 1" + " + 1" * 200, 1, 9),
    ("mask = " + "not " * 200 + "true", 1, 8),
    ("score = " + "-" * 200 + "1", 1, 9),
    ("score = " + "2 ** " * 200 + "1", 1, 9),
    ("score = " + "1 if true else " * 200 + "1", 1, 9),
    ("score = max(" + "1, " * 100 + "1)", 1, 9),
    ("mask = " + "1 < " * 100 + "1", 1, 8),
]


@pytest.mark.parametrize(("text", "line", "column"), LIMITS)
def test_depth_and_width(text: str, line: int, column: int) -> None:
    (found,) = mistakes(text)
    assert (found.code, found.span.line, found.span.column) == ("nesting", line, column)


def test_sizes() -> None:
    (size,) = mistakes("#" * (64 * 1024) + "\n")
    assert (size.code, size.span.line, size.span.column) == ("file-size", 1, 1)
    assert len(size.render()) < 500
    parse(Source("#" * (64 * 1024)))
    (name,) = mistakes(f"let {'a' * 101} = 1")
    assert (name.code, name.span.column) == ("name-length", 5)
    parse(Source(f"let {'a' * 100} = 1"))


def test_a_file_too_large_once_formatted() -> None:
    text = "".join(f"let a{i}=1{'+1' * 150}\n" for i in range(190))
    parse(Source(text))
    with pytest.raises(SpecError) as caught:
        format_text(Source(text))
    assert [d.code for d in caught.value.diagnostics] == ["file-size"]


def test_no_more_than_twenty_mistakes() -> None:
    assert len(mistakes("score = )\n" * 5000)) == 20
    assert len(mistakes("score = 1 2\n" * 5000)) == 20
    assert len(mistakes("normalizer n {\n" + "1\n" * 5000 + "}")) == 20


HOSTILE = {
    "brackets": "'score = ' + '(' * 20000 + '1' + ')' * 20000",
    "open brackets": "'score = ' + '(' * 60000",
    "calls": "'score = ' + 'f(' * 20000",
    "other brackets": "'score = ' + '[' * 15000 + '(' * 15000 + ']' * 30000",
    "crossed brackets": "'score = ' + '[)' * 30000",
    "closing brackets": "')' * 60000",
    "brackets on lines": "'let x = ' + '(\\n' * 30000",
    "statements in brackets": "'let x = (\\n' * 6000",
    "open lines of a block": "'normalizer n {\\n' + 'weight(s) = (\\n' * 4500",
    "wrong lines of a block": "'normalizer n {\\n' + '1\\n' * 30000 + '}'",
    "integer": "'score = ' + '9' * 5000",
    "long integer": "'score = ' + '9' * 60000",
    "float": "'score = 1.' + '9' * 60000",
    "NUL bytes": "chr(0) * 60000",
    "NUL bytes apart": "(chr(0) + 'a') * 30000",
    "escapes in a comment": "'#' + chr(27) * 60000",
    "carriage returns": "chr(13) * 60000",
    "a megabyte of statements": "'let x = 1\\n' * 100000",
    "a megabyte of one line": "'a' * 1000000",
    "a sum": "'score = 1' + '+1' * 10000",
    "a longer sum": "'score = 1' + '+1' * 32000",
    "a conjunction": "'mask = a' + ' and a' * 12000",
    "negations": "'mask = ' + 'not ' * 16000 + 'true'",
    "signs": "'score = ' + '-' * 60000 + '1'",
    "signs alone": "'score = ' + '-' * 60000",
    "powers": "'score = ' + '1**' * 20000 + '1'",
    "choices": "'score = ' + '1 if 1 else ' * 5000 + '1'",
    "comparisons": "'mask = ' + '1<' * 30000 + '1'",
    "arguments": "'score = f(' + '1,' * 30000 + '1)'",
    "names": "'let ' + 'a' * 60000 + ' = 1'",
    "wrong statements": "'1\\n' * 30000",
    "wrong signs": "'!' * 60000",
    "quotes": "'\"' * 60000",
    "pictures": "chr(0x1F600) * 60000",
    "formals": "'let f(' + 'a,' * 30000 + 'a) = 1'",
}
# Address space is limited to 500 MB and recursion to what Python allows by itself.
CHILD = """
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, (500_000_000, 500_000_000))
from attngen.errors import Source, SpecError
from attngen.syntax.parser import parse
from counted import calls

def refused(text):
    try:
        parse(Source(text))
    except SpecError as error:
        assert 0 < len(str(error)) < 20_000, name
    else:
        sys.exit(f"{name} was taken")

for line in sys.stdin:
    name, text = line.rstrip("\\n").split("\\t", 1)
    whole = eval(text)
    print(f"{name}\\t{calls(lambda: refused(whole)) / len(whole)}")
"""


def test_hostile_files_end_in_an_error_after_little_work() -> None:
    given = "".join(f"{name}\t{text}\n" for name, text in HOSTILE.items())
    command, place = [sys.executable, "-c", CHILD], Path(__file__).parents[2]
    path = os.pathsep.join([str(place / "tests"), str(place)])
    done = subprocess.run(
        command,
        input=given,
        cwd=place,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    work = [(name, float(each)) for name, each in (line.split("\t") for line in done.stdout.splitlines())]
    assert [name for name, _ in work] == list(HOSTILE)
    assert max(work, key=lambda pair: pair[1])[1] < 250  # calls for a character: a walk for each would be thousands


def test_large_files_that_are_right_are_formatted_in_time() -> None:
    texts = [
        "".join(f"let a{i} = 1  # {i}\n" for i in range(2800)),
        "mask = f(\n" + "x + # c\n" * 100 + "1)\n" + "# c\n\n\n" * 5000,
        "".join(f"let a{i} = 1{'+1' * 150}\n" for i in range(100)),
    ]
    for text in texts:
        once = format_text(Source(text))
        assert parse(Source(once)) == parse(Source(text))
