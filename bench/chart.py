"""The rates of all sides as a picture: a group of bars for each workload, a bar for each side, and a line from its
slowest to its fastest run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from bench.workload import WEIR, Workload

_LABELS, _BARS, _FIGURES, _BAR, _GAP, _MARGIN = 190, 520, 130, 16, 26, 14
_COLOURS = (
    "#3b6fb6",
    "#e8a33d",
    "#7ba05b",
    "#b65c8a",
    "#8a7fc2",
    "#5fa8a8",
    "#c2715f",
    "#9a9a9a",
    "#b8a24c",
    "#666666",
)


def chart(workloads: Sequence[Workload], titles: Mapping[str, str]) -> str:
    """The SVG; ``titles`` are those of the sides. Each group has a scale of its own: its longest bar is the fastest
    run, so that slow jobs can be read."""
    sides = list(dict.fromkeys(side for work in workloads for side in work.runs))
    colours = {side: _COLOURS[number % len(_COLOURS)] for number, side in enumerate(sides)}
    parts, y = list[str](), _MARGIN
    for work in workloads:
        title = f"{work.name}, {work.event_bytes} bytes, {work.events:,} events: thousand records a second"
        parts.append(f'<text x="{_MARGIN}" y="{y + 12}" font-weight="bold">{escape(title)}</text>')
        y += 20
        fastest = max(work.spread(side)[1] for side in work.runs)
        for side in work.runs:
            parts.append(_bar(work, side, titles[side], colours[side], y, _BARS / fastest))
            y += _BAR + 4
        y += _GAP - 4
    width = 2 * _MARGIN + _LABELS + _BARS + _FIGURES
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{y}" font-family="sans-serif" '
        f'font-size="11"><rect width="100%" height="100%" fill="white"/>{"".join(parts)}</svg>\n'
    )


def _bar(work: Workload, side: str, title: str, colour: str, y: int, scale: float) -> str:
    x, middle = _MARGIN + _LABELS, y + _BAR / 2
    rate, (low, high) = work.per_s(side), work.spread(side)
    figure = f"{rate / 1000:,.0f}" + ("" if side == WEIR else f" (Weir: {work.compared(side)})")
    return (
        f'<text x="{x - 6}" y="{middle + 4}" text-anchor="end">{escape(title)}</text>'
        f'<rect x="{x}" y="{y}" width="{rate * scale:.1f}" height="{_BAR}" fill="{colour}"/>'
        f'<line x1="{x + low * scale:.1f}" y1="{middle}" x2="{x + high * scale:.1f}" y2="{middle}" stroke="#222"/>'
        f'<text x="{x + high * scale + 6:.1f}" y="{middle + 4}">{figure}</text>'
    )
