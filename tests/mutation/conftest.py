"""What the mutants and the random specs came to, printed at the end of a run, whoever ran which part of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

import pytest

Counted = Callable[[str, str, Mapping[str, int]], None]


@pytest.fixture
def counted(record_property: Callable[[str, object], None]) -> Counted:
    """Adds counts to a row of a table of the summary."""

    def count(table: str, row: str, counts: Mapping[str, int]) -> None:
        record_property("counted", [table, row, dict(counts)])

    return count


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    tables: dict[str, dict[str, Counter[str]]] = {}
    for reports in terminalreporter.stats.values():
        for report in reports:
            for name, value in getattr(report, "user_properties", ()):
                if name == "counted" and getattr(report, "when", "") == "call":
                    table, row, counts = value
                    tables.setdefault(table, {}).setdefault(row, Counter()).update(counts)
    for table, rows in tables.items():
        terminalreporter.section(table)
        for line in lines(rows):
            terminalreporter.write_line(line)


def lines(rows: Mapping[str, Counter[str]]) -> list[str]:
    """A row each, and their sum; the share of the unknown is of those that got a verdict."""
    total = sum(rows.values(), Counter[str]())
    columns = [c for c in next(iter(rows.values())) if any(c in r for r in rows.values())]
    cells = [["", "all", *columns, "unknown, %"]]
    for name, own in (*sorted(rows.items()), ("all", total)):
        judged = own.total() - own["no spec"]
        share = f"{100 * own['unknown'] / judged:.2f}" if judged else "-"
        cells.append([name, str(own.total()), *(str(own[c]) for c in columns), share])
    return [" ".join(c.rjust(12) if n else c.ljust(20) for n, c in enumerate(r)) for r in cells]
