"""A whole proof: its record, its report, the command that prints it, and what compile makes of it."""

from __future__ import annotations

import ast
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from property.kernels import analysed

import attngen
from attngen import api, chain
from attngen.cli import main as cli
from attngen.errors import Refuted as RefutedSpec, Source, Unproved, UsageError
from attngen.ir.attention import Attention
from attngen.plan import KernelPlan, plan
from attngen.plan.simulate import classify
from attngen.prove import record
from attngen.prove.budget.watchdog import OutOfTime, limited
from attngen.prove.budget.work import Budget
from attngen.prove.discharge import prove
from attngen.prove.fallback import weakened
from attngen.prove.proof import Proof
from attngen.prove.record import MODULES, ROOMS, from_json, key, to_json
from attngen.prove.report import claims, proof_text, rows
from attngen.prove.verdict import Claim, Obligation, Proved, Refuted, Shown, Unknown

ROOT = Path(__file__).parents[3]
EXAMPLES = sorted((ROOT / "examples").glob("*.attn"))
GOOD = "attention good\n\nparam w: int where w > 0\nmask = 0 <= q - k < w\n"
NO_RESCALING = """attention broken
normalizer frozen {
    weight(s) = exp(s)
    denominator = sum
    shift = max
    weight(s, m) = exp(s - m)
    rescale(m, n) = 1.0
}
normalizer = frozen
"""
NO_MAXIMUM = """attention broken
normalizer bare {
    weight(s) = exp(s)
    denominator = sum
    shift = none
}
normalizer = bare
"""


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTNGEN_CACHE", str(tmp_path / "cache"))


def proved(text: str) -> Proof:
    return api.check(Source(text, "spec.attn"))


def fresh(text: str) -> Proof:
    """A proof that the cache does not hold afterwards."""
    attention, planned = api.checked_plan(Source(text, "spec.attn"))
    return prove(attention, planned)


def write(folder: Path, text: str) -> str:
    path = folder / "spec.attn"
    path.write_text(text, encoding="utf-8")
    return str(path)


# ---------------------------------------------------------------- every example


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_every_obligation_of_every_example_is_proved(path: Path) -> None:
    attention = analysed(path.read_text(encoding="utf-8"))
    proof = prove(attention, plan(attention))
    assert [s.obligation for s in proof.shown] == list(Obligation)
    for s in proof.shown:
        assert s.claims
        assert s.status == "proved", (s.refuted, s.unknown)
    assert proof.holds


# ---------------------------------------------------------------- refusals


def test_a_stream_that_is_never_rescaled_is_refused_with_both_results() -> None:
    with pytest.raises(RefutedSpec) as error:
        attngen.compile(NO_RESCALING)
    (said,) = error.value.diagnostics
    assert (said.code, said.span.line, said.span.column) == ("streaming", 7, 21)
    assert said.fix == "write rescale(m, n) = exp(m - n)"
    assert any("streamed" in note and "defined" in note for note in said.notes)


def test_a_stream_without_a_maximum_is_refused_with_the_tile_that_overflows() -> None:
    with pytest.raises(RefutedSpec) as error:
        attngen.compile(NO_MAXIMUM)
    (said,) = error.value.diagnostics
    assert (said.code, said.span.line) == ("range-safety", 3)
    text = "\n".join(said.notes)
    assert "fp32" in text
    assert "fp16" in text
    assert "tile" in text


@pytest.mark.parametrize("text", [NO_RESCALING, NO_MAXIMUM])
def test_compile_writes_nothing_and_ends_with_status_1(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "kernel.py"
    assert cli.main(["compile", write(tmp_path, text), "-o", str(out)]) == 1
    assert not out.exists()
    assert "refuted" in capsys.readouterr().err


def test_nothing_allows_what_is_refuted() -> None:
    with pytest.raises(RefutedSpec):
        attngen.compile(NO_MAXIMUM, allow_unproved=["range-safety", "streaming"])


def test_an_obligation_of_no_such_name_is_a_mistake_of_usage() -> None:
    with pytest.raises(UsageError, match="no obligation 'tiles'"):
        attngen.compile(GOOD, allow_unproved=["tiles"])


def with_unknown(proof: Proof, obligation: Obligation) -> Proof:
    claim = Claim("subject", "a sentence", Unknown("sympy", "out of time"))
    shown = tuple(replace(s, claims=(claim,)) if s.obligation is obligation else s for s in proof.shown)
    return replace(proof, shown=shown)


def test_an_unknown_is_refused_unless_it_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    unsure = with_unknown(fresh(GOOD), Obligation.GRADIENTS)
    monkeypatch.setattr("attngen.prove.discharge.prove", lambda *_: unsure)
    with pytest.raises(Unproved) as error:
        attngen.compile(GOOD)
    assert error.value.diagnostics[0].fix == '`allow_unproved=["gradients"]` compiles it all the same'
    kernel = attngen.compile(GOOD, allow_unproved=["gradients"])
    assert "# NOT PROVED, allowed by the user (--allow-unproved): gradients." in kernel.source
    assert kernel.proof is not None
    assert kernel.proof.allowed == (Obligation.GRADIENTS,)


# ---------------------------------------------------------------- fallback


UNSURE = [("keys, any",), ("keys, all",), ("queries, any", "queries, all"), ("keys, loops",), ("queries, loops",)]


@pytest.mark.parametrize("subjects", UNSURE, ids=str)
def test_what_is_unknown_of_tile_ranges_is_visited_and_masked(subjects: tuple[str, ...]) -> None:
    attention = analysed(GOOD)
    planned = plan(attention)
    claims = [Claim(s, "a sentence", Unknown("z3", "timeout")) for s in subjects]
    emitted, dropped = weakened(planned, claims)
    assert dropped
    sizes = {"B": 1, "Hq": 1, "Hkv": 1, "Sq": 64, "Sk": 64, "D": 16, "Dv": 16}
    mask = np.subtract.outer(np.arange(64), np.arange(64))
    allowed = ((mask >= 0) & (mask < 20)).reshape(8, 8, 8, 8).transpose(0, 2, 1, 3)
    for axis in "kq":
        before, after = (classify(p, sizes, {"w": 20}, tile=(8, 8), axis=axis) for p in (planned, emitted))
        assert (after[allowed.any((2, 3))] > 0).all()  # nothing is lost
        assert (allowed.all((2, 3))[after == 2]).all()  # nothing is wrongly unmasked
        told = any(s.startswith({"k": "keys", "q": "queries"}[axis]) for s in subjects)
        assert (before != after).any() == told


def unsure_at_first(monkeypatch: pytest.MonkeyPatch, first: Proof) -> list[KernelPlan]:
    """The prover gives this proof of the first plan; of those after it what it finds. All of them are recorded."""
    plans: list[KernelPlan] = []

    def answer(attention: Attention, planned: KernelPlan, budget: Budget) -> Proof:
        plans.append(planned)
        return first if len(plans) == 1 else prove(attention, planned, budget)

    monkeypatch.setattr("attngen.prove.discharge.prove", answer)
    return plans


def test_the_plan_without_what_was_given_up_is_proved_too(monkeypatch: pytest.MonkeyPatch) -> None:
    claim = Claim("keys, any", "no allowed pair is outside", Unknown("z3", "timeout"))
    wrong = Claim("keys, all", "every pair inside is allowed", Refuted("z3", ("at q = 0",)))
    proof = fresh(GOOD)
    unsure, refuted = (
        replace(
            proof,
            shown=tuple(replace(s, claims=(c,)) if s.obligation is Obligation.TILE_RANGES else s for s in proof.shown),
        )
        for c in (claim, wrong)
    )
    plans = unsure_at_first(monkeypatch, unsure)
    kernel = attngen.compile(GOOD)
    assert kernel.plan == plans[1] != plans[0]
    monkeypatch.setattr(
        "attngen.prove.discharge.prove", lambda _, planned, __: unsure if planned == plans[0] else refuted
    )
    with pytest.raises(RefutedSpec):
        attngen.compile(GOOD)


def test_the_header_says_what_was_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    claim = Claim("keys, any", "no allowed pair is outside", Unknown("z3", "timeout"))
    proof = fresh(GOOD)
    shown = tuple(replace(s, claims=(claim,)) if s.obligation is Obligation.TILE_RANGES else s for s in proof.shown)
    unsure_at_first(monkeypatch, replace(proof, shown=shown))
    kernel = attngen.compile(GOOD)
    assert "# Not proved, and not used: which tiles of keys to skip (none is)." in kernel.source
    assert "tile-ranges" not in next(line for line in kernel.source.split("\n") if line.startswith("# Proved:"))


@pytest.mark.parametrize("subject", ["mask", "facts"])
def test_only_ranges_can_be_given_up(subject: str) -> None:
    unsure = (
        Claim("keys, any", "no allowed pair is outside", Unknown("z3", "timeout")),
        Claim(subject, "a sentence", Unknown("z3", "timeout")),
    )
    proof = Proof("x", (Shown(Obligation.TILE_RANGES, unsure),), ("which tiles of keys to skip (none is)",))
    assert [c.subject for _, c in proof.refused] == [subject]
    assert not proof.holds


# ---------------------------------------------------------------- facts


@pytest.mark.parametrize(
    "facts",
    [
        "param x: f32 where x > 1 and x < 0\nscore = qk * scale * x",
        "param x: f32[Hq] where x > 1 and x < 0\nscore = qk * scale * x[h]",
        "param x: f32 where 0 <= x and x <= 0 and x != 0\nscore = qk * scale * x",
        "param w: int where w > 4\nparam x: int where x < w\nassume x > 9 and w < 7\nmask = causal",
        "param x: int[Hq] where x % 4 == 5\nscore = qk * scale + float(x[h])",
    ],
)
def test_facts_that_exclude_each_other_are_refuted(facts: str) -> None:
    proof = fresh(f"attention none\n\n{facts}\n")
    wrong = [c for o, c in proof.refuted if o is Obligation.TILE_RANGES]
    assert [c.subject for c in wrong] == ["facts"]
    assert wrong[0].span.line > 1


def test_facts_that_only_an_invented_function_satisfies_are_unknown() -> None:
    proof = fresh("attention none\n\nparam x: f32 where exp(x) < 0\nscore = qk * scale * x\n")
    assert [c.subject for o, c in proof.refused if o is Obligation.TILE_RANGES] == ["facts"]


ROUNDED = """attention rounded

param tq: f32[B, Sq]
param tk: f32[B, Sk]
param w: f32
mask = tq[b, q] + w - tk[b, k] <= 10000.0
"""


def test_a_test_of_floats_that_rounding_can_turn_is_not_used() -> None:
    """0.1003 + 1e4 - 0.1004 <= 1e4, but in fp32 (0.1003 + 1e4) - 1e4 = 0.1005859 > 0.1004."""
    kernel = attngen.compile(ROUNDED, target="torch")
    assert kernel.proof is not None
    assert "which tiles of keys to skip (none is)" in kernel.proof.dropped
    q, k, v = (torch.ones(1, 1, 8, 4) for _ in range(3))
    rows, columns = torch.full((1, 8), 0.1003), torch.full((1, 8), 0.1004)
    assert torch.equal(kernel(q, k, v, tq=rows, tk=columns, w=10000.0), v)


@pytest.mark.parametrize(
    "mask",
    ["tq[b, q] - tk[b, k] <= 0.3", "tq[b, q] <= tk[b, k]", "tq[b, q] + w > tk[b, k]", "-tq[b, q] < tk[b, k] - w"],
)
def test_a_test_of_floats_that_rounds_once_is_proved(mask: str) -> None:
    proof = proved(ROUNDED.replace("tq[b, q] + w - tk[b, k] <= 10000.0", mask))
    assert proof.holds
    assert not proof.unknown


def test_the_derivation_is_that_of_the_plan_that_is_emitted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path, GOOD)
    assert cli.main(["check", path, "--explain"]) == 0
    planned = capsys.readouterr().out
    proof = fresh(GOOD)
    unsure = tuple(Claim(f"{axis}, loops", "a sentence", Unknown("z3", "timeout")) for axis in ("keys", "queries"))
    shown = tuple(replace(s, claims=unsure) if s.obligation is Obligation.TILE_RANGES else s for s in proof.shown)
    monkeypatch.setenv("ATTNGEN_CACHE", str(tmp_path / "another"))
    unsure_at_first(monkeypatch, replace(proof, shown=shown))
    assert cli.main(["check", path, "--explain"]) == 0
    emitted = capsys.readouterr().out
    for text, bounded in ((planned, True), (emitted, False)):
        ranges = [line for line in text.split("\n") if "_any = " in line]
        assert len(ranges) == 2
        assert all(("w" in line) == bounded for line in ranges), ranges


# ---------------------------------------------------------------- budget


DIFFUSION = """
attention a
param n: int where n > 0
param blk: int where blk > 0
let x0q = q >= n
let x0k = k >= n
let bq = (q - n) // blk if x0q else q // blk
let bk = (k - n) // blk if x0k else k // blk
mask = (bq == bk and x0q == x0k) or (bq > bk and x0k and not x0q) or (bq >= bk and x0k and x0q)
"""
"""Arriola et al., "Block Diffusion", ICLR 2025: noised blocks and those that are denoised already."""


def test_work_that_went_on_what_is_dropped_is_not_lacking_for_the_rest() -> None:
    """Walks are of any ranges. Where the ranges take all the work, those of the plan without them are shown."""
    attention = analysed(DIFFUSION)
    first = prove(attention, plan(attention), Budget(effort=0.3))
    assert any(c.subject.startswith("walk of") for _, c in first.refused)
    proof, emitted = chain.prove(attention, plan(attention), Budget(effort=0.3))
    assert proof.holds and not proof.unknown and len(proof.dropped) == 3
    assert not emitted.keys.all and not emitted.queries.all and emitted.map is None


@pytest.mark.parametrize(
    "score",
    [
        " + ".join(f"({x} if {axis} < {n} else 0)" for axis in "kqhb" for n, x in ((1, "a"), (2, "c"))),
        "(t[b, k + 1] if k + 1 < Sk else 0.5) + (r[h, q - k] if 0 <= q - k < 5 else 0) "
        "+ 0.01 * (a if k % 3 == 0 and q > 2 else c)",
    ],
)
def test_terms_with_conditions_are_compared_one_by_one(score: str) -> None:
    """All their cases at once are 2**8 and more."""
    params = "param a: f32\nparam c: f32\nparam t: f32[B, Sk]\nparam r: f32[Hq, 5]"
    found = proved(f"attention a\n{params}\nscore = qk * scale + {score}\n")
    assert not found.unknown and not found.refuted


def test_a_proof_out_of_work_is_unknown_and_no_hang() -> None:
    attention = analysed((ROOT / "examples" / "windowed_alibi.attn").read_text(encoding="utf-8"))
    proof = prove(attention, plan(attention), Budget(effort=0.001))
    assert proof.unknown
    assert not proof.refuted


@pytest.mark.parametrize(
    ("budget", "knob", "other"),
    [(Budget(effort=0.0), "effort=", "--timeout"), (Budget(timeout=0.0), "--timeout", "effort=")],
)
@pytest.mark.parametrize("body", ["mask = causal", "score = qk * scale"])
def test_what_runs_out_names_its_claim_its_statement_and_the_right_knob(
    body: str, budget: Budget, knob: str, other: str
) -> None:
    attention = analysed(f"attention a\n{body}\n")
    proof = prove(attention, plan(attention), budget)
    late = {c.sentence: c.verdict.reason for _, c in proof.unknown if isinstance(c.verdict, Unknown)}
    told = {sentence for sentence, reason in late.items() if knob in reason}
    assert {"every number that the kernel computes stays finite", "a row without a key gives 0 and no gradient"} <= told
    assert not any(other in reason for reason in late.values())
    assert {c.span.line for _, c in proof.unknown} == {2}


def test_a_budget_interrupts_python_code() -> None:
    with pytest.raises(OutOfTime), limited(0.2):
        while True:
            pass


def test_code_that_ran_out_of_time_can_be_profiled() -> None:
    """In a process of its own: where the interpreter's flag for pending work stays set, Python 3.11 hangs for good."""
    code = "import cProfile\nfrom attngen.prove.budget.watchdog import OutOfTime, limited\n"
    code += "try:\n    with limited(0.01):\n        while True: pass\nexcept OutOfTime: pass\n"
    code += "cProfile.Profile().runcall(lambda: [abs(n) for n in range(9)])"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_block_in_time_is_left_alone() -> None:
    with limited(0.05):
        pass
    time.sleep(0.1)  # the watchdog is off


# ---------------------------------------------------------------- record and cache


def test_a_record_gives_the_proof_back() -> None:
    attention = analysed(NO_MAXIMUM)
    for proof in (proved(GOOD), prove(attention, plan(attention))):
        back = from_json(json.loads(json.dumps(to_json(proof))))
        assert back.cached
        assert [(s.obligation, s.status, len(s.claims)) for s in back.shown] == [
            (s.obligation, s.status, len(s.claims)) for s in proof.shown
        ]
        assert [c.span for s in back.shown for c in s.claims] == [c.span for s in proof.shown for c in s.claims]


DAMAGES: list[Callable[[str], str | bytes]] = [
    lambda _: "{",
    lambda _: "[" * 100_000,
    lambda _: '{"a":1}',
    lambda _: "7",
    lambda _: b"\xff\x00",
    lambda text: text[: len(text) // 2],
    lambda text: text.replace('"proved"', '"unknown"', 1),
    lambda text: text.replace('"steps": [', '"steps": [1, ', 1),
    lambda text: text.replace('"streaming"', '"flowing"', 1),
    lambda text: json.dumps({**json.loads(text), "obligations": []}),
    lambda text: json.dumps({**json.loads(text), "obligations": json.loads(text)["obligations"][1:]}),
    lambda text: json.dumps({**json.loads(text), "dropped": "keys"}),
    lambda text: json.dumps({**json.loads(text), "name": None}),
    lambda text: json.dumps({**json.loads(text), "more": 1}),
]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_proof_is_proved_anew(
    damage: Callable[[str], str | bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = proved(GOOD)
    (kept,) = (tmp_path / "cache" / "proofs").iterdir()
    text = kept.read_text()
    damaged = damage(text)
    kept.write_bytes(damaged if isinstance(damaged, bytes) else damaged.encode())
    assert kept.read_bytes() != text.encode()
    monkeypatch.setattr("attngen.prove.discharge.prove", lambda *_: first)
    second = proved(GOOD)
    assert not second.cached
    assert proof_text(second) == proof_text(first)
    assert kept.read_text() == text


def test_a_second_proof_comes_from_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    first = proved(GOOD)
    monkeypatch.setattr("attngen.prove.discharge.prove", lambda *_: pytest.fail("proved again"))
    second = proved(GOOD)
    assert second.cached
    assert not first.cached
    assert proof_text(second) == proof_text(first)


def test_the_key_of_a_proof_knows_the_plan() -> None:
    attention = analysed(GOOD)
    planned = plan(attention)
    other = replace(planned, longest_first=not planned.longest_first)
    assert len({key(attention, planned, 1.0), key(attention, other, 1.0), key(attention, planned, 0.5)}) == 3


def test_the_key_of_a_proof_knows_all_that_the_prover_asks() -> None:
    package = ROOT / "attngen"
    imported = {name for file in (package / "prove").rglob("*.py") for name in _imported(file)}
    asked = {name for name in imported if name.startswith("attngen")}
    known = [f"attngen.{module.removesuffix('.py').replace('/', '.')}" for module in (*ROOMS, *MODULES)]
    assert [n for n in asked - {"attngen"} if not any(f"{n}.".startswith(f"{own}.") for own in known)] == []


def test_the_key_of_a_proof_changes_with_every_module_of_the_prover(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those in the folders of a room, too: a proof of an older prover is none of this one."""
    attention = analysed(GOOD)
    planned = plan(attention)
    copy = tmp_path / "attngen"
    shutil.copytree(ROOT / "attngen", copy, ignore=lambda _, names: [n for n in names if n == "__pycache__"])
    monkeypatch.setattr(record.resources, "files", lambda _: copy)
    keys = set[str]()
    for module in ("verdict.py", "obligations/streaming.py", "algebra/equality.py", "../plan/mask/ranges.py"):
        with (copy / "prove" / module).open("a", encoding="utf-8") as file:
            file.write("\n")
        record._own_source.cache_clear()
        keys.add(key(attention, planned, 1.0))
    monkeypatch.undo()
    record._own_source.cache_clear()
    assert len(keys | {key(attention, planned, 1.0)}) == 5


def _imported(file: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            found |= {node.module, *(f"{node.module}.{a.name}" for a in node.names)}
        elif isinstance(node, ast.Import):
            found |= {a.name for a in node.names}
    return found


def test_an_unknown_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    unsure = with_unknown(fresh(GOOD), Obligation.GRADIENTS)
    monkeypatch.setattr("attngen.prove.discharge.prove", lambda *_: unsure)
    assert not proved(GOOD).cached
    assert not proved(GOOD).cached


# ---------------------------------------------------------------- the command


def test_check_prints_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["check", write(tmp_path, GOOD)]) == 0
    said = capsys.readouterr().out
    for obligation in Obligation:
        assert obligation.value in said
    assert "refuted" not in said
    assert "good: proved" in said


def test_check_of_a_wrong_file_shows_the_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["check", write(tmp_path, NO_MAXIMUM)]) == 1
    said = capsys.readouterr().out
    assert "broken: refused" in said
    assert "not finite in fp32" in said


def test_check_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["check", write(tmp_path, NO_MAXIMUM), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert not found["holds"]
    assert [o["obligation"] for o in found["obligations"]] == [o.value for o in Obligation]
    wrong = [c for o in found["obligations"] for c in o["claims"] if c["verdict"] == "refuted"]
    assert wrong
    assert wrong[0]["example"]


def test_check_of_several_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, bad = tmp_path / "good.attn", tmp_path / "bad.attn"
    good.write_text(GOOD)
    bad.write_text(NO_MAXIMUM)
    assert cli.main(["check", str(good), str(bad), "--json"]) == 1
    assert [d["holds"] for d in json.loads(capsys.readouterr().out)] == [True, False]


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (["-o", "x.md"], "-o goes with --explain"),
        (["--explain", "--json"], "exclude each other"),
        (["--explain", "-o", "x.pdf"], "ends in .md or .tex"),
        (["--timeout", "0"], "is no time"),
        (["--effort", "0"], "is no effort"),
    ],
)
def test_wrong_usage_of_check(
    extra: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        status = cli.main(["check", write(tmp_path, GOOD), *extra])
    except SystemExit as stop:
        status = stop.code
    assert status == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("form", ["md", "tex"])
def test_the_derivation_goes_to_a_file(form: str, tmp_path: Path) -> None:
    out = tmp_path / f"derivation.{form}"
    assert cli.main(["check", write(tmp_path, GOOD), "--explain", "-o", str(out)]) == 0
    assert "good" in out.read_text(encoding="utf-8")


def test_emit_plan_of_what_cannot_be_planned_quotes_the_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path, NO_RESCALING.replace("= 1.0", "= m - n").replace("exp(s - m)", "s - m"))
    assert cli.main(["compile", path, "--emit", "plan"]) == 1
    said = capsys.readouterr().err
    assert "spec.attn:7:21" in said
    assert "7 |     rescale(m, n) = m - n" in said


def test_emit_proof_is_stable_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, GOOD)
    texts = []
    for _ in range(2):
        assert cli.main(["compile", path, "--emit", "proof"]) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1]
    assert "tile-ranges: proved" in texts[0]


def test_rows_count_claims() -> None:
    shown = Shown(Obligation.GRADIENTS, (Claim("a", "b", Proved("sympy")), Claim("c", "d", Refuted("sympy", ("e",)))))
    proof = Proof("x", (shown,))
    (row,) = rows(proof)
    assert (row.verdict, row.claims) == ("refuted", "1 of 2")
    assert [*claims(proof)][1:] == ["  a: b (sympy)", "  c: d (refuted, sympy)"]
