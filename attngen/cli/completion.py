"""`attngen completion`: a shell in, the script with which bash, zsh or fish completes this command line out."""

from __future__ import annotations

from argparse import Action, ArgumentParser, Namespace
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from attngen import terminal
from attngen.cli.parser import Commands

Shell = Literal["bash", "zsh", "fish"]


@dataclass(frozen=True, slots=True)
class _Option:
    flags: tuple[str, ...]
    help: str
    takes_value: bool
    repeats: bool
    choices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Command:
    name: str
    help: str
    options: tuple[_Option, ...]
    words: tuple[str, ...]  # what the positional argument may be; empty for files


def add(table: Commands) -> None:
    p = table.add_parser(
        "completion",
        help="print a completion script",
        description="Prints a script that teaches a shell to complete attngen's commands and options.",
        example="source <(attngen completion bash)",
    )
    p.add_argument("shell", choices=("bash", "zsh", "fish"), help="the shell")
    p.set_defaults(run=partial(_run, table))


def _run(table: Commands, args: Namespace) -> int:
    terminal.put(_script(args.shell, table))
    return 0


def _script(shell: Shell, table: Commands) -> str:
    """What `source <(attngen completion SHELL)` reads, from the parsers of all commands."""
    found = tuple(_commands(table))
    match shell:
        case "bash":
            return _bash(found)
        case "zsh":
            return _zsh(found)
        case "fish":
            return _fish(found)


def _commands(table: Commands) -> Iterator[_Command]:
    listed: list[Any] = table._choices_actions  # pyright: ignore[reportPrivateUsage]
    helps: dict[str, str] = {choice.dest: choice.help or "" for choice in listed}
    for name, sub in table.choices.items():
        words = next((_choices(a) for a in _actions(sub) if not a.option_strings), ())
        options = tuple(_option(a) for a in _actions(sub) if a.option_strings)
        yield _Command(name, helps[name], options, words)


def _actions(parser: ArgumentParser) -> list[Action]:
    return parser._actions  # pyright: ignore[reportPrivateUsage]


def _option(action: Action) -> _Option:
    repeats = action.nargs == "+" or isinstance(action.default, list)
    return _Option(tuple(action.option_strings), action.help or "", action.nargs != 0, repeats, _choices(action))


def _choices(action: Action) -> tuple[str, ...]:
    return tuple(str(choice) for choice in action.choices or ())


def _bash(commands: tuple[_Command, ...]) -> str:
    lines = [
        "_attngen() {",
        "    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]}",
        "    local words=",
        "    COMPREPLY=()",
        '    if [ "$COMP_CWORD" -eq 1 ]; then',
        f"        words='{' '.join(c.name for c in commands)} --help --version'",
        "    else",
        '        case "${COMP_WORDS[1]} $prev" in',
    ]
    for c in commands:
        for o in c.options:
            if o.takes_value:
                patterns = "|".join(f"'{c.name} {flag}'" for flag in o.flags)
                answer = f"words='{' '.join(o.choices)}'" if o.choices else "return"
                lines.append(f"            {patterns}) {answer} ;;")
    lines += ["            *)", '                case "${COMP_WORDS[1]}:$cur" in']
    for c in commands:
        flags = " ".join(flag for o in c.options for flag in o.flags)
        lines.append(f"                    {c.name}:-*) words='{flags}' ;;")
        if c.words:
            lines.append(f"                    {c.name}:*) words='{' '.join(c.words)}' ;;")
    lines += [
        "                esac ;;",
        "        esac",
        "    fi",
        '    [ -z "$words" ] || COMPREPLY=($(compgen -W "$words" -- "$cur"))',
        "}",
        "complete -o default -F _attngen attngen",  # default: files, where the function has no answer
    ]
    return "\n".join(lines) + "\n"


def _zsh(commands: tuple[_Command, ...]) -> str:
    lines = ["#compdef attngen", "_attngen() {", "    local -a commands", "    commands=("]
    lines += [f"        {_zsh_quote(f'{c.name}:{c.help}')}" for c in commands]
    lines += [
        "    )",
        "    if (( CURRENT == 2 )); then",
        "        _describe command commands",
        "        return",
        "    fi",
        "    local command=$words[2]",
        "    shift words",
        "    (( CURRENT-- ))",
        "    case $command in",
    ]
    for c in commands:
        lines.append(f"        {c.name})")
        lines.append("            _arguments \\")
        for o in c.options:
            star = "*" if o.repeats else ""
            for flag in o.flags:
                value = "" if not o.takes_value else f":value:({' '.join(o.choices)})" if o.choices else ":value:_files"
                said = o.help.replace("[", "(").replace("]", ")").replace(":", "\\:")
                lines.append(f"                {_zsh_quote(f'{star}{flag}[{said}]{value}')} \\")
        lines.append("                " + _zsh_quote(f"*:word:({' '.join(c.words)})" if c.words else "*:file:_files"))
        lines.append("            ;;")
    lines += ["    esac", "}", "compdef _attngen attngen"]
    return "\n".join(lines) + "\n"


def _zsh_quote(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def _fish(commands: tuple[_Command, ...]) -> str:
    lines = ["complete -c attngen -n __fish_use_subcommand -f"]
    for c in commands:
        lines.append(f"complete -c attngen -n __fish_use_subcommand -a {c.name} -d {_fish_quote(c.help)}")
    for c in commands:
        start = f"complete -c attngen -n '__fish_seen_subcommand_from {c.name}'"
        for o in c.options:
            flags = " ".join(f"-l {f[2:]}" if f.startswith("--") else f"-s {f[1:]}" for f in o.flags)
            value = f" -x -a '{' '.join(o.choices)}'" if o.choices else " -r" if o.takes_value else ""
            lines.append(f"{start} {flags}{value} -d {_fish_quote(o.help)}")
        if c.words:
            lines.append(f"{start} -f -a '{' '.join(c.words)}'")
    return "\n".join(lines) + "\n"


def _fish_quote(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
