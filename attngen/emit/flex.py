"""FlexAttention's modifiers for a spec: the score and the mask as functions of one pair, for benchmarks beside it.

Takes an `Attention`, returns the source of a module whose `modifiers(scale, sizes, params)` returns score_mod and
mask_mod, each None where there is nothing to do, and whose `SCALED` says whether the score comes multiplied by the
scale. What does not differ from pair to pair is computed once, outside of both. What FlexAttention cannot express is
no part of them: `limit` names it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import assert_never

from attngen.emit.text.names import Names
from attngen.emit.text.precedence import Text, atom, infix
from attngen.emit.text.render import render
from attngen.emit.torch_shared import expressions as host_expressions
from attngen.errors import InternalError
from attngen.ir import walk
from attngen.ir.attention import Attention
from attngen.ir.build import index, literal, mul
from attngen.ir.nodes import INDICES, SIZES, Apply, Expr, Literal, Load, Op, Scalar, Symbol, Type
from attngen.plan.ints.facts import facts
from attngen.plan.ints.guards import access

_NAMES = "math torch modifiers SCALED scale sizes params score score_mod mask_mod b h q k hkv"
_RESERVED = frozenset(_NAMES.split())
_UNROLLED = 64
"""Elements of a list that `in` compares one by one."""
_SCALED = Symbol("score", Type.FLOAT)
_INFIX = {
    Op.ADD: ("+", 5), Op.SUB: ("-", 5), Op.MUL: ("*", 6), Op.DIV: ("/", 6), Op.FLOORDIV: ("//", 6), Op.MOD: ("%", 6),
    Op.BIT_AND: ("&", 4), Op.BIT_XOR: ("^", 3), Op.BIT_OR: ("|", 2),
    Op.LT: ("<", 1), Op.LE: ("<=", 1), Op.EQ: ("==", 1), Op.NE: ("!=", 1),
}  # fmt: skip
_CALLS = {
    Op.EXP: "torch.exp({})", Op.EXP2: "torch.exp2({})", Op.LOG: "torch.log({})", Op.LOG2: "torch.log2({})",
    Op.SQRT: "torch.sqrt({})", Op.RSQRT: "torch.rsqrt({})", Op.TANH: "torch.tanh({})", Op.SIN: "torch.sin({})",
    Op.COS: "torch.cos({})", Op.ERF: "torch.erf({})", Op.SIGMOID: "torch.sigmoid({})", Op.SIGN: "torch.sign({})",
    Op.ABS: "torch.abs({})", Op.NOT: "torch.logical_not({})", Op.TO_FLOAT: "({}).to(torch.float32)",
    Op.TO_INT: "({}).to(torch.int32)", Op.FLOOR: "torch.floor({}).to(torch.int32)",
    Op.SHIFT_RIGHT: "(({}) >> ({}))", Op.CEIL: "torch.ceil({}).to(torch.int32)", Op.POW: "torch.pow({}, {})",
}  # fmt: skip


def limit(attention: Attention) -> str:
    """Why FlexAttention cannot compute this; empty where it can."""
    n = attention.normalizer
    if n.name != "softmax" or n.extra is not None:
        return f"FlexAttention has softmax alone, without a sink; here the normalizer is {n.name}"
    if attention.dropout is not None:
        return "FlexAttention drops no weights"
    lists = {load.param for e in (attention.score, attention.mask) for load in walk.loads(e) if load.member is not None}
    long = (p for p in attention.params if p.name in lists and not _is_unrolled(p.shape[-1]))
    return next(
        (f"a modifier has no loops: {p.name}'s last axis must be a const, {_UNROLLED} at most" for p in long), ""
    )


def _is_unrolled(dim: Expr) -> bool:
    """Whether a list of this length is looked through without a loop."""
    return isinstance(dim, Literal) and dim.value <= _UNROLLED


def flex_source(attention: Attention) -> str:
    """The module's source."""
    score = walk.transform(attention.score, _scaled)
    scaled = not walk.reads(score, "qk", "scale")
    if not scaled:
        score = walk.substitute(attention.score, {index("qk"): _SCALED, Symbol("qk", Type.FLOAT): _SCALED})
    names = Names(_RESERVED | {*SIZES, *attention.sizes})
    writer = _Writer(attention, {p.name: names.fresh(p.name) for p in attention.params}, names)
    score_lines = () if score == _SCALED else writer.function(score, "score")
    mask_lines = () if attention.mask == literal(True) else writer.function(attention.mask, "q")
    return render(
        "flex/module.py.j2",
        {
            "name": attention.name,
            "scaled": scaled,
            "sizes": (*SIZES, *attention.sizes),
            "params": tuple(writer.params.items()),
            "outside": tuple(writer.outside),
            "score_lines": score_lines,
            "mask_lines": mask_lines,
        },
    )


def _scaled(e: Expr) -> Expr | None:
    """`qk * scale` as one symbol."""
    qk, scale = Symbol("qk", Type.FLOAT), Symbol("scale", Type.FLOAT)
    return _SCALED if e in (mul(qk, scale), mul(scale, qk)) else None


def _is_number(e: Expr) -> bool:
    """Whether `e` is the same for all pairs and no tensor: known before a modifier is called."""
    return not walk.loads(e) and not walk.reads(e, *INDICES, "qk", "score")


@dataclass
class _Writer:
    attention: Attention
    params: dict[str, str]
    names: Names
    outside: list[str] = field(default_factory=list[str])
    _numbers: dict[Expr, str] = field(default_factory=dict[Expr, str])

    def function(self, e: Expr, tensor: str) -> tuple[str, ...]:
        """The body of a modifier. One that depends on no pair is spread over the tensor of that name."""
        lines: list[str] = []
        bound: dict[Expr, str] = {}
        counts: dict[Expr, int] = {}
        for node in walk.nodes(e):
            for child in walk.children(node):
                counts[child] = counts.get(child, 0) + 1
        text = self._print(e, lines, bound, counts)[0]
        if _is_number(e):
            text = f"({tensor} >= 0) & {text}" if e.type is Type.BOOL else f"{tensor} * 0.0 + {text}"
        return (*lines, f"return {text}")

    def _print(self, e: Expr, lines: list[str], bound: dict[Expr, str], counts: dict[Expr, int]) -> Text:
        if e in bound:
            return atom(bound[e])
        if _is_number(e):
            return self._number(e)
        text = self._text(e, lines, bound, counts)
        if isinstance(e, Symbol) or counts.get(e, 0) < 2:
            return text
        name = bound[e] = self.names.fresh(e.name or "part")
        lines.append(f"{name} = {text[0]}")
        return atom(name)

    def _number(self, e: Expr) -> Text:
        if isinstance(e, Literal):
            if isinstance(e.value, float) and not math.isfinite(e.value):
                return ("math.inf", 9) if e.value > 0 else ("-math.inf", 7)
            return repr(e.value), (9 if e.value >= 0 else 7)
        if e not in self._numbers:
            known = {name: name for name in (*SIZES, "scale", *self.attention.sizes)} | self.params
            text = host_expressions.python(e, known)
            self._numbers[e] = text if text.isidentifier() else self.names.fresh(e.name or "number")
            if self._numbers[e] != text:
                self.outside.append(f"{self._numbers[e]} = {text}")
        return atom(self._numbers[e])

    def _text(self, e: Expr, lines: list[str], bound: dict[Expr, str], counts: dict[Expr, int]) -> Text:
        match e:
            case Literal() | Scalar():
                raise InternalError("a number is printed outside of the modifiers")
            case Symbol():
                return ("h // (Hq // Hkv)", 6) if e.id == "hkv" else atom(e.id)
            case Load():
                return self._load(e, [self._print(i, lines, bound, counts) for i in walk.children(e)], lines)
            case Apply():
                return self._apply(e, [self._print(a, lines, bound, counts) for a in e.args])
            case _:
                assert_never(e)

    def _load(self, e: Load, parts: list[Text], lines: list[str]) -> Text:
        """An element, which is 0 outside of the tensor, or whether one of a list equals a number."""
        name, param = self.params[e.param], self.attention.param(e.param)
        found = access(e, param, facts(self.attention))
        inside: list[str] = []
        at: list[str] = []
        for axis, (own, i, (text, _)) in enumerate(zip(found.axes, e.indices, parts, strict=False)):
            if (own.low or own.high) and not text.isidentifier():
                lines.append(f"{(at_name := self.names.fresh('at'))} = {text}")
                text = at_name
            inside += [f"({text} >= 0)"] if own.low else []
            inside += [f"({text} < {name}.shape[{axis}])"] if own.high else []
            clamped = (own.low or own.high) and not _is_number(i)
            at.append(f"torch.clamp({text}, 0, {name}.shape[{axis}] - 1)" if clamped else text)
        if e.member is not None:
            length, member = param.shape[-1], parts[-1][0]
            assert isinstance(length, Literal)  # or `limit` has refused
            equal = (f"({name}[{', '.join((*at, str(i)))}] == ({member}))" for i in range(int(length.value)))
            return (" & ".join((*inside, f"(({member}) >= 0)", "(" + " | ".join(equal) + ")")), 4)
        element = f"{name}[{', '.join(at)}]"
        if not inside:
            return atom(element)
        return atom(f"torch.where({' & '.join(inside)}, {element}, {'False' if e.type is Type.BOOL else 0})")

    def _apply(self, e: Apply, args: list[Text]) -> Text:
        texts = [a[0] for a in args]
        if e.op in _INFIX:
            sign, strength = _INFIX[e.op]
            return infix(sign, strength, args[0], args[1], chain=strength == 1)
        if e.op in _CALLS:
            return atom(_CALLS[e.op].format(*texts))
        match e.op:
            case Op.MIN | Op.MAX:
                numbers = [_is_number(a) for a in e.args]
                if not any(numbers):
                    return atom(f"torch.{'minimum' if e.op is Op.MIN else 'maximum'}({', '.join(texts)})")
                number, tensor = (texts[0], texts[1]) if numbers[0] else (texts[1], texts[0])
                return atom(f"torch.clamp({tensor}, {'max' if e.op is Op.MIN else 'min'}={number})")
            case Op.SELECT:
                if _is_number(e.args[0]):
                    return atom(f"({texts[1]} if {texts[0]} else {texts[2]})")
                return atom(f"torch.where({', '.join(texts)})")
            case Op.NEG:
                return (f"-{texts[0]}" if args[0][1] >= 7 else f"-({texts[0]})"), 7
            case Op.AND | Op.OR:
                sign, strength = ("&", 4) if e.op is Op.AND else ("|", 2)
                return f" {sign} ".join(t if s > 4 else f"({t})" for t, s in args), strength
            case _:
                raise InternalError(f"{e.op} is not printed for FlexAttention")
