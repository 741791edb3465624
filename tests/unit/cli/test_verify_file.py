"""`attngen verify FILE.py`: it runs the file as it is, against the spec in its head."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import attngen
from attngen.cli import main as cli
from attngen.verify import comparison, sequences

SPEC = "attention near\n\nconst width = 24\nparam w: f32[Hq]\n\nscore = qk * scale * w[h]\nmask = 0 <= q - k < width\n"
MASK = "(0 <= key_gap) & (key_gap < 24)"
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """The exit status of `verify` in this process, and what it writes on either stream."""

    def command(*argv: str) -> tuple[int, str, str]:
        capsys.readouterr()
        status = cli.main(["verify", *argv, "--device", "cpu"])
        return (status, *capsys.readouterr())

    return command


def written(folder: Path, source: str) -> str:
    path = folder / "near.py"
    path.write_text(source)
    return str(path)


@pytest.fixture(scope="module")
def source() -> str:
    """The target torch needs no interpreter."""
    return attngen.compile(SPEC, "torch", tile=(16, 16)).source


# ---------------------------------------------------------------- right and wrong


def test_a_file_is_verified_as_it_was_written(source: str, tmp_path: Path, run: Run) -> None:
    status, out, err = run(written(tmp_path, source))
    assert (status, err) == (0, "")
    assert out.startswith("near on the CPU: errors against the float64 reference\n")
    assert "verified: 36 results of 6 cases within tolerance\n" in out
    assert run(str(tmp_path / "near.py"), "--target", "torch", "--tile", "16,16", "-D", "width=24")[0] == 0


def test_a_harmless_edit_passes(source: str, tmp_path: Path, run: Run) -> None:
    edited = source.replace("import torch\n", "import torch\n\n# a remark of whoever edits\n", 1)
    edited = edited.replace("LN2 = 0.6931471805599453", "LN2 = math.log(2.0)")
    assert edited.count("math.log(2.0)") == 1
    assert run(written(tmp_path, edited))[0] == 0


@pytest.mark.parametrize(
    ("old", "new", "unseen"),
    [
        (" < 24)", " > 24)", set()),
        (" < 24)", " <= 24)", set()),
        ("acc = acc * rescale", "acc = acc / rescale", {"lse"}),
        (
            "deltas = (d_out * out).sum(-1, keepdim=True) - ",
            "deltas = (d_out * out).sum(-1, keepdim=True) + ",
            {"out", "lse", "d v"},
        ),
    ],
)
def test_an_edit_that_is_wrong_fails(
    old: str, new: str, unseen: set[str], source: str, tmp_path: Path, run: Run
) -> None:
    assert old in source
    status, out, _ = run(written(tmp_path, source.replace(old, new)))
    assert status == 1 and "NOT verified: " in out and "!" in out
    plain = out.partition("\nplain: ")[2].splitlines()[1]
    errors = dict(re.findall(r"(out|lse|d \w+) +(\S+)", plain))
    assert len(errors) == 6
    assert {name for name in unseen if errors[name].endswith("!")} == set()
    assert any(error.endswith("!") for error in errors.values())


def test_no_new_file_is_compiled(source: str, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attngen.targets.emit", None)
    assert run(written(tmp_path, source))[0] == 0


def test_a_file_that_crashes_keeps_its_traceback(source: str, tmp_path: Path) -> None:
    """With the file's own path and line, and the status that Python gives it."""
    path = written(tmp_path, source.replace("    lse = torch.full(", "    lse = torrch.full(", 1))
    command = [sys.executable, "-m", "attngen", "verify", path, "--device", "cpu"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    line = next(i for i, text in enumerate(Path(path).read_text().splitlines(), 1) if "torrch" in text)
    assert done.returncode == 1 and f'File "{path}", line {line}, in _forward' in done.stderr
    assert "name 'torrch' is not defined" in done.stderr


# ---------------------------------------------------------------- what a file is for


@pytest.mark.filterwarnings("ignore:.*no TPU found:UserWarning")
@pytest.mark.parametrize("target", ["jax", "pallas"])
def test_files_for_jax_are_verified(target: str, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, "_TINY", comparison._TINY[1:2])
    text = attngen.compile(SPEC, target, tile=(16, 16)).source
    assert run(written(tmp_path, text))[0] == 0
    changed = text.replace("< 24", "< 25")
    assert changed != text and run(written(tmp_path, changed))[0] == 1


FEW = (("few", "fp32", "1 2 1 18 18 16 16"),)
FEW_SEQUENCES = (("few", "fp32", (2, 1, 16, 16), ((5, 19), (0, 3), (18, 18))),)


def test_a_triton_file_is_verified_in_every_geometry_that_it_has(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comparison, "_TINY", FEW)
    monkeypatch.setattr(sequences, "_TINY", FEW_SEQUENCES)
    kernel = attngen.compile(
        SPEC,
        tile=(16, 16),
        width=6,
        arch="portable",
        head_dim=16,
        dtype="fp32",
        geometry=("lengths", "packed", "pieces"),
    )
    monkeypatch.setattr("attngen.targets.emit", None)  # neither pieces nor sequences are compiled anew
    status, out, _ = run(written(tmp_path, kernel.source))
    assert status == 0 and out.count("verified: 6 results of 1 cases") == 4
    for label in ("near", "near, lengths", "near, packed", "near, pieces"):
        assert f"{label} on the CPU, in Triton's interpreter" in out


def test_wrong_pieces_of_a_file_are_seen(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, "_TINY", FEW)
    options = {"arch": "portable", "head_dim": 16, "dtype": "fp32", "forward": True}
    source = attngen.compile(SPEC, tile=(16, 16), geometry=("pieces",), **options).source
    wrong = source.replace(
        "        shares, lse = self.shares([", "        parts = parts[:1]\n        shares, lse = self.shares(["
    )
    assert wrong != source
    status, out, _ = run(written(tmp_path, wrong))
    assert status == 1 and out.count("\nverified: ") == out.count("NOT verified: ") == 1


def test_a_file_for_some_calls_gets_no_others(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, "_TINY", FEW)
    monkeypatch.setattr(sequences, "_TINY", FEW_SEQUENCES)
    options = {"arch": "sm_90", "head_dim": (32, 16), "dtype": "bf16", "forward": True}
    kernel = attngen.compile(SPEC, tile=(16, 16), consts={"width": 6}, geometry=("lengths", "pieces"), **options)
    status, out, err = run(written(tmp_path, kernel.source))
    assert (status, err) == (0, "") and out.count("verified: 2 results of 1 cases") == 3
    assert out.count("D=32/16") == out.count(": bf16, ") == 3 and " d q " not in out


def test_sequences_are_longer_than_tiles_and_consts(tmp_path: Path, run: Run) -> None:
    text = (
        SPEC.replace("width = 24", "width = 300")
        .replace("score", "const far = 4000\n\nscore")
        .replace("k < width", "k < min(width, far)")
    )
    wide = attngen.compile(text, "torch", tile=(64, 64)).source
    status, out, err = run(written(tmp_path, wide))
    assert status == 0 and "Sq=192 Sk=192" in out and "longer than `width`" in out and "Sq=337 Sk=337" in out
    assert (
        err
        == "no sequence here is as long as `far` = 4000: compile with a smaller `far`, and verify that file as well\n"
    )
    changed = wide.replace(" < 300)", " < 301)")
    assert changed != wide and run(written(tmp_path, changed))[0] == 1


# ---------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        (
            "#     mask = 0 <=",
            "#     mask = 1 <=",
            "the spec in {} is not the one that it was made from: its sha256 is not ",
        ),
        ("# The specification:", "# A specification:", "attngen did not make {}: its head has no line"),
        ("# sha256 of its text: ", "# sha256: ", "the head of {} can't be read: no line `sha256 of its text: …`"),
        ("# options: ", "# chosen: ", "the head of {} can't be read: no line `options: …`"),
        ("target=torch", "target=tensor", "the head of {} can't be read: in its options, no target 'tensor'"),
        ("width=24 ", "", "can't be read: the spec and the options have other consts: width"),
        ("width=24 ", "width=2.5 ", "the const `width` is an int, and 2.5 is a float"),
        ("import torch\n", "import torch(\n", "near.py:28:13: this is no Python: "),
        ("def near(", "def far(", "{} has no function `near`, and its head says that it has"),
    ],
)
def test_what_cannot_be_verified_is_said(old: str, new: str, why: str, source: str, tmp_path: Path, run: Run) -> None:
    path = written(tmp_path, source.replace(old, new, 1))
    status, out, err = run(path)
    assert (status, out) == (2, "") and why.format(path) in err and err.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (
            ("--target", "triton"),
            "--target triton contradicts {}, which was made with target=torch width=24 tile=16x16",
        ),
        (("--tile", "32,16"), "--tile 32,16 contradicts"),
        (("--precision", "tf32"), "--precision tf32 contradicts"),
        (("-D", "width=25"), "-D width=25 contradicts"),
        (("--geometry", "packed"), "--geometry packed contradicts"),
    ],
)
def test_options_that_contradict_are_refused(
    options: tuple[str, ...], why: str, source: str, tmp_path: Path, run: Run
) -> None:
    path = written(tmp_path, source)
    status, out, err = run(path, *options)
    assert (status, out) == (2, "") and why.format(path) in err and "leave it out" in err


def test_what_attngen_did_not_make_is_not_run(tmp_path: Path, run: Run) -> None:
    path = written(tmp_path, "open('ran', 'w')\n")
    status, out, err = run(path)
    assert (status, out) == (2, "") and f"attngen did not make {path}" in err
    assert not Path("ran").exists()


def test_help_says_that_the_file_is_executed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["verify", "--help"])
    assert "EXECUTES THAT FILE" in capsys.readouterr().out
