"""The intermediate representation: closed, typed expression nodes and the attention that they make up.

`nodes` (expressions), `attention` (one whole variant), `build` (smart constructors that fold and simplify),
`walk` (substitution, free symbols), `interval` (what values an int or a sign can have), `printing` (stable text).
"""
