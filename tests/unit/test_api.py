"""The Python door: what may be compiled, with which arguments, and what a `Kernel` can do."""

from __future__ import annotations

import copy
import importlib.util
import inspect
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from enum import IntEnum
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import attngen
from attngen import Kernel, SpecError, Unproved, UsageError, api, targets
from attngen.errors import Source
from attngen.kernel import Loaded

TEXT = "attention windowed\n\nconst window = 24\nparam slope: f32[Hq]\n\n"
TEXT += "score = qk * scale - slope[h] * (q - k)\nmask  = 0 <= q - k < window\n"


def operands(rows: int = 33, heads: int = 2) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(1)
    return tuple(torch.randn(1, heads, rows, 16, generator=generator) for _ in range(3))


def dense(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, slope: torch.Tensor, window: int) -> torch.Tensor:
    """TEXT, written once more in plain torch."""
    distance = torch.arange(q.shape[2])[:, None] - torch.arange(k.shape[2])[None, :]
    score = q @ k.mT / q.shape[-1] ** 0.5 - slope[:, None, None] * distance
    return score.masked_fill((distance < 0) | (distance >= window), -torch.inf).softmax(-1) @ v


# ---------------------------------------------------------------- compile


def test_text_path_and_string_path_are_one(tmp_path: Path) -> None:
    path = tmp_path / "windowed.attn"
    path.write_text(TEXT)
    sources = {attngen.compile(spec).source for spec in (TEXT, path, str(path))}
    assert len(sources) == 1


def test_one_line_is_text() -> None:
    assert attngen.compile("attention plain").name == "plain"


@pytest.mark.parametrize("spec", ["missing.attn", Path("missing.attn")])
def test_missing_file(spec: str | Path) -> None:
    with pytest.raises(UsageError, match=r"can't read missing.attn: no such file"):
        attngen.compile(spec)


def test_consts() -> None:
    assert attngen.compile(TEXT, window=7).spec.consts == (("window", 7),)
    assert attngen.compile(TEXT, consts={"window": 7}).spec.consts == (("window", 7),)
    clash = attngen.compile(
        "attention a\nconst target = 3\nconst spec = 4\nmask = k < target\n", consts={"target": 5}, spec=6
    )
    assert clash.spec.consts == (("target", 5), ("spec", 6))


CONSTS = "attention a\nconst window = 3\nconst rate = 0.5\nconst on = true\nmask = on or k < window\n"


class Width(IntEnum):
    WIDE = 40


@pytest.mark.parametrize(
    ("name", "given", "value"),
    [
        *(("window", kind(40), 40) for kind in (np.int8, np.uint8, np.int32, np.int64, np.uint64, np.array)),
        ("window", torch.tensor(40), 40),
        ("window", Width.WIDE, 40),
        *(("rate", kind(0.1), float(kind(0.1))) for kind in (np.float16, np.float32, np.float64)),
        ("rate", np.longdouble(0.25), 0.25),
        ("rate", np.array(0.1, np.float32), float(np.float32(0.1))),
        ("rate", torch.tensor(0.1, dtype=torch.bfloat16), 0.10009765625),
        ("rate", np.int64(3), 3.0),
        ("rate", Fraction(1, 4), 0.25),
        ("on", np.bool_(False), False),
        ("on", np.array(False), False),
        ("on", torch.tensor(False), False),
    ],
)
def test_consts_are_numbers_of_any_kind_by_value(name: str, given: Any, value: bool | int | float) -> None:
    for kernel in (
        attngen.compile(CONSTS, "torch", **{name: given}),
        attngen.compile(CONSTS, "torch", consts={name: given}),
    ):
        found = dict(kernel.spec.consts)[name]
        assert (type(found), found) == (type(value), value)


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("window", np.array([40]), "const 'window' must be a bool, an int or a float, not an array of shape (1,)"),
        ("window", np.complex64(1), "const 'window' must be a bool, an int or a float, not np.complex64(1+0j)"),
        ("window", np.str_("7"), "const 'window' must be a bool, an int or a float, not np.str_('7')"),
        ("window", np.uint64(2**64 - 1), "the const `window` does not fit in 64 bits"),
        ("window", np.float64(40), "the const `window` is an int, and 40.0 is a float"),
        ("window", np.bool_(True), "the const `window` is an int, and True is a bool"),
        ("rate", Fraction(1, 3), "const 'rate' is Fraction(1, 3), and no float is exactly that"),
        ("rate", np.longdouble(1) / 3, "and no float is exactly that: write float(…) around it"),
        ("rate", np.float32("nan"), "the const `rate` can't be NaN"),
        ("rate", 10**400, "the const `rate` does not fit in 64 bits"),
        ("rate", 2**53 + 1, "no float is exactly 9007199254740993: write 9007199254740992.0"),
    ],
)
def test_consts_that_are_no_such_number(name: str, given: Any, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        attngen.compile(CONSTS, "torch", consts={name: given})
    assert message in str(caught.value)


def test_a_traced_const_has_no_value() -> None:
    import jax

    def traced(n: Any) -> Any:
        attngen.compile(CONSTS, "jax", window=n)
        return n

    with pytest.raises(UsageError, match="const 'window' must be known when the spec is compiled, and is traced here"):
        jax.jit(traced)(3)


def test_wrong_consts() -> None:
    with pytest.raises(UsageError, match="'window' is given twice"):
        attngen.compile(TEXT, consts={"window": 7}, window=8)
    with pytest.raises(UsageError, match="'window' must be a bool, an int or a float, not '7'"):
        attngen.compile(TEXT, window="7")  # type: ignore[arg-type]
    with pytest.raises((SpecError, UsageError), match="windw"):
        attngen.compile(TEXT, windw=7)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target": "cuda"}, "no target 'cuda'; there are triton, pallas, torch, jax"),
        ({"precision": "fp8"}, "no precision 'fp8'; there are ieee, tf32"),
        ({"tile": (24, 16)}, "two powers of two from 16 to 512"),
        ({"tile": (16,)}, "two powers of two"),
        ({"tile": (16, 1024)}, "two powers of two"),
        ({"effort": 0}, "effort 0 must be a positive number"),
        ({"effort": "4"}, "effort '4' must be a positive number"),
        ({"effort": float("nan")}, "effort nan must be a positive number"),
    ],
)
def test_wrong_options(options: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        attngen.compile(TEXT, **options)  # type: ignore[arg-type]


def test_wrong_spec_lists_every_mistake() -> None:
    with pytest.raises(SpecError) as caught:
        attngen.compile("attention a\nscore = qk * scael\nmask = qk\n")
    assert [(d.span.line, d.span.column) for d in caught.value.diagnostics] == [(2, 14), (3, 8)]


def test_unknown_stage() -> None:
    with pytest.raises(UsageError, match="no stage 'llvm'; there are ast, ir, plan, proof, source"):
        api.stage("llvm", Source(TEXT), api.options())


def test_options_reach_the_generated_file() -> None:
    plain = attngen.compile(TEXT).source
    assert attngen.compile(TEXT, tile=(32, 16)).source != plain
    assert attngen.compile(TEXT, precision="tf32").source != plain
    assert attngen.compile(TEXT, window=7).source != plain
    assert attngen.compile(TEXT).source == plain


def test_effort_decides_what_is_proved() -> None:
    with pytest.raises(Unproved, match="`effort=4` allows four times the default"):
        attngen.compile(TEXT, effort=1e-6)
    more = attngen.compile(TEXT, effort=4)
    assert more.proof is not None and not more.proof.unknown
    assert more.source == attngen.compile(TEXT).source


# ---------------------------------------------------------------- kernels


@pytest.fixture(scope="module")
def kernel() -> Kernel:
    return attngen.compile(TEXT, tile=(16, 16))


def test_repr_shows_how_to_call_it(kernel: Kernel) -> None:
    assert repr(kernel) == "<attngen.Kernel windowed(q, k, v, *, slope) for triton>"
    assert repr(attngen.compile("attention a")) == "<attngen.Kernel a(q, k, v) for triton>"


def test_a_kernels_signature_is_its_functions() -> None:
    lines = ("param cap: f32 where cap > 0", "param n: int[B]", "score = softcap(qk, cap)", "mask = k < n[b]")
    text = "\n".join(("attention limited", *lines, ""))
    for target in targets.TARGETS:
        kernel = attngen.compile(text, target)
        found = inspect.signature(kernel)
        assert "_function" not in vars(kernel)  # nothing was loaded
        assert found == inspect.signature(kernel.function)
        assert [*found.parameters][:5] == ["q", "k", "v", "cap", "n"]
    assert "q" not in inspect.signature(Kernel).parameters


def test_where_there_is_no_gpu_is_said_at_the_callers_line() -> None:
    """Not in PyTorch's compiler, which may have come between."""
    code = (
        "import torch, attngen, warnings\n"
        f"attend = attngen.compile({TEXT!r}, tile=(16, 16))\n"
        "x, slope = torch.randn(1, 2, 8, 16), torch.ones(2)\n"
        "traced = torch.compile(lambda x: attend(x, x, x, slope=slope), backend='eager', fullgraph=True)\n"
        "with warnings.catch_warnings(record=True) as seen:\n"
        "    warnings.simplefilter('always')\n"
        "    CALL\n"
        "print([(w.filename, w.lineno) for w in seen if 'no GPU' in str(w.message)])\n"
    )
    plain = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    for call in ("traced(x)", "attend(x, x, x, slope=slope)"):
        run = [sys.executable, "-c", code.replace("CALL", call)]
        found = subprocess.run(run, env=plain, capture_output=True, text=True, check=True)
        assert found.stdout == "[('<string>', 7)]\n", found


def test_call_and_gradients(kernel: Kernel) -> None:
    slope = torch.tensor([0.1, 0.3], requires_grad=True)
    leaves = [x.requires_grad_() for x in operands()]
    out = kernel(*leaves, slope=slope)
    got = torch.autograd.grad(out.square().sum(), [*leaves, slope])
    exact = [x.detach().double().requires_grad_() for x in (*leaves, slope)]
    wanted = dense(*exact, window=24)  # type: ignore[arg-type]
    assert (out - wanted).abs().max() < 2e-5
    for mine, theirs in zip(got, torch.autograd.grad(wanted.square().sum(), exact), strict=True):
        assert (mine - theirs).abs().max() < 2e-5 * max(1.0, theirs.abs().max())


def test_reference_is_float64_and_takes_tensors_and_arrays(kernel: Kernel) -> None:
    q, k, v = operands()
    slope = torch.tensor([0.1, 0.3])
    out = kernel.reference(q, k, v, slope=slope)
    assert isinstance(out, np.ndarray) and out.dtype == np.float64
    wanted = dense(*(x.double() for x in (q, k, v, slope)), window=24)
    assert np.abs(out - wanted.numpy()).max() < 1e-13
    again, lse = kernel.reference(*(x.numpy() for x in (q, k, v)), slope=slope.numpy(), return_lse=True)
    assert np.array_equal(again, out) and lse.shape == (1, 2, 33)


def test_scale_reaches_both(kernel: Kernel) -> None:
    q, k, v = operands()
    slope = torch.tensor([0.1, 0.3])
    got, lse = kernel(q, k, v, slope=slope, scale=0.5, return_lse=True)
    wanted, wanted_lse = kernel.reference(q, k, v, slope=slope, scale=0.5, return_lse=True)
    assert np.abs(got.numpy() - wanted).max() < 2e-5 and np.abs(lse.numpy() - wanted_lse).max() < 2e-5


def test_save_writes_the_source(kernel: Kernel, tmp_path: Path) -> None:
    kernel.save(tmp_path / "windowed.py")
    assert (tmp_path / "windowed.py").read_text(encoding="utf-8") == kernel.source
    with pytest.raises(UsageError, match="can't write"):
        kernel.save(tmp_path / "missing" / "windowed.py")


def test_saved_file_stands_alone(kernel: Kernel, tmp_path: Path) -> None:
    """It needs neither attngen nor the checkout."""
    kernel.save(tmp_path / "windowed.py")
    code = (
        "import sys; sys.modules['attngen'] = None\n"
        "import torch, windowed\nx = torch.ones(1, 1, 16, 16)\n"
        "print(windowed.windowed(x, x, x, slope=torch.zeros(1)).mean().item())"
    )
    env = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) == pytest.approx(1.0)


def test_interpreting_is_said_once(tmp_path: Path) -> None:
    code = (
        f"import attngen, torch; text = {TEXT!r}; x = torch.ones(1, 1, 16, 16); slope = torch.ones(1)\n"
        "for window in (7, 8): attngen.compile(text, window=window, tile=(16, 16))(x, x, x, slope=slope)"
    )
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"} | {"CUDA_VISIBLE_DEVICES": ""}
    env |= {"ATTNGEN_CACHE": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("Triton's interpreter") == 1
    assert len(list(tmp_path.rglob("windowed_*.py"))) == 2


def test_kernel_in_a_compiled_function(kernel: Kernel) -> None:
    slope = torch.tensor([0.1, 0.3])
    _ = kernel.function
    compiled = torch.compile(lambda q, k, v: 2 * kernel(q, k, v, slope=slope), fullgraph=True, backend="eager")
    q, k, v = operands()
    assert torch.equal(compiled(q, k, v), 2 * kernel(q, k, v, slope=slope))


@pytest.mark.parametrize("target", ["triton", "torch"])
@pytest.mark.parametrize("reads_function", [False, True])
def test_a_first_call_inside_a_compiled_function(target: str, reads_function: bool) -> None:
    text = TEXT.replace("windowed", f"first_{target}_{reads_function}".lower())
    kernel = attngen.compile(text, target, window=7)
    slope = torch.tensor([0.5, 0.25])

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return (kernel.function if reads_function else kernel)(q, k, v, slope=slope)

    graphs: list[torch.fx.GraphModule] = []

    def backend(graph: torch.fx.GraphModule, _: object) -> Callable[..., object]:
        graphs.append(graph)
        return graph.forward

    q, k, v = operands(20)
    compiled = torch.compile(attend, backend=backend, fullgraph=True)
    torch.testing.assert_close(compiled(q, k, v), dense(q, k, v, slope, 7), atol=2e-5, rtol=2e-5)
    torch.testing.assert_close(compiled(q, k, v), attend(q, k, v))
    assert len(graphs) == 1


def test_kernels_are_copied_and_pickled(kernel: Kernel) -> None:
    """A module that holds one can be deep-copied, and sent to another process."""
    _ = kernel.function
    for other in (copy.deepcopy(kernel), pickle.loads(pickle.dumps(kernel))):
        assert other.source == kernel.source and other.spec == kernel.spec and repr(other) == repr(kernel)
    assert "_function" not in vars(pickle.loads(pickle.dumps(kernel)))


@pytest.mark.parametrize("target", ["triton", "torch", "jax", "pallas"])
def test_wrong_arguments_are_usage_errors_and_value_errors(
    target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through a `Kernel`. The generated file by itself knows ValueError and TypeError alone."""
    compiled = attngen.compile(TEXT.replace("windowed", f"refusing_{target}"), target, window=7)
    heads_inside = target in ("pallas", "jax")
    q, k, v = (x.swapaxes(1, 2).numpy() if heads_inside else x for x in operands(20))
    slope = torch.tensor([0.5, 0.25])
    slope = slope.numpy() if heads_inside else slope
    compiled.save(tmp_path / "alone.py")
    found = importlib.util.spec_from_file_location(f"alone_{target}", tmp_path / "alone.py")
    assert found is not None and found.loader is not None
    alone = importlib.util.module_from_spec(found)
    monkeypatch.setitem(sys.modules, found.name, alone)
    found.loader.exec_module(alone)
    function = getattr(alone, compiled.name)
    calls: list[tuple[tuple[object, ...], dict[str, object], type[Exception], str]] = [
        ((q, k, v), {"slope": slope, "scales": 1.0}, TypeError, "scales"),
        ((q, k, v), {}, TypeError, "slope"),
        ((q, k), {"slope": slope}, TypeError, "'v'"),
        ((q, k, v[..., 0]), {"slope": slope}, ValueError, "v must have 4 dimensions"),
        ((q, k, v), {"slope": slope[[0, 1, 1]]}, ValueError, "slope"),
        ((q, None, v), {"slope": slope}, ValueError, "k must be"),
        ((q, k, v), {"slope": slope, "scale": "2"}, ValueError, "scale must be .* number, not '2'"),
        ((q, k, v), {"slope": slope, "scale": [1.0]}, ValueError, "scale must be .* number, not "),
    ]
    for given, named, kind, words in calls:
        for called, expected in ((compiled, UsageError), (function, kind)):
            with pytest.raises(ValueError if expected is UsageError else kind, match=words) as caught:
                called(*given, **named)
            assert type(caught.value) is expected


@pytest.mark.parametrize("target", ["triton", "torch", "jax", "pallas"])
@pytest.mark.parametrize("scale", [float("nan"), float("inf"), -float("inf")])
def test_a_scale_is_finite(target: str, scale: float) -> None:
    kernel = attngen.compile("attention scaled\nmask = causal\n", target)
    given = [x.swapaxes(1, 2).numpy() if target in ("pallas", "jax") else x for x in operands(20)]
    with pytest.raises(UsageError, match=f"scale must be a finite number, not {scale}"):
        kernel(*given, scale=scale)
    if target == "triton":
        packed = [x[0].transpose(0, 1) for x in given]
        ends = torch.tensor([0, packed[0].shape[0]], dtype=torch.int32)
        with pytest.raises(UsageError, match=f"scale must be a finite number, not {scale}"):
            kernel.varlen(*packed, cu_seqlens_q=ends, scale=scale)


@pytest.mark.parametrize("target", ["triton", "torch", "jax", "pallas"])
@pytest.mark.parametrize("seed", ["1", 1.5, 2**70])
def test_a_seed_is_an_int(target: str, seed: object) -> None:
    kernel = attngen.compile("attention seeded\nparam p: f32 where 0 <= p < 1\ndropout = p\n", target)
    given = [x.swapaxes(1, 2).numpy() if target in ("pallas", "jax") else x for x in operands(20)]
    with pytest.raises(UsageError, match="dropout_seed must be an int"):
        kernel(*given, p=0.5, dropout_seed=seed)


def test_what_is_no_wrong_argument_is_no_usage_error(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = attngen.compile(TEXT.replace("windowed", "inner"), "torch", window=7)
    _ = kernel.function

    def failing(*_: object, **__: object) -> None:
        raise TypeError("of something else")

    loaded = {"dense": Loaded(lambda *given, **named: failing(*given, **named))}
    monkeypatch.setitem(kernel.__dict__, "_geometries", loaded)
    with pytest.raises(TypeError, match="of something else") as caught:
        kernel(*operands(20), slope=torch.tensor([0.5, 0.25]))
    assert not isinstance(caught.value, UsageError)
