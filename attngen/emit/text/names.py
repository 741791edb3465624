"""Names in generated code: hints made unique, never a keyword, never a name that the templates use.

A spec is untrusted text: names reach generated code only through here, and a hint that is not a plain identifier is
refused as an internal error.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Callable

from attngen.errors import InternalError

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


class Names:
    """Hands out identifiers, each once, and none of those `taken`."""

    def __init__(self, taken: frozenset[str]):
        self._taken = set(taken)

    def fresh(self, hint: str, derived: Callable[[str], tuple[str, ...]] = lambda name: ()) -> str:
        """`hint`, or `hint_2`, `hint_3`, … if it, or a name that the generated code derives from it, is taken."""
        if not _IDENTIFIER.match(hint):
            raise InternalError(f"{hint!r} is no identifier")
        hint = hint.strip("_") or "value"
        if keyword.iskeyword(hint) or keyword.issoftkeyword(hint) or hint[0].isdigit():
            hint = f"{hint}_" if not hint[0].isdigit() else f"n{hint}"
        name, number = hint, 1
        while not self._taken.isdisjoint((name, *derived(name))):
            number += 1
            name = f"{hint}_{number}"
        self.take(name, *derived(name))
        return name

    def take(self, *names: str) -> None:
        """These are never handed out from now on."""
        self._taken.update(names)

    def copy(self) -> Names:
        """Another hand, which starts from what this one has given away."""
        return Names(frozenset(self._taken))
