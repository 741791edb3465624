"""The command line: what goes to which stream, what is written, and with which status each thing ends."""

from __future__ import annotations

import ast
import inspect
import io
import json
import os
import pty
import re
import subprocess
import sys
from dataclasses import replace
from functools import partial
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest
from counted import calls

import attngen
from attngen import Unproved, UsageError, api, targets, terminal, vocabulary
from attngen.aot import compile as aot
from attngen.cli import env, main as cli, tune
from attngen.emit.text.units import REGISTERED
from attngen.errors import Source
from attngen.prove.verdict import Obligation

ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "examples"
SPEC = "attention windowed\n\nconst window = 24\n\nmask = sliding_window(window)\n"
BROKEN = "attention broken\n\nscore = qk * scael\nmask  = qk\n"
COMMANDS = ("compile", "check", "examples", "fmt", "show", "verify", "cost", "tune", "completion")


def run(*argv: str) -> int:
    """The exit status of one command in this process."""
    try:
        return cli.main(argv)
    except SystemExit as stop:
        assert isinstance(stop.code, int)
        return stop.code


def unknown_word(argument: str) -> str:
    return f"no obligation {argument!r}; there are streaming, range-safety, empty-rows, locality, gradients"


def spawn(*argv: str, **options) -> subprocess.CompletedProcess[str]:  # type: ignore[no-untyped-def]
    return subprocess.run([sys.executable, "-m", "attngen", *argv], capture_output=True, text=True, **options)


@pytest.fixture
def spec(tmp_path: Path) -> str:
    path = tmp_path / "windowed.attn"
    path.write_text(SPEC)
    return str(path)


@pytest.fixture
def broken(tmp_path: Path) -> str:
    path = tmp_path / "broken.attn"
    path.write_text(BROKEN)
    return str(path)


# ---------------------------------------------------------------- help and mistakes


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_an_example_of_itself(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(command, "--help") == 0
    said = capsys.readouterr().out
    assert re.search(rf"example:\n  .*attngen {command}", said)


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--help") == 0
    said = capsys.readouterr().out
    assert all(re.search(rf"^    {command}\b", said, re.MULTILINE) for command in COMMANDS)
    assert "example:\n  attngen compile" in said
    assert all(re.search(rf"^  {variable}\b", said, re.MULTILINE) for variable in ("ATTNGEN_CACHE", "TRITON_INTERPRET"))


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--version") == 0
    said = capsys.readouterr().out
    assert re.fullmatch(r"attngen \d+\.\d+\.\d+\S*\n|attngen 0\+checkout\n", said)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ((), "required: COMMAND"),
        (("kompile",), "invalid choice: 'kompile'"),
        (("compile",), "required: SPEC"),
        (("compile", "a.attn", "--emit", "llvm"), "invalid choice: 'llvm'"),
        (("compile", "a.attn", "--emit", "plan", "--forward"), "--forward goes with --emit source, ttir, ttgir, ptx"),
        (("compile", "a.attn", "--emit", "ir", "--head-dim", "64"), "--head-dim goes with --emit source, ttir"),
        (
            ("compile", "a.attn", "--emit", "ir", "--arch", "sm_90"),
            "--arch goes with --emit source, ttir, ttgir, ptx",
        ),
        (
            ("compile", "a.attn", "--emit", "ast", "--dtype", "bf16"),
            "--dtype goes with --emit source, ttir, ttgir, ptx",
        ),
        (("compile", "a.attn", "--emit", "ptx", "--arch", "gfx942"), "gfx942 has no ptx; ask for ttir, ttgir, hsaco"),
        (("compile", "a.attn", "--emit", "hsaco", "--arch", "sm_90"), "sm_90 has no hsaco; ask for ttir, ttgir, ptx"),
        (("compile", "a.attn", "--emit", "cubin", "--geometry", "packed"), "--geometry goes with --emit source, not"),
        (("compile", "a.attn", "--emit", "cubin", "--tiles", "t.json"), "--tiles goes with --emit source, mosaic, hlo"),
        (("compile", "a.attn", "--emit", "hlo", "--forward"), "--forward goes with --emit source, ttir, ttgir, ptx"),
        (("compile", "a.attn", "--emit", "ir", "--strict"), "--strict goes with --emit source, ttir, ttgir, ptx"),
        (
            ("compile", "a.attn", "--emit", "plan", "--allow-unproved", "gradients"),
            "--allow-unproved goes with --emit source, ttir",
        ),
        (
            ("compile", "a.attn", "--target", "pallas", "--emit", "hlo", "--dtype", "fp16"),
            "no dtype 'fp16' on a TPU; there are bf16, fp32",
        ),
        (
            ("compile", "a.attn", "--target", "torch", "--precision", "tf32"),
            "`--precision tf32` is not for target torch: torch.backends says how torch multiplies",
        ),
        (
            ("compile", "a.attn", "--target", "jax", "--head-dim", "64", "--forward"),
            "`--head-dim` and `--forward` can be chosen for target triton only, not for jax",
        ),
        (("compile", "a.attn", "--emit", "ptx", "--arch", "portable"), "--emit ptx needs a chip: --arch sm_80, sm_86"),
        (("compile", "a.attn", "--emit", "ptx", "--target", "jax"), "by Triton's compiler: leave out --target jax"),
        (("compile", "a.attn", "--emit", "ptx", "--head-dim", "512"), "head dims run from 1 to 256"),
        (("compile", "a.attn", "--emit", "ptx", "--head-dim", "a"), "'a' is no head dim; write D or D/Dv"),
        (("compile", "a.attn", "--tile", "16"), "'16' is no tile; write Q,K"),
        (("compile", "a.attn", "--tile", "24,16"), "powers of two"),
        (("compile", "a.attn", "-D", "window"), "'window' is no assignment; write NAME=VALUE"),
        (("compile", "a.attn", "-D", "window=wide"), "the value of window must be a number, true or false"),
        (("compile", "a.attn", "-D", "window=" + "9" * 5000), "the value of window must be a number"),
        (("compile", "a.attn", "-D", "window=1", "-D", "window=2"), "argument -D: window is given twice"),
        (("show", "a.attn", "--param", "n=1", "--param", "n=1"), "argument --param: n is given twice"),
        (("cost", "a.attn", "--chip", "h200", "--shape", "Sq=1", "Sq=2"), "argument --shape: Sq is given twice"),
        (("compile", "missing.attn"), "can't read missing.attn: no such file"),
        (("compile", str(ROOT)), "is a directory"),
        (("fmt",), "required: FILE"),
        (("examples", "alib"), "no example 'alib'; there are alibi, "),
        (("examples", "-o", "x.attn"), "-o goes with the NAME of an example"),
        (("fmt", "--check", "-w", "a.attn"), "not allowed with"),
        (("show",), "required: SPEC"),
        (("show", "--size", "Sq=3"), "required: SPEC"),
        (("show", "a.attn", "--size", "Sq"), "'Sq' is no size; write NAME=INT"),
        (("show", "a.attn", "--size", "Sq=0"), "'Sq=0' is no size"),
        (("show", "a.attn", "-o", "mask.gif"), "a picture ends in .png or .svg"),
        (("show", "a.attn", "--head", "-1"), "'-1' is no index|expected one argument"),
        (("verify", "a.attn", "--device", "tpu"), "invalid choice: 'tpu'"),
        (("completion", "csh"), "invalid choice: 'csh'"),
    ],
    ids=lambda x: " ".join(x)[:40] if isinstance(x, tuple) else "",
)
def test_wrong_use_is_one_message_and_status_2(
    argv: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*argv) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert re.search(message, said.err)
    assert re.match(r"attngen( \w+)?: error: ", said.err)
    assert len(said.err.splitlines()) == 1


@pytest.mark.parametrize("command", ["compile", "fmt", "show", "verify"])
def test_wrong_spec_is_quoted_with_every_mistake(command: str, broken: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = "attention broken\n\nscore = (qk * scale\n" if command == "fmt" else BROKEN
    Path(broken).write_text(text)
    assert run(command, broken) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert f"{broken}:3:" in said.err and "error[" in said.err and "^" in said.err
    assert "\x1b" not in said.err
    assert "Traceback" not in said.err
    if command != "fmt":
        assert f"{broken}:3:14: " in said.err and f"{broken}:4:9: " in said.err
        assert said.err.rstrip().endswith("2 mistakes")


# ---------------------------------------------------------------- compile


@pytest.mark.parametrize("stage", ["ast", "ir", "plan", "source"])
def test_stages_print_text_that_repeats(stage: str, spec: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("compile", spec, "--emit", stage) == 0
    first = capsys.readouterr()
    assert run("compile", spec, "--emit", stage) == 0
    assert capsys.readouterr().out == first.out
    assert first.err == "" and first.out.endswith("\n") and first.out.count("\n") > 3
    assert str(Path(spec).parent) not in first.out


def test_emitted_tree_has_every_statement_and_place(spec: str, capsys: pytest.CaptureFixture[str]) -> None:
    run("compile", spec, "--emit", "ast")
    assert capsys.readouterr().out.splitlines() == [
        "Attention(name='windowed') @1:1",
        "Const(name='window') @3:1",
        "  value: Number(value=24) @3:16",
        "Mask() @5:1",
        "  value: Call(func='sliding_window') @5:8",
        "    args[0]: Name(id='window') @5:23",
    ]


def test_emitted_ir_has_the_const(spec: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("compile", spec, "--emit", "ir", "-D", "window=7") == 0
    said = capsys.readouterr().out
    assert "const window = 7" in said and "24" not in said


def test_source_is_python_and_written_whole(spec: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("compile", spec) == 0
    printed = capsys.readouterr().out
    compile(printed, "windowed.py", "exec")
    out = tmp_path / "windowed.py"
    assert run("compile", spec, "-o", str(out), "--target", "triton") == 0
    assert out.read_text() == printed
    assert capsys.readouterr().out == ""
    assert sorted(os.listdir(tmp_path)) == ["windowed.attn", "windowed.py"]


@pytest.mark.parametrize("place", ["/dev/null", "/proc/none"])
def test_compiling_needs_no_cache(place: str, spec: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTNGEN_CACHE", place)
    output = tmp_path / "windowed.py"
    assert run("compile", spec, "-o", str(output)) == 0
    ast.parse(output.read_text(encoding="utf-8"))


def test_spec_from_standard_input(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(SPEC.encode())))
    assert run("compile", "-", "--emit", "ir") == 0
    assert capsys.readouterr().out.startswith("attention windowed")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(BROKEN.encode())))
    assert run("compile", "-", "--emit", "ir") == 2
    assert "<stdin>:3:14" in capsys.readouterr().err


def test_nothing_is_written_on_a_mistake(broken: str, tmp_path: Path) -> None:
    out = tmp_path / "kept.py"
    out.write_text("kept")
    assert run("compile", broken, "-o", str(out)) == 2
    assert out.read_text() == "kept"
    assert sorted(os.listdir(tmp_path)) == ["broken.attn", "kept.py"]


@pytest.mark.parametrize("link", [None, os.symlink, os.link])
@pytest.mark.parametrize("argv", [("compile",), ("show",)])
def test_the_spec_is_never_overwritten(  # type: ignore[no-untyped-def]
    argv: tuple[str], link, spec: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = tmp_path / "windowed.png"
    os.rename(spec, name)
    out = name
    if link is not None:
        out = tmp_path / "other.png"
        link(name, out)
    assert run(*argv, str(name), "-o", str(out)) == 2
    assert "would overwrite the spec" in capsys.readouterr().err
    assert name.read_text() == SPEC


def test_an_unknown_obligation_is_refused_before_any_proof(
    spec: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(api, "prove", lambda *_: pytest.fail("it proved first"))
    assert run("compile", spec, "--allow-unproved", "nonsense") == 2
    assert unknown_word("nonsense") in capsys.readouterr().err
    with pytest.raises(UsageError, match=unknown_word("nonsense")):
        attngen.compile(spec, allow_unproved=["nonsense"])


@pytest.mark.parametrize(
    ("geometry", "message"),
    [
        ("dense,packed", "a torch file has the geometry dense alone"),
        ("dense,pieces", "pieces are for the targets triton, pallas and jax, not for torch"),
    ],
)
def test_verify_refuses_a_geometry_that_the_target_lacks_before_it_runs_another(
    geometry: str, message: str, spec: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("verify", spec, "--target", "torch", "--geometry", geometry) == 2
    said = capsys.readouterr()
    assert said.out == "" and message in said.err


# ---------------------------------------------------------------- names of arguments


def test_each_option_is_an_argument_in_python_and_a_flag_on_the_command_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    run("compile", "--help")
    flags = set(re.findall(r"^  (?:-\w, )?--([\w-]+)", capsys.readouterr().out, re.MULTILINE))
    arguments = inspect.signature(attngen.compile).parameters.keys() - {"spec", "consts", "const_overrides"}
    assert {*vocabulary.OPTIONS} == arguments
    assert {name.replace("_", "-") for name in vocabulary.OPTIONS} <= flags


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ("`effort=4` allows more", "`--effort 4` allows more"),
        ("say which with `shape=`", "say which with `--shape`"),
        ('`allow_unproved=["gradients"]`', "`--allow-unproved gradients`"),
        ("`window=4` and effort=4 and `k == effort`", "`window=4` and effort=4 and `k == effort`"),
    ],
)
def test_the_command_line_names_flags(message: str, said: str) -> None:
    assert terminal.flagged(message) == said


def test_a_spec_that_is_not_proved_names_the_argument_to_python_and_the_flag_to_the_command_line(
    spec: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(Unproved) as refused:
        attngen.compile(spec, effort=1e-6)
    assert "--" not in str(refused.value) and "`effort=4`" in str(refused.value)
    assert '`allow_unproved=["streaming"]` compiles it all the same' in str(refused.value)
    for command in (["compile"], ["check"], ["check", "--json"]):
        assert run(*command, spec, "--effort", "0.000001") == 1
        said = "".join(capsys.readouterr())
        assert "`--effort 4`" in said and "effort=" not in said
    assert run("compile", spec, "--effort", "0.000001") == 1
    assert "`--allow-unproved streaming` compiles it all the same" in capsys.readouterr().err
    every = list(re.findall(r"`allow_unproved=\[\"([\w-]+)\"\]`", str(refused.value)))
    assert attngen.compile(spec, effort=1e-6, allow_unproved=every).source  # the hint leads out, and so does the other
    assert attngen.compile(spec, effort=4).source


# ---------------------------------------------------------------- new, env


def test_a_new_spec_is_proved_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The commands that it names are those that lead on; a file that is there stays as it is."""
    monkeypatch.chdir(tmp_path)
    assert run("new", "my_bias") == 0
    commands = re.findall(r"`attngen ([^`]+)`", capsys.readouterr().err)
    assert commands == ["check my_bias.attn", "compile my_bias.attn -o my_bias.py"]
    assert all(run(*command.split()) == 0 for command in commands) and run("fmt", "--check", "my_bias.attn") == 0
    assert "def my_bias(" in Path("my_bias.py").read_text()
    Path("my_bias.attn").write_text("mine")
    capsys.readouterr()
    assert run("new", "my_bias") == 2 and Path("my_bias.attn").read_text() == "mine"
    assert capsys.readouterr().err == (
        "attngen: error: my_bias.attn exists, and is kept: choose another name, or another file by -o\n"
    )
    assert run("new", "my_bias", "-o", "other.attn") == 0 and run("new", "my_bias", "-o", "-") == 0
    assert Path("other.attn").read_text() in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("bad-name", "bad_name"),
        ("two words", "two_words"),
        ("x\nmask = causal", "x_mask_causal"),
        ("../up", "up"),
        ("", "my_bias"),
        ("1st", "my_1st"),
        ("x # y", "x_y"),
        ("_x", "x"),
        ("lambda", "my_lambda"),
    ],
)
def test_what_is_not_a_name_writes_nothing_and_the_name_that_it_says_does(
    name: str, other: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run("new", name) == 2 and not list(tmp_path.iterdir())
    assert capsys.readouterr().err == f"attngen: error: {name!r} is not a name of an attention: try {other}\n"
    assert run("new", other) == 0 and Path(f"{other}.attn").is_file()


def test_a_missing_example_is_in_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run("fmt", "--check", "examples/causal.attn") == 2
    said = capsys.readouterr().err
    assert said.startswith("attngen: error: can't read examples/causal.attn: no such file or directory; `attngen ")
    (command,) = re.findall(r"`attngen ([^`]+)`", said)
    assert command == "examples causal -o causal.attn" and run(*command.split()) == 0
    assert run("fmt", "--check", "causal.attn") == 0
    for name in ("mine.attn", "causal.npy", "causal"):
        assert run("fmt", name) == 2 and capsys.readouterr().err.endswith(f"{name}: no such file or directory\n")


def test_what_a_report_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ATTNGEN_CACHE", str(tmp_path))
    (tmp_path / "kept").write_bytes(bytes(2**20))
    assert run("env", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["versions"]["attngen"] == attngen.__version__ and found["cache"] == [f"{tmp_path}, 1 files, 1.0 MiB"]
    assert found["versions"]["torch"].startswith(metadata.version("torch")) and found["cards"]
    assert found["variables"]["ATTNGEN_CACHE"] == str(tmp_path)
    assert run("env") == 0
    said = capsys.readouterr().out
    assert all(text in said for kind in found.values() for text in (kind.values() if isinstance(kind, dict) else kind))


def test_what_is_absent_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setattr(env, "_OWN", ("no-such-package",))
    found = env.facts()
    assert found["cards"] == ["PyTorch is absent"]
    assert isinstance(found["versions"], dict) and found["versions"]["no-such-package"] == "absent"


# ---------------------------------------------------------------- examples


def test_each_example_is_described_in_whole_sentences(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("examples") == 0
    said = re.sub(r"\n {10,}", " ", capsys.readouterr().out)
    told = {line.split()[0]: re.sub(r" +", " ", line.partition(" ")[2]).strip() for line in said.splitlines()}
    assert told.keys() == {path.stem for path in EXAMPLES.glob("*.attn")}
    assert all(text[0].isupper() and text.endswith(".") for text in told.values())
    assert told["natten_2d"].endswith("at the image's border the neighbourhood is moved inwards, not cut off.")


def test_tune_is_for_the_gpu_that_is_here_unless_a_tpu_is_named(
    spec: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run("tune", "--help")
    assert "(default: triton, or pallas where --chip is given)" in re.sub(r"\s+", " ", capsys.readouterr().out)
    monkeypatch.setattr(tune, "_tune_on_gpu", lambda args: 10)
    monkeypatch.setattr(tune, "_tune_for_tpu", lambda args: 20)
    assert [run("tune", spec), run("tune", spec, "--target", "triton")] == [10, 10]
    assert [run("tune", spec, "--chip", "v6e"), run("tune", spec, "--target", "pallas", "--chip", "v6e")] == [20, 20]


# ---------------------------------------------------------------- a generated file in the place of a spec


@pytest.mark.parametrize("target", targets.TARGETS)
def test_each_command_says_what_to_do_with_a_generated_file(
    target: str, spec: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = str(tmp_path / "windowed.py")
    assert run("compile", spec, "--target", target, "-o", name) == 0
    said = (
        f"attngen: error: {name} is a generated file, not a spec: give the spec that it was made from, whose text is "
        "in its header. `attngen verify` takes the file itself\n"
    )
    commands: tuple[tuple[str, ...], ...] = (("check",),)
    if target == "triton":
        commands = (*((c,) for c in COMMANDS if c not in ("examples", "completion", "cost", "verify")), ("bench",))
        commands = (*commands, ("cost", "--chip", "h200"), ("plan-parallel", "--ranks", "2"))
    for command in commands:
        capsys.readouterr()
        assert run(*command, name) == 2
        assert capsys.readouterr().err == said
    (tmp_path / "other.py").write_text("print(1)\n")
    assert run("check", str(tmp_path / "other.py")) == 2
    assert "other.py is a Python file, not a spec, whose name ends in .attn" in capsys.readouterr().err


@pytest.mark.parametrize(("stage", "status"), [("source", 1), ("proof", 0)])
def test_a_proof_takes_no_more_than_its_effort(
    stage: str, status: int, spec: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("compile", spec, "--emit", stage, "--effort", "0.000001") == status
    assert "`--effort 4` allows four times the default" in "".join(capsys.readouterr())
    assert run("compile", spec, "--emit", stage, "--effort", "4") == 0
    assert "--effort" not in "".join(capsys.readouterr())


def test_missing_folder_is_said(spec: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("compile", spec, "-o", str(tmp_path / "no" / "a.py"), "--emit", "ir") == 2
    assert "no such file or directory" in capsys.readouterr().err


def test_unknown_const_is_said(spec: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("compile", spec, "-D", "windw=3") == 2
    assert "windw" in capsys.readouterr().err


@pytest.mark.parametrize("stem", ["windowed_alibi", "natten_2d", "t5_bias", "documents"])
def test_compiling_an_example_is_little_work(stem: str, tmp_path: Path) -> None:
    """With nothing in the cache and no other process to help, it makes 5 to 7 million calls, imports included."""
    arguments = ["compile", str(EXAMPLES / f"{stem}.attn"), "-o", str(tmp_path / "out.py")]
    code = "import counted; from attngen.cli import main; from attngen.runtime import forked; forked._cores = lambda: 1"
    code += f"; print(counted.calls(lambda: main.main({arguments!r})))"
    places = [str(Path(__file__).parents[3]), str(Path(__file__).parents[2])]
    environment = {**os.environ, "ATTNGEN_CACHE": str(tmp_path / "cache"), "PYTHONPATH": os.pathsep.join(places)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.splitlines()[-1]) < 7_000_000


@pytest.mark.parametrize("target", ["triton", "torch", "jax", "pallas"])
def test_writing_an_example_is_little_work(target: str) -> None:
    """With templates and the runtime read, it makes less than 0.9 million calls: a quarter of a second at most."""
    options = api.options(target=target)
    for path in EXAMPLES.glob("*.attn"):
        source = Source(path.read_text(), path.name)
        _, planned = api.checked_plan(source, None, target, None)
        targets.emit(planned, source.text, options)
        again = replace(planned)  # nothing was found of it before
        assert calls(partial(targets.emit, again, source.text, options)) < 900_000, path.stem


# ---------------------------------------------------------------- binaries


@pytest.fixture
def small(tmp_path: Path) -> str:
    """A spec that the compiler is quick with."""
    path = tmp_path / "plain.attn"
    path.write_text("attention plain\n")
    return str(path)


def test_binaries_without_a_gpu(small: str, tmp_path: Path) -> None:
    out = str(tmp_path / "w.cubin")
    done = spawn(
        "compile", small, "--emit", "cubin", "--arch", "sm_90", "--head-dim", "16", "--tile", "16,16", "-o", out
    )
    assert done.returncode == 0, done.stderr
    for heading in ("kernel", "registers", "spills", "shared memory"):
        assert heading in done.stdout
    written = sorted(tmp_path.glob("w.*.cubin"))
    assert len(written) >= 2
    assert all(path.read_bytes().startswith(b"\x7fELF") for path in written)
    assert all(path.name.split(".")[1] in done.stdout for path in written)


def test_binaries_without_a_backward_pass(small: str) -> None:
    done = spawn("compile", small, "--emit", "ptx", "--forward", "--head-dim", "16", "--tile", "16,16")
    assert done.returncode == 0, done.stderr
    kernels = re.findall(r"^// ---- (\S+)", done.stdout, re.MULTILINE)
    assert "forward" in kernels and not {"dq", "dkdv", "rows"} & set(kernels)


def test_a_file_for_one_use_is_shorter(small: str, tmp_path: Path) -> None:
    narrow = ("--arch", "sm_90", "--head-dim", "128", "--dtype", "bf16", "--forward")
    whole, short = (tmp_path / name for name in ("whole", "short"))
    assert spawn("compile", small, "-o", f"{whole}/").returncode == 0
    assert spawn("compile", small, *narrow, "-o", f"{short}/").returncode == 0
    whole, short = (path / "plain.py" for path in (whole, short))  # beside the runtime, which they share
    assert short.read_text().count("\n") < whole.read_text().count("\n") / 2
    assert (
        "# options: target=triton precision=ieee arch=sm_90 head_dim=128/128 dtype=bf16 forward\n" in short.read_text()
    )


def test_assembly_is_printed_with_the_report_beside_it(small: str) -> None:
    done = spawn("compile", small, "--emit", "ptx", "--head-dim", "16/32", "--dtype", "fp16", "--tile", "16,16")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("// ---- ") == done.stdout.count(".visible .entry") >= 2
    assert "registers" in done.stderr and "registers" not in done.stdout.split(".visible")[0]


def test_options_are_what_the_compiler_takes() -> None:
    """They stand twice: the command line's help must not import the compiler's side."""
    assert tuple(aot.TARGETS) == vocabulary.ARCHITECTURES
    assert vocabulary.FILE_DTYPES == aot.DTYPES
    assert tuple(aot.KINDS) == vocabulary.BINARIES


@pytest.mark.parametrize(
    ("emit", "arch", "message"),
    [("hsaco", "sm_90", "sm_90 has no hsaco"), ("cubin", "gfx942", "gfx942 has no cubin")],
)
def test_binary_that_the_chip_lacks(
    emit: str, arch: str, message: str, spec: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("compile", spec, "--emit", emit, "--arch", arch) == 2
    assert message in capsys.readouterr().err


# ---------------------------------------------------------------- fmt

UNTIDY = "attention   a\nmask=causal   # all before\n"


def test_fmt_prints_checks_and_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.attn"
    path.write_text(UNTIDY)
    assert run("fmt", str(path)) == 0
    tidy = capsys.readouterr().out
    assert tidy != UNTIDY and "# all before" in tidy
    assert path.read_text() == UNTIDY
    assert run("fmt", "--check", str(path)) == 1
    said = capsys.readouterr()
    assert said.err == f"{path} is not formatted\n" and said.out == ""
    assert run("fmt", "-w", str(path)) == 0
    assert path.read_text() == tidy
    assert capsys.readouterr().out == ""
    assert run("fmt", "--check", str(path)) == 0
    assert capsys.readouterr().err == ""


def test_fmt_writes_none_if_one_is_wrong(tmp_path: Path, broken: str) -> None:
    path = tmp_path / "a.attn"
    path.write_text(UNTIDY)
    Path(broken).write_text("attention broken (\n")
    assert run("fmt", "-w", str(path), broken) == 2
    assert path.read_text() == UNTIDY


def test_fmt_of_standard_input(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(UNTIDY.encode())))
    assert run("fmt", "-w", "-") == 0
    assert capsys.readouterr().out.startswith("attention a\n")


# ---------------------------------------------------------------- show


@pytest.mark.parametrize("order", ["spec first", "spec last"])
def test_show_is_plain_when_piped(order: str, spec: str, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--size", "B=1", "--tile", "16,16", "--size", "Sq=64", "Sk=96")
    assert run("show", *((spec, *options) if order == "spec first" else (*options, spec))) == 0
    said = capsys.readouterr().out
    assert said.startswith("windowed: 64 queries (down) x 96 keys (across), batch 0, head 0\n")
    assert "of 24 tiles of 16 x 16" in said and "\x1b" not in said
    assert len(said.splitlines()) == 1 + 32 + 4


def test_show_takes_consts_sizes_params_and_heads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "p.attn"
    path.write_text("attention p\nconst c = 2\nparam n: int where n > 0\nmask = k < n * c and h == 1\n")
    argv = ("show", str(path), "--size", "Sq=32", "--head", "1", "-D", "c=1", "--param", "n=8")
    assert run(*argv) == 0
    assert "25.0% of the pairs" in capsys.readouterr().out
    assert run(*argv[:-1], "n=-1") == 2
    assert "`n` = -1 breaks" in capsys.readouterr().err
    assert run(*argv, "--size", "Hq=1") == 2
    assert "head 1 is out of range" in capsys.readouterr().err
    assert run(*argv, "--size", "S=1") == 2
    assert "has no size 'S'" in capsys.readouterr().err


def test_show_draws_data_from_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, data, wrong = tmp_path / "p.attn", tmp_path / "ids.npy", tmp_path / "wrong.npy"
    lines = ("param ids: int[B, Sk] where ids >= 0", "mask = ids[b, q] == ids[b, k]", "assume Sq == Sk")
    path.write_text("\n".join(("attention p", *lines, "")))
    np.save(data, np.repeat(np.arange(4, dtype=np.int32), 10)[None])
    argv = ("show", str(path), "--tile", "16,16")
    assert run(*argv) == 0
    assert "values of ids are invented: give yours with --data ids=FILE.npy" in capsys.readouterr().err
    assert run(*argv, "--data", f"ids={data}") == 0
    said = capsys.readouterr()
    assert "p: 40 queries" in said.out and "25.0% of the pairs" in said.out and "invented" not in said.err
    np.save(wrong, np.array([[0, -1]]))
    for given, message in {
        f"ids={wrong}": "`ids` at (0, 1) is -1, which breaks `0 <= ids`",
        f"ids={path}": "was not written by numpy.save",
        f"ids={tmp_path / 'none.npy'}": "no such file",
        f"id={data}": "p has no param `id`; it has `ids`",
        "ids": "names no data; write NAME=FILE.npy",
    }.items():
        assert run(*argv, "--data", given) == 2
        assert message in capsys.readouterr().err
    assert run(*argv, "--data", f"ids={data}", "--size", "Sk=41") == 2
    assert "--size Sk=41 contradicts the data, which say Sk = 40" in capsys.readouterr().err


def test_notes_are_told_once_whatever_the_number_of_specs(capsys: pytest.CaptureFixture[str]) -> None:
    specs = [str(EXAMPLES / f"{name}.attn") for name in ("causal", "dilated", "sigmoid")]
    assert run("check", *specs) == 0
    notes = [line for line in capsys.readouterr().out.splitlines() if line.startswith("note on ")]
    told = [line.partition(": ")[2] for line in notes]
    assert len(told) == len(set(told)) and any(line.startswith("note on causal, dilated: ") for line in notes)
    assert run("check", specs[0]) == 0
    assert {line.removeprefix("note: ") for line in capsys.readouterr().out.splitlines()} & {*told}


@pytest.mark.parametrize(("name", "start"), [("m.png", b"\x89PNG"), ("m.SVG", b"<?xml")])
def test_show_draws_files(name: str, start: bytes, spec: str, tmp_path: Path) -> None:
    assert run("show", spec, "-o", str(tmp_path / name)) == 0
    assert (tmp_path / name).read_bytes().startswith(start)


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.attn")), ids=lambda path: path.stem)
def test_every_example_is_shown(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("show", str(path)) == 0
    assert "of the work is skipped" in capsys.readouterr().out


# ---------------------------------------------------------------- terminals and pipes


def in_terminal(*argv: str, **env: str) -> tuple[str, int]:
    """What a command writes to a terminal of its own, and its status."""
    ours, theirs = pty.openpty()
    environment = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "FORCE_COLOR", "COLUMNS")}
    environment |= {"TERM": "xterm-256color", "COLORTERM": "truecolor", "PYTHONIOENCODING": "utf-8", **env}
    child = subprocess.Popen(
        [sys.executable, "-m", "attngen", *argv], stdin=theirs, stdout=theirs, stderr=theirs, env=environment
    )
    os.close(theirs)
    said = b""
    try:
        while part := os.read(ours, 65536):
            said += part
    except OSError:  # Linux's way to say that the other end is closed
        pass
    os.close(ours)
    return said.decode(), child.wait()


def test_show_is_coloured_on_a_terminal_only(spec: str) -> None:
    said, status = in_terminal("show", spec)
    assert status == 0 and "▀" in said and "\x1b[38;2;" in said
    said, status = in_terminal("show", spec, NO_COLOR="1")
    assert status == 0 and "\x1b[" not in said and "++++" in said


def test_mistakes_are_coloured_on_a_terminal_only(broken: str) -> None:
    said, status = in_terminal("compile", broken)
    assert status == 2 and "\x1b[1m" in said and "error[" in said
    said, _ = in_terminal("compile", broken, NO_COLOR="1")
    assert "\x1b[" not in said


def test_reader_that_leaves_is_no_mistake(spec: str) -> None:
    command = f'"{sys.executable}" -m attngen compile "{spec}" --emit source; echo "status $?" >&2'
    done = subprocess.run(["bash", "-c", f"({command}) | true"], capture_output=True, text=True)
    assert "Traceback" not in done.stderr and re.search(r"status (0|141)", done.stderr)


def test_source_is_utf_8_in_any_locale(tmp_path: Path) -> None:
    path = tmp_path / "a.attn"
    path.write_text("# é → ∑\nattention a\n", encoding="utf-8")
    env = {**os.environ, "PYTHONIOENCODING": "ascii", "LC_ALL": "C"}
    done = subprocess.run([sys.executable, "-m", "attngen", "fmt", str(path)], capture_output=True, env=env)
    assert done.returncode == 0 and "é → ∑" in done.stdout.decode()


@pytest.mark.parametrize(
    ("text", "sizes", "message"),
    [
        (
            "mask = causal",
            ("Sq=100000000", "Sk=100000000"),
            "Sq = 100000000 and Sk = 100000000 have .* tiles of 128 x 64, .*: --size Sq=1048576 Sk=1048576 works",
        ),
        ("param ids: int[B, Sk]\nmask = same_document(ids)", ("Sq=65536",), ".*: --size Sq=32768 Sk=32768 works"),
        (
            "param bias: bool[Hq, Sq, Sk]\nmask = bias[h, q, k]",
            ("Sq=16384", "Sk=16384"),
            r"param `bias` \(Hq, Sq, Sk\) would have 268,435,456 elements, .* at most 67,108,864",
        ),
    ],
)
def test_sizes_that_fit_no_picture_are_refused(
    text: str, sizes: tuple[str, ...], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "long.attn"
    path.write_text(f"attention long\n{text}\n")
    assert run("show", str(path), "--size", *sizes) == 2
    said = capsys.readouterr()
    assert said.out == "" and re.search(message, said.err)


def test_compile_says_what_it_wrote(spec: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = ", ".join(word.value for word in Obligation)
    for target in ("triton", "jax"):
        name = str(tmp_path / "kernel.py")
        assert run("compile", spec, "--target", target, "-o", name) == 0
        found = re.fullmatch(
            rf"wrote {name} in \d+\.\d s, (\d+) lines(?:, of which (\d+) are the runtime's)?; proved: {names}\n",
            capsys.readouterr().err,
        )
        lines = Path(name).read_text().split("\n")
        assert found is not None and int(found[1]) == len(lines) - 1 and (found[2] is None) == (target == "jax")
        if found[2] is not None:
            start = next(n for n, line in enumerate(lines) if line.startswith("# sha256 of what follows: "))
            end = next(n for n, line in enumerate(lines) if line == REGISTERED)
            assert abs(end - start - int(found[2])) <= 5  # titles
    assert run("compile", spec, "--emit", "plan", "-o", str(tmp_path / "plan.txt")) == 0
    assert capsys.readouterr().err == ""


def test_check_says_eight_lines_and_claims_when_asked(spec: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("check", spec) == 0
    table = [line.rstrip() for line in capsys.readouterr().out.split("\n") if re.match(r" [a-z-]+ +proved ", line)]
    assert len(table) == 8 and max(map(len, table)) <= 80, table
    assert run("check", "-v", spec) == 0
    said = capsys.readouterr().out
    proof = api.check(Source(SPEC, spec), {})
    assert all(f"  {c.subject}: {c.sentence} (" in said for s in proof.shown for c in s.claims)
    assert [line for line in table if line in said] == table


def test_check_warns_as_compile_does(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "idle.attn"
    path.write_text("attention idle\nparam rest: f32\nmask = causal\n")
    assert run("compile", str(path)) == 0
    warning = capsys.readouterr().err.strip()
    assert warning.startswith(f"{path}:2:1: warning[unused-param]: ")
    assert run("check", str(path)) == 0
    assert warning in capsys.readouterr().out.splitlines()


def test_a_note_on_alignment_changes_no_exit_status(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "near.attn"
    path.write_text("attention near\nmask = 0 <= q - k < 16\n")
    assert run("check", str(path)) == 0
    fix = "write distance, which is q + Sk - Sq - k, or `assume Sq == Sk`"
    note = f"{path}:2:13: note[unaligned]: `q - k`: with a cache the last query is at q = 0; {fix}"
    assert note in capsys.readouterr().out.splitlines()
    assert run("compile", str(path), "--strict") == 0
    assert "unaligned" not in capsys.readouterr().err
    for mended in ("mask = 0 <= distance < 16", "mask = 0 <= q - k < 16\nassume Sq == Sk"):
        path.write_text(f"attention near\n{mended}\n")
        assert run("check", str(path)) == 0
        assert "unaligned" not in capsys.readouterr().out
