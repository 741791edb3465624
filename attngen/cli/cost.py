"""`attngen cost`: a spec, sizes and a chip in, operations, bytes and the roofline's time out."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from attngen import api, files, terminal, vocabulary
from attngen.cli import arguments, output, shapes
from attngen.cli.parser import Commands

if TYPE_CHECKING:
    from attngen.cost.model import Cost
    from attngen.ir.attention import Attention


def add(table: Commands) -> None:
    p = table.add_parser(
        "cost",
        usage="attngen cost [-h] SPEC --chip CHIP [--shape NAME=INT …] [--dtype DTYPE] [--tile Q,K] [-D NAME=VALUE]\n"
        "                    [--param NAME=VALUE] [--json] [-o FILE.png|FILE.svg]",
        help="count what a spec costs on a chip",
        description="Counts operations and bytes, for both loop orders, forward and backward, skipped tiles left out,\n"
        "and gives the roofline's time. The chip needn't be there. Params get example values. For h100 and h200 the\n"
        "kernels are those of compute capability 9.0 where a dense call runs them.",
        example="attngen cost examples/causal.attn --chip h200 --shape B=4 Hq=16 Sq=4096 D=128",
    )
    arguments.spec(p)
    p.add_argument("--chip", choices=vocabulary.CHIPS, required=True, help="the chip")
    arguments.shape(p)
    p.add_argument("--dtype", choices=vocabulary.DTYPES, default="bf16", help="dtype of q, k, v (default: bf16)")
    p.add_argument(
        "--tile",
        type=arguments.tile,
        metavar="Q,K",
        help="tile sizes of all kernels; an H100 or H200 runs portable ones then (default: the chip's)",
    )
    arguments.define(p)
    arguments.param(p)
    p.add_argument("--json", action="store_true", help="print JSON, with the source of each of the chip's figures")
    p.add_argument("-o", "--output", metavar="FILE", help="draw the times over sequence length, .png or .svg")
    p.set_defaults(run=run)


def run(args: Namespace) -> int:
    suffix = output.picture_format(args)
    spec = api.analyse(files.read_source(args.spec), dict(args.define))
    asked = dict(args.shape)
    wanted = shapes.wanted(spec, shapes.USUAL, asked)
    shapes.check_heads(wanted)
    with terminal.working("counting"):
        found = _cost(args, spec, wanted, asked)
    if args.json:
        import json

        from attngen.cost.table import data

        print(json.dumps(data(found), indent=2))
    else:
        from attngen.cost.table import render

        terminal.console(sys.stdout).print(render(found))
    if args.output:
        from attngen.cost.plot import image

        lengths = [2**i for i in range(9, 16)]
        with terminal.working("drawing"):
            costs = [_cost(args, spec, shapes.of_length(wanted, n), set(asked) - {"Sq", "Sk"}) for n in lengths]
            picture = image(costs, suffix)
        files.write(args.output, picture)
        terminal.note(f"wrote {args.output}")
    return 0


def _cost(args: Namespace, spec: Attention, wanted: Mapping[str, int], fixed: Collection[str]) -> Cost:
    from attngen import inputs
    from attngen.ir import walk

    planned = api.plan(spec)
    sizes = inputs.settle(api.callable_spec(spec, planned), wanted, fixed=fixed)
    values = inputs.examples(spec, sizes, dict(args.param), only=walk.params(spec.mask))
    return api.cost(planned, args.chip, args.dtype, sizes, values, args.tile)
