"""The command line's parser: a mistake is one line, and every help text has an example."""

from __future__ import annotations

import sys
from argparse import (
    ArgumentParser,
    RawDescriptionHelpFormatter,
    _SubParsersAction,  # pyright: ignore[reportPrivateUsage]
)
from typing import Any, NoReturn, TypeAlias

from attngen import terminal


class Parser(ArgumentParser):
    """One line for a mistake, and where to read on."""

    def __init__(self, *args: Any, example: str = "", notes: str = "", **kwargs: Any):
        epilog = f"example:\n  {example}\n{notes}" if example else None
        super().__init__(
            *args, epilog=epilog, formatter_class=RawDescriptionHelpFormatter, allow_abbrev=False, **kwargs
        )

    def error(self, message: str) -> NoReturn:
        terminal.report_usage(self.prog, f"{message} (see {self.prog} --help)")
        sys.exit(2)


Commands: TypeAlias = "_SubParsersAction[Parser]"
"""What a command's `add` adds its parser to."""
