"""What `attngen compile` takes cold: a new process, nothing in the cache, until the file is written.

    python benchmarks/cold.py [--runs 7] [SPEC …]               # the examples where no spec is named

Seconds of the clock, the median of the runs and the least; nothing else should run on the machine. Whether Python has
attngen's modules compiled is what the environment says: with PYTHONDONTWRITEBYTECODE each run compiles them anew.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

EXAMPLES = Path(__file__).parents[1] / "examples"


def seconds(spec: Path) -> float:
    """Of one run."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "attngen", "compile", str(spec), "-o", f"{folder}/out.py"]
        environment = {**os.environ, "ATTNGEN_CACHE": f"{folder}/cache"}
        start = time.perf_counter()
        subprocess.run(command, env=environment, check=True)
        return time.perf_counter() - start


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("specs", nargs="*", type=Path, metavar="SPEC")
    options.add_argument("--runs", type=int, default=7)
    chosen = options.parse_args()
    for spec in chosen.specs or sorted(EXAMPLES.glob("*.attn")):
        seconds(spec)  # the system reads its files
        took = [seconds(spec) for _ in range(chosen.runs)]
        print(f"{spec.stem:20} {statistics.median(took):6.2f} s   least {min(took):.2f} s")


if __name__ == "__main__":
    main()
