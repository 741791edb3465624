"""`attngen bench` on the card: everybody there is right, timed, and weighed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from attngen.cli import main

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
            assert 0 < found["peak_bytes"] < point["dense_peak_bytes"]
        assert point["contenders"]["flex"]["block_mask_ms"] > 0
