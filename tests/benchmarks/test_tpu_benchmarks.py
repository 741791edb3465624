"""The TPU comparison's own arithmetic: cells, candidates, resumption, what counts as best. Nothing is compiled."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import tpu_report  # noqa: E402
import tpu_static  # noqa: E402
from tpu_cells import CELLS, VARIANTS, WINDOW, Cell, tiles_of  # noqa: E402

from attngen import api  # noqa: E402
from attngen.errors import Source  # noqa: E402
from attngen.reference import evaluate  # noqa: E402
from attngen.tpu.chips import CHIPS  # noqa: E402
from attngen.tpu.compile import Refused  # noqa: E402

CAUSAL = Cell("v5e", 128, "causal", 4096, True)


def row(cell: Cell, contender: str, tile: list[int], **kernels: int) -> dict[str, Any]:
    found = [{"name": name, "cycles": cycles} for name, cycles in kernels.items()]
    return {"contender": contender, "cell": cell.key, "tile": tile, "around_ms": 0.1, "kernels": found}


@pytest.mark.parametrize("variant", ["full", "causal", "local"])
def test_the_pairs_are_those_that_the_spec_allows(variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row's log-sum-exp of equal scores is the logarithm of the number of keys that it meets."""
    import tpu_cells

    monkeypatch.setattr(tpu_cells, "WINDOW", 5)
    cell = Cell("v5e", 8, variant, 12, False)
    text, consts = cell.spec()
    assert isinstance(text, str)
    spec = api.analyse(Source(text), {**consts, "window": 5} if variant == "local" else consts)
    zeros = np.zeros((1, 1, 12, 8))
    lse = evaluate(spec, zeros, zeros, zeros, params={}).lse
    assert round(float(np.exp(lse).sum())) == cell.pairs
    assert cell.operations == cell.pairs * 8 * 4


def test_the_local_window_is_the_rivals() -> None:
    """Splash counts the keys before the query's own, attngen all of them."""
    import tpu_rivals

    assert WINDOW == tpu_rivals.WINDOW + 1


def test_every_cell_has_candidates_that_fit_it_and_every_variant_is_an_example() -> None:
    for cell in (*CELLS, *VARIANTS):
        for contender in tpu_static.CONTENDERS:
            tiles = tiles_of(contender, cell)
            assert len(set(tiles)) == len(tiles) > 0
            assert all(max(tile[:2]) <= cell.length for tile in tiles)
    for cell in VARIANTS:
        path, _ = cell.spec()
        assert isinstance(path, Path) and path.exists()


def test_the_likeliest_tile_of_every_cell_comes_before_the_next_of_any() -> None:
    ranks = [tiles_of(job.contender, job.cell).index(job.tile) for job in tpu_static.jobs()]
    assert ranks == sorted(ranks)
    keys = [job.key for job in tpu_static.jobs()]
    assert len(set(keys)) == len(keys)
    assert not any(key.startswith("flash") and "local" in key for key in keys)


def test_each_kernel_counts_at_its_own_best_tile() -> None:
    rows = [
        row(CAUSAL, "attngen", [512, 512, 1], forward_kernel=100, dkdv_kernel=300),
        row(CAUSAL, "attngen", [1024, 512, 1], forward_kernel=120, dkdv_kernel=200),
        {"contender": "attngen", "cell": CAUSAL.key, "tile": [1024, 1024, 1], "refused": "too large"},
        row(CAUSAL, "tokamax", [512, 512, 512], forward=400),
    ]
    found = tpu_report.best(rows, CAUSAL, "attngen")
    assert found is not None
    assert found.ms == pytest.approx(1e3 * 300 / CHIPS["v5e"].clock)
    assert found.tiles == ("512x512x1", "1024x512x1")
    rival = tpu_report.best(rows, CAUSAL, "tokamax")
    assert tpu_report.ratio({"attngen": found, "tokamax": rival, "splash": None}) == pytest.approx(300 / 400)
    assert tpu_report.best(rows, CAUSAL, "flash") is None


def test_the_forward_beside_a_backward_has_a_tile_of_the_forward() -> None:
    own = tpu_static.Job("attngen", CAUSAL, (512, 512, 1))
    assert own.forward_tile == tiles_of("attngen", replace(CAUSAL, backward=False))[0] != own.tile
    rival = tpu_static.Job("tokamax", CAUSAL, (1024, 1024, 512))
    assert rival.forward_tile == rival.tile
    rows = [row(CAUSAL, "attngen", [512, 512, 1], backward_kernel=300, forward_kernel=100)]
    found = tpu_report.best([rows[0] | {"forward_tile": list(own.forward_tile)}], CAUSAL, "attngen")
    assert found is not None
    assert found.tiles == ("512x512x1", "512x512x4")


def test_a_sweep_goes_on_where_it_stopped_and_keeps_what_was_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "r.json"
    seen: list[str] = []

    def refuse(job: tpu_static.Job, keep: Path | None) -> Refused:
        seen.append(job.key)
        return Refused("compile", "Scoped allocation with size 20.00M and limit 16.00M exceeded")

    monkeypatch.setattr(tpu_static, "outcome", refuse)
    only = r"^splash v5e 128 causal 4096 fwd"
    tpu_static.sweep(path, None, 1, only)
    rows = json.loads(path.read_text())["rows"]
    assert [r["refused"] for r in rows] == ["Scoped allocation with size 20.00M and limit 16.00M"] * len(seen)
    tpu_static.sweep(path, None, 1, only)
    assert len(seen) == len(tiles_of("splash", Cell("v5e", 128, "causal", 4096, False)))


def test_the_committed_results_are_complete_rows_of_known_jobs() -> None:
    results = tpu_static.read(tpu_static.RESULTS)
    known = {job.key for job in tpu_static.jobs()}
    assert {tpu_static.key_of(r) for r in results["rows"]} <= known
    assert not [r for r in results["rows"] for k in r.get("kernels", []) if k.get("doubts")]
    for cell in CELLS:
        for contender in tpu_static.CONTENDERS:
            found = tpu_report.best(results["rows"], cell, contender)
            assert (found is not None) == (contender == "attngen" or cell.fits(contender)), (cell, contender)
            assert found is None or 0 < found.matrix_share < 1
