"""Names and types: syntax tree to typed IR.

`analyse` takes a parsed file and gives `ir.attention.Attention`, closed and typed, or raises every mistake at once.
Whether what the file says streams well and stays in bounds is for the stages behind it.
"""

from attngen.analyse.spec import analyse

__all__ = ["analyse"]
