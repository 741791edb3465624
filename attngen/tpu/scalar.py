"""What the scalar operations of a schedule compute, on 32-bit integers; predicates are 0 and 1.

Gives `OPERATIONS`, by name. An operation that is not here gives an unknown value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

_MASK = 0xFFFF_FFFF


def signed(value: int) -> int:
    """The 32-bit integer with these low bits."""
    value &= _MASK
    return value - (1 << 32) if value >> 31 else value


def _unsigned(value: int) -> int:
    return value & _MASK


def _comparisons() -> dict[str, Callable[[int, int], int]]:
    relations: dict[str, Callable[[int, int], bool]] = {
        "eq": lambda a, b: a == b,
        "ne": lambda a, b: a != b,
        "lt": lambda a, b: a < b,
        "le": lambda a, b: a <= b,
        "gt": lambda a, b: a > b,
        "ge": lambda a, b: a >= b,
    }

    def of_signed(relation: Callable[[int, int], bool]) -> Callable[[int, int], int]:
        return lambda a, b: int(relation(a, b))

    def of_unsigned(relation: Callable[[int, int], bool]) -> Callable[[int, int], int]:
        return lambda a, b: int(relation(_unsigned(a), _unsigned(b)))

    found: dict[str, Callable[[int, int], int]] = {}
    for name, relation in relations.items():
        found[f"scmp.{name}.s32.totalorder"] = of_signed(relation)
        found[f"scmp.{name}.u32.totalorder"] = of_unsigned(relation)
    return found


UNARY: Mapping[str, Callable[[int], int]] = {
    "smov": lambda a: a,
    "pmov": lambda a: a,
    "pneg": lambda a: int(not a),
    "int_to_ptr.vmem": lambda a: a,
    "int_to_ptr.hbm": lambda a: a,
    "int_to_ptr.smem": lambda a: a,
    "int_to_ptr.sflag": lambda a: a,
    "int_to_ptr.any": lambda a: a,
}

BINARY: Mapping[str, Callable[[int, int], int]] = {
    "sadd.s32": lambda a, b: signed(a + b),
    "ssub.s32": lambda a, b: signed(a - b),
    "smul.u32": lambda a, b: signed(a * b),
    "smul.s32": lambda a, b: signed(a * b),
    "sand.u32": lambda a, b: signed(a & b),
    "sor.u32": lambda a, b: signed(a | b),
    "sxor.u32": lambda a, b: signed(a ^ b),
    "sshll.u32": lambda a, b: signed(a << (b & 31)),
    "sshrl.u32": lambda a, b: signed(_unsigned(a) >> (b & 31)),
    "sshra.s32": lambda a, b: a >> (b & 31),
    "smin.s32": min,
    "smax.s32": max,
    "smin.u32": lambda a, b: signed(min(_unsigned(a), _unsigned(b))),
    "smax.u32": lambda a, b: signed(max(_unsigned(a), _unsigned(b))),
    "pand": lambda a, b: int(bool(a) and bool(b)),
    "por": lambda a, b: int(bool(a) or bool(b)),
    "pxor": lambda a, b: int(bool(a) != bool(b)),
    "pnand": lambda a, b: int(not (a and b)),
    "pnor": lambda a, b: int(not (a or b)),
    "scalar_lea.vmem": lambda a, b: a + b,
    "scalar_lea.hbm": lambda a, b: a + b,
    "scalar_lea.smem": lambda a, b: a + b,
    "scalar_lea.sflag": lambda a, b: a + b,
    **_comparisons(),
}

DECIDED: Mapping[str, tuple[int, int]] = {"pand": (0, 0), "por": (1, 1), "pnand": (0, 1), "pnor": (1, 0)}
"""(value of either operand, result that it alone decides), so that an unknown other one doesn't matter."""
