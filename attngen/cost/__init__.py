"""What an attention costs on a chip before anything runs there: operations, bytes, cycles, roofline.

`chips` (data sheets), `grids` (which tiles the plan's loops visit), `operations` (what a pair costs), `passes` (both
loop orders, forward and backward), `hopper` (kernels of compute capability 9.0), `model` (the whole, and its roofline),
`table`, `plot`; and a small machine, `systolic` (cycles of a systolic array with a vector unit).
"""
