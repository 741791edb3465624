"""What kernels of 8-bit floats refuse: each in one message that names the way out."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from hopper_model.cases import EXAMPLES

import attngen
from attngen import api
from attngen.cli.main import main
from attngen.emit import TunedGpu
from attngen.errors import Source
from attngen.plan.footprint import loads_of
from attngen.plan.split import shares
from attngen.plan.tiles.portable import Tile, fitted, shared_bytes, table
from attngen.verify import comparison
from attngen.verify.comparison import Case

CAUSAL = "attention a\nmask = causal\n"
NAMES = [n for n in sorted(path.stem for path in EXAMPLES.glob("*.attn")) if n != "dropout"]
HEAD_BLOCKS = (32, 64, 128, 256)
KIB = {"sm_90": 227, "sm_100": 227, "cpu": 1 << 20}


@pytest.mark.parametrize("own", [None, (64, 32), (256, 256)])
@pytest.mark.parametrize("name", NAMES)
def test_tiles_have_the_keys_that_a_product_of_8_bits_sums_over(name: str, own: tuple[int, int] | None) -> None:
    source = Source((EXAMPLES / f"{name}.attn").read_text(), name)
    plan = api.checked_plan(source, tile=own, dtype="fp8")[1]
    loads = loads_of(plan)
    for row in table(plan.attention.tile, plan.burden, loads, plan.numerics):
        assert row.chip == "cpu" or (row.itemsize == 1 and row.forward.keys >= 32), row
        if row.head_block in HEAD_BLOCKS:
            bytes_ = shared_bytes("forward", row.forward, row.chip, row.itemsize, row.head_block, loads)
            assert bytes_ <= KIB[row.chip] * 1024, row
    for share in shares(plan.attention.tile, plan.burden, loads.chosen, plan.numerics).values():
        assert min(share.keys, share.area // max(HEAD_BLOCKS)) >= 32


def test_keys_are_kept_where_room_is_short() -> None:
    """Rows of queries go first; of 16 bits 16 keys are left."""
    for itemsize, least in ((1, 32), (2, 16)):
        tile = fitted("forward", Tile(512, 512, 4, 1), "gfx942", itemsize, 256)
        assert tile.keys >= least


def test_a_tile_of_fewer_keys_is_refused() -> None:
    with pytest.raises(attngen.UsageError, match=r"at least 32 keys, not 16: write `tile=64,32`, or leave out"):
        attngen.compile(CAUSAL, dtype="fp8", tile=(64, 16))
    with pytest.raises(attngen.SpecError, match=re.escape("at least 32 keys, not 16")) as found:
        attngen.compile(CAUSAL + "tile q = 64, k = 16\n", dtype="fp8")
    assert "<string>:3:1: error[tile]" in str(found.value) and "write k = 32" in str(found.value)
    assert attngen.compile(CAUSAL + "tile q = 64, k = 16\n").spec.tile == (64, 16)


def test_the_signature_names_the_dtype_of_results() -> None:
    kernel: Any = attngen.compile(CAUSAL, dtype="fp8")
    shown = inspect.signature(kernel)
    assert repr(shown.parameters["out_dtype"].default) == "torch.bfloat16"
    assert "q_descale" in str(shown) and "out_dtype" in kernel._repr_html_()


def test_a_param_with_the_name_of_an_argument_is_refused() -> None:
    text = "attention a\nparam out_dtype: f32\nscore = qk * scale + out_dtype\n"
    with pytest.raises(attngen.SpecError, match="`out_dtype` is an argument of kernels of 8-bit floats") as found:
        attngen.compile(text, dtype="fp8")
    assert "<string>:2:" in str(found.value) and "give it another name" in str(found.value)
    assert attngen.compile(text).spec.params[0].name == "out_dtype"


def test_pieces_are_refused_by_name(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    kernel = attngen.compile(CAUSAL, dtype="fp8")
    q = torch.zeros(1, 2, 40, 32).to(torch.float8_e4m3fn)
    out, lse = torch.zeros(1, 2, 40, 32), torch.zeros(1, 2, 40)
    place = {"q_offset": 0, "k_offset": 0, "Sq": 40, "Sk": 40}
    for called in (
        kernel.piece,
        kernel.pieces,
        lambda: kernel.partial(q, q, q, **place),
        lambda: kernel.partial_backward(q, q, q, out, out, lse, **place),
        lambda: kernel.merge([(out, lse)]),
        lambda: kernel.finish(out, lse),
        lambda: kernel.finish_backward(out, out, lse),
    ):
        with pytest.raises(attngen.UsageError, match="taken by dense calls alone, not by pieces: compile without"):
            called()
    with pytest.raises(attngen.UsageError, match="not by packed"):
        kernel.varlen(q, q, q)
    spec = tmp_path / "c.attn"
    spec.write_text(CAUSAL)
    assert main(["verify", str(spec), "--dtype", "fp8", "--geometry", "pieces", "--device", "cpu"]) == 2
    assert "kernels of 8-bit floats take dense tensors alone: leave out `--geometry`" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--arch", "sm_80"], "not sm_80: write `--arch sm_90` or `--arch sm_100`, or leave out `--dtype fp8`"),
        (["--arch", "gfx942"], "not gfx942: write"),
        (["--arch", "sm_86", "--emit", "ptx"], "not sm_86: write"),
        (["--head-dim", "24"], "from 32 on, not 24 and 24: choose another `--head-dim`, or leave out"),
        (["--head-dim", "64/16"], "from 32 on, not 64 and 16"),
        (["--head-dim", "24", "--emit", "ptx"], "from 32 on, not 24 and 24"),
    ],
)
def test_chips_and_head_dims_without_8_bits_are_refused(
    given: list[str], said: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    spec, file = tmp_path / "c.attn", tmp_path / "c.out"
    spec.write_text(CAUSAL)
    assert main(["compile", str(spec), "--dtype", "fp8", *given, "-o", str(file)]) == 2
    assert said in capsys.readouterr().err and not file.exists()
    with pytest.raises(attngen.UsageError, match="not sm_80"):
        attngen.compile(CAUSAL, dtype="fp8", arch="sm_80")


@pytest.mark.parametrize("chosen", [{"arch": "sm_100"}, {"arch": "portable"}, {"head_dim": (192, 128)}])
def test_those_that_have_8_bits_are_taken(chosen: dict[str, Any]) -> None:
    assert api.options(dtype="fp8", **chosen).dtype == "fp8"
    assert api.options(arch="sm_80", head_dim=24, dtype="bf16").arch == "sm_80"


@pytest.mark.parametrize(
    ("weight", "known", "bound"),
    [
        ("min(s * 0.01, 1.0)", "at least -1", "max(…, -1.0)"),
        ("max(s, 0.0)", "at most 1", "min(…, 1.0)"),
        ("s * 0.01", "from -1 to 1", "max(min(…, 1.0), -1.0)"),
    ],
)
def test_weights_that_8_bits_might_not_hold_are_refused(weight: str, known: str, bound: str) -> None:
    def normalized(by: str) -> str:
        lines = ("attention a", "normalizer n {", f"weight(s) = {by}", "denominator = 1", "shift = none", "}")
        return "\n".join((*lines, "normalizer = n", ""))

    said = f"the weights of normalizer `n` are not known to be {known}"
    with pytest.raises(attngen.SpecError, match=re.escape(said)) as found:
        attngen.compile(normalized(weight), dtype="fp8")
    assert f"bound them, as in {bound}, or compute in bf16" in str(found.value)
    attngen.compile(normalized(bound.replace("…", weight)), dtype="fp8")


def test_verify_quotes_the_line_that_it_refuses(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    spec = tmp_path / "dr.attn"
    spec.write_text("attention a\ndropout = 0.1\n")
    assert main(["verify", str(spec), "--dtype", "fp8", "--device", "cpu"]) == 2
    shown = capsys.readouterr().err
    assert "dr.attn:2:11: error[narrow-weights]" in shown and "2 | dropout = 0.1" in shown


@pytest.mark.parametrize("length", [40, 400])
def test_verify_takes_tiles_that_8_bits_have(length: int) -> None:
    case = Case("", "fp8", (("Sq", length), ("Sk", length)))
    comparison.compiled(Source(CAUSAL), api.options(dtype="fp8"), {}, "cpu")(case)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"tile": (64, 16)}, "at least 32 keys, not 16: write `tile=64,32`, or give it tensors of 16 bits"),
        ({"arch": "sm_80"}, "not sm_80: write `arch=sm_90` or `arch=sm_100`, or give it tensors of 16 bits"),
        ({"head_dim": 24}, "from 32 on, not 24 and 24: choose another `head_dim=`, or give it tensors of 16 bits"),
    ],
)
def test_a_kernel_of_16_bits_that_cannot_take_8(options: dict[str, Any], said: str) -> None:
    given = [attngen.quantize(torch.randn(1, heads, 40, 32), heads=2) for heads in (4, 2, 2)]
    with pytest.raises(attngen.UsageError, match=re.escape(said)):
        attngen.compile(CAUSAL, **options)(*given)


def test_a_tile_in_the_file_is_quoted_at_the_first_call_with_8_bits() -> None:
    given = [attngen.quantize(torch.randn(1, heads, 40, 32), heads=2) for heads in (4, 2, 2)]
    with pytest.raises(attngen.SpecError, match="at least 32 keys, not 16") as found:
        attngen.compile(CAUSAL + "tile q = 64, k = 16\n")(*given)
    assert "3 | tile q = 64, k = 16" in str(found.value)
    assert attngen.compile(CAUSAL + "tile q = 64, k = 32\n")(*given).shape == (1, 4, 40, 32)


def test_tiles_that_were_tuned_for_more_bits_are_refused() -> None:
    tuned = (TunedGpu(chip="sm_90", itemsize=2, head_block=64),)
    with pytest.raises(attngen.UsageError, match="tuned for elements of 16 or 32 bits: leave out `tiles=`, or"):
        api.options(dtype="fp8", tuned=tuned)
