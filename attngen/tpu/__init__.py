"""A TPU's schedule without a TPU: libtpu compiles ahead of time, and what it scheduled is read, executed and counted.

`chips` (what is known of each chip), `compile` (libtpu in a process of its own, `worker`, with `known` finding the
values of tables), `bundles` (reads the schedule), `simulate` (executes its scalar part; `dma` times the copies),
`estimate` (cycles, use of each unit, bytes, roofline), `report` (tables), `tune` (tile sizes by estimated cycles).

An estimate is no TPU's time. Compare kernels by their ratio.
"""
