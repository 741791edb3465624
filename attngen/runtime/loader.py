"""Imports generated source; Triton's on a GPU as it is, elsewhere under Triton's interpreter.

Takes the source and the attention's name, returns the module. It executes the text itself: it reads no file and keeps
no bytecode. `linecache` gets the same text, for Triton's source inspection and for tracebacks. It is listed there
under the path of a file in the cache, for editors and profilers, or under a name alone where there is no cache.

A file that attngen makes in this process is executed without the runtime that it carries: all share `runtime.exported`.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect
import linecache
import os
import sys
import threading
import warnings
from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

from attngen import cache
from attngen.errors import UsageError

SHARED = "attngen.runtime.exported"
_LOADED: dict[str, ModuleType] = {}
_LOADING = threading.RLock()  # two first calls at a time would register one operator twice
_SAID: list[bool] = []


class OwnLines(NamedTuple):
    """Which lines of a generated file are its runtime, and which modules of that the others call."""

    runtime: slice
    modules: tuple[str, ...]


def has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def prepare_interpreter() -> None:
    """Without a GPU: turns Triton's interpreter on (before Triton is imported), and says so once."""
    if has_gpu():
        return
    _check_numpy()
    if os.environ.get("TRITON_INTERPRET") == "1":
        return
    imported = "triton.language" in sys.modules
    os.environ["TRITON_INTERPRET"] = "1"
    if imported:
        _interpret_language()
    if not _SAID:
        _SAID.append(True)
        warnings.warn(
            "no GPU found: attngen runs Triton kernels in Triton's interpreter, which is exact but slow",
            stacklevel=_callers_level(),
        )


def _callers_level() -> int:
    """Which caller of the function that asks is the first outside of attngen, and of PyTorch, whose compiler may have
    come between."""
    frames = inspect.stack(context=0)[1:]
    packages = (str(f.frame.f_globals.get("__name__")).partition(".")[0] for f in frames)
    return next((level for level, name in enumerate(packages, 1) if name not in ("attngen", "torch")), 1)


def _check_numpy() -> None:
    """Raises `UsageError` where Triton's interpreter cannot run: that of 3.6 asks of NumPy what 2.4 no longer does."""
    versions = [importlib.metadata.version(package) for package in ("triton", "numpy")]
    triton, numpy = (tuple(map(int, version.split(".")[:2])) for version in versions)
    if triton < (3, 7) and numpy >= (2, 4):
        raise UsageError(
            f"the interpreter of Triton {versions[0]} does not run under NumPy {versions[1]}: "
            "install Triton 3.7.1 or newer, or numpy<2.4"
        )


def _interpret_language() -> None:
    """Makes Triton's own library functions (`tl.max`, `tl.sum`, …) interpreted, where they were imported compiled.

    Triton decides at the import of `triton.language`; another package, such as torch's compiler, may have come first.
    """
    triton: Any = importlib.import_module("triton")
    interpreter: Any = importlib.import_module("triton.runtime.interpreter")
    for name, module in list(sys.modules.items()):
        if name.startswith("triton.language"):
            for key, value in list(vars(module).items()):
                if isinstance(value, triton.JITFunction):
                    function: Any = value
                    setattr(module, key, interpreter.InterpretedFunction(function.fn))


def load(
    source: str,
    name: str,
    prepare: Callable[[], None] = prepare_interpreter,
    place: str | None = None,
    own: OwnLines | None = None,
) -> ModuleType:
    """The module of a generated source. The same source gives the same module. `prepare` runs before the first load.
    `place`: the file that the source is from, if it is from one. `own`: see `execute`."""
    key = cache.digest(source if own is None else f"{source}{own}")
    with _LOADING:
        if key not in _LOADED:
            prepare()
            _LOADED[key] = execute(source, name, place, own)
            _tell_flop_counters()
        return _LOADED[key]


def load_from_package(path: str) -> ModuleType:
    """The module of a file that imports from the package in whose folder it is."""
    folder, name = os.path.split(os.path.splitext(path)[0])
    package = f"attngen_package_{cache.digest(folder)[:16]}"
    with _LOADING:
        if package not in sys.modules:
            sys.modules[package] = ModuleType(package)
            sys.modules[package].__path__ = [folder]
        found = importlib.import_module(f"{package}.{name}")
        _tell_flop_counters()
        return found


def _tell_flop_counters() -> None:
    """Makes counters of operations that are active count a file that is loaded now: each copied PyTorch's registry when
    it was made."""
    flop_counter: Any = sys.modules.get("torch.utils.flop_counter")
    if flop_counter is None:
        return
    dispatch: Any = importlib.import_module("torch.utils._python_dispatch")
    for mode in dispatch._get_current_dispatch_mode_stack():
        registry: Any = getattr(getattr(mode, "counter", None), "flop_registry", None)
        if registry is not None:
            registry.update({op: of for op, of in flop_counter.flop_registry.items() if op not in registry})


def execute(source: str, name: str, place: str | None = None, own: OwnLines | None = None) -> ModuleType:
    """A new module of a generated source, under Triton as it is set up now. `own`: the lines that are executed, where
    the others are a runtime, in whose place the process has one."""
    title = f"{name}_{cache.digest(source)[:16]}"
    file = place or str(cache.stored(source, name) or f"<attngen-{title}>")
    module = ModuleType(f"attngen_generated.{title}")
    module.__file__ = file
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    sys.modules[module.__name__] = module
    executed = source
    if own is not None:
        lines = source.split("\n")
        lines[own.runtime] = [""] * len(lines[own.runtime])  # the others keep their numbers
        executed = "\n".join(lines)
        vars(module).update((x, importlib.import_module(f"{SHARED}.{x}")) for x in own.modules)
    exec(compile(executed, file, "exec", dont_inherit=True), module.__dict__)
    return module
