"""`attngen show`: a spec and sizes in, a picture of its mask and of its tiles out, in the terminal or in a file."""

from __future__ import annotations

import sys
from argparse import Namespace
from typing import TYPE_CHECKING

from attngen import api, files, terminal
from attngen.cli import arguments, output, shapes
from attngen.cli.parser import Commands
from attngen.errors import UsageError

if TYPE_CHECKING:
    from attngen.show.survey import Survey


def add(table: Commands) -> None:
    p = table.add_parser(
        "show",
        usage="attngen show [-h] SPEC [--size NAME=INT …] [--tile Q,K] [-D NAME=VALUE] [--param NAME=VALUE]\n"
        "                    [--data NAME=FILE.npy …] [--batch N] [--head N] [-o FILE.png|FILE.svg]",
        help="draw the mask and the tiles that are skipped",
        description="Draws a spec's mask with its tiles: skipped, partly masked, or full.\n"
        "Params get invented values; scalars can be set, and tensors read from files.",
        example="attngen show examples/sliding_window.attn -D window=24 --size Sq=96 Sk=96 --tile 16,16",
    )
    arguments.spec(p)
    p.add_argument(
        "--size",
        type=arguments.size,
        action=arguments.OnceEach,
        default=[],
        metavar="NAME=INT",
        help="sizes: Sq, Sk, B, Hq, … (default: lengths at which the mask shows)",
    )
    p.add_argument("--tile", type=arguments.tile, metavar="Q,K", help="tile sizes (default: the spec's, or small ones)")
    arguments.define(p)
    arguments.param(p)
    arguments.data(p)
    p.add_argument("--batch", type=arguments.index, default=0, metavar="N", help="batch entry to draw (default: 0)")
    p.add_argument("--head", type=arguments.index, default=0, metavar="N", help="query head to draw (default: 0)")
    p.add_argument("-o", "--output", metavar="FILE", help="a picture, .png or .svg, instead of the terminal")
    p.set_defaults(run=run)


def run(args: Namespace) -> int:
    suffix = output.picture_format(args)
    survey = _survey(args)
    if args.output:
        from attngen.show.image import image

        with terminal.working("drawing"):
            picture = image(survey, suffix)
        files.write(args.output, picture)
        print(survey.summary())
        return 0
    from attngen.show import text

    if terminal.is_coloured(sys.stdout) and "utf" in (sys.stdout.encoding or "").lower():
        console = terminal.console(sys.stdout)
        console.print(text.coloured(survey, min(console.width - 1, 128)))
    else:
        print(text.plain(survey), end="")
    return 0


def _survey(args: Namespace) -> Survey:
    from attngen import inputs
    from attngen.ir import walk
    from attngen.show.survey import survey
    from attngen.show.usual import check_sizes, usual_sizes, usual_tile

    spec = api.analyse(files.read_source(args.spec), dict(args.define))
    planned = api.plan(spec)
    wanted = usual_sizes(spec)
    data = {name: files.read_array(path) for name, path in args.data}
    asked = dict(args.size)
    for size, length in inputs.sizes_of(spec, data).items():
        if asked.setdefault(size, length) != length:
            raise UsageError(f"--size {size}={asked[size]} contradicts the data, which say {size} = {length}")
    wanted |= shapes.wanted(spec, wanted, asked)
    # Which batch and head is looked at says how many there must be.
    wanted["B"] = max(wanted["B"], args.batch + 1) if "B" not in asked else wanted["B"]
    if "Hq" not in asked and "Hkv" not in asked:
        wanted["Hq"] = wanted["Hkv"] = args.head + 1
    shapes.check_heads(wanted)
    sizes = inputs.settle(api.callable_spec(spec, planned), wanted, fixed=asked)
    needed = walk.params(spec.mask)
    tile = args.tile or usual_tile(spec, sizes)
    check_sizes(spec, planned, sizes, {*needed} - {*data}, tile)
    values = inputs.examples(spec, sizes, dict(args.param), data=data, only=needed)
    shapes.say_invented(spec, [name for name in values if name not in {*data, *dict(args.param)}])
    with terminal.working("solving the tiles"):
        return survey(planned, sizes, values, tile=tile, batch=args.batch, head=args.head)
