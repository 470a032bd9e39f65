"""Draw the plots as SVG, on white, so that they are readable on light and dark pages."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from html import escape

DARK, GREY, LIGHT = "#1f2328", "#656d76", "#d8dee4"


class Axis:
    """A logarithmic axis with a line at each power of ten.

    Args:
        values: The values that must fit.
        left, right: The ends of the axis in the picture.
    """

    def __init__(self, values: Iterable[float], left: float, right: float) -> None:
        powers = [math.log10(value) for value in values]
        self._low = math.floor(min(powers))
        self._high = max(math.ceil(max(powers)), self._low + 1)
        self._left, self._right = left, right

    def x(self, value: float) -> float:
        """Return the position of a value."""
        return self._left + (math.log10(value) - self._low) / (self._high - self._low) * (self._right - self._left)

    def grid(self, top: float, bottom: float) -> Iterator[str]:
        """Draw the lines and their numbers."""
        for power in range(self._low, self._high + 1):
            x = self.x(10.0**power)
            yield line(x, top, bottom, LIGHT)
            yield text(x, bottom + 18, short(10.0**power), anchor="middle", size=12, fill=GREY)


def picture(width: float, height: float, title: str, subtitle: str, parts: Iterable[str]) -> str:
    """Return a complete drawing."""
    size = f'width="{width:g}" height="{height:g}" viewBox="0 0 {width:g} {height:g}"'
    fonts = 'font-family="Helvetica, Arial, DejaVu Sans, sans-serif"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} {fonts}>',
        rectangle(0, 0, width, height, "#ffffff", rounded=8),
        text(24, 30, title, size=18, weight=600),
        text(24, 51, subtitle, size=12, fill=GREY),
        *parts,
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def line(x: float, top: float, bottom: float, stroke: str) -> str:
    """Draw a vertical line."""
    return f'<line x1="{x:.1f}" y1="{top:.1f}" x2="{x:.1f}" y2="{bottom:.1f}" stroke="{stroke}"/>'


def dot(x: float, y: float, colour: str, hollow: bool = False) -> str:
    """Draw a small circle."""
    fill = "#ffffff" if hollow else colour
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="{fill}" stroke="{colour}" stroke-width="2"/>'


def rectangle(x: float, y: float, width: float, height: float, fill: str, rounded: float = 1) -> str:
    """Draw a bar."""
    place = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"'
    return f'<rect {place} rx="{rounded:g}" fill="{fill}"/>'


def text(
    x: float, y: float, content: str, anchor: str = "start", size: int = 13, fill: str = DARK, weight: int = 400
) -> str:
    """Draw a line of text with a white outline."""
    style = f'font-size="{size}" font-weight="{weight}" fill="{fill}" text-anchor="{anchor}"'
    rim = 'stroke="#ffffff" stroke-width="3" paint-order="stroke"'
    return f'<text x="{x:.1f}" y="{y:.1f}" {style} {rim}>{escape(content)}</text>'


def short(value: float) -> str:
    """Return a short form of a number."""
    for limit, letter in ((1_000_000, "M"), (1_000, "k")):
        if value >= limit:
            return f"{value / limit:.3g}{letter}"
    return f"{value:.3g}"
