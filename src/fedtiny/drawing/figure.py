"""A drawing that a page shows."""

from dataclasses import dataclass

from fedtiny.drawing.canvas import Canvas


@dataclass(frozen=True)
class Figure:
    """A drawing with its name (of the files), its title and what it says."""

    name: str
    title: str
    caption: str
    canvas: Canvas
