"""A warp that executes PTX: as much of it as the forward kernel's weights are written in.

Takes the text of an `inline_asm_elementwise`, the operands that are given, by number, an array of 32 lanes each, and
gives all operands back. A branch that not all lanes take alike is an error, since those here are `bra.uni`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import ml_dtypes
import numpy as np

LANES = 32
Register = np.ndarray
_F32: Mapping[str, Callable[..., Register]] = {
    "mov.f32": lambda a: a,
    "neg.f32": lambda a: -a,
    "add.f32": lambda a, b: a + b,
    "sub.f32": lambda a, b: a - b,
    "mul.f32": lambda a, b: a * b,
    "max.f32": np.fmax,
    "min.f32": np.fmin,
    "rcp.approx.ftz.f32": lambda a: 1.0 / _flushed(a),
    "fma.rn.f32": lambda a, b, c: (a.astype(np.float64) * b + c).astype(np.float32),
    "ex2.approx.ftz.f32": lambda a: _flushed(np.exp2(a, dtype=np.float32)),
    "selp.f32": lambda a, b, p: np.where(p, a, b),
    "cvt.rn.bf16x2.f32": lambda high, low: _pair(high, low, ml_dtypes.bfloat16),
    "cvt.rn.f16x2.f32": lambda high, low: _pair(high, low, np.float16),
    "cvt.rn.satfinite.e4m3x2.f32": lambda high, low: _bytes(high) << 8 | _bytes(low),
    "mov.b32": lambda low, high: high << 16 | low,
    "setp.eq.f32": lambda a, b: a == b,
    "setp.ne.f32": lambda a, b: (a < b) | (a > b),
    "setp.gt.f32": lambda a, b: a > b,
    "setp.gtu.f32": lambda a, b: ~(a <= b),
    "setp.ne.u32": lambda a, b: a != b,
    "and.pred": np.logical_and,
    "or.pred": np.logical_or,
    "not.pred": np.logical_not,
    "vote.sync.all.pred": lambda a, mask: np.full(LANES, a.all()),
    "vote.sync.any.pred": lambda a, mask: np.full(LANES, a.any()),
    "shfl.sync.bfly.b32": lambda a, lanes, clamp, mask: a[np.arange(LANES) ^ int(lanes[0])],
}


def _flushed(x: Register) -> Register:
    return np.where(np.abs(x) < np.finfo(np.float32).tiny, np.float32(0.0), x)


def _pair(high: Register, low: Register, kind: type) -> Register:
    bits = [x.astype(kind).view(np.uint16).astype(np.uint32) for x in (high, low)]
    return bits[0] << 16 | bits[1]


def _bytes(x: Register) -> Register:
    return np.clip(x, -448.0, 448.0).astype(ml_dtypes.float8_e4m3fn).view(np.uint8).astype(np.uint32)


def _value(word: str, registers: Mapping[str, Register]) -> Register:
    if word.startswith("0f"):
        return np.full(LANES, np.uint32(int(word[2:], 16)).view(np.float32))
    if re.fullmatch(r"\d+\.\d+(e\d+)?", word):
        return np.full(LANES, float(word), np.float32)
    if re.fullmatch(r"-?\d+", word):
        return np.full(LANES, int(word))
    return registers[word]


def run(text: str, given: Mapping[int, Register]) -> dict[int, Register]:
    """All operands after `text`; KeyError: something is read that nobody wrote."""
    code = [part.strip() for part in re.sub(r"(\w+):", r"\1:;", text.strip().strip("{}")).split(";")]
    code = [part for part in code if part and not part.startswith(".reg")]
    labels = {part[:-1]: place for place, part in enumerate(code) if part.endswith(":")}
    registers = {f"${number}": value for number, value in given.items()}
    place, steps = 0, 0
    with np.errstate(all="ignore"):
        while place < len(code):
            steps += 1
            assert steps < 10 * len(code), "it never ends"
            part = code[place]
            place += 1
            if part.endswith(":"):
                continue
            guard = re.match(r"@(!?)(\w+)\s+", part)
            taken = True
            if guard is not None:
                part = part[guard.end() :]
                lanes = registers[guard[2]] != bool(guard[1])
                assert lanes.all() or not lanes.any(), f"lanes part at {part}"
                taken = bool(lanes[0])
            operation, _, rest = part.partition(" ")
            words = [word.strip(" {}") for word in rest.split(",")]
            if operation == "bra.uni":
                place = labels[words[0]] if taken else place
            else:
                assert guard is None
                registers[words[0]] = _F32[operation](*(_value(word, registers) for word in words[1:]))
    return {int(name[1:]): value for name, value in registers.items() if name.startswith("$")}
