"""Mathematics in two notations at once: LaTeX, and one line of Unicode for the terminal.

`Math` holds both texts and how strongly each binds, so that the combinators here set brackets where either needs them.
Takes parts, returns parts; knows nothing of attention (`formulas`) nor of pages (`rendering`).

The LaTeX renders alike in LaTeX, MathJax and KaTeX, and survives Markdown, which reads a backslash before punctuation
as an escape and an underscore after punctuation as emphasis: spaces are `\\thinspace`, braces `\\lbrace`, rows end in
`\\cr`, and a subscript follows a letter or a digit. The one exception, `\\_` in a name, is for the renderer to mend.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from string import Formatter

OR, AND, NOT, COMPARE, MOD, SUM, BIG, RATIO, TERM, POWER, ATOM = range(11)
"""How strongly an operation binds; a higher number binds closer. BIG is a sum sign, RATIO a quotient on one line."""


@dataclass(frozen=True, slots=True)
class Math:
    tex: str
    text: str
    tex_binds: int = ATOM
    text_binds: int = ATOM

    def tex_at(self, strength: int) -> str:
        return self.tex if self.tex_binds >= strength else rf"\left( {self.tex} \right)"

    def text_at(self, strength: int) -> str:
        return self.text if self.text_binds >= strength else f"({self.text})"


@dataclass(frozen=True, slots=True)
class Code:
    """A name or a line of the spec, as written, inside a sentence."""

    source: str


Prose = tuple[str | Math | Code, ...]


def prose(template: str, **holes: Math | Code) -> Prose:
    """A sentence with named holes for formulas: `prose("Pass one finds {m}.", m=M_I)`."""
    found: list[str | Math | Code] = []
    for text, hole, _, _ in Formatter().parse(template):
        found += [text] if text else []
        found += [holes[hole]] if hole is not None else []
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Equation:
    """`left relation right`; `left` is None where a chain goes on from the line above."""

    left: Math | None
    right: Math
    relation: str = "="


@dataclass(frozen=True, slots=True)
class Formula:
    """Equations set as one block, aligned at their relations."""

    lines: tuple[Equation, ...]


_RELATIONS = {
    "": "",
    ":": r":\quad",
    "+": "+",
    "-": "-",
    "=": "=",
    "<": "<",
    "<=": r"\leq",
    ">": ">",
    ">=": r"\geq",
    "!=": r"\neq",
    "in": r"\in",
    "not in": r"\notin",
    "or in": r"\cup",
}
_UNICODE = {
    "-": "−",
    "<=": "≤",
    ">=": "≥",
    "!=": "≠",
    "in": "∈",
    "not in": "∉",
    "or in": "∪",
}
_DIGITS = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")


def relation(sign: str) -> Math:
    return Math(_RELATIONS[sign], _UNICODE.get(sign, sign))


# ---------------------------------------------------------------- leaves


def atom(tex: str, text: str | None = None) -> Math:
    return Math(tex, tex if text is None else text)


def roman(name: str, index: str = "") -> Math:
    """A name from the spec, upright, with an index under it. The terminal has no fonts: there it stands as written."""
    under = rf"_{{\mathit{{{index}}}}}" if index else ""
    return Math(
        rf"\mathrm{{{name.replace('_', '@')}{under}}}".replace("@", r"\_"), f"{name}_{index}" if index else name
    )


def words(tex_and_text: str) -> Math:
    return Math(rf"\text{{{tex_and_text}}}", tex_and_text)


# ---------------------------------------------------------------- arithmetic


def total(terms: Sequence[tuple[bool, Math]]) -> Math:
    """The sum of terms, each with whether it is taken away."""
    if len(terms) == 1 and not terms[0][0]:
        return terms[0][1]
    tex = text = ""
    for place, (minus, term) in enumerate(terms):
        if place:
            tex += " - " if minus else " + "
            text += " − " if minus else " + "
        elif minus:
            tex, text = "-", "−"
        # A sum inside a sum needs brackets only where a sign would meet a sign.
        strength = BIG if minus or (place and term.text.startswith("−")) else SUM
        tex += term.tex_at(strength)
        text += term.text_at(strength)
    return Math(tex, text, SUM, SUM)


def plus(*terms: Math) -> Math:
    return total([(False, t) for t in terms])


def minus(a: Math, b: Math) -> Math:
    return total([(False, a), (True, b)])


def product(*factors: Math) -> Math:
    if len(factors) == 1:
        return factors[0]
    *first, last = factors
    # A sum sign may come last: nothing follows that it would take in.
    tex = r" \thinspace ".join([*(f.tex_at(TERM) for f in first), last.tex_at(BIG)])
    text = " · ".join([*(f.text_at(TERM) for f in first), last.text_at(BIG)])
    return Math(tex, text, TERM, TERM)


def quotient(a: Math, b: Math) -> Math:
    return Math(rf"\frac{{{a.tex}}}{{{b.tex}}}", f"{a.text_at(TERM)} / {b.text_at(POWER)}", TERM, RATIO)


def power(a: Math, exponent: Math) -> Math:
    raised = exponent.text.translate(_DIGITS) if exponent.text.lstrip("-").isdigit() else f"^{exponent.text_at(ATOM)}"
    return Math(f"{a.tex_at(ATOM)}^{{{exponent.tex}}}", f"{a.text_at(ATOM)}{raised}", POWER, POWER)


def root(x: Math) -> Math:
    return Math(rf"\sqrt{{{x.tex}}}", f"√{x.text}" if x.text.isalnum() else f"√({x.text})", ATOM, POWER)


def exponential(x: Math, base: str = "e") -> Math:
    """A fraction is too small for an exponent: exp(…) then."""
    if base == "e" and (r"\frac" in x.tex or r"\begin" in x.tex):
        return call(r"\exp", "exp", x)
    text = f"exp({x.text})" if base == "e" else f"{base}^({x.text})"
    return Math(f"{base}^{{{x.tex}}}", text, POWER, POWER)


# ---------------------------------------------------------------- functions and brackets


def call(tex: str, text: str, *args: Math) -> Math:
    inner = ", ".join(a.tex for a in args)
    return Math(rf"{tex}\left( {inner} \right)", f"{text}({', '.join(a.text for a in args)})", POWER, ATOM)


def operator(name: str, *args: Math) -> Math:
    """A function that LaTeX has no command for."""
    return call(rf"\operatorname{{{name}}}", name, *args)


def fenced(left: tuple[str, str], right: tuple[str, str], inner: Math) -> Math:
    return Math(rf"\left{left[0]} {inner.tex} \right{right[0]}", f"{left[1]}{inner.text}{right[1]}")


def floored(x: Math) -> Math:
    return fenced((r"\lfloor", "⌊"), (r"\rfloor", "⌋"), x)


def ceiled(x: Math) -> Math:
    return fenced((r"\lceil", "⌈"), (r"\rceil", "⌉"), x)


def absolute(x: Math) -> Math:
    return fenced((r"\lvert", "|"), (r"\rvert", "|"), x)


def bracketed(condition: Math) -> Math:
    """Iverson's bracket: 1 where the condition holds, else 0."""
    return fenced(("[", "["), ("]", "]"), condition)


def indexed(array: Math, indices: Sequence[Math]) -> Math:
    tex, text = ", ".join(i.tex for i in indices), ", ".join(i.text for i in indices)
    return Math(rf"{array.tex}\left[ {tex} \right]", f"{array.text}[{text}]")


def interval(low: Math, high: Math) -> Math:
    """From `low` to `high`, without `high` itself."""
    return Math(rf"\left[ {low.tex}, \ {high.tex} \right)", f"[{low.text}, {high.text})")


def listed(*parts: Math) -> Math:
    """A tuple; one part stands by itself."""
    if len(parts) == 1:
        return parts[0]
    return Math(
        r"\left( " + r", \ ".join(p.tex for p in parts) + r" \right)",
        f"({', '.join(p.text for p in parts)})",
    )


def such_that(element: Math, condition: Math) -> Math:
    """A set by its condition."""
    return Math(
        rf"\left\lbrace {element.tex} \mid {condition.tex} \right\rbrace",
        f"{{ {element.text} : {condition.text} }}",
    )


# ---------------------------------------------------------------- conditions


def compared(first: Math, *rest: tuple[str, Math]) -> Math:
    """A chain: `compared(a, ("<=", b), ("<", c))`."""
    tex, text = first.tex_at(MOD), first.text_at(MOD)
    for sign, part in rest:
        tex += f" {_RELATIONS[sign]} {part.tex_at(MOD)}"
        text += f" {_UNICODE.get(sign, sign)} {part.text_at(MOD)}"
    return Math(tex, text, COMPARE, COMPARE)


def conjoined(parts: Sequence[Math], word: str) -> Math:
    """Conditions joined by `and` or `or`."""
    if len(parts) == 1:
        return parts[0]
    inner = NOT if word == "and" else AND
    return Math(
        rf" \ \text{{{word}}} \ ".join(p.tex_at(inner) for p in parts),
        f" {word} ".join(p.text_at(inner) for p in parts),
        *((AND, AND) if word == "and" else (OR, OR)),
    )


def negated(condition: Math) -> Math:
    return Math(rf"\text{{not}} \ {condition.tex_at(NOT)}", f"not {condition.text_at(NOT)}", NOT, NOT)


def cases(value: Math, condition: Math, otherwise: Math) -> Math:
    tex = (
        r"\begin{cases} "
        rf"{value.tex} & \text{{if}} \ {condition.tex} \cr "
        rf"{otherwise.tex} & \text{{otherwise}} "
        r"\end{cases}"
    )
    return Math(tex, f"({value.text} if {condition.text}, else {otherwise.text})", TERM, ATOM)


# ---------------------------------------------------------------- big operators


def big_sum(under: Math | Sequence[Math], body: Math) -> Math:
    parts = [under] if isinstance(under, Math) else list(under)
    tex = ", \\ ".join(p.tex for p in parts)
    text = "; ".join(p.text for p in parts)
    return Math(rf"\sum_{{{tex}}} {body.tex_at(TERM)}", f"Σ_{{{text}}} {body.text_at(RATIO)}", BIG, BIG)


def both(a: Math, b: Math) -> Math:
    """Two conditions, one beside the other."""
    return Math(rf"{a.tex},\, {b.tex}", f"{a.text}, {b.text}")


def extreme(which: str, under: Math, body: Math) -> Math:
    """`max` or `min` over what stands under it."""
    return Math(
        rf"\{which}_{{{under.tex}}} {body.tex_at(TERM)}",
        f"{which}_{{{under.text}}} {body.text_at(TERM)}",
        BIG,
        BIG,
    )
