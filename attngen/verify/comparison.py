"""Runs a compiled kernel, forward and backward, against the float64 reference, on shapes that tend to break kernels.

Takes a `Kernel` and a device; returns one `Comparison` for each case and result. An error is the largest difference
between kernel and reference, divided by the reference's largest magnitude where that is above 1. The reference gets the
very values that the kernel gets, rounded to its dtype.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeAlias

import numpy as np

from attngen import inputs, reference, targets
from attngen.api import Kernel, build
from attngen.emit import Options
from attngen.errors import Source
from attngen.inputs import Ints
from attngen.ir.attention import Attention, Param
from attngen.ir.evaluate import Array
from attngen.ir.nodes import Storage, Type
from attngen.runtime.devices import pytorch, the_jax
from attngen.vocabulary import NARROW, Const

TOLERANCE = {"fp32": 2e-5, "fp16": 2e-2, "bf16": 2e-2, "fp8": 8e-2}
DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "fp8": "float8_e4m3fn"}
_STORAGE = {
    "f32": "float32",
    "f16": "float16",
    "bf16": "bfloat16",
    "int": "int64",
    "bool": "bool",
    "u8": "uint8",
    "i8": "int8",
    "i16": "int16",
}
SEED = 0x1234_5678_9ABC  # above 2**32: both words of the key count

Results: TypeAlias = Mapping[str, Array]


@dataclass(frozen=True, slots=True)
class Case:
    """One shape, one dtype, and what is special about it. `note` says so in a word or two. `ints`: how int params are
    drawn. `lengths`: queries and keys of each sequence, of which `sizes` has the longest; none for dense tensors."""

    note: str
    dtype: str
    sizes: tuple[tuple[str, int], ...]
    ints: Ints = Ints.TELLING
    lengths: tuple[tuple[int, int], ...] = ()

    @property
    def size(self) -> dict[str, int]:
        return dict(self.sizes)

    def shape(self) -> str:
        s = self.size
        heads = f"{s['Hq']}" if s["Hq"] == s["Hkv"] else f"{s['Hq']}/{s['Hkv']}"
        dims = f"{s['D']}" if s["D"] == s["Dv"] else f"{s['D']}/{s['Dv']}"
        rows = {name: f"{s[name]}" for name in ("Sq", "Sk")}
        for name, own in zip(rows, zip(*self.lengths, strict=True), strict=False):
            rows[name] = f"{min(own)}…{max(own)}"
        return f"B={s['B']} H={heads} Sq={rows['Sq']} Sk={rows['Sk']} D={dims}"


@dataclass(frozen=True, slots=True)
class Comparison:
    """One result of one case: `out`, `lse`, or a gradient, `d q` for that of q. `zeros`: the reference has no other."""

    case: Case
    result: str
    error: float
    tolerance: float
    zeros: bool = False

    @property
    def passed(self) -> bool:
        return self.error <= self.tolerance  # a NaN fails


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """The calls that a generated file is for: of all dtypes and head dims, or of these. On the CPU its sequences are
    as much longer as `tile` is larger than 16, so that they have several tiles, too."""

    dtype: str | None = None
    head_dim: tuple[int, int] | None = None
    tile: tuple[int, int] = (16, 16)

    def narrowed(self, case: Case) -> Case:
        """`case` with this dtype and these head dims; its note says nothing of what it no longer has."""
        if self.dtype is None and self.head_dim is None:
            return case
        fixed = () if self.head_dim is None else tuple(zip(("D", "Dv"), self.head_dim, strict=True))
        if self.head_dim is None and self.dtype == NARROW:  # which takes multiples of 16
            fixed = tuple((name, max(32, -(-case.size[name] // 16) * 16)) for name in ("D", "Dv"))
        gone = {*(_OF_DTYPE if self.dtype else ()), *(_OF_HEAD_DIM if self.head_dim else ())}
        note = ", ".join(part for part in case.note.split(", ") if part not in gone) or "plain"
        return replace(
            case, note=note, dtype=self.dtype or case.dtype, sizes=tuple((dict(case.sizes) | dict(fixed)).items())
        )

    def length(self, rows: int, device: str) -> int:
        """Of a sequence that has `rows` at tiles of 16; what is no multiple of them stays none."""
        times = max(self.tile) // 16
        if device != "cpu" or times == 1 or rows < 16:
            return rows
        return rows * times - (3 if rows % 16 else 0)


_OF_DTYPE = frozenset({"half precision"})
_OF_HEAD_DIM = frozenset({"Dv ≠ D", "odd dims", "MLA head dims", "large heads"})
ANY = Use()


class Comparing(Protocol):
    """A geometry's comparison: `compare` is that of dense tensors."""

    def __call__(self, kernel: Kernel, case: Case, device: str, *, coarse: bool) -> Iterator[Comparison]: ...


def _sizes(text: str) -> dict[str, int]:
    return dict(zip(("B", "Hq", "Hkv", "Sq", "Sk", "D", "Dv"), map(int, text.split()), strict=True))


# B Hq Hkv Sq Sk D Dv. The interpreter takes milliseconds for a tile, so its shapes are a few tiles of 16.
_TINY = (
    ("plain", "fp32", "1 2 2 48 48 16 16"),
    ("ragged, grouped heads", "fp32", "2 4 2 37 37 16 16"),
    ("fewer queries, Dv ≠ D", "fp32", "1 2 1 21 53 16 32"),
    ("more queries, odd dims", "fp32", "1 2 2 50 19 24 8"),
    ("one query", "fp32", "2 2 1 1 33 16 16"),
    ("half precision", "fp16", "1 2 1 40 40 16 16"),
)
_REAL = (
    ("plain", "fp32", "1 2 2 256 256 64 64"),
    ("ragged, grouped heads", "fp32", "2 4 2 333 333 64 64"),
    ("fewer queries, Dv ≠ D", "fp32", "1 2 1 129 517 64 128"),
    ("more queries, odd dims", "fp32", "1 2 2 400 150 80 40"),
    ("one query", "fp32", "2 4 1 1 777 64 64"),
    ("plain", "bf16", "2 4 4 512 512 128 128"),
    ("ragged, grouped heads", "bf16", "1 4 1 1111 1111 64 64"),
    ("MLA head dims", "bf16", "1 4 4 300 700 192 128"),
    ("large heads", "fp16", "1 4 2 515 515 256 256"),
)


def cases(
    attention: Attention, device: str, target: targets.Target = targets.TARGETS[targets.DEFAULT], use: Use = ANY
) -> tuple[Case, ...]:
    """The shapes to run on `device` ("cpu", "cuda" or "tpu"), moved to the nearest that the spec's `assume`s allow. The
    first comes again with int params at the ends of 32 bits, as far as the `where`s allow. `use`: what they are for."""
    chosen: dict[tuple[str, tuple[tuple[str, int], ...]], Case] = {}
    for note, dtype, text in _TINY if device == "cpu" else _REAL:
        dtype = dtype if dtype in target.dtypes else "bf16"  # TPUs multiply no fp16
        wanted = _sizes(text)
        wanted |= {name: use.length(wanted[name], device) for name in ("Sq", "Sk")}
        case = _settled(attention, use.narrowed(Case(note, dtype, tuple(wanted.items()))))
        chosen.setdefault((case.dtype, case.sizes), case)
    found = tuple(chosen.values())
    if not inputs.far_ints(attention):
        return found
    return (*found, *(replace(found[0], note=f"{ints} ints", ints=ints) for ints in (Ints.LEAST, Ints.GREATEST)))


def _settled(attention: Attention, case: Case) -> Case:
    sizes = inputs.settle(attention, case.size)
    moved = any(sizes[name] != value for name, value in case.sizes)
    note = case.note + (", moved by `assume`" if moved else "")
    return replace(case, note=note, sizes=tuple(sizes.items()))


def longer(attention: Attention, cases: tuple[Case, ...], most: int = 2048) -> tuple[Case, ...]:
    """A case that is longer than the longest int const of those that `cases` do not reach, unless that is above `most`:
    the reference is dense."""
    consts = [(value, name) for name, value in beyond(attention, cases) if value <= most]
    if not consts:
        return ()
    value, name = max(consts)
    one = cases[0].size | {"B": 1, "Hq": 1, "Hkv": 1, "Sq": value + 37, "Sk": value + 37}
    return (_settled(attention, Case(f"longer than `{name}`", cases[0].dtype, tuple(one.items()))),)


def tile_for(case: Case, device: str) -> tuple[int, int] | None:
    """Small tiles in the interpreter, so that even tiny shapes have several; on a GPU the kernel's own choice."""
    if device != "cpu":
        return None
    small = max(case.size["Sq"], case.size["Sk"]) <= 128
    return (16 if small else 32, 16 if small and case.dtype != NARROW else 32)


def compiled(source: Source, options: Options, consts: Mapping[str, Const], device: str) -> Callable[[Case], Kernel]:
    """The kernel of a spec for each case. The tile is the options', else what `tile_for` says."""
    kernels: dict[tuple[int, int] | None, Kernel] = {}

    def kernel(case: Case) -> Kernel:
        tile = options.tile or tile_for(case, device)
        if tile not in kernels:
            kernels[tile] = build(source, replace(options, tile=tile), consts)
        return kernels[tile]

    return kernel


def differentiates(kernel: Kernel) -> bool:
    """Whether its file has a backward pass."""
    return kernel.made is None or not kernel.made[1].forward


def compare(kernel: Kernel, case: Case, device: str, *, coarse: bool = False, seed: int = 0) -> Iterator[Comparison]:
    """Run one case, forward and, if the kernel can, backward, and compare every result. `coarse`: its fp32 products are
    rounded."""
    spec = kernel.spec
    dropout_seed = SEED if spec.dropout is not None else None
    if takes_arrays(kernel):
        operands, params, cotangents = draw_arrays(spec, case, seed)
        measured = _run_arrays(kernel, operands, params, cotangents, dropout_seed)
    else:
        operands, params, cotangents = drawn(spec, case, device, seed)
        measured = _run(kernel, operands, params, cotangents, dropout_seed)
    backward = differentiates(kernel)
    right = expected(spec, operands, params, cotangents, dropout_seed, backward=backward)
    yield from judge(spec, case, measured, right, coarse=coarse)


def takes_arrays(kernel: Kernel) -> bool:
    """Whether the kernel takes JAX's arrays, (batch, length, heads, head dim)."""
    return targets.named(kernel.target).takes_jax


def judge(
    spec: Attention, case: Case, measured: Results, expected: Results, *, coarse: bool = False
) -> Iterator[Comparison]:
    """One comparison for each expected result."""
    for name, value in expected.items():
        # The gradient of a param comes in the param's own storage.
        halved = any(name == f"d {p.name}" and p.storage in (Storage.F16, Storage.BF16) for p in spec.params)
        tolerance = TOLERANCE["fp16"] if halved or coarse else TOLERANCE[case.dtype]
        yield Comparison(case, name, error(measured[name], value), tolerance, not value.any())


def beyond(spec: Attention, cases: Iterable[Case]) -> tuple[tuple[str, int], ...]:
    """The int consts that are longer than every sequence of `cases`: what they do is not seen."""
    longest = max(max(case.size["Sq"], case.size["Sk"]) for case in cases)
    return tuple((name, value) for name, value in spec.consts if type(value) is int and value > longest)


def error(measured: Array, expected: Array) -> float:
    """The largest difference, relative to the largest expected magnitude where that is above 1.

    Infinities must agree in place and sign; a NaN anywhere, or another shape, is an infinite error.
    """
    if measured.shape != expected.shape:
        return np.inf
    finite = np.isfinite(expected)
    if not np.array_equal(measured[~finite], expected[~finite]) or not np.isfinite(measured[finite]).all():
        return np.inf
    if not finite.any():
        return 0.0
    largest = max(1.0, float(np.abs(expected[finite]).max()))
    return float(np.abs(measured[finite] - expected[finite]).max()) / largest


def drawn(
    spec: Attention, case: Case, device: str, seed: int
) -> tuple[dict[str, Any], dict[str, Any], tuple[Any, Any]]:
    """q, k, v, the params (tensors and numbers) and the cotangents of out and lse."""
    torch = pytorch()
    s = case.size
    rng = np.random.default_rng(seed)
    dtype = getattr(torch, DTYPES[case.dtype])

    def tensor(*shape: int, type: Any = dtype) -> Any:
        return torch.from_numpy(rng.standard_normal(shape)).to(type).to(device)

    operands = {
        "q": tensor(s["B"], s["Hq"], s["Sq"], s["D"]),
        "k": tensor(s["B"], s["Hkv"], s["Sk"], s["D"]),
        "v": tensor(s["B"], s["Hkv"], s["Sk"], s["Dv"]),
    }
    d_out = tensor(s["B"], s["Hq"], s["Sq"], s["Dv"])
    d_lse = tensor(s["B"], s["Hq"], s["Sq"], type=torch.float32)
    values = inputs.examples(spec, s, seed=seed, ints=case.ints)
    params: dict[str, Any] = {}
    for p in spec.params:
        params[p.name] = as_param(p, values[p.name], case, device)
    for leaf in (*operands.values(), *(params[p.name] for p in spec.params if p.learns)):
        leaf.requires_grad_()
    return operands, params, (d_out, d_lse)


def as_param(param: Param, value: Any, case: Case, device: str) -> Any:
    """A tensor, or a number for scalars but floats: the gradient of a float is wanted."""
    if param.is_scalar and param.type is not Type.FLOAT:
        return value
    storage = _STORAGE[param.storage.value]
    storage = storage if case.ints is Ints.TELLING else storage.replace("int64", "int32")
    return pytorch().tensor(value).to(getattr(pytorch(), storage)).to(device)


def _run(
    kernel: Kernel,
    operands: Mapping[str, Any],
    params: Mapping[str, Any],
    cotangents: tuple[Any, Any],
    dropout_seed: int | None,
) -> Results:
    extra = {} if dropout_seed is None else {"dropout_seed": dropout_seed}
    if not differentiates(kernel):
        with pytorch().no_grad():
            out, lse = kernel(**operands, **params, **extra, return_lse=True)
        return {name: x.double().cpu().numpy() for name, x in {"out": out, "lse": lse}.items()}
    out, lse = kernel(**operands, **params, **extra, return_lse=True)
    pytorch().autograd.backward((out, lse), cotangents)
    leaves = {**operands, **{p.name: params[p.name] for p in kernel.spec.params if p.learns}}
    # torch has None for the gradient of what the result does not depend on.
    gradients = {f"d {n}": pytorch().zeros_like(x) if x.grad is None else x.grad for n, x in leaves.items()}
    results = {"out": out, "lse": lse, **gradients}
    return {name: x.detach().double().cpu().numpy() for name, x in results.items()}


def draw_arrays(spec: Attention, case: Case, seed: int) -> tuple[dict[str, Any], dict[str, Any], tuple[Any, Any]]:
    """The same for JAX: arrays in the reference's order, (batch, heads, length, head dim)."""
    jnp = the_jax().numpy
    s = case.size
    rng = np.random.default_rng(seed)

    def array(*shape: int, dtype: str = DTYPES[case.dtype]) -> Any:
        return jnp.asarray(rng.standard_normal(shape), dtype)

    operands = {
        "q": array(s["B"], s["Hq"], s["Sq"], s["D"]),
        "k": array(s["B"], s["Hkv"], s["Sk"], s["D"]),
        "v": array(s["B"], s["Hkv"], s["Sk"], s["Dv"]),
    }
    cotangents = (
        array(s["B"], s["Hq"], s["Sq"], s["Dv"]),
        array(s["B"], s["Hq"], s["Sq"], dtype="float32"),
    )
    values = inputs.examples(spec, s, seed=seed, ints=case.ints)
    params: dict[str, Any] = {}
    for p in spec.params:
        scalar = p.is_scalar and p.type is not Type.FLOAT
        dtype = _STORAGE[p.storage.value].replace("64", "32")
        params[p.name] = values[p.name] if scalar else jnp.asarray(values[p.name], dtype)
    return operands, params, cotangents


def _run_arrays(
    kernel: Kernel,
    operands: Mapping[str, Any],
    params: Mapping[str, Any],
    cotangents: tuple[Any, Any],
    dropout_seed: int | None,
) -> Results:
    jax = the_jax()
    extra = {} if dropout_seed is None else {"dropout_seed": dropout_seed}
    floats = {p.name: params[p.name] for p in kernel.spec.params if p.learns}

    def attend(operands: Mapping[str, Any], floats: Mapping[str, Any]) -> tuple[Any, Any]:
        out, lse = kernel(
            **{n: x.swapaxes(1, 2) for n, x in operands.items()}, **{**params, **floats}, **extra, return_lse=True
        )
        return out.swapaxes(1, 2), lse

    (out, lse), pullback = jax.vjp(attend, operands, floats)
    d_operands, d_floats = pullback(cotangents)
    results = {"out": out, "lse": lse, **{f"d {n}": x for n, x in {**d_operands, **d_floats}.items()}}
    return {name: np.asarray(x, np.float64) for name, x in results.items()}


def expected(
    spec: Attention,
    operands: Mapping[str, Any],
    params: Mapping[str, Any],
    cotangents: tuple[Any, Any],
    dropout_seed: int | None = None,
    *,
    backward: bool = True,
) -> Results:
    """The definition's results and gradients, of what `drawn` gave."""
    arguments: dict[str, Any] = {"params": params, "dropout_seed": dropout_seed}
    forward = reference.evaluate(spec, **operands, **arguments)
    if not backward:
        return {"out": forward.out, "lse": forward.lse}
    q, k, v = (operands[name] for name in "qkv")
    found = reference.gradients(spec, q, k, v, *cotangents, **arguments)
    gradients: dict[str, Array] = {"q": found.q, "k": found.k, "v": found.v, **found.params}
    return {"out": forward.out, "lse": forward.lse} | {f"d {name}": value for name, value in gradients.items()}
