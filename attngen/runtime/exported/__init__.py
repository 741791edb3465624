"""The runtime of files that attngen compiles for Triton: the same for every specification.

`host` checks calls, launches kernels and differentiates; `rows` has device functions for every GPU, `sm90` those for
compute capability 9.0. None of them knows a mask or a score. A file carries what it calls, or imports it from here.
`merging` and `places` need neither PyTorch nor Triton: attngen calls them for JAX, too.
"""

API = 2  # a generated file says for which it was written
