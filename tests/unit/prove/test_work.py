"""The prover counts work: its verdicts and what it spends are the same, however fast the machine is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from attngen import api
from attngen.errors import Source
from attngen.ir.attention import Attention
from attngen.ir.build import add, mul, real
from attngen.ir.nodes import Scalar, Type
from attngen.plan.kernel import KernelPlan
from attngen.prove.algebra import equality
from attngen.prove.algebra.assumptions import assumptions
from attngen.prove.algebra.equality import equal
from attngen.prove.algebra.sympy_door import sp
from attngen.prove.algebra.term_size import price
from attngen.prove.budget.watchdog import OutOfTime
from attngen.prove.budget.work import OBLIGATION, Budget, OutOfWork, Work
from attngen.prove.discharge import prove
from attngen.prove.integers.answers import Holds, Open
from attngen.prove.integers.z3_door import SolverContext
from attngen.prove.obligations import questions
from attngen.prove.obligations.tile_ranges import tile_ranges
from attngen.prove.proof import Proof
from attngen.prove.search.tile_search import TileSearch
from attngen.prove.verdict import Proved, Unknown

ROOT = Path(__file__).resolve().parents[3]
SPECS = {
    "tiles that z3 works on": "param w: int where 1 <= w\nmask = k <= q and q < k + w and q // w == k // w",
    "cases of kinks": "param a: f32[Hq]\nscore = max(qk * scale, a[h]) - min(abs(qk * scale), 2.0)\nmask = causal",
    "a search": "param segment: int[Sq]\nparam other: int[Sk]\nmask = segment[q] * segment[q] == other[k] * other[k]",
}
HARD = """param a: f32
param c: f32
score = (tanh(qk * scale) + tanh(a) + c * float(k) + 1.0) ** 60 / (1.0 + (tanh(qk) + tanh(c)) ** 8)"""


def planned(body: str) -> tuple[Attention, KernelPlan]:
    return api.checked_plan(Source(f"attention a\n{body}\n", "a.attn"))


def outcome(proof: Proof) -> list[object]:
    """Everything but the seconds: claims with their verdicts, and the units spent."""
    return [(s.obligation, s.claims, s.work) for s in proof.shown] + [proof.expected]


def faster(monkeypatch: pytest.MonkeyPatch, times: float) -> None:
    """Makes the clock, and every watchdog, run so many times as fast."""
    true, start, timer = time.monotonic, time.monotonic(), threading.Timer
    monkeypatch.setattr(time, "monotonic", lambda: start + (true() - start) * times)

    def shorter(seconds: float, f: Callable[[], None]) -> threading.Timer:
        return timer(seconds / times, f)

    monkeypatch.setattr(threading, "Timer", shorter)


# ---------------------------------------------------------------- the machine


@pytest.mark.parametrize("name", SPECS)
def test_a_clock_ten_times_as_fast_changes_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    attention, plan = planned(SPECS[name])
    first = outcome(prove(attention, plan))
    faster(monkeypatch, 10.0)
    assert outcome(prove(attention, plan)) == first


@pytest.mark.parametrize("effort", [0.003, 0.01])
def test_a_clock_ten_times_as_fast_changes_nothing_of_what_runs_out(
    effort: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With so little work some claims end in the middle: always the same ones, at the same place."""
    attention, plan = planned(SPECS["cases of kinks"])
    first = prove(attention, plan, Budget(effort=effort))
    assert first.unknown
    assert any(isinstance(c.verdict, Proved) for s in first.shown for c in s.claims)
    faster(monkeypatch, 10.0)
    assert outcome(prove(attention, plan, Budget(effort=effort))) == outcome(first)


LINES = """
import sys
from attngen import api
from attngen.errors import Source
from attngen.prove.discharge import prove

def lines(proof):
    return [f"{s.work} {[(c.subject, type(c.verdict).__name__) for c in s.claims]}" for s in proof.shown]

if __name__ == "__main__":
    attention, plan = api.checked_plan(Source(sys.argv[1], "a.attn"))
    print("ready", flush=True)
    print(*lines(prove(attention, plan)), sep="\\n")
"""


def test_a_process_that_stands_still_most_of_the_time_comes_to_the_same() -> None:
    """A busy machine, in the middle of z3's and sympy's work; the order of Python's sets is another one, too."""
    body = SPECS["tiles that z3 works on"]
    shared: dict[str, Callable[[Proof], list[str]]] = {}
    exec(LINES, shared)
    expected = shared["lines"](prove(*planned(body)))
    command = [sys.executable, "-c", LINES, f"attention a\n{body}\n"]
    environment = {**os.environ, "PYTHONHASHSEED": "1", "PYTHONPATH": str(ROOT)}
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    for _ in range(20):
        if child.poll() is not None:
            break
        child.send_signal(signal.SIGSTOP)
        time.sleep(0.1)
        child.send_signal(signal.SIGCONT)
        time.sleep(0.02)
    assert child.communicate(timeout=300)[0].splitlines() == expected


@pytest.mark.parametrize("name", SPECS)
def test_two_runs_spend_the_same(name: str) -> None:
    attention, plan = planned(SPECS[name])
    first, second = prove(attention, plan), prove(attention, plan)
    assert outcome(first) == outcome(second)
    assert sum(s.work for s in first.shown) > 0


def test_what_was_proved_before_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A question that is remembered takes the same units whichever spec asks it first."""
    found: list[list[object]] = []
    for before in ((), ("block_sparse", "relative_bias")):
        monkeypatch.setattr(questions, "_SHOWN", {})
        for name in before:
            prove(*api.checked_plan(Source((ROOT / "examples" / f"{name}.attn").read_text(), "a.attn")))
        found.append(outcome(prove(*planned(SPECS["tiles that z3 works on"]))))
    assert found[0] == found[1]


# ---------------------------------------------------------------- parts


def test_what_a_part_spends_the_whole_has_spent() -> None:
    work = Work(Budget(effort=0.5))
    part = work.part(1000)
    assert part.left == 500
    part.spend(300)
    with pytest.raises(OutOfWork):
        part.spend(201)
    assert (part.left, part.spent) == (200, 300)
    assert (work.left, work.spent) == (OBLIGATION // 2 - 300, 300)


def test_a_share_leaves_something_for_the_others() -> None:
    work = Work()
    for _ in range(20):
        share = work.share()
        share.spend(share.left)
    assert work.left > 0


def test_claims_of_one_obligation_do_not_depend_on_another() -> None:
    """What `streaming` spends is not taken from `gradients`."""
    attention, plan = planned(SPECS["cases of kinks"])
    whole = prove(attention, plan)
    for s in whole.shown:
        if s.obligation.value == "tile-ranges":
            assert tile_ranges(attention, plan, Work()) == s.claims


# ---------------------------------------------------------------- what ends a claim


def test_z3_is_ended_by_its_steps_and_says_so() -> None:
    attention, _ = planned("mask = causal")
    work, answers = Work(), list[object]()
    for _ in range(2):
        question = SolverContext(attention)
        x, y, z = (question.free(name) for name in "xyz")
        part = work.part(20_000)
        fermat = [x >= 2, y >= 2, z >= 2, x * x * x + y * y * y == z * z * z]
        answers.append(question.ask(fermat, question.any_of([]), part))
        assert part.left == 0
    assert answers == [Open(OutOfWork().reason)] * 2
    assert "`effort=4`" in OutOfWork().reason and "clock" not in OutOfWork().reason


def test_the_units_of_a_question_are_its_own_though_z3_reports_those_of_a_context() -> None:
    attention, _ = planned("mask = causal")

    def units(question: SolverContext) -> int:
        work = Work()
        x = question.free("x")
        assert isinstance(question.ask([x >= 3], x >= 2, work), Holds)
        return work.spent

    same = SolverContext(attention)
    first = units(same)
    assert 0 < units(same) < 2 * first
    assert units(SolverContext(attention)) == first


def test_z3_is_ended_by_the_clock_and_says_so() -> None:
    attention, _ = planned("mask = causal")
    question = SolverContext(attention)
    x, y, z = (question.free(name) for name in "xyz")
    fermat = [x >= 2, y >= 2, z >= 2, x * x * x + y * y * y == z * z * z]
    answer = question.ask(fermat, question.any_of([]), Work(Budget(effort=400.0, timeout=0.2)))
    assert answer == Open(OutOfTime.reason)
    assert "clock" in OutOfTime.reason and "--timeout" in OutOfTime.reason


def test_sympy_is_refused_what_it_could_not_multiply_out() -> None:
    """Before it begins: it would take hours, and the clock is not to end it."""
    attention, _ = planned(HARD)
    e, a, c = attention.score, Scalar("a", Type.FLOAT), Scalar("c", Type.FLOAT)
    work = Work(Budget(timeout=1e6))
    verdict = equal(mul(e, add(a, c)), add(mul(e, a), mul(e, c)), assumptions(attention), work)
    assert isinstance(verdict, Unknown) and OutOfWork().reason in verdict.reason
    assert work.left > 0  # what was refused costs nothing


def test_the_price_of_a_term_is_what_it_has_once_multiplied_out() -> None:
    x, y, z = sp.symbols("x y z")
    cheap, dear = price((x + y) ** 2), price((x + y + z) ** 12)
    assert cheap < dear < price((x + y + z) ** 12 * (x + 1) ** 9)
    assert price((x + y + z + 1) ** 500) > OBLIGATION
    assert price(sp.exp((x + y) ** 8)) > price(sp.exp(x))


def test_the_clock_ends_sympy_and_the_claim_says_that_it_was_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    attention, _ = planned(SPECS["cases of kinks"])

    def endless(*_: object) -> bool:
        while True:
            pass

    monkeypatch.setattr(equality, "same", endless)
    e = attention.score
    verdict = equal(mul(e, real(3.0)), add(mul(e, real(2.0)), e), assumptions(attention), Work(Budget(timeout=0.2)))
    assert isinstance(verdict, Unknown) and OutOfTime.reason in verdict.reason
    assert OutOfWork().reason not in verdict.reason


def test_a_search_does_less_with_less_work_and_not_with_less_time(monkeypatch: pytest.MonkeyPatch) -> None:
    _, plan = planned("mask = k <= q")
    tried: list[int] = []
    original = TileSearch._try

    def counted(trial: TileSearch, *args: object) -> object:
        tried[-1] += 1
        return original(trial, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(TileSearch, "_try", counted)
    trial = TileSearch(plan.attention, plan.attention.mask, plan.keys, plan.key_loops)
    for effort, times in ((1.0, 1.0), (1.0, 10.0), (0.001, 1.0)):
        with monkeypatch.context() as patch:
            faster(patch, times)
            tried.append(0)
            assert trial.search_ranges(None, Work(Budget(effort=effort)).part(3_000_000)) is None
    assert tried[0] == tried[1] > tried[2] > 0


@pytest.mark.parametrize(("effort", "more"), [(1e-6, "4"), (1.0, "4"), (3.9, "4"), (4.0, "16"), (6.5, "26")])
def test_more_effort_is_advised_than_was_given(effort: float, more: str) -> None:
    with pytest.raises(OutOfWork) as caught:
        Work(Budget(effort)).spend(2**60)
    assert f"`effort={more}` allows four times" in caught.value.reason
