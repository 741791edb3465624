"""The public function of a module that imports JAX: its arguments, checks, conversions and docs.

Takes the plan, the params and what the target accepts, returns the view of `templates/jax/door.py.j2`, which the Pallas
and the jax targets share.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from attngen.emit.jax_shared import checks
from attngen.emit.jax_shared.facts import jax_facts
from attngen.emit.jax_shared.operands import Leaves
from attngen.emit.text.facts import FactsView
from attngen.emit.text.params import ParamView
from attngen.ir.build import apply
from attngen.ir.nodes import Op
from attngen.ir.walk import reads
from attngen.plan.kernel import KernelPlan
from attngen.plan.score.weights import Weights
from attngen.plan.tiles import tpu_limits

PAIRS_AT = (
    "at_b = jnp.arange(B).reshape(-1, 1, 1, 1)",
    "at_h = jnp.arange(Hq).reshape(1, -1, 1, 1)",
    "at_q = jnp.arange(Sq).reshape(1, 1, -1, 1)",
    "at_k = jnp.arange(Sk).reshape(1, 1, 1, -1)",
    "at_distance = (Sq - 1 - jnp.arange(Sq + Sk - 1)).reshape(1, 1, 1, -1)",
)
"""Lines that bind the positions along each axis, for expressions on the host."""
PRODUCTS = (
    "# An index reads the products themselves: all of them at once.",
    'qk = jnp.einsum("bqhd,bkhd->bhqk", q, jnp.repeat(k, Hq // max(Hkv, 1), 2), precision=PRECISION, '
    "preferred_element_type=jnp.float32)",
)
"""Lines that bind q . k for every pair, where an element of a param is chosen by it."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """What a target takes, and how it runs. `dtypes` of q, k and v, by their names in `jnp`; `why` says why no other.

    `no_dims` is the condition, in Python, under which head dims D and Dv are refused, `dims_text` what they must be.
    """

    dtypes: tuple[str, ...]
    why: str
    no_dims: str
    dims_text: str
    action: str  # what the checks come before
    scale_note: str  # what a positive scale is for
    attend_lines: tuple[str, ...]  # bind out and lse


PALLAS = Accepted(
    dtypes=tpu_limits.DTYPES,
    why=", which TPUs multiply",
    no_dims=f"not (0 < D <= {tpu_limits.HEAD_DIM} and 0 < Dv <= {tpu_limits.HEAD_DIM})",
    dims_text=f"from 1 to {tpu_limits.HEAD_DIM}",
    action="launched",
    scale_note="The kernels take a positive scale",
    attend_lines=(
        "config = _configured(size, q.dtype, floats, data, return_lse)._replace(spread=spread)",
        "out, lse = attend(config, q, k, v, floats, data)",
    ),
)
JAX = Accepted(
    dtypes=("float16", "bfloat16", "float32"),
    why="",
    no_dims="D == 0 or Dv == 0",
    dims_text="1 at the least",
    action="computed",
    scale_note="A positive scale is folded into the exponent",
    attend_lines=("out, lse = attend(size, q, k, v, floats, data)",),
)


@dataclass(frozen=True, slots=True)
class PublicParam:
    keyword: str
    annotation: str


@dataclass(frozen=True, slots=True)
class DoorView:
    params: tuple[PublicParam, ...]
    plain_params: str
    arguments: str  # pairs of a name and its value
    public_arguments: str
    check_lines: tuple[str, ...]
    convert_lines: tuple[str, ...]
    param_docs: tuple[str, ...]
    call_positions: tuple[str, ...]
    keeps: str  # which keys a condition on the key alone leaves, as an array of four axes; empty where it leaves all
    lse_of_no_key: str  # on four axes, or one number
    signs_scale: bool
    accepted: Accepted
    dtypes: str  # of q, k and v, as a Python tuple
    dtype_words: str
    facts: FactsView


def chosen_by_products(plan: KernelPlan) -> bool:
    """Whether some index reads q . k, which is known before the kernels only if it is computed there, too."""
    return any(reads(a.load, "qk") for a in plan.choices.accesses)


def door(
    plan: KernelPlan,
    params: tuple[ParamView, ...],
    sizes: Mapping[str, str],
    leaves: Leaves,
    accepted: Accepted,
) -> DoorView:
    """`leaves` knows the operands by their names."""
    given = plan.attention.params
    *most, last = accepted.dtypes
    return DoorView(
        params=tuple(PublicParam(p.name, checks.annotation(p)) for p in given),
        plain_params="".join(f", {p.name}" for p in params),
        arguments=_named({**{x: x for x in "qkv"}, **{p.keyword: p.name for p in params}, "scale": "scale"}),
        public_arguments="".join(f", {p.keyword}" for p in params),
        check_lines=checks.check_lines(plan, params, sizes),
        convert_lines=checks.convert_lines(given, params, sizes),
        param_docs=tuple(checks.doc(p) for p in given),
        call_positions=(*PAIRS_AT, *(PRODUCTS if chosen_by_products(plan) else ())),
        keeps="" if plan.keeps_key is None else leaves.printer().text(plan.keeps_key),
        lse_of_no_key=_lse_of_no_key(plan.weights, leaves),
        signs_scale=plan.facts.scale_positive,
        accepted=accepted,
        dtypes=f"({', '.join(f'jnp.{d}' for d in accepted.dtypes)})",
        dtype_words=f"{', '.join(most)} or {last}",
        facts=jax_facts(plan, params, sizes),
    )


def _named(arguments: Mapping[str, str]) -> str:
    return ", ".join(f'("{keyword}", {name})' for keyword, name in arguments.items())


def _lse_of_no_key(w: Weights, leaves: Leaves) -> str:
    """The logarithm of the denominator of an empty sum."""
    if not w.sums:
        return "0.0"
    log = w.log_extra or (None if w.extra is None else apply(Op.LOG, w.extra))
    return "-jnp.inf" if log is None else leaves.printer().text(log)
