"""Tiles for GPUs: what is tried, resumed, kept and read back. Times are made up here, and passed in as such."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import attngen
from attngen import api
from attngen.bench.tiles import Bench
from attngen.cli.main import main
from attngen.cli.tune import tune_with
from attngen.errors import Source, UsageError
from attngen.plan.chips import SHARED_MEMORY
from attngen.plan.tiles.hopper_trials import Rows
from attngen.plan.tiles.portable import KERNELS, Tile, shared_bytes
from attngen.runtime.loader import load
from attngen.tune import gpu as tune, gpu_file, keys as tile_keys

EXAMPLES = Path(__file__).parents[3] / "examples"
SIZES = (("B", 1), ("Hq", 8), ("Hkv", 8), ("Sq", 4096), ("Sk", 4096), ("D", 128), ("Dv", 128))
NONE = Rows()
OWN = {"forward": Tile(64, 128, 4, 1), "dkdv": Tile(64, 64, 4, 2), "dq": Tile(128, 64, 8, 3)}


def key(text: str = "x", *, card: str = "NVIDIA H200", sizes: Any = SIZES) -> tune.Key:
    return tune.Key(text, card, "sm_90", "bf16", 128, sizes)


class Timer:
    """Made-up milliseconds: 128 keys are fast; three stages don't fit."""

    def __init__(self, *, lost: Tile | None = None):
        self.asked: list[tune.Candidate] = []
        self.lost = lost

    def __call__(self, kernel: str, setting: tune.Setting) -> float:
        self.asked.append((kernel, setting))
        assert isinstance(setting, Tile)
        if setting == self.lost:
            raise tune.LostError("an illegal memory access")
        if setting.stages == 3:
            raise tune.RefusedError("OutOfResources: shared memory")
        return 3.0 + (setting.keys != 128) + 0.1 * setting.warps + 0.01 * setting.stages


def test_candidates_are_the_files_own_and_what_fits() -> None:
    found = tune.candidates(OWN, key())
    assert found[0] == ("forward", OWN["forward"])
    assert len(found) == len(set(found))
    for kernel in KERNELS:
        tiles = [t for k, t in found if k == kernel]
        assert tiles[0] == OWN[kernel] and len(tiles) > 10
        for tile in tiles[1:]:
            assert shared_bytes(kernel, tile, "sm_90", 2, 128) <= SHARED_MEMORY["sm_90"] * 1024
            assert tune.accumulators(kernel, tile, 128) <= 320
    assert tune.candidates(OWN, key(), backward=False) == [c for c in found if c[0] == "forward"]
    small = tune.Key("x", "a card", "sm_86", "fp32", 256, SIZES)
    assert len(tune.candidates(OWN, small)) < len(found)


def test_what_was_tried_is_not_tried_again(tmp_path: Path) -> None:
    path = str(tmp_path / "t.json")
    ticks = iter(range(1000))
    first = Timer()
    stopped = tune_with(key(), OWN, NONE, first, path, budget=9.5, clock=lambda: float(next(ticks)))
    assert len(first.asked) == len(stopped.trials) == 10 and stopped.best() is None
    second = Timer()
    whole = tune_with(key(), OWN, NONE, second, path)
    waiting = tune.candidates(OWN, key())
    assert first.asked + second.asked == waiting
    third = Timer()
    assert tune_with(key(), OWN, NONE, third, path) == whole
    assert third.asked == []
    best = whole.best()
    assert best is not None and best.forward == best.dkdv == best.dq == Tile(64, 128, 4, 1)
    assert [t.ms for t in whole.ranked("forward")] == sorted(t.ms for t in whole.ranked("forward"))
    refused = [t for t in whole.trials if t.ms is None]
    assert refused and all(
        isinstance(t.setting, Tile) and t.setting.stages == 3 and "shared memory" in t.refused for t in refused
    )


def test_a_tuning_keeps_others_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    keys = [key(), key(card="NVIDIA H100"), key("y")]
    for k in keys:
        tune_with(k, OWN, NONE, Timer(), str(path))
    read = gpu_file.load(Source(path.read_text(), str(path)))
    assert [t.key for t in read] == keys
    assert gpu_file.dump(read) == path.read_text()


def test_a_tile_that_takes_the_device_along_is_noted_and_passed_by(tmp_path: Path) -> None:
    path = str(tmp_path / "t.json")
    lost = Tile(64, 64, 4, 2)
    first = tune_with(key(), OWN, NONE, Timer(lost=lost), path)
    assert first.trials[-1] == tune.Trial("forward", lost, None, "the device was lost: an illegal memory access")
    timer = Timer()
    second = tune_with(key(), OWN, NONE, timer, path)
    assert ("forward", lost) not in timer.asked
    assert second.best() is not None


def tuned_file(tmp_path: Path, source: Source, *, forward: float = 9.0) -> Path:
    spec = api.analyse(source)
    k = tile_keys.gpu_key(source, spec, "NVIDIA H200", ("sm_90", 2, 128), "bf16", dict(SIZES))
    trials = [
        tune.Trial("forward", None, forward),
        tune.Trial("forward", Tile(64, 64, 8, 2), 5.0),
        tune.Trial("dkdv", Tile(32, 128, 8, 1), 7.0),
        tune.Trial("dq", Tile(64, 32, 4, 3), 7.5),
        tune.Trial("dq", Tile(64, 64, 4, 3), None, "too large"),
    ]
    path = tmp_path / "tiles.json"
    path.write_text(gpu_file.dump([tune.Tuning(k, tuple(trials))]))
    return path


@pytest.mark.parametrize("own_is_faster", [True, False])
def test_compile_reads_what_was_found(tmp_path: Path, own_is_faster: bool) -> None:
    spec = EXAMPLES / "causal.attn"
    source = Source(spec.read_text(), str(spec))
    tiles = tuned_file(tmp_path, source, forward=4.0 if own_is_faster else 9.0)
    out, plain = tmp_path / "tuned.py", tmp_path / "plain.py"
    assert main(["compile", str(spec), "-o", str(plain)]) == 0
    assert main(["compile", str(spec), "--tiles", str(tiles), "-o", str(out)]) == 0
    text, before = out.read_text(), plain.read_text()
    modules: list[Any] = [load(source, "causal") for source in (text, before)]
    row, own = (module.tiles_by_chip(module.TILES)["sm_90", 2, 128] for module in modules)
    assert row == (own[0] if own_is_faster else (64, 64, 8, 2), (32, 128, 8, 1), (64, 32, 4, 3))
    rows = modules[0].rows_by_dims(modules[0].HOPPER)
    assert ((128, 128) in rows) == own_is_faster
    assert (64, 64) in rows  # other head dims keep the chip's own kernel
    operator = re.compile(r"attngen::causal_\w{12}\b")
    assert operator.search(text)[0] != operator.search(before)[0]  # type: ignore[index]


def test_compile_refuses_what_is_not_for_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = EXAMPLES / "causal.attn"
    tiles = tuned_file(tmp_path, Source(spec.read_text(), str(spec)))

    def said(*words: str) -> str:
        assert main(["compile", *words, "-o", str(tmp_path / "x.py")]) == 2
        return capsys.readouterr().err

    assert "has no tiles for this spec and shape" in said(str(EXAMPLES / "alibi.attn"), "--tiles", str(tiles))
    assert "has no tiles for this spec" in said(str(spec), "--tiles", str(tiles), "--shape", "Sq=64")
    assert "is no file that `attngen tune` wrote" in said(str(spec), "--target", "pallas", "--tiles", str(tiles))
    assert "tuned for, and without `--tile`" in said(str(spec), "--tiles", str(tiles), "--tile", "64,64")
    entry = json.loads(tiles.read_text())["tunings"][0]
    for change in (
        {"chip": "sm_1"},
        {"head_block": 100},
        {"trials": [{"kernel": "forward", "tile": [64, 63, 4, 1], "ms": 1.0}]},
        {"trials": [{"kernel": "forward", "tile": [64, 64, 3, 1], "ms": 1.0}]},
        {"trials": [{"kernel": "forward", "tile": "__import__('os')", "ms": 1.0}]},
        {"trials": [{"kernel": "dq", "tile": None, "ms": 1.0}]},
        {"trials": [{"kernel": "backward", "tile": [64, 64, 4, 1], "ms": 1.0}]},
        {"trials": 7},
    ):
        tiles.write_text(json.dumps({"target": "triton", "tunings": [{**entry, **change}]}))
        assert "is no file that `attngen tune --target triton` wrote" in said(str(spec), "--tiles", str(tiles))
    tiles.write_text("[]")
    assert "is no file that" in said(str(spec), "--tiles", str(tiles))


def test_two_cards_for_one_row_are_one_too_many(tmp_path: Path) -> None:
    spec = EXAMPLES / "causal.attn"
    source = Source(spec.read_text(), str(spec))
    (one,) = gpu_file.load(Source(tuned_file(tmp_path, source).read_text()))
    other = tune.Tuning(tune.Key(one.key.spec, "NVIDIA H100", *(getattr(one.key, f) for f in FIELDS)), one.trials)
    file = Source(gpu_file.dump([one, other]), "both.json")
    with pytest.raises(UsageError, match=r"both\.json has tiles of sm_90 for NVIDIA H200, .* and for NVIDIA H100"):
        tile_keys.gpu_tiles(source, api.analyse(source), file, {})


FIELDS = ("chip", "dtype", "head_block", "sizes")


def hung() -> None:
    raise tune.LostError("no end after 20 s")


def test_the_bench_sets_a_tile_checks_it_and_puts_the_tables_back(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = attngen.compile("attention timed\nmask = causal\ntile q = 16, k = 16\n")
    module = sys.modules[kernel.function.__module__]
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 1, 48, 16, generator=generator, requires_grad=True) for _ in range(3))
    seen: list[Any] = []

    def function(*x: Any, **params: Any) -> Any:
        seen.append(module.host.tiles_by_chip(module.TILES)["cpu", 4, 16])
        out = kernel.function(*x, **params)
        return out * 1.5 if broken else out

    broken = False
    bench = Bench(module, function, (q, k, v), torch.ones(1, 1, 48, 16), {}, NONE, device="cpu", rep_ms=0.0)
    table = module.host.tiles_by_chip(module.TILES)
    before = dict(table)
    assert bench.row == ("cpu", 4, 16) and bench.rows == NONE
    seen.clear()
    tile = Tile(32, 16, 4, 1)
    assert bench("forward", tile) > 0
    assert set(seen) == {((32, 16, 4, 1), *(tuple(bench.own[name]) for name in KERNELS[1:]))}
    assert bench("dq", tile) > 0
    assert seen[-1][2] == (32, 16, 4, 1) and seen[-1][0] == tuple(bench.own["forward"])
    assert before == table and not module._attention.ready
    broken = True
    with pytest.raises(tune.RefusedError, match=r"wrong results: 0\.5"):
        bench("forward", tile)
    with pytest.raises(tune.RefusedError):
        bench("forward", Tile(17, 16, 4, 1))  # no power of two: Triton refuses
    monkeypatch.setattr(bench, "_await", hung)
    with pytest.raises(tune.LostError, match="no end after 20 s"):  # and nobody waits for the device once more
        bench("forward", tile)
    assert before == table


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--target", "triton", "--chip", "v6e"], "--chip names a TPU"),
        (["--target", "pallas"], "--target pallas tunes for a TPU: name it with --chip v4, v5e"),
        (["--budget", "3"], "tune measures on a GPU, and PyTorch sees none here; --chip v4, v5e"),
        (["--chip", "v6e", "--budget", "3"], "--budget goes with --target triton"),
        (["--chip", "v6e", "--own"], "--own goes with --target triton"),
        (["--target", "triton", "--shape", "X=3"], "has no size 'X'"),
        (["--target", "triton", "-o", str(EXAMPLES / "causal.attn")], "would overwrite the spec"),
    ],
)
def test_wrong_use_is_refused(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", str(EXAMPLES / "causal.attn"), *words]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here")
def test_without_a_gpu_there_is_one_message(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", str(EXAMPLES / "causal.attn"), "--target", "triton"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "tune measures on a GPU, and PyTorch sees none here" in said
