"""Pieces of longer sequences in a generated file: their kernels, and the functions of `attngen.pieces` over them.

Takes the plan and the spec of the whole; returns the source of a file that has `NAME_partial` and its kin, too. A piece
is a spec of its own, planned and proved (`pieces.make`), whose module is joined to the file's.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from attngen import pieces, targets

if TYPE_CHECKING:
    from attngen.emit import Options
    from attngen.emit.text.units import Unit
    from attngen.ir.attention import Attention
    from attngen.plan import KernelPlan


def written(spec: Attention, plan: KernelPlan, text: str, options: Options, proof: tuple[str, ...]) -> str:
    """The file of a plan, with pieces if `options` ask for them. Raises `UsageError` where a piece is not proved."""
    if "pieces" not in options.geometry:
        return targets.emit(plan, text, options, proof)
    from attngen.emit.triton.placement import one_file

    return one_file(own_part(spec, plan, text, options, proof))


def own_part(spec: Attention, plan: KernelPlan, text: str, options: Options, proof: tuple[str, ...]) -> list[Unit]:
    """What of the file depends on the spec, which imports the runtime from the package beside it."""
    from attngen.emit.triton import module

    whole = module.own_part(plan, text, options, targets.said_of(plan, proof))
    if "pieces" not in options.geometry:
        return whole
    from attngen.emit.text.joined import followed, joined
    from attngen.emit.text.long_lines import without_long_lines
    from attngen.emit.text.prune import without_unread
    from attngen.emit.text.units import cut, printed
    from attngen.emit.triton.placement import tidied
    from attngen.emit.triton.sequences.pieces import endings, pieces_module

    own = replace(options, geometry=("dense",))
    made = {"_piece": pieces.make(spec.name, spec, text, own, each=False)}
    each = replace(own, geometry=("dense", "packed"))
    if "packed" in options.geometry and {*made["_piece"].piece.own.sizes} <= {*spec.sizes}:
        # A param with an element for each row would be another for each sequence of a call.
        made["_each"] = pieces.make(spec.name, spec, text, each, each=True)
    source = printed(whole)
    exported = source.partition("__all__ = [")[2].partition("]")[0].split(", ")
    titles = {"_piece": "pieces of longer sequences", "_each": "pieces of packed sequences, and with numbers for each"}
    for ending, one in made.items():
        said = targets.said_of(one.plan, one.proof.summary())
        part = module.own_part(one.plan, one.text, each if ending == "_each" else own, said)
        source = joined(source, printed(part), ending, titles[ending])
    own_pieces = {end: one.piece for end, one in made.items()}
    host = pieces_module(spec, plan, own_pieces, forward=options.forward)
    source = followed(source, host, "pieces of longer sequences, on the host")
    exported += [f'"{spec.name}{end}"' for end in endings(made, forward=options.forward)]
    source = source.replace("\n\nPRECISION =", f"\n\n__all__ = [{', '.join(exported)}]\n\nPRECISION =", 1)
    return without_long_lines(tidied(without_unread(cut(source))))
