"""A compiled kernel against the float64 reference, result by result, on shapes that tend to break kernels.

Takes a `Kernel`, a `Case` and a device; returns `Comparison`s. Dense tensors are compared by `verify/comparison.py`,
sequences by `verify/sequences.py`, and pieces, merged, by `verify/pieces.py`. `attngen verify` prints what they return.
"""
