"""The words of attngen's doors, Python's and the command line's: stages, chips, dtypes, peers.

Takes nothing, decides nothing; whoever is given one of these words says itself what it means.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

Const: TypeAlias = bool | int | float
Precision: TypeAlias = Literal["ieee", "tf32"]
OPTIONS = (
    *("target", "tile", "precision", "arch", "head_dim", "dtype", "forward", "geometry", "tiles", "shape"),
    *("allow_unproved", "strict", "effort"),
)
"""Arguments of `attngen.compile` that are flags of the command line. A message names one as Python has it, `effort=4`
in backticks; `terminal.flagged` makes `--effort 4` of it."""
PRECISIONS = ("ieee", "tf32")
STAGES = ("ast", "ir", "plan", "proof", "source")
BINARIES = ("ttir", "ttgir", "ptx", "cubin", "hsaco")
ARCHITECTURES = ("sm_80", "sm_86", "sm_90", "sm_100", "gfx942")
SOURCE_ARCHITECTURES = ("auto", "portable", *ARCHITECTURES)
"""For which chips a file may hold kernels of their own: every chip, none, one."""
GEOMETRIES = ("dense", "lengths", "packed", "pieces")
"""Where the rows of a sequence are: a batch row, a part of one, or one after the other (`plan.sides`). In pieces
they are a stretch of a longer sequence (`ir.pieces`)."""
DTYPES = ("fp16", "bf16", "fp32")
NARROW = "fp8"
"""8-bit floats, e4m3: a file of the forward pass, which takes them with their factors (`ir.narrow`)."""
FILE_DTYPES = (*DTYPES, NARROW)
"""For which a Triton file may be made."""
TPU_STAGES = ("mosaic", "hlo", "schedule")
TPUS = ("v4", "v5e", "v5p", "v6e", "7x")
"""The one vocabulary of TPUs: what `--chip` takes, what a generated file's tables and `CHIP` say."""
CHIPS = ("a100", "h100", "h200", "b200", "mi300x", *TPUS)
"""What `cost` knows."""
PEERS = ("flex", "flex-flash", "sdpa", "cudnn", "fa4")
"""What `bench` sets a kernel beside."""
