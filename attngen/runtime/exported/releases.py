# pyright: reportMissingTypeStubs=false

"""The releases of Triton whose private names this runtime knows."""

import triton

RELEASES = ((3, 6), (3, 9))  # the first and last that this is tested with
KNOWN = RELEASES[0] <= tuple(map(int, triton.__version__.split(".")[:2])) <= RELEASES[1]
