"""The prover: shows that the plan which is really emitted computes the attention that the file defines, or refuses it.

One module an obligation (`streaming`, `ranges`, …); each takes the attention, the plan's claims and a budget, and gives
`Claim`s. They use none of the planner's reasoning for what they check: `algebra` is the one door to sympy, `smt` the
one door to z3, `intervals` bounds floats. `verdict` holds the three verdicts.
"""
