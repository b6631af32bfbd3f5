"""A bar chart as SVG, the same bytes for the same numbers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from xml.sax.saxutils import escape

__all__ = ["Bar", "bar_chart"]

_LABELS: Final = 330  # widths in pixels: labels, bars, numbers
_BARS: Final = 400
_NUMBERS: Final = 50
_ROW: Final = 22
_TOP: Final = 46


@dataclass(frozen=True)
class Bar:
    """One bar: its length from 0 to 1, and the single values it is the mean of, drawn as dots."""

    label: str
    value: float
    dots: Sequence[float]
    accent: bool = False


def bar_chart(title: str, bars: Sequence[Bar]) -> str:
    """Horizontal bars, one below the other in the given order, on a scale from 0 to 1."""
    height = _TOP + _ROW * len(bars) + 24
    width = _LABELS + _BARS + _NUMBERS
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="12">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        f'<text x="10" y="20" font-size="14" font-weight="bold">{escape(title)}</text>',
    ]
    bottom = height - 24
    for tenth in range(0, 11, 2):
        x = _x(tenth / 10)
        lines.append(f'<line x1="{x}" y1="{_TOP - 8}" x2="{x}" y2="{bottom}" stroke="#dddddd"/>')
        lines.append(f'<text x="{x}" y="{bottom + 15}" text-anchor="middle" fill="#555555">{tenth / 10:.1f}</text>')
    for row, bar in enumerate(bars):
        lines += _bar(bar, _TOP + _ROW * row)
    return "\n".join([*lines, "</svg>", ""])


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
