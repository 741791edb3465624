"""The command line: the list of its commands, and how mistakes end.

Takes `argv`, returns the exit status: 0 success, 1 refuted or not verified, 2 wrong usage or a wrong spec. Each command
has a module of its own, whose `add` adds the command's parser. Modules that take time to load are imported inside the
command that needs them. A crash is no diagnosis: what isn't a user's mistake keeps its traceback.
"""

from __future__ import annotations

import gc
import os
import sys
from argparse import Action, ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from typing import NoReturn

from attngen import terminal
from attngen.cli import (
    arguments,
    bench,
    check,
    compile,
    completion,
    cost,
    env,
    examples,
    fmt,
    new,
    plan_parallel,
    show,
    tune,
    verify,
)
from attngen.cli.parser import Commands, Parser
from attngen.errors import InternalError, Refuted, SpecError, Unproved, UsageError

_COMMANDS = (
    new,
    compile,
    examples,
    fmt,
    show,
    check,
    verify,
    cost,
    plan_parallel,
    tune,
    bench,
    env,
    completion,
)
_DESCRIPTION = "Compiles attention variants, written as mathematics, into differentiable fused kernels."
_ENVIRONMENT = """
environment:
  ATTNGEN_CACHE       the folder that keeps proofs and generated files (default: attngen in your cache folder);
                      not used where it is a link or others may write to it
  TRITON_INTERPRET=1  run Triton kernels in Triton's interpreter; without a GPU attngen sets it itself"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; `argv` is `sys.argv[1:]` when not given."""
    gc.set_threshold(200_000)  # trees of syntax live until the end: looking through them for garbage takes 0.1 s
    try:
        args = parser().parse_args(arguments.one_size_each(sys.argv[1:] if argv is None else argv))
        run: Callable[[Namespace], int] = args.run
        with terminal.warnings_as_lines():
            status = run(args)
        sys.stdout.flush()
        return status
    except SpecError as error:
        terminal.report_spec(error)
        return 1 if isinstance(error, Refuted | Unproved) else 2
    except InternalError as error:  # a crash of ours has a status of its own: neither a refuted spec nor wrong usage
        terminal.report_usage("attngen", str(error))
        return 70
    except UsageError as error:
        terminal.report_usage("attngen", str(error))
        return 2
    except BrokenPipeError:  # the reader left, as `head` does: no mistake, but what is buffered has nowhere to go
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + 13
    except KeyboardInterrupt:
        return 128 + 2


def parser() -> ArgumentParser:
    """Every command with its options, help and example."""
    example = "attngen compile examples/alibi.attn -o alibi.py"
    top = Parser("attngen", description=_DESCRIPTION, example=example, notes=_ENVIRONMENT)
    top.add_argument("--version", action=_Version, nargs=0, help="print the version")
    table: Commands = top.add_subparsers(
        title="commands", metavar="COMMAND", dest="command", required=True, parser_class=Parser
    )
    for command in _COMMANDS:
        command.add(table)
    return top


class _Version(Action):
    def __call__(self, parser: ArgumentParser, *_: object) -> NoReturn:
        import attngen

        print(f"attngen {attngen.__version__}")
        parser.exit()
