"""An attention whose q, k and v are 8-bit floats, each divided by a factor for a batch and KV head.

Takes the attention of the numbers that they stand for; returns one over the 8-bit floats themselves, whose params the
factors are:

    q . k = q_descale k_descale (q8 . k8)        sum_k p v = v_descale (sum_k p v8)

So analysis, planning, proof and every kernel are those of any other spec. No factor learns: gradients are those of the
numbers that q, k and v stand for.
"""

from __future__ import annotations

from dataclasses import replace

from attngen.errors import Diagnostic, SpecError
from attngen.ir.attention import Attention, Param
from attngen.ir.build import apply, index, mul, real
from attngen.ir.nodes import Apply, Expr, Load, Op, Scalar, Storage, Symbol, Type
from attngen.ir.walk import substitute

DESCALES = ("q_descale", "k_descale", "v_descale")
_RESULT = "out_dtype"
"""The argument that names the dtype of results."""
_SHAPE = (index("B"), index("Hkv"))
_OWN = (index("b"), index("hkv"))
_QK, _SCALE = Symbol("qk", Type.FLOAT), Symbol("scale", Type.FLOAT)


def narrowed(attention: Attention) -> Attention:
    """Raises `SpecError` where a name of the spec is one of `DESCALES`, or a param has that of another argument."""
    taken = {p.name: p.span for p in attention.params}
    clash = next((name for name in DESCALES if name in taken or name in attention.sizes), None)
    clash = _RESULT if clash is None and _RESULT in taken else clash
    if clash is not None:
        said = f"`{clash}` is an argument of kernels of 8-bit floats"
        raise SpecError(
            [Diagnostic("reserved-name", said, taken.get(clash, attention.score.span), "give it another name")]
        )
    q, k, v = (Load(name, _OWN, Type.FLOAT) for name in DESCALES)
    factor = mul(q, k)
    # A scale that multiplies q . k stays beside it: then the host can take its sign.
    scaled = [Apply(Op.MUL, pair, Type.FLOAT) for pair in ((_QK, _SCALE), (_SCALE, _QK))]
    factored: dict[Expr, Expr] = {e: mul(e, factor) for e in (*scaled, _QK)}
    return replace(
        attention,
        params=(*attention.params, *(_param(name) for name in DESCALES)),
        score=substitute(attention.score, factored),
        value_scale=v,
    )


def _param(name: str) -> Param:
    positive = apply(Op.LT, real(0.0), Scalar(name, Type.FLOAT))
    return Param(name, Storage.F32, _SHAPE, positive, fixed=True)
