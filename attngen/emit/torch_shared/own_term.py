"""The denominator's own term on the host: lines of PyTorch that evaluate it for functions of parts.

Takes the spec and the term, returns lines. A generated file has them in a function, and a `Kernel` executes the same
lines (`attngen.pieces`), so that torch.compile traces them like any other code.
"""

from __future__ import annotations

from collections.abc import Mapping

from attngen.emit.torch_shared import expressions as host_expressions
from attngen.emit.torch_shared.calls import Calls
from attngen.errors import UsageError
from attngen.ir import printing
from attngen.ir.attention import Attention, Param
from attngen.ir.nodes import Expr, Literal, Symbol, Type
from attngen.ir.walk import params as read_params, reads, symbols
from attngen.plan.score.weights import Weights

Lines = tuple[str, ...]

_KNOWN = {"b", "h", "Hq"}
_OF_PACKED_ROWS = (
    "the denominator's own term reads `b`, and packed rows do not say whose they are: finish each sequence by itself"
)


def readable_term(name: str, w: Weights) -> Expr | None:
    """The own term of the spec `name`. Raises `UsageError` where it reads what functions of parts are not told."""
    term = w.own_term
    unknown = [] if term is None else sorted(symbols(term) - _KNOWN)
    if unknown:
        raise UsageError(
            f"{name}: the denominator's own term reads `{unknown[0]}`, which functions of parts are not told: "
            "give it as a param with a number for each head"
        )
    return term


def own_lines(spec: Attention, term: Expr, *, refuse: str, calls: Calls) -> Lines:
    """The body of a function of `lse`, `params` by name, and `cu_seqlens_q` (or None). It returns the logarithm of the
    denominator's own term, like `lse`. It calls `refuse`."""
    read = read_params(term)
    names = {
        "b": "at_b",
        "h": "at_h",
        "Hq": "heads",
        "device": "lse.device",
        "element": calls.element,
        "listed": calls.listed,
        **{n: f'values["{n}"]' for n in read},
    }
    return (
        *(("if lse.dim() == 2:", f'    {refuse}("{_OF_PACKED_ROWS}")') if reads(term, "b") else ()),
        *(
            line
            for n in read
            for line in (
                f'if params.get("{n}") is None:',
                f'    {refuse}("{n} is missing: the denominator\'s own term reads it")',
            )
        ),
        *(
            line
            for n in read
            if spec.param(n).shape
            for line in (
                f'if not isinstance(params["{n}"], torch.Tensor):',
                f'    {refuse}(f"{n} must be a torch.Tensor, not {{type(params[{n!r}]).__name__}}")',
            )
        ),
        "heads = lse.shape[-2]",
        f"values = {{n: torch.as_tensor(params[n], device=lse.device) for n in {read!r}}}",
        *(f'values["{n}"] = values["{n}"].{_WIDENED[spec.param(n).type]}()' for n in read),
        *(
            line
            for p in spec.params
            if p.name in read and p.shape
            for line in _fitting(p, refuse, batch=reads(term, "b"))
        ),
        "at_h = torch.arange(heads, device=lse.device).reshape(1, heads, 1)",
        "at_b = torch.arange(lse.shape[0], device=lse.device).reshape(-1, 1, 1)",
        f"own = torch.as_tensor({host_expressions.torch(term, names)}, device=lse.device).float()",
        "own = own.reshape(own.shape[1:]) if own.dim() == 3 and lse.dim() == 2 else own",
        "if cu_seqlens_q is None:",
        "    return own.expand(lse.shape)",
        "rows = torch.arange(lse.shape[-1], device=lse.device)",
        "return torch.where((cu_seqlens_q[0] <= rows) & (rows < cu_seqlens_q[-1]), own, -torch.inf)",
    )


_WIDENED = {Type.FLOAT: "float", Type.INT: "long", Type.BOOL: "bool"}
"""As kernels compute with it: small ints would wrap around."""


def _fitting(param: Param, refuse: str, *, batch: bool) -> Lines:
    """Refuses another shape, and repeats dims of size 1. `batch`: parts have one."""
    names = {"Hq": "heads", **({"B": "lse.shape[0]"} if batch else {})}
    value, wanted = f"values[{param.name!r}]", [size_text(d, names) for d in param.shape]
    shown = f"({', '.join(map(printing.expression, param.shape))})"
    if "-1" not in wanted:
        shown += f" = {{({', '.join(wanted)},)}}"
    checks = [f"{value}.shape[{i}] in (1, {dim})" for i, dim in enumerate(wanted) if dim != "-1"]
    return (
        f"if not ({' and '.join([f'{value}.dim() == {len(wanted)}', *checks])}):",
        f'    {refuse}(f"{param.name} must have shape {shown}, not {{tuple({value}.shape)}}")',
        f"{value} = {value}.expand({', '.join(wanted)})",
    )


def size_text(dim: Expr, names: Mapping[str, str]) -> str:
    """A dimension for `expand`; `names` has the sizes that are known."""
    match dim:
        case Symbol():
            return names.get(dim.id, "-1")
        case Literal():
            return repr(dim.value)
        case _:
            return "-1"
