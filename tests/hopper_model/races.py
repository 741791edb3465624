"""Races on global memory, in the model of compute capability 9.0: by vector clocks, whichever came first by chance."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from hopper_model.numbers import FaultError
from hopper_model.schedule import Task


class Written:
    """Which task wrote each place of global memory last, in one launch, and at which of its steps.

    A task that reads or writes a place must have waited, by barriers or turns, for the task that wrote it last; else
    that is a fault. So is an atomic sum of floats in no order, since its rounding depends on the order. A write after
    another's read is not seen.
    """

    def __init__(self, names: Mapping[int, str]):
        self.names = names
        self.events: dict[tuple[int, tuple[int, ...]], np.ndarray] = {}

    def read(self, task: Task, array: np.ndarray, places: Any) -> None:
        events = self.events.get((array.ctypes.data, array.shape))
        if events is not None:
            self._check(task, events[places], "reads")

    def write(self, task: Task, array: np.ndarray, places: Any) -> None:
        key = (array.ctypes.data, array.shape)
        if key not in self.events:
            self.events[key] = np.zeros(array.shape, np.int64)
        self._check(task, self.events[key][places], "writes")
        self.events[key][places] = task.event

    def _check(self, task: Task, events: np.ndarray, what: str) -> None:
        if not events.size:
            return
        one = events.flat[0]
        for event in (one,) if (events == one).all() else np.unique(events):
            if event and not task.comes_after(int(event)):
                other = self.names[int(event) >> 32]
                raise FaultError(f"a race: {task.name} {what} what {other} wrote, and has not waited for it")
