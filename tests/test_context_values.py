"""What context parallelism is told of a mask's data: dims of size 1, other dtypes, tensors that change, packed rows."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from processes import in_processes
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

import attngen
from attngen.distributed import Layout, context_parallel
from attngen.errors import UsageError
from attngen.runtime.loader import load

ROWS, CU = 40, (0, 10, 25, 40)
BY_HEAD = "attention h\nparam w: int[Hq]\nmask = k < 4 + h * w[h]\n"
BY_BATCH = "attention b\nparam n: int[B]\nmask = k < 4 + b * n[b]\n"
KEPT = "attention keep\nparam keep: bool[B, Sk]\nmask = k <= q and keep[b, k]\n"
LEVEL = (
    "attention level\nparam f: f32[B, Sk]\nmask = k <= q and (f[b, k] > 0.2 or k == 0)\nscore = qk * scale * f[b, k]\n"
)
IDS = "attention ids\nparam ids: int[B, Sk]\nmask = k <= q and ids[b, k] == ids[b, q]\nassume Sq == Sk\n"
LENGTHS = "attention lengths\nparam n: int[B]\nmask = k < n[b] and k <= q\n"
LEARNED = "attention learned\nparam s: f32[Hq]\nparam t: f32[B, Hq, Sq]\nscore = qk * scale * s[h] + t[b, h, q]\n"


@cache
def compiled(text: str) -> Any:
    return attngen.compile(text, tile=(16, 16))


def whole(packed: bool = False) -> list[Tensor]:
    g = torch.Generator().manual_seed(1)
    shapes = [(ROWS, heads, 16) if packed else (2, heads, ROWS, 16) for heads in (4, 2, 2)]
    return [torch.randn(*shape, generator=g) for shape in shapes]


def on_two_ranks(text: str, folder: Path, work: Callable[..., None], *arguments: Any) -> None:
    compiled(text)
    in_processes(folder, 2, work, text, *arguments)


def same(text: str, given: dict[str, Tensor], exchange: Any = "ring") -> None:
    """Of a call that says all at once, and of one that says it before."""
    kernel, full = compiled(text), whole()
    right = kernel(*full, **given)
    attend = context_parallel(kernel, exchange=exchange)
    for here, said in ((attend.over(ROWS, **given), {}), (attend.over(ROWS), given)):
        local = [here.shard(x, 2) for x in full]
        torch.testing.assert_close(here.unshard(here(*local, **said), 2), right, rtol=2e-5, atol=2e-5)
    local = [attend.over(ROWS, **given).shard(x, 2) for x in full]
    out = attend(*local, Sq=ROWS, **given)
    torch.testing.assert_close(attend.over(ROWS, **given).unshard(out, 2), right, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize(
    ("text", "given"),
    [
        (BY_HEAD, {"w": torch.tensor([8], dtype=torch.int32)}),
        (BY_BATCH, {"n": torch.tensor([9], dtype=torch.int32)}),
        (LENGTHS, {"n": torch.tensor([9])}),
        (LEVEL, {"f": (torch.arange(ROWS)[None] % 7 / 8).bfloat16()}),
    ],
)
def test_dims_of_size_one_and_other_dtypes(text: str, given: dict[str, Tensor], tmp_path: Path) -> None:
    on_two_ranks(text, tmp_path, same, given)


def heads_that_learn(text: str) -> None:
    """Dims of heads of size 1, where heads are exchanged."""
    kernel, full = compiled(text), [x.requires_grad_() for x in whole()]
    given = {"s": torch.full((1,), 0.4).requires_grad_(), "t": torch.rand(2, 1, ROWS).requires_grad_()}
    right = torch.autograd.grad(kernel(*full, **given).sin().sum(), [*full, *given.values()])
    here = context_parallel(kernel, exchange="heads").over(ROWS)
    local = [here.shard(x.detach(), 2).requires_grad_() for x in full]
    found = torch.autograd.grad(here(*local, **given).sin().sum(), [*local, *given.values()])
    for i, (a, b) in enumerate(zip(found, right, strict=True)):
        torch.testing.assert_close(a, here.shard(b, 2) if i < 3 else b, rtol=2e-5, atol=2e-5)


def test_heads_of_size_one_where_heads_are_exchanged(tmp_path: Path) -> None:
    torch.manual_seed(0)
    on_two_ranks(LEARNED, tmp_path, heads_that_learn)


def changed_buffers(text: str) -> None:
    """A data loader writes its next batch where the last one was."""
    kernel, full = compiled(text), whole()
    batches = [(torch.arange(ROWS) // n).int().expand(2, -1).contiguous() for n in (7, 20)]
    attend, buffer = context_parallel(kernel), torch.empty_like(batches[0])
    for step, at in enumerate((0, 1, 0)):
        given = batches[at] if step == 2 else buffer.copy_(batches[at])  # at last, what is kept of the first
        here = attend.over(ROWS, ids=given)
        out = here.unshard(here(*(here.shard(x, 2) for x in full)), 2)
        torch.testing.assert_close(out, kernel(*full, ids=batches[at]), rtol=2e-5, atol=2e-5)


def test_tensors_that_change_after_the_call(tmp_path: Path) -> None:
    on_two_ranks(IDS, tmp_path, changed_buffers)


def packed_rows(text: str, given: dict[str, Tensor]) -> None:
    kernel, full = compiled(text), whole(packed=True)
    right = kernel.varlen(*full, cu_seqlens_q=torch.tensor(CU, dtype=torch.int32), max_seqlen_q=15, **given)
    attend = context_parallel(kernel)
    here = attend.over(cu_seqlens=CU, **given)
    local = [here.shard(x, 0) for x in full]
    for out in (here(*local), attend(*local, cu_seqlens=CU, **given)):
        torch.testing.assert_close(here.unshard(out, 0), right, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize(
    ("text", "given"),
    [
        (IDS, {"ids": (torch.arange(ROWS) // 7).int()}),
        (KEPT, {"keep": torch.arange(ROWS) % 3 > 0}),
        (LENGTHS, {"n": torch.tensor([6, 3, 9])}),
    ],
)
def test_packed_rows_are_told_before(text: str, given: dict[str, Tensor], tmp_path: Path) -> None:
    on_two_ranks(text, tmp_path, packed_rows, given)


def refusals(text: str) -> None:
    attend = context_parallel(compiled(text))
    name, wanted, others = ("n", 3, [(1,), (2,)]) if text == LENGTHS else ("ids", ROWS, [(1, ROWS), (1,)])
    for shape in others:
        x = torch.ones(shape, dtype=torch.int32)
        message = rf"{name} must have shape \({wanted}\), not .*expand them before"
        with pytest.raises(UsageError, match=message):
            attend.over(cu_seqlens=CU, **{name: x})
        here = attend.over(cu_seqlens=CU)
        with pytest.raises(UsageError, match=message):
            here(*(here.shard(y, 0) for y in whole(packed=True)), **{name: x})


@pytest.mark.parametrize("text", [LENGTHS, IDS])
def test_sizes_of_one_are_refused_where_sequences_are_packed(text: str, tmp_path: Path) -> None:
    on_two_ranks(text, tmp_path, refusals)


def learns(text: str) -> None:
    kernel, full = compiled(text), whole()
    f = (torch.arange(2 * ROWS).reshape(2, -1) % 5 / 5).requires_grad_()
    attend = context_parallel(kernel)
    with pytest.raises(UsageError, match=r"give over\(…\) its values, f\.detach\(\), and itself to the call"):
        attend.over(ROWS, f=f)
    local = [attend.over(ROWS, f=f.detach()).shard(x, 2) for x in full]
    (g,) = torch.autograd.grad(attend(*local, Sq=ROWS, f=f).sum(), f)
    (right,) = torch.autograd.grad(kernel(*full, f=f).sum(), f)
    torch.testing.assert_close(g, right, rtol=2e-5, atol=2e-5)


def test_a_param_that_learns_and_masks(tmp_path: Path) -> None:
    on_two_ranks(LEVEL, tmp_path, learns)


def refused_by_all(text: str) -> None:
    """Also by a rank that has no row: it would wait for the others' sums."""
    here = context_parallel(compiled(text), layout=Layout((((0, ROWS),), ()))).over(cu_seqlens=CU)
    a = torch.ones(2, requires_grad=True)
    with pytest.raises(UsageError, match=r"the gradient of a is summed over pairs .*: pass a\.detach\(\)"):
        here(*(here.shard(x, 0) for x in whole(packed=True)), a=a)


def test_a_gradient_that_packed_tensors_lack_is_refused_by_every_rank(tmp_path: Path) -> None:
    on_two_ranks("attention g\nparam a: f32[Hkv]\nscore = qk * scale * a[hkv]\n", tmp_path, refused_by_all)


@pytest.mark.parametrize("of_file", [False, True])
def test_one_element_for_all_says_nothing_of_their_number(of_file: bool) -> None:
    def functions(text: str) -> tuple[Any, Any]:
        kernel = attngen.compile(text, tile=(16, 16), arch="portable", geometry=("dense", "pieces"))
        names = vars(load(kernel.source, kernel.name))
        own = names[f"{kernel.name}_visits"], names[f"{kernel.name}_work"]
        return own if of_file else (kernel.visits, kernel.work)

    one = torch.tensor([8], dtype=torch.int32)
    visits, work = functions(BY_HEAD)
    assert visits((0, 8), (10, 20), ROWS, ROWS, w=one) == "some"
    assert visits((0, 8), (10, 20), ROWS, ROWS, w=one.repeat(4)) == "some"
    assert work((0, 8), (0, ROWS), ROWS, ROWS, w=one) == 8 * ROWS
    assert work((0, 8), (0, ROWS), ROWS, ROWS, w=one.repeat(4)) == 224
    visits, work = functions(LENGTHS)
    assert visits((0, 8), (10, 20), ROWS, ROWS, n=one) == "none"
    assert work((0, 8), (0, 4), ROWS, ROWS, n=one) == 8 * 4 - 6
    visits, work = functions("attention t\nparam t: f32[64]\nmask = t[h % 64] > 0.0\n")
    assert visits((0, 8), (0, 8), ROWS, ROWS, t=torch.arange(64.0)) == "some"  # nobody says how many heads there are
    assert work((0, 8), (0, 8), ROWS, ROWS, t=torch.arange(64.0)) == 8 * 8


@pytest.mark.parametrize(
    ("text", "given"),
    [
        (KEPT, {"keep": np.arange(9000)[None] % 2 > 0}),
        ("attention t\nparam t: int[Sk]\nmask = t[k] == 2 and k <= q\n", {"t": np.arange(9000) % 3}),
        (
            "attention c\nparam t: f32[B, Sk]\nparam c: f32\nmask = t[b, k] <= c\n",
            {"t": np.arange(9000)[None] % 3.0, "c": 0.5},
        ),
    ],
)
def test_data_beside_a_number_where_sequences_are_long(text: str, given: dict[str, Any]) -> None:
    kernel = attngen.compile(text)
    assert kernel.visits((0, 9000), (0, 9000), 9000, 9000, **given) == "some"
    work = kernel.work((0, 9000), (0, 9000), 9000, 9000, **given)
    assert 9000 * 9000 // 8 < work <= 9000 * 9000


def test_a_param_of_half_precision_has_its_gradient_in_float32() -> None:
    kernel = attngen.compile("attention s\nparam s: f32[Hq]\nnormalizer = softmax(sink = s[h])\n", tile=(16, 16))
    q, k, v = whole()
    exact = torch.tensor([1.015625, 0.3398, -0.7, 0.1]).bfloat16()
    out, lse = kernel.finish(*kernel.partial(q, k, v, q_offset=0, k_offset=0, Sq=ROWS, Sk=ROWS, s=exact), s=exact)
    found = [kernel.finish_backward(out.cos(), out, lse, s=s.requires_grad_())["s"] for s in (exact, exact.float())]
    assert found[0].dtype == torch.float32
    torch.testing.assert_close(*found, rtol=0, atol=0)


BOTH = (
    "attention both\nparam ids: int[B, Sk]\nparam n: int\n"
    "mask = k <= q and ids[b, k] == ids[b, q] and q - k < n\nassume Sq == Sk\n"
)


def refused_and_right(text: str, exchange: Any) -> None:
    """A refusal on every rank leaves no message behind: the next call is right, and does not wait."""
    kernel, full = compiled(text), whole()
    ids = torch.arange(ROWS)[None].expand(2, -1) // 20
    right = kernel(*full, ids=ids, n=9)
    here = context_parallel(kernel, layout="contiguous", exchange=exchange).over(ROWS, ids=ids)
    local = [here.shard(x, 2) for x in full]
    for wrong, message in (({"n": 3.5}, "n must be an int"), ({"n": 9, "ids": ids * 0}, "other elements here")):
        with pytest.raises(UsageError, match=message):
            here(*local, **wrong)
        with torch.inference_mode():
            found = here(*local, ids=ids.clone(), n=9)
        torch.testing.assert_close(here.unshard(found.clone(), 2), right, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("exchange", ["ring", "gather"])
def test_after_a_refusal_the_next_call_is_right(exchange: str, tmp_path: Path) -> None:
    on_two_ranks(BOTH, tmp_path, refused_and_right, exchange)


@pytest.mark.parametrize(
    ("rows", "given", "message"),
    [
        (3.0, {}, "Sq must be an int from 0 up"),
        ("8", {}, "Sq must be an int from 0 up"),
        (ROWS, {"ids": torch.zeros(1, 7, dtype=torch.int32)}, "ids must have shape"),
        (ROWS, {"n": 3.5}, "n must be an int"),
        (ROWS, {"n": None}, "n must be an int"),
    ],
)
def test_what_over_refuses(rows: Any, given: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        context_parallel(compiled(BOTH)).over(rows, **given)


def with_tensor_parallelism(text: str) -> None:
    """A mesh of one rank for rows and two for heads; ids are told once, and q, k and v are DTensors."""
    kernel, full, ids = compiled(text), whole(), torch.arange(ROWS)[None].expand(2, -1) // 7
    mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("rows", "heads"))
    here = context_parallel(kernel, mesh["rows"]).over(ROWS, ids=ids)
    operands = [distribute_tensor(x, mesh["heads"], [Shard(1)]) for x in full]
    out: Any = here(*operands)
    right = kernel(*full, ids=ids)
    torch.testing.assert_close(out.full_tensor(), right, rtol=2e-5, atol=2e-5)
    other = distribute_tensor(ids * 0, mesh["heads"], [Replicate()])
    with pytest.raises(UsageError, match="ids has other elements here than over"):
        here(*operands, ids=other)


def test_tensor_parallel_calls_take_what_over_was_given(tmp_path: Path) -> None:
    on_two_ranks(IDS, tmp_path, with_tensor_parallelism)
