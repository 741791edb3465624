"""`attngen new`: a name in, a spec to start from out."""

from __future__ import annotations

import keyword
import re
from argparse import Namespace
from pathlib import Path

from attngen import terminal
from attngen.cli import output
from attngen.cli.parser import Commands
from attngen.errors import SpecError, UsageError

_START = """\
# What the weights of {name} are. A bias that grows with the distance, for example:
#
#   s_ij = q_i . k_j / sqrt(D) - slope_h * (i - j),   j <= i

attention {name}

param slope: f32[Hq]  # a number for each query head, with a gradient

score = qk * scale - slope[h] * distance
mask = causal  # or: causal and distance < 1024, ids[b, q] == ids[b, k], ...
"""


def add(table: Commands) -> None:
    p = table.add_parser(
        "new",
        help="write a spec to start from",
        description="Writes NAME.attn, a spec that compiles, with what to change in comments.",
        example="attngen new my_bias && attngen check my_bias.attn",
    )
    p.add_argument("name", metavar="NAME", help="the attention's name, which its function gets, too")
    p.add_argument("-o", "--output", metavar="FILE", help="write it to FILE (default: NAME.attn)")
    p.set_defaults(run=run)


def run(args: Namespace) -> int:
    text, path = started(args.name), args.output or f"{args.name}.attn"
    if path == "-":
        terminal.put(text)
        return 0
    if Path(path).exists():
        raise UsageError(f"{path} exists, and is kept: choose another name, or another file by -o")
    output.deliver(text, path)
    terminal.note(f"{path}: `attngen check {path}` proves it, `attngen compile {path} -o {args.name}.py` compiles it")
    return 0


def started(name: str) -> str:
    """The spec. Raises `UsageError` for what is no name."""
    from attngen.api import analyse
    from attngen.errors import Source

    text = _START.format(name=name)
    try:
        found = analyse(Source(text, name)).name
    except SpecError:
        found = None
    if found != name:
        raise UsageError(f"{name!r} is not a name of an attention: try {_mended(name)}")
    return text


def _mended(name: str) -> str:
    """A name like it: of letters, digits and underscores, no digit first, no word of Python."""
    words = "_".join(re.findall("[A-Za-z0-9]+", name))
    free = words and words[0].isalpha() and not keyword.iskeyword(words)
    return words if free else f"my_{words or 'bias'}"
