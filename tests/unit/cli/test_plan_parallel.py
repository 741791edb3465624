"""`attngen plan-parallel`: it agrees with the schedule and with arithmetic by hand; mistakes have status 2."""

from __future__ import annotations

import json
import sys
from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attngen import distributed
from attngen.cli import main as cli
from attngen.cost.chips import chip
from attngen.distributed.plan.picture import grid
from attngen.distributed.plan.schedule import Schedule

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
CAUSAL = str(EXAMPLES / "causal.attn")


def _data(capsys: pytest.CaptureFixture[str], *argv: str) -> dict[str, Any]:
    assert cli.main(["plan-parallel", *argv, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_work_and_bytes_by_hand(capsys: pytest.CaptureFixture[str]) -> None:
    """Two ranks, causal: the second one needs all keys of the first, and nobody needs those of the second."""
    shape = ("--shape", "Sq=1000", "Hq=8", "Hkv=2", "D=64", "B=3")
    found = _data(capsys, CAUSAL, "--ranks", "2", "--layout", "contiguous", *shape)
    first, second = found["by_rank"]
    assert (first["holds"], second["holds"]) == ([[0, 500]], [[500, 1000]])
    assert first["pairs"] == 3 * 8 * 500 * 501 / 2 and second["pairs"] == 3 * 8 * (500 * 501 / 2 + 500 * 500)
    moved = 3 * 500 * 2 * (64 + 64) * 2
    assert (first["received"], first["sent"]) == ([0, 2 * moved], [moved, 0])  # keys are kept, gradients are in float32
    assert (second["received"], second["sent"]) == ([moved, 0], [0, 2 * moved])
    assert set(found["proof"]) == {"held", "once", "complete", "used"}
    assert all(c["verdict"] == "proved" for c in found["proof"].values())


def test_time_by_hand(capsys: pytest.CaptureFixture[str]) -> None:
    """A slow link: keys arrive while the rank computes with its own, and then it waits."""
    shape = ("--shape", "Sq=1000", "Hq=8", "Hkv=2", "D=64", "--link", "0.001", "--layout", "contiguous")
    found = _data(capsys, CAUSAL, "--ranks", "2", *shape)
    wire = 500 * 2 * (64 + 64) * 2 / 1e6
    first, second = (own["seconds"][0] for own in found["by_rank"])
    assert first == pytest.approx(wire, rel=1e-3)  # it sends as long as the other one receives
    assert wire < second < wire * 1.001
    assert found["of_ideal"]["forward"] < 0.001


def test_gradients_go_home_while_own_keys_are_computed(capsys: pytest.CaptureFixture[str]) -> None:
    """Sending takes a hundredth of the backward pass, and nothing of its time."""
    shape = ("--shape", "Sq=32768", "Hq=32", "Hkv=8", "D=128", "--link", "450", "--layout", "headtail")
    found = _data(capsys, CAUSAL, "--ranks", "2", *shape)
    wire = max(own["sent"][1] for own in found["by_rank"]) / 450e9
    assert wire > 0.005 * max(own["seconds"][1] for own in found["by_rank"])
    assert found["of_ideal"]["backward"] > 0.999


@pytest.mark.parametrize("exchange", ["ring", "gather"])
def test_what_ranks_send_is_what_ranks_receive(exchange: str, capsys: pytest.CaptureFixture[str]) -> None:
    spec = str(EXAMPLES / "sliding_window.attn")
    found = _data(capsys, spec, "--ranks", "5", "--exchange", exchange, "-D", "window=256")
    rows = sum(b - a for r in found["rounds"] for t in r["transfers"] for a, b in t["rows"])
    arrived: dict[int, Counter[int]] = defaultdict(Counter)  # by rank and round
    for i, r in enumerate(found["rounds"]):
        for t in r["transfers"]:
            arrived[t["target"]][i] += sum(b - a for a, b in t["rows"])
    twice = sum(own.total() - own[max(own)] for own in arrived.values())  # what arrives last is kept
    for direction, a_row in enumerate((2 * rows, 4 * rows + 2 * twice)):
        received, sent = (sum(own[way][direction] for own in found["by_rank"]) for way in ("received", "sent"))
        assert received == sent == a_row * 8 * 256
    assert rows <= 4 * 255 * 2  # a window of 256 is not wider than a rank's rows


def test_what_no_rank_keeps_is_fetched_again(capsys: pytest.CaptureFixture[str]) -> None:
    """Four ranks, all pairs, at once: three times as many rows as a rank holds."""
    shape = ("--shape", "Sq=1000", "Hq=8", "Hkv=2", "D=64", "--exchange", "gather", "--layout", "contiguous")
    found = _data(capsys, str(EXAMPLES / "full_bias.attn"), "--ranks", "4", *shape)
    moved = 750 * 2 * (64 + 64) * 2
    assert all(r["received"] == [moved, 3 * moved] for r in found["by_rank"])


def test_heads_are_exchanged(capsys: pytest.CaptureFixture[str]) -> None:
    """All to all: q, k, v and out, but for the own rows and heads; K and V are repeated where heads are few."""
    shape = ("--shape", "Sq=800", "Hq=8", "Hkv=2", "D=32")
    found = _data(capsys, CAUSAL, "--ranks", "4", "--exchange", "heads", *shape)
    rest, own = 600, 200
    before = rest * (2 * 32 + 1 * 64) * 2
    after = own * 6 * 32 * 2
    assert all(r["received"][0] == before + after for r in found["by_rank"])
    assert all(r["pairs"] == 8 * 800 * 801 / 2 / 4 for r in found["by_rank"])


def test_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plan-parallel", CAUSAL, "--ranks", "20", "--shape", "Sq=4000"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("causal: 4,000 queries over 20 ranks, layout auto, exchange ring\n")
    assert "the 8 ranks that take longest, and the 8 that take shortest, of 20" in said
    assert "the first 16 of 20 rounds" in said
    assert "proved: held, once, complete, used" in said


def test_a_rank_whose_keys_many_need_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    """All queries see the first keys, which the first rank holds."""
    assert cli.main(["plan-parallel", CAUSAL, "--ranks", "4", "--layout", "contiguous", "--shape", "Sq=1000"]) == 0
    most = f"{750 * 8 * 256 * 2 / 2**20:.4g} MiB"
    wanted = f"forward, rank 3 receives most, {most} and rank 0 sends most, {most}"
    assert wanted in capsys.readouterr().out


def test_packed_lengths_from_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "lengths.npy"
    np.save(path, np.array([300, 0, 50, 1000]))
    found = _data(capsys, CAUSAL, "--ranks", "3", "--lengths", str(path))
    assert found["sequences"]["q"] == [0, 300, 300, 350, 1350]
    assert sum(r["pairs"] for r in found["by_rank"]) == 8 * sum(n * (n + 1) // 2 for n in (300, 50, 1000))


def test_more_keys_than_queries(capsys: pytest.CaptureFixture[str]) -> None:
    found = _data(capsys, CAUSAL, "--ranks", "3", "--shape", "Sq=300", "Sk=1000")
    assert sum(r["pairs"] for r in found["by_rank"]) == 8 * (300 * 700 + 300 * 301 // 2)
    assert [own["keys"] for own in found["by_rank"]] == [[[0, 333]], [[333, 666]], [[666, 1000]]]


def test_a_schedule_that_is_not_proved_has_status_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = sys.modules["attngen.distributed.plan.schedule"]
    whole = module.schedule

    def less(*given: Any, **named: Any) -> Schedule:
        made = whole(*given, **named)
        first, *rest = made.rounds
        return replace(made, rounds=(replace(first, pieces=((), *first.pieces[1:])), *rest))

    monkeypatch.setattr(module, "schedule", less)
    assert cli.main(["plan-parallel", CAUSAL, "--ranks", "2", "--layout", "contiguous"]) == 1
    said = capsys.readouterr().out
    assert "refuted: complete: a pair that no rank computes is allowed to no query" in said
    assert "batch 0, head 0: the mask allows key 0 to query 0, and no rank computes them" in said
    assert "proved: held, once, used" in said


def test_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [tmp_path / f"{i}.svg" for i in range(2)]
    for path in paths:
        assert cli.main(["plan-parallel", CAUSAL, "--ranks", "3", "--shape", "Sq=300", "-o", str(path)]) == 0
    assert paths[0].read_bytes() == paths[1].read_bytes()
    assert cli.main(["plan-parallel", CAUSAL, "--ranks", "3", "-o", str(tmp_path / "a.pdf")]) == 2
    assert "a picture ends in .png or .svg" in capsys.readouterr().err


def test_a_cell_has_the_rank_of_its_piece() -> None:
    pieces = ((distributed.Piece(0, (0, 4), (0, 2)),), (distributed.Piece(1, (0, 6), (1, 3)),))
    s = Schedule(
        q_layout=distributed.Layout((((0, 4),), ((4, 10),))),
        k_layout=distributed.Layout((((0, 4),), ((4, 10),))),
        sequences=distributed.Sequences.of_offsets((0, 4, 10)),
        heads=1,
        rounds=(distributed.Round((), pieces),),
    )
    wanted = np.full((10, 10), -1)
    wanted[0:4, 0:2], wanted[4:10, 5:7] = 0, 1
    assert np.array_equal(grid(s), wanted)
    assert np.array_equal(grid(s, 5), wanted[1::2, 1::2])


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ("--ranks 6 --heads 4", "--heads 4 must divide --ranks 6"),
        ("--ranks 3 --exchange heads", "Hq = 8 must be divisible by 3 ranks"),
        ("--ranks 4 --exchange heads --heads 2", "leave --heads out"),
        ("--ranks 4 --lengths 0,0", "at least one sequence must have a row"),
        ("--ranks 4 --lengths 4,4 --shape Sq=8", "leave B, Sq and Sk out of --shape"),
        ("--ranks 4 --lengths nope.npy", "can't read nope.npy"),
        ("--ranks 2 --chip v4", "the link rate of v4 is not published: give --link GB/S"),
        ("--ranks 2 --shape Zq=3", "no size 'Zq'"),
    ],
)
def test_mistakes(argv: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plan-parallel", CAUSAL, *argv.split()]) == 2
    assert message in capsys.readouterr().err


def test_data_of_rows_and_lengths(capsys: pytest.CaptureFixture[str]) -> None:
    documents = str(EXAMPLES / "documents.attn")
    assert cli.main(["plan-parallel", documents, "--ranks", "2", "--lengths", "4,5"]) == 2
    assert "the mask reads ids, which has an element for each row: leave --lengths out" in capsys.readouterr().err
    assert cli.main(["plan-parallel", str(EXAMPLES / "full_bias.attn"), "--ranks", "2", "--lengths", "4,5"]) == 2
    assert "bias has rows of one sequence: packed sequences do not share them" in capsys.readouterr().err


def test_links_are_of_one_direction() -> None:
    link = chip("h200").link
    assert link is not None and link.value == 450e9


def test_a_spec_that_needs_a_comparison_of_sizes_is_proved(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = tmp_path / "d.attn"
    spec.write_text("attention d\nparam ids: int[B, Sk]\nmask = causal and same_document(ids)\n", encoding="utf-8")
    assert cli.main(["plan-parallel", str(spec), "--ranks", "2", "--shape", "Sq=32"]) == 0
    assert "proved: held, once, complete, used" in capsys.readouterr().out


def test_a_refuted_spec_ends_with_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = tmp_path / "r.attn"
    spec.write_text("attention r\nparam t: f32[4]\nscore = qk + t[q - k - 9]\nmask = causal\n", encoding="utf-8")
    assert cli.main(["plan-parallel", str(spec), "--ranks", "2", "--shape", "Sq=32"]) == 1
    assert "outside" in capsys.readouterr().err


def test_more_tiles_than_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = tmp_path / "c.attn"
    spec.write_text("attention c\nmask = causal\n", encoding="utf-8")
    assert cli.main(["cost", str(spec), "--chip", "h200", "--shape", "Sq=99999999"]) == 2
    assert "say a shorter length" in capsys.readouterr().err


def test_geometries_may_be_given_one_by_one(tmp_path: Path) -> None:
    spec, out = tmp_path / "c.attn", tmp_path / "c.py"
    spec.write_text("attention c\nmask = causal\n", encoding="utf-8")
    words = ["compile", str(spec), "--geometry", "packed", "--geometry", "lengths", "-o", str(out)]
    assert cli.main(words) == 0
    text = out.read_text(encoding="utf-8")
    assert "\ndef c_varlen(" in text and "\ndef c_lengths(" in text
