"""What functions enclose: the tensors and numbers that they read, under the names that they read them by.

Takes functions; returns what is reachable from them: what they enclose, read of their modules, or have by default, and
what is inside of that.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

Modification = Callable[..., Any]
"""A score_mod, of `(score, b, h, q_idx, kv_idx)`, or a mask_mod, of `(b, h, q_idx, kv_idx)`."""

_PLAIN = (str, bytes, type(None), bool, complex, range, torch.dtype, torch.device, torch.layout, Enum)
_OF_CLASSES = (
    "__module__",
    "__doc__",
    "__dict__",
    "__weakref__",
    "__annotations__",
    "__init__",
    "__repr__",
    "__eq__",
    "__hash__",
    "__dataclass_fields__",
    "__slotnames__",
    "__dataclass_params__",
    "__match_args__",
)
_CALLED, _HOLDERS = (FunctionType, MethodType, functools.partial), (list, tuple, set, frozenset, dict)
_METHODS = (FunctionType, property, staticmethod, classmethod)
_MOST = 2000
"""Objects that are looked into."""
_OPAQUE = ("builtins", "_thread")
_TRUSTED = ("torch", "math", "functools", "operator", "builtins", "typing", "collections", "numpy")
"""Modules that do not change what a function computes."""


@dataclass(slots=True)
class Enclosed:
    """`tensors` and `numbers`, each with its name, in a fixed order; no numbers of an object's methods, which need not
    be called. `key`: two lists of functions that have the same compute the same of tensors that are alike; None where
    something could not be looked into."""

    tensors: list[tuple[str, Tensor]] = field(default_factory=list[tuple[str, Tensor]])
    numbers: list[tuple[str, int | float]] = field(default_factory=list[tuple[str, int | float]])
    key: Hashable = None


def enclosed(functions: list[Modification | None]) -> Enclosed:
    found = Enclosed()
    key: list[Hashable] = []
    places: dict[int, int] = {}
    kept: list[Any] = []  # else another may get the identity of one that is gone
    whole = True
    waiting: list[tuple[str, Any, bool]] = [("", f, True) for f in reversed(functions)]
    while waiting:
        text, x, read = waiting.pop()
        x: Any = x.item() if isinstance(x, np.integer | np.floating) else x
        if len(kept) > _MOST:
            whole = False
            break
        if isinstance(x, Tensor):
            if id(x) not in places:
                found.tensors.append((text, x))
            known = places.setdefault(id(x), len(places))
            key.append((text, known, x.shape, x.dtype, x.requires_grad))
            whole &= not vars(x)
        elif isinstance(x, int | float) and not isinstance(x, bool | Enum):
            found.numbers += [(text, x)] if read else []
            key.append((text, repr(type(x)), repr(x)))
        elif isinstance(x, _PLAIN) or _is_of_a_module(x):
            key.append((text, x))
        elif isinstance(x, ModuleType | type):
            module: str = x.__name__ if isinstance(x, ModuleType) else x.__module__
            whole &= module.partition(".")[0] in _TRUSTED
            key.append((text, x))
        elif id(x) in places:
            key.append((text, places[id(x)]))
        else:
            places[id(x)] = len(places)
            kept.append(x)
            inside = _inside(text, x)
            whole &= inside is not None
            of: Hashable = x.__code__ if isinstance(x, FunctionType) else _class(x)
            parts = [*(inside or ())]
            key.append((text, of, len(parts)))
            of_object = not isinstance(x, _CALLED) and _class(x) not in _HOLDERS
            waiting += ((n, y, read and not (of_object and isinstance(y, _METHODS))) for n, y in reversed(parts))
    found.key = tuple(key) if whole else None
    return found


def _inside(text: str, x: Any) -> Iterator[tuple[str, Any]] | None:
    """None for what cannot be looked into."""
    match x:
        case functools.partial():
            return _inside(text, {"": x.func, **x.keywords, **dict(enumerate(x.args))})  # pyright: ignore[reportUnknownMemberType]
        case MethodType():
            return iter([("", x.__func__), ("", x.__self__)])
        case FunctionType():
            return _of_function(x)
        case _ if _class(x) in (list, tuple, set, frozenset):
            return ((text, part) for part in cast("Iterable[Any]", x))
        case _ if _class(x) is dict:
            items = cast("dict[Any, Any]", x).items()
            return ((key if isinstance(key, str) else f"{text}_{key!r}", part) for key, part in items)
        case tuple() if hasattr(_class(x), "_fields"):
            return iter(cast("dict[str, Any]", cast(Any, x)._asdict()).items())
        case list() | tuple() | set() | frozenset() | dict() | np.ndarray():
            return None
        case property():
            return iter([("", x.fget)])
        case staticmethod() | classmethod():
            return iter([("", cast(Any, x).__func__)])
        case _ if hasattr(x, "__dict__") and not hasattr(_class(x), "__slots__"):
            if _class(x).__module__ in _OPAQUE:
                return None
            classes = [c for c in _class(x).__mro__ if c.__module__.partition(".")[0] not in _TRUSTED]
            own = {n: y for c in reversed(classes) for n, y in vars(c).items() if n not in _OF_CLASSES}
            return iter([*cast("dict[str, Any]", vars(x)).items(), *own.items()])
        case _:
            return None


def _is_of_a_module(x: Any) -> bool:
    """Whether it is a function of C, and no method of an object."""
    owner = getattr(x, "__self__", None)
    return isinstance(x, BuiltinFunctionType) and (owner is None or isinstance(owner, ModuleType | type))


def _class(x: Any) -> type[Any]:
    return x.__class__


def _of_function(f: FunctionType) -> Iterator[tuple[str, Any]]:
    if str(f.__module__).partition(".")[0] in _TRUSTED and f.__closure__ is None:
        return
    for name, cell in zip(f.__code__.co_freevars, f.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:  # it is filled later
            yield name, None
    for name in sorted(_global_names(f.__code__)):
        if name in f.__globals__:
            yield name, f.__globals__[name]
    parameters = f.__code__.co_varnames[: f.__code__.co_argcount]
    yield from zip(parameters[len(parameters) - len(f.__defaults__ or ()) :], f.__defaults__ or (), strict=True)
    yield from (f.__kwdefaults__ or {}).items()
    yield from vars(f).items()


@functools.lru_cache(maxsize=512)
def _global_names(code: CodeType) -> frozenset[str]:
    """The names that may be its module's, of functions inside of it, too."""
    inner = [_global_names(c) for c in code.co_consts if isinstance(c, CodeType)]
    return frozenset(code.co_names).union(*inner)
