"""A drawing as files: SVG always, PNG by matplotlib with the extra `plot`."""

import io
from pathlib import Path
from typing import TYPE_CHECKING

from fedtiny.drawing import palette, svg
from fedtiny.drawing.canvas import MARGIN, Boxes, Canvas, Dot, Line, Primitive, Text
from fedtiny.errors import FedTinyError, RunError
from fedtiny.extras import require
from fedtiny.runs.folder import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PIXELS_PER_INCH = 100
SCALE = 2  # pixels of the file for a pixel of the drawing
POINTS = 72 / PIXELS_PER_INCH
ALIGN = {"start": "left", "middle": "center", "end": "right"}


def write(canvas: Canvas, title: str, stem: Path) -> tuple[list[Path], str]:
    """Write a drawing in both forms; returns the paths, and the reason if there is no PNG."""
    vector, pixels = (stem.with_name(f"{stem.name}.{form}") for form in ("svg", "png"))
    write_atomically(vector, svg.standalone(canvas, title).encode())
    try:
        write_atomically(pixels, png(canvas))
    except RunError:
        raise
    except FedTinyError as error:
        return [vector], str(error)
    return [vector, pixels], ""


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
        _draw(axes, shape, palette.light(shape.color), order)
    out = io.BytesIO()
    agg.FigureCanvasAgg(figure).print_png(out, metadata={"Software": None})
    return out.getvalue()


def _draw(axes: "Axes", shape: Primitive, color: str, order: int) -> None:
    polygons = require("matplotlib.collections", extra="plot").PolyCollection
    match shape:
        case Boxes(boxes, _, opacity):
            corners = [((x, y), (x + w, y), (x + w, y + h), (x, y + h)) for x, y, w, h in boxes]
            axes.add_collection(polygons(corners, lw=0, fc=color, alpha=opacity, zorder=order))
        case Line(points, _, width, dashed):
            xs, ys = zip(*points, strict=True)
            dashes = "--" if dashed else "-"
            axes.plot(xs, ys, dashes, color=color, lw=width * POINTS, zorder=order)
        case Dot(x, y, radius, _, hollow):
            face, edge = ("white", 2 * POINTS) if hollow else (color, 0)
            if shape.form == "circle":
                size = 2 * radius * POINTS
                axes.plot(*(x, y, "o"), ms=size, mfc=face, mec=color, mew=edge, zorder=order)
            else:
                look = {"fc": face, "ec": color, "lw": edge}
                axes.add_collection(polygons([shape.corners], zorder=order, **look))
        case Text():
            _write(axes, shape, color, order)


def _write(axes: "Axes", text: Text, color: str, order: int) -> None:
    """Text as it stands: a dollar sign starts no formula."""
    axes.text(
        text.x,
        text.y,
        text.text,
        color=color,
        fontsize=text.size * POINTS,
        ha=ALIGN[text.anchor],
        va="baseline",
        weight="bold" if text.bold else "normal",
        rotation=90 if text.turned else 0,
        rotation_mode="anchor",
        parse_math=False,
        zorder=order,
    )
