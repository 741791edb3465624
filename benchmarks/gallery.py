"""Draws the examples' masks and writes docs/gallery.md: formula, picture, call and measured speed of each example.

    make gallery          # or: python benchmarks/gallery.py

A picture is of the call below it: the lines are run up to the call, and its arguments drawn, by `attngen.show.svg`. A
speed is of a committed result file, whose cells this module names. Needs attngen and torch, and no GPU. The page alone
(`page`) needs neither torch nor drawing: what it says of a picture is the picture's own title.
"""

from __future__ import annotations

import ast
import html
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import report
from saved import EXAMPLES, ROOT

PAGE = ROOT / "docs" / "gallery.md"
PICTURES = ROOT / "docs" / "images" / "gallery"
TILE = (16, 16)
LABELS = {**report.LABELS, "flex-flash": "FlexAttention over FlashAttention 4", "fa3": "FlashAttention 3"}
_SQUARE = "q, k, v = torch.randn(3, 1, 4, 96, 64)"


@dataclass(frozen=True, slots=True)
class Shown:
    """An example's call: the constants that `compile` is given, the lines that make its tensors, its params.

    `measured` is the result file and the key of a cell, `remark` how that cell differs from the example.
    """

    name: str
    consts: str = ""
    lines: tuple[str, ...] = (_SQUARE,)
    params: str = ""
    measured: tuple[str, str] | None = None
    remark: str = ""

    def code(self, target: str = "") -> str:
        """The lines of Python, for the default target or a named one."""
        options = [f'"examples/{self.name}.attn"', *filter(None, [self.consts, target and f'target="{target}"'])]
        call = ", ".join(filter(None, ["q, k, v", self.params]))
        lines = ["import torch, attngen", f"attend = attngen.compile({', '.join(options)})", *self.lines]
        return "\n".join([*lines, f"out = attend({call})"]) + "\n"


_IDS = "ids = torch.tensor([0] * 30 + [1] * 44 + [2] * 22)[None]"
_BLOCKS = "chosen = torch.tensor([[0, -1], [0, 1], [0, 2], [1, 3], [0, 4], [2, 5]])[None, None]"
_ORDER = "rows, columns, y, x = torch.cartesian_prod(*map(torch.arange, (2, 4, 4, 4))).T"

EVERY = (
    Shown(
        "alibi",
        lines=(_SQUARE, "slope = torch.tensor([0.5, 0.25, 0.125, 0.0625])"),
        params="slope=slope",
        measured=("h200.json", "alibi:128:16384"),
    ),
    Shown(
        "block_sparse",
        consts="block=16",
        lines=("q = torch.randn(1, 4, 96, 64)", "k, v = torch.randn(2, 1, 1, 96, 64)", _BLOCKS),
        params="chosen=chosen",
        measured=("holes.json", "listsx16:1x16384:32/8:128"),
        remark="one choice for the whole batch",
    ),
    Shown("causal", measured=("readme.json", "causal:128:4096")),
    Shown(
        "chunked",
        consts="chunk=32",
        measured=("drawn.json", "chunked_2000:1x5000:32/8:128:bf16"),
        remark="chunks of 2,000",
    ),
    Shown(
        "cross_attention",
        lines=(
            "q = torch.randn(2, 4, 64, 64)",
            "k, v = torch.randn(2, 2, 4, 96, 64)",
            "lengths = torch.tensor([70, 96])",
        ),
        params="lengths=lengths",
        measured=("drawn.json", "lengths:2x8192:32/8:128:bf16"),
    ),
    Shown(
        "custom_normalizer",
        lines=(_SQUARE, "temperature, escape = torch.rand(2, 4) + 0.5"),
        params="temperature=temperature, escape=escape",
    ),
    Shown(
        "dilated", lines=("q, k, v = torch.randn(3, 1, 4, 64, 64)",), measured=("holes.json", "strided:2x8192:16/16:64")
    ),
    Shown("documents", lines=(_SQUARE, _IDS), params="ids=ids", measured=("readme.json", "documents:128:16384")),
    Shown("dropout", params="p=0.1, dropout_seed=0"),
    Shown("full_bias", lines=(_SQUARE, "bias = torch.randn(4, 96, 96)"), params="bias=bias"),
    Shown(
        "mla",
        lines=("q, k = torch.randn(2, 1, 4, 96, 192)", "v = torch.randn(1, 4, 96, 128)"),
        measured=("models.json", "causal:2x8192:16/16:192/128"),
    ),
    Shown(
        "natten_2d",
        consts="width=12, radius=2",
        lines=("q, k, v = torch.randn(3, 1, 4, 144, 64)", "bias = torch.randn(4, 9, 9)"),
        params="bias=bias",
        measured=("holes.json", "natten128:4x16384:8/8:64"),
        remark="radius 6, without a bias",
    ),
    Shown(
        "neighbourhood_2d",
        consts="radius=2",
        lines=("q, k, v = torch.randn(3, 1, 4, 128, 64)", _ORDER),
        params="x=4 * columns + x, y=4 * rows + y",
        measured=("holes.json", "imagex128x128x8x16:2x16384:16/16:64"),
        remark="radius 8",
    ),
    Shown("prefix_lm", params="prefix=40", measured=("h200.json", "prefix_lm:128:16384")),
    Shown(
        "relative_bias",
        lines=(_SQUARE, "table = torch.randn(4, 255)"),
        params="table=table",
        measured=("h200.json", "relative_bias:128:16384"),
    ),
    Shown(
        "rollouts",
        lines=(
            _SQUARE,
            "first = torch.tensor([0] * 32 + [1] * 24 + [2] * 24 + [3] * 16)[None]",
            "last = torch.where(first == 0, 4, first + 1)",
        ),
        params="first=first, last=last",
        measured=("holes.json", "rolloutsx4096x16x768:1x16384:32/8:128"),
    ),
    Shown("sigmoid"),
    Shown(
        "sink",
        lines=(_SQUARE, "sink = torch.zeros(4)"),
        params="sink=sink",
        measured=("packed.json", "sink:32768/64:32/8:128"),
        remark="packed sequences",
    ),
    Shown(
        "sliding_window",
        consts="window=40",
        measured=("readme.json", "sliding_window:128:16384"),
        remark="a window of 1,024",
    ),
    Shown("softcap", measured=("readme.json", "softcap:128:16384")),
    Shown("softmax1"),
    Shown(
        "t5_bias",
        lines=(_SQUARE, "table = torch.randn(32, 4)"),
        params="table=table",
        measured=("drawn.json", "t5_bias:4x4096:32/1:192/128:fp16"),
    ),
    Shown(
        "window_global",
        consts="radius=20, globals=4",
        measured=("drawn.json", "window_global_256_16:2x8192:32/8:128:bf16"),
        remark="radius 256, 16 global tokens",
    ),
    Shown(
        "windowed_alibi",
        consts="window=40",
        lines=(_SQUARE, "slope = torch.tensor([0.5, 0.25, 0.125, 0.0625])"),
        params="slope=slope, cap=30.0",
    ),
)


# ---- pictures --------------------------------------------------------------------------------------------------------


def picture(shown: Shown) -> str:
    """The mask and the tiles of the example's call, in SVG. Runs its lines up to the call."""
    from attngen import api, inputs
    from attngen.ir import walk
    from attngen.show.survey import survey
    from attngen.show.svg import svg

    tree = ast.parse(shown.code("torch"))
    *before, last = tree.body
    assert isinstance(last, ast.Assign) and isinstance(last.value, ast.Call)
    given: dict[str, Any] = {}
    exec(compile(ast.Module(before, []), shown.name, "exec"), given)
    spec = given["attend"].spec
    needed = walk.params(spec.mask)
    values = {k.arg: eval(ast.unparse(k.value), given) for k in last.value.keywords if k.arg in needed}
    data = {name: value.numpy() for name, value in values.items() if hasattr(value, "numpy")}
    scalars = {name: value for name, value in values.items() if name not in data}
    (B, Hq, Sq, D), (_, Hkv, Sk, _), Dv = given["q"].shape, given["k"].shape, given["v"].shape[-1]
    sizes = {"B": B, "Hq": Hq, "Hkv": Hkv, "Sq": Sq, "Sk": Sk, "D": D, "Dv": Dv, **inputs.sizes_of(spec, data)}
    params = inputs.examples(spec, sizes, scalars, data=data, only=needed)
    return svg(survey(api.plan(spec), sizes, params, tile=TILE))


def caption(drawn: str) -> str:
    """What a picture's title says."""
    found = re.search("<title>(.*)</title>", drawn)
    assert found is not None
    return html.unescape(found[1])


# ---- the page --------------------------------------------------------------------------------------------------------

_HEAD = """# Gallery

Made by `make gallery` (`benchmarks/gallery.py`): each file in [examples/](../examples) with its formula, its mask, a
call, and its speed where it was measured.

In a formula $i$ is the position of a query, $j$ that of a key, $s_{ij}$ the score of the two, and $J_i$ the set of keys
that the query sees. There are $S_q$ queries and $S_k$ keys, and scale is $1 / \\sqrt{D}$ unless the call gives it.
Where no other normalizer stands there, the output is softmax:

```math
STANDARD
```

In a picture queries run down and keys across. White lines are the borders of tiles, here of 16 x 16. The kernels skip
the dark tiles, run the green ones without the mask, and apply the mask in the others: yellow pairs attend, brown ones
are masked away. The numbers are those of the call below it.

The calls run as they stand, in a clone's folder: with tensors of a GPU by Triton's kernels, and on a CPU in Triton's
interpreter, which is slow. There add `target="torch"` to `attngen.compile`. Speeds are TFLOP/s, forward / backward, of
the pairs that the mask allows.
"""


def page(pictures: Mapping[str, str]) -> str:
    """The page in Markdown. `pictures` has each example's SVG by its name."""
    from attngen.cli.examples import said

    standard = _formulas("causal")[-1]
    parts = [_HEAD.replace("STANDARD", standard)]
    for shown in EVERY:
        text = (EXAMPLES / f"{shown.name}.attn").read_text(encoding="utf-8")
        formulas = [tex for tex in _formulas(shown.name) if tex != standard]
        parts += [
            f"## {shown.name}\n",
            f"{said(text)} [{shown.name}.attn](../examples/{shown.name}.attn) names the source.\n",
            *(f"```math\n{tex}\n```\n" for tex in formulas),
            f"![The mask of {shown.name} with its tiles](images/gallery/{shown.name}.svg)\n",
            f"{caption(pictures[shown.name])}.\n",
            f"```python\n{shown.code()}```\n",
            f"{_speed(shown)}\n",
        ]
    return "\n".join(parts)


def _formulas(name: str) -> list[str]:
    """The definition that `attngen check --explain` derives the kernels from, in LaTeX."""
    from attngen import api, files
    from attngen.explain import ladder
    from attngen.explain.rendering import aligned

    spec = api.analyse(files.read_source(str(EXAMPLES / f"{name}.attn")))
    return [aligned(formula) for formula in ladder(spec, api.plan(spec)).steps[0].formulas]


def _speed(shown: Shown) -> str:
    if shown.measured is None:
        return "Speed: not timed."
    file, key = shown.measured
    result = report.read(ROOT / "benchmarks" / file)
    cell = next(c for c in result["cells"] if c["key"] == key)
    speeds = {name: report.speeds(cell, name) for name in LABELS if name in cell["contenders"]}
    told = "; ".join(f"{LABELS[name]} {text}" for name, text in speeds.items() if text)
    where = f"{shown.remark}, " if shown.remark else ""
    machine = f"one {result['machine']}, {cell.get('date', result['date'])[:10]}"
    return f"Speed ({where}{_shape(cell)}; {machine}, [{file}](../benchmarks/{file}) `{key}`): {told}."


def _shape(cell: Mapping[str, Any]) -> str:
    """The sizes of a cell in words, whichever script measured it."""
    if "tokens" in cell:
        count = f"{cell['sequences']} sequences of {cell['tokens']:,} tokens in all"
    else:
        keys = cell.get("N", cell.get("Sk"))
        queries = cell.get("Sq", keys)
        length = f"{keys:,}" if queries == keys else f"{queries:,} queries and {keys:,}"
        count = f"{cell['B']} x {length} tokens"
    heads = f"{cell['Hq']}/{cell['Hkv']}" if "Hq" in cell else f"{cell['H']}"
    dims = f"{cell['D']}" if cell.get("Dv", cell["D"]) == cell["D"] else f"{cell['D']}/{cell['Dv']}"
    return f"{count}, {heads} heads, head dim {dims}"


def main() -> None:
    os.chdir(ROOT)  # the calls name their files from here
    PICTURES.mkdir(parents=True, exist_ok=True)
    pictures = {shown.name: picture(shown) for shown in EVERY}
    for name, drawn in pictures.items():
        (PICTURES / f"{name}.svg").write_text(drawn, encoding="utf-8")
    PAGE.write_text(page(pictures), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
