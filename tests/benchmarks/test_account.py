"""The benchmarks that say where a Hopper kernel's time goes: what is counted in machine code, and what is left out."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

import pytest

from attngen import api
from attngen.errors import Source

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import account  # noqa: E402
import power  # noqa: E402
import without  # noqa: E402

LISTING = """
.L_x_1:
        /*0010*/                   MUFU.EX2 R1, R1 ;
.L_x_2:
        /*0020*/                   HGMMA.64x128x16.F32.BF16 R24, gdesc[UR16], R24 ;
        /*0030*/                   HGMMA.64x128x16.F32.BF16 R88, R152, gdesc[UR8].tnspB, R88 ;
        /*0040*/              @P2  BRA `(.L_x_3) ;
        /*0050*/                   ISETP.GE.AND P0, PT, R1, R2, PT ;
        /*0060*/                   FSEL R1, R1, -INF, P0 ;
.L_x_3:
        /*0070*/                   FMNMX R1, R2, R3, !PT ;
        /*0080*/                   MUFU.EX2 R1, R1 ;
        /*0090*/                   FFMA R1, R2, R3, R4 ;
        /*00a0*/                   LDS.64 R2, [R3] ;
        /*00b0*/                   STSM.16.M88.4 [R0], R4 ;
        /*00c0*/              @!P1 BRA `(.L_x_2) ;
        /*00d0*/                   HGMMA.64x128x16.F32.BF16 R24, gdesc[UR16], R24 ;
        /*00e0*/               @P1 BRA `(.L_x_1) ;
        /*00f0*/                   BRA `(.L_x_3) ;
"""


def test_a_loop_is_counted_by_hand() -> None:
    lines = account.lines_of(LISTING)
    ((start, stop),) = account.loops(lines)
    found = list(account.of_a_full_tile(lines[start : stop + 1]))
    assert [x.name for x in found] == ["HGMMA", "HGMMA", "BRA", "FMNMX", "MUFU", "FFMA", "LDS", "STSM", "BRA"]
    assert account.demand(found) == {
        "matrix": 2 * 64.0,  # 64 x 128 x 16 products, 2,048 a cycle
        "shared memory": (16 + 32) + 32 + 4 * 2 + 4 * 4,  # 128 bytes a cycle; the second product's weights in registers
        "issue": 9.0,
        "special functions": 8.0,
        "arithmetic": 1.0,
        "logic": 2.0,
    }


@pytest.mark.parametrize("direction", without.WITHOUT)
@pytest.mark.parametrize("text", ["attention full\n", "attention causal\nmask = causal\n"])
def test_what_is_left_out_stands_in_the_generated_file(text: str, direction: str) -> None:
    source = api.build(Source(text), api.options("triton"), {}).source
    seen = {source}
    for number, (name, changes) in enumerate(without.WITHOUT[direction].items()):
        made = without.changed(source, changes, f"{direction}_{number}")
        ast.parse(made)
        names = re.findall(r'"attngen::(\w+)"', made)  # that of the backward pass is made from it
        assert len(names) == 1 and names[0].endswith(f"_{direction}_{number}"), name
        assert made not in seen
        seen.add(made)


def test_a_line_that_is_not_there_is_an_error() -> None:
    with pytest.raises(ValueError, match="no line 'p = 1'"):
        without.changed("p = 2\n", (("p = 1", "p = 0"),), "x")


# ---- clock and power


def test_a_reading_is_clock_and_power() -> None:
    assert power.reading("1605, 589.31\n", 2.0) == power.Reading(2.0, 1605.0, 589.31)
    with pytest.raises(ValueError, match="N/A"):
        power.reading("1605, [N/A]\n", 2.0)


def test_each_span_has_its_own_calls_and_readings() -> None:
    calls = [(0.05, 1.0), (0.09, 3.0), (0.3, 100.0), (0.6, 4.0), (1.0, 4.0)]
    readings = [
        power.Reading(10 + t, mhz, watts) for t, mhz, watts in ((0.0, 1980, 130), (0.7, 1600, 590), (0.9, 1500, 580))
    ]
    found = power.averaged(calls, readings, 1e12, start=10.0)
    assert found["first"] == {"tflops": 500, "mhz": 1980, "watts": 130}
    assert found["steady"] == {"tflops": 250, "mhz": 1550, "watts": 585}
    assert power.averaged(calls, readings[:1], 1e12, start=10.0).keys() == {"first"}
