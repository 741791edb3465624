"""Draws masks and scores from the language's grammar, as text, so that the whole front end is exercised.

Gives hypothesis strategies of well-typed expressions over a fixed set of params, those of `property.drawn`.
"""

from __future__ import annotations

from hypothesis import strategies as st

from property.drawn import DECLARATIONS, mask_values, spec

__all__ = ["DECLARATIONS", "NORMALIZERS", "conditional_masks", "mask_values", "masks", "spec"]


# ---------------------------------------------------------------- ints and masks

_SMALL = st.integers(-9, 24).map(lambda n: str(n) if n >= 0 else f"({n})")
_DIVISOR = st.one_of(st.integers(1, 9).map(str), st.just("c"))
_POSITION = st.sampled_from(["q", "k", "q", "k", "q - k", "q + Sk - Sq", "q + Sk - Sq - k", "k - q"])
_ATOM = st.one_of(
    _POSITION, _POSITION, _SMALL, st.sampled_from(["w", "c", "h", "hkv", "b", "Sk", "Sq", "lengths[b]", "window[h]"])
)


def _grow_int(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    def two(form: str) -> st.SearchStrategy[str]:
        return st.tuples(inner, inner).map(lambda p: form.format(*p))

    return st.one_of(
        two("({} + {})"),
        two("({} - {})"),
        st.tuples(st.integers(-3, 4), inner).map(lambda p: f"({p[0]}) * ({p[1]})"),
        st.tuples(inner, _DIVISOR).map(lambda p: f"({p[0]}) // {p[1]}"),
        st.tuples(inner, _DIVISOR).map(lambda p: f"({p[0]}) % {p[1]}"),
        inner.map("abs({})".format),
        two("min({}, {})"),
        two("max({}, {})"),
        st.tuples(inner, _SMALL, inner).map(lambda p: f"clamp({p[0]}, {p[1]}, {p[2]})"),
        st.tuples(inner, _comparison(inner), inner).map(lambda p: f"({p[0]} if {p[1]} else {p[2]})"),
    )


def _comparison(ints: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    sign = st.sampled_from(["<", "<=", ">", ">=", "==", "!="])
    simple = st.tuples(ints, sign, ints).map(" ".join)
    chained = st.tuples(ints, sign, ints, sign, ints).map(" ".join)
    return st.one_of(simple, simple, chained)


ints = st.recursive(_ATOM, _grow_int, max_leaves=4)

_TIME = st.sampled_from(["t[b, q]", "t[b, k]", "t[b, q] - t[b, k]", "t[b, k] - t[b, q]", "abs(t[b, q] - t[b, k])"])
_data = st.one_of(
    st.sampled_from(
        [
            "ids[b, q] == ids[b, k]",
            "seg[b, q] == ids[b, k]",
            "seg[b, q] >= ids[b, k]",
            "ids[b, k] < seg[b, q] + 2",
            "seg[b, q] != ids[b, k]",
            "k < ids[b, k] * 3",
            "q >= 4 * seg[b, q]",
            "valid[b, k]",
            "not valid[b, k]",
            "alive[b, q]",
            "valid[b, k] == alive[b, q]",
            "flag",
            "0 <= t[b, q] - t[b, k] < span",
            "k < lengths[b]",
            "0 <= q + Sk - Sq - k < window[h]",
            "k in picks[b]",
            "q - 3 not in picks[b]",
            "k // 5 in lists[b, hkv, q // 8]",
            "q - k not in lists[b, hkv, c - w]",
        ]
    ),
    st.tuples(_TIME, st.sampled_from(["<", "<=", ">", ">="]), st.sampled_from(["0.5", "span", "2.0 * span"])).map(
        " ".join
    ),
)


def _grow_mask(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.lists(inner, min_size=2, max_size=3).map(lambda p: "(" + " and ".join(p) + ")"),
        st.lists(inner, min_size=2, max_size=3).map(lambda p: "(" + " or ".join(p) + ")"),
        inner.map("(not ({}))".format),
        st.tuples(inner, inner, inner).map(lambda p: f"(({p[0]}) if ({p[1]}) else ({p[2]}))"),
    )


_affine = _comparison(st.one_of(_POSITION, _SMALL, st.sampled_from(["w", "Sk", "Sq"])))
masks = st.recursive(
    st.one_of(_affine, _affine, _comparison(ints), _data, st.sampled_from(["causal", "chunked(c)", "prefix_lm(w)"])),
    _grow_mask,
    max_leaves=4,
)

_DISTANCE = st.sampled_from(["q - k", "q + Sk - Sq - k", "k - q", "abs(q - k)", "2 * q - k"])
_CONDITION = st.one_of(
    _affine,
    _comparison(_ATOM),
    st.sampled_from(
        ["q < 10", "k < 5", "h < 2", "flag", "valid[b, k]", "alive[b, q]", "ids[b, k] > 0", "ids[b, k] > q",
         "seg[b, q] > ids[b, k]", "window[h] >= q", "k <= ids[b, k]"]
    ),
)  # fmt: skip
_WIDTH = st.recursive(
    st.sampled_from(["4", "16", "w", "window[h]", "c", "0", "q", "k", "q - k"]),
    lambda inner: st.one_of(
        st.tuples(inner, _CONDITION, inner).map(lambda p: f"({p[0]} if {p[1]} else {p[2]})"),
        st.tuples(inner, _CONDITION, inner).map(lambda p: f"({p[0]} if {p[1]} else {p[2]})"),
        st.tuples(st.sampled_from(["min", "max"]), inner, inner).map(lambda p: f"{p[0]}({p[1]}, {p[2]})"),
    ),
    max_leaves=4,
)
_window = st.one_of(
    st.tuples(_DISTANCE, st.sampled_from(["<", "<=", ">", "==", "!="]), _WIDTH).map(" ".join),
    st.tuples(_DISTANCE, _WIDTH).map(lambda p: f"0 <= {p[0]} < {p[1]}"),
    st.tuples(_WIDTH, st.sampled_from(["<", "<="]), _WIDTH).map(" ".join),
    st.tuples(_CONDITION, _WIDTH).map(lambda p: f"ids[b, clamp(k if {p[0]} else {p[1]}, 0, Sk - 1)] > 0"),
)
conditional_masks = st.one_of(
    _window, st.tuples(st.sampled_from(["k <= q", "causal"]), _window).map(" and ".join), masks.flatmap(
        lambda m: _window.map(lambda w: f"({m}) or ({w})")
    )
)  # fmt: skip
"""Windows whose width a condition chooses: on either side, one inside the other, and in the index of a load."""

# ---------------------------------------------------------------- floats and scores

_FLOAT_ATOM = st.sampled_from(
    [
        "qk * scale",
        "qk * scale",
        "qk * scale",
        "0.1 * qk",
        "slope[h]",
        "gain[b, hkv]",
        "row[b, q]",
        "col[h, k]",
        "bias",
        "cap",
        "0.5",
        "0.05 * (q - k)",
        "0.02 * abs(q + Sk - Sq - k)",
        "float(h + 1)",
        "0.25 * hkv",
        "float(k % 3)",
        "float(q // c) * 0.1",
    ]
)


def _grow_float(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    def one(*forms: str) -> st.SearchStrategy[str]:
        return st.tuples(st.sampled_from(forms), inner).map(lambda p: p[0].format(p[1]))

    def two(*forms: str) -> st.SearchStrategy[str]:
        return st.tuples(st.sampled_from(forms), inner, inner).map(lambda p: p[0].format(*p[1:]))

    return st.one_of(
        two("({} + {})", "({} - {})", "({}) * ({})", "min({}, {})", "max({}, {})"),
        one("tanh({})", "sigmoid({})", "sin({})", "cos({})", "erf({})", "abs({})", "-({})"),
        one("({}) / cap", "softcap({}, cap)", "clamp({}, -1.5, cap)", "exp(min({}, 1.0))", "exp2(-abs({}))"),
        one("log(1.0 + abs({}))", "log2(2.0 + abs({}))", "sqrt(1.0 + ({}) ** 2)", "rsqrt(2.0 + abs({}))"),
        one("({}) ** 2", "({}) ** 3 * 0.1", "(1.5 + sigmoid({})) ** -2", "1.0 / (1.0 + abs({}))"),
        st.tuples(inner, _affine, inner).map(lambda p: f"({p[0]} if {p[1]} else {p[2]})"),
        st.tuples(inner, inner, inner).map(lambda p: f"({p[0]} if {p[0]} < {p[1]} else {p[2]})"),
    )


floats = st.recursive(_FLOAT_ATOM, _grow_float, max_leaves=5)
scores = st.one_of(floats, floats.map("qk * scale + {}".format))

NORMALIZERS = {
    "softmax": "normalizer = softmax",
    "softmax1": "normalizer = softmax1",
    "sigmoid": "normalizer = sigmoid",
    "sink": "normalizer = softmax(sink = slope[h])",
    "relu": "normalizer relu {\n    weight(s) = max(s, 0)\n    denominator = sum + 1\n    shift = none\n}\n"
    "normalizer = relu",
    "plain": "normalizer plain(x) {\n    weight(s) = exp(s)\n    denominator = sum + x\n    shift = none\n}\n"
    "normalizer = plain(x = slope[h])",
    "softplus": "normalizer softplus {\n    weight(s) = log(1 + exp(s))\n    denominator = sum\n    shift = none\n}\n"
    "normalizer = softplus",
    "temperature": "normalizer cooled(t) {\n    weight(s) = exp(s / t)\n    denominator = sum\n    shift = max\n"
    "    weight(s, m) = exp((s - m) / t)\n    rescale(m, n) = exp((m - n) / t)\n}\nnormalizer = cooled(t = cap)",
    "binary": "normalizer binary {\n    weight(s) = exp2(s)\n    denominator = sum + 0.5\n    shift = max\n"
    "    weight(s, m) = exp2(s - m)\n    rescale(m, n) = exp2(m - n)\n}\nnormalizer = binary",
    "shifted": "normalizer squared {\n    weight(s) = (1 + s ** 2) * exp(s)\n    denominator = sum\n    shift = max\n"
    "    weight(s, m) = (1 + s ** 2) * exp(s - m)\n    rescale(m, n) = exp(m - n)\n}\nnormalizer = squared",
}
normalizers = st.sampled_from(sorted(NORMALIZERS)).map(NORMALIZERS.__getitem__)
