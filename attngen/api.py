"""The Python door, and the one place where the stages are chained: text to tree to IR to plan to source to kernel.

Takes specs and options, returns `Kernel`s, and the text of any stage in between. Leaves every decision to the stages.
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Collection, Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from attngen import files, targets
from attngen.chain import callable_spec, plan, prove
from attngen.consts import const
from attngen.errors import NOWHERE, Refuted, Source, SpecError, SpecWarning, Unproved, UsageError
from attngen.ir.attention import Attention
from attngen.kernel import Kernel
from attngen.runtime import forked
from attngen.vocabulary import (
    FILE_DTYPES,
    GEOMETRIES,
    NARROW,
    PRECISIONS,
    SOURCE_ARCHITECTURES,
    STAGES,
    Const,
    Precision,
)

if TYPE_CHECKING:
    from attngen.aot.compile import Artifact
    from attngen.bench.run import Subject
    from attngen.cost.model import Cost
    from attngen.emit import Options, Tuned, TunedGpu
    from attngen.plan import KernelPlan
    from attngen.prove.budget.work import Budget
    from attngen.prove.proof import Proof
    from attngen.prove.verdict import Obligation
    from attngen.tpu.compile import Compiled


def options(
    target: str = "triton",
    precision: Precision = "ieee",
    tile: tuple[int, int] | None = None,
    arch: str = "auto",
    tuned: tuple[Tuned, ...] | tuple[TunedGpu, ...] = (),
    head_dim: int | tuple[int, int] | None = None,
    dtype: str | None = None,
    forward: bool = False,
    geometry: Collection[str] = ("dense",),
) -> Options:
    """What a caller chooses beside the spec, checked (see `compile`). `tuned`: what `tune.keys` found in a tuning
    (`tpu_tiles`, `gpu_tiles`)."""
    from attngen.emit import Options, Tuned, TunedGpu

    own = targets.named(target)
    if precision not in PRECISIONS:
        raise UsageError(f"no precision {precision!r}; there are {', '.join(PRECISIONS)}")
    pair = isinstance(cast(Any, tile), tuple | list) and len(cast(Any, tile)) == 2
    if tile is not None and not (pair and all(_is_tile_size(size) for size in tile)):
        raise UsageError(f"tile {tile!r} must be two powers of two from 16 to 512: (query rows, key columns)")
    if arch not in SOURCE_ARCHITECTURES:
        raise UsageError(f"no architecture {arch!r}; there are {', '.join(SOURCE_ARCHITECTURES)}")
    dims = (head_dim, head_dim) if isinstance(head_dim, int) else head_dim
    pair = isinstance(cast(Any, dims), tuple | list) and len(cast(Any, dims)) == 2
    if dims is not None and not (pair and all(type(d) is int and 0 < d <= 256 for d in dims)):
        raise UsageError(f"head_dim {head_dim!r} must be an int from 1 to 256, or two: (of q and k, of v)")
    if dtype is not None and dtype not in FILE_DTYPES:
        raise UsageError(f"no dtype {dtype!r}; there are {', '.join(FILE_DTYPES)}")
    _flag("forward", forward)
    narrowing = {"arch": arch != "auto", "head_dim": dims, "dtype": dtype, "forward": forward}
    if not own.for_chips and any(narrowing.values()):
        named = " and ".join(f"`{name}=`" for name, given in narrowing.items() if given)
        raise UsageError(f"{named} can be chosen for target triton only, not for {target}")
    if precision not in own.precisions:
        raise UsageError(
            f"`precision={precision}` is not for target {target}: torch.backends says how torch multiplies"
        )
    unknown = next((kind for kind in _names("geometry", geometry) if kind not in GEOMETRIES), None)
    if unknown is not None:
        raise UsageError(f"no geometry {unknown!r}; there are {', '.join(GEOMETRIES)}")
    if not set(geometry) <= {*own.geometries}:
        raise UsageError(f"a {target} file has the geometry dense alone; files of target triton have the others")
    if dtype == NARROW:
        _check_narrow(arch, dims, tile, geometry, tuned=bool(tuned))
    tpu = tuple(t for t in tuned if isinstance(t, Tuned))
    gpu = tuple(t for t in tuned if isinstance(t, TunedGpu))
    if tuned and (own.tuned is None or not all(isinstance(t, own.tuned()) for t in tuned) or tile is not None):
        raise UsageError("`tiles=` goes with the target that they were tuned for, and without `tile=`")
    return Options(
        target=target,
        precision=precision,
        tile=tile,
        arch=arch,
        head_dim=dims,
        dtype=dtype,
        forward=forward or dtype == NARROW,
        geometry=tuple(kind for kind in GEOMETRIES if kind in ("dense", *geometry)),
        tuned=tpu,
        tuned_gpu=gpu,
    )


def _check_narrow(
    arch: str,
    head_dim: tuple[int, int] | None,
    tile: tuple[int, int] | None,
    geometry: Collection[str],
    *,
    tuned: bool,
) -> None:
    """Raises `UsageError` where options of 8-bit floats don't go together."""
    from attngen.plan.numerics import beyond_narrow

    if not {*geometry} <= {"dense"}:
        raise UsageError("kernels of 8-bit floats take dense tensors alone: leave out `geometry=`, or `dtype=fp8`")
    if tuned:
        raise UsageError("tiles were tuned for elements of 16 or 32 bits: leave out `tiles=`, or `dtype=fp8`")
    why = beyond_narrow(arch, head_dim, tile)
    if why is not None:
        raise UsageError(f"{why}, or leave out `dtype=fp8`")


def _names(argument: str, given: Any) -> Collection[str]:
    """Several names. One alone would be taken for its letters."""
    if isinstance(given, str) or not isinstance(given, Collection):
        raise UsageError(f"{argument} {given!r} must be a list or a tuple of names: [{given!r}]")
    return cast(Collection[str], given)


def _flag(argument: str, given: Any) -> None:
    if not isinstance(given, bool):
        raise UsageError(f"{argument} must be True or False, not {given!r}")


def _is_tile_size(size: Any) -> bool:
    return isinstance(size, int) and 16 <= size <= 512 and size & (size - 1) == 0


# ---------------------------------------------------------------- the chain


def analyse(
    source: Source,
    consts: Mapping[str, Const] | None = None,
    tile: tuple[int, int] | None = None,
    dtype: str | None = None,
) -> Attention:
    """The closed, typed attention that a spec defines, `consts` and `tile` in the place of its own; with `dtype` fp8
    that of 8-bit floats, whose factors are params. Raises `SpecError`.

    No later stage asks whose tile it is: what is planned and proved is what is emitted.
    """
    from attngen.analyse import analyse as analyse_module
    from attngen.syntax.parser import parse

    found = analyse_module(parse(source), source, dict(consts or {}))
    found = found if tile is None else replace(found, tile=tile, tile_span=NOWHERE)
    if dtype != NARROW:
        return found
    from attngen.ir.narrow import narrowed

    try:
        return narrowed(found)
    except SpecError as error:
        raise error.quoting(source) from None


def checked_plan(
    source: Source,
    consts: Mapping[str, Const] | None = None,
    target: str = "triton",
    tile: tuple[int, int] | None = None,
    dtype: str | None = None,
) -> tuple[Attention, KernelPlan]:
    """A spec and its plan. Raises `SpecError` with the line quoted, `Refuted` where what cannot be planned is wrong."""
    spec = analyse(source, consts, tile, dtype)
    try:
        return spec, plan(spec, target)
    except SpecError as error:  # the planner sees no text: the line is quoted here
        from attngen.prove.budget.work import Work
        from attngen.prove.obligations.streaming import laws
        from attngen.prove.report import refutations

        wrong = refutations(laws(spec, Work()), source)
        if wrong:
            raise Refuted(wrong) from None
        raise error.quoting(source) from None


def check(
    source: Source,
    consts: Mapping[str, Const] | None = None,
    *,
    target: str = "triton",
    tile: tuple[int, int] | None = None,
    budget: Budget | None = None,
) -> Proof:
    """The proof of what `compile` would emit, whatever its verdicts. Raises `SpecError` for a spec that is wrong."""
    return prove(*checked_plan(source, consts, target, tile), budget)[0]


def explain(spec: Attention, emitted: KernelPlan, proof: Proof, form: Literal["text", "md", "tex"]) -> str:
    """The derivation of the plan that `prove` gave, each step with what shows it: `text`, `md` or `tex`."""
    from attngen.explain import ladder, render

    return render(ladder(spec, emitted), form, proof.shown)


def build(
    source: Source,
    options: Options,
    consts: Mapping[str, Const] | None = None,
    allow_unproved: Collection[str] = (),
    *,
    fork: bool = False,
    strict: bool = False,
    effort: float = 1.0,
) -> Kernel:
    """The whole chain for one spec, short of loading it. Raises `Refuted` or `Unproved` where the proof fails.

    A mask that allows no pair, a param that nothing reads and a score that is -inf by position are a `SpecWarning`;
    with `strict` they are `Refuted`.
    `effort`: see `Budget`.
    With `fork` a copy of this process writes the file while this one proves, in the hope that all will be proved.
    """
    from attngen.piece_file import written
    from attngen.prove.budget.work import Budget
    from attngen.prove.verdict import ALL_PROVED

    allowed = _obligations(allow_unproved)
    spec, planned = checked_plan(source, consts, options.target, options.tile, options.dtype)

    def written_out(emitted: KernelPlan, proved: tuple[str, ...]) -> str:
        return written(spec, emitted, source.text, options, proved)

    def hoped_for() -> str:
        return written_out(planned, ALL_PROVED)

    with forked.begun(hoped_for) if fork else nullcontext(lambda: None) as hoped:
        proof, emitted = prove(spec, planned, Budget(effort))
        proof = _accepted(spec, replace(proof, allowed=allowed), source, strict)
        text = hoped() if emitted is planned and proof.summary() == ALL_PROVED else None
    if text is None:
        text = written_out(emitted, proof.summary())
    return Kernel(
        spec=callable_spec(spec, emitted),
        plan=emitted,
        source=text,
        target=options.target,
        proof=proof,
        made=(source.text, options),
    )


def require(proof: Proof, source: Source) -> None:
    """Raises `Refuted` or `Unproved` where the plan may not be emitted."""
    from attngen.prove.report import diagnostics

    if proof.refuted:
        raise Refuted(diagnostics(proof, source))
    if proof.refused:
        raise Unproved(diagnostics(proof, source))


def _obligations(allow_unproved: Collection[str]) -> tuple[Obligation, ...]:
    """Those that may stay unknown. Raises `UsageError` for a name that none has."""
    from attngen.prove.verdict import Obligation

    names = [o.value for o in Obligation]
    for name in _names("allow_unproved", allow_unproved):
        if name not in names:
            raise UsageError(f"no obligation {name!r}; there are {', '.join(names)}")
    return tuple(o for o in Obligation if o.value in allow_unproved)


def _accepted(spec: Attention, proof: Proof, source: Source, strict: bool) -> Proof:
    """The proof, which says what the user allows. Raises `Refuted` or `Unproved` where that is not enough."""
    from attngen.analyse.doubts import doubts
    from attngen.prove.report import warnings as unexpected

    require(proof, source)
    doubtful = [*doubts(spec, source), *unexpected(proof, source)]
    if doubtful and strict:
        raise Refuted(doubtful)
    for found in doubtful:
        warnings.warn(SpecWarning(found.line("warning")), stacklevel=4)
    return proof


def package(
    source: Source,
    options: Options,
    consts: Mapping[str, Const] | None = None,
    allow_unproved: Collection[str] = (),
    *,
    strict: bool = False,
    effort: float = 1.0,
) -> dict[str, str]:
    """The files of a package, by their paths in it: the spec's own part, and the runtime that all own parts share.

    Raises `UsageError` for a target that has no such runtime, else as `build` does.
    """
    from attngen.emit.text.units import printed
    from attngen.piece_file import own_part

    runtime = targets.named(options.target).runtime
    if runtime is None:
        able = targets.listed([target for target in targets.TARGETS.values() if target.runtime is not None])
        raise UsageError(f"-o with a directory is for target {able}, whose files share a runtime: name a file")
    kernel = build(source, options, consts, allow_unproved, strict=strict, effort=effort)
    spec, _ = checked_plan(source, consts, options.target, options.tile, options.dtype)
    proved = kernel.proof.summary() if kernel.proof is not None else ()
    own = printed(own_part(spec, kernel.plan, source.text, options, proved))
    return {f"{kernel.name}.py": own, **{f"_attngen/{name}": text for name, text in runtime().items()}}


def stage(
    kind: str,
    source: Source,
    options: Options,
    consts: Mapping[str, Const] | None = None,
    allow_unproved: Collection[str] = (),
    *,
    fork: bool = False,
    strict: bool = False,
    effort: float = 1.0,
) -> str:
    """The stable text of one stage: `ast`, `ir`, `plan`, `proof` or `source`. The last three options: see `build`."""
    match kind:
        case "ast":
            from attngen.syntax.dump import dump
            from attngen.syntax.parser import parse

            return dump(parse(source))
        case "ir":
            from attngen.ir import printing

            return printing.attention(analyse(source, consts, options.tile, options.dtype))
        case "plan":
            from attngen.plan.printing import plan_text

            return plan_text(checked_plan(source, consts, options.target, options.tile, options.dtype)[1])
        case "proof":
            from attngen.prove.budget.work import Budget
            from attngen.prove.report import proof_text

            found = check(source, consts, target=options.target, tile=options.tile, budget=Budget(effort))
            return proof_text(found)
        case "source":
            return build(source, options, consts, allow_unproved, fork=fork, strict=strict, effort=effort).source
        case _:
            raise UsageError(f"no stage {kind!r}; there are {', '.join(STAGES)}")


def binaries(kernel: Kernel, kind: str, *, arch: str, dtype: str, head_dim: tuple[int, int]) -> list[Artifact]:
    """Every kernel of the generated file, through the real compiler, for a chip that needn't be there."""
    from attngen.aot.compile import compile_kernels

    return compile_kernels(kernel.source, kernel.spec, arch=arch, dtype=dtype, head_dim=head_dim, kind=kind)


def tpu_compile(
    kernel: Kernel,
    *,
    chip: str,
    dtype: str,
    sizes: Mapping[str, int],
    schedule: bool = True,
    mosaic: bool = False,
) -> Compiled:
    """What the TPU's own compiler makes of a Pallas kernel and its gradients, for a chip that needn't be there.

    `sizes` has every size of the spec. Raises `UsageError` with the compiler's reason where it refuses.
    """
    from attngen.tpu.compile import Refused, compile_for
    from attngen.tpu.programs import request_for

    request = request_for(
        kernel.source, kernel.spec, chip=chip, dtype=dtype, sizes=sizes, schedule=schedule, mosaic=mosaic
    )
    outcome = compile_for(request)
    if isinstance(outcome, Refused):
        raise UsageError(f"the TPU's compiler refuses {kernel.name} for {chip}: {outcome.reason()}")
    return outcome


def cost(
    planned: KernelPlan,
    chip: str,
    dtype: Literal["fp16", "bf16", "fp32"],
    sizes: Mapping[str, int],
    params: Mapping[str, Any],
    tile: tuple[int, int] | None = None,
) -> Cost:
    """What a plan costs on a chip: see `attngen.cost`. `params` has a value for every param that the mask reads."""
    from attngen.cost.chips import chip as named
    from attngen.cost.model import cost as cost_of

    return cost_of(planned, named(chip), dtype, sizes, params, tile)


def bench_subject(source: Source, consts: Mapping[str, Const] | None = None) -> Subject:
    """A spec's generated function, and what it is checked against and measured beside, loaded. Needs torch."""
    from attngen.bench.run import Subject
    from attngen.emit.flex import flex_source, limit
    from attngen.ir.walk import reads

    kernel, plain = (build(source, options(target), consts) for target in ("triton", "torch"))
    spec = kernel.spec
    modifiers = targets.named("torch").load(flex_source(spec), f"{spec.name}_modifiers")
    return Subject(
        name=spec.name,
        attend=kernel.function,
        truth=plain.function,
        modifiers=modifiers.modifiers,
        scaled=modifiers.SCALED,
        mask_reads=(reads(spec.mask, "b"), reads(spec.mask, "h", "hkv")),
        flex_limit=limit(spec),
        plain=plain_mask(spec),
        dropout=spec.dropout is not None,
    )


def plain_mask(spec: Attention) -> Literal["causal", "full", ""]:
    """The mask of a spec that is nothing but softmax of the scaled product under it; empty for any other spec."""
    for name, text in (("causal", "mask = causal"), ("full", "mask = true")):
        other = analyse(Source(f"attention plain\n{text}\n"))
        if (other.score, other.mask, other.normalizer) == (spec.score, spec.mask, spec.normalizer) and not spec.dropout:
            return cast(Literal["causal", "full"], name)
    return ""


def format_source(source: Source) -> str:
    """A spec in the formatter's layout. Raises `SpecError`."""
    from attngen.syntax.formatter import format_text

    return format_text(source)


# ---------------------------------------------------------------- the door


def compile(
    spec: str | os.PathLike[str],
    /,
    target: str = "triton",
    *,
    tile: tuple[int, int] | None = None,
    precision: Precision = "ieee",
    arch: str = "auto",
    head_dim: int | tuple[int, int] | None = None,
    dtype: str | None = None,
    forward: bool = False,
    geometry: Collection[str] = ("dense",),
    tiles: str | os.PathLike[str] | None = None,
    shape: Mapping[str, int] | None = None,
    consts: Mapping[str, Const] | None = None,
    allow_unproved: Collection[str] = (),
    strict: bool = False,
    effort: float = 1.0,
    **const_overrides: Const,
) -> Kernel:
    """Compile a spec, given as a path or as its text (which has a newline in it, or starts with `attention `).

    Keyword arguments override the spec's consts, with numbers of Python or NumPy, or arrays of one number without axes;
    a const that is called as one of these here goes into `consts`.
    `tile` is (query rows, key columns), `precision` that of fp32 products: "ieee" or "tf32".

    The next four narrow a file of target triton, which then refuses calls that it is not for. `arch`: "auto" holds
    every chip's tile sizes and own kernels, and the function picks by the card; a chip's name, such as "sm_90", holds
    that chip's alone; "portable" holds every chip's tile sizes and the kernels that run on all of them. `head_dim`: of
    q and k and of v, one int or two. `dtype`: "fp16", "bf16" or "fp32". `forward`: without a backward pass.

    `geometry`: which functions it holds, for target triton: "dense" always, "lengths" for sequences that are a part of
    a batch row, "packed" for sequences that follow one another, "pieces" for stretches of a longer sequence; a `Kernel`
    compiles a missing one at its first call.

    `tiles` is a file that `attngen tune` wrote, `shape` sizes that say which of its shapes is meant, where there are
    several.

    Every obligation of the plan is proved first: what is false raises `Refuted`, with a counterexample, and what is not
    shown `Unproved`, unless `allow_unproved` names the obligation (never `Refuted`). `effort` multiplies the work that
    each obligation may take; what needs more is not shown. A mask that allows no pair, whatever the sizes and params,
    a param that nothing reads and a score that is -inf by position are a `SpecWarning`; with `strict` they are
    `Refuted`.

    Raises `SpecError` for a wrong spec, `UsageError` for wrong arguments. No device is touched before the first call.
    """
    if not isinstance(cast(Any, spec), str | os.PathLike):
        raise UsageError(f"a spec is a path or its text, not {type(spec).__name__}")
    if isinstance(spec, str) and not spec.strip():
        raise UsageError("the spec is empty: give a path, or its text")
    if consts is not None and not isinstance(cast(Any, consts), Mapping):
        raise UsageError(f"consts must be a dict of numbers by name, not {type(consts).__name__}")
    if tiles is not None and not isinstance(cast(Any, tiles), str | os.PathLike):
        raise UsageError(f"tiles must be the path of a file that `attngen tune` wrote, not {type(tiles).__name__}")
    twice = sorted(set(consts or {}) & set(const_overrides))
    if twice:
        raise UsageError(f"const {twice[0]!r} is given twice")
    given = {**(consts or {}), **const_overrides}
    for name in given:
        if not isinstance(cast(Any, name), str):
            raise UsageError(f"consts must be a dict of numbers by name, and {name!r} is no name")
    overrides = {name: const(name, value) for name, value in given.items()}
    if shape is not None and (tiles is None or not isinstance(cast(Any, shape), Mapping)):
        raise UsageError("shape is a dict of sizes that says which shape of `tiles` is meant: pass tiles=, too")
    _flag("strict", strict)
    if not isinstance(cast(Any, effort), int | float) or isinstance(effort, bool) or not 0 < effort < math.inf:
        raise UsageError(f"effort {effort!r} must be a positive number: a multiple of the default work")
    text = spec if isinstance(spec, str) and ("\n" in spec or spec.lstrip().startswith("attention ")) else None
    source = Source(text) if text is not None else files.read_source(Path(spec))
    tuned = () if tiles is None else tuned_tiles(source, overrides, target, files.read_source(Path(tiles)), shape or {})
    chosen = options(target, precision, tile, arch, tuned, head_dim, dtype, forward, geometry)
    return build(source, chosen, overrides, allow_unproved, strict=strict, effort=effort)


def tuned_tiles(
    source: Source, consts: Mapping[str, Const], target: str, file: Source, shape: Mapping[str, int]
) -> tuple[Tuned, ...] | tuple[TunedGpu, ...]:
    """What a file that `attngen tune` wrote has for this spec, target and shape."""
    spec = analyse(source, consts)
    read = targets.named(target).tiles
    if read is None:
        raise UsageError(f"tiles are tuned for triton and pallas, not for {target}")
    return read(source, spec, file, shape)
