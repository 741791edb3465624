"""Run-time parameters as the generated code names them: kernel arguments, host arguments, strides.

Takes the attention's params and sizes, returns frozen views. A param `slope: f32[Hq]` becomes the kernel arguments
`slope_ptr, slope_stride_0`; a float scalar `cap` becomes `cap_ptr`, read once a program; so does an int `n`, but
`n_ptr` may be the int itself, and a bool is an int. One with a fact, which the host checks, goes by value.
"""

from __future__ import annotations

from dataclasses import dataclass

from attngen.emit.text.names import Names
from attngen.ir.attention import Attention, Param
from attngen.ir.nodes import Storage, Type

_FLOATS = ("float32", "float16", "bfloat16", "float64")
DTYPES = {
    **dict.fromkeys((Storage.F32, Storage.F16, Storage.BF16), _FLOATS),
    Storage.INT: ("int32", "int64"),
    Storage.U8: ("uint8",),
    Storage.I8: ("int8",),
    Storage.I16: ("int16",),
    Storage.BOOL: ("bool", "uint8"),
}
"""What a tensor may hold at a call, by what the file declares. Kernels compute in float32 and in ints of 32 bits up."""
SMALL_INTS = (Storage.U8, Storage.I8, Storage.I16)


@dataclass(frozen=True, slots=True)
class ParamView:
    """`keyword` is the user's name; `name` is free of clashes in kernels and on the host."""

    keyword: str
    name: str
    rank: int
    type: str  # bool, int or float
    storage: str
    dtypes: tuple[str, ...]
    by_pointer: bool  # tensors and float scalars; int and bool scalars are passed by value
    either: bool  # an int or a bool that kernels take by value, or read where a tensor of no dimensions holds it

    @property
    def strides(self) -> tuple[str, ...]:
        return tuple(f"{self.name}_stride_{axis}" for axis in range(self.rank))

    @property
    def kernel_arguments(self) -> tuple[str, ...]:
        return (f"{self.name}_ptr", *self.strides) if self.by_pointer or self.either else (self.name,)

    @property
    def unspecialized(self) -> tuple[str, ...]:
        """The kernel arguments whose value is no reason to compile again."""
        return self.strides[:-1] if self.by_pointer else self.kernel_arguments

    @property
    def place(self) -> str:
        """On the host, where a call gave a tensor for an int: that tensor, else None."""
        return f"{self.name}_at"

    @property
    def load_lines(self) -> tuple[str, ...]:
        """Bind a scalar that a kernel does not get by value, or perhaps does not."""
        if self.rank or not (self.by_pointer or self.either):
            return ()
        return (f"{self.name} = {'rows.int_at' if self.either else 'tl.load'}({self.name}_ptr)",)

    @property
    def annotation(self) -> str:
        """The type in the custom operator's schema."""
        return "Tensor" if self.by_pointer else "int" if self.either else self.type

    @property
    def public_annotation(self) -> str:
        return "Tensor" if self.rank else f"{self.type} | Tensor"


MOST_LEAVES = 64
"""Sums of one param's leaves are numbered; so many numbers are kept free."""


def derived(name: str, rank: int) -> tuple[str, ...]:
    """Every name that generated code makes of a param's: its pointer and strides, and those of its gradient."""
    strides = (f"{name}_stride_{axis}" for axis in range(rank))
    sums = (f"sum_{name}_{number}" for number in range(1, MOST_LEAVES))
    return (f"{name}_ptr", f"{name}_at", *strides, f"GRAD_{name.upper()}", f"total_{name}", f"sum_{name}", *sums)


def view(param: Param, names: Names) -> ParamView:
    pointer = not param.is_scalar or param.type is Type.FLOAT
    return ParamView(
        param.name,
        names.fresh(param.name, lambda name: derived(name, len(param.shape))),
        len(param.shape),
        param.type.value,
        param.storage.value,
        tuple(f"torch.{d}" for d in DTYPES[param.storage]),
        pointer,
        param.is_scalar and param.type is not Type.FLOAT and param.where is None,
    )


def views(attention: Attention, names: Names) -> tuple[ParamView, ...]:
    return tuple(view(p, names) for p in attention.params)
