"""The letters that papers write for the language's positions and sizes."""

from __future__ import annotations

from types import MappingProxyType

_KEYS = "Sk, the number of keys, or Sq, of queries"
IN_PAPERS = MappingProxyType(
    {
        "i": "q, the query's position",
        "m": "q, the query's position",
        "j": "k, the key's position",
        "n": "k, the key's position",
        **dict.fromkeys(("S", "N", "L", "T"), _KEYS),
        "H": "Hq, the number of query heads",
        "d": "D, the head dim",
    }
)
"""By the letter of papers: the language's name, and what it is."""
