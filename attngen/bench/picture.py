"""A benchmark's record as a table and as a picture. Takes the JSON's own plain values; needs no torch."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attngen.bench import verdict
from attngen.errors import UsageError
from attngen.extras import lacking

if TYPE_CHECKING:
    from rich.table import Table

Record = Mapping[str, Any]
DIRECTIONS = ("forward", "backward")
LABELS = {
    "attngen": "attngen",
    "flex": "FlexAttention",
    "flex-flash": "FlexAttention, FlashAttention 4",
    "sdpa": "SDPA (FlashAttention 2)",
    "cudnn": "cuDNN",
    "fa4": "FlashAttention 4",
}
COLOURS = {
    "attngen": "#d1495b",
    "flex": "#30638e",
    "flex-flash": "#6c9bd2",
    "cudnn": "#5b8e7d",
    "sdpa": "#8d99ae",
    "fa4": "#8f5aa8",
}


def tflops(point: Record, name: str, direction: str) -> float | None:
    timing = point["contenders"].get(name, {}).get(direction)
    return None if timing is None else float(timing["tflops"])


def ratio(point: Record, name: str, direction: str) -> float | None:
    """attngen's speed over that of `name`; None where either has none."""
    ours, theirs = tflops(point, "attngen", direction), tflops(point, name, direction)
    return None if ours is None or theirs is None else ours / theirs


def graph_ratio(point: Record, name: str, direction: str) -> float | None:
    """The same by replays of CUDA graphs; None where there aren't both."""
    ours, theirs = (point["contenders"].get(n, {}).get(direction, {}).get("graph_ms") for n in ("attngen", name))
    return None if ours is None or theirs is None else theirs / ours


def _names(record: Record) -> list[str]:
    return list(dict.fromkeys(name for point in record["points"] for name in point["contenders"]))


def table(record: Record) -> Table:
    """One row a contender, shape and direction: median, spread, speed, attngen's speed over it; the same by replays."""
    from rich import box
    from rich.table import Table

    made = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for heading in ("shape", "", "of"):
        made.add_column(heading)
    headings = ["ms", "q20 - q80", "TFLOP/s", "attngen / it", "replay, ms", "replay: attngen / it"]
    headings += ["first result, s", "block mask, ms", "peak memory, MiB"]
    for heading in headings:
        made.add_column(heading, justify="right")
    for point in record["points"]:
        for direction in DIRECTIONS:
            measured = any(direction in found for found in point["contenders"].values())
            for name, found in point["contenders"].items():
                if direction in found:
                    made.add_row(*_cells(point, name, direction))
                elif measured and (why := verdict.word(found, direction)):
                    made.add_row(shape(point["sizes"]), direction, LABELS[name], why)
            made.add_section()
    return made


def _cells(point: Record, name: str, direction: str) -> list[str]:
    found = point["contenders"][name]
    timing, over, replay_over = found[direction], ratio(point, name, direction), graph_ratio(point, name, direction)
    once = direction == "forward"
    return [
        shape(point["sizes"]),
        direction,
        LABELS[name],
        f"{timing['ms']:.3f}",
        f"{timing['q20']:.3f} - {timing['q80']:.3f}",
        f"{timing['tflops']:.0f}" if timing["tflops"] >= 10 else f"{timing['tflops']:.3g}",
        "" if name == "attngen" or over is None else f"{over:.2f}",
        f"{timing['graph_ms']:.3f}" if "graph_ms" in timing else "-",
        "" if name == "attngen" or replay_over is None else f"{replay_over:.2f}",
        f"{found['first_result_s']:.1f}" if once else "",
        f"{found['block_mask_ms']:.2f}" if once and "block_mask_ms" in found else "",
        f"{found['peak_bytes'] / 2**20:.0f}" if once and "peak_bytes" in found else "",
    ]


def shape(sizes: Mapping[str, int]) -> str:
    heads = f"{sizes['Hq']}" if sizes["Hq"] == sizes["Hkv"] else f"{sizes['Hq']}/{sizes['Hkv']}"
    dims = f"{sizes['D']}" if sizes["D"] == sizes["Dv"] else f"{sizes['D']}/{sizes['Dv']}"
    lengths = f"S={sizes['Sq']}" if sizes["Sq"] == sizes["Sk"] else f"Sq={sizes['Sq']} Sk={sizes['Sk']}"
    return f"B={sizes['B']} H={heads} {lengths} D={dims}"


def remarks(record: Record) -> list[str]:
    """Who has no figures, and why; where dense attention stands."""
    lines: list[str] = []
    for name in _names(record):
        known: set[str] = set()
        for point in record["points"]:
            found = point["contenders"].get(name)
            if found is None:
                continue
            why = [verdict.reason(found)]
            if "no_graph" in found:
                why.append(f"no CUDA graph: {found['no_graph'].strip().splitlines()[0]}")
            for text in why:
                if text and not (text in known and "unable" in found):  # the same at every shape, or nearly
                    known.add(text)
                    lines.append(f"{LABELS[name]}, {shape(point['sizes'])}: {text}")
    for point in record["points"]:
        ours, dense = point["contenders"]["attngen"].get("peak_bytes"), point.get("dense_peak_bytes")
        if ours is not None and "dense_peak_bytes" in point:
            held = "would not fit" if dense is None else f"{dense / 2**20:.0f} MiB"
            lines.append(f"memory, {shape(point['sizes'])}: attngen {ours / 2**20:.0f} MiB, dense attention {held}")
    return lines


def wrong(record: Record) -> bool:
    """Whether some contender failed or was wrong."""
    return any(verdict.troubled(found) for point in record["points"] for found in point["contenders"].values())


def image(record: Record, format: str) -> bytes:
    """TFLOP/s over length, forward and backward, with the card's ceiling; peak memory beside dense attention."""
    try:
        import matplotlib as untyped
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UsageError(lacking("pictures need matplotlib", "show")) from error
    matplotlib: Any = untyped
    with matplotlib.rc_context({"svg.hashsalt": "attngen", "svg.fonttype": "none", "font.size": 9}):
        figure: Any = Figure(figsize=(12.5, 4.2), layout="constrained")
        for number, direction in enumerate(DIRECTIONS):
            axes = figure.add_subplot(1, 3, number + 1)
            for name in _names(record):
                line = [(p["sizes"]["Sk"], tflops(p, name, direction)) for p in record["points"]]
                _line(axes, line, LABELS[name], COLOURS[name], "-" if name == "attngen" else "--")
            if record.get("ceiling_tflops"):
                label = "large matrix product"
                axes.axhline(record["ceiling_tflops"], color="#999999", linewidth=1, linestyle=":", label=label)
            _frame(axes, record["points"], f"{direction}, TFLOP/s")
            axes.set_ylim(bottom=0)
        axes = figure.add_subplot(1, 3, 3)
        for name in _names(record):
            held = [(p["sizes"]["Sk"], _mib(p["contenders"].get(name, {}).get("peak_bytes"))) for p in record["points"]]
            _line(axes, held, LABELS[name], COLOURS[name], "-" if name == "attngen" else "--")
        dense = [(p["sizes"]["Sk"], _mib(p.get("dense_peak_bytes"))) for p in record["points"]]
        _line(axes, dense, "dense attention", "#e9a03b", "--")
        _frame(axes, record["points"], "peak memory, MiB")
        axes.set_yscale("log", base=2)
        figure.suptitle(f"{record['name']} on {record['machine']}, {record['dtype']}, {record['date'][:10]}")
        buffer = io.BytesIO()
        figure.savefig(buffer, format=format, dpi=160, metadata={"Date": None} if format == "svg" else None)
    return buffer.getvalue()


def _mib(count: int | None) -> float | None:
    return None if count is None else count / 2**20


def _line(axes: Any, points: Sequence[tuple[int, float | None]], label: str, colour: str, style: str) -> None:
    shown = sorted((x, y) for x, y in points if y is not None)
    if shown:
        axes.plot(*zip(*shown, strict=True), style, marker="o", markersize=3, color=colour, label=label)


def _frame(axes: Any, points: Sequence[Record], title: str) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xlabel("sequence length")
    axes.set_title(title)
    axes.grid(alpha=0.3)
    if points:
        axes.legend(frameon=False)
