"""Every example: read, formatted, analysed; its reference equal to a formula written by hand, in float64."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from parity import variants
from parity.compare import Numbers, cotangents, disagreements, numbers
from parity.extras import EXTRAS
from parity.variants import EXAMPLE_VARIANTS, EXAMPLES, SMALL, Case, Variant

from attngen import reference
from attngen.analyse import analyse
from attngen.errors import Source
from attngen.ir.attention import Attention
from attngen.syntax.formatter import format_text
from attngen.syntax.parser import parse

EVERY = EXAMPLE_VARIANTS + EXTRAS
FILES = sorted(EXAMPLES.glob("*.attn"))


def spec(variant: Variant) -> Attention:
    source = Source(variant.text, f"{variant.name}.attn")
    return analyse(parse(source), source, variant.consts)


def three_cases(index: int) -> list[Case]:
    """Three shapes, others for each variant, so that all together meet all."""
    return [SMALL[(index * 5 + step * 4) % len(SMALL)] for step in range(3)]


def test_every_example_file_has_a_formula() -> None:
    assert [path.stem for path in FILES] == sorted(v.name for v in EXAMPLE_VARIANTS)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_example_is_formatted_and_documented(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    once = format_text(Source(text, path.name))
    assert once == text, "run `attngen fmt` on it"
    assert format_text(Source(once, path.name)) == once
    head = text[: text.index("\nattention ")]
    assert re.search(r"https://|Nature", head), "the comment on top names the paper"
    assert re.search(r"^#   ", head, re.MULTILINE), "the comment on top has the formula"
    assert parse(Source(text)).statements[0].name == path.stem  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("variant", "case"),
    [(v, c) for i, v in enumerate(EVERY) for c in three_cases(i)],
    ids=lambda x: x.name,
)
def test_reference_is_the_formula(variant: Variant, case: Case) -> None:
    case = variant.suited(case)
    given = variants.in_float64(variants.inputs(variant, case, torch.float64, "cpu"))
    leaves = {"q": given.q, "k": given.k, "v": given.v, **{n: given.params[n] for n in given.floats()}}
    out, lse = variants.by_formula(variant, given, variant.consts)
    want = numbers(out, lse, leaves, with_lse=True)  # type: ignore[arg-type]

    attention = spec(variant)
    arrays = [x.detach().numpy() for x in (given.q, given.k, given.v)]
    params = {n: p.detach().numpy() if isinstance(p, torch.Tensor) else p for n, p in given.params.items()}
    options = {"params": params, "scale": given.scale, "dropout_seed": given.dropout_seed}
    result = reference.evaluate(attention, *arrays, **options)
    d_out, d_lse = cotangents(out, lse, with_lse=True)
    gradients = reference.gradients(attention, *arrays, d_out.numpy(), d_lse.numpy(), **options)
    found = {"out": result.out, "lse": result.lse, "d_q": gradients.q, "d_k": gradients.k, "d_v": gradients.v}
    found |= {f"d_{n}": gradients.params[n] for n in given.floats()}
    got = Numbers({n: torch.from_numpy(np.array(x)) for n, x in found.items()})
    off = disagreements(got, want, tolerance=1e-9, floor=1e-3, coarse=frozenset())
    assert not off, "; ".join(off)


# ---------------------------------------------------------------- the scripts


def script(name: str, *arguments: str) -> str:
    """Runs `examples/NAME` as a user would, and gives what it prints."""
    environment = {**os.environ, "PYTHONPATH": str(EXAMPLES.parent)}
    command = [sys.executable, str(EXAMPLES / name), *arguments]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def test_quickstart() -> None:
    printed = script("quickstart.py")
    assert "near_alibi" in printed and "dslope" in printed


def test_train_gpt(tmp_path: Path) -> None:
    plot = tmp_path / "losses.png"
    printed = script("train_gpt.py", "--steps", "3", "--size", "small", "-o", str(plot))
    assert "the losses fell from" in printed
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_finetune_transformers() -> None:
    assert "slopes of layer 1" in script("finetune_transformers.py", "--steps", "2")


@pytest.mark.parametrize("options", [("--steps", "3"), ("--steps", "1", "--processes", "4", "--batches", "2")])
def test_long_context(options: tuple[str, ...]) -> None:
    printed = script("long_context.py", *options)
    assert "75 rows on 2 processes" in printed and "losses differ from those of one process by" in printed


def test_train_packed() -> None:
    """Two processes, whose weights FSDP2 shards."""
    assert "2 processes; losses of packed documents" in script("train_packed.py", "--steps", "1")


def test_train_rollouts() -> None:
    """Two groups of three rollouts, whose gradients are those of the unpacked batch."""
    printed = script("train_rollouts.py", "--steps", "1", "--rollouts", "2", "--length", "5")
    assert "128 tokens packed, 226 unpacked; the same loss and gradients" in printed


WRONG_BRANCHES = """
import train_rollouts
train_rollouts.branches = lambda attention, call: {"first": call["first"] * 0, "last": call["last"]}
train_rollouts.main(["--steps", "1", "--rollouts", "2", "--length", "5"])
"""


def test_train_rollouts_notices_rollouts_that_see_each_other() -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(EXAMPLES), str(EXAMPLES.parent)))}
    done = subprocess.run([sys.executable, "-c", WRONG_BRANCHES], env=environment, capture_output=True, text=True)
    assert done.returncode == 1 and "differs from that of the unpacked batch by" in done.stderr, done.stderr


@pytest.mark.gpu
@pytest.mark.parametrize("options", [[], ["--bf16"]], ids=["fp32", "bf16"])
def test_train_gpt_at_its_real_size(tmp_path: Path, options: list[str]) -> None:
    printed = script("train_gpt.py", "--device", "cuda", "--size", "real", "--steps", "20", *options)
    assert "the losses fell from" in printed


WRONG_KERNEL = """
import train_gpt
train_gpt.generated = lambda: lambda q, k, v, slope: train_gpt.dense(q, k, v, 2 * slope)
train_gpt.main(["--steps", "12", "--device", "cpu", "--size", "small"])
"""


def test_train_gpt_notices_a_wrong_kernel() -> None:
    """The comparison itself can fail: with another formula in the kernel's place it does."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(EXAMPLES), str(EXAMPLES.parent)))}
    # In a process of its own: torch's optimisers import Triton, and so settle whether it interprets.
    command = [sys.executable, "-c", WRONG_KERNEL]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 1 and "the loss curves part by" in result.stderr
