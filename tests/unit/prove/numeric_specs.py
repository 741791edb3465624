"""Specs whose numbers are fine, and specs whose numbers are not, each a few lines in the language.

RIGHT must be proved without a false alarm. WRONG must be refuted: the name of the claim that fails stands beside it.
"""

from __future__ import annotations

EXPONENTIAL = """    shift = max
    weight(s, m) = exp(s - m)
    rescale(m, n) = exp(m - n)
}
"""

RIGHT: dict[str, str] = {
    # biases made of logarithms
    "log_distance": "score = qk * scale - log(1.0 + abs(q - k))",
    "log_distance_causal": "score = qk * scale - log(q + Sk - Sq - k + 1.0)\nmask = causal",
    "log_gap_where_it_is_positive": "score = qk * scale - log(float(q - k))\nmask = k < q",
    "log_of_a_param": "param c: f32[Hq] where c > 0\nscore = qk * scale + log(c[h])",
    "log_decay": "param decay: f32[Hq] where 0 < decay <= 1\nscore = qk * scale + log(decay[h]) * abs(q - k)",
    "log_of_data": "param t: f32[B, Sk] where t > 0\nscore = qk * scale - 0.5 * log(t[b, k])",
    "log_guarded": "param t: f32[B, Sk]\nscore = qk * scale + (log(t[b, k]) if t[b, k] > 0 else 0.0)",
    "log_or_minus_infinity": "param t: f32[B, Sk]\nscore = qk * scale + (log(t[b, k]) if t[b, k] > 0 else -inf)",
    "log_of_max": "param t: f32[B, Sk]\nscore = qk * scale + log(max(t[b, k], 1e-6))",
    "log_one_minus_position": "score = qk * scale + log(1.0 - float(k) / Sk)",
    # quotients
    "reciprocal_decay": "score = qk * scale / (1.0 + abs(q - k))",
    "reciprocal_decay_causal": "score = qk * scale + 1.0 / (q + Sk - Sq - k + 1)\nmask = causal",
    "reciprocal_off_diagonal": "score = qk * scale + 1.0 / float(q - k)\nmask = q != k",
    "reciprocal_or_zero": "score = qk * scale + (1.0 / (q - k) if q != k else 0.0)",
    "cosine": "param nq: f32[B, Hq, Sq] where nq > 0\nparam nk: f32[B, Hkv, Sk] where nk > 0\n"
    "param tau: f32 where tau > 0\nscore = qk / (nq[b, h, q] * nk[b, hkv, k]) / tau",
    "cosine_rsqrt": "param nq: f32[B, Hq, Sq] where nq > 0\nparam nk: f32[B, Hkv, Sk] where nk > 0\n"
    "score = qk * rsqrt(nq[b, h, q] * nk[b, hkv, k])",
    "temperature_of_either_sign": "param t: f32 where t > 1 or t < -1\nscore = qk * scale / t",
    "table_by_remainders": "param c: f32[n, w] where c > 0\nscore = qk * scale + log(c[q % n, k % w])",
    "temperature": "param t: f32[Hq] where t > 0\nscore = qk * scale / t[h]",
    "temperature_floor": "param t: f32[Hq]\nscore = qk * scale / max(abs(t[h]), 0.01)",
    "per_token_temperature": "param t: f32[B, Sq] where t >= 0.1\nscore = qk * scale / t[b, q]\nmask = causal",
    "gaussian": "param sigma: f32[Hq] where sigma > 0\nscore = qk * scale - (q - k) ** 2 / (2.0 * sigma[h] ** 2)",
    "mean_square": "score = qk * scale * rsqrt(1.0 + qk ** 2)",
    "softsign": "score = 5.0 * qk / (1.0 + abs(qk))",
    "int_divisor": "param w: int where w > 0\nscore = qk * scale - 0.1 * ((q - k) // w)",
    "int_modulus_guarded": "param w: int\nscore = qk * scale + (0.5 if (q % w == 0 if w > 0 else false) else 0.0)",
    "chunk_of_param": "param c: int where c >= 1\nmask = chunked(c)",
    "chunk_that_the_call_checks": "param c: int\nmask = chunked(c)",
    "mean_centred": "score = qk * scale * (1.0 - float(k) / Sk)",
    # exponentials and roots
    "entropy_scaled": "score = qk * scale * log(float(Sk))",
    "entropy_scaled_rows": "score = qk * scale * log(q + Sk - Sq + 2.0)\nmask = causal",
    "length_scaled": "score = qk * scale * log(float(Sk)) / log(512.0)",
    "alibi_fixed": "score = qk * scale - exp2(-8.0 * (h + 1) / Hq) * abs(q - k)",
    "exp_decay": "param rate: f32[Hq] where rate >= 0\nscore = qk * scale * exp(-rate[h] * abs(q - k))",
    "clamped_gain": "param g: f32[Hq]\nscore = qk * scale * exp(min(g[h], 4.6))",
    "geometric": "score = qk * scale * 0.9 ** abs(q - k)",
    "sqrt_distance": "score = qk * scale - sqrt(float(abs(q - k)))",
    "sqrt_of_square": "score = sqrt(1.0 + (qk * scale) ** 2)",
    "stable_softplus": "let x = qk * scale\nscore = max(x, 0.0) + log(1.0 + exp(-abs(x)))",
    "softcaps": "param cap: f32[Hq] where cap > 0\nscore = softcap(qk * scale, cap[h])",
    "gated": "param g: f32[Hq]\nscore = qk * scale * sigmoid(g[h]) + tanh(g[h])",
    "wave": "param f: f32[Hq]\nscore = qk * scale + cos(f[h] * (q - k))",
    "polynomial": "score = (qk * scale) ** 3 - 2.0 * qk",
    # infinities as written
    "masked_by_score": "score = qk * scale if k <= q else -inf",
    "masked_by_data": "param ok: bool[B, Sk]\nscore = qk * scale + (0.0 if ok[b, k] else -inf)",
    "very_negative": "param ok: bool[B, Sk]\nscore = qk * scale - (0.0 if ok[b, k] else 1e9)",
    "masked_guard": "param t: f32[B, Sk]\nscore = qk * scale + log(t[b, k])\nmask = t[b, k] > 0",
    "window_or_global": "score = qk * scale - log(1.0 + abs(q - k))\nmask = abs(q - k) <= 8 or k < 4",
    "either_side": "score = qk * scale + 1.0 / (q - k)\nmask = k < q or k > q + 3",
    # normalizers
    "sink_of_param": "param s: f32[Hq]\nnormalizer = softmax(sink = s[h])",
    "softmax_one": "normalizer = softmax1",
    "plus_epsilon": "normalizer n {\n    weight(s) = exp(s)\n    denominator = sum + 1e-6\n"
    + EXPONENTIAL
    + "normalizer = n",
    "plus_positive": "param e: f32[Hq] where e > 0\nnormalizer n(e) {\n    weight(s) = exp(s)\n"
    "    denominator = sum + e\n" + EXPONENTIAL + "normalizer = n(e = e[h])",
    "base_two": "normalizer n {\n    weight(s) = exp2(s)\n    denominator = sum\n    shift = max\n"
    "    weight(s, m) = exp2(s - m)\n    rescale(m, n) = exp2(m - n)\n}\nnormalizer = n",
    "quadratic_exponential": "normalizer n {\n    weight(s) = (1 + s ** 2) * exp(s)\n    denominator = sum\n"
    "    shift = max\n    weight(s, m) = (1 + s ** 2) * exp(s - m)\n    rescale(m, n) = exp(m - n)\n}\nnormalizer = n",
    "sigmoid_biased": "param bias: f32[Hq]\nscore = qk * scale + bias[h]\nnormalizer = sigmoid",
    "tanh_plus_one": "normalizer n {\n    weight(s) = tanh(s) + 1.0\n"
    "    denominator = sum + 1.0\n    shift = none\n}\n"
    "normalizer = n",
    "relu": "normalizer n {\n    weight(s) = max(s, 0.0)\n    denominator = sum + 1.0\n    shift = none\n}\n"
    "normalizer = n",
    "relu_squared": "normalizer n {\n    weight(s) = max(s, 0.0) ** 2\n    denominator = 1\n    shift = none\n}\n"
    "normalizer = n",
    "square": "normalizer n {\n    weight(s) = s * s\n    denominator = sum\n    shift = none\n}\nnormalizer = n",
    "linear_unnormalized": "normalizer n {\n    weight(s) = s\n    denominator = 1\n"
    "    shift = none\n}\nnormalizer = n",
    "capped_exponential": "normalizer n {\n    weight(s) = exp(min(s, 10.0))\n"
    "    denominator = sum\n    shift = none\n}\n"
    "normalizer = n",
    "exponential_of_a_cap": "score = softcap(qk * scale, 8.0)\nnormalizer n {\n    weight(s) = exp(s)\n"
    "    denominator = sum\n    shift = none\n}\nnormalizer = n",
    "stable_softplus_weight": "normalizer n {\n    weight(s) = max(s, 0.0) + log(1.0 + exp(-abs(s)))\n"
    "    denominator = sum\n    shift = none\n}\nnormalizer = n",
    "masked_sigmoid": "score = (0.0 if qk > 0.0 else -inf) + tanh(qk * scale)\nnormalizer = sigmoid",
    "masked_relu": "score = qk * scale if k <= q else -inf\nnormalizer n {\n    weight(s) = max(s, 0.0)\n"
    "    denominator = sum\n    shift = none\n}\nnormalizer = n",
    "dropout_half": "param p: f32 where 0 <= p < 1\ndropout = p / 2",
}

WRONG: dict[str, tuple[str, str]] = {
    # divisions
    "divides_by_distance": ("score = qk * scale / float(q - k)", "score"),
    "divides_by_causal_distance": ("score = qk * scale / (q + Sk - Sq - k)\nmask = causal", "score"),
    "divides_by_param": ("param c: f32\nscore = qk * scale / c", "score"),
    "divides_by_elements": ("param c: f32[Hq]\nscore = qk * scale / c[h]", "score"),
    "divides_by_nonnegative": ("param c: f32 where c >= 0\nscore = qk * scale / c", "score"),
    "softcap_without_where": ("param cap: f32\nscore = softcap(qk * scale, cap)", "score"),
    "cosine_without_where": ("param n: f32[B, Sk]\nscore = qk / n[b, k]", "score"),
    "reads_past_the_end": ("param t: f32[Hq, n] where t > 0\nscore = qk * scale / t[h, abs(q - k)]", "score"),
    "reciprocal_score": ("score = 1.0 / (qk * scale)", "score"),
    "reciprocal_shifted_score": ("score = 1.0 / (qk - 0.25)", "score"),
    "divides_by_scale": ("score = qk / scale", "score"),
    "negative_power": ("score = (qk * scale) ** -2", "score"),
    "position_as_divisor": ("score = qk * scale / q", "score"),
    # logarithms and roots
    "log_of_distance": ("score = qk * scale - log(float(abs(q - k)))", "score"),
    "log_of_causal_distance": ("score = qk * scale - log(float(q - k))\nmask = k <= q", "score"),
    "log_of_param": ("param c: f32[Hq]\nscore = qk * scale + log(c[h])", "score"),
    "log_of_nonnegative": ("param c: f32[Hq] where c >= 0\nscore = qk * scale + log(c[h])", "score"),
    "log_of_score": ("score = log(qk * scale)", "score"),
    "log_of_row": ("score = qk * scale * log(q + Sk - Sq + 1.0)", "score"),
    "log_one_minus_tanh": ("score = log(1.0 - tanh(qk * scale))", "score"),
    "log_sigmoid": ("score = log(sigmoid(qk))", "score"),
    "sqrt_of_score": ("score = sqrt(qk * scale)", "score"),
    "sqrt_of_param": ("param c: f32\nscore = qk * scale * sqrt(c)", "score"),
    "rsqrt_of_nonnegative": ("param c: f32[B, Sk] where c >= 0\nscore = qk * rsqrt(c[b, k])", "score"),
    "log_wrong_guard": ("param t: f32[B, Sk]\nscore = log(t[b, k]) if t[b, k] >= 0 else 0.0", "score"),
    # overflow
    "exp_of_score": ("score = exp(qk * scale)", "score"),
    "naive_softplus": ("score = log(1.0 + exp(qk * scale))", "score"),
    "exp_of_param": ("param g: f32[Hq]\nscore = qk * scale * exp(g[h])", "score"),
    "exp_grows_with_distance": ("score = qk * scale + exp(0.01 * abs(q - k))", "score"),
    "power_of_distance": ("score = qk * scale * 2.0 ** (q - k)", "score"),
    "decay_of_any_sign": ("param r: f32[Hq]\nscore = qk * scale * exp(-r[h] * abs(q - k))", "score"),
    # infinities
    "plus_infinity": ("score = inf if k == 0 else qk * scale", "score"),
    "infinity_that_counts": (
        "score = qk * scale if k <= q else -inf\nnormalizer n {\n    weight(s) = 2.0 + tanh(s)\n    denominator = sum\n"
        "    shift = none\n}\nnormalizer = n",
        "infinite scores",
    ),
    "infinity_times_zero": ("score = qk * scale + -inf * float(k > q)", "score"),
    "infinity_minus_infinity": ("score = (inf if k == 0 else 0.0) + (-inf if q == 0 else 0.0) + qk", "score"),
    # ints
    "int_divisor": ("param w: int where w >= 0\nscore = qk * scale - 0.1 * (abs(q - k) // w)", "domain"),
    "int_modulus": ("param w: int where w >= 0\nmask = (q - k) % w == 0", "domain"),
    "chunk_per_head": ("param c: int[Hq]\nmask = q // c[h] == k // c[h]", "domain"),
    "int_power": ("score = qk * scale * float(2 ** (q - k))", "domain"),
    "conversion": ("score = qk * scale + int(exp(0.5 * abs(q - k)))", "domain"),
    "modulus_of_distance": ("mask = q % (q - k) == 0", "domain"),
    # normalizers
    "no_maximum": (
        "normalizer n {\n    weight(s) = exp(s)\n    denominator = sum\n    shift = none\n}\nnormalizer = n",
        "sums",
    ),
    "no_maximum_base_two": (
        "normalizer n {\n    weight(s) = exp2(s)\n    denominator = sum + 1\n    shift = none\n}\nnormalizer = n",
        "sums",
    ),
    "no_maximum_no_sum": (
        "normalizer n {\n    weight(s) = exp(s)\n    denominator = 1\n    shift = none\n}\nnormalizer = n",
        "sums",
    ),
    "half_overflows": (
        "normalizer n {\n    weight(s) = exp(min(s, 20.0))\n    denominator = sum\n    shift = none\n}\nnormalizer = n",
        "sums",
    ),
    "fourth_power": (
        "normalizer n {\n    weight(s) = s ** 4\n    denominator = sum\n    shift = none\n}\nnormalizer = n",
        "sums",
    ),
    "naive_softplus_weight": (
        "normalizer n {\n    weight(s) = log(1.0 + exp(s))\n    denominator = sum\n    shift = none\n}\nnormalizer = n",
        "sums",
    ),
    "stream_overflows": (
        "normalizer n {\n    weight(s) = (1 + s ** 2) * exp(s)\n    denominator = sum\n    shift = max\n"
        "    weight(s, m) = (1 + s ** 2) * exp(s) / exp(m)\n    rescale(m, n) = exp(m - n)\n}\nnormalizer = n",
        "sums",
    ),
    "negative_weights": (
        "normalizer n {\n    weight(s) = tanh(s)\n    denominator = sum\n    shift = none\n}\nnormalizer = n",
        "denominator",
    ),
    "linear_weights": (
        "normalizer n {\n    weight(s) = s\n    denominator = sum\n    shift = none\n}\nnormalizer = n",
        "denominator",
    ),
    "temperature_of_any_sign": (
        "param t: f32[Hq]\nnormalizer n(t) {\n    weight(s) = exp(s / t)\n    denominator = sum\n    shift = max\n"
        "    weight(s, m) = exp((s - m) / t)\n    rescale(m, n) = exp((m - n) / t)\n}\nnormalizer = n(t = t[h])",
        "logit",
    ),
    "falls_with_the_score": (
        "normalizer n {\n    weight(s) = (1 + s ** 2) * exp(-s)\n    denominator = sum\n    shift = max\n"
        "    weight(s, m) = (1 + s ** 2) * exp(m - s)\n    rescale(m, n) = exp(n - m)\n}\nnormalizer = n",
        "factor",
    ),
    "extra_of_any_sign": (
        "param e: f32[Hq]\nnormalizer n(e) {\n    weight(s) = exp(s)\n    denominator = sum + e\n"
        + EXPONENTIAL
        + "normalizer = n(e = e[h])",
        "extra term",
    ),
    "extra_of_any_sign_relu": (
        "param e: f32[Hq]\nnormalizer n(e) {\n    weight(s) = max(s, 0.0)\n    denominator = sum + e\n"
        "    shift = none\n}\nnormalizer = n(e = e[h])",
        "extra term",
    ),
    "sink_divides": ("param t: f32[Hq]\nnormalizer = softmax(sink = 1.0 / t[h])", "extra term"),
    "sink_logarithm": ("param t: f32[Hq]\nnormalizer = softmax(sink = log(t[h]))", "extra term"),
    "negative_weight_at_a_large_score": (
        "normalizer n {\n    weight(s) = 200.0 - abs(s)\n    denominator = sum\n    shift = none\n}\nnormalizer = n",
        "denominator",
    ),
    "square_root_weight": (
        "normalizer n {\n    weight(s) = sqrt(max(s, 0.0))\n    denominator = sum\n    shift = none\n}\nnormalizer = n",
        "slope",
    ),
    "extra_may_be_zero": (
        "param e: f32[Hq] where e >= 0\nnormalizer n(e) {\n    weight(s) = exp(s)\n    denominator = sum + e\n"
        + EXPONENTIAL
        + "normalizer = n(e = e[h])",
        "derivatives",
    ),
    "even_power_that_may_vanish": ("param x: f32\nscore = qk * scale / (x + 0.5) ** 4", "score"),
    "log_of_an_even_power": ("param x: f32[Hq]\nscore = qk * scale + log((x[h] + 0.5) ** 6)", "score"),
    "root_of_score": ("score = sqrt(abs(qk * scale))", "derivatives"),
    "root_of_nonnegative_param": ("param c: f32[Hq] where c >= 0\nscore = qk * scale * sqrt(c[h])", "derivatives"),
    "root_of_norm": ("score = qk * scale - sqrt(qk * qk)", "derivatives"),
    "dropout_of_any_size": ("param p: f32\ndropout = p", "dropout"),
    "dropout_up_to_one": ("param p: f32 where 0 <= p <= 1\ndropout = p", "dropout"),
}
