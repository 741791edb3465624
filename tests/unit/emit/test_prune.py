"""What nothing reads does not reach a generated file."""

from __future__ import annotations

from attngen.emit.text.prune import pruned


def test_names_of_a_tuple_that_nothing_reads_become_dummies() -> None:
    source = "def f(x):\n    a, (b, *c), d = x\n    def g():\n        return b\n    return a + g()\n"
    assert pruned(source) == source.replace("*c), d", "*_c), _d")


def test_a_loop_that_only_counts_has_a_dummy() -> None:
    assert pruned("def f(x):\n    for i in range(3):\n        x += x\n    return x\n") == (
        "def f(x):\n    for _i in range(3):\n        x += x\n    return x\n"
    )


def test_no_gap_is_left_of_constants() -> None:
    source = "a = 1\n\n\nONE = 1\nTWO = 2\n\n\ndef f(x):\n    return x\n"
    below = "a = 1\nONE = 1\n\n\ndef f(x):\n    return x\n"
    assert pruned(below) == below.replace("ONE = 1\n", "")
    assert pruned(source) == "a = 1\n\n\ndef f(x):\n    return x\n"


def test_definitions_that_nothing_reads_are_removed_with_what_only_they_read() -> None:
    source = (
        'LN2 = 0.69\n"""log 2."""\nKEPT = 1\n\n\n'
        "@triton.jit\ndef _helper(x):\n    return x * LN2\n\n\n"
        "def _first(x):\n    return _helper(x)\n\n\n"
        "@operator.register_fake\ndef _fake(x):\n    return KEPT\n\n\n"
        "def public(x):\n    return x\n"
    )
    assert pruned(source) == (
        "KEPT = 1\n\n\n@operator.register_fake\ndef _fake(x):\n    return KEPT\n\n\ndef public(x):\n    return x\n"
    )


def test_imports_of_which_nothing_is_read_are_removed() -> None:
    source = (
        "from __future__ import annotations\n\nimport math\nimport torch.nn as nn\nimport triton.language as tl\n"
        "from a import (\n    b,\n    c,\n)\nfrom d import e\n\n\ndef f(x: e):\n    return tl.abs(x)\n"
    )
    assert pruned(source) == (
        "from __future__ import annotations\n\nimport triton.language as tl\nfrom d import e\n\n\n"
        "def f(x: e):\n    return tl.abs(x)\n"
    )


def test_what_only_a_dropped_binding_reads_goes_too() -> None:
    source = (
        "import math\n\n\nONE = 1\n\n\ndef _one():\n    return math.pi + ONE\n\n\n"
        "def f(x):\n    a = _one()\n    b = (\n        a\n        + 1\n    )\n    return x\n"
    )
    assert pruned(source).lstrip("\n") == "def f(x):\n    return x\n"


def test_titles_of_sections_that_are_empty_go() -> None:
    title = "# ---------------------------------------------------------------- {}\n\n\n"
    parts = ("x = 1\n\n\n", title.format("gone"), "def _f():\n    return 1\n\n\n", title.format("stays"))
    last = "def g():\n    return x\n"
    assert pruned("".join((*parts, last))) == "".join((parts[0], parts[3], last))


def test_a_block_keeps_a_statement() -> None:
    source = "def f(x):\n    if x:\n        a = 1\n    return x\n"
    assert pruned(source) == source
