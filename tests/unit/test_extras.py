"""What installs a missing package is the same in a clone and beside a wheel, and is what `pyproject.toml` asks for."""

from __future__ import annotations

import shlex
import tomllib
from pathlib import Path

import pytest

from attngen.extras import REQUIREMENTS, lacking

ROOT = Path(__file__).parents[2]


def test_the_table_is_that_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    asked = {extra: tuple(p.partition(";")[0] for p in of) for extra, of in project["optional-dependencies"].items()}
    del asked["dev"], asked["site"]  # of a clone alone
    assert asked == REQUIREMENTS


@pytest.mark.parametrize(
    ("extras", "said"),
    [
        (("show",), "x: pip install 'matplotlib>=3.8'"),
        (("torch", "triton"), "x: pip install 'torch>=2.11' 'triton>=3.6,<3.10'"),
        (("jax", "tpu"), "x: pip install 'jax>=0.10' libtpu==0.0.42.1"),
    ],
)
def test_the_command_names_the_packages(extras: tuple[str, ...], said: str) -> None:
    assert lacking("x", *extras) == said


def test_every_command_is_a_requirement_that_pip_reads() -> None:
    requirements = pytest.importorskip("packaging.requirements")
    for extra in REQUIREMENTS:
        for word in shlex.split(lacking("x", extra))[3:]:
            assert requirements.Requirement(word).name in ("torch", "triton", "jax", "libtpu", "matplotlib")


def test_no_message_names_a_package_that_no_index_has() -> None:
    texts = [p for folder in ("attngen", "templates") for p in (ROOT / folder).rglob("*") if p.suffix in (".py", ".j2")]
    assert [p.name for p in texts if "pip install" in p.read_text(encoding="utf-8")] == ["extras.py"]
