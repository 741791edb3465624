"""What makes a contender right, and what a table prints in place of a time."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from attngen.bench import cell, contenders, verdict
from attngen.bench.race import Contender, Turns, mistakes


def test_an_error_is_relative_and_the_worst_of_its_parts() -> None:
    found = torch.tensor([[3.0, 4.0], [1.0, 0.0]])
    pairs = [(found[0], torch.tensor([3.0, 3.0])), (found[1], torch.tensor([2.0, 0.0]))]
    assert verdict.error(found, pairs) == pytest.approx(0.5)
    assert verdict.error(found, pairs[:1]) == pytest.approx(1 / math.sqrt(18))
    for odd in (math.nan, math.inf):  # wherever it is
        other = torch.cat([found, torch.full((1, 2), odd)])
        assert str(verdict.error(other, pairs)) == str(odd)
    assert math.isnan(verdict.error(torch.tensor([math.nan, math.inf]), []))


@pytest.mark.parametrize(
    ("record", "words", "reason"),
    [
        ({"right": True, "errors": {"out": 1e-3, "dq": 1e-3}, "forward": {}, "backward": {}}, ("", ""), ""),
        (
            {"right": False, "errors": {"out": 1e-3, "dq": "nan", "dk": 0.5}, "forward": {}},
            ("", "NaN"),
            "WRONG: relative errors out 1.0e-03, dq nan, dk 5.0e-01",
        ),
        ({"right": False, "errors": {"out": 0.5}}, ("wrong", "wrong"), "WRONG: relative errors out 5.0e-01"),
        (
            {"right": False, "errors": {"out": "inf", "dq": 0.0}},
            ("wrong",) * 2,
            "WRONG: relative errors out inf, dq 0.0e+00",
        ),
        ({"failure": "OutOfMemoryError: CUDA\nmore"}, ("failed",) * 2, "FAILED: OutOfMemoryError: CUDA"),
        ({"unable": "not here"}, ("n/a",) * 2, "not measured: not here"),
        ({"right": True, "errors": {"out": 1e-3}, "forward": {}}, ("", ""), ""),  # a forward pass alone
    ],
)
def test_words_and_reasons(record: dict[str, Any], words: tuple[str, str], reason: str) -> None:
    assert (verdict.word(record, "forward"), verdict.word(record, "backward")) == words
    assert verdict.reason(record) == reason
    assert verdict.troubled(record) == reason.startswith(("WRONG", "FAILED"))


def test_gradients_do_not_undo_a_forward_pass() -> None:
    errors = {"out": 1e-3, "lse": 1e-3, "dq": math.nan}
    assert verdict.right(errors, "forward") and not verdict.right(errors)
    assert not verdict.right({"out": 1e-3, "lse": 0.1}, "forward")


class Refusal(ValueError):
    pass


def raising(error: Exception, refusals: tuple[type[Exception], ...] = ()) -> Contender:
    def attend(q: Any, k: Any, v: Any) -> Any:
        raise error

    return Contender("x", attend, refusals=refusals)


def settled(builds: dict[str, Any]) -> tuple[dict[str, Contender], dict[str, Any]]:
    def check(name: str, made: Contender) -> dict[str, Any]:
        return {"errors": {"out": made.attend(None, None, None)}}

    return cell.settle(builds, check, lambda name, error: f"{name}: {type(error).__name__}: {error}")


def test_a_refusal_is_no_failure_and_lack_of_memory_is_none() -> None:
    def lacking() -> Contender:
        raise torch.OutOfMemoryError("a block mask of 9 GB")

    ready, records = settled(
        {
            "refuses": lambda: raising(Refusal("block sizes"), (ValueError,)),
            "breaks": lambda: raising(RuntimeError("launch"), (ValueError,)),
            "full": lambda: raising(torch.OutOfMemoryError("9 GB"), (RuntimeError,)),
            "lacking": lacking,
            "other": lambda: raising(Refusal("block sizes")),
            "right": lambda: Contender("x", lambda q, k, v: 1e-3),
            "wrong": lambda: Contender("x", lambda q, k, v: 0.1),
        }
    )
    assert records == {
        "refuses": {"unable": "refuses: Refusal: block sizes"},
        "breaks": {"failure": "breaks: RuntimeError: launch"},
        "full": {"failure": "full: OutOfMemoryError: 9 GB"},
        "lacking": {"failure": "lacking: OutOfMemoryError: a block mask of 9 GB"},
        "other": {"failure": "other: Refusal: block sizes"},
        "right": {"right": True, "errors": {"out": 1e-3}},
        "wrong": {"right": False, "errors": {"out": 0.1}},
    }
    assert list(ready) == ["right"]


def test_errors_of_a_peers_compiler_end_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    class DSLBaseError(Exception):
        pass

    assert DSLBaseError not in mistakes()
    monkeypatch.setitem(sys.modules, "cutlass.base_dsl.common", SimpleNamespace(DSLBaseError=DSLBaseError))  # type: ignore[arg-type]
    _, records = settled({"a": lambda: raising(DSLBaseError("no layout"))})
    assert records == {"a": {"failure": "a: DSLBaseError: no layout"}}


def test_who_is_wrong_backward_is_timed_forward() -> None:
    done: list[tuple[str, str]] = []

    def work(direction: str, made: Contender) -> Any:
        return lambda: done.append((made.name, direction))

    made = {name: Contender(name, lambda q, k, v: None, backward=name != "c") for name in "abc"}
    records: dict[str, Any] = {
        "a": {"errors": {"out": 0.0, "dq": 0.0}},
        "b": {"errors": {"out": 0.0, "dq": math.nan}},
        "c": {"errors": {"out": 0.0}},
    }
    turns = Turns("cpu", 1, 0.0, 0.0)
    directions = ("forward", "backward")
    cell.timed(made, records, work, lambda d: 1e9, directions, turns, lambda name, error: str(error))
    assert set(done) == {("a", "forward"), ("a", "backward"), ("b", "forward"), ("c", "forward")}
    assert [d for d in directions if d in records["b"]] == ["forward"] and verdict.word(
        records["b"], "backward"
    ) == "NaN"
    assert verdict.word(records["c"], "backward") == ""


@pytest.mark.slow
def test_both_forms_of_flex_attention_in_one_cell() -> None:
    """Each compiles one graph, whatever the other compiled, and a compiled block mask; on the CPU, one by C++ alone."""
    q, k, v = (torch.randn(1, 2, 128, 16) for _ in range(3))
    truth = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    def build(name: str) -> Contender:
        lengths = (1, 2, 128, 128)
        causal = lambda b, h, q, k: k <= q  # noqa: E731
        return contenders.flex(None, causal, lengths, batches=None, heads=None, device="cpu", name=name)

    def check(name: str, made: Contender) -> dict[str, Any]:
        out = made.attend(q, k, v)
        return {"errors": {"out": verdict.error(out, [(out, truth)])}}

    names = tuple(contenders.BACKENDS)
    ready, records = cell.settle({n: lambda n=n: build(n) for n in names}, check, lambda name, error: str(error))
    for made in [*ready.values(), *ready.values()]:
        made.attend(q, k, v)
        made.watch()
    assert tuple(ready) == names and all(records[n]["block_mask_ms"] > 0 for n in names)
    assert ready["flex-flash"].refusals and not ready["flex"].refusals


def test_the_versions_name_a_peers_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert contenders.packages() == {}
    monkeypatch.setattr(contenders, "has_fa4", lambda: True)
    assert contenders.packages() == {"flash-attn-4": "unknown"}
    metadata = tmp_path / "flash_attn_4-4.0.0b36.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text("Metadata-Version: 2.1\nName: flash-attn-4\nVersion: 4.0.0b36\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert contenders.packages() == {"flash-attn-4": "4.0.0b36"}
