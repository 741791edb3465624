"""`attngen bench` on the CPU: what it refuses, FlexAttention's modifiers, the record, the table, the JSON, the picture.

Nothing here says how fast anything is: times of a CPU's interpreter mean nothing.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from attngen import api, files, inputs, targets
from attngen.bench import clock, contenders, picture as show, replay, run, verdict
from attngen.bench.race import Contender, Turns, failure, graph, race
from attngen.cli import gpu
from attngen.cli.bench import as_json
from attngen.cli.main import main
from attngen.emit.flex import flex_source, limit
from attngen.errors import Source
from attngen.ir import walk
from attngen.reference import evaluate

EXAMPLES = Path(__file__).parents[3] / "examples"
SIZES = {"B": 2, "Hq": 4, "Hkv": 2, "Sq": 48, "Sk": 48, "D": 16, "Dv": 16}
HOW = run.How(Turns("cpu", 2, 0.0, 0.0), "fp16", True, 3)

# What the examples lack: raw products, hkv, bools, guards, divisions, selections by numbers, powers, minima of tensors.
HARD = {
    "raw": "score = qk * abs(qk) * 0.1 + scale * qk",
    "heads": "param slope: f32[Hkv]\nscore = qk * scale - slope[hkv] * abs(q - k)",
    "padding": "param keep: bool[B, Sk]\nmask = keep[b, k] and not (q == 3 and k > 2)",
    "flag": "param on: bool\nmask = on or k <= q",
    "divided": "mask = (q - k) // 7 % 3 != 1 or k == q\nscore = qk * scale + float((q - k) % 5) ** 2 * 0.1",
    "chosen": "param c: f32 where c > 0\nlet s = qk * scale\nscore = min(s, c) if k % 2 == 0 else max(s, sin(k * 1.0))",
    "outside": "param t: f32[Sk]\nparam i: int[Sk]\nscore = qk * scale + t[i[k] - 2] + t[i[k] + Sk - 1]"
    " + (0.5 if Sq > 4 else 0.25)",
    "of_numbers": "param w: int where w >= 1\nmask = min(q, k) < max(w, 8) and floor(float(k) / 2.0) <= q",
    "infinite": "score = qk * scale if k <= q else -inf",
    "lists": "param t: int[B, Hkv, n, 3]\nparam u: i8[5]\nmask = k // 4 in t[b, hkv, q // 8 - 1] and k not in u",
    "lets": "let d = q - k\nlet e = d * d + d\nscore = qk * scale + float(e) * 0.001 - float(e) * float(d) * 0.0001",
}


def specs() -> dict[str, Source]:
    found = {path.stem: files.read_source(path) for path in sorted(EXAMPLES.glob("*.attn"))}
    return found | {name: Source(f"attention {name}\n{text}\n") for name, text in HARD.items()}


def drawn(spec: Any, sizes: dict[str, int]) -> tuple[list[torch.Tensor], dict[str, Any]]:
    generator = torch.Generator().manual_seed(0)
    shapes = (("Hq", "Sq", "D"), ("Hkv", "Sk", "D"), ("Hkv", "Sk", "Dv"))
    qkv = [torch.randn(sizes["B"], *(sizes[n] for n in names), generator=generator) for names in shapes]
    return qkv, gpu.tensors(torch, spec, sizes, {}, "cpu")


@pytest.mark.parametrize("name", [n for n, s in specs().items() if not limit(api.analyse(s))])
def test_flex_attention_with_the_modifiers_is_the_definition(name: str) -> None:
    spec = api.analyse(specs()[name])
    sizes = inputs.settle(spec, SIZES)
    (q, k, v), params = drawn(spec, sizes)
    module = targets.named("torch").load(flex_source(spec), f"{name}_modifiers")
    change, allowed = module.modifiers(sizes["D"] ** -0.5, sizes, params)
    scale = None if module.SCALED else 1.0
    mask = None
    if allowed is not None:
        lengths = (sizes["B"], sizes["Hq"], sizes["Sq"], sizes["Sk"])
        mask = create_block_mask(allowed, *lengths, device="cpu")
    found = flex_attention(q, k, v, score_mod=change, block_mask=mask, scale=scale, enable_gqa=True)
    expected = evaluate(spec, q, k, v, params={n: np.asarray(x) for n, x in params.items()}).out
    assert isinstance(found, torch.Tensor)
    torch.testing.assert_close(found.double(), torch.from_numpy(expected), rtol=2e-5, atol=2e-5)


def test_what_flex_attention_cannot_express_is_named() -> None:
    found = {name: limit(api.analyse(source)) for name, source in specs().items()}
    assert {n for n, why in found.items() if why} == {
        "block_sparse", "custom_normalizer", "dropout", "sigmoid", "sink", "softmax1",
    }  # fmt: skip
    assert "drops no weights" in found["dropout"] and "sigmoid" in found["sigmoid"] and "sink" in found["sink"]


def test_what_the_libraries_have_is_known_by_its_meaning() -> None:
    plain = {name: api.plain_mask(api.analyse(source)) for name, source in specs().items()}
    assert {n: m for n, m in plain.items() if m} == {"causal": "causal", "mla": "causal"}
    assert api.plain_mask(api.analyse(Source("attention everything\nscore = qk * scale\n"))) == "full"
    written = "attention own\nlet last = q + Sk - Sq\nmask = last >= k\n"
    assert api.plain_mask(api.analyse(Source(written))) == "causal"


def subject(source: Source) -> run.Subject:
    """As `api.bench_subject`, with the kernel made for small tiles: the interpreter takes its time."""
    return api.bench_subject(source)


def test_a_record_of_a_small_run(tmp_path: Path) -> None:
    source = files.read_source(EXAMPLES / "causal.attn")
    sizes = {"B": 1, "Hq": 2, "Hkv": 1, "Sq": 32, "Sk": 32, "D": 16, "Dv": 16}
    point = run.measure(subject(source), sizes, {}, ("flex", "sdpa", "cudnn", "fa4"), HOW)
    assert point["fraction"] == 33 / 64
    ours, sdpa = point["contenders"]["attngen"], point["contenders"]["sdpa"]
    for found in (ours, sdpa):
        assert found["right"] and set(found["errors"]) == {"out", "dq", "dk", "dv"}
        assert found["first_result_s"] > 0
        for direction, products in (("forward", 4), ("backward", 10)):
            timing = found[direction]
            assert timing["q20"] <= timing["ms"] <= timing["q80"] and timing["runs"] >= 2
            useful = products * 2 * 32 * 32 * 16 * 33 / 64
            assert timing["tflops"] == pytest.approx(useful / timing["ms"] * 1e3 / 1e12)
    assert point["contenders"]["cudnn"] == {"unable": "runs on a GPU alone"}
    assert "unable" in point["contenders"]["flex"] and "unable" in point["contenders"]["fa4"]
    record = whole([point])
    assert json.loads(as_json(record)) == json.loads(json.dumps(record))
    assert not show.wrong(record)
    assert show.image(record, "svg").startswith(b"<?xml")


def whole(points: list[Any]) -> dict[str, Any]:
    return {
        "machine": "a card", "date": "2026-01-01T00:00:00+00:00", "name": "causal", "dtype": "fp16",
        "ceiling_tflops": 790.0, "points": points,
    }  # fmt: skip


def test_who_is_wrong_is_not_timed() -> None:
    source = files.read_source(EXAMPLES / "causal.attn")
    sizes = {"B": 1, "Hq": 1, "Hkv": 1, "Sq": 32, "Sk": 32, "D": 16, "Dv": 16}

    def build(name: str, *given: Any) -> Contender:
        made = run.contender(name, *given)
        if name == "attngen":
            return Contender(name, lambda q, k, v: made.attend(q, k, v) * 1.1)
        raise RuntimeError("no such kernel\nin two lines")

    point = run.measure(subject(source), sizes, {}, ("sdpa",), HOW, build=build)
    ours, sdpa = point["contenders"]["attngen"], point["contenders"]["sdpa"]
    assert not ours["right"] and "forward" not in ours and ours["errors"]["out"] > verdict.TOLERANCE
    assert sdpa == {"failure": "RuntimeError: no such kernel\nin two lines"}
    record = whole([point])
    assert show.wrong(record)
    said = "\n".join(show.remarks(record))
    assert "attngen, B=1 H=1 S=32 D=16: WRONG: relative errors out" in said
    assert said.endswith("FAILED: RuntimeError: no such kernel")


def test_a_peer_with_gradients_of_nan_has_its_forward_time_and_a_word() -> None:
    class Broken(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
            return grads[0] * math.nan

    def build(name: str, *given: Any) -> Contender:
        made = run.contender(name, *given)
        return made if name == "attngen" else Contender(name, lambda q, k, v: Broken.apply(made.attend(q, k, v)))

    source = files.read_source(EXAMPLES / "causal.attn")
    sizes = {"B": 1, "Hq": 1, "Hkv": 1, "Sq": 32, "Sk": 32, "D": 16, "Dv": 16}
    point = run.measure(subject(source), sizes, {}, ("sdpa",), HOW, build=build)
    sdpa = point["contenders"]["sdpa"]
    assert sdpa["forward"]["ms"] > 0 and "backward" not in sdpa and math.isnan(sdpa["errors"]["dq"])
    record = whole([point])
    from rich.console import Console

    console = Console(width=240)
    with console.capture() as seen:
        console.print(show.table(record))
    (line,) = [x for x in seen.get().splitlines() if "SDPA" in x and "backward" in x]
    assert " ".join(line.split()) == "B=1 H=1 S=32 D=16 backward SDPA (FlashAttention 2) NaN"
    (said,) = show.remarks(record)
    assert said.startswith("SDPA (FlashAttention 2), B=1 H=1 S=32 D=16: WRONG: relative errors out ")
    assert said.endswith(", dq nan, dk nan, dv nan") and show.wrong(record)


def test_flex_attention_over_flash_attention_needs_its_package() -> None:
    known = run.Subject("x", print, print, print, True, (False, False), "a sink", "", False)  # type: ignore[arg-type]
    assert not contenders.has_fa4()
    assert run.unable("flex-flash", known, SIZES, "cuda") == "the package flash-attn-4 is not here"
    assert run.unable("flex", known, SIZES, "cuda") == "a sink"


@pytest.mark.parametrize("name", ["causal", "documents", "natten_2d", "window_global", "padding"])
def test_the_fraction_is_counted_whatever_the_blocks(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = api.analyse(specs()[name])
    sizes = inputs.settle(spec, {**SIZES, "Sq": 40})
    _, params = drawn(spec, sizes)
    _, allowed = targets.named("torch").load(flex_source(spec), f"{name}_modifiers").modifiers(1.0, sizes, params)
    known = subject_of((walk.reads(spec.mask, "b"), walk.reads(spec.mask, "h", "hkv")))
    found = run.fraction(known, sizes, allowed, "cpu")
    seen = allowed(*run.positions(sizes, "cpu")).expand(sizes["B"], sizes["Hq"], sizes["Sq"], sizes["Sk"])
    assert found == pytest.approx(float(seen.double().mean()), abs=1e-12)


def subject_of(mask_reads: tuple[bool, bool]) -> run.Subject:
    def never(*_: Any) -> Any:
        raise AssertionError("not called")

    return run.Subject("x", never, never, never, True, mask_reads, "", "", False)


def test_dense_attention_is_the_definition() -> None:
    spec = api.analyse(specs()["windowed_alibi"], {"window": 9})
    (q, k, v), params = drawn(spec, SIZES)
    mods = targets.named("torch").load(flex_source(spec), "w_modifiers").modifiers(0.25, SIZES, params)
    found = run.dense(subject_of((False, False)), SIZES, mods).attend(q, k, v)
    expected = evaluate(spec, q, k, v, params={n: np.asarray(x) for n, x in params.items()}).out
    torch.testing.assert_close(found.double(), torch.from_numpy(expected), rtol=2e-5, atol=2e-5)


def test_libraries_align_causal_masks_otherwise() -> None:
    known = run.Subject("x", print, print, print, True, (False, False), "", "causal", False)  # type: ignore[arg-type]
    longer = {**SIZES, "Sk": 96}
    assert run.unable("sdpa", known, longer, "cuda") and not run.unable("sdpa", known, SIZES, "cuda")
    assert not run.unable("flex", known, longer, "cuda") and not run.unable("attngen", known, longer, "cpu")


def test_turns_go_back_and_forth_and_the_failed_drop_out() -> None:
    order: list[str] = []
    made = {name: Contender(name, lambda q, k, v: None) for name in "abc"}

    def work(contender: Contender) -> Any:
        def once() -> None:
            order.append(contender.name)
            if contender.name == "b" and order.count("b") > 2:
                raise ValueError("worn out")

        return once

    turns = Turns("cpu", 3, 0.0, 0.0)
    outcome = race(made, work, turns, lambda name, error: failure(name, error, "cpu"))
    # Each sample warms up once and runs once.
    assert "".join(order) == "aabbcc" + "ccb" + "aa" + "aacc"
    assert outcome.failures == {"b": "ValueError: worn out"} and outcome.graph_ms == {}
    assert len(outcome.samples["a"]) == 3 and len(outcome.samples["b"]) == 1


# ---- CUDA graphs


def test_a_race_on_a_gpu_ends_with_replays_of_those_who_came_through(monkeypatch: pytest.MonkeyPatch) -> None:
    """In turns, and whatever a graph cannot hold has none; a call's own failure is another matter."""
    done: list[str] = []

    @contextmanager
    def scope() -> Iterator[None]:
        done.append("scope")
        yield

    def sample(work: Any, **_: Any) -> list[float]:
        work()
        return [2.0 if done[-1].startswith("replay") else 20.0]

    def recorded(make: Any) -> Any:
        make()()
        name = done[-1]
        if name == "c":
            raise RuntimeError("operation not permitted when stream is capturing")

        def again() -> None:
            if name == "e" and f"replay {name}" in done:
                raise RuntimeError("an illegal memory access was encountered")
            done.append(f"replay {name}")

        return again

    def work(contender: Contender) -> Any:
        def once() -> None:
            done.append(contender.name)
            if contender.name == "b":
                raise ValueError("worn out")

        return once

    monkeypatch.setattr(clock, "sample", sample)
    monkeypatch.setattr(replay, "recorded", recorded)
    made = {name: Contender(name, lambda q, k, v: None, scope) for name in "abcde"}
    said: list[str] = []
    outcome = race(made, work, Turns("cuda", 2, 0.0, 0.0), lambda name, error: said.append(name) or str(error))
    assert outcome.graph_ms == {"a": 2.0, "d": 2.0} and outcome.failures == {"b": "worn out"}
    assert outcome.samples["c"] == outcome.samples["e"] == [20.0, 20.0] and set(outcome.no_graph) == {"c", "e"}
    assert said == ["b", "c as a CUDA graph", "e as a CUDA graph"]
    assert done[done.index("replay a") - 2 :] == [
        *("scope", "a", "replay a", "scope", "c", "scope", "d", "replay d", "scope", "e", "replay e"),
        *("replay d", "replay a"),
    ]


def test_what_is_timed_backward_has_leaves_of_its_own() -> None:
    q, k, v = (torch.randn(1, 1, 4, 2, requires_grad=True) for _ in range(3))
    seen: list[torch.Tensor] = []

    def attend(*leaves: torch.Tensor) -> torch.Tensor:
        seen.extend(leaves)
        return (leaves[0] * leaves[1] * leaves[2]).sum()

    (dq, _, _) = graph(Contender("a", attend), (q, k, v), torch.tensor(2.0), "backward")()
    torch.testing.assert_close(dq, 2.0 * k * v)
    assert all(x.is_leaf and x is not y and x.data_ptr() == y.data_ptr() for x, y in zip(seen, (q, k, v), strict=True))


def timing(ms: float, tflops: float) -> dict[str, float]:
    return {"ms": ms, "q20": ms * 0.98, "q80": ms * 1.03, "runs": 50, "tflops": tflops}


def test_the_table_shows_ratios_and_once_a_shape_what_is_once() -> None:
    sizes = {"B": 1, "Hq": 8, "Hkv": 2, "Sq": 1024, "Sk": 2048, "D": 64, "Dv": 128}
    ours = {
        "right": True, "errors": {}, "first_result_s": 1.25, "peak_bytes": 3 * 2**20,
        "forward": {**timing(0.5, 400.0), "graph_ms": 0.3}, "backward": timing(1.0, 300.0),
    }  # fmt: skip
    flex = {**ours, "block_mask_ms": 2.5, "backward": timing(1.5, 200.0)}
    flex |= {"forward": {**timing(1.0, 200.0), "graph_ms": 0.9}}
    why = "has causal and full masks alone"
    point = {
        "sizes": sizes, "fraction": 0.5, "dense_peak_bytes": None,
        "contenders": {"attngen": ours, "flex": flex, "sdpa": {"unable": why}},
    }  # fmt: skip
    record = whole([point, point])
    from rich.console import Console

    console = Console(width=240)
    with console.capture() as seen:
        console.print(show.table(record))
    lines = seen.get().splitlines()
    (forward, *_) = [line for line in lines if "FlexAttention" in line]
    assert (
        " ".join(forward.split())
        == "B=1 H=8/2 Sq=1024 Sk=2048 D=64/128 forward FlexAttention 1.000 0.980 - 1.030 200 2.00 0.900 3.00 1.2 2.50 3"
    )
    backward = next(line for line in lines if "FlexAttention" in line and "backward" in line)
    assert " ".join(backward.split()).endswith("backward FlexAttention 1.500 1.470 - 1.545 200 1.50 -")
    assert len([line for line in lines if "attngen " in line and "forward" in line]) == 2
    remarks = show.remarks(record)
    assert remarks[0] == f"SDPA (FlashAttention 2), B=1 H=8/2 Sq=1024 Sk=2048 D=64/128: not measured: {why}"
    assert len(remarks) == 3 and remarks[1].endswith("attngen 3 MiB, dense attention would not fit")


def test_a_picture_has_the_ceiling_and_a_line_for_each() -> None:
    points = []
    for n in (1024, 4096):
        found = {"right": True, "errors": {}, "first_result_s": 1.0, "peak_bytes": n * 2**10, "forward": timing(1, 300)}
        sizes = {**SIZES, "Sq": n, "Sk": n}
        points.append({"sizes": sizes, "dense_peak_bytes": n * n, "contenders": {"attngen": found, "cudnn": found}})
    drawing = show.image(whole(points), "svg").decode()
    for label in (
        "attngen",
        "cuDNN",
        "large matrix product",
        "dense attention",
        "peak memory, MiB",
        "backward, TFLOP/s",
    ):
        assert label in drawing
    assert show.image(whole(points), "png").startswith(b"\x89PNG")
    assert show.image(whole(points), "svg").decode() == drawing


def test_json_writes_what_it_has_no_numbers_for_as_text() -> None:
    text = as_json({"a": [math.inf, math.nan, 1.5], "b": {"c": -math.inf}})
    assert json.loads(text) == {"a": ["inf", "nan", 1.5], "b": {"c": "-inf"}}


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here")
def test_without_a_gpu_there_is_one_message(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    spec = str(EXAMPLES / "causal.attn")
    assert main(["bench", spec, "-o", str(tmp_path / "x.json")]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "bench measures on a GPU, and PyTorch sees none here" in said
    assert not (tmp_path / "x.json").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--against", "flax"], "there is no peer 'flax'; there are flex, flex-flash, sdpa, cudnn, fa4"),
        (["--lengths", "12,x"], "'12,x' are no lengths; write N,N,…, such as 1024,4096,16384"),
        (["--lengths", "0"], "are no lengths"),
        (["--shape", "X=3"], "causal has no size 'X'; there are B, Hq, Hkv, Sq, Sk, D, Dv"),
        (["--shape", "Hq=3", "Hkv=2"], "Hq = 3 is no multiple of Hkv = 2"),
        (["-o", "x.txt"], "-o x.txt: results end in .json, pictures in .svg or .png"),
        (["-D", "window=3"], "window"),
        (["--dtype", "fp32"], "fp32"),
        (["--rep", "0"], "is no time"),
    ],
)
def test_wrong_use_is_refused(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        status = main(["bench", str(EXAMPLES / "causal.attn"), *words])
    except SystemExit as stop:
        status = stop.code
    assert status == 2
    assert message in capsys.readouterr().err
