"""The specs of the adapters: what a model asks of its attention, as a typed choice, and the choice as a spec's text.

Takes choices, returns text and kernels. Knows no library; each adapter reads its library's calls and makes the choice.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

from attngen import cache
from attngen.api import Kernel, compile as compile_spec


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One attention of the adapters. The kernel of a choice takes exactly the params that `text` declares.

    A query sees its own key, `before` keys before it and `after` keys after it; None stands for all. `chunk` allows
    pairs within one chunk of that many positions. `spans`: tokens of one span see each other whatever these say,
    but none more than `reach` keys before its own.
    `documents` takes ids of tokens instead of packed tensors. `bias` is added to the score of each pair, as T5 has it.
    `block`: each query has a list of blocks of that many keys, which it sees alone. Both are read by the rows of dense
    calls, where `kept` says which keys are not padding.
    """

    before: int | None = None
    after: int | None = 0
    chunk: int | None = None
    spans: bool = False
    reach: int | None = None
    softcap: float | None = None
    sinks: bool = False
    dropout: bool = False
    documents: bool = False
    bias: bool = False
    block: int | None = None
    kept: bool = False

    @property
    def causal(self) -> bool:
        return self.after == 0

    @property
    def window(self) -> tuple[int | None, int | None] | None:
        """(before, after), unless the mask is just causal or full."""
        return None if self.before is None and self.after in (None, 0) else (self.before, self.after)

    def name(self) -> str:
        """What profilers call the kernels."""
        parts = {
            "windowed": self.window,
            "chunked": self.chunk,
            "spans": self.spans,
            "softcap": self.softcap,
            "sinks": self.sinks,
            "dropout": self.dropout,
            "documents": self.documents,
            "bias": self.bias,
            "blocks": self.block,
            "kept": self.kept,
        }
        return "_".join(["causal" if self.causal else "full", *(part for part, chosen in parts.items() if chosen)])

    def text(self) -> str:
        """The spec. Positions are those of one sequence, whose last query is at its last key."""
        params: list[str] = []
        mask: list[str] = []
        if self.window is None:
            mask.extend(["causal"] if self.causal else [])
        elif self.causal and self.before is not None:
            mask.append(f"sliding_window({self.before + 1})")
        else:
            first = "" if self.after is None else f"{-self.after} <= "
            last = "" if self.before is None else f" <= {self.before}"
            mask.append(f"{first}distance{last}")
        if self.chunk is not None and self.documents:
            params.append("param position: int[B, Sk]  # of a token in its document")
            mask.append(f"position[b, q] // {self.chunk} == position[b, k] // {self.chunk}")
        elif self.chunk is not None:
            params.append("param first: int[B]  # the position of the sequence's first stored key")
            mask.append(f"(q + Sk - Sq + first[b]) // {self.chunk} == (k + first[b]) // {self.chunk}")
        if self.spans:
            params.append("param span: int[B, Sk]  # which image a token belongs to; below 0 if to none")
            mask = [f"({' and '.join(mask)} or (span[b, q + Sk - Sq] == span[b, k] and span[b, k] >= 0))"]
            mask += [] if self.reach is None else [f"distance <= {self.reach}"]
        if self.documents:
            params.append("param ids: int[B, Sk]  # which document a token belongs to")
            mask.append("same_document(ids)")
        if self.block is not None:
            params.append("param chosen: int[B, Hkv, Sq, n]  # numbers of blocks; below 0 is none")
            mask.append(f"k // {self.block} in chosen[b, hkv, q]")
        if self.kept:
            params.append("param kept: bool[B, Sk]  # false for padding")
            mask.append("kept[b, k]")
        if self.bias:
            params.append("param bias: f32[B, Hq, Sq, Sk]")
        if self.sinks:
            params.append("param sink: f32[Hq]")
        if self.dropout:
            params.append("param p: f32 where 0 <= p < 1")
        lines = [f"attention {self.name()}", *params]
        score = "qk * scale + bias[b, h, q, k]" if self.bias else "qk * scale"
        if self.softcap is not None:
            score = f"softcap({score}, {float(self.softcap)!r})"
        lines.append(f"score = {score}")
        lines.append(f"mask = {' and '.join(mask) or 'true'}")
        if self.sinks:
            lines.append("normalizer = softmax(sink = sink[h])")
        if self.dropout:
            lines.append("dropout = p")
        if self.documents:
            lines.append("assume Sq == Sk")
        return "\n".join(lines) + "\n"


class _Kernels:
    """Every kernel of this process, as an attribute named by its spec and target.

    Attributes, since `torch.compile` reads each when it comes to it. It would copy a dict at the first read, without
    the kernels of later layers.
    """


def _compiled(spec: str, target: str) -> str:
    """The attribute of a kernel, which is compiled if this is the first call."""
    name = f"{target}_{cache.digest(spec)}"
    with _COMPILING:
        if not hasattr(_Kernels, name):
            kernel = compile_spec(spec, target)
            _ = kernel.function  # loaded here: without a GPU that turns Triton's interpreter on
            setattr(_Kernels, name, kernel)
    return name


# `torch.compile` calls this function instead of tracing into it, as `torch.compiler.assume_constant_result` has it.
_compiled._dynamo_marked_constant = True  # pyright: ignore[reportFunctionMemberAccess]
_COMPILING = threading.Lock()


def compiled(choice: Choice, target: str) -> Kernel:
    """The kernel of a choice, compiled once a process."""
    return getattr(_Kernels, _compiled(choice.text(), target))
