"""A call recorded as a CUDA graph: what is timed of a replay is the device's part, whatever the host takes for a call.

Where the host is slow, events around a short call (`clock.sample`) count how long the device waits for its next kernel.
A replay hands the device all of a call's kernels at once. Takes what makes the work to be timed, returns its replay.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

torch: Any = importlib.import_module("torch")

WARM = 2
"""Calls before the recording: what is compiled, loaded or allocated once must not be part of it."""


def recorded(make: Callable[[], Callable[[], object]]) -> Callable[[], object]:
    """The replay of one call of the work that `make` gives. Raises what the work raises, and torch's RuntimeError where
    it does something that a graph cannot hold.

    `make` is called on the stream that is recorded, since a backward pass runs on its forward pass's. The graph keeps
    the memory that it uses for as long as the replay is kept, and the work with it, for the tensors that it reads.
    """
    here, stream = torch.cuda.current_stream(), torch.cuda.Stream()
    stream.wait_stream(here)
    with torch.cuda.stream(stream):
        work = make()
        for _ in range(WARM):
            work()
    here.wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        work()

    def replay(_kept: object = work) -> None:
        graph.replay()

    return replay
