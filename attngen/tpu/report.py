"""An estimate as tables: every kernel, every loop in it, the roofline. Takes an `Estimate`, returns what rich
prints."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from attngen.tpu.chips import MIB
from attngen.tpu.estimate import CAVEATS, Estimate, KernelEstimate

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table


def tables(estimate: Estimate, title: str) -> Group:
    """`title` says what was compiled."""
    from rich.console import Group

    parts = [title, "", _kernels(estimate), _loops(estimate), *_totals(estimate), ""]
    return Group(*parts, *(f"[dim]{line}[/]" for line in CAVEATS))


def label(kernel: KernelEstimate) -> str:
    """The kernel's function without the underscores and the word that all of them have."""
    return kernel.function.strip("_").removesuffix("_kernel")


def _kernels(estimate: Estimate) -> Table:
    table = _table("kernel")
    headings = ("cycles", "ms", "waiting", "MXU", "XLU", "VALU", "EUP", "load", "store", "VMEM", "spills", "HBM")
    for heading in headings:
        table.add_column(heading, justify="right")
    for k in estimate.pallas:
        u = k.units
        units = (u.matrix, u.cross_lane, u.vector, u.transcendental, u.load, u.store)
        table.add_row(
            label(k),
            f"{k.cycles:,.0f}",
            f"{1e3 * k.cycles / estimate.chip.clock:.3f}",
            _percent(k.waiting / max(k.cycles, 1)),
            *map(_percent, units),
            "-" if k.vmem is None else f"{k.vmem / MIB:.1f} MiB",
            f"{k.spills:,}",
            f"{k.hbm_bytes / 1e6:.1f} MB",
        )
    return table


def _loops(estimate: Estimate) -> Table:
    table = _table("loop of")
    for heading in ("at", "bundles", "trips", "share", "MXU", "spills", "fills"):
        table.add_column(heading, justify="right")
    for k in estimate.pallas:
        for loop in k.loops:
            table.add_row(
                label(k),
                str(loop.start),
                str(loop.bundles),
                f"{loop.trips:,}",
                _percent(loop.share),
                _percent(loop.matrix_cycles / loop.bundles),
                str(loop.spills),
                str(loop.fills),
            )
    return table


def _totals(estimate: Estimate) -> Iterator[str]:
    cores = f", {estimate.chip.cores} cores" if estimate.chip.cores > 1 else ""
    yield f"kernels: {_ms(estimate.seconds)} estimated at {estimate.chip.clock / 1e9:.2f} GHz{cores}"
    yield (
        f"roofline: {_ms(estimate.scheduled_roofline_seconds)}; products {_ms(estimate.matrix_seconds)}, "
        f"{estimate.hbm_bytes / 1e6:.1f} MB to and from HBM {_ms(estimate.memory_seconds)}"
    )
    around = estimate.around_cycles / estimate.chip.clock
    count = len(estimate.kernels) - len(estimate.pallas)
    if count:
        yield f"around them XLA's own {count} fusions, about {_ms(around)} (trust the order, not the size)"
    if estimate.temporary_bytes:
        yield f"temporaries in HBM: {estimate.temporary_bytes / 1e6:.1f} MB"
    for k in estimate.pallas:
        for doubt in k.doubts:
            yield f"{label(k)}: {doubt}"


def _table(first: str) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD)
    table.add_column(first)
    return table


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3f} ms"
