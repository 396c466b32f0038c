"""Charts as inline SVG without a script: curves with their spread, and bars that add up to a whole."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

from modelzoo.quantities import readable_size
from modelzoo.report.sparkline import spread

__all__ = ["NARROW", "Band", "Curve", "line_chart", "share_bar", "smoothed", "stacked_chart"]

WIDE, NARROW, HEIGHT = 1000, 480, 240
"""Of a chart over the whole page, of one beside another, and of both, in pixels."""
LEFT, RIGHT, TOP, BOTTOM = 78, 16, 12, 28
MOST_POINTS = 360
"""Points of a curve; of more, neighbours are averaged, and a band shows their lowest and highest."""
MOST_MARKS = 60
MARKED_UP_TO = 1.6
"""Of the highest stack: a mark above it does not stretch the axis."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Curve:
    """Values over steps.

    Args:
        name: In the legend.
        points: (step, value), in order of the steps; values that are not finite are left out.
        color: Name of a custom property of the page: series-1, series-2, ...
        is_marked: Whether each point is a dot that says its value when pointed at.
    """

    name: str
    points: Sequence[tuple[float, float]]
    color: str = "series-1"
    is_marked: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Band:
    """Sizes that are stacked upon others.

    Args:
        name: In the legend.
        values: One for each place of the axis, none negative.
    """

    name: str
    values: Sequence[float]


def line_chart(curves: Sequence[Curve], *, label: str, is_from_zero: bool = False, width: int = WIDE) -> str:
    """Return a chart of curves over one axis of steps and one of values; a text where there is nothing to draw.

    Args:
        curves: At most four.
        label: What the values are, for readers of the page and for screen readers.
        is_from_zero: Whether the axis begins at 0.
        width: In pixels.
    """
    kept = [(curve, [(x, y) for x, y in curve.points if math.isfinite(x) and math.isfinite(y)]) for curve in curves if curve.points]
    kept = [(curve, points) for curve, points in kept if points]
    if not kept:
        return '<p class="none">nothing was recorded</p>'
    xs = [x for _, points in kept for x, _ in points]
    ys = [y for _, points in kept for _, y in points]
    ticks = _ticks(0.0 if is_from_zero else min(ys), max(ys))
    place = _Place(min(xs), max(xs), ticks[0], ticks[-1], width)
    parts = [f'<svg class="chart" viewBox="0 0 {width} {HEIGHT}" role="img" aria-label="{escape(label)}">']
    parts += _grid(place, ticks, [step for step in _ticks(place.x0, place.x1, most=6) if round(step, 6).is_integer()])
    for curve, points in kept:
        parts += _drawn(curve, points, place)
    parts.append("</svg>")
    return f"<figure>{_legend([(curve.name, curve.color) for curve, _ in kept])}{''.join(parts)}</figure>"


def stacked_chart(
    places: Sequence[float], bands: Sequence[Band], *, texts: Sequence[str], marks: Mapping[str, float], label: str
) -> str:
    """Return bands of bytes stacked upon each other.

    Args:
        places: On the axis, rising.
        bands: From below, at most six.
        texts: What is said of each place when it is pointed at.
        marks: Bytes at which a line stands, by name.
        label: What the values are, for screen readers.
    """
    sums = [0.0] * len(places)
    parts = [f'<svg class="chart" viewBox="0 0 {WIDE} {HEIGHT}" role="img" aria-label="{escape(label)}">']
    highest = max([*(sum(values) for values in zip(*(band.values for band in bands), strict=True)), 1.0])
    # a budget far above what was held would press the bands flat: it stands in the legend alone
    shown = {name: value for name, value in marks.items() if value <= MARKED_UP_TO * highest}
    most = max([highest, *shown.values()])
    unit = 1024.0 ** min(int(math.log(most, 1024)), 3)
    ticks = [tick * unit for tick in _ticks(0.0, most / unit)]
    place = _Place(places[0], places[-1], ticks[0], ticks[-1])
    parts += _grid(place, ticks, _ticks(place.x0, place.x1, most=6), readable_size)
    for number, band in enumerate(bands, 1):
        above = [low + value for low, value in zip(sums, band.values, strict=True)]
        outline = [*zip(places, above, strict=True), *reversed([*zip(places, sums, strict=True)])]
        parts.append(f'<path d="{place.path(outline)}Z" fill="var(--series-{min(number, 6)})" stroke="var(--surface)"/>')
        sums = above
    for x, total, text in list(zip(places, sums, texts, strict=True))[:MOST_POINTS]:
        title = escape(f"{text}: {readable_size(total)}")
        parts.append(
            f'<circle cx="{place.x(x):.1f}" cy="{place.y(total):.1f}" r="5" fill="transparent"><title>{title}</title></circle>'
        )
    for name, value in shown.items():
        parts.append(
            f'<line class="cut" x1="{LEFT}" x2="{WIDE - RIGHT}" y1="{place.y(value):.1f}" y2="{place.y(value):.1f}">'
            f"<title>{escape(f'{name}: {readable_size(value)}')}</title></line>"
        )
    names = [(band.name, f"series-{min(number, 6)}") for number, band in enumerate(bands, 1)]
    dashed = "".join(
        f"<li>{'dashed: ' if name in shown else ''}{escape(name)} {readable_size(value)}</li>" for name, value in marks.items()
    )
    return f"<figure>{_legend(names, dashed)}{''.join(parts)}</svg></figure>"


def share_bar(parts: Mapping[str, float], texts: Mapping[str, str]) -> str:
    """Return one bar divided by the size of its parts, and a legend with their texts.

    Args:
        parts: Size by name, none negative; at most six are told apart.
        texts: What the legend says behind each name.
    """
    total = sum(parts.values())
    if total <= 0:
        return '<p class="none">nothing was recorded</p>'
    x, pieces = 0.0, []
    for number, (name, size) in enumerate(parts.items(), 1):
        width = WIDE * size / total
        if width > 0:
            pieces.append(
                f'<rect x="{x:.1f}" y="0" width="{max(width - 2, 0.5):.1f}" height="20" rx="3" '
                f'fill="var(--series-{min(number, 6)})"><title>{escape(f"{name}: {texts.get(name, size)}")}</title></rect>'
            )
        x += width
    names = [(f"{name} {texts.get(name, '')}".strip(), f"series-{min(number, 6)}") for number, name in enumerate(parts, 1)]
    drawn = f'<svg class="bar" viewBox="0 0 {WIDE} 20" preserveAspectRatio="none" aria-hidden="true">{"".join(pieces)}</svg>'
    return f"<figure>{drawn}{_legend(names)}</figure>"


@dataclass(frozen=True, slots=True)
class _Place:
    """From values to pixels."""

    x0: float
    x1: float
    y0: float
    y1: float
    width: int = WIDE

    def x(self, value: float) -> float:
        return LEFT + (value - self.x0) / ((self.x1 - self.x0) or 1.0) * (self.width - LEFT - RIGHT)

    def y(self, value: float) -> float:
        return HEIGHT - BOTTOM - (value - self.y0) / ((self.y1 - self.y0) or 1.0) * (HEIGHT - TOP - BOTTOM)

    def path(self, points: Sequence[tuple[float, float]]) -> str:
        return "M" + "L".join(f"{self.x(x):.1f},{self.y(y):.1f}" for x, y in points)


def _legend(names: Sequence[tuple[str, str]], more: str = "") -> str:
    items = "".join(f'<li><span class="key" style="background:var(--{color})"></span>{escape(name)}</li>' for name, color in names)
    return f'<ul class="legend">{items}{more}</ul>'


def _grid(place: _Place, ys: Sequence[float], xs: Sequence[float], shown: Callable[[float], str] | None = None) -> list[str]:
    lines = [
        f'<line class="grid" x1="{LEFT}" x2="{place.width - RIGHT}" y1="{place.y(y):.1f}" y2="{place.y(y):.1f}"/>'
        f'<text class="tick" x="{LEFT - 8}" y="{place.y(y) + 4:.1f}" text-anchor="end">{(shown or _shown)(y)}</text>'
        for y in ys
    ]
    inside = [x for x in xs if place.x0 <= x <= place.x1]
    lines += [f'<text class="tick" x="{place.x(x):.1f}" y="{HEIGHT - 8}" text-anchor="middle">{_shown(x)}</text>' for x in inside]
    return lines


def _drawn(curve: Curve, points: Sequence[tuple[float, float]], place: _Place) -> list[str]:
    color = f"var(--{curve.color})"
    lines: list[str] = []
    if len(points) > MOST_POINTS:
        chunks = _chunks(points)
        steps = [x for x, *_ in chunks]
        band = [*zip(steps, [high for *_, high in chunks], strict=True)]
        band += reversed([*zip(steps, [low for *_, low, _ in chunks], strict=True)])
        lines.append(f'<path d="{place.path(band)}Z" fill="{color}" opacity="0.18" stroke="none"/>')
        points = [(x, mean) for x, mean, _, _ in chunks]
    lines.append(f'<path class="curve" d="{place.path(points)}" stroke="{color}"/>')
    marked = points if curve.is_marked and len(points) <= MOST_MARKS else points[-1:] if len(points) == 1 else []
    lines += [
        f'<circle class="mark" cx="{place.x(x):.1f}" cy="{place.y(y):.1f}" r="4.5" fill="{color}">'
        f"<title>{escape(f'{curve.name}: {y:.6g} at {x:g}')}</title></circle>"
        for x, y in marked
    ]
    return lines


def _chunks(points: Sequence[tuple[float, float]]) -> list[tuple[float, float, float, float]]:
    """Return (last step, mean, lowest, highest) of neighbouring points."""
    edges = [round(index * len(points) / MOST_POINTS) for index in range(MOST_POINTS + 1)]
    found = []
    for start, end in pairwise(edges):
        values = [y for _, y in points[start:end]]
        found.append((points[end - 1][0], spread(values, 1)[0], min(values), max(values)))
    return found


def _ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Return round numbers that enclose the range."""
    if high <= low:
        low, high = low - (abs(low) or 1.0) * 0.1, high + (abs(high) or 1.0) * 0.1
    rough = (high - low) / (most - 1)
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(size * unit for size in (1, 2, 2.5, 5, 10) if size * unit >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [number * step for number in range(first, last + 1)]


def _shown(value: float) -> str:
    return f"{round(value, 10):,g}" if abs(value) < 1e6 and (abs(value) >= 1e-3 or not value) else f"{value:.3g}"


def smoothed(points: Sequence[tuple[float, float]], share: float = 0.04) -> list[tuple[float, float]]:
    """Return the running mean of values that are finite, each over the points before and after it.

    Args:
        points: (step, value), in order.
        share: Of all points that a mean is taken over.
    """
    kept = [(x, y) for x, y in points if math.isfinite(y)]
    half = int(len(kept) * share / 2)
    sums = [0.0]
    for _, y in kept:
        sums.append(sums[-1] + y)
    found = []
    for index, (x, _) in enumerate(kept):
        # near the ends as many points on both sides, so that no end is bent
        reach = min(half, index, len(kept) - 1 - index)
        found.append((x, (sums[index + reach + 1] - sums[index - reach]) / (2 * reach + 1)))
    return found
