"""The functions by which kernels find items, heads and tiles are the runtime's text, read as values."""

from __future__ import annotations

from inspect import signature
from random import Random
from types import SimpleNamespace

import pytest
from mutation.functions import run_as_python

from attngen.errors import InternalError
from attngen.ir.function import Function, results_of
from attngen.plan.index import items, read


@pytest.mark.parametrize("f", items().functions, ids=str)
def test_a_value_is_what_its_text_computes(f: Function) -> None:
    random, program = Random(str(f)), SimpleNamespace(id=0, count=0)
    own = run_as_python(items().text, program)[f.name]
    compared = 0
    for _ in range(300):
        args = {p.id: random.randrange(2) if p.type == "bool" else random.randint(1, 9) for p in f.params}
        args |= {"Hq": args.get("Hq", 1) * args.get("Hkv", 1)}  # a group of at least one
        args |= {name: 50 * args[name] for name in ("heads", "n_items", "n_programs", "programs") if name in args}
        program.id, program.count = args.get("program", 0), args.get("programs", 0)
        given = {p.id: args[p.id] for p in f.params}
        own_args = {name: value for name, value in given.items() if name in signature(own).parameters}
        try:
            found = own(**own_args, **dict(f.flags))
        except ZeroDivisionError:  # no such sizes
            continue
        assert results_of(f, given) == (found if isinstance(found, tuple) else (found,)), given
        compared += 1
    assert compared > 100


def test_a_group_goes_backwards_but_for_the_last_and_but_for_few_heads() -> None:
    f = items().of("tile_of_keys", BACKWARDS=True)
    for n_tiles, together, heads in ((1, 2, 9), (3, 1, 5), (5, 2, 8), (2, 3, 11), (4, 8, 31), (4, 8, 33)):
        for item in range(n_tiles * heads):
            args = {"item": item, "n_items": n_tiles * heads, "n_tiles": n_tiles, "together": together}
            _tile, _order, back, head = results_of(f, args)
            assert back == (heads >= 4 * together and head < (heads - 1) // together * together)


@pytest.mark.parametrize(
    "body",
    [
        "return tl.load(a)",
        "while a > 0:\n        a = a - 1\n    return a",
        "return a ** 2",
        "if a > 0:\n        a = 1\n    return a",
        "a = 1",
        "a, b = 1, 2\n    return a + b",
        "return other(a)",
        "return tl.program_id(1)",
        "return b",
    ],
)
def test_what_cannot_be_executed_is_refused(body: str) -> None:
    with pytest.raises(InternalError, match="cannot be executed"):
        read(f"def f(a):\n    {body}\n")


def test_there_is_one_function_of_a_name_and_flags() -> None:
    with pytest.raises(InternalError, match="0 functions tile_of_item"):
        items().of("tile_of_item", LATE=True)
