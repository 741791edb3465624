"""attngen's TPU kernels beside the hand-written ones, by libtpu's own schedule, on a machine without a TPU.

    python benchmarks/tpu_static.py            # sweeps tile sizes; goes on where it stopped
    python benchmarks/tpu_static.py --report   # the table and the plot of what is there

Every contender is compiled for every cell at every candidate tile, with one method (`attngen.tpu`), and its
best tile counts; where a backward pass has several kernels, each counts at its own best tile, since tiles are chosen
apart. Results go to `tpu_static.json`. They are estimates from schedules, never a TPU's times: only ratios count.
Needs `pip install -e '.[tpu]' tokamax`, in a clone.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import pickle
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

import tpu_report  # noqa: E402
from tpu_cells import CELLS, VARIANTS, Cell, branches, tiles_of  # noqa: E402

from attngen import api, files, inputs  # noqa: E402
from attngen.errors import InternalError, Source  # noqa: E402
from attngen.tpu.chips import CHIPS  # noqa: E402
from attngen.tpu.compile import Outcome, Refused, Request, compile_for  # noqa: E402
from attngen.tpu.estimate import CAVEATS, KernelEstimate, estimate  # noqa: E402

RESULTS = ROOT / "benchmarks" / "tpu_static.json"
CONTENDERS = ("attngen", "tokamax", "splash", "flash")
HEADS = 8
"""That every contender is compiled for: a copy that waits for nothing before the first head weighs an eighth."""


@dataclass(frozen=True, slots=True)
class Job:
    """One contender in one cell at one tile."""

    contender: str
    cell: Cell
    tile: tuple[int, int, int]

    @property
    def forward_tile(self) -> tuple[int, int, int]:
        """attngen's forward kernel has tiles of its own: beside a backward, the first of the forward's candidates."""
        if self.contender == "attngen" and self.cell.backward:
            return tiles_of(self.contender, replace(self.cell, backward=False))[0]
        return self.tile

    @property
    def key(self) -> str:
        return f"{self.contender} {self.cell.key} {'x'.join(map(str, self.tile))}"


def jobs() -> Iterator[Job]:
    """Every job, the likeliest tiles of every cell first, so that a sweep that is stopped has something of each."""
    for rank in range(max(len(tiles_of(c, cell)) for c in CONTENDERS for cell in (*CELLS, *VARIANTS))):
        for cell in (*CELLS, *VARIANTS):
            for contender in CONTENDERS:
                tiles = tiles_of(contender, cell)
                if rank < len(tiles) and (contender == "attngen" or cell.fits(contender)):
                    yield Job(contender, cell, tiles[rank])


# ---------------------------------------------------------------- one job


def request(job: Job) -> Request:
    cell = job.cell
    chip = CHIPS[cell.chip]
    if job.contender != "attngen":
        arguments: dict[str, Any] = {
            "heads": HEADS,
            "length": cell.length,
            "head_dim": cell.head_dim,
            "mask": cell.variant,
            "backward": cell.backward,
            "tile": job.tile,
        }
        return Request(f"tpu_rivals:{job.contender}", tuple(arguments.items()), chip)
    text, consts = cell.spec()
    source = Source(text) if isinstance(text, str) else files.read_source(text)
    kernel = api.build(source, api.options("pallas"), consts)
    sizes = {"B": 1, "Hq": HEADS, "Hkv": HEADS, "Sq": cell.length, "Sk": cell.length}
    sizes = inputs.settle(kernel.spec, {**sizes, "D": cell.head_dim, "Dv": cell.head_dim})
    values = dict(inputs.examples(kernel.spec, sizes))
    if cell.variant == "rollouts":
        own = branches(cell.length)[None]
        values |= {"first": own, "last": np.where(own == 0, 17, own + 1)}
    arguments = {
        "source": kernel.source,
        "name": kernel.name,
        "chip": chip.name,
        "dtype": "bf16",
        "sizes": sizes,
        "params": tuple((p.name, p.storage, values[p.name]) for p in kernel.spec.params),
        "backward": cell.backward,
        "seeded": kernel.spec.dropout is not None,
        "tiles": (job.forward_tile, job.tile, job.tile),
    }
    return Request("tpu_rivals:attngen", tuple(arguments.items()), chip)


def outcome(job: Job, keep: Path | None) -> Outcome:
    """Compiles, or takes what was compiled before and kept."""
    name = f"{job.contender}-{job.cell.key}-{'x'.join(map(str, job.tile))}".replace(" ", "-")
    path = keep / f"{name}.gz" if keep is not None else None
    if path is not None and path.exists():
        kept: Outcome = pickle.loads(gzip.decompress(path.read_bytes()))
        return kept if isinstance(kept, Refused) else replace(kept, chip=CHIPS[kept.chip.name])
    made = compile_for(request(job))
    if path is not None:
        files.write(path, gzip.compress(pickle.dumps(made), 1))
    return made


def measure(job: Job, keep: Path | None) -> dict[str, Any]:
    """The row of one job: what each kernel costs, or why the compiler refused."""
    row: dict[str, Any] = {"contender": job.contender, "cell": job.cell.key, "tile": list(job.tile)}
    if job.forward_tile != job.tile:
        row["forward_tile"] = list(job.forward_tile)
    try:
        made = outcome(job, keep)
    except InternalError as error:  # a rival's own assertion: a tile that it doesn't take
        return row | {"refused": str(error.__cause__).strip().splitlines()[-1][:300]}
    if isinstance(made, Refused):
        return row | {"refused": made.reason()[:300]}
    result = estimate(made)
    return row | {
        "ms": round(1e3 * result.seconds, 4),
        "around_ms": round(1e3 * result.around_cycles / result.chip.clock, 4),
        "memory_ms": round(1e3 * result.memory_seconds, 4),
        "kernels": [_kernel(k) for k in result.pallas],
    }


def _kernel(k: KernelEstimate) -> dict[str, Any]:
    units = {name: round(value, 3) for name, value in asdict(k.units).items()}
    return {
        "name": k.function.strip("_"),
        "cycles": round(k.cycles),
        "waiting": round(k.waiting),
        "bundles": k.bundles,
        "spills": k.spills,
        "fills": k.fills,
        "vmem": k.vmem,
        "hbm_bytes": k.hbm_bytes,
        **units,
        **({"doubts": list(k.doubts)} if k.doubts else {}),
    }


# ---------------------------------------------------------------- the sweep


def versions() -> Mapping[str, str]:
    from importlib.metadata import PackageNotFoundError, version

    found: dict[str, str] = {}
    for package in ("jax", "libtpu", "tokamax"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "absent"
    return found


def read(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {"rows": []}
    return json.loads(path.read_text(encoding="utf-8"))


def key_of(row: Mapping[str, Any]) -> str:
    return f"{row['contender']} {row['cell']} {'x'.join(map(str, row['tile']))}"


def save(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    order = {job.key: i for i, job in enumerate(jobs())}
    kept = sorted((r for r in rows if key_of(r) in order), key=lambda r: order[key_of(r)])
    head = {"method": list(CAVEATS), "versions": dict(versions()), "heads": HEADS, "batch": 1, "dtype": "bf16"}
    files.write(path, files.json_rows({**head, "rows": kept}))


def sweep(path: Path, keep: Path | None, workers: int, only: str) -> None:
    rows = {key_of(row): row for row in read(path)["rows"]}
    waiting = [job for job in jobs() if job.key not in rows and re.search(only, job.key)]
    with ThreadPoolExecutor(workers) as pool:
        running = {pool.submit(measure, job, keep): job for job in waiting}
        for number, future in enumerate(as_completed(running), 1):
            row = future.result()
            rows[running[future].key] = row
            said = row.get("refused") or f"{row['ms']:.3f} ms"
            print(f"{number}/{len(waiting)} {running[future].key}: {said}", flush=True)
            if number % 5 == 0 or number == len(waiting):
                save(path, rows.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--report", action="store_true", help="print the table and draw the plot of what is there")
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 1) // 2), help="compilers at a time")
    parser.add_argument("--only", default="", metavar="REGEX", help="jobs whose key matches, as 'attngen v5e'")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep what was compiled, to estimate it again")
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="FILE")
    args = parser.parse_args()
    if not args.report:
        if args.keep is not None:
            args.keep.mkdir(parents=True, exist_ok=True)
        sweep(args.results, args.keep, args.jobs, args.only)
    tpu_report.write(read(args.results), args.results.with_suffix(".svg"))


if __name__ == "__main__":
    main()
