"""A budget of seconds shared by the claims of one obligation."""

from __future__ import annotations

import time


class Clock:
    """What is left of `budget` since it was made."""

    def __init__(self, budget: float):
        self._end = time.monotonic() + budget

    @property
    def left(self) -> float:
        return max(0.0, self._end - time.monotonic())

    @property
    def share(self) -> float:
        """What one claim may take, so that something is left for the others."""
        return self.left / 3


ran_out = "the time for its proof ran out; --timeout 60 gives more"
