"""What `check=True` is held against, on arrays of JAX."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from attngen.emit.jax_shared.expressions import Printer
from attngen.emit.text.facts import FactsView, Target, about_elements, facts_view
from attngen.emit.text.params import SMALL_INTS, ParamView
from attngen.ir.nodes import SIZES, Expr, Load, Scalar, Storage, Symbol
from attngen.ir.walk import children, symbols
from attngen.plan.kernel import KernelPlan


def jax_facts(plan: KernelPlan, views: tuple[ParamView, ...], sizes: Mapping[str, str]) -> FactsView:
    """`sizes` are the names that the host code has for sizes, all of them fields of `size`."""
    names = {**{s: f"size.{s}" for s in SIZES}, **{s: f"size.{name}" for s, name in sizes.items()}}
    names |= {v.keyword: v.name for v in views} | {"b": "at_b", "h": "at_h", "hkv": "(at_h // (size.Hq // size.Hkv))"}
    read = {name for fact in about_elements(plan) for name in symbols(fact)}
    lines: list[str] = []
    if {"b", "h", "hkv"} & read:
        lines += ["at_b, at_h = jnp.arange(size.B)[:, None], jnp.arange(size.Hq)[None, :]"]
    small = [v.name for v, p in zip(views, plan.attention.params, strict=True) if p.storage in SMALL_INTS]
    lines += [f"{name} = jnp.asarray({name}, jnp.int32)" for name in small]
    casts = {Storage.F16: ".astype(jnp.float32)", Storage.BF16: ".astype(jnp.float32)"}
    target = Target(
        partial(_jax_text, plan),
        lambda name, storage: f"jnp.asarray({name}){casts.get(storage, '')}",
        "(size.B, size.Hq)",
    )
    return facts_view(plan, views, names, lines, target, traced=True)


def _jax_text(plan: KernelPlan, e: Expr, names: Mapping[str, str]) -> str:
    def leaf(e: Symbol | Scalar | Load) -> str:
        match e:
            case Symbol():
                return names[e.id]
            case Scalar():
                return names[e.param]
            case Load():
                by = "_element" if e.member is None else "_listed"
                return f"{by}({names[e.param]}, {', '.join(map(printer.text, children(e)))})"

    printer = Printer(replace(plan.choices, wide=()), leaf)
    return printer.text(e)
