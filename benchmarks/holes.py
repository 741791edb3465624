"""Measures masks with holes beside both forms of FlexAttention: rollouts, neighbours in an image, blocks, strides.

    python benchmarks/holes.py prepare build/holes             # where attngen is: compiles the specs
    python benchmarks/holes.py run --kernels build/holes       # on the GPU: needs torch and triton
    python benchmarks/holes.py table                           # afterwards, anywhere
    python benchmarks/holes.py kernels --kernels build/holes   # on the GPU: microseconds of each of attngen's kernels

A mask has holes where a row of tiles has forbidden tiles between allowed ones. Scores and masks are written here by
hand, apart from the specs; the dense float32 truth and FlexAttention take them. Its block mask is made by a compiled
`create_block_mask` and timed apart. Who fails, by lack of memory for one, is a line below the table.
"""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

import report
import saved
import sweep
from report import Result
from saved import Files, Spec

if TYPE_CHECKING:
    import grouped
    from torch import Tensor

HERE = Path(__file__).resolve().parent
PEERS = ("flex", "flex-flash")
SPECS = {
    # A token's branch, and the end of the branches that continue it, in the order of a walk through the tree.
    "rollouts": Spec(
        "attention rollouts\nparam first: int[B, Sk]\nparam last: int[B, Sk]\n"
        "mask = causal and first[b, k] <= first[b, q] < last[b, k]\nassume Sq == Sk\n"
    ),
    "image": Spec(
        "attention image\nconst radius = 8\nparam x: int[Sk]\nparam y: int[Sk]\n"
        "mask = abs(x[q] - x[k]) <= radius and abs(y[q] - y[k]) <= radius\nassume Sq == Sk\n"
    ),
    "blocks": Spec(
        "attention blocks\nparam chosen: bool[Hkv, rows, columns]\nmask = causal and chosen[hkv, q // 128, k // 128]\n"
        "assume Sq == Sk\n"
    ),
    "strided": Spec("attention strided\nmask = causal and (q - k) % 4 == 0\nassume Sq == Sk\n"),
}


@dataclass(frozen=True, slots=True)
class Cell:
    """`mask` with its numbers, which say what the params are drawn with."""

    mask: str
    numbers: tuple[int, ...]
    B: int
    Hq: int
    Hkv: int
    N: int
    D: int

    @property
    def key(self) -> str:
        made = "x".join([self.mask, *map(str, self.numbers)])
        return f"{made}:{self.B}x{self.N}:{self.Hq}/{self.Hkv}:{self.D}"

    @property
    def shape(self) -> grouped.Shape:
        import grouped

        return grouped.Shape(self.B, self.Hq, self.Hkv, self.N, self.N, self.D, self.D)


def matrix() -> Iterator[Cell]:
    """rollouts: prompt, branches, tokens of each; image: rows, columns, rows and columns of a tile of tokens; blocks:
    how many are chosen."""
    wide = (1, 32, 8, 16384, 128)
    yield Cell("rollouts", (4096, 16, 768), *wide)
    yield Cell("image", (128, 128, 8, 16), 2, 16, 16, 16384, 64)
    yield Cell("rollouts", (1024, 60, 256), *wide)
    yield Cell("blocks", (16,), *wide)
    yield Cell("rollouts", (8192, 4, 2048), *wide)
    yield Cell("strided", (), 2, 16, 16, 8192, 64)


def dry_matrix() -> Iterator[Cell]:
    """Each mask at a size that Triton's interpreter manages."""
    yield Cell("rollouts", (16, 3, 16), 1, 4, 2, 64, 16)
    yield Cell("image", (8, 8, 2, 4), 1, 2, 2, 64, 16)
    yield Cell("blocks", (1,), 1, 2, 1, 256, 16)
    yield Cell("strided", (), 1, 2, 2, 64, 16)


# ---- params and formulas ---------------------------------------------------------------------------------------------


def params(cell: Cell, generator: Any) -> dict[str, Tensor]:
    """By the names of the spec's params, on the generator's device."""
    import torch

    device = generator.device
    at = torch.arange(cell.N, device=device)
    match cell.mask:
        case "rollouts":
            prompt, branches, length = cell.numbers
            assert prompt + branches * length == cell.N
            first = torch.where(at < prompt, 0, 1 + (at - prompt) // length)
            last = torch.where(at < prompt, 1 + branches, first + 1)
            return {n: x.int().expand(cell.B, -1).contiguous() for n, x in (("first", first), ("last", last))}
        case "image":
            rows, columns, high, wide = cell.numbers
            assert rows * columns == cell.N
            tile, inside = at // (high * wide), at % (high * wide)
            across = columns // wide
            return {
                "x": (tile % across * wide + inside % wide).int(),
                "y": (tile // across * high + inside // wide).int(),
            }
        case "blocks":
            count = cell.N // 128
            drawn = torch.rand(cell.Hkv, count, count, generator=generator, device=device)
            own = torch.eye(count, dtype=torch.bool, device=device)
            seen = torch.ones(count, count, dtype=torch.bool, device=device).tril()
            drawn = torch.where(own, 2.0, torch.where(seen, drawn, -1.0))  # its own block first, none of the future
            best = drawn.topk(min(cell.numbers[0], count), -1).indices
            return {"chosen": torch.zeros_like(drawn, dtype=torch.bool).scatter_(-1, best, True) & seen}
        case "strided":
            return {}
        case _:
            raise ValueError(f"no mask {cell.mask!r}; there are {', '.join(SPECS)}")


def formula(cell: Cell, given: Mapping[str, Tensor]) -> grouped.Formula:
    import grouped

    match cell.mask:
        case "rollouts":
            first, last = given["first"], given["last"]
            return grouped.Formula(
                allowed=lambda b, h, q, k: (k <= q) & (first[b, k] <= first[b, q]) & (first[b, q] < last[b, k]),
                batches=cell.B > 1,
            )
        case "image":
            x, y, radius = given["x"], given["y"], 8
            return grouped.Formula(
                allowed=lambda b, h, q, k: ((x[q] - x[k]).abs() <= radius) & ((y[q] - y[k]).abs() <= radius)
            )
        case "blocks":
            chosen, group = given["chosen"], cell.Hq // cell.Hkv
            return grouped.Formula(
                allowed=lambda b, h, q, k: (k <= q) & chosen[h // group, q // 128, k // 128], heads=True
            )
        case "strided":
            return grouped.Formula(allowed=lambda b, h, q, k: (k <= q) & ((q - k) % 4 == 0))
        case _:
            raise ValueError(f"no mask {cell.mask!r}; there are {', '.join(SPECS)}")


# ---- the run ---------------------------------------------------------------------------------------------------------


def prepared(cell: Cell, args: argparse.Namespace) -> grouped.Race:
    """The cell as a race: inputs and params drawn, contenders ready to be built."""
    import grouped
    import torch

    from attngen.bench.race import Contender

    dtype = torch.bfloat16 if args.device == "cuda" else torch.float16  # Triton's interpreter multiplies bf16 wrongly
    given = params(cell, torch.Generator(device=args.device).manual_seed(args.seed))
    made = formula(cell, given)
    function = Files.at(args.kernels).dense(cell.mask)
    builds: dict[str, grouped.Build] = {
        "attngen": lambda: Contender("attngen", lambda q, k, v: function(q, k, v, **given)),
        **grouped.flexes(cell.shape, made, args.device),
    }
    inputs = grouped.draw(cell.shape, args.device, dtype, args.seed)
    return grouped.Race(cell.key, cell.shape, made, inputs, builds, grouped.pairs(cell.shape, made, args.device))


def measure(cell: Cell, args: argparse.Namespace) -> Result:
    import grouped

    race = prepared(cell, args)
    return {**asdict(cell), "pairs": race.pairs, "contenders": grouped.run(race, sweep.turns(args))}


def chosen(args: argparse.Namespace) -> list[Cell]:
    """The cells whose key starts with one of `--only`, in which `*` stands for anything."""
    cells = list(dry_matrix() if args.device == "cpu" else matrix())
    return [c for c in cells if not args.only or any(fnmatchcase(c.key, only + "*") for only in args.only)]


def run(args: argparse.Namespace) -> int:
    measured = functools.partial(measure, args=args)
    script, facts = Path(__file__).resolve(), {"seed": args.seed}
    made = sweep.Sweep(script=script, cells=chosen(args), measure=measured, line=line, table=table, facts=facts)
    return sweep.run(made, args)


def warm(args: argparse.Namespace) -> int:
    import grouped

    grouped.keep_caches()
    index, count = grouped.sliced(args.slice)
    for cell in chosen(args)[index::count]:
        grouped.first_calls(prepared(cell, args), args.device)
    return 0


def kernels(args: argparse.Namespace) -> int:
    """By torch's profiler: a mean of five calls, forward and backward, after three."""
    import grouped
    import torch
    from torch.profiler import ProfilerActivity, profile

    files = Files.at(args.kernels)
    for cell in chosen(args):
        given = params(cell, torch.Generator(device=args.device).manual_seed(args.seed))
        function, made = files.dense(cell.mask), grouped.draw(cell.shape, args.device, torch.bfloat16, args.seed)

        def call(times: int, function: Any = function, made: Any = made, given: Any = given) -> None:
            for _ in range(times):
                torch.autograd.grad(function(*made.qkv, **given), made.qkv, made.d_out)
            torch.cuda.synchronize()

        call(3)
        with profile(activities=[ProfilerActivity.CUDA]) as found:
            call(5)
        own = [e for e in found.key_averages() if e.key.startswith("_")]
        own.sort(key=lambda e: -e.device_time_total)
        said = (f"{e.key.strip('_').removesuffix('_kernel')} {e.device_time_total / 5:.1f}" for e in own)
        print(f"{cell.key}: {', '.join(said)} us", flush=True)
    return 0


# ---- what is shown ---------------------------------------------------------------------------------------------------


def milliseconds(cell: Result, name: str) -> str:
    """`6.09 / 4.76` forward / backward, with a word in place of a time that is missing."""
    record = cell["contenders"].get(name, {})
    return " / ".join(
        f"{record[d]['ms']:.3g}" if d in record else report.word(cell, name, d) or "–" for d in report.DIRECTIONS
    )


def block_mask(cell: Result, name: str) -> str:
    ms = cell["contenders"].get(name, {}).get("block_mask_ms")
    return "" if ms is None else f"{ms:.3g}"


def behind(cell: Result, direction: str) -> str:
    """How many times as long attngen takes as the faster form of FlexAttention: `x24.6`."""
    ratios = [r for name in PEERS if (r := report.ratio(cell, name, direction)) is not None]
    return f"x{1 / min(ratios):.2f}" if ratios else "–"


def line(cell: Result) -> str:
    return f"{cell['key']}: " + ", ".join(f"{name} {milliseconds(cell, name)} ms" for name in ("attngen", *PEERS))


def table(result: Result) -> str:
    """A row a cell: milliseconds forward / backward; the block mask's apart; attngen's time over the faster other's."""
    rows = [["mask", "attngen", *PEERS, *(f"{name}: block mask" for name in PEERS), "attngen / faster"]]
    for cell in result["cells"]:
        times = [milliseconds(cell, name) for name in ("attngen", *PEERS)]
        over = " / ".join(behind(cell, direction) for direction in report.DIRECTIONS)
        rows.append([cell["key"], *times, *(block_mask(cell, name) for name in PEERS), over])
    said = " ".join(f"{name} {version}" for name, version in result["versions"].items())
    head = f"{result['machine']}, {result['date']}, {said}, attngen {result['commit'] or 'of an unknown commit'}"
    return "\n".join([*report.aligned(rows), f"{head}: ms forward / backward", *report.remarks(result)])


def main(argv: list[str]) -> int:
    top = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = top.add_subparsers(dest="command", required=True)
    p = commands.add_parser("prepare", help="compile the specs into a directory (needs attngen)")
    p.add_argument("directory", type=Path)
    only = "keys that start so; * is anything: rollouts*:32/8"
    for p in sweep.options(commands, only, HERE / "holes.json", 300.0):
        p.add_argument("--seed", type=int, default=0)
    p = commands.add_parser("kernels", help="microseconds of each of attngen's kernels")
    p.add_argument("--kernels", type=Path, required=True, metavar="DIR", help="what `prepare` wrote")
    p.add_argument("--only", nargs="+", default=[], metavar="KEY", help=only)
    p.add_argument("--seed", type=int, default=0)
    p.set_defaults(device="cuda")
    p = commands.add_parser("table")
    p.add_argument("file", type=Path, nargs="?", default=HERE / "holes.json")
    args = top.parse_args(argv)
    match args.command:
        case "prepare":
            saved.prepare(args.directory, SPECS)
        case "run":
            return run(args)
        case "warm":
            return warm(args)
        case "kernels":
            return kernels(args)
        case _:
            print(table(report.read(args.file)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
