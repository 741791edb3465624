"""Rows of the chip's own kernels: which are tried, resumed, kept, read back, and set. Times are made up here."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hopper_model import machine as hopper_machine

import attngen
from attngen import api, files
from attngen.bench import race, run, tiles as bench_tiles
from attngen.bench.tiles import Bench
from attngen.cli import gpu
from attngen.cli.main import main
from attngen.cli.tune import tune_with
from attngen.emit import TunedGpu
from attngen.errors import Source, UsageError
from attngen.plan.hopper import ApartSkeleton, BackwardSkeleton, DkdvSkeleton, DqSkeleton, Schedule, Skeleton
from attngen.plan.tiles import hopper_trials
from attngen.plan.tiles.hopper_trials import Row, Rows, first_round, fits, rows_of, second_round
from attngen.plan.tiles.portable import Tile
from attngen.runtime.exported import host
from attngen.runtime.loader import execute
from attngen.tune import ahead, gpu as tune, gpu_file, keys as tile_keys, tables

EXAMPLES = Path(__file__).parents[3] / "examples"
NAMES = sorted(path.stem for path in EXAMPLES.glob("*.attn"))
OWN = {"forward": Tile(64, 128, 4, 1), "dkdv": Tile(64, 64, 4, 2), "dq": Tile(128, 64, 8, 3)}


def source_of(name: str) -> Source:
    path = EXAMPLES / f"{name}.attn"
    return Source(path.read_text(encoding="utf-8"), str(path))


def rows_for(name: str, *head_dims: int) -> Rows:
    spec, plan = api.checked_plan(source_of(name))
    return rows_of(plan, spec.tile, (head_dims[0], head_dims[-1]))


def key_for(rows: Rows, name: str = "causal", card: str = "NVIDIA H200") -> tune.Key:
    source = source_of(name)
    sizes = {"B": 1, "Hq": 8, "Hkv": 8, "Sq": 4096, "Sk": 4096, "D": rows.dims[0], "Dv": rows.dims[1]}
    return tile_keys.gpu_key(source, api.analyse(source), card, ("sm_90", 2, max(rows.dims)), "bf16", sizes)


class Timer:
    """Milliseconds by a formula of the row; the portable kernels take 9 forward, 20 backward."""

    def __init__(self, ms: Callable[[Row], float]):
        self.ms = ms
        self.asked: list[tune.Candidate] = []

    def __call__(self, kernel: str, setting: tune.Setting) -> float:
        self.asked.append((kernel, setting))
        if setting is None:
            return 20.0
        return 9.0 if isinstance(setting, Tile) else self.ms(setting)


# ---------------------------------------------------------------- which


@pytest.mark.parametrize("name", NAMES)
def test_few_rows_are_tried_and_all_fit(name: str) -> None:
    most = {"forward": {64: 20, 128: 16, 192: 14, 256: 11}, "backward": {64: 7, 128: 7}}
    most |= {"dkdv": {192: 5, 256: 5}, "dq": {192: 8, 256: 8}}
    for dims in ((64, 64), (128, 128), (256, 256), (64, 128), (192, 128)):
        rows = rows_for(name, *dims)
        found = first_round(rows)
        assert len(found) == len(set(found)) and all(fits(row, rows.dims, rows.terms) for _, row in found)
        assert all(isinstance(row, hopper_trials.KINDS[kernel]) for kernel, row in found)
        for kernel, own in rows.by_kernel.items():
            tried = [row for k, row in found if k == kernel]
            assert tried[0] == own  # what the shipped table has fits by the same rules
            assert len(tried) <= most[kernel][max(rows.dims)]


def test_one_thing_is_changed_at_a_time() -> None:
    rows = rows_for("causal", 128)
    assert rows.forward is not None and rows.backward is not None
    tried = [row for kernel, row in first_round(rows) if kernel == "forward"]
    for change in (
        {"ordered": not rows.forward.ordered},
        {"schedule": Schedule.ONCE, "out_apart": False},
        {"schedule": Schedule.QUEUE, "out_apart": False},
        {"pipelined": False},
        {"keys": 64},
        {"keys": 64, "stages": 3},
        {"stages": 3, "out_apart": False},  # there is room for a third where results have none
        {"together": 1, "ahead": 0},
    ):
        assert dataclasses.replace(rows.forward, **change) in tried, change
    assert dataclasses.replace(rows.forward, stages=3) not in tried
    assert any(row.queries == 192 for row in tried if isinstance(row, Skeleton))
    backward = [row for kernel, row in first_round(rows) if kernel == "backward"]
    assert dataclasses.replace(rows.backward, early=not rows.backward.early) in backward
    assert dataclasses.replace(rows.backward, stages=2) in backward
    assert [row.ordered for row in tried if isinstance(row, Skeleton)].count(not rows.forward.ordered) == 1
    documents = rows_for("documents", 128)
    assert documents.forward is not None and documents.forward.stages == 4  # which leaves no barriers for turns
    turned = dataclasses.replace(documents.forward, ordered=True, stages=3)
    assert ("forward", turned) in first_round(documents)


def test_what_does_not_fit_is_known() -> None:
    rows = rows_for("causal", 64)
    row, backward = rows.forward, rows.backward
    assert row is not None and backward is not None
    for change in (
        {"queries": 192, "stages": 3, "ordered": True},  # barriers
        {"queries": 192, "stages": 4, "ordered": False},
        {"queries": 192, "pipelined": True},  # registers
    ):
        assert not fits(dataclasses.replace(row, **change), (64, 64)), change
    assert not fits(dataclasses.replace(backward, stages=4), (64, 64))
    wider = rows_for("causal", 128).backward
    assert wider is not None and fits(wider, (128, 128))
    assert not fits(dataclasses.replace(wider, stages=wider.stages + 1), (128, 128))  # shared memory
    assert not fits(backward, (128, 128))  # dQ's pieces are one or two of 64 x 64
    assert not fits(backward, (64, 128))
    assert fits(dataclasses.replace(backward, queries=64), (64, 64))
    apart = rows_for("causal", 256).apart
    assert apart is not None
    assert not fits(dataclasses.replace(apart.dq, value_stages=2), (256, 256))
    assert fits(dataclasses.replace(apart.dq, value_stages=2), (256, 128))


def asserted(template: str, **values: int) -> bool:
    """Whether the static assert of a kernel's barriers holds, by the template's own text."""
    text = (Path(__file__).parents[3] / "templates/triton/hopper" / f"{template}.py.j2").read_text(encoding="utf-8")
    before, condition = re.search(r"(.*)gl\.static_assert\((.* <= 16)\)", text, re.DOTALL).groups()  # type: ignore[union-attr]
    known: dict[str, int] = dict(values)
    lines = re.findall(
        r"^(?:\{\{.*\}\})?    ([A-Z_]+): gl\.constexpr = ([A-Z0-9_ +/*]+)$", before.split("_kernel(")[-1], re.MULTILINE
    )
    for name, value in lines:
        known[name] = eval(value, {}, known)
    return bool(eval(condition, {}, known))


def test_barriers_are_counted_as_the_templates_do() -> None:
    narrow, wide = rows_for("causal", 64), rows_for("causal", 256)
    forward, backward, apart = narrow.forward, narrow.backward, wide.apart
    assert forward is not None and backward is not None and apart is not None

    def enough(row: Row) -> bool:
        return hopper_trials.barriers(row) <= hopper_trials.BARRIERS

    seen: set[bool] = set()
    for stages in range(1, 9):
        for other in range(1, 7):
            checks: list[tuple[Row, str, dict[str, Any]]] = [
                *(
                    (
                        dataclasses.replace(forward, stages=stages, queries=64 * other, ordered=ordered),
                        "forward",
                        {"STAGES": stages, "BQ": 64 * other, "ORDERED": ordered},
                    )
                    for ordered in (False, True)
                    if other in (2, 3)
                ),
                (dataclasses.replace(backward, stages=stages), "backward", {"STAGES": stages}),
                *(
                    (
                        dataclasses.replace(apart.dkdv, stages=stages, ahead=ahead),
                        "dkdv",
                        {"STAGES": stages, "AHEAD": ahead},
                    )
                    for ahead in (other,)
                    if ahead <= stages
                ),
                (
                    dataclasses.replace(apart.dq, key_stages=stages, value_stages=other),
                    "dq",
                    {"K_STAGES": stages, "V_STAGES": other},
                ),
            ]
            for row, template, values in checks:
                assert enough(row) == asserted(template, **values), (template, values)
                seen.add(enough(row))
    assert seen == {True, False}


def test_what_was_faster_apart_is_put_together() -> None:
    rows = rows_for("causal", 128)
    own = rows.forward
    assert own is not None
    at_once, heads = {"schedule": Schedule.ONCE, "out_apart": False}, {"together": 1, "ahead": 0}
    changes: tuple[dict[str, Any], ...] = ({"ordered": False}, at_once, heads)
    freely, once, one = (dataclasses.replace(own, **change) for change in changes)
    narrow, narrower = (dataclasses.replace(own, keys=64, stages=n) for n in (3, 2))
    times: dict[Row, float] = {own: 2.0, freely: 1.5, once: 1.7, narrow: 1.6, narrower: 1.8, one: 1.99}
    found = second_round(rows, lambda kernel: times if kernel == "forward" else {})
    # `one` is within the noise, and of two shapes the faster one counts.
    assert found == [
        ("forward", dataclasses.replace(narrow, ordered=False)),
        ("forward", dataclasses.replace(once, ordered=False)),
        ("forward", dataclasses.replace(narrow, ordered=False, **at_once)),
    ]
    assert second_round(rows, lambda kernel: {own: 2.0, freely: 1.5} if kernel == "forward" else {}) == []
    known = {**times, found[0][1]: 1.0}  # what the second round has found changes nothing about it
    assert second_round(rows, lambda kernel: known if kernel == "forward" else {}) == found


# ---------------------------------------------------------------- tried, kept, resumed


def quick(row: Row) -> float:
    """Forward rows of 64 keys without turns are fastest, together more so than apart; early backward rows slowest."""
    match row:
        case Skeleton():
            return 4.5 + 0.5 * row.ordered - 1.0 * (row.keys == 64) - 0.3 * (row.keys == 64 and row.stages == 3)
        case BackwardSkeleton():
            return 10.0 + row.early
        case DkdvSkeleton():
            return 10.0 - row.ahead
        case DqSkeleton():
            return 10.0 + row.key_stages


def test_rows_are_tried_in_two_rounds_and_resumed(tmp_path: Path) -> None:
    path, rows = str(tmp_path / "t.json"), rows_for("causal", 128)
    ticks = iter(range(1000))
    first, begun = Timer(quick), list[list[tune.Candidate]]()
    stopped = tune_with(
        key_for(rows), OWN, rows, first, path, budget=9.5, clock=lambda: float(next(ticks)),
        begin=lambda candidates: begun.append([*candidates]),
    )  # fmt: skip
    assert len(first.asked) == 10 and stopped.best() is None
    assert begun == [[*first_round(rows), ("portable", None)]]
    second = Timer(quick)
    whole = tune_with(key_for(rows), OWN, rows, second, path)
    assert rows.forward is not None and rows.backward is not None
    best = dataclasses.replace(rows.forward, keys=64, stages=3, ordered=False)
    assert ("forward", best) in second.asked and ("forward", best) not in first_round(rows)
    assert [c for c in first.asked + second.asked if c[1] is None or not isinstance(c[1], Tile)] == [
        *first_round(rows), ("portable", None), *second_round(rows, whole.times)
    ]  # fmt: skip
    assert {kernel for kernel, setting in second.asked if isinstance(setting, Tile)} == {"forward"}
    choice = whole.best()
    assert choice == tune.Choice(forward=best, backward=dataclasses.replace(rows.backward, early=False))
    third = Timer(quick)
    assert tune_with(key_for(rows), OWN, rows, third, path) == whole and third.asked == []
    entry = json.loads(Path(path).read_text())["tunings"][0]
    assert entry["rows"]["forward"] == [*best.row] and entry["tiles"] == {}
    assert entry["trials"][0]["row"]["schedule"] == "queue"


def test_without_tiles_rows_alone_are_tried(tmp_path: Path) -> None:
    rows = rows_for("softcap", 64)
    assert rows.forward is None and rows.backward is not None
    timer = Timer(quick)
    tune_with(key_for(rows), OWN, rows, timer, str(tmp_path / "t.json"), tiles=False)
    assert {k for k, s in timer.asked if isinstance(s, Tile)} == {"forward"}  # it has no kernel of its own
    both = rows_for("causal", 128)
    timer = Timer(quick)
    tuning = tune_with(key_for(both), OWN, both, timer, str(tmp_path / "u.json"), tiles=False)
    assert not any(isinstance(s, Tile) for _, s in timer.asked) and tuning.best() is not None


def test_two_kernels_are_chosen_apart(tmp_path: Path) -> None:
    rows = rows_for("causal", 256)
    tuning = tune_with(key_for(rows), OWN, rows, Timer(quick), str(tmp_path / "t.json"), tiles=False)
    best = tuning.best()
    assert best is not None and rows.apart is not None and isinstance(best.backward, ApartSkeleton)
    assert best.backward.dkdv == dataclasses.replace(rows.apart.dkdv, ahead=2) and best.backward.dq.key_stages == 1


def test_the_portable_kernels_may_be_faster(tmp_path: Path) -> None:
    rows = rows_for("causal", 128)
    slow = Timer(lambda row: 30.0)
    tuning = tune_with(key_for(rows), OWN, rows, slow, str(tmp_path / "t.json"))
    best = tuning.best()
    assert best is not None and best.portable and best.backward is None and isinstance(best.forward, Tile)


def test_files_of_before_are_read(tmp_path: Path) -> None:
    """Their trials have tiles alone; the chip's own forward kernel, as it was, has none."""
    rows = rows_for("causal", 128)
    key = key_for(rows)
    old = {
        "spec": key.spec, "card": key.card, "chip": key.chip, "dtype": key.dtype, "head_block": key.head_block,
        "sizes": dict(key.sizes), "tiles": {"forward": None, "dkdv": [64, 64, 4, 2], "dq": [128, 64, 8, 3]},
        "trials": [
            {"kernel": "forward", "tile": None, "ms": 1.0},
            {"kernel": "forward", "tile": [64, 128, 4, 1], "ms": 2.0},
            {"kernel": "dkdv", "tile": [64, 64, 4, 2], "ms": 3.0},
            {"kernel": "dq", "tile": [128, 64, 8, 3], "ms": 3.0},
        ],
    }  # fmt: skip
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"target": "triton", "tunings": [old]}))
    (read,) = gpu_file.load(Source(path.read_text()))
    assert read.best() == tune.Choice(dkdv=Tile(64, 64, 4, 2), dq=Tile(128, 64, 8, 3))
    timer = Timer(quick)
    tuning = tune_with(key, OWN, rows, timer, str(path))
    assert timer.asked[0] == ("forward", rows.forward) and tuning.trials[:4] == read.trials
    best = tuning.best()
    assert best is not None and isinstance(best.backward, BackwardSkeleton) and best.dkdv is None


def test_wrong_rows_are_refused(tmp_path: Path) -> None:
    rows = rows_for("causal", 128)
    path = tmp_path / "t.json"
    tune_with(key_for(rows), OWN, rows, Timer(quick), str(path), tiles=False)
    entry = json.loads(path.read_text())["tunings"][0]
    row = entry["trials"][0]["row"]
    for kernel, wrong in (
        ("forward", {**row, "keys": "64"}),
        ("forward", {**row, "keys": True}),
        ("forward", {**row, "pipelined": 1}),
        ("forward", {**row, "keys": -64}),
        ("forward", {**row, "keys": 10**9}),
        ("forward", {**row, "schedule": "'; import os"}),
        ("forward", {**row, "colour": 1}),
        ("forward", {"keys": 64}),
        ("forward", [1, 2]),
        ("backward", row),
        ("portable", row),
    ):
        trial = {"kernel": kernel, "row": wrong, "ms": 1.0}
        text = json.dumps({"target": "triton", "tunings": [{**entry, "trials": [trial]}]})
        with pytest.raises(UsageError, match="is no file that `attngen tune --target triton` wrote"):
            gpu_file.load(Source(text))
    newer = {name: value for name, value in row.items() if name not in ("ordered", "ahead")}
    trial = {"kernel": "forward", "row": newer, "ms": 1.0}  # columns that came later have a default
    (read,) = gpu_file.load(Source(json.dumps({"target": "triton", "tunings": [{**entry, "trials": [trial]}]})))
    assert isinstance(read.trials[0].setting, Skeleton)


# ---------------------------------------------------------------- compiled


def tuned(tmp_path: Path, rows: Rows, *trials: tune.Trial, name: str = "causal") -> Path:
    path = tmp_path / f"{name}_{rows.dims[0]}.json"
    path.write_text(gpu_file.dump([tune.Tuning(key_for(rows, name), trials)]))
    return path


def table(text: str, name: str) -> dict[Any, Any]:
    found = re.search(rf'^{name} = """(.*?)"""', text, re.DOTALL | re.MULTILINE)
    if found is None:
        return {}
    return dict(host.tiles_by_chip(found[1]) if name == "TILES" else host.rows_by_dims(found[1]))


def test_compile_puts_the_chosen_rows_in_the_tables(tmp_path: Path) -> None:
    spec = EXAMPLES / "causal.attn"
    plain = attngen.compile(spec).source
    rows = rows_for("causal", 128)
    assert rows.forward is not None and rows.backward is not None
    forward, backward = dataclasses.replace(rows.forward, ordered=False), dataclasses.replace(rows.backward, stages=2)
    file = tuned(tmp_path, rows, tune.Trial("forward", forward, 1.0), tune.Trial("backward", backward, 2.0))
    out = tmp_path / "out.py"
    assert main(["compile", str(spec), "--tiles", str(file), "-o", str(out)]) == 0
    text = out.read_text()
    assert text == attngen.compile(spec, tiles=file, shape={"Sq": 4096}).source
    assert table(text, "HOPPER") == {**table(plain, "HOPPER"), (128, 128): forward.row}
    assert table(text, "HOPPER_BACKWARD") == {**table(plain, "HOPPER_BACKWARD"), (128, 128): backward.row}
    for name in ("TILES", "HOPPER_APART"):
        assert table(text, name) == table(plain, name)
    assert "/128x128/forward:128x128x2x1x0x240x" in text
    operator = re.compile(r"attngen::causal_\w{12}\b")
    assert operator.search(text)[0] != operator.search(plain)[0]  # type: ignore[index]
    assert "HOPPER = " not in attngen.compile(spec, tiles=file, arch="portable").source


def test_compile_puts_rows_of_two_kernels_in_the_tables(tmp_path: Path) -> None:
    rows = rows_for("causal", 256)
    assert rows.forward is not None and rows.apart is not None
    dkdv, dq = dataclasses.replace(rows.apart.dkdv, ahead=2), dataclasses.replace(rows.apart.dq, together=4)
    trials = (tune.Trial("forward", rows.forward, 1.0), tune.Trial("dkdv", dkdv, 2.0), tune.Trial("dq", dq, 2.0))
    text = attngen.compile(EXAMPLES / "causal.attn", tiles=tuned(tmp_path, rows, *trials)).source
    assert table(text, "HOPPER_APART")[256, 256] == (dkdv.row, dq.row)
    portable = tune.Trial("portable", None, 1.0)
    text = attngen.compile(EXAMPLES / "causal.attn", tiles=tuned(tmp_path, rows, *trials, portable)).source
    assert (256, 256) not in table(text, "HOPPER_APART") and (256, 128) in table(text, "HOPPER_APART")


def test_a_row_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    rows = rows_for("causal", 128)
    assert rows.forward is not None and rows.backward is not None
    wide = tune.Trial("forward", dataclasses.replace(rows.forward, stages=4), 1.0)
    file = tuned(tmp_path, rows, wide, tune.Trial("backward", rows.backward, 1.0))
    with pytest.raises(UsageError, match="a row that does not fit sm_90"):
        attngen.compile(EXAMPLES / "causal.attn", tiles=file)
    with pytest.raises(UsageError, match="not for jax"):
        attngen.compile(EXAMPLES / "causal.attn", "jax", tiles=file)


def test_tiles_of_another_dtype_leave_the_rows(tmp_path: Path) -> None:
    """A row is for half precision: what float32 was tuned to must not take it away."""
    source = source_of("causal")
    key = dataclasses.replace(key_for(rows_for("causal", 128)), dtype="fp32")
    trials = tuple(tune.Trial(kernel, Tile(32, 32, 4, 1), 1.0) for kernel in ("forward", "dkdv", "dq"))
    path = tmp_path / "t.json"
    path.write_text(gpu_file.dump([tune.Tuning(key, trials)]))
    assert (128, 128) in table(attngen.compile(source.name, tiles=path).source, "HOPPER")


# ---------------------------------------------------------------- the command


def test_the_command_where_the_interpreter_stands_in_for_a_card(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All of it but the card: what it draws, builds, times and writes, and that it goes on where it stopped."""
    tensors, draw, bench = gpu.tensors, run.draw, bench_tiles.Bench
    here = race.Turns("cpu", 1, 0.0, 0.0)
    monkeypatch.setattr(gpu, "require_gpu", lambda *_: torch)
    monkeypatch.setattr(gpu, "tensors", lambda *args: tensors(*args[:-1], "cpu"))
    monkeypatch.setattr(gpu, "target_here", lambda: ("cuda", 90, 32))
    monkeypatch.setattr(run, "draw", lambda *args: draw(*args[:-1], dataclasses.replace(args[-1], turns=here)))
    monkeypatch.setattr(bench_tiles, "Bench", lambda *args: bench(*args, device="cpu", rep_ms=0.0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "no card")
    monkeypatch.setattr(ahead, "workers", lambda: 0)
    path = tmp_path / "t.json"
    command = ["tune", str(EXAMPLES / "alibi.attn"), "--target", "triton", "--dtype", "fp32", "--budget", "0.001"]
    command += ["--shape", "B=1", "Hq=2", "Hkv=1", "Sq=16", "Sk=24", "D=16", "Dv=16", "-o", str(path)]
    for count in (1, 2):
        assert main(command) == 0
        (tuning,) = gpu_file.load(Source(path.read_text()))
        assert len(tuning.trials) == count and all(t.ms is not None and t.ms > 0 for t in tuning.trials)
        said = capsys.readouterr()
        assert "alibi on no card, fp32" in said.out and "candidates are left (tiles)" in said.err
    assert tuning.key.chip == "cpu" and dict(tuning.key.sizes)["Sk"] == 24


# ---------------------------------------------------------------- on the model of the chip


class Machine:
    """A module on the model of the chip, its function, and inputs. Its rows are read at each call."""

    def __init__(self, name: str, head_dim: int, length: int, **params: Any):
        self.kernel = attngen.compile(EXAMPLES / f"{name}.attn")
        self.module: Any = execute(self.kernel.source, self.kernel.name)
        self.launched = hopper_machine.install(self.module)
        generator = torch.Generator().manual_seed(1)
        q, k, v, g = (
            torch.randn(1, 1, length, head_dim, generator=generator).to(torch.bfloat16) for _ in range(4)
        )  # fmt: skip
        self.qkv = (q.requires_grad_(), k.requires_grad_(), v.requires_grad_())
        planned = rows_of(self.kernel.plan, self.kernel.spec.tile, (head_dim, head_dim))
        self.bench = Bench(self.module, self.function, self.qkv, g, params, planned, device="cpu", rep_ms=0.0)

    def function(self, q: Any, k: Any, v: Any, **params: Any) -> Any:
        return Call.apply(self.module, q, k, v, *params.values())


class Call(torch.autograd.Function):
    """The operator below the public function, which would hand bfloat16 on a CPU to the interpreter as float32."""

    @staticmethod
    def forward(ctx: Any, module: Any, q: Any, k: Any, v: Any, *params: Any) -> Any:
        with torch.enable_grad():
            ctx.leaves = [x.detach().requires_grad_() for x in (q, k, v)]
            ctx.out = module._attention.operator.forward(*ctx.leaves, *params, q.shape[3] ** -0.5)[0]
        return ctx.out.detach()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        found = torch.autograd.grad(ctx.out, ctx.leaves, grads[0], retain_graph=True)
        return (None, *found, *(None for _ in ctx.needs_input_grad[4:]))


@pytest.mark.parametrize("head_dim", [64, pytest.param(128, marks=pytest.mark.slow)])
def test_candidates_run_on_the_model_of_the_chip(head_dim: int) -> None:
    """Every row of the first round gives what the file's own rows give; a wrong one is refused."""
    machine = Machine("causal", head_dim, 200)
    bench, module = machine.bench, machine.module
    before = tables.tables_of(module)
    before = {name: dict(table) for name, table in before.items()}
    assert bench.rows.forward is not None and bench.rows.backward is not None and bench.rows.apart is None
    some = [c for c in first_round(bench.rows) if "ahead" not in differing(bench.rows, *c)]
    machine.launched.clear()
    for kernel, row in some:
        assert bench(kernel, row) >= 0, (kernel, row)
    assert {"_hopper_forward_kernel", "_hopper_backward_kernel"} <= set(machine.launched)
    q, k, v = machine.qkv
    with tables.holding(module, bench.row, bench.rows, "portable", None):
        assert (
            module.hopper_row(module.HOPPER_BACKWARD, q, k, v) is None
            and module.hopper_row(module.HOPPER, q, k, v) is not None
        )
    with tables.holding(module, bench.row, bench.rows, "forward", Tile(64, 64, 4, 1)):
        assert (
            module.hopper_row(module.HOPPER_BACKWARD, q, k, v) is not None
            and module.hopper_row(module.HOPPER, q, k, v) is None
        )
        assert module.tiles(module.TILES, q, v)[0] == (64, 64, 4, 1)
    assert tables.tables_of(module) == before and not module._attention.ready
    with pytest.raises(tune.RefusedError):
        bench("forward", dataclasses.replace(bench.rows.forward, stages=5))  # barriers: a static assert


def test_candidates_where_data_decides_run_on_the_model_of_the_chip() -> None:
    """The lists that a kernel reads are made for its own tiles: of 64 or 128 keys, of two warpgroups or three."""
    ids = torch.arange(200, dtype=torch.int32)[None] // 37
    machine = Machine("documents", 128, 200, ids=ids)
    bench = machine.bench
    assert bench.rows.forward is not None
    forward = [row for kernel, row in first_round(bench.rows) if kernel == "forward" and isinstance(row, Skeleton)]
    some = [row for row in forward if differing(bench.rows, "forward", row) & {"queries", "keys", "ordered"}]
    assert {(row.queries, row.keys) for row in some} == {(128, 64), (128, 128), (192, 64)}
    for row in some:
        assert bench("forward", row) >= 0, row


@pytest.mark.slow
def test_candidates_of_two_kernels_run_on_the_model_of_the_chip() -> None:
    machine = Machine("causal", 256, 200)
    assert machine.bench.rows.apart is not None
    for kernel, row in first_round(machine.bench.rows):
        assert machine.bench(kernel, row) >= 0, (kernel, row)
    assert {"_hopper_dkdv_kernel", "_hopper_dq_kernel"} <= set(machine.launched)


def differing(rows: Rows, kernel: str, row: Row) -> set[str]:
    own = rows.by_kernel[kernel]
    return {f.name for f in dataclasses.fields(own) if getattr(own, f.name) != getattr(row, f.name)}


@pytest.mark.parametrize(("name", "kept"), [("causal", True), ("documents", True), ("prefix_lm", False)])
def test_tiles_of_keys_go_backwards_only_where_the_planner_lets_them(name: str, kept: bool) -> None:
    """Whatever a file of timings says: elsewhere the kernel has no such order."""
    source = files.read_source(EXAMPLES / f"{name}.attn")
    spec, plan = api.checked_plan(source)
    row = rows_of(plan, spec.tile, (128, 128)).backward
    assert row is not None and row.backwards == kept
    edited = dataclasses.replace(row, backwards=True)
    tuned = TunedGpu("sm_90", 2, 128, dims=(128, 128), backward=edited)
    text = api.build(source, api.options(tuned=(tuned,))).source
    assert (table(text, "HOPPER_BACKWARD")[128, 128] == edited.row) == ("config.BACKWARDS" in text) == kept
