"""`attngen env`: what a report of a fault needs: versions, the cards that PyTorch sees, the cache, and what is set."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import platform
import sys
from argparse import Namespace
from importlib import metadata
from typing import Any

from attngen import cache, extras, terminal
from attngen.cli.parser import Commands

_OWN = ("lark", "jinja2", "numpy", "sympy", "z3-solver")
_SET = ("ATTNGEN_CACHE", "TRITON_INTERPRET", "CUDA_VISIBLE_DEVICES", "JAX_PLATFORMS", "JAX_ENABLE_X64")


def add(table: Commands) -> None:
    p = table.add_parser(
        "env",
        help="print what a report of a fault needs",
        description="Prints versions, the cards that PyTorch sees, the cache, and the variables that are set.",
        example="attngen env --json > env.json",
    )
    p.add_argument("--json", action="store_true", help="print JSON")
    p.set_defaults(run=run)


def run(args: Namespace) -> int:
    found = facts()
    if args.json:
        terminal.put(json.dumps(found, indent=2) + "\n")
        return 0
    from rich.markup import escape
    from rich.table import Table

    table = Table.grid(padding=(0, 2))
    for name, value in found.items():
        rows = value.items() if isinstance(value, dict) else [(name, one) for one in value]
        for key, text in rows:
            table.add_row(key, escape(text))
    terminal.console(sys.stdout).print(table)
    return 0


def facts() -> dict[str, dict[str, str] | list[str]]:
    """By kind, what is printed."""
    import attngen

    every = [text for texts in extras.REQUIREMENTS.values() for text in texts]
    wanted = {text.partition(">")[0].partition("=")[0]: text for text in every}
    here = {"attngen": attngen.__version__, "python": platform.python_version(), "system": platform.platform()}
    versions = {name: _version(name) for name in _OWN}
    asked = {name: f"{_version(name)}  ({text} is asked for)" for name, text in wanted.items()}
    return {
        "versions": {**here, **versions, **asked},
        "cards": _cards(),
        "cache": [_cache()],
        "variables": {name: os.environ[name] for name in _SET if name in os.environ},
    }


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "absent"


def _cards() -> list[str]:
    """One line for each that PyTorch sees."""
    try:
        torch: Any = importlib.import_module("torch")
    except ImportError:
        return ["PyTorch is absent"]
    if not torch.cuda.is_available():
        return ["PyTorch sees none"]

    def line(number: int) -> str:
        of = torch.cuda.get_device_properties(number)
        where = f"compute capability {of.major}.{of.minor}" if torch.version.hip is None else of.gcnArchName
        return f"{of.name}, {where}, {of.total_memory / 2**30:.0f} GiB, CUDA {torch.version.cuda or torch.version.hip}"

    return [line(number) for number in range(torch.cuda.device_count())]


def _cache() -> str:
    sizes: list[int] = []
    for path in cache.folder().rglob("*"):
        with contextlib.suppress(FileNotFoundError):  # another process may be at work there
            sizes += [path.stat().st_size] if path.is_file() else []
    return f"{cache.folder()}, {len(sizes)} files, {sum(sizes) / 2**20:.1f} MiB"
