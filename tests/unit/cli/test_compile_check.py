"""`attngen compile --check`: it says whether a file is what a spec compiles to, and writes nothing."""

from __future__ import annotations

import dataclasses
import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from attngen import api, targets
from attngen.cli import compile_check, main as cli
from attngen.errors import Source
from attngen.plan.tiles.hopper_trials import rows_of
from attngen.plan.tiles.portable import Tile
from attngen.prove import discharge
from attngen.prove.verdict import Claim, Unknown
from attngen.tune import gpu, gpu_file, keys, tpu

SPEC = "attention near\n\nconst width = 24\nconst sharp = 0.5\n\nscore = sharp * qk\nmask = sliding_window(width)\n"
MADE = (
    ("triton",),
    ("triton", "--arch", "sm_90", "--head-dim", "128/64", "--dtype", "bf16", "--forward", "--precision", "tf32"),
    ("triton", "--geometry", "packed,lengths", "--arch", "portable", "--tile", "64,64"),
    ("torch", "-D", "width=7", "-D", "sharp=2"),
    ("jax", "--precision", "tf32"),
    ("pallas", "--tile", "128,128"),
)
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """The exit status of a command, and what it writes on either stream."""

    def command(*argv: str) -> tuple[int, str, str]:
        capsys.readouterr()
        try:
            status = cli.main(argv)
        except SystemExit as stop:
            assert isinstance(stop.code, int)
            status = stop.code
        return (status, *capsys.readouterr())

    return command


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    path = tmp_path / "near.attn"
    path.write_text(SPEC)
    return path


@pytest.fixture
def made(spec: Path, run: Run) -> Path:
    path = spec.with_suffix(".py")
    assert run("compile", str(spec), "--target", "torch", "-D", "width=7", "-o", str(path))[0] == 0
    return path


@pytest.mark.parametrize("options", MADE, ids=" ".join)
def test_what_compile_wrote_is_what_it_would_write(options: tuple[str, ...], spec: Path, run: Run) -> None:
    path = spec.with_suffix(".py")
    assert run("compile", str(spec), "--target", *options, "-o", str(path))[0] == 0
    before = path.read_bytes()
    said = f"{path} is what {spec} compiles to\n"
    assert run("compile", str(spec), "--check", str(path)) == (0, "", said)
    assert run("compile", str(spec), "--check", str(path), "--target", *options) == (0, "", said)
    assert path.read_bytes() == before


def test_the_difference_is_printed(spec: Path, made: Path, run: Run) -> None:
    """An edit, and a const whose own value is another one now: what `-D` said stays."""
    text = made.read_text().replace("import math\n", "import math  # for inf\n", 1)
    made.write_text(text)
    spec.write_text(SPEC.replace("width = 24", "width = 25").replace("sharp = 0.5", "sharp = 0.75"))
    status, out, err = run("compile", str(spec), "--check", str(made))
    assert status == 1 and made.read_text() == text
    lines = out.splitlines()
    assert lines[:2] == [f"--- {made}", f"+++ {spec}, compiled anew"] and lines[2].startswith("@@ ")
    changed = [line for line in lines[2:] if line[0] in "+-"]
    assert {"-import math  # for inf", "+import math", "-#     const sharp = 0.5", "+#     const sharp = 0.75"} < set(
        changed
    )
    assert any(line.startswith("+") and "1.082" in line for line in changed)
    assert "width=7 sharp=0.75 " in out and "width=25" not in out
    counts = [sum(line[0] == sign for line in changed) for sign in "-+"]
    again = f"attngen compile {spec} --target torch -D width=7 -o {made}"
    assert f"{counts[0]} lines would go, {counts[1]} would come; write it anew with {again}\n" in err
    assert run(*again.split()[1:])[0] == 0 and run("compile", str(spec), "--check", str(made))[0] == 0


def test_a_long_difference_is_cut(spec: Path, made: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    made.write_text(re.sub(r"$", "  #", made.read_text(), flags=re.MULTILINE).replace("/  #", "/"))
    text = re.sub(r"^( +)", r"\1 ", made.read_text().replace("  #\n", "\n"), flags=re.MULTILINE)
    made.write_text(text)
    whole = run("compile", str(spec), "--check", str(made))[1].splitlines()
    assert len(whole) == 201
    more = re.fullmatch(r"… and (\d+) more lines", whole[-1])
    assert more is not None
    monkeypatch.setattr(compile_check, "SHOWN", 10)
    cut = run("compile", str(spec), "--check", str(made))[1].splitlines()
    assert cut == [*whole[:10], f"… and {int(more[1]) + 190} more lines"]


def test_line_ends_and_the_last_line_count(spec: Path, made: Path, run: Run) -> None:
    text = made.read_bytes()
    made.write_bytes(text.replace(b"\n", b"\r\n"))
    status, out, err = run("compile", str(spec), "--check", str(made))
    assert (status, out) == (1, "") and "but for its line ends" in err
    made.write_bytes(text.removesuffix(b"\n"))
    status, out, _ = run("compile", str(spec), "--check", str(made))
    assert status == 1 and "\\ No newline at end of file\n" in out
    made.write_bytes(b"\xef\xbb\xbf" + text)
    assert run("compile", str(spec), "--check", str(made))[0] == 1


def test_a_spec_and_a_file_may_come_from_a_pipe(
    spec: Path, made: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    for argv, path in ((("-", "--check", str(made)), spec), ((str(spec), "--check", "-"), made)):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(path.read_bytes())))
        status, out, err = run("compile", *argv)
        assert (status, out) == (0, "") and "is what" in err and "<stdin>" in err


def test_a_const_that_is_gone_is_said(spec: Path, made: Path, run: Run) -> None:
    spec.write_text("attention near\n\nconst sharp = 0.5\n\nscore = sharp * qk\nmask = sliding_window(24)\n")
    status, out, err = run("compile", str(spec), "--check", str(made))
    assert status == 1 and f"{spec} has no const `width`, which {made} was made with\n" in err
    assert "+# options: target=torch sharp=0.5 tile=" in out


# ---------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (
            ("--target", "triton"),
            "--target triton contradicts {}, which was made with target=torch width=7 sharp=0.5 tile=",
        ),
        (("-D", "width=24"), "-D width=24 contradicts"),
        (("-D", "wide=7"), "-D wide=7 contradicts"),
        (("--tile", "16,16"), "--tile 16,16 contradicts"),
        (("--precision", "tf32"), "--precision tf32 contradicts"),
        (("--arch", "sm_90"), "--arch sm_90 contradicts"),
        (("--head-dim", "64"), "--head-dim 64/64 contradicts"),
        (("--dtype", "bf16"), "--dtype bf16 contradicts"),
        (("--forward",), "--forward contradicts"),
        (("--geometry", "packed,lengths"), "--geometry packed,lengths contradicts"),
        (("-o", "x.py"), "-o does not go with --check, which writes nothing"),
        (("--emit", "ir"), "--check compares generated files: leave out --emit ir"),
        (("--shape", "Sq=64"), "--shape goes with --tiles"),
    ],
    ids=lambda x: " ".join(x) if isinstance(x, tuple) else "",
)
def test_options_that_contradict_are_refused(
    options: tuple[str, ...], why: str, spec: Path, made: Path, run: Run
) -> None:
    before = sorted(spec.parent.iterdir())
    status, out, err = run("compile", str(spec), "--check", str(made), *options)
    assert (status, out) == (2, "") and why.format(made) in err and err.count("\n") == 1
    assert "leave it out" in err or "contradicts" not in err
    assert sorted(spec.parent.iterdir()) == before


def change(old: str, new: str) -> Callable[[bytes], bytes]:
    def changed(data: bytes) -> bytes:
        assert old.encode() in data
        return data.replace(old.encode(), new.encode(), 1)

    return changed


@pytest.mark.parametrize(
    ("edit", "why"),
    [
        (
            lambda data: b"print(1)\n",
            "attngen did not make {}: its head has no line `The specification:`; give a file that",
        ),
        (lambda data: b"", "attngen did not make {}"),
        (lambda data: b"\xff" + data, "{}:1:1: the file is not UTF-8 text: it has the byte 0xff here"),
        (lambda data: data * 300, "{} is not a file that attngen made: it has more than 4,000,000 bytes"),
        (change("# options: ", "# opt: "), "the head of {} can't be read: no line `options: …` follows the spec"),
        (
            change("target=torch", "target=cuda"),
            "can't be read: in its options, no target 'cuda'; there are triton, pallas, torch, jax",
        ),
        (
            change("target=torch", "target=torch dtype=bf16"),
            "in its options, `--dtype` can be chosen for target triton only",
        ),
        (change("tile=256x256", "tile=256"), "-D"),
        (
            change("tile=256x256", "tiles=256x256"),
            "the head of {} can't be read: in its options, 'tiles=256x256' is no option",
        ),
        (change("#     mask = sliding", "#     mask = slidding"), "the spec in {}:7:8: error[unknown-name]"),
    ],
)
def test_what_is_no_file_of_attngen_is_said(
    edit: Callable[[bytes], bytes], why: str, spec: Path, made: Path, run: Run
) -> None:
    if why == "-D":  # `tile` is a const's name there, which the spec does not have
        made.write_bytes(edit(made.read_bytes()))
        status, _, err = run("compile", str(spec), "--check", str(made))
        assert status == 1 and "has no const `tile`" in err
        return
    made.write_bytes(edit(made.read_bytes()))
    status, out, err = run("compile", str(spec), "--check", str(made))
    assert (status, out) == (2, "") and why.format(made) in err, err


def test_files_that_are_not_there_are_said(spec: Path, made: Path, run: Run) -> None:
    for argv, why in (
        ((str(spec), "--check", str(spec.parent)), f"can't read {spec.parent}: is a directory"),
        ((str(spec), "--check", "nowhere.py"), "can't read nowhere.py: no such file or directory"),
        ((str(spec), "--check", str(spec)), f"attngen did not make {spec}"),
        ((str(made), "--check", str(made)), f"{made} is a generated file, not a spec"),
        (("-", "--check", "-"), "SPEC and --check can't both be standard input"),
        ((str(spec), "--check"), "--check: expected one argument"),
    ):
        status, out, err = run("compile", *argv)
        assert (status, out) == (2, "") and why in err


# ---------------------------------------------------------------- what is only in the head


def test_tuned_tiles_of_a_gpu_are_read_back(spec: Path, run: Run) -> None:
    source = Source(spec.read_text())
    attention, plan = api.checked_plan(source)
    rows = rows_of(plan, attention.tile, (128, 128))
    assert rows.forward is not None and rows.backward is not None
    sizes = {"B": 1, "Hq": 8, "Hkv": 8, "Sq": 4096, "Sk": 4096, "D": 128, "Dv": 128}
    key = keys.gpu_key(source, attention, "NVIDIA H200", ("sm_90", 2, 128), "bf16", sizes)
    row = dataclasses.replace(rows.forward, ordered=not rows.forward.ordered)
    both = gpu.Trial("forward", row, 1.0), gpu.Trial("backward", rows.backward, 2.0)
    apart = both[0], gpu.Trial("dkdv", Tile(32, 128, 8, 1), 7.0), gpu.Trial("dq", Tile(64, 32, 4, 3), 7.5)
    found = [gpu_file.dump([gpu.Tuning(key, trials)]) for trials in (both, apart)]
    tiles_are_read_back(spec, run, "triton", found)


def test_tuned_tiles_of_a_tpu_are_read_back(spec: Path, run: Run) -> None:
    source = Source(spec.read_text())
    sizes = {"B": 1, "Hq": 8, "Hkv": 8, "Sq": 4096, "Sk": 4096, "D": 128, "Dv": 128}
    key = keys.tpu_key(source, api.analyse(source), "v6e", "bf16", sizes)
    both = [
        (tpu.Trial(False, (1024, 512, 4), (("forward", 10),)), tpu.Trial(True, (q, 512, 1), (("dkdv", 9), ("dq", 8))))
        for q in (256, 512)
    ]
    tiles_are_read_back(spec, run, "pallas", [tpu.dump([tpu.Tuning(key, trials)]) for trials in both])


def tiles_are_read_back(spec: Path, run: Run, target: str, found: list[str]) -> None:
    tiles, others = spec.with_name("tiles.json"), spec.with_name("others.json")
    tiles.write_text(found[0]), others.write_text(found[1])
    path = spec.with_suffix(".py")
    status, out, err = run("compile", str(spec), "--target", target, "--tiles", str(tiles), "-o", str(path))
    assert (status, out) == (0, "") and err.startswith(f"wrote {path} in ")
    assert " tuned=" in path.read_text().replace("\n#    ", "")
    assert run("compile", str(spec), "--check", str(path))[0] == 0
    assert run("compile", str(spec), "--check", str(path), "--tiles", str(tiles))[0] == 0
    status, out, err = run("compile", str(spec), "--check", str(path), "--tiles", str(others))
    assert (status, out) == (2, "") and f"--tiles {others} contradicts {path}" in err
    path.write_text(f"{path.read_text()}# an edit\n")
    status, out, err = run("compile", str(spec), "--check", str(path))
    assert status == 1 and "-# an edit" in out and " --tiles TILES -o" in err


def test_what_may_be_unproved_is_read_back(
    spec: Path, run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ATTNGEN_CACHE", str(tmp_path / "cache"))
    claim = Claim("d score / d qk", "the gradient is right", Unknown("sympy", "no rule"))
    provers: Any = tuple((o, (lambda *_: (claim,)) if o.value == "gradients" else p) for o, p in discharge.PROVERS)
    monkeypatch.setattr(discharge, "PROVERS", provers)
    path = spec.with_suffix(".py")
    assert run("compile", str(spec), "--target", "torch", "-o", str(path))[0] == 1
    command = ("compile", str(spec), "--target", "torch", "-o", str(path), "--allow-unproved", "gradients")
    assert run(*command)[0] == 0 and "NOT PROVED" in path.read_text()
    assert run("compile", str(spec), "--check", str(path))[0] == 0


def test_every_target_is_checked() -> None:
    assert {options[0] for options in MADE} == {*targets.TARGETS}
