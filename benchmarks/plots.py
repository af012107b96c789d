"""Bar charts as SVG.

The colours are ones that can be read on white and on black, since a picture in a page does not learn which it is on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, LABELS, VALUES, LINE = 760, 170, 60, 24
OURS, FLOOR, OTHERS, TEXT, AXIS = "#0f9d8a", "#c98a1b", "#8090a8", "#7d7d7d", "#9a9a9a"


@dataclass(frozen=True)
class Bar:
    label: str
    value: float
    low: float
    high: float
    kind: str = "other"
    """`ours`, `floor` or `other`."""


def bars(title: str, unit: str, values: Sequence[Bar]) -> str:
    """A bar for each, on a logarithmic scale, the least first; a thin line shows the quartiles."""
    ordered = sorted(values, key=lambda bar: bar.value)
    least = min((bar.low for bar in ordered), default=1.0)
    most = max((bar.high for bar in ordered), default=1.0)
    start, end = _decade_below(min(least, 1.0)), max(most, 1.0) * 1.15
    room = WIDTH - LABELS - VALUES

    def place(value: float) -> float:
        return LABELS + room * (math.log(value) - math.log(start)) / (math.log(end) - math.log(start))

    height = 56 + LINE * len(ordered)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        f'font-family="system-ui, sans-serif" font-size="13" fill="{TEXT}">',
        f"<title>{escape(title)}</title>",
        f'<text x="0" y="16" font-size="15" font-weight="600">{escape(title)}</text>',
        f'<text x="{WIDTH}" y="16" text-anchor="end">{escape(unit)}</text>',
    ]
    for tick in _ticks(start, end):
        x = place(tick)
        shown = f"{tick:g}"
        weight = 1.5 if tick == 1 else 0.5
        lines.append(
            f'<line x1="{x:.1f}" y1="28" x2="{x:.1f}" y2="{height - 22}" stroke="{AXIS}" stroke-width="{weight}"/>'
        )
        lines.append(f'<text x="{x:.1f}" y="{height - 6}" text-anchor="middle" font-size="11">{shown}</text>')
    for number, bar in enumerate(ordered):
        y = 34 + LINE * number
        colour = {"ours": OURS, "floor": FLOOR}.get(bar.kind, OTHERS)
        length = max(1.0, place(bar.value) - LABELS)
        strong = ' font-weight="600"' if bar.kind == "ours" else ""
        lines += [
            f'<text x="{LABELS - 8}" y="{y + 12}" text-anchor="end"{strong}>{escape(bar.label)}</text>',
            f'<rect x="{LABELS}" y="{y}" width="{length:.1f}" height="16" rx="2" fill="{colour}"/>',
            f'<line x1="{place(bar.low):.1f}" y1="{y + 8}" x2="{place(bar.high):.1f}" y2="{y + 8}" stroke="{TEXT}"/>',
            f'<text x="{place(bar.high) + 6:.1f}" y="{y + 12}"{strong}>{number_of(bar.value)}</text>',
        ]
    return "\n".join([*lines, "</svg>", ""])


def number_of(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:.0f}"


def _decade_below(value: float) -> float:
    return float(10.0 ** math.floor(math.log10(value * 0.999)))


def _ticks(start: float, end: float) -> list[float]:
    ticks: list[float] = []
    decade = start
    while decade <= end:
        ticks += [tick for step in (1, 2, 5) if start <= (tick := round(decade * step, 6)) <= end]
        decade *= 10
    return ticks
