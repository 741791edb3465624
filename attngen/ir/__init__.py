"""The intermediate representation: closed, typed expression nodes and the attention that they make up.

`nodes` (expressions), `attention` (one whole variant), `build` (smart constructors that fold and simplify),
`walk` (substitution, free symbols), `evaluate` (values in NumPy), `printing` (stable text).
"""
