"""A drawing as a list of plain shapes, which the SVG and the PNG writer both understand.

Lengths are pixels from the top left corner; colors are roles of the palette.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import cos, pi, sin
from typing import Literal

NORMAL = 13.0  # sizes of text
SMALL = 12.0
MARGIN = 14  # around a drawing that stands by itself
LETTER = 0.6  # width of a letter, in sizes of the font

Anchor = Literal["start", "middle", "end"]
Point = tuple[float, float]
CORNERS: dict[str, Sequence[int]] = {
    "square": (45, 135, 225, 315),
    "triangle": (270, 30, 150),
    "diamond": (0, 90, 180, 270),
    "down": (90, 210, 330),
    "pentagon": (270, 342, 54, 126, 198),
    "hexagon": (0, 60, 120, 180, 240, 300),
}
"""Angles of the corners of a marker, in degrees from the right, clockwise."""
FORMS = ("circle", *CORNERS)


@dataclass(frozen=True)
class Boxes:
    """Filled rectangles of one color, each as x, y, width and height."""

    boxes: tuple[tuple[float, float, float, float], ...]
    color: str
    opacity: float = 1.0


@dataclass(frozen=True)
class Line:
    """A line through points."""

    points: tuple[Point, ...]
    color: str
    width: float = 2.0
    dashed: bool = False
    opacity: float = 1.0


@dataclass(frozen=True)
class Dot:
    """A marker, filled or hollow; `tip` is shown when it is pointed at.

    Its form is a circle, or one of `CORNERS`.
    """

    x: float
    y: float
    radius: float
    color: str
    hollow: bool = False
    tip: str = ""
    form: str = "circle"
    opacity: float = 1.0

    @property
    def corners(self) -> tuple[Point, ...]:
        """The corners of a form that is not a circle."""
        angles = (pi * degrees / 180 for degrees in CORNERS[self.form])
        radius = 1.2 * self.radius
        return tuple((self.x + radius * cos(a), self.y + radius * sin(a)) for a in angles)


@dataclass(frozen=True)
class Text:
    """A line of text; y is its baseline."""

    x: float
    y: float
    text: str
    anchor: Anchor = "start"
    size: float = NORMAL
    color: str = "muted"
    bold: bool = False
    turned: bool = False
    """Read from below."""


@dataclass(frozen=True)
class Area:
    """A rectangle that is not seen; its tip, of one or more lines, is shown when pointed at."""

    x: float
    y: float
    width: float
    height: float
    tip: str


Primitive = Boxes | Line | Dot | Text | Area


@dataclass
class Canvas:
    """A drawing of a given size."""

    width: float = 400
    height: float = 260
    shapes: list[Primitive] = field(default_factory=list)

    def add(self, *shapes: Primitive) -> None:
        """Draw on top of what is there."""
        self.shapes.extend(shapes)


def text_width(text: str, size: float = NORMAL) -> float:
    """About how wide a text is."""
    return LETTER * size * len(text)


def shortened(text: str, width: float, size: float = SMALL) -> str:
    """A text that fits, its middle left out if need be.

    >>> shortened("features.14.weight", 54, 10)
    'featu…ght'
    """
    room = max(3, int(width / (LETTER * size)))
    if len(text) <= room:
        return text
    head = (room - 1) * 2 // 3
    return f"{text[:head]}…{text[len(text) - (room - 1 - head) :]}"
