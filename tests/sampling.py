"""A sample of the suite that fits a budget: always the same one, and every file is in it.

`tests/costs.json` holds the processor seconds of one case of each test function that is not cheap. With `--budget S` a
function runs as many of its cases as S seconds hold; one whose single case costs more is left out, unless its file has
no cheaper function, or `--case` allows a case so much. One that is marked `whole(N)` runs all its cases where S, or
what a case may cost, is N at least, and none else. Which cases run depends on their names alone. Functions that the
table does not list run whole.

`pytest -n 0 --write-costs` measures the functions that run, and updates the table. It decides what a sample holds and
nothing else: no test passes or fails by it.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections import defaultdict
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import pytest

TABLE = Path(__file__).with_name("costs.json")
CHEAP = 1.0
"""Seconds of a whole function below which the table does not list it."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--budget", type=float, default=0.0, help="processor seconds for a test function; 0: all cases")
    parser.addoption("--case", type=float, default=0.0, help="processor seconds for a single case, if more than that")
    parser.addoption("--write-costs", action="store_true", help="measure what runs and update tests/costs.json")


def function(nodeid: str) -> str:
    return nodeid.split("[", 1)[0]


_NONE: Mapping[str, float] = MappingProxyType({})


def sample(
    nodeids: Sequence[str],
    costs: Mapping[str, float],
    budget: float,
    whole: Mapping[str, float] = _NONE,
    case: float = 0.0,
) -> set[str]:
    """Those of `nodeids` that run. `whole`: the least budget of functions of which all cases run, or none. `case`: what
    a single case may cost, if more than the budget."""
    most = max(budget, case)
    costs = {**costs, **{name: 0.0 if least <= most else math.inf for name, least in whole.items()}}
    cases: dict[str, list[str]] = defaultdict(list)
    files: dict[str, list[str]] = defaultdict(list)
    for nodeid in nodeids:
        name = function(nodeid)
        if name not in cases:
            files[name.split("::", 1)[0]].append(name)
        cases[name].append(nodeid)
    found: set[str] = set()
    for names in files.values():
        fitting = [n for n in names if costs.get(n, 0.0) <= most]
        for name in fitting or [min(names, key=lambda n: costs.get(n, 0.0))]:
            cost = costs.get(name, 0.0)
            count = max(1, int(budget / cost)) if cost else len(cases[name])
            found.update(sorted(cases[name], key=lambda n: hashlib.sha256(n.encode()).digest())[:count])
    return found


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    budget: float = config.getoption("--budget")
    if budget:
        whole = {function(i.nodeid): mark.args[0] for i in items if (mark := i.get_closest_marker("whole"))}
        costs, case = json.loads(TABLE.read_text()), config.getoption("--case")
        chosen = sample([i.nodeid for i in items], costs, budget, whole, case)
        config.hook.pytest_deselected(items=[i for i in items if i.nodeid not in chosen])
        items[:] = [i for i in items if i.nodeid in chosen]


_measured: dict[str, list[float]] = defaultdict(list)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None]:
    before = os.times()
    yield
    after = os.times()
    _measured[function(item.nodeid)].append(sum(after[:4]) - sum(before[:4]))  # with the processes that it waited for


def pytest_sessionfinish(session: pytest.Session) -> None:
    if session.config.getoption("--write-costs"):
        costs: dict[str, float] = json.loads(TABLE.read_text()) if TABLE.is_file() else {}
        for name, seconds in _measured.items():
            costs.pop(name, None)
            if sum(seconds) > CHEAP:
                costs[name] = round(sum(seconds) / len(seconds), 2)
        TABLE.write_text(json.dumps(dict(sorted(costs.items())), indent=1) + "\n")
