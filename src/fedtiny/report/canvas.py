"""A drawing as a list of plain shapes, which the SVG and the PNG writer both understand.

Lengths are pixels from the top left corner; colours are roles of the palette.
"""

from dataclasses import dataclass, field
from typing import Literal

TEXT = 13.0
SMALL = 12.0
MARGIN = 14  # around a drawing that stands by itself
LETTER = 0.6  # width of a letter, in sizes of the font

Anchor = Literal["start", "middle", "end"]
Point = tuple[float, float]


@dataclass(frozen=True)
class Box:
    """A filled rectangle."""

    x: float
    y: float
    width: float
    height: float
    colour: str
    opacity: float = 1.0


@dataclass(frozen=True)
class Cells:
    """Many rectangles of one colour, each as x, y, width and height."""

    boxes: tuple[tuple[float, float, float, float], ...]
    colour: str
    opacity: float


@dataclass(frozen=True)
class Line:
    """A line through points."""

    points: tuple[Point, ...]
    colour: str
    width: float = 2.0
    dashed: bool = False


@dataclass(frozen=True)
class Dot:
    """A circle, filled or hollow; `tip` is told when it is pointed at."""

    x: float
    y: float
    radius: float
    colour: str
    hollow: bool = False
    tip: str = ""


@dataclass(frozen=True)
class Words:
    """A line of text; y is its baseline."""

    x: float
    y: float
    text: str
    anchor: Anchor = "start"
    size: float = TEXT
    colour: str = "muted"
    bold: bool = False
    turned: bool = False
    """Read from below."""


Shape = Box | Cells | Line | Dot | Words


@dataclass
class Canvas:
    """A drawing of a given size."""

    width: float = 400
    height: float = 260
    shapes: list[Shape] = field(default_factory=list)

    def add(self, *shapes: Shape) -> None:
        """Draw on top of what is there."""
        self.shapes.extend(shapes)


def text_width(text: str, size: float = TEXT) -> float:
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
