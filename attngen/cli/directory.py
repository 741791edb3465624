"""`attngen compile -o DIR/`: own parts of files beside one runtime, as a package.

Takes the files by their paths in the directory. A file of the runtime that somebody edited is never overwritten.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from attngen import files, terminal
from attngen.errors import UsageError


def is_directory(output: str | None) -> bool:
    return output is not None and output != "-" and (output.endswith(("/", os.sep)) or os.path.isdir(output))


def write(output: str, found: Mapping[str, str]) -> None:
    """Writes all files or none, and an empty `__init__.py` where there is none."""
    from attngen.emit.triton.placement import edited

    folder = Path(output)
    for name in found:
        path = folder / name
        if path.parent != folder and path.exists() and edited(path.read_text(encoding="utf-8")):
            raise UsageError(
                f"{path} was edited: attngen does not overwrite it; move it away, or give another directory"
            )
    wanted = {str(folder / name): text for name, text in found.items()}
    if not (folder / "__init__.py").exists():
        wanted[str(folder / "__init__.py")] = ""
    for path in wanted:
        try:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"-o {output}: {error.strerror}") from error
    files.write_all(wanted)
    for name in found:
        if "/" not in name:
            terminal.note(f"wrote {folder / name}, and its runtime in {folder / '_attngen'}")
