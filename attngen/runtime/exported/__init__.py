# pyright: reportMissingTypeStubs=false

"""The runtime of files that attngen compiles for Triton: the same for every specification.

`host` checks calls, launches kernels and differentiates; `rows` has device functions for every GPU, `sm90` those for
compute capability 9.0. None of them knows a mask or a score. A file carries what it calls, or imports it from here.
"""

import triton

API = 2  # a generated file says for which it was written

# The first and last release of Triton that this is tested with, and whose private names it knows.
RELEASES = ((3, 6), (3, 9))
KNOWN = RELEASES[0] <= tuple(map(int, triton.__version__.split(".")[:2])) <= RELEASES[1]
