"""A kernel as a notebook shows it: its call, its formula, its mask with tiles, and what is proved, in HTML.

Takes the spec, its plan and its proof; returns text. Compiles nothing, runs nothing, and needs no library for the
picture. Colours are the page's own but for the mask's, so that it is read on a light page and on a dark one.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from html import escape

from attngen.errors import UsageError
from attngen.explain.forward import forward
from attngen.explain.rendering import text_lines
from attngen.explain.steps import setting
from attngen.ir import walk
from attngen.ir.attention import Attention
from attngen.plan.kernel import KernelPlan
from attngen.prove.proof import Proof
from attngen.prove.report import notes, rows
from attngen.show.survey import Pair, Survey
from attngen.show.svg import svg
from attngen.show.text import COLOURS, LABELS, title
from attngen.show.usual import usual

_LEFT = 'style="text-align:left;padding:0 1em 0 0"'


def html(spec: Attention, plan: KernelPlan, proof: Proof | None, call: str) -> str:
    """`call`: how the kernel is called, with its arguments' types."""
    definition = next(forward(setting(spec, plan)))
    formulas = textwrap.dedent("\n".join(line for f in definition.formulas for line in text_lines(f)))
    parts = [f"<b>{escape(spec.name)}</b>", _code(call), _code(formulas), *_mask(spec, plan), *_proved(proof)]
    return "<div>\n" + "\n".join(parts) + "\n</div>\n"


def _code(text: str) -> str:
    """MathJax, which notebooks run over their pages, leaves this alone."""
    return f'<pre style="white-space:pre-wrap">{escape(text)}</pre>'


def _mask(spec: Attention, plan: KernelPlan) -> Iterator[str]:
    try:
        survey = usual(spec, plan)
    except UsageError as error:
        why = f"No picture of the mask with invented values: {escape(str(error))}."
        yield f"<p>{why} <code>attngen show</code> takes yours, and sizes.</p>"
        return
    yield svg(survey)
    yield f"<div>{' '.join(f'{_square(pair)} {LABELS[pair]}' for pair in Pair)}</div>"
    yield f"<div>{_caption(spec, survey)}</div>"


def _caption(spec: Attention, survey: Survey) -> str:
    invented = ", ".join(f"<code>{escape(name)}</code>" for name in sorted(walk.params(spec.mask)))
    said = escape(f"{title(survey)}\n{survey.summary()}").replace("\n", "<br/>")
    return f"{said}<br/>with invented values of {invented}" if invented else said


def _square(pair: Pair) -> str:
    return f'<span style="background:{COLOURS[pair]};display:inline-block;width:1em;height:1em"></span>'


def _proved(proof: Proof | None) -> Iterator[str]:
    if proof is None:
        yield "<p>Nothing is said to be proved of this kernel.</p>"
        return
    yield f"<table><tr><th {_LEFT}>obligation</th><th {_LEFT}>verdict</th><th {_LEFT}>claims</th>"
    yield f"<th {_LEFT}>what it says</th></tr>"
    for row in rows(proof):
        cells = (row.obligation, row.verdict, row.claims, row.sentence)
        yield f"<tr>{''.join(f'<td {_LEFT}>{escape(cell)}</td>' for cell in cells)}</tr>"
    yield "</table>"
    for note in (*notes(proof), *(f"given up: {what}" for what in proof.dropped)):
        yield f"<div>note: {escape(note)}</div>"
