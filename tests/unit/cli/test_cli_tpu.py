"""`attngen compile --chip` and `attngen tune`: usage here, and one real compilation of each kind where libtpu is."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from attngen import api, vocabulary
from attngen.cli import main as cli
from attngen.cost.chips import CHIPS as COSTED
from attngen.errors import UsageError
from attngen.extras import lacking
from attngen.plan.tiles import tpu as tpu_tiles
from attngen.runtime.loader import execute
from attngen.tpu import compile as tpu_compile
from attngen.tpu.chips import CHIPS
from attngen.tune import tpu as tune

SPEC = "attention windowed\n\nconst window = 256\n\nmask = sliding_window(window)\n"
SHAPE = ("--shape", "Hq=1", "Sq=512", "D=64")
needs_libtpu = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="needs libtpu: pip install -e '.[tpu]'"
)


def run(*argv: str) -> int:
    try:
        return cli.main(argv)
    except SystemExit as stop:
        assert isinstance(stop.code, int)
        return stop.code


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    Path("windowed.attn").write_text(SPEC)
    return "windowed.attn"


def test_every_command_calls_a_chip_by_the_same_name() -> None:
    """What libtpu compiles for, what `cost` counts for, and what generated files have tiles and memory for."""
    assert vocabulary.TPUS == tuple(CHIPS) == tuple(c.tpu for c in COSTED if c.tpu is not None)
    assert tuple(c.name for c in COSTED) == vocabulary.CHIPS
    assert set(vocabulary.TPUS) | {"cpu"} == set(tpu_tiles.VMEM) == {chip for chip, _ in tpu_tiles.table(None)}


def test_a_generated_file_finds_every_chip_by_its_name() -> None:
    source = api.compile("attention a\nmask = causal\n", "pallas").source
    module: Any = execute(source, "a")
    kinds = {"v4": "TPU v4", "v5e": "TPU v5 lite", "v5p": "TPU v5", "v6e": "TPU v6 lite", "7x": "TPU7x"}
    found: dict[str, str] = {}
    for name, kind in kinds.items():
        module.jax = SimpleNamespace(devices=lambda kind=kind: [SimpleNamespace(device_kind=kind)])
        found[name] = module._chip()
    assert found == {name: name for name in vocabulary.TPUS}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--emit", "schedule"), "add --target pallas"),
        (("--emit", "mosaic", "--target", "pallas", "--arch", "sm_90"), "--arch names a GPU"),
        (("--target", "pallas", "--chip", "v5e"), "--chip goes with --emit mosaic, hlo, schedule"),
        (("--target", "pallas", "--shape", "Sq=512"), "--shape goes with --tiles or with --emit"),
        (("--target", "pallas", "--emit", "hlo", "--dtype", "fp16"), "no dtype 'fp16' on a TPU"),
        (("--target", "pallas", "--emit", "hlo", "--shape", "Hq=3", "Hkv=2"), "Hq = 3 is no multiple of Hkv = 2"),
        (("--target", "pallas", "--emit", "hlo", "--chip", "v3"), "invalid choice: 'v3'"),
    ],
)
def test_wrong_use_is_one_message_and_status_2(
    arguments: tuple[str, ...], message: str, spec: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("compile", spec, *arguments) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1) and message in err


def test_without_libtpu_both_commands_say_how_to_get_it(
    spec: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing() -> None:
        raise UsageError(lacking("compiling for a TPU needs jax and libtpu", "tpu"))

    monkeypatch.setattr(tpu_compile, "require", missing)
    assert run("compile", spec, "--target", "pallas", "--emit", "schedule") == 2
    assert run("tune", spec, "--chip", "v6e") == 2
    assert capsys.readouterr().err.count("pip install 'jax>=0.10' libtpu==0.0.42.1") == 2
    assert not list(Path().glob("*.json"))


@needs_libtpu
def test_a_schedule_is_reported_and_its_bundles_written(spec: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("compile", spec, "--target", "pallas", "--emit", "schedule", *SHAPE, "-o", "w.bundles") == 0
    out = capsys.readouterr().out
    for word in ("forward", "MXU", "VMEM", "spills", "trips", "roofline", "not a TPU's time"):
        assert word in out
    written = sorted(Path().glob("w.*.bundles"))
    assert len(written) >= 2
    assert all("control target key" in path.read_text()[:80] for path in written)


@needs_libtpu
def test_mosaic_is_printed_with_the_report_beside_it(spec: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("compile", spec, "--target", "pallas", "--emit", "mosaic", "--chip", "v6e", *SHAPE) == 0
    out, err = capsys.readouterr()
    assert out.count("func.func @") >= 2 and "roofline" in err


@needs_libtpu
def test_tuning_keeps_the_fastest_tiles_and_goes_on_where_it_stopped(
    spec: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tune, "FORWARD", ((256, 256, 1), (128, 128, 1)))
    monkeypatch.setattr(tune, "BACKWARD", ((256, 256, 1),))
    assert run("tune", spec, "--chip", "v5e", *SHAPE) == 0
    assert "3 candidates" in capsys.readouterr().out
    path = Path("windowed.tiles.json")
    first = path.read_text()
    (entry,) = json.loads(first)["tunings"]
    cycles = {tuple(t["tile"]): t["forward"] for t in entry["trials"] if not t["backward"]}
    assert entry["tiles"]["forward"] == list(min(cycles, key=cycles.__getitem__))

    monkeypatch.setattr(tpu_compile, "compile_for", None)  # nothing is left to compile
    assert run("tune", spec, "--chip", "v5e", *SHAPE) == 0
    assert path.read_text() == first
    assert run("compile", spec, "--target", "pallas", "--tiles", str(path), "-o", "w.py") == 0
    assert f"('v5e', 2): ({tuple(entry['tiles']['forward'])}" in Path("w.py").read_text()
    assert run("compile", spec, "--target", "pallas", "--tiles", str(path), "-D", "window=99") == 2
    assert "no tiles for this spec" in capsys.readouterr().err
