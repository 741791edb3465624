"""Files on disk keyed by their content, safe under concurrent processes, and best effort: nothing depends on them.

Takes text, returns the path of a file that holds it, or keeps it under a key. A file appears whole (written aside, then
renamed) or not at all. Where the cache cannot be used, nothing is kept and nothing is found: where the system refuses,
and where a link leads elsewhere or another user may write, since what is read here counts as our own.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import stat
from collections.abc import Generator
from functools import partial
from pathlib import Path


def folder() -> Path:
    """`$ATTNGEN_CACHE`, else the user's cache folder."""
    given = os.environ.get("ATTNGEN_CACHE")
    if not given:
        import platformdirs  # a GPU's machine may have none, and say where

        given = platformdirs.user_cache_dir("attngen", appauthor=False)
    return Path(os.path.abspath(given))


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def stored(text: str, name: str) -> Path | None:
    """The path of a file with this text, or None. `name` makes it readable; the digest makes it unique."""
    file = f"{name}_{digest(text)[:16]}.py"
    kept = _read("generated", file) == text or _write("generated", file, text)
    return folder() / "generated" / file if kept else None


def remembered(kind: str, key: str) -> str | None:
    """The text that was kept under this key, or None."""
    return _read(kind, key)


def remember(kind: str, key: str, text: str) -> None:
    """Keeps a text, where it can, under a key that names all that it depends on."""
    _write(kind, key, text)


def place(kind: str, name: str) -> Path | None:
    """Where another library may keep what it makes, and checks when it reads it; None where it had better not."""
    try:
        _make(folder())
        with _opened(kind, make=True):
            return folder() / kind / name
    except OSError:
        return None


def _read(kind: str, name: str) -> str | None:
    try:
        with (
            _opened(kind) as place,
            open(name, encoding="utf-8", newline="", opener=partial(_own, within=place)) as file,
        ):
            return file.read()
    except (OSError, UnicodeDecodeError):
        return None


def _write(kind: str, name: str, text: str) -> bool:
    """Whether the file is written."""
    aside = f".{name[:32]}_{secrets.token_hex(8)}.tmp"
    try:
        _make(folder())
        with _opened(kind, make=True) as place:
            try:
                with open(aside, "x", encoding="utf-8", newline="", opener=partial(_own, within=place)) as file:
                    file.write(text)
                os.replace(aside, name, src_dir_fd=place, dst_dir_fd=place)
            except OSError:
                with contextlib.suppress(OSError):  # it may not have been made
                    os.unlink(aside, dir_fd=place)
                return False
    except OSError:
        return False
    return True


def _make(place: Path) -> None:
    """Makes a folder and those above it, as far as they are missing, for this user alone."""
    for path in (*reversed(place.parents), place):
        if not os.path.lexists(path):
            with contextlib.suppress(FileExistsError):  # another process was faster
                os.mkdir(path, 0o700)


@contextlib.contextmanager
def _opened(kind: str, *, make: bool = False) -> Generator[int]:
    """A descriptor of one of the cache's folders. Raises OSError where the cache cannot be used."""
    if os.open not in os.supports_dir_fd:
        raise OSError("this system cannot open a file by the folder that it is in")
    with contextlib.ExitStack() as closing:
        outer = _own(folder(), os.O_RDONLY | os.O_DIRECTORY)
        closing.callback(os.close, outer)
        if make:
            with contextlib.suppress(FileExistsError):
                os.mkdir(kind, 0o700, dir_fd=outer)
        inner = _own(kind, os.O_RDONLY | os.O_DIRECTORY, within=outer)
        closing.callback(os.close, inner)
        yield inner


def _own(path: str | Path, flags: int, *, within: int | None = None) -> int:
    """A descriptor of a file or folder that is no link, that this user owns, and that nobody else may write to."""
    found = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600, dir_fd=within)
    state = os.fstat(found)
    if state.st_uid != os.geteuid() or state.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        os.close(found)
        raise PermissionError(f"{path} belongs to another user, or others may write to it")
    return found
