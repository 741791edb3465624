"""One text in two placements: an own part with the runtime below it, and own parts beside one package."""

from __future__ import annotations

import hashlib
import inspect
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import attngen
from attngen.cli.main import main
from attngen.emit.triton import placement
from attngen.runtime import loader

ROOT = Path(__file__).resolve().parents[3]
CALLS = """
import sys
sys.modules["attngen"] = None
import pickle, torch
from shared import alibi, causal, softcap
q = torch.randn(1, 2, 40, 16, requires_grad=True)
out = causal.causal(q, q, q)
torch.testing.assert_close(out, torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True))
(out + alibi.alibi(q, q, q, slope=torch.zeros(2)) + softcap.softcap(q, q, q)).sum().backward()
torch.testing.assert_close(alibi.alibi(q, q, q, slope=torch.zeros(2)), out)
assert causal.host is alibi.host and pickle.loads(pickle.dumps(causal.causal)) is causal.causal
whole = torch.compile(lambda x: causal.causal(x, x, x) + softcap.softcap(x, x, x), fullgraph=True, backend="aot_eager")
torch.testing.assert_close(whole(q), out + softcap.softcap(q, q, q))
print("right", q.grad.norm() > 0)
"""


def compiled(name: str, folder: Path, *options: str) -> int:
    return main(["compile", str(ROOT / "examples" / f"{name}.attn"), *options, "-o", f"{folder}/"])


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("package") / "shared"
    assert [compiled(name, folder) for name in ("causal", "alibi", "softcap")] == [0, 0, 0]
    return folder


def test_three_specs_share_a_directory(shared: Path) -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    run = [sys.executable, "-W", "ignore", "-c", CALLS]
    done = subprocess.run(run, cwd=shared.parent, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stdout.startswith("right"), done.stderr[-2000:]


def test_an_own_part_is_the_same_text_in_both_placements(shared: Path) -> None:
    def own(text: str) -> list[str]:
        """Without imports, and what is registered."""
        body = text.partition("# ================")[0].partition(placement.REGISTERED)[0]
        return body[body.index("__all__") :].rstrip().split("\n")

    one = attngen.compile(ROOT / "examples" / "causal.attn").source
    assert own((shared / "causal.py").read_text()) == own(one)
    head, _, below = one.partition("# sha256 of what follows: ")
    digest, _, rest = below.partition("\n")
    assert hashlib.sha256(rest.encode()).hexdigest() == digest and head.count("# =====") == 1


def test_a_file_of_the_runtime_begins_with_the_digest_of_its_rest(shared: Path) -> None:
    texts = [path.read_text() for path in (shared / "_attngen").glob("*.py")]
    assert len(texts) == len(placement.sources()) and not any(placement.edited(text) for text in texts)
    assert all(placement.edited(f"{text}# mine\n") for text in texts)


def test_an_edited_runtime_is_not_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert compiled("causal", tmp_path) == 0
    mine = tmp_path / "_attngen" / "rows.py"
    older = tmp_path / "_attngen" / "tables.py"
    mine.write_text(mine.read_text() + "# mine\n")
    text = "older = 1\n"  # attngen's own, of another release
    older.write_text(f"# sha256 of the rest of this file: {placement.digest(text)}\n{text}")
    (tmp_path / "causal.py").unlink()
    assert compiled("causal", tmp_path) == 2
    assert f"{mine} was edited" in capsys.readouterr().err
    assert mine.read_text().endswith("# mine\n") and not (tmp_path / "causal.py").exists()
    mine.unlink()
    assert compiled("causal", tmp_path) == 0 and older.read_text() == placement.beside()["tables.py"]


def test_another_version_of_the_runtime_is_refused_at_import(shared: Path, tmp_path: Path) -> None:
    source = attngen.compile(ROOT / "examples" / "causal.attn").source
    with pytest.raises(ImportError, match="causal needs version 0 of attngen's runtime"):
        loader.execute(source.replace(f"api={placement.API},", "api=0,"), "causal")


def test_kernels_share_one_runtime_unless_that_of_their_file_was_edited() -> None:
    causal, softcap = (attngen.compile(ROOT / "examples" / f"{name}.attn") for name in ("causal", "softcap"))
    kind = type(causal.loaded("dense").attention)
    assert kind is type(softcap.loaded("dense").attention) is type(causal.loaded("packed").attention)
    assert kind.__module__ == f"{loader.SHARED}.attention" and causal.loaded("dense") is causal.loaded("dense")
    lines = causal.source.split("\n")
    assert inspect.getsource(causal.function).split("\n")[0] == lines[causal.function.__code__.co_firstlineno - 1]
    mine = causal.source.replace("\nclass Attention", "\n# mine\nclass Attention")
    assert mine != causal.source and placement.own_lines(mine) is None
    assert placement.own_lines(causal.source.replace("# API of the runtime: 2", "# API of the runtime: 1")) is None


@pytest.mark.parametrize("target", ["torch", "jax", "pallas"])
def test_other_targets_have_no_runtime_to_share(
    target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert compiled("causal", tmp_path / "a", "--target", target) == 2
    assert "a directory is for target triton" in capsys.readouterr().err and not (tmp_path / "a").exists()


def test_check_and_verify_take_an_own_part(shared: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec, file = str(ROOT / "examples" / "causal.attn"), shared / "causal.py"
    assert main(["compile", spec, "--check", str(file)]) == 0
    text = file.read_text()
    broken = shared / "broken.py"
    sign = "tl.cdiv(tl.minimum(Sk, q1 + Sk - Sq + 1), BK)"
    assert sign in text
    broken.write_text(text.replace(sign, "tl.cdiv(tl.minimum(Sk, q1 + Sk - Sq - 60), BK)"))
    assert main(["compile", spec, "--check", str(broken)]) == 1
    assert main(["verify", str(broken), "--device", "cpu"]) == 1
    capsys.readouterr()


def test_names_of_the_runtime_are_defined_once() -> None:
    found: dict[str, Any] = dict(placement.flat())
    assert len(found) > 200 and {"Attention", "Launch", "load", "barrier_sync"} <= found.keys()
