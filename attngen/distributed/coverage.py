"""The proof of a schedule, for users to call: see `distributed/plan/coverage.py`."""

from attngen.distributed.plan.coverage import coverage

__all__ = ["coverage"]
