"""Executes the scalar part of a schedule, so that every loop runs as often as on the chip, and every copy is known.

Takes bundles, a chip, and what is known of the kernel's operands; returns a `Run`: how often each block ran, the cycles
spent and lost waiting for copies, the bytes moved. A bundle takes one cycle. Vector operations take part in nothing
here: a branch on what they compute is a branch on an unknown value, which is not taken, and counted.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from attngen.errors import InternalError
from attngen.tpu import scalar
from attngen.tpu.bundles import Bundle, Guard, Operation
from attngen.tpu.chips import DMA_LATENCY, Chip
from attngen.tpu.compile import Table
from attngen.tpu.dma import Copies
from attngen.tpu.tables import words

MOST_BLOCKS = 40_000_000
"""Blocks executed before a kernel counts as one that does not end."""


@dataclass(frozen=True, slots=True)
class Block:
    """Bundles `start` up to `stop`, entered at the first alone, and how often they ran."""

    start: int
    stop: int
    trips: int

    @property
    def bundles(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a kernel. `busy` cycles issue bundles, `waiting` ones stand still for a copy."""

    blocks: tuple[Block, ...]
    busy: int
    waiting: float
    hbm_bytes: int
    copies: int
    unknown_branches: int
    """Branches on values that are not modelled: where there are any, the trips are a guess."""
    unmatched_waits: int
    not_modelled: tuple[tuple[str, int], ...]
    """Scalar operations whose results are unknown, with how often they stand in blocks that ran."""

    @property
    def cycles(self) -> float:
        return self.busy + self.waiting


def simulate(bundles: Sequence[Bundle], chip: Chip, operands: Sequence[Table | None] = (), core: int = 0) -> Run:
    """Run a kernel once on one core, by itself, from an empty memory. Every core runs the same schedule."""
    return _Machine(bundles, chip, operands, core).run()


@dataclass(slots=True)
class _Code:
    """One block, ready to run. `phis` are (target, value from before the loop, value from its last trip)."""

    start: int
    stop: int
    phis: tuple[tuple[int, int, int], ...]
    steps: tuple[Callable[[], None], ...]
    branch: tuple[int | None, bool, int] | None
    """(slot of the predicate, whether it is negated, target) of the branch that ends the block."""
    trips: int = 0


@dataclass(slots=True)
class _Names:
    """Slots of registers and constants."""

    slots: dict[str, int] = field(default_factory=dict[str, int])
    values: list[int | None] = field(default_factory=list["int | None"])
    allocations: dict[str, int] = field(default_factory=dict[str, int])

    def register(self, name: str) -> int:
        if name not in self.slots:
            self.slots[name] = len(self.values)
            self.values.append(None)
        return self.slots[name]

    def constant(self, value: int) -> int:
        slot = self.register(f"={value}")
        self.values[slot] = value
        return slot

    def allocation(self, name: str) -> int:
        """An address for a named piece of memory, apart from every other."""
        return self.allocations.setdefault(name, (len(self.allocations) + 1) << 20)


_NUMBER = re.compile(r"\$?(-?(?:0x[0-9a-f]+|\d+))")
_PLACE = re.compile(r"\[#allocation(\w+)(?: \+ (\S+))?\]")
_SPACE = re.compile(r"\[smem:(.*)\]")
_RESOLVABLE = re.compile(r"^\[resolvable:\$\w+\] *")
_CORE_ID = "0"
"""The allocation in scalar memory that holds the number of the core."""
_TRAILING_GUARD = re.compile(r"\((!?)%(\w+)\)")


class _Machine:
    """The state of one run. Values are None where they are unknown."""

    def __init__(self, bundles: Sequence[Bundle], chip: Chip, operands: Sequence[Table | None], core: int):
        self.bundles, self.chip, self.operands = bundles, chip, operands
        self.names = _Names()
        self.values = self.names.values
        self.memory: dict[int, int | None] = {self.names.allocation(_CORE_ID): core}
        self.copies = Copies(chip.hbm_bandwidth / chip.clock, DMA_LATENCY * chip.clock, chip.granule)
        self.now = 0.0
        self.waiting = 0.0
        self.tables: dict[int, Table] = {}
        self.unknown_branches = 0
        self.not_modelled: Counter[str] = Counter()
        self.leaders, self.branches = self._outline()
        self.code: dict[int, _Code] = {}

    # ------------------------------------------------------------ blocks

    def _outline(self) -> tuple[list[int], dict[int, Operation]]:
        """Where blocks start, and the branches by the bundle that they stand in."""
        leaders, branches = {0}, dict[int, Operation]()
        for position, bundle in enumerate(self.bundles):
            for operation in bundle.scalar:
                if operation.name.startswith("sbr."):
                    branches[position] = operation
                    leaders |= {int(operation.operands[0]), position + 1 + self.chip.branch_delay}
        return sorted(x for x in leaders if x < len(self.bundles)), branches

    def _block(self, index: int) -> _Code:
        if index not in self.code:
            start = self.leaders[index]
            stop = self.leaders[index + 1] if index + 1 < len(self.leaders) else len(self.bundles)
            self.code[index] = self._compiled(start, stop)
        return self.code[index]

    def _compiled(self, start: int, stop: int) -> _Code:
        phis: list[tuple[int, int, int]] = []
        steps: list[Callable[[], None]] = []
        branch: tuple[int | None, bool, int] | None = None
        for position in range(start, stop):
            for operation in self.bundles[position].scalar:
                if operation.name == "sphi" and operation.target is not None:
                    before, after = (self._slot(word) for word in operation.operands)
                    phis.append((self.names.register(operation.target), before, after))
                elif position in self.branches and operation is self.branches[position]:
                    guard = operation.guard
                    taken = None if guard is None else self.names.register(guard.predicate)
                    branch = taken, guard is not None and guard.negated, int(operation.operands[0])
                else:
                    step = self._step(operation, position - start)
                    if step is not None:
                        steps.append(step)
        return _Code(start, stop, tuple(phis), tuple(steps), branch)

    # ------------------------------------------------------------ operands

    def _slot(self, word: str) -> int:
        """The slot of a register, a constant, or an allocation's address."""
        word = _RESOLVABLE.sub("", word)
        if word.startswith("%"):
            return self.names.register(word[1:])
        number = _NUMBER.fullmatch(word)
        if number is not None:
            return self.names.constant(int(number[1], 0))
        place = _PLACE.fullmatch(word)
        if place is not None and (place[2] is None or _NUMBER.fullmatch(place[2])):
            return self.names.constant(self.names.allocation(place[1]) + _offset(place[2]))
        return self.names.register(f"?{word}")  # never set, so unknown

    def _address(self, word: str) -> tuple[int, ...]:
        """The slots whose sum is an address of scalar memory."""
        space = _SPACE.fullmatch(word)
        inner = (space[1] if space else word).strip().removeprefix("[").removesuffix("]")
        slots: list[int] = []
        for part in inner.split(" + "):
            part = part.strip()
            if part.startswith("#allocation"):
                slots.append(self.names.constant(self.names.allocation(part.removeprefix("#allocation"))))
            else:
                slots.append(self._slot(part))
        return tuple(slots)

    # ------------------------------------------------------------ operations

    def _step(self, operation: Operation, offset: int) -> Callable[[], None] | None:
        operands = list(operation.operands)
        guard = operation.guard
        if operands and (trailing := _TRAILING_GUARD.fullmatch(operands[-1])):
            guard = Guard(trailing[2], trailing[1] == "!")
            operands.pop()
        step = self._bare(operation.name, operation.target, operands, offset)
        if step is None or guard is None:
            return step
        target = None if operation.target is None else self.names.register(operation.target)
        return self._guarded(step, guard, target)

    def _guarded(self, step: Callable[[], None], guard: Guard, target: int | None) -> Callable[[], None]:
        values, predicate, wanted = self.values, self.names.register(guard.predicate), not guard.negated
        otherwise = None if guard.otherwise is None else self._slot(guard.otherwise)

        def run() -> None:
            holds = values[predicate]
            if holds is None:
                if target is not None:
                    values[target] = None
            elif bool(holds) == wanted:
                step()
            elif otherwise is not None and target is not None:
                values[target] = values[otherwise]

        return run

    def _bare(self, name: str, target: str | None, operands: Sequence[str], offset: int) -> Callable[[], None] | None:
        if name == "dma.done.wait":
            return self._wait(operands, offset)
        if name.startswith("dma."):
            return self._copy(name, operands, offset)
        if name == "vsyncadd":
            return self._adjust(operands)
        if name == "sst":
            return self._store(operands)
        if target is None or not target.startswith(("s", "p")):
            return None
        slot = self.names.register(target)
        if name.startswith("inlined_call_operand"):
            return self._operand(name, slot, operands[0])
        if name == "sld":
            return self._load(slot, operands[0])
        if name == "scalar_select":
            return self._select(slot, *(self._slot(word) for word in operands))
        if name == "scalar_lea.smem" or (name in scalar.BINARY and len(operands) == 2):
            return self._binary(name, slot, self._slot(operands[0]), self._slot(operands[1]))
        if name in scalar.UNARY and len(operands) == 1:
            return self._unary(name, slot, self._slot(operands[0]))
        self.not_modelled[name] += 1
        return None

    def _unary(self, name: str, target: int, a: int) -> Callable[[], None]:
        values, function = self.values, scalar.UNARY[name]

        def run() -> None:
            x = values[a]
            values[target] = None if x is None else function(x)

        return run

    def _binary(self, name: str, target: int, a: int, b: int) -> Callable[[], None]:
        values, function = self.values, scalar.BINARY[name]
        deciding, decided = scalar.DECIDED.get(name, (None, None))

        def run() -> None:
            x, y = values[a], values[b]
            if x is not None and y is not None:
                values[target] = function(x, y)
            else:
                values[target] = decided if deciding is not None and deciding in (x, y) else None

        return run

    def _select(self, target: int, predicate: int, a: int, b: int) -> Callable[[], None]:
        values = self.values

        def run() -> None:
            holds = values[predicate]
            values[target] = None if holds is None else values[a if holds else b]

        return run

    def _operand(self, name: str, target: int, word: str) -> Callable[[], None]:
        """A kernel's own operand: an address, or for a scalar its value."""
        index, kind = word.split()
        table = self.operands[int(index)] if kind == "input" and int(index) < len(self.operands) else None
        if name.endswith((".hbm", ".vmem", ".smem")):
            # An odd place tells an address from one that is shifted to bytes.
            base = self.names.allocation(f"{kind} {index}") | 1
            if table is not None:
                self.tables[base] = self.tables[base << 4] = table
            value: int | None = base
        else:
            value = table.values[0] if table is not None and table.values else None
        values = self.values

        def run() -> None:
            values[target] = value

        return run

    def _load(self, target: int, word: str) -> Callable[[], None]:
        values, memory, address = self.values, self.memory, self._address(word)

        def run() -> None:
            place = _sum(values, address)
            values[target] = None if place is None else memory.get(place)

        return run

    def _store(self, operands: Sequence[str]) -> Callable[[], None]:
        values, memory = self.values, self.memory
        address, source = self._address(operands[0]), self._slot(operands[1])

        def run() -> None:
            place = _sum(values, address)
            if place is not None:
                memory[place] = values[source]

        return run

    # ------------------------------------------------------------ copies

    def _copy(self, name: str, operands: Sequence[str], offset: int) -> Callable[[], None]:
        values = self.values
        source, size, destination, semaphore = (self._slot(word) for word in operands[:4])
        through_hbm = "hbm" in name or name == "dma.general"
        to_scalar_memory = name.endswith("_to_smem")

        def run() -> None:
            granules, flag = values[size], values[semaphore]
            if granules is None or flag is None:
                self.copies.unmatched += 1
                return
            self.copies.start(self.now + offset, granules, flag, through_hbm=through_hbm)
            place, table = values[destination], self.tables.get(values[source] or 0)
            if to_scalar_memory and place is not None and table is not None:
                self.memory.update((place + i, word) for i, word in words(table).items())

        return run

    def _wait(self, operands: Sequence[str], offset: int) -> Callable[[], None]:
        values, semaphore, size = self.values, self._slot(operands[0]), self._slot(operands[1])

        def run() -> None:
            flag, granules = values[semaphore], values[size]
            if flag is None or granules is None:
                self.copies.unmatched += 1
                return
            start = self.now + offset
            landed = self.copies.wait(start, granules, flag)
            self.waiting += landed - start
            self.now += landed - start

        return run

    def _adjust(self, operands: Sequence[str]) -> Callable[[], None]:
        values, semaphore, size = self.values, self._slot(operands[0]), self._slot(operands[1])

        def run() -> None:
            flag, granules = values[semaphore], values[size]
            if flag is not None and granules is not None:
                self.copies.add(flag, scalar.signed(granules))

        return run

    # ------------------------------------------------------------ the run

    def run(self) -> Run:
        index: Mapping[int, int] = {start: i for i, start in enumerate(self.leaders)}
        current, backwards = 0, False
        for _ in range(MOST_BLOCKS):
            code = self._block(current)
            code.trips += 1
            self._enter(code, backwards)
            for step in code.steps:
                step()
            self.now += code.stop - code.start
            backwards = False
            if code.branch is not None and self._takes(code.branch):
                target = code.branch[2]
                backwards = target <= code.start
                if target not in index:
                    return self._result()
                current = index[target]
            else:
                current += 1
                if current >= len(self.leaders):
                    return self._result()
        raise InternalError(f"a schedule that does not end within {MOST_BLOCKS} blocks")

    def _enter(self, code: _Code, backwards: bool) -> None:
        values = self.values
        chosen = [values[after if backwards else before] for _, before, after in code.phis]
        for (target, _, _), value in zip(code.phis, chosen, strict=True):
            values[target] = value

    def _takes(self, branch: tuple[int | None, bool, int]) -> bool:
        predicate, negated, _ = branch
        if predicate is None:
            return True
        holds = self.values[predicate]
        if holds is None:
            self.unknown_branches += 1
            return False
        return bool(holds) != negated

    def _result(self) -> Run:
        blocks = tuple(Block(c.start, c.stop, c.trips) for _, c in sorted(self.code.items()))
        return Run(
            blocks=blocks,
            busy=sum(block.bundles * block.trips for block in blocks),
            waiting=self.waiting,
            hbm_bytes=self.copies.hbm_bytes,
            copies=self.copies.count,
            unknown_branches=self.unknown_branches,
            unmatched_waits=self.copies.unmatched,
            not_modelled=tuple(sorted(self.not_modelled.items())),
        )


def _offset(word: str | None) -> int:
    number = _NUMBER.fullmatch(word) if word else None
    return int(number[1], 0) if number else 0


def _sum(values: Sequence[int | None], slots: tuple[int, ...]) -> int | None:
    total = 0
    for slot in slots:
        value = values[slot]
        if value is None:
            return None
        total += value
    return total
