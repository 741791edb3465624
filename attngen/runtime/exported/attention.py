# pyright: strict, reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false, reportPrivateUsage=false
# PyTorch and Triton have few types, and private names.

"""A generated attention: its calls checked, its kernels launched, its gradients registered."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from . import API
from .arguments import (
    int_or_place,
    seed_tensor,
    seems_turned,
    single,
    warn_of_order,
    warn_of_rounding,
    whole_number,
)
from .calls import Calls, wants_gradient
from .devices import chip, number_tensor
from .launch import SAME
from .operators import Signature, finished, refuse_tangents

NUMBERS = (bool, int, float)
DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}


@dataclass(frozen=True)
class Param:
    """A param as the host sees it. `name`: as a caller writes it; `local`: as kernels do. `kind`: float, int or bool.

    A tensor has `strides`, the kernels' names of them, and `shape`, of the sizes of a call; `binds`: axes by the sizes
    that they bind. A scalar has neither. `either`: an int or a bool that kernels read from memory where a tensor holds
    it. `learns`: it has a gradient. One with an element for each row has `rows`, by axis what it counts: "B", "Sq",
    "Sk" or nothing; and `dims`, as the specification writes them.
    """

    name: str
    local: str = ""
    kind: str = "float"
    strides: tuple[str, ...] = ()
    shape: Callable[[Any], tuple[int, ...]] | None = None
    binds: tuple[tuple[str, int], ...] = ()
    either: bool = False
    learns: bool = False
    rows: tuple[str, ...] = ()
    dims: str = ""

    @property
    def by_pointer(self) -> bool:
        return bool(self.strides) or self.kind == "float"

    @property
    def schema(self) -> str:
        return "Tensor" if self.by_pointer else "SymInt" if self.either or self.kind == "int" else "bool"


class Attention(Calls):
    """Call it with (q, k, v, *params), scale, return_lse, dropout_seed and check.

    `check_params`, `check_sizes` and `check_facts` raise what does not fit of params, of sizes, and of elements.

    `saves`: results beside out and lse that the backward pass reads, `den` or `rest`. `scale`: see `scaled`;
    `positive`: kernels take a positive one. `fast`: kernels have the constant FAST. `only`: what `arch`, `head_dim` and
    `dtype` restrict calls to.
    """

    def __init__(
        self,
        name: str,
        key: str,
        *,
        api: int,
        forward: Callable[..., tuple[Any, ...]],
        backward: Callable[..., tuple[Any, ...]] | None = None,
        pairs: Callable[..., dict[str, Any]] | None = None,
        gradients: Callable[..., tuple[Tensor, ...]] | None = None,
        params: tuple[Param, ...] = (),
        check_params: Callable[..., Any] | None = None,
        check_sizes: Callable[..., None] | None = None,
        check_facts: Callable[..., None] | None = None,
        fetched: Callable[..., int] | None = None,
        saves: tuple[str, ...] = (),
        scale: str = "factor",
        positive: bool = True,
        dropout: bool = False,
        sums_of_none: bool = False,
        fast: bool = False,
        longest_bits: int = 27,
        only: dict[str, Any] | None = None,
    ) -> None:
        if api != API:
            raise ImportError(f"{name} needs version {api} of attngen's runtime, and {__name__} is of version {API}")
        self.name, self.params, self.only = name, params, only or {}
        self.check_params, self.check_sizes, self.check_facts = check_params, check_sizes, check_facts
        self.fetched, self.scale_use, self.positive = fetched, scale, positive
        self.dropout, self.sums_of_none, self.fast, self.longest_bits = dropout, sums_of_none, fast, longest_bits
        self.rounds = "rest" in saves
        self.kept = ("out", "lse", *saves)
        self.names = tuple(p.local or p.name for p in params)
        self.ranked = tuple(p for p in params if p.strides)
        self.at_ranked = tuple(3 + i for i, p in enumerate(params) if p.strides)
        self.at_scalars = tuple(3 + i for i, p in enumerate(params) if not p.strides)
        self.at_pointers = tuple(3 + i for i, p in enumerate(params) if p.by_pointer)
        self.at_learned = tuple(3 + i for i, p in enumerate(params) if p.learns)
        self.refusal: type[Exception] = ValueError  # an `attngen.Kernel` sets its own subclass
        self.caller = 7  # the stack level of warnings; an `attngen.Kernel` adds 2
        self.tensors_alone = not (self.at_scalars or dropout)
        self.at_scale = 3 + len(params)
        self.at_precise = self.at_scale + dropout + self.rounds  # of the operator's inputs, like those above
        super().__init__(self, key, forward, backward, gradients, pairs)

    def signature_of(self, bounds: tuple[tuple[str, str], ...]) -> Signature:
        """That of the operator, whose last inputs say where sequences are."""
        inputs = [(x, "Tensor") for x in "qkv"] + [(p.local or p.name, p.schema) for p in self.params]
        inputs += [("scale", "float")]
        inputs += [("seed", "Tensor")] if self.dropout else []
        inputs += [("precise", "bool")] if self.rounds else []
        inputs += [(f"{p.local or p.name}_at", "Tensor?") for p in self.params if p.either]
        smooth = tuple(i for i in self.at_pointers if self.params[i - 3].kind == "float" and i not in self.at_learned)
        return Signature((*inputs, *bounds), self.kept, self.at_learned, smooth)

    def finished(self, out: Tensor, lse: Tensor) -> AbstractContextManager[None]:
        """In this block, calls return these results in place of computing them."""
        return finished(out, lse)

    # ---------------------------------------------------------------- a call

    def __call__(
        self,
        operands: tuple[Any, ...],
        scale: Any = None,
        return_lse: bool = False,
        dropout_seed: Any = None,
        check: bool = False,
    ) -> Any:
        if check and self.check_facts is not None:
            self.facts_hold(operands, scale)
        results = self.call(operands, scale, dropout_seed)
        return results[:2] if return_lse else results[0]

    def tensors(self, operands: tuple[Any, ...]) -> tuple[Tensor, ...]:
        """Those whose layout decides how kernels are launched."""
        if not self.at_scalars:
            return operands[: self.at_scale]
        return (*operands[:3], *[operands[i] for i in self.at_ranked])

    def all_tensors(self, operands: tuple[Any, ...], seed: Any) -> tuple[Tensor, ...]:
        """All of a call's tensors, which somebody may look at."""
        if self.tensors_alone:
            return operands
        scalars = [operands[i] for i in self.at_scalars] + ([seed] if self.dropout else [])
        return (*self.tensors(operands), *[x for x in scalars if isinstance(x, Tensor)])

    def numbers(self, operands: tuple[Any, ...], scale: float) -> Any:
        """What a call is known to pass the checks by: numbers alone, or None."""
        if not self.at_scalars:
            return float(scale)
        scalars = [operands[i] for i in self.at_scalars]
        if any([type(x) not in NUMBERS for x in scalars]):
            return None
        return (float(scale), *[(type(x), x) for x in scalars])

    def inputs(self, operands: tuple[Any, ...], scale: float, seed: Any, own: bool) -> tuple[Any, ...]:
        """The operator's. `own`: tensors of numbers may be kept for later calls."""
        if self.tensors_alone and (scale > 0.0 or not self.positive):
            return (*operands, float(scale), self.loses(operands)) if self.rounds else (*operands, float(scale))
        q, k, v, *given = operands
        places: list[Tensor | None] = []
        for i in self.at_scalars:
            p, x = self.params[i - 3], given[i - 3]
            if p.kind == "float":
                tensor = isinstance(x, Tensor)
                x = x.to(device=q.device, dtype=torch.float32) if tensor else number_tensor(x, q.device, own)
            elif p.either:
                x, place = (x, None) if type(x) is int else int_or_place(x, q.device)
                places.append(place)
            elif p.kind == "int":
                x = x if type(x) is int else whole_number(self.refuse, p.name, x)
            else:
                x = x if type(x) is bool else bool(whole_number(self.refuse, p.name, x, "a bool"))
            given[i - 3] = x
        if self.positive and scale <= 0.0:
            # The kernels take a positive scale; its sign, or its being zero, goes into q.
            q, scale = (self.signed(q, -1.0), -scale) if scale < 0.0 else (self.signed(q, 0.0), 1.0)
        more: list[Any] = [seed_tensor(self.refuse, seed, q.device)] if self.dropout else []
        if self.rounds:
            more.append(self.loses((q, k, v, *given)))
        return (q, k, v, *given, float(scale), *more, *places)

    def signed(self, q: Tensor, sign: float) -> Tensor:
        """q times -1 or 0: what is no number stays so."""
        return q * sign

    def result_dtype(self, inputs: tuple[Any, ...]) -> torch.dtype:
        """That of out."""
        return inputs[0].dtype

    def loses(self, operands: tuple[Any, ...]) -> bool:
        """Whether the backward pass needs what rounding takes from out: in half precision a param's gradient does,
        which sums over all pairs."""
        return wants_gradient(operands, self.at_learned) and operands[0].dtype is not torch.float32

    # ---------------------------------------------------------------- checks

    def note_rounding(self, name: str, x: Tensor) -> None:
        """Warns of a float64 param."""
        if x.dtype is torch.float64 and not torch.compiler.is_compiling():
            warn_of_rounding(self.name, name, self.caller + 1)

    def single(self, name: str, x: Any) -> Any:
        """A number rounded to float32."""
        if isinstance(x, Tensor):
            self.note_rounding(name, x)
        return single(self.refuse, name, x)

    def sizes_of(self, q: Tensor, v: Tensor, tensors: tuple[Tensor, ...]) -> Any:
        """The sizes of a call by name, those that params bind among them."""
        B, Hq, Sq, D = q.shape
        Hkv, Sk, Dv = v.shape[1:]
        found = SimpleNamespace(B=B, Hq=Hq, Hkv=Hkv, Sq=Sq, Sk=Sk, D=D, Dv=Dv)
        for p, x in zip(self.ranked, tensors, strict=True):
            for name, axis in p.binds:
                setattr(found, name, x.shape[axis])
        return found

    def check(self, operands: tuple[Any, ...], scale: Any, dense: bool = True, whole: bool = False) -> tuple[Any, ...]:
        """Raises one clear error if an argument does not fit. Returns the operands, if `whole` with sizes of 1
        expanded."""
        refuse = self.refuse
        q, k, v = operands[:3]
        for name, x in (("q", q), ("k", k), ("v", v)):
            if not isinstance(x, Tensor):
                refuse(f"{name} must be a torch.Tensor, not {type(x).__name__}")
            if x.dim() != 4:
                refuse(f"{name} must have 4 dimensions (batch, heads, length, head dim), not shape {tuple(x.shape)}")
            if x.layout is not torch.strided:
                refuse(f"{name} must be a strided tensor, not {x.layout}")
            self.check_dtype(name, x)
            if x.dtype != q.dtype:
                refuse(f"{name} must have q's dtype {q.dtype}, not {x.dtype}")
            if x.device != q.device:
                refuse(f"{name} must be on q's device {q.device}, not {x.device}")
        B, Hq, Sq, D = q.shape
        k, v = (x.expand(B, -1, -1, -1) if x.shape[0] == 1 != B else x for x in (k, v))
        Hkv, Sk, Dv = v.shape[1:]
        if k.shape != (B, Hkv, Sk, D):
            wanted = (B, Hkv, Sk, D)
            refuse(f"k must have q's batch and head dim, and v's heads and length, {wanted}, not {tuple(k.shape)}")
        if v.shape[0] != B:
            refuse(f"v must have q's batch {B}, not {v.shape[0]}")
        if Hq % Hkv if Hkv else Hq:
            refuse(f"q's {Hq} heads must be a multiple of the {Hkv} heads of k and v: their axis is 1")
        self.check_scope(q, D, Dv)
        turned = seems_turned(q, k, Sq, Sk, Hq, Hkv)
        given = operands[3:]
        if self.check_params is not None:
            given = self.check_params(self, q, k, v, *given, turned, whole)
        if dense and self.check_sizes is not None:
            self.check_sizes(self, q, k, v, *given)
        refuse_tangents(refuse, q, k, v, *given, scale)
        if turned:
            warn_of_order(self.name, self.caller)
        return (q, k, v, *given)

    def check_dtype(self, name: str, x: Tensor) -> None:
        dtype = self.only.get("dtype")
        if dtype is None:
            if x.dtype not in (torch.float16, torch.bfloat16, torch.float32):
                self.refuse(f"{name} must be float16, bfloat16 or float32, not {x.dtype}")
        elif x.dtype is not DTYPES[dtype] and not (dtype == "bf16" and x.dtype is torch.float32 and x.is_cpu):
            # In the interpreter a call in bfloat16 calls itself with float32.
            wanted = str(DTYPES[dtype]).removeprefix("torch.")
            self.refuse(f"this file was made with dtype={dtype}: {name} must be {wanted}, not {x.dtype}")

    def check_scope(self, q: Tensor, D: int, Dv: int) -> None:
        """Head dims, the device, and what the file was made for."""
        dims = self.only.get("head_dim")
        if dims is None:
            if not (0 < D <= 256 and 0 < Dv <= 256):
                self.refuse(f"head dims must be from 1 to 256, not {D} and {Dv}")
        elif (D, Dv) != dims:
            asked = f"{dims[0]}" if dims[0] == dims[1] else f"{dims[0]}/{dims[1]}"
            wanted = f"head dims must be {dims[0]} and {dims[1]}, not {D} and {Dv}"
            self.refuse(f"this file was made with head_dim={asked}: {wanted}")
        if q.device.type not in ("cuda", "cpu", "meta"):
            self.refuse(f"q must be on a GPU, or on the CPU under TRITON_INTERPRET=1, not on {q.device}")
        arch = self.only.get("arch")
        if arch is not None and q.device.type == "cuda" and chip(q.device) != arch:
            self.refuse(f"this file was made with arch={arch}, and {q.device} is {chip(q.device)}")

    def facts_hold(self, operands: tuple[Any, ...], scale: Any) -> None:
        """Checks the facts that no call checks unless it is asked to: it reads elements, and waits for the device."""
        operands = self.check(operands, scale, whole=True)
        if torch.compiler.is_compiling() or (operands[0].is_cuda and torch.cuda.is_current_stream_capturing()):
            self.refuse(
                "check=True reads elements, which torch.compile and CUDA graphs do not allow: leave it out there"
            )
        if self.check_facts is not None:
            self.check_facts(self, *operands, scale)

    # ---------------------------------------------------------------- what kernels get

    def values_of(self, same: dict[str, Any], inputs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
        """The operator's inputs by the names of the kernels' parameters, and what calls share."""
        found: dict[str, Any] = dict(inputs)
        found[SAME] = same
        for i in self.at_scalars:
            name, p = self.names[i - 3], self.params[i - 3]
            if p.either and found[f"{name}_at"] is not None:
                found[name] = found[f"{name}_at"]
            elif p.kind == "bool":
                found[name] = int(found[name])
        return found

    def deciding(self, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """What of scalars and the seed decides which compiled kernel is launched: addresses, and how many bits an int
        needs."""
        if self.tensors_alone:
            return ()
        found: list[Any] = [inputs[self.at_scale + 1].data_ptr() % 16] if self.dropout else []
        places = iter(inputs[self.at_precise + 1 :])
        for i in self.at_scalars:
            p, x = self.params[i - 3], inputs[i]
            if p.kind == "float":
                found.append(x.data_ptr() % 16)
            elif p.kind == "int":
                found.append((-(2**31) <= x < 2**31, x < 2**63))
            if p.either:
                place = next(places)
                found.append(place is None or place.dtype)
        return tuple(found)

    def saved(self, q: Tensor, precise: bool, results: tuple[Tensor, Tensor]) -> tuple[Any, ...]:
        """What the operator returns where `results` are known, in float32: in the dtype of q, and what it saves."""
        out, lse = results
        rounded = out.to(q.dtype)
        found: dict[str, Any] = {"out": rounded, "lse": lse, "rest": None}
        if "den" in self.kept:
            found["den"] = lse.exp()
        if precise:
            lost = (out.float() - rounded.float()).to(q.dtype)
            found["rest"] = (lost.transpose(0, 1) if lost.ndim == 3 else lost).contiguous()
        return tuple(found[name] for name in self.kept)

    def more_results(self, lse: Tensor, v: Tensor, precise: bool) -> dict[str, Any]:
        """Empty tensors for what the backward pass reads beside out and lse, in the order of `saves`: denominators, and
        what out lost in rounding."""
        found: dict[str, Any] = {}
        if "den" in self.kept:
            found["den"] = torch.empty_like(lse)
        if self.rounds:
            found["rest"] = v.new_empty((*lse.shape, v.shape[-1])) if precise else None
        return found

    def totals(self, inputs: tuple[Any, ...], needed: list[bool], make: Callable[..., Tensor]) -> tuple[Tensor, ...]:
        """A tensor for the gradient of each param, in float32, without elements where it is not needed."""
        learned = zip(self.at_learned, needed, strict=True)
        return tuple(
            make(inputs[i], dtype=torch.float32, memory_format=torch.contiguous_format)
            if wanted
            else inputs[i].new_empty(0, dtype=torch.float32)
            for i, wanted in learned
        )
