"""Work in several forked processes of torch.distributed (gloo): what this process has compiled, they have too."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def process(rank: int, ranks: int, folder: str, work: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=ranks)
    work(*arguments)
    Path(folder, f"done {rank}").touch()
    dist.barrier()
    os._exit(0)  # without the interpreter's end, in which gloo's threads abort the process now and then


def in_processes(folder: Path, ranks: int, work: Callable[..., None], *arguments: Any) -> None:
    mp.start_processes(process, (ranks, str(folder), work, arguments), nprocs=ranks, start_method="fork")
    assert len([*folder.glob("done *")]) == ranks
