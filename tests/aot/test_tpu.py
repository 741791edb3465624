"""libtpu itself, ahead of time: what it compiles, refuses and schedules for chips that are not here."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from attngen.errors import InternalError, UsageError
from attngen.tpu import compile as tpu_compile
from attngen.tpu.chips import CHIPS, MIB
from attngen.tpu.compile import Compiled, Refused, Request, compile_for
from attngen.tpu.estimate import estimate

needs_libtpu = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="needs libtpu: pip install -e '.[tpu]'"
)
COUNTS = (3, 0, 5)


@pytest.fixture(autouse=True)
def programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(Path(__file__).parent), *sys.path])


def compiled(chip: str, **options: bool) -> Compiled:
    outcome = compile_for(Request("tpu_programs:row_tiles", (("counts", COUNTS),), CHIPS[chip], **options))
    assert isinstance(outcome, Compiled)
    return outcome


@needs_libtpu
@pytest.mark.parametrize(
    "chip", ["v5e", *(pytest.param(name, marks=pytest.mark.slow) for name in CHIPS if name != "v5e")]
)
def test_a_loop_runs_as_the_tables_values_say(chip: str):
    result = estimate(compiled(chip))
    (kernel,) = result.pallas
    assert (kernel.function, kernel.doubts) == ("kernel", ())
    # Every tile once each way, and the table: the grid's only dimension is not parallel, so one core does it all.
    assert kernel.hbm_bytes == 2 * len(COUNTS) * 256 * 128 * 4 + 512
    doubling = [loop for loop in kernel.loops if loop.trips == sum(COUNTS)]
    assert doubling, [loop.trips for loop in kernel.loops]
    assert 0 < result.memory_seconds < result.seconds


@needs_libtpu
def test_mosaic_and_hlo_are_given_when_they_are_asked_for():
    outcome = compiled("v5e", schedule=False, mosaic=True)
    assert outcome.kernels == ()
    ((name, text),) = outcome.mosaic
    assert name in outcome.hlo and "tpu_custom_call" in outcome.hlo
    assert "func.func @kernel" in text and "scf.for" in text


@needs_libtpu
def test_a_kernel_that_takes_bools_is_known_by_its_name():
    outcome = compile_for(Request("tpu_programs:where", (), CHIPS["v5e"]))
    assert isinstance(outcome, Compiled)
    assert [kernel.function for kernel in estimate(outcome).pallas] == ["kernel"]


@needs_libtpu
def test_what_does_not_fit_vector_memory_is_refused_with_the_sizes():
    request = Request("tpu_programs:row_tiles", (("counts", COUNTS), ("vmem", MIB // 4)), CHIPS["v5e"], schedule=False)
    outcome = compile_for(request)
    assert isinstance(outcome, Refused) and outcome.stage == "compile"
    assert "vmem" in outcome.reason() or "limit 256.0K" in outcome.reason()


@needs_libtpu
def test_what_a_tpu_cannot_do_is_refused_in_the_compilers_words():
    outcome = compile_for(Request("tpu_programs:unsupported", (), CHIPS["v5e"], schedule=False))
    assert isinstance(outcome, Refused)
    assert outcome.stage in ("lower", "compile") and outcome.reason()


@needs_libtpu
def test_a_process_that_fails_leaves_its_last_words():
    with pytest.raises(InternalError, match=r"(?s)compiles for v5e ended with status 1.*No module named 'nowhere'"):
        compile_for(Request("nowhere:nothing", (), CHIPS["v5e"], schedule=False))


def test_without_libtpu_the_message_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(tpu_compile.importlib.util, "find_spec", lambda name: None if name == "libtpu" else find(name))
    with pytest.raises(UsageError, match=r"pip install 'jax>=0.10' libtpu=="):
        compile_for(Request("tpu_programs:row_tiles", (), CHIPS["v5e"]))
