"""Attention by pieces: partial results of stretches of a sequence, how they are merged, and their gradients.

Takes a spec and returns the kernel of its piece, of the spec that `ir.pieces` makes; and says whether a piece's place
fits. A `Kernel`'s methods `partial`, `merge`, `finish`, `partial_backward` and `finish_backward` are in `torch_pieces`,
for PyTorch's tensors, and in `jax_pieces`, for JAX's arrays. Both merge by `runtime.exported.merging`, of which
the obligation `streaming` shows that it gives the whole; nothing waits for a device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from attngen import chain, targets
from attngen.errors import UsageError
from attngen.ir.pieces import Piece, piece_of, uncounted
from attngen.piece_arguments import Checks
from attngen.runtime.exported.places import PiecePlace

if TYPE_CHECKING:
    from attngen.emit import Options
    from attngen.ir.attention import Attention
    from attngen.plan import KernelPlan
    from attngen.prove.proof import Proof


class Kernel(Protocol):
    """What is asked of a kernel here."""

    @property
    def name(self) -> str: ...
    @property
    def spec(self) -> Attention: ...
    @property
    def plan(self) -> KernelPlan: ...
    @property
    def function(self) -> Any: ...
    def __call__(self, *operands: Any, **arguments: Any) -> Any: ...
    def varlen(self, *operands: Any, **arguments: Any) -> Any: ...
    def with_results(self, out: Any, lse: Any) -> AbstractContextManager[None]: ...
    def piece(self, *, each: bool = False, clipped: bool = False) -> tuple[Piece, Kernel]: ...
    def pieces(self) -> Any: ...


@dataclass(frozen=True, kw_only=True)
class Made:
    """A piece's attention, what is emitted of it, and the file."""

    piece: Piece
    plan: KernelPlan
    proof: Proof
    text: str
    source: str


def make(name: str, spec: Attention, text: str, options: Options, *, each: bool, clipped: bool = False) -> Made:
    """The piece of a spec, planned, proved and emitted like any other; `text` is the spec as written."""
    if not targets.named(options.target).pieces:
        able = targets.listed([target for target in targets.TARGETS.values() if target.pieces])
        raise UsageError(f"{name}: pieces are for kernels that were compiled for target {able}")
    piece = piece_of(spec, each=each, clipped=clipped)
    proof, emitted = chain.prove(piece.own, chain.plan(piece.own, options.target))
    if not proof.holds:
        doubtful = ", ".join(claim.subject for _, claim in (*proof.refuted, *proof.refused))
        raise UsageError(f"{name}: what a piece computes is not proved: {doubtful}")
    text = f"{text}\n# A piece of a longer sequence{', of each sequence another' if each else ''}.\n"
    return Made(
        piece=piece, plan=emitted, proof=proof, text=text, source=targets.emit(emitted, text, options, proof.summary())
    )


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a piece is: each number an int, or an int32 tensor with one for each sequence. `h_offset` and `b_offset`:
    heads and sequences of the whole before the piece's; dropout counts them, and draws from `dropout_seed`."""

    q_offset: Any
    k_offset: Any
    Sq: Any
    Sk: Any
    cu_seqlens_q: Any = None
    cu_seqlens_k: Any = None
    h_offset: Any = 0
    b_offset: Any = 0
    dropout_seed: Any = None
    clipped: bool = False
    """Whether there are rows before the sequence, or behind it, which are left out (in JAX)."""

    @property
    def runtime(self) -> PiecePlace:
        """As the runtime takes it."""
        return PiecePlace(self.numbers, self.cu_seqlens_q, self.cu_seqlens_k, self.dropout_seed)

    @property
    def numbers(self) -> tuple[Any, ...]:
        """In the order of `Piece.numbers`; without dropout that has the first four."""
        return self.q_offset, self.k_offset, self.Sq, self.Sk, self.h_offset, self.b_offset

    @property
    def each(self) -> bool:
        """Whether sequences may have different numbers."""
        return self.runtime.each

    def check(self, checks: Checks, operands: Sequence[Any], spec: Attention, params: Mapping[str, Any]) -> None:
        """Raises `UsageError` for an argument that does not fit."""
        ends = ("cu_seqlens_q", "cu_seqlens_k")
        numbers = ("q_offset", "k_offset", "Sq", "Sk", "h_offset", "b_offset")
        found = ({name: getattr(self, name) for name in names} for names in (numbers, ends))
        checks.check_piece(operands, *found)
        for name, why in uncounted(spec).items():
            if getattr(getattr(self, name), "ndim", 0) or getattr(self, name) != 0:
                raise checks.refuse(why)
        if self.cu_seqlens_q is None and not checks.traced and all(isinstance(n, int) for n in (self.Sq, self.Sk)):
            checks.check_facts(spec, {**checks.sizes(operands), "Sq": self.Sq, "Sk": self.Sk}, params)


def check_seed(kernel: Kernel, seed: Any) -> None:
    """Raises `UsageError` where dropout has nothing to draw from: pieces that draw their own would not be one whole."""
    if kernel.spec.dropout is not None and seed is None:
        raise UsageError(f"{kernel.name}: dropout_seed is missing: all pieces of a call draw from the same one")
