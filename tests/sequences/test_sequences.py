"""Packed sequences, and sequences that are a part of a batch row, against the definition of each by itself."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

import attngen
from attngen.emit.torch_shared.leaves import unsummed
from attngen.errors import UsageError
from attngen.verify import sequences
from attngen.verify.comparison import Case

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SQUARE = ("documents", "rollouts", "window_global")
"""Examples whose sequences have as many queries as keys."""
ELSEWHERE = ("relative_bias", "t5_bias", "full_bias", "natten_2d")
"""Examples whose gradients are summed over pairs, or whose params have an element for each: see below."""
SIZES = (("Hq", 4), ("Hkv", 2), ("D", 16), ("Dv", 24))
SELF = ((5, 5), (0, 0), (37, 37), (1, 1), (70, 70), (16, 16))
"""(queries, keys) of each sequence."""
CROSS = ((5, 9), (0, 4), (37, 20), (3, 0), (70, 130), (1, 64), (40, 40))
ENDS = torch.tensor([0, 12]).int()

BIASED = """attention biased
param column: f32[B, Sk]
param row: f32[B, Hq, Sq]
param n: int[B]
score = qk * scale + column[b, k] * row[b, h, q]
mask = k < n[b] or k == q
"""
SINK = "attention s\nparam sink: f32[Hq]\nmask = causal\nnormalizer = softmax(sink = sink[h])\n"
STEPPED = "attention stepped\nparam when: f32[B, Sk]\nmask = when[b, k] <= when[b, q] and k <= q\nassume Sq == Sk\n"
SPECS = {p.stem: str(p) for p in sorted(EXAMPLES.glob("*.attn")) if p.stem not in ELSEWHERE}
SPECS |= {"biased": BIASED, "sink by head": SINK, "times": STEPPED}


def drawn(kernel: attngen.Kernel, lengths: sequences.Lengths) -> Case:
    return sequences.settled(kernel.spec, Case("drawn", "fp32", SIZES, lengths=lengths))


@pytest.mark.parametrize("geometry", ["packed", "lengths"])
@pytest.mark.parametrize("spec", SPECS)
def test_each_sequence_is_what_it_is_by_itself(spec: str, geometry: str) -> None:
    """out, lse and every gradient; rows beside a sequence hold NaN, and so do their cotangents."""
    kernel = attngen.compile(SPECS[spec])
    if kernel.plan.map is not None:  # tiles so small that a sequence has several
        kernel = attngen.compile(SPECS[spec], tile=(16, 16))
    for own in (SELF,) if spec in (*SQUARE, "times") else (SELF, CROSS):
        case = drawn(kernel, own)
        assert case.lengths == own
        found = list(sequences.compare(kernel, case, "cpu", geometry=geometry, check=True))
        assert all(c.passed for c in found), found
        assert len(found) == 5 + sum(p.learns for p in kernel.spec.params)


@pytest.mark.parametrize("spec", ["relative_bias", "t5_bias"])
def test_a_gradient_that_is_summed_over_pairs_is_refused(spec: str) -> None:
    kernel = attngen.compile(EXAMPLES / f"{spec}.attn")
    case = drawn(kernel, SELF)
    assert unsummed(kernel.plan) == ("table",)
    found = list(sequences.compare(kernel, case, "cpu", geometry="packed", check=True))
    assert [c.result for c in found] == ["out", "lse", "d q", "d k", "d v"] and all(c.passed for c in found), found
    call = sequences.packed(sequences.draw(kernel.spec, case), "cpu")
    call.params["table"].requires_grad_()
    with pytest.raises(UsageError, match=r"the gradient of table is summed over pairs .* declare it `fixed`"):
        kernel.varlen(**call.operands, **call.params, **call.bounds)


def test_a_param_for_each_pair_is_refused() -> None:
    kernel = attngen.compile(EXAMPLES / "full_bias.attn")
    x = torch.zeros(4, 2, 16)
    with pytest.raises(UsageError, match="an element for each pair of a query and a key"):
        kernel.varlen(x, x, x, cu_seqlens_q=torch.tensor([0, 4], dtype=torch.int32))


def _causal() -> tuple[attngen.Kernel, torch.Tensor, torch.Tensor]:
    return attngen.compile("attention c\nmask = causal\n"), torch.randn(12, 2, 16), torch.tensor([0, 5, 12]).int()


def test_keys_that_are_used() -> None:
    kernel, x, offsets = _causal()
    used = torch.tensor([3, 0]).int()
    out = kernel.varlen(x, x, x, cu_seqlens_q=offsets, seqused_k=used, check=True)
    y = x.transpose(0, 1)[None]
    torch.testing.assert_close(out[:5], kernel(y[:, :, :5], y[:, :, :3], y[:, :, :3])[0].transpose(0, 1))
    assert (out[5:] == 0).all()


def test_a_result_has_a_place() -> None:
    kernel, x, offsets = _causal()
    place = torch.full_like(x, 7.0)
    assert kernel.varlen(x, x, x, cu_seqlens_q=offsets, out=place) is place
    assert torch.equal(place, kernel.varlen(x, x, x, cu_seqlens_q=offsets))


def test_a_place_that_does_not_fit_is_refused() -> None:
    """`copy_` would repeat the result, or round it."""
    kernel, x, ends = _causal()
    for place, have in (
        (x.repeat(2, 1, 1, 1), rf"{re.escape(str((2, *x.shape)))}, torch.float32 on cpu"),
        (x.half(), rf"{re.escape(str(tuple(x.shape)))}, torch.float16 on cpu"),
        ([1.0], "list"),
    ):
        with pytest.raises(
            UsageError, match=rf"out must be a tensor \(\d+, \d+, \d+\), torch.float32 on cpu, not {have}"
        ):
            kernel.varlen(x, x, x, cu_seqlens_q=ends, out=place)


@pytest.mark.parametrize("offsets", [[0, 9, 4], [-5, 3, 12], [0, 5, 2**31 - 1], [7, 7, 7], [40, 50, 60]])
def test_wrong_offsets_read_and_write_nothing_outside(offsets: list[int]) -> None:
    """They cannot be seen without waiting for the device. `check` names the offset."""
    kernel, x, _ = _causal()
    given = torch.tensor(offsets).int()
    leaf = x.clone().requires_grad_()
    out = kernel.varlen(leaf, x, x, cu_seqlens_q=given)
    assert out.shape == x.shape and out.isfinite().all()
    out.sum().backward()
    with pytest.raises(UsageError, match=r"cu_seqlens_q\[\d\] is -?\d+, and must"):
        kernel.varlen(x, x, x, cu_seqlens_q=given, check=True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"cu_seqlens_q": torch.tensor([0, 5, 12])}, "cu_seqlens_q must be an int32 tensor"),
        ({"cu_seqlens_q": torch.tensor([0]).int()}, "cu_seqlens_q must be an int32 tensor"),
        ({"cu_seqlens_q": ENDS, "cu_seqlens_k": torch.tensor([0, 5, 12]).int()}, "cu_seqlens_k must have"),
        ({"cu_seqlens_q": ENDS, "block_table": torch.zeros(1, 1).int()}, "block_table"),
        ({}, "cu_seqlens_q"),
    ],
)  # fmt: skip
def test_messages(arguments: dict[str, torch.Tensor], message: str) -> None:
    kernel, x, _ = _causal()
    with pytest.raises(UsageError, match=message):
        kernel.varlen(x, x, x, **arguments)


def test_a_param_with_the_name_of_an_argument_is_refused_by_that_geometry_alone() -> None:
    kernel = attngen.compile("attention c\nparam seqused_k: int\nmask = k < seqused_k\n")
    x = torch.randn(1, 2, 12, 16)
    stop = torch.tensor([7]).int()
    out = kernel(x, x, x, seqused_k=9, k_stop=stop)
    torch.testing.assert_close(out, kernel(x, x, x, seqused_k=7))
    with pytest.raises(UsageError, match="`seqused_k` has the name of an argument of the geometry packed"):
        kernel.varlen(x[0], x[0], x[0], seqused_k=9, cu_seqlens_q=torch.tensor([0, 2]).int())
    checked = attngen.compile("attention c\nparam check: int\nmask = k < check\n")
    assert checked(x, x, x, check=9).shape == x.shape
    with pytest.raises(UsageError, match="`check` has the name of an argument of the geometry lengths"):
        checked(x, x, x, check=9, k_stop=stop)


def test_one_file_with_every_geometry() -> None:
    kernel = attngen.compile("attention c\nmask = causal\n", geometry=("packed", "lengths"))
    assert '__all__ = ["c", "c_varlen", "c_lengths"]' in kernel.source
    x, offsets = torch.randn(12, 2, 16), torch.tensor([0, 5, 12]).int()
    assert kernel.varlen(x, x, x, cu_seqlens_q=offsets).shape == x.shape
    with pytest.raises(UsageError, match="no geometry 'pagedd'; there are dense, lengths, packed"):
        attngen.compile("attention c\nmask = causal\n", geometry=("pagedd",))


def test_under_the_compiler() -> None:
    kernel, x, offsets = _causal()
    x.requires_grad_()
    kernel.varlen(x, x, x, cu_seqlens_q=offsets)
    found = torch.compile(lambda y: kernel.varlen(y, y, y, cu_seqlens_q=offsets), fullgraph=True, backend="aot_eager")(
        x
    )
    (compiled,) = torch.autograd.grad(found.square().sum(), x)
    (plain,) = torch.autograd.grad(kernel.varlen(x, x, x, cu_seqlens_q=offsets).square().sum(), x)
    torch.testing.assert_close(compiled, plain)


def test_needs_hold_for_each_sequence() -> None:
    """Where the sizes break what a read needs, that read is 0; `check` says so."""
    kernel = attngen.compile("attention needy\nparam seq: int[B, Sk]\nmask = seq[b, q] >= k\n")
    x = torch.randn(6, 2, 16)
    seq, q_at, k_at = torch.arange(6).int(), torch.tensor([0, 4, 6]).int(), torch.tensor([0, 2, 6]).int()
    assert kernel.varlen(x, x, x, seq=seq, cu_seqlens_q=q_at, cu_seqlens_k=k_at).isfinite().all()
    with pytest.raises(UsageError, match="needs Sq <= Sk"):
        kernel.varlen(x, x, x, seq=seq, cu_seqlens_q=q_at, cu_seqlens_k=k_at, check=True)


TOLD = """attention told
param seq: int[B, Sk] where 0 <= seq and seq < Sk
param w: int where w <= Sk
param n: int[B] where n <= Sk
mask = seq[b, k] <= q and k < n[b] + w
assume Sq <= Sk
assume seq[b, 0] <= n[b]
"""


_SAID = {"seq": ((0, 1, 2, 3, 4), (0, 1, 2)), "n": (5, 3), "w": 2, "keys": (5, 3)}
"""What is right: two sequences, of 4 and 3 queries."""


@pytest.mark.parametrize("geometry", ["packed", "lengths"])
@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ({}, None),
        (
            {"seq": ((0, 1, 2, 3, 4), (0, 1, 3))},
            r"sequence 1: seq\[1, 2\] is 3, and must satisfy 0 <= seq and seq < Sk",
        ),
        ({"n": (5, 4)}, r"sequence 1: n\[1\] is 4, and must satisfy n <= Sk"),
        ({"n": (5, -1)}, r"sequence 1: the specification assumes seq\[b, 0\] <= n\[b\]; not so at b = 1"),
        ({"w": 4}, r"sequence 1: w must satisfy w <= Sk, not 4"),
        ({"keys": (3, 3), "n": (3, 3)}, r"sequence 0: the specification assumes Sq <= Sk; here Sk = 3, Sq = 4"),
    ],
)
def test_facts_hold_for_each_sequence(broken: dict[str, Any], message: str | None, geometry: str) -> None:
    """Each breaks a fact of one sequence, and none of the tensors' own sizes. Rows of no sequence break them all."""
    kernel, said = attngen.compile(TOLD), _SAID | broken
    rows = [torch.tensor(own).int() for own in said["seq"]]
    given: dict[str, Any] = {"n": torch.tensor(said["n"]).int(), "w": said["w"], "check": True}
    if geometry == "packed":
        shape: tuple[int, ...] = (4, 16)
        given |= {"seq": torch.cat([*rows, torch.tensor([-9]).int()]), "seqused_k": torch.tensor(said["keys"]).int()}
        given |= {"cu_seqlens_q": torch.tensor([0, 4, 7]).int(), "cu_seqlens_k": torch.tensor([0, 5, 8]).int()}
        q, k = torch.randn(7, *shape), torch.randn(9, *shape)
    else:
        start = torch.tensor([1, 0]).int()
        seq = torch.full((2, 7), -9).int()
        for b, own in enumerate(rows):
            seq[b, start[b] : start[b] + len(own)] = own
        given |= {"seq": seq, "q_stop": torch.tensor([4, 3]).int(), "k_start": start}
        given["k_stop"] = start + torch.tensor(said["keys"]).int()
        q, k = torch.randn(2, 4, 5, 16), torch.randn(2, 4, 7, 16)
    function = kernel.varlen if geometry == "packed" else kernel
    if message is None:
        assert function(q, k, k, **given).isfinite().all()
    else:
        with pytest.raises(UsageError, match=message):
            function(q, k, k, **given)


def test_what_one_call_has_passed_is_checked_again_in_another() -> None:
    """Layouts and numbers that passed are remembered: others are not taken for them."""
    kernel = attngen.compile(
        "attention a\nparam n: int where n >= 1\nparam bias: f32[B, Sk]\n"
        "score = qk * scale + bias[b, k]\nmask = 0 <= q - k < n\n",
        tile=(16, 16),
    )
    x = torch.randn(12, 2, 16)
    right: dict[str, Any] = {"cu_seqlens_q": torch.tensor([0, 5, 12]).int(), "n": 3, "bias": torch.zeros(12)}
    first = kernel.varlen(x, x, x, **right)
    for wrong in ({"n": 0}, {"n": 2.5}, {"bias": torch.zeros(11)}, {"bias": torch.zeros(12).int()}):
        with pytest.raises(UsageError, match=next(iter(wrong))):
            kernel.varlen(x, x, x, **right | wrong)
    with pytest.raises(UsageError, match="q must be float16"):
        kernel.varlen(x.double(), x, x, **right)
    assert torch.equal(kernel.varlen(x, x, x, **right), first)
    assert not torch.equal(kernel.varlen(x, x, x, **right | {"n": 1}), first)
