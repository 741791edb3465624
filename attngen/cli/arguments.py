"""Arguments that commands share, and what the words of a command line may say.

Takes argparse's parsers and words, returns options and values; a word that says nothing raises `ArgumentTypeError` with
what to write instead. `cli.main` says which command takes what.
"""

from __future__ import annotations

import re
from argparse import Action, ArgumentError, ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Sequence
from typing import Any

from attngen import targets, vocabulary

# ---------------------------------------------------------------- options


class OnceEach(Action):
    """Collects (name, value), no name twice."""

    def __call__(self, parser: ArgumentParser, namespace: Namespace, values: Any, option_string: str | None = None):
        found: list[tuple[str, object]] = getattr(namespace, self.dest)
        name: str = values[0]
        if any(name == known for known, _ in found):
            raise ArgumentError(self, f"{name} is given twice: give it once")
        setattr(namespace, self.dest, [*found, values])


def spec(p: ArgumentParser) -> None:
    p.add_argument("spec", metavar="SPEC", help="a .attn file; - is standard input")


def shape(p: ArgumentParser) -> None:
    p.add_argument(
        "--shape",
        type=size,
        action=OnceEach,
        default=[],
        metavar="NAME=INT",
        help="sizes: B, Hq, Hkv, Sq, Sk, D, Dv, … (default: B=1, Hq=8, Sq=4096, D=128)",
    )


def define(p: ArgumentParser) -> None:
    p.add_argument(
        "-D",
        dest="define",
        type=assignment,
        action=OnceEach,
        default=[],
        metavar="NAME=VALUE",
        help="override a const (repeatable)",
    )


def prover_effort(p: ArgumentParser) -> None:
    p.add_argument(
        "--effort",
        type=effort,
        default=1.0,
        metavar="N",
        help="work for each obligation, as a multiple of the default; a claim that needs more is reported as unknown",
    )


def target(p: ArgumentParser, does: str) -> None:
    """`None` where it is not given: a generated file says its own."""
    names = [*targets.TARGETS]
    p.add_argument("--target", choices=names, help=f"what to {does} (default: {targets.DEFAULT})")


def settle(args: Namespace) -> None:
    """Put in what is usual where no target and no precision is given."""
    args.target, args.precision = args.target or targets.DEFAULT, args.precision or "ieee"


def kernel_options(p: ArgumentParser) -> None:
    p.add_argument("--tile", type=tile, metavar="Q,K", help="tile sizes instead of the spec's")
    p.add_argument("--precision", choices=vocabulary.PRECISIONS, help="products of fp32 tensors (default: ieee)")


def param(p: ArgumentParser) -> None:
    p.add_argument(
        "--param",
        type=assignment,
        action=OnceEach,
        default=[],
        metavar="NAME=VALUE",
        help="value of a scalar param (default: an example that its `where` allows)",
    )


def data(p: ArgumentParser) -> None:
    p.add_argument(
        "--data",
        type=data_file,
        action=OnceEach,
        default=[],
        metavar="NAME=FILE.npy",
        help="values of a tensor param, as numpy.save writes them (default: invented ones)",
    )


# ---------------------------------------------------------------- words


def data_file(word: str) -> tuple[str, str]:
    name, equals, path = word.partition("=")
    if not (equals and name.isidentifier() and path):
        raise ArgumentTypeError(f"{word!r} names no data; write NAME=FILE.npy, such as ids=documents.npy")
    return name, path


def one_size_each(argv: Sequence[str]) -> list[str]:
    """`--size Sq=96 Sk=128` as `--size Sq=96 --size Sk=128`: argparse would take a spec that follows for a size."""
    words: list[str] = []
    flag = ""
    for word in argv:
        if word in ("--size", "--shape"):
            flag = word
        elif flag and not word.startswith("-") and "=" in word:
            if words[-1] != flag:
                words.append(flag)
        else:
            flag = ""
        words.append(word)
    return words


def size(word: str) -> tuple[str, int]:
    name, equals, value = word.partition("=")
    if not (equals and name and re.fullmatch(r"[0-9]{1,9}", value) and int(value) > 0):
        raise ArgumentTypeError(f"{word!r} is no size; write NAME=INT, such as Sq=96, from 1 to 999999999")
    return name, int(value)


_NUMBER = re.compile(r"[+-]?(inf|(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?)")


def assignment(word: str) -> tuple[str, bool | int | float]:
    name, equals, text = word.partition("=")
    if not (equals and name.isidentifier()):
        raise ArgumentTypeError(f"{word!r} is no assignment; write NAME=VALUE, such as window=512")
    if text in ("true", "false"):
        return name, text == "true"
    if len(text) > 400 or not _NUMBER.fullmatch(text):
        raise ArgumentTypeError(f"the value of {name} must be a number, true or false, not {text[:40]!r}")
    return name, int(text) if re.fullmatch(r"[+-]?\d+", text) else float(text)


def tile(word: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d{1,4}),(\d{1,4})", word)
    if match is None:
        raise ArgumentTypeError(f"{word!r} is no tile; write Q,K, such as 128,64")
    tile = int(match[1]), int(match[2])
    if any(size & (size - 1) or not 16 <= size <= 512 for size in tile):
        raise ArgumentTypeError(f"{word!r}: tile sizes are powers of two from 16 to 512")
    return tile


def head_dim(word: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d{1,4})(?:/(\d{1,4}))?", word)
    if match is None:
        raise ArgumentTypeError(f"{word!r} is no head dim; write D or D/Dv, such as 192/128")
    dims = int(match[1]), int(match[2] or match[1])
    if not all(1 <= dim <= 256 for dim in dims):
        raise ArgumentTypeError(f"{word!r}: head dims run from 1 to 256")
    return dims


def geometries(word: str) -> tuple[str, ...]:
    kinds = tuple(word.split(","))
    wrong = next((kind for kind in kinds if kind not in vocabulary.GEOMETRIES), None)
    if wrong is not None:
        raise ArgumentTypeError(f"no geometry {wrong!r}; there are {', '.join(vocabulary.GEOMETRIES)}")
    return kinds


def seconds(word: str) -> float:
    if not re.fullmatch(r"\d{1,5}(\.\d{1,6})?", word) or float(word) == 0:
        raise ArgumentTypeError(f"{word!r} is no time; write seconds, such as 2.5")
    return float(word)


def effort(word: str) -> float:
    if not re.fullmatch(r"\d{1,6}(\.\d{1,6})?", word) or float(word) == 0:
        raise ArgumentTypeError(f"{word!r} is no effort; write a multiple of the default, such as 4 or 0.5")
    return float(word)


def peers(word: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name for name in word.split(",") if name))
    for name in names:
        if name not in vocabulary.PEERS:
            raise ArgumentTypeError(f"there is no peer {name!r}; there are {', '.join(vocabulary.PEERS)}")
    return names


def lengths(word: str) -> tuple[int, ...]:
    if not re.fullmatch(r"[1-9]\d{0,7}(,[1-9]\d{0,7})*", word):
        raise ArgumentTypeError(f"{word!r} are no lengths; write N,N,…, such as 1024,4096,16384")
    return tuple(int(n) for n in word.split(","))


def positive(word: str) -> int:
    if not re.fullmatch(r"\d{1,6}", word) or int(word) == 0:
        raise ArgumentTypeError(f"{word!r} is no number of ranks; write one from 1 to 999999")
    return int(word)


def gigabytes(word: str) -> float:
    if not re.fullmatch(r"\d{1,6}(\.\d{1,6})?", word) or float(word) == 0:
        raise ArgumentTypeError(f"{word!r} is no rate; write gigabytes a second, such as 50")
    return float(word)


def index(word: str) -> int:
    if not re.fullmatch(r"\d{1,6}", word):
        raise ArgumentTypeError(f"{word!r} is no index; write 0, 1, …")
    return int(word)
