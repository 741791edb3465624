"""The names that a target's templates bind or read, which nothing from a spec may have: scanned from the templates.

Takes the folders of a target's templates, returns the names in these and in all templates that they include. Names
inside a function of the templates into which no text is put are its own: no name from a spec gets there.
"""

from __future__ import annotations

import builtins
import functools
import keyword
import re

from attngen import resources

RUNS = frozenset(f"{kind}{n}_{end}" for kind in ("any", "full") for n in ("", 0, 1, 2, 3) for end in ("lo", "hi"))
"""The ends of runs of tiles (`plan.mask.loops`); `PARTS` are those of the stretches that they are made of."""
PARTS = frozenset(f"part{i}{j}_{end}" for i in range(4) for j in range(5) for end in ("lo", "hi"))
MOST_TESTS = 64
"""Data tests of one mask are numbered; so many numbers are kept free."""

_INCLUDED = re.compile(r'"([\w/]+\.py\.j2)"')
_REMARK = re.compile(r"\{#.*?#\}", re.DOTALL)
_DOCSTRING = re.compile(r'""".*?"""', re.DOTALL)
_COMMENT_LINE = re.compile(r"^[ \t]*#[^\n]*", re.MULTILINE)
_TAG = re.compile(r"\{[%{].*?[%}]\}", re.DOTALL)
_PRINTED = re.compile(r"\{\{|\{% include")
_QUOTED = re.compile(r"""'([^'\n]*)'|"([^"\n]*)\"""")
_REST_OF_LINE = re.compile(r"#[^\n]*")
_DEFINITION = re.compile(r"^(?=@|def |class )", re.MULTILINE)
_NAME = re.compile(r"(?<![\w.\0])[A-Za-z]\w*(?![\w\0])")
"""A whole identifier, no attribute; \0 is where a tag stood."""


BUILTINS = frozenset(name for name in dir(builtins) if not name.startswith("_"))
POSITIONS = frozenset({"at_b", "at_h", "at_q", "at_k", "at_distance"})


@functools.cache
def template_names(*folders: str) -> frozenset[str]:
    """Every name of the templates in these folders, and of those that they include."""
    found: set[str] = set()
    texts: dict[str, str] = {}
    waiting = [
        f"{folder}/{name}.py.j2" for folder in folders for name in resources.names(f"templates/{folder}", ".py.j2")
    ]
    while waiting:
        name = waiting.pop()
        if name not in texts:
            texts[name] = _REMARK.sub("", resources.read(f"templates/{name}"))
            waiting += _INCLUDED.findall(texts[name])
            found |= _names(_INCLUDED.sub("", texts[name]))
    return frozenset(n for n in found if not keyword.iskeyword(n))


def test_names(*sides: str, ends: tuple[str, ...]) -> frozenset[str]:
    """What code calls the answers of data tests."""
    return frozenset(f"{side}test{n}{end}" for side in sides for n in range(MOST_TESTS) for end in ends)


def _names(template: str) -> set[str]:
    found: set[str] = set()
    code = _COMMENT_LINE.sub("", _DOCSTRING.sub("", template))
    for number, part in enumerate(_DEFINITION.split(code)):
        if number and not _PRINTED.search(part):
            continue
        for tag in _TAG.findall(part):  # texts that a tag may print
            found.update(n for quoted in _QUOTED.findall(tag) for text in quoted for n in _NAME.findall(text))
        plain = _REST_OF_LINE.sub("", _QUOTED.sub("", _TAG.sub("\0", part)))
        found.update(_NAME.findall(plain))
    return found
