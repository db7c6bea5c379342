"""Drawings as PNG, by matplotlib."""

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fedtiny.drawing import palette
from fedtiny.drawing.canvas import MARGIN, Box, Boxes, Canvas, Dot, Line, Point, Primitive, Words
from fedtiny.extras import require

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


def _draw(axes: "Axes", shape: Primitive, order: int) -> None:
    color = palette.light(shape.color)
    match shape:
        case Box(x, y, width, height):
            _polygons(axes, [_corners(x, y, width, height)], order, fc=color, alpha=shape.opacity)
        case Boxes(boxes):
            corners = [_corners(*box) for box in boxes]
            _polygons(axes, corners, order, fc=color, alpha=shape.opacity)
        case Line():
            xs, ys = zip(*shape.points, strict=True)
            dashes = "--" if shape.dashed else "-"
            axes.plot(xs, ys, dashes, color=color, lw=shape.width * POINTS, zorder=order)
        case Dot():
            _dot(axes, shape, color, order)
        case Words():
            _write(axes, shape, color, order)


def _dot(axes: "Axes", dot: Dot, color: str, order: int) -> None:
    face = "white" if dot.hollow else color
    width = 2 * POINTS if dot.hollow else 0
    if dot.form != "circle":
        _polygons(axes, [dot.corners], order, fc=face, ec=color, lw=width)
        return
    size = 2 * dot.radius * POINTS
    axes.plot(*(dot.x, dot.y, "o"), ms=size, mfc=face, mec=color, mew=width, zorder=order)


def _corners(x: float, y: float, width: float, height: float) -> tuple[Point, ...]:
    return (x, y), (x + width, y), (x + width, y + height), (x, y + height)


def _polygons(
    axes: "Axes", corners: Sequence[Sequence[Point]], order: int, lw: float = 0, **look: object
) -> None:
    collections = require("matplotlib.collections", extra="plot")
    axes.add_collection(collections.PolyCollection(corners, lw=lw, zorder=order, **look))


def _write(axes: "Axes", words: Words, color: str, order: int) -> None:
    """Text as it stands: a dollar sign starts no formula."""
    axes.text(
        words.x,
        words.y,
        words.text,
        color=color,
        fontsize=words.size * POINTS,
        ha=ALIGN[words.anchor],
        va="baseline",
        weight="bold" if words.bold else "normal",
        rotation=90 if words.turned else 0,
        rotation_mode="anchor",
        parse_math=False,
        zorder=order,
    )
