"""Where the shipped rows of the kernels of compute capability 9.0 come from: candidates timed over specs and shapes.

    python benchmarks/tune.py --prepare build/kernels.pickle                            # anywhere: proves and writes
    python benchmarks/tune.py --kernels build/kernels.pickle -o benchmarks/tuned.json   # on the GPU; again, to go on
    python benchmarks/tiles.py benchmarks/tuned.json       # anywhere: what `attngen/plan/tiles/hopper.py` should say

It does what `attngen tune SPEC --target triton --own` does for one spec and shape, for all in one process: causal and
full masks at head dims 64, 128 and 256, six variants at 128, three of them at 64, each at 4,096 and 16,384 positions.
Candidates of all of them are compiled ahead on the other cores, so that the card waits for few. The file has what
`compile --tiles` reads.
"""

from __future__ import annotations

import argparse
import importlib
import multiprocessing
import os
import pickle
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

from report import say  # noqa: E402

from attngen import api, files, inputs  # noqa: E402
from attngen.aot import compile as aot  # noqa: E402
from attngen.cli import gpu  # noqa: E402
from attngen.cli.tune import timer_of  # noqa: E402
from attngen.errors import Source, UsageError  # noqa: E402
from attngen.plan.tiles.hopper_trials import rows_of  # noqa: E402
from attngen.tune import (  # noqa: E402
    ahead,
    keys as tile_keys,
)
from attngen.tune.gpu import LOST, Candidate, Key, LostError, Timer, Tuning, rounds, trials  # noqa: E402
from attngen.tune.gpu_file import dump, load  # noqa: E402

FULL = "attention full\n\nmask = true\n"
TOKENS, WIDTH = 16384, 2048
"""A batch's positions, and heads times head dim: as in the other benchmarks."""
PLAIN, VARIANTS = ("causal", "full"), ("alibi", "softcap", "sliding_window", "prefix_lm", "documents", "relative_bias")
NARROW = ("alibi", "sliding_window", "documents")
"""Variants at head dim 64, too."""
LENGTHS = (4096, 16384)
GIVEN = {"prefix_lm": {"prefix": 1024}}


@dataclass(frozen=True, slots=True)
class Case:
    spec: str
    head_dim: int
    length: int

    @property
    def wanted(self) -> dict[str, int]:
        heads = WIDTH // self.head_dim
        sizes = {"B": TOKENS // self.length, "Hq": heads, "Hkv": heads, "Sq": self.length, "Sk": self.length}
        return {**sizes, "D": self.head_dim, "Dv": self.head_dim}

    def __str__(self) -> str:
        return f"{self.spec}, D = {self.head_dim}, N = {self.length}"


def cases(names: Sequence[str], head_dims: Sequence[int], lengths: Sequence[int]) -> list[Case]:
    """Lengths of a spec and head dim come one after the other: the second finds the first one's binaries."""
    known = {d: (*PLAIN, *{64: NARROW, 128: VARIANTS}.get(d, ())) for d in head_dims}
    found = [(spec, d) for d in head_dims for spec in names if spec in known[d]]
    return [Case(spec, d, n) for spec, d in found for n in lengths]


def source_of(name: str) -> Source:
    if name == "full":
        return Source(FULL, "full")
    path = ROOT / "examples" / f"{name}.attn"
    return Source(path.read_text(encoding="utf-8"), str(path))


def build(name: str) -> api.Kernel:
    return api.build(source_of(name), api.options())


# ---------------------------------------------------------------- one case


class Bench:
    """What is known of a case and how it is timed: the card sees it first when its turn comes."""

    def __init__(self, case: Case, kernel: api.Kernel, card: str, known: Mapping[Key, Tuning], target: Any):
        self.case, self.kernel = case, kernel
        self.sizes = inputs.settle(kernel.spec, case.wanted, fixed=set(case.wanted))
        row = ("sm_90", 2, case.head_dim)
        self.rows = rows_of(kernel.plan, kernel.spec.tile, (case.head_dim, case.head_dim))
        key = tile_keys.gpu_key(source_of(case.spec), kernel.spec, card, row, "bf16", self.sizes)
        self.tuning = known.get(key, Tuning(key))
        request = aot.request(kernel.source, kernel.spec, arch="sm_90", dtype="bf16", sizes=self.sizes, target=target)
        self.job = ahead.Job(request, row, self.rows)
        self.own: list[Candidate] = [*self.rows.by_kernel.items()]
        self._timer: Timer | None = None

    def timer(self) -> Timer:
        if self._timer is None:
            torch: Any = importlib.import_module("torch")
            self._timer, _ = timer_of(torch, self.kernel, self.sizes, "bf16", GIVEN.get(self.case.spec, {}))
        return self._timer


def begin(benches: Sequence[Bench], waiting: Sequence[Sequence[Candidate]], compilers: ahead.Compilers) -> None:
    """Each binary once: a spec's are the same for all lengths."""
    begun: set[tuple[str, int, Candidate]] = set()
    for bench, candidates in zip(benches, waiting, strict=True):
        new = [c for c in candidates if not bench.tuning.tried(*c)]
        new = sorted(new, key=lambda c: c not in bench.own)
        binary = bench.case.spec, bench.case.head_dim
        compilers.begin(bench.job, [c for c in new if (*binary, c) not in begun])
        begun |= {(*binary, c) for c in new}


def run(benches: Sequence[Bench], compilers: ahead.Compilers, end: float) -> Iterator[None]:
    """Round after round, each over all cases, so that what a round asks for is compiled while others are timed. Yields
    whenever there is something to write."""
    for number in range(2):
        waiting = [rounds({}, b.tuning.key, b.rows, tiles=False)[number][1](b.tuning) for b in benches]
        begin(benches, waiting, compilers)
        for bench, candidates in zip(benches, waiting, strict=True):
            if all(bench.tuning.tried(*c) for c in candidates):
                continue
            start, known = time.monotonic(), len(bench.tuning.trials)
            for own in bench.own:  # what the case itself is compared with
                compilers.wait(bench.job, own)
            timer = compilers.timer(bench.job, bench.timer())
            for trial in trials(bench.tuning, candidates, timer):
                bench.tuning = bench.tuning if trial is None else bench.tuning.with_trial(trial)
                if time.monotonic() > end:
                    break
            lost = any(t.refused.startswith(LOST) for t in bench.tuning.trials[known:])
            if lost or not all(bench.tuning.tried(*c) for c in candidates):
                say(f"{bench.case}: stopped; run the same command again to go on")
                yield
                if lost:
                    raise LostError(bench.tuning.trials[-1].refused)
                return
            say(f"{bench.case}: {len(candidates)} candidates, {time.monotonic() - start:.1f} s")
            yield


def built(names: Sequence[str]) -> dict[str, api.Kernel]:
    """Proved side by side."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max(1, min(len(names), ahead.workers())), spawn) as pool:
        return dict(zip(names, pool.map(build, names), strict=True))


def main(argv: Sequence[str]) -> int:
    p = argparse.ArgumentParser(
        prog="tune.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("-o", "--output", type=Path, default=ROOT / "benchmarks" / "tuned.json")
    p.add_argument("--specs", type=lambda text: text.split(","), default=[*PLAIN, *VARIANTS], metavar="NAME,…")
    p.add_argument("--head-dims", type=numbers, default=[128, 64, 256], metavar="D,…")
    p.add_argument("--lengths", type=numbers, default=[*LENGTHS], metavar="N,…")
    p.add_argument("--prepare", type=Path, metavar="FILE", help="write what will be tuned there, which needs no GPU")
    p.add_argument("--kernels", type=Path, metavar="FILE", help="what --prepare wrote")
    p.add_argument("--budget", type=float, default=float("inf"), metavar="S", help="stop after so many seconds")
    args = p.parse_args(argv)
    end = time.monotonic() + args.budget
    try:
        unknown = [name for name in args.specs if name not in (*PLAIN, *VARIANTS)]
        if unknown:
            raise UsageError(f"no spec {unknown[0]!r}; there are {', '.join((*PLAIN, *VARIANTS))}")
        if args.prepare is not None:
            args.prepare.parent.mkdir(parents=True, exist_ok=True)
            args.prepare.write_bytes(pickle.dumps(built(args.specs)))
            return 0
        torch = gpu.require_gpu("tune.py", "attngen tune --chip v6e tunes for a TPU that needn't be there")
        path = args.output
        tunings = {t.key: t for t in load(files.read_source(path))} if path.exists() else {}
    except UsageError as error:
        print(f"tune.py: {error}", file=sys.stderr)
        return 2
    if args.kernels is not None:
        prepared = pickle.loads(args.kernels.read_bytes())
        kernels = {name: prepared[name] for name in args.specs}
    else:
        kernels = built(args.specs)
    say(f"{len(kernels)} specs are proved and written")
    target = gpu.target_here()
    card = torch.cuda.get_device_name()
    wanted = cases([*kernels], args.head_dims, args.lengths)
    benches = [Bench(case, kernels[case.spec], card, tunings, target) for case in wanted]
    try:
        with ahead.Compilers(ahead.workers()) as compilers:
            for _ in run(benches, compilers, end):
                tunings |= {b.tuning.key: b.tuning for b in benches if b.tuning.trials}
                files.write(path, dump([*tunings.values()]))
    except LostError as error:
        say(str(error))
        sys.stdout.flush()
        os._exit(3)  # an ordinary end would wait for the device
    say(f"{sum(len(b.tuning.trials) for b in benches)} trials of {len(benches)} cases in {path}")
    return 0


def numbers(text: str) -> list[int]:
    return [int(n) for n in text.split(",")]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
