"""Imports generated source; Triton's on a GPU as it is, elsewhere under Triton's interpreter.

Takes the source and the attention's name, gives the module. The source is stored first, so that tracebacks, Triton's
own source inspection and its binary cache see a file that stays where it is.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import warnings
from types import ModuleType
from typing import Any

from attngen.errors import InternalError
from attngen.runtime import cache

_LOADED: dict[str, ModuleType] = {}
_SAID: list[bool] = []


def has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def prepare_interpreter() -> None:
    """Without a GPU: turns Triton's interpreter on (before Triton is imported), and says so once."""
    if has_gpu() or os.environ.get("TRITON_INTERPRET") == "1":
        return
    imported = "triton.language" in sys.modules
    os.environ["TRITON_INTERPRET"] = "1"
    if imported:
        _interpret_language()
    if not _SAID:
        _SAID.append(True)
        warnings.warn(
            "no GPU found: attngen runs Triton kernels in Triton's interpreter, which is exact but slow",
            stacklevel=4,
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


def load(source: str, name: str, target: str = "triton") -> ModuleType:
    """The module of a generated source. The same source gives the same module."""
    key = cache.digest(source)
    if key not in _LOADED:
        if target == "triton":
            prepare_interpreter()
        _LOADED[key] = execute(source, name)
    return _LOADED[key]


def execute(source: str, name: str) -> ModuleType:
    """A new module of a generated source, under Triton as it is set up now."""
    path = cache.stored(source, name)
    spec = importlib.util.spec_from_file_location(f"attngen_generated.{name}_{cache.digest(source)[:16]}", path)
    if spec is None or spec.loader is None:
        raise InternalError(f"no loader for {path.name}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
