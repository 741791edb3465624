"""The sample of the suite holds every file, keeps to its budget, and is always the same."""

from __future__ import annotations

import json

from sampling import TABLE, function, sample

COSTS = {"a.py::dear": 9.0, "a.py::cases": 2.0, "b.py::dear": 30.0, "b.py::dearer": 40.0}
CASES = [f"a.py::cases[{n}]" for n in range(20)]
NODES = ["a.py::dear", "a.py::cheap", *CASES, "b.py::dear", "b.py::dearer"]


def test_a_function_runs_as_many_cases_as_its_budget_holds() -> None:
    assert len(sample(NODES, COSTS, 6.0) & set(CASES)) == 3
    assert set(CASES) <= sample(NODES, COSTS, 40.0)


def test_what_costs_more_than_the_budget_is_left_out_but_no_file_is() -> None:
    found = sample(NODES, COSTS, 6.0)
    assert "a.py::dear" not in found and "a.py::cheap" in found
    assert found & {"b.py::dear", "b.py::dearer"} == {"b.py::dear"}


def test_a_larger_budget_adds_cases_and_drops_none() -> None:
    assert sample(NODES, COSTS, 6.0) < sample(NODES, COSTS, 10.0) < sample(NODES, COSTS, 50.0) == set(NODES)


def test_what_is_marked_whole_runs_whole_or_not_at_all() -> None:
    assert set(CASES) <= sample(NODES, COSTS, 4.0, {"a.py::cases": 4.0})
    assert not set(CASES) & sample(NODES, COSTS, 3.0, {"a.py::cases": 4.0})


def test_the_table_names_functions() -> None:
    table = json.loads(TABLE.read_text())
    assert table and all(name == function(name) and cost > 0 for name, cost in table.items())


def test_a_case_may_cost_more_than_its_function() -> None:
    assert "a.py::slow" not in sample(["a.py::slow", "a.py::quick"], {"a.py::slow": 5.0}, 3.0)
    assert "a.py::slow" in sample(["a.py::slow", "a.py::quick"], {"a.py::slow": 5.0}, 3.0, case=5.0)
    cases = [f"a.py::many[{i}]" for i in range(9)]
    assert len(sample(cases, {"a.py::many": 1.0}, 3.0, case=5.0)) == 3
