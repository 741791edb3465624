"""Measures the twelve functions of docs/coming-from-flexattention.md: attngen's kernels of them beside FlexAttention's.

    python benchmarks/from_flex.py prepare build/from_flex        # where attngen is: reads the functions, compiles
    python benchmarks/from_flex.py run --kernels build/from_flex  # on the GPU: needs torch and triton
    python benchmarks/from_flex.py table                          # afterwards, anywhere

The functions are the page's own, with captured tensors of the size that is measured (`captured`). Both backends of
FlexAttention take them as they stand; the dense float32 truth takes them pair by pair. A block mask is made by a
compiled `create_block_mask`, and timed apart.
"""

from __future__ import annotations

import argparse
import functools
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import holes
import saved
import sweep
from report import Result
from saved import Files, Spec

if TYPE_CHECKING:
    import grouped
    from torch import Tensor

HERE = Path(__file__).resolve().parent
PAGE = HERE.parent / "docs" / "coming-from-flexattention.md"


@dataclass(frozen=True, slots=True)
class Variant:
    """A function of the page, the lines `code`, and the spec that is read of it. `key` is the spec's name."""

    title: str
    code: str
    text: str

    @property
    def key(self) -> str:
        return self.text.split()[1]


def page() -> tuple[Variant, ...]:
    found = re.findall(r"^### (.*?)\n\n```python\n(.*?)```\n\n```attn\n(.*?)```", PAGE.read_text(), re.M | re.S)
    return tuple(Variant(*parts) for parts in found)


@dataclass(frozen=True, slots=True)
class Cell:
    variant: Variant
    B: int = 2
    Hq: int = 32
    Hkv: int = 8
    N: int = 8192
    D: int = 128

    @property
    def key(self) -> str:
        return self.variant.key

    @property
    def shape(self) -> grouped.Shape:
        import grouped

        return grouped.Shape(self.B, self.Hq, self.Hkv, self.N, self.N, self.D, self.D)


def captured(cell: Cell, generator: Any) -> dict[str, Tensor]:
    """The tensors that the page's functions capture, by name, for the cell's sizes."""
    import torch

    device, N = generator.device, cell.N
    at = torch.arange(N, device=device)
    branch = torch.where(at < N // 2, 0, 1 + (at - N // 2) // (N // 16))
    own = (at[:, None] >= at) & ((branch == 0) | (branch[:, None] == branch))

    def normal(*size: int) -> Tensor:
        return torch.randn(size, generator=generator, device=device).requires_grad_()

    blocks = -(-N // 64)
    drawn = torch.rand(cell.B, cell.Hkv, blocks, blocks, generator=generator, device=device)
    seen = torch.ones(blocks, blocks, dtype=torch.bool, device=device).tril()
    chosen = drawn.where(seen, -1.0).topk(min(16, blocks), -1).indices.int()
    lengths = [max(1, N * 3 // 5), N]
    every: dict[str, dict[str, Callable[[], Tensor]]] = {
        "alibi": {"slope": lambda: torch.rand(cell.Hq, generator=generator, device=device)},
        "documents": {"document": lambda: (at * 8 // N).int().expand(cell.B, -1).contiguous()},
        "lengths": {"length": lambda: torch.tensor([lengths[b % 2] for b in range(cell.B)], device=device)},
        "prefix": {"prefix": lambda: torch.tensor(N // 8, device=device)},
        "a_learned_bias_by_distance": {"table": lambda: normal(cell.Hq, 257)},
        "t_s_buckets": {"table": lambda: normal(32, cell.Hq)},
        "blocks_chosen_for_each_query": {"chosen": lambda: chosen.repeat_interleave(64, 2)[:, :, :N].contiguous()},
        "a_tree_of_drafts": {"ancestor": lambda: own},
    }
    return {name: make() for name, make in every.get(cell.key, {}).items()}


@dataclass(frozen=True, slots=True)
class Functions:
    score_mod: Any
    mask_mod: Any


def functions(cell: Cell, given: Mapping[str, Tensor]) -> Functions:
    """The page's, which capture `given` in place of its tensors."""
    names: dict[str, Any] = {}
    exec(compile("import math\nimport torch\n", "imports", "exec"), names)
    code = re.sub(r"h // 4\b", f"h // {cell.Hq // cell.Hkv}", cell.variant.code)
    exec(compile(code, str(PAGE), "exec"), names)
    names.update(given)
    return Functions(names.get("score_mod"), names.get("mask_mod"))


def formula(own: Functions) -> grouped.Formula:
    """The functions pair by pair, for the truth: they are written for numbers, not for tensors."""
    import grouped
    import torch

    def of_pairs(f: Any, *given: Any) -> Any:
        every = torch.broadcast_tensors(*(x if isinstance(x, torch.Tensor) else torch.tensor(x) for x in given))
        found = torch.vmap(f)(*(x.reshape(-1) for x in every))
        return found.reshape(every[0].shape)

    return grouped.Formula(
        score=own.score_mod and functools.partial(of_pairs, own.score_mod),
        allowed=own.mask_mod and functools.partial(of_pairs, own.mask_mod),
        batches=True,
        heads=True,
    )


def raw(cell: Cell, own: Functions) -> grouped.Formula:
    """The functions as FlexAttention takes them."""
    import grouped

    apart = cell.key in ("documents", "lengths", "blocks_chosen_for_each_query")
    by_heads = cell.key == "blocks_chosen_for_each_query"
    return grouped.Formula(own.score_mod, own.mask_mod, batches=apart, heads=by_heads)


def specs() -> Mapping[str, Spec]:
    """What is read of each function, for captured tensors of any size."""
    import torch

    from attngen.flex.spec import read

    found: dict[str, Spec] = {}
    for cell in matrix():
        own = functions(cell, captured(cell, torch.Generator().manual_seed(0)))
        found[cell.key] = Spec(read(own.score_mod, own.mask_mod, cell.key, {}).text)
    return found


def matrix() -> Iterator[Cell]:
    yield from map(Cell, page())


def dry_matrix() -> Iterator[Cell]:
    for variant in page():
        yield Cell(variant, 1, 4, 1, 64, 16)


def prepared(cell: Cell, args: argparse.Namespace) -> grouped.Race:
    import grouped
    import torch

    from attngen.bench.race import Contender

    dtype = torch.bfloat16 if args.device == "cuda" else torch.float16  # Triton's interpreter multiplies bf16 wrongly
    given = captured(cell, torch.Generator(device=args.device).manual_seed(args.seed))
    own = functions(cell, given)
    function = Files.at(args.kernels).dense(cell.key)
    builds: dict[str, grouped.Build] = {
        "attngen": lambda: Contender("attngen", lambda q, k, v: function(q, k, v, **given)),
        **grouped.flexes(cell.shape, raw(cell, own), args.device),
    }
    made, inputs = formula(own), grouped.draw(cell.shape, args.device, dtype, args.seed)
    return grouped.Race(cell.key, cell.shape, made, inputs, builds, grouped.pairs(cell.shape, made, args.device))


def measure(cell: Cell, args: argparse.Namespace) -> Result:
    import grouped

    race = prepared(cell, args)
    return {"title": cell.variant.title, "pairs": race.pairs, "contenders": grouped.run(race, sweep.turns(args))}


def table(result: Result) -> str:
    return holes.table(result)


def run(args: argparse.Namespace) -> int:
    cells = sweep.chosen(dry_matrix() if args.device == "cpu" else matrix(), args)
    measured = functools.partial(measure, args=args)
    script, facts = Path(__file__).resolve(), {"seed": args.seed}
    made = sweep.Sweep(script=script, cells=cells, measure=measured, line=holes.line, table=table, facts=facts)
    return sweep.run(made, args)


def main(argv: list[str]) -> int:
    p = sweep.parser(__doc__, "keys that start so", HERE / "from_flex.json", 300.0)
    p.run.add_argument("--seed", type=int, default=0)
    return sweep.perform(p.top.parse_args(argv), lambda args: saved.prepare(args.directory, specs()), run, table)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
