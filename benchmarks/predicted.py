"""The cost model beside measurements: what `attngen cost` predicts for an H200, and what one took, for each cell.

    python benchmarks/predicted.py                          # all of readme.json, h200.json and holes.json, in Markdown
    python benchmarks/predicted.py > benchmarks/predicted.md
    python benchmarks/predicted.py readme.json

Needs no GPU. A prediction is the roofline's time (`attngen.cost`): the time of a kernel's busiest unit at the rates of
the data sheet, summed over the kernels that such a call runs. Nothing is fitted. The measured times are the medians of
calls, of the commits that `README.md` names; gradients are those of q, k and v.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cells
import holes
import peers
import report
import torch

from attngen import api, inputs
from attngen.cost.model import Cost
from attngen.errors import Source
from attngen.ir import walk

HERE = Path(__file__).resolve().parent
DIRECTIONS = ("forward", "backward")


@dataclass(frozen=True, slots=True)
class Row:
    """A cell's milliseconds by direction, predicted and measured, and the units that bound the longest kernels."""

    key: str
    predicted: Mapping[str, float]
    measured: Mapping[str, float]
    bound: Mapping[str, str]

    def share(self, direction: str) -> float:
        """Of the measured time that is predicted."""
        return self.predicted[direction] / self.measured[direction]


def rows(name: str) -> list[Row]:
    """Of a committed file, whose machine is the chip that is asked for."""
    result = report.read(HERE / name)
    if result["machine"] != "NVIDIA H200":
        raise ValueError(f"{name} is of {result['machine']}, and the prediction of an H200")
    return [row(cell) for cell in result["cells"]]


def row(cell: report.Result) -> Row:
    """Of a cell as the file has it."""
    cost = _of_hole(cell) if "mask" in cell else _of_variant(cell)
    ours = [line for line in cost.lines if line.planned and not line.kernel.startswith("d ")]  # q, k and v alone
    kernels = {d: [line for line in ours if line.direction == d] for d in DIRECTIONS}
    times = cell["contenders"]["attngen"]
    return Row(
        cell["key"],
        {d: 1e3 * sum(line.seconds for line in kernels[d]) for d in DIRECTIONS},
        {d: times[d]["ms"] for d in DIRECTIONS},
        {d: max(kernels[d], key=lambda line: line.seconds).bound for d in DIRECTIONS},
    )


def _of_variant(cell: report.Result) -> Cost:
    own = cells.Cell(cell["variant"], cell["D"], cell["N"])
    spec, consts = peers.spec_of(own.variant, cells.FULL_SIZE)
    text = spec.read_text(encoding="utf-8") if isinstance(spec, Path) else spec
    given = cells.params_of(own, cells.FULL_SIZE, torch.Generator().manual_seed(0))
    return _cost(text, consts, given, B=own.B, Hq=own.H, Hkv=own.H, N=own.N, D=own.D)


def _of_hole(cell: report.Result) -> Cost:
    names = ("mask", "B", "Hq", "Hkv", "N", "D")
    own = holes.Cell(numbers=tuple(cell["numbers"]), **{name: cell[name] for name in names})
    given = holes.params(own, torch.Generator().manual_seed(0))
    return _cost(holes.SPECS[own.mask].text, {}, given, B=own.B, Hq=own.Hq, Hkv=own.Hkv, N=own.N, D=own.D)


def _cost(text: str, consts: Mapping[str, Any], given: Mapping[str, Any], *, N: int, D: int, **sizes: int) -> Cost:
    spec = api.analyse(Source(text), dict(consts))
    planned = api.plan(spec)
    settled = inputs.settle(api.callable_spec(spec, planned), {**sizes, "Sq": N, "Sk": N, "D": D, "Dv": D})
    params = {name: x.numpy() if isinstance(x, torch.Tensor) else x for name, x in given.items()}
    for param in spec.params:  # sizes that a param alone has, such as how many blocks there are
        settled |= {
            size.id: length
            for size, length in zip(param.shape, getattr(params.get(param.name), "shape", ()), strict=False)
            if hasattr(size, "id") and size.id not in settled
        }
    return api.cost(planned, "h200", "bf16", settled, {n: params[n] for n in walk.params(spec.mask)})


# ---------------------------------------------------------------- what is printed


def table(found: Sequence[Row]) -> Iterator[str]:
    """Milliseconds predicted and measured, and the prediction's error."""
    yield "| cell | forward, ms | measured | error | bound by | backward, ms | measured | error | bound by |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for r in found:
        shown = [
            f"{r.predicted[d]:.3f} | {r.measured[d]:.3f} | {r.share(d) - 1:+.0%} | {r.bound[d]}" for d in DIRECTIONS
        ]
        yield f"| {r.key} | {' | '.join(shown)} |"


def means(named: Mapping[str, Sequence[Row]]) -> Iterator[str]:
    """The geometric means of predicted over measured time, and the least and greatest."""
    yield "| file | cells | forward: mean (least to greatest) | backward: mean (least to greatest) |"
    yield "|---|---|---|---|"
    for name, found in named.items():
        shown: list[str] = []
        for d in DIRECTIONS:
            shares = [r.share(d) for r in found]
            shown.append(f"{report.geometric_mean(shares):.2f} ({min(shares):.2f} to {max(shares):.2f})")
        yield f"| `{name}` | {len(found)} | {' | '.join(shown)} |"


FILES = ("readme.json", "h200.json", "holes.json")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", metavar="FILE", default=FILES, help=f"of {', '.join(FILES)}")
    args = parser.parse_args()
    named = {name: rows(name) for name in args.files}
    print("# Predicted and measured times on an H200\n")
    print(
        "`python benchmarks/predicted.py` prints this page. Milliseconds; a prediction is the roofline's time, in which"
    )
    print("nothing is fitted. The means are geometric, of predicted over measured time.\n")
    print("\n".join(means(named)))
    for name, found in named.items():
        print(f"\n## {name}\n\n" + "\n".join(table(found)))


if __name__ == "__main__":
    main()
