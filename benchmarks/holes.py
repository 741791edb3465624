"""Measures masks with holes beside both forms of FlexAttention: trees of rollouts, neighbours, chosen blocks, spans.

    python benchmarks/holes.py prepare build/holes             # where attngen is: compiles the specs
    python benchmarks/holes.py run --kernels build/holes       # on the GPU: needs torch and triton
    python benchmarks/holes.py table                           # afterwards, anywhere
    python benchmarks/holes.py run --sequences --kernels build/holes    # packed, with lengths, in pieces beside dense
    python benchmarks/holes.py kernels --kernels build/holes   # on the GPU: microseconds of each of attngen's kernels

A mask has holes where a row of tiles has forbidden tiles between allowed ones. Masks are written in `hole_masks.py` by
hand, apart from the specs; the dense float32 truth and FlexAttention take them. Its block mask is made by a compiled
`create_block_mask` and timed apart. Who fails, by lack of memory for one, is a line below the table.
"""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hole_masks
import report
import rows_of_holes
import saved
import sweep
from hole_masks import SPECS, Cell
from report import Result
from saved import Files

if TYPE_CHECKING:
    import grouped
    from torch import Tensor

HERE = Path(__file__).resolve().parent
PEERS = ("flex", "flex-flash")


def matrix() -> Iterator[Cell]:
    """The numbers of each mask: `hole_masks.py`."""
    wide = (1, 32, 8, 16384, 128)
    yield Cell("rollouts", (4096, 16, 768), *wide)
    yield Cell("image", (128, 128, 8, 16), 2, 16, 16, 16384, 64)
    yield Cell("rollouts", (1024, 60, 256), *wide)
    yield Cell("blocks", (16,), *wide)
    yield Cell("rollouts", (8192, 4, 2048), *wide)
    yield Cell("strided", (), 2, 16, 16, 8192, 64)
    yield Cell("tree", (2048, 4, 1024, 4, 640), *wide)
    yield Cell("image", (128, 128, 1, 128), 2, 16, 16, 16384, 64)  # row after row
    yield Cell("video", (8, 48, 80, 2, 8, 8), 1, 16, 16, 30720, 128)
    yield Cell("lists", (16,), *wide)
    yield Cell("blocks64", (32,), *wide)
    yield Cell("spans", (4, 256), 2, 32, 16, 8192, 128)
    yield Cell("spans_global", (4, 256), 2, 32, 16, 8192, 128)
    yield Cell("diffusion", (), 2, 16, 16, 8192, 128)
    yield Cell("natten64", (), 4, 8, 8, 4096, 64)
    yield Cell("natten128", (), 4, 8, 8, 16384, 64)
    long = (1, 32, 8, 65536, 128)
    yield Cell("blocks", (16,), *long)
    yield Cell("lists", (16,), *long)


def dry_matrix() -> Iterator[Cell]:
    """Each mask at a size that Triton's interpreter manages."""
    small = (1, 2, 2, 64, 16)
    yield Cell("rollouts", (16, 3, 16), 1, 4, 2, 64, 16)
    yield Cell("tree", (16, 2, 8, 2, 8), *small)
    yield Cell("image", (8, 8, 2, 4), *small)
    yield Cell("video", (2, 4, 8, 2, 2, 4), *small)
    for name, block in (("blocks", 128), ("blocks64", 64), ("lists", 128)):
        yield Cell(name, (1,), 1, 2, 1, 2 * block, 16)
    yield Cell("strided", (), *small)
    yield Cell("spans", (2, 9), *small)
    yield Cell("spans_global", (2, 9), *small)
    yield Cell("diffusion", (), 1, 2, 2, 128, 16)
    yield Cell("natten16", (), 1, 2, 2, 256, 16)


def params(cell: Cell, generator: Any) -> dict[str, Tensor]:
    """By the names of the spec's params, on the generator's device."""
    return _mask(cell).params(cell, generator)


def formula(cell: Cell, given: Mapping[str, Tensor]) -> grouped.Formula:
    return _mask(cell).formula(cell, given)


def _mask(cell: Cell) -> hole_masks.Mask:
    found = hole_masks.MASKS.get(cell.mask)
    if found is None:
        raise ValueError(f"no mask {cell.mask!r}; there are {', '.join(hole_masks.MASKS)}")
    return found


# ---- the run ---------------------------------------------------------------------------------------------------------


def prepared(cell: Cell, args: argparse.Namespace) -> grouped.Race:
    """The cell as a race: inputs and params drawn, contenders ready to be built."""
    import grouped
    import torch

    from attngen.bench.race import Contender

    dtype = torch.bfloat16 if args.device == "cuda" else torch.float16  # Triton's interpreter multiplies bf16 wrongly
    given = params(cell, torch.Generator(device=args.device).manual_seed(args.seed))
    made = formula(cell, given)
    files = Files.at(args.kernels)
    function = files.dense(cell.mask)
    builds: dict[str, grouped.Build] = {
        "attngen": lambda: Contender("attngen", lambda q, k, v: function(q, k, v, **given))
    }
    more = rows_of_holes.builds(cell, files, given) if args.sequences else grouped.flexes(cell.shape, made, args.device)
    inputs = grouped.draw(cell.shape, args.device, dtype, args.seed)
    return grouped.Race(cell.key, cell.shape, made, inputs, builds | more, grouped.pairs(cell.shape, made, args.device))


def measure(cell: Cell, args: argparse.Namespace) -> Result:
    import grouped

    race = prepared(cell, args)
    return {**asdict(cell), "pairs": race.pairs, "contenders": grouped.run(race, sweep.turns(args))}


def chosen(args: argparse.Namespace) -> list[Cell]:
    """The cells whose key starts with one of `--only`, in which `*` stands for anything."""
    cells = list(dry_matrix() if args.device == "cpu" else matrix())
    if args.sequences:
        cells = [c for c in cells if rows_of_holes.takes(c)]
    return [c for c in cells if not args.only or any(fnmatchcase(c.key, only + "*") for only in args.only)]


def run(args: argparse.Namespace) -> int:
    measured = functools.partial(measure, args=args)
    script, facts = Path(__file__).resolve(), {"seed": args.seed}
    made = sweep.Sweep(script=script, cells=chosen(args), measure=measured, line=line, table=table, facts=facts)
    return sweep.run(made, args)


def kernels(args: argparse.Namespace) -> int:
    """By torch's profiler, torch's own kernels beside: a mean of five calls, forward and backward, after three."""
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
        ran = [e for e in found.key_averages() if e.device_time_total > 0]
        ran.sort(key=lambda e: -e.device_time_total)
        said = (f"{e.key.strip('_').removesuffix('_kernel')[:40]} {e.device_time_total / 5:.1f}" for e in ran)
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
    return f"{cell['key']}: " + ", ".join(f"{name} {milliseconds(cell, name)} ms" for name in cell["contenders"])


def table(result: Result) -> str:
    """A row a cell: milliseconds forward / backward; the block mask's apart; attngen's time over the faster other's."""
    names = list(dict.fromkeys(name for cell in result["cells"] for name in cell["contenders"]))
    peers = [name for name in PEERS if name in names]
    names = [*(name for name in names if name not in PEERS), *peers]
    rows = [["mask", *names, *(f"{name}: block mask" for name in peers), *(["attngen / faster"] if peers else [])]]
    for cell in result["cells"]:
        times = [milliseconds(cell, name) for name in names]
        over = " / ".join(behind(cell, direction) for direction in report.DIRECTIONS)
        rows.append([cell["key"], *times, *(block_mask(cell, name) for name in peers), *([over] if peers else [])])
    said = " ".join(f"{name} {version}" for name, version in result["versions"].items())
    head = f"{result['machine']}, {result['date']}, {said}, attngen {result['commit'] or 'of an unknown commit'}"
    return "\n".join([*report.aligned(rows), f"{head}: ms forward / backward", *report.remarks(result)])


def main(argv: list[str]) -> int:
    only = "keys that start so; * is anything: rollouts*:32/8"
    made = sweep.parser(__doc__, only, HERE / "holes.json", 300.0)
    made.run.add_argument("--seed", type=int, default=0)
    made.run.add_argument(
        "--sequences", action="store_true", help="attngen's other geometries, too, of cells that have rows"
    )
    p = made.commands.add_parser("kernels", help="microseconds of each kernel of attngen's calls")
    p.add_argument("--kernels", type=Path, required=True, metavar="DIR", help="what `prepare` wrote")
    p.add_argument("--only", nargs="+", default=[], metavar="KEY", help=only)
    p.add_argument("--seed", type=int, default=0)
    p.set_defaults(device="cuda", sequences=False)
    args = made.top.parse_args(argv)
    return kernels(args) if args.command == "kernels" else sweep.perform(args, prepare, run, table)


def prepare(args: argparse.Namespace) -> None:
    saved.prepare(args.directory, {**SPECS, **rows_of_holes.SPECS})


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
