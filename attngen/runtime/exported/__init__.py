"""The runtime of files that attngen compiles for Triton: the same for all of them, and free to edit.

`rows.py` has device functions that kernels for every GPU call, `sm90.py` those that kernels of compute capability 9.0
call, `gluon.py` the names that releases of Triton call differently. None of them knows a mask or a score.
"""

# pyright: reportMissingTypeStubs=false

import triton

API = 1  # a generated file says for which it was written

# The first and last release of Triton that this is tested with, and whose private names it knows.
RELEASES = ((3, 6), (3, 9))
KNOWN = RELEASES[0] <= tuple(map(int, triton.__version__.split(".")[:2])) <= RELEASES[1]
