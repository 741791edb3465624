"""The canonical form: what changes, what stays, and that formatting twice changes nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from attngen.errors import Source, SpecError
from attngen.resources import root
from attngen.syntax.formatter import format_text
from attngen.syntax.parser import parse

ROOT = Path(root())
FILES = sorted([*ROOT.glob("examples/*.attn"), *ROOT.glob("grammar/*.attn")])


def formatted(text: str) -> str:
    once = format_text(Source(text))
    assert format_text(Source(once)) == once
    assert parse(Source(once)) == parse(Source(text))
    return once


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_files_of_the_repository(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    once = formatted(text)
    comments = [line[line.index("#") :].rstrip() for line in text.split("\n") if "#" in line]
    assert [line[line.index("#") :] for line in once.split("\n") if "#" in line] == comments


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("attention   a", "attention a"),
        ("const w=1", "const w = 1"),
        ("param x:f32[ Hq,3 ]where(x>0)", "param x: f32[Hq, 3] where x > 0"),
        ("let f( a,b )=a", "let f(a, b) = a"),
        ("mask  =a<b<=c", "mask = a < b <= c"),
        ("normalizer=softmax( sink=3 )", "normalizer = softmax(sink = 3)"),
        ("normalizer = softmax( )", "normalizer = softmax()"),
        ("tile q=128 ,k=64", "tile q = 128, k = 64"),
        ("tile   auto", "tile auto"),
        ("assume(a<b)", "assume a < b"),
        ("dropout=.1", "dropout = .1"),
        ("score = 1E-6+1.*0.50", "score = 1E-6 + 1. * 0.50"),
        ("score = - a", "score = -a"),
        ("score = a - - b*-c", "score = a - -b * -c"),
        ("score = 2**- 1", "score = 2 ** -1"),
        ("score = ((a))", "score = a"),
        ("score = (a + b) + (c * d)", "score = a + b + c * d"),
        ("score = a - (b - c)", "score = a - (b - c)"),
        ("score = (a + b) * c", "score = (a + b) * c"),
        ("score = (-a) ** 2 + (-(a ** 2))", "score = (-a) ** 2 + -a ** 2"),
        ("score = (a ** b) ** c ** d", "score = (a ** b) ** c ** d"),
        ("score = a ** (b ** c)", "score = a ** b ** c"),
        ("score = (-a) * (-b)", "score = -a * -b"),
        ("mask = (a < b) < c", "mask = (a < b) < c"),
        ("mask = not(a<b) and (not c)", "mask = not a < b and not c"),
        ("mask = (not a) == b", "mask = (not a) == b"),
        ("mask = (a and b) or (c and (d or e))", "mask = a and b or c and (d or e)"),
        ("mask = a and (b and c)", "mask = a and (b and c)"),
        ("score = (a if b else c) if (d) else (e if f else g)", "score = (a if b else c) if d else e if f else g"),
        ("score = (a if b else c) + 1", "score = (a if b else c) + 1"),
        ("score = f ( (a), t [ (i) , j ] )", "score = f(a, t[i, j])"),
        ("score = a +\n   b", "score = a + b"),
        ("score = a\r\nmask = b", "score = a\nmask = b"),
        ("normalizer n{shift=max}", "normalizer n {\n    shift = max\n}"),
        ("normalizer n(a){}", "normalizer n(a) {\n}"),
        (
            "normalizer n {\n\n weight(s)   = s\n\n\n shift = max\n\n}",
            "normalizer n {\n    weight(s) = s\n\n    shift = max\n}",
        ),
    ],
)
def test_canonical_form(text: str, canonical: str) -> None:
    assert formatted(text) == canonical + "\n"


def test_comments_and_blank_lines() -> None:
    text = """

# top
   #indented
attention a   # name


# between


score = qk#tight
normalizer n( a ){ # head
# first

  weight( s )=exp( s ) # w


  shift = max
  # last

} # tail
normalizer one { shift = max } # line

# the end


"""
    assert (
        formatted(text)
        == """\
# top
#indented
attention a  # name

# between

score = qk  #tight
normalizer n(a) {  # head
    # first

    weight(s) = exp(s)  # w

    shift = max
    # last
}  # tail
normalizer one {
    shift = max
}  # line

# the end
"""
    )


def test_comments_inside_a_statement_stay_at_their_words() -> None:
    text = """\
mask = (causal   # past
 and (same)   # documents

   # and what every key sees
  or (k<n))   # end
let f(a,  # one
b) = a *  # two
  b
normalizer n {
  denominator = (sum  # s
    + 1)
}
"""
    assert (
        formatted(text)
        == """\
mask = (causal  # past
    and (same)  # documents
    # and what every key sees
    or (k < n))  # end
let f(a,  # one
    b) = a *  # two
    b
normalizer n {
    denominator = (sum  # s
        + 1)
}
"""
    )


def test_long_lines_are_broken_at_the_outermost_operator() -> None:
    parts = [
        "alpha_alpha == beta_beta",
        "gamma_gamma(delta_delta, epsilon) < zeta_zeta",
        "eta_eta",
        "theta_theta[iota]",
    ]
    text = formatted(f"mask = {' and '.join(parts[:2])} or {' and '.join(parts)}\n")
    assert text == (
        "mask = alpha_alpha == beta_beta and gamma_gamma(delta_delta, epsilon) < zeta_zeta or\n"
        "    alpha_alpha == beta_beta and gamma_gamma(delta_delta, epsilon) < zeta_zeta and eta_eta and\n"
        "    theta_theta[iota]\n"
    )
    long = formatted("score = " + " + ".join(f"function_{i}(argument_{i}, {i} if c else {i})" for i in range(30)))
    assert max(map(len, long.split("\n"))) <= 100
    nested = formatted("score = " + "f(x, " * 40 + "x" + ", 2 if c else 3)" * 40)
    assert max(map(len, nested.split("\n"))) <= 100


def test_a_broken_line_may_begin_like_a_line_of_a_block() -> None:
    parts = ", ".join(f"weight(argument_number_{i})" for i in range(12))
    formatted(
        f"normalizer n {{\n weight(s) = max({parts})\n}}\nnormalizer = n(let = 1, mask = max({parts}), score = 2)"
    )


def test_empty_files() -> None:
    assert formatted("") == ""
    assert formatted("\n\n") == ""
    assert formatted("\n# only\n\n\n#comments") == "# only\n\n#comments\n"


def test_a_file_that_does_not_parse_is_refused() -> None:
    with pytest.raises(SpecError):
        format_text(Source("score = 1 +\nmask = true\n"))
