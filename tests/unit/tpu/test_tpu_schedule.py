"""The schedule's reader and its execution: on schedules small enough to follow by hand, and on one that libtpu wrote.

The recorded one is attngen's causal forward kernel for v5e: one head of 512 rows, D = 64, tiles of 128 x 128.
"""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from attngen.errors import InternalError, UsageError
from attngen.tpu import chips
from attngen.tpu.bundles import Bundle, Guard, Operation, parse, parse_usage
from attngen.tpu.compile import Compiled, Scheduled, Table
from attngen.tpu.dma import Copies
from attngen.tpu.estimate import estimate
from attngen.tpu.simulate import Block, Run, simulate
from attngen.tpu.tables import words

V5E = chips.chip("v5e")
RECORDED = Path(__file__).parent / "recorded"
HEAD = "= control target key start\nLH: loop header\n= control target key end\n\n"


def recorded(name: str) -> str:
    return gzip.decompress((RECORDED / f"{name}.txt.gz").read_bytes()).decode()


def schedule(*bundles: str) -> tuple[Bundle, ...]:
    return parse(HEAD + "\n".join(f"{i:#6x}   : {{ {text} }}" for i, text in enumerate(bundles)))


def run(*bundles: str, operands: tuple[Table | None, ...] = (), core: int = 0) -> Run:
    return simulate(schedule(*bundles), V5E, operands, core)


# ---------------------------------------------------------------- reading


def test_a_bundle_holds_scalar_operations_whole_and_vector_ones_by_name():
    text = "%s5_s1 = sadd.s32 1, %s4_s0 /* why ;; not { */  ;;  %12 = vst [vmem:[#allocation2] sm:$0xff] %v1_v0"
    assert schedule(text) == (Bundle((Operation("s5_s1", "sadd.s32", ("1", "%s4_s0")),), ("vst",)),)


def test_guards_stand_before_the_operands_with_and_without_another_result():
    (bundle,) = schedule(
        "%s2_s0 = smov (!%p1_p0, %s1_s3), 7  ;;  %9 = dma.done.wait (%p3_p2), [#allocation4 + $0x1], 16"
    )
    assert bundle.scalar == (
        Operation("s2_s0", "smov", ("7",), Guard("p1_p0", True, "%s1_s3")),
        Operation("9", "dma.done.wait", ("[#allocation4 + $0x1]", "16"), Guard("p3_p2", False)),
    )


def test_labels_loops_and_region_marks_are_no_part_of_a_bundle():
    text = HEAD + "     0 LB: > { %s1_s0 = smov 1 } /* Start region 3 */\n   0x1 PF: > > {} /* End region 3 */\n"
    assert parse(text) == (Bundle((Operation("s1_s0", "smov", ("1",)),)), Bundle())


def test_what_libtpu_does_not_write_is_an_error_of_ours():
    with pytest.raises(InternalError, match="head"):
        parse("0 : {}")
    with pytest.raises(InternalError, match="numbered 0x3"):
        parse(HEAD + "     0   : {}\n   0x3   : {}\n")


# ---------------------------------------------------------------- execution


def loop(trips: str) -> tuple[str, ...]:
    """Four bundles of prologue, a body of six that runs `trips` times, and one more."""
    return (
        f"%s1_s0 = smov {trips}",
        "",
        "%s2_s1 = smov 0",
        "",
        "%s3_s1 = sphi %s2_s1, %s4_s1",
        "%s4_s1 = sadd.s32 1, %s3_s1  ;;  %p1_p0 = scmp.lt.s32.totalorder %s3_s1, %s1_s0",
        "%7 = sbr.rel (%p1_p0) target bundleno = 4 (0x4), region = 2",
        *("",) * V5E.branch_delay,
        "",
    )


def test_a_loop_runs_as_often_as_its_condition_holds_and_its_delay_slots_with_it():
    result = run(*loop("5"))
    body = 3 + V5E.branch_delay
    assert result.blocks == (Block(0, 4, 1), Block(4, 4 + body, 6), Block(4 + body, 5 + body, 1))
    assert (result.busy, result.waiting, result.unknown_branches) == (4 + 6 * body + 1, 0.0, 0)


def test_the_core_reads_its_number():
    body = 3 + V5E.branch_delay
    bundles = list(loop("0"))
    bundles[0] = "%s1_s0 = sld [smem:[#allocation0]] /* core id */"
    assert [simulate(schedule(*bundles), V5E, (), core).busy for core in (0, 1)] == [5 + body, 5 + 2 * body]


def test_a_branch_on_what_vectors_compute_is_counted_and_not_taken():
    result = run(
        "%s1_s0 = spop %v3_v0",
        "%p1_p0 = scmp.eq.s32.totalorder %s1_s0, 0",
        *loop("0")[4:6],
        "%7 = sbr.rel (%p1_p0) target bundleno = 0",
        *("",) * 5,
    )
    assert (result.unknown_branches, result.not_modelled) == (1, (("spop", 1),))


@pytest.mark.parametrize(
    ("known", "taken"),
    [("pand %p8_p0, %p1_p0", 0), ("por %p1_p0, %p9_p0", 1), ("pnand %p8_p0, %p1_p0", 1), ("pnor %p9_p0, %p1_p0", 0)],
)
def test_an_unknown_predicate_does_not_matter_where_the_other_decides(known: str, taken: int):
    result = run(
        "%p9_p0 = scmp.eq.s32.totalorder 3, 3",
        "%p8_p0 = scmp.eq.s32.totalorder 3, 4",
        f"%p2_p0 = {known}",
        "%7 = sbr.rel (%p2_p0) target bundleno = 9",
        *("",) * 4,
        "",
        "",
    )
    assert result.unknown_branches == 0
    assert result.busy == 10 - taken


@pytest.mark.parametrize(
    ("operation", "value"),
    [
        ("sadd.s32 2147483647, 1", -(2**31)),
        ("ssub.s32 3, 5", -2),
        ("sshrl.u32 -1, 28", 15),
        ("sshra.s32 -16, 2", -4),
        ("sand.u32 -1, 7", 7),
        ("smin.u32 -1, 7", 7),
        ("scalar_select %p1_p0, 4, 9", 4),
    ],
)
def test_scalar_operations_are_those_of_32_bits(operation: str, value: int):
    """The branch goes to the end where the value is the expected one, so that the bundle before it does not run."""
    result = run(
        "%p1_p0 = scmp.lt.u32.totalorder 1, -1",
        f"%s1_s0 = {operation}",
        f"%p2_p0 = scmp.eq.s32.totalorder %s1_s0, {value}",
        "%7 = sbr.rel (%p2_p0) target bundleno = 9",
        *("",) * 6,
    )
    assert result.busy == 9


def copying(guard: str = "") -> tuple[str, ...]:
    return (
        "%s1_s0 = inlined_call_operand.hbm [shape: s32[3], index: 1, kind: input, shape index: {}]",
        "%s2_s1 = sshll.u32 %s1_s0, 4",
        "%s3_s1 = int_to_ptr.hbm [resolvable:$true] %s2_s1",
        "%s4_s2 = smov [#allocation7]",
        f"%9 = dma.hbm_to_smem {guard}%s3_s1, 16, %s4_s2, [#allocation5]",
        f"%10 = dma.done.wait {guard}[#allocation5], 16",
        f"%11 = vsyncadd {guard}[#allocation5], 4294967280",
        "%s5_s3 = sld [smem:[#allocation7 + $0x2]]",
        "%p1_p0 = scmp.eq.s32.totalorder %s5_s3, 30",
        "%12 = sbr.rel (%p1_p0) target bundleno = 14",
        *("",) * 5,
    )


def test_a_table_is_copied_into_scalar_memory_and_read_there():
    result = run(*copying(), operands=(None, Table(32, (3,), (10, 20, 30))))
    assert (result.hbm_bytes, result.copies, result.unmatched_waits, result.unknown_branches) == (512, 1, 0, 0)
    assert result.busy == 15  # the branch skips nothing: its target is the last bundle
    size, latency = 16 * V5E.granule, 0.55e-6 * V5E.clock
    assert result.waiting == pytest.approx(size / (V5E.hbm_bandwidth / V5E.clock) + latency - 1)


def test_without_the_table_the_branch_is_unknown():
    assert run(*copying()).unknown_branches == 1


def test_copies_queue_on_the_memorys_bandwidth_and_a_wait_takes_what_has_landed():
    copies = Copies(bytes_per_cycle=32.0, latency=100.0, granule=32)
    copies.start(0.0, 10, 1, through_hbm=True)
    copies.start(0.0, 20, 1, through_hbm=True)
    assert copies.wait(5.0, 10, 1) == 110.0
    copies.add(1, -10)
    assert copies.wait(200.0, 20, 1) == 200.0
    copies.add(1, -20)
    assert (copies.hbm_bytes, copies.unmatched) == (30 * 32, 0)
    assert copies.wait(300.0, 1, 1) == 300.0
    assert copies.unmatched == 1


def test_narrow_tables_are_packed_by_rows():
    assert words(Table(8, (2, 2), (1, 2, 3, -1))) == {0: 0x0301, 1: 0xFF02}
    assert words(Table(32, (2, 2), (1, 2, 3, -4))) == {0: 1, 1: 2, 128: 3, 129: -4}
    vector = words(Table(8, (130,), (*range(128), 7, 9)))
    assert (vector[0], vector[1], vector[127]) == (0 | 7 << 8, 1 | 9 << 8, 127)


# ---------------------------------------------------------------- the recorded kernel


def compiled() -> Compiled:
    kernel = Scheduled(
        name="causal.1",
        function="_forward_kernel",
        bundles=recorded("causal_v5e_bundles"),
        utilization=recorded("causal_v5e_utilization"),
        vmem=623616,
        operands=(Table(32, (1,), (1043900987,)), None, None, None),
    )
    return Compiled(V5E, "", (), (kernel,), 0)


def test_the_recorded_kernels_loops_run_as_the_mask_says():
    (kernel,) = estimate(compiled()).kernels
    # Four tiles of queries meet 0 + 1 + 2 + 3 tiles of keys without the mask, and one each with it.
    assert [loop.trips for loop in kernel.loops if loop.matrix_cycles] == [6, 4]
    assert kernel.doubts == ()


def test_the_recorded_kernels_products_and_bytes_are_those_of_the_shapes():
    (kernel,) = estimate(compiled()).kernels
    # A tile of 128 rows goes through one 128 x 128 unit for the scores and one for the values, in rows of 16 at a time.
    assert {loop.matrix_cycles for loop in kernel.loops if loop.matrix_cycles} == {2 * 128 / V5E.matrix_units}
    # q, k, v and out, 512 rows of 64 that lie 128 wide, in two bytes; lse in four.
    assert kernel.hbm_bytes == 4 * 512 * 128 * 2 + 512 * 4
    assert (kernel.spills, kernel.fills, kernel.vmem) == (0, 0, 623616)


def test_the_recorded_kernels_units_are_within_their_limits():
    result = estimate(compiled())
    (kernel,) = result.kernels
    units = kernel.units
    assert all(0 < u < 1 for u in (units.matrix, units.cross_lane, units.vector, units.transcendental, units.store))
    loops = sum(loop.bundles * loop.trips for loop in kernel.loops)
    assert loops / sum(loop.share for loop in kernel.loops) == pytest.approx(kernel.cycles - kernel.waiting)
    assert 0 < result.memory_seconds < result.seconds


def test_usage_has_a_row_a_bundle():
    usage = parse_usage(recorded("causal_v5e_utilization"))
    assert len(usage.rows) == len(parse(recorded("causal_v5e_bundles")))
    assert dict(zip(usage.units, usage.capacity, strict=True))["VSTORE"] == 1
    assert parse_usage("").rows == ()


def test_an_unknown_chip_is_named():
    with pytest.raises(UsageError, match="no TPU 'v9'; there are v4, v5e"):
        chips.chip("v9")


def test_the_derived_peaks_are_the_published_ones():
    published = {"v4": 275e12 / 2, "v5e": 197e12, "v5p": 459e12, "v6e": 918e12, "7x": 2307e12 / 2}
    for name, peak in published.items():
        assert chips.chip(name).peak == pytest.approx(peak, rel=0.01)
