"""`attngen bench` on the card: everybody there is right, timed, and weighed."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from attngen.cli.main import main

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize(("example", "peers"), [("causal", "flex,sdpa,cudnn"), ("windowed_alibi", "flex,cudnn")])
def test_bench(example: str, peers: str, tmp_path: Path) -> None:
    result = tmp_path / "result.json"
    words = ["--against", peers, "--shape", "B=2", "Hq=4", "D=64", "--lengths", "512,1024", "--rep", "10"]
    words += ["-D", "window=200"] if example == "windowed_alibi" else []
    assert main(["bench", str(EXAMPLES / f"{example}.attn"), *words, "-o", str(result)]) == 0
    record = json.loads(result.read_text())
    assert [p["sizes"]["Sk"] for p in record["points"]] == [512, 1024]
    assert 100 < record["ceiling_tflops"] < 5000
    for point in record["points"]:
        for name in ("attngen", *peers.split(",")):
            found = point["contenders"][name]
            if example == "windowed_alibi" and name == "cudnn":
                assert "causal and full masks alone" in found["unable"]
                continue
            assert found["right"] and max(found["errors"].values()) < 2e-2
            assert 0 < found["forward"]["ms"] < 100 and 0 < found["backward"]["ms"] < 100
            for direction in ("forward", "backward"):  # a replay leaves out what the host takes
                assert 0 < found[direction]["graph_ms"] < 1.2 * found[direction]["ms"]
            assert 0 < found["peak_bytes"] < point["dense_peak_bytes"]
        assert point["contenders"]["flex"]["block_mask_ms"] > 0


def test_tune(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from attngen.plan.tiles.portable import Tile
    from attngen.tune import gpu as tune

    grid = (Tile(64, 64, 4, 2), Tile(128, 64, 8, 2), Tile(128, 128, 8, 3))
    monkeypatch.setattr(tune, "GRID", grid)
    path = tmp_path / "tiles.json"
    spec = str(EXAMPLES / "causal.attn")
    words = ["tune", spec, "--target", "triton", "--shape", "B=1", "Hq=4", "Sq=1024", "D=64", "-o", str(path)]
    assert main(words) == 0
    (entry,) = json.loads(path.read_text())["tunings"]
    assert entry["card"] == torch.cuda.get_device_name()
    times = [t["ms"] for t in entry["trials"] if "ms" in t]
    assert len(times) >= 5 and all(0 < ms < 100 for ms in times)
    before = path.read_text()
    assert main(words) == 0 and path.read_text() == before
    out = tmp_path / "tuned.py"
    assert main(["compile", spec, "--tiles", str(path), "-o", str(out)]) == 0
    text = out.read_text()
    tiles, rows = entry["tiles"], dict(entry.get("rows", {}))
    assert {"forward", "backward"} <= tiles.keys() | rows.keys()  # of the portable kernels, and of the chip's own
    if rows["backward"] == "portable":
        table = text.partition('HOPPER_BACKWARD = """')[2].partition('"""')[0]
        assert table and rows.pop("backward") and "    64 64 " not in table
    cells = re.sub(" +", " ", text)
    assert all(_printed(row) in cells for row in (*tiles.values(), *rows.values()))


def _printed(row: list[Any]) -> str:
    """A row as a table of the generated file has it."""
    return " ".join({True: "yes", False: "no"}[x] if isinstance(x, bool) else str(x) for x in row)
