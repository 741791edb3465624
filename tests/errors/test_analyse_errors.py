"""Mistakes in names, types and statements: their codes, their exact places, their fixes; and files that would explode.

In each text `⟪…⟫` marks where a mistake is shown; the marks are taken out before it is analysed.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from counted import calls

from attngen.analyse import analyse
from attngen.analyse.report import MAX_DIAGNOSTICS
from attngen.errors import Diagnostic, Source, Span, SpecError, UsageError
from attngen.syntax import ast
from attngen.syntax.parser import parse


def unmark(text: str) -> tuple[str, list[tuple[int, int, int, int]]]:
    """The text without its marks, and the places that they mark: line and column, from and to."""
    places: list[tuple[int, int, int, int]] = []
    opened: list[tuple[int, int, int]] = []
    line, column, plain = 1, 1, ""
    for c in text:
        if c == "⟪":
            opened.append((line, column, len(places)))
            places.append((0, 0, 0, 0))
        elif c == "⟫":
            start_line, start_column, number = opened.pop()
            places[number] = (start_line, start_column, line, column)
        else:
            plain += c
            line, column = (line + 1, 1) if c == "\n" else (line, column + 1)
    return plain, places


def mistakes(text: str) -> tuple[Diagnostic, ...]:
    source = Source(text, "spec.attn")
    with pytest.raises(SpecError) as caught:
        analyse(parse(source), source)
    return caught.value.diagnostics


def place(d: Diagnostic) -> tuple[int, int, int, int]:
    return d.span.line, d.span.column, d.span.end_line, d.span.end_column


# (statements after `attention a`, code, a part of the message, a part of the fix)
ONE = [
    # names
    ("param slope: f32[Hq]\nscore = qk - ⟪slop⟫", "unknown-name", "`slop` is not defined", "did you mean slope?"),
    ("score = ⟪slop⟫[h]\nparam slope: f32[Hq]", "unknown-name", "`slop` is not defined", "did you mean slope?"),
    ("score = ⟪soft_cap⟫(qk, 5)", "unknown-name", "`soft_cap`", "did you mean softcap?"),
    ("mask = ⟪score⟫ > 0", "unknown-name", "`score` is not defined", "a mask reads no scores"),
    ("mask = ⟪zzzzzz⟫", "unknown-name", "`zzzzzz` is not defined", "const, param or let"),
    ("mask = ⟪zzzzzz⟫(q)", "unknown-name", "`zzzzzz` is not defined", "let zzzzzz(…) = …"),
    ("mask = ⟪zzzzzz⟫[q]", "unknown-name", "`zzzzzz` is not defined", "param zzzzzz: f32[…]"),
    ("mask = ⟪q_idx⟫ >= k", "unknown-name", "`q_idx` is not defined", "write `q`"),
    ("score = ⟪where⟫(q > k, qk, 0.0)", "unknown-name", "`where` is not defined", "write `A if C else B`"),
    ("score = qk if ⟪mask⟫ else 0.0", "unknown-name", "`mask` is not defined", "is a statement, not a value"),
    ("score = ⟪score⟫ - 1.0", "unknown-name", "`score` is not defined", "write `qk * scale`"),
    ("score = ⟪sum⟫ + qk", "unknown-name", "`sum` is not defined", ""),
    ("const ⟪h⟫ = 1", "redefined", "the index of the query head", "such as my_h"),
    ("let ⟪Sq⟫ = 1", "redefined", "a size of the language", "such as my_Sq"),
    ("let ⟪qk⟫ = 1", "redefined", "dot product", "another name"),
    ("param ⟪scale⟫: f32", "redefined", "an argument of every attention", "another name"),
    ("const ⟪pi⟫ = 3", "redefined", "a constant of the language", "another name"),
    ("let ⟪tanh⟫(x) = x", "redefined", "a function of the language", "another name"),
    ("let ⟪causal⟫ = true", "redefined", "defined by the prelude", "such as my_causal"),
    ("const w = 1\nlet ⟪w⟫ = 2", "redefined", "already a const (line 2)", "such as my_w"),
    ("let my_w = 0\nlet w = 1\nlet ⟪w⟫ = 2", "redefined", "already a let (line 3)", "such as w_2"),
    ("param t: f32[n]\nconst x = 1\nlet ⟪n⟫ = 2", "redefined", "already a size (line 2)", "such as my_n"),
    ("param ⟪lambda⟫: f32", "reserved-name", "a word of Python", "such as my_lambda"),
    ("param ⟪None⟫: f32", "reserved-name", "a word of Python", "another name"),
    ("param ⟪v⟫: f32", "reserved-name", "has an argument `v` already", "such as my_v"),
    ("param ⟪return_lse⟫: bool", "reserved-name", "`return_lse`", "another name"),
    ("param ⟪dropout_seed⟫: int", "reserved-name", "`dropout_seed`", "another name"),
    # order
    ("let a = ⟪c⟫\nlet c = 1", "order", "`c` is used before its let (line 3)", "move the let above"),
    ("score = ⟪c⟫\nlet c = 1", "order", "`c` is used before its let (line 3)", "move the let above"),
    ("score = ⟪f⟫(qk)\nlet f(x) = x", "order", "`f` is used before its let (line 3)", "move the let above"),
    ("let x = ⟪x⟫ + 1", "recursion", "`x` is defined by itself", ""),
    ("let f(x) = 1 if x < 1 else ⟪f⟫(x - 1)", "recursion", "`f` is defined by itself", ""),
    ("const c = ⟪c⟫ + 1", "recursion", "`c` is defined by itself", ""),
    ("const c = ⟪d⟫\nconst d = 1", "order", "`d` is used before its const (line 3)", "move the const above"),
    # what a place may read
    ("mask = ⟪qk⟫ > 0", "not-here", "`mask` can't read `qk`", "any name but `qk`"),
    ("let x = qk * 2\nmask = ⟪x⟫ > 0", "not-here", "can't read `qk`, which `x` does", "any name but `qk`"),
    ("let f(x) = qk * x\nmask = ⟪f(q)⟫ > 0", "not-here", "in `f(x)`: `mask` can't read `qk`", ""),
    ("const c = ⟪q⟫", "not-here", "a const can't read `q`", "earlier consts only"),
    ("const c = ⟪p⟫\nparam p: f32", "not-here", "a const can't read `p`, a param (line 3)", "earlier consts"),
    ("let x = 1\nconst c = ⟪x⟫", "not-here", "a const can't read `x`, a let (line 2)", "earlier consts"),
    ("const c = ⟪Sq⟫", "not-here", "a const can't read `Sq`", "earlier consts"),
    ("param p: f32 where p > ⟪q⟫", "not-here", "`where` can't read `q`", "params, sizes and consts"),
    ("param p: f32 where ⟪scale⟫ > p", "not-here", "`where` can't read `scale`", "params, sizes and consts"),
    ("assume ⟪k⟫ > 3", "not-here", "`assume` can't read `k`", "params, sizes"),
    ("assume ⟪causal⟫", "not-here", "in `causal`: `assume` can't read", ""),
    ("let far = q > 9\nassume ⟪far⟫", "not-here", "can't read `q`, which `far` does", ""),
    ("dropout = ⟪Sk⟫", "not-here", "`dropout` can't read `Sk`", "consts and scalar params"),
    ("param t: f32[Hq]\ndropout = ⟪t⟫[0]", "not-here", "`dropout` can't read `t`", "consts and scalar params"),
    ("normalizer = softmax(sink = ⟪q⟫)", "not-here", "a normalizer can't read `q`", "`scale`, `b`, `h`"),
    ("normalizer = softmax(sink = ⟪qk⟫)", "not-here", "a normalizer can't read `qk`", "`scale`, `b`, `h`"),
    # types
    ("score = ⟪q < k⟫", "type", "`q < k` is a bool, and `score` must be a number", "float(q < k)"),
    ("mask = ⟪q - k⟫", "type", "`q - k` is an int, and `mask` must be a bool", "write q - k != 0"),
    ("mask = ⟪1 if causal else 0⟫", "type", "and `mask` must be a bool", "write (1 if causal else 0) != 0"),
    ("score = qk + ⟪causal⟫", "type", "`causal` is a bool, and `+` needs a number", "float(causal)"),
    ("score = -⟪causal⟫", "type", "`causal` is a bool, and `-` needs a number", "float(causal)"),
    ("score = exp(⟪q > k⟫)", "type", "`q > k` is a bool, and `exp` needs a number", "float(q > k)"),
    ("mask = not ⟪q⟫", "type", "`q` is an int, and `not` needs a bool", "write q != 0"),
    ("mask = causal and ⟪q⟫", "type", "`q` is an int, and `and` needs a bool", "write q != 0"),
    ("score = 1 if ⟪qk⟫ else 0", "type", "`qk` is a float, and the condition of `if`", "write qk != 0"),
    ("score = 1 if causal else ⟪true⟫", "type", "`true` is a bool, and the other branch", "float(true)"),
    ("mask = ⟪causal⟫ < 3", "type", "`causal` is a bool, and `<` needs a number", "int(causal)"),
    ("mask = q == ⟪causal⟫", "type", "`causal` is a bool, and `==` with a number", "int(causal)"),
    ("mask = q // ⟪2.5⟫ > k", "type", "its right side is a float", "write floor(q / 2.5)"),
    ("mask = (⟪q + 0.5⟫) % 2 > 1", "type", "its left side is a float", "write (q + 0.5) - 2 * floor((q + 0.5) / 2)"),
    ("score = qk ** ⟪0.5⟫", "type", "the exponent of `**` must be an int", "exp(0.5 * log(qk))"),
    ("score = 2 ** ⟪scale⟫", "type", "the exponent of `**` must be an int", "exp(scale * log(2))"),
    ("param t: f32[Sk]\nscore = t[⟪k / 2⟫]", "type", "an index of `t` must be an int", "write `//`"),
    ("param t: f32[2]\nscore = t[⟪causal⟫]", "type", "an index of `t` must be an int", "int(causal)"),
    # operators on bits
    ("mask = ⟪causal⟫ & (k < 3)", "type", "`causal` is a bool, and `&` takes the bits of ints", "write `and`"),
    ("mask = causal and ⟪causal⟫ | q == 1", "type", "`causal` is a bool, and `|` takes the bits", "write `or`"),
    ("mask = ~⟪causal⟫ == 1", "type", "`causal` is a bool, and `~` takes the bits", "write `not`"),
    ("score = ⟪qk⟫ ^ 2", "type", "`qk` is a float, and `^` takes the bits of an int", "write `**` for a power"),
    ("mask = 1 << ⟪0.5⟫ < k", "type", "`0.5` is a float, and `<<` shifts by an int", "int(0.5)"),
    ("mask = k >> ⟪63⟫ == 0", "shift", "`>>` shifts by 63", "shift by 0 to 62"),
    ("mask = k << ⟪-1⟫ == 0", "shift", "`<<` shifts by -1", "shift by 0 to 62"),
    ("dropout = ⟪true⟫", "type", "`dropout` must be a number", "float(true)"),
    ("param p: int where ⟪p⟫", "type", "`where` must be a bool", "write p != 0"),
    ("assume ⟪Sq⟫", "type", "`assume` must be a bool", "write Sq != 0"),
    # calls and indices
    ("param slope: f32[Hq]\nscore = ⟪slope⟫ * qk", "needs-index", "only its elements", "write slope[h]"),
    ("param t: f32[B, Hkv, 3]\nscore = exp(⟪t⟫)", "needs-index", "only its elements", "write t[b, hkv, …]"),
    ("param slope: f32[Hq]\nscore = ⟪slope[b, h]⟫", "rank", "has 1 dimension, indexed with 2", "write slope[h]"),
    ("param t: f32[B, Hq]\nscore = ⟪t[h]⟫", "rank", "has 2 dimensions, indexed with 1", "write t[b, h]"),
    ("param t: int[B, Sk]\nmask = ⟪t[q]⟫ == 1", "rank", "has 2 dimensions, indexed with 1", "write t[b, q]"),
    ("param t: int[B, Sk]\nmask = ⟪t[q // 8]⟫ == 1", "rank", "has 2 dimensions, indexed with 1", "t[b, q // 8]"),
    ("param t: int[Sk]\nmask = ⟪t[b, q]⟫ == 1", "rank", "has 1 dimension, indexed with 2", "write t[q]"),
    ("param t: f32[Sq, Sk]\nscore = ⟪t[k]⟫", "rank", "has 2 dimensions, indexed with 1", "write t[q, k]"),
    ("param cap: f32\nscore = ⟪cap[h]⟫", "not-a-tensor", "`cap` is a scalar param", "write cap"),
    ("score = ⟪qk[q, k]⟫", "not-a-tensor", "only a tensor param can be indexed", "write qk"),
    ("score = ⟪exp[qk]⟫", "not-a-tensor", "`exp` is a function", "write exp(x)"),
    ("score = ⟪exp⟫ + 1", "needs-call", "`exp` is a function", "write exp(x)"),
    ("score = ⟪softcap⟫ + 1", "needs-call", "`softcap` is a function", "write softcap(x, c)"),
    ("mask = ⟪causal(q)⟫", "not-a-function", "`causal` is a let, no function", "write causal alone"),
    ("param t: f32[Hq]\nscore = ⟪t(h)⟫", "not-a-function", "`t` is a tensor param, no function", "write t[h]"),
    ("score = scale + ⟪qk()⟫", "not-a-function", "no function", "write qk"),
    ("score = ⟪exp(qk, 2)⟫", "arity", "`exp` takes 1 argument, not 2", "write exp(x)"),
    ("score = ⟪exp()⟫", "arity", "`exp` takes 1 argument, not 0", "write exp(x)"),
    ("score = ⟪max(qk)⟫", "arity", "`max` takes 2 arguments or more, not 1", "write max(a, b)"),
    ("score = ⟪clamp(qk, 2)⟫", "arity", "`clamp` takes 3 arguments, not 2", "write clamp(x, lo, hi)"),
    ("score = ⟪softcap(qk)⟫", "arity", "`softcap` takes 2 arguments, not 1", "write softcap(x, c)"),
    ("let f(x, y) = x\nscore = ⟪f(qk)⟫", "arity", "`f` takes 2 arguments, not 1", "write f(x, y)"),
    ("score = ⟪softcap(causal, 2)⟫", "type", "in `softcap(x, c)`: `x` is a bool", "other arguments"),
    ("let f(x) = exp(x)\nscore = ⟪f(causal)⟫", "type", "in `f(x)`: `x` is a bool", "write float(x)"),
    ("let f(x) = exp(x)\nlet g(y) = f(y)\nscore = ⟪g(causal)⟫", "type", "in `g(y)`: `x` is a bool", ""),
    ("mask = ⟪chunked(2.5)⟫", "type", "in `chunked(c)`: `//` takes ints only", "other arguments"),
    ("mask = ⟪same_document(q)⟫", "not-a-tensor", "must be the name of a tensor param", "other arguments"),
    (
        "param w: int[Hq]\nmask = ⟪sliding_window(w)⟫",
        "needs-index",
        "in `sliding_window(w)`: ",
        "pass w[h] instead of w",
    ),
    ("param t: f32[Hq]\n⟪normalizer = softmax(sink = t)⟫", "needs-index", "in `softmax`: ", "pass t[h] instead of t"),
    ("param i: int[Sk]\nmask = ⟪same_document(i)⟫", "rank", "in `same_document(ids)`: ", "other arguments"),
    ("param t: f32[Hq]\nscore = t[⟪-1⟫]", "out-of-bounds", "does not count from the end", "from 0 on"),
    ("param t: f32[Hq, 4]\nscore = t[h, ⟪4⟫]", "out-of-bounds", "ends at index 3", "below 4"),
    # numbers
    ("const c = ⟪1 // 0⟫", "division-by-zero", "divides by zero", "must not be 0"),
    ("const z = 0\nmask = ⟪k % z⟫ == 0", "division-by-zero", "`%` divides by zero", "must not be 0"),
    ("mask = ⟪dilated(0)⟫", "division-by-zero", "`%` divides by zero", "must not be 0"),
    ("const c = ⟪2 ** 63⟫", "int-range", "64 bits", ""),
    ("score = ⟪9223372036854775807 + 1⟫", "int-range", "64 bits", ""),
    ("mask = q > ⟪q ** -1⟫", "undefined", "an int to a negative power", "float(…)"),
    ("const c = 1 + ⟪log(0)⟫", "undefined", "`log(0.0)`", "inf"),
    ("const c = ⟪inf - inf⟫", "undefined", "`inf - inf`", ""),
    # params
    ("param t: f32[⟪0⟫]", "dimension", "must be 1 or more", ""),
    ("const n = -2\nparam t: f32[⟪n⟫]", "dimension", "`n` is -2", ""),
    ("const n = 2.0\nparam t: f32[⟪n⟫]", "dimension", "`n` is a float, and a dim must be an int", ""),
    ("param t: f32[⟪h⟫]", "dimension", "`h` is an index", "write Hq"),
    ("param n: int\nparam t: f32[⟪n⟫]", "dimension", "`n` is a scalar param", "a new name"),
    ("let n = 3\nparam t: f32[⟪n⟫]", "dimension", "`n` is a let", "a new name"),
    ("param t: f32[⟪exp⟫]", "dimension", "`exp` is a function", "a new name"),
    ("param t: f32[Hq]\nparam s: f32 where s > ⟪t⟫", "needs-index", "only its elements", "write t[h]"),
    ("param t: f32[Hq] where ⟪t[0]⟫ > 0", "not-a-tensor", "`t` is a single element here", "write t"),
    ("const n = 3\nparam p: f32 where ⟪n > 4⟫", "false-fact", "this `where` can never hold", ""),
    ("assume ⟪2 > 3⟫", "false-fact", "this `assume` can never hold", ""),
    # statements
    ("mask = true\n⟪mask = causal⟫", "duplicate", "`mask` is defined a second time (first on line 2)", "keep one"),
    ("score = qk\n⟪score = qk⟫", "duplicate", "first on line 2", "keep one"),
    ("tile auto\n⟪tile q = 64, k = 64⟫", "duplicate", "first on line 2", "keep one"),
    ("dropout = 0.5\n⟪dropout = 0.5⟫", "duplicate", "first on line 2", "keep one"),
    ("normalizer = softmax\n⟪normalizer = sigmoid⟫", "duplicate", "first on line 2", "keep one"),
    ("mask = true\n⟪attention b⟫", "duplicate", "first on line 1", "keep one"),
    ("dropout = ⟪1⟫", "dropout-range", "the dropout probability is 1", "fraction"),
    ("const p = 0.5\ndropout = ⟪-p⟫", "dropout-range", "the dropout probability is -0.5", "fraction"),
    ("tile q = ⟪8⟫, k = 64", "tile", "the tile size of `q` is 8", "write 16"),
    ("tile q = 16, # 32\n  k = ⟪1024⟫", "tile", "the tile size of `k` is 1024", "write 512"),
    # normalizers
    ("normalizer = ⟪softmx⟫", "unknown-normalizer", "no normalizer `softmx`", "did you mean softmax?"),
    ("normalizer = ⟪zzz⟫", "unknown-normalizer", "no normalizer `zzz`", "softmax, softmax1, sigmoid"),
    ("normalizer = ⟪softmax__sink⟫(sink = 1)", "unknown-normalizer", "`softmax__sink`", "softmax"),
    ("normalizer = softmax(⟪snk⟫ = 1)", "unknown-argument", "no argument `snk`", "did you mean sink?"),
    ("normalizer = softmax1(⟪sink⟫ = 1)", "unknown-argument", "no argument `sink`", "it takes none"),
    ("normalizer = softmax(sink = 1, ⟪sink⟫ = 2)", "duplicate", "`sink` is given twice", "keep one"),
    ("normalizer = softmax(sink = ⟪causal⟫)", "not-here", "in `causal`: a normalizer can't read", ""),
    ("⟪normalizer = softmax(sink = true)⟫", "type", "in `softmax`: `sink` is a bool", ""),
    (
        "normalizer ⟪softmax⟫ {\nweight(s) = s\ndenominator = 1\nshift = none\n}",
        "redefined",
        "is built in",
        "my_softmax",
    ),
    # definitions of normalizers
    ("normalizer ⟪n⟫ {\ndenominator = 1\nshift = none\n}", "missing-line", "`n` lacks a line", "add weight(s) = …"),
    ("normalizer ⟪n⟫ {\nweight(s) = s\nshift = none\n}", "missing-line", "`n` lacks a line", "add denominator"),
    ("normalizer ⟪n⟫ {\nweight(s) = s\ndenominator = 1\n}", "missing-line", "`n` lacks a line", "add shift"),
    (
        "normalizer ⟪n⟫ {\nweight(s) = s\ndenominator = 1\nshift = max\nrescale(m, n) = 1\n}",
        "missing-line",
        "which `shift = max` needs",
        "add weight(s, m) = …",
    ),
    (
        "normalizer ⟪n⟫ {\nweight(s) = s\ndenominator = 1\nshift = max\nweight(s, m) = s\n}",
        "missing-line",
        "which `shift = max` needs",
        "add rescale(m, n) = …",
    ),
    (
        "normalizer n {\nweight(s) = s\n⟪weight(x) = x⟫\ndenominator = 1\nshift = none\n}",
        "duplicate",
        "`weight(s)` is defined a second time (first on line 3)",
        "keep one",
    ),
    (
        "normalizer n {\nweight(s) = s\ndenominator = 1\nshift = ⟪maximum⟫\n}",
        "normalizer",
        "neither `max` nor `none`",
        "write shift = max",
    ),
    (
        "normalizer n {\nweight(s) = s\ndenominator = ⟪2 * sum⟫\nshift = none\n}",
        "normalizer",
        "`sum`, `sum + E`, or 1",
        "sum + …",
    ),
    (
        "normalizer n {\nweight(s) = s\ndenominator = ⟪sum + sum⟫\nshift = none\n}",
        "normalizer",
        "`sum`, `sum + E`, or 1",
        "sum + …",
    ),
    (
        "normalizer n {\nweight(s) = s\ndenominator = ⟪2⟫\nshift = none\n}",
        "normalizer",
        "`sum`, `sum + E`, or 1",
        "denominator = 1",
    ),
    (
        "normalizer n {\nweight(s) = s\ndenominator = sum\nshift = none\n⟪wieght⟫(s, m) = s\n}",
        "unknown-name",
        "a normalizer has no line `wieght`",
        "did you mean weight?",
    ),
    (
        "normalizer n {\nweight(s) = s\ndenominator = sum\nshift = none\n⟪rescale(m) = m⟫\n}",
        "arity",
        "`rescale` does not have these arguments",
        "write rescale(m, n) = …",
    ),
    (
        "normalizer n {\nweight(s) = s * ⟪q⟫\ndenominator = sum\nshift = none\n}",
        "not-here",
        "a normalizer can't read `q`",
        "",
    ),
    (
        "normalizer n {\nweight(s) = ⟪s > 0⟫\ndenominator = sum\nshift = none\n}",
        "type",
        "`weight` must be a number",
        "float(s > 0)",
    ),
    (
        "normalizer n(t) {\nweight(s) = s / t\ndenominator = sum\nshift = none\n}\nnormalizer = ⟪n⟫",
        "missing-argument",
        "the normalizer `n` needs `t`",
        "write n(t = …)",
    ),
    (
        "normalizer n(t) {\nweight(s) = s / t\ndenominator = sum\nshift = none\n}\n⟪normalizer = n(t = true)⟫",
        "type",
        "in `n`: `t` is a bool",
        "",
    ),
    (
        "normalizer n {\nweight(s) = s\ndenominator = 1\nshift = none\n}\n"
        "normalizer ⟪n⟫ {\nweight(s) = s\ndenominator = 1\nshift = none\n}",
        "redefined",
        "already defined (line 2)",
        "such as my_n",
    ),
]


@pytest.mark.parametrize(("statements", "code", "message", "fix"), ONE)
def test_one_mistake(statements: str, code: str, message: str, fix: str) -> None:
    text, places = unmark(f"attention a\n{statements}\n")
    found = mistakes(text)
    assert [(d.code, place(d)) for d in found] == [(code, p) for p in places]
    assert message in found[0].message
    assert fix in found[0].fix
    # A sentence without its full stop, and the whole fits a terminal.
    assert not found[0].message.endswith(".")
    assert len(found[0].message) < 120


def test_every_kind_of_mistake_has_several_tests() -> None:
    assert len(ONE) > 100


# (whole file, code, a part of the message, a part of the fix)
HEADS = [
    ("⟪mask = causal⟫\n", "missing-attention", "a file begins with `attention NAME`", "add `attention"),
    ("mask = causal\n⟪attention a⟫\n", "missing-attention", "not the first statement", "move this line to the top"),
    ("attention ⟪lambda⟫\n", "reserved-name", "a word of Python", "lambda_attention"),
    ("attention ⟪None⟫\n", "reserved-name", "a word of Python", "none_attention"),
    ("attention ⟪torch⟫\n", "reserved-name", "a meaning of its own", "torch_attention"),
    ("attention ⟪triton⟫\n", "reserved-name", "a meaning of its own", "triton_attention"),
    ("attention ⟪range⟫\n", "reserved-name", "a meaning of its own", "range_attention"),
    ("attention ⟪__all__⟫\n", "reserved-name", "a meaning of its own", "all_attention"),
]


@pytest.mark.parametrize(("file", "code", "message", "fix"), HEADS)
def test_first_statement(file: str, code: str, message: str, fix: str) -> None:
    text, places = unmark(file)
    found = mistakes(text)
    assert [(d.code, place(d)) for d in found] == [(code, p) for p in places]
    assert message in found[0].message
    assert fix in found[0].fix


def test_empty_file() -> None:
    found = mistakes("# nothing\n")
    assert [(d.code, place(d)) for d in found] == [("missing-attention", (1, 1, 1, 2))]


def test_several_mistakes_at_once() -> None:
    text, places = unmark(
        """attention a
param slope: f32[Hq]
const w = ⟪q⟫
let d = ⟪k2⟫ - q
let f(x) = x + ⟪undefined⟫
score = qk * scale + ⟪slope[b, h]⟫ + exp(⟪causal⟫) + d + f(3)
mask = 0 <= d < w and ⟪qk⟫ > 0
dropout = ⟪1.5⟫
tile q = ⟪4⟫, k = 64
"""
    )
    found = mistakes(text)
    assert [place(d) for d in found] == places
    assert [d.code for d in found] == [
        *("not-here", "unknown-name", "unknown-name", "rank", "type", "not-here", "dropout-range", "tile"),
    ]  # fmt: skip


def test_rendered_as_the_style_says() -> None:
    found = mistakes("attention a\nparam slope: f32[Hq]\nscore = qk * scale - slope[b, h] * (q - k)\n")
    assert found[0].render() == (
        "spec.attn:3:22: error[rank]: `slope` has 1 dimension, indexed with 2\n"
        "  3 | score = qk * scale - slope[b, h] * (q - k)\n"
        "    |                      ^^^^^^^^^^^ write slope[h]"
    )


def test_a_mistake_in_a_let_is_reported_once() -> None:
    found = mistakes("attention a\nlet f(x) = x + nope\nlet g = f(1) + f(2)\nscore = g + f(3)\nmask = g > 0\n")
    assert [d.code for d in found] == ["unknown-name"]


def test_a_dead_branch_may_be_undefined() -> None:
    text = "attention a\nconst w = 0\nmask = (q // w == k // w if w > 0 else true) and (w == 0 or k % w == 0)\n"
    source = Source(text)
    analyse(parse(source), source)


@pytest.mark.parametrize(("value", "code"), [(2**63, "int-range"), (float("inf"), "float-range")])
def test_numbers_that_no_text_gives(value: float, code: str) -> None:
    """The lexer refuses them; a tree built by hand can have them."""
    at = Span(1, 1, 1, 2)
    module = ast.Module((ast.Attention("a", name_span=at, span=at), ast.Score(ast.Number(value, span=at), span=at)))
    with pytest.raises(SpecError) as caught:
        analyse(module, Source(""))
    assert [(d.code, d.span) for d in caught.value.diagnostics] == [(code, at)]


def test_reports_no_more_than_anyone_reads() -> None:
    text = "attention a\n" + "".join(f"let a{i} = nope{i}\n" for i in range(300))
    assert len(mistakes(text)) == MAX_DIAGNOSTICS


# ---------------------------------------------------------------- overrides


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"windw": 3}, "there is no const `windw` to set: did you mean window? the consts are window, rate, on"),
        ({"zzzzzz": 3}, "there is no const `zzzzzz` to set: the consts are window, rate, on"),
        ({"cap": 3.0}, "`cap` is a param, not a const: give it at each call, kernel(q, k, v, cap=…)"),
        ({"window": 0.5}, "the const `window` is an int, and 0.5 is a float"),
        ({"window": True}, "the const `window` is an int, and True is a bool"),
        ({"rate": True}, "the const `rate` is a float, and True is a bool"),
        ({"on": 1}, "the const `on` is a bool, and 1 is an int"),
        ({"window": 2**63}, "the const `window` does not fit in 64 bits"),
        ({"rate": float("nan")}, "the const `rate` can't be NaN"),
    ],
)
def test_wrong_overrides(overrides: dict[str, bool | int | float], message: str) -> None:
    source = Source("attention a\nconst window = 3\nconst rate = 0.5\nconst on = true\nparam cap: f32\n")
    with pytest.raises(UsageError) as caught:
        analyse(parse(source), source, overrides)
    assert message in str(caught.value)


def test_overriding_what_is_not_there() -> None:
    source = Source("attention a\n")
    with pytest.raises(UsageError, match="the file has no consts"):
        analyse(parse(source), source, {"w": 1})


def test_an_override_can_break_a_fact() -> None:
    source = Source("attention a\nconst w = 3\nassume w > 2\n")
    with pytest.raises(SpecError) as caught:
        analyse(parse(source), source, {"w": 1})
    assert [d.code for d in caught.value.diagnostics] == ["false-fact"]


# ---------------------------------------------------------------- files that would explode


def doubling(name: str, start: str) -> str:
    """Sixty lets, each twice the one before."""
    return f"let {name}0 = {start}\n" + "".join(f"let {name}{i + 1} = {name}{i} + {name}{i}\n" for i in range(60))


def balanced(name: str, levels: int) -> str:
    return name if levels == 0 else f"({balanced(name, levels - 1)} * {balanced(name, levels - 1)})"


HOSTILE = {
    "doubling lets": doubling("a", "qk") + "score = a60\n",
    "doubling ints": doubling("a", "q") + "mask = a60 > 0\n",
    "two equal graphs": doubling("a", "q") + doubling("c", "q") + "mask = a60 == c60\n",
    "nested doubling calls": f"let f(x) = x + x\nscore = {'f(' * 60}qk{')' * 60}\n",
    "doubling functions": "let f0(x) = x\n"
    + "".join(f"let f{i + 1}(x) = f{i}(x) + f{i}(x)\n" for i in range(60))
    + "score = f60(qk)\n",
    "doubling functions without a term": "let f0(x) = 1\n"
    + "".join(f"let f{i + 1}(x) = f{i}(x) * f{i}(x)\n" for i in range(60))
    + "score = f60(qk)\n",
    "a long chain of functions": "let f0(x) = x\n"
    + "".join(f"let f{i + 1}(x) = f{i}(x)\n" for i in range(2000))
    + "score = f2000(qk)\n",
    "a long chain of lets": "let a0 = qk\n"
    + "".join(f"let a{i + 1} = tanh(a{i})\n" for i in range(2000))
    + "score = a2000\n",
    "equal trees compared over and over": f"let x = {balanced('qk', 9)}\nlet y = {balanced('qk', 9)}\n"
    + "".join(f"let z{i} = min(x, y)\n" for i in range(2500)),
    "large trees looked through over and over": f"let x = {balanced('Sk', 10)}\n"
    + "".join(f"assume x > {i}\n" for i in range(2500)),
    "large bodies expanded over and over": f"let f(x) = {' + '.join(['x'] * 90)}\n"
    + "".join(f"let g{i} = f(q)\n" for i in range(3000)),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_end_in_a_clear_error(name: str) -> None:
    found: list[Diagnostic] = []
    work = calls(lambda: found.extend(mistakes("attention a\n" + HOSTILE[name])))
    assert [d.code for d in found] == ["too-large"]
    assert found[0].fix
    assert found[0].span.line > 1
    assert work < 10_000_000  # about two seconds: `MAX_WORK` bounds it, whatever the file holds


def test_the_deepest_expression_allowed_can_be_printed_compared_and_hashed() -> None:
    """In a process of its own: the frames of the test runner would count."""
    program = """
from attngen.analyse import analyse
from attngen.analyse.limits import MAX_DEPTH
from attngen.errors import Source
from attngen.ir import printing, walk
from attngen.syntax.parser import parse

text = "attention a\\nlet a1 = qk\\nlet m0 = q < k\\n"
for i in range(2, MAX_DEPTH + 1):
    text += f"let a{i} = {'tanh' if i % 2 else 'abs'}(a{i - 1})\\n"
for i in range(40):
    text += f"let m{i + 1} = not (m{i} and k > {i})\\n"
source = Source(text + f"score = a{MAX_DEPTH}\\nmask = m40\\n")
one, two = (analyse(parse(source), source) for _ in range(2))
assert one == two and repr(one) == repr(two)
assert hash(one.score) == hash(two.score) and hash(one.mask) == hash(two.mask)
assert walk.transform(one.score, lambda e: None) == two.score
assert printing.attention(one) == printing.attention(two)
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_hostile_files_need_little_memory() -> None:
    """Each of them, one after the other in a process that may have 500 MB of addresses in all."""
    program = """
import json, resource, sys
resource.setrlimit(resource.RLIMIT_AS, (500 * 2**20, 500 * 2**20))
from attngen.analyse import analyse
from attngen.errors import Source, SpecError
from attngen.syntax.parser import parse
for text in json.load(sys.stdin):
    source = Source("attention a\\n" + text)
    try:
        analyse(parse(source), source)
    except SpecError:
        continue
    raise SystemExit("no error: " + text[:80])
"""
    subprocess.run([sys.executable, "-c", program], input=json.dumps(list(HOSTILE.values())), text=True, check=True)
