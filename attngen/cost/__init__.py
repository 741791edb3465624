"""What an attention costs on a chip before anything runs there: operations, bytes, cycles, roofline.

`chips` (data sheets), `grids` (which tiles the plan's loops visit), `operations` (what a pair costs), `passes` (both
loop orders, forward and backward), `model` (the whole, and its roofline), `table`, `plot`; and the two small machines
that the model's rules are read off: `systolic` (cycles of a systolic array with a vector unit) and `machine` with
`programs` (a register machine that counts its loads and stores).
"""
