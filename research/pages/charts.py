"""Charts as SVG, the same bytes for the same numbers: bars, and curves on two logarithmic axes."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final
from xml.sax.saxutils import escape

__all__ = ["Bar", "Curve", "bar_chart", "curve_chart"]

_TOP: Final = 46  # pixels above the bars or the plot

_LABELS: Final = 330  # widths of labels, bars, numbers
_BARS: Final = 400
_NUMBERS: Final = 50
_ROW: Final = 22

_LEFT: Final = 70  # around the plot of curves, and its size
_WIDTH: Final = 560
_HEIGHT: Final = 340
_BELOW: Final = 50
_COLOURS: Final = ("#2f6db3", "#b3562f", "#4c8f4c", "#7a5ca8")


def _svg(title: str, width: int, height: int, lines: Iterable[str]) -> str:
    """A picture with a title and these elements."""
    head = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="12">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        f'<text x="10" y="20" font-size="14" font-weight="bold">{escape(title)}</text>',
    ]
    return "\n".join([*head, *lines, "</svg>", ""])


@dataclass(frozen=True)
class Bar:
    """One bar: its length from 0 to 1, and the single values it is the mean of, drawn as dots."""

    label: str
    value: float
    dots: Sequence[float]
    accent: bool = False


def bar_chart(title: str, bars: Sequence[Bar]) -> str:
    """Horizontal bars, one below the other in the given order, on a scale from 0 to 1."""
    bottom, lines = _TOP + _ROW * len(bars), list[str]()
    for tenth in range(0, 11, 2):
        x = _x(tenth / 10)
        lines.append(f'<line x1="{x}" y1="{_TOP - 8}" x2="{x}" y2="{bottom}" stroke="#dddddd"/>')
        lines.append(f'<text x="{x}" y="{bottom + 15}" text-anchor="middle" fill="#555555">{tenth / 10:.1f}</text>')
    for row, bar in enumerate(bars):
        lines += _bar(bar, _TOP + _ROW * row)
    return _svg(title, _LABELS + _BARS + _NUMBERS, bottom + 24, lines)


def _bar(bar: Bar, top: int) -> list[str]:
    middle, colour = top + 7, "#2f6db3" if bar.accent else "#9db8d4"
    length = round(_BARS * bar.value, 1)
    return [
        f'<text x="{_LABELS - 8}" y="{middle + 4}" text-anchor="end">{escape(bar.label)}</text>',
        f'<rect x="{_LABELS}" y="{top}" width="{length}" height="14" fill="{colour}"/>',
        *(f'<circle cx="{_x(dot)}" cy="{middle}" r="2.5" fill="#222222" fill-opacity="0.5"/>' for dot in bar.dots),
        f'<text x="{_LABELS + _BARS + 6}" y="{middle + 4}">{bar.value:.3f}</text>',
    ]


def _x(value: float) -> float:
    return round(_LABELS + _BARS * value, 1)


@dataclass(frozen=True)
class Curve:
    """Points (x, y) above 0, in the order in which a line joins them, and the text at each, which may be empty.

    Curves of one `group` have one colour. A dashed one has no entry in the legend of groups.
    """

    group: str
    points: Sequence[tuple[float, float]]
    texts: Sequence[str]
    dashed: bool = False


@dataclass(frozen=True)
class _Axis:
    """A logarithmic axis over whole decades, from one pixel to another."""

    low: int
    high: int
    first: float
    last: float

    @classmethod
    def over(cls, values: Sequence[float], first: float, last: float) -> "_Axis":
        low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
        return cls(low, max(high, low + 1), first, last)

    def place(self, value: float) -> float:
        share = (math.log10(value) - self.low) / (self.high - self.low)
        return round(self.first + share * (self.last - self.first), 1)

    def ticks(self) -> Iterator[float]:
        return (10.0**power for power in range(self.low, self.high + 1))


def curve_chart(title: str, x_label: str, y_label: str, curves: Sequence[Curve]) -> str:
    """Curves with points, labelled axes and a legend of groups."""
    height = _TOP + _HEIGHT + _BELOW
    every = [point for curve in curves for point in curve.points]
    x = _Axis.over([point[0] for point in every], _LEFT, _LEFT + _WIDTH)
    y = _Axis.over([point[1] for point in every], _TOP + _HEIGHT, _TOP)
    groups = list(dict.fromkeys(curve.group for curve in curves))
    lines = [
        *_grid(x, y),
        f'<text x="{_LEFT + _WIDTH / 2:g}" y="{height - 10}" text-anchor="middle">{escape(x_label)}</text>',
        f'<text x="16" y="{_TOP + _HEIGHT / 2:g}" text-anchor="middle" '
        f'transform="rotate(-90 16 {_TOP + _HEIGHT / 2:g})">{escape(y_label)}</text>',
    ]
    for curve in curves:
        lines += _curve(curve, x, y, _COLOURS[groups.index(curve.group) % len(_COLOURS)])
    for row, group in enumerate(groups):
        top, colour = _TOP + _HEIGHT - 18 * (len(groups) - row) - 6, _COLOURS[row % len(_COLOURS)]
        lines.append(f'<rect x="{_LEFT + 12}" y="{top}" width="12" height="12" fill="{colour}"/>')
        lines.append(f'<text x="{_LEFT + 30}" y="{top + 10}">{escape(group)}</text>')
    return _svg(title, _LEFT + _WIDTH + 20, height, lines)


def _grid(x: _Axis, y: _Axis) -> Iterator[str]:
    bottom, right = _TOP + _HEIGHT, _LEFT + _WIDTH
    for tick in x.ticks():
        yield f'<line x1="{x.place(tick)}" y1="{_TOP}" x2="{x.place(tick)}" y2="{bottom}" stroke="#dddddd"/>'
        yield f'<text x="{x.place(tick)}" y="{bottom + 16}" text-anchor="middle" fill="#555555">{tick:,g}</text>'
    for tick in y.ticks():
        yield f'<line x1="{_LEFT}" y1="{y.place(tick)}" x2="{right}" y2="{y.place(tick)}" stroke="#dddddd"/>'
        yield f'<text x="{_LEFT - 6}" y="{y.place(tick) + 4}" text-anchor="end" fill="#555555">{tick:,g}</text>'


def _curve(curve: Curve, x: _Axis, y: _Axis, colour: str) -> Iterator[str]:
    places = [(x.place(across), y.place(up)) for across, up in curve.points]
    dashes = ' stroke-dasharray="5 4"' if curve.dashed else ""
    line = " ".join(f"{across},{up}" for across, up in places)
    yield f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"{dashes}/>'
    for (across, up), text in zip(places, curve.texts, strict=True):
        yield f'<circle cx="{across}" cy="{up}" r="3" fill="{colour}"/>'
        if text:
            yield f'<text x="{across + 6}" y="{round(up + 14, 1)}" fill="#333333">{escape(text)}</text>'
