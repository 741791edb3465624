"""Files as users would write them, none of which the prover was written for: right ones, and ones with a mistake.

`WRONG` gives a body and the obligation that refuses it; each mistake is one that the file alone shows. A window that is
negative, or documents out of order, are no mistakes: rows without keys have zeros, and unsorted data costs tiles only.
"""

from __future__ import annotations

from collections.abc import Mapping

from attngen.prove.verdict import Obligation


def own(weight: str, denominator: str = "sum", stream: str = "", rescale: str = "exp(m - n)", params: str = "") -> str:
    """A file with a normalizer of its own; without `stream` it has no running maximum."""
    lines = [f"weight(s) = {weight}", f"denominator = {denominator}", f"shift = {'max' if stream else 'none'}"]
    lines += [f"weight(s, m) = {stream}", f"rescale(m, n) = {rescale}"] if stream else []
    body = "\n    ".join(lines)
    return f"{params}\nnormalizer mine {{\n    {body}\n}}\nnormalizer = mine\nmask = causal"


_S, _N = Obligation.STREAMING, Obligation.RANGE_SAFETY

WRONG: Mapping[str, tuple[str, Obligation]] = {
    # streams that do not agree with their definition
    "rescale the other way": (own("exp(s)", stream="exp(s - m)", rescale="exp(n - m)"), _S),
    "no rescaling": (own("exp(s)", stream="exp(s - m)", rescale="1.0"), _S),
    "rescale without the temperature": (
        own("exp(s / t)", stream="exp((s - m) / t)", params="param t: f32 where t > 0"),
        _S,
    ),
    "weight without the temperature": (own("exp(s / t)", stream="exp(s - m)", params="param t: f32 where t > 0"), _S),
    "weight upside down": (own("exp(s)", stream="exp(m - s)"), _S),
    "weight without the maximum": (own("exp(s)", stream="exp(s)"), _S),
    "two bases": (own("exp2(s)", stream="exp2(s - m)", rescale="exp(m - n)"), _S),
    "streamed in another base": (own("exp(s)", stream="exp2(s - m)", rescale="exp2(m - n)"), _S),
    "half rescaled": (own("exp(s)", stream="exp(s - m)", rescale="exp((m - n) / 2)"), _S),
    "rescaled twice": (own("exp(s)", stream="exp(s - m)", rescale="exp(2 * (m - n))"), _S),
    "rescaled by a constant too": (own("exp(s)", stream="exp(s - m)", rescale="0.5 * exp(m - n)"), _S),
    "rescale forgets the old maximum": (own("exp(s)", stream="exp(s - m)", rescale="exp(-n)"), _S),
    "factor lost in the stream": (own("(1 + s ** 2) * exp(s)", stream="exp(s - m)"), _S),
    "factor of the shifted score": (own("(1 + s ** 2) * exp(s)", stream="(1 + (s - m) ** 2) * exp(s - m)"), _S),
    "constant left unshifted": (own("exp(s) + 1", stream="exp(s - m) + 1"), _S),
    "twice the exponent in the definition": (own("exp(2 * s)", stream="exp(s - m)"), _S),
    "sigmoid with a maximum": (own("sigmoid(s)", stream="sigmoid(s - m)"), _S),
    "softplus with a maximum": (own("log(1 + exp(s))", stream="log(1 + exp(s - m))"), _S),
    "relu with a maximum": (own("max(s, 0)", stream="max(s - m, 0)"), _S),
    "typo in the sign": (own("exp(s)", stream="exp(s + m)"), _S),
    # weights and denominators that fp32 or fp16 cannot hold, or that may vanish
    "no maximum": (own("exp(s)"), _N),
    "no maximum, and a sink": (own("exp(s)", "sum + 1"), _N),
    "a square in the exponent": (own("exp(s ** 2)"), _N),
    "two to the score": (own("exp2(s)"), _N),
    "a negative extra term": (own("exp(s)", "sum - 1", "exp(s - m)"), _N),
    "an extra term of any sign": (own("exp(s)", "sum + x", "exp(s - m)", params="param x: f32"), _N),
    "an extra term that may be zero": (  # its gradient is 0 / 0 there
        own("exp(s)", "sum + x", "exp(s - m)", params="param x: f32 where x >= 0"),
        _N,
    ),
    "an extra term below zero": (own("exp(s)", "sum + x - 1", "exp(s - m)", params="param x: f32 where x > 0"), _N),
    "the log of an extra term": (own("exp(s)", "sum + log(x)", "exp(s - m)", params="param x: f32 where x > 0"), _N),
    "weights of any sign": (own("s"), _N),
    "tanh as a weight": (own("tanh(s)"), _N),
    "score times exponential": (own("s * exp(s)", stream="s * exp(s - m)"), _N),
    "a factor of any sign": (own("a * exp(s)", stream="a * exp(s - m)", params="param a: f32"), _N),
    "one over the score": (own("1 / s"), _N),
    "log of the score": (own("log(s)"), _N),
    "root of the score": (own("sqrt(s)"), _N),
    "a temperature of zero": (
        own("exp(s / t)", stream="exp((s - m) / t)", rescale="exp((m - n) / t)", params="param t: f32 where t >= 0"),
        _N,
    ),
    "a temperature of any sign": (
        own("exp(s / t)", stream="exp((s - m) / t)", rescale="exp((m - n) / t)", params="param t: f32"),
        _N,
    ),
    # scores that are not finite
    "log of a length less one": ("score = qk * scale - log(Sk - 1)", _N),
    "divided by a slope": ("param slope: f32[Hq]\nscore = qk * scale / slope[h]", _N),
    "a cap that may be zero": ("param cap: f32 where cap >= 0\nscore = softcap(qk * scale, cap)", _N),
    "a cap of any sign": ("param cap: f32\nscore = softcap(qk * scale, cap)", _N),
    "log of the distance": ("score = qk * scale - log(q - k)\nmask = q >= k", _N),
    "log of the distance, forwards": ("score = qk * scale - log(k - q + 1)\nmask = causal", _N),
    "root of the distance": ("score = qk * scale - sqrt(q - k)", _N),
    "one over the distance": ("score = qk * scale + 1 / (q - k)\nmask = q >= k", _N),
    "exp of the score": ("score = exp(qk * scale)", _N),
    "inf for what is masked": ("score = inf if k > q else qk * scale", _N),
    "a root below zero": ("param bias: f32[Hq]\nscore = qk * scale + sqrt(bias[h])", _N),
    "an inverse root": ("param bias: f32 where bias >= 0\nscore = qk * rsqrt(bias)", _N),
    "a negative power": ("param gain: f32[B, Sq]\nscore = qk * gain[b, q] ** -1", _N),
    "log of a count": ("param n: int\nscore = qk * scale - log(n)", _N),
    "log of a query's number": ("score = qk * scale * log(q)", _N),
    "divided by a difference of lengths": ("score = qk / (Sk - Sq)", _N),
    "a probability of any size": ("param p: f32\ndropout = p", _N),
    "a probability of 1": ("param p: f32 where 0 <= p <= 1\ndropout = p", _N),
    "twice a probability": ("param p: f32 where 0 <= p < 1\ndropout = 2 * p", _N),
    # ints without a value
    "a chunk of zero or more": ("param c: int where c >= 0\nmask = q // c == k // c", _N),
    "divided by a head's number": ("mask = k // h == q // h", _N),
    "divided by a document": ("param ids: int[B, Sk]\nmask = k // ids[b, k] == 0", _N),
    "modulo a length of any size": ("param lengths: int[B] where lengths >= 0\nmask = k % lengths[b] == 0", _N),
    "divided by a window less one": ("param w: int where w >= 1\nmask = q // (w - 1) == k // (w - 1)", _N),
    "modulo a head's window": ("param w: int[Hq]\nmask = (q - k) % w[h] < 2", _N),
    "a negative power of two": ("mask = 2 ** (k - q) < 4", _N),
}

RIGHT: Mapping[str, str] = {
    # windows
    "window": "param w: int where w >= 1\nmask = 0 <= q - k < w",
    "negative window": "param w: int where w <= 0\nmask = 0 <= q - k < w",
    "window of any sign": "param w: int\nmask = abs(q - k) <= w",
    "two windows": "param a: int\nparam b_: int where b_ >= 0\nmask = -b_ <= k - q <= a",
    "window of each head": "param w: int[Hq] where w >= 1\nmask = causal and q + Sk - Sq - k < w[h]",
    "window and sinks": "const w = 128\nconst sinks = 4\nmask = causal and (q + Sk - Sq - k < w or k < sinks)",
    "window and run-time sinks": "param n: int where n >= 0\nmask = causal and (q - k < 64 or k < n)\nassume Sq == Sk",
    "one of two windows": "mask = 0 <= q - k < 3 or 10 <= q - k < 12",
    "window for some heads": "param w: int where w >= 1\nmask = causal and (h % 2 == 0 or q + Sk - Sq - k < w)",
    "window for the last queries": "mask = causal and (q - k < 16 or q >= Sq - 8)",
    "odd distances": "mask = (q - k) % 2 == 1",
    "strided": "param d: int where d >= 1\nmask = causal and dilated(d)",
    "strided or near": "const d = 8\nmask = causal and ((q - k) % d == 0 or q - k < d)",
    "strictly before": "mask = k < q + Sk - Sq",
    "not itself": "mask = q != k",
    "one after": "mask = k <= q + 1",
    "anticausal": "mask = k >= q",
    "steep": "mask = 3 * k <= 2 * q + 5",
    "diamond": "mask = abs(q - k) + abs(q + k - Sk) <= Sk",
    # chunks
    "chunks": "param c: int where c >= 1\nmask = chunked(c)",
    "chunks of any size": "param c: int\nmask = chunked(c)",  # that c is not 0 is checked at the call
    "strides of any size": "param d: int\nmask = (q - k) % d == 0",
    "chunk and the one before": "param c: int where c >= 1\nassume Sq == Sk\n"
    "mask = causal and 0 <= q // c - k // c <= 1",
    "not in the chunk": "param c: int where c >= 1\nmask = q // c != k // c",
    "blocks below the diagonal": "const c = 64\nmask = k // c < q // c",
    "staircase": "const c = 16\nmask = k < (q // c + 1) * c",
    "place in a chunk": "const c = 32\nmask = q % c >= k % c and q // c == k // c",
    "chunks of two sizes": "mask = q // 4 == k // 8",
    # prefixes and lengths
    "prefix": "param n: int where n >= 0\nmask = prefix_lm(n)",
    "prefix of any sign": "param n: int\nmask = causal or k < n",
    "prefix of each batch": "param n: int[B] where n >= 0\nmask = causal or k < n[b]",
    "prefix with documents": "param ids: int[B, Sk]\nparam n: int where n >= 0\nassume Sq == Sk\n"
    "mask = same_document(ids) and (causal or k < n)",
    "padded keys": "param lengths: int[B]\nmask = causal and k < lengths[b]",
    "padded both": "param lengths: int[B] where lengths >= 0\nmask = q < lengths[b] and k < lengths[b]",
    "left padding": "param start: int[B] where start >= 0\nmask = causal and k >= start[b]",
    "valid keys": "param valid: bool[B, Sk]\nmask = valid[b, k]",
    "valid both": "param good: bool[B, Sk]\nassume Sq == Sk\nmask = good[b, q] and good[b, k]",
    "a switch": "param flag: bool\nmask = causal or flag",
    "a switch of windows": "param local: bool\nparam w: int where w >= 1\nmask = (0 <= q - k < w) if local else causal",
    # data
    "documents": "param ids: int[B, Sk]\nassume Sq == Sk\nmask = same_document(ids)",
    "documents that are not equal": "param ids: int[B, Sk]\nassume Sq == Sk\nmask = ids[b, q] != ids[b, k] or q == k",
    "queries' and keys' documents": "param a: int[B, Sq]\nparam c: int[B, Sk]\nmask = a[b, q] == c[b, k]",
    "later times": "param t: f32[B, Sk]\nassume Sq == Sk\nmask = t[b, k] <= t[b, q]",
    "times within": "param t: f32[B, Sk]\nparam span: f32 where span > 0\nassume Sq == Sk\n"
    "mask = abs(t[b, q] - t[b, k]) <= span",
    "lengths of rows": "param last: int[B, Sq]\nmask = k < last[b, q]",
    "neighbourhood": "const w = 16\nconst r = 2\nassume Sq == Sk\n"
    "mask = abs(q // w - k // w) <= r and abs(q % w - k % w) <= r",
    "rows of an image": "param w: int where w >= 1\nassume Sq == Sk\nmask = q // w == k // w or q % w == k % w",
    # scores
    "distance in floats": "param slope: f32[Hq]\nscore = qk * scale - slope[h] * abs(q - k)",
    "log of the distance and one": "score = qk * scale - log(1 + abs(q - k))",
    "log of the causal distance": "score = qk * scale - log(q - k + 1)\nmask = 0 <= q - k",
    "one over the strict distance": "score = qk * scale + 1 / (q - k)\nmask = k < q",
    "masked by -inf": "score = qk * scale if q >= k else -inf",
    "a float in the mask": "param reach: f32 where reach > 0\nmask = float(abs(q - k)) * 0.5 <= reach",
    "capped": "param cap: f32 where cap > 0\nscore = softcap(qk * scale, cap)\nmask = causal",
    "clamped": "score = clamp(qk * scale, -30.0, 30.0)",
    "a table of distances": "const r = 15\nconst n = 2 * r + 1\nparam table: f32[Hq, n]\n"
    "score = qk * scale + table[h, clamp(k - q, -r, r) + r]",
    "a table that may be too short": "param table: f32[Hq, n]\nscore = qk * scale + table[h, q - k]\nmask = causal",
    "bias in bf16": "param bias: bf16[Hq, Sq, Sk]\nscore = qk * scale + bias[h, q, k]\nmask = causal",
    "bias of keys": "param bias: f32[B, Sk]\nscore = qk * scale + bias[b, k]",
    "divided by a guarded slope": "param slope: f32[Hq] where slope > 0\nscore = qk * scale / slope[h]",
    "bounded before exp": "score = qk * scale + exp(min(qk * scale, 4.0))",
    "rotated by a head": "score = qk * scale * cos(0.01 * (q - k)) + 0.1 * h",
    "learned gain": "param gain: f32[Hq]\nscore = qk * scale * sigmoid(gain[h])\nmask = causal",
    # normalizers
    "sink": "param sink: f32[Hq]\nnormalizer = softmax(sink = sink[h])\nmask = causal",
    "one more": "normalizer = softmax1",
    "sigmoid": "score = qk * scale - log(Sk)\nnormalizer = sigmoid",
    "temperature": own(
        "exp(s / t)", stream="exp((s - m) / t)", rescale="exp((m - n) / t)", params="param t: f32 where t > 0"
    ),
    "falling weight": own("exp(-s)", stream="exp(m - s)", rescale="exp(n - m)"),  # the kernel's maximum is that of -s
    "base two": own("exp2(s)", stream="exp2(s - m)", rescale="exp2(m - n)"),
    "quotients of exponentials": own("exp(s)", stream="exp(s) / exp(m)", rescale="exp(m) / exp(n)"),
    "a constant in the stream": own("exp(s)", stream="2 * exp(s - m)"),
    "a constant in the weight": own("3 * exp(s)", stream="3 * exp(s - m)"),
    "a square before the exponential": own("(1 + s ** 2) * exp(s)", stream="(1 + s ** 2) * exp(s - m)"),
    "an extra term": own("exp(s)", "sum + x", "exp(s - m)", params="param x: f32 where x > 0"),
    "relu with one more": own("max(s, 0)", "sum + 1"),
    "squared relu": own("max(s, 0) ** 2"),
    "sigmoid over its sum": own("sigmoid(s)", "sum + 0.001"),
    "softplus": own("max(s, 0) + log(1 + exp(-abs(s)))"),
    "dropout": "param p: f32 where 0 <= p < 1\nmask = causal\ndropout = p",
}
