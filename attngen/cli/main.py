"""The command line: what commands and options there are, and how mistakes end.

Takes `argv`, gives the exit status: 0 success, 1 refuted or not verified, 2 wrong usage or a wrong spec. What commands
do stands in `commands`. A crash is no diagnosis: what isn't a user's mistake keeps its traceback.
"""

from __future__ import annotations

import gc
import os
import sys
from argparse import (
    Action,
    ArgumentParser,
    Namespace,
    RawDescriptionHelpFormatter,
    _SubParsersAction,  # pyright: ignore[reportPrivateUsage]
)
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from attngen import terminal, vocabulary
from attngen.cli import arguments, check_command, commands, gpu_commands, tpu_commands
from attngen.errors import InternalError, Refuted, SpecError, Unproved, UsageError

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


class _Parser(ArgumentParser):
    """One line for a mistake, and where to read on."""

    def __init__(self, *args: Any, example: str = "", notes: str = "", **kwargs: Any):
        epilog = f"example:\n  {example}\n{notes}" if example else None
        super().__init__(
            *args, epilog=epilog, formatter_class=RawDescriptionHelpFormatter, allow_abbrev=False, **kwargs
        )

    def error(self, message: str) -> NoReturn:
        terminal.report_usage(self.prog, f"{message} (see {self.prog} --help)")
        sys.exit(2)


def parser() -> ArgumentParser:
    """Every command with its options, help and example."""
    example = "attngen compile examples/alibi.attn -o alibi.py"
    top = _Parser("attngen", description=_DESCRIPTION, example=example, notes=_ENVIRONMENT)
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
    arguments.spec(p)
    p.add_argument("--target", choices=vocabulary.TARGETS, default="triton", help="what to generate (default: triton)")
    p.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help="write there instead of to standard output; cubin and hsaco: one FILE for each kernel, its name put in",
    )
    arguments.define(p)
    p.add_argument(
        "--emit",
        choices=(*vocabulary.STAGES, *vocabulary.BINARIES, *vocabulary.TPU_STAGES),
        default="source",
        help="the stage to print (default: source); from ttir on, the real compiler runs, without a GPU or TPU",
    )
    p.add_argument(
        "--arch",
        choices=vocabulary.SOURCE_ARCHITECTURES,
        help="source: the chip whose own kernels the file holds; portable: none; auto (default): all, picked by the "
        "card. Binary stages: the chip (default: sm_90)",
    )
    p.add_argument("--dtype", choices=vocabulary.DTYPES, help="dtype of q, k, v in the binary stages (default: bf16)")
    p.add_argument(
        "--head-dim", type=arguments.head_dim, metavar="D[/Dv]", help="head dims of the binary stages (default: 64)"
    )
    p.add_argument("--chip", choices=vocabulary.TPUS, help="TPU of mosaic, hlo and schedule (default: v5e)")
    arguments.shape(p)
    p.add_argument("--tiles", metavar="FILE", help="tiles for GPUs or TPUs, as `attngen tune` wrote them")
    p.add_argument(
        "--allow-unproved",
        action="append",
        default=[],
        metavar="NAME",
        help="compile although this obligation is unknown, and say so in the file; never what is refuted",
    )
    p.add_argument("--strict", action="store_true", help="refuse a mask that allows no pair, instead of warning of it")
    arguments.kernel_options(p)
    p.set_defaults(run=tpu_commands.run_compile)


def _tune(table: _SubParsersAction[_Parser]) -> None:
    p = table.add_parser(
        "tune",
        help="choose tile sizes, on a GPU or for a TPU",
        description="triton: times a spec's kernels on the GPU that is here, at candidate tiles, warps and stages;\n"
        "those that compute capability 9.0 has for itself, at candidate rows of their tables.\n"
        "pallas: compiles them with the TPU's own compiler, and keeps the tiles with the fewest estimated cycles; no\n"
        "TPU is needed. A tuning that was stopped goes on where it stopped. `compile --tiles FILE` reads the results.",
        example="attngen tune examples/causal.attn --target triton --shape B=4 Hq=16 Sq=4096 D=128",
    )
    arguments.spec(p)
    p.add_argument("--target", choices=("pallas", "triton"), default="pallas", help="what to tune (default: pallas)")
    p.add_argument("--chip", choices=vocabulary.TPUS, help="the TPU (pallas; triton takes the GPU that is here)")
    arguments.shape(p)
    p.add_argument("--dtype", choices=("bf16", "fp32"), default="bf16", help="dtype of q, k, v (default: bf16)")
    arguments.define(p)
    p.add_argument(
        "--precision", choices=vocabulary.PRECISIONS, default="ieee", help="products of fp32 arrays (default: ieee)"
    )
    p.add_argument(
        "-o", "--output", metavar="FILE", help="where tiles are kept (default: NAME.tiles.json; triton: NAME.gpu.json)"
    )
    p.add_argument(
        "--budget", type=arguments.seconds, metavar="S", help="triton: stop after so many seconds; run again to go on"
    )
    p.add_argument(
        "--own", action="store_true", help="triton: no tiles where the chip has kernels of its own; their rows alone"
    )
    p.set_defaults(run=_run_tune)


def _run_tune(args: Namespace) -> int:
    if args.target == "triton":
        if args.chip is not None:
            raise UsageError("--chip names a TPU; --target triton tunes for the GPU that is here")
        return gpu_commands.run_tune(args)
    if args.chip is None:
        raise UsageError(f"--target pallas needs a TPU: --chip {', '.join(vocabulary.TPUS)}")
    if args.budget is not None:
        raise UsageError("--budget goes with --target triton")
    if args.own:
        raise UsageError("--own goes with --target triton")
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
    arguments.spec(p)
    p.add_argument(
        "--size",
        type=arguments.size,
        action="append",
        default=[],
        metavar="NAME=INT",
        help="sizes: Sq, Sk, B, Hq, … (default: lengths at which the mask shows)",
    )
    p.add_argument("--tile", type=arguments.tile, metavar="Q,K", help="tile sizes (default: the spec's, or small ones)")
    arguments.define(p)
    arguments.param(p)
    p.add_argument("--batch", type=arguments.index, default=0, metavar="N", help="batch entry to draw (default: 0)")
    p.add_argument("--head", type=arguments.index, default=0, metavar="N", help="query head to draw (default: 0)")
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
    arguments.define(p)
    p.add_argument(
        "--target",
        choices=vocabulary.TARGETS,
        default="triton",
        help="whose plan: ints differ in width (default: triton)",
    )
    p.add_argument("--json", action="store_true", help="print every claim with its verdict, method and counterexample")
    p.add_argument("--explain", action="store_true", help="print the derivation, from dense softmax to tiles and back")
    p.add_argument(
        "--timeout",
        type=arguments.seconds,
        metavar="S",
        help="seconds for a spec; what they cut off is unknown (default: 10)",
    )
    p.add_argument("-o", "--output", metavar="FILE", help="with --explain: write it there, .md or .tex")
    p.set_defaults(run=check_command.run_check)


def _verify(table: _SubParsersAction[_Parser]) -> None:
    p = table.add_parser(
        "verify",
        help="run a spec's kernel against the float64 reference",
        description="Compiles a spec, runs it forward and backward on shapes that tend to break kernels, and compares\n"
        "every result with the float64 reference. Exit status 1 if one is over its tolerance.",
        example="attngen verify examples/alibi.attn --device cpu",
    )
    arguments.spec(p)
    p.add_argument("--target", choices=vocabulary.TARGETS, default="triton", help="what to run (default: triton)")
    p.add_argument(
        "--device",
        choices=("auto", "cpu", "cuda"),
        default="auto",
        help="where to run (default: a GPU or TPU if there is one); cpu is the target's interpreter",
    )
    arguments.define(p)
    arguments.kernel_options(p)
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
    arguments.spec(p)
    p.add_argument("--chip", choices=vocabulary.CHIPS, required=True, help="the chip")
    arguments.shape(p)
    p.add_argument("--dtype", choices=vocabulary.DTYPES, default="bf16", help="dtype of q, k, v (default: bf16)")
    p.add_argument("--tile", type=arguments.tile, metavar="Q,K", help="tile sizes of all kernels (default: the chip's)")
    arguments.define(p)
    arguments.param(p)
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
    arguments.spec(p)
    p.add_argument(
        "--against",
        type=arguments.peers,
        default=("flex", "sdpa", "cudnn"),
        metavar="PEER,…",
        help=f"{', '.join(vocabulary.PEERS)} (default: flex,sdpa,cudnn); what cannot compute the spec is named",
    )
    arguments.shape(p)
    p.add_argument(
        "--lengths", type=arguments.lengths, default=(), metavar="N,…", help="measure at each of these lengths"
    )
    p.add_argument("--dtype", choices=("bf16", "fp16"), default="bf16", help="dtype of q, k, v (default: bf16)")
    arguments.define(p)
    arguments.param(p)
    p.add_argument("--forward-only", action="store_true", help="leave the backward pass out")
    p.add_argument(
        "--seed", type=arguments.index, metavar="N", help="of the inputs (default: a fresh one; the JSON has it)"
    )
    p.add_argument(
        "--rep",
        type=arguments.seconds,
        default=90.0,
        metavar="MS",
        help="milliseconds for each measurement (default: 90)",
    )
    p.add_argument(
        "-o",
        "--output",
        action="append",
        default=[],
        metavar="FILE",
        help="write results (.json) or draw speed and memory over length (.svg, .png); repeatable",
    )
    p.set_defaults(run=gpu_commands.run_bench)


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
    from attngen.cli.completion import script

    terminal.put(script(args.shell, parser()))
    return 0


class _Version(Action):
    def __call__(self, parser: ArgumentParser, *_: object) -> NoReturn:
        from importlib.metadata import PackageNotFoundError, version

        try:
            print(f"attngen {version('attngen')}")
        except PackageNotFoundError:
            print("attngen, from a checkout that is not installed")
        parser.exit()
