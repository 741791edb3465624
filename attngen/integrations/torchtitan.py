"""attngen's kernels as the packed attention of torchtitan: a module in the place of its `VarlenInnerAttention`.

    attention = VarlenAttention("alibi.attn", params={"slope": torch.nn.Parameter(slopes)})
    out = attention(q, k, v, attention_metadata=metadata)

torchtitan itself is not needed. A model of torchtitan's holds it inside a module that its configuration builds:

    class Alibi(VarlenInnerAttention):
        def __init__(self, config):
            super().__init__(config)
            self.inner = VarlenAttention("alibi.attn", params=...)

        def forward(self, *operands, **keywords):
            return self.inner(*operands, **keywords)

q (T, Hq, D), k (T, Hkv, D), v (T, Hkv, Dv) hold the tokens of all documents, one after the other, and the metadata says
where each begins. Release 0.3.0 passes them by rows, (B, L, H, D), and gets the result by rows.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, Protocol, cast

from torch import Tensor, nn

from attngen import targets
from attngen.api import Kernel, compile as compile_spec
from attngen.distributed.torch.current import current_region
from attngen.errors import UsageError
from attngen.integrations.specs import Choice, compiled


class Metadata(Protocol):
    """Where documents begin: torchtitan's `VarlenAttentionMetadata` (`VarlenMetadata` in older releases)."""

    @property
    def cu_seq_q(self) -> Tensor: ...
    @property
    def cu_seq_k(self) -> Tensor: ...
    @property
    def max_q(self) -> int | float: ...
    @property
    def max_k(self) -> int | float: ...


class VarlenAttention(nn.Module):
    """Attention within each document of packed tensors.

    `spec` is an attention of your own: a path, a text, or a compiled `Kernel`. `params` are its params: an
    `nn.Parameter` is trained with the model, another tensor is a buffer, and any other value is passed as it is.
    Without a spec, `window_size` says which keys a query sees, as in torchtitan: so many before its own and so many
    after it, -1 for all of them.
    """

    def __init__(
        self,
        spec: str | os.PathLike[str] | Kernel | None = None,
        params: Mapping[str, Any] | None = None,
        *,
        window_size: tuple[int, int] = (-1, 0),
        target: str = "triton",
    ) -> None:
        super().__init__()
        if spec is not None and window_size != (-1, 0):
            raise UsageError("window_size belongs to the attention without a spec: write the window into the spec")
        if spec is None:
            self.kernel = compiled(_windowed(window_size), target)
        else:
            self.kernel = spec if isinstance(spec, Kernel) else compile_spec(spec, target)
        if "packed" not in targets.named(self.kernel.target).geometries:
            raise UsageError(f"packed sequences are for kernels of target triton, not {self.kernel.target}")
        if params is not None and not isinstance(cast(Any, params), Mapping):
            raise UsageError(f"params must be a dict of the spec's params by name, not {type(params).__name__}")
        _ = self.kernel.function  # loaded here: without a GPU that turns Triton's interpreter on
        self.constants: dict[str, Any] = {}
        declared = {param.name for param in self.kernel.spec.params}
        for name, value in (params or {}).items():
            if name not in declared:
                raise UsageError(
                    f"{self.kernel.name} has no param {name!r}; it has {', '.join(sorted(declared)) or 'none'}"
                )
            if isinstance(value, Tensor) and hasattr(self, name):
                raise UsageError(f"param {name!r}: an nn.Module has an attribute of that name; rename it in the spec")
            if isinstance(value, nn.Parameter):
                self.register_parameter(name, value)
            elif isinstance(value, Tensor):
                self.register_buffer(name, value)
            else:
                self.constants[name] = value

    def forward(
        self,
        q_THK: Tensor,
        k_THK: Tensor,
        v_THV: Tensor,
        *,
        attention_metadata: Metadata | None = None,
        attention_masks: Metadata | None = None,
        scale: float | None = None,
        out_transform: Callable[[Tensor, Tensor], Tensor] | None = None,
        **kwargs: Any,
    ) -> Tensor:
        """The output (T, Hq, Dv), or what `out_transform` makes of it and of lse (T, Hq); by rows, (B, L, Hq, Dv) and
        (B, L, Hq), where the operands come so.

        The metadata is `attention_metadata`, in older releases `attention_masks`. Other keywords are params of the
        spec; `enable_gqa` goes without saying. Inside `attngen.distributed.context_parallel_region` tensors have the
        rows of one rank, and the region says where documents begin.
        """
        rows, operands = _packed(q=q_THK, k=k_THK, v=v_THV)
        given = {name: value for name, value in kwargs.items() if name != "enable_gqa" and value is not None}
        params = {**self.constants, **dict(self.named_parameters()), **dict(self.named_buffers()), **given}
        arguments = {"scale": scale, "return_lse": out_transform is not None, **params}
        region = current_region()
        if region is None:
            metadata = attention_masks if attention_metadata is None else attention_metadata
            found: Any = self._varlen(operands, metadata, arguments)
        else:
            found = region(self.kernel, *operands, **arguments)
        out, *lse = found if out_transform is not None else (found,)
        results = [x if rows is None else x.unflatten(0, rows) for x in (out, *(x.mT for x in lse))]
        return results[0] if out_transform is None else out_transform(*results)

    def _varlen(
        self, operands: tuple[Tensor, Tensor, Tensor], metadata: Metadata | None, arguments: Mapping[str, Any]
    ) -> Any:
        if metadata is None:
            raise UsageError("attention_metadata is missing: it says where the documents begin")
        if not hasattr(metadata, "cu_seq_q"):
            kind = type(metadata).__name__
            raise UsageError(f"attention_metadata must have cu_seq_q, cu_seq_k, max_q and max_k, and is a {kind}")
        longest = {"max_seqlen_q": metadata.max_q, "max_seqlen_k": metadata.max_k}
        return self.kernel.varlen(
            *operands,
            cu_seqlens_q=metadata.cu_seq_q,
            cu_seqlens_k=metadata.cu_seq_k,
            **{name: hint for name, hint in longest.items() if isinstance(hint, int)},
            **arguments,
        )


def _packed(**operands: Tensor) -> tuple[tuple[int, int] | None, tuple[Tensor, Tensor, Tensor]]:
    """How many rows there are, of how many tokens, where tensors come by rows; and the tokens of all."""
    wanted = operands["q"].dim()
    for name, x in operands.items():
        if x.dim() != wanted or wanted not in (3, 4):
            shapes = "(T, N, H): tokens, heads, head dim, or (B, L, N, H) as q, k and v alike"
            raise UsageError(f"{name} has shape {tuple(x.shape)}, and must be {shapes}")
    q, k, v = operands.values()
    if wanted == 3:
        return None, (q, k, v)
    return (q.shape[0], q.shape[1]), (q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1))


def _windowed(window_size: tuple[int, int]) -> Choice:
    pair = isinstance(cast(Any, window_size), tuple | list) and len(cast(Any, window_size)) == 2
    if not pair or any(type(n) is not int or n < -1 for n in window_size):
        raise UsageError(
            f"window_size {window_size!r} must be two ints, how many keys before a query's own and after it, "
            "-1 for no limit; for another mask pass a spec"
        )
    before, after = (None if n == -1 else n for n in window_size)
    return Choice(before=before, after=after)
