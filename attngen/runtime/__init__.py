"""Runs generated source: `loader` imports it, in an interpreter where there is no GPU or TPU.

`forked` runs a function in a process of its own, and `merging` has the kernel that merges two parts of
a result.
"""
