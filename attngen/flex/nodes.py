"""What a function of one pair computes, as nodes, and their text in the language.

Takes nodes; returns expressions as a spec has them, with few brackets. Nodes are shared as the function shares them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

Kind: TypeAlias = Literal["bool", "int", "float"]
Text: TypeAlias = tuple[str, int]
"""(text, how strongly its outermost operator binds)"""

INDEX, POWER, SIGN, PRODUCT, SUM, SHIFT, MEET, DIFFERENCE, UNION, COMPARISON, NOT, AND, OR, CHOICE = range(14, 0, -1)
INFIX: Mapping[str, int] = {
    "*": PRODUCT, "/": PRODUCT, "//": PRODUCT, "%": PRODUCT, "+": SUM, "-": SUM, "<<": SHIFT, ">>": SHIFT,
    "&": MEET, "^": DIFFERENCE, "|": UNION, "<": COMPARISON, "<=": COMPARISON, ">": COMPARISON, ">=": COMPARISON,
    "==": COMPARISON, "!=": COMPARISON, "in": COMPARISON, "and": AND, "or": OR, "**": POWER,
}  # fmt: skip


@dataclass(frozen=True, eq=False, slots=True)
class Node:
    """`word`: an operator of the language, a function's name, or `name`, `number`, `read` and `choice`. `value`: of a
    number; `name`: of an index or a param; `line`: (file, number), of the user's function."""

    word: str
    kind: Kind
    operands: tuple[Node, ...] = ()
    name: str = ""
    value: float | int | bool = 0
    line: tuple[str, int] = ("", 0)

    @property
    def is_number(self) -> bool:
        return self.word == "number"


def name(text: str, kind: Kind) -> Node:
    return Node("name", kind, name=text)


def number(value: float | int | bool) -> Node:
    kind: Kind = "bool" if isinstance(value, bool) else "int" if isinstance(value, int) else "float"
    return Node("number", kind, value=value)


def numeric(node: Node, kind: Kind = "int") -> Node:
    """A bool as a number of this kind."""
    if node.kind != "bool":
        return node
    if node.is_number:
        return number(float(node.value) if kind == "float" else int(node.value))
    return Node(kind, kind, (node,))


def truth(node: Node) -> Node:
    """A number as a bool."""
    return node if node.kind == "bool" else Node("!=", "bool", (node, number(0)))


def printed(node: Node, said: Callable[[Node], Text | None]) -> Text:
    """`said` gives the name of a node that has one. A param's is that of its node without an index."""
    known = said(node)
    if known is not None:
        return known
    match node.word:
        case "name":
            return node.name, INDEX
        case "number":
            return _number(node.value)
        case "read":
            param = printed(name(node.name, node.kind), said)[0]
            return f"{param}[{', '.join(printed(x, said)[0] for x in node.operands)}]", INDEX
        case "choice":
            condition, yes, no = (printed(x, said) for x in node.operands)
            return f"{_in(yes, OR)} if {_in(condition, OR)} else {_in(no, CHOICE)}", CHOICE
        case "not":
            return f"not {_in(printed(node.operands[0], said), NOT)}", NOT
        case "~":
            return f"~{_in(printed(node.operands[0], said), SIGN)}", SIGN
        case "-" if len(node.operands) == 1:
            return f"-{_in(printed(node.operands[0], said), SIGN)}", SIGN
        case word if word in INFIX:
            strength = INFIX[word]
            left, right = (printed(x, said) for x in node.operands)
            loose = strength in (COMPARISON, POWER)  # comparisons would chain
            return f"{_in(left, strength + loose)} {word} {_in(right, strength + 1)}", strength
        case word:
            return f"{word}({', '.join(printed(x, said)[0] for x in node.operands)})", INDEX


def _in(text: Text, least: int) -> str:
    return text[0] if text[1] >= least else f"({text[0]})"


def _number(value: float | int | bool) -> Text:
    if isinstance(value, bool):
        return ("true" if value else "false"), INDEX
    if value < 0 or (value == 0 and math.copysign(1, value) < 0):
        return f"-{_number(-value)[0]}", SIGN
    if math.isinf(value):
        return "inf", INDEX
    return repr(value), INDEX
