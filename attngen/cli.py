"""The command line: what commands and options there are, and how mistakes end.

Takes `argv`, gives the exit status: 0 success, 1 refuted or not verified, 2 wrong usage or a wrong spec. What commands
do stands in `commands`. A crash is no diagnosis: what isn't a user's mistake keeps its traceback.
"""

from __future__ import annotations

import gc
import os
import re
import sys
from argparse import (
    Action,
    ArgumentParser,
    ArgumentTypeError,
    Namespace,
    RawDescriptionHelpFormatter,
    _SubParsersAction,  # pyright: ignore[reportPrivateUsage]
)
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from attngen import api, bench_commands, commands, proving, terminal, tpu_commands
from attngen.errors import InternalError, Refuted, SpecError, Unproved, UsageError

_DESCRIPTION = "Compiles attention variants, written as mathematics, into differentiable fused kernels."


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; `argv` is `sys.argv[1:]` when not given."""
    gc.set_threshold(50_000)  # trees of syntax live until the end: looking through them for garbage takes 0.1 s
    try:
        args = parser().parse_args(_one_size_each(sys.argv[1:] if argv is None else argv))
        run: Callable[[Namespace], int] = args.run
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


class _Parser(ArgumentParser):
    """One line for a mistake, and where to read on."""

    def __init__(self, *args: Any, example: str = "", **kwargs: Any):
        epilog = f"example:\n  {example}" if example else None
        super().__init__(
            *args, epilog=epilog, formatter_class=RawDescriptionHelpFormatter, allow_abbrev=False, **kwargs
        )

    def error(self, message: str) -> NoReturn:
        terminal.report_usage(self.prog, f"{message} (see {self.prog} --help)")
        sys.exit(2)


def parser() -> ArgumentParser:
    """Every command with its options, help and example."""
    top = _Parser("attngen", description=_DESCRIPTION, example="attngen compile examples/alibi.attn -o alibi.py")
    top.add_argument("--version", action=_Version, nargs=0, help="print the version")
    table: _SubParsersAction[_Parser] = top.add_subparsers(
        title="commands", metavar="COMMAND", dest="command", required=True, parser_class=_Parser
    )
    _compile(table)
    _fmt(table)
    _show(table)
    _check(table)
    _verify(table)
    _cost(table)
    _tune(table)
    _bench(table)
    _completion(table)
    return top


def _compile(table: _SubParsersAction[_Parser]) -> None:
    p = table.add_parser(
        "compile",
        help="write the kernel of a spec",
        description="Compiles a spec to a standalone Python file, or shows any stage on the way.",
        example="attngen compile examples/windowed_alibi.attn -D window=512 -o windowed_alibi.py",
    )
    _spec(p)
    p.add_argument("--target", choices=api.TARGETS, default="triton", help="what to generate (default: triton)")
    p.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help="write there instead of to standard output; cubin and hsaco: one FILE for each kernel, its name put in",
    )
    _define(p)
    p.add_argument(
        "--emit",
        choices=(*api.STAGES, *api.BINARIES, *api.TPU_STAGES),
        default="source",
        help="the stage to print (default: source); from ttir on, the real compiler runs, without a GPU or TPU",
    )
    p.add_argument(
        "--arch",
        choices=api.SOURCE_ARCHITECTURES,
        help="source: the chip whose own kernels the file holds; portable: none; auto (default): all, picked by the "
        "card. Binary stages: the chip (default: sm_90)",
    )
    p.add_argument("--dtype", choices=api.DTYPES, help="dtype of q, k, v in the binary stages (default: bf16)")
    p.add_argument("--head-dim", type=_head_dim, metavar="D[/Dv]", help="head dims of the binary stages (default: 64)")
    p.add_argument("--chip", choices=api.TPUS, help="TPU of mosaic, hlo and schedule (default: v5e)")
    _shape(p)
    p.add_argument("--tiles", metavar="FILE", help="tiles for GPUs or TPUs, as `attngen tune` wrote them")
    p.add_argument(
        "--allow-unproved",
        action="append",
        default=[],
        metavar="NAME",
        help="compile although this obligation is unknown, and say so in the file; never what is refuted",
    )
    _kernel_options(p)
    p.set_defaults(run=tpu_commands.run_compile)


def _tune(table: _SubParsersAction[_Parser]) -> None:
    p = table.add_parser(
        "tune",
        help="choose tile sizes, on a GPU or for a TPU",
        description="triton: times a spec's kernels on the GPU that is here, at candidate tiles, warps and stages.\n"
        "pallas: compiles them with the TPU's own compiler, and keeps the tiles with the fewest estimated cycles; no\n"
        "TPU is needed. A tuning that was stopped goes on where it stopped. `compile --tiles FILE` reads the results.",
        example="attngen tune examples/causal.attn --target triton --shape B=4 Hq=16 Sq=4096 D=128",
    )
    _spec(p)
    p.add_argument("--target", choices=("pallas", "triton"), default="pallas", help="what to tune (default: pallas)")
    p.add_argument("--chip", choices=api.TPUS, help="the TPU (pallas; triton takes the GPU that is here)")
    _shape(p)
    p.add_argument("--dtype", choices=("bf16", "fp32"), default="bf16", help="dtype of q, k, v (default: bf16)")
    _define(p)
    p.add_argument(
        "--precision", choices=api.PRECISIONS, default="ieee", help="products of fp32 arrays (default: ieee)"
    )
    p.add_argument(
        "-o", "--output", metavar="FILE", help="where tiles are kept (default: NAME.tiles.json; triton: NAME.gpu.json)"
    )
    p.add_argument(
        "--budget", type=_seconds, metavar="S", help="triton: stop after so many seconds; run again to go on"
    )
    p.set_defaults(run=_run_tune)


def _run_tune(args: Namespace) -> int:
    if args.target == "triton":
        if args.chip is not None:
            raise UsageError("--chip names a TPU; --target triton tunes for the GPU that is here")
        return bench_commands.run_tune(args)
    if args.chip is None:
        raise UsageError(f"--target pallas needs a TPU: --chip {', '.join(api.TPUS)}")
    if args.budget is not None:
        raise UsageError("--budget goes with --target triton")
    return tpu_commands.run_tune(args)


def _fmt(table: _SubParsersAction[_Parser]) -> None:
    p = table.add_parser(
        "fmt",
        help="lay out specs",
        description="Prints specs in their canonical layout; comments stay.",
        example="attngen fmt --check examples/*.attn",
    )
    p.add_argument("files", nargs="+", metavar="FILE", help="specs; - is standard input")
    how = p.add_mutually_exclusive_group()
    how.add_argument("--check", action="store_true", help="name the files that would change, and exit with status 1")
    how.add_argument("-w", "--write", action="store_true", help="write the files back instead of printing")
    p.set_defaults(run=commands.run_fmt)


def _show(table: _SubParsersAction[_Parser]) -> None:
    p = table.add_parser(
        "show",
        usage="attngen show [-h] SPEC [--size NAME=INT …] [--tile Q,K] [-D NAME=VALUE] [--param NAME=VALUE]\n"
        "                    [--batch N] [--head N] [-o FILE.png|FILE.svg]",
        help="draw the mask and the tiles that are skipped",
        description="Draws a spec's mask with its tiles: skipped, masked, or in need of no mask.\n"
        "Params get example values; scalars can be set.",
        example="attngen show examples/sliding_window.attn -D window=24 --size Sq=96 Sk=96 --tile 16,16",
    )
    _spec(p)
    p.add_argument(
        "--size",
        type=_size,
        action="append",
        default=[],
        metavar="NAME=INT",
        help="sizes: Sq, Sk, B, Hq, … (default: lengths at which the mask shows)",
    )
    p.add_argument("--tile", type=_tile, metavar="Q,K", help="tile sizes (default: the spec's, or small ones)")
    _define(p)
    p.add_argument(
        "--param",
        type=_assignment,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="value of a scalar param (default: an example that its `where` allows)",
    )
    p.add_argument("--batch", type=_index, default=0, metavar="N", help="batch entry to draw (default: 0)")
    p.add_argument("--head", type=_index, default=0, metavar="N", help="query head to draw (default: 0)")
    p.add_argument("-o", "--output", metavar="FILE", help="a picture, .png or .svg, instead of the terminal")
    p.set_defaults(run=commands.run_show)


def _check(table: _SubParsersAction[_Parser]) -> None:
    p = table.add_parser(
        "check",
        help="prove that a spec's kernel computes what the spec defines",
        description="Discharges every obligation of a spec's plan: streaming, range safety, empty rows, locality,\n"
        "gradients, tile ranges, index bounds, integer width. What is false comes with a counterexample, and\n"
        "exit status 1. `compile` proves the same before it writes a file.",
        example="attngen check examples/*.attn",
    )
    p.add_argument("specs", nargs="+", metavar="SPEC", help="spec files; - is standard input")
    _define(p)
    p.add_argument(
        "--target", choices=api.TARGETS, default="triton", help="whose plan: ints differ in width (default: triton)"
    )
    p.add_argument("--json", action="store_true", help="print every claim with its verdict, method and counterexample")
    p.add_argument("--explain", action="store_true", help="print the derivation, from dense softmax to tiles and back")
    p.add_argument(
        "--timeout",
        type=_seconds,
        metavar="S",
        help="seconds for a spec; what they cut off is unknown (default: 10)",
    )
    p.add_argument("-o", "--output", metavar="FILE", help="with --explain: write it there, .md or .tex")
    p.set_defaults(run=proving.run_check)


def _verify(table: _SubParsersAction[_Parser]) -> None:
    p = table.add_parser(
        "verify",
        help="run a spec's kernel against the float64 reference",
        description="Compiles a spec, runs it forward and backward on shapes that tend to break kernels, and compares\n"
        "every result with the float64 reference. Exit status 1 if one is over its tolerance.",
        example="attngen verify examples/alibi.attn --device cpu",
    )
    _spec(p)
    p.add_argument("--target", choices=api.TARGETS, default="triton", help="what to run (default: triton)")
    p.add_argument(
        "--device",
        choices=("auto", "cpu", "cuda"),
        default="auto",
        help="where to run (default: a GPU or TPU if there is one); cpu is the target's interpreter",
    )
    _define(p)
    _kernel_options(p)
    p.set_defaults(run=commands.run_verify)


def _cost(table: _SubParsersAction[_Parser]) -> None:
    p = table.add_parser(
        "cost",
        usage="attngen cost [-h] SPEC --chip CHIP [--shape NAME=INT …] [--dtype DTYPE] [--tile Q,K] [-D NAME=VALUE]\n"
        "                    [--param NAME=VALUE] [--json] [-o FILE.png|FILE.svg]",
        help="count what a spec costs on a chip",
        description="Counts operations and bytes, for both loop orders, forward and backward, skipped tiles left out,\n"
        "and gives the roofline's time. The chip needn't be there. Params get example values.",
        example="attngen cost examples/causal.attn --chip h200 --shape B=4 Hq=16 Sq=4096 D=128",
    )
    _spec(p)
    p.add_argument("--chip", choices=api.CHIPS, required=True, help="the chip")
    _shape(p)
    p.add_argument("--dtype", choices=api.DTYPES, default="bf16", help="dtype of q, k, v (default: bf16)")
    p.add_argument("--tile", type=_tile, metavar="Q,K", help="tile sizes of all kernels (default: the chip's)")
    _define(p)
    p.add_argument(
        "--param",
        type=_assignment,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="value of a scalar param (default: an example that its `where` allows)",
    )
    p.add_argument("--json", action="store_true", help="print JSON, with the source of each of the chip's figures")
    p.add_argument("-o", "--output", metavar="FILE", help="draw the times over sequence length, .png or .svg")
    p.set_defaults(run=commands.run_cost)


def _bench(table: _SubParsersAction[_Parser]) -> None:
    p = table.add_parser(
        "bench",
        usage="attngen bench [-h] SPEC [--against PEER,…] [--shape NAME=INT …] [--lengths N,…] [--dtype DTYPE]\n"
        "                     [-D NAME=VALUE] [--param NAME=VALUE] [--forward-only] [--seed N] [--rep MS]\n"
        "                     [-o FILE.json|FILE.svg|FILE.png]",
        help="measure a spec's kernel on the GPU that is here, beside others",
        description="Measures a spec's kernel, forward and backward, beside FlexAttention, torch's own attention\n"
        "(FlashAttention 2; cuDNN) and FlashAttention 4, in one process, on the same inputs, turn about. Each is\n"
        "checked against attention in float32 first; what is wrong has no figures, and the exit status is 1.",
        example="attngen bench examples/causal.attn --against flex,cudnn --shape B=4 Hq=16 Sq=4096 D=128 -o a.json",
    )
    _spec(p)
    p.add_argument(
        "--against",
        type=_peers,
        default=("flex", "sdpa", "cudnn"),
        metavar="PEER,…",
        help=f"{', '.join(api.PEERS)} (default: flex,sdpa,cudnn); what cannot compute the spec is named",
    )
    _shape(p)
    p.add_argument("--lengths", type=_lengths, default=(), metavar="N,…", help="measure at each of these lengths")
    p.add_argument("--dtype", choices=("bf16", "fp16"), default="bf16", help="dtype of q, k, v (default: bf16)")
    _define(p)
    p.add_argument(
        "--param",
        type=_assignment,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="value of a scalar param (default: an example that its `where` allows)",
    )
    p.add_argument("--forward-only", action="store_true", help="leave the backward pass out")
    p.add_argument("--seed", type=_index, metavar="N", help="of the inputs (default: a fresh one; the JSON has it)")
    p.add_argument(
        "--rep", type=_seconds, default=90.0, metavar="MS", help="milliseconds for each measurement (default: 90)"
    )
    p.add_argument(
        "-o",
        "--output",
        action="append",
        default=[],
        metavar="FILE",
        help="write results (.json) or draw speed and memory over length (.svg, .png); repeatable",
    )
    p.set_defaults(run=bench_commands.run_bench)


def _completion(table: _SubParsersAction[_Parser]) -> None:
    p = table.add_parser(
        "completion",
        help="print a completion script",
        description="Prints a script that teaches a shell to complete attngen's commands and options.",
        example="source <(attngen completion bash)",
    )
    p.add_argument("shell", choices=("bash", "zsh", "fish"), help="the shell")
    p.set_defaults(run=_run_completion)


def _run_completion(args: Namespace) -> int:
    from attngen.completion import script

    terminal.put(script(args.shell, parser()))
    return 0


# ---------------------------------------------------------------- options that commands share


def _spec(p: ArgumentParser) -> None:
    p.add_argument("spec", metavar="SPEC", help="a .attn file; - is standard input")


def _shape(p: ArgumentParser) -> None:
    p.add_argument(
        "--shape",
        type=_size,
        action="append",
        default=[],
        metavar="NAME=INT",
        help="sizes: B, Hq, Hkv, Sq, Sk, D, Dv, … (default: B=1, Hq=8, Sq=4096, D=128)",
    )


def _define(p: ArgumentParser) -> None:
    p.add_argument(
        "-D",
        dest="define",
        type=_assignment,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="override a const (repeatable)",
    )


def _kernel_options(p: ArgumentParser) -> None:
    p.add_argument("--tile", type=_tile, metavar="Q,K", help="tile sizes instead of the spec's")
    p.add_argument(
        "--precision", choices=api.PRECISIONS, default="ieee", help="products of fp32 tensors (default: ieee)"
    )


class _Version(Action):
    def __call__(self, parser: ArgumentParser, *_: object) -> NoReturn:
        from importlib.metadata import PackageNotFoundError, version

        try:
            print(f"attngen {version('attngen')}")
        except PackageNotFoundError:
            print("attngen, from a checkout that is not installed")
        parser.exit()


def _one_size_each(argv: Sequence[str]) -> list[str]:
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


def _size(word: str) -> tuple[str, int]:
    name, equals, value = word.partition("=")
    if not (equals and name and re.fullmatch(r"[0-9]{1,9}", value) and int(value) > 0):
        raise ArgumentTypeError(f"{word!r} is no size; write NAME=INT, such as Sq=96")
    return name, int(value)


_NUMBER = re.compile(r"[+-]?(inf|(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?)")


def _assignment(word: str) -> tuple[str, bool | int | float]:
    name, equals, text = word.partition("=")
    if not (equals and name.isidentifier()):
        raise ArgumentTypeError(f"{word!r} is no assignment; write NAME=VALUE, such as window=512")
    if text in ("true", "false"):
        return name, text == "true"
    if len(text) > 400 or not _NUMBER.fullmatch(text):
        raise ArgumentTypeError(f"the value of {name} must be a number, true or false, not {text[:40]!r}")
    return name, int(text) if re.fullmatch(r"[+-]?\d+", text) else float(text)


def _tile(word: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d{1,4}),(\d{1,4})", word)
    if match is None:
        raise ArgumentTypeError(f"{word!r} is no tile; write Q,K, such as 128,64")
    tile = int(match[1]), int(match[2])
    if any(size & (size - 1) or not 16 <= size <= 512 for size in tile):
        raise ArgumentTypeError(f"{word!r}: tile sizes are powers of two from 16 to 512")
    return tile


def _head_dim(word: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d{1,4})(?:/(\d{1,4}))?", word)
    if match is None:
        raise ArgumentTypeError(f"{word!r} is no head dim; write D or D/Dv, such as 192/128")
    dims = int(match[1]), int(match[2] or match[1])
    if not all(8 <= dim <= 256 for dim in dims):
        raise ArgumentTypeError(f"{word!r}: head dims run from 8 to 256")
    return dims


def _seconds(word: str) -> float:
    if not re.fullmatch(r"\d{1,5}(\.\d{1,6})?", word) or float(word) == 0:
        raise ArgumentTypeError(f"{word!r} is no time; write seconds, such as 2.5")
    return float(word)


def _peers(word: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name for name in word.split(",") if name))
    for name in names:
        if name not in api.PEERS:
            raise ArgumentTypeError(f"there is no peer {name!r}; there are {', '.join(api.PEERS)}")
    return names


def _lengths(word: str) -> tuple[int, ...]:
    if not re.fullmatch(r"[1-9]\d{0,7}(,[1-9]\d{0,7})*", word):
        raise ArgumentTypeError(f"{word!r} are no lengths; write N,N,…, such as 1024,4096,16384")
    return tuple(int(n) for n in word.split(","))


def _index(word: str) -> int:
    if not re.fullmatch(r"\d{1,6}", word):
        raise ArgumentTypeError(f"{word!r} is no index; write 0, 1, …")
    return int(word)
