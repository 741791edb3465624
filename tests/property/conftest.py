"""The interpreter is on before Triton is imported, so that the loader has nothing to say."""

import os

import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
