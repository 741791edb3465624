"""The derivation as text, Markdown and LaTeX: which rungs a file has, what they say, and that every formula renders."""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from attngen import api, files
from attngen.errors import Source
from attngen.explain import Ladder, ladder, render
from attngen.explain.notation import Math
from attngen.prove.verdict import Claim, Obligation, Proved, Refuted, Shown, Unknown

ROOT = Path(__file__).resolve().parents[3]
EXAMPLES = sorted((ROOT / "examples").glob("*.attn"))

SHIFTED = """
attention shifted

param tau: f32[Hq] where tau > 0

normalizer mixture(t) {
    weight(s) = sigmoid(0.0) * exp(s / t) + exp(s / t)
    denominator = sum + 0.5
    shift = max
    weight(s, m) = sigmoid(0.0) * exp((s - m) / t) + exp((s - m) / t)
    rescale(m, n) = exp((m - n) / t)
}
mask = causal
normalizer = mixture(t = tau[h])
"""

DIRECT = """
attention direct

param i: f32 where i > 0
param my_bias: f32[Hq]

normalizer squared(c) {
    weight(s) = max(s, 0.0) ** 2 * c
    denominator = sum + c
    shift = none
}
score = qk * scale + my_bias[h]
mask = causal
normalizer = squared(c = i)
dropout = 0.1
"""

TESTS = """
attention data

param when: int[B, Sk]
param born: f32[B, Sq]
param old: f32[B, Sk]
param flag_k: bool[B, Sk]

score = (qk * scale if flag_k[b, k] else -inf) + float(q % 3 == k // 2)
mask = when[b, q] < when[b, k] and born[b, q] <= old[b, k] and not (k == q or k % 7 == 1)
"""

OWN = {"shifted": SHIFTED, "direct": DIRECT, "data": TESTS}


def derive(text: str) -> Ladder:
    attention = api.analyse(Source(text))
    return ladder(attention, api.plan(attention))


def example(name: str) -> Ladder:
    return derive((ROOT / "examples" / f"{name}.attn").read_text(encoding="utf-8"))


def every() -> Iterator[Ladder]:
    for path in EXAMPLES:
        yield derive(files.read_source(path).text)
    for text in OWN.values():
        yield derive(text)


LADDERS = list(every())
NAMES = [x.name for x in LADDERS]


def titles(name: str) -> list[str]:
    return [step.title for step in next(x for x in LADDERS if x.name == name).steps]


def text_of(name: str) -> str:
    return render(next(x for x in LADDERS if x.name == name))


def formulas(derivation: Ladder) -> Iterator[Math]:
    """Every formula, inline ones too."""
    for part in derivation.notation:
        if isinstance(part, Math):
            yield part
    for step in derivation.steps:
        yield from (part for part in (*step.says, *step.identity) if isinstance(part, Math))
        for equation in (e for f in step.formulas for e in f.lines):
            yield equation.right
            if equation.left is not None:
                yield equation.left


# ---------------------------------------------------------------- the rungs


def test_the_rungs_of_a_softmax() -> None:
    assert titles("causal") == [
        "Dense softmax: the definition",
        "Safe: three passes",
        "Online: two passes",
        "Attention: one pass",
        "Tiles",
        "Which tiles are visited",
        "In base 2",
        "Finish, and the log-sum-exp",
        "Backward: the weights again",
        "From the output to the scores",
        "From the scores to the dot products",
        "dQ by rows, dK and dV by columns",
        "The same, seen from the keys",
    ]


def test_what_a_file_adds() -> None:
    plain = set(titles("causal"))
    assert set(titles("sink")) - plain == {
        "The denominator's extra term",
        "The gradients of the params",
    }
    assert set(titles("dropout")) - plain == {"Dropout"}
    assert set(titles("windowed_alibi")) - plain == {"The gradients of the params"}


def test_a_normalizer_without_a_maximum_has_no_shift_to_explain() -> None:
    assert titles("sigmoid")[:3] == ["Dense sigmoid: the definition", "Attention: one pass", "Tiles"]
    text = " ".join(text_of("sigmoid").split())
    assert "0 < σ(s) < 1 for every score" in text
    assert "a′_i = a_i + σ(s_ij) · v_j" in text
    for absent in ("m_i", "ℓ", "Z_i", "Δ_i", "base 2"):
        assert absent not in text
    direct = " ".join(text_of("direct").split())
    assert "must stay finite" in direct and "m_i" not in direct.replace("‘m_i", "")
    assert "ds_ij = (2 · ‘i’ · (1 if s_ij ≥ 0, else 0) · max(s_ij, 0) / Z_i) · (dP_ij − Δ_i)" in direct


@pytest.mark.parametrize("derivation", LADDERS, ids=NAMES)
def test_every_obligation_shows_some_step(derivation: Ladder) -> None:
    assert {o for step in derivation.steps for o in step.shown_by} == set(Obligation)
    assert all(step.shown_by and step.identity and step.formulas for step in derivation.steps)


# ---------------------------------------------------------------- what they say


def test_score_and_ranges_are_the_files_own() -> None:
    text = text_of("windowed_alibi")
    assert (
        "s_ij = softcap_ij − slope[h] · distance_ij\n" in text
        and "softcap_ij  = cap · tanh(scale · q_i·k_j / cap)" in text
    )
    assert "distance_ij = i + S_k − S_q − j" in text
    assert "J_i  = { j : 0 ≤ j < S_k and 0 ≤ distance_ij < 1024 }" in text
    assert "J_any = [max(0, i₀ + S_k − S_q − 1023), min(S_k, i₁ + S_k − S_q + 1))" in text
    assert "J_all = [max(0, i₁ + S_k − S_q − 1023), min(S_k, i₀ + S_k − S_q + 1))" in text
    assert "I_any = [max(0, S_q + j₀ − S_k), min(S_q, S_q + j₁ − S_k + 1024))" in text
    assert "∂s_ij/∂(q_i·k_j) = scale · (1 − tanh²(scale · q_i·k_j / cap))" in text
    assert "d slope[h] = −Σ_{b, i; j ∈ J_i} ds_ij · (i + S_k − S_q − j)" in text
    assert "The file takes as given that cap > 0." in text
    assert "1.44" not in text and "log₂ e" in text


def test_unions_conditions_and_definitions() -> None:
    text = text_of("window_global")
    assert "J_any = [max(0, i₀ + S_k − S_q − 256), min(S_k, i₁ + S_k − S_q + 257))\n" in text
    assert "            ∪ [0, S_k) if i₀ < 16\n" in text
    assert "∪ [0, min(16, S_k))" in text
    t5 = text_of("t5_bias")
    assert "s_ij = q_i·k_j + table[bucket_ij, h]" in t5
    assert "far_ij      = 8 + trunc(2 · log₂(max(away_ij, 8) / 8))" in t5
    assert "d table[c, h] = Σ_{b, i; j ∈ J_i; bucket_ij = c} ds_ij" in t5
    assert "min_{i₀ ≤ i ≤ i₁} ids[b, i] ≤ max_{j ∈ T} ids[b, j]" in text_of("documents")
    assert "min(S_k, lengths[b])" in text_of("cross_attention")


def test_bounds_that_nobody_reads_are_left_to_the_plan() -> None:
    text = render(
        derive(
            "attention long\n"
            "mask = (min(max(k, q - 4), abs(q - k) + min(k, q)) <= q"
            " and max(min(k - q, 7), abs(k)) >= min(q - 3, abs(q)))"
            " or (abs(min(k, 3 * q) - abs(q - 5)) <= min(q, 9) and abs(k - abs(q - 7)) < max(q, 4))\n"
        )
    )
    assert "a stretch with longer bounds" in text and "attngen compile --emit plan" in " ".join(text.split())
    assert "longer bounds" not in text_of("natten_2d")


def test_a_custom_normalizer_is_written_with_its_own_lines() -> None:
    text = text_of("custom_normalizer")
    assert "Z_i  = Σ_{j ∈ J_i} exp(s_ij / temperature[h]) + exp(escape[h] / temperature[h])" in text
    assert "ℓ′_i = ℓ_i · exp((m_i − m′_i) / temperature[h]) + exp((s_ij − m′_i) / temperature[h])" in text
    assert "d escape[h] = −Σ_{b, i} Δ_i · exp(escape[h] / temperature[h] − lse_i) / temperature[h]" in text
    assert "μ_i  = lse_i · tau[h]" in text_of("shifted")


def test_names_are_escaped_and_told_from_the_derivations_own() -> None:
    derivation = next(x for x in LADDERS if x.name == "direct")
    assert r"\mathrm{my\_bias_{\mathit{h}}}" in render(derivation, "tex")
    assert r"\mathrm{my\rule{0.4em}{0.05em}bias_{\mathit{h}}}" in render(derivation, "md")
    assert "‘i’" in render(derivation, "text")
    assert r"\texttt{my\_bias}" in render(derivation, "tex") and "`my_bias`" in render(derivation, "md")


# ---------------------------------------------------------------- layout


@pytest.mark.parametrize("derivation", LADDERS, ids=NAMES)
def test_text_fits_a_terminal_and_is_plain_when_piped(derivation: Ladder) -> None:
    text = render(derivation, stream=io.StringIO())
    assert max(map(len, text.split("\n"))) <= 100
    assert "\x1b" not in text and "\u00a0" not in text


def test_a_terminal_gets_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    derivation = example("causal")
    coloured = render(derivation, stream=Terminal())
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == render(derivation) != coloured


def test_a_proof_is_cited() -> None:
    def claim(verdict: Proved | Refuted | Unknown) -> Claim:
        return Claim("keys, any", "covers every allowed pair", verdict)

    proof = [
        Shown(Obligation.LOCALITY, (claim(Proved("structure")),)),
        Shown(Obligation.STREAMING, (claim(Proved("sympy")), claim(Proved("induction")), claim(Proved("sympy")))),
        Shown(Obligation.TILE_RANGES, (claim(Proved("z3")), claim(Refuted("z3", ("q = 3",))))),
        Shown(Obligation.INDEX_BOUNDS, (claim(Unknown("z3", "out of time")),)),
    ]
    derivation = example("causal")
    text = render(derivation, "text", proof)
    assert "   shown by: locality: proved (structure)\n" in text
    assert "   shown by: streaming: proved (sympy, induction)\n" in text
    assert "   shown by: tile-ranges: refuted (keys, any)\n" in text
    assert "   shown by: index-bounds: unknown (keys, any: out of time)\n" in text
    assert "   shown by: gradients: not run\n" in text
    assert "*Shown by* `locality` proved (structure)." in render(derivation, "md", proof)
    assert r"\texttt{tile-ranges} refuted (keys, any)" in render(derivation, "tex", proof)


def test_bytes_do_not_depend_on_the_process() -> None:
    program = (
        "import sys; from attngen import api, files; from attngen.explain import ladder, render\n"
        "a = api.analyse(files.read_source(sys.argv[1]))\n"
        "sys.stdout.write(''.join(render(ladder(a, api.plan(a)), f) for f in ('text', 'md', 'tex')))"
    )
    found: set[bytes] = set()
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "utf-8"}
        command = [sys.executable, "-c", program, str(ROOT / "examples" / "natten_2d.attn")]
        found.add(subprocess.run(command, env=environment, capture_output=True, check=True).stdout)
    assert len(found) == 1


# ---------------------------------------------------------------- formulas that render

COMMANDS = """
    mathrm mathit operatorname text thinspace cdot frac partial sum max min exp ln log tanh sin cos sqrt sigma pi infty
    left right lfloor rfloor lceil rceil lvert rvert lbrace rbrace mid leq geq neq in cap cup oplus varnothing Delta
    ell mu bmod begin end cr quad _
"""
"""What the formulas may use: LaTeX with amsmath, MathJax and KaTeX know all of it."""


def balanced(tex: str) -> bool:
    depth = 0
    for c in tex:
        depth += (c == "{") - (c == "}")
        if depth < 0:
            return False
    return depth == 0


@pytest.mark.parametrize("derivation", LADDERS, ids=NAMES)
def test_formulas_are_well_formed(derivation: Ladder) -> None:
    for formula in formulas(derivation):
        tex = formula.tex
        assert balanced(tex), tex
        assert tex.isascii(), tex
        assert set(re.findall(r"\\([A-Za-z]+|[^A-Za-z ])", tex)) <= set(COMMANDS.split()), tex
        assert tex.count(r"\left") == tex.count(r"\right"), tex
        openers, closers = (sum(map(formula.text.count, brackets)) for brackets in ("([{⌊⌈", ")]}⌋⌉"))
        assert openers == closers, formula.text  # a half-open interval has one of each too


@pytest.mark.parametrize("derivation", LADDERS, ids=NAMES)
def test_markdown_leaves_the_formulas_alone(derivation: Ladder) -> None:
    """GitHub reads Markdown's escapes and emphasis before it reads mathematics."""
    text = render(derivation, "md")
    blocks = re.findall(r"\$\$\n(.*?)\n\$\$", text, re.DOTALL)
    inline = re.findall(r"\$([^$\n]+)\$", re.sub(r"\$\$.*?\$\$", "", text, flags=re.DOTALL))
    assert len(blocks) == sum(len(step.formulas) for step in derivation.steps) and inline
    for formula in (*blocks, *inline):
        assert not re.search(r"\\[!-/:-@\[-`{-~]", formula), formula  # an escape
        assert not re.search(r"(?<![A-Za-z0-9])_", formula), formula  # emphasis
        assert not re.search(r"[*`]|<\S", formula), formula


MATHTEXT = (
    (r"\lvert", "|"),
    (r"\rvert", "|"),
    (r"\lbrace", r"\{"),
    (r"\rbrace", r"\}"),
    (r"\thinspace", r"\,"),
    (r"\bmod", r"\ \mathrm{mod}\ "),
    (r"\begin{cases}", r"\left("),
    (r"\end{cases}", r"\right)"),
    (r"\cr", ";"),
    ("&", ","),
)
"""matplotlib reads no environments and lacks a few of LaTeX's names: what stands for them."""


@pytest.mark.parametrize("derivation", LADDERS, ids=NAMES)
def test_formulas_render(derivation: Ladder) -> None:
    mathtext = pytest.importorskip("matplotlib.mathtext")
    parser = mathtext.MathTextParser("path")
    for tex in dict.fromkeys(f.tex for f in formulas(derivation)):
        for name, stand_in in MATHTEXT:
            tex = tex.replace(name, stand_in)
        parser.parse(f"${tex}$")


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="no TeX here")
@pytest.mark.parametrize("name", ["windowed_alibi", "natten_2d", "direct", "data"])
def test_the_file_compiles(name: str, tmp_path: Path) -> None:
    tex = render(next(x for x in LADDERS if x.name == name), "tex")
    (tmp_path / "ladder.tex").write_text(tex, encoding="utf-8")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "ladder.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, check=False)
    assert done.returncode == 0, done.stdout.decode(errors="replace")[-2000:]
    assert (tmp_path / "ladder.pdf").stat().st_size > 10_000
