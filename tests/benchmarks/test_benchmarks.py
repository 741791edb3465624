"""The benchmark's own arithmetic and plumbing, on the CPU: nothing here says how fast anything is."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import cells  # noqa: E402
import check  # noqa: E402
import gpu  # noqa: E402
import peers  # noqa: E402
import plot  # noqa: E402
import report  # noqa: E402
import tiles  # noqa: E402
import tune as tuner  # noqa: E402
from cells import Cell  # noqa: E402

import attngen  # noqa: E402
from attngen.bench import clock, verdict  # noqa: E402
from attngen.plan.hopper import Schedule, Skeleton  # noqa: E402
from attngen.plan.tiles.portable import KERNELS, Tile  # noqa: E402
from attngen.tune import (  # noqa: E402
    gpu as tune,
    gpu_file,
)

SMALL = cells.Settings(window=5, prefix=7, documents=3, cap=2.0, radius=4)

# What a generated file would hold, in plain torch: the variant's own formula on q, k positions i, j.
FORMULAS = {
    "full": ("", "s", "j > -1"),
    "causal": ("", "s", "i >= j"),
    "alibi": ("slope, ", "s - slope[:, None, None] * (i - j).abs()", "i >= j"),
    "softcap": ("", "5.0 * torch.tanh(s / 5.0)", "i >= j"),
    "sliding_window": ("", "s", "(i - j >= 0) & (i - j < 24)"),
    "prefix_lm": ("prefix, ", "s", "(j <= i) | (j < prefix)"),
    "documents": ("ids, ", "s", "(j <= i) & (ids[:, None, :, None] == ids[:, None, None, :])"),
    "relative_bias": ("table, ", "s + table[:, (i - j).clamp(-7, 7) + 7]", "j > -1"),
}


def write_kernels(directory: Path, **changed: tuple[str, str, str]) -> Path:
    """A directory as `gpu.py prepare --dry` writes it, with dense functions for kernels."""
    for variant, (params, score, allowed) in {**FORMULAS, **changed}.items():
        (directory / f"{variant}.py").write_text(
            f"import torch\n"
            f"def {variant}(q, k, v, *, {params}scale=None, return_lse=False, dropout_seed=None):\n"
            f"    n = q.shape[-2]\n"
            f"    i, j = torch.arange(n)[:, None], torch.arange(n)[None, :]\n"
            f"    s = (q.float() @ k.float().mT) / q.shape[-1] ** 0.5\n"
            f"    s = ({score}).masked_fill(~({allowed}), -torch.inf)\n"
            f"    out = (s.softmax(-1) @ v.float()).to(q.dtype)\n"
            f"    return (out, s.logsumexp(-1)) if return_lse else out\n"
        )
    manifest = {
        "settings": {"window": 24, "prefix": 24, "documents": 3, "cap": 5.0, "radius": 7},
        "functions": {variant: variant for variant in FORMULAS},
    }
    (directory / "manifest.json").write_text(json.dumps(manifest))
    for variant in FORMULAS:
        sys.modules.pop(f"attngen_benchmark_{variant}", None)
    return directory


def dry_run(directory: Path, *options: str) -> tuple[int, dict[str, Any]]:
    output = directory / "result.json"
    arguments = ["run", "--kernels", str(directory), "--device", "cpu", "-o", str(output), "--seed", "3", *options]
    return gpu.main(arguments), json.loads(output.read_text())


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Tiny tensors on a shared machine: threads only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


# ---- what is measured ------------------------------------------------------------------------------------------------


def test_the_matrix_is_that_of_the_peers() -> None:
    plain = {(64, 4096), (64, 16384), (128, 1024), (128, 4096), (128, 16384), (256, 4096), (256, 16384)}
    expected = {(v, *shape) for v in ("causal", "full") for shape in plain}
    expected |= {(v, 128, n) for v in cells.VARIANTS if v not in ("causal", "full") for n in (4096, 16384)}
    matrix = cells.matrix()
    assert {(c.variant, c.D, c.N) for c in matrix} == expected
    assert len(matrix) == len(expected)
    assert all(c.B * c.N == 16384 and c.H * c.D == 2048 for c in matrix)


def test_operations_are_counted_as_the_peers_count() -> None:
    cell = Cell("full", 128, 16384)
    assert cell.shape == (1, 16, 16384, 128)
    assert cell.forward_flops(0.5) == 4 * 16 * 16384 * 16384 * 128 * 0.5
    assert cell.backward_flops(1.0) == 10 * 16 * 16384 * 16384 * 128


@pytest.mark.parametrize("variant", cells.VARIANTS)
@pytest.mark.parametrize("n", [4, 33, 64])
def test_the_fraction_is_the_share_of_allowed_pairs(variant: str, n: int) -> None:
    cell = Cell(variant, 16, n, tokens=3 * n, width=32)
    inputs = cells.make_inputs(cell, SMALL, device="cpu", dtype=torch.float32, seed=0)
    allowed = cells.mask_mod(variant, SMALL, inputs.params)
    i, j = torch.arange(n)[:, None], torch.arange(n)[None, :]
    masks = [torch.ones(n, n, dtype=torch.bool) if allowed is None else allowed(b, 0, i, j) for b in range(cell.B)]
    counted = torch.stack([m.expand(n, n) for m in masks]).double().mean().item()
    assert cells.fraction(cell, SMALL) == pytest.approx(counted, abs=1e-12)


def test_documents_fill_each_row_unevenly() -> None:
    rows = cells.document_lengths(Cell("documents", 128, 4096), 8)
    assert len(rows) == 4 and all(len(row) == 8 and sum(row) == 4096 and min(row) > 0 for row in rows)
    assert len({tuple(row) for row in rows}) == 4 and len(set(rows[0])) > 4


def test_inputs_follow_the_seed() -> None:
    cell = Cell("relative_bias", 16, 32, tokens=64, width=32)
    a, b, c = (cells.make_inputs(cell, SMALL, device="cpu", dtype=torch.bfloat16, seed=s) for s in (1, 1, 2))
    assert torch.equal(a.q, b.q) and not torch.equal(a.q, c.q) and not torch.equal(a.q, a.k)
    assert a.q.shape == (2, 2, 32, 16) and a.q.requires_grad and not a.params["table"].requires_grad


def test_the_command_line_knows_every_variant_and_peer() -> None:
    args = gpu.parser().parse_args(["run", "--only", ",".join(cells.VARIANTS), "--peers", ",".join(peers.PEERS)])
    assert args.only == cells.VARIANTS and args.peers == peers.PEERS == gpu.parser().parse_args(["run"]).peers
    with pytest.raises(SystemExit):
        gpu.parser().parse_args(["run", "--only", "everything"])
    with pytest.raises(SystemExit):
        gpu.parser().parse_args(["run", "--shapes", "128x4096"])


def test_cells_are_chosen_by_variant_and_shape() -> None:
    found = gpu.chosen(("alibi", "causal"), [(128, 4096)], quick=False, device="cuda")
    assert [c.key for c in found] == ["causal:128:4096", "alibi:128:4096"]
    assert [c.key for c in gpu.chosen(("full",), [(96, 2048)], quick=False, device="cuda")] == ["full:96:2048"]


# ---- right or wrong --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", ["full", "causal", "prefix_lm"])
def test_the_dense_form_agrees_with_torch(variant: str) -> None:
    cell = Cell(variant, 16, 48, tokens=96, width=32)
    inputs = cells.make_inputs(cell, SMALL, device="cpu", dtype=torch.float32, seed=5)
    q, k, v = (x.detach().double().requires_grad_() for x in inputs.qkv)
    i, j = torch.arange(48)[:, None], torch.arange(48)[None, :]
    mask = {"full": j >= 0, "causal": j <= i, "prefix_lm": (j <= i) | (j < 7)}[variant].expand(48, 48)
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    grads = torch.autograd.grad(out, (q, k, v), inputs.grad_out.double())
    found = check.dense(cell, SMALL, inputs, 1, 0, rows=20)  # a last block that is shorter
    for x, ref in zip((found.out, found.dq, found.dk, found.dv), (out, *grads), strict=True):
        assert verdict.error(x, [(x, ref.detach()[1, 0].float())]) < 1e-5


def test_the_check_finds_what_is_wrong() -> None:
    cell = Cell("causal", 16, 48, tokens=96, width=32)
    inputs = cells.make_inputs(cell, SMALL, device="cpu", dtype=torch.float32, seed=6)
    truth = check.truth(cell, SMALL, inputs)

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, shift: int = 0) -> torch.Tensor:
        mask = torch.ones(48, 48, dtype=torch.bool).tril(shift)
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    worst = check.errors(inputs, truth, attend, backward=True)
    assert set(worst) == {"out", "dq", "dk", "dv"} and verdict.right(worst) and max(worst.values()) < 1e-5
    assert not verdict.right(check.errors(inputs, truth, lambda q, k, v: attend(q, k, v, 1), backward=False))
    stuck = check.errors(inputs, truth, lambda q, k, v: attend(q, k.detach(), v) + 0 * k.sum(), backward=True)
    assert not verdict.right(stuck) and stuck["out"] < 1e-5 and stuck["dk"] == pytest.approx(1.0)
    # One element that nothing wrote, in a head that isn't looked at closely.
    hole = torch.zeros(cell.shape)
    for unwritten in (math.inf, math.nan):
        hole[0, 1, 3, 3] = unwritten
        worst = check.errors(inputs, truth, lambda q, k, v: attend(q, k, v) + hole, backward=False)
        assert str(worst["out"]) == str(unwritten) and not verdict.right(worst)
    assert not verdict.right({"out": math.nan})


def test_a_softcap_left_out_is_noticed() -> None:
    cell = Cell("softcap", 64, 64, tokens=64, width=64)
    inputs = cells.make_inputs(cell, cells.FULL_SIZE, device="cpu", dtype=torch.bfloat16, seed=7)
    seen = check.check_inputs(cell, inputs)
    truth = check.truth(cell, cells.FULL_SIZE, seen)

    def lse(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        scores = (q.float() @ k.float().mT) / 8
        return scores.masked_fill(~torch.ones(64, 64, dtype=torch.bool).tril(), -math.inf).logsumexp(-1)

    def plain(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    assert not verdict.right(check.errors(seen, truth, plain, backward=False, lse=lse))


@pytest.mark.parametrize("variant", ["alibi", "softcap", "documents", "relative_bias"])
def test_flex_attention_gets_the_same_variant(variant: str) -> None:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    cell = Cell(variant, 16, 128, tokens=256, width=32)
    settings = cells.DRY_SIZE
    inputs = cells.make_inputs(cell, settings, device="cpu", dtype=torch.float32, seed=8)
    allowed = cells.mask_mod(variant, settings, inputs.params)
    block_mask = None if allowed is None else create_block_mask(allowed, 2, None, 128, 128, device="cpu")
    change = cells.score_mod(variant, settings, inputs.params)
    q, k, v = (x.detach() for x in inputs.qkv)
    out = flex_attention(q, k, v, score_mod=change, block_mask=block_mask)
    for b, h in check.heads(cell):
        assert verdict.error(out, [(out[b, h], check.dense(cell, settings, inputs, b, h).out)]) < 1e-5


# ---- the whole run, without a GPU ------------------------------------------------------------------------------------


def test_a_dry_run_measures_every_variant(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, result = dry_run(write_kernels(tmp_path))
    assert status == 0
    assert [c["variant"] for c in result["cells"]] == list(cells.VARIANTS)
    assert result["dry_run"] and result["machine"] and set(result["versions"]) >= {"torch", "triton"}
    assert set(result["kernels"]) == set(cells.VARIANTS)
    for cell in result["cells"]:
        there = {n: c for n, c in cell["contenders"].items() if "unable" not in c}
        assert set(there) == ({"attngen", "sdpa"} if cell["variant"] in ("full", "causal") else {"attngen"})
        assert cell["contenders"]["flex"] == {"unable": "runs on a GPU alone"}
        for contender in there.values():
            assert contender["right"]
            for direction, counted in (("forward", 1.0), ("backward", 2.5)):
                timing = contender[direction]
                flops = counted * 4 * cell["B"] * cell["H"] * cell["N"] ** 2 * cell["D"] * cell["fraction"]
                assert timing["tflops"] == pytest.approx(flops / timing["ms"] / 1e9)
                assert timing["q20"] <= timing["ms"] <= timing["q80"] and timing["runs"] >= 3
                assert "graph_ms" not in timing  # there are no CUDA graphs here
    assert (tmp_path / "result.svg").stat().st_size > 1000
    shown = capsys.readouterr().out
    assert "relative_bias" in shown and "dry run" in shown and not report.troubles(result)


def test_a_wrong_kernel_gets_no_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = {"causal": ("", "s", "i > j - 2")}
    status, result = dry_run(write_kernels(tmp_path, **wrong), "--only", "causal,prefix_lm", "--no-plot")
    assert status == 1
    found = {c["variant"]: c["contenders"]["attngen"] for c in result["cells"]}
    assert not found["causal"]["right"] and "forward" not in found["causal"]
    assert "forward" in found["prefix_lm"] and "forward" in result["cells"][0]["contenders"]["sdpa"]
    assert "wrong" in capsys.readouterr().out


def test_a_failing_kernel_is_reported_and_the_run_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken = {"full": ("", "s.reshape(7)", "j > -1")}
    status, result = dry_run(write_kernels(tmp_path, **broken), "--only", "full,causal", "--no-plot", "--no-backward")
    assert status == 1
    full, causal = (c["contenders"] for c in result["cells"])
    assert full["attngen"]["failure"].startswith("RuntimeError: shape '[7]'") and "forward" in full["sdpa"]
    assert "forward" in causal["attngen"] and "backward" not in causal["attngen"]
    assert "failed" in capsys.readouterr().out and str(tmp_path) not in json.dumps(result)


def test_the_budget_ends_the_run_with_what_there_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, result = dry_run(write_kernels(tmp_path), "--budget", "0")
    assert status == 1 and result["cells"] == []
    assert "not measured: full:16:64 causal:16:64" in capsys.readouterr().out


def test_kernels_with_other_constants_are_refused(tmp_path: Path) -> None:
    manifest = json.loads((write_kernels(tmp_path) / "manifest.json").read_text())
    manifest["settings"]["window"] = 1024
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(SystemExit, match="prepare it again"):
        dry_run(tmp_path)


def test_generated_kernels_pass_the_benchmarks_check(tmp_path: Path) -> None:
    """The files themselves, prepared by the run, in Triton's interpreter; another process, for its environment."""
    output = tmp_path / "r.json"
    command = [sys.executable, str(BENCHMARKS / "gpu.py"), "run", "--device", "cpu", "--quick", "--no-plot"]
    done = subprocess.run([*command, "-o", str(output)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    cells_seen = json.loads(output.read_text())["cells"]
    assert [c["variant"] for c in cells_seen] == ["causal", "documents"]
    for cell in cells_seen:
        assert cell["contenders"]["attngen"]["right"] and "backward" in cell["contenders"]["attngen"]


def test_preparing_adds_to_what_is_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for variant in ("causal", "full"):
        assert gpu.main(["prepare", str(tmp_path), "--dry", "--only", variant]) == 0
    assert peers.Kernels.at(tmp_path).functions == {"causal": "causal", "full": "full"}
    assert "def causal(" in (tmp_path / "causal.py").read_text()
    status, result = dry_run(tmp_path, "--only", "alibi", "--no-plot")
    assert status == 1 and result["cells"][0]["contenders"]["attngen"]["failure"].startswith("ValueError: no kernel of")
    assert gpu.main(["prepare", str(tmp_path), "--only", "full"]) == 0  # other constants: what was there is stale
    assert peers.Kernels.at(tmp_path).functions == {"full": "full"}


# ---- the report ------------------------------------------------------------------------------------------------------


def timed(ms: float, tflops: float) -> dict[str, float | int]:
    return {"ms": ms, "q20": 0.99 * ms, "q80": 1.01 * ms, "runs": 9, "tflops": tflops}


def fake_result(**speeds: float) -> report.Result:
    """One softcap cell with these TFLOP/s."""
    contenders = {n: {"right": True, "errors": {}, "forward": timed(1e3 / s, s)} for n, s in speeds.items()}
    cell = {"key": "softcap:128:4096", "variant": "softcap", "D": 128, "N": 4096, "B": 4, "H": 16}
    cell |= {"fraction": 0.5, "target": cells.target(Cell("softcap", 128, 4096)), "contenders": contenders}
    versions = {"torch": "2", "triton": "3"}
    return {"machine": "M", "date": "2026-01-01T00:00:00", "versions": versions, "dry_run": False, "cells": [cell]}


def test_ratios_and_targets() -> None:
    result = fake_result(attngen=260.0, flex=200.0, cudnn=520.0)
    cell = result["cells"][0]
    assert report.ratio(cell, "flex", "forward") == pytest.approx(1.3)
    assert report.ratio(cell, "flex", "backward") is None and report.ratio(cell, "sdpa", "forward") is None
    assert report.short_of_target(cell, "forward") and not report.short_of_target(cell, "backward")
    assert not report.short_of_target(fake_result(attngen=310.0, flex=200.0)["cells"][0], "forward")
    row = report.table(result).splitlines()[1]
    assert "200 x1.30" in row and "520 x0.50" in row and row.endswith("<") and "1.0" in row.split()
    assert "below target against FlexAttention: 1 of 1" in report.table(result)
    assert cells.target(Cell("full", 256, 4096)) == 1.5 and cells.target(Cell("full", 128, 4096)) == 1.0


def test_replays_stand_beside_the_calls(tmp_path: Path) -> None:
    old, new = fake_result(attngen=100.0, flex=100.0), fake_result(attngen=200.0, flex=100.0, cudnn=200.0)
    (cell,) = new["cells"]
    cell["contenders"]["attngen"]["forward"]["graph_ms"] = 4.0
    cell["contenders"]["flex"]["forward"]["graph_ms"] = 5.0
    assert report.graph_ratio(cell, "flex", "forward") == pytest.approx(1.25)
    assert report.graph_ratio(cell, "cudnn", "forward") is None
    header, row = report.table(new).splitlines()[:2]
    assert header.split()[-6:] == ["attngen", "replay", "flex", "replay", "cudnn", "replay"]
    assert row.split()[-4:] == ["4.000", "5.000", "x1.25", "-"]  # none of cuDNN
    assert "attngen / flex, forward: geometric mean 2.00, least 2.00" in report.table(new)
    assert "attngen / flex, forward, by replays: geometric mean 1.25, least 1.25" in report.table(new)
    # A file of before has none; merged, the cells keep what they have.
    assert report.table(old).splitlines()[1].split()[-3:] == ["-", "-", "<"] and "replays: geo" not in report.table(old)
    old["cells"][0]["key"] = "softcap:128:16384"
    report.write(tmp_path / "r.json", report.merge([old, new]))
    first, second = report.read(tmp_path / "r.json")["cells"]
    assert report.graph_ms(first, "attngen", "forward") is None
    assert report.graph_ms(second, "attngen", "forward") == 4.0


def of_key(key: str, **contenders: dict[str, Any]) -> dict[str, Any]:
    variant, D, N = key.split(":")
    return {"key": key, "variant": variant, "D": int(D), "N": int(N), "target": 1, "contenders": contenders}


def test_readmes_table_has_a_word_where_a_peer_has_no_time() -> None:
    def right(forward: float, backward: float) -> dict[str, Any]:
        errors = {"out": 1e-3, "dq": 1e-3}
        return {"right": True, "errors": errors, "forward": timed(1.0, forward), "backward": timed(1.0, backward)}

    missing = {"unable": "the package flash-attn-4 is not here"}
    stuck = {"right": False, "errors": {"out": 1e-3, "dq": "nan"}, "forward": timed(1.0, 446.4)}
    result = fake_result(attngen=1.0)  # a softcap cell that the table lacks
    result["cells"] += [
        of_key("alibi:128:16384", attngen=right(751.3, 628.0), flex=right(344.0, 376.0), **{"flex-flash": stuck}),
        of_key("causal:64:16384", attngen=right(564.0, 550.0), fa4=missing, cudnn=right(463.0, 438.6)),
        of_key("full:128:16384", attngen=right(711.0, 630.0), fa4=missing, flex={"failure": "Broken: by\nit"}),
    ]
    assert report.readme(result).splitlines() == [
        "| | attngen | FlashAttention 4 | cuDNN | FlexAttention | FlexAttention, FlashAttention 4 |",
        "|---|---|---|---|---|---|",
        "| D = 64, N = 16384, causal | 564 / 550 | n/a | 463 / 439 |  |  |",
        "| D = 128, N = 16384, full | 711 / 630 | n/a |  | failed |  |",
        "| ALiBi, causal, N = 16384 | 751 / 628 |  |  | 344 / 376 | 446 / NaN |",
        "M, 2026-01-01T00:00:00, {'torch': '2', 'triton': '3'}",
        "  causal:64:16384 fa4: not measured: the package flash-attn-4 is not here",
        "  full:128:16384 flex: FAILED: Broken: by",
        "  alibi:128:16384 flex-flash: WRONG: relative errors out 1.0e-03, dq nan",
    ]
    shown = report.table(result).splitlines()
    (alibi,) = [line for line in shown if "alibi" in line and "bwd" in line]
    assert "376 x1.67" in alibi and "NaN" in alibi.split()
    assert report.troubles(result) == [
        ("alibi:128:16384", "flex-flash", "WRONG: relative errors out 1.0e-03, dq nan"),
        ("full:128:16384", "flex", "FAILED: Broken: by"),
    ]


def test_readmes_cells_are_of_the_matrix() -> None:
    assert set(report.README) <= {c.key for c in cells.matrix()}
    picked = gpu.chosen((), [], quick=False, device="cuda", readme=True)
    assert {c.key for c in picked} == set(report.README)


def test_readmes_table_and_chart_are_of_its_results(tmp_path: Path) -> None:
    """matplotlib writes each text beside its outline, as a comment."""
    result = report.read(BENCHMARKS / "readme.json")
    front = (BENCHMARKS.parent / "README.md").read_text(encoding="utf-8").splitlines()
    table = report.readme(result).splitlines()[: 2 + len(result["cells"])]
    assert len(table) == 9 and [line for line in table if line not in front] == []
    shapes = "There are 16,384 tokens in all and 2,048 / D heads, of queries and of keys"
    shapes += "; D is 128 where a row names none"
    speed = (BENCHMARKS.parent / "docs" / "speed.md").read_text(encoding="utf-8").splitlines()
    assert f"{shapes}." in front and f"{shapes}." in speed
    assert {(c["B"] * c["N"], c["H"] * c["D"]) for c in result["cells"]} == {(16384, 2048)}
    assert {c["D"] for c in result["cells"] if "D = " not in report.README[c["key"]]} == {128}
    speeds = [f"{report.tflops(c, 'attngen', d):.0f}" for c in result["cells"] for d in report.DIRECTIONS]
    for page in ("light", "dark"):
        plot.headline(result, tmp_path / "drawn.svg", page)
        drawn, kept = (p.read_text() for p in (tmp_path / "drawn.svg", BENCHMARKS / f"readme.{page}.svg"))
        said = re.findall("<!-- (.*?) -->", drawn)
        assert set(speeds) <= set(said) and said.count("n/a") == 2
        assert f"one NVIDIA H200, {result['date'][:10]}, bfloat16; higher is faster" in said
        assert said == re.findall("<!-- (.*?) -->", kept), "run `gpu.py chart benchmarks/readme.json`"
        bars = sum(len(c["contenders"]) * len(report.DIRECTIONS) for c in result["cells"])
        colours = "|".join(plot.COLOURS[name] for name in report.COLUMNS)
        assert len(re.findall(f"fill: (?:{colours})", drawn)) == bars + len(report.COLUMNS)


def test_who_has_a_variant_and_who_is_here() -> None:
    alibi, causal = Cell("alibi", 128, 4096), Cell("causal", 128, 4096)
    assert [n for n in peers.PEERS if peers.applies(n, alibi)] == ["flex", "flex-flash"]
    assert [n for n in peers.PEERS if peers.applies(n, causal)] == list(peers.PEERS)
    with pytest.raises(ValueError, match="no peer 'fa5'; there are flex, flex-flash, cudnn, sdpa, fa4"):
        peers.applies("fa5", causal)
    assert not peers.has_fa4()
    lacking = {n: why for n in peers.PEERS if (why := peers.unable(n, causal, device="cuda"))}
    assert lacking == dict.fromkeys(("flex-flash", "fa4"), "the package flash-attn-4 is not here")


def test_processes_compile_beforehand(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--only", "causal", "--no-plot", "--workers", "1", "--peers", "flex")
    status, result = dry_run(write_kernels(tmp_path), *options)
    assert status == 0 and result["warmed"] and "1 processes compiled for" in capsys.readouterr().out
    given = ["warm", "--kernels", str(tmp_path), "--device", "cpu", "--only", "causal,full", "--slice", "1/2"]
    broken = {"causal": ("", "s.reshape(7)", "j > -1")}
    write_kernels(tmp_path, **broken)
    assert gpu.main(given) == 0
    assert "causal:16:64 attngen FAILED" in capsys.readouterr().out  # of two cells, the second is its share


def test_results_merge_by_cell_and_by_machine(tmp_path: Path) -> None:
    old, new = fake_result(attngen=100.0, flex=100.0), fake_result(attngen=200.0, flex=100.0)
    new["date"] = "2026-01-02T00:00:00"
    old["cells"].append({**old["cells"][0], "key": "other", "variant": "full"})
    merged = report.merge([old, new])
    assert [c["key"] for c in merged["cells"]] == ["softcap:128:4096", "other"]
    assert [c["date"][:10] for c in merged["cells"]] == ["2026-01-02", "2026-01-01"]
    assert report.tflops(merged["cells"][0], "attngen", "forward") == 200.0
    with pytest.raises(ValueError, match="machine"):
        report.merge([old, {**new, "machine": "another"}])
    report.write(tmp_path / "a" / "r.json", merged)
    assert report.read(tmp_path / "a" / "r.json") == merged and len(list((tmp_path / "a").iterdir())) == 1
    plot.draw(merged, tmp_path / "p.png")
    assert (tmp_path / "p.png").read_bytes()[:4] == b"\x89PNG"


def test_an_infinite_error_is_strict_json(tmp_path: Path) -> None:
    result = fake_result(attngen=1.0)
    result["cells"][0]["contenders"]["attngen"] |= {"right": False, "errors": {"out": math.inf, "dq": math.nan}}
    report.write(tmp_path / "r.json", result)
    again = json.loads((tmp_path / "r.json").read_text(), parse_constant=lambda _: pytest.fail("not JSON"))
    why = "WRONG: relative errors out inf, dq nan"
    assert report.troubles(again) == report.troubles(result) == [("softcap:128:4096", "attngen", why)]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_the_host_alone_without_a_gpu(tmp_path: Path) -> None:
    """Triton compiles for sm_90 and launches, above a driver that does nothing."""
    spec = BENCHMARKS.parent / "examples" / "causal.attn"
    (tmp_path / "causal.py").write_text(attngen.compile(spec.read_text(encoding="utf-8")).source)
    environment = {n: x for n, x in os.environ.items() if n != "TRITON_INTERPRET"}
    ran = subprocess.run(
        [sys.executable, str(BENCHMARKS / "host.py"), str(tmp_path), "--only", "causal:64", "--rounds", "1"],
        env={**environment, "TRITON_CACHE_DIR": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        check=True,
    )
    found = {line.split(": ")[0]: float(line.split(": ")[1].split()[0]) for line in ran.stdout.splitlines()}
    assert list(found) == [f"causal:64 {what}" for what in ("launch", "call", "call with gradients", "backward")]
    assert all(0 < us < 1e5 for us in found.values())


def test_the_clock_sums_up() -> None:
    timing = clock.summary([5.0, 1.0, 2.0, 3.0, 4.0])
    assert (timing.ms, timing.q20, timing.q80, timing.runs) == (3.0, 1.8, 4.2, 5)
    assert timing.record(6e12)["tflops"] == pytest.approx(2000.0) and "graph_ms" not in timing.record(6e12)
    assert timing.record(6e12, 2.5) == {**timing.record(6e12), "graph_ms": 2.5}
    assert report.geometric_mean([0.5, 2.0]) == pytest.approx(1.0)
    assert len(clock.sample(lambda: None, device="cpu", warmup_ms=0, rep_ms=0)) == 1


# ---- tiles -----------------------------------------------------------------------------------------------------------

SMALL_TILE, WIDE_TILE, OTHER_TILE = Tile(64, 64, 4, 2), Tile(128, 64, 4, 2), Tile(64, 128, 4, 2)


def tried(length: int, times: dict[tuple[str, Tile | None], float | None], card: str = "a card") -> tune.Tuning:
    trials = (
        tune.Trial(kernel, tile, ms, "" if ms is not None else "shared memory") for (kernel, tile), ms in times.items()
    )
    return tune.Tuning(tune.Key("0123456789", card, "sm_90", "bf16", 128, (("Sq", length),)), tuple(trials))


def both(small: float, wide: float) -> dict[tuple[str, Tile | None], float | None]:
    return {(kernel, tile): ms for kernel in KERNELS for tile, ms in ((SMALL_TILE, small), (WIDE_TILE, wide))}


def test_ranking_is_by_the_loss_over_every_case() -> None:
    first, second = {SMALL_TILE: 1.0, WIDE_TILE: 1.5, OTHER_TILE: 0.5}, {SMALL_TILE: 4.0, WIDE_TILE: 2.0}
    scores = tiles.ranking([first, second])  # one wasn't timed in the second case
    assert [s.setting for s in scores] == [WIDE_TILE, SMALL_TILE]
    assert [s.loss for s in scores] == pytest.approx([1.5**0.5, 2**0.5])
    assert tiles.ranking([{OTHER_TILE: 0.5}, second]) == []


def test_one_row_of_tiles_for_two_lengths(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    short = {**both(1.0, 1.2), ("forward", None): 0.9, ("dq", OTHER_TILE): None}
    path = tmp_path / "tried.json"
    path.write_text(gpu_file.dump([tried(4096, short), tried(16384, {**both(9.0, 4.0), ("forward", None): 3.0})]))
    assert tiles.main([str(path), "-o", str(tmp_path / "t.json")]) == 0
    shown = capsys.readouterr().out
    won = (tuple(WIDE_TILE),) * 3
    assert f"TILES[('sm_90', 2, 128)] = {won}" in shown and "the chip's own kernel" in shown
    assert "01234567 bf16 Sq=4096" in shown and "01234567 bf16 Sq=16384" in shown
    (row,) = json.loads((tmp_path / "t.json").read_text())["rows"]
    assert row["row"] == ["sm_90", 2, 128] and row["won"] == [list(WIDE_TILE)] * 3
    assert [s["tile"] for s in row["forward"]] == [None, list(WIDE_TILE), list(SMALL_TILE)]
    assert row["dq"][0]["ms"] == [1.2, 4.0] and row["dq"][0]["loss"] == pytest.approx(1.2**0.5)


def test_a_row_without_a_winner_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "tried.json"
    path.write_text(gpu_file.dump([tried(64, {("forward", None): 1.0})]))
    assert tiles.main([str(path)]) == 1
    assert "no tile ran in every case" in capsys.readouterr().out


def row_of(**changes: Any) -> Skeleton:
    row = Skeleton(128, 128, 2, True, 240, 24, 1, Schedule.QUEUE, True)
    return dataclasses.replace(row, **changes)


def rows_tried(length: int, own: Skeleton, times: dict[str, float]) -> tune.Tuning:
    """Milliseconds of the spec's own row, of an ordered one, and of one with other heads."""
    rows = {
        "own": own,
        "ordered": dataclasses.replace(own, ordered=True),
        "heads": dataclasses.replace(own, together=16),
    }
    trials = tuple(tune.Trial("forward", rows[name], ms) for name, ms in times.items())
    return tune.Tuning(tune.Key("0123456789", "a card", "sm_90", "bf16", 128, (("Sq", length),)), trials)


def test_rows_of_specs_with_other_heads_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = rows_tried(4096, row_of(), {"own": 1.0, "ordered": 0.9, "heads": 0.8})
    two = rows_tried(16384, row_of(together=8, ahead=256), {"own": 4.0, "ordered": 3.9})
    path = tmp_path / "tried.json"
    path.write_text(gpu_file.dump([one, two]))
    assert tiles.main([str(path), "-o", str(tmp_path / "t.json")]) == 0
    shown = capsys.readouterr().out
    assert "TILES" not in shown and "forward, (128, 128):" in shown
    (found,) = json.loads((tmp_path / "t.json").read_text())["own"]
    ordered = row_of(ordered=True, together=tiles.RULE)
    assert found["won"] == repr(ordered) and found["now"] == repr(row_of(together=tiles.RULE))
    assert f"and should have: {ordered!r}" in shown
    assert [s["ms"] for s in found["ranking"]] == [[0.9, 3.9], [1.0, 4.0]]


def test_a_row_within_the_noise_stays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "tried.json"
    path.write_text(gpu_file.dump([rows_tried(4096, row_of(), {"own": 1.0, "ordered": 0.995, "heads": 1.2})]))
    assert tiles.main([str(path)]) == 0
    assert "plan/tiles/hopper.py keeps its row (x1.005)" in capsys.readouterr().out
    path.write_text(gpu_file.dump([rows_tried(64, row_of(), {"own": 1.0}), rows_tried(96, row_of(), {"ordered": 1.0})]))
    assert tiles.main([str(path)]) == 0  # a spec's own row is what it tried first: two groups


def test_files_that_tiles_cannot_rank(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "tried.json"
    path.write_text(gpu_file.dump([tried(64, both(1.0, 2.0)), tried(64, both(1.0, 2.0), card="another")]))
    assert tiles.main([str(path)]) == 2
    assert "times of a card and of another don't compare" in capsys.readouterr().err
    path.write_text("{}")
    assert tiles.main([str(path)]) == 2
    assert "tried.json is no file that `attngen tune --target triton` wrote" in capsys.readouterr().err


# ---- tune ------------------------------------------------------------------------------------------------------------


class Ahead:
    """Stands for the processes that compile: says what it was asked for."""

    def __init__(self) -> None:
        self.begun: list[tuple[int, tune.Candidate]] = []

    def begin(self, job: Any, candidates: Sequence[tune.Candidate]) -> None:
        self.begun += [(dict(job.request.calls[0].sizes)["Sq"], c) for c in candidates]

    def wait(self, job: Any, candidate: tune.Candidate) -> None:
        pass

    def timer(self, job: Any, timer: tune.Timer) -> tune.Timer:
        return timer


def made_up(kernel: str, setting: tune.Setting) -> float:
    if isinstance(setting, Skeleton):
        return 1.5 + 0.5 * setting.ordered - 0.3 * (setting.keys == 64)
    return 3.0


def benches(known: dict[tune.Key, tune.Tuning]) -> list[tuner.Bench]:
    kernel = tuner.build("causal")
    cases = tuner.cases(["causal"], [128], [512, 1024])
    found = [tuner.Bench(case, kernel, "a card", known, ("cuda", 90, 32)) for case in cases]
    for bench in found:
        bench._timer = made_up
    return found


def test_cases_are_tuned_round_after_round() -> None:
    made, ahead = benches({}), Ahead()
    for _ in tuner.run(made, ahead, float("inf")):  # type: ignore[arg-type]
        pass
    short, long = made
    rounds = tune.rounds({}, short.tuning.key, short.rows, tiles=False)
    first, second = rounds[0][1](short.tuning), rounds[1][1](short.tuning)
    assert [(t.kernel, t.setting) for t in short.tuning.trials] == [*first, *second] and len(second) == 1
    assert {(t.kernel, t.setting) for t in long.tuning.trials} == {*first, *second}
    assert [n for n, _ in ahead.begun] == [512] * (len(first) + len(second))  # the other length has the same binaries
    assert ahead.begun[0][1] == ("forward", short.rows.forward) and ahead.begun[1][1] == (
        "backward",
        short.rows.backward,
    )
    best = short.tuning.best()
    assert best is not None and isinstance(best.forward, Skeleton)
    assert not best.forward.ordered and best.forward.keys == 64
    again, nothing = benches({b.tuning.key: b.tuning for b in made}), Ahead()
    assert [*tuner.run(again, nothing, float("inf"))] == [] and nothing.begun == []  # type: ignore[arg-type]


def test_a_budget_stops_between_two_trials() -> None:
    made = benches({})
    assert len([*tuner.run(made, Ahead(), 0.0)]) == 1  # type: ignore[arg-type]
    assert [len(b.tuning.trials) for b in made] == [1, 0]


def test_a_lost_device_ends_the_run_and_is_passed_by(monkeypatch: pytest.MonkeyPatch) -> None:
    made = benches({})
    victim = tune.rounds({}, made[0].tuning.key, made[0].rows, tiles=False)[0][1](made[0].tuning)[-1]

    def timer(kernel: str, setting: tune.Setting) -> float:
        if (kernel, setting) == victim:
            raise tune.LostError("no end after 20 s")
        return made_up(kernel, setting)

    monkeypatch.setattr(made[0], "_timer", timer)
    with pytest.raises(tune.LostError):
        list(tuner.run(made, Ahead(), float("inf")))  # type: ignore[arg-type]
    assert made[1].tuning.trials == () and made[0].tuning.tried(*victim)
    again = benches({made[0].tuning.key: made[0].tuning})
    for _ in tuner.run(again, Ahead(), float("inf")):  # type: ignore[arg-type]
        pass
    assert all(b.tuning.best() is not None for b in again)


def test_every_case_has_heads_of_its_width() -> None:
    found = tuner.cases([*tuner.PLAIN, *tuner.VARIANTS], [128, 64, 256], tuner.LENGTHS)
    assert len(found) == 30 and len(set(found)) == 30
    for case in found:
        sizes = case.wanted
        assert sizes["B"] * sizes["Sq"] == 16384 and sizes["Hq"] * sizes["D"] == 2048
        assert f"attention {case.spec}" in tuner.source_of(case.spec).text


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here")
def test_tuning_needs_a_gpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert tuner.main(["-o", str(tmp_path / "t.json")]) == 2
    assert "tune.py measures on a GPU" in capsys.readouterr().err
    assert tuner.main(["--specs", "causal,colour"]) == 2
    assert "no spec 'colour'" in capsys.readouterr().err
