"""What an edited file computes: its kernels run on small tensors, beside the float64 definition.

A `Subject` is a generated file with the runs that reach its kernels. `mistake` takes another text of the file, gives
the first mistake in words, or nothing. Portable kernels run in Triton's interpreter, those for Hopper GPUs on the model
of the chip (`tests/hopper_model`). Each text runs in a process of its own, since an edit may read anywhere, or never
end.
"""

from __future__ import annotations

import ast
import multiprocessing
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from multiprocessing.connection import Connection

import numpy as np
import torch
from hopper_model.cases import case, compiled, relative, text_of
from hopper_model.numbers import FaultError
from hopper_model.test_backward import gradients
from hopper_model.test_sequences import SQUARE, UNEVEN, errors

import attngen
from attngen.cli import made
from attngen.errors import Source
from attngen.verify import comparison, sequences
from attngen.verify.comparison import Case, Comparison

SECONDS = 60
"""A run that takes longer does not end."""
DIMS = ("B", "Hq", "Hkv", "Sq", "Sk", "D", "Dv")


@dataclass(frozen=True)
class Run:
    """`kernels`: what it launches, among others. `wrong`: the first mistake of a file's text."""

    kernels: frozenset[str]
    wrong: Callable[[str], str]


@dataclass(frozen=True)
class Subject:
    name: str
    make: Callable[[], str]
    runs: tuple[Run, ...]

    @cached_property
    def source(self) -> str:
        return self.make()

    @cached_property
    def reached(self) -> dict[str, frozenset[str]]:
        return reached(self.source)

    def reaching(self, function: str) -> list[Run]:
        """The runs that reach a function of the file."""
        return [run for run in self.runs if run.kernels & self.reached.get(function, frozenset())]


def reached(source: str) -> dict[str, frozenset[str]]:
    """By function of a file: the kernels that call it, or call what calls it."""
    functions = {n.name: n for n in ast.parse(source).body if isinstance(n, ast.FunctionDef)}
    calls = {
        name: {n.id for n in ast.walk(own) if isinstance(n, ast.Name)} & functions.keys()
        for name, own in functions.items()
    }
    found: dict[str, frozenset[str]] = {}
    for kernel in (name for name in functions if name.endswith("_kernel")):
        seen, waiting = {kernel}, [kernel]
        while waiting:
            new = calls[waiting.pop()] - seen
            seen |= new
            waiting += sorted(new)
        for name in seen:
            found[name] = found.get(name, frozenset()) | {kernel}
    return found


# ---------------------------------------------------------------- portable kernels, in the interpreter


@cache
def _file(source: str) -> made.FileKernel:
    return made.kernel(made.read(Source(source, "file.py")))


def _first(found: Iterable[Comparison]) -> str:
    return next((f"{c.result} is off by {c.error:.3g}" for c in found if not c.passed), "")


def _dense(source: Callable[[], str], sizes: str, text: str) -> str:
    own = Case("edited", "fp32", tuple(zip(DIMS, map(int, sizes.split()), strict=True)))
    return _first(comparison.compare(replace(_file(source()), source=text), own, "cpu"))


def _of_sequences(source: Callable[[], str], geometry: str, text: str) -> str:
    kernel = replace(_file(source()), source=text)
    sizes = (("Hq", 4), ("Hkv", 2), ("D", 16), ("Dv", 16))
    own = sequences.settled(kernel.spec, Case("edited", "fp32", sizes, lengths=((5, 9), (0, 4), (20, 37), (3, 0))))
    return _first(sequences.compare(kernel, own, "cpu", geometry=geometry))


def portable(name: str) -> Subject:
    source = cache(lambda: attngen.compile(text_of(name), tile=(16, 16), arch="portable").source)
    passes = frozenset({"_forward_kernel", "_rows_kernel", "_dq_kernel", "_dkdv_kernel"})
    short = frozenset({"_split_kernel", "_merge_kernel"})
    runs = [Run(passes, partial(_dense, source, "2 4 2 33 37 16 16"))]
    runs += [Run(short, partial(_dense, source, "1 4 2 3 90 16 16"))]
    return Subject(f"portable {name}", source, tuple(runs))


def portable_sequences(name: str, geometry: str) -> Subject:
    source = cache(lambda: attngen.compile(text_of(name), tile=(16, 16), arch="portable", geometry=(geometry,)).source)
    kernels = {f"_sequence_{own}_kernel" for own in ("forward", "dq", "dkdv")}
    kernels |= {"_before_forward_kernel", "_before_backward_kernel", "_rows_kernel"}
    return Subject(
        f"portable {name}, {geometry}", source, (Run(frozenset(kernels), partial(_of_sequences, source, geometry)),)
    )


# ---------------------------------------------------------------- kernels for Hopper GPUs, on the model


def _forward(spec: str, dim: int, text: str) -> str:
    own = case(spec, (dim, dim), (2, 4, 2, 200, 333), torch.float16, [(compiled(spec).source, text)])
    out, lse = getattr(own.module, own.kernel.name)(own.q, own.k, own.v, return_lse=True, **own.given)
    right = own.truth()
    met = np.isfinite(right.lse)
    if not np.array_equal(lse.numpy()[~met], right.lse[~met]):
        return "a row without a key has a log-sum-exp"
    found = {"out": relative(out, right.out), "lse": relative(lse[torch.from_numpy(met)], right.lse[met])}
    return _off(found, 1e-3)


def _backward(spec: str, dim: int, text: str) -> str:
    found, _ = gradients(spec, (dim, dim), (2, 4, 2, 200, 333), changes=[(compiled(spec).source, text)])
    return _off(found, 1e-2)


def _off(found: dict[str, float], limit: float) -> str:
    """NaN is a mistake, too."""
    return next((f"{name} is off by {error:.3g}" for name, error in found.items() if not error <= limit), "")


def hopper(name: str) -> Subject:
    spec = text_of(name)
    lists = {"_list_key_runs_kernel", "_list_walks_kernel"} if compiled(spec).plan.keys.tests else set[str]()
    one = {"_rows_kernel", "_hopper_backward_kernel", "_collect_kernel", *lists}
    return Subject(
        f"hopper {name}",
        lambda: compiled(spec).source,
        (
            Run(frozenset({"_hopper_forward_kernel", *lists}), partial(_forward, spec, 64)),
            Run(frozenset(one), partial(_backward, spec, 64)),
            Run(frozenset({"_hopper_dkdv_kernel", "_hopper_dq_kernel"}), partial(_backward, spec, 256)),
        ),
    )


def _hopper_sequences(source: Callable[[], str], name: str, geometry: str, text: str) -> str:
    lengths = UNEVEN if name == "causal" else SQUARE
    return ", ".join(errors(name, 64, geometry, lengths, changes=[(source(), text)]))


def hopper_sequences(name: str, geometry: str) -> Subject:
    source = cache(lambda: attngen.compile(text_of(name)).with_geometry(geometry))
    kernels = {"_before_forward_kernel", "_hopper_forward_kernel", "_rows_kernel", "_before_backward_kernel"}
    kernels |= {"_hopper_backward_kernel", "_collect_kernel"}
    wrong = partial(_hopper_sequences, source, name, geometry)
    return Subject(f"hopper {name}, {geometry}", source, (Run(frozenset(kernels), wrong),))


# ---------------------------------------------------------------- in a process of its own


def mistake(run: Run, text: str) -> str:
    """What is wrong with a text, by one run."""
    context = multiprocessing.get_context("fork")
    mine, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(run, text, theirs))
    process.start()
    theirs.close()
    found = "it does not end"
    if mine.poll(SECONDS):
        try:
            found = mine.recv()
        except EOFError:
            found = "it crashes"
    process.kill()
    process.join()
    return found


def _answer(run: Run, text: str, answer: Connection) -> None:
    torch.set_num_threads(1)
    answer.send(_outcome(run, text))


_FAILURES = (FaultError, AssertionError, ArithmeticError, AttributeError, LookupError, NameError, TypeError, ValueError)


def _outcome(run: Run, text: str) -> str:
    try:
        with np.errstate(all="ignore"):
            return run.wrong(text)
    except (*_FAILURES, RuntimeError) as error:
        return f"{type(error).__name__}: {' '.join(str(error).split())[-200:]}"
