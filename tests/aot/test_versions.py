"""One generated file under the newest Triton that is supported; every other test here runs under the oldest.

A release that is not installed goes into `build/triton-VERSION`, and a process that compiles has it in front. With a
release that the kernels for Hopper cards do not know, the portable kernels run.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import triton
from triton.runtime.jit import mangle_type

import attngen
from attngen.errors import UsageError
from attngen.runtime import loader

ROOT = Path(__file__).resolve().parents[2]
NEWEST, BETWEEN = "3.9.0", ("3.7.1", "3.8.0")
SIX = ("causal", "documents", "windowed_alibi", "sigmoid", "sink", "natten_2d")
EXAMPLES = sorted(path.stem for path in (ROOT / "examples").glob("*.attn"))
CHIPS = ("sm_80", "sm_90", "sm_100", "gfx942")
FEW = [*((name, "sm_90") for name in SIX), *(("causal", chip) for chip in CHIPS if chip != "sm_90")]
MORE = [(name, chip) for name in EXAMPLES for chip in CHIPS if (name, chip) not in FEW]


def release(version: str) -> Path:
    """The folder with this release of Triton, which pip fills once."""
    folder = ROOT / "build" / f"triton-{version}"
    if not folder.is_dir():
        folder.parent.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as aside:
            inside = Path(aside) / "triton"
            command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile"]
            subprocess.run([*command, "--target", str(inside), f"triton=={version}"], check=True)
            if not folder.is_dir():  # another worker may have been faster
                shutil.move(inside, folder)
    return folder


def attngen_under(version: str, tmp_path: Path, *words: str) -> str:
    """What the command prints, with Triton's own cache, which is told apart by release."""
    path = os.pathsep.join([str(release(version)), str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "TRITON_CACHE_DIR": str(tmp_path)}
    environment.pop("TRITON_INTERPRET", None)
    command = [sys.executable, "-m", "attngen", *words]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout + done.stderr


def compiles(version: str, name: str, chip: str, tmp_path: Path) -> None:
    kind = "hsaco" if chip.startswith("gfx") else "cubin"
    words = ["--emit", kind, "--arch", chip, "--head-dim", "128", "-o", str(tmp_path / f"{name}.{kind}")]
    shown = attngen_under(version, tmp_path, "compile", f"examples/{name}.attn", *words)
    kernels = set(re.findall(r"^ +(\w+) +\d", shown, re.MULTILINE))
    assert {"forward", "dkdv", "dq"} <= kernels, shown
    if (name, chip) == ("causal", "sm_90"):
        assert {"hopper_forward", "hopper_backward"} <= kernels, shown


@pytest.mark.parametrize(("name", "chip"), FEW)
def test_the_newest_compiles(name: str, chip: str, tmp_path: Path) -> None:
    compiles(NEWEST, name, chip, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "chip"), MORE)
def test_the_newest_compiles_every_example(name: str, chip: str, tmp_path: Path) -> None:
    compiles(NEWEST, name, chip, tmp_path)


@pytest.mark.versions
@pytest.mark.parametrize("version", BETWEEN)
@pytest.mark.parametrize(("name", "chip"), FEW)
def test_releases_between_compile(version: str, name: str, chip: str, tmp_path: Path) -> None:
    compiles(version, name, chip, tmp_path)


@pytest.mark.parametrize("name", ["causal", "sink"])
def test_the_newest_interprets(name: str, tmp_path: Path) -> None:
    assert "within tolerance" in attngen_under(NEWEST, tmp_path, "verify", f"examples/{name}.attn", "--device", "cpu")


# ---------------------------------------------------------------- releases that nobody knows


def under(version: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A fresh module of causal attention, on a card of compute capability 9.0 as far as it knows."""
    monkeypatch.setattr(triton, "__version__", version)
    module: Any = loader.execute(attngen.compile(ROOT / "examples" / "causal.attn").source, "causal")
    module.CHIPS[torch.device("cpu")] = "sm_90"
    return module


def halves() -> list[torch.Tensor]:
    return [torch.zeros(1, 1, 64, 128, dtype=torch.float16) for _ in "qkv"]


@pytest.mark.parametrize("version", ["3.5.1", "3.10.0", "4.0.0+git1234"])
def test_an_unknown_release_runs_the_portable_kernels_and_says_so_once(
    version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module: Any = under(version, monkeypatch)
    with pytest.warns(
        UserWarning, match=rf"support Triton 3.6 to 3.9, not {re.escape(version)}; the portable kernels run"
    ):
        assert module.hopper_row(module.HOPPER, *halves()) is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert all(module.hopper_row(table, *halves()) is None for table in (module.HOPPER, module.HOPPER_BACKWARD))


def test_a_known_release_runs_its_own_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    for version in ("3.6.0", "3.7.1", "3.9.0"):
        module: Any = under(version, monkeypatch)
        assert all(module.hopper_row(table, *halves()) for table in (module.HOPPER, module.HOPPER_BACKWARD))


@pytest.mark.parametrize("missing", ["triton.experimental.gluon", "triton.experimental.gluon.nvidia.hopper"])
def test_a_release_without_gluon_still_runs(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mangle_type(torch.zeros(1))  # Triton itself imports Gluon at its first use in a process
    monkeypatch.setitem(sys.modules, missing, None)
    module: Any = under("3.6.0", monkeypatch)
    assert not module.GLUON_KNOWN
    module.CHIPS[torch.device("cpu")] = "cpu"
    q = torch.randn(1, 1, 32, 16)
    want = torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True)
    assert (module.causal(q, q, q) - want).abs().max() < 1e-5


def test_an_interpreter_that_numpy_left_behind_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = {"triton": "3.6.0", "numpy": "2.4.6"}
    monkeypatch.setattr(loader.importlib.metadata, "version", versions.get)
    monkeypatch.setattr(loader, "has_gpu", lambda: False)
    with pytest.raises(UsageError, match=r"Triton 3\.6\.0 does not run under NumPy 2\.4\.6: install Triton 3\.7\.1"):
        loader.prepare_interpreter()
    versions["triton"] = "3.7.1"
    loader.prepare_interpreter()
