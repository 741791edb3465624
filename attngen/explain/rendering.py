"""Writes a derivation: for a terminal, as Markdown, or as a LaTeX file that compiles by itself.

Takes a `Ladder` and, where there is one, the proof of the same plan; returns text. Every word is the steps' own: here
is only layout, escaping, and the verdict that each step cites.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TextIO, assert_never

from attngen.explain.notation import Code, Equation, Formula, Math, Prose, relation
from attngen.explain.steps import Ladder, Step
from attngen.prove.verdict import Obligation, Shown, Unknown
from attngen.terminal import paint

Format = Literal["text", "md", "tex"]
FORMATS: tuple[Format, ...] = ("text", "md", "tex")
WIDTH = 100


def render(
    ladder: Ladder, format: Format = "text", proof: Sequence[Shown] | None = None, stream: TextIO | None = None
) -> str:
    """The whole derivation. `stream` is where text goes: a terminal among them gets colours."""
    shown = None if proof is None else {s.obligation: s for s in proof}
    match format:
        case "text":
            return _text(ladder, shown, stream)
        case "md":
            return _markdown(ladder, shown)
        case "tex":
            return _latex(ladder, shown)
        case _:
            assert_never(format)


_Proof = dict[Obligation, Shown] | None


# ---------------------------------------------------------------- the verdicts that a step cites


@dataclass(frozen=True, slots=True)
class _Citation:
    """An obligation, its verdict (None without a proof), and the method or what is wrong."""

    name: str
    status: str | None
    detail: str


def _citations(step: Step, proof: _Proof) -> Iterator[_Citation]:
    for obligation in step.shown_by:
        if proof is None:
            yield _Citation(obligation.value, None, "")
        elif obligation not in proof:
            yield _Citation(obligation.value, "not run", "")
        else:
            yield _cited(proof[obligation])


def _cited(shown: Shown) -> _Citation:
    name = shown.obligation.value
    match shown.status:
        case "refuted":
            return _Citation(name, "refuted", "; ".join(c.subject for c in shown.refuted))
        case "unknown":
            reasons = [f"{c.subject}: {c.verdict.reason}" for c in shown.unknown if isinstance(c.verdict, Unknown)]
            return _Citation(name, "unknown", "; ".join(reasons))
        case _:
            methods = dict.fromkeys(c.verdict.by for c in shown.claims)
            return _Citation(name, "proved", ", ".join(methods))


# ---------------------------------------------------------------- terminal


def _text(ladder: Ladder, proof: _Proof, stream: TextIO | None) -> str:
    def painted(text: str, style: str) -> str:
        return text if stream is None else paint(text, style, stream)

    blocks = [painted(f"{ladder.name}: from the definition to the kernels", "bold"), _wrapped(_plain(ladder.notation))]
    for number, step in enumerate(ladder.steps, 1):
        blocks.append(painted(f"{number}. {step.title}", "bold"))
        blocks.append(_wrapped(_plain(step.says), "   "))
        blocks += ["\n".join(text_lines(f)) for f in step.formulas]
        last = [_wrapped(f"identity: {_plain(step.identity)}", "   ")]
        last += _text_citations(_citations(step, proof), painted)
        blocks.append("\n".join(last))
    return "\n\n".join(blocks) + "\n"


def _text_citations(citations: Iterator[_Citation], painted: Callable[[str, str], str]) -> Iterator[str]:
    """One line for the names alone; with a proof, one for each verdict."""
    found = list(citations)
    if all(c.status is None for c in found):
        yield f"   shown by: {', '.join(c.name for c in found)}"
        return
    for c in found:
        line = _wrapped(f"shown by: {c.name}: {c.status}" + (f" ({c.detail})" if c.detail else ""), "   ")
        style = {"proved": "green", "refuted": "red"}.get(c.status or "", "dim")
        yield line.replace(f": {c.status}", f": {painted(c.status or '', style)}", 1)


def _plain(prose: Prose) -> str:
    """Sentences with formulas in them; a short formula is not broken over two lines."""
    return "".join(_inline(prose, str, _unbroken, lambda c: c.source))


def _unbroken(m: Math) -> str:
    return m.text.replace(" ", "\u00a0") if len(m.text) <= 40 else m.text


def _inline(
    prose: Prose, word: Callable[[str], str], math: Callable[[Math], str], code: Callable[[Code], str]
) -> Iterator[str]:
    for part in prose:
        match part:
            case str():
                yield word(part)
            case Math():
                yield math(part)
            case Code():
                yield code(part)
            case _:
                assert_never(part)


def _wrapped(text: str, indent: str = "") -> str:
    return textwrap.fill(
        text.strip(),
        WIDTH,
        initial_indent=indent,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    ).replace("\u00a0", " ")


_BREAKS = re.compile(r" (?=[+−=≤≥≠∪·<>] |(?:and|or|if|else|mod) )|(?<=[,;]) ")


_BINDS = {"+": 1, "−": 1, "=": 1, "≤": 2, "≥": 2, "≠": 2, "<": 2, ">": 2, "·": 3}
"""Where a line is better not broken: before what binds closer."""


def text_lines(formula: Formula) -> Iterator[str]:
    """The equations of a block, their relations in one column."""
    lefts = [e.left.text if e.left is not None else "" for e in formula.lines]
    column = max(map(len, lefts)) if max(map(len, lefts)) <= 24 else 0
    for left, e in zip(lefts, formula.lines, strict=True):
        head = left.ljust(column) + (f" {relation(e.relation).text} " if left or column else relation(e.relation).text)
        yield from _broken("      " + head, e.right.text)


def _broken(head: str, text: str) -> Iterator[str]:
    """A long right side goes on below its own beginning, broken where the fewest brackets are open."""
    line, rest = head, text
    while len(line) + len(rest) > WIDTH:
        room = WIDTH - len(line)
        places = [m.start() for m in _BREAKS.finditer(rest) if 0 < m.start() <= room]
        late = [place for place in places if place > room // 3] or places
        if not late:
            break
        at = min(late, key=lambda place: (_depth(rest[:place]), _BINDS.get(rest[place + 1], 0), -place))
        yield line + rest[:at]
        line, rest = " " * (min(len(head), 24) + 2), rest[at + 1 :]
    yield line + rest


def _depth(text: str) -> int:
    """How many brackets are open at the end of `text`. A half-open interval opens one and closes one."""
    return sum(map(text.count, "([{⌊⌈")) - sum(map(text.count, ")]}⌋⌉"))


# ---------------------------------------------------------------- Markdown


def _markdown(ladder: Ladder, proof: _Proof) -> str:
    blocks = [f"# `{ladder.name}`: from the definition to the kernels", _markdown_prose(ladder.notation)]
    for number, step in enumerate(ladder.steps, 1):
        blocks.append(f"## {number}. {_markdown_words(step.title)}")
        blocks.append(_markdown_prose(step.says))
        blocks += [f"$$\n{_markdown_math(aligned(f))}\n$$" for f in step.formulas]
        blocks.append(f"*Identity:* {_markdown_prose(step.identity)}.")
        cited = [
            f"`{c.name}`"
            + ("" if c.status is None else f" {c.status}" + (f" ({_markdown_words(c.detail)})" if c.detail else ""))
            for c in _citations(step, proof)
        ]
        blocks.append(f"*Shown by* {', '.join(cited)}.")
    return "\n\n".join(blocks) + "\n"


def _markdown_prose(prose: Prose) -> str:
    return "".join(
        _inline(prose, _markdown_words, lambda m: f"${_markdown_math(m.tex)}$", lambda c: f"`{c.source}`")
    ).strip()


def _markdown_words(text: str) -> str:
    return re.sub(r"([\\`*_\[\]<>$|])", r"\\\1", text)


def _markdown_math(tex: str) -> str:
    """Markdown would take the backslash from `\\_`: a rule stands for the underscore of a name."""
    return tex.replace(r"\_", r"\rule{0.4em}{0.05em}")


def aligned(formula: Formula) -> str:
    lines = [_line(e) for e in formula.lines]
    if len(lines) == 1:
        return lines[0].replace("& ", "", 1)
    body = " \\cr\n".join(lines)
    return f"\\begin{{aligned}}\n{body}\n\\end{{aligned}}"


def _line(e: Equation) -> str:
    left = "" if e.left is None else f"{e.left.tex} "
    sign = relation(e.relation).tex
    return f"{left}& {sign + ' ' if sign else ''}{e.right.tex}"


# ---------------------------------------------------------------- LaTeX


_PREAMBLE = r"""\documentclass[a4paper,11pt]{article}
\usepackage[T1]{fontenc}
\usepackage[utf8]{inputenc}
\usepackage{amsmath,amssymb}
\usepackage[margin=2.2cm]{geometry}
\setlength{\emergencystretch}{4em}
\setlength{\parindent}{0pt}
\setlength{\parskip}{0.4\baselineskip}
"""


def _latex(ladder: Ladder, proof: _Proof) -> str:
    blocks = [
        f"{_PREAMBLE}\\begin{{document}}",
        rf"\section*{{\texttt{{{_latex_words(ladder.name)}}}: from the definition to the kernels}}",
        _latex_prose(ladder.notation),
    ]
    for step in ladder.steps:
        blocks.append(rf"\section{{{_latex_words(step.title)}}}")
        blocks.append(f"{_latex_prose(step.says)}\n{_displayed(step.formulas)}")
        blocks.append(rf"\emph{{Identity:}} {_latex_prose(step.identity)}.")
        cited = [
            rf"\texttt{{{c.name}}}"
            + ("" if c.status is None else f" {c.status}" + (f" ({_latex_words(c.detail)})" if c.detail else ""))
            for c in _citations(step, proof)
        ]
        blocks.append(rf"\emph{{Shown by}} {', '.join(cited)}.")
    return "\n\n".join([*blocks, r"\end{document}"]) + "\n"


_SIZES = ((150, r"\scriptsize"), (115, r"\footnotesize"), (90, r"\small"))
"""Characters of terminal text beyond which a formula is set smaller, so that it stays on the page."""


def _displayed(formulas: Sequence[Formula]) -> str:
    """All formulas of a step in one block, a little apart."""
    lines = [e for f in formulas for e in f.lines]
    longest = max(len(e.right.text) + (len(e.left.text) if e.left else 0) for e in lines)
    size = next((name for limit, name in _SIZES if longest > limit), "")
    body = " \\\\[1.5ex]\n".join(" \\\\\n".join(_line(e) for e in f.lines) for f in formulas)
    block = f"\\begin{{align*}}\n{body}\n\\end{{align*}}"
    return f"{{{size}\n{block}}}" if size else block


def _latex_prose(prose: Prose) -> str:
    return "".join(
        _inline(prose, _latex_words, lambda m: f"${m.tex}$", lambda c: rf"\texttt{{{_latex_words(c.source)}}}")
    ).strip()


_SPECIAL = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "−": "$-$",
    "≤": r"$\le$",
    "≥": r"$\ge$",
    "…": r"\ldots{}",
    "·": r"$\cdot$",
    **{c: f"\\{c}" for c in "&%$#_{}"},
}


def _latex_words(text: str) -> str:
    return "".join(_SPECIAL.get(c, c) for c in text)
