"""Attention over sequences whose rows lie on several processes (gloo): forward and all gradients equal to one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from processes import in_processes
from torch.utils.checkpoint import checkpoint

import attngen
from attngen import inputs
from attngen.distributed import Layout
from attngen.distributed.torch.autograd import shared_heads
from attngen.distributed.torch.context import Placed
from attngen.errors import UsageError
from attngen.plan.packed_alias import PackedAlias

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
SMALL = {
    "chunked": {"chunk": 16},
    "sliding_window": {"window": 11},
    "window_global": {"radius": 5, "globals": 3},
    "windowed_alibi": {"window": 11},
    "natten_2d": {"width": 7, "radius": 1},
    "relative_bias": {"radius": 7},
}
"""Consts of examples for short sequences."""
OWN = {
    "sink_by_head": "attention s\nparam sink: f32[Hq]\nmask = causal\nnormalizer = softmax(sink = sink[h])\n",
    "by_row": (
        "attention r\nparam column: f32[B, Sk]\nparam row: f32[Sq]\n"
        "score = qk * scale + column[b, k] * row[q]\nmask = causal\n"
    ),
    "by_everything": (
        "attention e\nparam slope: f32[Hq]\nparam key: f32[B, Hq, Sk]\nparam shift: f32[B]\n"
        "score = qk * scale - slope[h] * float(q - k) + key[b, h, k] * shift[b]\nmask = 0 <= q - k < 30\n"
    ),
    "by_kv_head": "attention g\nparam slope: f32[Hkv]\nscore = qk * scale - slope[hkv] * float(q - k)\nmask = causal\n",
    "by_head": "attention h\nmask = q - k < 8 * (h + 1)\n",
    "symmetric": "attention y\nmask = abs(q - k) < 8\n",
    "by_batch": "attention b\nmask = q - k < 8 * (b + 1)\n",
    "by_sequence": (
        "attention y\nparam slope: f32[Hq]\nparam shift: f32[B]\n"
        "score = qk * scale - slope[h] * float(q - k) * shift[b]\nmask = causal\n"
    ),
}
OWN["dropped"] = (
    "attention d\nparam slope: f32[Hq]\nparam key: f32[B, Hq, Sk]\nparam sink: f32[Hq]\nparam p: f32 where 0 <= p < 1\n"
    "score = qk * scale - slope[h] * float(q - k) + key[b, h, k]\nmask = 0 <= q - k < 30\n"
    "normalizer = softmax(sink = sink[h])\ndropout = p\n"
)
SEED = 2**40 + 3
ROWS = 49
CU = (0, 9, 9, 30, 32, 49)


@dataclass(frozen=True)
class Case:
    spec: str
    ranks: int = 2
    exchange: str = "ring"
    layout: str | Layout = "auto"
    mesh: tuple[int, int] | None = None
    packed: bool = False
    heads: tuple[int, int] = (4, 2)
    keys: int = ROWS
    batch: int = 1
    over: tuple[str, ...] = ()
    """Params that every rank knows on the host."""
    inside: bool | None = True
    """Whether heads lie inside rows, in the memory of dense tensors; None: on the first rank alone."""

    def __str__(self) -> str:
        words = (self.spec, self.exchange, f"{self.mesh or self.ranks}", "packed" if self.packed else "dense")
        return "-".join((*words, self.layout if isinstance(self.layout, str) else "own"))


OF_EXAMPLES = [
    Case(e, over=("ids",) if e == "documents" else ("prefix",) if e == "prefix_lm" else ())
    for e in sorted(p.stem for p in EXAMPLES.glob("*.attn"))
]
UNEVEN = Layout((((0, 3), (40, 49)), ((3, 31),), (), ((31, 40),)))
DENSE = [
    Case("causal", 3, layout="contiguous", keys=71),
    Case("causal", 4, layout=UNEVEN),
    Case("alibi", 2, "gather", "headtail"),
    Case("by_row", 3, layout="headtail"),
    Case("sliding_window", 3, "gather", "headtail"),
    Case("sliding_window", 3, "gather", "headtail", inside=False),
    Case("sliding_window", 2, "ring", "headtail", inside=None),
    Case("symmetric", 5, batch=2),
    Case("sliding_window", 3, "gather", "headtail", batch=2),
    Case("sliding_window", 3, layout="headtail", batch=2),
    Case("documents", 4, "gather", over=("ids",)),
]
PACKED = [
    Case("by_everything", 2, "gather", "headtail", packed=True),
    Case("by_sequence", 3, layout="contiguous", packed=True),
    Case("by_sequence", 2, "gather", packed=True, heads=(2, 1)),
    Case("sink_by_head", 4, packed=True, heads=(2, 1)),
    Case("sliding_window", 4, layout="headtail", packed=True, heads=(2, 1)),
]
HEADS = [
    Case("alibi", 4, "gather", mesh=(2, 2)),
    Case("by_everything", 2, "heads", "headtail"),
    Case("by_everything", 4, mesh=(2, 2), packed=True),
    Case("by_kv_head", 2, "heads"),
    Case("by_kv_head", 4, "heads"),
    Case("by_row", 4, "gather", mesh=(2, 2), layout="headtail"),
    Case("sigmoid", 2, "heads", packed=True),
    Case("sink_by_head", 4, "heads", heads=(4, 1)),
]
DROPPED = [
    Case("dropout", 3, "gather"),
    Case("dropout", 2, packed=True),
    Case("dropout", 4, mesh=(2, 2), packed=True),
    Case("dropped", 2, "heads"),
    Case("dropped", 3, layout="contiguous", packed=True),
    Case("dropped", 4, "gather", mesh=(2, 2)),
    Case("dropped", 4, "heads", heads=(4, 1), packed=True),
]
EIGHT = [
    Case("softmax1", 8, heads=(2, 1)),
    Case("windowed_alibi", 8, "heads", heads=(8, 2)),
    Case("windowed_alibi", 8, mesh=(4, 2), packed=True),
]


@cache
def compiled(spec: str) -> attngen.Kernel:
    return attngen.compile(OWN.get(spec, EXAMPLES / f"{spec}.attn"), tile=(16, 16), **SMALL.get(spec, {}))


@dataclass(frozen=True)
class Right:
    """Whole tensors, and what one process makes of them."""

    x: dict[str, torch.Tensor]
    params: dict[str, Any]
    results: tuple[torch.Tensor, torch.Tensor]
    slopes: dict[str, torch.Tensor] = field(default_factory=dict)

    def loss(self, results: tuple[torch.Tensor, torch.Tensor], cut: Callable[..., torch.Tensor]) -> torch.Tensor:
        found = torch.zeros(())
        for i, (y, whole) in enumerate(zip(results, self.results, strict=True)):
            weights = torch.randn(whole.shape, generator=torch.Generator().manual_seed(i))
            found = found + (y * cut(weights, i)).masked_fill(~y.isfinite(), 0.0).sum()
        return found


def right(case: Case) -> Right:
    kernel, (Hq, Hkv) = compiled(case.spec), case.heads
    B = len(CU) - 1 if case.packed else case.batch
    generator = torch.Generator().manual_seed(1)
    sizes = {"B": B, "Hq": Hq, "Hkv": Hkv, "Sq": ROWS, "Sk": case.keys, "D": 16, "Dv": 12}
    drawn = inputs.examples(kernel.spec, sizes, seed=2)
    x = {
        "q": torch.randn(case.batch, Hq, ROWS, 16, generator=generator),
        "k": torch.randn(case.batch, Hkv, case.keys, 16, generator=generator),
        "v": torch.randn(case.batch, Hkv, case.keys, 12, generator=generator),
    }
    params: dict[str, Any] = {}
    for p in kernel.spec.params:
        dims = [getattr(d, "id", "") for d in p.shape]
        value = drawn[p.name]
        if case.packed and {"Sq", "Sk"} & {*dims}:
            value = np.asarray(value)[0]
        y = torch.tensor(value) if p.shape else value
        y = y.float() if isinstance(y, torch.Tensor) and y.dtype == torch.float64 else y
        params[p.name] = y.requires_grad_() if isinstance(y, torch.Tensor) and y.is_floating_point() else y
    if case.packed:
        x = {n: y[0].transpose(0, 1).contiguous() for n, y in x.items()}
    leaves = {n: y.requires_grad_() for n, y in x.items()}
    offsets = {"cu_seqlens_q": torch.tensor(CU, dtype=torch.int32)} if case.packed else {}
    call = kernel.varlen if case.packed else kernel
    out, lse = call(**leaves, **params, **offsets, return_lse=True, dropout_seed=SEED)
    plain = {n: y.detach() for n, y in leaves.items()}
    found = Right(plain, params, (out.detach(), lse.detach()))
    learned = {n: p for n, p in params.items() if isinstance(p, torch.Tensor) and p.requires_grad}
    slopes = torch.autograd.grad(found.loss((out, lse), lambda y, _: y), [*leaves.values(), *learned.values()])
    found.slopes.update(zip([*leaves, *learned], slopes, strict=True))
    return found


def check(case: Case, wanted: Right) -> None:
    from attngen.distributed.torch.context import context_parallel

    mesh = dist.init_device_mesh("cpu", case.mesh) if case.mesh else None
    attend = context_parallel(compiled(case.spec), mesh, case.layout, case.exchange)  # type: ignore[arg-type]
    params = {
        n: p.detach().clone().requires_grad_(p.requires_grad) if isinstance(p, torch.Tensor) else p
        for n, p in wanted.params.items()
    }
    host = {n: params.pop(n) for n in case.over}
    where: Mapping[str, Any] = {"cu_seqlens": CU} if case.packed else {"Sq": ROWS, "Sk": case.keys}
    here = attend.over(**where, **host)
    rows = (0, 1) if case.packed else (2, 2)
    inside = dist.get_rank() == 0 if case.inside is None else case.inside
    cut = {n: here.shard(x, rows[0], keys=n != "q") for n, x in wanted.x.items()}
    if inside and not case.packed:
        cut = {n: x.transpose(1, 2).contiguous().transpose(1, 2) for n, x in cut.items()}
    local = {n: x.requires_grad_() for n, x in cut.items()}
    results = here(**local, **params, return_lse=True, dropout_seed=SEED)
    assert case.inside is not None or here._packed is not None, "what is chosen by how q lies"
    if not (case.packed or case.mesh or case.exchange == "heads"):  # heads that travelled lie rows inside heads
        assert (results[0].stride(1) < results[0].stride(2)) == (local["q"].stride(1) < local["q"].stride(2))
    for y, whole, dim in zip(results, wanted.results, rows, strict=True):
        torch.testing.assert_close(y, here.shard(whole, dim), rtol=2e-5, atol=2e-5)
    torch.testing.assert_close(here.unshard(results[0], rows[0]), wanted.results[0], rtol=2e-5, atol=2e-5)
    learned = {n: p for n, p in params.items() if isinstance(p, torch.Tensor) and p.requires_grad}
    loss = wanted.loss(results, lambda y, i: here.shard(y, rows[i]))
    found = torch.autograd.grad(loss, [*local.values(), *learned.values()])
    for name, g in zip([*local, *learned], found, strict=True):
        whole = wanted.slopes[name]
        most = max(1.0, float(whole.abs().max()))
        own = here.shard(whole, rows[0], keys=name != "q") if name in local else whole
        torch.testing.assert_close(g / most, own / most, rtol=2e-5, atol=2e-5, msg=lambda m, n=name: f"{n}: {m}")


def equal_to_one_process(case: Case, folder: Path) -> None:
    wanted = right(case)
    for each in {False, case.packed}:
        _ = compiled(case.spec).piece(each=each)[1].function
    in_processes(folder, case.ranks, check, case, wanted)


@pytest.mark.parametrize("case", OF_EXAMPLES, ids=str)
def test_examples_on_two_ranks(case: Case, tmp_path: Path) -> None:
    equal_to_one_process(case, tmp_path)


@pytest.mark.parametrize("case", DENSE, ids=str)
def test_keys_are_sent(case: Case, tmp_path: Path) -> None:
    equal_to_one_process(case, tmp_path)


@pytest.mark.parametrize("case", PACKED, ids=str)
def test_packed_sequences(case: Case, tmp_path: Path) -> None:
    equal_to_one_process(case, tmp_path)


@pytest.mark.parametrize("case", HEADS, ids=str)
def test_heads_are_exchanged(case: Case, tmp_path: Path) -> None:
    equal_to_one_process(case, tmp_path)


@pytest.mark.parametrize("case", DROPPED, ids=str)
def test_dropout_is_that_of_one_process(case: Case, tmp_path: Path) -> None:
    equal_to_one_process(case, tmp_path)


@pytest.mark.parametrize("case", EIGHT, ids=str)
def test_eight_ranks(case: Case, tmp_path: Path) -> None:
    equal_to_one_process(case, tmp_path)


def one_seed_for_all(whole: list[torch.Tensor]) -> None:
    """Without a seed, what is dropped is what the first rank draws, also where checkpoints compute it again."""
    from attngen.distributed.torch.context import context_parallel

    kernel = compiled("dropout")
    here = context_parallel(kernel).over(ROWS)
    local = [here.shard(x, 2).requires_grad_() for x in whole]

    def dropped(*x: torch.Tensor) -> torch.Tensor:
        return here(*x, p=0.3).sin()

    for call in (dropped, lambda *x: checkpoint(dropped, *x, use_reentrant=False)):
        torch.manual_seed(dist.get_rank())
        out = here.unshard(call(*local), 2)
        found = torch.autograd.grad(out.sum() / dist.get_world_size(), local)
        torch.manual_seed(0)
        leaves = [x.clone().requires_grad_() for x in whole]
        one = kernel(*leaves, p=0.3, dropout_seed=torch.randint(0, 2**62, (), dtype=torch.int64)).sin()
        torch.testing.assert_close(out, one, rtol=2e-5, atol=2e-5)
        right = torch.autograd.grad(one.sum() / dist.get_world_size(), leaves)
        for g, whole_g in zip(found, right, strict=True):
            torch.testing.assert_close(g, here.shard(whole_g, 2), rtol=2e-5, atol=2e-5)


def other_claims() -> None:
    """What does not show in one forward and backward pass."""
    from attngen.distributed.torch.context import context_parallel

    kernel = compiled("alibi")
    generator = torch.Generator().manual_seed(5)
    whole = [torch.randn(1, heads, ROWS, 16, generator=generator) for heads in (4, 2, 2)]

    def gradients(attend: Any, around: Any = None) -> list[torch.Tensor]:
        here = attend.over(ROWS)
        own, slope = (
            [here.shard(x, 2).requires_grad_() for x in whole],
            torch.rand(4, generator=generator.manual_seed(7)),
        )
        slope.requires_grad_()
        function = (lambda q, k, v, s: here(q * 2, k, v, slope=s).sin()) if around is None else around(here)
        return [*torch.autograd.grad(function(*own, slope).sum(), [*own, slope])]

    attend = context_parallel(kernel)
    first, second = gradients(attend), gradients(attend)
    assert all((a == b).all() for a, b in zip(first, second, strict=True)), "the bits repeat"

    def block(here: Any) -> Any:
        return torch.compile(lambda q, k, v, s: here(q * 2, k, v, slope=s).sin(), backend="aot_eager")

    for a, b in zip(first, gradients(attend, block), strict=True):
        torch.testing.assert_close(a, b)
    own = gradients(context_parallel(kernel, param_gradients="own"))[3]
    assert (own - first[3]).abs().max() > 1e-3
    dist.all_reduce(own)
    torch.testing.assert_close(own, first[3])

    one_seed_for_all(whole)
    here = attend.over(ROWS)
    local = [here.shard(x, 2) for x in whole]
    slope = torch.ones(4)
    half = here(*(x.half() for x in local), slope=slope)
    torch.testing.assert_close(half.float(), here(*local, slope=slope), rtol=1e-2, atol=1e-2)
    torch.testing.assert_close(attend(*local, Sq=ROWS, slope=slope), here(*local, slope=slope))
    with torch.autocast("cpu", torch.float16):
        assert here(*local, slope=slope).dtype == torch.float16
    q = local[0].clone().requires_grad_()
    (g,) = torch.autograd.grad(here(q, *local[1:], slope=slope).sum(), q, create_graph=True)
    with pytest.raises(UsageError, match="a second derivative is not computed"):
        g.sum().backward()
    for error, call in {
        r"q has 49 rows, and rank \d has 2\d of 49: cut it with shard": lambda: here(whole[0], *local[1:], slope=slope),
        r"q must have 4 \(batch, heads, rows, head dim\)": lambda: here(local[0][0], *local[1:], slope=slope),
        "say how many rows all ranks have": lambda: attend(*local, slope=slope),
        "no param 'slop'": lambda: attend.over(ROWS, slop=3),
        "cu_seqlens must be ints, not 5.7": lambda: attend.over(cu_seqlens=[0, 5.7, ROWS]),  # type: ignore[list-item]
        "layout has 8 rows on 2 ranks": lambda: context_parallel(kernel, layout=Layout((((0, 8),), ()))).over(9),
        "layout 'zigzag' is not known": lambda: context_parallel(kernel, layout="zigzag"),  # type: ignore[arg-type]
        "exchange 'star' is not known": lambda: context_parallel(kernel, exchange="star"),  # type: ignore[arg-type]
        "scale must be a number": lambda: here(*local, slope=slope, scale=torch.ones((), requires_grad=True)),
        "reads a head's number": lambda: context_parallel(compiled("by_head"), exchange="heads"),
        "reads the batch's number": lambda: context_parallel(compiled("by_batch")).over(cu_seqlens=[0, ROWS]),
    }.items():
        with pytest.raises(UsageError, match=error):
            call()


def test_bits_graphs_gradients_and_mistakes(tmp_path: Path) -> None:
    for spec in ("alibi", "dropout", "by_head", "by_batch"):
        _ = compiled(spec).function
    _ = compiled("alibi").piece()[1].function
    in_processes(tmp_path, 2, other_claims)


def of_dtensors(case: Case, wanted: Right, dim: int) -> None:
    """Heads (or batches) are cut along one dimension of the mesh, rows along the other."""
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    from attngen.distributed.torch.context import context_parallel

    mesh = dist.init_device_mesh("cpu", (2, 2), mesh_dim_names=("context", "tensor"))
    attend = context_parallel(compiled(case.spec), mesh["context"])
    here = attend.over(cu_seqlens=CU) if case.packed else attend.over(ROWS)
    rows = 0 if case.packed else 2
    tensor = mesh["tensor"]
    x = {n: here.shard(y, rows) for n, y in wanted.x.items()}
    spread = {n: distribute_tensor(y, tensor, [Shard(dim)]).requires_grad_() for n, y in x.items()}
    params = {
        n: distribute_tensor(p.detach(), tensor, [Replicate()]).requires_grad_() if isinstance(p, torch.Tensor) else p
        for n, p in wanted.params.items()
    }
    results = here(**spread, **params, return_lse=True, dropout_seed=SEED)
    whole = [y.full_tensor() for y in results]
    torch.testing.assert_close(whole[0], here.shard(wanted.results[0], rows), rtol=2e-5, atol=2e-5)
    loss = wanted.loss((whole[0], whole[1]), lambda y, i: here.shard(y, rows if rows or not i else 1))
    learned = {n: p for n, p in params.items() if isinstance(p, torch.Tensor)}
    found = torch.autograd.grad(loss, [*spread.values(), *learned.values()])
    for name, g in zip([*spread, *learned], found, strict=True):
        right = wanted.slopes[name]
        right = here.shard(right, rows) if name in spread else right
        torch.testing.assert_close(g.full_tensor(), right, rtol=1e-4, atol=1e-4)


CUT = [
    (1, Case("by_everything", 4)),
    (1, Case("by_everything", 4, packed=True)),
    (1, Case("dropped", 4)),
    (0, Case("dropped", 4, batch=2)),
    (0, Case("sliding_window", 4, batch=3)),
]


@pytest.mark.parametrize(("dim", "case"), CUT, ids=str)
def test_dtensors_of_heads_and_batches(dim: int, case: Case, tmp_path: Path) -> None:
    wanted = right(case)
    _ = compiled(case.spec).piece()[1].function
    in_processes(tmp_path, 4, of_dtensors, case, wanted, dim)


def as_the_plan_says() -> None:
    """Which kernels compute a dense batch of one: the plan's value decides it."""
    from attngen.distributed.torch.context import context_parallel

    kernel = compiled("sliding_window")

    def placed(alias: PackedAlias | None) -> Placed:
        edited = replace(kernel, plan=replace(kernel.plan, packed_alias=alias))
        return context_parallel(edited, layout="headtail").over(ROWS)

    inside = torch.zeros(1, ROWS, 4, 16).transpose(1, 2)
    for alias, dim, learns, packed in (
        (kernel.plan.packed_alias, 128, False, True),
        (kernel.plan.packed_alias, 129, False, False),
        (kernel.plan.packed_alias, 128, True, False),
        (PackedAlias(head_dims=256, learns=True), 256, True, True),
        (None, 16, False, False),
    ):
        v = torch.zeros(1, 2, ROWS, dim)
        assert placed(alias)._lies_as_packed(inside, v, learns=learns) == packed
        assert not placed(alias)._lies_as_packed(inside.contiguous(), v, learns=learns)
    for alias, packed in ((kernel.plan.packed_alias, True), (PackedAlias(head_dims=8, learns=False), False)):
        here = placed(alias)
        assert here._packed is not None, "some group has fewer calls"
        q = here.shard(inside, 2).transpose(1, 2).contiguous().transpose(1, 2)
        here(q, q[:, :2], q[:, :2])
        assert ("way" in vars(here._packed), "way" in vars(here)) == (packed, not packed)


def test_the_plan_chooses_packed_rows(tmp_path: Path) -> None:
    _ = compiled("sliding_window").piece()[1].function
    in_processes(tmp_path, 2, as_the_plan_says)


def test_heads_are_shared_out() -> None:
    assert shared_heads(4, 2, 2) == ([[0, 1], [2, 3]], [[0], [1]])
    assert shared_heads(4, 1, 4) == ([[0], [1], [2], [3]], [[0], [0], [0], [0]])
    assert shared_heads(12, 3, 2) == ([[*range(6)], [*range(6, 12)]], [[0, 0, 1], [1, 2, 2]])
    with pytest.raises(UsageError, match=r"6 heads cannot be shared out equally among 4 ranks: use exchange='ring'"):
        shared_heads(6, 2, 4)
