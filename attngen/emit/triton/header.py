"""What stands at the top of a Triton module: the header, and the table of tile sizes.

Takes the plan, the spec's text and the options, gives a `Header` and the rows of `TILES`.
"""

from __future__ import annotations

import hashlib
import re

from attngen.emit.options import Options, TunedGpu
from attngen.emit.triton.views import Header
from attngen.plan.footprint import loads_of
from attngen.plan.hopper import ApartSkeleton, BackwardSkeleton
from attngen.plan.kernel import KernelPlan
from attngen.plan.tiles.portable import table


def tile_table(
    plan: KernelPlan, options: Options, own: tuple[int, int] | None
) -> list[tuple[tuple[str, int, int], tuple[tuple[int, ...], ...]]]:
    """The table of tile sizes: the planner's rows, and what was timed in the place of some."""
    rows = {
        (r.chip, r.itemsize, r.head_block): tuple(tuple(t) for t in (r.forward, r.dkdv, r.dq))
        for r in table(own, plan.burden, loads_of(plan))
    }
    for t in options.tuned_gpu:
        key = t.chip, t.itemsize, t.head_block
        tiles = zip((t.forward, t.dkdv, t.dq), rows[key], strict=True)
        rows[key] = tuple(tuned or planned for tuned, planned in tiles)
    return list(rows.items())


def _rows(tuned: TunedGpu) -> str:
    """What was chosen of a chip's own kernels, in the options' words."""
    found: list[str] = []
    if tuned.row is not None:
        found.append(f"forward:{_columns(tuned.row.row)}")
    match tuned.backward:
        case BackwardSkeleton():
            found.append(f"backward:{_columns(tuned.backward.row)}")
        case ApartSkeleton(dkdv, dq):
            found += [f"dkdv:{_columns(dkdv.row)}", f"dq:{_columns(dq.row)}"]
        case None:
            found += ["backward:portable"] if tuned.portable else []
    return f"/{tuned.dims[0]}x{tuned.dims[1]}/{'/'.join(found)}" if found else ""


def _columns(row: tuple[int | bool | str, ...]) -> str:
    return "x".join(str(int(x)) if isinstance(x, bool) else str(x) for x in row)


def header(plan: KernelPlan, text: str, options: Options, proof: tuple[str, ...]) -> Header:
    a = plan.attention
    # The text stands in comments, whose lines Python ends at these characters and no others.
    lines = re.split(r"\r\n|\r|\n", text.strip("\r\n"))
    consts = [f"{name}={value}" for name, value in a.consts]
    tile = options.tile or a.tile
    said = ["target=triton", f"precision={options.precision}", *consts]
    said += [f"tile={tile[0]}x{tile[1]}"] if tile else []
    said += [f"arch={options.arch}"] if options.arch != "auto" else []
    for t in options.tuned_gpu:
        tuned = "/".join("x".join(map(str, part)) if part else "own" for part in (t.forward, t.dkdv, t.dq))
        said.append(f"tuned={t.chip}/{8 * t.itemsize}/{t.head_block}:{tuned}{_rows(t)}")
    key = hashlib.sha256("\n".join([text, *said]).encode()).hexdigest()
    title = f"{a.name}: fused attention for GPUs, forward and backward, in Triton."
    return Header(
        a.name,
        title,
        f"Attention `{a.name}`, fused, differentiable in every float argument.",
        tuple(f"#     {line}".rstrip() for line in lines),
        hashlib.sha256(text.encode()).hexdigest(),
        f"attngen::{a.name}_{key[:12]}",
        " ".join(said),
        options.precision,
        tuple(f"# {line}" for line in proof),
    )
