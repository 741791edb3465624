"""Tuning: what is tried, what is kept, and what is not tried again. The compiler is a stand-in."""

from __future__ import annotations

import pytest

from attngen import api
from attngen.errors import Source, UsageError
from attngen.tpu.chips import chip
from attngen.tpu.compile import Compiled, Refused, Scheduled
from attngen.tune import keys as tile_keys, tpu as tune
from attngen.tune.tpu import Key, Trial, Tuning, candidates, dump, load, trials

SIZES = {"B": 1, "Hq": 1, "Hkv": 1, "Sq": 4096, "Sk": 4096, "D": 64, "Dv": 64}
KEY = Key("0" * 64, "v5e", "bf16", tuple(SIZES.items()))
SPEC = Source("attention causal\n\nmask = causal\n", "causal.attn")


def schedule(function: str, bundles: int) -> Scheduled:
    """A kernel that does nothing for so many cycles."""
    lines = "\n".join(f"{i:#6x}   : {{}}" for i in range(bundles))
    return Scheduled(f"{function}.1", function, f"= control target key end\n{lines}\n", "", None, ())


class Compiler:
    """Refuses tiles of more than 512 x 512; else a kernel takes a cycle for every 16 queries, and 8 a key tile."""

    def __init__(self) -> None:
        self.calls: list[tuple[bool, tuple[tune.Tile, ...]]] = []

    def __call__(self, backward: bool, tiles: tuple[tune.Tile, tune.Tile, tune.Tile]) -> Compiled | Refused:
        self.calls.append((backward, tiles))
        if any(queries * keys > 512 * 512 for queries, keys, _ in tiles):
            return Refused("compile", "Scoped allocation with size 20.00M and limit 16.00M")
        functions = ("_forward_kernel", "_dkdv_kernel", "_dq_kernel")
        shown = functions if backward else functions[:1]
        cycles = [tiles[functions.index(f)][0] // 16 + 8 * tiles[functions.index(f)][2] for f in shown]
        kernels = tuple(schedule(f, n) for f, n in zip(shown, cycles, strict=True))
        return Compiled(chip("v5e"), "", (), kernels, 0)


def tuned(tuning: Tuning, compiler: Compiler) -> Tuning:
    for trial in trials(tuning, compiler):
        tuning = tuning if trial is None else tuning.with_trial(trial)
    return tuning


def test_every_candidate_is_compiled_once_and_the_fastest_of_each_kernel_is_kept():
    compiler = Compiler()
    tuning = tuned(Tuning(KEY), compiler)
    assert len(compiler.calls) == len(tuning.trials) == len(candidates(SIZES))
    assert tuning.best() == ((256, 512, 2), (256, 512, 1), (256, 512, 1))
    assert {t.refused for t in tuning.trials if t.tile == (1024, 1024, 1)} == {
        "Scoped allocation with size 20.00M and limit 16.00M"
    }


def test_a_backward_trial_leaves_the_forward_kernel_at_a_tile_that_every_chip_takes():
    compiler = Compiler()
    tuned(Tuning(KEY), compiler)
    assert {tiles[0] for backward, tiles in compiler.calls if backward} == {tune.FORWARD[0]}


def test_a_backward_pass_of_one_kernel_is_tuned_by_the_tiles_that_it_takes():
    fast = Trial(True, (512, 256, 1), (("dkdv", 7),))
    slow = Trial(True, (512, 512, 1), (("dkdv", 9),))
    forward = Trial(False, (512, 512, 2), (("forward", 5),))
    assert Tuning(KEY, (forward, slow, fast)).best() == ((512, 512, 2), (512, 256, 1), (512, 256, 1))
    assert Tuning(KEY, (forward,)).best() is None

    def fused(backward: bool, tiles: tuple[tune.Tile, tune.Tile, tune.Tile]) -> Compiled:
        return Compiled(chip("v5e"), "", (), (schedule("_backward_kernel", 3),) if backward else (), 0)

    found = [trial for trial in trials(Tuning(KEY), fused) if trial is not None and trial.backward]
    assert {trial.cycles for trial in found} == {(("dkdv", 3),)}


def test_what_was_tried_is_read_back_and_not_tried_again():
    first = tuned(Tuning(KEY), Compiler())
    again = load(Source(dump([first]), "t.json"))
    assert again == (first,)
    compiler = Compiler()
    assert tuned(Tuning(KEY, again[0].trials[:4]), compiler) == first
    assert len(compiler.calls) == len(first.trials) - 4


def test_candidates_are_no_longer_than_the_sequences_need():
    short = candidates({**SIZES, "Sq": 100, "Sk": 600})
    assert {queries for _, (queries, _, _) in short} == {128}
    assert {keys for _, (_, keys, _) in short} == {256, 512, 1024}
    assert len(set(short)) == len(short) < len(candidates(SIZES))


def test_what_is_no_tuning_file_is_named():
    for text in ("", "[]", '{"tunings": [{"spec": 1}]}'):
        with pytest.raises(UsageError, match=r"t\.json is no file that `attngen tune` wrote"):
            load(Source(text, "t.json"))


# ---------------------------------------------------------------- into the generated file


def file_of(*shapes: dict[str, int], spec: Source = SPEC) -> Source:
    attention = api.analyse(spec)
    keys = [tile_keys.tpu_key(spec, attention, "v6e", "bf16", {**SIZES, **shape}) for shape in shapes]
    both = (Trial(False, (1024, 512, 4), (("forward", 10),)), Trial(True, (256, 512, 1), (("dkdv", 9), ("dq", 8))))
    return Source(dump([Tuning(key, both) for key in keys]), "t.json")


def source_with(file: Source, sizes: dict[str, int]) -> str:
    tuned = tile_keys.tpu_tiles(SPEC, api.analyse(SPEC), file, sizes)
    return api.build(SPEC, api.options("pallas", tuned=tuned)).source


def test_tuned_tiles_go_into_the_generated_table_and_its_head():
    plain = api.build(SPEC, api.options("pallas")).source
    source = source_with(file_of({}), {})
    row = "    ('v6e', 2): ((1024, 512, 4), (256, 512, 1), (256, 512, 1)),"
    assert row in source.splitlines() and row not in plain.splitlines()
    assert "tuned=v6e/16" in source
    changed = set(source.splitlines()) - set(plain.splitlines())
    assert len(changed) == 2, changed


def test_a_file_with_several_shapes_is_asked_which():
    file = file_of({}, {"Sq": 8192, "Sk": 8192})
    with pytest.raises(UsageError, match=r"several shapes: .*Sq=4096.*Sq=8192.*say which with `shape=`"):
        source_with(file, {})
    assert "tuned=v6e/16" in source_with(file, {"Sq": 8192})


def test_tiles_of_another_spec_or_shape_are_refused():
    other = Source("attention causal\n\nmask = k <= q\n", "other.attn")
    with pytest.raises(UsageError, match="no tiles for this spec and shape"):
        source_with(file_of({}, spec=other), {})
    with pytest.raises(UsageError, match="no tiles for this spec and shape"):
        source_with(file_of({}), {"D": 128})


def test_tuned_tiles_go_with_their_target_alone():
    tuned = tile_keys.tpu_tiles(SPEC, api.analyse(SPEC), file_of({}), {})
    with pytest.raises(UsageError, match="target that they were tuned for"):
        api.options("triton", tuned=tuned)
    with pytest.raises(UsageError, match="without `tile=`"):
        api.options("pallas", tile=(128, 128), tuned=tuned)
