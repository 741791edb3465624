"""The prover: shows that the plan which is really emitted computes the attention that the file defines, or refuses it.

`obligations` has one module for each obligation. It takes the attention, the plan and a budget of work, and returns
`Claim`s. It uses none of the planner's reasoning for what it checks. Only `algebra/sympy_door.py` imports sympy, and
only `integers/z3_door.py` z3; `intervals` bounds floats. `verdict` holds the three verdicts.
"""
