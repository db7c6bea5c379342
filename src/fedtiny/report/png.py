"""Drawings as PNG, by matplotlib."""

import io
from typing import TYPE_CHECKING

from fedtiny.extras import require
from fedtiny.report import palette
from fedtiny.report.canvas import MARGIN, Box, Canvas, Cells, Dot, Line, Shape, Words

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PIXELS_PER_INCH = 100
SCALE = 2  # pixels of the file for a pixel of the drawing
POINTS = 72 / PIXELS_PER_INCH
ALIGN = {"start": "left", "middle": "center", "end": "right"}


def png(canvas: Canvas) -> bytes:
    """The drawing on white."""
    figures = require("matplotlib.figure", extra="plot")
    agg = require("matplotlib.backends.backend_agg", extra="plot")
    width, height = canvas.width + 2 * MARGIN, canvas.height + 2 * MARGIN
    inches = (width / PIXELS_PER_INCH, height / PIXELS_PER_INCH)
    figure = figures.Figure(figsize=inches, dpi=PIXELS_PER_INCH * SCALE, facecolor="white")
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(-MARGIN, width - MARGIN), ylim=(height - MARGIN, -MARGIN))
    axes.axis("off")
    for order, shape in enumerate(canvas.shapes):
        _draw(axes, shape, order)
    out = io.BytesIO()
    agg.FigureCanvasAgg(figure).print_png(out, metadata={"Software": None})
    return out.getvalue()


def _draw(axes: "Axes", shape: Shape, order: int) -> None:
    colour = palette.light(shape.colour)
    match shape:
        case Box(x, y, width, height):
            _boxes(axes, ((x, y, width, height),), colour, shape.opacity, order)
        case Cells(boxes):
            _boxes(axes, boxes, colour, shape.opacity, order)
        case Line():
            xs, ys = zip(*shape.points, strict=True)
            dashes = "--" if shape.dashed else "-"
            axes.plot(xs, ys, dashes, color=colour, lw=shape.width * POINTS, zorder=order)
        case Dot():
            face = "white" if shape.hollow else colour
            size = 2 * shape.radius * POINTS
            width = 2 * POINTS if shape.hollow else 0
            axes.plot(
                *(shape.x, shape.y, "o"), ms=size, mfc=face, mec=colour, mew=width, zorder=order
            )
        case Words():
            _write(axes, shape, colour, order)


def _boxes(
    axes: "Axes",
    boxes: tuple[tuple[float, float, float, float], ...],
    colour: str,
    opacity: float,
    order: int,
) -> None:
    collections = require("matplotlib.collections", extra="plot")
    corners = [
        ((x, y), (x + width, y), (x + width, y + height), (x, y + height))
        for x, y, width, height in boxes
    ]
    axes.add_collection(
        collections.PolyCollection(corners, facecolor=colour, lw=0, alpha=opacity, zorder=order)
    )


def _write(axes: "Axes", words: Words, colour: str, order: int) -> None:
    """Text as it stands: a dollar sign starts no formula."""
    axes.text(
        words.x,
        words.y,
        words.text,
        color=colour,
        fontsize=words.size * POINTS,
        ha=ALIGN[words.anchor],
        va="baseline",
        weight="bold" if words.bold else "normal",
        rotation=90 if words.turned else 0,
        rotation_mode="anchor",
        parse_math=False,
        zorder=order,
    )
