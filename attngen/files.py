"""Reading specs, generated files and arrays, and writing results.

Takes paths, returns text; a file is written whole or not at all.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import stat
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from attngen import resources
from attngen.errors import Source, UsageError

if TYPE_CHECKING:
    from numpy.typing import NDArray

_GENERATED = re.compile(r"^#? ?The specification:\s*$.*^#? ?sha256 of its text: ", re.MULTILINE | re.DOTALL)
"""What is in the head of every generated file."""
_LONGEST = 4_000_000  # far above what the parser takes: keeps a device or a video out of memory


def read_source(path: str | os.PathLike[str]) -> Source:
    """The spec in a file, or on standard input for `-`. A path that can't be read raises `UsageError`."""
    source = read_text(path)
    if is_generated(source):
        raise UsageError(
            f"{source.name} is a generated file, not a spec: give the spec that it was made from, whose text is in its "
            "header. `attngen verify` takes the file itself"
        )
    if source.name.endswith(".py"):
        raise UsageError(f"{source.name} is a Python file, not a spec, whose name ends in .attn")
    return source


def is_generated(source: Source) -> bool:
    """Whether the text has the head of a file that attngen made."""
    return _GENERATED.search(source.text) is not None


def read_text(path: str | os.PathLike[str], kind: str = "a spec") -> Source:
    """The text of a file, which should be of this kind. A path that can't be read raises `UsageError`."""
    name = os.fspath(path)
    return decoded(read_bytes(name, kind), name)


def decoded(data: bytes, name: str) -> Source:
    """The text of a file's contents. Raises `UsageError` where it is not UTF-8."""
    name = "<stdin>" if name == "-" else name
    try:
        return Source(data.decode("utf-8-sig"), name)
    except UnicodeDecodeError as error:
        rest = error.object  # without a mark
        before = rest[: error.start].decode("utf-8").split("\n")
        where, byte = f"{name}:{len(before)}:{len(before[-1]) + 1}", f"byte 0x{rest[error.start]:02x}"
        raise UsageError(f"{where}: the file is not UTF-8 text: it has the {byte} here; save it as UTF-8") from error


def read_bytes(name: str, kind: str) -> bytes:
    """What is in a file, or on standard input for `-`. Raises `UsageError` as `read_text` does."""
    try:
        if name == "-":
            data = sys.stdin.buffer.read(_LONGEST + 1)
        else:
            with open(name, "rb") as file:
                data = file.read(_LONGEST + 1)
    except OSError as error:
        raise UsageError(f"can't read {name}: {reason(error)}{_example(name, error)}") from error
    except ValueError as error:  # a NUL inside the path
        raise UsageError(f"can't read {name!r}: {error}") from error
    if len(data) > _LONGEST:
        name = "<stdin>" if name == "-" else name
        raise UsageError(f"{name} is not {kind}: it has more than {_LONGEST:,} bytes")
    return data


def read_array(path: str) -> NDArray[Any]:
    """The array that `numpy.save` wrote. A file without one raises `UsageError`; nothing in it is executed."""
    import numpy as np

    try:
        found: Any = np.load(path, allow_pickle=False)
    except OSError as error:
        raise UsageError(f"can't read {path}: {reason(error)}") from error
    except (ValueError, EOFError) as error:
        raise UsageError(f"{path} was not written by numpy.save; save the array with it") from error
    if not isinstance(found, np.ndarray):
        found.close()
        raise UsageError(f"{path} has several arrays: save one, with numpy.save")
    return cast("NDArray[Any]", found)


def write(path: str | os.PathLike[str], data: str | bytes) -> None:
    """Write one file, as `write_all` does."""
    write_all({os.fspath(path): data})


def write_all(files: Mapping[str, str | bytes]) -> None:
    """Write every file or, as far as the system allows, none: all are completed beside their places, then renamed.

    A rename is atomic, so nobody ever reads half a file. What is no regular file (`/dev/null`, a pipe) is written to
    directly; a link is followed. An existing file keeps its mode. Raises `UsageError` where a path can't be written.
    """
    ready: list[tuple[str, str]] = []
    try:
        for name, data in files.items():
            encoded = data.encode("utf-8") if isinstance(data, str) else data
            try:
                _stage(name, encoded, ready)
            except OSError as error:
                raise UsageError(f"can't write {name}: {reason(error)}") from error
        while ready:
            temporary, place = ready[-1]
            try:
                os.replace(temporary, place)
            except OSError as error:
                raise UsageError(f"can't write {place}: {reason(error)}") from error
            ready.pop()
    finally:
        for temporary, _ in ready:
            with contextlib.suppress(OSError):
                os.unlink(temporary)


def _stage(name: str, data: bytes, ready: list[tuple[str, str]]) -> None:
    place = os.path.realpath(name)
    try:
        mode = os.stat(name).st_mode  # /dev/stdout leads to a pipe that has no path
    except FileNotFoundError:
        mode = None
    if mode is not None and stat.S_ISDIR(mode):
        raise IsADirectoryError(21, "it is a folder")
    if mode is not None and not stat.S_ISREG(mode):
        Path(name).write_bytes(data)
        return
    handle, temporary = tempfile.mkstemp(prefix=f".{os.path.basename(place)}.", dir=os.path.dirname(place))
    ready.append((temporary, place))
    with os.fdopen(handle, "wb") as file:
        file.write(data)
    # mkstemp makes private files; what the user asked for is an ordinary one.
    os.chmod(temporary, stat.S_IMODE(mode) if mode is not None else 0o666 & ~_umask())


def _umask() -> int:
    mask = os.umask(0)  # reading it means setting it
    os.umask(mask)
    return mask


def json_rows(value: Any, depth: int = 0) -> str:
    """JSON for results: a line for each field of the whole, and for each row of such a field. Raises ValueError for a
    float that JSON has not."""
    if depth == 2 or not isinstance(value, dict | list) or not value:
        return json.dumps(value, allow_nan=False)
    margin = "\n" + " " * (depth + 1)
    if isinstance(value, list):
        rows = [json_rows(row, depth + 1) for row in cast("list[Any]", value)]
        brackets = "[]"
    else:
        fields = cast("dict[str, Any]", value).items()
        rows = [f"{json.dumps(name)}: {json_rows(field, depth + 1)}" for name, field in fields]
        brackets = "{}"
    return f"{brackets[0]}{margin}{f',{margin}'.join(rows)}{margin[:-1]}{brackets[1]}" + ("" if depth else "\n")


def same_file(a: str, b: str) -> bool:
    """Whether two paths lead to one existing file, through links too."""
    return os.path.exists(a) and os.path.exists(b) and os.path.samefile(a, b)


def _example(name: str, error: OSError) -> str:
    """Where to get a missing spec that has the name of an example: examples lie in a clone, and in the package."""
    stem, ending = os.path.splitext(os.path.basename(name))
    known = isinstance(error, FileNotFoundError) and ending == ".attn" and stem in resources.names("examples", ".attn")
    return f"; `attngen examples {stem} -o {stem}.attn` writes it" if known else ""


def reason(error: OSError) -> str:
    """What the system says went wrong, without the number and the path."""
    return (error.strerror or str(error)).lower()
