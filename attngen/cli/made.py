"""A generated file on the command line: what its head says, the kernel of its code, and options that contradict it.

Takes a path or a text, returns a `Made`. Reading a file runs nothing of it; a `FileKernel` runs it when it is called.
"""

from __future__ import annotations

import ast
import os
import shlex
from argparse import Namespace
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

from attngen import api, targets
from attngen.errors import Source, UsageError
from attngen.kernel import Kernel, Loaded
from attngen.runtime import loader

if TYPE_CHECKING:
    from types import ModuleType

    from attngen.emit import Options
    from attngen.emit.said import Said
    from attngen.emit.text.header import Head

KIND = "a file that attngen made"


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """`options` has the file's tile, whether its spec or a caller chose it."""

    file: Source
    head: Head
    said: Said
    options: Options

    @property
    def spec(self) -> Source:
        return Source(self.head.text, f"the spec in {self.file.name}")


def read(file: Source) -> Made:
    """Raises `UsageError` where attngen did not make the file, or its head can't be read."""
    from attngen.emit import said
    from attngen.emit.text.header import read_head, unreadable

    head = read_head(file)
    try:
        found = said.read(head.options)
        options = checked(found.options, tile=None)
    except ValueError as error:
        raise unreadable(file.name, f"in its options, {error}") from error
    return Made(file=file, head=head, said=found, options=replace(options, tile=found.options.tile))


def checked(o: Options, *, tile: tuple[int, int] | None) -> Options:
    """These options with this tile, as a caller would give them. Raises `UsageError` where nobody can."""
    precision: Any = o.precision
    tuned = o.tuned or o.tuned_gpu
    return api.options(o.target, precision, tile, o.arch, tuned, o.head_dim, o.dtype, o.forward, o.geometry)


# ---------------------------------------------------------------- options beside a file


def refuse_contradictions(made: Made, args: Namespace) -> None:
    """Raises `UsageError` for an option that is given and that the file was not made with."""
    o = made.options
    given = vars(args)
    for name in ("target", "precision", "tile", "arch", "head_dim", "dtype"):
        if given.get(name) is not None and given[name] != getattr(o, name):
            raise contradiction(made, name, given[name])
    if given.get("forward") and not o.forward:
        raise contradiction(made, "forward", True)
    consts = dict(made.said.consts)
    for name, value in args.define:
        if name not in consts or consts[name] != value:
            raise contradiction(made, "-D", f"{name}={value}")


def contradiction(made: Made, name: str, value: object) -> UsageError:
    flag = name if name.startswith("-") else f"--{name.replace('_', '-')}"
    return UsageError(
        f"{' '.join([flag, *_words(name, value)])} contradicts {made.file.name}, which was made with "
        f"{made.head.options}: leave it out"
    )


def _words(name: str, value: object) -> list[str]:
    """A flag's value, as one gives it."""
    if isinstance(value, tuple):
        parts = cast("tuple[object, ...]", value)
        return [("/" if name == "head_dim" else ",").join(map(str, parts))]
    return [] if value is True else [str(value)]


def flags(options: Options, consts: dict[str, Any]) -> str:
    """The options of `attngen compile` that make such a file. Tuned tiles are in a file that nobody knows here."""
    from attngen.emit import Options as Chosen

    usual = Chosen()
    found: list[str] = []
    for name in ("target", "precision", "tile", "arch", "head_dim", "dtype", "forward", "geometry"):
        value = getattr(options, name)
        if value != getattr(usual, name):
            found += [f"--{name.replace('_', '-')}", *_words(name, value)]
    for name, value in consts.items():
        found += ["-D", f"{name}={str(value).lower() if isinstance(value, bool) else value}"]
    found += ["--tiles", "TILES"] if options.tuned or options.tuned_gpu else []
    return shlex.join(found)


# ---------------------------------------------------------------- the file's own code


def is_own_part(text: str) -> bool:
    """Whether the file imports its runtime from the package beside it."""
    return "\nfrom ._attngen import " in text


@dataclass(frozen=True, eq=False, repr=False)
class FileKernel(Kernel):
    """A kernel whose functions are all those of a file, pieces included. `place`: the file, for tracebacks."""

    place: str = ""

    def _module(self, source: str) -> ModuleType:
        path = os.path.abspath(self.place) if os.path.exists(self.place) else None
        target = targets.named(self.target)
        if not is_own_part(source):
            return target.load_file(source, self.name, path)
        if path is None:
            raise UsageError(f"{self.place} calls the runtime in the package beside it: give the file's path")
        target.prepare()
        return loader.load_from_package(path)

    def _loaded(self, source: str, ending: str) -> Loaded:
        if not callable(getattr(self._module(source), f"{self.name}{ending}", None)):
            raise UsageError(f"{self.place} has no function `{self.name}{ending}`, and its head says that it has")
        return super()._loaded(source, ending)

    def partial(self, *operands: Any, **arguments: Any) -> Any:
        return self._loaded(self.source, "_partial").function(*operands, **arguments)

    def merge(self, *operands: Any, **arguments: Any) -> Any:
        return self._loaded(self.source, "_merge").function(*operands, **arguments)

    def finish(self, *operands: Any, **arguments: Any) -> Any:
        return self._loaded(self.source, "_finish").function(*operands, **arguments)

    def partial_backward(self, *operands: Any, **arguments: Any) -> Any:
        return self._loaded(self.source, "_partial_backward").function(*operands, **arguments)

    def finish_backward(self, *operands: Any, **arguments: Any) -> Any:
        return self._loaded(self.source, "_finish_backward").function(*operands, **arguments)


def kernel(made: Made) -> FileKernel:
    """The kernel of the file's own code. Raises `UsageError` where the spec in its head is another than it was made
    from, or its code is no Python, and `SpecError` where that spec is wrong."""
    name, head = made.file.name, made.head
    if not head.fits:
        raise UsageError(
            f"the spec in {name} is not the one that it was made from: its sha256 is not {head.digest}, as the head "
            "says; restore the spec's lines, or compile the spec anew"
        )
    try:
        ast.parse(made.file.text)
    except SyntaxError as error:
        raise UsageError(f"{name}:{error.lineno}:{error.offset}: this is no Python: {error.msg}") from error
    except ValueError as error:
        raise UsageError(f"{name} is no Python: {error}") from error
    o = made.options
    consts = dict(made.said.consts)
    own = {const for const, _ in api.analyse(made.spec).consts}
    if own != consts.keys():
        from attngen.emit.text.header import unreadable

        which = ", ".join(sorted(own ^ consts.keys()))
        raise unreadable(name, f"the spec and the options have other consts: {which}")
    spec, planned = api.checked_plan(made.spec, consts, o.target, o.tile, o.dtype)
    return FileKernel(
        spec=api.callable_spec(spec, planned),
        plan=planned,
        source=made.file.text,
        target=o.target,
        made=(head.text, o),
        place=name,
    )
