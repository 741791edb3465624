"""The packages that attngen uses where they are installed, and the command that installs them.

Takes the name of an extra, gives a sentence. The table repeats `project.optional-dependencies` of `pyproject.toml`: a
clone that is not installed has no metadata to read it from.
"""

from __future__ import annotations

import shlex

REQUIREMENTS = {
    "torch": ("torch>=2.11",),
    "triton": ("triton>=3.6,<3.10",),
    "jax": ("jax>=0.10",),
    "tpu": ("jax>=0.10", "libtpu==0.0.42.1"),
    "show": ("matplotlib>=3.8",),
}


def lacking(what: str, *extras: str) -> str:
    """What the user is told where packages are missing. The command names the packages themselves, so it is the same
    in a clone and beside an installed wheel: no index has the name attngen."""
    packages = dict.fromkeys(package for extra in extras for package in REQUIREMENTS[extra])
    return f"{what}: pip install {shlex.join(packages)}"
