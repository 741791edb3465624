"""The scan of names in templates, and that no target forgets its own."""

from __future__ import annotations

import pytest

from attngen import resources
from attngen.emit.jax.names import reserved as jax
from attngen.emit.pallas.names import reserved as pallas
from attngen.emit.text import reserved
from attngen.emit.torch.names import reserved as torch
from attngen.emit.triton.code.names import reserved as triton

TEMPLATE = '''{# of legends nothing: legend #}
def _helper(alone):
    """Its names are its own: nothing is printed into it."""
    return alone + alone


def _kernel(q, {{ names | join(', ') }}, size_{{ n }}):
    """Of docstrings nothing: docstring."""
    # nor of comments: comment
    total = x.attribute + {{ 'printed' if deep else 'other' }}  # remark
    return total + "quoted"
'''


def test_what_the_scan_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources, "names", lambda folder, suffix: ("this",))
    monkeypatch.setattr(resources, "read", lambda path: TEMPLATE)
    found = reserved.template_names.__wrapped__("only")
    assert {"q", "total", "x", "printed", "other"} <= found
    assert not {"legend", "alone", "docstring", "comment", "attribute", "remark", "quoted", "names", "deep"} & found
    assert not {"def", "return"} & found


def test_included_templates_are_scanned() -> None:
    assert "dk_token" in triton(), "of a Gluon template"


def test_no_param_is_called_as_a_module_of_the_runtime() -> None:
    """Kernels call `rows.load`: a local of that name would hide it."""
    assert {"host", "rows", "sm90", "gl", "gluon", "tl", "COPY_IN"} <= triton()


@pytest.mark.parametrize("names", [triton, torch, jax, pallas], ids=["triton", "torch", "jax", "pallas"])
def test_what_every_target_reserves(names: object) -> None:
    assert callable(names)
    found = names()
    assert {"q", "k", "v", "out", "lse", "q_idx", "k_idx", "any0_lo", "test0_any_lo", "at_q", "print", "drop"} <= found
    assert not any(name.startswith("_") for name in found if name != "_")
