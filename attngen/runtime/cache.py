"""Files on disk keyed by their content, safe under concurrent processes.

Takes text, gives the path of a file that holds it, or keeps it under a key. A file appears whole (written aside, then
renamed) or not at all.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path

import platformdirs


def folder() -> Path:
    """`$ATTNGEN_CACHE`, else the user's cache folder."""
    return Path(os.environ.get("ATTNGEN_CACHE") or platformdirs.user_cache_dir("attngen", appauthor=False))


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def stored(text: str, name: str) -> Path:
    """The path of a file with this text. `name` makes it readable; the digest makes it unique."""
    path = folder() / "generated" / f"{name}_{digest(text)[:16]}.py"
    if _text(path) != text:
        _write(path, text)
    return path


def remembered(kind: str, key: str) -> str | None:
    """The text that was kept under this key, or None."""
    return _text(folder() / kind / key)


def remember(kind: str, key: str, text: str) -> None:
    """Keeps a text under a key that names all that it depends on."""
    _write(folder() / kind / key, text)


def _text(path: Path) -> str | None:
    """What the file holds, or None where there is none. Not asked for first: another process may take it meanwhile."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, aside = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem[:32]}_", suffix=".tmp")
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(aside, path)
