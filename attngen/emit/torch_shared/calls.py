"""How lines of the host call what their file has: functions of its own, or the runtime's (`runtime/exported`)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Calls:
    """What refuses in the attention's name begins with `own`, other helpers with `helper`. `element`, `listed` and
    `gathered`: the functions that read an element, that look in a list, and that add values to chosen cells."""

    own: str
    helper: str
    element: str
    listed: str
    gathered: str

    def refusing(self, name: str) -> str:
        """The begin of a call of a helper that is told how to refuse, where it does not know."""
        return f"_{name}(" if self is PLAIN else f"{self.helper}{name}({self.own}refuse, "


PLAIN = Calls(own="_", helper="_", element="_element", listed="_listed", gathered="_gathered")
"""Functions of the file itself."""
RUNTIME = Calls(own="a.", helper="host.", element="host.element_at", listed="host.list_holds", gathered="host.gathered")
"""The runtime's: `a` is the attention, `host` the module."""
