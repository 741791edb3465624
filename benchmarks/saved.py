"""Generated files for the card's machine, which has torch and triton and none of what attngen needs to compile.

`prepare` compiles specs here into a directory with a manifest; `Files` loads them there. Leaves to others what the
files compute, and how they are measured.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import inspect
import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # this checkout's attngen, installed or not
EXAMPLES = ROOT / "examples"
COMMIT = "commit.txt"


@dataclass(frozen=True, slots=True)
class Spec:
    """A spec's text, and the constants that it is compiled with. `geometry`: functions to make beside the dense one.
    `facts` is for whoever loads the file. `dtype`: the only one that the file is for."""

    text: str
    consts: Mapping[str, int | float] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    geometry: tuple[str, ...] = ()
    dtype: str | None = None


def example(name: str, **consts: int | float) -> Spec:
    return Spec((EXAMPLES / f"{name}.attn").read_text(encoding="utf-8"), consts)


def prepare(directory: Path, specs: Mapping[str, Spec]) -> None:
    """Compiles each spec to `directory/NAME.py`. A compiler that has no geometries makes the dense function alone."""
    import attngen

    directory.mkdir(parents=True, exist_ok=True)
    compiled: Callable[..., Any] = attngen.compile
    known = "geometry" in inspect.signature(attngen.compile).parameters
    manifest: dict[str, dict[str, Any]] = {}
    for name, spec in specs.items():
        extra: dict[str, Any] = {"geometry": ("dense", *spec.geometry)} if known and spec.geometry else {}
        extra |= {"dtype": spec.dtype} if spec.dtype else {}
        kernel = compiled(spec.text, target="triton", consts=dict(spec.consts), **extra)
        kernel.save(directory / f"{name}.py")
        manifest[name] = {"function": kernel.name, **spec.facts}
    (directory / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
    (directory / COMMIT).write_text(commit() + "\n", encoding="utf-8")


def commit() -> str:
    """That this checkout is at, with a `+` where tracked files differ from it; empty outside of a repository."""

    def git(*words: str) -> str:
        return subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=True).stdout

    try:
        changed = git("status", "--porcelain", "--untracked-files=no")
        return git("rev-parse", "HEAD").strip()[:12] + ("+" if changed else "")
    except (FileNotFoundError, subprocess.CalledProcessError):
        return ""


@dataclass(frozen=True, slots=True)
class Files:
    """A directory that `prepare` wrote."""

    directory: Path
    manifest: Mapping[str, Mapping[str, Any]]

    @classmethod
    def at(cls, directory: Path) -> Files:
        return cls(directory, json.loads((directory / "manifest.json").read_text(encoding="utf-8")))

    @property
    def commit(self) -> str:
        """The commit that the files were prepared at; empty where it is not known."""
        kept = self.directory / COMMIT
        return kept.read_text(encoding="utf-8").strip() if kept.exists() else ""

    def digests(self) -> dict[str, str]:
        """The start of each file's sha256: what was measured."""
        return {n: hashlib.sha256((self.directory / f"{n}.py").read_bytes()).hexdigest()[:16] for n in self.manifest}

    def module(self, name: str) -> ModuleType:
        return _loaded(self.directory / f"{name}.py")

    def function(self, name: str, suffix: str = "") -> Callable[..., Any] | None:
        """The file's function, or with a suffix (`_varlen`) that of another geometry; None if the file has none."""
        return getattr(self.module(name), self.manifest[name]["function"] + suffix, None)

    def dense(self, name: str) -> Callable[..., Any]:
        found = self.function(name)
        assert found is not None, f"{name}.py in {self.directory} has no function of its spec's name"
        return found


@functools.cache
def _loaded(path: Path) -> ModuleType:
    """Imported once a process: the file registers custom operators, which can exist only once."""
    spec = importlib.util.spec_from_file_location(f"attngen_saved_{path.parent.name}_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # before it runs: triton looks modules up by name
    spec.loader.exec_module(module)
    return module
