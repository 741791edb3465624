"""Which part of a launch runs next: one task at a time, in an order that a seed draws.

A task is a program, a partition of a program's warps, or a copy that the copy engine has still to make. Tasks stand in
a list by priority. Wherever another may come first, the running task may get another priority, and the first task that
can run does. A task that waits says for what, so when none can run, that is a deadlock, and the fault names who waits
for what.

Each task has a vector clock: of each task, up to which of its steps what it did has happened before. `Signal` carries
clocks from those who arrive to those who wait.
"""

from __future__ import annotations

import itertools
import random
import threading
import traceback
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hopper_model.numbers import FaultError, RefusedError

Clock = dict[int, int]
"""The last step of each task, by the task's number, that has happened before."""
MOVES = 1 / 16
"""How often a task gets another priority where others may come first."""
_STEPS = 32
"""Bits of a step's number in an event."""


@dataclass(frozen=True)
class Schedule:
    """`resident` programs of a launch run side by side, on a chip of so many `multiprocessors`, of which the launcher
    makes the grid; `seed` draws their order."""

    resident: int = 3
    seed: int = 0
    multiprocessors: int = 2


USUAL = Schedule()


class StoppedError(BaseException):
    """Ends a task when another has failed."""


class Signal:
    """What those who arrive hand to those who wait for them."""

    def __init__(self) -> None:
        self.clock: Clock = {}

    def give(self, clock: Clock) -> None:
        for number, step in clock.items():
            if self.clock.get(number, 0) < step:
                self.clock[number] = step


class Task:
    """`program` is what its program's tasks share; `action` what a task without a thread does. `names` are the names of
    its arguments, for messages."""

    def __init__(self, number: int, name: str, program: Any, action: Callable[[], None] | None = None):
        self.name, self.program, self.action = name, program, action
        self.gate = threading.Semaphore(0)
        self.ready: Callable[[], bool] | None = None
        self.why: Callable[[], str] | None = None
        self.over = self.fenced = False
        self.products: list[Any] = []
        self.copied: list[Any] = []
        self.names: dict[int, str] = {}
        self.renew(number)

    def renew(self, number: int) -> None:
        """From here on this is another program, of which nothing is known to have happened before."""
        self.number = number
        self.clock: Clock = {number: 1}
        self.looked: dict[tuple[int, int], int] = {}

    def give(self, signal: Signal) -> None:
        signal.give(self.clock)
        self.clock[self.number] += 1

    def take(self, signal: Signal) -> None:
        for number, step in signal.clock.items():
            if self.clock.get(number, 0) < step:
                self.clock[number] = step

    @property
    def event(self) -> int:
        return self.number << _STEPS | self.clock[self.number]

    def comes_after(self, event: int) -> bool:
        return self.clock.get(event >> _STEPS, 0) >= event & (1 << _STEPS) - 1


_LOCAL = threading.local()


def running() -> Task | None:
    """The task that runs; None outside of a launch."""
    return getattr(_LOCAL, "task", None)


def own() -> Task:
    task = running()
    assert task is not None, "outside of a launch"
    return task


class Launch:
    """The tasks of one launch."""

    def __init__(self, name: str, schedule: Schedule):
        self.name, self.schedule = name, schedule
        self.random = random.Random(schedule.seed)
        self.numbers = itertools.count(1)  # of tasks; 0 is nobody
        self.tasks: list[Task] = []
        self.threads: list[threading.Thread] = []
        self.faults: list[str] = []
        self.refused: RefusedError | None = None
        self.task_names: dict[int, str] = {}
        self.cells: defaultdict[tuple[int, int], Signal] = defaultdict(Signal)  # by address and place

    def run(self, programs: Sequence[tuple[Any, Callable[[], None]]]) -> None:
        """Runs what each program does, given with what its tasks share. They begin in this order."""
        left = list(reversed(list(enumerate(programs))))

        def programs_in_turn() -> None:
            while left:
                number, (program, function) = left.pop()
                task = own()
                task.program, task.name = program, f"program {number}"
                self._rename(task)
                self.pause()
                function()

        for _ in range(min(self.schedule.resident, len(programs))):
            self.start("", None, programs_in_turn)
        first = self._next()
        if first is not None:
            first.gate.release()
        for thread in self.threads:  # which grow in number meanwhile
            thread.join()
        if self.refused is not None:
            raise self.refused
        if self.faults:
            raise FaultError("\n".join(self.faults))

    def _rename(self, task: Task) -> None:
        task.renew(next(self.numbers))
        self.task_names[task.number] = task.name

    def _insert(self, task: Task) -> None:
        self.tasks.insert(self.random.randint(0, len(self.tasks)), task)

    def start(self, name: str, program: Any, function: Callable[[], None]) -> Task:
        """A task that does this; what the running task has done happens before."""
        task, parent = Task(0, name, program), running()
        self._rename(task)
        if parent is not None:
            task.clock = {**parent.clock, **task.clock}
            parent.clock[parent.number] += 1

        def body() -> None:
            task.gate.acquire()
            _LOCAL.task = task
            try:
                if not self.faults:
                    function()
            except StoppedError:
                pass
            except RefusedError as error:
                self.refused = error
                self.fail(f"{task.name}: {error}")
            except BaseException:
                self.fail(f"{task.name}: {traceback.format_exc()}")
            self._end(task)

        self._insert(task)
        self.threads.append(threading.Thread(target=body, daemon=True))
        self.threads[-1].start()
        return task

    def later(self, name: str, action: Callable[[], None]) -> None:
        """Does this at a time of its own."""
        self._insert(Task(0, name, None, action))

    def pause(self) -> None:
        """Others may come first."""
        self.wait(None, None)

    def wait(self, why: Callable[[], str] | None, ready: Callable[[], bool] | None) -> None:
        """Returns when `ready`, if others do not come first. `why`: for what, as the fault has it."""
        if self.faults:
            raise StoppedError
        task = own()
        task.ready, task.why = ready, why
        if self.random.random() < MOVES:
            self.tasks.remove(task)
            self._insert(task)
        following = self._next()
        if following is not task:
            if following is not None:
                following.gate.release()
            task.gate.acquire()
        if self.faults:
            raise StoppedError

    def _end(self, task: Task) -> None:
        task.over = True
        if self.faults:
            return
        self.tasks.remove(task)
        following = self._next()
        if following is not None:
            following.gate.release()

    def _next(self) -> Task | None:
        """The first task with a thread that can run, after the copies before it; None when all is over, or failed."""
        while self.tasks and not self.faults:
            found = next((t for t in self.tasks if t.ready is None or t.ready()), None)
            if found is None:
                waiting = [f"{t.name} waits for {t.why()}" for t in self.tasks if t.why is not None]
                self.fail(f"{self.name}: deadlock: {'; '.join(waiting)}")
            elif found.action is None:
                return found
            else:
                self.tasks.remove(found)
                try:
                    found.action()
                except FaultError as error:
                    self.fail(f"{found.name}: {error}")
        return None

    def fail(self, text: str) -> None:
        self.faults.append(text)
        for task in self.tasks:
            task.gate.release()
